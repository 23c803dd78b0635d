"""Sends messages and waits for every acknowledgement, with a bounded number of requests in flight.

Messages without a sharding key are sent in any order, in batches. Those with one keep the order of their key: their
queue is sent one request at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import attrs
import trio

from pyspark_rocketmq.errors import WriteFailed
from pyspark_rocketmq.rows.row_messages import RowMessage
from triomq import (
    Message,
    MessageQueue,
    MQError,
    Producer,
    PullConsumer,
    PullStatus,
    SendResult,
    split_batch,
)
from triomq.plugins import select_by_hash

BATCH_BYTES: Final = 1024 * 1024
"""Upper bound of a request's body."""

TRIES: Final = 4
"""How often a request is sent before the task fails. The SDK retries by itself, but not a request to a given queue, and
none after its deadline; running the whole task again would repeat far more rows than one request has."""

PAUSE_S: Final = 0.5

REPLICATED_LIMIT_S: Final = 30.0
"""How long a slave may take to hold what its master has stored."""


@attrs.define
class Sent:
    """What was acknowledged.

    Attributes:
        rows: messages.
        body_bytes: their bodies.
        requests: in how many requests.
        statuses: how many requests had each status, by its name.
        last: the last offset written in each queue.
    """

    rows: int = 0
    body_bytes: int = 0
    requests: int = 0
    statuses: dict[str, int] = attrs.field(factory=dict)
    last: dict[MessageQueue, int] = attrs.field(factory=dict)

    def add(self, messages: Sequence[Message], result: SendResult) -> None:
        """A request was acknowledged."""
        self.rows += len(messages)
        self.body_bytes += sum(len(each.body) for each in messages)
        self.requests += 1
        name = result.status.name
        self.statuses[name] = self.statuses.get(name, 0) + 1
        last = result.queue_offset + len(messages) - 1
        self.last[result.queue] = max(last, self.last.get(result.queue, -1))


@attrs.frozen
class _Request:
    messages: list[Message]
    queue: MessageQueue | None


class RowSender:
    """Sends the rows of one task.

    Args:
        producer: sends the messages.
        batch_rows: rows per request, at most.
        in_flight: requests in flight, at most.
    """

    def __init__(self, producer: Producer, batch_rows: int, in_flight: int) -> None:
        self.sent = Sent()
        self.producer = producer
        self._batch_rows = batch_rows
        self._in_flight = in_flight

    async def send(self, rows: Iterable[RowMessage]) -> None:
        """Send some rows, and wait for all acknowledgements.

        Raises:
            WriteFailed: some were not acknowledged; they may be stored nevertheless.
        """
        chains = await self._chains(list(rows))
        failures: list[MQError] = []
        async with trio.open_nursery() as nursery:

            async def work() -> None:
                try:
                    while chains:
                        for request in chains.pop():
                            self.sent.add(request.messages, await self._send(request))
                except MQError as error:
                    failures.append(error)
                    nursery.cancel_scope.cancel()

            chains.reverse()
            for _ in range(min(self._in_flight, len(chains))):
                nursery.start_soon(work)
        if failures:
            raise WriteFailed(
                f"{cause_of(failures[0])}; the request was: {failures[0].what}; {self.sent.rows} rows of the task were "
                "acknowledged before. Spark runs the task again up to spark.task.maxFailures times, and each time all "
                "its rows are sent again: readers drop the repeats by the property spark_row_key"
            ) from failures[0]

    async def _chains(self, rows: list[RowMessage]) -> list[list[_Request]]:
        """Requests that may be sent concurrently, and chains of requests that may not."""
        chains: list[list[_Request]] = []
        plain = [row.message for row in rows if row.sharding_key is None]
        chains += [[request] for request in self._requests(plain, None)]
        pinned: dict[MessageQueue, list[Message]] = {}
        try:
            for row in rows:
                if row.sharding_key is not None:
                    queues = await self.producer.queues(row.message.topic)
                    queue = select_by_hash(queues, row.message, row.sharding_key)
                    pinned.setdefault(queue, []).append(row.message)
        except MQError as error:
            raise WriteFailed(f"{cause_of(error)}; nothing was sent") from error
        return chains + [list(self._requests(messages, queue)) for queue, messages in pinned.items()]

    def _requests(self, messages: list[Message], queue: MessageQueue | None) -> Iterable[_Request]:
        batchable: list[Message] = []
        for message in messages:
            # Brokers refuse delayed messages in batches, and only single ones are compressed.
            if message.delay_level or len(message.body) > BATCH_BYTES // 8:
                yield from self._batches(batchable, queue)
                batchable = []
                yield _Request([message], queue)
            else:
                batchable.append(message)
        yield from self._batches(batchable, queue)

    def _batches(self, messages: list[Message], queue: MessageQueue | None) -> Iterable[_Request]:
        by_topic: dict[str, list[Message]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message)
        for some in by_topic.values():
            for batch in split_batch(some, max_bytes=BATCH_BYTES, max_count=self._batch_rows):
                yield _Request(batch, queue)

    async def _send(self, request: _Request) -> SendResult:
        for tries_left in reversed(range(TRIES)):
            try:
                if len(request.messages) == 1:
                    return await self.producer.send(request.messages[0], queue=request.queue)
                return await self.producer.send_batch(request.messages, queue=request.queue)
            except MQError as error:
                if not tries_left or not error.retriable:
                    raise
                await trio.sleep(PAUSE_S)
        raise AssertionError("a request is tried at least once")


def cause_of(error: MQError) -> str:
    """Why a send failed, in one line: the reason first, then who was asked and what can be done."""
    reason = (error.remark or error.what).split("\nSee http://rocketmq")[0].strip()
    asked = f", asked {error.address}" if error.address else ""
    advice = f" ({error.advice})" if error.advice else ""
    return f"{type(error).__name__}: {reason}{asked}{advice}"


async def wait_replicated(consumer: PullConsumer, last: dict[MessageQueue, int]) -> None:
    """Wait until a slave serves the last message written to each queue; it then has the earlier ones too.

    Args:
        consumer: one that pulls from slaves only.
        last: the last offset in each queue.

    Raises:
        WriteFailed: no slave did so in time; the rows are on their masters.
    """
    for queue, offset in last.items():
        reason = "it does not have the message yet"
        with trio.move_on_after(REPLICATED_LIMIT_S) as scope:
            while True:
                try:
                    result = await consumer.pull(queue, offset, max_messages=1)
                    if result.status is PullStatus.FOUND:
                        break
                    reason = f"{result.broker_address} ends at {result.max_offset}"
                except MQError as error:
                    reason = str(error)
                await trio.sleep(0.02)
        if scope.cancelled_caught:
            raise WriteFailed(
                f"acks=replicated: no slave showed offset {offset} of {queue} within {REPLICATED_LIMIT_S:g} s: {reason}; "
                "is a slave running?"
            )
