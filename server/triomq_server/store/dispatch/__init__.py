"""Dispatch: what follows from records in the log, for own appends and for bytes that a master has sent."""
