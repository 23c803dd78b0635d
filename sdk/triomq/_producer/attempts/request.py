"""The requests of sends, and the meaning of their answers (docs/protocol/client.md §6.9 and §6.12).

Most requests come from a template per queue; the others come from the encoder.  Upstream: ``MQClientAPIImpl.sendMessage``
and ``processSendResponse``.
"""

from __future__ import annotations

from typing import Final

from triomq._message.message import MessageQueue
from triomq._message.namespace import Namespace
from triomq._message.send_result import SendResult, SendStatus
from triomq._producer.attempts.outgoing import Outgoing
from triomq._producer.attempts.send_template import SendTemplate
from triomq._producer.attempts.targets import Target
from triomq.errors import MQError, ProtocolViolation, error_for_code
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.errors import HeaderError
from triomq_protocol.requests.send import encode_send_request_v2
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.header import Header

_PLAIN: Final = RequestCode.SEND_MESSAGE_V2

_OFFSETS_END: Final = 1 << 62
"""No queue reaches this offset; a smaller one plus the size of any batch fits into 64 bits."""

STORED_CODES: Final = frozenset(int(status) for status in SendStatus)
"""Answers that mean: the message is stored (docs/protocol/client.md §6.12)."""


class SendAnswer(
    Header,
    rename={
        "msg_id": "msgId",
        "queue_id": "queueId",
        "queue_offset": "queueOffset",
        "transaction_id": "transactionId",
        "region_id": "MSG_REGION",
        "trace_on": "TRACE_ON",
    },
):
    """Header of a send's answer, with the two ext fields that brokers add."""

    msg_id: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    transaction_id: str | None = None
    region_id: str | None = None
    trace_on: str | None = None


class SendRequests:
    """Encodes the send requests of one producer group.

    Args:
        group: the producer group.
        default_topic: template topic of auto-creation.
        default_topic_queues: upper bound of an auto-created topic's queues.
        namespace: the namespace whose prefix topics get.
        unit_mode: whether the producer belongs to a unit.
    """

    def __init__(
        self,
        group: str,
        default_topic: str,
        default_topic_queues: int,
        *,
        namespace: Namespace,
        unit_mode: bool = False,
    ) -> None:
        self._wrap = namespace.wrap
        self._unit_mode = unit_mode
        self._group = group
        self._default_topic = default_topic
        self._default_topic_queues = default_topic_queues

    def encode(self, out: Outgoing, target: Target, opaque: int, *, oneway: bool = False) -> bytes:
        """The request of one attempt: queue and broker belong to this attempt (docs/protocol/client.md §6.9)."""
        queue = target.queue
        if out.sys_flag or out.flag or out.code is not _PLAIN or oneway or out.retry is not None or self._unit_mode:
            times, max_times = out.retry if out.retry is not None else (0, None)
            return encode_send_request_v2(
                opaque,
                producer_group=self._group,
                topic=self._wrap(out.topic),
                queue_id=queue.queue_id,
                sys_flag=out.sys_flag,
                born_timestamp=out.born_ms,
                flag=out.flag,
                properties=out.properties,
                body=out.body,
                broker_name=queue.broker_name,
                batch=out.code is RequestCode.SEND_BATCH_MESSAGE,
                reconsume_times=times,
                max_reconsume_times=max_times,
                default_topic=self._default_topic,
                default_topic_queue_nums=self._default_topic_queues,
                code=out.code,
                oneway=oneway,
                unit_mode=self._unit_mode,
            )
        template = target.template
        if template is None:
            template = self.template(out.topic, target)
        return template.encode(opaque, out.born_ms, out.properties, out.body)

    def template(self, topic: str, target: Target) -> SendTemplate:
        """The template of plain requests for a queue, created once."""
        queue = target.queue
        template = target.template = SendTemplate(
            producer_group=self._group,
            topic=self._wrap(topic),
            queue_id=queue.queue_id,
            broker_name=queue.broker_name,
            default_topic=self._default_topic,
            default_topic_queue_nums=self._default_topic_queues,
        )
        return template


def outcome_of(answer: Command, queue: MessageQueue, unique_key: str, address: str) -> SendResult | MQError:
    """The meaning of a broker's answer to a send: a result if the message is stored, otherwise an error."""
    if answer.code not in STORED_CODES:
        return error_for_code(answer.code, answer.remark, what=f"send to topic {queue.topic}", address=address)
    try:
        header = answer.header(SendAnswer)
    except HeaderError as error:
        return ProtocolViolation("an answer to a send", address=address, remark=str(error))
    if header.msg_id is None or header.queue_offset is None or not 0 <= header.queue_offset < _OFFSETS_END:
        remark = "it says that the message is stored, and not where"
        return ProtocolViolation("an answer to a send", address=address, remark=remark)
    queue_id = header.queue_id
    return SendResult(
        SendStatus.SEND_OK if answer.code == ResponseCode.SUCCESS else SendStatus(answer.code),
        unique_key,
        header.msg_id,
        queue
        if queue_id is None or queue_id == queue.queue_id
        else MessageQueue(queue.topic, queue.broker_name, queue_id),
        header.queue_offset,
        header.transaction_id,
        header.region_id or "DefaultRegion",
        header.trace_on != "false",
    )
