"""Fetches the data of the pages with the client's administrative calls, as plain values.

Unavailable data becomes an error text in its row, so that one dead broker does not break the page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs
import trio

from triomq import Client, MessageQueue, MQError, ReceivedMessage
from triomq._arguments.numbers import finite_number, whole_number
from triomq._tasks.side_by_side import side_by_side
from triomq.admin import ConsumerConnection, ConsumerRunningInfo, Found, OffsetWrapper, TopicOffset
from triomq.errors import InvalidCall, NotFound
from triomq_dashboard.history import Figure
from triomq_protocol.names import is_system_topic

AT_ONCE: Final = 8
ANSWER_S: Final = 6.0
"""How long one row may take, in seconds."""

PAGE_ROWS: Final = 50
MEMBERS_MAX: Final = 50
"""The most members of a group that are asked for their queues."""

FOUND_MAX: Final = 100
"""The most messages that a search shows."""

QUEUES_SEARCHED_MAX: Final = 256
SHARE_GROWTH: Final = 4
"""How many times as many messages are read in the next look at a queue all of whose messages are shown."""

QUEUES_SHOWN_MAX: Final = 1000
PAGE_MESSAGES: Final = 32
"""The number of messages that a broker returns for one pull."""

NOT_IN_TIME: Final = "no answer in time"


@attrs.frozen
class Page:
    """A part of a list.

    Attributes:
        names: the names on this page.
        number: the number of this page, from 1.
        pages: the number of pages.
        count: the number of names in all.
    """

    names: Sequence[str]
    number: int
    pages: int
    count: int


def page_of(names: Sequence[str], search: str, number: int) -> Page:
    """One page of the names that contain a text."""
    wanted = search.casefold()
    found = [name for name in names if wanted in name.casefold()] if wanted else names
    pages = max(1, -(-len(found) // PAGE_ROWS))
    number = min(max(1, number), pages)
    return Page(found[(number - 1) * PAGE_ROWS : number * PAGE_ROWS], number, pages, len(found))


@attrs.frozen
class Row:
    """The data of one name.

    Attributes:
        name: the name.
        value: the data; None if it was not available.
        error: why it was not.
    """

    name: str
    value: Any
    error: str = ""


async def rows(names: Sequence[str], ask: Callable[[str], Awaitable[object]]) -> list[Row]:
    """Query each name, a limited number at a time."""
    limit = trio.CapacityLimiter(AT_ONCE)
    found: dict[str, Row] = {}

    async def one(name: str) -> None:
        async with limit:
            row = Row(name, None, NOT_IN_TIME)
            with trio.move_on_after(ANSWER_S):
                try:
                    row = Row(name, await ask(name))
                except MQError as error:
                    row = Row(name, None, error.reason)
            found[name] = row

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(one, name)
    return [found[name] for name in names]


@attrs.frozen
class BrokerRow:
    """A broker on the cluster's page.

    Attributes:
        name: the name of its set.
        broker_id: its id; 0 is the master.
        address: its address.
        status: its runtime information.
        error: why there is none.
        behind_bytes: the bytes of its master's log that a slave lacks; None if not known.
        in_per_s: messages stored per second.
        out_per_s: messages delivered to consumers per second.
    """

    name: str
    broker_id: int
    address: str
    status: Mapping[str, str]
    error: str
    behind_bytes: int | None
    in_per_s: float | None
    out_per_s: float | None

    @property
    def version(self) -> str:
        """Its version."""
        return self.status.get("brokerVersionDesc", "")

    @property
    def disk(self) -> float | None:
        """The used fraction of its disk."""
        return finite_number(self.status.get("commitLogDiskRatio", ""))


def _rate(status: Mapping[str, str], key: str) -> float | None:
    """The first of the rates that a broker reports: the one over the last ten seconds."""
    return finite_number(status.get(key, "").partition(" ")[0])


def _log_end(status: Mapping[str, str]) -> int | None:
    return whole_number(status.get("commitLogMaxOffset", ""))


async def brokers(client: Client) -> dict[str, list[BrokerRow]]:
    """Cluster -> its brokers, each set's master first."""
    info = await client.admin.cluster_info()
    table = info.broker_addr_table or {}
    places = [
        (name, int(number), address)
        for name, data in sorted(table.items())
        for number, address in sorted((data.broker_addrs or {}).items())
    ]
    asked = {row.name: row for row in await rows([place[2] for place in places], client.servers.status)}
    ends = {
        (name, number): None if asked[address].value is None else _log_end(asked[address].value)
        for name, number, address in places
    }
    clusters: dict[str, list[BrokerRow]] = {}
    for name, number, address in places:
        master, own = ends.get((name, 0)), ends[name, number]
        behind = max(0, master - own) if number and master is not None and own is not None else None
        row = asked[address]
        cluster = table[name].cluster or "?"
        status = row.value or {}
        rates = _rate(status, "putTps"), _rate(status, "getTransferedTps")  # RocketMQ's spelling
        clusters.setdefault(cluster, []).append(BrokerRow(name, number, address, status, row.error, behind, *rates))
    return clusters


def own_topics(names: Sequence[str], clusters: Mapping[str, Sequence[BrokerRow]]) -> list[str]:
    """The users' topics: not those of the system, of brokers and clusters, of retries and dead letters."""
    of_servers = {*clusters, *(row.name for brokers in clusters.values() for row in brokers)}
    return [name for name in names if not (is_system_topic(name) or name in of_servers or name.startswith("%"))]


@attrs.frozen
class TopicFigures:
    """A topic's queues, and their totals."""

    queues: Mapping[MessageQueue, TopicOffset]
    without_master: Mapping[str, str]
    refused: Mapping[str, str]

    @property
    def messages(self) -> int:
        """The number of stored messages."""
        return sum(max(0, each.max_offset - each.min_offset) for each in self.queues.values())

    @property
    def ends(self) -> Figure:
        """The sum of the queues' ends, which grows by one with each message, as far as their masters answer."""
        ends = [
            (queue.broker_name, bounds.max_offset)
            for queue, bounds in self.queues.items()
            if queue.broker_name not in self.without_master
        ]
        return Figure(float(sum(end for _, end in ends)), frozenset(name for name, _ in ends))

    @property
    def last_ms(self) -> int:
        """When the topic was last written to, in ms since 1970."""
        return max((each.last_update_timestamp for each in self.queues.values()), default=0)


def merged(answers: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The brokers in several answers, each once."""
    return {name: why for each in answers for name, why in each.items()}


async def topic(client: Client, name: str, silent: dict[str, str] | None = None) -> TopicFigures:
    """A topic's queues; see `topic_stats` for `silent`."""
    stats = await client.admin.topic_stats(name, silent=silent)
    return TopicFigures(dict(sorted(stats.offset_table.items())), stats.without_master, stats.refused)


@attrs.frozen
class QueueProgress:
    """A group's progress in one queue, and the member that has it."""

    queue: MessageQueue
    offsets: OffsetWrapper
    lag: int | None
    owner: str


@attrs.frozen
class Member:
    """A member of a group."""

    client_id: str
    address: str
    language: str
    info: ConsumerRunningInfo | None
    error: str


@attrs.frozen
class GroupFigures:
    """A group with its members and queues.

    Attributes:
        lag: the lag over all queues; None if a set has no master or refuses the account.
        without_master: broker name -> why it has no master.
        refused: broker name -> which broker refuses the account, why, and what to do.
        members: the members online.
        members_error: why they are not known.
        more_members: the number of members that were not asked for their queues.
        consume_type: how members get messages, as they report it.
        model: clustering or broadcasting.
        subscriptions: topic -> expression.
        queues: the queues by topic and broker.
    """

    lag: int | None
    without_master: Mapping[str, str]
    refused: Mapping[str, str]
    members: Sequence[Member]
    members_error: str
    more_members: int
    consume_type: str
    model: str
    subscriptions: Mapping[str, str]
    queues: Sequence[QueueProgress]

    @property
    def is_empty(self) -> bool:
        """Whether all brokers answer, and have neither a member nor an offset of it."""
        return not (self.queues or self.members or self.members_error or self.without_master or self.refused)


async def members(client: Client, name: str, silent: dict[str, str]) -> tuple[ConsumerConnection | None, str]:
    """A group's members, None if there are none; or why they are not known."""
    try:
        return await client.groups.members(name, silent=silent), ""
    except MQError as error:
        return None, error.reason


async def group(client: Client, name: str) -> GroupFigures:
    """A group with its members and queues."""
    silent: dict[str, str] = {}
    progress = await client.groups.progress(name, silent=silent)
    online, members_error = await members(client, name, silent)
    connections = online.connection_set if online is not None else []
    by_id = {each.client_id or "": each for each in connections}
    asked = await rows(sorted(by_id)[:MEMBERS_MAX], lambda client_id: client.groups.running_info(name, client_id))
    owners: dict[MessageQueue, str] = {}
    for row in asked:
        for queue, state in row.value.mq_table.items() if row.value is not None else ():
            if not state.droped:
                owners[queue] = row.name
    return GroupFigures(
        progress.lag,
        progress.without_master,
        progress.refused,
        [
            Member(row.name, by_id[row.name].client_addr or "", by_id[row.name].language or "", row.value, row.error)
            for row in asked
        ],
        members_error,
        max(0, len(by_id) - MEMBERS_MAX),
        (online.consume_type or "") if online is not None else "",
        (online.message_model or "") if online is not None else "",
        {topic: each.sub_string or "" for topic, each in (online.subscription_table if online else {}).items()},
        [
            QueueProgress(queue, offsets, progress.lag_of(queue), owners.get(queue, ""))
            for queue, offsets in list(progress.items())[:QUEUES_SHOWN_MAX]
        ],
    )


async def search(
    client: Client, topic: str, *, key: str = "", message_id: str = "", from_ms: int | None = None
) -> Found[ReceivedMessage]:
    """Find messages of a topic by the sender's or the broker's id, by key, or by time stored; newest first."""
    if message_id:
        return await _by_id(client, topic, message_id)
    if key:
        by_key = await client.messages.by_key(topic, key)
        return Found(reversed(by_key), by_key.without_answer)
    return await _by_queue(client, topic, from_ms)


async def _by_queue(client: Client, topic: str, from_ms: int | None) -> Found[ReceivedMessage]:
    """The first messages of a topic since a time, or its newest ones, and the sets of which some may be missing."""
    stats = await client.admin.topic_stats(topic)
    filled = [queue for queue, bounds in sorted(stats.offset_table.items()) if bounds.max_offset > bounds.min_offset]
    missing = {**stats.without_master, **stats.refused}
    found: dict[MessageQueue, Sequence[ReceivedMessage]] = {}
    limit = trio.CapacityLimiter(AT_ONCE)

    async def look(queue: MessageQueue, count: int) -> None:
        async with limit:
            try:
                if from_ms is None:
                    found[queue] = await newest(client, queue, count)
                else:
                    found[queue] = await client.messages.by_time(queue, from_ms, max_messages=count)
            except MQError as error:
                missing[queue.broker_name] = error.reason
                found.setdefault(queue, ())  # an earlier look may have succeeded

    def place(message: ReceivedMessage) -> tuple[int, int]:
        forward = (message.stored_ms, message.queue_offset)
        return forward if from_ms is not None else (-forward[0], -forward[1])

    queues = filled[:QUEUES_SEARCHED_MAX]
    count = max(1, FOUND_MAX // max(1, len(queues)))
    while True:
        await side_by_side(*(partial(look, queue, count) for queue in queues))
        shown = sorted((each for some in found.values() for each in some), key=place)[:FOUND_MAX]
        # Queues all of whose messages are shown may have more of them.
        last = place(shown[-1]) if len(shown) == FOUND_MAX else None
        queues = [
            queue
            for queue in queues
            if len(found[queue]) == count and (last is None or max(map(place, found[queue])) < last)
        ]
        if not queues or count == FOUND_MAX:
            return Found(shown, missing)
        count = min(FOUND_MAX, count * SHARE_GROWTH)


async def newest(client: Client, queue: MessageQueue, count: int) -> list[ReceivedMessage]:
    """The last messages of a queue."""
    end = await client.bounds.max_offset(queue)
    return (await between(client, queue, max(0, end - count), end))[:count]


async def between(client: Client, queue: MessageQueue, offset: int, end: int) -> list[ReceivedMessage]:
    """The messages of a queue from an offset up to, not including, another one."""
    found: list[ReceivedMessage] = []
    while offset < end:
        page, following = await client.messages.page(queue, offset, min(PAGE_MESSAGES, end - offset))
        if following <= offset:
            break
        found.extend(page)
        offset = following
    return found


async def _by_id(client: Client, topic: str, message_id: str) -> Found[ReceivedMessage]:
    found = await client.messages.by_unique_key(topic, message_id) if topic else Found[ReceivedMessage]((), {})
    if not found and len(message_id) in (32, 56):
        try:
            # The broker's id of a message contains an address: only brokers of this cluster are asked.
            message = await client.messages.by_id(message_id)
        except NotFound:
            return found
        except InvalidCall:
            if topic:
                return found
            # A producer's id may have the length of a broker's.
            raise InvalidCall(
                "the id names no registered broker: name the topic if a producer gave the id; or the broker is down"
            ) from None
        if not topic or message.topic == topic:
            found.append(message)
    return found
