"""Notes that a start or run of a store leaves for the next start, as small files in `triomq/`."""
