"""Decisions about a run from its figures alone: whether it passed, whether it counts, and which rate is sustained."""
