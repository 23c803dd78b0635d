"""`MessageStore`: one open store directory, as the broker and replication use it (`DefaultMessageStore`).

It owns the parts of a store and decides whether it accepts messages; the parts define the layout of records, queue
entries and index entries. `opening.open_store` recovers and closes a store. Nothing here waits, except `flush`, changes
of the role, and methods that drop the end of the log.
"""

from __future__ import annotations

import errno
import logging
import mmap
from collections.abc import Callable, Collection, Generator
from functools import partial

import trio

from triomq_protocol.filters.tags import tags_code
from triomq_protocol.record.check import Finding, LogRecord, store_timestamp_of
from triomq_server.clock_waits import ClockWaits
from triomq_server.config import StoreConfig
from triomq_server.disk import Disk
from triomq_server.disk.config_files import ConfigFile
from triomq_server.metrics.store_times import SLOW_S, StoreTimes
from triomq_server.repeats import Repeats
from triomq_server.store.commitlog import CommitLog
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.store.dispatch.dispatcher import Dispatcher
from triomq_server.store.entry_checks import entry_fits
from triomq_server.store.entry_layout import BLANK_SIZE
from triomq_server.store.files.checkpoint import Checkpoint
from triomq_server.store.files.segments import StoreDamaged
from triomq_server.store.flush.flusher import Flusher
from triomq_server.store.index import Index
from triomq_server.store.notes.last_run import note_role
from triomq_server.store.notes.noted_offset import forget_offset, note_offset
from triomq_server.store.notes.queue_rebuild import QueueRebuild
from triomq_server.store.placement import forget_skipped, put_last_skipped
from triomq_server.store.queue_removal import QueueRemoval
from triomq_server.store.queue_table import ConsumeQueues, UnusableTopic
from triomq_server.store.reading import lookup, tail
from triomq_server.store.reading import queue_reads as reading
from triomq_server.store.recovery.recovery import RecoveryReport
from triomq_server.store.removed_queues import RemovedQueues
from triomq_server.store.repair.entry_repair import EntryRepair
from triomq_server.store.retention import Cleaner, LocalTime
from triomq_server.store.values import (
    AppendResult,
    AppendStatus,
    Arrival,
    NewBatch,
    NewRecord,
    QueryResult,
    ReadResult,
    TagMatcher,
)
from triomq_server.wire import in_turns

_log = logging.getLogger(__name__)

_PENDING_MAX = 4096
_ALL = 1 << 62
_DISPATCHED_AT_ONCE = 1 << 18
"""Bytes of a master's records that a change of the role dispatches before others have their turn."""
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNAVAILABLE = AppendResult(AppendStatus.SERVICE_NOT_AVAILABLE)
_ILLEGAL = AppendResult(AppendStatus.MESSAGE_ILLEGAL)

NOT_READABLE = 1
NOT_WRITEABLE = 2
WRITE_LOGICS_QUEUE_ERROR = 4
WRITE_INDEX_FILE_ERROR = 8
DISK_FULL = 16

LOG_EMPTIED = "logEmptied"
"""The file in `triomq/` which says that all of the log is being dropped, so that its queues are no sign of a loss."""

HALF_CUT = (
    "the log was cut, at least in part, but its queues and index were not; restart this broker, whose start cuts them: it "
    "takes no messages until then"
)
"""The cause and the cure where `MessageStore.half_cut` is set."""


class MessageStore:
    """One store directory. Use `open_store`.

    Args:
        config: location and behaviour of the store.
        disk: access to the files.
        clock: ms since the epoch, for store timestamps and expiry.
        local_time: converts such a time to local time, for the hour of expiry and the names of index files.
        is_slave: whether a master feeds the log.
        clock_waits: wakes the expiry when the clock is set.

    Attributes:
        disk: access to the files; the broker uses it for its own tables, too.
        commitlog, consume_queues, index, checkpoint: the parts on disk; no index if the configuration disables it.
        dispatcher, flusher, cleaner, queue_removal, entry_repair: the parts that work on them.
        queue_rebuild: the note that damaged queues are being built again.
        arrival_listeners: called with each message that became readable, from `notify_arrivals`.
        append_listeners: called with the log's new end, from `notify_arrivals`.
        delay_listener: called with the queue id of each message that `append` put into the schedule topic, at once.
        times: how long puts and gets take.
        recovery_report: the findings of recovery.
        half_cut: whether `cut` has failed when the log was already cut. New records would get the numbers and keys of those
            dropped, so nothing is appended any more.
        not_written: after closing, the data that the disk has not taken; None if the next start finds the store complete.
        running_flags: RocketMQ's bits (`NOT_READABLE` ...); change them through `set_flag` and `clear_flag`.
    """

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        clock: Callable[[], int],
        local_time: LocalTime,
        *,
        is_slave: bool,
        clock_waits: ClockWaits | None = None,
    ) -> None:
        root = config.store_path_root_dir
        self._config = config
        self.disk = disk
        self.checkpoint = Checkpoint(disk, f"{root}/checkpoint")
        self.commitlog = CommitLog(config, disk, clock)
        removed = RemovedQueues(ConfigFile(f"{root}/triomq/removedQueues.json", disk))
        self.queue_rebuild = QueueRebuild(disk, root)
        self.consume_queues = ConsumeQueues(
            disk, f"{root}/consumequeue", config.consume_queue_file_bytes, removed, damage_found=self.queue_rebuild.note
        )
        self.index: Index | None = None
        if config.message_index_enable:
            self.index = Index(disk, f"{root}/index", config.max_hash_slot_num, config.max_index_num, clock, local_time)
        as_in_49 = config.compat_49
        self.dispatcher = Dispatcher(
            self.commitlog,
            self.consume_queues,
            self.index,
            self.checkpoint,
            config.delay_levels_ms,
            exact_repeats=not as_in_49,
            checkpoints_early=as_in_49,
        )
        self.flusher = Flusher(config, disk, self.commitlog, self.consume_queues, self.index, self.checkpoint)
        self.cleaner = Cleaner(
            config, disk, self.commitlog, self.consume_queues, self.index, clock, local_time, clock_waits
        )
        self.queue_removal = QueueRemoval(self.commitlog, self.consume_queues, self.dispatcher)
        self.entry_repair = EntryRepair(
            self.commitlog, self.consume_queues, self.dispatcher.tags_code, self.dispatcher.entry_repaired
        )
        self.recovery_report: RecoveryReport | None = None
        self.times = StoreTimes()
        self._run_began = 0.0
        self._is_slave = is_slave
        self._table = self.consume_queues.table
        self.arrival_listeners = self.dispatcher.arrival_listeners
        self.append_listeners = self.dispatcher.append_listeners
        self.delay_listener: Callable[[int], None] = lambda _: None
        self.commitlog.time_went_back = self.checkpoint.went_back
        self.dispatcher.index_full = self._index_full
        self.flusher.failed = self._disk_failed
        self.flusher.recovered = self._disk_recovered
        self.cleaner.space_checked = self._space_checked
        if self.flusher.is_synchronous:
            self.append_listeners.append(self.flusher.wake)
        self.running_flags = 0
        self.half_cut = False
        self._disk_lacks: dict[int, str] = {}
        """The running flags that the disk has caused, and why."""
        self._space_lacks = Repeats()  # the disk may report free space although a file still cannot be made
        self._refusals = Repeats()
        self.not_written: str | None = None
        self._open = True
        self._writable = False
        self._update_writable()

    def close(self) -> None:
        """Refuse reads and appends from now on; `open_store` does the rest."""
        try:
            self.dispatch()
            self.dispatcher.update_index()
        except OSError as e:
            _log.error("the store cannot grow: %s; the next start will go on from here", e)
        self._open = False
        self._update_writable()

    async def drop_unfinished(self) -> bool:
        """After `close`: drop a record that a master has sent only in part; the master sends it again.

        No checksum covers the properties, so the next start could not distinguish a record that lacks only their end from a
        whole one.

        Returns:
            Whether only whole records are left; if not, the next start has to check the log as after a crash.
        """
        found = self.dispatcher.next_to_dispatch() if self._is_slave else None
        if found is Finding.INCOMPLETE:
            try:
                await self.flusher.cut_log(self.dispatcher.dispatched_offset)
            except OSError as error:
                _log.error("the part of a record at the log's end cannot be dropped: %s", error)
                return False
        return not isinstance(found, LogRecord)  # the disk was too full to dispatch it

    # ---- state

    def set_flag(self, bit: int) -> None:
        """Set a running flag."""
        self.running_flags |= bit
        self._update_writable()

    def clear_flag(self, bit: int) -> None:
        """Clear a running flag."""
        self.running_flags &= ~bit
        self._update_writable()

    def _update_writable(self) -> None:
        refusing = NOT_WRITEABLE | WRITE_LOGICS_QUEUE_ERROR | WRITE_INDEX_FILE_ERROR | DISK_FULL
        self._writable = self._open and not self._is_slave and not self.running_flags & refusing

    def _disk_failed(self, why: str) -> None:
        self._disk_lacks[NOT_WRITEABLE] = f"the disk refuses the log: {why}"
        self.set_flag(NOT_WRITEABLE)

    def _disk_recovered(self) -> None:
        self.clear_flag(NOT_WRITEABLE)

    @property
    def disk_lack(self) -> str | None:
        """Why the disk is the reason that appends are refused; None if it is not."""
        return next((why for flag, why in self._disk_lacks.items() if self.running_flags & flag), None)

    def _no_space(self, why: str = "no space left for the store") -> None:
        if not self.running_flags & DISK_FULL and self._space_lacks.add("") is not None:
            _log.error("%s; messages are refused until that has changed, reading goes on", why)
        self._disk_lacks[DISK_FULL] = why
        self.set_flag(DISK_FULL)

    def _index_full(self) -> None:
        self._no_space("no space left for the index")  # which has been logged with the reason

    def _space_checked(self, refuse: bool) -> None:
        if refuse:
            self._no_space()
        elif self.running_flags & DISK_FULL:
            self.clear_flag(DISK_FULL)
            self.notify_arrivals()  # sets the flag again if there still is no space for the index

    @property
    def writable(self) -> bool:
        """Whether appends are accepted now."""
        return self._writable

    @property
    def readable(self) -> bool:
        """Whether reads are answered now."""
        return self._open and not self.running_flags & NOT_READABLE

    @property
    def is_slave(self) -> bool:
        """Whether the log is fed by a master (`append_raw`) instead of by `append`."""
        return self._is_slave

    async def promote(self) -> None:
        """Become a master: drop a record that was received only in part, and accept appends from now on.

        Queue offsets continue at the ends of the queues, which by then cover the whole log. The received records are
        dispatched in turns with other tasks, and a cancel stops that; nothing may be appended in the meantime.

        Raises:
            StoreDamaged: the log ends in something other than an unfinished record; nothing has been dropped.
            OSError: the disk fails, or `half_cut`.
        """
        self._check_cut()
        await self._dispatch_all()
        end = self.dispatcher.dispatched_offset
        if end < self.commitlog.max_offset:
            foreign = self.dispatcher.foreign_bytes()
            if foreign is not None:
                raise StoreDamaged(
                    f"the log holds {foreign.value} at offset {end}: {self.commitlog.max_offset - end} bytes would be lost"
                )
            _log.warning("dropping %d bytes of an incomplete record at the log's end", self.commitlog.max_offset - end)
        # Also where nothing is dropped: a disk that got full may have taken more of a frame than was counted, and own
        # records must not be followed by records of the old master.
        await self.cut(end)
        self.put_last_skipped()
        await self._note_role(is_slave=False)
        self._is_slave = False
        self._update_writable()

    def put_last_skipped(self) -> None:
        """Before own appends: give entries to records that wait for what follows in their queues. OSError."""
        for queue in self.consume_queues:
            put_last_skipped(queue)

    async def demote(self) -> None:
        """Become a slave: refuse appends at once, take a master's bytes when this returns. Cannot be cancelled."""
        self.notify_arrivals()
        self.dispatcher.dispatched_offset = self.commitlog.max_offset
        self._is_slave = True
        self._update_writable()
        with trio.CancelScope(shield=True):
            await self._index_all()
            await self._note_role(is_slave=True)

    async def _note_role(self, *, is_slave: bool) -> None:
        root = self._config.store_path_root_dir
        await self.disk.run(partial(note_role, self.disk, root, is_slave=is_slave))

    async def cut(self, offset: int) -> int:
        """Drop everything from this log offset on, in log, queues and index; returns the number of bytes dropped.

        Used only by an operator's order, or for an incomplete record. `offset` is the start of a record or the end of
        the log. Other tasks get their turns, but nothing may be appended in the meantime. Once something has been
        dropped, a cancel does not interrupt it. OSError; then `half_cut` is whether the log was cut nevertheless.
        """
        await self._dispatch_all()
        await self._index_all()
        before = self.commitlog.max_offset
        last_timestamp = None
        if offset < self.dispatched_offset:
            last_timestamp = self._last_timestamp_before(offset)
            if self.index is not None:
                self.checkpoint.index_cut(self.index.earliest_end_behind(offset))
        disk, root = self.disk, self._config.store_path_root_dir
        is_emptied = offset < self.commitlog.min_offset
        if is_emptied:  # after a kill, a start would take the log for one that is missing
            await disk.run(partial(note_offset, disk, root, LOG_EMPTIED, offset))
        # The log first: after a kill, a start drops entries of records that are not there, but does not miss entries.
        try:
            end = await self.flusher.cut_log(offset, last_timestamp)
        except OSError:
            if self.commitlog.max_offset < before:
                self.half_cut = True  # the last files are gone, and entries of their records are left
                self.dispatcher.restart_at(self.commitlog.max_offset)
            raise
        self.dispatcher.restart_at(end)
        self.half_cut = True
        with trio.CancelScope(shield=True):
            # Entries of records that had left the log before would hide those that come in their places.
            await self._cut_queues_and_index(0 if is_emptied else offset)
            if is_emptied:
                await disk.run(partial(forget_offset, disk, root, LOG_EMPTIED))
        self.half_cut = False
        return before - end

    async def _cut_queues_and_index(self, offset: int) -> None:
        longer = []
        for queue in self.consume_queues:
            queue.removed_before = min(queue.removed_before, offset)
            forget_skipped(queue, offset)
            if queue.max_physical_offset > offset or (not offset and queue.segments.items):
                longer.append(queue)
        was_open, self._open = self._open, self._open and not longer  # no pull may read an entry without a record
        try:
            found = [queue.emptied_by(offset) for queue in longer] if offset else []
            emptied = {one[:2]: one._replace(log_offset=offset) for one in found if one is not None}
            if emptied:
                await self.consume_queues.removed.note_in_background(emptied.values())  # before their files are deleted
            for queue in longer:
                where = queue.topic, queue.queue_id
                if self._table.get(where) is queue:  # not removed in the meantime
                    queue.truncate(offset)
                    if where in emptied:
                        queue.continue_as(emptied[where])
                    await trio.lowlevel.checkpoint()
        finally:
            self._open = was_open
        await self.consume_queues.removed.truncate_in_background(offset)
        if self.index is not None:
            await in_turns(self.index.truncate(offset, self._stored_at))

    def _last_timestamp_before(self, offset: int) -> int:
        """The store time, ms, of the last record before a log offset; 0 without one."""
        last = self.last_record_by(offset)
        return 0 if last is None else self._stored_at(last[0])

    async def _dispatch_all(self) -> None:
        """Dispatch the records a master has sent, in turns with other tasks. OSError when the disk is full."""
        while self.dispatch(_DISPATCHED_AT_ONCE):
            await trio.lowlevel.checkpoint()

    async def _index_all(self) -> None:
        """Index what waits, in turns with other tasks, as far as the disk has space."""
        while self.dispatcher.index_is_behind:
            await trio.lowlevel.checkpoint()
            if not self.dispatcher.index_some():
                break

    def _stored_at(self, offset: int) -> int:
        record = lookup.record_at(self.commitlog, offset)
        return 0 if record is None else store_timestamp_of(record)

    @property
    def log_min_offset(self) -> int:
        """First byte kept in the log."""
        return self.commitlog.min_offset

    @property
    def log_max_offset(self) -> int:
        """First byte not yet written."""
        return self.commitlog.max_offset

    @property
    def dispatched_offset(self) -> int:
        """Up to here all records are in their queues; on a master always the log's end."""
        return self.dispatcher.dispatched_offset if self._is_slave else self.commitlog.max_offset

    @property
    def flushed_offset(self) -> int:
        """Up to here the log is on disk."""
        return self.flusher.flushed_offset

    def watch_only(self, queues: Collection[tuple[str, int]] | None) -> None:
        """Call `arrival_listeners` only for these queues from now on, None: for all. The collection may change."""
        self.dispatcher.watched = queues

    # ---- writing

    def append(self, r: NewRecord) -> AppendResult:
        """Store one message; it is readable when this returns. Never raises for a bad message or a full disk."""
        if not self._writable:
            return _UNAVAILABLE
        began = self.times.now()
        topic = r.topic
        code = tags_code(r.tags) if r.tags else 0
        delay = self.dispatcher.delay_ms(topic, r.delay_level) if r.delay_level > 0 else -1
        try:
            queue = self._table.get((topic, r.queue_id)) or self.consume_queues.obtain(topic, r.queue_id)
            result = self.commitlog.append(r, queue, code, delay)
        except OSError as e:
            return self._refuse(e)
        except UnusableTopic:
            return _ILLEGAL
        if result.status is AppendStatus.PUT_OK:
            if delay >= 0:
                code = result.store_timestamp + delay
                self.delay_listener(r.queue_id)
            pending = self.dispatcher.pending
            pending.append((r, result, code))
            if len(pending) >= _PENDING_MAX:
                self.notify_arrivals()
            self._appended(began, 1)
        return result

    def append_batch(self, b: NewBatch) -> AppendResult:
        """Store a batch: all elements or none, next to each other in one file. Malformed element bytes: BodyError."""
        if not self._writable:
            return _UNAVAILABLE
        began = self.times.now()
        try:
            queue = self.consume_queues.obtain(b.topic, b.queue_id)
            result, elements = self.commitlog.append_batch(b, queue)
        except OSError as e:
            return self._refuse(e)
        except UnusableTopic:
            return _ILLEGAL
        if result.status is AppendStatus.PUT_OK:
            self.dispatcher.batch_appended(b, result, elements)
            self._appended(began, 1)
        return result

    def append_large_batch(self, b: NewBatch) -> Generator[None, None, AppendResult]:
        """`append_batch` for a batch of any size: yields between slices of the preparation, never during the write.

        The listeners have been called when it returns.
        """
        if not self._writable:
            return _UNAVAILABLE
        began = self.times.now()
        try:
            prepared = yield from self.commitlog.prepare_batch(b)
            if isinstance(prepared, AppendResult):
                return prepared
            if not self._writable:
                return _UNAVAILABLE
            queue = self.consume_queues.obtain(b.topic, b.queue_id)
            result = self.commitlog.append_prepared(prepared, queue)
        except OSError as e:
            return self._refuse(e)
        except UnusableTopic:
            return _ILLEGAL
        self.dispatcher.large_batch_appended(b, result, prepared.elements, prepared.last_of_code)
        self.notify_arrivals()
        self._appended(began, 1)
        return result

    def begin_run(self) -> tuple[mmap.mmap, int, int, int, int, bool] | None:
        """The place at which records encoded elsewhere may be written now.

        None if the store accepts no messages, or the index is far behind. Nothing else may be done with the store before
        `end_run`.

        Returns:
            The log's file, the position in it, its limit (the end-of-file mark must fit before it, too), the log offset
            of the position, the store time, and whether there is an index.
        """
        if not self._writable or self.dispatcher.is_far_behind:
            return None
        self._run_began = self.times.now()
        return *self.commitlog.begin_run(), self.index is not None

    def provide_space(self, size_bytes: int, queue: ConsumeQueue, entries: int) -> bool:
        """Make room for records of this size and this many entries of a queue, between `begin_run` and `end_run`.

        False if they do not fit into the files that are being written, or the disk is full."""
        try:
            return self.commitlog.provide_space(size_bytes) and queue.provide_space(entries)
        except OSError:
            return False  # the ordinary path finds the same, and reports it

    def end_run(self, size_bytes: int, timestamp: int, hashes: bytearray, arrivals: list[Arrival], puts: int) -> None:
        """Account for records that have been written, with their queue entries, at the place returned by `begin_run`.

        Args:
            size_bytes: of all records.
            timestamp: their store time.
            hashes: their entries for the index, packed as `HASHED_KEY`.
            arrivals: the arrivals in watched queues.
            puts: how many requests they are from.
        """
        self.commitlog.end_run(size_bytes, timestamp)
        self.dispatcher.run_appended(timestamp, hashes, arrivals)
        self._appended(self._run_began, puts)

    def _appended(self, began: float, puts: int) -> None:
        duration_s = self.times.now() - began
        if duration_s >= SLOW_S:
            self.times.appended(duration_s, puts)

    def is_watched(self, topic: str, queue_id: int) -> bool:
        """Whether the arrivals of a queue are wanted."""
        return self.dispatcher.is_watched(topic, queue_id)

    def _refuse(self, error: OSError) -> AppendResult:
        if self._refusals.add("") is not None:
            _log.error("the store cannot grow: %s", error)
        if error.errno in _NO_SPACE:
            self._no_space()
        else:
            self._no_space(f"a file of the store cannot be made or extended: {error.strerror}")
        return _UNAVAILABLE

    def append_raw(self, data: bytes | memoryview, offset: int) -> None:
        """Replication: put a master's bytes at the log's end. Call `dispatch` afterwards, so that they can be read.

        `offset` must be the log's end, or the start of a file when the log is empty.
        Raises ValueError when the bytes do not fit there, OSError when the disk is full.
        """
        self._begin_at(offset)
        self.commitlog.append_raw(data, offset)

    def raw_place(self, offset: int, size_bytes: int) -> tuple[int, int] | None:
        """Replication: descriptor and position of the file that a master's bytes for log offset `offset` belong to.

        After they have been written, call `raw_written` before anything else is done with the store. None if there is no
        such file: use `append_raw` then. Errors as with `append_raw`.
        """
        self._begin_at(offset)
        descriptor = self.commitlog.raw_place(offset, size_bytes)
        return None if descriptor < 0 else (descriptor, self.commitlog.raw_position)

    def raw_written(self, size_bytes: int) -> None:
        """So many bytes have been written to the `raw_place`."""
        self.commitlog.raw_written(size_bytes)

    def _check_cut(self) -> None:
        if self.half_cut:
            raise OSError(HALF_CUT)

    def _begin_at(self, offset: int) -> None:
        self._check_cut()
        log = self.commitlog
        if offset and not log.max_offset and log.segments.items:
            log.truncate(-1)  # nothing is in its first file, and the master's log begins with a later one by now
        if not log.segments.items:
            self.dispatcher.dispatched_offset = offset

    def announce_end(self) -> None:
        """Call `append_listeners` with the log's end, whatever of it has been dispatched."""
        self.dispatcher.announce_end()

    def dispatch(self, most_bytes: int = _ALL) -> bool:
        """Replication: make about `most_bytes` at most of the received bytes readable, and call the listeners.

        Returns whether there may be more to do. OSError when the disk is full.
        """
        more = self.dispatcher.follow(most_bytes) if self._is_slave else False
        self.dispatcher.notify()
        return more

    def notify_arrivals(self) -> None:
        """Index what arrived since the last call, and call the listeners.

        Of many keys only some are indexed at once; `Dispatcher.index_forever` does the rest.
        """
        self.dispatcher.notify()

    def notify_batch(self) -> None:
        """`notify_arrivals` at the end of a receive batch: `Dispatcher.index_forever` indexes a few keys soon."""
        self.dispatcher.notify(few_may_wait=True)

    def index_more(self, mark: int = 0) -> bool:
        """Index some of the keys if very many wait, or those before a mark; whether there may be more of them.

        Args:
            mark: `Dispatcher.mark` of the moment before which all long keys are to be read; 0 for none.
        """
        dispatcher = self.dispatcher
        dispatcher.collect()
        return (dispatcher.is_far_behind or not dispatcher.has_read_to(mark)) and dispatcher.index_some()

    async def flush(self) -> None:
        """Wait until everything appended so far is on disk. OSError if the disk refused."""
        end = self.commitlog.max_offset
        end = min(end, await self.flusher.flush_log())  # bytes cut off in the meantime need not be there
        if self.flusher.flushed_offset < end:
            raise OSError(f"the log is on disk only up to {self.flusher.flushed_offset}, not to {end}")

    # ---- reading

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        matcher: TagMatcher | None,
    ) -> ReadResult | None:
        """Up to `max_messages` records of a queue from queue offset `offset` on (docs/protocol/store.md §15.1).

        Records further behind the log's end than `in_memory_limit_bytes` of the configuration count as being on disk:
        fewer are given, and a slave is suggested. None when the store is closed or not readable.
        """
        if not self._open or self.running_flags & NOT_READABLE:
            return None
        began = self.times.now()
        queue = self._table.get((topic, queue_id)) or self.consume_queues.find(topic, queue_id)
        correct = not self._is_slave or self._config.offset_check_in_slave
        result = reading.read_queue(
            self._config,
            self.commitlog,
            queue,
            offset,
            max_messages,
            matcher,
            correct=correct,
            damaged=self.entry_repair.report,
        )
        duration_s = self.times.now() - began
        if duration_s >= SLOW_S:
            self.times.read(duration_s)
        return result

    def record_at(self, physical_offset: int, size_bytes: int | None = None) -> memoryview | None:
        """The record that starts at this log offset, or None."""
        return lookup.record_at(self.commitlog, physical_offset, size_bytes)

    def log_slice(self, offset: int, max_bytes: int) -> memoryview | None:
        """Log bytes from `offset` for replication; never crosses a file; None at (or outside of) the log's ends."""
        return self.commitlog.rest_of_file(offset, max_bytes)

    def open_log_file(self, offset: int) -> int | None:
        """A new descriptor for reading the file that holds this log offset; None if it is not a file of the system.

        The caller closes it. Position 0 of the file is the log offset rounded down to `mapped_file_size_commit_log`.
        """
        return self.commitlog.open_file(offset)

    def last_record_by(self, end: int) -> tuple[int, int] | None:
        """Log offset and size of the last whole record that ends at or before log offset `end`; None without one."""
        return tail.last_record_by(self.commitlog, self.consume_queues, end)

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(min, max) queue offset; (0, 0) for an unknown queue."""
        queue = self.consume_queues.find(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)

    def queues(self) -> list[tuple[str, int]]:
        """Topic and queue id of every queue that exists."""
        return list(self._table)

    def readable_queues(self) -> list[tuple[str, int]]:
        """Topic and queue id of every queue that has messages."""
        return [(queue.topic, queue.queue_id) for queue in self.consume_queues if queue.max_offset > queue.min_offset]

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The queue offset nearest to a store time (docs/protocol/store.md §17); 0 for an unknown queue."""
        queue = self._table.get((topic, queue_id))
        modified_ms = self.disk.modified_ms if self._config.compat_49 else None
        return 0 if queue is None else lookup.offset_by_time(self.commitlog, queue, timestamp_ms, modified_ms)

    def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time in ms of the message at this queue offset, -1 if there is none."""
        queue = self._table.get((topic, queue_id))
        return -1 if queue is None else lookup.store_time_at(self.commitlog, queue, offset)

    def queue_entry(self, topic: str, queue_id: int, offset: int) -> tuple[int, int, int] | None:
        """Log offset, size and tags code that the consume queue holds at this queue offset; None if it has none."""
        queue = self._table.get((topic, queue_id))
        return None if queue is None else queue.entry(offset)

    def check_entry(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the entry at this queue offset points to its record, or is blank; if not, it is repaired soon."""
        queue = self._table.get((topic, queue_id))
        entry = None if queue is None else queue.entry(offset)
        if queue is None or entry is None or entry[1] == BLANK_SIZE or 0 <= entry[0] < self.commitlog.min_offset:
            return True
        if entry_fits(self.commitlog, queue, offset, entry[0], entry[1]):
            return True
        self.entry_repair.report(queue, offset)
        return False

    def record_offset_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Log offset of the message at this queue offset, -1 if there is none."""
        queue = self._table.get((topic, queue_id))
        entry = None if queue is None else queue.entry(offset)
        return -1 if entry is None else entry[0]

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time in ms of the queue's (or, without a topic, the log's) oldest message, -1 if there is none."""
        if topic is None:
            return lookup.earliest_log_time(self.commitlog)
        queue = self._table.get((topic, queue_id))
        return -1 if queue is None else lookup.store_time_at(self.commitlog, queue, queue.min_offset)

    def in_memory(self, physical_offset: int) -> bool:
        """Whether a record counts as being in memory: not further behind the log's end than `in_memory_limit_bytes`."""
        return self.commitlog.max_offset - physical_offset <= self._config.in_memory_limit_bytes

    def query(self, topic: str, key: str, max_num: int, begin: int, end: int) -> Generator[None, None, QueryResult]:
        """Records whose KEYS or UNIQ_KEY hash like `key`, stored between the two times in ms (docs/protocol/store.md
        §10.4); in slices."""
        while self.dispatcher.index_some() and self.dispatcher.index_is_behind:
            yield
        most = min(max_num, self._config.max_msgs_num_batch)
        return (yield from lookup.query(self.commitlog, self.index, topic, key, most, begin, end))
