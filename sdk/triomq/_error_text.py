"""The text of errors that others raise: trio, the operating system, libraries."""

from __future__ import annotations


def error_text(error: BaseException) -> str:
    """What an error says, or what it is where it says nothing, as many of trio's do."""
    return str(error) or type(error).__name__
