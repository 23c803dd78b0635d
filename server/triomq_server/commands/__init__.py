"""Sub-commands of `triomq` that belong to the server."""
