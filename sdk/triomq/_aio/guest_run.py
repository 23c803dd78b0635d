"""One trio run for all clients of an asyncio loop, and the sessions that are open in it.

The run begins with the loop's first client and ends with its last.  If the loop's tasks are cancelled at its end, as in
``asyncio.run``, clients that are still open are closed.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - here trio meets it
import contextvars
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final, Generic, NoReturn, TypeVar

import outcome
import trio

from triomq._aio.ticks import Ticks
from triomq._tasks.exception_groups import without_cancels
from triomq._tasks.own_callbacks import call_for
from triomq.errors import ClientClosed, InvalidCall

log = logging.getLogger("triomq")

R = TypeVar("R")
Value = TypeVar("Value")


class _ThreadState(threading.local):
    """The state of each thread: the run of its loop."""

    run: GuestRun | None = None


_thread = _ThreadState()


def complete(future: asyncio.Future[None], error: Exception | None = None) -> None:
    """End a future of a loop that may already be closed, unless it has ended."""
    if future.done() or future.get_loop().is_closed():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


async def wait_all(*futures: asyncio.Future[Any]) -> None:
    """Wait for the end of futures, even if cancelled, and raise the cancellation afterwards."""
    cancelled: asyncio.CancelledError | None = None
    for future in futures:
        while not future.done():
            try:
                await asyncio.wait((future,))
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled


_waiting: Final[weakref.WeakKeyDictionary[asyncio.Task[Any], trio.lowlevel.Task]] = weakref.WeakKeyDictionary()
"""Task of a user's code -> the task in trio that waits for it."""


def waiting_task() -> trio.lowlevel.Task | None:
    """The task in trio that waits for the current task of the asyncio loop, which runs a callback; None: there is none."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs here; the call itself refuses that
        return None
    return _waiting.get(task) if task is not None else None


async def _begun_in_asyncio(make: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Await a coroutine from the next turn of the loop on: a task factory may start a task at once, within trio."""
    await asyncio.sleep(0)
    return await make()


class GuestRun:
    """A trio run within an asyncio loop; :meth:`open` begins it.

    Args:
        loop: the asyncio loop.

    Attributes:
        nursery: runs the sessions.
        ticks: runs trio's loop.
    """

    nursery: trio.Nursery

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self._pid = os.getpid()
        self._stop: trio.Event
        self._ending = False
        self._sessions: set[Session[Any]] = set()
        self.calls: set[Call[Any]] = set()
        """The calls under way."""
        self.in_loop: dict[trio.lowlevel.Task, Callable[[], object]] = {}
        """Task that waits for a user's code in the loop -> a function that ends the wait."""
        self._ready: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self.ticks: Ticks = Ticks(loop, self._main, self._done)
        # The loop keeps only weak references to its tasks.
        self._guard = loop.create_task(self._close_with_loop(), name="triomq closes its clients with the loop")

    @classmethod
    async def open(cls, opens: Callable[[], AbstractAsyncContextManager[Value]]) -> Session[Value]:
        """Enter an asynchronous context manager in trio, in the run of the current asyncio loop.

        Raises:
            InvalidCall: no asyncio loop runs here, or this thread has clients on another one.
            Exception: any error of entering.
        """
        loop = running_loop()
        while (run := _thread.run) is not None and run._ending and run.loop is loop:  # noqa: SLF001
            await wait_all(run._ended)  # noqa: SLF001
        if run is not None and run.loop is not loop:
            run._replace()
            run = None
        if run is None:
            run = _thread.run = cls(loop)
        return await run._open(opens)

    async def _open(self, opens: Callable[[], AbstractAsyncContextManager[Value]]) -> Session[Value]:
        session = Session(self, opens)
        self._sessions.add(session)
        try:
            await asyncio.shield(self._ready)
        except BaseException:
            try:
                await wait_all(self._ready)
            finally:
                self.left(session)
                await self.wait_ended()
            raise
        self.ticks.wake()
        self.nursery.start_soon(session.hold)
        await session.wait_open()
        return session

    def _replace(self) -> None:
        """Make room for a run of another loop in this thread."""
        if self._pid != os.getpid():
            raise InvalidCall(
                "this process was forked while a client of its parent's was open in this thread; open clients after the "
                'fork, or start processes by multiprocessing.get_context("spawn")'
            )
        if not self.loop.is_closed():
            raise InvalidCall(
                "this thread has a client open on another event loop; close that client first, or use a thread for each loop"
            )
        log.warning(
            "an event loop was closed while clients were open on it; they are closed now, and what they had in flight may "
            "be lost: use `async with`, or call aclose()"
        )
        # Who called is gone, and the tasks of handlers and callbacks run no more: nothing may wait for them.
        for call in list(self.calls):
            call.cancel()
        for give_up in list(self.in_loop.values()):
            give_up()
        self._end()
        self.ticks.finish()

    # --- the run -----------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            self._stop = trio.Event()
            complete(self._ready)
            await self._stop.wait()

    def _done(self, end: outcome.Outcome[None]) -> None:
        if _thread.run is self:
            _thread.run = None
        self._ending = True
        if isinstance(end, outcome.Error):
            if _was_interrupted(end.error):
                # Raised while trio ran, it belongs to the loop: asyncio.run handles it itself, other loops do not.
                self.loop.call_soon(_interrupt)
            else:
                log.error("the loop of triomq.aio has failed", exc_info=end.error)
            complete(self._ready, ClientClosed(f"the loop of triomq.aio has failed: {end.error!r}"))
        for session in list(self._sessions):
            session.over()
        complete(self._ended)

    def _end(self) -> None:
        """Close the open sessions, then end the run."""
        self._ending = True
        for session in self._sessions:
            session.stop()
        self.ticks.wake()
        self._stop.set()

    async def _close_with_loop(self) -> None:
        try:
            await asyncio.shield(self._ended)
        except asyncio.CancelledError:
            # The loop cancels all its tasks: it is about to be closed.
            if not self._ended.done():
                await asyncio.wait((self._ready,))
                self._end()
                await wait_all(self._ended)
            raise

    # --- sessions ----------------------------------------------------------------------------------------------

    def left(self, session: Session[Any]) -> None:
        """Remove a session that has ended, or was not begun; the run ends with the last one."""
        self._sessions.discard(session)
        if not self._sessions and not self._ending and self._ready.done():
            self._end()

    async def wait_ended(self) -> None:
        """Wait until nothing of the run is left in the loop, if it is about to end."""
        if self._ending:
            await wait_all(self._ended, self._guard)


class _ClosedAtOnceError(Exception):
    """Ends a session like a failed block, without waiting."""


class Session(Generic[Value]):
    """Something open in a guest run; tasks of the asyncio loop call into it.

    Args:
        run: the run in which it is open.
        opens: creates the context manager to enter.

    Attributes:
        value: the result of entering.
    """

    value: Value

    def __init__(self, run: GuestRun, opens: Callable[[], AbstractAsyncContextManager[Value]]) -> None:
        self._run = run
        self._opens = opens
        self._calls: trio.Nursery | None = None
        self._scope = trio.CancelScope()
        self._stop = trio.Event()
        self._at_once = False
        self._opened: asyncio.Future[None] = run.loop.create_future()
        self._ended: asyncio.Future[None] = run.loop.create_future()

    async def hold(self) -> None:
        """Keep the session open until :meth:`close`; runs in trio."""
        try:
            with self._scope:
                await self._serve()
        except* _ClosedAtOnceError:
            pass
        except* Exception as group:
            error = group.exceptions[0] if len(group.exceptions) == 1 else group
            if self._opened.done():
                log.exception("a client has failed and is closed", exc_info=error)
            complete(self._opened, error)
        finally:
            self.over()
            self._run.left(self)

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            async with self._opens() as self.value:
                self._calls = nursery
                complete(self._opened)
                await self._stop.wait()
                if self._at_once:
                    raise _ClosedAtOnceError
            self._calls = None
            nursery.cancel_scope.cancel()

    def over(self) -> None:
        """End the session: nothing can be called any more."""
        self._calls = None
        complete(self._opened, ClientClosed("the client was closed while it was opened"))
        complete(self._ended)

    def stop(self) -> None:
        """Start closing."""
        self._stop.set()

    def leave(self) -> None:
        """Start closing, from asyncio; does not wait for the end."""
        self._run.ticks.wake()
        self._stop.set()

    async def wait_open(self) -> None:
        """Wait until it is open; if that is cancelled or fails, until all of it has ended."""
        try:
            await asyncio.shield(self._opened)
        except BaseException:
            try:
                await self.close(at_once=True)
            finally:
                await self._run.wait_ended()
                self._opened.exception()  # otherwise asyncio logs that it was never retrieved
            raise

    async def close(self, *, at_once: bool = False) -> None:
        """Leave the context manager and wait for that, even if cancelled: that cancels what it waits for.

        Args:
            at_once: fail what is in flight instead of waiting for it.
        """
        if self._ended.done():
            return
        running_loop(self._run.loop)
        self._run.ticks.wake()
        if not self._opened.done() or (at_once and not self._at_once and self._stop.is_set()):
            self._scope.cancel()  # it opens, or another task closes it and waits for what is in flight
        self._at_once = self._at_once or at_once
        self._stop.set()
        try:
            await asyncio.wait((self._ended,))
        except asyncio.CancelledError:
            self._run.ticks.wake()
            self._scope.cancel()
            try:
                await wait_all(self._ended)
            finally:
                await self._run.wait_ended()
            raise
        await self._run.wait_ended()

    async def call(self, run: Callable[[], Awaitable[R]], *, waits_if_cancelled: bool = True) -> R:
        """Run an async function in trio and wait for its end; a cancellation is passed on to it.

        Args:
            run: the function.
            waits_if_cancelled: whether to wait for its end also then.

        Raises:
            ClientClosed: the session has ended, or ends meanwhile.
            InvalidCall: called from another loop than the one in which it was opened.
        """
        if self._calls is None:
            raise ClientClosed("the client is closed")
        running_loop(self._run.loop)
        call = Call(self._run, run)
        self._run.ticks.wake()
        self._calls.start_soon(call.serve)
        return await call.wait(if_cancelled=waits_if_cancelled)

    def check(self) -> None:
        """Raise the errors that :meth:`call` raises before it runs anything."""
        if self._calls is None:
            raise ClientClosed("the client is closed")
        running_loop(self._run.loop)

    async def run_in_asyncio(self, make: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Await a user's coroutine in a task of the asyncio loop; runs in trio, and passes its cancellation on.

        Raises:
            RuntimeError: the user's code has cancelled itself, which trio does not see.
        """
        if self._run.loop.is_closed():
            _raise_loop_closed()
        waiting = trio.lowlevel.current_task()
        context = contextvars.copy_context()
        loop = self._run.loop
        coroutine = make() if loop.get_task_factory() is None else _begun_in_asyncio(make)
        task = loop.create_task(coroutine, context=context)
        _waiting[task] = waiting
        raise_cancel: Callable[[], NoReturn] | None = None

        def ended(_: object) -> None:
            self._run.ticks.wake()
            trio.lowlevel.reschedule(waiting)

        def cancel(raising: Callable[[], NoReturn]) -> trio.lowlevel.Abort:
            nonlocal raise_cancel
            if loop.is_closed():
                self._run.in_loop.pop(waiting, None)
                return trio.lowlevel.Abort.SUCCEEDED
            raise_cancel = raising
            task.cancel()
            return trio.lowlevel.Abort.FAILED

        def give_up() -> None:
            """End the wait, since the loop was closed."""
            raising = raise_cancel if raise_cancel is not None else _raise_loop_closed
            del self._run.in_loop[waiting]
            trio.lowlevel.reschedule(waiting, outcome.capture(raising))

        task.add_done_callback(ended)
        self._run.in_loop[waiting] = give_up
        try:
            await trio.lowlevel.wait_task_rescheduled(cancel)
        finally:
            self._run.in_loop.pop(waiting, None)
        if not task.cancelled():
            return task.result()
        if raise_cancel is not None:
            raise_cancel()
        raise RuntimeError("the handler was cancelled, by itself or with its event loop")


class Call(Generic[R]):
    """One call into trio: its scope, and its outcome.

    Args:
        run: the guest run.
        function: the called function.
    """

    def __init__(self, run: GuestRun, function: Callable[[], Awaitable[R]]) -> None:
        self._run = run
        self._function = function
        self._caller = waiting_task()
        self._scope = trio.CancelScope()
        self._answer: asyncio.Future[None] = run.loop.create_future()
        self._ended = False
        self._end: outcome.Outcome[R] | None = None
        """The result or the error; None if there is neither, as it was cancelled, by its caller or with the client."""

    async def serve(self) -> None:
        """Run in trio; the caller gets the result or the exception, whichever it is."""
        call_for(self._caller)
        self._run.calls.add(self)
        try:
            with self._scope:
                self._end = outcome.Value(await self._function())
        except BaseException as error:
            # Including those that end programs and tests, such as a handler's SystemExit: here they would end the run
            # of all clients. An interrupt belongs to the loop.
            theirs = without_cancels(error)
            if theirs is None or _was_interrupted(theirs):
                raise
            self._end = outcome.Error(theirs)
        finally:
            self._run.calls.discard(self)
            self._ended = True
            complete(self._answer)

    def cancel(self) -> None:
        """Cancel the function; its caller does not wait any more."""
        self._scope.cancel()

    async def wait(self, *, if_cancelled: bool = True) -> R:
        """Wait in a task of the asyncio loop; if that is cancelled, until the call has ended, unless that is not wanted.

        A call that ends by itself before a cancellation reaches it returns its result, so that no message is lost; the
        task is cancelled at its next wait.
        """
        answer = self._answer
        try:
            await answer
        except asyncio.CancelledError:
            if not self._ended:  # its future was cancelled, which trio does not know yet
                self._answer = self._run.loop.create_future()
                self._run.ticks.wake()
                self._scope.cancel()
                if not if_cancelled:
                    raise
                with suppress(asyncio.CancelledError):  # raised below, if the call has no result
                    await wait_all(self._answer)
            if self._end is None:
                raise
            task = asyncio.current_task()
            assert task is not None
            self._run.loop.call_soon(_cancel_again, task)
        if self._end is None:
            raise ClientClosed("the client was closed during the call")
        try:
            return self._end.unwrap()
        finally:
            self._end = None  # it may refer to this frame, through an error's traceback


def _cancel_again(task: asyncio.Task[Any]) -> None:
    """Cancel a task again that was cancelled and continued, unless its canceller has revoked that."""
    if task.cancelling() and not task.done():
        task.uncancel()
        task.cancel()


def running_loop(expected: asyncio.AbstractEventLoop | None = None) -> asyncio.AbstractEventLoop:
    """The current asyncio loop.

    Raises:
        InvalidCall: no loop runs, or another one than expected.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidCall(
            "triomq.aio needs an asyncio loop, and none runs here; start one by asyncio.run(main()), or use "
            "triomq.open_client in trio, triomq.blocking.open_client without a loop"
        ) from None
    if expected is not None and loop is not expected:
        raise InvalidCall("the client was opened on another event loop; open one here")
    return loop


def _was_interrupted(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt


def _raise_loop_closed() -> NoReturn:
    raise ClientClosed("the event loop is closed")
