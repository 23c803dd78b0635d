"""Handlers of clients' requests: send, pull, offsets, heartbeats, queries."""
