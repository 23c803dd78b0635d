"""Starts clusters: in a thread for tests, for the workers of one run of pytest, for `triomq run`."""
