"""Expiry: decides which log files are deleted and when, and deletes them (docs/protocol/store.md §13).

The decisions are pure functions; `Cleaner` acts on them. Answers to `CleanCommitLogService` and `CleanConsumeQueueService`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

import trio

from triomq_protocol.java_text import natural_number
from triomq_server.clock_waits import ClockWaits
from triomq_server.config import StoreConfig
from triomq_server.disk.access import Disk, DiskUsage
from triomq_server.store.commitlog import CommitLog
from triomq_server.store.files.segments import Segment
from triomq_server.store.index import Index
from triomq_server.store.queue_table import ConsumeQueues

_log = logging.getLogger(__name__)

MOST_FILES_PER_PASS = 10
_FIRST_PASS_S = 60.0
_SPACE_CHECK_FIRST_S = 1.0
_SPACE_CHECK_EVERY_S = 10.0
_SPACE_CHECK_OFTEN_S = 1.0
_MANUAL_PASSES = 20
_HOUR_MS = 3_600_000

LocalTime = Callable[[int], time.struct_time]
"""The calendar, in the store's time zone, at a time in ms since the epoch."""


def used_ratio(usage: DiskUsage) -> float:
    """Used part of a partition, rounded up to whole per cent, as `df` shows it; -1 for a partition without space."""
    used = usage.total_bytes - usage.free_bytes
    whole = used + usage.usable_bytes
    return math.ceil(100 * used / whole) / 100 if whole > 0 else -1


class SpaceMeasures(NamedTuple):
    """The actions that the partitions' fill levels require.

    `refuse` messages (DISK_FULL), delete files `at_once` whatever their age, or delete expired files at any hour
    (`space_full`).
    """

    refuse: bool
    at_once: bool
    space_full: bool


def space_measures(ratios: Iterable[float], *, limit: float, warning: float, forcibly: float) -> SpaceMeasures:
    """What to do at these fill levels of the partitions of log and queues; the worst of them counts."""
    worst = list(ratios)
    return SpaceMeasures(
        refuse=any(r > warning for r in worst),
        at_once=any(r > forcibly for r in worst),
        space_full=any(r < 0 or r > limit for r in worst),
    )


def is_deleting_hour(delete_when: str, hour: int) -> bool:
    """Whether the local hour is one of `deleteWhen` ("04" or "04;16")."""
    return any(natural_number(part.strip(), 32) == hour for part in delete_when.split(";"))


def count_expired(modified_ms: Iterable[int], *, now_ms: int, reserved_hours: int, at_once: bool) -> int:
    """The number of log files, oldest first and without the last, to delete in one pass.

    Stops at the first file that is too new, so that the log has no gap.
    """
    count = 0
    for modified in modified_ms:
        if count == MOST_FILES_PER_PASS or not (at_once or now_ms >= modified + reserved_hours * _HOUR_MS):
            break
        count += 1
    return count


def _ignore(_refuse: bool) -> None:
    """The default of `Cleaner.space_checked`."""


class Cleaner:
    """Deletes expired log files, with the queue and index files that point to them.

    Attributes:
        space_checked: called after each check, with whether messages must be refused for lack of space.
        used_ratios: used fraction of the partitions of (log, everything else) at the last check.
    """

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        clock: Callable[[], int],
        local_time: LocalTime,
        waits: ClockWaits | None = None,
    ) -> None:
        self._config = config
        self._disk = disk
        self._commitlog = log
        self._queues = queues
        self._index = index
        self._clock = clock
        self._local_time = local_time
        self._waits = waits or ClockWaits()
        self.space_checked: Callable[[bool], None] = _ignore
        self.used_ratios = (0.0, 0.0)
        self._manual_passes = 0
        self._kept: dict[str, str] = {}
        """Kind of file -> why one that has expired could not be deleted, as last logged."""
        self._cleaned_up_to = log.min_offset

    def request_expiry(self) -> None:
        """An operator's DELETE_EXPIRED_COMMITLOG: the next passes delete expired files, whatever the hour."""
        self._manual_passes = _MANUAL_PASSES

    async def clean_forever(self) -> None:
        """Task: a pass every `cleanResourceInterval`."""
        with self._waits.task() as waits:
            await waits.pause(_FIRST_PASS_S)
            while True:
                await self.clean()
                await waits.pause(self._config.clean_resource_interval / 1000)

    async def watch_space_forever(self) -> None:
        """Task: check the disk's fill level every ten seconds, every second if it is high."""
        with self._waits.task() as waits:
            await waits.pause(_SPACE_CHECK_FIRST_S)
            while True:
                measures = self.check_space()
                await waits.pause(_SPACE_CHECK_OFTEN_S if measures.space_full else _SPACE_CHECK_EVERY_S)

    def measure(self) -> tuple[float, float]:
        """Measure the used part of the partitions of (log, everything else), and keep it in `used_ratios`."""
        config = self._config
        self.used_ratios = (
            used_ratio(self._disk.usage(config.store_path_commit_log)),
            used_ratio(self._disk.usage(config.store_path_root_dir)),
        )
        return self.used_ratios

    def check_space(self) -> SpaceMeasures:
        """Measure the fill levels, call `space_checked`, and return what they ask for."""
        config = self._config
        measures = space_measures(
            self.measure(),
            limit=config.disk_ratio_limit,
            warning=config.disk_space_warning_level_ratio,
            forcibly=config.disk_space_clean_forcibly_ratio,
        )
        self.space_checked(measures.refuse)
        return measures

    async def clean(self) -> int:
        """One pass; returns how many log files were deleted."""
        measures = self.check_space()
        hour = self._local_time(self._clock()).tm_hour
        due = is_deleting_hour(self._config.delete_when, hour) or measures.space_full
        if self._manual_passes:
            self._manual_passes -= 1
            due = True
        deleted = 0
        if due:
            deleted = await self._delete_log_files(at_once=measures.at_once and self._config.clean_file_forcibly_enable)
        await self.follow_log_min()
        return deleted

    async def _delete_log_files(self, *, at_once: bool) -> int:
        files = self._commitlog.segments
        candidates = files.items[:-1]
        count = count_expired(
            self._modified_ms(candidates[: MOST_FILES_PER_PASS + 1]),
            now_ms=self._clock(),
            reserved_hours=self._config.file_reserved_time,
            at_once=at_once,
        )
        for n, (candidate, changes) in enumerate([(segment, segment.changes) for segment in candidates[:count]]):
            if n:
                await trio.sleep(self._config.delete_commit_log_files_interval / 1000)
                if candidate not in files.items[:-1] or candidate.changes != changes:
                    return n  # the log has been cut in the meantime, and what is here now has not expired
            try:
                segment = self._commitlog.delete_first()
            except OSError as error:
                self._note_kept("a log file", error)
                return n
            self._note_kept("a log file", None)
            _log.info("log file %s deleted; the log begins at %d", segment.path, self._commitlog.min_offset)
        return count

    def _modified_ms(self, files: list[Segment]) -> list[int]:
        """The time of each file's last modification. A file that somebody has removed is at least as old as the one behind
        it: it must not keep all others from being deleted."""
        times: list[int] = []
        later = self._clock()
        for segment in reversed(files):
            with suppress(FileNotFoundError):
                later = self._disk.modified_ms(segment.path)
            times.append(later)
        return times[::-1]

    async def follow_log_min(self) -> None:
        """Drop queue entries and index files that only know records no longer in the log (docs/protocol/store.md
        §13.4)."""
        log, log_min = self._commitlog, self._commitlog.min_offset
        if log_min == self._cleaned_up_to:
            return
        refused: OSError | None = None
        for queue in self._queues:
            deleted = 0
            try:
                # Asked again for each: a cut of the whole log in the meantime, or before, lets it begin with a lower offset.
                deleted = queue.delete_expired(log.min_offset)
            except OSError as error:
                refused = refused or error  # one file must not keep the other queues back
            queue.correct_min_offset(log.min_offset)
            if deleted:
                await trio.sleep(self._config.delete_consume_queue_files_interval / 1000)
            else:
                await trio.lowlevel.checkpoint()
        try:
            if self._index is not None:
                self._index.delete_expired(log.min_offset)
        except OSError as error:
            refused = refused or error
        self._note_kept("a file of a queue or of the index", refused)
        if refused is None:
            self._cleaned_up_to = log_min  # only now: a pass that is cancelled is made up for by the next

    def _note_kept(self, what: str, error: OSError | None) -> None:
        """Log why a file cannot be deleted, unless the pass before found the same; None: there is none now."""
        why = "" if error is None else str(error)
        if why and why != self._kept.get(what):
            _log.error("%s that has expired cannot be deleted, and is kept: %s", what, why)
        self._kept[what] = why
