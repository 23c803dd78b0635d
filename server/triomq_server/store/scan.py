"""Reading the log's bytes back, record by record: what recovery and dispatch of replicated bytes have in common.

The test is that of store.md §14.2, with the record's own offset compared besides.
"""

from __future__ import annotations

import mmap
import struct
from enum import Enum

import msgspec

from triomq_protocol.record import BLANK_MAGIC, MESSAGE_MAGIC, crc32

_HEAD = struct.Struct(">iiiiiqqi")  # size, magic, crc, queue id, flag, queue offset, physical offset, sysFlag
_MARK = struct.Struct(">ii")
_I64 = struct.Struct(">q")
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")
_LEAST_BYTES = 91


class Finding(Enum):
    """What stands in the log where a record was looked for, if not a record."""

    BLANK = "the end-of-file mark"
    NOTHING = "zeros: nothing was written here"
    INCOMPLETE = "a record whose end is not there"
    BAD_MAGIC = "neither a record nor an end-of-file mark"
    BAD_LENGTH = "a record whose lengths disagree"
    BAD_OFFSET = "a record that belongs elsewhere in the log"
    BAD_CRC = "a record whose body does not match its checksum"
    TORN = "a record whose last part was never written"


class LogRecord(msgspec.Struct, gc=False):
    """What dispatch needs to know of a record."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    properties: bytes


def read_record(  # noqa: C901 - one test after the other, in the format's order
    buffer: mmap.mmap, at: int, end: int, offset: int, *, check_crc: bool
) -> LogRecord | Finding:
    """The record at `buffer[at]`, which is the log's `offset`; `end` bounds what may be read. Never raises."""
    if end - at < 8:
        return Finding.INCOMPLETE if end > at else Finding.NOTHING
    size, magic = _MARK.unpack_from(buffer, at)
    if magic != MESSAGE_MAGIC:
        if magic == BLANK_MAGIC:
            return Finding.BLANK
        return Finding.NOTHING if size == 0 and magic == 0 else Finding.BAD_MAGIC
    if size < _LEAST_BYTES:
        return Finding.BAD_LENGTH
    if at + size > end:
        return Finding.INCOMPLETE
    _, _, crc, queue_id, _, queue_offset, physical_offset, sys_flag = _HEAD.unpack_from(buffer, at)
    if physical_offset != offset:
        return Finding.BAD_OFFSET
    time_at = at + (68 if sys_flag & 0x10 else 56)
    body_at = time_at + (44 if sys_flag & 0x20 else 32)
    stop = at + size
    if body_at + 3 > stop:
        return Finding.BAD_LENGTH
    (body_bytes,) = _I32.unpack_from(buffer, body_at - 4)
    topic_at = body_at + body_bytes + 1
    if body_bytes < 0 or topic_at + 2 > stop:
        return Finding.BAD_LENGTH
    properties_at = topic_at + buffer[topic_at - 1] + 2
    if properties_at > stop:
        return Finding.BAD_LENGTH
    (properties_bytes,) = _I16.unpack_from(buffer, properties_at - 2)
    if properties_bytes < 0 or properties_at + properties_bytes != stop:
        return Finding.BAD_LENGTH
    if check_crc and crc32(buffer[body_at : topic_at - 1]) != crc:
        return Finding.BAD_CRC
    return LogRecord(
        offset,
        size,
        str(buffer[topic_at : properties_at - 2], "utf-8", "replace"),
        queue_id,
        queue_offset,
        sys_flag,
        _I64.unpack_from(buffer, time_at)[0],
        buffer[properties_at:stop],
    )


def store_time(record: memoryview) -> int:
    """Store time stamp of a record given as its bytes, -1 if these are none."""
    if len(record) < _LEAST_BYTES or _MARK.unpack_from(record, 0)[1] != MESSAGE_MAGIC:
        return -1
    (sys_flag,) = _I32.unpack_from(record, 36)
    time: int = _I64.unpack_from(record, 68 if sys_flag & 0x10 else 56)[0]
    return time
