"""The transport ``rocketmq://`` for Kombu, and so for Celery.

::

    import triomq_adapters.kombu  # registers the transport

    app = celery.Celery("jobs", broker="rocketmq://127.0.0.1:9876/")

A queue is a topic that its consumers share as one group. A message that was taken and not acknowledged is given to
another consumer when its own has ended. Tasks with an ETA wait at the broker.

Transport options:

``name_servers``
    Several name servers, ``"a:9876;b:9876"``, in place of the one in the URL.
``topic_prefix``
    The prefix of the names of all topics and groups; default: none.
``queues``
    Queues per broker of a topic that is created; each queue is read by one worker at a time. Default: 16.
``commit_interval``
    How often a worker commits its acknowledgements, in seconds; default: 1. If it is killed, other workers repeat the
    messages acknowledged since the last commit.
``visibility_timeout``
    A message that is not acknowledged within this time, in seconds, is delivered again; default: 3600.
``max_retries``
    How often this may happen before the message becomes a dead letter; default: 16.
``send_timeout``
    How many seconds a send may take; default: 10.
``polling_interval``
    How many seconds a loop sleeps if there is no message; default: 0.02.
``client_options``
    Further arguments of :func:`triomq.open_client`.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from queue import Empty
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, virtual

import triomq
import triomq.blocking
from triomq_adapters.delays import wall_ms
from triomq_adapters.envelopes import legal_name, pack
from triomq_adapters.kombu_queues import ExchangeReader, Matches, Sender, TransientQueue, TransientQueues, WorkQueue
from triomq_adapters.topics import ensure_topic_blocking

__all__ = ["Channel", "Transport"]

_TRANSIENT = 1
_ASSIGNED_WAIT_S = 2.0
_GET_WAIT_S = 1.0
_QUEUE = "queue"
"""The key of a taken message with the name of its transient queue."""

_DELETED_MAX = 1000
"""The most names of deleted transient queues that are known: a consumer that still asks for one must not create a topic."""

_queues_of_process = TransientQueues()


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

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
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


class Transport(virtual.Transport):
    """A connection: one client, opened when the connection is established, in the process that uses it."""

    Channel = Channel
    default_port = 9876
    polling_interval = 0.02
    driver_type = "rocketmq"
    driver_name = "triomq"
    connection_errors = (
        *virtual.Transport.connection_errors,
        triomq.TransientError,
        triomq.RouteError,
        triomq.ClosedError,
        triomq.errors.NoNameServer,
    )
    recoverable_connection_errors = connection_errors
    channel_errors = (*virtual.Transport.channel_errors, triomq.CallError)
    recoverable_channel_errors = ()
    implements = virtual.Transport.implements.extend(exchange_type=frozenset(["direct", "topic", "fanout"]))

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.declared: set[str] = set()
        """Queues that workers share and that were declared here."""
        self.transient: set[str] = set()
        """Names of queues of this process that were declared here, also of the last ones that were deleted."""
        self._deleted: dict[str, None] = {}
        """Those that were deleted; the last one is the last."""
        self._client: triomq.blocking.Client | None = None
        self.sender: Sender
        self._transient_queues: dict[str, TransientQueue] = {}
        self._readers: dict[str, ExchangeReader] = {}
        self._read_by: dict[str, list[str]] = {}
        self._process = os.getpid()

    def driver_version(self) -> str:
        """The client's version."""
        return triomq.__version__

    def establish_connection(self) -> Any:
        """Open the client, and check that a name server answers."""
        if self._client is None:
            self._client = self._open()
        return super().establish_connection()

    def _open(self) -> triomq.blocking.Client:
        info, options = self.client, self.client.transport_options
        settings: dict[str, Any] = dict(options.get("client_options", {}))
        if info.userid:
            settings.setdefault("credentials", triomq.Credentials(info.userid, info.password or ""))
        if info.virtual_host and info.virtual_host != "/":
            settings.setdefault("namespace", info.virtual_host.strip("/"))
        # Kombu itself retries, perhaps elsewhere, within its connect_timeout.
        settings.setdefault("route_wait_s", (info.connect_timeout or 4) / 4)
        servers = options.get("name_servers") or f"{info.hostname or '127.0.0.1'}:{info.port or self.default_port}"
        client = triomq.blocking.open_client(servers, **settings)
        try:
            client.admin.cluster_info()
            prefix = options.get("topic_prefix", "")
            producer = client.producer(f"{prefix}kombu-senders", send_timeout_s=options.get("send_timeout", 10.0))
            self.sender = Sender(producer, options.get("clock", wall_ms))
        except BaseException:
            client.close()
            raise
        return client

    def close_connection(self, connection: Any) -> None:
        """Close channels and client; in a forked child only drop them: they belong to its parent."""
        super().close_connection(connection)
        client, self._client = self._client, None
        if client is not None and not self.was_forked:
            client.close()
        self._transient_queues.clear()
        self._readers.clear()
        self._read_by.clear()

    @property
    def was_forked(self) -> bool:
        """Whether this was created by the parent of this process."""
        return os.getpid() != self._process

    @property
    def _opened(self) -> triomq.blocking.Client:
        if self._client is None:
            raise triomq.errors.ClientClosed("the connection is closed")
        return self._client

    # --- calls of channels to the client

    def topic(self, queue: str) -> str:
        """The topic of a queue that workers share."""
        return f"{self.client.transport_options.get('topic_prefix', '')}{legal_name(queue)}"

    def exchange_topic(self, exchange: str) -> str:
        """The topic of an exchange, which each connection reads separately."""
        return f"{self.client.transport_options.get('topic_prefix', '')}exchange-{legal_name(exchange)}"

    def declare(self, queue: str) -> None:
        """Create the topic of a queue that workers share, if it does not exist."""
        if queue in self._deleted:
            self._forget(queue)
        if queue not in self.declared:
            queues = self.client.transport_options.get("queues", 16)
            ensure_topic_blocking(self._opened.admin, self.topic(queue), queues)
            self.declared.add(queue)

    def declare_transient(self, name: str) -> TransientQueue:
        """Keep what comes for a queue of this process from now on, or since another connection has declared it."""
        queue = self._transient_queues.get(name)
        if queue is None:
            self._deleted.pop(name, None)
            self.transient.add(name)
            queue = self._transient_queues[name] = _queues_of_process.declare(self._key(name), self.sender.clock())
        return queue

    def _key(self, queue: str) -> tuple[str, ...]:
        # Of several URLs a connection uses the one that answers: all name one cluster.
        urls = sorted(self.client.alt) or [f"{self.client.hostname}:{self.client.port}"]
        servers = self.client.transport_options.get("name_servers") or ";".join(urls)
        return (str(servers), self.client.virtual_host or "", self.topic(queue))

    def bind(self, exchange: str, kind: str, queue: str, matches: Matches) -> None:
        """Read an exchange for a queue of this process."""
        reader = self._readers.get(exchange)
        if reader is None:
            topic = self.exchange_topic(exchange)
            ensure_topic_blocking(self._opened.admin, topic, 1)
            replies = kind == "direct"
            reader = ExchangeReader(self._opened, topic, replies=replies)
            self._readers[exchange] = reader
            if not replies:
                reader.wait_assigned(_ASSIGNED_WAIT_S)
        reader.bind(queue, self.declare_transient(queue), matches)
        if not self.is_bound(exchange, queue):
            self._read_by.setdefault(queue, []).append(exchange)

    def is_bound(self, exchange: str, queue: str) -> bool:
        """Whether an exchange is read for a queue of this process."""
        return exchange in self._read_by.get(queue, ())

    def unbind(self, queue: str) -> None:
        """Stop reading for a queue, and forget it."""
        self._transient_queues.pop(queue, None)
        _queues_of_process.delete(self._key(queue))
        for exchange in self._read_by.pop(queue, []):
            if self._readers[exchange].unbind(queue):
                self._readers.pop(exchange).close()
        self._deleted[queue] = None
        if len(self._deleted) > _DELETED_MAX:
            self._forget(next(iter(self._deleted)))

    def _forget(self, deleted: str) -> None:
        del self._deleted[deleted]
        self.transient.discard(deleted)

    def read(self, queue: str, new_tag: Any, wait_s: float) -> dict[str, Any] | None:
        """The next message for a queue of this process; None if there is none now.

        Args:
            queue: the queue.
            new_tag: returns a delivery tag.
            wait_s: how long to wait for what arrived before this connection began to read.
        """
        for exchange in self._read_by.get(queue, []):
            message = self._readers[exchange].take(queue, new_tag, wait_s)
            if message is not None:
                return message
        return None

    def put_back(self, queue: str, message: dict[str, Any]) -> None:
        """Make a message that was read the next one of its queue again, unless the queue was deleted."""
        transient = self._transient_queues.get(queue)
        if transient is not None:
            transient.put_back(message)

    def work_queue(self, queue: str) -> WorkQueue:
        """Become a member of a queue's group."""
        self.declare(queue)
        options = self.client.transport_options
        topic = self.topic(queue)
        consumer = self._opened.push_consumer(
            _group(topic),
            start_from="earliest",
            drain_s=0,
            commit_every_s=float(options.get("commit_interval", 1.0)),
            retries=triomq.ConsumeRetries(
                max_times=options.get("max_retries", 16), timeout_s=float(options.get("visibility_timeout", 3600))
            ),
        )
        return WorkQueue(consumer, topic, self.sender)

    def lag(self, queue: str) -> int:
        """The number of messages of a queue that no worker has acknowledged.

        Raises:
            MQError: it is unknown, since not all brokers of the queue answer.
        """
        topic = self.topic(queue)
        progress = self._opened.groups.progress(_group(topic), topic)
        unknown = {**progress.without_master, **progress.refused}
        if unknown:
            # All brokers were asked; those that do not have the topic have none of its messages.
            having = {broker.broker_name for broker in self._opened.admin.route(topic).broker_datas or []}
            having.update(each.broker_name for each in progress)
            unknown = {name: why for name, why in unknown.items() if name in having}
        count = sum(max(0, each.broker_offset - each.consumer_offset) for each in progress.values())
        if not progress and not unknown:
            try:
                stats = self._opened.admin.topic_stats(topic)
            except triomq.errors.BrokerNotFound:
                raise
            except triomq.errors.RouteNotFound:
                return 0
            unknown = {**stats.without_master, **stats.refused}
            count = sum(each.max_offset - each.min_offset for each in stats.offset_table.values())
        if unknown:
            brokers = "; ".join(f"broker {name}: {why}" for name, why in sorted(unknown.items()))
            raise triomq.errors.BrokerNotFound(f"the number of messages in queue {queue} is unknown: {brokers}")
        return count

    def purge(self, queue: str) -> int:
        """Skip the messages that are in a queue now.

        Returns:
            Their approximate number.
        """
        topic, groups = self.topic(queue), self._opened.groups
        try:
            count = self.lag(queue)
        except triomq.MQError:
            count = 0  # what follows raises if a broker does not answer
        # If there has been no worker yet, the first one starts after the present messages.
        groups.reset(_group(topic), topic, groups.END, new_group=True)
        return count


def _group(topic: str) -> str:
    return f"{topic}-workers"


def _matches(kind: str, routing_key: str, pattern: str | None) -> Matches:
    """The filter of a binding to an exchange of a kind."""
    if kind == "fanout":
        return lambda _: True
    if kind == "topic" and pattern is not None:
        compiled = re.compile(pattern)
        return lambda key: compiled.match(key) is not None
    return routing_key.__eq__


TRANSPORT_ALIASES.setdefault("rocketmq", "triomq_adapters.kombu:Transport")
