"""The synchronous faces of push and lite pull consumers; users find them in :mod:`triomq.blocking`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import trio

from triomq import _delivery, _lite_pull, _push
from triomq._blocking_calls import Face, derived, derived_plain
from triomq._delivery import Later
from triomq._received import ReceivedMessage

log = logging.getLogger("triomq.consumer")


class LitePullConsumer(Face[_lite_pull.LitePullConsumer]):
    """Polls messages of one group; see :class:`triomq.LitePullConsumer`.

    A forked child's consumer is a new member, which has to subscribe or assign anew.
    """

    subscribe = derived(_lite_pull.LitePullConsumer.subscribe)
    unsubscribe = derived(_lite_pull.LitePullConsumer.unsubscribe)
    assign = derived(_lite_pull.LitePullConsumer.assign)
    assignment = derived_plain(_lite_pull.LitePullConsumer.assignment)
    poll = derived(_lite_pull.LitePullConsumer.poll)
    pause = derived_plain(_lite_pull.LitePullConsumer.pause)
    resume = derived_plain(_lite_pull.LitePullConsumer.resume)
    commit = derived(_lite_pull.LitePullConsumer.commit)
    committed = derived(_lite_pull.LitePullConsumer.committed)
    position = derived_plain(_lite_pull.LitePullConsumer.position)
    seek = derived(_lite_pull.LitePullConsumer.seek)
    seek_to_begin = derived(_lite_pull.LitePullConsumer.seek_to_begin)
    seek_to_end = derived(_lite_pull.LitePullConsumer.seek_to_end)
    seek_to_time = derived(_lite_pull.LitePullConsumer.seek_to_time)
    close = derived(_lite_pull.LitePullConsumer.aclose)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Message after message; the one before counts as consumed."""
        while True:
            try:
                yield self.hand_over(_lite_pull.LitePullConsumer.__anext__)
            except StopAsyncIteration:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async def leave(core: _lite_pull.LitePullConsumer) -> None:
            await core.__aexit__(kind, error, trace)

        self.hand_over(leave)


class Delivery:
    """One message and its answer; see :class:`triomq.Delivery`.

    Leaving ``with delivery:`` means success, an exception or :class:`triomq.Later` in it failure.
    """

    def __init__(self, consumer: PushConsumer, core: _delivery.Delivery) -> None:
        self._consumer = consumer
        self._core = core

    @property
    def message(self) -> ReceivedMessage:
        """The message."""
        return self._core.message

    def done(self) -> None:
        """It is consumed."""
        self._consumer.hand_over(lambda _: self._core.done())

    def later(self, delay_level: int = 0, *, suspend_s: float | None = None) -> None:
        """It is to come again; see :class:`triomq.Later`."""
        self._consumer.hand_over(lambda _: self._core.later(delay_level, suspend_s=suspend_s))

    def __enter__(self) -> ReceivedMessage:
        return self.message

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if kind is None:
            self.done()
            return True
        if not issubclass(kind, Exception):
            return False  # interrupted: neither success nor failure
        if isinstance(error, Later):
            self.later(error.delay_level, suspend_s=error.suspend_s)
        else:
            log.error("the block of %r failed", self.message, exc_info=error)
            self.later()
        return True


class PushConsumer(Face[_push.PushConsumer]):
    """A member of a consumer group, to be used in ``with``; see :class:`triomq.PushConsumer`.

    Handlers of :meth:`run` are plain functions; they are called in worker threads.
    """

    subscribe = derived(_push.PushConsumer.subscribe)
    unsubscribe = derived(_push.PushConsumer.unsubscribe)
    run = derived(_push.PushConsumer.run)
    drain = derived_plain(_push.PushConsumer.drain)

    def __iter__(self) -> Iterator[Delivery]:
        """Delivery after delivery, until the consumer drains."""
        while True:
            try:
                yield Delivery(self, self.hand_over(_push.PushConsumer.__anext__))
            except StopAsyncIteration:
                return

    def __enter__(self) -> Self:
        holder = _Holder()
        self.hand_over(holder.open)
        self._holder = holder
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drain, wait for handlers, commit, leave the group."""
        self.hand_over(self._holder.close)


class _Holder:
    """A task that stays inside the consumer's ``async with`` while calls come and go."""

    def __init__(self) -> None:
        self._opened = trio.Event()
        self._leave = trio.Event()
        self._ended = trio.Event()
        self._failure: Exception | None = None

    async def open(self, core: _push.PushConsumer) -> None:
        """Start it and wait until the consumer runs."""
        trio.lowlevel.spawn_system_task(self._hold, core)
        await self._opened.wait()
        self._raise()

    async def close(self, _core: _push.PushConsumer) -> None:
        """Leave, and wait for the end."""
        self._leave.set()
        await self._ended.wait()
        self._raise()

    async def _hold(self, core: _push.PushConsumer) -> None:
        try:
            async with core:
                self._opened.set()
                await self._leave.wait()
        except Exception as error:  # noqa: BLE001 - raised again where somebody waits
            self._failure = error
        finally:
            self._opened.set()
            self._ended.set()

    def _raise(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
