"""Push and lite pull consumers, and shares of pull consumers, without ``await``; users find them in :mod:`triomq.blocking`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

import trio

from triomq._blocking.calls import InGroup, KeptProxy, blocking_method, plain_method
from triomq._constructors import NoPublicConstructor, construct
from triomq._consumer import pull_consumer as _pull
from triomq._consumer.lite import lite_pull_consumer as _lite_pull
from triomq._consumer.push import push_consumer as _push
from triomq._consumer.push.delivery import Delivery as AsyncDelivery
from triomq._consumer.shared_pulls import SharedPulls as AsyncSharedPulls
from triomq._message.message import MessageQueue
from triomq._message.pull_result import PullResult
from triomq._message.received import ReceivedMessage
from triomq.errors import ClientClosed


class _Entered(InGroup, Protocol):
    """A consumer that is used in ``async with``."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Leave the block."""


Core = TypeVar("Core", bound=_Entered)

# Messages that callers receive just as they are interrupted, and so never see, are given out again.


async def poll_again(core: _lite_pull.LitePullConsumer, polled: list[ReceivedMessage]) -> None:
    """Have the next poll give out the messages of a poll again."""
    if polled:
        member, queue = core._member, polled[0].queue  # noqa: SLF001
        source = member.engine.queues.get(queue)
        if source is not None:  # otherwise it was given up meanwhile, and they go to another member
            member.engine.note_position(source)
            member.engine.seek(queue, polled[0].queue_offset)
    await trio.lowlevel.cancel_shielded_checkpoint()


async def pull_again(core: _pull.PullConsumer, result: PullResult) -> None:
    """Set the position back to a result's first message, if the pull moved it."""
    if result and core.positions().get(result.queue) == result.next_offset:
        core.seek(result.queue, result.messages[0].queue_offset)
    await trio.lowlevel.cancel_shielded_checkpoint()


async def requeue(_core: _push.PushConsumer, delivery: Delivery | None) -> None:
    """Give a delivery's message out again."""
    if delivery is not None:
        await delivery._core._answer_block(KeyboardInterrupt())  # noqa: SLF001


class _ConsumerProxy(KeptProxy[Core]):
    """A proxy whose ``with`` ends as the consumer's ``async with`` does."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async def leave(core: Core) -> None:
            await core.__aexit__(kind, error, trace)

        with self._closes():
            self._call(leave)


class LitePullConsumer(_ConsumerProxy[_lite_pull.LitePullConsumer]):
    """Polls messages of one group; see :class:`triomq.LitePullConsumer`.

    A forked child's consumer is a new member, which has to subscribe or assign again.
    """

    subscribe: Final = blocking_method(_lite_pull.LitePullConsumer.subscribe)
    unsubscribe: Final = blocking_method(_lite_pull.LitePullConsumer.unsubscribe)
    assign: Final = blocking_method(_lite_pull.LitePullConsumer.assign)
    poll: Final = blocking_method(_lite_pull.LitePullConsumer.poll, poll_again)
    pause: Final = plain_method(_lite_pull.LitePullConsumer.pause)
    resume: Final = plain_method(_lite_pull.LitePullConsumer.resume)
    commit: Final = blocking_method(_lite_pull.LitePullConsumer.commit)
    committed: Final = blocking_method(_lite_pull.LitePullConsumer.committed)
    position: Final = plain_method(_lite_pull.LitePullConsumer.position)
    seek: Final = blocking_method(_lite_pull.LitePullConsumer.seek)
    seek_to_begin: Final = blocking_method(_lite_pull.LitePullConsumer.seek_to_begin)
    seek_to_end: Final = blocking_method(_lite_pull.LitePullConsumer.seek_to_end)
    seek_to_time: Final = blocking_method(_lite_pull.LitePullConsumer.seek_to_time)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are pulled now, sorted."""
        return self._call_plain(lambda core: core.assignment)

    @property
    def auto_commit(self) -> bool:
        """Whether polled messages are committed without a call of ``commit``."""
        return self._core.auto_commit

    def close(self) -> None:
        """Commit the polled messages, if the consumer does that, and leave the group."""
        with self._closes():
            self._call(_lite_pull.LitePullConsumer.aclose)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield messages; the previous one counts as consumed."""

        async def again(core: _lite_pull.LitePullConsumer, message: ReceivedMessage) -> None:
            await poll_again(core, [message])

        while True:
            try:
                yield self._call(_lite_pull.LitePullConsumer.__anext__, again)
            except StopAsyncIteration:
                return

    def __enter__(self) -> Self:
        self._kept = False
        return self


class Delivery(metaclass=NoPublicConstructor):
    """One message and its answer; see :class:`triomq.Delivery`.

    Leaving ``with delivery:`` means success, an exception or :class:`triomq.Later` in it failure. A block that is interrupted,
    as by ``KeyboardInterrupt``, means neither, and the message is delivered again.
    """

    def __init__(
        self, call: Callable[[Callable[[_push.PushConsumer], Awaitable[Any]]], Any], core: AsyncDelivery
    ) -> None:
        self._call = call
        self._core = core

    @property
    def message(self) -> ReceivedMessage:
        """The message."""
        return self._core.message

    def done(self) -> None:
        """Acknowledge the message: it is consumed."""
        self._call(lambda _: self._core.done())

    def later(self, delay_level: int = 0, *, suspend_s: float | None = None) -> None:
        """Report a failure, for a later delivery; see :class:`triomq.Later`."""
        self._call(lambda _: self._core.later(delay_level, suspend_s=suspend_s))

    def commit(self) -> None:
        """Acknowledge the message; with ``auto_commit=False``, commit its queue up to it."""
        self._call(lambda _: self._core.commit())

    def rollback(self, *, suspend_s: float | None = None) -> None:
        """With ``auto_commit=False``: deliver everything since the last commit again; see :class:`triomq.Rollback`."""
        self._call(lambda _: self._core.rollback(suspend_s=suspend_s))

    @property
    def answered(self) -> bool:
        """Whether the message was answered: consumed, failed, or returned."""
        return self._core.answered

    def reply(self, body: bytes, *, properties: Mapping[str, str] | None = None) -> bool:
        """Reply to the client that asked; see :meth:`triomq.Delivery.reply`."""
        replied: bool = self._call(lambda _: self._core.reply(body, properties=properties))
        return replied

    def __enter__(self) -> ReceivedMessage:
        return self.message

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if self._core.answered:
            # By the block itself; an exception that it raised afterwards is not ours to handle.
            return False
        if kind is None:
            self.done()
            return True
        try:
            handled: bool = self._call(lambda _: self._core._answer_block(error))  # noqa: SLF001
        except ClientClosed:
            if issubclass(kind, Exception):
                raise
            return False  # the client has returned the message, and that must not hide what ends the program
        return handled


class SharedPulls(metaclass=NoPublicConstructor):
    """A member's share of a group's queues, pulled in turn, for use in ``with``; see :class:`triomq.SharedPulls`."""

    def __init__(self, call: Callable[..., Any], core: AsyncSharedPulls) -> None:
        self._call = call
        self._core = core

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are assigned to this member now."""

        async def look(_: _pull.PullConsumer) -> list[MessageQueue]:
            await trio.lowlevel.checkpoint()
            return self._core.assignment

        assigned: list[MessageQueue] = self._call(look)
        return assigned

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PullResult:
        """The next result that has messages; it waits for one without a time limit."""
        result: PullResult = self._call(lambda _: self._core.__anext__(), pull_again)
        return result

    def __enter__(self) -> Self:
        # If it is interrupted when already entered, there is no block whose end would leave it.
        self._call(lambda _: self._core.__aenter__(), lambda _, entered: entered.__aexit__(None, None, None))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ClientClosed):  # which has ended the share
            self._call(lambda _: self._core.__aexit__(kind, error, trace))


class PushConsumer(_ConsumerProxy[_push.PushConsumer]):
    """A member of a consumer group, for use in ``with``; see :class:`triomq.PushConsumer`.

    Handlers of :meth:`run` are plain functions; they are called in worker threads.
    """

    subscribe: Final = blocking_method(_push.PushConsumer.subscribe)
    unsubscribe: Final = blocking_method(_push.PushConsumer.unsubscribe)
    run: Final = blocking_method(_push.PushConsumer.run)
    reply: Final = blocking_method(_push.PushConsumer.reply)
    pause: Final = plain_method(_push.PushConsumer.pause)
    resume: Final = plain_method(_push.PushConsumer.resume)
    seek: Final = blocking_method(_push.PushConsumer.seek)
    seek_to_begin: Final = blocking_method(_push.PushConsumer.seek_to_begin)
    seek_to_end: Final = blocking_method(_push.PushConsumer.seek_to_end)
    seek_to_time: Final = blocking_method(_push.PushConsumer.seek_to_time)
    drain: Final = plain_method(_push.PushConsumer.drain)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are assigned to this member now, without the retry topic's."""
        return self._call_plain(lambda core: core.assignment)

    def __iter__(self) -> Iterator[Delivery]:
        """Yield deliveries until the consumer drains."""

        async def take(core: _push.PushConsumer) -> Delivery:
            return construct(Delivery, self._call, await core.__anext__())

        while True:
            try:
                yield self._call(take, requeue)
            except StopAsyncIteration:
                return

    def poll(self, wait_s: float = 0.0) -> Delivery | None:
        """The next message, or None if none arrives in time; see :meth:`triomq.PushConsumer.poll`."""

        async def take(core: _push.PushConsumer) -> Delivery | None:
            found = await core.poll(wait_s)
            return None if found is None else construct(Delivery, self._call, found)

        return self._call(take, requeue)

    def __enter__(self) -> Self:
        self._kept = False
        self._call(_push.PushConsumer.__aenter__, lambda _, entered: entered.aclose())
        return self

    def close(self) -> None:
        """Drain, wait for handlers, commit, and leave the group.

        Raises:
            InvalidCall: a handler of this consumer has called it, and would wait for itself; it can call :meth:`drain`.
        """
        self.__exit__(None, None, None)
