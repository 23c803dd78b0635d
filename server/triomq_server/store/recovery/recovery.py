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
from triomq_server.store.entry_checks import MULTI_MARK, further_number
from triomq_server.store.entry_layout import BLANK_SIZE
from triomq_server.store.files.checkpoint import Checkpoint
from triomq_server.store.index import Index
from triomq_server.store.notes.queue_rebuild import QueueRebuild
from triomq_server.store.notes.repaired import repaired_parts
from triomq_server.store.placement import QueueGap, put_entry
from triomq_server.store.queue_table import ConsumeQueues
from triomq_server.store.recovery.log_check import LogCheck
from triomq_server.store.recovery.log_walk import LogWalk
from triomq_server.store.recovery.missing_files import bridge_missing
from triomq_server.store.recovery.queue_check import QueueCheck, found_without_files
from triomq_server.store.recovery.steps import BYTES_PER_STEP, QUEUES_PER_STEP, Steps
from triomq_server.store.repair.damage import damaged_folder

if COMPILED:
    from triomq_server.compiled import recovery as compiled_recovery

_log = logging.getLogger(__name__)


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
        self._queue_check = QueueCheck(
            queues, log, checkpoint, self._walk, self._log_check.last_records, dispatcher.tags_code, clean=clean
        )
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

        yield from self._queue_check.cut(end, unfinished_end)
        removed = yield from self._cut_index(end)

        self._queue_check.doubt(without_files)
        damaged = yield from self._queue_check.cut_damaged(checked_from)
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
        self._queue_check.keep_ends(damaged, end)
        yield from self._find_lost_entries(begin, end)
        self._queue_check.keep_numbers(end)
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
            if number % QUEUES_PER_STEP == 0:
                yield

    def _correct_min_offsets(self) -> Steps:
        for number, queue in enumerate(self._queues):
            queue.correct_min_offset(self._commitlog.min_offset)
            queue.forget_read()
            if number % QUEUES_PER_STEP == 0:
                yield

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
        found_without_files(queue)
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
                segment.buffer, begin - segment.base, until, segment.base, BYTES_PER_STEP, indexed_until, known
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
        entry = queue.entry(number)
        code = self._dispatcher.tags_code(record)
        if entry is None:
            return number >= queue.max_offset and put_entry(queue, record.offset, record.size, code, number, fill=True)
        if entry[1] != BLANK_SIZE and self._queue_check.fits(queue, number, entry[0], entry[1]):
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
