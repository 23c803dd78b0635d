"""Sends that wait for a slave, ordered by the log offset they need, so that one report releases all it covers.

A plain structure: no task per waiter, no clock of its own. It answers to `HAService.GroupTransferService`, whose requests
end about when their own deadlines pass, whatever stands before them in the queue.
"""

import heapq
from collections.abc import Callable
from itertools import count
from typing import TypeVar

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
    """Callbacks parked until an offset is reached or their deadline passes, whichever comes first."""

    __slots__ = ("_by_deadline", "_by_offset", "_numbers", "waiting")

    def __init__(self) -> None:
        self._by_offset: list[tuple[int, int, _Waiter]] = []
        self._by_deadline: list[tuple[float, int, _Waiter]] = []
        self._numbers = count()
        self.waiting = 0
        """How many callbacks have not been called yet."""

    def park(self, end_offset: int, deadline: float, done: Done) -> None:
        """Call ``done(True)`` at a `release` that covers `end_offset`, or ``done(False)`` at an `expire` after `deadline`."""
        waiter = _Waiter(done)
        number = next(self._numbers)
        heapq.heappush(self._by_offset, (end_offset, number, waiter))
        heapq.heappush(self._by_deadline, (deadline, number, waiter))
        self.waiting += 1

    def release(self, reached_offset: int) -> int:
        """Call back everything that needs no more than `reached_offset`; returns how many."""
        heap = self._by_offset
        released = 0
        while heap and heap[0][0] <= reached_offset:
            released += self._finish(heapq.heappop(heap)[2], reached=True)
        self._forget_finished()
        return released

    def expire(self, now: float) -> int:
        """Call back, with False, everything whose deadline has passed; returns how many."""
        heap = self._by_deadline
        expired = 0
        while heap and heap[0][0] <= now:
            expired += self._finish(heapq.heappop(heap)[2], reached=False)
        self._forget_finished()
        return expired

    def next_deadline(self) -> float | None:
        """When `expire` has something to do next; None when nobody waits."""
        return self._by_deadline[0][0] if self._by_deadline else None

    def fail_all(self) -> None:
        """Call back everything with False: the service ends."""
        self.expire(float("inf"))

    def _finish(self, waiter: _Waiter, *, reached: bool) -> int:
        if waiter.done is None:
            return 0
        self.waiting -= 1
        waiter.finish(reached)
        return 1

    def _forget_finished(self) -> None:
        """Drop finished waiters from the tops, so that neither heap grows for ever.

        With equal time-outs both heaps have nearly the same order, and what is finished stands at both tops.
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
