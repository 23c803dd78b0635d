"""Spreads work that one change causes for many clients, such as notifying a group's members, over several turns of the loop.

A single closed link may concern hundreds of groups with thousands of members each. Work that does not fit into a turn is
left to a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import trio

STEPS_PER_TURN = 128
"""Notifications in one turn of the loop; each takes 20 to 130 microseconds."""


class Notifications:
    """Notifies the members of groups that have changed.

    Args:
        notify: notifies the members of a group, one in a step.
    """

    def __init__(self, notify: Callable[[str], Iterator[None]]) -> None:
        self._notify = notify
        self.added = 0
        """Changes of groups so far."""
        self._current: Iterator[None] = iter(())
        self._waiting: dict[str, None] = {}
        self._left = STEPS_PER_TURN
        self._going = False
        self._wake = trio.Event()

    def add(self, group: str) -> None:
        """A group has changed. Its members are notified now, as long as there are few, else soon.

        A group that changes again before its turn comes is notified once.
        """
        self.added += 1
        self._waiting[group] = None
        self._go_on()
        self._wake.set()

    async def run(self) -> None:
        """Task: send the notifications that did not fit into the turn of their change."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            self._left = STEPS_PER_TURN
            self._go_on()
            while not self._left:
                await trio.lowlevel.checkpoint()
                self._left = STEPS_PER_TURN
                self._go_on()
            await trio.lowlevel.checkpoint()

    def _go_on(self) -> None:
        if self._going:
            return  # a notification has closed a link, which changes further groups
        self._going = True
        try:
            while self._left and self._step():
                self._left -= 1
        finally:
            self._going = False

    def _step(self) -> bool:
        """Notify one member, or begin with the next group; false if there is nothing to do."""
        for _ in self._current:
            return True
        if not self._waiting:
            return False
        group = next(iter(self._waiting))
        del self._waiting[group]
        self._current = self._notify(group)
        return True
