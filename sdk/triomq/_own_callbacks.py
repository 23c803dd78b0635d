"""Refuses waits of a user's function for its own end: one that closes the object which has called it would never end."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVarTuple, Unpack

import trio

from triomq.errors import InvalidCall

Args = TypeVarTuple("Args")

_callers: Final[weakref.WeakKeyDictionary[trio.lowlevel.Task, trio.lowlevel.Task]] = weakref.WeakKeyDictionary()


def call_for(caller: trio.lowlevel.Task | None) -> None:
    """Record that the current task runs a call for code that another task waits for, outside of trio."""
    if caller is not None:
        _callers[trio.lowlevel.current_task()] = caller


class OwnCallbacks:
    """The tasks in which callbacks of one object run that its end waits for.

    Args:
        cure: what a callback can do instead of closing its object.
    """

    def __init__(self, cure: str = "call it in another task") -> None:
        self._cure = cure
        self._running: dict[trio.lowlevel.Task, int] = {}
        """Task -> the number of nurseries that were open in it when the callback began."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run a callback, or several one after the other, in the current task."""
        task = trio.lowlevel.current_task()
        if task in self._running:
            yield
            return
        self._running[task] = len(task.child_nurseries)
        try:
            yield
        finally:
            del self._running[task]

    async def run(self, function: Callable[[Unpack[Args]], Awaitable[None]], *args: *Args) -> None:
        """Await a function that runs callbacks in the current task."""
        with self.running():
            await function(*args)

    def refuse(self, what: str, task: trio.lowlevel.Task | None = None) -> None:
        """Raise :class:`InvalidCall` if a callback waits for the caller, who is about to wait for the callback.

        Args:
            what: the call.
            task: where it was made; default: the current task.
        """
        if self._running and self._wait_for(task if task is not None else trio.lowlevel.current_task()):
            raise InvalidCall(f"{what} waits for all callbacks, so a callback cannot wait for it: {self._cure}")

    def _wait_for(self, task: trio.lowlevel.Task) -> bool:
        """Whether the callback of a task waits for this task: it is the same one, or in a nursery of the callback's."""
        nursery: trio.Nursery | None = None
        at: trio.lowlevel.Task | None = task
        while at is not None:
            opened = self._running.get(at)
            if opened is not None and (nursery is None or nursery in at.child_nurseries[opened:]):
                return True
            caller = _callers.get(at)
            nursery = at.parent_nursery if caller is None else None
            at = caller if nursery is None else nursery.parent_task
        return False
