"""The audit: finds lost, repeated and altered messages."""
