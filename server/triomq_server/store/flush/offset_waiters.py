"""Sends that wait until the log is safe up to an offset: on disk (`flusher`) or on a slave (`replication.master`).

Waiters are ordered by the log offset they need, so that one call of `release` answers all that it covers, and by their
deadlines. No waiter needs a task. Answers to `GroupCommitService` and `GroupTransferService`, except that a request ends
at its own deadline, whatever precedes it in the queue.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import TypeVar

import trio

Done = Callable[[bool], None]


class _Waiter:
    __slots__ = ("done",)

    def __init__(self, done: Done) -> None:
        self.done: Done | None = done

    def finish(self, reached: bool) -> None:
        """Call back, once: the second of release and expiry finds nothing to do."""
        done, self.done = self.done, None
        if done is not None:
            done(reached)


class OffsetWaiters:
    """Callbacks held until an offset is reached or their deadline passes, whichever comes first.

    Attributes:
        waiting: how many callbacks have not been called yet.
    """

    __slots__ = ("_by_deadline", "_by_offset", "_earlier_deadline", "_numbers", "_wakes_at", "waiting")

    def __init__(self) -> None:
        self._by_offset: list[tuple[int, int, _Waiter]] = []
        self._by_deadline: list[tuple[float, int, _Waiter]] = []
        self._numbers = count()
        self._wakes_at = float("inf")
        self._earlier_deadline = trio.Event()
        self.waiting = 0

    def add(self, end_offset: int, deadline: float, done: Done) -> None:
        """Call ``done(True)`` at a `release` that covers `end_offset`, or ``done(False)`` at an `expire` after
        `deadline`."""
        waiter = _Waiter(done)
        number = next(self._numbers)
        heapq.heappush(self._by_offset, (end_offset, number, waiter))
        heapq.heappush(self._by_deadline, (deadline, number, waiter))
        self.waiting += 1
        if deadline < self._wakes_at:
            self._earlier_deadline.set()

    def release(self, reached_offset: int) -> int:
        """Call back everything that needs no more than `reached_offset`; returns how many."""
        heap = self._by_offset
        released = 0
        while heap and heap[0][0] <= reached_offset:
            released += self._finish(heapq.heappop(heap)[2], reached=True)
        self._drop_finished()
        return released

    def expire(self, now: float) -> int:
        """Call back, with False, everything whose deadline has passed; returns how many."""
        heap = self._by_deadline
        expired = 0
        while heap and heap[0][0] <= now:
            expired += self._finish(heapq.heappop(heap)[2], reached=False)
        self._drop_finished()
        return expired

    def next_deadline(self) -> float:
        """When `expire` has something to do next; infinity while nothing waits."""
        return self._by_deadline[0][0] if self._by_deadline else float("inf")

    async def expire_forever(self) -> None:
        """Task: expire each waiter at its deadline, on trio's clock.

        Sleeps until the deadline that was the earliest when it fell asleep, though most waiters have been released by
        then. So the usual waiter, whose deadline is the latest of all, costs this task nothing.
        """
        while True:
            self.expire(trio.current_time())
            self._earlier_deadline = trio.Event()
            self._wakes_at = self.next_deadline()
            with trio.move_on_at(self._wakes_at):
                await self._earlier_deadline.wait()

    def fail_all(self) -> None:
        """Call back everything with False: no offset will be reached any more."""
        self.expire(float("inf"))

    def fail_behind(self, offset: int) -> None:
        """Call back, with False, everything that needs more than `offset`: other bytes will be there."""
        for needed, _, waiter in list(self._by_offset):
            if needed > offset:
                self._finish(waiter, reached=False)
        self._drop_finished()

    def _finish(self, waiter: _Waiter, *, reached: bool) -> int:
        if waiter.done is None:
            return 0
        self.waiting -= 1
        waiter.finish(reached)
        return 1

    def _drop_finished(self) -> None:
        """Drop finished waiters from the tops, so that neither heap grows without bound.

        With equal time-outs both heaps have nearly the same order, and finished waiters are at both tops.
        """
        if not self.waiting:
            self._by_offset.clear()
            self._by_deadline.clear()
            return
        _drop_finished(self._by_offset)
        _drop_finished(self._by_deadline)


_Key = TypeVar("_Key", int, float)


def _drop_finished(heap: list[tuple[_Key, int, _Waiter]]) -> None:
    while heap and heap[0][2].done is None:
        heapq.heappop(heap)
