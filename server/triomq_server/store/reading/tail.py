"""The last record before an offset of the log, for the comparison of two logs.

A record holds its log offset, its store time and its queue offset. So two logs with the same record at the same offset
have the same history up to there, and `replication.divergence` compares a single record.
"""

from __future__ import annotations

from triomq_protocol.record.check import Finding, LogRecord, read_record
from triomq_server.store.commitlog import CommitLog
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.store.entry_layout import ENTRY, ENTRY_BYTES
from triomq_server.store.queue_table import ConsumeQueues


def last_record_by(log: CommitLog, queues: ConsumeQueues, end: int) -> tuple[int, int] | None:
    """Log offset and size of the last whole record that ends at or before log offset `end`; None if there is none.

    The queues have entries for nearly all records. Behind the last such record, the log itself is read.
    """
    best = None
    for queue in queues:
        queue.publish_position()
        found = _last_entry_by(queue, end)
        if found is not None and found[0] >= log.min_offset and (best is None or found > best):
            best = found
    segment = log.segments.find(min(end, log.max_offset - 1) if best is None else best[0])
    if segment is None:
        return best
    at = 0 if best is None else best[0] - segment.base
    while segment is not None and segment.base + at < end:
        limit = min(log.max_offset, end) - segment.base
        found_here = read_record(segment.buffer, at, min(limit, segment.size), segment.base + at, check_crc=False)
        if isinstance(found_here, LogRecord):
            best = (found_here.offset, found_here.size)
            at += found_here.size
        elif found_here is not Finding.BLANK:
            break
        if found_here is Finding.BLANK or at >= segment.size:
            segment, at = log.segments.find(segment.end), 0
    return best


def _last_entry_by(queue: ConsumeQueue, end: int) -> tuple[int, int] | None:
    """The queue's last entry of a record that ends at or before `end`: (log offset, size)."""
    low, high = queue.min_offset, queue.max_offset
    found = None
    while low < high:
        middle = (low + high) // 2
        segment = queue.segments.find(middle * ENTRY_BYTES)
        if segment is None:
            return found
        offset, size, _ = ENTRY.unpack_from(segment.buffer, middle * ENTRY_BYTES - segment.base)
        if offset + size <= end:
            found = (offset, size)
            low = middle + 1
        else:
            high = middle
    return found
