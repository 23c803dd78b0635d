"""Times and durations as users write them in options. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

TIME_FORM: Final = (
    "milliseconds since 1970 (1700000000000), or ISO 8601 with a zone (2023-11-14T22:13:20Z, 2023-11-14T23:13:20+01:00)"
)
DURATION_FORM: Final = "a number and one of the units ms, s, m, h, d, like 30s or 15m"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MS: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_TOO_LATE: Final = "which is after the year 9999; times are in milliseconds since 1970"
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def time_ms_of(text: str) -> int:
    """A point in time, in ms since 1970; a fraction of a millisecond is rounded up, as no message is stored within one.

    Raises:
        ValueError: it has neither form, has no zone, or is before 1970 or after 9999; the text continues "NAME is
            VALUE, ".
    """
    if text.isascii() and text.isdecimal():
        # Brokers take a time as 64 bits, but a year after 9999 is a mistake.
        if len(text) > len(str(_LATEST_MS)) or int(text) > _LATEST_MS:
            raise ValueError(_TOO_LATE)
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"which is not a time; the form is {TIME_FORM}") from None
    if moment.tzinfo is None:
        raise ValueError(
            f"which has no zone: append Z for UTC, or an offset like +01:00, with the time of day; the form is {TIME_FORM}"
        )
    if moment < _EPOCH:
        raise ValueError("which is before 1970")
    time_ms = -((_EPOCH - moment) // timedelta(milliseconds=1))
    if time_ms > _LATEST_MS:  # the last hours of 9999 in a zone west of Greenwich
        raise ValueError(_TOO_LATE)
    return time_ms


def time_text(time_ms: int) -> str:
    """A time as shown in errors: ISO 8601 in UTC, and the milliseconds."""
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    return f"{moment.isoformat(timespec='milliseconds').replace('+00:00', 'Z')} ({time_ms})"


def duration_s_of(text: str) -> float:
    """A duration in seconds.

    Raises:
        ValueError: it is not of the form `15m`; the text continues "NAME is VALUE, ".
    """
    found = re.fullmatch(r"([0-9]{1,12}) ?([a-z]+)", text.lower())
    unit = _UNITS_S.get(found[2]) if found else None
    if found is None or unit is None:
        raise ValueError(f"which is not a duration; the form is {DURATION_FORM}")
    return int(found[1]) * unit
