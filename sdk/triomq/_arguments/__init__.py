"""Checks of callers' arguments: their types, their numbers, and whether functions are async."""
