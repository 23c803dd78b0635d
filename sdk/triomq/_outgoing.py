"""One message on its way: what travels, and what its answer means (client.md §6.8 and §6.12)."""

from __future__ import annotations

from typing import Final

from triomq._message import MAX_PROPERTIES_BYTES, Message, MessageQueue
from triomq._results import SendResult, SendStatus
from triomq._routes import Route
from triomq._send_template import SendTemplate
from triomq.errors import Attempt, MessageIllegal, ProtocolViolation, error_for_code
from triomq_protocol.command import Command
from triomq_protocol.errors import HeaderError
from triomq_protocol.header import Header
from triomq_protocol.properties import encode_properties

STORED_CODES: Final = frozenset({0, 10, 11, 12})
"""Answers that mean: the message is stored (client.md §6.12)."""


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
    """Header of a send's answer with the two ext fields that brokers add to it."""

    msg_id: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    transaction_id: str | None = None
    region_id: str | None = None
    trace_on: str | None = None


class Outgoing:
    """What stays the same over all attempts of one message, and what they came to.

    Attributes:
        topic: where it goes.
        body: as it travels, perhaps compressed, perhaps a batch.
        properties: the property string, UNIQ_KEY included.
        unique_key: the id users see.
        deadline: on trio's clock, for all attempts together.
        pinned: the queue it must go to; such a message gets one attempt, so that order is kept.
        retry: of a copy for a retry topic: how often it failed, and how often it may before it is a dead letter.
    """

    __slots__ = (
        "attempts", "batch", "body", "born_ms", "deadline", "flag", "last_broker", "pinned", "properties",
        "refresh_route", "result", "retry", "sys_flag", "topic", "unique_key",
    )  # fmt: skip

    def __init__(
        self, topic: str, body: bytes, properties: str, unique_key: str, born_ms: int, deadline: float
    ) -> None:
        self.topic = topic
        self.body = body
        self.properties = properties
        self.unique_key = unique_key
        self.born_ms = born_ms
        self.deadline = deadline
        self.sys_flag = 0
        self.flag = 0
        self.batch = False
        self.pinned: MessageQueue | None = None
        self.attempts: list[Attempt] = []
        self.last_broker: str | None = None
        self.refresh_route = False
        self.result: SendResult | None = None
        self.retry: tuple[int, int] | None = None


class Target:
    """One queue to send to.

    Args:
        queue: the queue.
        address: its broker's master; empty when the route has none.
    """

    __slots__ = ("address", "queue", "template")

    def __init__(self, queue: MessageQueue, address: str) -> None:
        self.queue = queue
        self.address = address
        self.template: SendTemplate | None = None


class TopicTargets:
    """The queues of one route, in round robin.

    Args:
        route: the snapshot they come from.
        start: where the round starts.
    """

    __slots__ = ("_by_queue", "_count", "queues", "route", "several_brokers", "targets")

    def __init__(self, route: Route, start: int) -> None:
        self.route = route
        self.queues = route.publish_queues
        self.targets = [Target(queue, route.master(queue.broker_name) or "") for queue in self.queues]
        self.several_brokers = len({queue.broker_name for queue in self.queues}) > 1
        self._by_queue = {target.queue: target for target in self.targets}
        self._count = start

    def count(self) -> int:
        """The next number of the round robin, masked to 31 bits as upstream's."""
        self._count = count = (self._count + 1) & 0x7FFFFFFF
        return count

    def of(self, queue: MessageQueue) -> Target:
        """The target for a queue, also for one that the route does not list."""
        target = self._by_queue.get(queue)
        return target if target is not None else Target(queue, self.route.master(queue.broker_name) or "")


def properties_text(message: Message, unique_key: str) -> str:
    """The property string, UNIQ_KEY included.

    Raises:
        MessageIllegal: it is longer than a stored record can hold.
    """
    tags, keys = message.tags, message.keys
    if message.properties is None and message.wait_store_ok and message.delay_level <= 0:
        # What most messages look like, without building a table.
        text = f"UNIQ_KEY\x01{unique_key}"
        if keys:
            text = f"KEYS\x01{keys if isinstance(keys, str) else ' '.join(keys)}\x02{text}"
        if tags:
            text = f"{text}\x02TAGS\x01{tags}"
    else:
        pairs = dict(message.property_pairs())
        pairs["UNIQ_KEY"] = unique_key
        text = encode_properties(pairs)
    if len(text) > MAX_PROPERTIES_BYTES // 4 and len(text.encode()) > MAX_PROPERTIES_BYTES:
        raise MessageIllegal(f"the properties have more than {MAX_PROPERTIES_BYTES} bytes", code=13)
    return text


def result_of(answer: Command, queue: MessageQueue, unique_key: str, address: str) -> SendResult:
    """What a broker's answer to a send means.

    Raises:
        MQError: the message is not stored.
    """
    if answer.code not in STORED_CODES:
        raise error_for_code(answer.code, answer.remark, what=f"send to topic {queue.topic}", address=address)
    try:
        header = answer.header(SendAnswer)
    except HeaderError as error:
        raise ProtocolViolation("an answer to a send", address=address, remark=str(error)) from error
    queue_id = header.queue_id
    return SendResult(
        SendStatus.SEND_OK if answer.code == 0 else SendStatus(answer.code),
        unique_key,
        header.msg_id or "",
        queue
        if queue_id is None or queue_id == queue.queue_id
        else MessageQueue(queue.topic, queue.broker_name, queue_id),
        header.queue_offset if header.queue_offset is not None else -1,
        header.transaction_id,
        header.region_id or "DefaultRegion",
        header.trace_on != "false",
    )
