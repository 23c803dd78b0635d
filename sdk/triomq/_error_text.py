"""The text of errors raised outside this package, by trio, the operating system, libraries, users' code; of values in
errors; and of peers in the log."""

from __future__ import annotations

from typing import Final

SHOWN_CHARACTERS: Final = 200
"""The most characters of a value that an error repeats: it may be a whole file's text, given by mistake."""


def shown(value: object) -> str:
    """A caller's value as errors show it: its ``repr``, of which a long one is cut off."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - an int of more than 4,300 digits has none, and a user's method may fail
        return f"a value of type {type(value).__name__} that has no text"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}... ({len(text)} characters)"


NAME_CHARS_MAX: Final = 255
"""The most characters of a peer's name or id in the log: it may have any."""


def one_line(text: str, most: int = NAME_CHARS_MAX) -> str:
    """The first characters of a peer's text for a log; unprintable ones become question marks, so that no line looks
    like two."""
    return "".join(each if each.isprintable() else "?" for each in text[:most])


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
