"""Shares the turns of an event loop among the handlers of requests: readers of sockets, and links with their own tasks.

A turn runs every task that is ready, so without this a hundred links with a full receive each would take a hundred
times the time that one may take, and all other tasks would wait for them.
"""

from __future__ import annotations

from collections import defaultdict

import trio

TURN_S = 0.01
"""How long handlers are called in a turn of the loop: one receive may hold thousands of requests."""
SHORT_S = TURN_S / 4
"""How long, where others have had the turn before, or wait for the next one."""
_READING = -1
"""Instead of a request code: requests that have been received and not been called."""


class LoopTurns(trio.abc.Instrument):
    """The turns of one loop, for all its hubs.

    Attributes:
        spent_s: how long handlers have run in this turn.
    """

    def __init__(self) -> None:
        self.spent_s = 0.0
        self._next = trio.Lock()
        self._waiting = 0
        self._next_of: defaultdict[int, trio.Lock] = defaultdict(trio.Lock)

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        """The loop has ended a turn."""
        self.spent_s = 0.0

    @property
    def is_spent(self) -> bool:
        """Whether the rest is for another turn; and it is, if another task waits for one."""
        return self.spent_s >= TURN_S or self._waiting > 0

    @property
    def left_s(self) -> float:
        """How long the next batch of handlers may run."""
        return max(SHORT_S, TURN_S - self.spent_s) if not self._waiting else SHORT_S

    async def wait(self) -> None:
        """Wait for a turn that has time: at once if this one has, else one task a turn, first come, first served."""
        if self.is_spent:
            await self.wait_for_next()

    async def wait_for_next(self, code: int = _READING) -> None:
        """Wait for a turn in which no other waiter continues.

        Waiters with the same request code queue up, and codes take turns: a thousand brokers that register at once
        must not delay a client that asks for a list.

        Args:
            code: a code with a handler, so that their number is small.
        """
        self._waiting += 1
        try:
            # One of each code waits for `_next`, so first come, first served lets the codes take turns. A lock that
            # another task has released is had in the turn after that, and a free one too.
            async with self._next_of[code], self._next:
                pass
        finally:
            self._waiting -= 1


_of_this_run: trio.lowlevel.RunVar[LoopTurns] = trio.lowlevel.RunVar("triomq_server.wire.limits.loop_turns")


def turns_of_loop() -> LoopTurns:
    """The turns of the loop that runs now."""
    try:
        return _of_this_run.get()
    except LookupError:
        turns = LoopTurns()
        trio.lowlevel.add_instrument(turns)
        _of_this_run.set(turns)
        return turns
