"""Committed offsets of consumer groups, progress of delay levels, and times of offset resets."""
