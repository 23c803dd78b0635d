"""Sub-commands of `triomq bench`."""
