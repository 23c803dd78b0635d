"""Recovery, when a store is opened: finds the end of the log, and makes queues and index agree with it."""
