"""A client's view of its cluster: name servers, routes, heartbeats, choice of replicas."""
