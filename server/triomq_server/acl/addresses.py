"""Patterns of white lists, and the addresses they cover (docs/protocol/remoting.md §11.2).

Upstream: `RemoteAddressStrategyFactory`. A pattern that cannot be read is an error, and never a wider list than its
author meant.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

Matcher = Callable[[str], bool]
"""Whether an address, without port and brackets, is covered."""

_EVERY = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_DIGITS = re.compile(r"[0-9]{1,3}")
_HEX_DIGITS = re.compile(r"[0-9A-Fa-f]{1,4}")
_MOST_BYTES = 4096


class PatternError(ValueError):
    """A pattern that cannot be read."""


def host_of(peer: str) -> str:
    """The address of a peer, ``ip:port``, without port and brackets."""
    return peer.rpartition(":")[0].strip("[]")


def matcher(pattern: str | None) -> Matcher:
    """The matcher of a pattern; a blank pattern covers nothing. Raises PatternError."""
    if pattern is None or not pattern.strip():
        return _nothing
    if len(pattern) > _MOST_BYTES:
        raise PatternError(f"an address pattern has {len(pattern)} characters; at most {_MOST_BYTES} are possible")
    if pattern in _EVERY:
        return _everything
    if pattern.endswith("}"):
        return _one_of(_braces(pattern))
    if "," in pattern:
        return _one_of([part for part in pattern.split(",") if part])
    if "*" in pattern or "-" in pattern:
        return _range6(pattern) if ":" in pattern else _range4(pattern)
    return _one_of([pattern])


def _nothing(_host: str) -> bool:
    return False


def _everything(_host: str) -> bool:
    return True


def _one_of(addresses: list[str]) -> Matcher:
    known = {_address(each) for each in addresses}

    def covers(host: str) -> bool:
        try:
            return ipaddress.ip_address(host) in known
        except ValueError:
            return False

    return covers


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise PatternError(f"{text!r} is not an IP address") from None


def _braces(pattern: str) -> list[str]:
    """The addresses of `10.0.0.{1,2}` or `fd00::{1,2}`: the braces list the values of the last component."""
    head, _, tail = pattern.partition("{")
    if not head.endswith((":", ".")) or "{" in tail:
        raise PatternError(f"{pattern!r}: only the last component of an address can be a list in braces")
    return [head + part for part in tail[:-1].split(",") if part]


def _bounds(pattern: str, text: str, digits: re.Pattern[str], base: int, most: int) -> tuple[int, int]:
    """The least and greatest value of a component: a number, `lo-hi`, or `*` for all."""
    if text == "*":
        return 0, most
    low, dash, high = text.partition("-")
    if not dash:
        high = low
    if not digits.fullmatch(low) or not digits.fullmatch(high):
        raise PatternError(f"{pattern!r}: {text!r} is not a number, a range or *")
    first, last = int(low, base), int(high, base)
    if not first <= last <= most:
        raise PatternError(f"{pattern!r}: {text!r} is not a range within 0 and {most:x}" if base == 16 else
                           f"{pattern!r}: {text!r} is not a range within 0 and {most}")  # fmt: skip
    return first, last


def _range4(pattern: str) -> Matcher:
    """`10.0.0.*`, `10.0.1-20.*`: one of the last three components is a range or *, and those after it are *."""
    parts = [part.strip() for part in pattern.split(".")]
    if len(parts) != 4:
        raise PatternError(f"{pattern!r} has not four components")
    first = next(index for index, part in enumerate(parts) if "*" in part or "-" in part)
    if first == 0:
        raise PatternError(f"{pattern!r}: the first component cannot be a range; * alone covers every address")
    if any(part != "*" for part in parts[first + 1 :]):
        raise PatternError(f"{pattern!r}: behind a range or * there can only be *")
    bounds = [_bounds(pattern, part, _DIGITS, 10, 255) for part in parts]

    def covers(host: str) -> bool:
        try:
            packed = ipaddress.IPv4Address(host).packed
        except ValueError:
            return False
        return all(low <= value <= high for value, (low, high) in zip(packed, bounds, strict=True))

    return covers


def _range6(pattern: str) -> Matcher:
    """`fd00::1:*`, `fd00::1-20`, `fd00::1-20:*`: the last component is a range or *, or the one before a final *."""
    parts = pattern.split(":")
    ranges = 1
    if parts[-1] == "*" and "-" in parts[-2]:
        ranges = 2
    fixed = ":".join(parts[:-ranges])
    if fixed.endswith(":"):  # the :: is the end of the fixed part
        fixed += ":" if not fixed.endswith("::") else ""
    if "*" in fixed or "-" in fixed:
        raise PatternError(f"{pattern!r}: a range can only be last, or last but one before a *")
    groups = 8 - ranges
    head, double, tail = fixed.partition("::")
    left, right = [p for p in head.split(":") if p], [p for p in tail.split(":") if p]
    missing = groups - len(left) - len(right)
    if "::" in tail or (missing < 1 if double else missing != 0):
        raise PatternError(f"{pattern!r} has not eight components")
    texts = [*left, *["0"] * (missing if double else 0), *right, *parts[-ranges:]]
    bounds = [_bounds(pattern, text, _HEX_DIGITS, 16, 0xFFFF) for text in texts]

    def covers(host: str) -> bool:
        try:
            packed = ipaddress.IPv6Address(host).packed
        except ValueError:
            return False
        values = [int.from_bytes(packed[at : at + 2], "big") for at in range(0, 16, 2)]
        return all(low <= value <= high for value, (low, high) in zip(values, bounds, strict=True))

    return covers
