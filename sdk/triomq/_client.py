"""The client: one per process and cluster; owns links, routes and heartbeats, and hands out the rest.

Everything lives in one nursery between the start and the end of ``async with open_client(...)``.
Upstream: ``MQClientInstance``, ``MQClientManager`` (client.md §1).
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypedDict, Unpack

import attrs
import trio

from triomq._admin import Admin
from triomq._client_requests import ClientRequests, PulledGroup
from triomq._compression import COMPRESS_FROM_BYTES, Compressor, ZlibCompressor
from triomq._dialing import Dialer, dial_tcp
from triomq._heartbeats import Heartbeats
from triomq._hooks import PullHook, SendHook
from triomq._identity import Clock, UniqueKeys, client_id, default_instance_name, local_ip, wall_ms
from triomq._links import Backoff, Links
from triomq._message import MAX_BODY_BYTES, check_group
from triomq._name_servers import NameServerGroup, NameServers, provider_for
from triomq._node_cache import ReadPreference
from triomq._offsets import BrokerLinks, BrokerOffsets, OffsetStore
from triomq._producer import Producer
from triomq._pull import PullConsumer
from triomq._retry import FaultStrategy, Retries, RetryPolicy
from triomq._routes import DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUES, REFRESH_EVERY_S, TOPICS_MAX, Routes
from triomq._sending import Sender, SendSettings
from triomq.errors import ClientClosed, InvalidCall
from triomq_protocol.requests import ConsumerData
from triomq_protocol.requests.heartbeat import CLUSTERING, CONSUME_ACTIVELY, CONSUME_FROM_LAST_OFFSET

CLOSE_TIMEOUT_S = 3.0
"""How long unregistering may hold up a closing client."""


_ZLIB: Final = ZlibCompressor()


def _read_preference(value: ReadPreference | str) -> ReadPreference:
    try:
        return ReadPreference(value)
    except ValueError:
        known = ", ".join(each.value for each in ReadPreference)
        raise InvalidCall(f"no read_preference {value!r}; there are {known}") from None


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
    """

    def __init__(self, name_servers: NameServers | None, nursery: trio.Nursery, options: ClientOptions) -> None:
        unknown = options.keys() - ClientOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"open_client() has no argument {', '.join(sorted(unknown))}")
        ip = options.get("client_ip") or local_ip()
        self.client_id = client_id(
            ip, options.get("instance_name") or default_instance_name(), options.get("unit_name", "")
        )
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
        self._members: list[Producer | PullConsumer] = []
        self._closed = False
        self.admin = Admin(self._name_servers, self._routes, self._links)

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
        preference = _read_preference(read_preference)
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
        )
        self._requests.consumers[group] = PulledGroup(consumer.positions)
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


@attrs.frozen
class LinkStatistics:
    """One link, at one moment.

    Args:
        address: the peer.
        pending: requests that wait for an answer.
        unsent_bytes: bytes that wait for the kernel.
    """

    address: str
    pending: int
    unsent_bytes: int


@attrs.frozen
class ClientStatistics:
    """What a client holds, at one moment; every figure has a limit in :class:`ClientOptions` or the producer's.

    Args:
        links: the open links.
        topics: topics whose routes are kept fresh.
        callbacks: producer group -> sends whose callback has not ended.
        positions: consumer group -> queues with a position.
    """

    links: tuple[LinkStatistics, ...]
    topics: int
    callbacks: dict[str, int]
    positions: dict[str, int]


@asynccontextmanager
async def open_client(
    name_servers: NameServers | None = None, **options: Unpack[ClientOptions]
) -> AsyncIterator[Client]:
    """Open a client; at the end of the block producers flush, groups unregister, links close.

    Args:
        name_servers: ``"host:9876;host:9876"``, a list of addresses, a :class:`NameServerProvider`, or a function
            that returns a list; default is the environment's ``NAMESRV_ADDR``.
        dial: opens streams; default TCP.
        client_ip: this machine's address as others see it; default: found out.
        instance_name: tells clients of one address apart; default ``pid#nanoseconds``.
        unit_name: third part of the client id.
        default_topic: whose queues an unknown topic borrows.
        default_topic_queues: how many of them at most, per broker.
        refresh_every_s: period of the route refresh.
        heartbeat_every_s: period of heartbeats.
        backoff: pauses between dials of a dead address.
        max_pending: requests that may wait for an answer, per link.
        max_unsent_bytes: bytes that may wait for the kernel, per link.
        max_topics: topics whose routes are kept fresh.
        clock: wall clock in ms since 1970.
        chance: source of all random choices.

    Raises:
        InvalidCall: an address is not ``host:port``, or there is none.

    Nothing is dialled before it is needed.  Exceptions of the block come out as they are, not in groups.
    """
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            client = Client(name_servers, nursery, options)
            await client.start()
            try:
                yield client
            except BaseException as error:  # noqa: BLE001
                # Kept aside, so that the nursery does not wrap it.
                failure = error
            finally:
                try:
                    await client.aclose(at_once=failure is not None)
                finally:
                    nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if failure is None:
            raise _only(group) from None
    if failure is not None:
        try:
            raise failure
        finally:
            # The traceback holds this frame: let go of the cycle.
            del failure


@asynccontextmanager
async def open_producer(
    name_servers: NameServers | None, group: str, **options: Unpack[ClientOptions]
) -> AsyncIterator[Producer]:
    """A producer with a client of its own; arguments as for :func:`open_client`."""
    async with open_client(name_servers, **options) as client, client.producer(group) as producer:
        yield producer


@asynccontextmanager
async def open_pull_consumer(
    name_servers: NameServers | None, group: str, **options: Unpack[ClientOptions]
) -> AsyncIterator[PullConsumer]:
    """A pull consumer with a client of its own; arguments as for :func:`open_client`."""
    async with open_client(name_servers, **options) as client, client.pull_consumer(group) as consumer:
        yield consumer


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    return inner
