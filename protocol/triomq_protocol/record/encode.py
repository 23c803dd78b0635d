"""Encodes records as a broker stores them, for one message and for a batch (upstream `CommitLog`'s append callback).

Nothing is checked here: the commit log checks the limits, because they depend on its settings and its files.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Generator, Sequence
from itertools import accumulate, count, repeat
from operator import add
from struct import Struct
from typing import NamedTuple, Protocol

from triomq_protocol.checksum import raw_crc32
from triomq_protocol.names import MAX_TOPIC_BYTES
from triomq_protocol.record.batch import Element
from triomq_protocol.record.layout import (
    ANY_HOST_V6,
    BATCH_HEADS,
    BATCH_PLACES,
    BLANK_MAGIC,
    BORN_HOST_V6,
    HEADS,
    IPV4_HOST_BYTES,
    MARK,
    MESSAGE_MAGIC,
    PROPERTIES_LENGTH,
    QUEUE_OFFSET_AT,
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
        at: start of the record.
        end: end of the record: the sum of `at`, the sizes of head, body and topic, `PROPERTIES_LENGTH.size` and the size
            of the properties.
        head: the Struct for the kinds of the two hosts, `HEAD_V4` or the result of `head_for`.
        sys_flag: with the IPv6 bits that match `head`.
        topic: from `encode_topic`.
        queue_offset: the record's queue offset.
        physical_offset: the record's log offset.
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
    """Write the mark that ends a log file; `size_bytes` is the number of bytes left in the file."""
    _write_mark(buffer, at, size_bytes, BLANK_MAGIC)


class EncodedBatch(NamedTuple):
    """The records of a batch.

    Attributes:
        data: their bytes, concatenated.
        entries: physical offset, size and tags code of one record after the other, as the consume queue keeps them.
        physical_offsets: where each begins.
    """

    data: bytearray
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
    return EncodedBatch(bytearray().join(parts), entries, offsets)


def write_batch(buffer: mmap.mmap | bytearray, at: int, batch: EncodedBatch) -> None:
    """Write a batch's records, their first eight bytes last and in order, which takes them from `batch.data`.

    A killed process leaves the records complete, or the first ones, or none. It may end in the middle of a copy, whose
    last bytes may be there and its first ones not: with their marks, later records would look sound behind a gap.
    """
    data, sizes = batch.data, batch.entries[1::3]
    begins = list(accumulate(sizes[:-1], initial=0))
    deque(map(_write_mark, repeat(data), begins, repeat(0), repeat(0)), maxlen=0)
    buffer[at : at + len(data)] = data
    deque(map(_write_mark, repeat(buffer), map(add, begins, repeat(at)), sizes, repeat(MESSAGE_MAGIC)), maxlen=0)


class UnplacedBatch:
    """The records of a large batch, encoded in slices before their place in queue and log is known.

    Args:
        shared, sys_flag, topic: as `encode_batch` takes them.
    """

    def __init__(self, shared: SharedFields, sys_flag: int, topic: bytes) -> None:
        self._shared = shared
        self._sys_flag = sys_flag
        self._topic = topic
        self.data: bytearray = bytearray()
        """The records."""
        self._begins: list[int] = []
        self._places: list[int] = []
        """For each record, its start in `data`, and the position of its offsets."""
        self.sizes: list[int] = []
        self.codes: list[int] = []
        """Size and tags code of each."""

    def add(self, elements: Sequence[Element], per_slice: int, slice_bytes: int) -> Generator[None, None, None]:
        """Encode all elements; yields after a given number of elements or bytes."""
        shared, data = self._shared, self.data
        common_head, head = BATCH_HEADS[len(shared.born_host), len(shared.store_host)]
        unknown = bytes(common_head.size)
        length_at = head.size + len(self._topic) + PROPERTIES_LENGTH.size
        for first in range(0, len(elements), per_slice):
            pause_at = len(data) + slice_bytes
            for flag, body, properties, _, _, code in elements[first : first + per_slice]:
                size = length_at + len(body) + len(properties)
                self._begins.append(len(data))
                self._places.append(len(data) + QUEUE_OFFSET_AT)
                self.sizes.append(size)
                self.codes.append(code)
                checksum = raw_crc32(body) & 0x7FFFFFFF
                data += head.pack(size, MESSAGE_MAGIC, checksum, shared.queue_id, flag, 0, 0, unknown, len(body))
                data += body
                data += self._topic
                data += _pack_length(len(properties))
                data += properties
                if len(data) >= pause_at:
                    pause_at = len(data) + slice_bytes
                    yield
            yield

    def place(self, queue_offset: int, physical_offset: int, store_timestamp: int) -> EncodedBatch:
        """Write what depends on the place into the records, the first of them at these offsets in queue and log."""
        shared = self._shared
        common_head, _ = BATCH_HEADS[len(shared.born_host), len(shared.store_host)]
        common = common_head.pack(
            self._sys_flag, shared.born_timestamp, shared.born_host, store_timestamp, shared.store_host,
            shared.reconsume_times, 0,
        )  # fmt: skip
        pack_into = BATCH_PLACES[common_head.size].pack_into
        # Loops in Python would take three times as long, and nothing else runs during that time.
        offsets = list(map(add, self._begins, repeat(physical_offset)))
        deque(map(pack_into, repeat(self.data), self._places, count(queue_offset), offsets, repeat(common)), maxlen=0)
        entries = [0] * (3 * len(offsets))
        entries[0::3], entries[1::3], entries[2::3] = offsets, self.sizes, self.codes
        return EncodedBatch(self.data, entries, offsets)
