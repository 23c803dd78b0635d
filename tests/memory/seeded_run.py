"""Runs that depend on their seed alone: not on real time, on how fast the machine is, or on trio's shuffling."""

from __future__ import annotations

import gc
import heapq
import itertools
import math
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import attrs
import pytest
import trio
import trio._core._run as scheduler

from triomq_server.broker.tables import held_pulls
from triomq_server.store.reading import queue_reads
from triomq_server.wire.limits import loop_turns

T = TypeVar("T")


@attrs.define
class VirtualClock(trio.abc.Clock):
    """A clock that advances to the next deadline as soon as no task can run; it begins at 0.

    `trio.testing.MockClock` needs a second turn of the loop for each such step, and the loop's statistics. Here the
    loop's question how long to wait is the step: it is asked when nothing can run, and neither threads nor sockets
    could wake a task.
    """

    now: float = 0.0
    _calls: list[tuple[float, int, Callable[[], None]]] = attrs.Factory(list)
    _numbers: Iterator[int] = attrs.Factory(itertools.count)

    def call_at(self, at: float, call: Callable[[], None]) -> None:
        """Let something wake tasks at a time. A deadline of trio's, which ends a wait by an error, costs several times
        as much."""
        heapq.heappush(self._calls, (at, next(self._numbers), call))

    async def sleep(self, seconds: float) -> None:
        """`trio.sleep` without a deadline."""
        task = trio.lowlevel.current_task()
        waits = True

        def wake() -> None:
            if waits:
                trio.lowlevel.reschedule(task)

        def stop(_raise_cancel: object) -> trio.lowlevel.Abort:
            nonlocal waits
            waits = False
            return trio.lowlevel.Abort.SUCCEEDED

        self.call_at(self.now + seconds, wake)
        await trio.lowlevel.wait_task_rescheduled(stop)

    def start_clock(self) -> None:
        """Nothing has to be started."""

    def current_time(self) -> float:
        """The virtual time in seconds."""
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Go on to the deadline or the next call; without either the loop waits to be woken."""
        calls = self._calls
        if calls:
            deadline = min(deadline, calls[0][0])
        if deadline == math.inf:
            return math.inf
        self.now = max(self.now, deadline)
        while calls and calls[0][0] <= self.now:
            heapq.heappop(calls)[2]()
        return 0.0


def virtual_clock() -> VirtualClock:
    """The clock of this run, which `seeded_run` has begun."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, VirtualClock)
    return clock


_GARBAGE = (50_000, 20, 100)
"""With Python's own thresholds, looking for garbage takes 7 % of a simulation."""
_TURNS = ((loop_turns, "TURN_S"), (loop_turns, "SHORT_S"), (held_pulls, "TURN_S"), (queue_reads, "FILTER_TURN_S"))
"""How much real time a turn of a server's loop may take."""


class _ChanceOfThread(threading.local):
    """What trio shuffles tasks with: loops that other tests have left in other threads draw from their own."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def shuffle(self, tasks: list[Any]) -> None:
        """Most turns of a loop have one task."""
        if len(tasks) > 1:
            self._chance.shuffle(tasks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chance, name)


def seeded_run(seed: int, main: Callable[..., Awaitable[T]], *args: Any) -> T:
    """`trio.run` on virtual time, which begins at 0.

    trio deliberately shuffles tasks that could run at the same moment; here the seed does. A server ends a turn of its
    loop after 10 ms of real time; here only a turn's work ends it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        for module, name in _TURNS:
            patch.setattr(module, name, math.inf)
        patch.setattr(scheduler, "_r", _ChanceOfThread(seed))
        before = gc.get_threshold()
        gc.set_threshold(*_GARBAGE)
        try:
            return trio.run(main, *args, clock=VirtualClock())
        finally:
            gc.set_threshold(*before)
