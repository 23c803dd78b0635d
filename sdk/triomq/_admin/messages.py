"""Stored messages: finds them, shows which groups consumed them, has them consumed again (docs/protocol/admin.md §6).

Upstream: ``MQAdminImpl``, and the part of ``DefaultMQAdminExtImpl`` about messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final, TypeVar

import attrs
import trio

from triomq._admin.broker_sets import SetAnswer, addresses_of, answer_of, answer_on, ask_sets, outage_text
from triomq._admin.group_results import GroupProgress
from triomq._admin.groups import STATS_TIMEOUT_S, GroupAdmin
from triomq._admin.long_bodies import body_of
from triomq._admin.topics import ADMIN_TIMEOUT_S, Admin
from triomq._arguments.kinds import check_kind, check_text
from triomq._arguments.numbers import check_count
from triomq._cluster.broker_links import BrokerLinks
from triomq._cluster.queue_bounds import QueueBounds
from triomq._constructors import NoPublicConstructor
from triomq._error_text import shown
from triomq._message.message import MessageQueue, check_group, check_offset, check_queue
from triomq._message.received import ReceivedMessage
from triomq._message.send_result import SendResult
from triomq._message.subscription import retry_topic
from triomq._producer.attempts.outgoing import Outgoing
from triomq._producer.sender import Sender
from triomq._tasks.exception_groups import open_plain_nursery
from triomq._transport.answers import checked
from triomq._transport.links import Links
from triomq.errors import (
    AccessRefused,
    BrokerFault,
    BrokerNotFound,
    GroupNotFound,
    InvalidCall,
    MessageIllegal,
    MQError,
    NotFound,
    ProtocolViolation,
    RequestTimeout,
    error_for_code,
)
from triomq_protocol import flags, names
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.errors import BodyError, HeaderError, LocalProtocolError
from triomq_protocol.filters.tags import parse_subscription
from triomq_protocol.message_id import decode_offset_message_id
from triomq_protocol.properties import encode_properties
from triomq_protocol.record.layout import COMPRESSED, COMPRESSION_MASK
from triomq_protocol.record.view import RecordView, iter_records
from triomq_protocol.requests import (
    ConsumeMessageDirectlyRequest,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    GroupList,
    QueryConsumeQueueBody,
    QueryConsumeQueueRequest,
    QueryMessageRequest,
    QueryTopicConsumeByWhoRequest,
    SubscriptionData,
    ViewMessageRequest,
)
from triomq_protocol.requests.heartbeat import CONSUME_ACTIVELY
from triomq_protocol.requests.pull import PullMessageRequest, decode_pull_answer
from triomq_protocol.requests.query import INDEX_TYPE_UNIQUE
from triomq_protocol.trace import TraceKind, TraceRecord, decode_records
from triomq_protocol.wire.command import Command

T = TypeVar("T")

QUERY_TIMEOUT_S: Final = 18.0
"""How long a broker may take to look a key up (docs/protocol/admin.md §6.1)."""

KEY_MAX: Final = 64
UNIQUE_KEY_MAX: Final = 32
"""The most messages that a broker returns for a key, and for a unique key."""

ENTRIES_DEFAULT: Final = 10
ENTRIES_MAX: Final = 1024
"""The most entries of a consume queue that are requested at once."""

PAGE: Final = 32
"""The most messages that a broker returns to one pull."""

WITHOUT_MESSAGE_S: Final = STATS_TIMEOUT_S
"""How long a broker may answer that there is no message at an offset, but perhaps at a later one."""

GROUPS_AT_ONCE: Final = 16
"""Groups whose tracks are looked up at the same time."""

TRACE_MAX_BYTES: Final = 2**20
"""Larger messages are not traces: clients send some 128,000 bytes at most."""

INDEX_STEP_MS: Final = 1000
"""Brokers index times in whole seconds since the index file's first message, and drop the fraction."""

FOR_EVER_MS: Final = 2**63 - 1

_OF_ONE_DELIVERY: Final = frozenset({
    names.DELAY, names.REAL_TOPIC, names.REAL_QID, names.WAIT, names.TRAN_MSG, names.PGROUP, names.RETRY_TOPIC,
    names.ORIGIN_MESSAGE_ID, names.CLUSTER, names.CHECK_TIMES, names.PREPARED_QUEUE_OFFSET, "RECONSUME_TIME",
    "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "MIN_OFFSET", "MAX_OFFSET", "INNER_MULTI_QUEUE_OFFSET",
    *names.DELIVERY_TIMES, names.TIMER_OUT, "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES",
})  # fmt: skip
"""Properties that record how a message got to its place; a copy that starts from the beginning has none of them."""


class Found(list[T]):
    """What brokers have found.

    Attributes:
        without_answer: broker name -> why no broker of the set answered; what it has is missing.
    """

    def __init__(self, found: Iterable[T], without_answer: Mapping[str, str]) -> None:
        super().__init__(found)
        self.without_answer: dict[str, str] = dict(without_answer)


class TrackType(StrEnum):
    """Whether a group has consumed a message; the names are RocketMQ's (docs/protocol/admin.md §6.2)."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    PULL = "PULL"
    NOT_ONLINE = "NOT_ONLINE"
    UNKNOWN = "UNKNOWN"


@attrs.frozen
class MessageTrack:
    """The state of a message in one group.

    Args:
        group: the group's name.
        track: the state.
        reason: why it is unknown; otherwise empty.
    """

    group: str
    track: TrackType
    reason: str = ""


def track_of(
    message: ReceivedMessage, online: ConsumerConnection | None, progress: Mapping[MessageQueue, object] | None
) -> TrackType:
    """Determine the state of a message in a group.

    Args:
        message: a message stored in `message.queue`.
        online: the group's members; None: no members.
        progress: committed offsets by queue, objects with `consumer_offset`; None: they are not known.
    """
    if online is None:
        return TrackType.NOT_ONLINE
    if online.consume_type == CONSUME_ACTIVELY:
        return TrackType.PULL
    offsets = None if progress is None else progress.get(message.queue)
    if progress is None:
        return TrackType.UNKNOWN
    if offsets is None or getattr(offsets, "consumer_offset", 0) <= message.queue_offset:
        return TrackType.NOT_CONSUME_YET
    wanted = online.subscription_table.get(message.record.topic)
    if wanted is not None and not _takes(wanted, message.tags):
        return TrackType.CONSUMED_BUT_FILTERED
    return TrackType.CONSUMED


def _takes(wanted: SubscriptionData, tag: str | None) -> bool:
    if (wanted.expression_type or "TAG") != "TAG":
        return True  # an SQL92 expression is not evaluated here, as upstream
    try:
        return parse_subscription(wanted.sub_string).matches_tag(tag)
    except LocalProtocolError:
        return True  # no expression that means anything


@attrs.frozen(kw_only=True)
class QueueEntry:
    """One entry of a consume queue.

    Args:
        offset: its offset in the queue.
        physical_offset: the message's offset in the broker's log.
        size_bytes: the size of its record.
        tags_code: the hash of its tag; for a delayed message, the time of its delivery in ms since 1970.
    """

    offset: int
    physical_offset: int
    size_bytes: int
    tags_code: int


class MessageAdmin(metaclass=NoPublicConstructor):
    """Queries stored messages, and has them consumed again; ``client.messages``.

    Every method raises :class:`~triomq.errors.MQError` if a broker that must be asked does not answer.
    """

    def __init__(
        self,
        admin: Admin,
        groups: GroupAdmin,
        brokers: BrokerLinks,
        bounds: QueueBounds,
        links: Links,
        make_sender: Callable[[str], Sender],
    ) -> None:
        self._admin = admin
        self._groups = groups
        self._brokers = brokers
        self._namespace = brokers.namespace
        self._bounds = bounds
        self._links = links
        self._make_sender = make_sender

    # --- finding -------------------------------------------------------------------------------------------------

    async def by_id(self, offset_message_id: str, *, any_address: bool = False) -> ReceivedMessage:
        """The message with a broker's id: ``offset_message_id`` of a result or a message.

        The broker whose address is in the id is asked, even if it is a slave.

        Args:
            offset_message_id: the id; it can be forged, and with it the address.
            any_address: whether to connect even to an address that no name server knows; only for ids that you trust.

        Raises:
            InvalidCall: it is not such an id, or its address belongs to no broker of the cluster.
            NotFound: the broker has no such message, or no longer.
            AccessRefused: the broker refuses the account.
        """
        check_text("the id", offset_message_id)
        try:
            place = decode_offset_message_id(offset_message_id)
        except BodyError:
            raise InvalidCall(
                f"{shown(offset_message_id)} is not an offset message id, which is 32 or 56 hexadecimal digits; for the id that its "
                "sender gave: by_unique_key, `triomq message unique-key TOPIC MESSAGE_ID`"
            ) from None
        host = f"[{place.host}]" if ":" in place.host else place.host
        address = f"{host}:{place.port}"
        what = f"message {offset_message_id}"
        broker_name = await self._broker_at(address, needed=not any_address)
        if broker_name is None and not any_address:
            raise InvalidCall(
                f"the id {offset_message_id} has the address {address}, which is that of no broker of this cluster, so no broker "
                "was asked; `any_address=True` (--any-address) asks there"
            )
        link = await self._links.get(address, patient=False)
        request = Command.request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset=place.physical_offset))
        answer = await link.request(request, ADMIN_TIMEOUT_S)
        try:
            checked(answer, what, address)
        except AccessRefused:
            raise
        except BrokerFault as error:  # also for an offset inside a record, with any text
            raise NotFound(f"{what} is not stored", address=address, code=answer.code, remark=answer.remark) from error
        try:
            record = RecordView(answer.body)
            if record.physical_offset != place.physical_offset:
                raise NotFound(f"{what} is not stored: offset {place.physical_offset} is inside another message")
            topic = self._namespace.unwrap(record.topic)
            queue = MessageQueue(topic, broker_name or "", record.queue_id)
            return ReceivedMessage(record, queue, namespace=self._namespace)
        except BodyError as error:
            raise NotFound(
                f"{what} is not stored: no message begins at offset {place.physical_offset}",
                address=address,
                remark=str(error),
            ) from error

    async def by_unique_key(self, topic: str, key: str) -> Found[ReceivedMessage]:
        """The messages of a topic with a sender's id (``message_id``), the first stored first.

        There are several if a producer sent one again, or a transaction ended. At most 32 per broker.

        Raises:
            RouteNotFound: no name server knows the topic.
            BrokerNotFound: nothing was found, and a broker set did not answer.
        """
        return await self._query(
            topic, key, UNIQUE_KEY_MAX, 0, FOR_EVER_MS, unique=True, fits=lambda found: found.record.unique_key == key
        )

    async def by_key(
        self, topic: str, key: str, *, start_ms: int = 0, end_ms: int | None = None, max_messages: int = KEY_MAX
    ) -> Found[ReceivedMessage]:
        """The messages of a topic with an index key, the first stored first.

        Args:
            topic: the topic's name; brokers index by topic and key.
            key: one of the message's ``keys``.
            start_ms: only messages stored then or later, in ms since 1970.
            end_ms: only messages stored until then, in ms since 1970.
            max_messages: the most messages per broker, 1 to 64: the newest ones.

        Raises:
            RouteNotFound: no name server knows the topic.
            BrokerNotFound: nothing was found, and a broker set did not answer.
        """
        check_count("max_messages", max_messages, 1, KEY_MAX)
        check_count("start_ms", start_ms, 0)
        until_ms = FOR_EVER_MS if end_ms is None else end_ms
        check_count("end_ms", until_ms, 0)
        if start_ms > until_ms:
            raise InvalidCall(f"start_ms is {shown(start_ms)}, after end_ms, {shown(until_ms)}")
        return await self._query(
            topic, key, max_messages, start_ms, until_ms, unique=False, fits=lambda found: key in found.keys
        )

    async def trace(
        self, message_id: str, *, trace_topic: str = names.TRACE_TOPIC, start_ms: int = 0, end_ms: int | None = None
    ) -> Found[TraceRecord]:
        """The records of producers and consumers with ``trace`` about a message, the oldest first.

        Args:
            message_id: the id given by its sender.
            trace_topic: the topic of traces.
            start_ms: only records made then or later, in ms since 1970.
            end_ms: only records made until then, in ms since 1970.

        Raises:
            RouteNotFound: no name server knows the topic.
            BrokerNotFound: nothing was found, and a broker set did not answer.
        """
        check_text("the id", message_id)
        check_text("trace_topic", trace_topic)
        # As for those who write them: the topic of traces is the brokers', whatever the namespace.
        self._namespace.plain.add(trace_topic)
        found = await self.by_key(trace_topic, message_id, start_ms=start_ms, end_ms=end_ms)
        records: list[TraceRecord] = []
        for each in found:
            # Any client may write to the topic: other messages must not hide traces.
            await trio.lowlevel.checkpoint()
            try:
                body = each.body
            except MessageIllegal:
                continue
            if len(body) <= TRACE_MAX_BYTES:
                decoded = decode_records(body.decode("utf-8", "replace"))
                records += (record for record in decoded if record.message_id == message_id)
        records.sort(key=lambda record: (record.time_ms or 0, list(TraceKind).index(record.kind)))
        return Found(records, found.without_answer)

    async def at(self, queue: MessageQueue, offset: int) -> ReceivedMessage:
        """The message at an offset of a queue.

        Raises:
            NotFound: the queue has no such offset, or no longer.
        """
        check_queue(queue)
        check_count("offset", offset, 0)
        page, _ = await self.page(queue, offset, 1)
        if not page or page[0].queue_offset != offset:
            low, high = await self._bounds.min_offset(queue), await self._bounds.max_offset(queue)
            found = (
                f"it has {low} up to, not including, {high}"
                if low < high
                else f"it is empty, its next offset is {high}"
            )
            raise NotFound(f"{queue} has no message at offset {offset}; {found}")
        return page[0]

    async def entries(
        self, queue: MessageQueue, offset: int, *, max_entries: int = ENTRIES_DEFAULT
    ) -> list[QueueEntry]:
        """The entries of a consume queue as its broker stores them, from an offset on.

        Args:
            queue: the queue.
            offset: the offset of the first entry.
            max_entries: the most entries; brokers may have a limit of their own.

        Raises:
            NotFound: the queue has no such offset, or no longer.
            BrokerFault: the broker has no such queue.
        """
        check_queue(queue)
        check_count("offset", offset, 0)
        check_count("max_entries", max_entries, 1, ENTRIES_MAX)
        header = QueryConsumeQueueRequest(
            topic=self._namespace.wrap(queue.topic), queue_id=queue.queue_id, index=offset, count=max_entries
        )
        link = await self._brokers.of(queue)
        what = f"the entries of {queue}"
        answer = await link.request(Command.request(RequestCode.QUERY_CONSUME_QUEUE, header), ADMIN_TIMEOUT_S)
        checked(answer, what, link.address)
        if not answer.body:
            raise NotFound(what, address=link.address, remark=answer.remark)
        found = (await body_of(QueryConsumeQueueBody, answer, link.address, what)).queue_data or []
        return [
            QueueEntry(
                offset=offset + number,
                physical_offset=entry.physic_offset,
                size_bytes=entry.physic_size,
                tags_code=entry.tags_code,
            )
            for number, entry in enumerate(found)
        ]

    async def by_time(
        self, queue: MessageQueue, start_ms: int, *, end_ms: int | None = None, max_messages: int = PAGE
    ) -> list[ReceivedMessage]:
        """The messages of a queue that were stored at a time or later, in the queue's order.

        Args:
            queue: the queue.
            start_ms: only messages stored then or later, in ms since 1970.
            end_ms: only messages stored until then, in ms since 1970.
            max_messages: the most messages to return.

        Raises:
            RequestTimeout: the broker has answered for 15 seconds without a message, always with a later offset.
        """
        check_count("max_messages", max_messages, 1)
        if end_ms is not None:
            check_count("end_ms", end_ms, 0)
        found: list[ReceivedMessage] = []
        offset = await self._first_since(queue, start_ms)
        while len(found) < max_messages:
            page, following = await next_page(self, queue, offset, min(PAGE, max_messages - len(found) + 1))
            for message in page:
                if end_ms is not None and message.stored_ms > end_ms:
                    return found
                # The last message before a time is the nearest to it where there is none after it.
                if message.stored_ms >= start_ms and len(found) < max_messages:
                    found.append(message)
            if following <= offset:
                break
            offset = following
        return found

    async def _first_since(self, queue: MessageQueue, start_ms: int) -> int:
        """The offset of the first message since a time. Brokers name any of those with the same time."""
        high = await self._bounds.offset_by_time(queue, start_ms)
        lowest = await self._bounds.min_offset(queue)
        low, step = high, 1  # below `low` nothing is known yet; from `high` on all are in time
        while low > lowest:
            low = max(lowest, high - step)
            if not await self._is_since(queue, low, start_ms):
                low += 1
                break
            high, step = low, step * 2
        while low < high:
            middle = (low + high) // 2
            if await self._is_since(queue, middle, start_ms):
                high = middle
            else:
                low = middle + 1
        return high

    async def _is_since(self, queue: MessageQueue, offset: int, start_ms: int) -> bool:
        page, _ = await self.page(queue, offset, 1)
        return bool(page) and page[0].stored_ms >= start_ms

    async def page(
        self, queue: MessageQueue, offset: int, max_messages: int = PAGE
    ) -> tuple[list[ReceivedMessage], int]:
        """The messages of a queue from an offset on, as many as one pull returns, and the offset behind them.

        Where `offset` has been deleted, that is the offset of the queue's first message; at the queue's end it is `offset`.
        """
        check_queue(queue)
        check_offset(offset)
        check_count("max_messages", max_messages, 1, 2**31 - 1)
        header = PullMessageRequest(
            consumer_group=names.TOOLS_GROUP,
            topic=self._brokers.topic_of(queue),
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_messages,
            sys_flag=flags.PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
            expression_type="TAG",
            bname=queue.broker_name,
        )
        what = f"messages of {queue} from offset {offset} on"
        link = await self._brokers.of(queue)
        answer = await answer_on(link, Command.request(RequestCode.PULL_MESSAGE, header), STATS_TIMEOUT_S)
        try:
            following = decode_pull_answer(answer).next_begin_offset
            if answer.code == ResponseCode.SUCCESS:
                records = list(iter_records(answer.body))
                if not records or following is None:
                    raise ProtocolViolation(what, address=link.address, remark="the answer has no message")
                return [ReceivedMessage(record, queue, namespace=self._namespace) for record in records], following
        except (BodyError, HeaderError) as error:
            raise ProtocolViolation(what, address=link.address, remark=str(error)) from error
        if answer.code in (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY):
            return [], max(following or 0, 0)
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return [], offset
        raise error_for_code(answer.code, answer.remark, what=what, address=link.address)

    # --- who consumed it -----------------------------------------------------------------------------------------

    async def tracks(self, message: ReceivedMessage) -> list[MessageTrack]:
        """The state of the message in each group that consumes its topic, by group name.

        A group is NOT_ONLINE when none of its members is, and PULL when its members pull: what those have consumed is
        not known to brokers.
        """
        check_kind("the message", message, ReceivedMessage)
        sets = await self._sets_of(message.topic)
        header = QueryTopicConsumeByWhoRequest(topic=self._namespace.wrap(message.topic))
        found = await ask_sets(
            self._links, sets, lambda: Command.request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header), ADMIN_TIMEOUT_S
        )
        found.set_refusals_aside(f"the groups of topic {message.topic}")
        groups: set[str] = set()
        for each in found.answers:
            if each.answer.code == ResponseCode.SUCCESS:
                groups.update((await body_of(GroupList, each.answer, each.address)).group_list)
        if not groups and found.silent:
            raise BrokerNotFound(f"the groups of topic {message.topic}: {outage_text(found.without_master)}")
        tracks: dict[str, MessageTrack] = {}
        limit = trio.CapacityLimiter(GROUPS_AT_ONCE)

        async def look(group: str) -> None:
            async with limit:
                tracks[group] = await self._track(message, group)

        async with open_plain_nursery() as nursery:
            for group in groups:
                nursery.start_soon(look, group)
        return [tracks[group] for group in sorted(tracks)]

    async def _track(self, message: ReceivedMessage, group: str) -> MessageTrack:
        try:
            online = await self._groups.members(group)
            progress: GroupProgress | None = None
            if online is not None and online.consume_type != CONSUME_ACTIVELY:
                progress = await self._groups.progress(group, message.topic)
                unknown = {**progress.without_master, **progress.refused}
                if message.queue.broker_name in unknown:
                    return MessageTrack(group, TrackType.UNKNOWN, outage_text(unknown))
            return MessageTrack(group, track_of(message, online, progress))
        except MQError as error:
            return MessageTrack(group, TrackType.UNKNOWN, str(error))

    # --- having it consumed again --------------------------------------------------------------------------------

    async def consume_directly(
        self, message: ReceivedMessage, group: str, client_id: str
    ) -> ConsumeMessageDirectlyResult:
        """Have one member consume the message now, outside of its queues; nothing is committed.

        The broker that stores the message asks the member, and returns the outcome of its handler.

        Raises:
            BrokerFault: the member is not online there, or refuses.
        """
        check_group(group)
        check_kind("the message", message, ReceivedMessage)
        check_text("client_id", client_id)
        header = ConsumeMessageDirectlyRequest(
            consumer_group=self._namespace.wrap(group),
            client_id=client_id,
            msg_id=message.offset_message_id,
            broker_name=message.queue.broker_name or None,
        )
        address = await self._address_of(message)
        request = Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        answer = await answer_of(self._links, address, request, STATS_TIMEOUT_S)
        what = f"message {message.message_id} at {client_id} of group {group}"
        return await body_of(ConsumeMessageDirectlyResult, checked(answer, what, address), address)

    async def resend(self, message: ReceivedMessage, group: str) -> SendResult:
        """Send a copy to one group alone, by its retry topic: one of its members consumes it, and retries count from 0.

        Raises:
            GroupNotFound: no broker has the group.
            BrokerNotFound: none that answers has it, and some do not answer, or refuse the account.
        """
        check_group(group)
        check_kind("the message", message, ReceivedMessage)
        known = await self._groups.names()
        if self._namespace.wrap(group) not in known:
            if unknown := known.refused | known.unknown:
                raise BrokerNotFound(
                    f"the broker that knows the consumer group {group} may not have answered: {outage_text(unknown)}; "
                    "nothing was sent"
                )
            raise GroupNotFound(f"no broker knows the consumer group {group}; nothing was sent")
        return await self.send_copy(message, retry_topic(group), group=group)

    async def send_copy(self, message: ReceivedMessage, topic: str, *, group: str = "") -> SendResult:
        """Send a copy of a stored message: body, tag, keys, user properties and message id stay the same.

        Args:
            message: the stored one.
            topic: where the copy goes.
            group: whose retry topic it is; members then see the topic that the message comes from.
        """
        check_kind("the message", message, ReceivedMessage)
        check_text("the topic", topic)
        check_text("the group", group)
        properties = {name: value for name, value in message.properties.items() if name not in _OF_ONE_DELIVERY}
        if group:
            properties[names.RETRY_TOPIC] = origin_topic(message) or self._namespace.wrap(message.topic)
        properties[names.ORIGIN_MESSAGE_ID] = message.properties.get(names.ORIGIN_MESSAGE_ID, message.offset_message_id)
        unique_key = properties.setdefault(names.UNIQ_KEY, message.message_id)
        sender = self._make_sender(group or names.TOOLS_GROUP)
        try:
            out = Outgoing(
                topic,
                message.record.body,
                encode_properties(properties),
                unique_key,
                message.born_ms,
                trio.current_time() + sender.settings.timeout_s,
            )
            # The body travels as it was stored, compressed or not.
            out.sys_flag = message.sys_flag & (COMPRESSED | COMPRESSION_MASK)
            out.flag = message.flag
            return await sender.deliver(out)
        finally:
            sender.close()

    # --- brokers -------------------------------------------------------------------------------------------------

    async def _query(
        self,
        topic: str,
        key: str,
        most: int,
        start_ms: int,
        end_ms: int,
        *,
        unique: bool,
        fits: Callable[[ReceivedMessage], bool],
    ) -> Found[ReceivedMessage]:
        check_text("the key", key)
        if not key or " " in key:
            raise InvalidCall(f"the key is {shown(key)}; a key has at least one character, and no blanks")
        sets = await self._sets_of(topic)
        header = QueryMessageRequest(
            topic=self._namespace.wrap(topic),
            key=key,
            max_num=most,
            begin_timestamp=max(0, start_ms - INDEX_STEP_MS),
            end_timestamp=end_ms,
            index_type=INDEX_TYPE_UNIQUE if unique else None,
        )

        def request() -> Command:
            # Java sends a field UNIQUE_KEY_QUERY, too, which must not be signed for 4.9 and must be for 5. All that it
            # does is to set max_num for unique keys, and the type of index, which 4.9 does not have.
            return Command.request(RequestCode.QUERY_MESSAGE, header)

        found = await ask_sets(self._links, sets, request, QUERY_TIMEOUT_S)
        messages: list[ReceivedMessage] = []
        for each in found.answers:
            if each.answer.code == ResponseCode.QUERY_NOT_FOUND:
                continue
            checked(each.answer, f"messages of topic {topic} with key {key}", each.address)
            for record in _records_in(each):
                queue = MessageQueue(self._namespace.unwrap(record.topic), each.broker_name, record.queue_id)
                message = ReceivedMessage(record, queue, namespace=self._namespace)
                # The index knows hashes only: what a broker finds may be another topic's, or have another key.
                if (
                    message.topic == self._namespace.unwrap(topic)
                    and fits(message)
                    and start_ms <= message.stored_ms <= end_ms
                ):
                    messages.append(message)
        if not messages and found.silent:
            raise BrokerNotFound(
                f"nothing was found of topic {topic} with key {key}, and not every broker was asked: "
                f"{outage_text(found.without_master)}"
            )
        messages.sort(key=lambda message: (message.stored_ms, message.queue, message.queue_offset))
        return Found(messages, {name: found.without_master[name] for name in found.silent})

    async def _sets_of(self, topic: str) -> Mapping[str, Mapping[int, str]]:
        route = await self._admin.route(topic)
        return addresses_of({broker.broker_name or "": broker for broker in route.broker_datas or []})

    async def _broker_at(self, address: str, *, needed: bool) -> str | None:
        """The set that has an address; None where it is registered nowhere, or unless `needed` no name server answers."""
        try:
            sets = await self._admin.broker_sets()
        except MQError:
            if needed:
                raise
            return None
        return next((name for name, addresses in sets.items() if address in addresses.values()), None)

    async def _address_of(self, message: ReceivedMessage) -> str:
        host, port = message.store_host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def next_page(
    messages: MessageAdmin, queue: MessageQueue, offset: int, max_messages: int = PAGE
) -> tuple[list[ReceivedMessage], int]:
    """As `MessageAdmin.page`, but beyond offsets without a message; a page without messages is the queue's end.

    Raises:
        RequestTimeout: the broker has answered for :data:`WITHOUT_MESSAGE_S`, always with a later offset and no message.
    """
    deadline = trio.current_time() + WITHOUT_MESSAGE_S
    while True:
        page, following = await messages.page(queue, offset, max_messages)
        if page or following <= offset:
            return page, following
        if trio.current_time() >= deadline:
            raise RequestTimeout(
                f"messages of {queue}",
                remark=f"the broker's answers have had no message for {WITHOUT_MESSAGE_S:g} s, the last one before offset {following}",
            )
        offset = following


def origin_topic(message: ReceivedMessage) -> str | None:
    """The topic that a retried or dead message was first sent to; None where the message does not say."""
    return message.properties.get(names.RETRY_TOPIC)


def _records_in(answer: SetAnswer) -> list[RecordView]:
    try:
        return list(iter_records(answer.answer.body))
    except BodyError as error:
        raise ProtocolViolation("the broker's answer", address=answer.address, remark=str(error)) from error
