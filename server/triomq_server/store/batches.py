"""Taking a producer's batch apart (store.md §7), fast: a batch is where most messages per second come from."""

from __future__ import annotations

import struct

from triomq_protocol.errors import BodyError
from triomq_protocol.record import iter_batch

_HEAD = struct.Struct(">iiiii")  # total size, magic and checksum, all three ignored; flag, body length
_LENGTH = struct.Struct(">h")


def split_batch(data: bytes | memoryview, shared: bytes) -> list[tuple[int, bytes, bytes]]:
    """(flag, body, properties) of each element; `shared`, the batch's own properties, joined to each.

    Raises BodyError for a malformed batch.
    """
    body = bytes(data)
    end = len(body)
    at = 0
    elements = []
    read_head, read_length = _HEAD.unpack_from, _LENGTH.unpack_from
    try:
        while at < end:
            _, _, _, flag, body_bytes = read_head(body, at)
            body_at = at + 20
            properties_at = body_at + body_bytes + 2
            (properties_bytes,) = read_length(body, properties_at - 2)
            at = properties_at + properties_bytes
            if body_bytes < 0 or properties_bytes < 0 or at > end:
                raise BodyError("batch", "an element's lengths do not fit")
            properties = body[properties_at:at]
            elements.append((flag, body[body_at : properties_at - 2], join_properties(properties, shared)))
    except struct.error as error:
        for _ in iter_batch(data):  # says what exactly is wrong
            pass
        raise BodyError("batch", "it ends inside an element") from error
    return elements


def join_properties(own: bytes, shared: bytes) -> bytes:
    """An element's own properties, then the batch's, one separator between."""
    if own and shared and own[-1] != 2:
        return own + b"\x02" + shared
    return own + shared
