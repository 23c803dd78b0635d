"""The machinery of `triomq.blocking`: one thread with a trio loop, and calls into it."""
