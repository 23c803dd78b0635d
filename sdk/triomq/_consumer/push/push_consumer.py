"""The push consumer: its handler or loop gets messages as they arrive (docs/protocol/consumer.md §6-§10, §14, §18).

These are the methods for users.  Requests of brokers and rebalancing are in ``membership.py``.  Upstream: ``DefaultMQPushConsumer``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import trio

from triomq._arguments.kinds import check_text
from triomq._arguments.numbers import check_count, check_wait
from triomq._consumer.assigned_queues import AssignedQueues
from triomq._consumer.membership import ClientResources, GroupOptions
from triomq._consumer.push.delivery import Delivery
from triomq._consumer.push.handlers import Handler, Handlers
from triomq._consumer.push.membership import PushMembership
from triomq._consumer.push.options import PushOptions
from triomq._message.message import MessageQueue, check_name
from triomq._message.received import ReceivedMessage
from triomq._message.subscription import ALL, ClassFilter, Sql, retry_topic
from triomq._producer.request_reply import send_reply
from triomq._tasks.exception_groups import without_groups
from triomq.errors import InvalidCall
from triomq_protocol.names import MAX_TOPIC_BYTES

log = logging.getLogger("triomq.consumer")


class PushConsumer(AssignedQueues):
    """A group member whose handler or loop gets messages as they arrive; created by ``client.push_consumer(group)``.

    It is used in ``async with``. Messages come by ``async for delivery in consumer``, or to a handler by :meth:`run`; either way at least once.
    """

    _member: PushMembership
    group: str
    """The group's name as brokers know it, with the namespace's prefix."""

    def __init__(
        self, client: ClientResources, options: GroupOptions, push: PushOptions, *, left: Callable[[], object]
    ) -> None:
        self.group = options.group
        self._member = PushMembership(client, options, push, left=left)
        self._runs: set[trio.CancelScope] = set()

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are assigned to this member now, without the retry topic's."""
        return self._assigned()

    async def subscribe(self, topic: str, expression: str | Sql | ClassFilter | None = ALL) -> None:
        """Subscribe to a topic; all members of a group must have the same subscriptions.

        While no name server responds, a subscription by tags is logged as a warning and takes effect when one does.

        Args:
            topic: its name; it may be created later.
            expression: ``"a || b"`` for tags, :class:`triomq.Sql` for properties; by default all messages.

        Raises:
            InvalidCall: topic or expression cannot be used.
            UnsupportedRequest: a broker is too old for the filter.
            SubscriptionRefused: a broker cannot parse it, or does not allow it.
            NotANameServer: the addresses of the name servers are those of other servers.
            MQError: whether brokers know the filter could not be asked.
        """
        self._member.check_open()
        check_name(topic, "topic", MAX_TOPIC_BYTES)
        if not self._member.started:
            raise InvalidCall(
                "enter the consumer first: `async with client.push_consumer(group) as consumer:`, or `with` in "
                "triomq.blocking"
            )
        await self._member.subscribe(self._member.subscription(topic, expression))

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; its queues are given up at once."""
        self._member.check_open()
        check_text("the topic", topic)
        self._member.subscriptions.pop(topic, None)
        await self._member.withdraw(topic)
        self._member.rebalance.wake()

    async def run(self, handler: Handler, *, concurrency: int = 20) -> None:
        """Call a handler with every message until the consumer drains; see :meth:`drain`.

        Args:
            handler: takes a message (with ``batch_max`` above 1 a list of messages of one queue). An async one is
                awaited; a plain one runs in a thread. Returning means success; raising means failure and
                :class:`triomq.Later` sets when to try again.
            concurrency: the most handlers that run at the same time.

        If nothing is subscribed yet, that is logged as a warning, and the handler waits for a subscription. Cancelling
        means neither success nor failure: messages in flight are delivered again, nothing is committed.

        Raises:
            InvalidCall: the handler is not a function, or is a class; or one is already running.
            OffsetIllegal: with the policy ``"raise"``.
        """
        member = self._member
        member.check_open()
        if member.handlers is not None:
            raise InvalidCall("the consumer runs a handler already")
        check_count("concurrency", concurrency, 1)
        waiters = member.dispatch.waiters
        member.handlers = Handlers(
            member.dispatch,
            handler,
            batch_max=member.push.batch_max,
            own_callbacks=member.own_callbacks,
            hooks=member.consume_hooks,
        )
        member.concurrency = concurrency
        self._warn_unless_subscribed("runs a handler")
        try:
            with trio.CancelScope() as scope:
                self._runs.add(scope)
                waiters.busy(1)
                try:
                    await member.handlers.run(concurrency)
                except BaseExceptionGroup as group:
                    raise without_groups(group) from None
                finally:
                    waiters.busy(-1)
                    self._runs.discard(scope)
        finally:
            member.handlers = None

    def _warn_unless_subscribed(self, what: str) -> None:
        """Log that no message can arrive while nothing is subscribed; the group's retry topic does not count."""
        if not self._member.subscriptions.keys() - {retry_topic(self.group)}:
            # Another task may subscribe later, so this is not an error.
            log.warning(
                "consumer group %s %s and has subscribed to nothing: no message will come before "
                "consumer.subscribe(topic) is called",
                self.group,
                what,
            )

    async def reply(
        self, request: ReceivedMessage, body: bytes, *, properties: Mapping[str, str] | None = None
    ) -> bool:
        """Reply to a message that was sent by :meth:`triomq.Producer.request`, in a handler; see :meth:`Delivery.reply`."""
        self._member.check_open()
        return await send_reply(self._member.sender, request, body, properties)

    def __aiter__(self) -> Self:
        self._warn_unless_subscribed("waits for deliveries")
        return self

    async def __anext__(self) -> Delivery:
        """The next message; the iteration ends when the consumer drains."""
        found = await self._next(wait=True)
        assert found is not None
        return found

    async def _next(self, *, wait: bool) -> Delivery | None:
        self._member.check_open()
        dispatch = self._member.dispatch
        waiters = dispatch.waiters
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if waiters.failure is not None:
                raise waiters.failure
            if waiters.draining:
                raise StopAsyncIteration
            batch = dispatch.take(1, trio.current_time())
            if batch is not None:
                return Delivery(batch[0], dispatch, self._member.sender, self._member.consume_hooks or None)
            if not wait:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return None
            await waiters.wait()

    async def poll(self, wait_s: float = 0.0) -> Delivery | None:
        """The next message, or None if none arrives in time or the consumer drains; for loops that also do other work.

        Args:
            wait_s: how many seconds to wait; 0 takes only what has been fetched before.

        Raises:
            InvalidCall: the time is negative.
            ClientClosed: the consumer is closed.
            OffsetIllegal: with the policy ``"raise"``.
        """
        check_wait(wait_s)
        try:
            if wait_s == 0:
                return await self._next(wait=False)
            with trio.move_on_after(wait_s):
                return await self._next(wait=True)
        except StopAsyncIteration:
            pass
        return None

    def drain(self) -> None:
        """Begin to stop: pull no more, and deliver nothing more; :meth:`run` returns when its handlers have."""
        self._member.drain()

    async def aclose(self) -> None:
        """Drain, wait up to ``drain_s`` for handlers, commit the final offsets, and leave the group.

        ``on_revoked`` is called for queues still owned, and gets ``drain_s`` too. When cancelled, this does not wait
        for handlers; the rest is shielded and takes at most 10 s.

        Raises:
            InvalidCall: a handler or a callback of this consumer has called it, and would wait for itself; a handler can
                call :meth:`drain`.
        """
        member = self._member
        if member.closed:
            await trio.lowlevel.checkpoint()
            return
        self._refuse_callbacks("aclose()")
        member.closed = True
        member.drain()
        drain_s = member.push.drain_s
        try:
            with trio.move_on_after(drain_s):
                await member.dispatch.waiters.wait_idle()
        finally:
            for scope in self._runs:
                scope.cancel()
            await member.close(drain_s)

    async def __aenter__(self) -> Self:
        if self._member.started:
            self._member.check_open()
            raise InvalidCall("the consumer was entered before")
        try:
            await self._member.start()
            await self._member.announce(*self._member.subscriptions.values())
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
        if kind is None and self._member.failure is not None:
            raise self._member.failure
