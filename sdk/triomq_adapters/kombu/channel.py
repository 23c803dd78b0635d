"""A channel: Kombu's calls for queues, bindings, sending and receiving."""

from __future__ import annotations

import re
from contextlib import suppress
from queue import Empty
from typing import Any

from kombu.transport import virtual

import triomq
from triomq_adapters.envelopes import pack
from triomq_adapters.kombu.exchange_reader import Matches
from triomq_adapters.kombu.work_queue import WorkQueue

_TRANSIENT = 1
_GET_WAIT_S = 1.0
_QUEUE = "queue"
"""The key of a taken message with the name of its transient queue."""


class QoS(virtual.QoS):
    """The messages that were taken and not acknowledged."""

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        # Kombu would restore messages at the end of the process, which is not needed, and would keep each connection that
        # was dropped without being closed: Celery opens one in each thread that asks for results.
        self._on_collect.cancel()


class Channel(virtual.Channel):
    """A channel: its queues, and the messages that were taken from them and not acknowledged."""

    supports_fanout = True
    do_restore = False  # unacknowledged messages are delivered again without it
    body_encoding = None
    QoS = QoS

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._work: dict[str, WorkQueue] = {}

    # --- queues and bindings

    def _new_queue(self, queue: str, auto_delete: bool = False, exclusive: bool = False, **_: Any) -> None:
        if auto_delete or exclusive:
            self.connection.declare_transient(queue)
            # A reply without an exchange, such as Celery's results by RPC, names the queue. Celery declares it for each task.
            if not self.connection.is_bound("", queue):
                self.connection.bind("", "direct", queue, queue.__eq__)
        else:
            self.connection.declare(queue)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        if queue in self.connection.transient:
            kind = self.typeof(exchange).type
            self.connection.bind(exchange, kind, queue, _matches(kind, routing_key, pattern))

    def _delete(self, queue: str, *_args: Any, **_kwargs: Any) -> None:
        if queue in self.connection.transient:
            self.connection.unbind(queue)
        else:
            self._purge(queue)

    def after_reply_message_received(self, queue: str) -> None:
        """Do nothing: the queue of replies also serves the next request."""

    def _size(self, queue: str) -> int:
        try:
            return self._known_size(queue)
        except triomq.MQError:
            return 0  # a declaration must not fail for this: senders make one, and other brokers may take the message

    def _known_size(self, queue: str) -> int:
        return 0 if queue in self.connection.transient else self.connection.lag(queue)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        """Declare a queue; ``passive=True`` asks how many messages it has, and raises in an outage, when that is unknown."""
        declared = super().queue_declare(queue, passive, **kwargs)
        return declared._replace(message_count=self._known_size(declared.queue)) if passive else declared

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        """Delete a queue; with ``if_empty`` this raises in an outage, when it is unknown whether it is empty."""
        if not (if_empty and self._known_size(queue)):
            super().queue_delete(queue, if_unused, **kwargs)
            # Kombu deletes what is bound to an exchange with a name.
            if queue in self.connection.transient:
                self.connection.unbind(queue)

    def _purge(self, queue: str) -> int:
        return 0 if queue in self.connection.transient else self.connection.purge(queue)

    # --- sending

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **_: Any) -> None:
        """Send a message to the queues that are bound here, or else to all that read the exchange."""
        self._inplace_augment_message(message, exchange, routing_key)
        if exchange:
            bound = self._lookup(exchange, routing_key) if exchange in self.state.exchanges else []
            queues = [queue for queue in bound if queue not in self.connection.transient]
            fanout = self.typeof(exchange).type == "fanout"
        else:
            queues, fanout = [routing_key], False
            if routing_key not in self.connection.declared and message["properties"].get("delivery_mode") == _TRANSIENT:
                queues = []
        body = pack(message)
        for queue in queues:
            self.connection.sender.send(self.connection.topic(queue), message, body)
        if fanout or not queues:
            self.connection.sender.send(self.connection.exchange_topic(exchange), message, body)

    # --- receiving

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> None:
        """Start to take messages from a queue."""
        if queue not in self.connection.transient:
            self._work_queue(queue).resume()
        super().basic_consume(queue, no_ack, *args, **kwargs)
        if no_ack and queue not in self.connection.transient:
            take = self.connection._callbacks[queue]  # noqa: SLF001

            def acknowledge_and_take(raw: dict[str, Any]) -> Any:
                self._answer(raw["properties"]["delivery_tag"])
                return take(raw)

            self.connection._callbacks[queue] = acknowledge_and_take  # noqa: SLF001

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop taking messages from a queue; other workers get it once the messages in work are acknowledged."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        work = self._work.get(queue) if queue is not None else None
        if work is not None and queue not in self._active_queues and work.cancel():
            self._leave(queue)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """The next message of a queue, or None if none arrives within a second: it may have to be fetched first."""
        try:
            message = self.Message(self._get(queue, timeout=_GET_WAIT_S), channel=self)
        except Empty:
            return None
        if no_ack:
            self._answer(message.delivery_tag)
        else:
            self.qos.append(message, message.delivery_tag)
        return message

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Mark a message as consumed."""
        self._answer(delivery_tag)
        super().basic_ack(delivery_tag, multiple)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Drop a message, or give it to any worker again."""
        if not self._answer(delivery_tag, again=requeue) and requeue:
            with suppress(KeyError):  # it was acknowledged when it was taken
                self._put_back(self.qos.get(delivery_tag))
        self.qos.ack(delivery_tag)

    def _restore(self, message: Any) -> None:
        if not self._answer(message.delivery_tag, again=True):
            self._put_back(message)

    def _put_back(self, message: Any) -> None:
        """Give a message of a transient queue to its next reader."""
        raw = message._raw  # noqa: SLF001
        if _QUEUE in raw:
            raw["properties"]["delivery_info"]["redelivered"] = True
            self.connection.put_back(raw.pop(_QUEUE), raw)

    def _answer(self, tag: str, *, again: bool = False) -> bool:
        """Answer a message of a queue that workers share; returns whether it is one."""
        for queue, work in list(self._work.items()):
            if work.has(tag):
                if work.done(tag, again=again):
                    self._leave(queue)
                return True
        return False

    def _leave(self, queue: str | None) -> None:
        # Other threads acknowledge too: only one of them closes it.
        work = self._work.pop(queue, None) if queue is not None else None
        if work is not None:
            work.close()

    def _work_queue(self, queue: str) -> WorkQueue:
        if queue not in self._work:
            self._work[queue] = self.connection.work_queue(queue)
        return self._work[queue]

    def _get(self, queue: str, timeout: float = 0.0) -> dict[str, Any]:
        message: dict[str, Any] | None
        if queue in self.connection.transient:
            message = self.connection.read(queue, self._next_delivery_tag, timeout)
            if message is not None:
                message[_QUEUE] = queue
        else:
            message = self._work_queue(queue).take(self._next_delivery_tag, timeout)
        if message is None:
            raise Empty
        return message

    def close(self) -> None:
        """Leave the groups; unacknowledged messages are given to other workers."""
        if not self.closed and self.connection is not None and not self.connection.was_forked:
            for queue in list(self._work):
                self._leave(queue)
        super().close()


def _matches(kind: str, routing_key: str, pattern: str | None) -> Matches:
    """The filter of a binding to an exchange of a kind."""
    if kind == "fanout":
        return lambda _: True
    if kind == "topic" and pattern is not None:
        compiled = re.compile(pattern)
        return lambda key: compiled.match(key) is not None
    return routing_key.__eq__
