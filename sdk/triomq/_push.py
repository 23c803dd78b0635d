"""The push consumer: a group member that is given messages as they come (consumer.md §6-§10, §14, §18).

It owns its tasks between the start and the end of ``async with``.  What it decides is elsewhere: shares in
``_rebalance``, pulls in ``_pull_engine``, who handles what in ``_concurrent`` and ``_ordered``.
Upstream: ``DefaultMQPushConsumerImpl``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Self

import trio

from triomq._allocate import sorted_queues
from triomq._client_requests import consumer_properties
from triomq._concurrent import ConcurrentDispatch
from triomq._consumer_state import consume_directly, running_info
from triomq._delivery import Delivery
from triomq._handlers import Handler, Handlers
from triomq._message import MessageQueue, check_name
from triomq._ordered import OrderedDispatch
from triomq._positions import consume_from_where, time_at_end
from triomq._pull_engine import PullEngine, PullSettings
from triomq._push_parts import ConsumerParts, PushSettings, only_error, tell
from triomq._subscription import ALL, ClassFilter, Sql, Subscription, make_subscription, retry_topic
from triomq.errors import ClientClosed, InvalidCall, MQError, RouteNotFound
from triomq_protocol.requests import ConsumerData, ConsumerRunningInfo
from triomq_protocol.requests.group_admin import ConsumeMessageDirectlyResult
from triomq_protocol.requests.heartbeat import CONSUME_PASSIVELY

log = logging.getLogger("triomq.consumer")

END_TIMEOUT_S: Final = 3.0
"""How long the final offsets and unlocking may take, whatever happens."""

LEAVE_TIMEOUT_S: Final = 2.0
"""How long unregistering may take after that."""

RESET_PAUSE_S: Final = 10.0
"""How long handlers get to end before a reset takes effect (consumer.md §14.1)."""


class PushConsumer:
    """A member of a consumer group; handed out by ``client.push_consumer(group)``, used by ``async with``.

    Messages come by ``async for delivery in consumer`` or to a handler by :meth:`run`; either way at least once.

    Args:
        settings: see :class:`PushSettings`.
        parts: see :class:`ConsumerParts`.
    """

    def __init__(self, settings: PushSettings, parts: ConsumerParts) -> None:
        self.settings = settings
        self.group = settings.group
        self.subscriptions: dict[str, Subscription] = {}
        """Topic -> what is wanted of it, the retry topic included."""
        self.started_ms = parts.clock()
        self._parts = parts
        self._positions = parts.positions
        self._handlers: Handlers | None = None
        self._concurrency = 0
        self._runs: set[trio.CancelScope] = set()
        self._told_revoked: set[MessageQueue] = set()
        self._background = trio.CancelScope()
        self._kept = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._nursery_manager: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._closed = False
        self._ordered: OrderedDispatch | None = None
        self._concurrent: ConcurrentDispatch | None = None
        self._dispatch: ConcurrentDispatch | OrderedDispatch
        if settings.ordered:
            self._dispatch = self._ordered = OrderedDispatch(
                locks=parts.locks,
                send_back=parts.send_back,
                spawn=self._spawn,
                report=parts.report,
                on_idle=self.wake,
                suspend_s=settings.suspend_s,
            )
        else:
            concurrent = ConcurrentDispatch(send_back=parts.send_back, spawn=self._spawn, report=parts.report)
            self._dispatch = self._concurrent = concurrent
        retries = None if settings.broadcast else retry_topic(settings.group)
        self.engine = PullEngine(
            puller=parts.puller,
            positions=parts.positions,
            subscription=self.subscriptions.get,
            sink=self._dispatch,
            settings=PullSettings(
                max_messages=settings.pull_batch,
                interval_s=settings.pull_interval_s,
                expression_in_pulls=settings.expression_in_pulls,
                commit=not settings.broadcast,
                ordered=settings.ordered,
                limits=settings.limits,
                retry_topic=retries,
            ),
            beat=parts.heartbeats.beat,
            held_back=self._ordered.held_back if self._ordered is not None and parts.locks is not None else None,
        )
        self._rebalance = parts.rebalance(self)
        if retries is not None:
            self.subscriptions[retries] = make_subscription(retries, ALL, self.started_ms)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are this member's now, the retry topic's aside."""
        return sorted_queues([queue for queue in self.engine.queues if queue.topic != retry_topic(self.group)])

    async def subscribe(self, topic: str, expression: str | Sql | ClassFilter | None = ALL) -> None:
        """Take messages of a topic; all members of a group must subscribe alike.

        Args:
            topic: its name; it may come into being later.
            expression: ``"a || b"`` for tags, :class:`Sql` for properties; by default all messages.

        Raises:
            InvalidCall: topic or expression cannot be used.
            UnsupportedRequest: a broker is too old for the filter.
            SubscriptionRefused: a broker does not understand it, or does not allow it.
            MQError: the name server could not be asked.
        """
        self._check_open()
        check_name(topic, "topic", 127)
        if self._nursery is None:
            raise InvalidCall("enter the consumer first: `async with client.push_consumer(group) as consumer:`")
        subscription = make_subscription(topic, expression, self._parts.clock())
        try:
            await self._parts.routes.for_subscribing(topic)
        except RouteNotFound:
            log.warning("nobody knows topic %s yet; group %s consumes it from when it exists", topic, self.group)
        else:
            if not subscription.filters_by_tag:
                await self._parts.filters.check(self.group, subscription)
        await self._subscribe(subscription)
        self._rebalance.wake()

    async def unsubscribe(self, topic: str) -> None:
        """Take no more messages of a topic; its queues are given up at once."""
        self._check_open()
        self.subscriptions.pop(topic, None)
        await self._tell_brokers()
        self._rebalance.wake()

    async def run(self, handler: Handler, *, concurrency: int = 20) -> None:
        """Give every message to a handler until the consumer drains; see :meth:`drain`.

        Args:
            handler: takes a message (with ``batch_max`` above 1 a list of messages of one queue). An async one is
                awaited; a plain one runs in a thread. Returning means success; raising means failure and
                :class:`Later` says when to try again.
            concurrency: how many handlers may be at work at the same time.

        Cancelling says neither success nor failure: what was in hand is given out again, nothing is committed.

        Raises:
            InvalidCall: it is no function, or runs already.
            OffsetIllegal: with the policy ``"raise"``.
        """
        self._check_open()
        if self._handlers is not None:
            raise InvalidCall("the consumer runs a handler already")
        if concurrency < 1:
            raise InvalidCall(f"concurrency is {concurrency}, not at least 1")
        self._handlers = Handlers(
            self.group, self._dispatch, handler, batch_max=self.settings.batch_max, hooks=self._parts.hooks
        )
        self._concurrency = concurrency
        try:
            with trio.CancelScope() as scope:
                self._runs.add(scope)
                self._dispatch.takers.busy(1)
                try:
                    await self._handlers.run(concurrency)
                except BaseExceptionGroup as group:
                    raise only_error(group) from None
                finally:
                    self._dispatch.takers.busy(-1)
                    self._runs.discard(scope)
        finally:
            self._handlers = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """The next message; the iteration ends when the consumer drains."""
        self._check_open()
        takers = self._dispatch.takers
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if takers.failure is not None:
                raise takers.failure
            if takers.draining:
                raise StopAsyncIteration
            batch = self._dispatch.take(1, trio.current_time())
            if batch is not None:
                return Delivery(batch[0], self._dispatch)
            await takers.wait()

    def drain(self) -> None:
        """Begin to end: pull no more and give nothing more out; :meth:`run` returns when its handlers have."""
        self._background.cancel()
        self.engine.stop_pulling()
        self._dispatch.takers.drain()

    async def aclose(self) -> None:
        """Drain, wait up to ``drain_s`` for handlers, tell the brokers the final offsets, leave the group.

        ``on_revoked`` hears of what is still owned, and gets ``drain_s`` too. When cancelled, this does not wait for
        handlers; the rest is shielded and takes at most 7 s.
        """
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        self.drain()
        try:
            with trio.move_on_after(self.settings.drain_s):
                await self._dispatch.takers.wait_idle()
        finally:
            for scope in self._runs:
                scope.cancel()
            try:
                with time_at_end(self.settings.drain_s):
                    await self._tell_all_revoked()
            finally:
                await self._leave()

    async def _leave(self) -> None:
        with trio.move_on_after(END_TIMEOUT_S, shield=True):
            await self._end()
        self._parts.puller.close()
        with trio.move_on_after(LEAVE_TIMEOUT_S, shield=True):
            await self._parts.leave()

    async def _tell_all_revoked(self) -> None:
        """The queues that are owned still go to others now."""
        if self._nursery is not None:
            await self._kept.wait()
        for queue in list(self.engine.queues):
            await self._tell_revoked(queue)

    async def _tell_revoked(self, queue: MessageQueue) -> None:
        if queue not in self._told_revoked:
            self._told_revoked.add(queue)  # once, although the consumer may end in the midst of it
            await tell(self._parts.on_revoked, queue)

    async def _end(self) -> None:
        if self._nursery is not None:
            # A queue that is being given up right now is persisted and unlocked there.
            await self._kept.wait()
        self.engine.note_positions()
        queues = list(self.engine.queues)
        await self._positions.persist(queues)
        locks = self._parts.locks
        if locks is None or self._ordered is None:
            return
        # A function in a thread cannot be stopped: while it is at work, nobody else may be; its lock runs out by itself.
        if owned := {queue for queue in (*queues, *locks.leaving) if not self._ordered.is_in_hand(queue)}:
            await locks.unlock(owned, wait=True)

    async def __aenter__(self) -> Self:
        self._check_open()
        if self._nursery is not None:
            raise InvalidCall("the consumer was entered before")
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        try:
            await self._nursery.start(self.engine.run)
            self._nursery.start_soon(self._keep)
            self._nursery.start_soon(self._positions.keep_persisting, self._owned)
            self._nursery.start_soon(self.engine.statistics.keep_sampling)
            if self._concurrent is not None and self._parts.send_back is not None:
                limit_s = self.settings.consume_timeout_s
                self._nursery.start_soon(self._concurrent.keep_expiring, self.engine.queues, limit_s)
            if self._ordered is not None and self._parts.locks is not None:
                # Until the very end: handlers that are waited for need their locks.
                self._nursery.start_soon(self._ordered.keep_locks, self._restart, self._positions.forget)
            await self._tell_brokers()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._nursery is not None
        assert self._nursery_manager is not None
        try:
            await self.aclose()
        finally:
            self._nursery.cancel_scope.cancel()
            try:
                # The body's own exception stays aside, so that it does not come out in a group.
                await self._nursery_manager.__aexit__(None, None, None)
            except BaseExceptionGroup as group:
                raise only_error(group) from None

    # --- tasks -----------------------------------------------------------------------------------------------

    def _spawn(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(function, *args)

    async def _keep(self) -> None:
        """What is done only until the consumer drains."""
        try:
            with self._background:
                await self._rebalance.run()
        finally:
            self._kept.set()

    def _owned(self) -> list[MessageQueue]:
        self.engine.note_positions()
        return list(self.engine.queues)

    async def _restart(self, queue: MessageQueue) -> None:
        try:
            offset = await self._positions.start(queue)
        except MQError as error:
            log.warning("%s cannot be begun anew now: %s", queue, error)
            self._rebalance.wake()
            return
        if queue in self.engine.queues:
            self.engine.seek(queue, offset)

    # --- what rebalancing asks -------------------------------------------------------------------------------

    async def assigned(self, queue: MessageQueue, /) -> bool:
        """Take a queue: lock it if need be, find its start, begin to pull.  False: not now, ask again."""
        locks = self._parts.locks
        asked_s = trio.current_time()
        if locks is not None:
            locks.leaving.add(queue)  # until it is ours for good: a cancel may come in between
            granted, _ = await locks.lock([queue])
            if queue not in granted:
                log.info("%s is locked by another member still", queue)
                locks.leaving.discard(queue)
                return False
        try:
            offset = await self._positions.start(queue)
        except MQError as error:
            log.warning("where to start in %s cannot be told now: %s", queue, error)
            if locks is not None:
                # The next round may find that it is another member's.
                await locks.unlock([queue], wait=False)
                locks.leaving.discard(queue)
            return False
        self._told_revoked.discard(queue)
        await tell(self._parts.on_assigned, queue)
        source = self.engine.start(queue, offset)
        if self._ordered is not None:
            self._ordered.add(source, asked_s)
            source.nudge()
        if locks is not None:
            locks.leaving.discard(queue)
        return True

    async def revoked(self, queue: MessageQueue, /) -> bool:
        """Give a queue up: pull no more, persist its offset, unlock it.  False: its handler is at work still."""
        source = self.engine.queues.get(queue)
        if source is None:
            return True
        if self._ordered is not None and not await self._ordered.wait_idle(queue):
            return False
        await self._tell_revoked(queue)
        undelivered = source.process.count > 0
        self.engine.stop(queue)
        if self._ordered is not None:
            self._ordered.remove(queue)
        locks = self._parts.locks
        with trio.move_on_after(END_TIMEOUT_S, shield=True):
            # Before the next member can read it (consumer.md §11.3), and also when this one ends meanwhile.
            await self._positions.persist([queue])
            if locks is not None and not undelivered:
                await locks.unlock([queue], wait=False)
        self._positions.forget(queue)
        if locks is not None and undelivered:
            locks.leaving.add(queue)
            self._spawn(locks.unlock_later, queue, self.engine.queues.__contains__)
        return True

    async def topic_changed(self, topic: str, /) -> None:
        """Queues of a topic have moved: brokers are told a newer version of its subscription (consumer.md §11.3)."""
        subscription = self.subscriptions.get(topic)
        if subscription is not None:
            # Brokers first: a pull with a newer version than a broker knows is refused.
            renewed = subscription.renewed(self._parts.clock())
            await self._tell_brokers({**self.subscriptions, topic: renewed})
            if topic in self.subscriptions:
                self.subscriptions[topic] = renewed

    def is_stuck(self, queue: MessageQueue, /) -> bool:
        """Whether an owned queue is not pulled any more; its task never ends by itself, so only if there is none."""
        return queue not in self.engine.queues

    # --- what brokers ask ------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Members of the group have changed."""
        self._rebalance.wake()

    def positions_of(self, topic: str) -> Mapping[MessageQueue, int]:
        """The offsets of a topic's queues."""
        self.engine.note_positions()
        return self._positions.of_topic(topic)

    def running_info(self) -> ConsumerRunningInfo:
        """What operators see of this member."""
        settings = self.settings
        properties = settings.properties() | consumer_properties(
            CONSUME_PASSIVELY, ordered=settings.ordered, threads=self._concurrency, started_ms=self.started_ms
        )
        return running_info(
            self.engine, self._positions, self.subscriptions, self._ordered, properties, self._parts.clock()
        )

    async def consume_directly(self, message: bytes, broker_name: str) -> ConsumeMessageDirectlyResult:
        """Handle one message that an operator picked: no offset moves, nothing is sent back."""
        return await consume_directly(self._handlers, message, broker_name, ordered=self.settings.ordered)

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """An operator moves the group: its queues go on at these offsets, after 10 s for handlers to end."""
        self.engine.suspend(True)
        self._rebalance.suspend()
        queues = [queue for queue in self.engine.queues if queue.topic == topic and queue in offsets]
        try:
            for queue in queues:
                self.engine.queues[queue].process.drop()
            await trio.sleep(RESET_PAUSE_S)
            for queue in queues:
                if queue in self.engine.queues:
                    await self._positions.reset(queue, offsets[queue])
                    self.engine.seek(queue, offsets[queue])
        finally:
            self.engine.suspend(False)
            self._rebalance.resume()

    # --- inner -----------------------------------------------------------------------------------------------

    async def _subscribe(self, subscription: Subscription) -> None:
        await self._tell_brokers({**self.subscriptions, subscription.topic: subscription})
        self.subscriptions[subscription.topic] = subscription
        self.engine.nudge()

    def consumer_data(self, subscriptions: Mapping[str, Subscription] | None = None) -> ConsumerData:
        """What heartbeats tell of this member."""
        wanted = self.subscriptions if subscriptions is None else subscriptions
        return ConsumerData(
            consume_from_where=consume_from_where(self._positions.start_from),
            consume_type=CONSUME_PASSIVELY,
            group_name=self.group,
            message_model=self.settings.message_model,
            subscription_data_set=[each.data() for each in wanted.values()],
            unit_mode=False,
        )

    async def _tell_brokers(self, subscriptions: Mapping[str, Subscription] | None = None) -> None:
        self._parts.heartbeats.update_consumer(self.group, self.consumer_data(subscriptions))
        await self._parts.heartbeats.beat()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed(f"the consumer of group {self.group} is closed")
