"""The stored message record: the same bytes in the commit log, the replication stream and a pull answer."""
