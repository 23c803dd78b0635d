"""Pulls: from a queue offset to slices of the log (`DefaultMessageStore.getMessage`; docs/protocol/store.md §15).

`read_queue` follows RocketMQ step by step. In the usual case (no filter; contiguous records, all recent or all old) it
unpacks the entries only once. Both ways give the same answer.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from operator import add, eq, gt

from triomq_server.compiled import USED as COMPILED
from triomq_server.config import StoreConfig
from triomq_server.store.commitlog import CommitLog
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.store.entry_checks import entries_fit, entry_fits, run_fits
from triomq_server.store.entry_layout import BLANK_SIZE, ENTRY, ENTRY_BYTES, PHYSICAL_OFFSET, places_struct
from triomq_server.store.values import ReadResult, ReadStatus, TagMatcher

if COMPILED:
    from triomq_server.compiled import pulls as compiled_pulls

_LEAST_SCANNED_BYTES = 16_000
_MOST_SCANNED = 2000
"""Entries that one pull examines at most, whatever number of messages it wants; the next pull continues after them."""
FILTER_TURN_S = 0.01
"""Processor time after which a pull ends whose filter reads records: a filter may take 1 ms for each of them."""


def read_queue(
    config: StoreConfig,
    log: CommitLog,
    queue: ConsumeQueue | None,
    offset: int,
    max_messages: int,
    matcher: TagMatcher | None,
    *,
    correct: bool,
    damaged: Callable[[ConsumeQueue, int], None],
    now: Callable[[], float] = time.thread_time,
) -> ReadResult:
    """Read from `queue` at `offset`.

    Args:
        config: limits of an answer.
        log: the log that holds the records.
        queue: the queue to read; None for an unknown one.
        offset: the first entry's number.
        max_messages: the largest number of messages to return.
        matcher: selects messages; None: all.
        correct: whether next offsets may be corrected (not on a plain slave).
        damaged: called with an entry that does not point to its record. That entry and those after it are not served:
            until it has been repaired, the queue ends there.
        now: this thread's processor time in seconds, for FILTER_TURN_S.
    """
    low = queue.min_offset if queue is not None else 0
    high = queue.max_offset if queue is not None else 0
    if queue is None or high == 0:
        return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0 if correct else offset, low, high, [])
    if offset < low:
        return ReadResult(ReadStatus.OFFSET_TOO_SMALL, low if correct else offset, low, high, [])
    if offset >= high:
        if offset == high:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, low, high, [])
        return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, high if correct else offset, low, high, [])
    place = queue.locate(offset)
    if place is None:
        per_file = queue.segments.size // ENTRY_BYTES
        following = offset + per_file - offset % per_file
        return ReadResult(ReadStatus.OFFSET_FOUND_NULL, following if correct else offset, low, high, [])
    if matcher is None:
        result = _read_run(config, log, queue, place, offset, max_messages, (low, high))
        if result is not None:
            return result
    return _read_step_by_step(config, log, queue, offset, max_messages, matcher, (low, high), damaged, now)


def _read_run(
    config: StoreConfig,
    log: CommitLog,
    queue: ConsumeQueue,
    place: tuple[mmap.mmap, int, int],
    offset: int,
    max_messages: int,
    bounds: tuple[int, int],
) -> ReadResult | None:
    """The usual case: the next entries, all recent or all old, in one log file, within the limits. Else None."""
    buffer, at, available = place
    log_end = log.max_offset
    (first,) = PHYSICAL_OFFSET.unpack_from(buffer, at)
    limit_bytes = config.in_memory_limit_bytes
    old = log_end - first > limit_bytes
    if old:
        most, most_bytes = config.max_transfer_count_on_message_in_disk, config.max_transfer_bytes_on_message_in_disk
    else:
        most, most_bytes = (
            config.max_transfer_count_on_message_in_memory,
            config.max_transfer_bytes_on_message_in_memory,
        )
    count = min(max(1, min(max_messages, most)), available)
    # The entry behind the answer is read too, as in RocketMQ: it decides `suggest_slave`.
    read_count = min(count + 1, available)
    if COMPILED:
        (last,) = PHYSICAL_OFFSET.unpack_from(buffer, at + (read_count - 1) * ENTRY_BYTES)
        segment = log.segments.find(first)
        if segment is None or (log_end - last > limit_bytes) != old:
            return None
        found = compiled_pulls.find_records(
            buffer, at, count, segment.buffer, segment.base, log.min_offset, min(log_end, segment.end), queue.queue_id,
            offset, most_bytes,
        )  # fmt: skip
        return found and ReadResult(ReadStatus.FOUND, offset + count, *bounds, found[0], count, found[1], old)
    places = places_struct(read_count).unpack_from(buffer, at)
    offsets, sizes = places[0 : 2 * count : 2], places[1 : 2 * count : 2]
    total = sum(sizes)
    if (total > most_bytes and count > 1) or (log_end - places[-2] > limit_bytes) != old or min(sizes) <= 0:
        return None
    span = offsets[-1] + sizes[-1] - first
    if span == total:  # entries are in log order, so nothing is between their records
        view = log.select(first, total)
        slices, fit = None if view is None else [view], run_fits
    else:
        slices, fit = _slices(log, offsets, sizes), entries_fit
    if slices is None:
        return None
    segment = log.segments.find(first)
    if segment is None or not fit(segment.buffer, segment.base, queue, offset, offsets, sizes):
        return None
    return ReadResult(ReadStatus.FOUND, offset + count, *bounds, slices, count, total, old)


def _slices(log: CommitLog, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> list[memoryview] | None:
    """Views of these records, neighbours joined; None if they are not in order in one file."""
    segment = log.segments.find(offsets[0])
    ends = tuple(map(add, offsets, sizes))
    if segment is None or offsets[0] < log.min_offset or ends[-1] > min(log.max_offset, segment.end):
        return None
    following = offsets[1:]
    if any(map(gt, ends, following)):
        return None
    if any(map(eq, ends, following)):
        gaps = [n for n, (end, start) in enumerate(zip(ends, following, strict=False)) if end != start]
        offsets = (offsets[0], *[following[n] for n in gaps])
        ends = (*[ends[n] for n in gaps], ends[-1])
    if base := segment.base:
        offsets = tuple([offset - base for offset in offsets])
        ends = tuple([end - base for end in ends])
    return list(map(memoryview(segment.buffer).__getitem__, map(slice, offsets, ends)))


def _read_step_by_step(  # noqa: C901 - kept as one loop, as the specification has it
    config: StoreConfig,
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    max_messages: int,
    matcher: TagMatcher | None,
    bounds: tuple[int, int],
    damaged: Callable[[ConsumeQueue, int], None],
    now: Callable[[], float],
) -> ReadResult:
    place = queue.locate(offset)
    assert place is not None
    buffer, at, available = place
    log_end = log.max_offset
    limit_bytes = config.in_memory_limit_bytes
    in_memory = config.max_transfer_count_on_message_in_memory, config.max_transfer_bytes_on_message_in_memory
    on_disk = config.max_transfer_count_on_message_in_disk, config.max_transfer_bytes_on_message_in_disk
    status = ReadStatus.NO_MATCHED_MESSAGE
    answer = _Answer(log)
    skip_below = -1
    furthest = log_end
    turn_ends = 0.0 if matcher is None else now() + FILTER_TURN_S
    scanned = 0
    wanted = min(-(-max(_LEAST_SCANNED_BYTES, max_messages * ENTRY_BYTES) // ENTRY_BYTES), _MOST_SCANNED)
    for scanned in range(min(available, wanted)):
        position, size, tags_code = ENTRY.unpack_from(buffer, at + scanned * ENTRY_BYTES)
        if (0 <= position < skip_below and size > 0) or size == BLANK_SIZE:
            continue
        furthest = position
        if answer.count:
            count, size_limit = on_disk if log_end - position > limit_bytes else in_memory
            if answer.count >= min(max_messages, count) or answer.total + size > size_limit:
                break
        if matcher is not None and not matcher.by_consume_queue(tags_code):
            if not answer.count:
                status = ReadStatus.NO_MATCHED_MESSAGE
            continue
        record = log.select(position, size)
        number = offset + scanned
        if not entry_fits(log, queue, number, position, size) and (
            size <= 0 or not _is_gone(log, queue, number, position)
        ):
            damaged(queue, number)
            if not answer.count and not scanned:
                return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, *bounds, [])
            break
        if record is None:
            if not answer.count:
                status = ReadStatus.MESSAGE_WAS_REMOVING
            skip_below = position - position % log.segments.size + log.segments.size
            continue
        if matcher is None or matcher.by_commitlog(record):
            answer.add(position, size, record)
            skip_below = -1
        elif not answer.count:
            status = ReadStatus.NO_MATCHED_MESSAGE
        if matcher is not None and not scanned & 3 and now() > turn_ends:
            scanned += 1
            break
    else:
        scanned += 1
    if answer.count:
        status = ReadStatus.FOUND
    behind = log_end - furthest > limit_bytes
    slices = answer.slices()
    return ReadResult(status, offset + scanned, *bounds, slices, answer.count, answer.total, behind)


def _is_gone(log: CommitLog, queue: ConsumeQueue, number: int, position: int) -> bool:
    """Whether the log file that held an entry's record has expired or been removed."""
    if position < 0 or position >= log.max_offset or log.segments.find(position) is not None:
        return False
    before = queue.entry(number - 1) if number > queue.min_offset else None
    return before is None or before[0] <= position


class _Answer:
    """The records found so far; neighbours in the log become one slice."""

    def __init__(self, log: CommitLog) -> None:
        self._commitlog = log
        self._runs: list[tuple[int, int, memoryview | None]] = []
        self.count = 0
        self.total = 0

    def add(self, position: int, size: int, record: memoryview) -> None:
        self.count += 1
        self.total += size
        if self._runs:
            start, length, _ = self._runs[-1]
            # Every file ends with filler, so neighbours are in the same file.
            if start + length == position:
                self._runs[-1] = (start, length + size, None)
                return
        self._runs.append((position, size, record))

    def slices(self) -> list[memoryview]:
        found = []
        for start, length, record in self._runs:
            view = record if record is not None else self._commitlog.select(start, length)
            assert view is not None
            found.append(view)
        return found
