"""Runs a user's handler over messages: N tasks for an async handler, N threads for a plain one.

Neither costs a task per message.  A handler succeeds by returning and fails by raising; a cancelled handler has done
neither, and its messages are given out again.  Upstream: ``ConsumeMessageConcurrentlyService.ConsumeRequest``.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import trio

from triomq._arguments.async_functions import is_async
from triomq._cluster.counters import TopicCalls
from triomq._consumer.group.process_queue import HeldMessage
from triomq._consumer.push.dispatch import Commit, Dispatch, Later, later_in
from triomq._message.hooks import ConsumeContext, ConsumeHooks
from triomq._tasks.own_callbacks import OwnCallbacks, run_in_thread
from triomq.errors import InvalidCall

CHECKPOINT_EVERY: Final = 32
"""After this many messages without a pause a task lets others run: pulls, heartbeats, the user's own."""

THREAD_TURN_S: Final = 0.01
"""A thread continues to take messages for this time before it reports them."""

Handler = Callable[[Any], Awaitable[object]] | Callable[[Any], object]
"""Takes one message, or with ``batch_max`` above 1 a list of messages of one queue."""


class Handlers:
    """Runs one handler.

    Args:
        dispatch: gives messages out.
        handler: see :data:`Handler`.
        batch_max: the most messages per call.
        own_callbacks: knows the tasks in which handlers run.
        hooks: called before and after the handler, and around it; None: no hooks.
    """

    def __init__(
        self,
        dispatch: Dispatch[Any],
        handler: Handler,
        *,
        batch_max: int,
        own_callbacks: OwnCallbacks,
        hooks: ConsumeHooks | None = None,
    ) -> None:
        if isinstance(handler, type):
            # Each call would make an object, and count the message as consumed.
            raise InvalidCall(f"the handler {handler.__qualname__} is a class; give an object of it, or a function")
        if not callable(handler):
            raise InvalidCall(f"the handler is {type(handler).__name__}; give an async or a plain function")
        self._dispatch = dispatch
        self._handler: Any = handler
        self._batch_max = batch_max
        self._own_callbacks = own_callbacks
        self._hooks = hooks or None
        self._by_hand = dispatch.by_hand
        self._is_ending = False
        """Whether a handler was cancelled or ends the program: no further messages are taken, not even by tasks that run
        once more before they are cancelled."""

    @property
    def is_async(self) -> bool:
        """Whether the handler is awaited, rather than run in a thread."""
        return is_async(self._handler)

    async def run(self, concurrency: int) -> None:
        """Handle messages until the consumer drains.

        Args:
            concurrency: the most handlers that run at the same time.
        """
        waiters = self._dispatch.waiters
        limiter = trio.CapacityLimiter(concurrency)
        run = self._own_callbacks.run
        async with trio.open_nursery() as nursery:
            for _ in range(concurrency):
                if self.is_async:
                    nursery.start_soon(run, self._work, name=self._work)
                else:
                    nursery.start_soon(run, self._work_in_thread, limiter, concurrency, name=self._work_in_thread)
        if waiters.failure is not None:
            raise waiters.failure

    async def call(self, message: HeldMessage) -> None:
        """Call the handler once, for one message; its exceptions propagate."""
        argument = [message] if self._batch_max > 1 else message
        with self._own_callbacks.running():
            if self.is_async:
                await self._handler(argument)
            else:
                await run_in_thread(self._call_plain, argument)

    # --- async handlers --------------------------------------------------------------------------------------

    async def _work(self) -> None:  # noqa: C901 - calls per message are what this saves
        dispatch, handler, most, by_hand = self._dispatch, self._handler, self._batch_max, self._by_hand
        waiters, take, succeed, hooks = dispatch.waiters, dispatch.take, dispatch.succeed, self._hooks
        # The same as trio.current_time, with two calls less.
        current_time = trio.lowlevel.current_clock().current_time
        now, since_pause = current_time(), 0
        try:
            while not self._is_ending:
                batch = take(most, now)
                if batch is None:
                    if waiters.draining:
                        return
                    await waiters.wait()
                    now, since_pause = current_time(), 0
                    continue
                try:
                    context = hooks.begin(batch) if hooks is not None else None
                    try:
                        if hooks is None or context is None:
                            answer = await handler(batch if most > 1 else batch[0])
                        else:
                            with hooks.around(context):
                                answer = await handler(batch if most > 1 else batch[0])
                    except Exception as error:  # noqa: BLE001 - the user's code
                        await self._failed(batch, error, now, context)
                        # The next messages start now: this time decides whether locks are valid and messages late.
                        now = current_time()
                    else:
                        if by_hand and isinstance(answer, Commit):
                            dispatch.commit(batch)
                        else:
                            succeed(batch)
                        ended = current_time()
                        counters = batch[0].page.holder.owner.counters
                        counters.ok += len(batch)
                        counters.took(ended - now)
                        now = ended
                        if hooks is not None and context is not None:
                            hooks.end(context, None)
                except BaseException as error:
                    # First, as after a SystemExit no other task may take the same messages.
                    self._is_ending = True
                    dispatch.requeue(batch)
                    self._raise_only_cancels(batch, error)
                    raise
                since_pause += 1
                if since_pause >= CHECKPOINT_EVERY:
                    since_pause = 0
                    await trio.lowlevel.checkpoint()
                    now = current_time()
        finally:
            # If this task was only just woken, the message it was woken for needs another task.
            if len(dispatch):
                waiters.wake()

    async def _failed(
        self, batch: Sequence[HeldMessage], error: Exception, started_s: float, context: ConsumeContext | None
    ) -> None:
        self._count_failure(batch, error, trio.current_time() - started_s, context)
        await self._dispatch.fail(batch, self._answer(batch, error))

    def _raise_only_cancels(self, batch: Sequence[HeldMessage], error: BaseException) -> None:
        """Log what tasks of a cancelled handler raised when they were cancelled, and raise the cancellation alone."""
        if isinstance(error, BaseExceptionGroup):
            cancels, failures = error.split(trio.Cancelled)
            if cancels is not None and isinstance(failures, Exception):
                self._dispatch.failures.write("the handler was cancelled and failed for", batch[0], "", failures)
                raise cancels from None

    def _count_failure(
        self, batch: Sequence[HeldMessage], error: Exception, seconds: float, context: ConsumeContext | None
    ) -> None:
        counters: TopicCalls = batch[0].holder.owner.counters
        counters.failed += len(batch)
        counters.took(seconds)
        if self._hooks is not None and context is not None:
            self._hooks.end(context, error)

    def _answer(self, batch: Sequence[HeldMessage], error: Exception) -> Later:
        later = later_in(error)
        if later is not None:
            return later
        others = f" and {len(batch) - 1} more" if len(batch) > 1 else ""
        self._dispatch.failures.write("the handler failed for", batch[0], others, error)
        return Later()

    # --- plain handlers --------------------------------------------------------------------------------------

    async def _work_in_thread(self, limiter: trio.CapacityLimiter, concurrency: int) -> None:
        dispatch = self._dispatch
        waiters = dispatch.waiters
        try:
            while not (waiters.draining or self._is_ending):
                most = self._batch_max
                if most == 1 and self._hooks is None and not self._by_hand:
                    # Several per trip to the thread; hooks see each call separately.
                    most = dispatch.fair_share(concurrency)
                batch = dispatch.take(most, trio.current_time())
                if batch is None:
                    await waiters.wait()
                else:
                    await self._handle_in_thread(batch, limiter)
        finally:
            if len(dispatch):
                waiters.wake()

    async def _handle_in_thread(self, batch: Sequence[HeldMessage], limiter: trio.CapacityLimiter) -> None:
        dispatch = self._dispatch
        try:
            # The clock's own method: threads have no trio.current_time().
            current_time = trio.lowlevel.current_clock().current_time
            started_s = current_time()
            context = self._hooks.begin(batch) if self._hooks is not None else None
            done, raised, commits = await run_in_thread(
                self._call_in_thread, batch, context, current_time, limiter=limiter
            )
            if done:
                counters: TopicCalls = batch[0].holder.owner.counters
                counters.ok += done
                counters.took(trio.current_time() - started_s, done if self._batch_max == 1 else 1)
                if self._hooks is not None and context is not None:
                    self._hooks.end(context, None)
            later = None
            error = self._error_in(raised, batch[:done])
            if error is not None:
                failed = batch[done:] if self._batch_max > 1 else batch[done : done + 1]
                self._count_failure(failed, error, trio.current_time() - started_s, context)
                later = self._answer(failed, error)
            if later is not None and (self._batch_max > 1 or self._by_hand):
                await dispatch.fail(batch, later)
            elif commits:
                dispatch.commit(batch)
            elif self._by_hand:
                dispatch.succeed(batch)
            else:
                await dispatch.finish_batch(batch, done, later)
        except BaseException:
            self._is_ending = True
            dispatch.requeue(batch)
            raise

    def _error_in(self, raised: BaseException | None, consumed: Sequence[HeldMessage]) -> Exception | None:
        """What a handler has raised, if it has failed; what ends the run is raised, after the messages before it count
        as consumed."""
        if raised is None or isinstance(raised, Exception):
            return raised
        for message in consumed:
            message.holder.owner.finish(message)
        raise raised

    def _call_in_thread(
        self, batch: Sequence[HeldMessage], context: ConsumeContext | None, current_time: Callable[[], float]
    ) -> tuple[int, BaseException | None, bool]:
        """In a thread, handle one message or batch after the other for a while.

        Returns:
            The number that succeeded, the exception of the next one, and whether to commit by hand.
        """
        if self._hooks is not None and context is not None:
            try:
                with self._hooks.around(context):
                    answer = self._call_plain(batch if self._batch_max > 1 else batch[0])
            except Exception as error:  # noqa: BLE001 - the user's code
                return 0, error, False
            return len(batch), None, self._by_hand and isinstance(answer, Commit)
        if self._batch_max > 1 or self._by_hand:
            try:
                answer = self._call_plain(batch if self._batch_max > 1 else batch[0])
            except Exception as error:  # noqa: BLE001 - the user's code
                return 0, error, False
            return len(batch), None, self._by_hand and isinstance(answer, Commit)
        until = current_time() + THREAD_TURN_S
        for done, message in enumerate(batch):
            if done and (current_time() > until or _is_cancelled()):
                return done, None, False
            try:
                self._call_plain(message)
            except BaseException as error:  # noqa: BLE001 - the user's code, which may end the program after others
                return done, error, False
        return len(batch), None, False

    def _call_plain(self, argument: object) -> object:
        answer = self._handler(argument)
        if inspect.iscoroutine(answer):
            answer.close()
            raise InvalidCall("the handler returned a coroutine that is not awaited; declare it `async def`")
        return answer


def _is_cancelled() -> bool:
    try:
        trio.from_thread.check_cancelled()
    except trio.Cancelled:
        return True
    return False
