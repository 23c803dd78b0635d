"""Merging: sends with a callback that wait to be written leave as one batch, and each gets its own result.

Messages to one queue share a batch from the moment the first of them is accepted until the next turn of the event loop,
or for as long as they may linger.  What brokers do not take in a batch, or what would gain nothing, goes alone, after
the batches that are open.  A batch that fails is a failed attempt of each of its messages, whose further attempts are
made alone.  Upstream: ``autoBatch`` of 5.x, ``ProduceAccumulator``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import cachetools
import trio

from triomq._message.message import MessageQueue
from triomq._message.send_result import SendResult
from triomq._producer.batches import ELEMENT_BYTES
from triomq._producer.callbacks import CallbackSend, InFlight
from triomq._producer.outgoing import Outgoing
from triomq._producer.request import outcome_of
from triomq._producer.sender import Sender
from triomq._producer.targets import Target
from triomq._transport.link import Link, Waiter
from triomq.errors import MQError
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.names import DELAY, TIMER_PROPERTIES
from triomq_protocol.record.batch import encode_batch_element
from triomq_protocol.wire.command import Command

MESSAGES_MAX: Final = 64
BYTES_MAX: Final = 128 * 1024
"""Of one batch. Brokers take 4 MiB; what is larger than this costs as much per byte, and its first message waits."""

MESSAGE_BYTES_MAX: Final = 16 * 1024
"""Of a message in a batch: for larger ones the request's own cost does not count."""

REFUSED_S: Final = 60.0
"""How long the messages of a topic go alone after a broker has refused a batch of them."""

_TOPICS_MAX: Final = 1024

_ALONE: Final = re.compile(
    f"(?:{'|'.join(re.escape(name) for name in sorted({DELAY, 'INNER_MULTI_DISPATCH', *TIMER_PROPERTIES}))})\x01"
)
"""Properties that brokers do not look at in a batch, or refuse there."""

_REFUSALS: Final = frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.REQUEST_CODE_NOT_SUPPORTED})
"""Answers that may be meant for the batch, and not for its messages: nothing is stored."""


def may_merge(out: Outgoing) -> bool:
    """Whether a message may share a request with others: as itself it would be stored in the same way."""
    return (
        len(out.body) + len(out.properties) <= MESSAGE_BYTES_MAX
        and not out.sys_flag
        and out.code is RequestCode.SEND_MESSAGE_V2
        and out.retry is None
        and not out.topic.startswith("%")
        and _ALONE.search(out.properties) is None
    )


def results_of(result: SendResult, message_ids: Sequence[str]) -> list[SendResult]:
    """The results of a batch's messages, of the result of the batch: they lie next to each other in one queue."""
    stored = result.offset_message_id.split(",")
    if len(stored) != len(message_ids):
        # A topic of 5.x whose queues hold batches: the broker stores one record, and names it once.
        stored = [result.offset_message_id] * len(message_ids)
    return [
        SendResult(
            result.status,
            message_id,
            offset_message_id,
            result.queue,
            result.queue_offset + number,
            result.transaction_id,
            result.region_id,
            result.trace_on,
        )
        for number, (message_id, offset_message_id) in enumerate(zip(message_ids, stored, strict=True))
    ]


def _again(error: MQError) -> MQError:
    """The same error for another message: a shared one would collect all their tracebacks."""
    other = type(error)(error.what, address=error.address, code=error.code, remark=error.remark)
    other.advice = error.advice
    return other


class OpenBatch:
    """Messages to one queue that are not written yet."""

    __slots__ = ("deadline", "due", "link", "sends", "size_bytes", "target", "wait_store_ok")

    def __init__(self, target: Target, link: Link, deadline: float, due: float, *, wait_store_ok: bool) -> None:
        self.target = target
        self.link = link
        self.deadline = deadline
        self.due = due
        self.wait_store_ok = wait_store_ok
        self.sends: list[CallbackSend] = []
        self.size_bytes = 0

    def add(self, send: CallbackSend) -> None:
        """Take a message."""
        self.sends.append(send)
        self.size_bytes += ELEMENT_BYTES + len(send.out.body) + len(send.out.properties)


class MergedSends(Waiter):
    """The request of a batch, waiting for its answer on behalf of the sends in it."""

    __slots__ = ("_batch", "_merging")

    def __init__(self, merging: Merging, batch: OpenBatch) -> None:
        self.deadline = batch.deadline
        self._merging = merging
        self._batch = batch

    def answered(self, answer: Command) -> None:
        """Each send gets its part of the answer."""
        batch = self._batch
        outcome = outcome_of(answer, batch.target.queue, "", batch.link.address)
        if isinstance(outcome, SendResult):
            results = results_of(outcome, [send.out.unique_key for send in batch.sends])
            for send, result in zip(batch.sends, results, strict=True):
                send.outcome = result
                send.ended()
        elif outcome.code in _REFUSALS:
            self._merging.send_apart(batch)
        else:
            self.failed(outcome)

    def failed(self, error: MQError) -> None:
        """Each send has failed, and may be tried again alone."""
        for send in self._batch.sends:
            send.failed(_again(error))


class Merging:
    """The open batches of one producer.

    Args:
        sender: makes attempts and encodes requests.
        in_flight: the sends that have not ended.
        linger_s: how long messages wait for others; 0: until the next turn of the event loop.
    """

    def __init__(self, sender: Sender, in_flight: InFlight, *, linger_s: float) -> None:
        self._sender = sender
        self._attempts = sender.attempts
        self._in_flight = in_flight
        self._linger_s = linger_s
        self._open: dict[tuple[str, MessageQueue | None], OpenBatch] = {}
        self._refused: cachetools.TTLCache[str, bool] = cachetools.TTLCache(
            _TOPICS_MAX, REFUSED_S, timer=trio.current_time
        )
        self._idle: trio.lowlevel.Task | None = None
        self._scope = trio.CancelScope()
        # What is sent later must not overtake what waits here.
        sender.attempts.before_start = self.flush

    def open_for(self, out: Outgoing, *, wait_store_ok: bool) -> OpenBatch | None:
        """The open batch that has room for a message, if there is one and the message may be in it."""
        batch = self._open.get((out.topic, out.pinned)) if self._open else None
        if (
            batch is not None
            and batch.wait_store_ok == wait_store_ok
            and len(batch.sends) < MESSAGES_MAX
            and batch.size_bytes + len(out.body) + len(out.properties) < BYTES_MAX
            and may_merge(out)
        ):
            return batch
        return None

    def join(self, batch: OpenBatch, send: CallbackSend) -> None:
        """Put a message into a batch that is open, unless a hook has made it one that goes alone."""
        if send.context is None or may_merge(send.out):
            batch.add(send)
        else:
            self._attempts.start(send, batch.target, batch.link, batch.deadline)

    def begin(self, send: CallbackSend, target: Target, link: Link, deadline: float, *, wait_store_ok: bool) -> None:
        """Open a batch with a message, or send it at once if it goes alone.

        Args:
            send: the message.
            target: the queue of all that join it.
            link: its broker.
            deadline: of the answer, on trio's clock.
            wait_store_ok: whether the broker lets these messages wait for flush or replication.
        """
        out = send.out
        if not may_merge(out) or (self._refused and out.topic in self._refused):
            self._attempts.start(send, target, link, deadline)
            return
        key = out.topic, out.pinned
        before = self._open.pop(key, None)
        if before is not None:
            self._write(before)
        due = trio.current_time() + self._linger_s if self._linger_s else 0.0
        batch = self._open[key] = OpenBatch(target, link, deadline + self._linger_s, due, wait_store_ok=wait_store_ok)
        batch.add(send)
        if self._idle is not None:
            idle, self._idle = self._idle, None
            trio.lowlevel.reschedule(idle)

    def flush(self) -> None:
        """Write all open batches, in the order in which they were opened."""
        if self._open:
            batches, self._open = self._open, {}
            for batch in batches.values():
                self._write(batch)

    def close(self) -> None:
        """Drop what is not written, and end the task."""
        self._open.clear()
        self._scope.cancel()

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Task: write batches when they are due, until closed."""
        with self._scope:
            while True:
                if not self._open:
                    self._idle = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
                if not self._linger_s:
                    self.flush()
                    continue
                while self._open:
                    key, batch = next(iter(self._open.items()))
                    if batch.due > trio.current_time():
                        await trio.sleep_until(batch.due)
                        continue
                    del self._open[key]
                    self._write(batch)

    def _stop_waiting(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._idle = None
        return trio.lowlevel.Abort.SUCCEEDED

    def send_apart(self, batch: OpenBatch) -> None:
        """Send the messages of a refused batch alone: the broker says of each what is wrong, or takes it."""
        if self._in_flight.aborted:
            return
        self._refused[batch.sends[0].out.topic] = True
        for send in batch.sends:
            send.merged = False
            self._attempts.start(send, batch.target, batch.link, batch.deadline)

    def _write(self, batch: OpenBatch) -> None:
        sends, target, link = batch.sends, batch.target, batch.link
        first = sends[0]
        if len(sends) == 1:
            self._attempts.write(first, target, link, batch.deadline)
            return
        whole = self._sender.merged(
            first.out,
            b"".join(
                [encode_batch_element(send.out.body, send.out.properties.encode(), send.out.flag) for send in sends]
            ),
            wait_store_ok=batch.wait_store_ok,
        )
        opaque = link.next_opaque()
        for send in sends:
            self._attempts.aim(send, target, link, opaque, batch.deadline)
            send.merged = True
        try:
            link.submit(self._sender.requests.encode(whole, target, opaque), opaque, MergedSends(self, batch), now=True)
        except MQError as error:
            for send in sends:
                send.unsent(_again(error))
