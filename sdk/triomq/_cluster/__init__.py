"""What a client knows of its cluster: name servers, routes, heartbeats, which replica to read from."""
