"""Looks messages up by key, by store time and by log offset (docs/protocol/store.md §10.4, §17, §18).

Pulls are in `queue_reads`. Answers to `DefaultMessageStore.queryMessage`, `getOffsetInQueueByTime` and
`lookMessageByOffset`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from triomq_protocol.record.check import claimed_size, store_timestamp_of
from triomq_protocol.record.layout import PLACE
from triomq_server.store.commitlog import CommitLog
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.store.entry_layout import BLANK_SIZE, ENTRY, ENTRY_BYTES
from triomq_server.store.files.segments import Segment
from triomq_server.store.index import Index
from triomq_server.store.values import QueryResult

_QUERY_ROUNDS = 3

_QUERY_BYTES = 15 << 20
"""Of records in one result: a frame of 16 MiB is the longest that clients read."""

_SCANNED_BYTES = 1024 * ENTRY_BYTES
_SIZE_AT = 8
_BLANK_BYTE = b"\x7f"
"""The first byte of a blank's size. No record is that large."""


def record_at(log: CommitLog, physical_offset: int, size_bytes: int | None = None) -> memoryview | None:
    """The record that starts at this log offset; None if none starts there, or not one of that size."""
    head = log.select(physical_offset, PLACE.size)
    size = 0 if head is None else claimed_size(head, physical_offset)
    return log.select(physical_offset, size) if size_bytes in (None, size) else None


def store_time_at(log: CommitLog, queue: ConsumeQueue, queue_offset: int) -> int:
    """Store time of the message at a queue offset, -1 if it has expired or never existed."""
    entry = queue.entry(queue_offset)
    return -1 if entry is None else _time_of(log, entry[0], entry[1])


def _time_of(log: CommitLog, physical_offset: int, size: int) -> int:
    record = log.select(physical_offset, size)
    return -1 if record is None else store_timestamp_of(record)


def _next_readable(log: CommitLog, segment: Segment, at: int, end: int) -> tuple[int, int] | None:
    """Position and store time of the first entry of a queue's file between two positions whose record can be read."""
    while at < end:
        # A queue whose records were in a lost file of the log has millions of blanks in a row: those in front of a piece are
        # passed over together.
        part = segment.buffer[at : min(at + _SCANNED_BYTES, end)]
        sizes = part[_SIZE_AT::ENTRY_BYTES]
        blank_bytes = (len(sizes) - len(sizes.lstrip(_BLANK_BYTE))) * ENTRY_BYTES
        at += blank_bytes
        for physical_offset, size, _ in ENTRY.iter_unpack(part[blank_bytes:]):
            if size != BLANK_SIZE and (stored := _time_of(log, physical_offset, size)) >= 0:
                return at, stored
            at += ENTRY_BYTES
    return None


def _newest_time(log: CommitLog, segment: Segment) -> int:
    """Store time of the last entry of a queue's file whose record can be read; -1 if there is none."""
    for end in range(segment.position, 0, -_SCANNED_BYTES):
        part = segment.buffer[max(0, end - _SCANNED_BYTES) : end]
        not_blank = len(part[_SIZE_AT::ENTRY_BYTES].rstrip(_BLANK_BYTE))
        for physical_offset, size, _ in reversed(list(ENTRY.iter_unpack(part[: not_blank * ENTRY_BYTES]))):
            if size != BLANK_SIZE and (stored := _time_of(log, physical_offset, size)) >= 0:
                return stored
            if physical_offset < log.min_offset:
                return -1
    return -1


def _file_by_time(
    log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, modified_ms: Callable[[str], int] | None
) -> Segment | None:
    segments = [s for s in queue.segments.items if s.position]
    for segment in segments[:-1]:
        newest = modified_ms(segment.path) if modified_ms is not None else _newest_time(log, segment)
        if newest >= timestamp_ms:
            return segment
    return segments[-1] if segments else None


def offset_by_time(
    log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, modified_ms: Callable[[str], int] | None = None
) -> int:
    """The queue offset stored nearest to a time, among those of one queue file (docs/protocol/store.md §17).

    That file is the first whose last record was stored at that time or later. With `modified_ms` the file is chosen by
    modification time, as in RocketMQ 4.9; that time can be earlier or later than the store time of the last record.
    Entries whose records cannot be read, such as blanks, are passed over; RocketMQ returns 0 if its search meets one.
    """
    queue.publish_position()
    segment = _file_by_time(log, queue, timestamp_ms, modified_ms)
    if segment is None:
        return 0
    first = segment.base // ENTRY_BYTES
    low = max(queue.min_offset, first)
    high = first + segment.position // ENTRY_BYTES - 1
    earlier = later = None  # (queue offset, time) nearest to the wanted time so far
    while low <= high:
        middle = (low + high) // 2
        at = (middle - first) * ENTRY_BYTES
        physical_offset, _, _ = ENTRY.unpack_from(segment.buffer, at)
        if physical_offset < log.min_offset:
            low = middle + 1
            continue
        found = _next_readable(log, segment, at, (high + 1 - first) * ENTRY_BYTES)
        if found is None:
            high = middle - 1
            continue
        number, stored = first + found[0] // ENTRY_BYTES, found[1]
        if stored == timestamp_ms:
            return number
        if stored > timestamp_ms:
            high = middle - 1
            later = number, stored
        else:
            low = number + 1
            earlier = number, stored
    if earlier is None:
        return later[0] if later is not None else queue.min_offset
    if later is None or timestamp_ms - earlier[1] <= later[1] - timestamp_ms:
        return earlier[0]
    return later[0]


def earliest_log_time(log: CommitLog) -> int:
    """Store time of the oldest record in the log, -1 if there is none."""
    record = record_at(log, log.min_offset)
    return -1 if record is None else store_timestamp_of(record)


def query(
    log: CommitLog, index: Index | None, topic: str, key: str, most: int, begin: int, end: int
) -> Generator[None, None, QueryResult]:
    """Records that may have a key, in log order; in slices.

    The index holds hashes only, so the caller must compare the keys. Of records that fit no answer together, the newest
    ones are returned.
    """
    if index is None or not index.files:
        return QueryResult([], 0, 0)
    newest = index.files[-1]
    records: list[memoryview] = []
    last_time = end
    for _ in range(_QUERY_ROUNDS):
        offsets = sorted((yield from index.query(topic, key, most, begin, last_time)))
        if not offsets:
            break
        lowest = record_at(log, offsets[0])
        if lowest is not None:
            last_time = store_timestamp_of(lowest)
        records = [record for offset in offsets if (record := record_at(log, offset)) is not None]
        if records or last_time < begin:
            break
    size_bytes = sum(map(len, records))
    while len(records) > 1 and size_bytes > _QUERY_BYTES:
        size_bytes -= len(records.pop(0))
    return QueryResult(records, newest.end_timestamp, newest.end_offset)
