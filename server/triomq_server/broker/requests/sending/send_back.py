"""Messages that a consumer sends back: code 36. They are delivered again later, or become dead letters.

The message is read from the log and stored once more, under the group's retry or dead letter topic. It answers to
`SendMessageProcessor.asyncConsumerSendMsgBack`; rules: docs/protocol/broker-api.md §9, docs/protocol/messages.md §3.1
and §10.
"""

from __future__ import annotations

from functools import partial

from triomq_protocol.codes import FAQ, RequestCode, ResponseCode
from triomq_protocol.errors import BodyError
from triomq_protocol.flags import PERM_WRITE, READ_WRITE_PERM, TOPIC_UNIT_SUB
from triomq_protocol.names import DELAY, DLQ_PREFIX, ORIGIN_MESSAGE_ID, RETRY_PREFIX, RETRY_TOPIC, WAIT
from triomq_protocol.record.view import RecordView
from triomq_protocol.requests.send_back import ConsumerSendMsgBackRequest
from triomq_protocol.wire.command import Command
from triomq_server.broker.broker import Broker
from triomq_server.broker.refusals import INT32_MOST, RefusedError
from triomq_server.broker.requests.sending.checks import VERSION_WITH_MAX_RECONSUME_TIMES
from triomq_server.broker.requests.sending.rewriting import store_properties
from triomq_server.broker.tables.topics import QUEUES_LIMIT, topic_name_remark
from triomq_server.store import AppendStatus, NewRecord
from triomq_server.wire import Handlers, Link

FIRST_AUTOMATIC_LEVEL = 3
"""A message given back without a delay level waits at this level the first time, one level more each further time."""


def register(handlers: Handlers, broker: Broker) -> None:
    """Serve code 36."""
    handlers.plain[RequestCode.CONSUMER_SEND_MSG_BACK] = partial(take_back, broker)


def take_back(broker: Broker, _link: Link, command: Command) -> Command:
    """Code 36; waits for neither disk nor slave."""
    header = command.header(ConsumerSendMsgBackRequest)
    try:
        _take_back(broker, command, header)
    except RefusedError as refused:
        return command.answer(refused.code, refused.remark)
    return command.answer()


def _take_back(broker: Broker, command: Command, header: ConsumerSendMsgBackRequest) -> None:
    """Check in 4.9's order, then store; raises RefusedError."""
    name = header.group
    group = broker.groups.find(name)
    if group is None:
        remark = broker.groups.full_remark(name) or f"subscription group not exist, {name} {FAQ}"
        raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    config = broker.config
    if not config.broker_permission & PERM_WRITE:
        raise RefusedError(ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] sending message is forbidden")
    if group.retry_queue_nums <= 0:
        return
    topic = RETRY_PREFIX + name
    if topic_name_remark(topic) is not None:
        raise RefusedError(ResponseCode.SYSTEM_ERROR, f"topic[{topic}] not exist")
    sys_flag = TOPIC_UNIT_SUB if header.unit_mode else 0
    topic_config = broker.topics.ensure_retry(name, group.retry_queue_nums, sys_flag)
    if not topic_config.perm & PERM_WRITE:
        raise RefusedError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] sending message is forbidden")
    given_back = _find(broker, header.offset)
    limit = group.retry_max_times
    if command.version >= VERSION_WITH_MAX_RECONSUME_TIMES and header.max_reconsume_times is not None:
        limit = header.max_reconsume_times
    times = given_back.reconsume_times
    if header.delay_level < 0 or times >= limit:
        topic, queue_id, level = DLQ_PREFIX + name, 0, 0
        broker.topics.ensure(topic, 1, READ_WRITE_PERM)
    else:
        queue_id = broker.chance.randrange(min(group.retry_queue_nums, QUEUES_LIMIT))
        level = header.delay_level or min(FIRST_AUTOMATIC_LEVEL + times, INT32_MOST)
    _store_again(broker, given_back, topic, queue_id, level)
    broker.stats.count_send_back(given_back.topic, name)


def _find(broker: Broker, physical_offset: int) -> RecordView:
    data = broker.store.record_at(physical_offset)
    try:
        if data is not None:
            return RecordView(data)
    except BodyError:
        pass
    raise RefusedError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {physical_offset}")


def _store_again(broker: Broker, given_back: RecordView, topic: str, queue_id: int, level: int) -> None:
    properties = given_back.properties
    properties.setdefault(RETRY_TOPIC, given_back.topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, given_back.offset_message_id)
    properties[WAIT] = "false"
    properties[DELAY] = str(level)
    record = NewRecord(
        topic,
        queue_id,
        given_back.body,
        b"",
        given_back.flag,
        given_back.sys_flag,
        given_back.born_timestamp,
        given_back.born_host_bytes,
        broker.store_host,
        # In Java the next one is negative, and the message is retried without end.
        min(given_back.reconsume_times + 1, INT32_MOST),
    )
    store_properties(record, properties, broker.config)
    result = broker.store.append(record)
    if result.status is not AppendStatus.PUT_OK:
        broker.stats.put_failures += 1
        raise RefusedError(ResponseCode.SYSTEM_ERROR, result.status.name)
    broker.stats.count_put(record.topic, 1, result.size_bytes)
