"""Taking a producer's batch apart (store.md §7), fast: a batch is where most messages per second come from."""

from __future__ import annotations

import struct
from typing import NamedTuple

from triomq_protocol.errors import BodyError
from triomq_protocol.properties import KEYS, TAGS, UNIQ_KEY, get_property
from triomq_protocol.record import iter_batch
from triomq_protocol.tags import tags_code

_HEAD = struct.Struct(">12xii")  # total size, magic and checksum, all three ignored; flag, body length
_LENGTH = struct.Struct(">h")
_UNIQUE_KEY_MARK = b"UNIQ_KEY\x01"

Element = tuple[int, bytes, bytes, str | None, str | None, int]
"""Flag, body, final properties; and of these UNIQ_KEY, KEYS and the code of the tags."""


class Batch(NamedTuple):
    """A batch's elements, the bytes of all their bodies and properties, and the length of the longest properties."""

    elements: list[Element]
    total_bytes: int
    longest_properties_bytes: int


def split_batch(data: bytes | memoryview, shared: bytes) -> Batch:
    """The elements of a batch; `shared`, the batch's own properties, is joined to those of each.

    The elements of one batch have mostly the same properties but for the unique key. One that is like the element before
    it is not looked into again.

    Raises:
        BodyError: the batch is malformed.
    """
    body = bytes(data)
    end = len(body)
    at = total = longest = 0
    elements: list[Element] = []
    read_head, read_length = _HEAD.unpack_from, _LENGTH.unpack_from
    # The properties of the element before, as far as they may repeat: around its unique key.
    lead = trail = tail = b""
    like_bytes = key_at = key_end = -1
    keys: str | None = None
    code = 0
    try:
        while at < end:
            flag, body_bytes = read_head(body, at)
            body_at = at + 20
            properties_at = body_at + body_bytes + 2
            (properties_bytes,) = read_length(body, properties_at - 2)
            at = properties_at + properties_bytes
            if body_bytes < 0 or properties_bytes < 0 or at > end:
                raise BodyError("batch", "an element's lengths do not fit")
            own = body[properties_at:at]
            if (
                properties_bytes == like_bytes
                and own.startswith(lead)
                and own.endswith(trail)
                and (key := own[key_at:key_end]).isalnum()
            ):
                unique_key: str | None = key.decode()
                properties = own + tail
            else:
                properties = join_properties(own, shared)
                text = str(properties, "utf-8", "replace")
                unique_key, keys, code = get_property(text, UNIQ_KEY), get_property(text, KEYS), _tags_code(text)
                like_bytes = -1
                if unique_key and properties.count(_UNIQUE_KEY_MARK) == 1 == own.count(_UNIQUE_KEY_MARK):
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
        for _ in iter_batch(data):  # says what exactly is wrong
            pass
        raise BodyError("batch", "it ends inside an element") from error
    return Batch(elements, total, longest)


def _tags_code(text: str) -> int:
    tags = get_property(text, TAGS)
    return tags_code(tags) if tags else 0


def join_properties(own: bytes, shared: bytes) -> bytes:
    """An element's own properties, then the batch's, one separator between."""
    if own and shared and own[-1] != 2:
        return own + b"\x02" + shared
    return own + shared
