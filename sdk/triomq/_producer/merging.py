"""Merging: sends that wait to be written are sent as one batch, and each gets its own result.

They have a callback, or are awaited by many tasks, for which `callbacks.AwaitedSend` is the callback.

Messages to one queue share a batch from the moment the first of them is accepted until the next turn of the event loop,
or for as long as they may linger.  Messages that brokers do not accept in a batch, or that would gain nothing, are sent
alone, after the open batches.  A failed batch is a failed attempt of each of its messages, whose further attempts are
made alone.  Plain sends join an open batch in ``plain_sends.py``.  Upstream: ``autoBatch`` of 5.x, ``ProduceAccumulator``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import cachetools
import trio

from triomq._cluster.spawn import Spawn
from triomq._message.message import Message
from triomq._message.send_result import SendResult
from triomq._producer import compiled
from triomq._producer.attempts.outgoing import Outgoing
from triomq._producer.attempts.request import outcome_of
from triomq._producer.attempts.targets import Target
from triomq._producer.batches import ELEMENT_BYTES
from triomq._producer.callbacks import CallbackSend, InFlight, is_given_up
from triomq._producer.sender import Sender
from triomq._transport.link import Link, Waiter
from triomq.errors import MQError
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.java_text import utf8
from triomq_protocol.names import DELAY, DELIVERY_TIMES
from triomq_protocol.record.batch import encode_batch_element
from triomq_protocol.wire.command import Command

if TYPE_CHECKING or not compiled.USED:
    from triomq._producer import plain_sends
else:
    from triomq._producer.compiled import sends as plain_sends

MESSAGES_MAX: Final = 64
BYTES_MAX: Final = 128 * 1024
"""Limit of one batch. Brokers accept 4 MiB; a larger batch saves nothing per byte, and its first message waits."""

MESSAGE_BYTES_MAX: Final = 16 * 1024
"""Limit of a message in a batch: for larger ones the cost of their own request is negligible."""

SHARED_TIME: Final = 0.9
"""A message that has a smaller part of its time left opens no batch: those that join it have no other time."""

REFUSED_S: Final = 60.0
"""How long the messages of a topic are sent alone after a broker has refused a batch of them."""

_TOPICS_MAX: Final = 1024

_ALONE: Final = re.compile(
    f"(?:{'|'.join(re.escape(name) for name in sorted({DELAY, 'INNER_MULTI_DISPATCH', *DELIVERY_TIMES}))})\x01"
)
"""Properties that brokers ignore or refuse in a batch."""

_REFUSALS: Final = frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.REQUEST_CODE_NOT_SUPPORTED})
"""Answers that may refuse the batch rather than its messages: nothing is stored."""


def may_merge(out: Outgoing) -> bool:
    """Whether a message may share a request with others: alone it would be stored in the same way."""
    return (
        len(out.body) + len(out.properties) <= MESSAGE_BYTES_MAX
        and not out.sys_flag
        and out.code is RequestCode.SEND_MESSAGE_V2
        and out.retry is None
        and not out.topic.startswith("%")
        and _ALONE.search(out.properties) is None
    )


def _ids_of(result: SendResult, count: int) -> list[str]:
    """The brokers' ids of a batch's messages, from the result of the batch."""
    stored = result.offset_message_id.split(",")
    # A topic of 5.x whose queues hold batches: the broker stores one record, and names it once.
    return stored if len(stored) == count else [result.offset_message_id] * count


def _again(error: MQError) -> MQError:
    """A copy of an error for another message: a shared one would collect all their tracebacks."""
    other = type(error)(error.what, address=error.address, code=error.code, remark=error.remark)
    other.advice = error.advice
    return other


def _element(out: Outgoing) -> bytes:
    return encode_batch_element(out.body, utf8(out.properties), out.flag)


class MergedSends(Waiter):
    """The request of a batch, waiting for its answer on behalf of the sends in it."""

    __slots__ = ("_batch", "_merging")

    def __init__(self, merging: Merging, batch: plain_sends.OpenBatch) -> None:
        self.deadline = batch.deadline
        self._merging = merging
        self._batch = batch

    def answered(self, answer: Command) -> None:
        """Give each send its part of the answer."""
        batch = self._batch
        outcome = outcome_of(answer, batch.target.queue, "", batch.link.address)
        if isinstance(outcome, SendResult):
            self._merging.stored(batch, outcome)
        elif outcome.code in _REFUSALS:
            self._merging.send_apart(batch, outcome)
        else:
            self.failed(outcome)

    def failed(self, error: MQError) -> None:
        """Fail each send; it may be tried again alone."""
        for send in self._merging.taken_out(self._batch):
            send.failed(_again(error))


class Merging:
    """The open batches of one producer.

    Args:
        sender: makes attempts and encodes requests.
        in_flight: the sends that have not ended.
        spawn: starts the task that writes batches, when the first one is opened.
        linger_s: how long messages wait for others; 0: until the next turn of the event loop, and not at all if the
            broker has nothing to do for this client.
    """

    def __init__(self, sender: Sender, in_flight: InFlight, spawn: Spawn, *, linger_s: float) -> None:
        self._sender = sender
        self._attempts = sender.attempts
        self._in_flight = in_flight
        self._linger_s = linger_s
        settings = sender.settings
        self._shared_from_s = settings.timeout_s * SHARED_TIME
        body_bytes_max = min(settings.max_body_bytes, MESSAGE_BYTES_MAX)
        if settings.compressor is not None:
            body_bytes_max = min(body_bytes_max, settings.compress_from_bytes - 1)
        self._joins = plain_sends.Joins(
            in_flight.window,
            message_type=Message,
            callback_of=in_flight.callback_of,
            properties_of=self._properties_of,
            reserve_keys=sender.reserve_keys,
            now=trio.current_time,
            body_bytes_max=body_bytes_max,
            message_bytes_max=MESSAGE_BYTES_MAX,
            batch_bytes_max=BYTES_MAX,
            messages_max=MESSAGES_MAX,
            adds_properties=sender.adds_properties,
        )
        self.join: Final = self._joins.join
        """Accepts a send, if it is plain and there is an open batch for it; see `plain_sends.Joins.join`."""
        self._written: set[plain_sends.OpenBatch] = set()
        self._refused: cachetools.TTLCache[str, bool] = cachetools.TTLCache(
            _TOPICS_MAX, REFUSED_S, timer=trio.current_time
        )
        self._spawn = spawn
        self._has_task = False
        self._idle: trio.lowlevel.Task | None = None
        self._scope = trio.CancelScope()
        # Later messages must not overtake those that wait here.
        sender.attempts.before_start = self.flush

    def _properties_of(self, message: Message, unique_key: str) -> bytes | None:
        text = self._sender.properties_of(message, unique_key)
        return utf8(text) if _ALONE.search(text) is None else None

    def open_for(self, out: Outgoing, *, wait_store_ok: bool) -> plain_sends.OpenBatch | None:
        """The open batch that has room for a message, if there is one and the message may join it."""
        batch = self._joins.open.get((out.topic, out.pinned)) if self._joins.open else None
        if (
            batch is not None
            and batch.wait_store_ok == wait_store_ok
            and self._joins.has_room(batch, ELEMENT_BYTES + len(out.body) + len(out.properties))
            and may_merge(out)
        ):
            return batch
        return None

    def add(self, batch: plain_sends.OpenBatch, send: CallbackSend) -> None:
        """Add a send to an open batch, unless a hook has changed it so that it must be sent alone."""
        if send.context is None or may_merge(send.out):
            batch.add(send, _element(send.out))
        else:
            self._attempts.start(send, batch.target, batch.link, batch.deadline)

    def begin(self, send: CallbackSend, target: Target, link: Link, deadline: float, *, wait_store_ok: bool) -> None:
        """Open a batch with a message, or send it at once if it must be sent alone or need not wait for others.

        Args:
            send: the message.
            target: the queue of all messages that join it.
            link: the link to its broker.
            deadline: of the answer, on trio's clock.
            wait_store_ok: whether brokers with synchronous flush or replication wait for it before they answer.
        """
        out = send.out
        key = out.topic, out.pinned
        before = self._joins.open.pop(key, None)
        if before is not None:
            self._write(before)
        if self.goes_alone(out, link):
            self._attempts.start(send, target, link, deadline)
            return
        due = trio.current_time() + self._linger_s if self._linger_s else 0.0
        batch = self._joins.begin(key, target, link, deadline + self._linger_s, due, wait_store_ok=wait_store_ok)
        batch.add(send, _element(out))
        if self._idle is not None:
            task, self._idle = self._idle, None
            trio.lowlevel.reschedule(task)
        elif not self._has_task:
            self._has_task = True
            self._spawn(self._run)

    def goes_alone(self, out: Outgoing, link: Link) -> bool:
        """Whether :meth:`begin` sends a message at once, and opens no batch with it."""
        idle = not link.pending and not self._linger_s
        return (
            idle
            or not may_merge(out)
            or bool(self._refused and out.topic in self._refused)
            or out.deadline - trio.current_time() < self._shared_from_s
        )

    def flush(self) -> None:
        """Write all open batches, in the order in which they were opened."""
        opened = self._joins.open
        while opened:
            self._write(opened.pop(next(iter(opened))))

    def close(self) -> None:
        """Stop writing, and end the task; the producer ends the remaining sends."""
        batches = [*self._joins.open.values(), *self._written]
        self._joins.open.clear()
        for batch in batches:
            self.taken_out(batch)
        self._scope.cancel()

    @trio.lowlevel.enable_ki_protection
    async def _run(self) -> None:
        """Task: write batches when they are due, until closed."""
        opened = self._joins.open
        with self._scope:
            while True:
                if not opened:
                    self._idle = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
                if not self._linger_s:
                    self.flush()
                    continue
                while opened:
                    key, batch = next(iter(opened.items()))
                    if batch.due > trio.current_time():
                        await trio.sleep_until(batch.due)
                        continue
                    del opened[key]
                    self._write(batch)

    def _stop_waiting(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._idle = None
        return trio.lowlevel.Abort.SUCCEEDED

    def stored(self, batch: plain_sends.OpenBatch, result: SendResult) -> None:
        """Give each send of a stored batch its result: each message is stored right after the one before."""
        ids = _ids_of(result, len(batch.sends))
        if self._attempts.results_are_final:
            started = [send.started for send in batch.sends if isinstance(send, plain_sends.PlainSend)]
            self._attempts.count_stored(
                batch.target.queue.topic, result.status, started, batch.link.received_s, batch.plain_body_bytes
            )
        else:
            # The meaning of a result is decided for each send.
            batch.sends = self.taken_out(batch)
            batch.ended = 0
        topic, in_flight = batch.target.queue.topic, self._in_flight
        ends_program: BaseException | None = None
        done = -1
        while done < batch.ended < len(batch.sends):
            done = batch.ended
            try:
                batch.end(
                    result,
                    ids,
                    lambda send, error: in_flight.callback_failed(topic, send.unique_key, error),
                    lambda send, later: in_flight.finish_later(later, send.unique_key),
                )
            except BaseException as error:  # noqa: BLE001 - raised when the sends behind it have their results
                ends_program = ends_program or error
        self._written.discard(batch)
        in_flight.left()
        if ends_program is not None:
            raise ends_program

    def send_apart(self, batch: plain_sends.OpenBatch, refusal: MQError) -> None:
        """Send the messages of a refused batch one by one: the broker stores each, or names its fault.

        Args:
            batch: the batch.
            refusal: the broker's answer; it ends the sends that have been cancelled, which are not sent again.
        """
        if self._in_flight.aborted:
            return
        self._refused[batch.target.queue.topic] = True
        for send in self.taken_out(batch):
            send.merged = False
            if is_given_up(send):
                send.unsent(_again(refusal))
            else:
                self._attempts.start(send, batch.target, batch.link, batch.deadline)

    def taken_out(self, batch: plain_sends.OpenBatch) -> list[CallbackSend]:
        """Take out the sends of a batch that have not ended; from now on each is sent alone."""
        self._written.discard(batch)
        return [send if isinstance(send, CallbackSend) else self._whole_send(send, batch) for send in batch.rest()]

    def _whole_send(self, plain: plain_sends.PlainSend, batch: plain_sends.OpenBatch) -> CallbackSend:
        # Brokers give all messages of a batch the born timestamp of the first one.
        born_ms = batch.sends[0].out.born_ms
        properties = plain.properties.decode() if plain.properties is not None else None
        out = self._sender.outgoing(plain.message, plain.unique_key, born_ms, plain.started, properties=properties)
        out.pinned = batch.pinned
        send = CallbackSend(self._in_flight, out, plain.callback, plain.started)
        self._in_flight.adopt(send)
        if batch.opaque >= 0:
            self._attempts.aim(send, batch.target, batch.link, batch.opaque, batch.deadline)
            send.merged = True
        return send

    def _write(self, batch: plain_sends.OpenBatch) -> None:
        sends, target, link = batch.sends, batch.target, batch.link
        first = sends[0]
        if len(sends) == 1:
            self._attempts.write(first, target, link, batch.deadline)
            return
        whole = self._sender.merged(first.out, batch.elements(), wait_store_ok=batch.wait_store_ok)
        batch.opaque = opaque = link.next_opaque()
        if len(sends) - batch.plain_count > 1:
            several = [send for send in sends if isinstance(send, CallbackSend)]
        else:
            several = [first]
        for send in several:
            self._attempts.aim(send, target, link, opaque, batch.deadline)
            send.merged = True
        self._written.add(batch)
        try:
            link.submit(self._sender.requests.encode(whole, target, opaque), opaque, MergedSends(self, batch), now=True)
        except MQError as error:
            for send in self.taken_out(batch):
                send.unsent(_again(error))
