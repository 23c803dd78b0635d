"""Runs that depend on their seed alone: not on real time, on how fast the machine is, or on trio's shuffling."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
import trio._core._run as scheduler
import trio.testing

from triomq_server.wire import hub

T = TypeVar("T")


def seeded_run(seed: int, main: Callable[..., Awaitable[T]], *args: Any) -> T:
    """`trio.run` on virtual time, which begins at 0.

    trio deliberately shuffles tasks that could run at the same moment; here the seed does. A server ends a turn of its
    loop after 10 ms of real time; here only a turn's work ends it.
    """
    shuffled, turn_s = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, hub.TURN_S
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING, hub.TURN_S = True, math.inf
    scheduler._r.seed(seed)
    try:
        return trio.run(main, *args, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING, hub.TURN_S = shuffled, turn_s
        scheduler._r.seed()
