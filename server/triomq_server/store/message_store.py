"""`MessageStore`: the store's face, and `open_store`, which owns its files and tasks.

Everything except `flush` is plain and never waits. See store.md; the Java class is `DefaultMessageStore`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from .messages import AppendResult, Arrival, NewBatch, NewRecord, QueryResult, ReadResult, TagMatcher


def wall_ms() -> int:
    """Milliseconds since the epoch: the default clock of the store's time stamps."""
    return time.time_ns() // 1_000_000


class MessageStore:
    """One store directory, open. Made by `open_store`."""

    arrival_listeners: list[Callable[[Arrival], None]]
    append_listeners: list[Callable[[int], None]]
    recovery_report: Any
    is_slave: bool  # assign through promote()

    # ---- writing
    def append(self, r: NewRecord) -> AppendResult:
        """Store one message; it is readable when this returns. Never raises for a bad message or a full disk."""
        raise RuntimeError

    def append_batch(self, b: NewBatch) -> AppendResult:
        """Store a batch: all elements or none, next to each other in one file. Malformed element bytes: BodyError."""
        raise RuntimeError

    def append_raw(self, data: bytes | memoryview, offset: int) -> None:
        """Replication: put the master's bytes at the log's end (== `offset` unless the log is empty) and dispatch the records now complete.

        Raises ValueError when offset is not the log's end or data crosses a file, OSError when the disk is full.
        """
        raise RuntimeError

    def notify_arrivals(self) -> None:
        """Tell listeners what arrived since the last call, and index it. Call at the end of a receive batch."""
        raise RuntimeError

    def park_until_flushed(self, end_offset: int, deadline: float, done: Callable[[bool], None]) -> None:
        """Call `done(True)` when the log is on disk up to `end_offset`, `done(False)` at `deadline` (trio's clock)."""
        raise RuntimeError

    async def flush(self) -> None:
        """Wait until everything appended so far is on disk."""
        raise RuntimeError

    # ---- reading
    def read(self, topic: str, queue_id: int, offset: int, max_messages: int, matcher: TagMatcher | None, memory_bytes: int) -> ReadResult | None:
        """Up to `max_messages` records of a queue from queue offset `offset` on (store.md §15.1). None: not readable."""
        raise RuntimeError

    def record_at(self, physical_offset: int, size_bytes: int | None = None) -> memoryview | None:
        """The record that starts at this log offset, or None."""
        raise RuntimeError

    def log_slice(self, offset: int, max_bytes: int) -> memoryview | None:
        """Log bytes from `offset` for replication; never crosses a file; None at (or outside of) the log's ends."""
        raise RuntimeError

    log_min_offset: int
    log_max_offset: int
    flushed_offset: int
    writable: bool
    readable: bool

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(min, max) queue offset; (0, 0) for an unknown queue."""
        raise RuntimeError

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The queue offset nearest to a store time (store.md §17)."""
        raise RuntimeError

    def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time in ms of the message at this queue offset, -1 if there is none."""
        raise RuntimeError

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time in ms of the queue's (or, without a topic, the log's) oldest message, -1 if there is none."""
        raise RuntimeError

    def in_memory(self, physical_offset: int, memory_bytes: int) -> bool:
        """Whether a record counts as being in memory: not further than `memory_bytes` behind the log's end."""
        raise RuntimeError

    def query(self, topic: str, key: str, max_num: int, begin: int, end: int) -> QueryResult:
        """Records whose KEYS or UNIQ_KEY hash like `key` (store.md §10.4)."""
        raise RuntimeError

    # ---- housekeeping
    def destroy_topic(self, topic: str) -> int:
        """Remove all queues of a topic; returns how many."""
        raise RuntimeError

    def clean_unused_topics(self, keep: set[str]) -> int:
        """Remove the queues of every topic not in `keep` (system topics stay); returns how many."""
        raise RuntimeError

    def clean_expired_queues(self) -> int:
        """Remove queues that lie wholly below the log's minimum; returns how many."""
        raise RuntimeError

    def request_expiry(self) -> None:
        """Operator's DELETE_EXPIRED_COMMITLOG: expire files in the next passes, whatever the hour."""
        raise RuntimeError


@asynccontextmanager
async def open_store(
    config: Any, *, disk: Any = None, clock: Callable[[], int] = wall_ms, is_slave: bool = False
) -> AsyncIterator[MessageStore]:
    """Lock, load, recover and serve a store directory; flush and close it in order on exit."""
    raise RuntimeError
    yield MessageStore()
