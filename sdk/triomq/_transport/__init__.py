"""Connections to peers: dialing, one link, and the links of a client."""
