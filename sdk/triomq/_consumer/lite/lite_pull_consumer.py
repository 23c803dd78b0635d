"""The lite pull consumer: messages are fetched ahead in the background, the caller polls them
(docs/protocol/consumer.md §5).

Either it subscribes to topics and shares their queues with its group, or its caller assigns queues.  Polled messages
count as consumed when the caller polls again, or commits; offsets go to the broker every five seconds.  Upstream: ``DefaultLitePullConsumer``, ``DefaultLitePullConsumerImpl``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Final, Self

import trio

from triomq._arguments.kinds import check_text
from triomq._arguments.numbers import check_wait
from triomq._cluster.broker_offsets import OFFSET_TIMEOUT_S
from triomq._consumer.assigned_queues import AssignedQueues
from triomq._consumer.group.by_broker import at_each_broker
from triomq._consumer.lite.membership import LiteMembership
from triomq._consumer.lite.options import LiteOptions
from triomq._consumer.membership import ClientResources, GroupOptions
from triomq._message.message import MessageQueue, check_name, check_offset, check_queue
from triomq._message.received import ReceivedMessage
from triomq._message.subscription import ALL, ClassFilter, Sql, make_subscription
from triomq._transport.links import NO_ANSWER
from triomq.errors import ClientClosed, InvalidCall, MQError
from triomq_protocol.names import MAX_TOPIC_BYTES

POLL_S: Final = 5.0
"""How long a poll waits for messages (``pollTimeoutMillis``)."""


class LitePullConsumer(AssignedQueues):
    """Polls messages of one group; created by ``client.lite_pull_consumer(group)``, used in ``async with``.

    ::

        async with client.lite_pull_consumer("readers") as consumer:
            await consumer.subscribe("orders", "new || paid")
            while batch := await consumer.poll():
                ...
    """

    _member: LiteMembership
    group: str
    """The group's name as brokers know it, with the namespace's prefix."""

    def __init__(
        self,
        client: ClientResources,
        options: GroupOptions,
        lite: LiteOptions,
        *,
        left: Callable[[], object],
    ) -> None:
        self.group = options.group
        self._route_wait = client.route_wait
        self._member = LiteMembership(client, options, lite, left=left)
        # One at a time: two at once would both take a queue, and deliver each of its messages twice.
        self._assigning = trio.Lock()

    @property
    def auto_commit(self) -> bool:
        """Whether polled messages are committed without a call of :meth:`commit`."""
        return self._member.auto_commit

    # --- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the consumer; ``async with`` and every other method do this automatically.

        Raises:
            ClientClosed: the consumer is closed.
        """
        if not self._member.started:
            await self._member.start()

    async def aclose(self) -> None:
        """Stop pulling, commit the messages polled before the last poll (with auto-commit), and leave the group.

        Raises:
            InvalidCall: a callback of this consumer has called it, and would wait for itself.
        """
        if self._member.closed:
            await trio.lowlevel.checkpoint()
            return
        self._refuse_callbacks("aclose()")
        await self._member.close(math.inf)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._member.finish_polled()  # a block that ends without an error is done with the last batch, too
        await self.aclose()
        if kind is None and self._member.failure is not None:
            raise self._member.failure

    # --- what is pulled --------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, expression: str | Sql | ClassFilter = ALL) -> None:
        """Share a topic's queues with the group.

        Args:
            topic: its name.
            expression: ``"a || b"``, a :class:`triomq.Sql`; default: every message.

        Raises:
            InvalidCall: topic or expression cannot be used, or queues were assigned before.
        """
        check_name(topic, "topic", MAX_TOPIC_BYTES)
        self._choose_mode(assigns=False)
        subscription = make_subscription(topic, expression, self._member.clock())
        await self.start()
        await self._member.check_filter(subscription)
        subscription = self._member.numbered(subscription)
        self._member.use(subscription)
        await self._member.announce(subscription, look_up=True)
        self._member.rebalance.wake()

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic, and give its queues up."""
        self._check_open()
        check_text("the topic", topic)
        self._member.subscriptions.pop(topic, None)
        await self._member.withdraw(topic, look_up=True)
        self._member.rebalance.wake()

    async def assign(self, queues: Iterable[MessageQueue], expression: str | Sql | ClassFilter = ALL) -> None:
        """Pull exactly these queues, regardless of other members; all other queues are given up.

        A second call waits for the end of the first one.

        Args:
            queues: the queues; ``fetch_queues`` of a pull consumer lists those of a topic.
            expression: chooses among their messages; as for :meth:`subscribe`.

        Raises:
            InvalidCall: a topic was subscribed before, or a callback of this consumer has called it.
            ClientClosed: the consumer is closed, perhaps meanwhile.
            MQError: the start in some queues cannot be determined now; the others are pulled.
        """
        self._choose_mode(assigns=True)
        self._refuse_callbacks("assign()")
        if not isinstance(queues, Iterable):
            raise InvalidCall(f"the queues are {type(queues).__name__}, not a list of MessageQueue")
        given = list(queues)
        for queue in given:
            check_queue(queue)
        wanted = dict.fromkeys(given)  # in order, each once
        await self.start()
        async with self._assigning:
            self._check_open()  # it may have been closed meanwhile
            now = self._member.clock()
            for topic in sorted({queue.topic for queue in wanted}):
                subscription = make_subscription(topic, expression, now)
                await self._member.check_filter(subscription)
                self._member.use(subscription)
            self._check_open()  # the close itself calls on_revoked
            await self._member.revoked([queue for queue in self._member.engine.queues if queue not in wanted])
            for topic, count in Counter(queue.topic for queue in wanted).items():
                self._member.expect(topic, count)
            await self._take([queue for queue in wanted if queue not in self._member.engine.queues])

    async def _take(self, queues: Collection[MessageQueue]) -> None:
        """Start fetching queues; one that cannot be pulled now keeps none of the others back."""
        failed: list[MQError] = []

        @trio.lowlevel.enable_ki_protection
        async def take_at_one_broker(theirs: Collection[MessageQueue]) -> None:
            for queue in theirs:
                try:
                    await self._member.take(queue)
                except MQError as error:
                    failed.append(error)
                    if isinstance(error, (*NO_ANSWER, ClientClosed)):
                        return  # each would take the whole time limit again

        await at_each_broker(queues, take_at_one_broker)
        if failed:
            raise next((error for error in failed if isinstance(error, ClientClosed)), failed[0])

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are pulled now, sorted."""
        return self._assigned()

    # --- messages --------------------------------------------------------------------------------------------

    async def poll(self, wait_s: float = POLL_S) -> list[ReceivedMessage]:
        """The next messages, as they were fetched from one queue; empty if none arrived in time.

        The messages of all previous polls now count as consumed, also those that another task has polled and still
        processes. If several tasks poll, take ``auto_commit=False``, and commit by offset what is done.

        Args:
            wait_s: how many seconds to wait for the first message.

        Raises:
            ClientClosed: the consumer is closed.
            OffsetIllegal: a broker does not have the offset to be pulled, and the policy is ``"raise"``.
        """
        if type(wait_s) is not float or not wait_s >= 0:
            # The call alone costs a hundredth of a poll.
            check_wait(wait_s)
        await self.start()
        self._member.finish_polled()
        batch = await self._member.messages.batch(wait_s)
        self._check_open()
        self._member.note_polled(batch)
        return batch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message; the previous one now counts as consumed."""
        try:
            await self.start()
            self._member.finish_polled()
            message = await self._member.messages.message()
        except ClientClosed:
            raise StopAsyncIteration from None
        self._member.note_polled((message,))
        return message

    # --- offsets ---------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit now: everything that was polled, or the given offsets.

        An offset of a queue that is not, or no longer, this member's is refused with the event ``offset_refused``,
        since another member may be further; so is one lower than another member has committed while this one was cut
        off. In ``on_revoked`` the queue still belongs to this member, also while the consumer closes.

        Args:
            offsets: queue -> the offset of its next message, forwards or back.

        Raises:
            InvalidCall: an offset is negative.
            MQError: some may not be stored.
        """
        self._member.check_commits()
        if offsets is None:
            self._member.finish_polled()
            await self._commit(self._member.queues_to_commit())
            return
        if not isinstance(offsets, Mapping):
            raise InvalidCall(f"the offsets are {type(offsets).__name__}, not a mapping of queue to offset")
        for queue, offset in offsets.items():
            check_queue(queue)
            check_offset(offset)
        positions = self._member.positions
        await self._commit([queue for queue, offset in offsets.items() if positions.commit_at(queue, offset)])

    async def _commit(self, queues: Collection[MessageQueue]) -> None:
        # If one broker must be waited for, all are repeated: committing an offset twice does no harm.
        await self._route_wait.until_there(
            lambda: self._member.positions.commit(queues), OFFSET_TIMEOUT_S, queue=next(iter(queues), None)
        )

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset, or None if it has none."""
        self._member.check_commits()
        check_queue(queue)
        return await self._member.positions.committed(queue)

    def position(self, queue: MessageQueue) -> int:
        """The offset after the last consumed message."""
        self._own([queue])
        return self._member.position(queue)

    # --- small things ----------------------------------------------------------------------------------------

    def _choose_mode(self, *, assigns: bool) -> None:
        self._check_open()
        if self._member.assigns is not None and self._member.assigns != assigns:
            raise InvalidCall("subscribe and assign exclude each other; use two consumers")
        self._member.assigns = assigns

    def _check_open(self) -> None:
        self._member.check_open()
