"""The steps of recovery, and what dispatch has to do again (docs/protocol/store.md §14).

Records before a corrupt one are never dropped. Sound records after it are kept too (see `repair.damage`), unless they
may be remains of unflushed bytes after a power failure. The report states the log's new end and the reason. Recovery is
a generator, so that the event loop gets its turns while gigabytes are checked.
"""

from __future__ import annotations

import logging
from collections.abc import Generator

import msgspec

from triomq_protocol.record.check import Finding, LogRecord, read_record
from triomq_server.compiled import USED as COMPILED
from triomq_server.config import StoreConfig
from triomq_server.disk import Disk
from triomq_server.store.commitlog import CommitLog, enters_queue
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.store.dispatch.dispatcher import Dispatcher
from triomq_server.store.entries import MULTI_MARK, entry_fits, further_number, number_in
from triomq_server.store.entry_layout import BLANK_SIZE, UNIT, UNIT_BYTES
from triomq_server.store.files.checkpoint import Checkpoint
from triomq_server.store.index import Index
from triomq_server.store.notes.queue_rebuild import QueueRebuild
from triomq_server.store.notes.repaired import repaired_parts
from triomq_server.store.placement import QueueGap, put_entry
from triomq_server.store.queue_table import ConsumeQueues
from triomq_server.store.recovery.log_check import LogCheck
from triomq_server.store.recovery.log_walk import LogWalk
from triomq_server.store.recovery.missing_files import bridge_missing
from triomq_server.store.removed_queues import RemovedQueue
from triomq_server.store.repair.damage import damaged_folder

if COMPILED:
    from triomq_server.compiled import recovery as compiled_recovery

_log = logging.getLogger(__name__)

_BYTES_PER_STEP = 1 << 23
_QUEUES_PER_STEP = 64


class RecoveryReport(msgspec.Struct, frozen=True):
    """The findings of recovery when a store is opened.

    Attributes:
        clean: whether the store had been closed cleanly.
        checked_from, log_end: log offsets between which records were checked; `log_end` is the log's new end.
        records: number of good records in between.
        stopped_by: the finding at `log_end`: "nothing" after an undamaged log.
        dropped_bytes: written bytes after `log_end` that were cut off (an upper bound: blanks in between count).
        deleted_files: log files that were wholly after the end and not empty.
        damaged: start and end log offsets of damaged parts that are followed by sound records.
        dispatched_from: log offset from which records were dispatched again.
        index_entries_dropped: index entries that pointed after the log's end.
    """

    clean: bool
    checked_from: int
    log_end: int
    records: int
    stopped_by: str
    dropped_bytes: int
    deleted_files: tuple[str, ...]
    dispatched_from: int
    index_entries_dropped: int
    damaged: tuple[tuple[int, int], ...] = ()


Steps = Generator[None, None, None]


class Recovery:
    """One recovery of one store; run all `steps`, then read `report`."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        checkpoint: Checkpoint,
        dispatcher: Dispatcher,
        disk: Disk,
        *,
        clean: bool,
        same_boot: bool,
        may_be_torn: bool,
        reindex_from: int | None,
        queue_rebuild: QueueRebuild,
        whole: bool = False,
    ) -> None:
        self._config = config
        self._commitlog = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._dispatcher = dispatcher
        self._disk = disk
        self._clean = clean
        self._whole = whole
        """Whether all of the log is checked and dispatched, whatever is known to be on the disk."""
        self._walk = LogWalk(log.segments, compat_49=config.compat_49)
        self._reindex_from = reindex_from
        self._queue_rebuild = queue_rebuild
        self._log_check = LogCheck(
            config, log, checkpoint, disk,
            clean=clean, same_boot=same_boot, may_be_torn=may_be_torn, whole=whole,
        )  # fmt: skip
        self.report: RecoveryReport | None = None

    def steps(self) -> Steps:
        """Do the work, a piece per step. StoreDamaged and OSError leave the store as far as it got."""
        segments = self._commitlog.segments.items
        if not segments:
            yield from self._forget_everything()
            return
        self._log_check.damaged += bridge_missing(
            self._commitlog.segments,
            self._disk,
            damaged_folder(self._config.store_path_root_dir),
            is_allowed=not self._config.compat_49,
        )
        first = self._log_check.first_to_check(segments)
        checked_from = segments[first].base
        without_files = [queue for queue in self._queues if not queue.segments.items]
        yield from self._recover_queues(self._queues_unsafe_from(checked_from))
        end, finding = yield from self._log_check.check(segments[first:])
        for start, stop in self._log_check.damaged:
            for queue in self._queues:
                queue.blank(start, stop)
                yield
        unfinished_end = self._log_check.unfinished_end(end)
        dropped, deleted = self._log_check.cut(checked_from, end, finding)

        yield from self._cut_queues(end, unfinished_end)
        removed = yield from self._cut_index(end)

        self._doubt(without_files)
        damaged = yield from self._damaged_queues(checked_from)
        built = max(self._queues.max_physical_offset(), self._commitlog.min_offset)
        begin = built if self._clean and not self._whole else checked_from
        for queue in damaged:
            begin = min(begin, max(queue.max_physical_offset, self._commitlog.min_offset))
        if self._queue_rebuild.log_offset is not None:  # perhaps of a start that has been killed
            begin = min(begin, max(self._queue_rebuild.log_offset, self._commitlog.min_offset))
        yield from self._index_again(begin)
        yield from self._dispatch(begin, end, damaged)
        self._dispatcher.dispatched_offset = end
        yield from self._restore_repaired(end)
        self._keep_ends(damaged, end)
        yield from self._find_lost_entries(begin, end)
        self._keep_numbers(end)
        for queue in without_files:
            if not queue.segments.items and self._queues.get(queue.topic, queue.queue_id) is queue:
                self._queues.destroy(queue)  # or every start would look for its records
        yield from self._correct_min_offsets()
        self._conclude(checked_from, end, finding, dropped, deleted, begin, removed)

    def _queues_unsafe_from(self, checked_from: int) -> int | None:
        """From which log offset on records may lack their queue entries on the disk; None after a clean stop."""
        if self._clean and not self._whole:
            return None
        rebuilt_from = self._queue_rebuild.log_offset
        return checked_from if rebuilt_from is None else min(checked_from, rebuilt_from)

    def _recover_queues(self, unsafe_from: int | None) -> Steps:
        for number, queue in enumerate(self._queues):
            yield from queue.recover(unsafe_from)
            if number % _QUEUES_PER_STEP == 0:
                yield

    def _cut_queues(self, end: int, unfinished_end: int) -> Steps:
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
                last = queue.last_unit()
                # What was being written when a kill came lies near the end. A queue that has only entries of that is new.
                is_emptied = last is None and is_far
                if is_emptied or (last is not None and last[1] != BLANK_SIZE and last[0] + last[1] > end):
                    self._end_is_wrong(queue)  # or no record would count as being behind it
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

    def _correct_min_offsets(self) -> Steps:
        for number, queue in enumerate(self._queues):
            queue.correct_min_offset(self._commitlog.min_offset)
            queue.forget_read()
            if number % _QUEUES_PER_STEP == 0:
                yield

    def _doubt(self, without_files: list[ConsumeQueue]) -> None:
        """Have a queue whose directory is empty built again. A kill leaves such a one only to a queue with a record in the
        checked part of the log, which dispatch comes to."""
        for queue in without_files:
            if (queue.topic, queue.queue_id) not in self._log_check.last_records:
                self._found_without_files(queue)

    @staticmethod
    def _found_without_files(queue: ConsumeQueue) -> None:
        _log.error("%s: it has no files; built again from the log", queue, extra=queue.log_fields)
        queue.found_damaged(0)

    @staticmethod
    def _end_is_wrong(queue: ConsumeQueue) -> None:
        if not queue.damaged:
            _log.error(
                "%s: its end does not agree with the log; built again from the log", queue, extra=queue.log_fields
            )
        queue.found_damaged(queue.max_offset * UNIT_BYTES)

    def _damaged_queues(self, checked_from: int) -> Generator[None, None, list[ConsumeQueue]]:
        """Cut queues with wrong entries in front of them; returns all that have to be built again from where they end.

        After a clean stop, a queue that ends before its last record in the checked part of the log has lost its end
        (after a crash, that part is dispatched again anyway, and gaps are found by that). The last entry
        of a queue is compared with its record if that has just been read: reading others may take a seek each.
        """
        compared = 0
        for where, (number, offset, record_bytes) in self._log_check.last_records.items():
            queue = self._queues.get(*where)
            compared += 1
            if compared % _QUEUES_PER_STEP == 0:
                yield
            if queue is None:
                # Without a directory of its topic, the topic has been deleted.
                if self._clean and self._queues.has_topic(where[0]):
                    queue = self._queues.obtain(*where)
                    if offset >= queue.removed_before:
                        self._found_without_files(queue)
                continue
            last = queue.last_unit()
            if offset < queue.removed_before or (
                number + 1 == queue.max_offset and last is not None and last[:2] == (offset, record_bytes)
            ):
                continue
            if (self._clean and number >= queue.max_offset) or (
                last is not None and last[1] != BLANK_SIZE and last[0] >= checked_from
                and not self._fits(queue, queue.max_offset - 1, last[0], last[1])
            ):  # fmt: skip
                self._end_is_wrong(queue)
        yield from self._begin_again()
        return (yield from self._cut_damaged())

    def _cut_damaged(self) -> Generator[None, None, list[ConsumeQueue]]:
        found = []
        for queue in self._queues:
            if queue.damaged:
                queue.cut_at_first_wrong(self._fits)
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
            if compared % _QUEUES_PER_STEP == 0:
                yield
            if queue.segments.min_offset > queue.start_offset * UNIT_BYTES:
                offset, size, _ = UNIT.unpack(queue.segments.items[0].peek(0, UNIT_BYTES))
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
        first = queue.segments.min_offset // UNIT_BYTES
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
        put_entry(
            queue, record.offset, record.size, self._dispatcher.tags_code(record), record.queue_offset, fill=False
        )
        queue.damaged = True

    def _fits(self, queue: ConsumeQueue, number: int, offset: int, size: int) -> bool:
        return offset + size <= self._commitlog.min_offset or entry_fits(self._commitlog, queue, number, offset, size)

    def _keep_ends(self, built_again: list[ConsumeQueue], end: int) -> None:
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

    def _find_lost_entries(self, begin: int, end: int) -> Steps:
        """Dispatch the log in front of `begin`, too, if queues have lost their last files, or all, unnoticed: no record that
        has been read since the start shows that of an idle queue."""
        # Of a start that follows a kill only if the kill came in a start: queues may have been removed since an earlier one.
        is_known = self._clean or self._queue_rebuild.log_offset is not None
        lost = self._checkpoint.queue_entries - self._queues.entries() if is_known else 0
        self._checkpoint.queue_entries = 0
        first = self._commitlog.min_offset
        if lost > 0 and begin > first:
            _log.error(
                "%d queue entries are missing that were there when the store was closed; all of the log is dispatched again",
                lost,
            )  # fmt: skip
            self._queue_rebuild.note(first)
            for queue in self._queues:
                queue.max_physical_offset = queue.built_until()  # a dropped entry may have pointed behind all records
            yield from self._dispatch(first, end, [])

    def _has_number(self, queue: ConsumeQueue, number: int, offset: int) -> bool:
        """Whether a sound record with this number in the queue is at a log offset, or one that begins the queue again."""
        segment = self._commitlog.segments.find(offset)
        if segment is None:
            return False
        record = read_record(segment.buffer, offset - segment.base, segment.size, offset, check_crc=False)
        return isinstance(record, LogRecord) and number_in(record, queue) in (0, number)

    def _keep_numbers(self, end: int) -> None:
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
                queue.start_offset = queue.segments.min_offset // UNIT_BYTES
                corrected.append(one._replace(next_offset=queue.start_offset))
        if corrected:
            self._queues.removed.note(corrected)

    def _forget_everything(self) -> Steps:
        """Without a log no entry means anything."""
        self._queues.removed.truncate(0)
        entries = sum(1 for queue in self._queues if queue.segments.items)
        if entries:
            _log.error("there are no log files: %d queues of an earlier log and its index are removed", entries)
        for queue in self._queues:
            self._queues.destroy(queue)
            yield
        if self._index is not None:
            self._index.destroy()
        self._commitlog.reset_to_segments()
        self._conclude(0, 0, Finding.NOTHING, 0, (), 0, 0)

    def _cut_index(self, end: int) -> Generator[None, None, int]:
        if self._index is None or self._config.compat_49:
            return 0  # Java leaves entries behind the end; they hide new records from the index until the log is past
        self._checkpoint.index_cut(self._index.earliest_end_behind(end))
        return (yield from self._index.truncate(end, self._store_time))

    def _store_time(self, offset: int) -> int:
        segment = self._commitlog.segments.find(offset)
        if segment is None:
            return 0
        at = offset - segment.base
        record = read_record(segment.buffer, at, segment.size, offset, check_crc=False)
        return record.store_timestamp if isinstance(record, LogRecord) else 0

    def _index_again(self, before: int) -> Steps:
        """Index again the records of index files that could not be kept, up to where dispatch begins."""
        if self._reindex_from is None or self._config.compat_49:
            return
        for record in self._walk.records_between(self._reindex_from, before):
            if record is not None:
                self._dispatcher.index_record(record)
            else:
                self._dispatcher.update_index()
                yield
        # So that dispatch, which may come to the last record again, knows which of its keys are in.
        self._dispatcher.update_index()

    def _dispatch(self, begin: int, end: int, damaged: list[ConsumeQueue]) -> Steps:
        """Dispatch everything in between; missing queue entries in front of it are made good first.

        Records enter queues other than their own, as RocketMQ may have given them, only where these are `damaged`.
        """
        filled: set[ConsumeQueue] = set()
        if COMPILED and not damaged:
            begin = yield from self._pass_dispatched(begin, end)
        at: int | None = begin
        while at is not None:
            at = yield from self._dispatch_from(at, end, damaged, filled)
        self._dispatcher.update_index()

    def _dispatch_from(
        self, begin: int, end: int, damaged: list[ConsumeQueue], filled: set[ConsumeQueue]
    ) -> Generator[None, None, int | None]:
        """Dispatch until a queue turns out to lack entries in front of a record; returns where to begin again, or None.

        Args:
            begin, end: log offsets.
            damaged: as for `_dispatch`.
            filled: the queues that have been begun again, whose gaps are left blank.
        """
        for record in self._walk.records_between(begin, end):
            if record is None:
                self._dispatcher.update_index()
                yield
                continue
            if begin > self._commitlog.min_offset and self._lacks_files(record):
                return self._commitlog.min_offset
            while (gap := self._dispatch_record(record, damaged, filled)) is not None:
                # Entries were lost from before the checkpoint: once per queue, start where it ends.
                filled.add(gap.queue)
                lost_from = max(gap.queue.max_physical_offset, self._commitlog.min_offset)
                if lost_from < begin:
                    _log.warning("%s; dispatching again from log offset %d", gap, lost_from)
                    return lost_from
                # All records behind the queue's end have been passed: beginning again would find no more of them.
        return None

    def _dispatch_record(
        self, record: LogRecord, damaged: list[ConsumeQueue], filled: set[ConsumeQueue]
    ) -> QueueGap | None:
        """Give a record its entries; returns the gap in front of one, if there is a gap that is not to be filled."""
        queue = self._queues.get(record.topic, record.queue_id)
        try:
            self._dispatcher.dispatch(record, fill=queue in filled)
            for other in damaged if MULTI_MARK in record.properties else ():
                number = further_number(record, other)
                if number is not None and other is not queue and enters_queue(record.sys_flag):
                    code = self._dispatcher.tags_code(record)
                    put_entry(other, record.offset, record.size, code, number, fill=other in filled)
        except QueueGap as gap:
            return gap
        return None

    def _lacks_files(self, record: LogRecord) -> bool:
        """Whether a queue without files had entries before the one of this record. Without a directory of its topic, the
        topic has been deleted."""
        if not record.queue_offset or not enters_queue(record.sys_flag):
            return False
        queue = self._queues.get(record.topic, record.queue_id)
        if queue is None:
            if not self._queues.has_topic(record.topic):
                return False
            queue = self._queues.obtain(record.topic, record.queue_id)
        if queue.segments.items or record.queue_offset <= queue.start_offset or record.offset < queue.removed_before:
            return False
        self._found_without_files(queue)
        return True

    def _pass_dispatched(self, begin: int, end: int) -> Generator[None, None, int]:
        """Pass over records that have their entries in queues and index, as almost all have when only the process was
        killed; returns the log offset of the first that may lack one."""
        log, index = self._commitlog.segments, self._index
        indexed_until = end if index is None else index.end_offset
        known = {(q.topic, q.queue_id): max(q.max_physical_offset, q.removed_before) for q in self._queues}
        segment = log.find(begin)
        while segment is not None and begin < end:
            until = min(segment.size, end - segment.base)
            at, passed, store_timestamp = compiled_recovery.pass_dispatched(
                segment.buffer, begin - segment.base, until, segment.base, _BYTES_PER_STEP, indexed_until, known
            )
            begin = segment.base + at
            if passed:
                self._dispatcher.skipped(store_timestamp, begin)
                yield
            elif read_record(segment.buffer, at, until, begin, check_crc=False) is Finding.BLANK:
                segment = log.following(segment)
                begin = end if segment is None else segment.base
            else:
                break
        return begin

    def _restore_repaired(self, end: int) -> Steps:
        """Give the records of repaired parts of the log their queue entries again, which are blank by now."""
        restored: dict[ConsumeQueue, list[int]] = {}
        for start, stop in repaired_parts(self._disk, self._config.store_path_root_dir):
            for record in self._walk.records_between(start, min(stop, end)):
                if record is None:
                    yield
                elif record.offset >= start and enters_queue(record.sys_flag):
                    queue = self._queues.get(record.topic, record.queue_id)
                    if queue is not None and self._restore_entry(queue, record):
                        restored.setdefault(queue, []).append(record.queue_offset)
        for queue, numbers in restored.items():
            _log.error(
                "%s: %d messages between queue offsets %d and %d have been repaired and can be read again; groups whose "
                "offsets are behind them get them after a reset",
                queue, len(numbers), min(numbers), max(numbers), extra=queue.log_fields,
            )  # fmt: skip

    def _restore_entry(self, queue: ConsumeQueue, record: LogRecord) -> bool:
        number = record.queue_offset
        if record.offset < queue.removed_before:
            return False
        unit = queue.unit(number)
        code = self._dispatcher.tags_code(record)
        if unit is None:
            return number >= queue.max_offset and put_entry(queue, record.offset, record.size, code, number, fill=True)
        if unit[1] != BLANK_SIZE and self._fits(queue, number, unit[0], unit[1]):
            return False
        queue.rewrite(number, record.offset, record.size, code)
        return True

    def _conclude(
        self,
        begin: int,
        end: int,
        finding: Finding,
        dropped: int,
        deleted: tuple[str, ...],
        dispatched: int,
        removed: int,
    ) -> None:
        stopped_by = "nothing" if finding is Finding.NOTHING else finding.value
        self.report = RecoveryReport(
            self._clean, begin, end, self._log_check.records, stopped_by, dropped, deleted, dispatched, removed,
            tuple(self._log_check.damaged),
        )  # fmt: skip
        if dropped or deleted:
            _log.error(
                "the log was cut at offset %d, which held %s: %d bytes dropped, %d whole files deleted",
                end, finding.value, dropped, len(deleted),
            )  # fmt: skip
        elif not self._clean:
            _log.warning(
                "the store had not been closed cleanly; %d records checked, the log ends at %d",
                self._log_check.records,
                end,
            )
