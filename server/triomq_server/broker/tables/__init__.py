"""The broker's tables: topics, groups, offsets, clients, filters, statistics. No table answers a request."""
