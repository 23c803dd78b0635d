"""Flushing: forces the log to the disk, handles failed flushes, and releases the sends that wait for it."""
