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
        """A task that counts as working whenever it does not wait here."""
        one = ClockTask(self)
        self._working.add(one)
        try:
            yield one
        finally:
            self._working.discard(one)
            self._note_change()

    def next_due_ms(self) -> int | None:
        """The earliest time that a task waits for; None if none waits."""
        return min((due for due in self._waiting.values() if due is not None), default=None)

    def clock_set(self) -> None:
        """End all waits, because the clock was set to another time."""
        self._working |= self._waiting.keys()
        self._set.set()
        self._set = trio.Event()

    async def wait_idle(self) -> None:
        """Wait until all tasks have done all work that was due."""
        for _ in range(2):  # a task that was just started is included: trio runs the tasks of one turn in any order
            await trio.lowlevel.checkpoint()
        while self._working:
            await self.wait_change()

    async def wait_change(self) -> None:
        """Wait until a task starts to wait for another time, or ends."""
        await self._changed.wait()

    async def wait(self, task: ClockTask, due_ms: int | None, longest_s: float) -> None:
        """Let a task wait for a time, if one is given, until the clock is set, or for at most `longest_s` seconds."""
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
    """The waits of one task; made by `ClockWaits.task`."""

    def __init__(self, waits: ClockWaits) -> None:
        self._waits = waits

    async def until(self, due_ms: int, now_ms: int) -> None:
        """Sleep until the clock shows a time, or less long: the caller reads the clock again.

        Args:
            due_ms: the time to wait for.
            now_ms: the current time of the clock.
        """
        await self._waits.wait(self, due_ms, min((due_ms - now_ms) / 1000, LONGEST_SLEEP_S))

    async def pause(self, seconds: float) -> None:
        """Sleep for a time, or until the clock is set."""
        await self._waits.wait(self, None, seconds)
