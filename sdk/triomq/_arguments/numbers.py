"""Checks callers' numbers: counts, sizes, seconds; reads numbers in texts of others."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, Final, TypeGuard

import attrs

from triomq._error_text import shown
from triomq.errors import InvalidCall

INT64_MAX: Final = 2**63 - 1
"""The largest number of requests; servers refuse a larger one without its name."""


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number that a float can have; True and False are ints in Python, and were meant for something
    else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or value.bit_length() < sys.float_info.max_exp


def check_count(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raise :class:`InvalidCall` unless an argument is a whole number in its range, of at most 64 bits by default."""
    if most is None and isinstance(value, int) and value > INT64_MAX:
        most = INT64_MAX
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        bounds = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise InvalidCall(f"{name} is {shown(value)}, not a whole number {bounds}")


def check_seconds(name: str, value: object, *, zero: bool = False) -> None:
    """Raise :class:`InvalidCall` unless an argument is a number of seconds above 0, or 0 where that has a meaning."""
    if not is_number(value) or not (value > 0 or (zero and value == 0)):  # nor nan
        raise InvalidCall(f"{name} is {shown(value)}, not a number of seconds {'from' if zero else 'above'} 0")


def check_wait(value: object) -> None:
    """Raise :class:`InvalidCall` unless ``wait_s`` is a number of seconds from 0; infinity is one."""
    if not is_number(value) or not value >= 0:  # nor nan
        raise InvalidCall(f"wait_s is {shown(value)}, not at least 0")


def check_share(name: str, value: object) -> None:
    """Raise :class:`InvalidCall` unless an argument is a number from 0 to 1."""
    if not is_number(value) or not 0 <= value <= 1:
        raise InvalidCall(f"{name} is {shown(value)}, not a number from 0 to 1")


def seconds(*, zero: bool = False) -> Callable[[object, attrs.Attribute[Any], object], None]:
    """:func:`check_seconds` for an attribute of an attrs class."""
    return lambda _options, attribute, value: check_seconds(attribute.name, value, zero=zero)


def seconds_between(low: float, high: float) -> Callable[[object, attrs.Attribute[Any], object], None]:
    """For an attribute of an attrs class: a number of seconds in a range."""

    def check(_options: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not is_number(value) or not low <= value <= high:
            raise InvalidCall(f"{attribute.name} is {shown(value)}, not a number of seconds between {low} and {high}")

    return check


def share(_options: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """:func:`check_share` for an attribute of an attrs class."""
    check_share(attribute.name, value)


def counts(least: int, most: int | None = None) -> Callable[[object, attrs.Attribute[Any], object], None]:
    """:func:`check_count` for an attribute of an attrs class."""
    return lambda _options, attribute, value: check_count(attribute.name, value, least, most)


def whole_number(text: str) -> int | None:
    """The number that a text of 1 to 19 digits is; None for any other text. ``int`` fails for thousands of digits, and
    for some characters that ``str.isdigit`` accepts."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def finite_number(text: str) -> float | None:
    """The number that a text is; None for any other text, and for NaN and infinity, which no page or comparison can use."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
