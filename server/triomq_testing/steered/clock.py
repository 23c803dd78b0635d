"""The wall clock of a cluster that a test controls.

It changes only the times that brokers compare with their wall clock: delayed messages, retries, retention, checks of
transactions, time stamps. Heartbeats, held pulls and timeouts stay on real time, so that clients, whose clocks do not
change, stay connected.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import trio

from triomq_server.clock_waits import ClockWaits
from triomq_server.store import wall_ms

_HOUR_MS = 3_600_000
_LONGEST = timedelta(days=3660)


class SteeredClock:
    """A wall clock in ms that runs with the machine's and can be set forward; belongs to the loop of the servers.

    Attributes:
        waits: the servers' tasks that wait for times of this clock.
        passed: called when a test has set it forward.
    """

    def __init__(self) -> None:
        self.waits: ClockWaits = ClockWaits()
        self.passed: list[Callable[[], Awaitable[None]]] = []
        self._offset_ms = 0

    def __call__(self) -> int:
        """What it shows."""
        return wall_ms() + self._offset_ms

    async def advance(self, by_ms: int) -> None:
        """Go forward, from one time that a task waits for to the next, until all is done.

        In the last day before such a time, and before the end, it advances hour by hour: files expire in certain hours,
        and all that have expired by then are found in one day.
        """
        target_ms = self() + by_ms
        await self.waits.wait_idle()
        while (now_ms := self()) < target_ms:
            due_ms = self.waits.next_due_ms()
            next_ms = target_ms if due_ms is None else min(target_ms, max(due_ms, now_ms))
            full_hour_ms = (max(now_ms, next_ms - 25 * _HOUR_MS) // _HOUR_MS + 1) * _HOUR_MS
            self._set(min(next_ms, full_hour_ms))
            await self.waits.wait_idle()
        for notify in self.passed:
            await notify()

    async def fast_forward(self) -> None:
        """Go to the next time that a task waits for, whenever there is one, until cancelled."""
        await self.waits.wait_idle()
        while True:
            due_ms = self.waits.next_due_ms()
            if due_ms is None:
                await self.waits.wait_change()
            else:
                self._set(due_ms)
            await self.waits.wait_idle()

    def _set(self, time_ms: int) -> None:
        self._offset_ms = max(time_ms - wall_ms(), self._offset_ms)  # never back
        self.waits.clock_set()


class Calls(Protocol):
    """Runs functions of the servers in their thread."""

    def call(self, run: Callable[[], Awaitable[Any]]) -> Any:
        """Run it and wait for its end."""
        ...


class ClockHand(Protocol):
    """Sets a cluster's clock, in this process or in another one; every method waits for its end."""

    def now_ms(self) -> int:
        """What the clock shows."""
        ...

    def advance(self, by_ms: int) -> None:
        """See `SteeredClock.advance`."""
        ...

    def fast_forward(self) -> contextlib.AbstractContextManager[None]:
        """See `SteeredClock.fast_forward`."""
        ...


class Clock:
    """The wall clock of all brokers of a cluster.

    Every method may be called from any thread, and from tests with trio or asyncio, whose loop it blocks for
    milliseconds.
    """

    def __init__(self, hand: ClockHand) -> None:
        self._hand = hand

    def now(self) -> datetime:
        """What it shows."""
        return datetime.fromtimestamp(self._hand.now_ms() / 1000, UTC)

    def advance(
        self,
        by: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> None:
        """Set the clock forward; everything due meanwhile has been done, in order, when this returns.

        A message that a consumer sends back afterwards waits from then on: for many retries use `fast_forward`.

        Args:
            by: how far, or in days, hours, minutes and seconds; all of them are added.

        Raises:
            ValueError: a negative time, or more than ten years.
        """
        total = (by or timedelta()) + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self._hand.advance(whole_ms(total))

    def fast_forward(self) -> contextlib.AbstractContextManager[None]:
        """Deliver delayed messages without waiting: during the block, the clock advances to each due time at once.

        The test, and clients in other processes, continue meanwhile. Between two due times nothing waits for them.
        """
        return self._hand.fast_forward()


def whole_ms(by: timedelta) -> int:
    """How far to set a clock forward, in ms.

    Raises:
        ValueError: a negative time, or more than ten years.
    """
    if by < timedelta():
        raise ValueError(f"the clock goes forward only, not by {by}")
    if by > _LONGEST:
        raise ValueError(f"the clock goes forward by {_LONGEST.days} days at once at the most, not by {by}")
    return round(by.total_seconds() * 1000)


class LocalHand:
    """A `ClockHand` in the process of the servers.

    Args:
        steered: the clock.
        calls: run functions in the loop of the servers.
    """

    def __init__(self, steered: SteeredClock, calls: Calls) -> None:
        self._steered = steered
        self._calls = calls

    def now_ms(self) -> int:
        """What the clock shows."""
        return self._steered()

    def advance(self, by_ms: int) -> None:
        """Go forward."""
        self._calls.call(lambda: self._steered.advance(by_ms))

    @contextlib.contextmanager
    def fast_forward(self) -> Iterator[None]:
        """Go forward for as long as the block lasts."""
        scope = trio.CancelScope()
        started, ended = trio.Event(), trio.Event()

        async def run() -> None:
            started.set()
            try:
                with scope:
                    await self._steered.fast_forward()
            finally:
                ended.set()

        async def start() -> None:
            trio.lowlevel.spawn_system_task(run)
            await started.wait()

        async def stop() -> None:
            scope.cancel()
            await ended.wait()

        self._calls.call(start)
        try:
            yield
        finally:
            self._calls.call(stop)
