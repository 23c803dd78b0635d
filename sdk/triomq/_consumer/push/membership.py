"""A push consumer's membership: queues are taken, locked and given up, their messages go to handlers.

The methods for users are in ``push_consumer.py``; ``concurrent.py`` and ``ordered.py`` dispatch messages to handlers.
Upstream: ``DefaultMQPushConsumerImpl``, ``RebalancePushImpl``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import trio

from triomq._consumer.group.allocate import sorted_queues
from triomq._consumer.group.by_broker import at_each_broker
from triomq._consumer.group.positions import END_TIMEOUT_S
from triomq._consumer.group.process_queue import HeldMessage
from triomq._consumer.group.pull_loop import PulledQueue, PullSettings
from triomq._consumer.group.queue_locks import RENEW_EVERY_S, VALID_S, QueueLocks
from triomq._consumer.membership import MODELS, ClientResources, GroupOptions, Membership, time_to_commit
from triomq._consumer.push.concurrent import ConcurrentDispatch
from triomq._consumer.push.dispatch import later_in
from triomq._consumer.push.handlers import Handlers
from triomq._consumer.push.options import PushOptions
from triomq._consumer.push.ordered import OrderedDispatch
from triomq._consumer.push.send_back import SendBack
from triomq._consumer.running_properties import consumer_properties
from triomq._consumer.trace import ConsumeTrace
from triomq._error_text import named_error
from triomq._message.hooks import ConsumeHooks
from triomq._message.log_fields import queue_fields
from triomq._message.message import MessageQueue
from triomq._message.subscription import (
    ALL,
    ClassFilter,
    Sql,
    Subscription,
    make_subscription,
    retry_topic,
)
from triomq._producer.sender import Sender, SendSettings
from triomq._producer.strategies.retry import Retries
from triomq.errors import MQError, NoNameServer, NotANameServer, RouteNotFound, TransientError
from triomq_protocol.errors import BodyError
from triomq_protocol.names import RETRY_PREFIX
from triomq_protocol.record.view import RecordView
from triomq_protocol.requests import ConsumerRunningInfo
from triomq_protocol.requests.group_admin import ConsumeMessageDirectlyResult, ProcessQueueInfo
from triomq_protocol.requests.heartbeat import CONSUME_PASSIVELY

log = logging.getLogger("triomq.consumer")

INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
"""The producer group of messages that consumers send back themselves (``MixAll.CLIENT_INNER_PRODUCER_GROUP``)."""

RESET_PAUSE_S: Final = 10.0
"""How long handlers get to end before a reset takes effect (docs/protocol/consumer.md §14.1)."""


class PushMembership(Membership):
    """The membership of one push consumer.

    Args:
        client: the client's resources.
        options: the options of all group members.
        push: the additional options of push consumers.
        left: called when it has left the group.

    Raises:
        InvalidCall: an option cannot be used.

    Attributes:
        dispatch: gives messages to handlers.
        handlers: the current handler.
        consume_hooks: the user's hooks, and the one that traces.
        concurrency: the most handlers that run at the same time.
    """

    def __init__(
        self, client: ClientResources, options: GroupOptions, push: PushOptions, *, left: Callable[[], object]
    ) -> None:
        super().__init__(client, options, left=left, lite=False)
        self.push = push
        trace = (
            ConsumeTrace(
                push.tracer,
                client.unique_keys,
                timeout_s=push.retries.timeout_s,
                is_answer=lambda error: later_in(error) is not None,
            )
            if push.tracer is not None
            else None
        )
        self.consume_hooks = ConsumeHooks(self.group, [*([trace] if trace is not None else []), *push.consume_hooks])
        self.handlers: Handlers | None = None
        self.concurrency = 0
        self._limits = options.limits
        self._started_ms = client.clock()
        self._revoked_called: set[MessageQueue] = set()
        self._resets = 0
        brokers = self.puller.brokers
        clustering, group = not self.broadcasts, self.group
        self.sender = Sender(
            INNER_PRODUCER,
            client.routes,
            client.links,
            unique_keys=client.unique_keys,
            clock=client.clock,
            chance=client.chance,
            settings=SendSettings(policy=Retries(), compressor=None),
            counters=client.counters,
        )
        max_times = push.retries.limit(ordered=push.ordered)
        self._send_back = (
            SendBack(group, brokers, self.sender, max_times=max_times, unit_mode=client.unit_mode)
            if clustering
            else None
        )
        self._locks = QueueLocks(group, client.client_id, brokers) if clustering and push.ordered else None
        self._ordered: OrderedDispatch | None = None
        self._concurrent: ConcurrentDispatch | None = None
        self.dispatch: ConcurrentDispatch | OrderedDispatch
        if push.ordered:
            self.dispatch = self._ordered = OrderedDispatch(
                locks=self._locks,
                send_back=self._send_back,
                spawn=self.spawn,
                report=self.report,
                on_idle=self.rebalance.wake,
                suspend_s=push.retries.suspend_s,
                by_hand=not push.auto_commit,
            )
        else:
            self.dispatch = self._concurrent = ConcurrentDispatch(
                send_back=self._send_back, spawn=self.spawn, report=self.report
            )
        self._retry_topic = retry_topic(group) if clustering else None
        settings = PullSettings(
            max_messages=push.pulling.max_messages,
            interval_s=push.pulling.interval_s,
            expression_in_pulls=push.pulling.expression_in_pulls,
            commit=clustering,
            ordered=push.ordered,
            limits=options.limits,
            retry_topic=self._retry_topic,
        )
        held_back = self._ordered.held_back if self._ordered is not None and self._locks is not None else None
        self.engine = self._make_engine(self.dispatch, settings, held_back)
        if self._retry_topic is not None:
            retries = make_subscription(self._retry_topic, ALL, self._started_ms)
            self.subscriptions[self._retry_topic] = self.numbered(retries)

    def shared_topics(self) -> Collection[str]:
        """The subscribed topics and the group's retry topic."""
        return self.subscriptions.keys()

    def subscription(self, topic: str, expression: str | Sql | ClassFilter | None) -> Subscription:
        """A subscription as of now."""
        return make_subscription(topic, expression, self._client.clock())

    async def subscribe(self, subscription: Subscription) -> None:
        """Subscribe to a topic.

        Raises:
            MQError: its brokers do not support a filter other than tags, or cannot be asked about it.
            NotANameServer: the addresses of the name servers are those of other servers.
        """
        topic = subscription.topic
        try:
            await self._client.routes.for_subscribing(topic)
        except RouteNotFound:
            log.warning(
                "topic %s is not known yet; group %s consumes it from when it exists",
                topic,
                self.group,
                extra={"topic": topic, "group": self.group},
            )
        except NotANameServer:
            raise
        except (NoNameServer, TransientError) as error:
            if not subscription.filters_by_tag:
                raise  # brokers must support it
            log.warning(
                "where topic %s is cannot be looked up now; group %s consumes it from when a name server answers: %s",
                topic,
                self.group,
                error,
                extra={"topic": topic, "group": self.group},
            )
        else:
            await self.check_filter(subscription)
        subscription = self.numbered(subscription)
        # Brokers first: a pull with a newer version than a broker knows is refused.
        await self.announce(subscription)
        self._use(subscription)
        self.engine.wake()
        self.rebalance.wake()

    def drain(self) -> None:
        """Begin to stop: pull no more, and give nothing more out."""
        self.stop()
        self.dispatch.waiters.drain()

    # --- tasks -----------------------------------------------------------------------------------------------

    def _start_tasks(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self.positions.keep_persisting, self.owned_queues)
        nursery.start_soon(self.engine.statistics.keep_sampling)
        if self._concurrent is not None and self._send_back is not None:
            nursery.start_soon(self._concurrent.keep_expiring, self.engine.queues, self.push.retries.timeout_s)
        if self._ordered is not None and self._locks is not None:
            # Until the very end: the handlers that the end waits for need their locks.
            nursery.start_soon(self._ordered.keep_locks, self._restart, self.positions.forget)

    def _raise_to_waiters(self, error: Exception) -> None:
        self.dispatch.waiters.drain(error)

    async def _restart(self, queue: MessageQueue) -> bool:
        try:
            offset = await self.positions.start(queue)
        except MQError as error:
            log.warning("%s cannot be restarted now: %s", queue, error, extra=queue_fields(queue, self.group))
            return False
        if queue in self.engine.queues:
            self.engine.seek(queue, offset)
        return True

    async def _take_part_again(self) -> None:
        if self._ordered is not None and self._locks is not None:
            await self._ordered.renew_locks(self._restart, self.positions.forget)

    async def kept(self, queue: MessageQueue, /) -> bool:
        """A queue stays ours; an ordered consumer that was cut off must have locked it again."""
        if self.positions.in_doubt(queue) and not self._is_locked_again(queue):
            await trio.lowlevel.checkpoint()
            return False
        return await super().kept(queue)

    def _is_locked_again(self, queue: MessageQueue) -> bool:
        if self._ordered is None or self._locks is None:
            return True
        return self._ordered.is_locked_since(queue, self.rejoining.doubted_s)

    # --- the end ---------------------------------------------------------------------------------------------

    async def _revoke_all(self) -> None:
        await self._call_revoked(list(self.engine.queues))

    async def _call_revoked(self, queues: Sequence[MessageQueue]) -> None:
        new = [queue for queue in queues if queue not in self._revoked_called]
        self._revoked_called.update(new)  # once, although the consumer may end during the call
        await self.call_with_queues(self.callbacks.on_revoked, new)

    def _to_release(self) -> Collection[MessageQueue]:
        leaving = self._locks.leaving if self._locks is not None else ()
        return {*self.owned_queues(), *leaving}

    def _to_commit(self, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
        return [queue for queue in queues if queue in self.engine.queues]

    @trio.lowlevel.enable_ki_protection
    async def _unlock(self, queues: Collection[MessageQueue]) -> None:
        if self._locks is None or self._ordered is None:
            return
        # A function in a thread cannot be stopped: while it runs, no other member's may; its lock expires by itself.
        if idle := sorted_queues([queue for queue in queues if not self._ordered.is_in_flight(queue)]):
            for queue in idle:
                self._ordered.remove(queue)  # or its lock could be renewed while other brokers are waited for
            await self._locks.unlock(idle, wait=True)

    def _close_connections(self) -> None:
        super()._close_connections()
        self.sender.close()

    # --- called by the rebalance -------------------------------------------------------------------------------

    async def assigned(self, queue: MessageQueue, /) -> bool:
        """Take a queue: lock it if needed, find its start, start pulling.  False: not now, ask again."""
        if self.is_silent(queue):
            await trio.lowlevel.checkpoint()
            return False
        locks = self._locks
        asked_s = trio.current_time()
        if locks is not None:
            locks.leaving.add(queue)  # until it is ours for good: a cancel may occur in between
            granted, refused = await locks.lock([queue], self.note_silent)
            if queue not in granted:
                if refused:
                    log.info("%s is locked by another member still", queue, extra=queue_fields(queue, self.group))
                locks.leaving.discard(queue)
                return False
        try:
            offset = await self.positions.start(queue)
        except MQError as error:
            self.note_silent(queue, error)
            log.warning(
                "where to start in %s is not known now: %s", queue, error, extra=queue_fields(queue, self.group)
            )
            if locks is not None:
                # The next round may find that it belongs to another member.
                await locks.unlock([queue], wait=False)
                locks.leaving.discard(queue)
            return False
        self._revoked_called.discard(queue)
        async with self.calling_assigned:
            asked_s = await self._renew_old_lock(queue, asked_s)
            await self.call_with_queues(self.callbacks.on_assigned, [queue])
        source = self.engine.start(queue, offset)
        if self._ordered is not None:
            self._ordered.add(source, asked_s)
            source.wake()
        if locks is not None:
            locks.leaving.discard(queue)
        return True

    async def _renew_old_lock(self, queue: MessageQueue, asked_s: float) -> float:
        """Lock a queue again that has waited for the callbacks of others, or its lock would expire before all are renewed.

        Returns:
            When its lock was asked for, on trio's clock.
        """
        now = trio.current_time()
        if self._locks is None or now - asked_s < VALID_S - RENEW_EVERY_S:
            return asked_s
        granted, _ = await self._locks.lock([queue])
        return now if granted else asked_s

    async def revoked(self, queues: Sequence[MessageQueue], /) -> Collection[MessageQueue]:
        """Give queues up: stop pulling, persist their offsets, unlock them, except those whose handler still runs."""
        going = queues if self._ordered is None else await self._ordered.wait_idle(queues)
        owned = [queue for queue in going if queue in self.engine.queues]
        await self._call_revoked(owned)
        for queue in owned:
            self.engine.stop(queue)
            if self._ordered is not None:
                self._ordered.remove(queue)
        with trio.move_on_after(END_TIMEOUT_S, shield=True):
            # Before the next member can read them (docs/protocol/consumer.md §11.3), even if this one ends
            # meanwhile.
            if not self.positions.at_brokers:
                with time_to_commit():
                    await at_each_broker(owned, self.end_doubt)
                    await self.positions.persist_at_once(owned)
            await at_each_broker(owned, self._hand_over)
        for queue in owned:
            self.let_go(queue)
        return going

    @trio.lowlevel.enable_ki_protection
    async def _hand_over(self, queues: Collection[MessageQueue]) -> None:
        """Let other members begin with queues of one broker, which were given up."""
        if self.positions.at_brokers:
            with time_to_commit():
                await self.end_doubt(queues)
                await self.positions.persist(queues)
        if self._locks is not None:
            # At once, even if pulled messages were not handled: no handler is running, and the next member
            # starts with them. RocketMQ's clients then keep the lock for 20 s, in which no member handles anything.
            await self._locks.unlock(queues, wait=False)

    async def topic_changed(self, topic: str, /) -> None:
        """Queues of a topic have moved: heartbeats carry a newer version of its subscription
        (docs/protocol/consumer.md §11.3)."""
        subscription = self.announced.get(topic)
        if subscription is not None and topic in self.subscriptions:
            # Brokers first: a pull with a newer version than a broker knows is refused.
            renewed = self.numbered(subscription)
            await self.announce(renewed)
            if topic in self.subscriptions:
                self._use(renewed)

    def _use(self, subscription: Subscription) -> None:
        known = self.subscriptions.get(subscription.topic)
        # Another task may have announced a newer version meanwhile.
        if known is None or known.version_ms <= subscription.version_ms:
            self.subscriptions[subscription.topic] = subscription

    # --- called for brokers and operators ----------------------------------------------------------------------

    def positions_of(self, topic: str, /) -> Mapping[MessageQueue, int]:
        """The offsets of a topic's queues."""
        self.engine.note_positions()
        return self.positions.of_topic(topic)

    def running_info(self) -> ConsumerRunningInfo:
        """This member's state as operators see it."""
        properties = self.push.properties(self.group, MODELS[self._model], self._limits) | consumer_properties(
            CONSUME_PASSIVELY, ordered=self.push.ordered, threads=self.concurrency, started_ms=self._started_ms
        )
        self.engine.note_positions()
        # Operators see wall clock times; inside, only trio's clock counts.
        zero_ms = self._client.clock() - int(trio.current_time() * 1000)
        return ConsumerRunningInfo(
            properties=properties,
            subscription_set=[each.data(self._client.routes.namespace) for each in self.subscriptions.values()],
            mq_table={
                self._client.routes.namespace.wrap_queue(queue): self._queue_info(source, zero_ms)
                for queue, source in self.engine.queues.items()
            },
            status_table={
                self._client.routes.namespace.wrap(topic): self.engine.statistics.status(topic)
                for topic in self.subscriptions
            },
        )

    def _queue_info(self, source: PulledQueue, zero_ms: int) -> ProcessQueueInfo:
        process = source.process
        first = process.first
        state = self._ordered.states.get(source.queue) if self._ordered is not None else None
        return ProcessQueueInfo(
            cached_msg_count=process.count,
            cached_msg_max_offset=process.last_offset if first is not None else 0,
            cached_msg_min_offset=first.queue_offset if first is not None else 0,
            cached_msg_size_in_mib=process.size_bytes >> 20,
            commit_offset=self.positions.get(source.queue) or 0,
            droped=process.dropped,
            last_consume_timestamp=zero_ms + int(source.consumed_s * 1000),
            last_lock_timestamp=zero_ms + int(state.locked_s * 1000) if state is not None else 0,
            last_pull_timestamp=zero_ms + int(source.pulled_s * 1000),
            locked=state.locked if state is not None else False,
        )

    async def consume_directly(self, message: bytes, broker_name: str, /) -> ConsumeMessageDirectlyResult:
        """Handle one message that an operator chose: no offset moves, nothing is sent back."""
        result = ConsumeMessageDirectlyResult(order=self.push.ordered, auto_commit=self.push.auto_commit)
        if self.handlers is None:
            result.consume_result = "CR_THROW_EXCEPTION"
            result.remark = "the consumer has no handler now; it is read by `async for`, or not yet"
            return result
        started_s = trio.current_time()
        try:
            record = RecordView(message)
            topic = record.topic
            original = record.properties.get("RETRY_TOPIC") if topic.startswith(RETRY_PREFIX) else None
            seen_as = self._client.routes.namespace.unwrap(original or topic)
            queue = MessageQueue(seen_as, broker_name, record.queue_id)
            await self.handlers.call(HeldMessage(record, queue, seen_as))
            result.consume_result = "CR_SUCCESS"
        except BodyError as error:
            result.consume_result, result.remark = "CR_THROW_EXCEPTION", str(error)
        except Exception as error:  # noqa: BLE001 - the user's code: its failure is the answer
            if later_in(error) is not None:
                result.consume_result = "CR_LATER"
            else:
                result.consume_result, result.remark = "CR_THROW_EXCEPTION", named_error(error)
        result.spent_time_mills = int((trio.current_time() - started_s) * 1000)
        return result

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int], /) -> None:
        """Move the group for an operator: its queues continue at these offsets, after 10 s for handlers to end.

        Each broker resets its own queues, and all continue together when the last of these resets ends.
        """
        self._resets += 1
        self.engine.suspend(True)
        self.rebalance.suspend()
        self.positions.forget_left(offsets)
        queues = [queue for queue in self.engine.queues if queue.topic == topic and queue in offsets]
        try:
            for queue in queues:
                source = self.engine.queues[queue]
                self.engine.note_position(source)
                self.engine.give_up(source)
            await trio.sleep(RESET_PAUSE_S)
            # Now, as Java: a round of the rebalance may have taken some since.
            owned = [queue for queue in self.engine.queues if queue.topic == topic and queue in offsets]
            for queue in owned:
                self.go_on_at(queue, offsets[queue])
            await self.positions.persist(owned)
        finally:
            self._resets -= 1
            if not self._resets:
                self.engine.suspend(False)
                self.rebalance.resume()
