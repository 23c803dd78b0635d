"""Makes the queues agree with the log: which are cut, which are built again and from where, which numbers stay taken.

What is missing behind the ends that this leaves, dispatch writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator

from triomq_protocol.record.check import LogRecord, read_record
from triomq_server.store.commitlog import CommitLog, enters_queue
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.store.entry_checks import entry_fits, number_in
from triomq_server.store.entry_layout import BLANK_SIZE, ENTRY, ENTRY_BYTES
from triomq_server.store.files.checkpoint import Checkpoint
from triomq_server.store.placement import put_entry
from triomq_server.store.queue_table import ConsumeQueues
from triomq_server.store.recovery.log_walk import LogWalk
from triomq_server.store.recovery.steps import QUEUES_PER_STEP, Steps
from triomq_server.store.removed_queues import RemovedQueue

_log = logging.getLogger(__name__)


class QueueCheck:
    """The check of one store's queues."""

    def __init__(
        self,
        queues: ConsumeQueues,
        log: CommitLog,
        checkpoint: Checkpoint,
        walk: LogWalk,
        last_records: dict[tuple[str, int], tuple[int, int, int]],
        tags_code: Callable[[LogRecord], int],
        *,
        clean: bool,
    ) -> None:
        self._queues = queues
        self._commitlog = log
        self._checkpoint = checkpoint
        self._walk = walk
        self._last_records = last_records
        """As in `LogCheck`."""
        self._tags_code = tags_code
        self._clean = clean

    def cut(self, end: int, unfinished_end: int) -> Steps:
        """Drop what the queues know of messages that the log does not have."""
        self._queues.removed.truncate(end)
        known_end, cut, log = end, 0, self._commitlog.segments
        longer = [queue for queue in self._queues if queue.max_physical_offset > end]
        emptied = {queue: one for queue in longer if (one := queue.emptied_by(end)) is not None}
        if emptied:
            self._queues.removed.note(emptied.values())  # before their files are deleted
        for queue, one in emptied.items():
            queue.known_end = max(queue.known_end, one.next_offset)
        for queue in self._queues:
            queue.removed_before = min(queue.removed_before, end)
            if queue.max_physical_offset > end:
                known_end = max(known_end, queue.max_physical_offset)
                cut += 1
                is_far = queue.max_physical_offset > log.items[-1].end + log.size
                queue.truncate(end)
                last = queue.last_entry()
                # What was being written when a kill came lies near the end. A queue that has only entries of that is new.
                is_emptied = last is None and is_far
                if is_emptied or (last is not None and last[1] != BLANK_SIZE and last[0] + last[1] > end):
                    _end_is_wrong(queue)  # or no record would count as being behind it
                yield
        # After a kill, a batch that was being written may have entries without records. What has cut the log short may have
        # done so to the queues.
        if self._checkpoint.log_offset:
            known_end = min(known_end, self._checkpoint.log_offset)  # a damaged entry may point further
        in_queues = self._clean and known_end >= self._checkpoint.log_offset
        flushed_end = known_end if in_queues else self._checkpoint.log_offset
        if flushed_end > unfinished_end:
            _log.critical(
                "%s up to log offset %d, but the log in %s ends at %d: its last %d bytes are missing, and so are their "
                "messages%s. What is stored from now on takes their places. To get them back, stop the broker and put the "
                "files there again from a copy, or make a slave that has them the master",
                "the store had been closed cleanly, and its queues know of messages"
                if in_queues else "the log had been forced to the disk",
                flushed_end, self._commitlog.segments.directory, end, flushed_end - end,
                f", in {cut} queues" if cut else "",
            )  # fmt: skip

    def doubt(self, without_files: list[ConsumeQueue]) -> None:
        """Have a queue whose directory is empty built again. A kill leaves an empty directory only to a queue with a
        record in the checked part of the log, which dispatch comes to."""
        for queue in without_files:
            if (queue.topic, queue.queue_id) not in self._last_records:
                found_without_files(queue)

    def cut_damaged(self, checked_from: int) -> Generator[None, None, list[ConsumeQueue]]:
        """Cut queues with wrong entries in front of them; returns all that have to be built again from where they end.

        After a clean stop, a queue that ends before its last record in the checked part of the log has lost its end
        (after a crash, that part is dispatched again anyway, and gaps are found by that). The last entry
        of a queue is compared with its record if that has just been read: reading others may take a seek each.
        """
        compared = 0
        for where, (number, offset, record_bytes) in self._last_records.items():
            queue = self._queues.get(*where)
            compared += 1
            if compared % QUEUES_PER_STEP == 0:
                yield
            if queue is None:
                # Without a directory of its topic, the topic has been deleted.
                if self._clean and self._queues.has_topic(where[0]):
                    queue = self._queues.obtain(*where)
                    if offset >= queue.removed_before:
                        found_without_files(queue)
                continue
            last = queue.last_entry()
            if offset < queue.removed_before or (
                number + 1 == queue.max_offset and last is not None and last[:2] == (offset, record_bytes)
            ):
                continue
            if (self._clean and number >= queue.max_offset) or (
                last is not None and last[1] != BLANK_SIZE and last[0] >= checked_from
                and not self.fits(queue, queue.max_offset - 1, last[0], last[1])
            ):  # fmt: skip
                _end_is_wrong(queue)
        yield from self._begin_again()
        return (yield from self._cut_at_first_wrong())

    def _cut_at_first_wrong(self) -> Generator[None, None, list[ConsumeQueue]]:
        found = []
        for queue in self._queues:
            if queue.damaged:
                queue.cut_at_first_wrong(self.fits)
                queue.max_physical_offset = queue.built_until()
                found.append(queue)
                yield
        return found

    def _begin_again(self) -> Steps:
        """Let queues whose first files are missing begin with the first record of theirs in the log.

        A file is deleted when the records of all its entries have left the log. So the first file of almost every queue
        begins with an entry of such a record, and for these the log is not read.
        """
        lacking: dict[tuple[str, int], tuple[ConsumeQueue, int]] = {}
        for compared, queue in enumerate(self._queues, 1):
            if compared % QUEUES_PER_STEP == 0:
                yield
            if queue.segments.min_offset > queue.start_offset * ENTRY_BYTES:
                offset, size, _ = ENTRY.unpack(queue.segments.items[0].peek(0, ENTRY_BYTES))
                if size > 0 and offset > max(self._commitlog.min_offset, queue.removed_before):
                    lacking[queue.topic, queue.queue_id] = queue, offset
        end = max((offset for _, offset in lacking.values()), default=0)
        for record in self._walk.records_between(self._commitlog.min_offset, end) if lacking else ():
            if record is None:
                yield
                continue
            candidate = lacking.get((record.topic, record.queue_id))
            if candidate is None or not enters_queue(record.sys_flag):
                continue
            queue, offset = candidate
            if not queue.removed_before <= record.offset < offset:
                continue
            del lacking[record.topic, record.queue_id]
            self._begin_with(queue, record)
            if not lacking:
                return

    def _begin_with(self, queue: ConsumeQueue, record: LogRecord) -> None:
        first = queue.segments.min_offset // ENTRY_BYTES
        if record.queue_offset >= first:
            return  # RocketMQ has given its records other numbers
        _log.error(
            "%s: its files in front of entry %d are missing; built again from the log, from entry %d on",
            queue, first, record.queue_offset, extra=queue.log_fields,
        )  # fmt: skip
        queue.damage_found(record.offset)
        queue.remember_dropped(queue.segments.min_offset)
        queue.truncate(0)
        # At once: behind a queue's end, missing entries are found after a kill, too.
        put_entry(queue, record.offset, record.size, self._tags_code(record), record.queue_offset, fill=False)
        queue.damaged = True

    def fits(self, queue: ConsumeQueue, number: int, offset: int, size: int) -> bool:
        """Whether an entry points to its record, which may have left the log."""
        return offset + size <= self._commitlog.min_offset or entry_fits(self._commitlog, queue, number, offset, size)

    def keep_ends(self, built_again: list[ConsumeQueue], end: int) -> None:
        """Leave blank the last entries of queues whose records are damaged: no new record may get their numbers."""
        for queue in built_again:
            number, offset, size = queue.last_dropped
            # An entry that cannot be right is what damage has made of the space behind the last one.
            is_likely = size > 0 and queue.max_physical_offset - 1 <= offset < end
            if (
                queue.segments.items
                and is_likely
                and (size == BLANK_SIZE or not self._has_number(queue, number, offset))
            ):
                queue.fill_to(number + 1)

    def _has_number(self, queue: ConsumeQueue, number: int, offset: int) -> bool:
        """Whether a sound record with this number in the queue is at a log offset, or one that begins the queue again."""
        segment = self._commitlog.segments.find(offset)
        if segment is None:
            return False
        record = read_record(segment.buffer, offset - segment.base, segment.size, offset, check_crc=False)
        return isinstance(record, LogRecord) and number_in(record, queue) in (0, number)

    def keep_numbers(self, end: int) -> None:
        """Continue the numbering of queues whose records have all left the log, or were cut off behind those."""
        gone = [queue for queue in self._queues if not queue.segments.items and queue.known_end > queue.max_offset]
        if gone:
            self._queues.removed.note([RemovedQueue(q.topic, q.queue_id, q.known_end, end) for q in gone])
        for queue in gone:
            self._queues.forget(queue)
        self._correct_noted()

    def _correct_noted(self) -> None:
        """Compare queues with what was noted of their numbers when they had no files."""
        corrected = []
        for one in self._queues.removed.table.values():
            queue = self._queues.get(one.topic, one.queue_id)
            if queue is None or not queue.segments.items or one.next_offset <= queue.max_offset:
                continue
            if queue.max_physical_offset <= queue.removed_before:
                queue.drop_files()  # what a removal has left, or what was made for a first entry that is not on the disk
            else:  # too much was noted, before its records were found
                queue.start_offset = queue.segments.min_offset // ENTRY_BYTES
                corrected.append(one._replace(next_offset=queue.start_offset))
        if corrected:
            self._queues.removed.note(corrected)


def found_without_files(queue: ConsumeQueue) -> None:
    """A queue that had files has none: it is built again from the beginning of the log."""
    _log.error("%s: it has no files; built again from the log", queue, extra=queue.log_fields)
    queue.found_damaged(0)


def _end_is_wrong(queue: ConsumeQueue) -> None:
    if not queue.damaged:
        _log.error("%s: its end does not agree with the log; built again from the log", queue, extra=queue.log_fields)
    queue.found_damaged(queue.max_offset * ENTRY_BYTES)
