"""Cuts bodies with one long table or list into parts that are decoded one after the other.

Decoding a body of 16 MB at once takes a tenth of a second or more. A worker thread does not help: msgspec holds the
GIL during that time.
"""

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from triomq_protocol.errors import BodyError
from triomq_protocol.wire.body import JsonCodec

PART_BYTES = 1 << 18
"""So much is read in one go."""

MOST_UNCUT_BYTES = 2 << 20
"""A longer body, or part of one, is not read: it does not have the form that brokers write."""

# A quotation mark within a text has a backslash before it, so this is not a part of one, for names without backslashes.
_BETWEEN_MEMBERS = re.compile(rb'\}(,)"[^"\\]*":\{')
_END_OF_TABLE = re.compile(rb"\}(\})")
_BETWEEN_LISTS = re.compile(rb"\](,)\[")
_END_OF_LISTS = re.compile(rb"\](\])")

B = TypeVar("B", bound=JsonCodec)


def table_parts(data: bytes, member: str, in_last: bytes, part_bytes: int = PART_BYTES) -> tuple[bytes, list[bytes]]:
    """A body with an empty table, and the table in parts, each a JSON object; the body alone if it is short or has
    another form than brokers write.

    Args:
        data: the body.
        member: the name of the table, whose members are objects.
        in_last: what all members have and nothing behind the table: in front of the end of the last one.
        part_bytes: the length of a part.
    """
    begin = data.find(b'"%b":{"' % member.encode()) if len(data) > part_bytes else -1
    if begin < 0:
        return data, []
    start = data.index(b"{", begin) + 1
    end = _END_OF_TABLE.search(data, data.rfind(in_last))
    if end is None or end.start(1) < start:
        return data, []
    stop = end.start(1)
    parts = [b"{%b}" % part for part in _cut(data, start, stop, _BETWEEN_MEMBERS, part_bytes)]
    return data[:start] + data[stop:], parts


def list_parts(data: bytes, member: str) -> tuple[bytes, list[bytes]]:
    """The same for a list of lists that hold no lists, and no text with a bracket; each part is a JSON array."""
    begin = data.find(b'"%b":[[' % member.encode()) if len(data) > PART_BYTES else -1
    if begin < 0:
        return data, []
    start = data.index(b"[", begin) + 1
    end = _END_OF_LISTS.search(data, start)
    if end is None:
        return data, []
    stop = end.start(1)
    return data[:start] + data[stop:], [b"[%b]" % part for part in _cut(data, start, stop, _BETWEEN_LISTS, PART_BYTES)]


def _cut(data: bytes, start: int, stop: int, between: re.Pattern[bytes], part_bytes: int) -> list[bytes]:
    """The bytes from `start` to `stop`, cut at the commas that the pattern finds."""
    parts = []
    while stop - start > part_bytes:
        cut = between.search(data, start + part_bytes, stop)
        if cut is None:
            break
        parts.append(data[start : cut.start(1)])
        start = cut.end(1)
    return [*parts, data[start:stop]]


def decode_in_parts(
    cls: type[B], data: bytes, rest: bytes, parts: Sequence[tuple[str, bytes]], add: Callable[[B, B], None]
) -> Generator[None, None, B]:
    """`cls.decode`, which yields after each part; returns the body.

    If the parts cannot be read, because they were cut wrongly in another form of JSON, a body that is short enough is
    read in one go.

    Args:
        cls: the body's class.
        data: the body.
        rest: the body without the parts.
        parts: members of the body, by name, and a part of each: see `table_parts` and `list_parts`.
        add: adds the content of another body, which has a single part, to a body.

    Raises:
        BodyError: it cannot be read, or is long and not in the form that brokers write.
    """
    check_uncut(cls, data, (rest, *(part for _, part in parts)))
    try:
        body = cls.decode(rest)
        for member, part in parts:
            yield
            add(body, cls.decode(b'{"%b":%b}' % (member.encode(), part)))
    except BodyError:
        if len(data) > MOST_UNCUT_BYTES:
            raise
    else:
        return body
    yield
    return cls.decode(data)


def check_uncut(cls: type[JsonCodec], data: bytes, parts: tuple[bytes, ...]) -> None:
    """Raise BodyError if a part of the body is too long to be read in one go."""
    if max(map(len, parts)) > MOST_UNCUT_BYTES:
        raise BodyError(cls.__name__, f"{len(data)} bytes, and in an unusual form")
