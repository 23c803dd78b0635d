"""The two kinds of Kombu queues, over one client: those that workers share, and those with one reader.

Queues that workers share are topics with a consumer group each. Transient queues, such as those of ``celery inspect`` and
its replies, have no topic of their own: their process reads the topic of the exchange, starting at the time the queue was
declared, and takes the messages that its binding matches.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from typing import Any, Final

import triomq
import triomq.blocking
from triomq_adapters.delays import Clock, due_of, message_due, remaining_ms
from triomq_adapters.envelopes import eta_ms, plain_text, routing_key, unpack

log = logging.getLogger("triomq.adapters.kombu")

HELD_MS = 10_000
"""A task due within this time, in ms, waits in the worker, which is more precise than delay levels."""

_REPLY_MARGIN_MS = 5_000
"""How far a client's clock may be ahead of the broker's without a reply being missed, in ms."""

_READ_AT_ONCE_S = 0.25
"""How long one attempt to take a message reads those of others, in seconds; the caller's timeout is checked in between."""

WAITING_MAX: Final = 50_000
"""The most messages that wait in a transient queue; when more arrive, the oldest ones are dropped. Each takes about 2 KB
in addition to its bytes."""

WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""The most bytes of these messages, as they are stored."""

Matches = Callable[[str], bool]
"""Returns whether a binding takes messages with a routing key."""


def _body_of(message: triomq.ReceivedMessage) -> bytes:
    """The body of a message.

    Raises:
        ValueError: it is compressed, and is damaged, or the library for it is not installed.
    """
    try:
        return message.body
    except (triomq.errors.MessageIllegal, triomq.errors.InvalidCall) as error:
        raise ValueError(str(error)) from error


def _subscribed(consumer: triomq.blocking.PushConsumer, topic: str) -> triomq.blocking.PushConsumer:
    """Enter a consumer; it leaves its group again if it cannot subscribe, so that the next attempt can join."""
    with ExitStack() as unless_subscribed:
        unless_subscribed.enter_context(consumer)
        consumer.subscribe(topic)
        unless_subscribed.pop_all()
    return consumer


class Sender:
    """Sends Kombu messages to topics.

    Args:
        producer: the producer.
        clock: returns the time in ms since 1970.
    """

    def __init__(self, producer: triomq.blocking.Producer, clock: Clock) -> None:
        self._producer = producer
        self.clock = clock

    def send(self, topic: str, message: dict[str, Any], body: bytes) -> None:
        """Send a packed message; a task that is due later waits at the broker."""
        due_ms = eta_ms(message)
        self._send(
            topic, body, plain_text(message["headers"].get("task")), plain_text(message["headers"].get("id")), due_ms
        )

    def send_on(self, topic: str, received: triomq.ReceivedMessage) -> None:
        """Send a received message again, unchanged."""
        keys = received.keys
        self._send(topic, received.body, received.tags, keys[0] if keys else None, due_of(received.properties))

    def _send(self, topic: str, body: bytes, tag: str | None, key: str | None, due_ms: int | None) -> None:
        now_ms = self.clock()
        if due_ms is not None and due_ms - now_ms <= HELD_MS:
            due_ms = None
        self._producer.send(message_due(topic, body, tags=tag, keys=key, due_ms=due_ms, now_ms=now_ms))


class WorkQueue:
    """A queue that workers share, read as a member of its group.

    Args:
        consumer: the consumer for the topic's group; this object enters and closes it.
        topic: the topic of the messages.
        sender: sends messages again that are not due.
    """

    def __init__(self, consumer: triomq.blocking.PushConsumer, topic: str, sender: Sender) -> None:
        self._topic = topic
        self._sender = sender
        self._unacknowledged: dict[str, triomq.blocking.Delivery] = {}
        self._cancelled = False
        self._consumer = _subscribed(consumer, topic)

    def take(self, new_tag: Callable[[], str], wait_s: float = 0.0) -> dict[str, Any] | None:
        """The next Kombu message, with a delivery tag that :meth:`done` takes; None if there is none now."""
        while (delivery := self._consumer.poll(wait_s)) is not None:
            try:
                body = _body_of(delivery.message)
                if remaining_ms(delivery.message.properties, self._sender.clock()) > HELD_MS:
                    # Sent before the answer: a worker that ends between the two causes a copy, and loses nothing.
                    self._sender.send_on(self._topic, delivery.message)
                    delivery.done()
                    continue
                message = unpack(body)
            except ValueError as error:
                log.error("%r is not a message of Kombu, and is delivered again later: %s", delivery.message, error)  # noqa: TRY400
                delivery.later()
                continue
            except triomq.MQError:
                delivery.later()
                raise
            tag = new_tag()
            message["properties"]["delivery_tag"] = tag
            message["properties"]["delivery_info"]["redelivered"] = delivery.message.reconsume_times > 0
            self._unacknowledged[tag] = delivery
            return message
        return None

    def has(self, tag: str) -> bool:
        """Whether a message was taken here and not acknowledged."""
        return tag in self._unacknowledged

    def done(self, tag: str, *, again: bool = False) -> bool:
        """Mark a message as consumed, or give it to any worker again at once.

        Returns:
            Whether the queue is cancelled, and this was its last message.
        """
        delivery = self._unacknowledged[tag]
        if again:
            self._sender.send_on(self._topic, delivery.message)
        # A message that took too long was delivered again, and that delivery counts.
        if not delivery.answered:
            delivery.done()
        del self._unacknowledged[tag]
        return self._cancelled and not self._unacknowledged

    def cancel(self) -> bool:
        """Stop taking messages; the group is left when the last message is acknowledged.

        Returns:
            Whether the group can be left now.
        """
        self._cancelled = True
        return not self._unacknowledged

    def resume(self) -> None:
        """Take messages again."""
        self._cancelled = False

    def close(self) -> None:
        """Leave the group; unacknowledged messages are given to other workers."""
        self._consumer.close()


LastRead = dict[triomq.MessageQueue, tuple[int, int]]
"""The last message that was read of each queue of a topic: its offset, and the latest time at which one was stored."""


class TransientQueue:
    """A queue that no other process reads: the messages it waits with, and how far topics are read for it.

    Args:
        since_ms: when it was declared, in ms since 1970.
        read: what had been read for other queues by then, by queue of a topic: nothing of it is for this one.
    """

    def __init__(self, since_ms: int, read: LastRead | None = None) -> None:
        self.since_ms = since_ms
        self.waiting: deque[tuple[dict[str, Any], int]] = deque()
        """Messages, each with its stored size in bytes; 0 if it was put back."""
        self._size_bytes = 0
        self._drops = False
        """Whether messages were dropped."""
        self.declarations = 0
        """How many connections have declared it."""
        self._read: LastRead = {} if read is None else read
        self.unlock()

    def unlock(self) -> None:
        """Let no thread hold its lock."""
        self._lock = threading.Lock()

    def put(self, message: dict[str, Any], size_bytes: int) -> bool:
        """Add a message; the oldest ones are dropped if there are too many.

        Returns:
            Whether one was dropped for the first time.
        """
        with self._lock:
            self.waiting.append((message, size_bytes))
            self._size_bytes += size_bytes
            dropped = False
            while len(self.waiting) > WAITING_MAX or (self._size_bytes > WAITING_BYTES_MAX and len(self.waiting) > 1):
                self._take()
                dropped = True
            is_first = dropped and not self._drops
            self._drops = self._drops or dropped
            return is_first

    def put_back(self, message: dict[str, Any]) -> None:
        """Make a message that was taken the next one again."""
        with self._lock:
            self.waiting.appendleft((message, 0))

    def take(self) -> dict[str, Any] | None:
        """The next message; None if there is none."""
        with self._lock:
            return self._take() if self.waiting else None

    def _take(self) -> dict[str, Any]:
        message, size_bytes = self.waiting.popleft()
        self._size_bytes -= size_bytes
        return message

    def last_read(self) -> LastRead:
        """What has been read for it."""
        with self._lock:
            return dict(self._read)

    def next_offset(self, queue: triomq.MessageQueue) -> int | None:
        """The first offset of a topic's queue that was not read for it; None if nothing was read."""
        read = self._read.get(queue)
        return None if read is None else read[0] + 1

    def is_new(self, message: triomq.ReceivedMessage) -> bool:
        """Whether a message has not been read for it; from now on it has."""
        offset, stored_ms = message.queue_offset, message.stored_ms
        with self._lock:  # connections of other threads read for it, too
            last_offset, last_ms = self._read.get(message.queue, (-1, -1))
            # In a topic that was deleted and created again, later messages have earlier offsets.
            if offset <= last_offset and stored_ms <= last_ms:
                return False
            # A broker's clock may be set back.
            self._read[message.queue] = (offset, max(stored_ms, last_ms))
        return True


class TransientQueues:
    """The transient queues of a process, which outlive its connections, as queues of a message broker do.

    Celery declares the queue of its results on the connection that sends a task, and reads it on another one, which it opens
    when the program asks for a result: what has arrived by then must be found. So must what arrives while a connection is
    established again. The queues that were used last are kept.
    """

    _MAX = 1000

    def __init__(self) -> None:
        self._queues: dict[tuple[str, ...], TransientQueue] = {}
        """The one that was declared last is the last."""
        self._unlock()
        os.register_at_fork(after_in_child=self._unlock)

    def _unlock(self) -> None:
        # Of the threads of its parent, a child has only the one that forked: nothing would release another one's lock.
        self._lock = threading.Lock()
        for queue in list(self._queues.values()):
            queue.unlock()

    def declare(self, key: tuple[str, ...], now_ms: int) -> TransientQueue:
        """The queue of a name at a cluster, for one more connection."""
        with self._lock:
            queue = self._queues.pop(key, None) or TransientQueue(now_ms, self._read_at(key[:-1]))
            self._queues[key] = queue
            if len(self._queues) > self._MAX:
                del self._queues[next(iter(self._queues))]
            queue.declarations += 1
            return queue

    def _read_at(self, cluster: tuple[str, ...]) -> LastRead:
        """How far the topics of a cluster have been read by now."""
        read: LastRead = {}
        for key, queue in list(self._queues.items()):
            if key[:-1] == cluster:
                for place, last in queue.last_read().items():
                    read[place] = max(last, read.get(place, last), key=lambda each: (each[1], each[0]))
        return read

    def delete(self, key: tuple[str, ...]) -> None:
        """Forget a queue and its messages."""
        with self._lock:
            self._queues.pop(key, None)


class _Positions:
    """An offset store that begins where one of several queues has read least, and keeps nothing."""

    def __init__(self, queues: Collection[TransientQueue]) -> None:
        self._queues = queues

    async def read(self, queue: triomq.MessageQueue, /) -> int | None:
        offsets = [offset for each in self._queues if (offset := each.next_offset(queue)) is not None]
        return min(offsets) if offsets and len(offsets) == len(self._queues) else None

    async def commit(self, _offsets: Mapping[triomq.MessageQueue, int], /) -> None:
        return None


class ExchangeReader:
    """Reads the topic of an exchange for the queues of one connection that are bound to it.

    Args:
        client: the connection's client.
        topic: the exchange's topic.
        replies: whether to read messages from just before the queues were declared: a reply may have arrived before the
            binding. With commands this is False: a worker would carry out those that were sent to its predecessor.
    """

    def __init__(self, client: triomq.blocking.Client, topic: str, *, replies: bool) -> None:
        self._client = client
        self._topic = topic
        self._replies = replies
        self._bindings: dict[str, list[Matches]] = {}
        self._queues: dict[str, TransientQueue] = {}
        self._lock = threading.RLock()
        self._caught_up = not replies
        # Connections that only send declare the queue of replies, too: what nobody takes is not read.
        self._consumer = None if replies else self._open()

    def _open(self) -> triomq.blocking.PushConsumer:
        queues = tuple(self._queues.values())
        consumer = self._client.push_consumer(
            f"{self._topic}-readers",
            model="broadcasting",
            start_from=min(each.since_ms for each in queues) - _REPLY_MARGIN_MS if self._replies else "latest",
            drain_s=0,
            offset_store=_Positions(queues if self._replies else ()),
        )
        return _subscribed(consumer, self._topic)

    def wait_assigned(self, wait_s: float) -> None:
        """Wait until there are queues to read from, so that messages sent from now on are read."""
        end = time.monotonic() + wait_s
        while self._consumer is not None and not self._consumer.assignment and time.monotonic() < end:
            time.sleep(0.01)

    def bind(self, name: str, queue: TransientQueue, matches: Matches) -> None:
        """Keep the messages that a binding matches for a queue."""
        with self._lock:
            if name not in self._queues and self._replies and queue.declarations > 1:
                self.close()  # what has come since its first declaration is read by a new consumer
            self._bindings.setdefault(name, []).append(matches)
            self._queues[name] = queue

    def unbind(self, name: str) -> bool:
        """Remove a queue.

        Returns:
            Whether no queue is left.
        """
        with self._lock:
            self._bindings.pop(name, None)
            self._queues.pop(name, None)
            return not self._bindings

    def take(self, name: str, new_tag: Callable[[], str], wait_s: float = 0.0) -> dict[str, Any] | None:
        """The next Kombu message for a queue; None if there is none now.

        Args:
            name: the queue.
            new_tag: returns a delivery tag.
            wait_s: how long to wait for what arrived before this began to read.
        """
        queue = self._queues[name]
        begin = time.monotonic()
        while (message := queue.take()) is None:
            spent_s = time.monotonic() - begin
            if spent_s > max(wait_s, _READ_AT_ONCE_S) or not self._read(wait_s - spent_s):
                return None
        # Each queue gets a copy: Kombu's changes to it must affect this queue only.
        properties = {**message["properties"], "delivery_tag": new_tag()}
        properties["delivery_info"] = dict(properties["delivery_info"])
        return {**message, "properties": properties}

    def _read(self, wait_s: float) -> bool:
        # Threads may wait for results of one connection. A message must be distributed before the next one is, which makes
        # it look like one that was read.
        with self._lock:
            if self._consumer is None:
                self._consumer = self._open()
                self._caught_up = False
            may_wait = wait_s > 0 and not self._caught_up
            delivery = self._consumer.poll(wait_s if may_wait else 0.0)
            if delivery is None:
                self._caught_up = self._caught_up or may_wait
                return False
            delivery.done()
            self._distribute(delivery.message)
            return True

    def _distribute(self, received: triomq.ReceivedMessage) -> None:
        interested = [name for name, queue in self._queues.items() if queue.is_new(received)]
        try:
            body = _body_of(received)
            message = unpack(body)
        except ValueError as error:
            log.error("%r is not a message of Kombu: %s", received, error)  # noqa: TRY400
            return
        key = routing_key(message)
        for name in interested:
            if any(matches(key) for matches in self._bindings[name]) and self._queues[name].put(message, len(body)):
                log.warning(
                    "the transient queue %r is not read, and has as many messages as it can hold, %d or %d MiB: the oldest "
                    "ones are dropped when others arrive",
                    name,
                    WAITING_MAX,
                    WAITING_BYTES_MAX >> 20,
                )

    def close(self) -> None:
        """Stop reading; a later :meth:`take` goes on."""
        with self._lock:
            consumer, self._consumer = self._consumer, None
            if consumer is not None:
                consumer.close()
