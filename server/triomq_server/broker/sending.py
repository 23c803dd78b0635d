"""Sends: codes 10, 310 and 320. What is checked, what is changed in a message before it is stored, what is answered.

The path of a plain message is short and never waits; where the role or the flush type asks for more, the answer is parked
until disk and slave have the bytes. It answers to `SendMessageProcessor`; rules: broker-api.md §4, messages.md §3.1.
"""

from __future__ import annotations

from datetime import datetime

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.command import Command
from triomq_protocol.flags import MULTI_TAGS, PERM_WRITE, TOPIC_UNIT, TOPIC_UNIT_SUB, perm_text
from triomq_protocol.message_id import offset_message_id
from triomq_protocol.properties import (
    KEYS,
    TAGS,
    UNIQ_KEY,
    broker_properties,
    get_property,
)
from triomq_protocol.requests.registration import TopicConfig
from triomq_protocol.requests.send import SendMessageRequest, SendMessageRequestV2
from triomq_server.store import AppendResult, AppendStatus, NewRecord
from triomq_server.wire import Handlers, Link

from .refusals import FAQ, RefusedError
from .rewriting import is_delayed_or_half, new_batch, special_record
from .service import Broker
from .settling import Settling, waits_for_store
from .topics import DLQ_PREFIX, FORBIDDEN_TO_SEND, PERM_READ_WRITE, RETRY_PREFIX, topic_name_remark

SendRequest = SendMessageRequest | SendMessageRequestV2

VERSION_WITH_MAX_RECONSUME_TIMES = 121
"""Clients from 3.4.9 on may limit the retries of a message themselves."""

_STATUS_CODES = {
    AppendStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    AppendStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    AppendStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
}
_STATUS_REMARKS = {
    AppendStatus.CREATE_MAPEDFILE_FAILED: "create mapped file failed, server is busy or broken.",
    AppendStatus.OS_PAGECACHE_BUSY: "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
    AppendStatus.UNKNOWN_ERROR: "UNKNOWN_ERROR",
}


def register(handlers: Handlers, broker: Broker) -> None:
    """Serve codes 10, 310 and 320."""
    sending = Sending(broker)
    handlers.plain[RequestCode.SEND_MESSAGE] = sending.send_v1
    handlers.plain[RequestCode.SEND_MESSAGE_V2] = sending.send_v2
    handlers.plain[RequestCode.SEND_BATCH_MESSAGE] = sending.send_v2
    broker.on_config_change.append(sending.read_config)


class Sending:
    """Takes messages from producers. What it needs of the configuration is kept at hand; `read_config` renews it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self._topics = broker.topics.table
        self._settling = Settling(broker)
        self.read_config()

    def read_config(self) -> None:
        """Take over settings that request 25 may have changed."""
        config = self._broker.config
        self._cluster = config.broker_cluster_name
        self._fields = {"MSG_REGION": config.region_id, "TRACE_ON": "true" if config.trace_on else "false"}
        # Rare conditions that every send would have to ask for; one flag keeps them off the common path.
        self._restricted = (
            bool(config.start_accept_send_request_time_stamp) or not config.broker_permission & PERM_WRITE
        )
        self._settling.read_config()

    # -- requests

    def send_v1(self, link: Link, command: Command) -> bytes | Command | None:
        """Code 10: the header with long names."""
        return self._send(link, command, command.header(SendMessageRequest))

    def send_v2(self, link: Link, command: Command) -> bytes | Command | None:
        """Codes 310 and 320: the header with one-letter names; the header's flag, not the code, makes a batch."""
        return self._send(link, command, command.header(SendMessageRequestV2))

    def _send(self, link: Link, command: Command, header: SendRequest) -> bytes | Command | None:
        try:
            if header.batch:
                return self._send_batch(link, command, header)
            return self._send_one(link, command, header)
        except RefusedError as refused:
            return command.answer(refused.code, refused.remark, fields=self._fields)

    def _send_one(self, link: Link, command: Command, header: SendRequest) -> bytes | None:
        broker = self._broker
        topic = header.topic
        topic_config = self._topics.get(topic)
        if topic_config is None or self._restricted or topic in FORBIDDEN_TO_SEND:
            topic_config = self._checked_topic(header, topic_config)
        queue_id = header.queue_id
        if not 0 <= queue_id < topic_config.write_queue_nums:
            queue_id = self._checked_queue(link, queue_id, topic_config)
        text = header.properties or ""
        dead = False
        if topic.startswith(RETRY_PREFIX):
            dead = self._spent(command, header)
            if dead:
                topic, queue_id = DLQ_PREFIX + topic[len(RETRY_PREFIX) :], 0
                topic_config = broker.topics.ensure(topic, 1, PERM_READ_WRITE)
        record = NewRecord(
            topic,
            queue_id,
            command.body,
            b"",
            header.flag,
            header.sys_flag if topic_config.topic_filter_type == "SINGLE_TAG" else header.sys_flag | MULTI_TAGS,
            header.born_timestamp,
            link.peer_host,
            broker.store_host,
            header.reconsume_times or 0,
        )
        if dead or is_delayed_or_half(text):
            special_record(record, text, broker.config, dead=dead)
        else:
            record.properties = broker_properties(text, self._cluster).encode("utf-8", "replace")
            record.tags = get_property(text, TAGS)
            record.keys = get_property(text, KEYS)
            record.uniq_key = get_property(text, UNIQ_KEY)
        result = self._store.append(record)
        if result.status is not AppendStatus.PUT_OK:
            raise self._not_stored(result)
        broker.stats.count_put(record.topic, 1, result.size_bytes)
        message_id = offset_message_id(broker.store_host, result.physical_offset)
        settling = self._settling
        if settling.needed and waits_for_store(text):
            return settling.park(link, command, message_id, queue_id, result)
        return settling.answer(command, message_id, queue_id, result.queue_offset)

    def _send_batch(self, link: Link, command: Command, header: SendRequest) -> bytes | None:
        broker = self._broker
        topic_config = self._checked_topic(header, self._topics.get(header.topic))
        queue_id = self._checked_queue(link, header.queue_id, topic_config)
        if not command.body:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, "a batch without a body")
        batch = new_batch(header, command.body, self._cluster)
        if batch is None:
            raise self._not_stored(AppendResult(AppendStatus.MESSAGE_ILLEGAL))
        batch.queue_id = queue_id
        batch.born_host = link.peer_host
        batch.store_host = broker.store_host
        if topic_config.topic_filter_type != "SINGLE_TAG":
            batch.sys_flag |= MULTI_TAGS
        result = self._store.append_batch(batch)
        if result.status is not AppendStatus.PUT_OK:
            raise self._not_stored(result)
        offsets = result.message_ids
        broker.stats.count_put(batch.topic, len(offsets), result.size_bytes)
        message_ids = ",".join([offset_message_id(broker.store_host, offset) for offset in offsets])
        settling = self._settling
        if settling.needed and waits_for_store(header.properties or ""):
            return settling.park(link, command, message_ids, queue_id, result)
        return settling.answer(command, message_ids, queue_id, result.queue_offset)

    # -- checks, in the order of broker-api.md §4.3

    def _checked_topic(self, header: SendRequest, known: TopicConfig | None) -> TopicConfig:
        """The topic's configuration, made if need be; raises RefusedError."""
        broker, config, topic = self._broker, self._broker.config, header.topic
        begin_ms = config.start_accept_send_request_time_stamp
        if broker.clock() < begin_ms:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {_local_time(begin_ms)}")
        if not config.broker_permission & PERM_WRITE and known is not None and known.order:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] sending message is forbidden")
        remark = topic_name_remark(topic)
        if remark is not None:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, remark)
        if topic in FORBIDDEN_TO_SEND:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        if known is not None:
            return known
        if broker.is_slave:
            # The store would refuse the message anyway; a slave's table is a copy and gets no topics of its own.
            raise self._not_stored(AppendResult(AppendStatus.SERVICE_NOT_AVAILABLE))
        made = self._made_topic(header)
        if made is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!{FAQ}")
        return made

    def _made_topic(self, header: SendRequest) -> TopicConfig | None:
        """Auto-creation (broker-api.md §4.4)."""
        topics, topic = self._broker.topics, header.topic
        is_retry = topic.startswith(RETRY_PREFIX)
        sys_flag = 0
        if header.unit_mode:
            sys_flag = TOPIC_UNIT_SUB if is_retry else TOPIC_UNIT
        made = topics.create_for_send(topic, header.default_topic, header.default_topic_queue_nums, sys_flag)
        if made is None and is_retry:
            return topics.ensure(topic, 1, PERM_READ_WRITE, sys_flag)
        return made

    def _checked_queue(self, link: Link, queue_id: int, topic: TopicConfig) -> int:
        """The queue to write to; a negative wish lets the broker choose. Raises RefusedError."""
        if queue_id >= max(topic.read_queue_nums, topic.write_queue_nums):
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{queue_id}] is illegal, {topic_text(topic)} Producer: {link.peer}",
            )
        if queue_id >= 0:
            return queue_id
        if topic.write_queue_nums <= 0:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"topic[{topic.topic_name}] has no queue to write to")
        return self._broker.chance.randrange(topic.write_queue_nums)

    def _spent(self, command: Command, header: SendRequest) -> bool:
        """Whether a message for a retry topic has been tried often enough to be a dead letter; raises RefusedError."""
        name = header.topic[len(RETRY_PREFIX) :]
        group = self._broker.groups.find(name)
        if group is None:
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name} {FAQ}")
        limit = group.retry_max_times
        if command.version >= VERSION_WITH_MAX_RECONSUME_TIMES and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        return (header.reconsume_times or 0) >= limit

    def _not_stored(self, result: AppendResult) -> RefusedError:
        """The answer to a message that the store did not take (broker-api.md §4.5)."""
        self._broker.stats.put_failures += 1
        status = result.status
        code = _STATUS_CODES.get(status, ResponseCode.SYSTEM_ERROR)
        if code == ResponseCode.MESSAGE_ILLEGAL:
            limit = self._broker.config.store.max_message_size
            remark = illegal_remark(limit)
        elif code == ResponseCode.SERVICE_NOT_AVAILABLE:
            remark = unavailable_remark(self._broker)
        else:
            remark = _STATUS_REMARKS[status]
        return RefusedError(code, remark)


def topic_text(topic: TopicConfig) -> str:
    """A topic's configuration as remarks show it (`TopicConfig.toString`)."""
    return (
        f"TopicConfig [topicName={topic.topic_name}, readQueueNums={topic.read_queue_nums}, "
        f"writeQueueNums={topic.write_queue_nums}, perm={perm_text(topic.perm)}, "
        f"topicFilterType={topic.topic_filter_type}, topicSysFlag={topic.topic_sys_flag}, "
        f"order={'true' if topic.order else 'false'}]"
    )


def illegal_remark(max_body_bytes: int) -> str:
    """The remark of code 13."""
    return (
        "the message is illegal, maybe msg body or properties length not matched. "
        f"msg body length limit {max_body_bytes}B, msg properties length limit 32KB."
    )


def unavailable_remark(broker: Broker) -> str:
    """The remark of code 14: three fractions of used disk, -1 where there is no such directory."""
    log, queues, index = broker.disk_ratios()
    return (
        "service not available now. It may be caused by one of the following reasons: the broker's disk is full "
        f"[CL: {log:5.2f} CQ: {queues:5.2f} INDEX: {index:5.2f}], messages are put to the slave, "
        "message store has been shut down, etc."
    )


def _local_time(now_ms: int) -> str:
    """`yyyy-MM-dd HH:mm:ss,SSS` in local time (`UtilAll.timeMillisToHumanString2`)."""
    moment = datetime.fromtimestamp(now_ms // 1000).astimezone()
    return f"{moment:%Y-%m-%d %H:%M:%S},{now_ms % 1000:03d}"
