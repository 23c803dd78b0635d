"""The pull consumer: its caller decides what to pull, and when (docs/protocol/consumer.md §2-§4).

Upstream: ``DefaultMQPullConsumer``, ``PullAPIWrapper``, ``MQAdminImpl``.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self

import trio
from cachetools import LRUCache

from triomq._arguments.kinds import check_callback, check_kind
from triomq._arguments.numbers import check_count, check_seconds
from triomq._cluster.broker_offsets import OFFSET_TIMEOUT_S, BrokerOffsets
from triomq._cluster.name_servers import API_TIMEOUT_S
from triomq._cluster.queue_bounds import QueueBounds
from triomq._cluster.replica_choice import Preference, ReadPreference, read_preference_of
from triomq._constructors import NoPublicConstructor, construct
from triomq._consumer.group.allocate import AllocateStrategy, check_strategy
from triomq._consumer.group.callbacks import (
    ConsumerCallbacks,
    ConsumerEvent,
    OnEvent,
    offset_unavailable,
    reporter,
)
from triomq._consumer.group.members import Members
from triomq._consumer.group.missing import MissingMessages
from triomq._consumer.group.pull_loop import HELD_S, empty_pause_s
from triomq._consumer.group.rebalance import Rebalance
from triomq._consumer.membership import ClientResources
from triomq._consumer.offset_store import CheckedStore, OffsetStore
from triomq._consumer.puller import SUSPEND_S, PullCall, Puller, RecordScan
from triomq._consumer.running_properties import consumer_properties
from triomq._consumer.shared_pulls import Share, SharedPulls
from triomq._error_text import shown
from triomq._message.hooks import FilterHook, PullHook, wanted_messages
from triomq._message.message import MessageQueue, check_group, check_name, check_offset, check_queue
from triomq._message.pull_result import PullResult, PullStatus
from triomq._message.subscription import Sql, Subscription, make_subscription
from triomq._transport.peer_log import PeerLog
from triomq.errors import ClientClosed, GroupNotFound, InvalidCall, RouteNotFound
from triomq_protocol.filters.sql92 import Sql92Error, parse
from triomq_protocol.names import MAX_TOPIC_BYTES
from triomq_protocol.requests import ConsumeMessageDirectlyResult, ConsumerData, ConsumerRunningInfo
from triomq_protocol.requests.heartbeat import CLUSTERING, CONSUME_ACTIVELY, CONSUME_FROM_LAST_OFFSET

log = logging.getLogger("triomq.consumer")

PULL_TIMEOUT_S: Final = 10.0
"""Seconds that a pull that does not block may take (``consumerPullTimeoutMillis``)."""

MESSAGES_MAX: Final = 2**31 - 1
"""The most messages that the request of a pull can ask for."""

FILTERS_MAX: Final = 256
"""The most parsed tag expressions that a consumer keeps."""

_QUEUES_CURE: Final = "; fetch_queues(topic) lists them"


class PullConsumer(metaclass=NoPublicConstructor):
    """Pulls messages for one consumer group; created by ``client.pull_consumer(group)``.

    Nothing is committed unless :meth:`commit` is called.

    It keeps its position in each queue that was pulled without an offset, about 150 bytes, until it is closed: dropping one
    would deliver messages again. Who pulls ever new queues gives offsets, or closes the consumer from time to time.
    """

    group: str
    """The group's name as brokers know it, with the namespace's prefix."""

    def __init__(
        self,
        client: ClientResources,
        group: str,
        *,
        offset_store: OffsetStore | None,
        read_preference: ReadPreference | str | int,
        pull_hooks: Sequence[PullHook],
        filter_hooks: Sequence[FilterHook],
        on_event: OnEvent | None,
        left: Callable[[], object],
    ) -> None:
        check_group(group)
        preference = read_preference_of(read_preference)
        check_callback("on_event", on_event, plain=True)
        given = CheckedStore(offset_store) if offset_store is not None else None
        self.group = group
        self._client = client
        self._make_puller = partial(
            Puller,
            group,
            client.routes,
            client.links,
            counters=client.counters,
            hooks=pull_hooks,
            wanted=partial(wanted_messages, tuple(filter_hooks), group) if filter_hooks else None,
            chance=client.chance,
            beat=client.heartbeats.beat,
        )
        self._puller = self._make_puller(preference=preference)
        self._pullers: dict[Preference, Puller] = {preference: self._puller}
        self._bounds = construct(QueueBounds, self._puller.brokers, client.route_wait)
        self._offsets: OffsetStore = given if given is not None else BrokerOffsets(group, self._puller.brokers)
        self._left = left
        self._positions: dict[MessageQueue, int] = {}
        self._subscriptions: LRUCache[tuple[str, str | None, str | None], Subscription] = LRUCache(FILTERS_MAX)
        self._report = reporter(on_event)
        self._missing = MissingMessages(group, client.counters, self._report)
        self._unavailable: dict[MessageQueue, int] = {}
        self._unheld: dict[MessageQueue, int] = {}
        # Queues that a share had, and that other members have now.
        self._lost: set[MessageQueue] = set()
        self._committed: dict[MessageQueue, int] = {}
        """Queue of a share -> what was committed here, unless the queue has been another member's since: a broker that is
        killed may lose it."""
        self._closed = False
        self._shares: list[Share] = []
        try:
            # Last: an argument that cannot be used leaves the group free.
            client.heartbeats.add_consumer(group, _heartbeat_data(group, unit_mode=client.unit_mode))
        except InvalidCall:
            self._puller.close()
            raise
        client.requests.consumers[group] = _PullMembership(self.positions, self._shares)

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, sorted by broker name, then by queue id.

        Raises:
            RouteNotFound: the name server does not know the topic, or none of its queues can be read.
        """
        self._check_open()
        wait = self._client.route_wait
        route = await wait.until_there(lambda: self._client.routes.for_subscribing(topic), API_TIMEOUT_S)
        if not route.subscribe_queues:
            raise RouteNotFound(f"no queue of topic {topic} can be read")
        return list(route.subscribe_queues)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int | None = None,
        *,
        tags: str | None = None,
        sql: str | None = None,
        max_messages: int = 32,
        block: bool = False,
        suspend_s: float = SUSPEND_S,
        read_preference: ReadPreference | str | int | None = None,
    ) -> PullResult:
        """Pull one queue once.

        Args:
            queue: the queue.
            offset: where to start; by default at this consumer's own position, which then moves to the result's
                ``next_offset``. At first that is the group's committed offset, or the queue's first message.
            tags: ``"a || b"``; None and ``"*"`` mean all.
            sql: an SQL92 expression over properties, instead of tags.
            max_messages: the most messages to return.
            block: whether the broker holds the request until a message arrives. A slave that lacks the offset is
                pulled again with growing pauses instead; a broker that does not hold the request is pulled with growing
                pauses by repeated calls.
            suspend_s: seconds that the broker holds it; finite. An earlier deadline of the caller shortens it.
            read_preference: which brokers to pull from this time; by default the consumer's own preference.

        Returns:
            The result, whatever its status; false when it holds no message. A slave that does not have the offset, and
            whose master cannot be asked, counts as one without a new message; ``on_event`` gets ``offset_unavailable``.

        Raises:
            InvalidCall: an argument is out of range, or the SQL92 expression cannot be parsed.
            MQError: no broker of the queue could answer; all attempts are listed.

        When the broker that was asked cannot be reached, the next one of the same name is asked at once.
        Cancelling leaves the position where it was.
        """
        self._check_open()
        check_queue(queue, _QUEUES_CURE)
        check_count("max_messages", max_messages, 1, MESSAGES_MAX)
        if offset is not None:
            check_offset(offset)
        if type(suspend_s) is not float or not 0 <= suspend_s < math.inf:
            # The calls alone cost a hundredth of a pull.
            check_seconds("suspend_s", suspend_s, zero=True)
            if math.isinf(suspend_s):
                raise InvalidCall(
                    f"suspend_s is {shown(suspend_s)}, not a number of seconds, 0 or more, for which a broker may hold the pull"
                )
        wanted = self._subscription(queue.topic, tags, sql)
        self._lost.discard(queue)  # a caller who pulls a queue that a share has lost is responsible for it
        start = offset if offset is not None else await self.position(queue)
        suspend_ms = self._suspend_ms(suspend_s) if block else 0
        puller = self._puller if read_preference is None else self._puller_for(read_preference)
        call = PullCall(
            queue,
            start,
            max_messages=max_messages,
            suspend_ms=suspend_ms,
            subscription=wanted,
            # A pull consumer's heartbeat carries no subscription (docs/protocol/consumer.md §4).
            sub_version=0,
            timeout_s=PULL_TIMEOUT_S,
        )
        wait = self._client.route_wait
        deadline_s = trio.current_time() + suspend_ms / 1000
        for number in itertools.count(1):
            started_s = trio.current_time()
            result = await wait.until_there(lambda: puller.pull(call), PULL_TIMEOUT_S, queue=queue)
            self._note_availability(start, result)
            if result.missing or self._missing:
                self._missing.note(result, start)
            left_s = deadline_s - trio.current_time()
            if not result.lacks_offset or left_s <= 0:
                break
            # Brokers do not hold such pulls.
            await trio.sleep(min(empty_pause_s(number), left_s))
            call.suspend_ms = max(1, int((deadline_s - trio.current_time()) * 1000))
        if block:
            await self._pause_if_unheld(result, started_s, deadline_s)
        # Unless a seek has moved it meanwhile, or a share has lost the queue, even if it has it again.
        if offset is None and queue not in self._lost and self._positions.get(queue) == start:
            self._positions[queue] = result.next_offset
        return result

    def share(
        self,
        *topics: str,
        tags: str | None = None,
        sql: str | None = None,
        max_messages: int = 32,
        interval_s: float = 0.2,
        callbacks: ConsumerCallbacks | None = None,
        allocate: AllocateStrategy | None = None,
    ) -> SharedPulls:
        """Share the topics' queues with the group's other members, and pull this member's in turn.

        ::

            async with consumer.share("orders") as pulls:
                async for result in pulls:
                    for message in result:
                        ...
                    await consumer.commit(result.queue)

        Args:
            topics: at least one.
            tags: as for :meth:`pull`.
            sql: as for :meth:`pull`.
            max_messages: the most messages per pull.
            interval_s: seconds until a queue without a new message is pulled again (``pullNextDelayTimeMillis``).
            callbacks: called with queues before they are pulled, and before they are given up; without ``on_event``, which
                belongs to :meth:`triomq.Client.pull_consumer`.
            allocate: how queues are assigned to members; the same for all members. Default ``AVG``, as in Java.

        Returns:
            An async context manager; inside it an async iterator of results that have messages. A queue that is assigned
            begins at the group's committed offset.

        Raises:
            InvalidCall: an argument cannot be used.
        """
        self._check_open()
        check_seconds("interval_s", interval_s)
        check_count("max_messages", max_messages, 1, MESSAGES_MAX)
        if callbacks is not None:
            check_kind("callbacks", callbacks, ConsumerCallbacks)
        if not topics:
            raise InvalidCall("share needs a topic")
        if callbacks is not None and callbacks.on_event is not None:
            raise InvalidCall(
                "the events of a share go to client.pull_consumer(group, on_event=...): give on_event there"
            )
        for topic in topics:
            check_name(topic, "topic", MAX_TOPIC_BYTES)
            self._subscription(topic, tags, sql)
        client = self._client
        members = Members(self.group, client.routes, client.links, client.chance)

        check_strategy(allocate)

        def share_out(assignee: Share) -> Rebalance:
            return Rebalance(
                self.group,
                client.client_id,
                assignee,
                topics=lambda: topics,
                routes=client.routes,
                members=members,
                beat=client.heartbeats.beat,
                strategy=allocate,
                report=self._report,
            )

        share = Share(
            pull=partial(self.pull, tags=tags, sql=sql, max_messages=max_messages),
            ask=partial(self._ask, tags=tags, sql=sql),
            forget=self._gain,
            lose=self._lose,
            left_to_others=self._leave_to_others,
            share_out=share_out,
            spawn=client.nursery.start_soon,
            interval_s=interval_s,
            callbacks=callbacks if callbacks is not None else ConsumerCallbacks(),
            begun=lambda: self._begin(share),
            ended=lambda: self._end(share),
        )
        return construct(SharedPulls, share)

    async def _ask(self, queue: MessageQueue, tags: str | None, sql: str | None) -> None:
        """Pull a queue to see whether its broker answers; the result is dropped, and the position stays."""
        known = self._positions.get(queue)
        call = PullCall(
            queue,
            known or 0,
            max_messages=1,
            suspend_ms=0,
            subscription=self._subscription(queue.topic, tags, sql),
            sub_version=0,
            timeout_s=PULL_TIMEOUT_S,
        )
        result = await self._puller.pull(call)
        # Except an operator's reset: the broker answers with it only once.
        if result.was_reset and queue not in self._lost and self._positions.get(queue) == known:
            self._positions[queue] = result.next_offset

    def _begin(self, share: Share) -> None:
        self._check_open()
        self._shares.append(share)

    def _end(self, share: Share) -> None:
        self._shares.remove(share)
        self._committed.clear()

    def _leave_to_others(self, queues: Collection[MessageQueue]) -> None:
        for queue in self._committed.keys() & set(queues):
            del self._committed[queue]

    def _gain(self, queue: MessageQueue) -> None:
        self._positions.pop(queue, None)
        self._lost.discard(queue)

    def _lose(self, queue: MessageQueue) -> None:
        self._positions.pop(queue, None)
        self._lost.add(queue)

    async def position(self, queue: MessageQueue) -> int:
        """Where the next pull without an offset starts.

        Initially that is the group's committed offset, or else the queue's first message.
        """
        check_queue(queue, _QUEUES_CURE)
        position = self._positions.get(queue)
        if position is None:
            committed = await self.committed(queue)
            known = self._committed.get(queue, 0)
            # A broker may have come back without its messages, too.
            if known > (committed or 0) and known <= await self.max_offset(queue, only_master=True):
                committed = known
            found = committed if committed is not None else await self.min_offset(queue)
            position = self._positions.setdefault(queue, found)  # a seek may have come meanwhile
        return position

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Set this consumer's position in a queue: where its next pull without an offset starts.

        A pull that is under way in another task returns its result, and leaves the new position.

        Raises:
            InvalidCall: an argument is not a queue, or not an offset.
        """
        check_queue(queue, _QUEUES_CURE)
        check_offset(offset)
        self._positions[queue] = offset

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset, or None if it has none."""
        self._check_open()
        check_queue(queue, _QUEUES_CURE)
        wait = self._client.route_wait
        return await wait.until_there(lambda: self._offsets.read(queue), OFFSET_TIMEOUT_S, queue=queue)

    async def commit(self, queue: MessageQueue, offset: int | None = None) -> None:
        """Commit an offset for the group; by default this consumer's position.

        A queue that a :meth:`share` had, and another member has now, is refused with the event ``offset_refused``, since
        that member may be further. In ``on_revoked`` it still belongs to this member.

        Raises:
            InvalidCall: no offset is given and nothing was pulled yet.
            MQError: it may not be stored.
        """
        self._check_open()
        check_queue(queue, _QUEUES_CURE)
        if offset is not None:
            check_offset(offset)
        if queue in self._lost:
            await trio.lowlevel.checkpoint()
            text = f"{queue}: committing is refused, since the queue is another member's now"
            self._report(ConsumerEvent("offset_refused", text, queue))
            return
        if offset is None:
            offset = self._positions.get(queue)
            if offset is None:
                raise InvalidCall(f"nothing was pulled from {queue} yet, so there is no position to commit")
        offsets, wait = {queue: offset}, self._client.route_wait
        await wait.until_there(lambda: self._commit(offsets), OFFSET_TIMEOUT_S, queue=queue)
        if any(queue in share for share in self._shares):
            self._committed[queue] = offset

    async def _commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        try:
            await self._offsets.commit(offsets)
        except GroupNotFound:
            # A broker of 5 accepts no offset of a group that it does not know: a heartbeat makes it known, and
            # the first one may still be on its way.
            await self._client.heartbeats.beat()
            await self._offsets.commit(offsets)

    async def min_offset(self, queue: MessageQueue, *, only_master: bool = False) -> int:
        """The offset of the queue's first message.

        Args:
            queue: the queue.
            only_master: do not ask a slave if the master cannot be reached; it may hold other messages.
        """
        self._check_open()
        return await self._bounds.min_offset(queue, only_master=only_master)

    async def max_offset(self, queue: MessageQueue, *, only_master: bool = False) -> int:
        """The offset after the queue's last message.

        Args:
            queue: the queue.
            only_master: do not ask a slave if the master cannot be reached; its queue may end earlier.
        """
        self._check_open()
        return await self._bounds.max_offset(queue, only_master=only_master)

    async def offset_by_time(self, queue: MessageQueue, time_ms: int) -> int:
        """The offset of the message stored nearest to a time, in ms since 1970, within the queue's range."""
        self._check_open()
        return await self._bounds.offset_by_time(queue, time_ms)

    async def earliest_stored_ms(self, queue: MessageQueue) -> int | None:
        """When the queue's first message was stored, in ms since 1970; None if the queue is empty."""
        self._check_open()
        return await self._bounds.earliest_stored_ms(queue)

    def positions(self, topic: str | None = None) -> Mapping[MessageQueue, int]:
        """This consumer's positions, in a topic's queues or in all."""
        return {queue: offset for queue, offset in self._positions.items() if topic is None or queue.topic == topic}

    async def aclose(self) -> None:
        """Stop pulling and unregister the group; nothing is committed."""
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        for share in self._shares:
            share.close(ClientClosed(f"the consumer of group {self.group} is closed"))
        for puller in self._pullers.values():
            puller.close()
        del self._client.requests.consumers[self.group]
        self._left()
        with trio.CancelScope(shield=True):
            await self._client.heartbeats.remove_consumer(self.group)

    async def __aenter__(self) -> Self:
        # Shielded: a task that is cancelled here never reaches the end of the block, and would not leave the group.
        await trio.lowlevel.cancel_shielded_checkpoint()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- arguments -------------------------------------------------------------------------------------------

    def _subscription(self, topic: str, tags: str | None, sql: str | None) -> Subscription:
        if tags is not None and sql is not None:
            raise InvalidCall("give either tags= or sql=; an expression can test the tag: sql=\"TAGS = 'a'\"")
        if tags is not None and not isinstance(tags, str):
            raise InvalidCall(f"the tags are {type(tags).__name__}, not text like 'a || b'")
        if sql is not None and not isinstance(sql, str):
            raise InvalidCall(f"the SQL92 expression is {type(sql).__name__}, not text like 'amount > 5'")
        found = self._subscriptions.get((topic, tags, sql))
        if found is None:
            found = make_subscription(topic, _checked(sql) if sql is not None else tags, 0)
            self._subscriptions[topic, tags, sql] = found
        return found

    def _puller_for(self, read_preference: ReadPreference | str | int) -> Puller:
        # One for each preference: brokers' suggestions for one do not apply to another.
        preference = read_preference_of(read_preference)
        puller = self._pullers.get(preference)
        if puller is None:
            puller = self._pullers[preference] = self._make_puller(preference=preference)
        return puller

    async def _pull_run(
        self,
        queue: MessageQueue,
        offset: int,
        go_on: Callable[[PullResult], int],
        *,
        tags: str | None = None,
        sql: str | None = None,
        max_messages: int,
    ) -> PullResult:
        """Pull as :meth:`pull` does, and repeat as long as ``go_on`` wants more, without a switch of tasks in between.

        Args:
            queue: the queue.
            offset: where to start.
            go_on: a plain, quick function; takes a result with messages, and returns how many to pull next, 0 for none.
                It does not get the results after which a task has to decide, and none if there are hooks, which see all.
            tags: as for :meth:`pull`.
            sql: as for :meth:`pull`.
            max_messages: the most messages of the first pull.

        Returns:
            The last result; ``taken`` states whether ``go_on`` received it.

        Raises:
            MQError: no broker of the queue could answer; earlier results, passed to ``go_on``, are valid.
        """
        self._check_open()
        call = PullCall(
            queue,
            offset,
            max_messages=max_messages,
            suspend_ms=0,
            subscription=self._subscription(queue.topic, tags, sql),
            sub_version=0,
            timeout_s=PULL_TIMEOUT_S,
            # A caller that repeats pulls has several under way, so that neither side is idle; what counts is the work.
            at_once=False,
        )

        def goes_on(result: PullResult) -> bool:
            wanted = go_on(result)
            call.offset = result.next_offset
            call.max_messages = wanted or call.max_messages
            return wanted > 0

        result = await self._client.route_wait.until_there(
            lambda: self._puller.pull(call, goes_on), PULL_TIMEOUT_S, queue=queue
        )
        self._note_availability(call.offset, result)
        return result

    def _scan_with(self, scan: RecordScan) -> None:
        """Find the records of answers with another function, for readers that use only their bytes."""
        self._make_puller.keywords["scan"] = scan
        for puller in self._pullers.values():
            puller.scan = scan

    def _suspend_ms(self, suspend_s: float) -> int:
        # The broker must not hold a request longer than its caller waits for it (docs/protocol/consumer.md §4).
        # In a scope that is already cancelled the deadline is minus infinity: the pull ends at its first checkpoint.
        left_s = max(0.0, trio.current_effective_deadline() - trio.current_time())
        return max(1, int(min(suspend_s, left_s) * 1000))

    async def _pause_if_unheld(self, result: PullResult, started_s: float, deadline_s: float) -> None:
        now = trio.current_time()
        if result.status is not PullStatus.NO_NEW_MESSAGE or result.lacks_offset or now - started_s >= HELD_S:
            self._unheld.pop(result.queue, None)
            return
        # The broker does not hold this pull: it may hold too many. The caller's next one would follow at once.
        number = self._unheld[result.queue] = self._unheld.get(result.queue, 0) + 1
        await trio.sleep(max(0.0, min(empty_pause_s(number), deadline_s - now)))

    def _note_availability(self, offset: int, result: PullResult) -> None:
        known = self._unavailable.get(result.queue)
        if result.lacks_offset:
            # Once, until a broker has this offset or a later one.
            if known is None:
                self._unavailable[result.queue] = offset
                self._report(offset_unavailable(result))
        elif known is not None and offset >= known:
            del self._unavailable[result.queue]

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed(f"the consumer of group {self.group} is closed")


def _checked(sql: str) -> Sql:
    """Make sure that an expression can be parsed: for one that cannot, brokers return every message
    (docs/protocol/broker-api.md §5.2)."""
    try:
        parse(sql)
    except Sql92Error as error:
        raise InvalidCall(f"the SQL92 expression {shown(sql)} cannot be used: {error}") from error
    return Sql(sql)


def _heartbeat_data(group: str, *, unit_mode: bool) -> ConsumerData:
    return ConsumerData(
        # Upstream reports this whatever is configured, and an empty subscription (docs/protocol/consumer.md §4).
        consume_from_where=CONSUME_FROM_LAST_OFFSET,
        consume_type=CONSUME_ACTIVELY,
        group_name=group,
        message_model=CLUSTERING,
        subscription_data_set=[],
        unit_mode=unit_mode,
    )


class _PullMembership:
    """A pull consumer as seen by brokers and operators: its caller decides everything, so they cannot change anything.

    Args:
        positions: topic -> the consumer's positions in it.
        shares: notified when members join or leave.
    """

    def __init__(self, positions: Callable[[str], Mapping[MessageQueue, int]], shares: Sequence[Share]) -> None:
        self._positions = positions
        self._shares = shares
        self._lines = PeerLog(log)

    def positions_of(self, topic: str, /) -> Mapping[MessageQueue, int]:
        """The positions of a topic's queues, and -1 for those of a share that were not pulled yet."""
        assigned = {queue for share in self._shares for queue in share.assignment() if queue.topic == topic}
        return {**dict.fromkeys(assigned, -1), **self._positions(topic)}

    def running_info(self) -> ConsumerRunningInfo:
        """The few properties that operators' commands need."""
        return ConsumerRunningInfo(properties=consumer_properties(CONSUME_ACTIVELY))

    def wake(self) -> None:
        """The group's members have changed."""
        for share in self._shares:
            share.wake()

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int], /) -> None:
        """Does nothing: the caller keeps the positions."""
        await trio.lowlevel.checkpoint()
        for share in self._shares:
            share.left_to_others(offsets)
        text = "leaves a reset of %d queues of %.255s to its caller"
        self._lines.write(logging.INFO, "a pull consumer", text, len(offsets), topic)

    async def consume_directly(self, _message: bytes, _broker_name: str, /) -> ConsumeMessageDirectlyResult:
        """Answer that there is no handler."""
        await trio.lowlevel.checkpoint()
        return ConsumeMessageDirectlyResult(consume_result="CR_RETURN_NULL", remark="a pull consumer has no handler")
