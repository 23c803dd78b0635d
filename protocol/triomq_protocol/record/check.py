"""Reads a log's bytes back, record by record, with the test of recovery and dispatch (docs/protocol/store.md §14.2).

In addition to Java's test, a record's log offset is compared with its position. `RecordView` reads a record that is
known to be complete. Upstream `CommitLog.checkMessageAndReturnSize`.
"""

from __future__ import annotations

import mmap
from enum import Enum

import msgspec

from triomq_protocol.checksum import crc32
from triomq_protocol.record.layout import (
    BLANK_MAGIC,
    BODY_AFTER_TIMESTAMP,
    BODY_AFTER_TIMESTAMP_V6,
    BODY_LENGTH_BEFORE_BODY,
    BORN_HOST_V6,
    CHECKED,
    FIXED_BYTES,
    INT32,
    INT64,
    MARK,
    MESSAGE_MAGIC,
    PLACE,
    PROPERTIES_LENGTH,
    STORE_HOST_V6,
    STORE_TIMESTAMP_AT,
    STORE_TIMESTAMP_AT_V6,
    SYS_FLAG_AT,
    TAIL_LENGTHS_BYTES,
    TOPIC_LENGTH_BYTES,
)


class Finding(Enum):
    """What the log holds instead of the expected record."""

    BLANK = "the end-of-file mark"
    NOTHING = "zeros: nothing was written here"
    INCOMPLETE = "a record whose end is missing"
    BAD_MAGIC = "neither a record nor an end-of-file mark"
    BAD_LENGTH = "a record whose lengths disagree"
    BAD_OFFSET = "a record that belongs elsewhere in the log"
    BAD_CRC = "a record whose body does not match its checksum"
    TORN = "a record whose last part was never written"


class LogRecord(msgspec.Struct, gc=False):
    """The fields of a record that dispatch uses."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    properties: bytes


def read_record(  # noqa: C901 - one test after the other, in the format's order
    buffer: mmap.mmap | bytes, at: int, end: int, offset: int, *, check_crc: bool
) -> LogRecord | Finding:
    """The record at `buffer[at]`, log offset `offset`; nothing at or after `end` is read. Never raises."""
    if end - at < MARK.size:
        return Finding.INCOMPLETE if end > at else Finding.NOTHING
    size, magic = MARK.unpack_from(buffer, at)
    if magic != MESSAGE_MAGIC:
        if magic == BLANK_MAGIC:
            return Finding.BLANK
        return Finding.NOTHING if size == 0 and magic == 0 else Finding.BAD_MAGIC
    if size < FIXED_BYTES:
        return Finding.BAD_LENGTH
    if at + size > end:
        return Finding.INCOMPLETE
    _, _, crc, queue_id, queue_offset, physical_offset, sys_flag = CHECKED.unpack_from(buffer, at)
    if physical_offset != offset:
        return Finding.BAD_OFFSET
    time_at = at + (STORE_TIMESTAMP_AT_V6 if sys_flag & BORN_HOST_V6 else STORE_TIMESTAMP_AT)
    body_at = time_at + (BODY_AFTER_TIMESTAMP_V6 if sys_flag & STORE_HOST_V6 else BODY_AFTER_TIMESTAMP)
    stop = at + size
    if body_at + TAIL_LENGTHS_BYTES > stop:
        return Finding.BAD_LENGTH
    (body_bytes,) = INT32.unpack_from(buffer, body_at - BODY_LENGTH_BEFORE_BODY)
    topic_at = body_at + body_bytes + TOPIC_LENGTH_BYTES
    if body_bytes < 0 or topic_at + PROPERTIES_LENGTH.size > stop:
        return Finding.BAD_LENGTH
    properties_at = topic_at + buffer[topic_at - TOPIC_LENGTH_BYTES] + PROPERTIES_LENGTH.size
    if properties_at > stop:
        return Finding.BAD_LENGTH
    (properties_bytes,) = PROPERTIES_LENGTH.unpack_from(buffer, properties_at - PROPERTIES_LENGTH.size)
    if properties_bytes < 0 or properties_at + properties_bytes != stop:
        return Finding.BAD_LENGTH
    if check_crc and crc32(buffer[body_at : body_at + body_bytes]) != crc:
        return Finding.BAD_CRC
    return LogRecord(
        offset,
        size,
        str(buffer[topic_at : properties_at - PROPERTIES_LENGTH.size], "utf-8", "replace"),
        queue_id,
        queue_offset,
        sys_flag,
        INT64.unpack_from(buffer, time_at)[0],
        buffer[properties_at:stop],
    )


def claimed_size(data: bytes | memoryview, physical_offset: int) -> int:
    """Size of the record that these bytes begin with, if they claim to be the one at this log offset; else 0."""
    if len(data) < PLACE.size:
        return 0
    size, magic, own_offset = PLACE.unpack_from(data)
    return int(size) if magic == MESSAGE_MAGIC and own_offset == physical_offset else 0


def store_timestamp_of(record: bytes | memoryview) -> int:
    """The store timestamp of a record, in ms; -1 if these bytes are none."""
    if len(record) < FIXED_BYTES or MARK.unpack_from(record, 0)[1] != MESSAGE_MAGIC:
        return -1
    (sys_flag,) = INT32.unpack_from(record, SYS_FLAG_AT)
    return int(INT64.unpack_from(record, STORE_TIMESTAMP_AT_V6 if sys_flag & BORN_HOST_V6 else STORE_TIMESTAMP_AT)[0])
