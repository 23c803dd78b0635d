"""Push and lite pull consumers, and shares of pull consumers, for asyncio; users find them in :mod:`triomq.aio`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from triomq._aio.calls import ClientSession, ClosingProxy, async_method, handler_in_asyncio, plain_method
from triomq._constructors import NoPublicConstructor, construct
from triomq._consumer.lite import lite_pull_consumer as _lite_pull
from triomq._consumer.push import push_consumer as _push
from triomq._consumer.push.delivery import Delivery as TrioDelivery
from triomq._consumer.push.handlers import Handler
from triomq._consumer.shared_pulls import SharedPulls as TrioSharedPulls
from triomq._message.message import MessageQueue
from triomq._message.pull_result import PullResult
from triomq._message.received import ReceivedMessage
from triomq.errors import ClientClosed


class LitePullConsumer(ClosingProxy[_lite_pull.LitePullConsumer]):
    """Polls messages of one group, for use in ``async with``; see :class:`triomq.LitePullConsumer`."""

    subscribe: Final = async_method(_lite_pull.LitePullConsumer.subscribe)
    unsubscribe: Final = async_method(_lite_pull.LitePullConsumer.unsubscribe)
    assign: Final = async_method(_lite_pull.LitePullConsumer.assign)
    poll: Final = async_method(_lite_pull.LitePullConsumer.poll)
    pause: Final = plain_method(_lite_pull.LitePullConsumer.pause)
    resume: Final = plain_method(_lite_pull.LitePullConsumer.resume)
    commit: Final = async_method(_lite_pull.LitePullConsumer.commit)
    committed: Final = async_method(_lite_pull.LitePullConsumer.committed)
    position: Final = plain_method(_lite_pull.LitePullConsumer.position)
    seek: Final = async_method(_lite_pull.LitePullConsumer.seek)
    seek_to_begin: Final = async_method(_lite_pull.LitePullConsumer.seek_to_begin)
    seek_to_end: Final = async_method(_lite_pull.LitePullConsumer.seek_to_end)
    seek_to_time: Final = async_method(_lite_pull.LitePullConsumer.seek_to_time)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are pulled now, sorted."""
        return self._core.assignment

    @property
    def auto_commit(self) -> bool:
        """Whether polled messages are committed without a call of ``commit``."""
        return self._core.auto_commit

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message; the previous one now counts as consumed."""
        return await self._call(_lite_pull.LitePullConsumer.__anext__)


class Delivery(metaclass=NoPublicConstructor):
    """One message and its answer; see :class:`triomq.Delivery`.

    Leaving ``async with delivery:`` means success, an exception or :class:`triomq.Later` in it failure; a block that is
    cancelled means neither, and the message is delivered again.
    """

    def __init__(self, session: ClientSession, core: TrioDelivery) -> None:
        self._session = session
        self._core = core

    @property
    def message(self) -> ReceivedMessage:
        """The message."""
        return self._core.message

    async def done(self) -> None:
        """Acknowledge the message: it is consumed."""
        await self._session.call(self._core.done)

    async def later(self, delay_level: int = 0, *, suspend_s: float | None = None) -> None:
        """Report a failure, for a later delivery; see :class:`triomq.Later`."""
        await self._session.call(lambda: self._core.later(delay_level, suspend_s=suspend_s))

    async def commit(self) -> None:
        """Acknowledge the message; with ``auto_commit=False``, commit its queue up to it."""
        await self._session.call(self._core.commit)

    async def rollback(self, *, suspend_s: float | None = None) -> None:
        """With ``auto_commit=False``: deliver everything since the last commit again; see :class:`triomq.Rollback`."""
        await self._session.call(lambda: self._core.rollback(suspend_s=suspend_s))

    @property
    def answered(self) -> bool:
        """Whether the message was answered: consumed, failed, or returned."""
        return self._core.answered

    async def reply(self, body: bytes, *, properties: Mapping[str, str] | None = None) -> bool:
        """Reply to the client that asked; see :meth:`triomq.Delivery.reply`."""
        return await self._session.call(lambda: self._core.reply(body, properties=properties))

    async def __aenter__(self) -> Self:
        self._session.check()
        # Here and not in trio, so that values set by hooks, such as a current span, are set for the block.
        self._core._begin_block()  # noqa: SLF001
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            self._core._unwrap_block(kind, error, trace)  # noqa: SLF001
            return await self._session.call(lambda: self._core._answer_block(error))  # noqa: SLF001
        finally:
            self._core._end_block()  # noqa: SLF001

    def __repr__(self) -> str:
        return repr(self._core)


class SharedPulls(metaclass=NoPublicConstructor):
    """A member's share of a group's queues, pulled in turn, used in ``async with``; see :class:`triomq.SharedPulls`."""

    def __init__(self, session: ClientSession, core: TrioSharedPulls) -> None:
        self._session = session
        self._core = core

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are assigned to this member now."""
        return self._core.assignment

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PullResult:
        """The next result that has messages; it waits for one without a time limit."""
        return await self._session.call(self._core.__anext__)

    async def __aenter__(self) -> Self:
        await self._session.call(self._core.__aenter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ClientClosed):  # which has ended the share
            await self._session.call(lambda: self._core.__aexit__(kind, error, trace))


class PushConsumer(ClosingProxy[_push.PushConsumer]):
    """A member of a consumer group, for use in ``async with``; see :class:`triomq.PushConsumer`."""

    subscribe: Final = async_method(_push.PushConsumer.subscribe)
    unsubscribe: Final = async_method(_push.PushConsumer.unsubscribe)
    reply: Final = async_method(_push.PushConsumer.reply)
    pause: Final = plain_method(_push.PushConsumer.pause)
    resume: Final = plain_method(_push.PushConsumer.resume)
    seek: Final = async_method(_push.PushConsumer.seek)
    seek_to_begin: Final = async_method(_push.PushConsumer.seek_to_begin)
    seek_to_end: Final = async_method(_push.PushConsumer.seek_to_end)
    seek_to_time: Final = async_method(_push.PushConsumer.seek_to_time)
    drain: Final = plain_method(_push.PushConsumer.drain)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are assigned to this member now, without the retry topic's."""
        return self._core.assignment

    async def run(self, handler: Handler, *, concurrency: int = 20) -> None:
        """Call a handler with every message until the consumer drains; see :meth:`triomq.PushConsumer.run`.

        Args:
            handler: takes a message; an async one is awaited in a task of its own in this loop, a plain one runs in a thread.
            concurrency: the most handlers that run at the same time.
        """
        handler = handler_in_asyncio(self._session, handler)
        await self._call(lambda core: core.run(handler, concurrency=concurrency))

    async def poll(self, wait_s: float = 0.0) -> Delivery | None:
        """The next message, or None if none arrives in time; see :meth:`triomq.PushConsumer.poll`."""
        found = await self._call(lambda core: core.poll(wait_s))
        return None if found is None else construct(Delivery, self._session, found)

    def __aiter__(self) -> Self:
        aiter(self._core)  # it warns if nothing is subscribed
        return self

    async def __anext__(self) -> Delivery:
        """The next message; the iteration ends when the consumer drains."""
        found = await self._call(_push.PushConsumer.__anext__)
        return construct(Delivery, self._session, found)
