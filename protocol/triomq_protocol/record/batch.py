"""The body of a batch request: producers join messages into it, brokers split it again (docs/protocol/messages.md §7).

Splitting is fast, because most messages per second come in batches. Upstream `MessageDecoder.encodeMessage` and
`CommitLog`'s append callback for batches.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Generator
from typing import NamedTuple

from triomq_protocol.errors import BodyError, LocalProtocolError
from triomq_protocol.filters.tags import tags_code
from triomq_protocol.names import KEYS, MAX_PROPERTIES_BYTES, TAGS, UNIQ_KEY
from triomq_protocol.properties import get_property
from triomq_protocol.record.layout import (
    BATCH_ELEMENT_BODY_AT,
    BATCH_ELEMENT_FIXED_BYTES,
    BATCH_ELEMENT_HEAD,
    BATCH_ELEMENT_SHAPE,
    PROPERTIES_LENGTH,
)

_UNIQUE_KEY_MARK, _KEYS_MARK, _TAGS_MARK = (name.encode() + b"\x01" for name in (UNIQ_KEY, KEYS, TAGS))

Element = tuple[int, bytes, bytes, str | None, str | None, int]
"""Flag, body, final properties; and of these UNIQ_KEY, KEYS and the code of the tags."""


def encode_batch_element(body: bytes, properties: bytes, flag: int = 0) -> bytes:
    """One message as a batch carries it. Raises LocalProtocolError if the properties are too long."""
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise LocalProtocolError(f"properties of {len(properties)} bytes")
    size = BATCH_ELEMENT_FIXED_BYTES + len(body) + len(properties)
    head = BATCH_ELEMENT_HEAD.pack(size, 0, 0, flag, len(body))
    return b"".join((head, body, PROPERTIES_LENGTH.pack(len(properties)), properties))


class Batch(NamedTuple):
    """A batch's elements, the bytes of all their bodies and properties, and the length of the longest properties."""

    elements: list[Element]
    total_bytes: int
    longest_properties_bytes: int


def split_batch(data: bytes | memoryview, shared: bytes) -> Batch:
    """The elements of a batch; `shared`, the batch's own properties, is added to each element's properties.

    Raises:
        BodyError: the batch is malformed.
    """
    try:
        next(split_in_slices(data, shared, sys.maxsize))
    except StopIteration as end:
        batch: Batch = end.value
        return batch
    raise AssertionError("no batch has so many bytes")


def split_in_slices(data: bytes | memoryview, shared: bytes, slice_bytes: int) -> Generator[None, None, Batch]:
    """`split_batch` for a batch of any size: yields after reading a given number of bytes.

    Brokers ignore an element's size, magic and checksum. The elements of a batch mostly have the same properties except
    for the unique key; such properties are not parsed again for each element.
    """
    body = bytes(data)
    end = len(body)
    at = total = longest = 0
    pause_at = slice_bytes
    elements: list[Element] = []
    read_head, read_length, body_after = (
        BATCH_ELEMENT_SHAPE.unpack_from,
        PROPERTIES_LENGTH.unpack_from,
        BATCH_ELEMENT_BODY_AT,
    )
    # The properties of the element before, as far as they may repeat: around its unique key.
    lead = trail = tail = b""
    like_bytes = key_at = key_end = -1
    misses = 0
    keys: str | None = None
    tags: str | None = None
    code = 0
    try:
        while at < end:
            if at >= pause_at:
                pause_at = at + slice_bytes
                yield
            flag, body_bytes = read_head(body, at)
            body_at = at + body_after
            properties_at = body_at + body_bytes + 2
            (properties_bytes,) = read_length(body, properties_at - 2)
            following = properties_at + properties_bytes
            if body_bytes < 0 or properties_bytes < 0 or following > end:
                raise BodyError(
                    "batch", f"body of {body_bytes} and properties of {properties_bytes} bytes at {at} of {end}"
                )
            at = following
            own = body[properties_at:at]
            if (
                properties_bytes == like_bytes
                and own.startswith(lead)
                and own.endswith(trail)
                and (key := own[key_at:key_end]).isalnum()
            ):
                unique_key: str | None = key.decode()
                properties = own + tail
                misses = 0
            else:
                properties = join_properties(own, shared)
                unique_key, keys = _value(properties, _UNIQUE_KEY_MARK), _value(properties, _KEYS_MARK)
                own_tags = _value(properties, _TAGS_MARK)
                if own_tags != tags:
                    tags, code = own_tags, tags_code(own_tags) if own_tags else 0
                like_bytes = -1
                # If each element differs in another property too, preparing for a repetition is useless.
                misses += 1
                if (
                    (misses < 4 or not misses % 64)
                    and unique_key
                    and properties.count(_UNIQUE_KEY_MARK) == 1 == own.count(_UNIQUE_KEY_MARK)
                ):
                    key_at = own.find(_UNIQUE_KEY_MARK) + len(_UNIQUE_KEY_MARK)
                    key_end = key_at + len(unique_key)
                    if own[key_at:key_end].isalnum():
                        lead, trail, tail = own[:key_at], own[key_end:], properties[len(own) :]
                        like_bytes = properties_bytes
            whole_bytes = len(properties)
            if whole_bytes > longest:
                longest = whole_bytes
            total += body_bytes + whole_bytes
            elements.append((flag, body[body_at : properties_at - 2], properties, unique_key, keys, code))
    except struct.error as error:
        raise BodyError("batch", f"it ends inside the element at {at} of {end} bytes") from error
    return Batch(elements, total, longest)


def _value(properties: bytes, mark: bytes) -> str | None:
    """What `get_property` gives for one name, without decoding the others."""
    at = properties.rfind(mark)
    if at < 0:
        return None
    value_at = at + len(mark)
    end = properties.find(2, value_at)
    value = properties[value_at:] if end < 0 else properties[value_at:end]
    if not value or (at and properties[at - 1] != 2):
        # Part of another name or value, or empty: an earlier one may be meant.
        return get_property(str(properties, "utf-8", "replace"), str(mark[:-1], "utf-8"))
    return str(value, "utf-8", "replace")


def join_properties(own: bytes, shared: bytes) -> bytes:
    """An element's own properties, then the batch's, one separator between."""
    if own and shared and own[-1] != 2:
        return own + b"\x02" + shared
    return own + shared
