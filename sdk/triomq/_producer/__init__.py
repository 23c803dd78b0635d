"""Sending: the producer, sends with a callback, batches, transactions, requests and traces."""
