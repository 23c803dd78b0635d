"""Requests that ask for or set offsets: codes 14, 15, 29, 30, 31, 32, 43 and 45.

They answer to `ConsumerManageProcessor` and the offset part of `AdminBrokerProcessor`; rules:
docs/protocol/broker-api.md §7, docs/protocol/store.md §17.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.names import MAX_NAME_CHARACTERS
from triomq_protocol.requests.offset import (
    GetEarliestMsgStoretimeRequest,
    GetEarliestMsgStoretimeResponse,
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    QueryConsumerOffsetRequest,
    QueryConsumerOffsetResponse,
    SearchOffsetRequest,
    SearchOffsetResponse,
    UpdateConsumerOffsetRequest,
    UpdateConsumerOffsetResponse,
)
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.fastjson import SMALL_KEY_MOST
from triomq_protocol.wire.header import Header
from triomq_server.broker.broker import Broker
from triomq_server.broker.tables.offsets.committed import FULL_REMARK, MOST_UNEXPECTED, UNKNOWN_OFFSET
from triomq_server.broker.tables.offsets.resets import FIELD, KEYS_PER_SLICE
from triomq_server.replication.metadata import LOG_END_FIELD
from triomq_server.wire import Handlers, Link

NOT_COPIED_REMARK = "no slave is known to have copies of the delayed messages that were delivered before the last start"
NOT_FOUND_REMARK = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


def register(handlers: Handlers, broker: Broker) -> None:
    """Serve the codes of this module."""
    plain = handlers.plain
    plain[RequestCode.QUERY_CONSUMER_OFFSET] = partial(query_consumer_offset, broker)
    plain[RequestCode.UPDATE_CONSUMER_OFFSET] = partial(update_consumer_offset, broker)
    plain[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = partial(search_offset, broker)
    plain[RequestCode.GET_MAX_OFFSET] = partial(get_max_offset, broker)
    plain[RequestCode.GET_MIN_OFFSET] = partial(get_min_offset, broker)
    plain[RequestCode.GET_EARLIEST_MSG_STORETIME] = partial(get_earliest_time, broker)
    handlers.sliced[RequestCode.GET_ALL_CONSUMER_OFFSET] = partial(get_all_consumer_offsets, broker)
    plain[RequestCode.GET_ALL_DELAY_OFFSET] = partial(get_all_delay_offsets, broker)


def query_consumer_offset(broker: Broker, _link: Link, command: Command) -> Command:
    """Code 14: the committed offset; 0 for a new group while everything ever written to the queue is still at hand."""
    header = command.header(QueryConsumerOffsetRequest)
    offset = broker.offsets.query(header.consumer_group, header.topic, header.queue_id)
    if offset < 0:
        if not _everything_at_hand(broker, header.topic, header.queue_id):
            return command.answer(ResponseCode.QUERY_NOT_FOUND, NOT_FOUND_REMARK, Header())
        offset = 0
    return command.answer(header=QueryConsumerOffsetResponse(offset=offset))


def _everything_at_hand(broker: Broker, topic: str, queue_id: int) -> bool:
    """Whether the queue begins at 0 and its first message is not far behind the log's end, or there is none."""
    store = broker.store
    if store.queue_bounds(topic, queue_id)[0] > 0:
        return False
    first = store.record_offset_at(topic, queue_id, 0)
    return first < 0 or store.in_memory(first)


def update_consumer_offset(broker: Broker, _link: Link, command: Command) -> Command:
    """Code 15: any offset for a queue; mostly one-way. Slaves take it too.

    Of groups, topics and queues that the broker does not know, a limited number is taken; numbers that no queue can have
    are refused, and offsets of further queues when the memory for offsets is used up.
    """
    header = command.header(UpdateConsumerOffsetRequest)
    if not (0 <= header.queue_id <= SMALL_KEY_MOST or broker.compat_49):
        remark = f"queueId[{header.queue_id}] cannot be a queue's number: they are 0 to {SMALL_KEY_MOST}"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark, Header())
    if not (_is_expected(broker, header) or broker.compat_49):
        offsets = broker.offsets
        if offsets.query(header.consumer_group, header.topic, header.queue_id) == UNKNOWN_OFFSET:
            if max(len(header.topic), len(header.consumer_group)) > MAX_NAME_CHARACTERS:
                remark = f"the name of the topic or of the group has more than {MAX_NAME_CHARACTERS} characters"
                return command.answer(ResponseCode.SYSTEM_ERROR, remark, Header())
            if offsets.unexpected >= MOST_UNEXPECTED:
                remark = f"topic[{header.topic}], its queue or the group[{header.consumer_group}] is not known"
                return command.answer(ResponseCode.SYSTEM_ERROR, remark, Header())
            offsets.unexpected += 1
    if not broker.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset):
        return command.answer(ResponseCode.SYSTEM_ERROR, FULL_REMARK, Header())
    return command.answer(header=UpdateConsumerOffsetResponse())


def _is_expected(broker: Broker, header: UpdateConsumerOffsetRequest) -> bool:
    """Whether the broker knows group, topic and queue; a client that pulls has made it know them."""
    return header.consumer_group in broker.groups.table and 0 <= header.queue_id < _queues(broker, header.topic)


def _queues(broker: Broker, topic: str) -> int:
    """How many queues a topic has; 0 for one that the broker does not know."""
    config = broker.topics.table.get(topic)
    return 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)


def count_unexpected(broker: Broker) -> Generator[None, None, None]:
    """Count the offsets of what the broker does not know, or each start would take further ones; in slices.

    Those in deleted topics are not counted, as long as their removed queues are remembered.
    """
    offsets = broker.offsets
    before, total, count = offsets.unexpected, 0, 0
    deleted = {topic for topic, *_ in broker.store.queue_removal.removed()}
    for key in list(offsets.table):
        topic, _, group = key.partition("@")
        queues = offsets.table.get(key, {})
        if group not in broker.groups.table:
            total += len(queues)
        elif topic not in deleted:
            known = _queues(broker, topic)
            total += sum(not 0 <= queue_id < known for queue_id in queues)
        count += 1 + len(queues)
        if count > KEYS_PER_SLICE:
            count = 0
            yield
    offsets.unexpected = total + offsets.unexpected - before  # with those taken in the meantime


def search_offset(broker: Broker, _link: Link, command: Command) -> Command:
    """Code 29: the offset nearest to a store time."""
    header = command.header(SearchOffsetRequest)
    offset = broker.store.offset_by_time(header.topic, header.queue_id, header.timestamp)
    return command.answer(header=SearchOffsetResponse(offset=offset))


def get_max_offset(broker: Broker, _link: Link, command: Command) -> Command:
    """Code 30: the next offset to be written."""
    header = command.header(GetMaxOffsetRequest)
    return command.answer(
        header=GetMaxOffsetResponse(offset=broker.store.queue_bounds(header.topic, header.queue_id)[1])
    )


def get_min_offset(broker: Broker, _link: Link, command: Command) -> Command:
    """Code 31: the oldest offset that can still be read."""
    header = command.header(GetMinOffsetRequest)
    return command.answer(
        header=GetMinOffsetResponse(offset=broker.store.queue_bounds(header.topic, header.queue_id)[0])
    )


def get_earliest_time(broker: Broker, _link: Link, command: Command) -> Command:
    """Code 32: the store time of the queue's oldest message, -1 if there is none."""
    header = command.header(GetEarliestMsgStoretimeRequest)
    time_ms = broker.store.earliest_time(header.topic, header.queue_id)
    return command.answer(header=GetEarliestMsgStoretimeResponse(timestamp=time_ms))


def get_all_consumer_offsets(broker: Broker, _link: Link, command: Command) -> Generator[None, None, Command]:
    """Code 43: every committed offset, for slaves; ours learn besides which of them were set back, and when."""
    body, resets = yield from broker.offsets.for_slaves()
    return command.answer(fields=None if resets is None else {FIELD: resets}, body=body)


def get_all_delay_offsets(broker: Broker, _link: Link, command: Command) -> Command:
    """Code 45: how far each delay level has been delivered, for slaves.

    Ours also ask for the log offset that the copies precede. Others get what all slaves have, or with an
    error to keep what they know.
    """
    offsets, links = broker.delay_offsets, broker.replication.links
    if LOG_END_FIELD in (command.fields or {}) and not broker.compat_49:
        end = min(offsets.log_end, broker.store.log_max_offset)
        return command.answer(fields={LOG_END_FIELD: str(end)}, body=offsets.encode())
    if broker.is_slave and not links:
        return command.answer(body=offsets.encode())  # for a master that comes back
    body = offsets.for_rocketmq_slaves(min((link.acknowledged_offset or 0 for link in links), default=0))
    if body is None:
        return command.answer(ResponseCode.SYSTEM_ERROR, NOT_COPIED_REMARK, Header())
    return command.answer(body=body)
