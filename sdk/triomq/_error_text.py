"""The text of errors raised outside this package: by trio, the operating system, libraries, users' code."""

from __future__ import annotations


def error_text(error: BaseException) -> str:
    """The text of an error, or its class if it has no text, as many of trio's errors."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - a method of the user's error; it must not end the task that writes of it
        return type(error).__name__


def named_error(error: BaseException) -> str:
    """Class and text of an error, as the last line of a traceback has them."""
    name, text = type(error).__name__, error_text(error)
    return f"{name}: {text if text != name else ''}"
