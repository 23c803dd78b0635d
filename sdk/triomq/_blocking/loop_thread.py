"""A thread with a trio loop, in which an object stays open while plain threads call into it.

:mod:`triomq.blocking` keeps a client open in such a thread, the Spark data source a client and its consumer.  Neither the
thread nor the open object exists in a forked child: users of a loop thread open another one there.
"""

from __future__ import annotations

import contextvars
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final, Generic, TypeVar, TypeVarTuple, Unpack

import outcome
import trio

from triomq._tasks.exception_groups import without_cancels
from triomq._tasks.own_callbacks import call_for, thread_caller
from triomq.errors import ClientClosed, InvalidCall

log = logging.getLogger("triomq")

Args = TypeVarTuple("Args")
R = TypeVar("R")
Session = TypeVar("Session")

JOIN_TIMEOUT_S: Final = 10.0
"""How long :meth:`LoopThread.close` waits for the thread."""


SIGNALS_EVERY_S: Final = 0.5
"""How often a waiting thread checks for signals: one that arrives just before the wait begins does not end it."""


LOOK_EVERY_S: Final = 0.01
"""How often a signal handler checks for the end of a session, where it cannot wait for the thread."""


class _Thread(threading.local):
    queueing = 0
    """The number of functions that this thread is queueing in loops; a signal handler may have interrupted that."""

    serves_in = 0
    """The id of the process in which this is a loop thread; 0: it is none."""


_thread: Final = _Thread()


def _queue(token: trio.lowlevel.TrioToken, function: Callable[[Unpack[Args]], object], *args: *Args) -> None:
    """Have a loop call a function soon.

    Raises:
        trio.RunFinishedError: the loop has ended.
    """
    _thread.queueing += 1
    try:
        token.run_sync_soon(function, *args)
    finally:
        _thread.queueing -= 1


def _next_of(ends: queue.SimpleQueue[R]) -> R:
    """Wait in a plain thread, in which an interrupt may be raised."""
    while True:
        with suppress(queue.Empty):
            return ends.get(timeout=SIGNALS_EVERY_S)


GiveBack = Callable[[R], Awaitable[object]]
"""Takes back a result that no caller received, as it was interrupted just then. Called in the loop."""


class Call(Generic[R]):
    """One call into the loop: its scope, and its outcome.

    Args:
        run: what is called.
        give_back: takes back the result of a call that was interrupted; None: such a result is dropped.
    """

    def __init__(self, run: Callable[[], Awaitable[R]], give_back: GiveBack[R] | None = None) -> None:
        self._run = run
        self._give_back = give_back
        self._scope = trio.CancelScope()
        self._begun = False
        # The outcome is kept apart from what its caller waits for: an interrupted caller can check it again.
        self._end: outcome.Outcome[R] | None = None
        # Held until there is an outcome: an event would do, but it creates a lock for each wait.
        self._running = threading.Lock()
        self._running.acquire()
        self._ended_in_loop: trio.Event | None = None
        self._caller: trio.lowlevel.Task | None = None

    def _begin(self, context: contextvars.Context) -> None:
        """Start to run; called in the loop."""
        self._begun = True
        try:
            trio.lowlevel.spawn_system_task(self.serve, context=context)
        except RuntimeError:
            # The loop is at its very end: it still makes queued calls, but starts no more tasks.
            self._set_end(outcome.Error(ClientClosed("the client is closed")))

    def _set_end(self, end: outcome.Outcome[R]) -> None:
        self._end = end
        self._running.release()
        if self._ended_in_loop is not None:
            self._ended_in_loop.set()

    async def serve(self) -> None:
        """Run in the loop's thread; the caller gets the result or the exception, whichever it is."""
        end: outcome.Outcome[R] = outcome.Error(ClientClosed("the client was closed during the call"))
        call_for(self._caller, in_thread=True)
        try:
            with self._scope:
                end = outcome.Value(await self._run())
        except BaseException as error:
            # Including those that end programs and tests, such as a handler's SystemExit: they would end the loop.
            theirs = without_cancels(error)
            if theirs is None:
                raise
            end = outcome.Error(theirs)
        finally:
            self._set_end(end)

    def wait(self, token: trio.lowlevel.TrioToken) -> R:
        """Wait in the caller's thread; an interrupt there cancels the call, and is raised when that is done.

        A call that had ended by then, with a result, gives it back first.
        """
        try:
            end = self.run_in(token)
            if isinstance(end, outcome.Value):
                # Until here an interrupt gives the result back, and from here to the caller no function is called any more
                # in which it could be raised.
                result: R = end.value
                return result
        except trio.RunFinishedError:
            raise ClientClosed("the client is closed") from None
        except BaseException:
            # An interrupt, or any exception of a signal handler. A second one ends the waiting, but not the undoing.
            with suppress(trio.RunFinishedError):
                Call(self._undo).run_in(token)
            raise
        return end.unwrap()

    def run_in(self, token: trio.lowlevel.TrioToken) -> outcome.Outcome[R]:
        """Run in a loop, and wait in the caller's thread for the end.

        Raises:
            trio.RunFinishedError: the loop has ended.
        """
        self._caller = thread_caller(token)
        # In the caller's context: hooks see its variables, such as a span of a trace.
        _queue(token, self._begin, contextvars.copy_context())
        while self._end is None:
            self._running.acquire(timeout=SIGNALS_EVERY_S)
        return self._end

    async def _undo(self) -> None:
        """Cancel the call; or if it has a result, give that back. Runs in the loop."""
        if not self._begun:
            return  # the interrupt came before the call was queued
        self._scope.cancel()
        if self._end is None:
            self._ended_in_loop = trio.Event()
            await self._ended_in_loop.wait()
        if self._give_back is not None and isinstance(self._end, outcome.Value):
            await self._give_back(self._end.value)


def _check_threads() -> None:
    """Raise InvalidCall if gevent has made threads of this process greenlets: a loop would block them all."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and any(map(gevent.is_module_patched, ("threading", "select"))):
        raise InvalidCall(
            "gevent has replaced the threads and sockets of this process, which the client needs; use workers with threads, "
            "such as `gunicorn --threads 4` or `celery worker --pool threads`, and no gevent.monkey"
        )


class _Opening:
    """The state shared by a loop thread and the caller that waits for its session.

    Attributes:
        scope: the loop's scope.
        over: whether the session was opened, or could not be opened.
        ended: None when the session is open, or why it is not.
    """

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.over = False
        self.ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._token: trio.lowlevel.TrioToken | None = None
        self._given_up = False

    def begun(self) -> None:
        """Record that the loop runs; called in it."""
        self._token = trio.lowlevel.current_trio_token()
        if self._given_up:
            self.scope.cancel()

    def end(self, error: BaseException | None) -> None:
        """Record that the session is open, or why it could not be opened."""
        self.over = True
        self.ended.put(error)

    def give_up(self) -> None:
        """No caller waits any more: leave the session as soon as possible."""
        self._given_up = True
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self.scope.cancel)


class LoopThread(Generic[Session]):
    """A thread in which an asynchronous context manager is entered, and left at the end of the thread.

    Args:
        session: what is open in the thread.
        name: the thread's name.

    Attributes:
        session: the result of entering the context manager.
        pid: the id of the process to which the thread belongs.

    Errors of entering are raised.
    """

    def __init__(self, session: Callable[[], AbstractAsyncContextManager[Session]], *, name: str) -> None:
        _check_threads()
        self.pid: int = os.getpid()
        self.session: Session
        self._open = session
        self._token: trio.lowlevel.TrioToken
        self._stop: trio.Event
        self._is_left = False
        opening = _Opening()
        # A daemon, so that a client that is still open cannot keep the process from ending.
        self._thread = threading.Thread(target=self._serve, args=(opening,), name=name, daemon=True)
        try:
            self._thread.start()
            failure = _next_of(opening.ended)
        except BaseException:  # an interrupt, which trio does not notice outside the main thread
            opening.give_up()
            self._thread.join(JOIN_TIMEOUT_S)
            raise
        if failure is not None:
            self._thread.join()
            raise failure

    def _serve(self, opening: _Opening) -> None:
        async def main() -> None:
            self._token = trio.lowlevel.current_trio_token()
            self._stop = trio.Event()
            with opening.scope:
                opening.begun()
                try:
                    async with self._open() as self.session:
                        opening.end(None)
                        await self._stop.wait()
                finally:
                    self._is_left = True

        _thread.serves_in = self.pid
        try:
            trio.run(main)
        except BaseException as error:
            if opening.over:
                # No caller waits for it: callers get the error that the client is closed.
                log.exception("the loop of thread %s has failed, and what was open in it is closed", self._thread.name)
            opening.end(error)  # raised again in the thread that opens the session

    @property
    def is_over(self) -> bool:
        """Whether nothing can be called here any more: the thread has ended, or belongs to the parent of this
        process."""
        return self.pid != os.getpid() or not self._thread.is_alive()

    def call(self, run: Callable[[], Awaitable[R]], give_back: GiveBack[R] | None = None) -> R:
        """Run an async function in the loop and wait for its end.

        Args:
            run: what is run.
            give_back: takes back the result if the caller is interrupted just as it arrives; None: it is dropped.

        Raises:
            InvalidCall: this is the loop's own thread, or a forked child of its process.
            ClientClosed: the loop has ended, or ends meanwhile.
        """
        self.check_caller()
        return Call(run, give_back).wait(self._token)

    def check_caller(self) -> None:
        """Raise InvalidCall where a call would never end: in the loop's own thread, and in a forked child."""
        if self.pid != os.getpid():
            raise InvalidCall(
                f"the loop that is called runs in process {self.pid}, from which this one was forked; open a client of its "
                "own here, by the address of the name servers"
            )
        if threading.current_thread() is self._thread:
            raise InvalidCall("a callback must not wait for its own client; use the async one, or another thread")

    @property
    def is_worker(self) -> bool:
        """Whether the current thread runs a user's function for the loop, which ends only after it."""
        return thread_caller(self._token) is not None

    def call_soon(self, run: Callable[[], object]) -> None:
        """Run a plain function in the loop without waiting for it; does nothing if the loop has ended."""
        with suppress(trio.RunFinishedError):
            _queue(self._token, run)

    def stop(self) -> None:
        """Leave the session and end the thread; called in the loop."""
        self._stop.set()

    def close(self) -> None:
        """Leave the session and end the thread; does nothing in a forked child, to which neither belongs.

        The thread itself and its worker threads, which may hold the last reference to a client that was never closed, do
        not wait for its end.
        """
        if not self.is_over:
            self.call_soon(self.stop)
            if threading.current_thread() is not self._thread and not self.is_worker:
                self._wait_over()

    def close_unused(self) -> None:
        """Close it for the garbage collector, which may run in another loop thread: that one goes on, and does not wait."""
        if _thread.serves_in != os.getpid():
            self.close()
        elif not self.is_over:
            self.call_soon(self.stop)

    def _wait_over(self) -> None:
        if not _thread.queueing:
            self._thread.join(JOIN_TIMEOUT_S)
            return
        # A signal handler has interrupted a call of this thread, which holds a lock that the loop needs to end.
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        while not self._is_left and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
