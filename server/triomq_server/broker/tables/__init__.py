"""What a broker remembers: topics, groups, offsets, clients, filters, statistics. No table answers a request."""
