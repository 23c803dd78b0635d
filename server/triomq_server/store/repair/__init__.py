"""Damaged parts of the log and damaged entries of queues: found, and replaced so that readers get past them."""
