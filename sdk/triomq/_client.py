"""The client: one per process and cluster; owns links, routes and heartbeats, and hands out the rest.

Everything lives in one nursery between the start and the end of ``async with open_client(...)``.
Upstream: ``MQClientInstance``, ``MQClientManager`` (client.md §1).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, TypedDict

import trio

from triomq._admin import Admin
from triomq._allocate import AllocateStrategy
from triomq._client_requests import ClientRequests, PulledGroup
from triomq._client_statistics import ClientStatistics, LinkStatistics
from triomq._compression import COMPRESS_FROM_BYTES, Compressor, ZlibCompressor
from triomq._consumer_events import OnEvent
from triomq._consumers import ClientCore, SharedOptions, make_lite_pull_consumer, make_push_consumer, read_preference_of
from triomq._dialing import Dialer, dial_tcp
from triomq._group_admin import GroupAdmin
from triomq._heartbeats import Heartbeats
from triomq._hooks import ConsumeHook, PullHook, SendHook
from triomq._identity import Clock, UniqueKeys, client_id, default_instance_name, local_ip, wall_ms
from triomq._links import Backoff, Links
from triomq._lite_parts import HELD_MAX
from triomq._lite_pull import LitePullConsumer
from triomq._message import MAX_BODY_BYTES, check_group
from triomq._name_servers import NameServerGroup, NameServers, provider_for
from triomq._node_cache import ReadPreference
from triomq._offset_files import DEFAULT_INSTANCE
from triomq._offsets import BrokerLinks, BrokerOffsets, OffsetStore
from triomq._positions import Hear, IllegalOffset, StartFrom
from triomq._process_queue import FlowLimits
from triomq._producer import Producer
from triomq._pull import PullConsumer
from triomq._push import PushConsumer
from triomq._push_parts import PushSettings
from triomq._queue_bounds import QueueBounds
from triomq._retry import FaultStrategy, Retries, RetryPolicy
from triomq._routes import DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUES, REFRESH_EVERY_S, TOPICS_MAX, Routes
from triomq._sending import Sender, SendSettings
from triomq.errors import ClientClosed, InvalidCall
from triomq_protocol.requests import ConsumerData
from triomq_protocol.requests.heartbeat import CLUSTERING, CONSUME_ACTIVELY, CONSUME_FROM_LAST_OFFSET

CLOSE_TIMEOUT_S = 3.0
"""How long unregistering may hold up a closing client."""


_ZLIB: Final = ZlibCompressor()


class ClientOptions(TypedDict, total=False):
    """Keyword arguments of :func:`open_client`."""

    dial: Dialer
    client_ip: str
    instance_name: str
    unit_name: str
    default_topic: str
    default_topic_queues: int
    refresh_every_s: float
    heartbeat_every_s: float
    backoff: Backoff
    max_pending: int
    max_unsent_bytes: int
    max_topics: int
    clock: Clock
    chance: random.Random


class Client:
    """An open client; made by :func:`open_client`.

    Attributes:
        client_id: by which brokers know it.
        admin: administrative calls.
        groups: those about consumer groups.
        bounds: offsets of queues.
    """

    def __init__(self, name_servers: NameServers | None, nursery: trio.Nursery, options: ClientOptions) -> None:
        unknown = options.keys() - ClientOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"open_client() has no argument {', '.join(sorted(unknown))}")
        ip, unit = options.get("client_ip") or local_ip(), options.get("unit_name", "")
        instance = options.get("instance_name")
        self.client_id = client_id(ip, instance or default_instance_name(), unit)
        self._nursery = nursery
        self._clock = options.get("clock", wall_ms)
        self._chance = options.get("chance") or random.Random()
        self._unique_keys = UniqueKeys(ip, self._clock)
        self._requests = ClientRequests(nursery.start_soon, lambda: self._name_servers.addresses, self._clock())
        self._links = Links(
            nursery,
            options.get("dial", dial_tcp),
            handlers=self._requests.handlers(),
            chance=self._chance,
            backoff=options.get("backoff"),
            max_pending=options.get("max_pending", 65535),
            max_unsent_bytes=options.get("max_unsent_bytes", 64 * 1024 * 1024),
        )
        self._name_servers = NameServerGroup(provider_for(name_servers), self._links, self._chance)
        self._routes = Routes(
            self._name_servers,
            default_topic=options.get("default_topic", DEFAULT_TOPIC),
            default_topic_queues=options.get("default_topic_queues", DEFAULT_TOPIC_QUEUES),
            refresh_every_s=options.get("refresh_every_s", REFRESH_EVERY_S),
            max_topics=options.get("max_topics", TOPICS_MAX),
        )
        self._heartbeats = Heartbeats(
            self.client_id,
            self._routes,
            self._links,
            nursery,
            every_s=options.get("heartbeat_every_s", 30.0),
        )
        self._core = ClientCore(
            client_id=self.client_id,
            file_id=client_id(ip, instance or DEFAULT_INSTANCE, unit),
            routes=self._routes,
            links=self._links,
            heartbeats=self._heartbeats,
            requests=self._requests,
            nursery=nursery,
            unique_keys=self._unique_keys,
            clock=self._clock,
            chance=self._chance,
        )
        self._members: list[Producer | PullConsumer | LitePullConsumer | PushConsumer] = []
        self._closed = False
        self.admin = Admin(self._name_servers, self._routes, self._links)
        self.bounds = QueueBounds(BrokerLinks(self._routes, self._links))
        self.groups = GroupAdmin(self.admin, self._routes, self._links)

    @property
    def name_servers(self) -> list[str]:
        """The name servers known now."""
        return self._name_servers.addresses

    def producer(
        self,
        group: str,
        *,
        send_timeout_s: float = 3.0,
        max_in_flight: int = 4096,
        max_in_flight_bytes: int = 64 * 1024 * 1024,
        max_body_bytes: int = MAX_BODY_BYTES,
        compress_from_bytes: int = COMPRESS_FROM_BYTES,
        compressor: Compressor | None = _ZLIB,
        retry: RetryPolicy | None = None,
        faults: FaultStrategy | None = None,
        hooks: Sequence[SendHook] = (),
    ) -> Producer:
        """A producer of a group; the client closes it, unless somebody did before.

        Args:
            group: producer group; one producer per group and client.
            send_timeout_s: deadline of a send, over all its attempts.
            max_in_flight: sends with a callback that may be under way before ``send`` waits.
            max_in_flight_bytes: the same, as the sum of their bodies.
            max_body_bytes: larger bodies are refused.
            compress_from_bytes: bodies from this size on are compressed.
            compressor: how; None never compresses.
            retry: what is tried again; default :class:`triomq.Retries`.
            faults: which brokers are avoided; default none, :class:`triomq.LatencyFaults` is upstream's table.
            hooks: see :class:`triomq.SendHook`.

        Raises:
            InvalidCall: the group's name cannot be used, or is in use.
        """
        self._check_open()
        check_group(group)
        self._heartbeats.add_producer(group)
        sender = Sender(
            group,
            self._routes,
            self._links,
            unique_keys=self._unique_keys,
            clock=self._clock,
            chance=self._chance,
            settings=SendSettings(
                timeout_s=send_timeout_s,
                max_body_bytes=max_body_bytes,
                compress_from_bytes=compress_from_bytes,
                compressor=compressor,
                policy=retry if retry is not None else Retries(),
                faults=faults,
            ),
        )

        async def leave() -> None:
            self._members.remove(producer)
            with trio.move_on_after(CLOSE_TIMEOUT_S):
                await self._heartbeats.remove_producer(group)

        producer = Producer(
            sender,
            self._links,
            spawn=self._nursery.start_soon,
            leave=leave,
            max_in_flight=max_in_flight,
            max_in_flight_bytes=max_in_flight_bytes,
            hooks=hooks,
        )
        self._members.append(producer)
        return producer

    def pull_consumer(
        self,
        group: str,
        *,
        offsets: OffsetStore | None = None,
        read_preference: ReadPreference | str = ReadPreference.SUGGESTED,
        hooks: Sequence[PullHook] = (),
    ) -> PullConsumer:
        """A pull consumer of a group; the client closes it, unless somebody did before.

        Args:
            group: consumer group; one consumer per group and client.
            offsets: where the group's offsets are kept; default: at the brokers.
            read_preference: from whom to pull: ``suggested``, ``master``, ``slave`` or ``prefer_slave``.
            hooks: see :class:`triomq.PullHook`.

        Raises:
            InvalidCall: the group's name cannot be used, or is in use.
        """
        self._check_open()
        check_group(group)
        preference = read_preference_of(read_preference)
        self._heartbeats.add_consumer(
            group,
            ConsumerData(
                # Upstream reports this whatever is configured, and an empty subscription (consumer.md §4).
                consume_from_where=CONSUME_FROM_LAST_OFFSET,
                consume_type=CONSUME_ACTIVELY,
                group_name=group,
                message_model=CLUSTERING,
                subscription_data_set=[],
                unit_mode=False,
            ),
        )

        async def leave() -> None:
            self._members.remove(consumer)
            del self._requests.consumers[group]
            with trio.move_on_after(CLOSE_TIMEOUT_S):
                await self._heartbeats.remove_consumer(group)

        consumer = PullConsumer(
            group,
            self._routes,
            self._links,
            offsets=offsets if offsets is not None else BrokerOffsets(group, BrokerLinks(self._routes, self._links)),
            leave=leave,
            preference=preference,
            hooks=hooks,
            beat=self._heartbeats.beat,
        )
        self._requests.consumers[group] = PulledGroup(consumer.positions)
        self._members.append(consumer)
        return consumer

    def push_consumer(
        self,
        group: str,
        *,
        model: str = "clustering",
        ordered: bool = False,
        start_from: StartFrom = "last",
        allocate: AllocateStrategy | None = None,
        limits: FlowLimits | None = None,
        pull_batch: int = 32,
        pull_interval_s: float = 0.0,
        expression_in_pulls: bool = False,
        batch_max: int = 1,
        max_reconsume_times: int | None = None,
        suspend_s: float = 1.0,
        consume_timeout_s: float = 900.0,
        drain_s: float = 10.0,
        offset_store: OffsetStore | None = None,
        illegal_offset: IllegalOffset | str = IllegalOffset.BROKER,
        read_preference: ReadPreference | str = ReadPreference.SUGGESTED,
        hooks: Sequence[ConsumeHook] = (),
        pull_hooks: Sequence[PullHook] = (),
        on_assigned: Hear | None = None,
        on_revoked: Hear | None = None,
        on_event: OnEvent | None = None,
    ) -> PushConsumer:
        """A push consumer of a group, to be used in ``async with``: messages come to a loop or to a handler.

        Arguments that are not listed are those of :meth:`lite_pull_consumer`.

        Args:
            group: consumer group; one consumer per group and client.
            model: ``"clustering"`` or ``"broadcasting"``.
            ordered: whether a queue's messages are handled one after the other; brokers then lock queues.
            limits: how much of each queue is held; pulling pauses beyond it.
            pull_batch: messages per pull.
            pull_interval_s: pause between two pulls of a queue.
            expression_in_pulls: each pull carries this member's own expression. Else brokers take what the group's
                heartbeats told last, and members that subscribe differently overwrite each other.
            batch_max: messages per call of a handler that :meth:`triomq.PushConsumer.run` was given.
            max_reconsume_times: failures before a message becomes a dead letter; None: 16, when ordered without end.
            suspend_s: how long an ordered queue rests after a failure, 0.01-30.
            consume_timeout_s: a message that a handler has for longer comes again.
            drain_s: how long the end waits for handlers.
            hooks: see :class:`triomq.ConsumeHook`.
            pull_hooks: see :class:`triomq.PullHook`.

        Raises:
            InvalidCall: an argument cannot be used, or the client has a consumer of the group.
        """
        self._check_open()
        limits = limits or FlowLimits()
        try:
            settings = PushSettings(
                group=group,
                broadcast=model == "broadcasting",
                ordered=ordered,
                limits=limits,
                pull_batch=pull_batch,
                pull_interval_s=pull_interval_s,
                expression_in_pulls=expression_in_pulls,
                batch_max=batch_max,
                max_reconsume_times=max_reconsume_times,
                suspend_s=suspend_s,
                consume_timeout_s=consume_timeout_s,
                drain_s=drain_s,
            )
        except ValueError as error:
            raise InvalidCall(f"an argument of push_consumer cannot be used: {error.args[0]}") from error
        options = SharedOptions(
            model=model,
            start_from=start_from,
            allocate=allocate,
            limits=limits,
            offset_store=offset_store,
            illegal_offset=illegal_offset,
            read_preference=read_preference,
            hooks=pull_hooks,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_event=on_event,
        )
        consumer = make_push_consumer(self._core, settings, options, hooks=hooks, left=self._members.remove)
        self._members.append(consumer)
        return consumer

    def lite_pull_consumer(
        self,
        group: str,
        *,
        model: str = "clustering",
        start_from: StartFrom = "last",
        allocate: AllocateStrategy | None = None,
        limits: FlowLimits | None = None,
        auto_commit: bool = True,
        batch_max: int = 32,
        held_max: int = HELD_MAX,
        offset_store: OffsetStore | None = None,
        illegal_offset: IllegalOffset | str = IllegalOffset.BROKER,
        read_preference: ReadPreference | str = ReadPreference.SUGGESTED,
        hooks: Sequence[PullHook] = (),
        on_assigned: Hear | None = None,
        on_revoked: Hear | None = None,
        on_event: OnEvent | None = None,
    ) -> LitePullConsumer:
        """A lite pull consumer of a group, to be used in ``async with``: it fetches in the background, its caller polls.

        Args:
            group: consumer group; one consumer per group and client.
            model: ``"clustering"``: the group's members share the queues; ``"broadcasting"``: each has all.
            start_from: where the group starts in queues it has no offset in: ``"last"``, ``"first"``, a datetime with
                a zone, or ms since 1970.
            allocate: how queues are shared out; the same for all members. Default ``AVG``, as Java's.
            limits: how much of each queue is fetched ahead.
            auto_commit: whether what was polled is committed without :meth:`triomq.LitePullConsumer.commit`.
            batch_max: messages per pull, and so per poll.
            held_max: messages fetched ahead, over all queues.
            offset_store: where offsets are kept; default: at the brokers, when broadcasting in
                ``~/.rocketmq_offsets``.
            illegal_offset: what to do when a broker does not have the offset to be pulled: ``"broker"``, ``"earliest"``,
                ``"latest"`` or ``"raise"``.
            read_preference: from whom to pull.
            hooks: see :class:`triomq.PullHook`.
            on_assigned: hears of queues before they are pulled; may be async.
            on_revoked: hears of queues before they are given up; may be async.
            on_event: hears of what an operator would want to know, see :class:`triomq.ConsumerEvent`.

        Raises:
            InvalidCall: an argument cannot be used, or the client has a consumer of the group.
        """
        self._check_open()
        options = SharedOptions(
            model=model,
            start_from=start_from,
            allocate=allocate,
            limits=limits if limits is not None else FlowLimits(),
            offset_store=offset_store,
            illegal_offset=illegal_offset,
            read_preference=read_preference,
            hooks=hooks,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_event=on_event,
        )
        consumer = make_lite_pull_consumer(
            self._core,
            group,
            options,
            auto_commit=auto_commit,
            batch_max=batch_max,
            held_max=held_max,
            left=self._members.remove,
        )
        self._members.append(consumer)
        return consumer

    def statistics(self) -> ClientStatistics:
        """What the client holds now, for metrics and for debugging."""
        return ClientStatistics(
            links=tuple(
                LinkStatistics(link.address, len(link.pending), link.unsent_bytes) for link in self._links.open_links()
            ),
            topics=len(self._routes),
            callbacks={each.group: each.in_flight for each in self._members if isinstance(each, Producer)},
            positions={each.group: each.position_count for each in self._members if isinstance(each, PullConsumer)},
        )

    async def start(self) -> None:
        """Load the name servers' addresses and start the timers; :func:`open_client` calls it."""
        await self._name_servers.load()
        self._nursery.start_soon(self._name_servers.poll)
        self._nursery.start_soon(self._routes.keep_fresh)
        self._nursery.start_soon(self._heartbeats.run)

    async def aclose(self, *, at_once: bool = False) -> None:
        """Close producers and consumers, then all links; :func:`open_client` calls it.

        Args:
            at_once: fail what is in flight instead of waiting for it.
        """
        try:
            if at_once:
                for member in self._members:
                    if isinstance(member, Producer):
                        member.abort()
            # Side by side: each may wait for a broker that does not answer.
            async with trio.open_nursery() as nursery:
                for member in self._members:
                    nursery.start_soon(member.aclose)
        finally:
            self._closed = True
            self._links.close(ClientClosed("the client is closed"))

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client is closed")
