"""The checks before a message is stored, and the remarks of refusals.

Sends and replies share these checks. They answer to `AbstractSendMessageProcessor.msgCheck` and `TopicConfigManager`;
rules: docs/protocol/broker-api.md §4.3-4.5.
"""

from __future__ import annotations

import logging
from datetime import datetime

from triomq_protocol.codes import FAQ, ResponseCode
from triomq_protocol.errors import HeaderError
from triomq_protocol.flags import PERM_WRITE, READ_WRITE_PERM, TOPIC_UNIT, TOPIC_UNIT_SUB, perm_text
from triomq_protocol.names import FORBIDDEN_TOPICS, RETRY_PREFIX, TRAN_MSG
from triomq_protocol.properties import get_property
from triomq_protocol.record.layout import TRANSACTION_PREPARED
from triomq_protocol.requests.registration import TopicConfig
from triomq_protocol.requests.send import SendMessageRequest, SendMessageRequestV2
from triomq_protocol.wire.command import Command
from triomq_server.broker.broker import Broker
from triomq_server.broker.refusals import RefusedError, check_transactions
from triomq_server.broker.tables.topics import topic_name_remark
from triomq_server.config import StoreConfig
from triomq_server.store import AppendStatus
from triomq_server.wire import Link

_log = logging.getLogger(__name__)

SendRequest = SendMessageRequest | SendMessageRequestV2

VERSION_WITH_MAX_RECONSUME_TIMES = 121
"""Clients from 3.4.9 on may limit the retries of a message themselves."""


class SendChecks:
    """The checks of one broker, in the order of docs/protocol/broker-api.md §4.3; each raises RefusedError."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def topic(self, header: SendRequest, known: TopicConfig | None, *, reply: bool = False) -> TopicConfig:
        """The topic's configuration, made if need be; raises RefusedError. A reply is never half of a transaction."""
        broker, config, topic = self._broker, self._broker.config, header.topic
        begin_ms = config.start_accept_send_request_time_stamp
        if broker.clock() < begin_ms:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {_local_time(begin_ms)}")
        if not config.broker_permission & PERM_WRITE and known is not None and known.order:
            raise RefusedError(
                ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] sending message is forbidden"
            )
        remark = topic_name_remark(topic)
        if remark is not None:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, remark)
        if topic in FORBIDDEN_TOPICS:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        if header.sys_flag & TRANSACTION_PREPARED and not (header.batch or reply):
            self._half(header)
        if known is not None:
            return known
        if broker.is_slave:
            # The store would refuse the message anyway, and a slave's table is a copy that gets no topics of its own.
            raise self.not_stored(AppendStatus.SERVICE_NOT_AVAILABLE)
        made = self._made_topic(header)
        if made is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!{FAQ}")
        return made

    def _half(self, header: SendRequest) -> None:
        """Refuse a message marked as a half message that is none: it would get no queue entry, in no topic."""
        check_transactions(self._broker.config)
        if (get_property(header.properties or "", TRAN_MSG) or "").lower() != "true" and not self._broker.compat_49:
            raise RefusedError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"sysFlag {header.sys_flag} marks a half message of a transaction, but the property {TRAN_MSG} is not "
                "true: nobody would receive it",
            )

    def _made_topic(self, header: SendRequest) -> TopicConfig | None:
        """Auto-creation (docs/protocol/broker-api.md §4.4). Raises RefusedError when there are maxAutoCreatedTopics."""
        topics, topic = self._broker.topics, header.topic
        is_retry = topic.startswith(RETRY_PREFIX)
        if not (
            is_retry and topic[len(RETRY_PREFIX) :] in self._broker.groups.table
        ):  # groups have a limit of their own
            remark = topics.full_remark(topic)
            if remark is not None:
                raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, remark)
        sys_flag = 0
        if header.unit_mode:
            sys_flag = TOPIC_UNIT_SUB if is_retry else TOPIC_UNIT
        if header.default_topic_queue_nums is None:
            raise HeaderError("defaultTopicQueueNums", "is missing or malformed, and a new topic needs it")
        made = topics.create_for_send(topic, header.default_topic, header.default_topic_queue_nums, sys_flag)
        if made is None and is_retry:
            return topics.ensure(topic, 1, READ_WRITE_PERM, sys_flag)
        return made

    def queue(self, link: Link, queue_id: int, topic: TopicConfig) -> int:
        """The queue to write to; for a negative id the broker chooses one. Raises RefusedError."""
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

    def is_dead_letter(self, command: Command, header: SendRequest) -> bool:
        """Whether a message for a retry topic has reached its limit of retries; raises RefusedError."""
        name = header.topic[len(RETRY_PREFIX) :]
        group = self._broker.groups.find(name)
        if group is None:
            remark = self._broker.groups.full_remark(name) or f"subscription group not exist, {name} {FAQ}"
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        limit = group.retry_max_times
        if command.version >= VERSION_WITH_MAX_RECONSUME_TIMES and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        return (header.reconsume_times or 0) >= limit

    def not_stored(self, status: AppendStatus) -> RefusedError:
        """The answer to a message that the store did not take (docs/protocol/broker-api.md §4.5)."""
        self._broker.stats.put_failures += 1
        if status is AppendStatus.SERVICE_NOT_AVAILABLE:
            return RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, unavailable_remark(self._broker))
        return RefusedError(ResponseCode.MESSAGE_ILLEGAL, illegal_remark(self._broker.config.store))


RECORD_MORE_BYTES = 65_536 + 8
"""Bytes a record may take besides its body, including the filler after it."""


def topic_text(topic: TopicConfig) -> str:
    """A topic's configuration as remarks show it (`TopicConfig.toString`)."""
    return (
        f"TopicConfig [topicName={topic.topic_name}, readQueueNums={topic.read_queue_nums}, "
        f"writeQueueNums={topic.write_queue_nums}, perm={perm_text(topic.perm)}, "
        f"topicFilterType={topic.topic_filter_type}, topicSysFlag={topic.topic_sys_flag}, "
        f"order={'true' if topic.order else 'false'}]"
    )


def illegal_remark(config: StoreConfig) -> str:
    """The remark of code 13."""
    return "the message is illegal, maybe msg body or properties length not matched. " + limits_text(config)


def limits_text(config: StoreConfig) -> str:
    """The limits of a message, as shown in remarks; with the limit of the log's files if it may be the smallest."""
    text = f"msg body length limit {config.max_message_size}B, msg properties length limit 32KB."
    if config.mapped_file_size_commit_log < config.max_message_size + RECORD_MORE_BYTES:
        text += f" A file of the log holds {config.mapped_file_size_commit_log}B (mappedFileSizeCommitLog)."
    return text


def unavailable_remark(broker: Broker) -> str:
    """The remark of code 14, with the used fractions of the disks of commit log, consume queues and index.

    The last two share one partition here. They are measured now, since a disk may fill up faster than it is checked.
    If the disk is the reason, the remark ends with what it lacks: a disk that is read-only or broken may be almost empty.
    """
    log, others = broker.store.cleaner.measure()
    why = None if broker.compat_49 else broker.store.disk_lack
    return (
        "service not available now. It may be caused by one of the following reasons: the broker's disk is full "
        f"[CL: {log:5.2f} CQ: {others:5.2f} INDEX: {others:5.2f}], messages are put to the slave, "
        "message store has been shut down, etc."
    ) + (f" Here: {why}" if why else "")


def _local_time(now_ms: int) -> str:
    """`yyyy-MM-dd HH:mm:ss,SSS` in local time (`UtilAll.timeMillisToHumanString2`)."""
    moment = datetime.fromtimestamp(now_ms // 1000).astimezone()
    return f"{moment:%Y-%m-%d %H:%M:%S},{now_ms % 1000:03d}"
