"""Reads the topic of an exchange for transient queues."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import triomq
import triomq.blocking
from triomq_adapters.envelopes import routing_key, unpack
from triomq_adapters.kombu.reading import body_of, subscribed
from triomq_adapters.kombu.transient_queues import WAITING_BYTES_MAX, WAITING_MAX, TransientQueue

log = logging.getLogger("triomq.adapters.kombu")

_REPLY_MARGIN_MS = 5_000
"""How far a client's clock may be ahead of the broker's without a reply being missed, in ms."""

_READ_AT_ONCE_S = 0.25
"""How long one attempt to take a message reads those of others, in seconds; the caller's timeout is checked in between."""

Matches = Callable[[str], bool]
"""Returns whether a binding takes messages with a routing key."""


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
        return subscribed(consumer, self._topic)

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
            body = body_of(received)
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
