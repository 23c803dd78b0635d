"""Waits for times of the wall clock, which end when that clock is set.

Servers take their wall clock as an argument. Code that sets this clock, as tests do, calls `ClockWaits.clock_set` to
wake the waiting tasks; otherwise each wait reads the clock again every second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import trio

LONGEST_SLEEP_S = 1.0
"""The wall clock may be set while a task sleeps, so it is read at least this often."""


class ClockWaits:
    """The tasks of one process that wait for times of its wall clock."""

    def __init__(self) -> None:
        self._waiting: dict[ClockTask, int | None] = {}
        self._working: set[ClockTask] = set()
        self._set = trio.Event()
        self._changed = trio.Event()

    @contextlib.contextmanager
    def task(self) -> Iterator[ClockTask]:
        """A task that works whenever it does not wait here."""
        one = ClockTask(self)
        self._working.add(one)
        try:
            yield one
        finally:
            self._working.discard(one)
            self._note_change()

    def next_due_ms(self) -> int | None:
        """The first time that a task waits for; None if there is none."""
        return min((due for due in self._waiting.values() if due is not None), default=None)

    def clock_set(self) -> None:
        """End all waits: the clock shows another time."""
        self._working |= self._waiting.keys()
        self._set.set()
        self._set = trio.Event()

    async def wait_idle(self) -> None:
        """Wait until all tasks have done what was due."""
        for _ in range(2):  # a task that was started just now takes part: trio runs those of one turn in any order
            await trio.lowlevel.checkpoint()
        while self._working:
            await self.wait_change()

    async def wait_change(self) -> None:
        """Wait until a task waits for another time, or ends."""
        await self._changed.wait()

    async def wait(self, task: ClockTask, due_ms: int | None, longest_s: float) -> None:
        """A task waits for a time, if there is one, until the clock is set, or for some seconds."""
        self._waiting[task] = due_ms
        self._working.discard(task)
        self._note_change()
        is_set = self._set
        try:
            with trio.move_on_after(longest_s):
                await is_set.wait()
        finally:
            del self._waiting[task]
            self._working.add(task)

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class ClockTask:
    """One task's waits; made by `ClockWaits.task`."""

    def __init__(self, waits: ClockWaits) -> None:
        self._waits = waits

    async def until(self, due_ms: int, now_ms: int) -> None:
        """Sleep until the clock shows a time, or a shorter while: the caller reads the clock again.

        Args:
            due_ms: the time.
            now_ms: what the clock shows now.
        """
        await self._waits.wait(self, due_ms, min((due_ms - now_ms) / 1000, LONGEST_SLEEP_S))

    async def pause(self, seconds: float) -> None:
        """Sleep for a time, or until the clock is set."""
        await self._waits.wait(self, None, seconds)
