"""Delays of any length, composed of brokers' delay levels: a message that arrives before it is due is sent again.

A stock broker has 18 delay levels, the longest 2 hours. A longer wait takes several; so does one between two levels.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping

import triomq

Clock = Callable[[], int]
"""Returns the time in ms since 1970."""

LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""The levels of a stock broker's ``messageDelayLevel``, the first of which is 1."""

DUE_PROPERTY = "triomq-due"
"""The property with the time at which the message is due, in ms since 1970."""

_LONGEST_S = 400 * 365 * 86_400


def wall_ms() -> int:
    """The system's wall clock."""
    return time.time_ns() // 1_000_000


def delay_level(remaining_ms: float) -> int:
    """The longest level that does not exceed the remaining wait; 0 if the wait is over."""
    if remaining_ms <= 0:
        return 0
    # A shorter wait gets the first level: late by less than a second, but never early.
    return max(1, bisect_right(LEVELS_S, remaining_ms / 1000))


def due_after(delay: object, now_ms: int) -> int | None:
    """When a delayed message is due, in ms since 1970; None if it does not wait.

    Args:
        delay: seconds, as a number or as text; None: it does not wait.
        now_ms: the time in ms since 1970.

    Raises:
        InvalidCall: it is not a number of seconds.
    """
    if delay is None:
        return None
    try:
        seconds = float(delay)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not seconds <= _LONGEST_S:
        raise triomq.errors.InvalidCall(f"the delay is {delay!r}, not a number of seconds")
    return now_ms + math.ceil(seconds * 1000) if seconds > 0 else None


def message_due(
    topic: str, body: bytes, *, tags: str | None, keys: str | None, due_ms: int | None, now_ms: int
) -> triomq.Message:
    """A message that waits at the broker until `due_ms`, or for the longest level before it; None: it does not wait."""
    properties = {} if due_ms is None else {DUE_PROPERTY: str(due_ms)}
    level = 0 if due_ms is None else delay_level(due_ms - now_ms)
    return triomq.Message(topic, body, tags=tags, keys=keys, properties=properties, delay_level=level)


def due_of(properties: Mapping[str, str]) -> int | None:
    """When a received message is due, in ms since 1970; None if the property is missing or not a time."""
    due = properties.get(DUE_PROPERTY, "")
    return int(due) if due.isascii() and due.isdecimal() and len(due) < 20 else None


def remaining_ms(properties: Mapping[str, str], now_ms: int) -> int:
    """How long a received message still has to wait, in ms; 0 if it does not wait."""
    due_ms = due_of(properties)
    return 0 if due_ms is None else due_ms - now_ms
