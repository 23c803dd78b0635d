"""Tag codes and tag subscriptions (docs/protocol/messages.md §6)."""

import re
from functools import lru_cache
from typing import Final

import msgspec

from triomq_protocol.errors import LocalProtocolError
from triomq_protocol.java_text import index_key_hash, java_hash, java_hash_with_prefix, java_long_hash, select_by_hash

__all__ = [
    "TagFilter",
    "check_tags",
    "index_key_hash",
    "java_hash",
    "java_hash_with_prefix",
    "java_long_hash",
    "parse_subscription",
    "read_tags",
    "select_by_hash",
    "tags_code",
]

_SQL: Final = re.compile(r"[<>]|\s=|=[\s'\"]|[\w)'\"]\s+(?:AND|OR|IS|IN|BETWEEN)\s|\bNOT\s+\w", re.ASCII)
"""Matches text that looks like SQL92, but no plain tags: these may have blanks, `=`, quotes and non-ASCII letters."""

_TAG_CODES: dict[str, int] = {}
_TAG_CODES_MAX = 4096


def tags_code(tags: str | None) -> int:
    """The 64-bit tag field of a consume queue entry: the hash of the whole TAGS value, 0 if there is none."""
    if not tags:
        return 0
    code = _TAG_CODES.get(tags)
    if code is None:
        code = java_hash(tags)
        if (
            len(_TAG_CODES) < _TAG_CODES_MAX and len(tags) <= 64
        ):  # programs use few tags; a flood of different ones must not fill the memory
            _TAG_CODES[tags] = code
    return code


class TagFilter(msgspec.Struct, frozen=True):
    """A parsed tag subscription.

    Attributes:
        expression: as given, `*` if it was empty.
        tags: the wanted tags in the order given; empty means all.
        codes: their hashes, which a broker compares with the tags code of an entry.
    """

    expression: str
    tags: tuple[str, ...]
    codes: frozenset[int]

    def matches_tag(self, tag: str | None) -> bool:
        """The consumer's exact test."""
        return not self.tags or tag in self.tags


def read_tags(expression: str | None) -> TagFilter:
    """Parse `A || B`. None, empty and `*` mean all. Raises LocalProtocolError for an expression without any tag."""
    if not expression or expression == "*":
        return TagFilter("*", (), frozenset())
    # Java's trim() cuts everything up to U+0020, and only that.
    blanks = "".join(map(chr, range(0x21)))
    parts = (part.strip(blanks) for part in expression.split("||"))
    tags = tuple(dict.fromkeys(part for part in parts if part))
    if not tags:
        raise LocalProtocolError(f"subscription {expression!r} names no tag")
    return TagFilter(expression, tags, frozenset(map(java_hash, tags)))


parse_subscription: Final = lru_cache(4096)(read_tags)
"""`read_tags` for programs whose expressions are their own: it keeps the results."""


def check_tags(expression: str | None) -> TagFilter:
    """Parse a user's tags, `A || B`: like :func:`parse_subscription`, which brokers need, but accepts only plain tags.

    RocketMQ takes `A && B`, or an SQL92 expression in place of tags, as a single tag: the subscription would match
    nothing.

    Raises:
        LocalProtocolError: it has no tag, contains `&&`, or looks like an SQL92 expression.
    """
    parsed = parse_subscription(expression)
    if any("&&" in tag for tag in parsed.tags):
        raise LocalProtocolError(
            f"{expression!r} has &&, but a message has one tag; only || joins tags, and SQL92 has AND for properties"
        )
    if any(map(_SQL.search, parsed.tags)):
        raise LocalProtocolError(
            f"{expression!r} is not a list of tags like 'a || b', but reads like an SQL92 expression"
        )
    return parsed
