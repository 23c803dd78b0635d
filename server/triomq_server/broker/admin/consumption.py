"""Operators' requests about the progress of groups: 208, 303, 317 (docs/protocol/broker-api.md §14; upstream:
AdminBrokerProcessor)."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from functools import partial

from triomq_protocol.codes import FIRST_VERSION_5, RequestCode, ResponseCode
from triomq_protocol.requests import (
    ConsumeStats,
    ConsumeStatsList,
    GetConsumeStatsInBrokerRequest,
    GetConsumeStatsRequest,
    MessageQueue,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueryConsumeTimeSpanRequest,
    QueueTimeSpan,
)
from triomq_protocol.wire.command import Command
from triomq_server.broker.broker import Broker
from triomq_server.wire import Handlers, Link

Slices = Generator[None, None, Command]

QUEUES_PER_SLICE = 256
"""After how many queues, of all topics and groups together, other requests have their turns. A topic and a group count as
one more each."""


class _Work:
    """The work of one request since others had their turns."""

    def __init__(self) -> None:
        self._count = 0

    def ends_slice(self) -> bool:
        """Count one more queue, topic or group; true if others have their turns now."""
        self._count = (self._count + 1) % QUEUES_PER_SLICE
        return not self._count


def register(handlers: Handlers, broker: Broker) -> None:
    """Put the functions of this module into the table of request codes."""
    handlers.sliced[RequestCode.GET_CONSUME_STATS] = partial(consume_stats, broker)
    handlers.sliced[RequestCode.QUERY_CONSUME_TIME_SPAN] = partial(consume_time_span, broker)
    handlers.sliced[RequestCode.GET_BROKER_CONSUME_STATS] = partial(broker_consume_stats, broker)


# -- 208 and 317


def consume_stats(broker: Broker, _link: Link, command: Command) -> Slices:
    """208: what one group has left to read of one topic or of all topics it has offsets of."""
    header = command.header(GetConsumeStatsRequest)
    group = header.consumer_group
    topics = [header.topic] if header.topic else (yield from broker.offsets.topics_of(group))
    pulled = command.version >= FIRST_VERSION_5
    stats, work = ConsumeStats(), _Work()
    subscribed = _subscribed(broker, group)
    for topic in topics:
        if work.ends_slice():
            yield
        config = broker.topics.get(topic)
        if config is None or not (subscribed is None or topic in subscribed):
            continue
        stats.consume_tps += broker.stats.group_get_tps(topic, group)
        offsets = _offsets(broker, group, topic, config.read_queue_nums, work, pulled=pulled)
        stats.offset_table.update((yield from offsets))
    return command.answer(body=(yield from stats.encode_in_slices()))


def broker_consume_stats(broker: Broker, _link: Link, command: Command) -> Slices:
    """317: the same for every configured group, one entry per topic."""
    only_order = command.header(GetConsumeStatsInBrokerRequest).is_order
    groups: list[bytes] = []
    total_diff = 0
    work = _Work()
    topics_of = yield from broker.offsets.topics_by_group()
    for group in tuple(broker.groups.table):
        if work.ends_slice():
            yield
        entries: list[bytes] = []
        subscribed = _subscribed(broker, group)
        for topic in topics_of.get(group, ()):
            if work.ends_slice():
                yield
            config = broker.topics.get(topic)
            if config is None or not (subscribed is None or topic in subscribed) or (only_order and not config.order):
                continue
            offsets = yield from _offsets(broker, group, topic, config.write_queue_nums, work)
            total_diff += sum(offset.broker_offset - offset.consumer_offset for offset in offsets.values())
            tps = broker.stats.group_get_tps(topic, group)
            stats = ConsumeStats(consume_tps=tps, offset_table=offsets)
            entries.append((yield from stats.encode_in_slices()))
        groups.append(ConsumeStatsList.encode_group(group, entries))
        if entries:
            yield  # they may be many megabytes
    return command.answer(body=ConsumeStatsList.encode_groups(broker.address, groups, total_diff))


def _subscribed(broker: Broker, group: str) -> Mapping[str, object] | None:
    """What an online group subscribes, by topic; None for all topics: it is offline, or subscribes none."""
    online = broker.clients.consumers.get(group)
    return online.subscriptions if online is not None and online.subscriptions else None


def _offsets(
    broker: Broker, group: str, topic: str, queues: int, work: _Work, *, pulled: bool = False
) -> Generator[None, None, dict[MessageQueue, OffsetWrapper]]:
    table = {}
    for queue_id in range(queues):
        if work.ends_slice():
            yield
        offset = _offset(broker, group, topic, queue_id)
        if pulled:
            offset.pull_offset = offset.consumer_offset  # pulled messages are not counted here
        table[MessageQueue(topic, broker.config.broker_name, queue_id)] = offset
    return table


def _offset(broker: Broker, group: str, topic: str, queue_id: int) -> OffsetWrapper:
    consumed = max(broker.offsets.query(group, topic, queue_id), 0)
    last_ms = broker.store.store_time_at(topic, queue_id, consumed - 1) if consumed > 0 else 0
    return OffsetWrapper(
        broker_offset=max(broker.store.queue_bounds(topic, queue_id)[1], 0),
        consumer_offset=consumed,
        last_timestamp=max(last_ms, 0),
    )


# -- 303


def consume_time_span(broker: Broker, _link: Link, command: Command) -> Slices:
    """303: the store times of each queue's first, last and last consumed message, and how late the group is."""
    header = command.header(QueryConsumeTimeSpanRequest)
    config = broker.topics.get(header.topic)
    if config is None:
        return command.answer(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
    spans = []
    for queue_id in range(config.write_queue_nums):
        spans.append(_time_span(broker, header.group, header.topic, queue_id))
        if not (queue_id + 1) % QUEUES_PER_SLICE:
            yield
    body = QueryConsumeTimeSpanBody(consume_time_span_set=spans)
    return command.answer(body=(yield from body.encode_in_slices()))


def _time_span(broker: Broker, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
    store = broker.store
    consumed = broker.offsets.query(group, topic, queue_id)
    low, high = store.queue_bounds(topic, queue_id)
    first_ms = store.earliest_time(topic, queue_id)
    last_ms = store.store_time_at(topic, queue_id, high - 1) if high > 0 else -1
    consumed_ms = store.store_time_at(topic, queue_id, consumed - 1) if consumed > 0 else first_ms
    delay_ms = 0
    if consumed < high:
        next_ms = store.store_time_at(topic, queue_id, consumed if broker.compat_49 else max(consumed, low))
        delay_ms = broker.clock() - next_ms if next_ms >= 0 or broker.compat_49 else 0
    return QueueTimeSpan(
        message_queue=MessageQueue(topic, broker.config.broker_name, queue_id),
        min_time_stamp=first_ms,
        min_time_stamp_str=_local_text(first_ms),
        max_time_stamp=last_ms,
        max_time_stamp_str=_local_text(last_ms),
        consume_time_stamp=consumed_ms,
        consume_time_stamp_str=_local_text(consumed_ms),
        delay_time=delay_ms,
    )


def _local_text(timestamp_ms: int) -> str:
    """Local time as the operators' tools read it: `yyyy-MM-dd#HH:mm:ss:SSS`."""
    seconds, ms = divmod(timestamp_ms, 1000)
    return f"{time.strftime('%Y-%m-%d#%H:%M:%S', time.localtime(seconds))}:{ms:03d}"
