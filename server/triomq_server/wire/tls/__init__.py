"""TLS on the ports of a server and on the links it dials: handshakes, certificates, records."""
