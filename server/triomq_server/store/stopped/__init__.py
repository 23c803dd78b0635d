"""Checks and repairs of the store of a stopped broker, from another copy or from its own content."""
