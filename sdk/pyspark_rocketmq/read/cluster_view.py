"""The current content of the cluster: the queues, their bounds, and the offsets at a time.

Ends are queried from masters: a slave that is behind would hide messages that its master has acknowledged. A slave is
queried only for a queue whose master cannot be reached, and the result is marked.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar

import trio

import triomq
from pyspark_rocketmq.clients import Session
from pyspark_rocketmq.errors import BadOption, SourceError, nearest
from pyspark_rocketmq.offsets import QueueId
from pyspark_rocketmq.options import Topics
from pyspark_rocketmq.read.holes import goes_on_at, resumes_after_hole
from pyspark_rocketmq.read.planning import Bounds
from triomq import Backoff, MessageQueue, MQError, PullResult, PullStatus, ReadPreference
from triomq._companions import is_on_broker
from triomq.errors import ConnectFailed, LinkLost, NoNameServer, RequestTimeout, RouteNotFound
from triomq_protocol.flags import PERM_READ
from triomq_protocol.names import MASTER_ID
from triomq_protocol.record.view import iter_records

K = TypeVar("K")
V = TypeVar("V")

AT_ONCE: Final = 64
"""The most queries in flight."""

_NO_ANSWER: Final = (ConnectFailed, LinkLost, RequestTimeout, NoNameServer)

AWAY_LIMIT_S: Final = 5.0
"""How long a topic that a query has read may be missing; as long as the SDK's administrative calls wait for brokers."""

PAUSES: Final = Backoff(first_s=0.05, max_s=1.0)
"""The pauses between two looks for it."""

_NO_DATA = re.compile(
    r"%.*|rmq_sys_.*|RMQ_SYS_.*|SCHEDULE_TOPIC_.*|TBW102|BenchmarkTest|SELF_TEST_TOPIC|OFFSET_MOVED_EVENT"
    r"|TRANS_CHECK_MAX_TIME_TOPIC|.*_REPLY_TOPIC"
)
"""Retry, dead-letter, trace and system topics: excluded unless a query names one of them."""


def data_topics(topics: Iterable[str], nodes: Iterable[str], pattern: str) -> list[str]:
    """The topics whose whole name matches, without those that hold no data.

    Args:
        topics: all topics.
        nodes: names of brokers and clusters; each has its own topic.
        pattern: a regular expression.
    """
    wanted = re.compile(pattern)
    own = set(nodes)
    return sorted(
        each
        for each in topics
        if each not in own and not _NO_DATA.fullmatch(each) and wanted.fullmatch(each) is not None
    )


async def find_queues(session: Session, topics: Topics, *, was_there: bool = False) -> dict[QueueId, bool]:
    """The queues to be read now, and whether the name server has a master for each.

    Name servers forget a topic together with the last of its brokers, so one that is missing is looked up again: for
    `route_wait_s`, or else for :data:`AWAY_LIMIT_S` if it was there.

    Args:
        session: the open client.
        topics: what to read.
        was_there: whether the query has found it before, so that its name is right.

    Raises:
        BadOption: a named topic or queue does not exist.
        MQError: no name server answers.
    """
    wait_s = session.route_wait_s
    if wait_s is None:
        wait_s = AWAY_LIMIT_S if was_there else 0.0
    limit = trio.current_time() + wait_s
    attempts = 0
    with _in_time(session):
        while True:
            found, missing = await _look(session, topics)
            if missing is None:
                return found
            left_s = limit - trio.current_time()
            if left_s <= 0:
                raise BadOption(await _not_there(session, missing, found))
            attempts += 1
            await trio.sleep(min(PAUSES.pause_s(attempts, 0.0), left_s))


async def _look(session: Session, topics: Topics) -> tuple[dict[QueueId, bool], str | QueueId | None]:
    """The queues to be read now, and a topic or a queue that is named and missing."""
    if topics.queues is not None:
        found, missing = await _queues_of(session, sorted({each.topic for each in topics.queues}))
        lacking = missing or min(topics.queues - found.keys(), default=None)
        if lacking is not None:
            return found, lacking
        return {queue: has_master for queue, has_master in found.items() if queue in topics.queues}, None
    if topics.pattern is not None:
        # A topic may be deleted between the list and this query.
        return (await _queues_of(session, await _matching(session, topics.pattern), may_be_missing=True))[0], None
    return await _queues_of(session, topics.names)


async def _matching(session: Session, pattern: str) -> list[str]:
    info = await session.client.admin.cluster_info()
    nodes = [*(info.broker_addr_table or {}), *(info.cluster_addr_table or {})]
    return data_topics(await session.client.admin.topics(), nodes, pattern)


async def _queues_of(
    session: Session, names: Iterable[str], *, may_be_missing: bool = False
) -> tuple[dict[QueueId, bool], str | None]:
    """The queues of topics that can be read, and the first topic that does not exist."""
    found: dict[QueueId, bool] = {}
    for name in names:
        try:
            route = await session.client.admin.route(name)
        except RouteNotFound:
            if may_be_missing:
                continue
            return found, name
        masters = {each.broker_name: MASTER_ID in (each.broker_addrs or {}) for each in route.broker_datas or []}
        for queues in route.queue_datas or []:
            broker = queues.broker_name
            if queues.perm & PERM_READ and broker is not None and broker in masters:
                for number in range(queues.read_queue_nums):
                    found[QueueId(name, broker, number)] = masters[broker]
        if not may_be_missing and not any(queue.topic == name for queue in found):
            raise BadOption(f"no queue of topic {name} can be read; does its setting perm allow reading?")
    return found, None


async def _not_there(session: Session, missing: str | QueueId, found: Iterable[QueueId]) -> str:
    if isinstance(missing, QueueId):
        return (
            f"assign names {missing}, which does not exist, or whose brokers are away; there are {_listed(found)}. If "
            "they are away, wait for them (the option rocketmq.route_wait_s says how long)"
        )
    known = await session.client.admin.topics()
    return (
        f"the name servers {', '.join(session.client.name_servers)} know no topic {missing!r}{nearest(missing, known)}; "
        "create it, or check the options topic and namesrv. If its brokers are away, wait for them (the option "
        "rocketmq.route_wait_s says how long): name servers forget a topic together with the last of its brokers"
    )


def _listed(queues: Iterable[QueueId]) -> str:
    text = "; ".join(map(str, sorted(queues)[:8]))
    return text or "none"


async def is_deleted(session: Session, queue: QueueId) -> bool:
    """Whether the topic of a queue has been deleted from its broker, as its master itself says.

    A missing route does not show it. A master may be registered before name servers have all its topics: a broker of
    RocketMQ whose first registration at a restarted one is that of a single changed topic, or one with very many. And a
    topic may have been deleted on name servers alone. A master that is not registered may have the topic.

    Raises:
        MQError: no name server, or not the master, answers.
    """
    broker = ((await session.client.admin.cluster_info()).broker_addr_table or {}).get(queue.broker_name)
    master = None if broker is None else (broker.broker_addrs or {}).get(MASTER_ID)
    return master is not None and not await is_on_broker(session.client.admin, master, queue.topic)


async def bounds_of(session: Session, queues: Mapping[QueueId, bool]) -> dict[QueueId, Bounds]:
    """The current first offset and end of each queue.

    Args:
        session: the open client.
        queues: the queues, and whether they have a master.

    Raises:
        MQError: no broker of a queue could be reached.
    """

    async def ask(queue: QueueId) -> Bounds:
        consumer, place = session.consumer, message_queue(queue)
        if queues[queue]:
            try:
                end = await consumer.max_offset(place, only_master=True)
                return Bounds(await consumer.min_offset(place, only_master=True), end)
            except _NO_ANSWER:
                # Its master stopped after the name server was queried.
                pass
        return Bounds(await consumer.min_offset(place), await consumer.max_offset(place), is_sure=False)

    return await _each(session, queues, ask)


async def _pull(session: Session, queue: QueueId, at: int, count: int, *, has_master: bool) -> PullResult:
    """An answer without a filter.

    It is the master's, if the query may pull from it: a slave may have deleted its copy, or may not have it yet.

    Args:
        session: the open client.
        queue: the queue.
        at: where to start.
        count: the most messages.
        has_master: whether the queue's master has answered before.
    """
    consumer, place = session.consumer, message_queue(queue)
    if has_master and session.admits_masters:
        try:
            return await consumer.pull(place, at, max_messages=count, read_preference=ReadPreference.MASTER)
        except _NO_ANSWER:
            # It has stopped since.
            pass
    return await consumer.pull(place, at, max_messages=count)


async def first_held(
    session: Session, starts: Mapping[QueueId, int], bounds: Mapping[QueueId, Bounds]
) -> dict[QueueId, int]:
    """The first offset of each queue whose message still exists.

    Brokers delete a file of their log first, and the entries of its messages in the queues up to seconds later.

    Args:
        session: the open client.
        starts: the offsets at which the queues seem to start.
        bounds: the bounds of the queues.
    """

    async def look(queue: QueueId) -> int:
        at = starts[queue]
        while True:
            result = await _pull(session, queue, at, 1, has_master=bounds[queue].is_sure)
            if (later := goes_on_at(result, at)) is None:
                return at
            at = later

    return await _each(session, starts, look)


async def committed_of(session: Session, queues: Iterable[QueueId]) -> dict[QueueId, int | None]:
    """The group's committed offset in each queue; None if it has none."""
    return await _each(session, queues, lambda queue: session.consumer.committed(message_queue(queue)))


async def offsets_at(
    session: Session, bounds: Mapping[QueueId, Bounds], times: Mapping[QueueId, int]
) -> dict[QueueId, int | None]:
    """The first offset stored at a time or later, in each queue; None if there is none within its bounds.

    Args:
        session: the open client.
        bounds: the bounds of the queues.
        times: the times for some of the queues, in ms since 1970.
    """
    return await _each(session, times, lambda queue: _offset_at(session, queue, bounds[queue], times[queue]))


async def _offset_at(session: Session, queue: QueueId, bounds: Bounds, time_ms: int) -> int | None:
    if bounds.start >= bounds.end:
        return None
    # Brokers answer with the nearest message, on either side, and with any of those of one ms; for the previous ms, the
    # answer cannot be after the first one wanted.
    at = max(bounds.start, await session.consumer.offset_by_time(message_queue(queue), max(0, time_ms - 1)))
    while at < bounds.end:
        result = await _pull(session, queue, at, 32, has_master=bounds.is_sure)
        if result.status is not PullStatus.FOUND:
            if (later := resumes_after_hole(result, at)) is None:
                return at
            at = later
            continue
        for record in iter_records(result.body):
            if record.store_timestamp >= time_ms:
                # A page may contain messages that were stored after the bounds were queried.
                return record.queue_offset if record.queue_offset < bounds.end else None
        at = result.next_offset
    return None


async def row_bytes(
    session: Session, starts: Mapping[QueueId, int], bounds: Mapping[QueueId, Bounds]
) -> dict[QueueId, float]:
    """The stored size of a message of each queue in bytes, sampled where the next one will be read.

    Args:
        session: the open client.
        starts: queue -> the offset to sample.
        bounds: the bounds of the queues.
    """

    async def look(queue: QueueId) -> float:
        result = await _pull(session, queue, starts[queue], 32, has_master=bounds[queue].is_sure)
        sizes = [record.size_bytes for record in iter_records(result.body)]
        return sum(sizes) / len(sizes) if sizes else 0.0

    return await _each(session, starts, look)


async def commit_offsets(session: Session, offsets: Mapping[QueueId, int], limit_s: float) -> dict[QueueId, str]:
    """Commit the group's offsets; they are for monitoring only, so nothing is raised.

    Returns:
        The queues whose offsets are not committed, each with the reason.
    """
    failures = dict.fromkeys(offsets, f"not all brokers answered within {limit_s:g} s")

    async def commit(queue: QueueId) -> None:
        try:
            await session.consumer.commit(message_queue(queue), offsets[queue])
        except MQError as error:
            failures[queue] = str(error)
        else:
            del failures[queue]

    with trio.move_on_after(limit_s):
        await _each(session, offsets, commit)
    return failures


@contextmanager
def _in_time(session: Session) -> Iterator[None]:
    with trio.move_on_after(session.plan_limit_s) as scope:
        yield
    if scope.cancelled_caught:
        raise SourceError(
            f"name servers and brokers have not answered within {session.plan_limit_s:g} s; are they overloaded?"
        )


def message_queue(queue: QueueId) -> MessageQueue:
    """A queue as the SDK names it."""
    return triomq.MessageQueue(queue.topic, queue.broker_name, queue.queue_id)


async def _each(session: Session, keys: Iterable[K], ask: Callable[[K], Awaitable[V]]) -> dict[K, V]:
    """Query all of them concurrently; the first failure is raised as it is."""
    answers: dict[K, V] = {}
    failures: list[MQError] = []
    limiter = trio.CapacityLimiter(AT_ONCE)

    async def one(key: K) -> None:
        async with limiter:
            try:
                answers[key] = await ask(key)
            except MQError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

    with _in_time(session):
        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(one, key)
    if failures:
        raise failures[0]
    return answers
