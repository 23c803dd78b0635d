"""Handles brokers' and operators' requests to a client (docs/protocol/broker-api.md §18, docs/protocol/consumer.md §14).

Upstream: ``ClientRemotingProcessor``.

The links' readers call the handlers; requests that take time (a reset waits ten seconds, a message consumed on
demand runs user code) become a task of the client.  The link itself refuses all other codes.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

import trio

from triomq._cluster.name_servers import NameServerGroup
from triomq._cluster.spawn import Spawn
from triomq._error_text import named_error
from triomq._message.message import MessageQueue
from triomq._message.namespace import Namespace
from triomq._message.received import ReceivedMessage
from triomq._transport.link import Handler, Link
from triomq._transport.peer_log import PeerLog
from triomq_protocol.codes import VERSION, RequestCode, ResponseCode, version_description
from triomq_protocol.errors import BodyError
from triomq_protocol.names import CORRELATION_ID, PGROUP
from triomq_protocol.properties import get_property
from triomq_protocol.record.view import RecordView
from triomq_protocol.requests import (
    CheckTransactionStateRequest,
    ConsumeMessageDirectlyRequest,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusBody,
    GetConsumerStatusRequest,
    NotifyConsumerIdsChangedRequest,
    ResetOffsetBody,
    ResetOffsetRequest,
)
from triomq_protocol.requests.send import ReplyMessageRequest
from triomq_protocol.wire.command import Command

log = logging.getLogger("triomq.broker_requests")

RESETS_MAX: Final = 64
"""The most resets that run at the same time; further ones wait. A broker sends one for each topic and group."""

WAITING_MAX: Final = 1024
"""The most requests that take time and run or wait, from all brokers together; further ones are refused."""

WAITING_BYTES_MAX: Final = 64 << 20
"""The most bytes of their bodies together."""

THREADS_SHOWN_MAX: Final = 200
"""The most threads shown to an operator who asks for stacks."""


class AskedConsumer(Protocol):
    """A consumer as seen by brokers and operators."""

    def positions_of(self, topic: str, /) -> Mapping[MessageQueue, int]:
        """Its positions in the queues of a topic (221)."""

    def running_info(self) -> ConsumerRunningInfo:
        """Its state for operators (307); the client adds its own data."""

    def wake(self) -> None:
        """The members of a group have changed (40)."""

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int], /) -> None:
        """Follow the offsets that an operator has set, for owned queues (220)."""

    async def consume_directly(self, message: bytes, broker_name: str, /) -> ConsumeMessageDirectlyResult:
        """Give one message to the handler now, even from a queue that is not assigned (309)."""


ReplyTaker = Callable[[ReplyMessageRequest, bytes], None]
"""Takes the reply to one request; raises ``BodyError`` if it is not a valid reply."""


class AskedProducer(Protocol):
    """A producer group as seen by brokers that ask about its transactions."""

    def asked(self, link: Link, header: CheckTransactionStateRequest, message: ReceivedMessage, /) -> None:
        """Take a broker's question about the transaction of this message (39)."""


class BrokerRequests:
    """Answers brokers on behalf of one client's consumers and producers.

    Args:
        spawn: starts tasks.
        name_servers: the name servers, whose addresses are shown to operators.
        started_ms: when the client opened, in ms since 1970.
        namespace: the namespace whose prefix brokers' topics have.
        look_soon: refreshes a topic's route soon.
    """

    def __init__(
        self,
        spawn: Spawn,
        name_servers: NameServerGroup,
        started_ms: int,
        namespace: Namespace | None = None,
        look_soon: Callable[[str], object] = lambda _topic: None,
    ) -> None:
        self._namespace = namespace if namespace is not None else Namespace()
        self.consumers: dict[str, AskedConsumer] = {}
        """Consumer group -> its consumer."""
        self.producers: dict[str, AskedProducer] = {}
        """Producer group -> the object that answers for its transactions."""
        self.replies: dict[str, ReplyTaker] = {}
        """Correlation id -> the function that takes the reply."""
        self._spawn = spawn
        self._name_servers = name_servers
        self._started_ms = started_ms
        self._look_soon = look_soon
        self._lines = PeerLog(log)
        # Each broker of a topic sends its own, and each waits for handlers: so they run concurrently.
        self._resetting = trio.Semaphore(RESETS_MAX)
        self._waiting = 0
        self._waiting_bytes = 0

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler, for the client's links."""
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._ids_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._consumer_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
            RequestCode.CHECK_TRANSACTION_STATE: self._check_transaction,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._reply,
        }

    def _start(self, size_bytes: int, function: Callable[..., Awaitable[None]], *args: object) -> bool:
        """Start a task for a request with a body of this size; false if too much already waits."""
        if self._waiting >= WAITING_MAX or self._waiting_bytes + size_bytes > WAITING_BYTES_MAX:
            return False
        self._waiting += 1
        self._waiting_bytes += size_bytes
        self._spawn(self._run, size_bytes, function, *args)
        return True

    @trio.lowlevel.enable_ki_protection
    async def _run(self, size_bytes: int, function: Callable[..., Awaitable[None]], *args: object) -> None:
        try:
            await function(*args)
        finally:
            self._waiting -= 1
            self._waiting_bytes -= size_bytes

    # --- 40 --------------------------------------------------------------------------------------------------

    def _ids_changed(self, link: Link, command: Command) -> None:
        group = command.header(NotifyConsumerIdsChangedRequest).consumer_group
        log.debug("%s: members of group %s changed", link.address, group)
        # Upstream wakes all groups: one client's groups mostly change together.
        for consumer in self.consumers.values():
            consumer.wake()

    # --- 220 -------------------------------------------------------------------------------------------------

    def _reset_offset(self, link: Link, command: Command) -> None:
        header = command.header(ResetOffsetRequest)
        consumer = self.consumers.get(header.group)
        if consumer is None:
            text = "asks to reset group %.255s, which is not ours"
            self._lines.write(logging.INFO, link.address, text, header.group)
            return
        # Tools in C++ send a list instead; Java's clients also understand only the table.
        table = ResetOffsetBody.decode(command.body).offset_table
        offsets = {self._namespace.unwrap_queue(queue): offset for queue, offset in table.items()}
        topic = self._namespace.unwrap_topic(header.topic)
        if not self._start(len(command.body), self._reset, link.address, consumer, topic, offsets):
            self._lines.write(logging.WARNING, link.address, "asks for more resets than can wait; this one is ignored")

    async def _reset(self, peer: str, consumer: AskedConsumer, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        async with self._resetting:
            try:
                await consumer.reset(topic, offsets)
            except Exception as error:  # noqa: BLE001 - written with its traceback
                text = "asks to reset topic %.255s, which failed"
                self._lines.write(logging.ERROR, peer, text, topic, kind=type(error), failure=error)

    # --- 221 and 307 -----------------------------------------------------------------------------------------

    def _consumer_status(self, _link: Link, command: Command) -> Command:
        header = command.header(GetConsumerStatusRequest)
        consumer = self.consumers.get(header.group)
        namespace = self._namespace
        positions: Mapping[MessageQueue, int] = {}
        if consumer is not None:
            topic = namespace.unwrap_topic(header.topic)
            # Another member asks, who wants one of the queues by a newer route.
            self._look_soon(topic)
            positions = consumer.positions_of(topic)
        table = {namespace.wrap_queue(queue): offset for queue, offset in positions.items()}
        return command.answer(
            ResponseCode.SUCCESS, body=GetConsumerStatusBody(message_queue_table=table, consumer_table={}).encode()
        )

    def _running_info(self, _link: Link, command: Command) -> Command:
        header = command.header(GetConsumerRunningInfoRequest)
        consumer = self.consumers.get(header.consumer_group)
        if consumer is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, _unknown(header.consumer_group))
        info = consumer.running_info()
        info.properties = {
            "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in self._name_servers.addresses),
            "PROP_CLIENT_VERSION": version_description(VERSION),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            **info.properties,
        }
        if header.jstack_enable:
            info.jstack = thread_stacks()
        return command.answer(ResponseCode.SUCCESS, body=info.encode())

    # --- 39 --------------------------------------------------------------------------------------------------

    def _check_transaction(self, link: Link, command: Command) -> None:
        header = command.header(CheckTransactionStateRequest)
        try:
            record = RecordView(command.body)
            topic = self._namespace.unwrap(record.topic)
            queue = MessageQueue(topic, header.bname or "", record.queue_id)
            message = ReceivedMessage(record, queue, namespace=self._namespace)
            group = message.properties.get(PGROUP, "")
        except BodyError as error:
            text = "asks about a transaction, and sends no message: %s"
            self._lines.write(logging.WARNING, link.address, text, error)
            return
        producer = self.producers.get(group)
        if producer is None:
            text = "asks about a transaction of group %.255s, which is not ours"
            self._lines.write(logging.INFO, link.address, text, group)
            return
        producer.asked(link, header, message)

    # --- 326 -------------------------------------------------------------------------------------------------

    def _reply(self, link: Link, command: Command) -> Command:
        header = command.header(ReplyMessageRequest)
        correlation_id = get_property(header.properties or "", CORRELATION_ID) or ""
        take = self.replies.get(correlation_id)
        if take is None:
            # Its request has timed out, or was already replied to; the broker must forget it nevertheless.
            log.debug("%s brings a reply that nobody waits for: %.100s", link.address, correlation_id)
            return command.answer(ResponseCode.SUCCESS)
        try:
            take(header, command.body)
        except BodyError as error:
            self._lines.write(logging.WARNING, link.address, "brings a reply that cannot be read: %s", error)
            return command.answer(ResponseCode.SYSTEM_ERROR, "process reply message fail")
        return command.answer(ResponseCode.SUCCESS)

    # --- 309 -------------------------------------------------------------------------------------------------

    def _consume_directly(self, link: Link, command: Command) -> Command | None:
        header = command.header(ConsumeMessageDirectlyRequest)
        consumer = self.consumers.get(header.consumer_group)
        if consumer is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, _unknown(header.consumer_group))
        size = len(command.body)
        if not self._start(size, self._answer_directly, link, command, consumer, header.broker_name or ""):
            return command.answer(ResponseCode.SYSTEM_BUSY, "too many requests wait in this client")
        return None

    async def _answer_directly(self, link: Link, command: Command, consumer: AskedConsumer, broker_name: str) -> None:
        try:
            result = await consumer.consume_directly(command.body, broker_name)
        except Exception as error:  # noqa: BLE001 - written with its traceback
            text = "asks to consume a message, which failed"
            self._lines.write(logging.ERROR, link.address, text, kind=type(error), failure=error)
            answer = command.answer(ResponseCode.SYSTEM_ERROR, named_error(error))
        else:
            answer = command.answer(ResponseCode.SUCCESS, body=result.encode())
        link.answer(answer)


def _unknown(group: str) -> str:
    return f"The Consumer Group <{group}> not exist in this consumer"


def thread_stacks() -> str:
    """The stack of every thread of this process, for operators' requests."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in list(sys._current_frames().items())[:THREADS_SHOWN_MAX]:  # noqa: SLF001 - documented for this
        parts.append(f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)
