"""Sends messages and waits for every acknowledgement, with a bounded number of requests in flight.

Messages without a sharding key are sent in any order, in batches. Messages with a key keep the order of that key: their
queue gets one request at a time.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs
import numpy as np
import trio

from pyspark_rocketmq.errors import WriteFailed
from pyspark_rocketmq.rows.batch_elements import ElementBatch, Elements
from pyspark_rocketmq.rows.row_messages import RowMessage
from triomq import (
    Message,
    MessageQueue,
    MQError,
    Producer,
    PullConsumer,
    PullStatus,
    SendResult,
)
from triomq.errors import BrokerNotFound, MessageIllegal, RouteNotFound
from triomq.plugins import select_by_hash

BATCH_BYTES: Final = 1024 * 1024
"""Upper bound of a batch request's body, unless the producer's is lower."""

TRIES: Final = 4
"""How often a request is sent before the task fails. The SDK retries by itself, but not a request to a given queue, and
not after its deadline; running the whole task again would repeat far more rows than one request has."""

PAUSE_S: Final = 0.5

REPLICATED_LIMIT_S: Final = 30.0
"""How long a slave may take to replicate the rows that its master has stored."""


@attrs.define
class Sent:
    """Counts of acknowledged rows.

    Attributes:
        rows: the number of messages.
        body_bytes: the bytes of their bodies.
        requests: the number of requests.
        statuses: status name -> number of requests.
        last: the last offset written in each queue.
    """

    rows: int = 0
    body_bytes: int = 0
    requests: int = 0
    statuses: dict[str, int] = attrs.field(factory=dict)
    last: dict[MessageQueue, int] = attrs.field(factory=dict)

    def add(self, rows: int, body_bytes: int, result: SendResult) -> None:
        """Count an acknowledged request."""
        self.rows += rows
        self.body_bytes += body_bytes
        self.requests += 1
        name = result.status.name
        self.statuses[name] = self.statuses.get(name, 0) + 1
        last = result.queue_offset + rows - 1
        self.last[result.queue] = max(last, self.last.get(result.queue, -1))


@attrs.frozen
class _Request:
    content: Message | ElementBatch
    queue: MessageQueue | None


class RowSender:
    """Sends the rows of one task; :meth:`run` must run meanwhile.

    Rows are cut into requests, which wait for places, while the task encodes the next rows.

    Args:
        producer: sends the messages.
        batch_rows: the most rows per request.
        in_flight: the most requests in flight or waiting for the previous one in their queue.
        batch_bytes: the longest body of a request with several rows.
    """

    def __init__(self, producer: Producer, batch_rows: int, in_flight: int, batch_bytes: int = BATCH_BYTES) -> None:
        self.sent = Sent()
        self.producer = producer
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._places = trio.Semaphore(in_flight)
        self._nursery: trio.Nursery | None = None
        self._chains: dict[MessageQueue, deque[_Request]] = {}
        self._queues: dict[str, list[MessageQueue]] = {}
        self._failure: MQError | None = None
        self._ended = trio.Event()
        self._all_acknowledged = False
        # Without a buffer: rows that are given have been taken.
        self._giving, self._given = trio.open_memory_channel[Elements | RowMessage](0)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Send the given rows, until :meth:`finish` or a failure."""
        try:
            async with trio.open_nursery() as self._nursery, self._given:
                task_status.started()
                async for rows in self._given:
                    try:
                        await self._take(rows)
                    except MQError as error:
                        self._fail(error)
            self._all_acknowledged = not self._nursery.cancel_scope.cancelled_caught
        finally:
            self._ended.set()

    def look_up_again(self) -> None:
        """Forget the queues of topics; they are looked up again, once each, for the rows that follow."""
        self._queues.clear()

    async def put(self, rows: Elements | RowMessage) -> None:
        """Send encoded rows, or a single row; returns once the rows given before have their places.

        Raises:
            WriteFailed: some rows were not acknowledged; they may be stored nevertheless.
        """
        try:
            await self._giving.send(rows)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await self._ended.wait()
            self._check()
            raise

    async def finish(self) -> None:
        """Wait until everything is acknowledged; raises as :meth:`put` does."""
        self._giving.close()
        await self._ended.wait()
        self._check()

    async def aclose(self) -> None:
        """Give up on unacknowledged rows, and close the producer."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
            await self._ended.wait()
        await self.producer.aclose()

    async def _take(self, rows: Elements | RowMessage) -> None:
        if isinstance(rows, RowMessage):
            key = rows.sharding_key
            queue = None if key is None else await self._queue_of(rows.message.topic, key)
            await self._start(_Request(rows.message, queue))
            return
        shards = rows.sharding_keys
        if shards is None:
            await self._start_batches(rows, None)
            return
        queue_of_key = [await self._queue_of(rows.topic, key) for key in shards.dictionary.to_pylist()]
        queues = sorted(set(queue_of_key))
        # Rows without a key are in no queue's group.
        place_of_key = np.array([*(queues.index(queue) for queue in queue_of_key), -1])
        places = place_of_key[shards.indices.fill_null(len(queue_of_key)).to_numpy(zero_copy_only=False)]
        for place, queue in ((-1, None), *enumerate(queues)):
            found = np.flatnonzero(places == place)
            if len(found):
                await self._start_batches(rows.take(found), queue)

    async def _start_batches(self, elements: Elements, queue: MessageQueue | None) -> None:
        for batch in elements.requests(self._batch_rows, self._batch_bytes):
            await self._start(_Request(batch, queue))

    async def _start(self, request: _Request) -> None:
        """Send a request as soon as there is a place for it."""
        await self._places.acquire()
        assert self._nursery is not None
        if request.queue is None:
            self._nursery.start_soon(self._send_one, request)
            return
        chain = self._chains.setdefault(request.queue, deque())
        chain.append(request)
        if len(chain) == 1:
            self._nursery.start_soon(self._send_chain, chain)

    async def _send_one(self, request: _Request) -> None:
        try:
            result = await self._send(request)
        except MQError as error:
            self._fail(error)
        else:
            content = request.content
            if isinstance(content, Message):
                self.sent.add(1, len(content.body), result)
            else:
                self.sent.add(len(content.ids), content.body_bytes, result)
        finally:
            self._places.release()

    async def _send_chain(self, chain: deque[_Request]) -> None:
        while chain:
            await self._send_one(chain[0])
            chain.popleft()

    def _fail(self, error: MQError) -> None:
        if self._failure is None:
            self._failure = error
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()

    def _check(self) -> None:
        error = self._failure
        if error is not None:
            raise WriteFailed(
                f"{cause_of(error)}; the request was: {error.what}; {self.sent.rows} rows of the task were "
                "acknowledged before. Spark runs the task again up to spark.task.maxFailures times, and each time all "
                "its rows are sent again: readers drop the repeats by the property spark_row_key"
            ) from error
        if self._ended.is_set() and not self._all_acknowledged:
            raise WriteFailed("the client was closed while rows were sent; not all of them are acknowledged")

    async def _queue_of(self, topic: str, sharding_key: str | None) -> MessageQueue:
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = await self.producer.queues(topic)
        return select_by_hash(queues, Message(topic, b"-"), sharding_key)

    async def _send(self, request: _Request) -> SendResult:
        content = request.content
        for tries_left in reversed(range(TRIES)):
            try:
                if isinstance(content, Message):
                    return await self.producer.send(content, queue=request.queue)
                return await self.producer.send_elements(content.topic, content.body, content.ids, queue=request.queue)
            except MQError as error:
                if not tries_left or not error.retriable:
                    raise
                await trio.sleep(PAUSE_S)
        raise AssertionError("a request is tried at least once")


def cause_of(error: MQError) -> str:
    """Why a send failed, in one line: the reason first, then the broker and the advice."""
    reason = (error.remark or error.what).split("\nSee http://rocketmq")[0].strip()
    asked = f", asked {error.address}" if error.address else ""
    advice = f" ({error.advice})" if error.advice else ""
    if isinstance(error, RouteNotFound) and not isinstance(error, BrokerNotFound):
        advice = " (the option createTopic=true creates the topic, with queues on every master)"
    if isinstance(error, MessageIllegal) and error.address and "TopicMessageType validate failed" not in reason:
        advice = " (set rocketmq.max_body_bytes to the brokers' maxMessageSize: requests of several rows keep to it)"
    if "validate failed, the expected type is FIFO" in reason:
        advice = (
            " (rows are sent in batches, which a RocketMQ 5 proxy does not take into a topic of type FIFO; brokers do: give "
            "the cluster's name servers as the option namesrv, where rows of one sharding_key keep their order, or set "
            "enableTopicMessageTypeCheck=false in the proxy's file)"
        )
    return f"{type(error).__name__}: {reason}{asked}{advice}"


async def wait_replicated(consumer: PullConsumer, last: dict[MessageQueue, int]) -> None:
    """Wait until a slave serves the last message written to each queue; it then has the earlier ones too.

    Args:
        consumer: a consumer that pulls from slaves only.
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
