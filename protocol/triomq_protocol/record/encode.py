"""Writing records: the encoders that a broker runs, for one message and for a batch (upstream `CommitLog`'s append
callback).

Nothing is checked here: the commit log checks the limits, because they depend on its settings and its files.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple, Protocol

from triomq_protocol.checksum import raw_crc32
from triomq_protocol.names import MAX_TOPIC_BYTES
from triomq_protocol.record.batch import Element
from triomq_protocol.record.layout import (
    ANY_HOST_V6,
    BATCH_HEADS,
    BLANK_MAGIC,
    BORN_HOST_V6,
    HEADS,
    IPV4_HOST_BYTES,
    MARK,
    MESSAGE_MAGIC,
    PROPERTIES_LENGTH,
    STORE_HOST_V6,
)

_write_mark, _pack_length = MARK.pack_into, PROPERTIES_LENGTH.pack


class Fields(Protocol):
    """The fields of a record that do not depend on its place in the log; the store's `NewRecord` has them."""

    queue_id: int
    body: bytes | memoryview
    properties: bytes
    flag: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int


class SharedFields(Protocol):
    """The fields that all records of a batch share; the store's `NewBatch` has them."""

    queue_id: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int


def head_for(born_host: bytes, store_host: bytes, sys_flag: int) -> tuple[Struct, int]:
    """The Struct of a record's head, and its sysFlag with the IPv6 bits set from the lengths of the two packed
    hosts."""
    sys_flag &= ~ANY_HOST_V6
    if len(born_host) != IPV4_HOST_BYTES:
        sys_flag |= BORN_HOST_V6
    if len(store_host) != IPV4_HOST_BYTES:
        sys_flag |= STORE_HOST_V6
    return HEADS[len(born_host), len(store_host)], sys_flag


def encode_topic(topic: str) -> bytes:
    """A topic as records carry it: the length in one byte, then the name. Empty if no record can carry it."""
    name = topic.encode()
    return bytes([len(name)]) + name if 0 < len(name) <= MAX_TOPIC_BYTES else b""


def write_record(
    buffer: mmap.mmap | bytearray,
    at: int,
    end: int,
    head: Struct,
    sys_flag: int,
    topic: bytes,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    fields: Fields,
) -> None:
    """Write one record; its first eight bytes come last, so that a killed process leaves a complete record or none.

    Args:
        buffer: the log file.
        at: where the record begins.
        end: where it ends: `at`, the sizes of head, body and topic, `PROPERTIES_LENGTH.size`, the size of the
            properties.
        head: the Struct for the kinds of the two hosts, `HEAD_V4` or the result of `head_for`.
        sys_flag: with the IPv6 bits that belong to `head`.
        topic: from `encode_topic`.
        queue_offset: place in the queue.
        physical_offset: place in the log.
        store_timestamp: now, in ms since 1970.
        fields: the message.
    """
    body = fields.body
    body_bytes = len(body)
    head.pack_into(
        buffer, at, 0, 0, raw_crc32(body) & 0x7FFFFFFF, fields.queue_id, fields.flag, queue_offset, physical_offset,
        sys_flag, fields.born_timestamp, fields.born_host, store_timestamp, fields.store_host, fields.reconsume_times,
        fields.prepared_transaction_offset, body_bytes,
    )  # fmt: skip
    body_at = at + head.size
    topic_at = body_at + body_bytes
    buffer[body_at:topic_at] = body
    properties = fields.properties
    buffer[topic_at:end] = topic + _pack_length(len(properties)) + properties
    _write_mark(buffer, at, end - at, MESSAGE_MAGIC)


def write_blank(buffer: mmap.mmap | bytearray, at: int, size_bytes: int) -> None:
    """Write the mark that ends a log file; `size_bytes` is what is left of the file."""
    _write_mark(buffer, at, size_bytes, BLANK_MAGIC)


class EncodedBatch(NamedTuple):
    """The records of a batch.

    Attributes:
        data: their bytes, concatenated.
        entries: physical offset, size and tags code of one record after the other, as the consume queue keeps them.
        physical_offsets: where each begins.
    """

    data: bytes
    entries: list[int]
    physical_offsets: list[int]


def encode_batch(
    elements: Sequence[Element],
    shared: SharedFields,
    sys_flag: int,
    topic: bytes,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
) -> EncodedBatch:
    """The records of a batch's elements, the first of them at these offsets in queue and log.

    `sys_flag` comes from `head_for`, `topic` from `encode_topic`.
    """
    common_head, head = BATCH_HEADS[len(shared.born_host), len(shared.store_host)]
    common = common_head.pack(
        sys_flag, shared.born_timestamp, shared.born_host, store_timestamp, shared.store_host, shared.reconsume_times, 0
    )
    pack_head, pack_length, checksum, magic = head.pack, _pack_length, raw_crc32, MESSAGE_MAGIC
    fixed_bytes = head.size + len(topic) + PROPERTIES_LENGTH.size
    queue_id = shared.queue_id
    parts: list[bytes] = []
    entries: list[int] = []
    offsets: list[int] = []
    length_before, before_properties = -1, b""
    for flag, body, properties, _, _, code in elements:
        body_bytes, properties_bytes = len(body), len(properties)
        size = fixed_bytes + body_bytes + properties_bytes
        if properties_bytes != length_before:
            length_before, before_properties = properties_bytes, topic + pack_length(properties_bytes)
        parts += (
            pack_head(
                size, magic, checksum(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, physical_offset, common,
                body_bytes,
            ),
            body,
            before_properties,
            properties,
        )  # fmt: skip
        entries += (physical_offset, size, code)
        offsets.append(physical_offset)
        queue_offset += 1
        physical_offset += size
    return EncodedBatch(b"".join(parts), entries, offsets)
