"""When log files go, and what goes with them (store.md §13). The decisions are functions; `Cleaner` acts on them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import trio

from triomq_server.config import StoreConfig

from .commitlog import CommitLog
from .consume_queue import ConsumeQueues
from .disk import Disk, DiskUsage
from .index import Index

_log = logging.getLogger(__name__)

MOST_FILES_PER_PASS = 10
_FIRST_PASS_S = 60.0
_SPACE_CHECK_FIRST_S = 1.0
_SPACE_CHECK_EVERY_S = 10.0
_MANUAL_PASSES = 20
_HOUR_MS = 3_600_000


def used_ratio(usage: DiskUsage) -> float:
    """Used part of a partition, rounded up to whole per cent, as `df` shows it; -1 for a partition without space."""
    used = usage.total_bytes - usage.free_bytes
    whole = used + usage.usable_bytes
    return math.ceil(100 * used / whole) / 100 if whole > 0 else -1


class DiskVerdict(NamedTuple):
    """What the fill levels ask for.

    `refuse` messages (DISK_FULL), delete `at_once` whatever the files' age, or delete what is expired at any hour
    (`space_full`).
    """

    refuse: bool
    at_once: bool
    space_full: bool


def judge_space(ratios: Iterable[float], *, limit: float, warning: float, forcibly: float) -> DiskVerdict:
    """Judge the partitions of log and queues; the worst of them counts."""
    worst = list(ratios)
    return DiskVerdict(
        refuse=any(r > warning for r in worst),
        at_once=any(r > forcibly for r in worst),
        space_full=any(r < 0 or r > limit for r in worst),
    )


def is_deleting_hour(delete_when: str, hour: int) -> bool:
    """Whether the local hour is one of `deleteWhen` ("04" or "04;16")."""
    return any(part.strip().isdigit() and int(part) == hour for part in delete_when.split(";"))


def count_expired(modified_ms: Iterable[int], *, now_ms: int, reserved_hours: int, at_once: bool) -> int:
    """How many of the log's files, oldest first and without the last, are to be deleted in one pass.

    Stops at the first that is too young, so that the log stays in one piece.
    """
    count = 0
    for modified in modified_ms:
        if count == MOST_FILES_PER_PASS or not (at_once or now_ms >= modified + reserved_hours * _HOUR_MS):
            break
        count += 1
    return count


def _nobody(_refuse: bool) -> None:
    """Nobody minds the disk's fill level."""


class Cleaner:
    """Deletes what has expired.

    Attributes:
        space_judged: told whether messages must be refused for lack of space, each time that is looked at.
        last_ratio: used part of the partition of (log, queues) when last looked at.
    """

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        clock: Callable[[], int],
    ) -> None:
        self._config = config
        self._disk = disk
        self._commitlog = log
        self._queues = queues
        self._index = index
        self._clock = clock
        self.space_judged: Callable[[bool], None] = _nobody
        self.last_ratio = (0.0, 0.0)
        self._manual_passes = 0
        self._cleaned_up_to = log.min_offset

    def request(self) -> None:
        """The operator's DELETE_EXPIRED_COMMITLOG: the next passes delete what is expired, whatever the hour."""
        self._manual_passes = _MANUAL_PASSES

    async def clean_forever(self) -> None:
        """Task: a pass every `cleanResourceInterval`."""
        await trio.sleep(_FIRST_PASS_S)
        while True:
            await self.clean()
            await trio.sleep(self._config.clean_resource_interval / 1000)

    async def watch_space_forever(self) -> None:
        """Task: look at the disk's fill level every ten seconds."""
        await trio.sleep(_SPACE_CHECK_FIRST_S)
        while True:
            self.judge()
            await trio.sleep(_SPACE_CHECK_EVERY_S)

    def judge(self) -> DiskVerdict:
        """Look at the disk and tell `space_judged`."""
        config = self._config
        self.last_ratio = (
            used_ratio(self._disk.usage(config.store_path_commit_log)),
            used_ratio(self._disk.usage(config.store_path_root_dir)),
        )
        verdict = judge_space(
            self.last_ratio,
            limit=config.disk_ratio_limit,
            warning=config.disk_space_warning_level_ratio,
            forcibly=config.disk_space_clean_forcibly_ratio,
        )
        self.space_judged(verdict.refuse)
        return verdict

    async def clean(self) -> int:
        """One pass; returns how many log files were deleted."""
        verdict = self.judge()
        hour = time.localtime(self._clock() // 1000).tm_hour
        due = is_deleting_hour(self._config.delete_when, hour) or verdict.space_full
        if self._manual_passes:
            self._manual_passes -= 1
            due = True
        deleted = 0
        if due:
            deleted = await self._delete_log_files(at_once=verdict.at_once and self._config.clean_file_forcibly_enable)
        await self.follow_log_min()
        return deleted

    async def _delete_log_files(self, *, at_once: bool) -> int:
        candidates = self._commitlog.segments.items[:-1]
        count = count_expired(
            (self._disk.modified_ms(segment.path) for segment in candidates),
            now_ms=self._clock(),
            reserved_hours=self._config.file_reserved_time,
            at_once=at_once,
        )
        for n in range(count):
            if n:
                await trio.sleep(self._config.delete_commit_log_files_interval / 1000)
            segment = self._commitlog.delete_first()
            _log.info("log file %s deleted; the log begins at %d", segment.path, self._commitlog.min_offset)
        return count

    async def follow_log_min(self) -> None:
        """Drop queue entries and index files that only know records no longer in the log (store.md §13.4)."""
        log_min = self._commitlog.min_offset
        if log_min <= self._cleaned_up_to:
            return
        self._cleaned_up_to = log_min
        for queue in self._queues:
            deleted = queue.delete_expired(log_min)
            queue.correct_min_offset(log_min)
            if deleted:
                await trio.sleep(self._config.delete_consume_queue_files_interval / 1000)
            else:
                await trio.lowlevel.checkpoint()
        if self._index is not None:
            self._index.delete_expired(log_min)
