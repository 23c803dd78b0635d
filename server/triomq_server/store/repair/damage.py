"""Moves damage in the middle of the log aside, so that the records after it stay readable.

RocketMQ ends the log at the first record that fails its test, and deletes everything after it. Here recovery searches
for the next sound record, copies the bytes in between to `triomq/damaged`, and puts a record without content in their
place, so that all readers of the log, including slaves and RocketMQ, can walk through it.
"""

from __future__ import annotations

import mmap
from collections.abc import Generator

import msgspec

from triomq_protocol.record.check import LogRecord, read_record
from triomq_protocol.record.encode import encode_topic, write_blank, write_record
from triomq_protocol.record.layout import (
    BLANK_MAGIC,
    FIXED_BYTES,
    HEAD_V4,
    IPV4_HOST_BYTES,
    MARK,
    MESSAGE_MAGIC,
    TRANSACTION_PREPARED,
)
from triomq_server.disk import Disk
from triomq_server.store.files.segments import Segment, segment_name
from triomq_server.store.values import NewRecord

FILLER_TOPIC = "RMQ_SYS_DAMAGED"
"""The topic of the records put in place of damaged ones. They enter no queue."""

_MAGIC = MESSAGE_MAGIC.to_bytes(4, "big", signed=True)
_BLANK = BLANK_MAGIC.to_bytes(4, "big", signed=True)
_MAGIC_AT = 4
_SEARCHED_BYTES = 1 << 24
_COPIED_BYTES = 1 << 24
_LEAST_FILLER_BYTES = FIXED_BYTES + 1


class Sound(msgspec.Struct, frozen=True):
    """The place where the log is sound again: index of the searched file, position in it, and store time.

    `store_timestamp` is None for the mark at a file's end.
    """

    index: int
    at: int
    store_timestamp: int | None


def next_sound(
    segments: list[Segment], index: int, at: int, least_time: int, flushed: int = 0
) -> Generator[None, None, Sound | None]:
    """Find the first sound record after position `at` of one of the files; None if there is none.

    Records older than `least_time` are ignored: RocketMQ leaves old records after the end of a log that it has cut. Those
    before the log offset `flushed` are known to be the log's own: the clock may have been set back in the damaged part.
    """
    end_of_file: Sound | None = None
    for n in range(index, len(segments)):
        segment = segments[n]
        start = at + 1 if n == index else 0
        # Holes are not read: where files live in memory that would fill it.
        content_end = segment.file.content_end(start, segment.size) if start < segment.size else start
        while start < content_end:
            end = min(start + _SEARCHED_BYTES, content_end)
            found = _sound_within(segment, start, end, least_time, flushed)
            if found is not None:
                where = Sound(n, *found)
                if where.store_timestamp is not None:
                    return end_of_file or where
                end_of_file = end_of_file or where
                break
            start = end
            yield
    return None


def _sound_within(
    segment: Segment, start: int, end: int, least_time: int, flushed: int
) -> tuple[int, int | None] | None:
    buffer = segment.buffer
    at = start
    while True:
        # The search takes the magic's last bytes from behind `end`.
        found = _find(buffer, _MAGIC, at + _MAGIC_AT, end + MARK.size)
        if found < 0:
            break
        at = found - _MAGIC_AT
        record = read_record(buffer, at, segment.size, segment.base + at, check_crc=True)
        if isinstance(record, LogRecord) and (record.store_timestamp >= least_time or record.offset < flushed):
            return at, record.store_timestamp
        at += 1
    at = start
    while True:
        found = _find(buffer, _BLANK, at + _MAGIC_AT, end + MARK.size)
        if found < 0:
            return None
        at = found - _MAGIC_AT
        if MARK.unpack_from(buffer, at)[0] == segment.size - at:
            return at, None
        at += 1


def _find(buffer: mmap.mmap, wanted: bytes, start: int, end: int) -> int:
    """`buffer.find`, but never up to the end of the buffer.

    Before 3.11.5 Python's `mmap.find` reads the byte after its range. After the last byte of a map there may be no
    memory, which ends the process (python/cpython#105235).
    """
    last = len(buffer) - 1
    found = buffer.find(wanted, start, min(end, last))
    at_end = len(buffer) - len(wanted)
    if found < 0 and end > last and at_end >= start and buffer[at_end:] == wanted:
        return at_end
    return found


def bridge(segments: list[Segment], index: int, at: int, sound: Sound, store_timestamp: int) -> bool:
    """Bridge the log from one position to the next sound record; false if there is too little room.

    Raises OSError when the disk is full.
    """
    for n in range(index, sound.index + 1):
        segment = segments[n]
        start = at if n == index else 0
        if n < sound.index:
            if start + MARK.size > segment.size:
                return False
            segment.file.reserve(start, segment.size)
            write_blank(segment.buffer, start, segment.size - start)
        elif start < sound.at:
            if sound.at - start < _LEAST_FILLER_BYTES:
                return False
            segment.file.reserve(start, sound.at)
            _fill(segment, start, sound.at, store_timestamp)
        segment.changed_from(start)
    return True


def _fill(segment: Segment, start: int, end: int, store_timestamp: int) -> None:
    topic = encode_topic(FILLER_TOPIC[: end - start - FIXED_BYTES])
    body_bytes = end - start - FIXED_BYTES - len(topic) + 1  # the fixed bytes count the topic's length
    host = bytes(IPV4_HOST_BYTES)
    filler = NewRecord("", 0, bytes(body_bytes), b"", born_timestamp=store_timestamp, born_host=host, store_host=host)
    segment.buffer[start : start + MARK.size] = bytes(MARK.size)
    offset = segment.base + start
    write_record(segment.buffer, start, end, HEAD_V4, TRANSACTION_PREPARED, topic, 0, offset, store_timestamp, filler)


def copy_aside(disk: Disk, folder: str, segments: list[Segment], index: int, at: int, end: tuple[int, int]) -> None:
    """Copy the log's bytes from position `at` of one file up to `end` (file, position) to the folder. OSError.

    A copy is named after the log offset of its first byte.
    """
    disk.make_directory(folder)
    for n in range(index, end[0] + 1):
        segment = segments[n]
        start = at if n == index else 0
        stop = end[1] if n == end[0] else segment.size
        stop = segment.file.content_end(start, stop) if start < stop else start
        for begin in range(start, stop, _COPIED_BYTES):
            part = segment.buffer[begin : min(begin + _COPIED_BYTES, stop)]
            write_copy(disk, f"{folder}/{segment_name(segment.base + begin)}", part)


def write_copy(disk: Disk, path: str, data: bytes) -> None:
    """Write a copy. An older one of this name is kept, as `.1` and so on, unless it is the beginning of the same. OSError."""
    if disk.exists(path) and not data.startswith(disk.read(path)):
        number = 1
        while disk.exists(f"{path}.{number}"):
            number += 1
        disk.replace(path, f"{path}.{number}")
    disk.write(path, data)


def damaged_folder(root: str) -> str:
    """Where a start puts copies of what readers of this store lose."""
    return f"{root}/triomq/damaged"


def written_bytes(rest: memoryview) -> int:
    """Length of `rest` without the zeros at its end."""
    step = 1 << 16
    zeros = bytes(step)
    for start in range((len(rest) - 1) // step * step, -1, -step):
        part = rest[start : start + step]
        if part != zeros[: len(part)]:
            return start + len(bytes(part).rstrip(b"\0"))
    return 0
