"""What a start or run of a store notes for the next one, in small files of `triomq/`."""
