"""Measures the time that a loop has lost because it was busy or other processes had the CPU.

A producer that waits for an answer or a connection waits for the broker; but if the loop does not get to run in that
time, part of the wait is caused by the machine. A small task sleeps and measures how late it wakes; the difference of its
total before and after a wait is the lost part of the wait.
"""

from __future__ import annotations

import math

import trio

EVERY_S = 0.01
GRAIN_S = 0.0012
"""A loop's sleep ends on whole milliseconds; delays up to this are not lag."""


class LoopLag:
    """Time lost by the loop that runs `run`, on trio's clock."""

    def __init__(self) -> None:
        self._lost_s = 0.0
        self._due = math.inf

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self._due = trio.current_time() + EVERY_S + GRAIN_S
            await trio.sleep(EVERY_S)
            self._lost_s += max(0.0, trio.current_time() - self._due)

    def lost_s(self) -> float:
        """Seconds lost so far, including a loss that is still going on."""
        return self._lost_s + max(0.0, trio.current_time() - self._due)
