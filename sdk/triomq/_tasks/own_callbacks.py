"""Refuses waits of a user's function for its own end: one that closes the object which has called it would never end."""

from __future__ import annotations

import contextvars
import functools
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar, TypeVarTuple, Unpack

import attrs
import trio

from triomq.errors import InvalidCall

Args = TypeVarTuple("Args")
R = TypeVar("R")

_callers: Final[weakref.WeakKeyDictionary[trio.lowlevel.Task, trio.lowlevel.Task]] = weakref.WeakKeyDictionary()
_for_threads: Final[weakref.WeakSet[trio.lowlevel.Task]] = weakref.WeakSet()
"""The tasks in `_callers` whose code runs in a thread of its own."""


def call_for(caller: trio.lowlevel.Task | None, *, in_thread: bool = False) -> None:
    """Record that the current task runs a call for code that another task waits for, outside of trio."""
    if caller is not None:
        _callers[trio.lowlevel.current_task()] = caller
        if in_thread:
            _for_threads.add(trio.lowlevel.current_task())


def refusal(what: str, *, instead: str = "", in_thread: bool = False) -> InvalidCall:
    """The error for a callback that would wait for its own end.

    Args:
        what: the call.
        instead: what else a callback can call.
        in_thread: whether the callback runs in a thread, outside of the event loop.
    """
    if in_thread:
        what = what.replace("aclose()", "close()")
    return InvalidCall(
        f"{what} waits for all callbacks, so a callback cannot wait for it: {instead}call it in another "
        f"{'thread' if in_thread else 'task'}"
    )


@attrs.frozen
class ThreadCaller:
    """The task that waits for a user's function in a thread, and the trio run in which it waits."""

    task: trio.lowlevel.Task
    token: trio.lowlevel.TrioToken


class _Thread(threading.local):
    caller: ThreadCaller | None = None


# Not a context variable: threads that a function starts, and does not wait for, may copy its context.
_thread: Final = _Thread()


def thread_caller(token: trio.lowlevel.TrioToken) -> trio.lowlevel.Task | None:
    """The task of a trio run that waits for the user's function which runs in this thread; None: there is none."""
    caller = _thread.caller
    return caller.task if caller is not None and caller.token is token else None


async def run_in_thread(
    function: Callable[[Unpack[Args]], R], *args: *Args, limiter: trio.CapacityLimiter | None = None
) -> R:
    """Run a user's function in a thread; its calls into the loop are then known to be made for the current task."""
    caller = ThreadCaller(trio.lowlevel.current_task(), trio.lowlevel.current_trio_token())

    @functools.wraps(function)  # the thread has its name
    def call() -> R:
        _thread.caller = caller
        try:
            return function(*args)
        finally:
            _thread.caller = None

    # Not abandoned when cancelled: a function cannot be stopped, and its effects remain.
    return await trio.to_thread.run_sync(call, limiter=limiter)


@attrs.define(eq=False)
class RunningCallback:
    """A callback, or several one after the other, in one task.

    Attributes:
        of: whose end waits for it.
        is_over: whether it has ended.
    """

    of: OwnCallbacks
    is_over: bool = False


_starter: Final[contextvars.ContextVar[RunningCallback]] = contextvars.ContextVar("_starter")
"""The callback that runs here, also in the tasks and threads that it starts."""


def callback_that_started_this() -> RunningCallback | None:
    """The callback that has started the current task, of trio or of asyncio, and may wait for it; None: it has ended."""
    starter = _starter.get(None)
    return None if starter is None or starter.is_over else starter


class OwnCallbacks:
    """The tasks in which callbacks of one object run that its end waits for.

    Args:
        instead: what else a callback can call, as for :func:`refusal`.
    """

    def __init__(self, instead: str = "") -> None:
        self._instead = instead
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
        callback = RunningCallback(self)
        token = _starter.set(callback)
        try:
            yield
        finally:
            _starter.reset(token)
            callback.is_over = True
            del self._running[task]

    async def run(self, function: Callable[[Unpack[Args]], Awaitable[None]], *args: *Args) -> None:
        """Await a function that runs callbacks in the current task."""
        with self.running():
            await function(*args)

    @property
    def one_started_this(self) -> bool:
        """Whether one of them, which still runs, has started the current task, and may wait for it."""
        callback = callback_that_started_this()
        return callback is not None and callback.of is self

    def refuse(self, what: str, task: trio.lowlevel.Task | None = None) -> None:
        """Raise :class:`InvalidCall` if a callback waits for the caller, who is about to wait for the callback.

        Args:
            what: the call.
            task: where it was made; default: the current task.
        """
        if task is None:
            task = trio.lowlevel.current_task()
        if self._running and self._wait_for(task):
            raise refusal(what, instead=self._instead, in_thread=task in _for_threads)

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
