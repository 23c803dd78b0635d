"""A lite pull consumer's membership: queues are taken and given up, their messages wait to be polled.

The methods for users are in ``lite_pull_consumer.py``.  Upstream: ``DefaultLitePullConsumerImpl``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import trio

from triomq._consumer.group.by_broker import at_each_broker
from triomq._consumer.group.positions import END_TIMEOUT_S
from triomq._consumer.group.process_queue import HeldMessage
from triomq._consumer.group.pull_loop import PulledQueue, PullSettings
from triomq._consumer.lite.fetched import PolledMessages
from triomq._consumer.lite.options import LiteOptions
from triomq._consumer.membership import ClientResources, GroupOptions, Membership
from triomq._consumer.puller import SUSPEND_S
from triomq._consumer.running_properties import consumer_properties
from triomq._consumer.trace import ConsumeTrace
from triomq._message.log_fields import queue_fields
from triomq._message.message import MessageQueue
from triomq._message.received import ReceivedMessage
from triomq._message.subscription import Subscription
from triomq.errors import MQError
from triomq_protocol.requests import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from triomq_protocol.requests.heartbeat import CONSUME_ACTIVELY

log = logging.getLogger("triomq.consumer")


class LiteMembership(Membership):
    """The membership of one lite pull consumer.

    Args:
        client: the client's resources.
        options: the options of all group members.
        lite: the additional options of lite pull consumers.
        left: called when it has left the group.

    Raises:
        InvalidCall: an option cannot be used.

    Attributes:
        assigns: whether the caller assigns queues; False: it subscribes to topics; None: it has done neither yet.
        messages: the fetched messages.
    """

    def __init__(
        self,
        client: ClientResources,
        options: GroupOptions,
        lite: LiteOptions,
        *,
        left: Callable[[], object],
    ) -> None:
        super().__init__(client, options, left=left, lite=True)
        self.auto_commit = lite.auto_commit
        self.assigns: bool | None = None
        self.messages = PolledMessages(self.check_open)
        self._held_max = lite.held_max
        self._trace = ConsumeTrace(lite.tracer, client.unique_keys) if lite.tracer is not None else None
        self._held = 0
        """How many messages of all queues are held: counted as they come and go, since each pull asks for it."""
        self._holding_back = False
        self._revoking: dict[MessageQueue, PulledQueue] = {}
        """The queues whose ``on_revoked`` runs: their offsets still count."""
        settings = PullSettings(max_messages=lite.batch_max, suspend_s=SUSPEND_S, lite=True, limits=options.limits)
        self.engine = self._make_engine(self, settings, self._holds_too_much)

    @property
    def clock(self) -> Callable[[], int]:
        """The wall clock in ms."""
        return self._client.clock

    def shared_topics(self) -> Collection[str]:
        """The subscribed topics; empty if queues are assigned."""
        return () if self.assigns else self.subscriptions.keys()

    def use(self, subscription: Subscription) -> None:
        """Pull a topic by this subscription; what was fetched ahead by another expression is fetched again."""
        topic = subscription.topic
        self.subscriptions[topic] = subscription
        for queue, source in list(self.engine.queues.items()):
            if (
                queue.topic == topic
                and source.call is not None
                and not subscription.chooses_as(source.call.subscription)
            ):
                self.engine.note_position(source)  # or it is lost with the messages, until the first answer
                # The caller may have committed more than what counts as consumed.
                known = self.positions.get(queue)
                self.engine.seek(queue, known if known is not None else source.next_offset)

    def position(self, queue: MessageQueue) -> int:
        """The offset after the last consumed message of an assigned queue."""
        source = self.engine.queues[queue]
        point = source.process.commit_point
        if point is not None:
            return point
        known = self.positions.get(queue)
        return known if known is not None else source.next_offset

    @property
    def shares_queues(self) -> bool:
        """Whether other members may take over this one's queues: not those that its caller has assigned."""
        return super().shares_queues and not self.assigns

    async def close(self, patience_s: float) -> None:
        """Stop pulling, give the queues up, and leave the group."""
        self.closed = True
        self.messages.wake()
        self.stop()
        await super().close(patience_s)

    # --- messages --------------------------------------------------------------------------------------------

    def finish_polled(self) -> None:
        """Mark the messages that were given out as consumed."""
        parts, ended = self.messages.finish()
        self._held -= ended
        for done in parts:
            source = self._revoking.get(done[0].queue)
            if source is not None and source.process is done[0].page.holder:
                # It was given up with its queue, before it was known to be consumed.
                self.positions.update(source.queue, done[-1].queue_offset + 1, increase_only=True)
        self._resume_fetching()

    def check_commits(self) -> None:
        """Raise unless offsets can be committed: also while the consumer closes, until it has called ``on_revoked``."""
        if self.failure is not None or self._is_leaving:
            self.check_open()

    def queues_to_commit(self) -> list[MessageQueue]:
        """The queues whose offsets are this member's, with their positions up to date."""
        return [*self.owned_queues(), *self._revoking]

    def note_polled(self, messages: Sequence[ReceivedMessage]) -> None:
        """Trace the messages that were given out."""
        if self._trace is not None:
            self._trace.polled(self.group, messages)

    def _holds_too_much(self, _source: PulledQueue) -> bool:
        if self._held <= self._held_max:
            return False
        self._holding_back = True
        return True

    def _resume_fetching(self) -> None:
        if self._holding_back and self._held <= self._held_max:
            self._holding_back = False
            self.engine.wake()

    def pulled(self, _source: PulledQueue, messages: list[HeldMessage]) -> None:
        """Take new messages of a queue."""
        self._held += len(messages)
        self.messages.add(messages)

    def given_up(self, _source: PulledQueue, count: int, _size_bytes: int) -> None:
        """Drop messages that were given up."""
        self._held -= count
        self.messages.drop_given_up()
        self._resume_fetching()

    def failed(self, error: MQError) -> None:
        """Make the next poll raise it."""
        self.messages.fail(error)

    # --- tasks and queues ------------------------------------------------------------------------------------

    def _start_tasks(self, nursery: trio.Nursery) -> None:
        to_commit = self.owned_queues if self.auto_commit else self.positions.unwritten_starts
        nursery.start_soon(self.positions.keep_persisting, to_commit)

    async def _take_part_again(self) -> None:
        """Does nothing: heartbeats suffice."""

    def _raise_to_waiters(self, error: Exception) -> None:
        self.messages.fail(error)

    async def assigned(self, queue: MessageQueue, /) -> bool:
        """Take a queue."""
        if self.is_silent(queue):
            await trio.lowlevel.checkpoint()
            return False
        try:
            await self.take(queue)
        except MQError as error:
            self.note_silent(queue, error)
            log.warning("%s cannot be pulled yet: %s", queue, error.reason, extra=queue_fields(queue, self.group))
            return False
        return True

    async def take(self, queue: MessageQueue) -> None:
        """Start fetching a queue.

        Raises:
            ClientClosed: the consumer was closed meanwhile: that does not wait for a caller who assigns queues.
            MQError: the start cannot be determined now.
        """
        offset = await self.positions.start(queue)
        async with self.calling_assigned:
            if self.assigns:
                self.check_open()
            await self.call_with_queues(self.callbacks.on_assigned, [queue])
        self.engine.start(queue, offset)

    async def revoked(self, queues: Sequence[MessageQueue], /) -> Collection[MessageQueue]:
        """Give queues up."""
        for queue in queues:
            # First, stop giving out its messages, so that a slow on_revoked delays no other queue's messages.
            source = self.engine.stop(queue)
            if source is not None:
                self._revoking[queue] = source
        try:
            with trio.move_on_after(END_TIMEOUT_S, shield=True):
                await at_each_broker(queues, self.end_doubt)
            for queue in filter(self.positions.in_doubt, queues):
                # A commit in on_revoked does not count either.
                self._revoking.pop(queue, None)
                self.let_go(queue)
            await self.call_with_queues(self.callbacks.on_revoked, queues)
        finally:
            for queue in queues:
                self._revoking.pop(queue, None)
            await self.positions.persist_at_end(self._to_commit(queues))
        for queue in queues:
            self.let_go(queue)
        return queues

    def let_go(self, queue: MessageQueue) -> None:
        """As in other consumers, but a caller who commits by hand gets what was not committed again."""
        if self.auto_commit or self.assigns:
            super().let_go(queue)
        else:
            self.positions.leave(queue, by_hand=True)

    async def topic_changed(self, _topic: str, /) -> None:
        """Nothing to do: pulls carry their expression."""

    async def _revoke_all(self) -> None:
        await self.call_with_queues(self.callbacks.on_revoked, list(self.engine.queues))

    def _to_commit(self, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
        # The next owner of a queue without an offset would begin at its end by then, and skip messages.
        return queues if self.auto_commit else self.positions.return_to_starts(queues)

    @trio.lowlevel.enable_ki_protection
    async def _unlock(self, queues: Collection[MessageQueue]) -> None:
        """Does nothing: there are no locks."""

    # --- what brokers and operators ask ----------------------------------------------------------------------

    def positions_of(self, topic: str, /) -> dict[MessageQueue, int]:
        """The positions of a topic's queues."""
        # Also of those whose `on_revoked` runs: what it commits would come too late for a member that takes them now.
        known = self.positions.of_topic(topic)
        return known | {queue: self.position(queue) for queue in self.engine.queues if queue.topic == topic}

    def running_info(self) -> ConsumerRunningInfo:
        """Parameters and subscriptions, as upstream's lite consumers report them."""
        return ConsumerRunningInfo(
            properties=consumer_properties(CONSUME_ACTIVELY)
            | {"autoCommit": str(self.auto_commit).lower(), "pullThresholdForAll": str(self._held_max)},
            subscription_set=[each.data(self._client.routes.namespace) for each in self.subscriptions.values()],
        )

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int], /) -> None:
        """Go to the offsets that an operator has set. Java's lite consumers ignore them until they restart."""
        self.positions.forget_left(offsets)
        queues = [queue for queue in self.engine.queues if queue.topic == topic and queue in offsets]
        for queue in queues:
            self.engine.note_position(self.engine.queues[queue])
            self.go_on_at(queue, offsets[queue])
        await self.positions.persist(queues)

    async def consume_directly(self, _message: bytes, _broker_name: str, /) -> ConsumeMessageDirectlyResult:
        """Answer that there is no handler."""
        await trio.lowlevel.checkpoint()
        return ConsumeMessageDirectlyResult(consume_result="CR_RETURN_NULL", remark="it polls and has no handler")
