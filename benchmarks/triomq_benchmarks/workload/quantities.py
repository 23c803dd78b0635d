"""Durations, sizes, rates and shares as people write them: `20 s`, `1 KiB`, `5000/s`, `2.5 %`.

A number without its unit is refused, except where the unit is no question (a rate is messages per second).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

_DURATIONS: Mapping[str, float] = {
    "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0,
}  # fmt: skip
_SIZES: Mapping[str, float] = {
    "b": 1, "byte": 1, "bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
    "kb": 1e3, "mb": 1e6, "gb": 1e9,
}  # fmt: skip
_RATES: Mapping[str, float] = {"/s": 1.0, "/sec": 1.0, "k/s": 1e3, "/min": 1 / 60, "/m": 1 / 60, "/h": 1 / 3600}
_PARTS = re.compile(r"\s*((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]+)?)\s*([^\s0-9,._]*)\s*\Z")
"""A comma separates thousands; `2,5` would be 25 without it, and is 2.5 to many."""


class QuantityError(ValueError):
    """A text is not a valid quantity; the message has the text and the right format."""


def _parse(value: object, units: Mapping[str, float], kind: str, example: str, bare: float | None = None) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise QuantityError(f"{value!r} is not a {kind}; write it like {example}")
    if isinstance(value, int | float):
        # Not by its text, which is like 1e-05 for small and large numbers.
        if not 0 <= value <= sys.float_info.max / max(1, *units.values()):
            shown = repr(value) if abs(value) <= sys.float_info.max else "a number that is not finite"
            raise QuantityError(f"{shown} is not a {kind}; write it like {example}")
        if bare is None:
            raise QuantityError(f"{value!r} is a {kind} without its unit; write it like {example}")
        return float(value) * bare
    match = _PARTS.match(value)
    if match is None:
        comma = ", with a point instead of a comma" if "," in value else ""
        raise QuantityError(f"{value!r} is not a {kind}; write it like {example}{comma}")
    number, unit = float(match[1].replace("_", "").replace(",", "")), match[2].lower()
    if not number * max(units.values()) <= sys.float_info.max:
        raise QuantityError(f"a {kind} of {len(match[1])} digits is too large; write it like {example}")
    if not unit:
        if bare is None:
            raise QuantityError(f"{value!r} is a {kind} without its unit; write it like {example}")
        return number * bare
    if unit not in units:
        raise QuantityError(
            f"{match[2]!r} is not a unit of a {kind}; there are {', '.join(units)}, for example {example}"
        )
    return number * units[unit]


def duration_s(value: object) -> float:
    """Parse a duration such as `20 s`, `500 ms`, `2 min` into seconds. Raises QuantityError."""
    return _parse(value, _DURATIONS, "duration", '"20 s"')


def size_bytes(value: object) -> int:
    """Parse a size such as `1 KiB`, `64 MiB`, `100 bytes` into bytes. Raises QuantityError."""
    size = _parse(value, _SIZES, "size", '"1 KiB"')
    if size != int(size):
        raise QuantityError(f"{value!r} is not a whole number of bytes")
    return int(size)


def rate_per_s(value: object) -> float:
    """Parse a rate such as `5000/s`, `5 k/s`, or a bare number into messages per second. Raises QuantityError."""
    text = re.sub(r"\s*/\s*", "/", value) if isinstance(value, str) else value
    return _parse(text, _RATES, "rate", '"5000/s"', bare=1.0)


def share(value: object) -> float:
    """Parse a part of a whole, such as `25 %` or `0.25`, into a number from 0 to 1. Raises QuantityError."""
    part = _parse(value, {"%": 0.01}, "share", '"25 %"', bare=1.0)
    if part > 1:
        raise QuantityError(f'{value!r} is more than the whole; write it like "25 %" or 0.25')
    return part
