"""Consuming: pull consumers here; group members in `push` and `lite`, what they share in `group`."""
