"""Message traces: records of what was sent and consumed, which operators read with ``mqadmin queryMsgTraceById``.

Records wait in memory, bounded in number and bytes, and are sent to the trace topic many at a time.  Nothing waits for
them: records that cannot be sent are dropped, which is logged.  Upstream: ``AsyncTraceDispatcher``, ``SendMessageTraceHookImpl``,
``EndTransactionTraceHookImpl`` (docs/protocol/consumer.md §15).  Consumption is traced in ``_consumer/trace.py``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from triomq._cluster.identity import Clock
from triomq._cluster.spawn import Spawn
from triomq._message.hooks import SendContext
from triomq._message.message import Message, MessageQueue, check_keys
from triomq._message.namespace import Namespace
from triomq._message.send_result import SendResult, SendStatus
from triomq._message.transaction import TransactionEnd, TransactionState
from triomq._producer.sender import Sender
from triomq.errors import InvalidCall, MQError
from triomq_protocol.trace import TraceMessageType, encode_sent, encode_transaction_end

log = logging.getLogger("triomq.trace")

TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"
"""The producer group of trace messages (``TraceConstants.GROUP_NAME_PREFIX``)."""

INTERVAL_S: Final = 0.5
"""The longest time a record waits before it is sent (docs/protocol/consumer.md §15)."""

BODY_BYTES: Final = 118_000
"""From this many bytes on, records are sent at once; one message holds about as many."""

KEYS_BYTES: Final = 24_000
"""The most bytes of one message's keys: its properties must stay within 32767 bytes."""

WAITING_MAX: Final = 10_000
WAITING_BYTES_MAX: Final = 8 * 1024 * 1024
"""The most bytes of waiting records; further ones are dropped."""

FLUSH_S: Final = 3.0
"""How long the end of a client waits for records to be sent."""

DEFAULT_REGION: Final = "DefaultRegion"

_STATES: Final = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}
"""Java's names."""


class Tracer:
    """Sends the trace records of a client to one topic.

    Args:
        topic: the trace topic.
        sender: sends the messages that hold records.
        clock: wall clock.
        namespace: the namespace whose prefix the names of groups have; records omit it.
        spawn: starts the task that sends; it ends when no record is left, and keeps this object until then.
    """

    def __init__(self, topic: str, sender: Sender, clock: Clock, namespace: Namespace, spawn: Spawn) -> None:
        self.namespace = namespace
        self.topic = topic
        self.clock = clock
        self._sender = sender
        self._waiting: deque[tuple[bytes, tuple[str, ...]]] = deque()
        self._waiting_bytes = 0
        self._spawn = spawn
        self._runs = False
        self._enough = trio.Event()
        self._sending = trio.Lock()
        self._dropped = 0
        self._failing = False

    def __len__(self) -> int:
        """The number of waiting records."""
        return len(self._waiting)

    def covers(self, topic: str) -> bool:
        """Whether messages of a topic are traced; those of trace topics are not."""
        return not topic.startswith(self.topic)

    def add(self, record: str, message_id: str, keys: str | None) -> None:
        """Keep a record until it is sent; readers find it by the message's id and by its keys.

        Messages that are consumed come from any sender: of their ids and keys, those that cannot be keys are left out.
        """
        encoded = record.encode(errors="replace")
        if len(self._waiting) >= WAITING_MAX or self._waiting_bytes + len(encoded) > WAITING_BYTES_MAX:
            if not self._dropped:
                log.warning("%d trace records wait to be sent: further ones are dropped", len(self._waiting))
            self._dropped += 1
            return
        found_by = (message_id, *(keys.split() if keys else ()))
        self._waiting.append((encoded, tuple(key for key in found_by if _is_key(key))))
        self._waiting_bytes += len(encoded)
        if not self._runs:
            self._runs = True
            self._spawn(self._run)
        if self._waiting_bytes >= BODY_BYTES:
            self._enough.set()

    async def _run(self) -> None:
        """Send records as they arrive, until there are none."""
        try:
            while self._waiting:
                with trio.move_on_after(INTERVAL_S):
                    await self._enough.wait()
                await self._send_waiting()
        finally:
            self._runs = False

    async def flush(self) -> None:
        """Send the waiting records, for at most :data:`FLUSH_S`; the rest is dropped, and all of them on a cancel."""
        with trio.move_on_after(FLUSH_S):
            await self._send_waiting()
        if self._waiting:
            log.warning("%d trace records could not be sent before the client's end", len(self._waiting))

    async def _send_waiting(self) -> None:
        async with self._sending:
            while self._waiting:
                body, keys = self._take()
                await self._send(Message(self.topic, body, keys=keys))
            self._enough = trio.Event()
            if self._dropped:
                log.warning("%d trace records were dropped", self._dropped)
                self._dropped = 0

    def _take(self) -> tuple[bytes, list[str]]:
        """The records of one message, and the keys it is found by."""
        records: list[bytes] = []
        keys: dict[str, None] = {}
        body_bytes = keys_bytes = 0
        while self._waiting:
            record, own = self._waiting[0]
            new = [key for key in dict.fromkeys(own) if key not in keys]
            own_bytes = sum(len(key.encode(errors="replace")) + 1 for key in new)
            if records and (body_bytes + len(record) > BODY_BYTES or keys_bytes + own_bytes > KEYS_BYTES):
                break
            if own_bytes > KEYS_BYTES:
                new = new[:1]  # the id: keys this long could not be sent
            self._waiting.popleft()
            self._waiting_bytes -= len(record)
            records.append(record)
            keys.update(dict.fromkeys(new))
            body_bytes += len(record)
            keys_bytes += own_bytes
        return b"".join(records), list(keys)

    async def _send(self, message: Message) -> None:
        try:
            out = self._sender.prepare(message, trio.current_time())
            await self._sender.compress(out)
            await self._sender.deliver(out)
        except MQError as error:
            if not self._failing:
                log.warning("trace records are lost, as topic %s cannot be sent to: %s", self.topic, error)
            self._failing = True
        else:
            self._failing = False


class SendTrace:
    """A send hook that traces; it also traces the ends of transactions.

    Args:
        tracer: takes the records.
        address_of: the address of a queue's master, as far as it is known.
    """

    def __init__(self, tracer: Tracer, address_of: Callable[[MessageQueue], str | None]) -> None:
        self._tracer = tracer
        self._address_of = address_of
        # Brokers join the ids of a batch into one text, which arrives with every message of the batch.
        self._batch: SendResult | None = None
        self._offset_ids: dict[str, str] = {}

    def before_send(self, _context: SendContext, /) -> None:
        """Does nothing: the record is written when the outcome is known."""

    def after_send(self, context: SendContext, outcome: SendResult | MQError | None, /) -> None:
        """Trace a message that is stored, as Java does: no failures, and no one-way sends."""
        message, tracer = context.message, self._tracer
        if not isinstance(outcome, SendResult) or not outcome.trace_on or not tracer.covers(message.topic):
            return
        keys = _joined(message.keys)
        kind = TraceMessageType.NORMAL
        if context.transactional:
            kind = TraceMessageType.HALF
        elif message.delay_level > 0:
            kind = TraceMessageType.DELAYED
        record = encode_sent(
            time_ms=context.born_ms,
            region=outcome.region_id,
            group=tracer.namespace.unwrap(context.group),
            topic=message.topic,
            message_id=context.message_id,
            tags=message.tags,
            keys=keys,
            store_host=self._address_of(outcome.queue) or "",
            body_bytes=context.body_bytes,
            cost_ms=max(0, tracer.clock() - context.born_ms),
            kind=kind,
            offset_message_id=self._offset_id(context, outcome),
            success=outcome.status is SendStatus.SEND_OK,
        )
        tracer.add(record, context.message_id, keys)

    def transaction_ended(self, end: TransactionEnd) -> None:
        """Trace an end that is sent to a broker."""
        if not self._tracer.covers(end.topic):
            return
        record = encode_transaction_end(
            time_ms=self._tracer.clock(),
            region=end.region or DEFAULT_REGION,
            group=self._tracer.namespace.unwrap(end.group),
            topic=end.topic,
            message_id=end.message_id,
            tags=end.tags,
            keys=end.keys,
            store_host=end.broker_address,
            transaction_id=end.transaction_id,
            state=_STATES[end.state],
            from_check=end.from_check,
        )
        self._tracer.add(record, end.message_id, end.keys)

    def _offset_id(self, context: SendContext, result: SendResult) -> str:
        if context.batch_count == 1:
            return result.offset_message_id
        if self._batch is not result:
            self._batch = result
            ids, offset_ids = result.message_id.split(","), result.offset_message_id.split(",")
            self._offset_ids = dict(zip(ids, offset_ids, strict=False))
        return self._offset_ids.get(context.message_id, "")


def _is_key(text: str) -> bool:
    try:
        check_keys(text)
    except InvalidCall:
        return False
    return True


def _joined(keys: object) -> str | None:
    return " ".join(keys) if isinstance(keys, list | tuple) else keys if isinstance(keys, str) else None
