"""A transport: one client, its queues, and what channels ask of it."""

from __future__ import annotations

import os
from typing import Any

from kombu.transport import virtual

import triomq
import triomq.blocking
from triomq_adapters.delays import wall_ms
from triomq_adapters.envelopes import legal_name
from triomq_adapters.kombu.channel import Channel
from triomq_adapters.kombu.exchange_reader import ExchangeReader, Matches
from triomq_adapters.kombu.sender import Sender
from triomq_adapters.kombu.transient_queues import TransientQueue, TransientQueues
from triomq_adapters.kombu.work_queue import WorkQueue
from triomq_adapters.topics import ensure_topic_blocking

_ASSIGNED_WAIT_S = 2.0

_DELETED_MAX = 1000
"""The most names of deleted transient queues that are known: a consumer that still asks for one must not create a topic."""

_queues_of_process = TransientQueues()


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
