"""Measurements of replication and failover."""
