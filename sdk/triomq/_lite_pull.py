"""The lite pull consumer: messages are fetched ahead in the background, the caller polls them (consumer.md §5).

Either it subscribes topics and shares their queues with its group, or its caller assigns queues.  What was
polled counts as consumed when the caller comes back for more, or commits; offsets go to the broker every five
seconds.  Upstream: ``DefaultLitePullConsumer``, ``DefaultLitePullConsumerImpl``.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Final, Self

import trio

from triomq._client_requests import consumer_properties
from triomq._lite_parts import LiteParts
from triomq._message import MessageQueue
from triomq._polled import PolledMessages
from triomq._positions import Hear, time_at_end
from triomq._process_queue import HeldMessage
from triomq._pull_engine import PulledQueue, PullEngine
from triomq._received import ReceivedMessage
from triomq._subscription import ALL, ClassFilter, Sql, Subscription, make_subscription
from triomq.errors import ClientClosed, InvalidCall, MQError
from triomq_protocol.requests import ConsumeMessageDirectlyResult, ConsumerRunningInfo

log = logging.getLogger("triomq.consumer")

POLL_S: Final = 5.0
"""How long a poll waits for messages (``pollTimeoutMillis``)."""


class LitePullConsumer:
    """Polls messages of one group; handed out by ``client.lite_pull_consumer(group)``, used in ``async with``.

    ::

        async with client.lite_pull_consumer("readers") as consumer:
            await consumer.subscribe("orders", "new || paid")
            while batch := await consumer.poll():
                ...

    Args:
        group: consumer group.
        parts: what it stands on.
    """

    def __init__(self, group: str, parts: LiteParts) -> None:
        self.group = group
        self._parts = parts
        self._positions = parts.positions
        self._subscriptions: dict[str, Subscription] = {}
        self._assigns: bool | None = None
        self._messages = PolledMessages(self._check_open)
        self._scope = trio.CancelScope()
        self._starting = trio.Lock()
        self._started = False
        self._closed = False
        self._holding_back = False
        self._ended = trio.Event()
        self._engine = PullEngine(
            puller=parts.puller,
            positions=parts.positions,
            subscription=self._subscriptions.get,
            sink=self,
            settings=parts.settings,
            beat=parts.beat,
            held_back=self._holds_too_much,
        )
        self._rebalance = parts.make_rebalance(self, self._shared_topics)

    @property
    def commits_by_itself(self) -> bool:
        """Whether what was polled is committed without being asked."""
        return self._parts.auto_commit

    # --- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin; ``async with`` and every other method do it by themselves."""
        if self._started:
            return
        async with self._starting:
            self._check_open()
            if not self._started:
                await self._parts.start_task(self._run)
                self._started = True

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._engine.run)
                    nursery.start_soon(self._rebalance.run)
                    if self._parts.auto_commit:
                        nursery.start_soon(self._positions.keep_persisting, self._noted_queues)
                    task_status.started()
        finally:
            self._ended.set()

    async def aclose(self) -> None:
        """Pull no more, commit what was polled before the last poll (with auto-commit), leave the group."""
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        self._messages.wake()
        self._rebalance.suspend()
        self._engine.stop_pulling()
        queues = list(self._engine.queues)
        try:
            with time_at_end():
                await self._hear(self._parts.on_revoked, queues)
        finally:
            with trio.CancelScope(shield=True):
                if self._parts.auto_commit:
                    self._engine.note_positions()
                    await self._positions.persist_at_end(queues)
                await self._parts.leave()
                self._scope.cancel()
                if self._started:
                    await self._ended.wait()
            self._parts.puller.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish_polled()  # whoever leaves the block in peace is done with the last batch, too
        await self.aclose()

    # --- what is pulled --------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, expression: str | Sql | ClassFilter = ALL) -> None:
        """Share a topic's queues with the group.

        Args:
            topic: its name.
            expression: ``"a || b"``, a :class:`triomq.Sql`; default: every message.

        Raises:
            InvalidCall: the expression cannot be used, or queues were assigned before.
        """
        self._choose_mode(assigns=False)
        subscription = make_subscription(topic, expression, self._parts.clock())
        await self.start()
        await self._parts.check_filter(subscription)
        known = self._subscriptions.get(topic)
        self._subscriptions[topic] = subscription
        await self._parts.tell(self._subscriptions.values())
        if known is not None and known.expression != subscription.expression:
            # What was fetched ahead was chosen by the old expression.
            for queue in [queue for queue in self._engine.queues if queue.topic == topic]:
                self._engine.seek(queue, self._position(queue))
        self._rebalance.wake()

    async def unsubscribe(self, topic: str) -> None:
        """Give a topic's queues back."""
        self._check_open()
        self._subscriptions.pop(topic, None)
        await self._parts.tell(self._subscriptions.values())
        self._rebalance.wake()

    async def assign(self, queues: Iterable[MessageQueue], expression: str | Sql | ClassFilter = ALL) -> None:
        """Pull exactly these queues, whoever else there is in the group; the others are given up.

        Args:
            queues: which; ``fetch_queues`` of a pull consumer tells a topic's.
            expression: what of them.

        Raises:
            InvalidCall: a topic was subscribed before.
            MQError: where to start in a queue cannot be told now.
        """
        self._choose_mode(assigns=True)
        wanted = list(dict.fromkeys(queues))
        for queue in wanted:
            if not isinstance(queue, MessageQueue):
                raise InvalidCall(f"the queue is {type(queue).__name__}, not MessageQueue")
        await self.start()
        now = self._parts.clock()
        for topic in sorted({queue.topic for queue in wanted}):
            subscription = make_subscription(topic, expression, now)
            await self._parts.check_filter(subscription)
            self._subscriptions[topic] = subscription
        for queue in [queue for queue in self._engine.queues if queue not in wanted]:
            await self.revoked(queue)
        for queue in wanted:
            if queue not in self._engine.queues:
                await self._take(queue)

    def assignment(self) -> list[MessageQueue]:
        """The queues that are pulled now, sorted."""
        return sorted(self._engine.queues)

    def pause(self, *queues: MessageQueue) -> None:
        """Fetch these queues no further; what is fetched already is still polled."""
        for queue in self._own(queues):
            self._engine.pause(queue)

    def resume(self, *queues: MessageQueue) -> None:
        """Fetch them again."""
        for queue in self._own(queues):
            self._engine.resume(queue)

    # --- messages --------------------------------------------------------------------------------------------

    async def poll(self, wait_s: float = POLL_S) -> list[ReceivedMessage]:
        """The next messages, as they were fetched from one queue; none when none came in time.

        What the poll before gave out counts as consumed now.

        Args:
            wait_s: how long to wait for the first message.

        Raises:
            ClientClosed: the consumer is closed.
            OffsetIllegal: an offset is not there, and the policy is to raise.
        """
        if wait_s < 0:
            raise InvalidCall(f"wait_s is {wait_s}, not at least 0")
        await self.start()
        self._finish_polled()
        batch = await self._messages.batch(wait_s)
        self._check_open()
        return batch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message; the one before counts as consumed."""
        try:
            await self.start()
            self._finish_polled()
            return await self._messages.message()
        except ClientClosed:
            raise StopAsyncIteration from None

    def _finish_polled(self) -> None:
        self._messages.finish()
        self._fetch_on()

    def _fetch_on(self) -> None:
        if self._holding_back and self._held() <= self._parts.held_max:
            self._holding_back = False
            self._engine.nudge()

    # --- offsets ---------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit now: everything that was given out, or these offsets.

        Raises:
            InvalidCall: an offset is negative.
            MQError: some may not be kept.
        """
        self._check_open()
        if offsets is None:
            self._finish_polled()
            self._engine.note_positions()
            await self._positions.commit(list(self._engine.queues))
            return
        for queue, offset in offsets.items():
            if offset < 0:
                raise InvalidCall(f"the offset is {offset}, not at least 0")
            self._positions.update(queue, offset, increase_only=False)
        await self._positions.commit(list(offsets))

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset, or None when it has none."""
        self._check_open()
        return await self._positions.committed(queue)

    def position(self, queue: MessageQueue) -> int:
        """The offset behind the last message that was consumed."""
        self._own([queue])
        return self._position(queue)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on elsewhere in an assigned queue; what was fetched is given up.

        Raises:
            InvalidCall: the queue is not assigned, or has no such offset.
        """
        self._own([queue])
        low, high = await self._parts.bounds.min_offset(queue), await self._parts.bounds.max_offset(queue)
        if not low <= offset <= high:
            raise InvalidCall(f"{queue} has no offset {offset}, only {low} to {high}")
        self._go_to(queue, offset)

    async def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Go to the queues' first messages; without queues, of all that are assigned."""
        for queue in self._own(queues or self.assignment()):
            self._go_to(queue, await self._parts.bounds.min_offset(queue))

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Go behind the queues' last messages."""
        for queue in self._own(queues or self.assignment()):
            self._go_to(queue, await self._parts.bounds.max_offset(queue))

    async def seek_to_time(self, moment: datetime | int, *queues: MessageQueue) -> None:
        """Go to the first message stored at a time (int: ms since 1970) or later."""
        for queue in self._own(queues or self.assignment()):
            self._go_to(queue, await self._positions.offset_at(queue, moment))

    def _go_to(self, queue: MessageQueue, offset: int) -> None:
        if queue not in self._engine.queues:
            raise InvalidCall(f"{queue} was given up meanwhile; seek again when it is assigned")
        self._positions.update(queue, offset, increase_only=False)
        self._engine.seek(queue, offset)
        self._fetch_on()

    def _position(self, queue: MessageQueue) -> int:
        source = self._engine.queues[queue]
        point = source.process.commit_point
        if point is not None:
            return point
        known = self._positions.get(queue)
        return known if known is not None else source.next_offset

    # --- what the rebalance asks -----------------------------------------------------------------------------

    async def assigned(self, queue: MessageQueue, /) -> bool:
        """Take a queue."""
        try:
            await self._take(queue)
        except MQError as error:
            log.warning("%s cannot be pulled yet: %s", queue, error.reason)
            return False
        return True

    async def _take(self, queue: MessageQueue) -> None:
        offset = await self._positions.start(queue)
        await self._hear(self._parts.on_assigned, [queue])
        self._engine.start(queue, offset)

    async def revoked(self, queue: MessageQueue, /) -> bool:
        """Give a queue up."""
        # First nothing more is given out, so that a slow on_revoked delays nobody's messages but these.
        self._engine.stop(queue)
        self._fetch_on()
        await self._hear(self._parts.on_revoked, [queue])
        if self._parts.auto_commit:
            await self._positions.persist([queue])
        self._positions.forget(queue)
        return True

    async def topic_changed(self, _topic: str, /) -> None:
        """Nothing to do: pulls carry their expression."""

    def is_stuck(self, _queue: MessageQueue, /) -> bool:
        """Never: a queue's task ends with the consumer alone."""
        return False

    # --- what the engine tells -------------------------------------------------------------------------------

    def pulled(self, _source: PulledQueue, messages: list[HeldMessage]) -> None:
        """New messages."""
        self._messages.add(messages)

    def restarted(self, _source: PulledQueue) -> None:
        """Messages that were given up are passed over when their turn comes."""

    def failed(self, error: MQError) -> None:
        """The next poll raises it."""
        self._messages.fail(error)

    # --- what operators ask ----------------------------------------------------------------------------------

    def positions_of(self, topic: str, /) -> dict[MessageQueue, int]:
        """Where it stands in a topic."""
        return {queue: self._position(queue) for queue in self._engine.queues if queue.topic == topic}

    def running_info(self) -> ConsumerRunningInfo:
        """Parameters and subscriptions, as upstream's lite consumers tell."""
        return ConsumerRunningInfo(
            properties=consumer_properties("CONSUME_ACTIVELY")
            | {"autoCommit": str(self._parts.auto_commit).lower(), "pullThresholdForAll": str(self._parts.held_max)},
            subscription_set=[each.data() for each in self._subscriptions.values()],
        )

    def wake(self) -> None:
        """The group's members have changed."""
        self._rebalance.wake()

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int], /) -> None:
        """An operator set offsets: go there. Java's lite consumers overlook it until they restart."""
        for queue in [queue for queue in self._engine.queues if queue.topic == topic and queue in offsets]:
            await self._positions.reset(queue, offsets[queue])
            if queue in self._engine.queues:
                self._engine.seek(queue, offsets[queue])

    async def consume_directly(self, _message: bytes, _broker_name: str, /) -> ConsumeMessageDirectlyResult:
        """There is no handler."""
        await trio.lowlevel.checkpoint()
        return ConsumeMessageDirectlyResult(consume_result="CR_RETURN_NULL", remark="it polls and has no handler")

    # --- small things ----------------------------------------------------------------------------------------

    def _shared_topics(self) -> Collection[str]:
        return () if self._assigns else self._subscriptions.keys()

    def _noted_queues(self) -> list[MessageQueue]:
        self._engine.note_positions()
        return list(self._engine.queues)

    def _held(self) -> int:
        return sum(source.process.count for source in self._engine.queues.values())

    def _holds_too_much(self, _source: PulledQueue) -> bool:
        if self._held() <= self._parts.held_max:
            return False
        self._holding_back = True
        return True

    def _own(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        self._check_open()
        for queue in (found := list(queues)):
            if queue not in self._engine.queues:
                raise InvalidCall(f"{queue} is not assigned to this consumer; assignment() tells which are")
        return found

    def _choose_mode(self, *, assigns: bool) -> None:
        self._check_open()
        if self._assigns is not None and self._assigns != assigns:
            raise InvalidCall("subscribe and assign exclude each other; use two consumers")
        self._assigns = assigns

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed(f"the consumer of group {self.group} is closed")

    async def _hear(self, hear: Hear | None, queues: Collection[MessageQueue]) -> None:
        if hear is None or not queues:
            return
        try:
            later = hear(queues)
            if inspect.isawaitable(later):
                await later
        except Exception:
            log.exception("%r failed for %d queues", hear, len(queues))
