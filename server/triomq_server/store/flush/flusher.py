"""Forces log, queues, index and checkpoint to the disk (docs/protocol/store.md §12.3, §12.4).

One `fdatasync` of the log is in flight at a time, in a worker thread; it releases every send that waited before it
started. After a disk error no send is accepted, and nothing is reported as safe, until all bytes in doubt have been read
back, checked, written again and forced to the disk (`unconfirmed`); this is tried every few seconds. Answers to
`FlushRealTimeService`, `GroupCommitService` and `FlushConsumeQueueService`.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import trio

from triomq_server.config import FlushDiskType, StoreConfig
from triomq_server.disk.access import NO_DESCRIPTOR, PAGE_BYTES, Disk
from triomq_server.metrics.histogram import Histogram
from triomq_server.pauses import Pauses
from triomq_server.store.commitlog import CommitLog
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.store.files.checkpoint import Checkpoint
from triomq_server.store.files.segments import Unflushed, sync_segments
from triomq_server.store.flush.offset_waiters import OffsetWaiters
from triomq_server.store.flush.unconfirmed import forget_refusal, note_refusal, write_again
from triomq_server.store.index import Index
from triomq_server.store.queue_table import ConsumeQueues

_log = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 5.0
"""How long a disk that has failed is left alone before it is tried again; twice as long after each failure."""

LOOK_AGAIN_MOST_S: Final = 60.0

FLUSHED_AT_ONCE: Final = 4
"""Queues' files that are flushed side by side at the end, when no send waits for the log."""

FLUSHED_PER_CHORE: Final = 8
"""Queues' files that one chore flushes. Each chore costs the loop as much as ten flushes cost that find nothing to write."""

MANY_QUEUES: Final = 32
"""From more queues on it is worth several tasks."""


class Flusher:
    """The store's flushing tasks, and the sends that wait for them.

    Attributes:
        flushed_offset: the log is on disk up to here.
        failed: called when the disk refused to take the log.
        recovered: called when the disk has taken, later, all that it had refused.
    """

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        checkpoint: Checkpoint,
    ) -> None:
        self._config = config
        self._disk = disk
        self._commitlog = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self.flushed_offset = 0
        self.times = Histogram()
        """How long the disk took for each flush of the log."""
        self.failed: Callable[[str], None] = lambda _: None
        self.recovered: Callable[[], None] = lambda: None
        self._broken = False
        self._look_at = float("inf")
        """When the disk is tried again."""
        self._pauses = Pauses(LOOK_AGAIN_S, LOOK_AGAIN_MOST_S)
        self._refusal_noted = False
        """Whether it is recorded for the next start that the log is in doubt."""
        self._queues_in_doubt = False
        """Queues or index may not be on the disk, whatever a later flush says."""
        self._owed = False
        """The last flush failed for lack of descriptors or memory, and must be made up for."""
        self._waiters = OffsetWaiters()
        self._wanted = trio.Event()
        self._space_wanted = trio.Event()
        self._one_at_a_time = trio.Lock()
        self._saving = trio.Lock()
        self._lowering_failed = False
        self._gone = False
        """The log has been moved or deleted since it was opened."""
        log.space_wanted = self._want_space

    def _want_space(self) -> None:
        self._space_wanted.set()

    # ---- waiting

    def when_flushed(self, end_offset: int, deadline: float, done: Callable[[bool], None]) -> None:
        """Call `done(True)` once the log is on disk up to `end_offset`, or `done(False)` at the deadline."""
        if end_offset <= self.flushed_offset or self._broken:
            done(end_offset <= self.flushed_offset)
            return
        self._waiters.add(end_offset, deadline, done)
        self._wanted.set()

    def wake(self, _end_offset: int = 0) -> None:
        """Flush soon, although no send waits for it."""
        self._wanted.set()

    async def expire_waiters_forever(self) -> None:
        """Task: give up on waiting sends at their deadlines, also while a flush hangs."""
        await self._waiters.expire_forever()

    # ---- the log

    async def flush_log_forever(self) -> None:
        """Task: asynchronous flush on a timer; synchronous flush as soon as a send waits or something was written."""
        config = self._config
        interval_s = config.flush_interval_commit_log / 1000
        thorough_s = config.flush_commit_log_thorough_interval / 1000
        last_thorough = trio.current_time()
        while True:
            with trio.move_on_at(min(trio.current_time() + interval_s, self._look_at)):
                await self._wanted.wait()
            if trio.current_time() >= self._look_at:
                await self.try_again()
            least_pages = config.flush_commit_log_least_pages
            if self._wanted.is_set() or self._owed:
                self._wanted = trio.Event()
                least_pages = 0
            if trio.current_time() >= last_thorough + thorough_s:
                last_thorough = trio.current_time()
                least_pages = 0
            await self.flush_log(least_pages)

    async def cut_log(self, offset: int, last_timestamp: int | None = None) -> int:
        """End the log at `offset`; returns its new end. A cancel before that leaves the log unchanged.

        Waits for a flush that is under way: it would count the bytes appended in place of those cut off as flushed, and
        a flush that writes a part of the log again would write the bytes that were cut off.

        Args:
            offset: the start of a record, or the end of the log.
            last_timestamp: the store time, in ms, of the last record before `offset`; None if no whole record follows
                `offset`. The checkpoint covers the dropped records, and must not cover those that replace them.
        """
        async with self._one_at_a_time:
            if last_timestamp is not None:
                self._checkpoint.went_back(last_timestamp)
            self._checkpoint.log_cut(offset)
            await self.lower_checkpoint()
            if last_timestamp is not None:
                self._commitlog.store_timestamp = last_timestamp
            try:
                self._commitlog.truncate(offset)
            finally:
                end = self._commitlog.max_offset
                self.flushed_offset = min(self.flushed_offset, end)
                self._waiters.fail_behind(end)
            return end

    async def flush_log(self, least_pages: int = 0) -> int:
        """Force everything appended so far to the disk, if it is at least this many pages. Returns the end of the log when
        the flush began, after any cut under way; `flushed_offset` states how much of it is on the disk."""
        async with self._one_at_a_time:
            await self.lower_checkpoint()
            target = self._commitlog.max_offset
            timestamp = self._commitlog.store_timestamp
            dirty = self._commitlog.dirty()
            if self._broken or (dirty and _pages(dirty) < least_pages):
                return target
            began = trio.current_time()
            try:
                if dirty:
                    await self._disk.run(partial(self._force, dirty))
            except OSError as error:
                if error.errno in NO_DESCRIPTOR:
                    if not self._owed:
                        _log.error("the log cannot be forced to the disk for the time being: %s", error)
                    self._owed = True
                    return target
                message = "the disk refused to take the log; the store accepts no messages until it does: %s"
                _log.critical(message, error)
                self._broken = True
                self._pauses.reset()
                self._look_at = trio.current_time() + self._pauses.next_s()
                self.failed(error.strerror or str(error))
                self._waiters.fail_all()
                await self._note_refusal()
                return target
            self._owed = False
            if dirty:
                self.times.observe(trio.current_time() - began)
            self._confirm(dirty, target, timestamp)
            return target

    def _force(self, dirty: list[Unflushed]) -> None:
        sync_segments(dirty)
        self._check_place(dirty)

    def _write_again(self, dirty: list[Unflushed]) -> str | None:
        self._check_place(dirty)
        return write_again(dirty)

    def _check_place(self, dirty: list[Unflushed]) -> None:
        """Check that the log's files still exist where they were opened. OSError (ESTALE).

        A missing file is no error if it has expired: the log has dropped it before. But a log that was moved still accepts
        writes through its maps, although no path leads to its files, and new files are made in a new directory."""
        for segment, _, _ in dirty:
            if not self._disk.exists(segment.path) and segment in self._commitlog.segments.items:
                self._gone = True
                raise OSError(errno.ESTALE, "the file was moved or removed, put it back", segment.path)
        path = self._config.store_path_commit_log
        if not self._disk.is_in_place(path):
            self._gone = True
            raise OSError(errno.ESTALE, "the directory is another one than at the start, put that one back", path)
        self._gone = False

    async def lower_checkpoint(self) -> None:
        """Write lower times to the checkpoint's file if it covers more than is known: the log's times have gone back,
        or index files are cut. Nothing with the lower times is confirmed before."""
        if not self._checkpoint.is_too_high:
            return
        try:
            async with self._saving:
                await self._disk.run(partial(self._checkpoint.write, self._checkpoint.encode_lower()))
            self._lowering_failed = False
        except OSError as error:
            if not self._lowering_failed:
                _log.error(
                    "the clock was set back, or the log cut, and the checkpoint cannot be saved: %s. Until it is, messages may be out of "
                    "reach after a failure of the machine",
                    error,
                )
            self._lowering_failed = True

    def _confirm(self, dirty: list[Unflushed], target: int, timestamp: int) -> None:
        """The log is on disk up to this offset."""
        _mark_flushed(dirty)
        self.flushed_offset = self._checkpoint.log_offset = target
        if timestamp:
            self._checkpoint.physic_timestamp = timestamp
        self._waiters.release(target)

    async def try_again(self) -> None:
        """After a failure: write the bytes in doubt to the disk again, and accept messages once all of them are written."""
        async with self._one_at_a_time:
            target = self._commitlog.max_offset
            timestamp = self._commitlog.store_timestamp
            dirty = self._commitlog.dirty()
            try:
                lost = await self._disk.run(partial(self._write_again, dirty))
            except OSError as error:
                _log.warning("the disk still refuses the log: %s; no messages are accepted", error)
                self._look_at = trio.current_time() + self._pauses.next_s()
                await self._note_refusal()
                return
            if lost is not None:
                _log.critical(
                    "memory no longer has what the disk refused: %s. No messages are accepted; a restart checks the log and "
                    "goes on behind its last whole record",
                    lost,
                )
                self._look_at = float("inf")
                return
            _log.warning("the disk takes the log again; what it had refused is written, and messages are accepted")
            self._broken = False
            self._look_at = float("inf")
            self._confirm(dirty, target, timestamp)
            self.recovered()
            if not self._queues_in_doubt:
                forget_refusal(self._disk, self._config.store_path_root_dir)
                self._refusal_noted = False

    async def _note_refusal(self) -> None:
        # A note would create the directory again, at the place where the operator has to put the store back.
        if not self._refusal_noted and not self._gone:
            root = self._config.store_path_root_dir
            self._refusal_noted = await self._disk.run(partial(note_refusal, self._disk, root, self.flushed_offset))

    async def doubt_log(self, log_offset: int) -> None:
        """At a start: the disk has refused an earlier run the log from this offset on; write that again, or try to."""
        for segment in self._commitlog.segments.items:
            segment.flushed = min(segment.flushed, max(0, log_offset - segment.base))
        self._broken = self._refusal_noted = True
        self.failed("it had refused a part of it before this start")
        await self.try_again()

    async def prepare_space_forever(self) -> None:
        """Task: take space ahead of the log's end whenever it gets short, so that appends need not wait for it."""
        while True:
            await self._space_wanted.wait()
            self._space_wanted = trio.Event()
            try:
                await self._disk.run(self._commitlog.prepare)
            except OSError as e:
                # The append that needs the space will try again, and answer accordingly.
                _log.warning("no space could be prepared for the log: %s", e)

    # ---- queues, index, checkpoint

    async def flush_queues_forever(self) -> None:
        """Task: flush queue files on a timer, and after each thorough pass the checkpoint."""
        config = self._config
        thorough_s = config.flush_consume_queue_thorough_interval / 1000
        last_thorough = trio.current_time()
        logged = None
        while True:
            await trio.sleep(config.flush_interval_consume_queue / 1000)
            thorough = trio.current_time() >= last_thorough + thorough_s
            if thorough:
                last_thorough = trio.current_time()
            try:
                await self.flush_queues(0 if thorough else config.flush_consume_queue_least_pages, checkpoint=thorough)
                await self._flush_filled_index_files()
            except OSError as error:
                if logged != error.errno:  # this is tried again each second
                    logged = error.errno
                    _log.error(
                        "queues or index cannot be forced to the disk, which is tried again and again: %s", error
                    )
                await self._doubt_queues(error)
            else:
                # A pass that is not thorough may not touch the file that was refused.
                if logged is not None and thorough:
                    logged = None
                    _log.warning("queues and index are forced to the disk again")

    async def _doubt_queues(self, error: OSError) -> None:
        """A later flush may succeed although the disk never got the pages. Queues can be built again from the log, so the
        checkpoint, which says how far they are safe, stays behind until the next start."""
        if error.errno not in NO_DESCRIPTOR:
            self._queues_in_doubt = True
            await self._note_refusal()

    async def flush_queues(self, least_pages: int, *, checkpoint: bool, at_once: int = 1) -> None:
        """Force the queues to the disk; then, if asked, save the checkpoint. OSError.

        Args:
            least_pages: how many pages of a queue must be waiting.
            checkpoint: whether the checkpoint is saved.
            at_once: how many files are flushed side by side: file systems write what they flush together, but a flush
                of the log has to wait for them.
        """
        timestamp, steps_back = self._checkpoint.logics_timestamp, self._checkpoint.steps_back
        offset = self._checkpoint.logics_offset
        queues = enumerate(self._queues)
        failures: list[OSError] = []
        if at_once == 1:
            await self._flush_some(queues, least_pages, failures)
        else:
            async with trio.open_nursery() as nursery:
                for _ in range(at_once):
                    nursery.start_soon(self._flush_some, queues, least_pages, failures)
        if failures:
            raise failures[0]
        # If the times have gone back in the meantime, later records have lower times.
        if not least_pages and not self._queues_in_doubt and steps_back == self._checkpoint.steps_back:
            self._checkpoint.queues_timestamp = timestamp
            self._checkpoint.queues_offset = offset
        if checkpoint:
            await self.save_checkpoint()

    async def flush_queues_once(self) -> bool:
        """Force the queues to the disk after a start has built some of them again; whether the disk has taken them."""
        try:
            await self.flush_queues(0, checkpoint=False)
        except OSError as error:
            _log.error("the queues cannot be forced to the disk: %s; the next start builds them again", error)
            await self._doubt_queues(error)
            return False
        return True

    async def _flush_some(
        self, queues: Iterator[tuple[int, ConsumeQueue]], least_pages: int, failures: list[OSError]
    ) -> None:
        """Flush the queues that no other task has taken; ends at a failure."""
        dirty: list[Unflushed] = []
        try:
            for n, queue in queues:
                if queue.flushed_until != queue.max_offset:  # most queues of many are idle
                    dirty += queue.dirty(least_pages)
                if len(dirty) >= FLUSHED_PER_CHORE or (dirty and n % 256 == 255):
                    await self._flush_files(dirty)
                    dirty = []
                elif n % 256 == 255:
                    await trio.lowlevel.checkpoint()
                if failures:
                    return
            await self._flush_files(dirty)
        except OSError as error:
            failures.append(error)

    async def _flush_files(self, dirty: list[Unflushed]) -> None:
        if dirty:
            await self._disk.run(partial(sync_segments, dirty))
            _mark_flushed(dirty)

    async def save_checkpoint(self) -> None:
        """Write the checkpoint, not while queues may have been lost. OSError."""
        if self._queues_in_doubt:
            return
        async with self._saving:
            await self._disk.run(partial(self._checkpoint.write, self._checkpoint.encode()))

    async def _flush_filled_index_files(self) -> None:
        while self._index is not None and self._index.filled:
            file, steps_back = self._index.filled[0], self._checkpoint.steps_back
            timestamp = file.end_timestamp
            await self._disk.run(file.sync)
            if self._index.filled and self._index.filled[0] is file:
                del self._index.filled[0]
            if file.full and steps_back == self._checkpoint.steps_back:  # otherwise it may have been cut
                self._checkpoint.index_timestamp = timestamp
                await self.save_checkpoint()

    async def flush_everything(self) -> str | None:
        """At the end: log, queues, index and checkpoint. Returns what the disk has refused; None if it took everything."""
        try:
            await self._disk.run(partial(self._check_place, self._commitlog.dirty()))
            await self.flush_log()
            many = len(self._queues.table) > MANY_QUEUES
            await self.flush_queues(0, checkpoint=False, at_once=FLUSHED_AT_ONCE if many else 1)
            await self._flush_filled_index_files()
            if self._index is not None:
                await self._disk.run(self._index.sync_last)
            await self.save_checkpoint()
        except OSError as error:
            await self._doubt_queues(error)
            _log.error("the store could not be flushed: %s; the next start will check it as after a crash", error)
            return str(error)
        if self._broken:
            return f"the disk has refused the log from offset {self.flushed_offset} on"
        return "the disk has refused a part of the queues or of the index" if self._queues_in_doubt else None

    @property
    def is_synchronous(self) -> bool:
        """Whether sends are answered after their bytes are on disk."""
        return self._config.flush_disk_type is FlushDiskType.SYNC_FLUSH


def _pages(dirty: list[Unflushed]) -> int:
    """Whole pages waiting; a full file counts as many, so that it is never left over (docs/protocol/store.md §2.4)."""
    if any(position == segment.size for segment, position, _ in dirty):
        return 1 << 30
    return sum(position // PAGE_BYTES - segment.flushed // PAGE_BYTES for segment, position, _ in dirty)


def _mark_flushed(done: list[Unflushed]) -> None:
    for one in done:
        one.confirm()
