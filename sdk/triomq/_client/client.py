"""The client: one per process and cluster; owns links, routes and heartbeats, and creates producers and consumers.

Everything lives in two nurseries between the start and the end of ``async with open_client(...)``: one for the links, which a
cancel does not reach before consumers have committed, and one for all other tasks.
Upstream: ``MQClientInstance``, ``MQClientManager`` (docs/protocol/client.md §1).
"""

from __future__ import annotations

import logging
import random
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, TypeVar

import trio

from triomq._admin.accounts import AccountAdmin
from triomq._admin.dead_letters import DeadLetterAdmin
from triomq._admin.groups import GroupAdmin
from triomq._admin.messages import MessageAdmin
from triomq._admin.servers import ServerAdmin
from triomq._admin.topics import Admin
from triomq._arguments.numbers import check_count, check_seconds
from triomq._client.members import Members
from triomq._client.options import ClientOptions, check_options, dialer_of
from triomq._cluster.broker_links import BrokerLinks
from triomq._cluster.broker_requests import BrokerRequests
from triomq._cluster.client_statistics import (
    SINK_EVERY_S,
    ClientStatistics,
    LinkStatistics,
    keep_sinking,
    sink_once,
)
from triomq._cluster.counters import Counters, count_code
from triomq._cluster.heartbeats import Heartbeats
from triomq._cluster.identity import UniqueKeys, client_id, default_instance_name, local_ip, wall_ms
from triomq._cluster.name_servers import NameServerGroup, NameServers, provider_for
from triomq._cluster.queue_bounds import QueueBounds
from triomq._cluster.replica_choice import ReadPreference
from triomq._cluster.route_wait import RouteWait, checked_wait_s
from triomq._cluster.routes import DEFAULT_TOPIC_QUEUES, REFRESH_EVERY_S, TOPICS_MAX, Routes
from triomq._constructors import NoPublicConstructor, construct
from triomq._consumer.group.allocate import AllocateStrategy
from triomq._consumer.group.callbacks import ConsumerCallbacks, OnEvent
from triomq._consumer.group.positions import COMMIT_EVERY_S, IllegalOffset, StartFrom
from triomq._consumer.group.process_queue import FlowLimits
from triomq._consumer.lite.lite_pull_consumer import LitePullConsumer
from triomq._consumer.lite.options import HELD_MAX, LiteOptions
from triomq._consumer.membership import ClientResources, GroupOptions, MessageModel
from triomq._consumer.offset_store import OffsetStore
from triomq._consumer.pull_consumer import PullConsumer
from triomq._consumer.push.options import ConsumeRetries, PullOptions, PushOptions
from triomq._consumer.push.push_consumer import PushConsumer
from triomq._examination.doctor import Doctor
from triomq._message.compression import COMPRESS_FROM_BYTES, Compressor, ZlibCompressor, checked_compressor
from triomq._message.debug_hooks import LoggedCalls, LoggedSends, consumer_log, producer_log
from triomq._message.hooks import (
    ConsumeHook,
    ConsumeWrapper,
    FilterHook,
    PullHook,
    SendHook,
    check_hooks,
    process_hooks,
)
from triomq._message.message import MAX_BODY_BYTES, MessageQueue, check_group, check_topic
from triomq._message.namespace import Namespace
from triomq._message.transaction import TransactionCheck, TransactionListener
from triomq._producer.producer import Producer
from triomq._producer.request_reply import ReplyDesk
from triomq._producer.sender import Sender, SendSettings
from triomq._producer.strategies.checked_plugs import checked_faults, checked_policy
from triomq._producer.strategies.faults import FaultStrategy
from triomq._producer.strategies.retry import Retries, RetryPolicy
from triomq._producer.trace import TRACE_GROUP, SendTrace, Tracer
from triomq._producer.transactions import check_listener
from triomq._transport.link import HEADER_BYTES_MAX, Handler
from triomq._transport.links import Links
from triomq.errors import ClientClosed, InvalidCall
from triomq_protocol.names import DEFAULT_TOPIC, TRACE_TOPIC

Consumer = TypeVar("Consumer", bound=PullConsumer | PushConsumer | LitePullConsumer)

_ZLIB: Final = ZlibCompressor()


IN_FLIGHT_MAX: Final = 2**63 - 1
"""The highest bound on sends in flight, and on their bytes: the compiled sends count with integers of this size."""


class Client(metaclass=NoPublicConstructor):
    """An open client; created by :func:`open_client`.

    Attributes:
        client_id: the id under which brokers know it.
        admin: administrative calls about topics and the cluster.
        groups: administrative calls about consumer groups.
        messages: stored messages: finds them, reports their consumers, sends them again.
        dead_letters: messages that groups gave up on: reads them, and sends them again.
        servers: administrative calls about brokers and name servers.
        accounts: accounts of brokers with access control.
        doctor: finds faults of the cluster.
        bounds: offsets of queues.
    """

    client_id: str
    admin: Admin
    groups: GroupAdmin
    messages: MessageAdmin
    dead_letters: DeadLetterAdmin
    servers: ServerAdmin
    accounts: AccountAdmin
    doctor: Doctor
    bounds: QueueBounds

    def __init__(
        self, name_servers: NameServers | None, nursery: trio.Nursery, links: trio.Nursery, options: ClientOptions
    ) -> None:
        check_options(options)
        ip, unit = options.get("client_ip") or local_ip(), options.get("unit_name", "")
        instance = options.get("instance_name")
        self.client_id = client_id(ip, instance or default_instance_name(), unit)
        self._nursery = nursery
        self._clock = options.get("clock", wall_ms)
        self._chance = options.get("chance") or random.Random()
        self._unique_keys = UniqueKeys(ip, self._clock)
        self._counters = Counters()
        # Filled below: brokers' requests are answered by objects that need the links.
        handlers: dict[int, Handler] = {}
        self._links = Links(
            links,
            dialer_of(options),
            handlers=handlers,
            chance=self._chance,
            backoff=options.get("backoff"),
            max_pending=options.get("max_pending", 65535),
            max_unsent_bytes=options.get("max_unsent_bytes", 64 * 1024 * 1024),
            max_header_bytes=options.get("max_header_bytes", HEADER_BYTES_MAX),
            credentials=options.get("credentials"),
            on_code=partial(count_code, self._counters.codes),
        )
        self._name_servers = NameServerGroup(provider_for(name_servers), self._links, self._chance)
        self._namespace = Namespace(options.get("namespace", ""))
        self._unit_mode = options.get("unit_mode", False)
        self._routes = Routes(
            self._name_servers,
            namespace=self._namespace,
            default_topic=options.get("default_topic", DEFAULT_TOPIC),
            default_topic_queues=options.get("default_topic_queues", DEFAULT_TOPIC_QUEUES),
            refresh_every_s=options.get("refresh_every_s", REFRESH_EVERY_S),
            max_topics=options.get("max_topics", TOPICS_MAX),
        )
        self._requests = BrokerRequests(
            nursery.start_soon, self._name_servers, self._clock(), self._namespace, self._routes.look_soon
        )
        handlers.update(self._requests.handlers())
        self._links.is_shared = self._routes.is_shared
        self._route_wait = RouteWait(self._routes, self._links, checked_wait_s(options.get("route_wait_s")))
        self._heartbeats = Heartbeats(
            self.client_id,
            self._routes,
            self._links,
            nursery,
            every_s=options.get("heartbeat_every_s", 30.0),
        )
        self._desk = ReplyDesk(
            client_id=self.client_id,
            waiting=self._requests.replies,
            heartbeats=self._heartbeats,
            routes=self._routes,
            clock=self._clock,
            chance=self._chance,
        )
        self._resources = ClientResources(
            client_id=self.client_id,
            file_id=client_id(ip, instance, unit) if instance else None,
            routes=self._routes,
            links=self._links,
            heartbeats=self._heartbeats,
            requests=self._requests,
            nursery=nursery,
            unique_keys=self._unique_keys,
            clock=self._clock,
            chance=self._chance,
            route_wait=self._route_wait,
            unit_mode=self._unit_mode,
            counters=self._counters,
        )
        self._sink = options.get("statistics_sink")
        self._sink_every_s = options.get("statistics_every_s", SINK_EVERY_S)
        self._traces = options.get("trace", False)
        self._trace_topic = _checked_trace_topic(options.get("trace_topic", TRACE_TOPIC))
        self._tracers: weakref.WeakValueDictionary[str, Tracer] = weakref.WeakValueDictionary()
        """Trace topic -> its tracer, as long as members use it or it has records."""
        self._members = Members()
        self._closed = False
        self._closings = 0
        """How many calls of `aclose` close members now."""
        self._ended = trio.Event()
        self.admin = construct(Admin, self._name_servers, self._routes, self._links, self._route_wait)
        brokers = BrokerLinks(self._routes, self._links)
        self.bounds = construct(QueueBounds, brokers, self._route_wait)
        self.groups = construct(GroupAdmin, self.admin, self._routes, self._links, self._route_wait)
        self.messages = construct(
            MessageAdmin, self.admin, self.groups, brokers, self.bounds, self._links, self._copy_sender
        )
        self.servers = construct(ServerAdmin, self.admin, self._name_servers, self._links)
        self.accounts = construct(AccountAdmin, self.admin, self.servers, self._links)
        self.doctor = construct(Doctor, self._name_servers, self._links, self._clock, self.client_id)
        self.dead_letters = construct(DeadLetterAdmin, self.groups, self.messages, self._routes, brokers, self.bounds)

    def _copy_sender(self, group: str) -> Sender:
        settings = SendSettings(compressor=None, policy=Retries(), route_wait_s=self._route_wait.wait_s)
        return self._own_sender(group, settings)

    @cached_property
    def _trace_sender(self) -> Sender:
        return self._own_sender(TRACE_GROUP, SendSettings(timeout_s=5.0, compressor=_ZLIB, policy=Retries()))

    def _own_sender(self, group: str, settings: SendSettings) -> Sender:
        """A sender that belongs to no producer."""
        return Sender(
            group,
            self._routes,
            self._links,
            unique_keys=self._unique_keys,
            clock=self._clock,
            chance=self._chance,
            settings=settings,
            counters=self._counters,
        )

    @property
    def name_servers(self) -> list[str]:
        """The name servers that are known now."""
        return self._name_servers.addresses

    def producer(
        self,
        group: str,
        *,
        send_timeout_s: float = 3.0,
        max_in_flight: int = 4096,
        max_in_flight_bytes: int = 64 * 1024 * 1024,
        linger_s: float | None = 0.0,
        max_body_bytes: int = MAX_BODY_BYTES,
        compress_from_bytes: int = COMPRESS_FROM_BYTES,
        compressor: Compressor | None = _ZLIB,
        retry: RetryPolicy | None = None,
        faults: FaultStrategy | None = None,
        hooks: Sequence[SendHook] = (),
        transactions: TransactionListener | TransactionCheck | None = None,
        max_checks: int = 16,
        trace: bool | None = None,
        trace_topic: str | None = None,
    ) -> Producer:
        """Create a producer of a group; the client closes it, unless it is closed before.

        Args:
            group: producer group; one producer per group and client.
            send_timeout_s: deadline of a send, over all its attempts; it does not include the time that a send with a
                callback waits until it is accepted.
            max_in_flight: most sends with a callback in flight; further calls of ``send`` wait.
            max_in_flight_bytes: the same limit for the sum of their bodies.
            linger_s: how long sends with a callback wait for others to share a request with: those to one queue that are
                accepted in one turn of the event loop, and for so long after the first of them, are sent as a batch. 0,
                the default, makes no message wait for others, and lets awaited sends of many tasks share requests too;
                None gives each its own request.
            max_body_bytes: larger bodies are refused.
            compress_from_bytes: bodies from this size on are compressed.
            compressor: compresses them; None never compresses.
            retry: decides which attempts are repeated; default :class:`triomq.plugins.Retries`.
            faults: decides which brokers to avoid; default: none. :class:`triomq.plugins.LatencyFaults` is upstream's.
            hooks: see :class:`triomq.plugins.SendHook`.
            transactions: a :class:`triomq.TransactionListener`, or a function like its method ``check``: answers brokers
                that check the state of a transaction. Needed for transactions; the group's name must then stay the
                same after a restart.
            max_checks: the most checks that run at the same time.
            trace: whether traces of the messages are sent to a broker (``enableMsgTrace``); default: as for the client.
            trace_topic: the topic of the traces (``customizedTraceTopic``); default: as for the client.

        Raises:
            InvalidCall: a number is out of range, or the group's name cannot be used or is in use.
        """
        self._check_open()
        group = self._group(group)
        check_seconds("send_timeout_s", send_timeout_s)
        check_count("max_in_flight", max_in_flight, 1, IN_FLIGHT_MAX)
        check_count("max_in_flight_bytes", max_in_flight_bytes, 1, IN_FLIGHT_MAX)
        check_count("max_checks", max_checks, 1)
        check_hooks("hooks", hooks, "before_send", "after_send")
        if linger_s is not None:
            check_seconds("linger_s", linger_s, zero=True)
            if linger_s >= send_timeout_s:
                raise InvalidCall(
                    f"linger_s is {linger_s!r}, and send_timeout_s {send_timeout_s!r}: no time is left to send"
                )
        settings = SendSettings(
            timeout_s=send_timeout_s,
            max_body_bytes=max_body_bytes,
            compress_from_bytes=compress_from_bytes,
            compressor=checked_compressor(compressor),
            policy=checked_policy(retry, send_timeout_s),
            route_wait_s=self._route_wait.wait_s,
            unit_mode=self._unit_mode,
            faults=checked_faults(faults),
        )
        if transactions is not None:
            check_listener(group, transactions)
        tracer = self._tracer(trace, trace_topic)
        send_trace = SendTrace(tracer, self._master_of) if tracer is not None else None
        every_hook = [
            *([LoggedSends()] if producer_log.isEnabledFor(logging.DEBUG) else []),
            *process_hooks.send,
            *([] if send_trace is None else [send_trace]),
            *hooks,
        ]
        sender = Sender(
            group,
            self._routes,
            self._links,
            unique_keys=self._unique_keys,
            clock=self._clock,
            chance=self._chance,
            settings=settings,
            counters=self._counters,
        )

        async def leave() -> None:
            self._members.remove(producer)
            await self._heartbeats.remove_producer(group)

        try:
            # Only now: an argument that cannot be used leaves the group free.
            self._heartbeats.add_producer(group, answers=transactions is not None)
        except InvalidCall:
            sender.close()
            raise
        producer = construct(
            Producer,
            sender,
            spawn=self._nursery.start_soon,
            leave=leave,
            asked=self._requests.producers,
            desk=self._desk,
            max_in_flight=max_in_flight,
            max_in_flight_bytes=max_in_flight_bytes,
            linger_s=linger_s,
            hooks=every_hook,
            transactions=transactions,
            max_checks=max_checks,
            on_transaction_end=send_trace.transaction_ended if send_trace is not None else None,
        )
        self._members.add(producer)
        return producer

    def pull_consumer(
        self,
        group: str,
        *,
        offset_store: OffsetStore | None = None,
        read_preference: ReadPreference | str | int = ReadPreference.SUGGESTED,
        pull_hooks: Sequence[PullHook] = (),
        filter_hooks: Sequence[FilterHook] = (),
        on_event: OnEvent | None = None,
    ) -> PullConsumer:
        """Create a pull consumer of a group; the client closes it, unless it is closed before.

        Args:
            group: consumer group; one consumer per group and client.
            offset_store: where the group's offsets are kept; default: at the brokers.
            read_preference: which brokers to pull from: ``suggested``, ``master``, ``slave``, ``prefer_slave``, or
                the id of a broker: then that one alone is asked in each set.
            pull_hooks: see :class:`triomq.plugins.PullHook`.
            filter_hooks: see :class:`triomq.plugins.FilterHook`.
            on_event: a plain function, called with a :class:`triomq.ConsumerEvent` for each event for operators.

        Raises:
            InvalidCall: the group's name cannot be used, or is in use.
        """
        self._check_open()
        _check_pull_hooks(pull_hooks, filter_hooks)
        return self._add_consumer(
            lambda left: construct(
                PullConsumer,
                self._resources,
                self._group(group),
                offset_store=offset_store,
                read_preference=read_preference,
                pull_hooks=[*process_hooks.pull, *pull_hooks],
                filter_hooks=filter_hooks,
                on_event=on_event,
                left=left,
            )
        )

    def push_consumer(
        self,
        group: str,
        *,
        model: MessageModel = "clustering",
        ordered: bool = False,
        auto_commit: bool = True,
        start_from: StartFrom = "latest",
        read_preference: ReadPreference | str | int = ReadPreference.SUGGESTED,
        batch_max: int = 1,
        drain_s: float = 10.0,
        limits: FlowLimits | None = None,
        pulling: PullOptions | None = None,
        retries: ConsumeRetries | None = None,
        callbacks: ConsumerCallbacks | None = None,
        allocate: AllocateStrategy | None = None,
        offset_store: OffsetStore | None = None,
        illegal_offset: IllegalOffset | str = IllegalOffset.BROKER,
        commit_every_s: float = COMMIT_EVERY_S,
        pull_hooks: Sequence[PullHook] = (),
        filter_hooks: Sequence[FilterHook] = (),
        consume_hooks: Sequence[ConsumeHook | ConsumeWrapper] = (),
        trace: bool | None = None,
        trace_topic: str | None = None,
    ) -> PushConsumer:
        """Create a push consumer of a group, for use in ``async with``: messages go to a loop or to a handler.

        Arguments that are not listed are those of :meth:`lite_pull_consumer`.

        Args:
            group: consumer group; one consumer per group and client.
            ordered: whether a queue's messages are handled one after the other; brokers then lock queues.
            auto_commit: False, with ``ordered``: nothing is committed before a handler returns
                :class:`triomq.Commit`, and :class:`triomq.Rollback` delivers everything since then again.
            batch_max: messages per call of a handler that :meth:`triomq.PushConsumer.run` was given, 1-1024.
            drain_s: seconds that the end of the consumer waits for running handlers.
            limits: how much of each queue is held in memory; beyond it, pulling pauses.
            pulling: the size and frequency of pulls; see :class:`triomq.PullOptions`.
            retries: what happens to messages whose handler fails or takes too long; see
                :class:`triomq.ConsumeRetries`.
            consume_hooks: see :class:`triomq.plugins.ConsumeHook` and :class:`triomq.plugins.ConsumeWrapper`.

        Raises:
            InvalidCall: an argument cannot be used, or the client has a consumer of the group.
        """
        self._check_open()
        _check_kinds(
            {
                "limits": (limits, FlowLimits),
                "pulling": (pulling, PullOptions),
                "retries": (retries, ConsumeRetries),
                "callbacks": (callbacks, ConsumerCallbacks),
            }
        )
        _check_pull_hooks(pull_hooks, filter_hooks)
        check_hooks("consume_hooks", consume_hooks, "before_consume", "around_consume")
        push = PushOptions(
            ordered=ordered,
            auto_commit=auto_commit,
            batch_max=batch_max,
            pulling=pulling if pulling is not None else PullOptions(),
            retries=retries if retries is not None else ConsumeRetries(),
            drain_s=drain_s,
            consume_hooks=[
                *([LoggedCalls()] if consumer_log.isEnabledFor(logging.DEBUG) else []),
                *process_hooks.consume,
                *consume_hooks,
            ],
            tracer=self._tracer(trace, trace_topic),
        )
        options = GroupOptions(
            group=self._group(group),
            model=model,
            start_from=start_from,
            read_preference=read_preference,
            limits=limits if limits is not None else FlowLimits(),
            callbacks=callbacks if callbacks is not None else ConsumerCallbacks(),
            allocate=allocate,
            offset_store=offset_store,
            illegal_offset=illegal_offset,
            commit_every_s=commit_every_s,
            pull_hooks=pull_hooks,
            filter_hooks=filter_hooks,
        )
        return self._add_consumer(lambda left: construct(PushConsumer, self._resources, options, push, left=left))

    def lite_pull_consumer(
        self,
        group: str,
        *,
        model: MessageModel = "clustering",
        start_from: StartFrom = "latest",
        read_preference: ReadPreference | str | int = ReadPreference.SUGGESTED,
        batch_max: int = 32,
        held_max: int = HELD_MAX,
        auto_commit: bool = True,
        limits: FlowLimits | None = None,
        callbacks: ConsumerCallbacks | None = None,
        allocate: AllocateStrategy | None = None,
        offset_store: OffsetStore | None = None,
        illegal_offset: IllegalOffset | str = IllegalOffset.BROKER,
        commit_every_s: float = COMMIT_EVERY_S,
        pull_hooks: Sequence[PullHook] = (),
        filter_hooks: Sequence[FilterHook] = (),
        trace: bool | None = None,
        trace_topic: str | None = None,
    ) -> LitePullConsumer:
        """Create a lite pull consumer of a group, for use in ``async with``: it fetches in the background, and the
        caller polls.

        Args:
            group: consumer group; one consumer per group and client.
            model: ``"clustering"``: the group's members share the queues; ``"broadcasting"``: each has all.
            start_from: where the group starts in queues without an offset: ``"latest"``, ``"earliest"``, a datetime
                with a zone, or ms since 1970.
            read_preference: which brokers to pull from: ``suggested``, ``master``, ``slave``, ``prefer_slave``, or
                the id of a broker: then that one alone is asked in each set.
            batch_max: messages per pull, and so per poll.
            held_max: messages fetched ahead, over all queues.
            auto_commit: whether polled messages are committed without :meth:`triomq.LitePullConsumer.commit`.
            limits: how much is fetched ahead of each queue.
            callbacks: functions called when queues are assigned or revoked, and with events for operators; see
                :class:`triomq.ConsumerCallbacks`.
            allocate: how queues are assigned to members; the same for all members. Default ``AVG``, as in Java.
            offset_store: where offsets are kept; default: at the brokers. When broadcasting: in a file under
                ``~/.rocketmq_offsets`` that only this client uses, or, if the client has no ``instance_name``, in the
                client's memory.
            illegal_offset: what to do when a broker does not have the offset to be pulled: ``"broker"``,
                ``"earliest"``, ``"latest"`` or ``"raise"``.
            commit_every_s: seconds between two commits, 0.1-3600 (``persistConsumerOffsetInterval``). After a
                process is killed, others consume again what it has consumed since its last commit.
            pull_hooks: see :class:`triomq.plugins.PullHook`.
            filter_hooks: see :class:`triomq.plugins.FilterHook`.
            trace: whether traces of consumed messages go to a broker (``enableMsgTrace``); default: as for the client.
            trace_topic: the topic of the traces (``customizedTraceTopic``); default: as for the client.

        Raises:
            InvalidCall: an argument cannot be used, or the client has a consumer of the group.
        """
        self._check_open()
        _check_kinds({"limits": (limits, FlowLimits), "callbacks": (callbacks, ConsumerCallbacks)})
        _check_pull_hooks(pull_hooks, filter_hooks)
        lite = LiteOptions(
            auto_commit=auto_commit, batch_max=batch_max, held_max=held_max, tracer=self._tracer(trace, trace_topic)
        )
        options = GroupOptions(
            group=self._group(group),
            model=model,
            start_from=start_from,
            read_preference=read_preference,
            limits=limits if limits is not None else FlowLimits(),
            callbacks=callbacks if callbacks is not None else ConsumerCallbacks(),
            allocate=allocate,
            offset_store=offset_store,
            illegal_offset=illegal_offset,
            commit_every_s=commit_every_s,
            pull_hooks=[*process_hooks.pull, *pull_hooks],
            filter_hooks=filter_hooks,
        )
        return self._add_consumer(lambda left: construct(LitePullConsumer, self._resources, options, lite, left=left))

    def _group(self, group: str) -> str:
        """A group's name as brokers know it."""
        check_group(group)
        group = self._namespace.wrap(group)
        check_group(group)
        return group

    def _tracer(self, trace: bool | None, topic: str | None) -> Tracer | None:
        """The sender of a member's traces; None if it sends none."""
        if not (self._traces if trace is None else trace):
            return None
        topic = self._trace_topic if topic is None else _checked_trace_topic(topic)
        # The topic of traces belongs to the brokers, whatever the namespace, as in Java.
        self._namespace.plain.add(topic)
        tracer = self._tracers.get(topic)
        if tracer is None:
            tracer = Tracer(topic, self._trace_sender, self._clock, self._namespace, self._spawn)
            self._tracers[topic] = tracer
        return tracer

    def _spawn(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Start a task; does nothing once the client has ended, since handlers of the user's nursery may still run."""
        if not self._closed and not self._nursery.cancel_scope.cancel_called:
            self._nursery.start_soon(function, *args)

    def _master_of(self, queue: MessageQueue) -> str | None:
        route = self._routes.known(queue.topic)
        return route.master(queue.broker_name) if route is not None else None

    def _add_consumer(self, make: Callable[[Callable[[], None]], Consumer]) -> Consumer:
        """Register a consumer to be closed at the end, until it calls the function passed to `make`: it has left."""

        consumer = make(lambda: self._members.remove(consumer))
        self._members.add(consumer)
        return consumer

    def statistics(self) -> ClientStatistics:
        """The client's state now, and its counters since it was opened; see the page on metrics."""
        return ClientStatistics.of(
            self._counters,
            links=tuple(
                LinkStatistics(link.address, len(link.pending), link.unsent_bytes) for link in self._links.open_links()
            ),
            topics=len(self._routes),
            callbacks={each.group: each.in_flight for each in self._members if isinstance(each, Producer)},
            positions={each.group: len(each.positions()) for each in self._members if isinstance(each, PullConsumer)},
        )

    async def _start(self) -> None:
        """Load the name servers' addresses and start the timers; :func:`open_client` calls it."""
        await self._name_servers.load()
        self._nursery.start_soon(self._name_servers.poll)
        self._nursery.start_soon(self._routes.keep_fresh)
        self._nursery.start_soon(self._heartbeats.run)
        if self._sink is not None:
            self._nursery.start_soon(keep_sinking, self._sink, self.statistics, self._sink_every_s)

    async def aclose(self, *, at_once: bool = False) -> None:
        """Close producers and consumers, then all links; :func:`open_client` calls it.

        Args:
            at_once: fail what is in flight instead of waiting for it.

        Raises:
            InvalidCall: a callback, a handler or a check has called it, and would wait for itself.
        """
        self._members.refuse_callbacks("aclose() of the client")
        self._links.closes_soon = True
        self._closings += 1
        try:
            await self._members.close(at_once=at_once)
            # After the members, whose ends are traced too.
            async with trio.open_nursery() as nursery:
                for tracer in list(self._tracers.values()):
                    nursery.start_soon(tracer.flush)
        finally:
            self._closings -= 1
            # The members that another call closes may still wait for handlers, and commit then.
            if not self._closings and not self._closed:
                self._closed = True
                if self._sink is not None:
                    sink_once(self._sink, self.statistics)
                self._links.close(ClientClosed("the client is closed"))
                self._ended.set()
        if not self._closed and not self._members.callback_that_started_this():
            await self._ended.wait()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client is closed")


def _check_kinds(kinds: Mapping[str, tuple[object, type]]) -> None:
    """Raise :class:`InvalidCall` unless each given argument is an object of its class."""
    for name, (value, kind) in kinds.items():
        if value is not None and not isinstance(value, kind):
            raise InvalidCall(f"{name} is {type(value).__name__}, not triomq.{kind.__name__}")


def _check_pull_hooks(pull_hooks: object, filter_hooks: object) -> None:
    check_hooks("pull_hooks", pull_hooks, "before_pull", "after_pull")
    check_hooks("filter_hooks", filter_hooks, "wants")


def _checked_trace_topic(topic: str) -> str:
    check_topic(topic)
    return topic
