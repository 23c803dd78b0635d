"""Runs that depend on their seed alone: not on real time, on how fast the machine is, or on trio's shuffling."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import attrs
import pytest
import trio
import trio._core._run as scheduler

from triomq_server.broker.tables import held_pulls
from triomq_server.store.reading import queue_reads
from triomq_server.wire import loop_turns

T = TypeVar("T")


@attrs.define
class VirtualClock(trio.abc.Clock):
    """A clock that goes on to the next deadline as soon as no task can run; it begins at 0.

    `trio.testing.MockClock` needs a second turn of the loop for each such step, and the loop's statistics. Here the
    loop's question how long to wait is the step: it is asked when nothing can run, and neither threads nor sockets
    could wake a task.
    """

    now: float = 0.0

    def start_clock(self) -> None:
        """Nothing has to be started."""

    def current_time(self) -> float:
        """The virtual time in seconds."""
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Go on to the deadline; without one the loop waits to be woken."""
        if deadline == math.inf:
            return math.inf
        self.now = max(self.now, deadline)
        return 0.0


_TURNS = ((loop_turns, "TURN_S"), (loop_turns, "SHORT_S"), (held_pulls, "TURN_S"), (queue_reads, "FILTER_TURN_S"))
"""How much real time a turn of a server's loop may take."""


class _ChanceOfThread(threading.local):
    """What trio shuffles tasks with: loops that other tests have left in other threads draw from their own."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

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
        return trio.run(main, *args, clock=VirtualClock())
