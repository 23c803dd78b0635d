"""Consuming: pull consumers are here, group members in `push` and `lite`, their common parts in `group`."""
