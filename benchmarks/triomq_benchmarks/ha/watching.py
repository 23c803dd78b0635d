"""Sees from outside when bytes and messages arrive at a slave.

It reads the slave's log and consume queue files, which have the same form in both kinds of brokers. So watching costs the
slave nothing, and is the same for both.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path

from triomq_benchmarks.clusters.processes import Child, ChildError

WATCH_PAUSE_S = 0.0005
CATCH_UP_LIMIT_S = 60.0
QUEUE_UNIT_BYTES = 20
HEARTBEAT_MS = 1000
"""A 4.9 slave sends its first report after this interval, not when it connects; the default is 5 s."""


def role_settings(file_bytes: int, **extra: object) -> dict[str, object]:
    """The common configuration of a master and its slaves, with log files of `file_bytes`."""
    return {
        "mappedFileSizeCommitLog": file_bytes,
        "haSendHeartbeatInterval": HEARTBEAT_MS,
        "maxMessageSize": 1 << 22,
        # Java refuses sends that had to wait for a core; but here their duration counts.
        "osPageCacheBusyTimeOutMills": 10_000,
        "waitTimeMillsInSendQueue": 10_000,
        "slaveTimeout": 10_000,
        **extra,
    }


def first_log_file(home: Path) -> Path:
    """The log file of a broker that has only one."""
    return home / "store" / "commitlog" / f"{0:020d}"


class QueueWatch:
    """Watches messages become readable at a slave, in the first files of a topic's consume queues, which are the same
    in both kinds."""

    def __init__(self, home: Path, topic: str, child: Child) -> None:
        self._folder = home / "store" / "consumequeue" / topic
        self._child = child

    def wait(self, ends: list[int]) -> float:
        """Wait until each queue has that many entries; returns the time at which this was seen (`perf_counter`).

        Raises:
            ChildError: it took too long, or the slave died.
        """
        deadline = time.perf_counter() + CATCH_UP_LIMIT_S
        for queue_id, end in enumerate(ends):
            file = self._folder / str(queue_id) / f"{0:020d}"
            at = end * QUEUE_UNIT_BYTES
            while end and not (file.exists() and file.stat().st_size >= at):
                pause(self._child, deadline)
            if not end:
                continue
            with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as seen:
                while not any(seen[at - 12 : at - 8]):  # the size field of the last entry
                    pause(self._child, deadline)
        return time.perf_counter()


def pause(child: Child, deadline: float) -> None:
    """Wait a moment before checking again. Raises ChildError if the time is up, or the child died."""
    if time.perf_counter() > deadline or not child.alive:
        raise ChildError(f"{child.failure('did not catch up in time')}")
    time.sleep(WATCH_PAUSE_S)


class LogWatch:
    """Watches bytes arrive in a slave's only log file: no record starts or ends with a zero byte here."""

    def __init__(self, file: Path, child: Child) -> None:
        self._file = file
        self._child = child

    def wait(self, begin: int, end: int) -> tuple[float, float]:
        """Wait until the log reaches `end`; returns when the bytes at `begin` and before `end` were first seen
        (`perf_counter`).

        Raises:
            ChildError: it took too long, or the slave died.
        """
        deadline = time.perf_counter() + CATCH_UP_LIMIT_S
        while not (self._file.exists() and self._file.stat().st_size >= end):
            pause(self._child, deadline)
        with self._file.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as seen:
            # A record starts with four bytes of its size, the lowest of which may be zero: check its magic number.
            while not seen[begin + 7]:
                pause(self._child, deadline)
            first = time.perf_counter()
            while not seen[end - 1]:
                pause(self._child, deadline)
            return first, time.perf_counter()
