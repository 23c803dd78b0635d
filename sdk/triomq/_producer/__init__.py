"""Sending: one attempt, its retries, callbacks, batches, and the choice of a queue."""
