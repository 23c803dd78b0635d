"""Which entry a record gets that is found in the log: by recovery, by dispatch behind a master's bytes, by a repair.

Own appends give records the next number of their queue. A record in the log has a number already, which may leave a gap,
begin the queue again, or be damaged: the checksum does not cover it.
"""

from __future__ import annotations

import logging

from triomq_protocol.record.layout import FIXED_BYTES
from triomq_server.store.consume_queue import ConsumeQueue, SkippedRecord
from triomq_server.store.entry_layout import BLANK_ENTRY, ENTRY_BYTES

_log = logging.getLogger(__name__)

_MOST_JUMPED = 1 << 20
"""Blanks that are written where a master has jumped ahead in its numbers."""
_NUMBERS_MOST = (1 << 63) // ENTRY_BYTES - 1
"""The names of a queue's files are offsets of bytes, with 63 bits."""


class QueueGap(Exception):  # noqa: N818 - named after the state one is in
    """A record's queue offset lies beyond the queue's end: the entries in between are missing."""

    def __init__(self, queue: ConsumeQueue, queue_offset: int) -> None:
        super().__init__(f"{queue}: entries {queue.max_offset} to {queue_offset - 1} are missing")
        self.queue = queue


def put_entry(
    queue: ConsumeQueue, physical_offset: int, size_bytes: int, tags_code: int, queue_offset: int, *, fill: bool
) -> bool:
    """Write the entry of a record found in the log (recovery, replication); false if it has one already.

    With `fill`, missing entries in between become blanks; without it they raise QueueGap. A record whose number leaves
    more of them than the log has space for may be damaged: the checksum does not cover it, and it gets no entry unless
    the next record continues its number. A new record with number 0 begins the queue again: the master has lost its
    queue, and what it numbers from now on must be readable. A queue without entries begins with any number: the one at
    which it ends may be that of a damaged file, or of a removal that has been cut off with the log, and too large.
    """
    if physical_offset + size_bytes <= queue.max_physical_offset or physical_offset < queue.removed_before:
        return False
    if queue_offset < queue.max_offset:
        if not _is_blank(queue):
            if queue_offset or physical_offset < queue.max_physical_offset:
                return False
            _log.warning(
                "%s: numbered from 0 again at log offset %d; its entries 0 to %d are dropped",
                queue, physical_offset, queue.max_offset - 1, extra=queue.log_fields,
            )  # fmt: skip
        queue.begin_again_at(queue_offset)
    if queue.skipped is not None:
        _put_skipped(queue, queue.skipped, queue_offset)
    if queue_offset > queue.max_offset:
        if not _has_space_for(queue, queue_offset, physical_offset):
            _skip(queue, physical_offset, size_bytes, tags_code, queue_offset)
            return False
        if queue.segments.items:
            if not fill:
                raise QueueGap(queue, queue_offset)
            _log.error(
                "%s: no entries for offsets %d to %d; left blank",
                queue, queue.max_offset, queue_offset - 1, extra=queue.log_fields,
            )  # fmt: skip
            queue.fill_to(queue_offset)
        else:
            queue.start_at(queue_offset)
    queue.push(physical_offset, size_bytes, tags_code)
    return True


def _skip(queue: ConsumeQueue, physical_offset: int, size_bytes: int, tags_code: int, queue_offset: int) -> None:
    _log.error(
        "%s: the record at log offset %d gets no entry: it has the queue offset %d, but not so many records fit between "
        "it and the one with %d", queue, physical_offset, queue_offset, queue.max_offset - 1, extra=queue.log_fields,
    )  # fmt: skip
    queue.skipped = SkippedRecord(physical_offset, size_bytes, tags_code, queue_offset)


def _put_skipped(queue: ConsumeQueue, one: SkippedRecord, queue_offset: int) -> None:
    """Give `skipped` its entry if the next record has the number behind it: then it is not damaged. OSError.

    A master that has lost the last records of a removed queue continues the numbers that the queue had with them.
    """
    if one.queue_offset + 1 != queue_offset or one.physical_offset < queue.max_physical_offset:
        return
    if not 0 <= one.queue_offset - queue.max_offset <= _MOST_JUMPED:
        return
    queue.fill_to(one.queue_offset)
    queue.push(one.physical_offset, one.size_bytes, one.tags_code)
    queue.skipped = None
    _log.error(
        "%s: its numbers continue with %d; the record at log offset %d has got its entry",
        queue, one.queue_offset, one.physical_offset, extra=queue.log_fields,
    )  # fmt: skip


def put_last_skipped(queue: ConsumeQueue) -> None:
    """Give `skipped` its entry if nothing is behind it: no new record may get its place or its number. OSError."""
    if queue.skipped is not None:
        _put_skipped(queue, queue.skipped, queue.skipped.queue_offset + 1)


def forget_skipped(queue: ConsumeQueue, log_offset: int) -> None:
    """The log has been cut at `log_offset`."""
    if queue.skipped is not None and queue.skipped.physical_offset >= log_offset:
        queue.skipped = None


def _is_blank(queue: ConsumeQueue) -> bool:
    """Whether there are at most the blanks in front of a first entry: a cut of the log may have left no others."""
    at = queue.max_offset * ENTRY_BYTES - ENTRY_BYTES
    segment = queue.segments.find(at)
    return segment is None or segment.peek(at - segment.base, ENTRY_BYTES) == BLANK_ENTRY


def _has_space_for(queue: ConsumeQueue, queue_offset: int, physical_offset: int) -> bool:
    """Whether the log can hold the records between the last entry's and one with this number; an empty queue begins
    with any number that its files can have."""
    if not queue.segments.items:
        return queue_offset < _NUMBERS_MOST
    return (queue_offset - queue.max_offset) * FIXED_BYTES <= physical_offset - queue.max_physical_offset
