"""The route table: the addresses and topics of each broker set, from the brokers' registrations.

Pure: the time is an argument, connections are opaque objects, and connections to close are returned. The rules are those
of RocketMQ's ``RouteInfoManager`` (docs/protocol/namesrv.md §3 and §4), including the iteration order of its maps, so
that answers are equal byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from typing import TypeVar

import msgspec

from triomq_protocol.flags import PERM_WRITE, READ_WRITE_PERM, TOPIC_UNIT, TOPIC_UNIT_SUB
from triomq_protocol.names import MAX_NAME_CHARACTERS
from triomq_protocol.requests import BrokerData, ClusterInfo, DataVersion, QueueData, TopicConfig, TopicRouteData
from triomq_protocol.wire.fastjson import java_map_order, java_map_order_in_slices

EXPIRY_MS = 120_000
"""A broker that has not registered for longer than this is dropped."""

SETTLED_MS = 10_000
"""How long after the deletion of a topic a registration may be older than the deletion: a broker waits 6 s for the
answer to one (`registerBrokerTimeoutMills`). A first registration counts as a deletion."""

TOPICS_PER_SLICE = 2048
"""After how many topics of a registration or a list other requests have their turns."""

MOST_BROKERS = 10_000
"""Addresses of brokers, and broker sets."""

MOST_BROKERS_OF_SET = 64
"""Addresses of one set. RocketMQ's sets have a handful."""

BROKERS_PER_SLICE = 256
"""Dropped brokers that are removed before other tasks get their turn."""

MOST_CLUSTERS_OF_SET = 16
"""Clusters that brokers of one set may name."""

MOST_TOPICS = 500_000
"""Topics of all sets together; a topic of two sets counts twice. An entry takes some 500 bytes."""

MOST_SETS_OF_TOPIC = 1000
"""Sets that have one topic: its route is made in one go."""

MOST_BROKERS_OF_CONNECTION = 1000
"""Addresses that may register over one connection."""

MOST_FILTER_SERVERS_OF_BROKER = 16

MOST_FILTER_SERVERS = 1000
"""Limit for all brokers together. RocketMQ no longer uses them, and a route carries those of all its brokers."""


class TooManyBrokersError(Exception):
    """A broker is not registered, since there is no place for it."""


NO_VERSION = DataVersion(counter=-1, timestamp=-1)
"""Of a broker whose topics are still being recorded."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Names = Generator[None, None, list[str]]
"""Work in slices that returns names, in the order of a Java map."""


class BrokerIdentity(msgspec.Struct, frozen=True):
    """Who registers: one process of a broker set."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_addr: str
    ha_server_addr: str = ""


class LiveBroker(msgspec.Struct):
    """The data of a broker's latest registration.

    Attributes:
        updated_at_ms: time of the registration, or of the last check that found its data version unchanged.
        data_version: version of the registered topics.
        channel: the connection of the registration.
        ha_server_addr: the address to which slaves of this broker connect.
        broker_name: name of its set.
        cluster_name: name of its cluster, as registered.
    """

    updated_at_ms: int
    data_version: DataVersion
    channel: Hashable
    ha_server_addr: str
    broker_name: str
    cluster_name: str


class Master(msgspec.Struct, frozen=True):
    """The master of a registering slave's set."""

    broker_addr: str
    ha_server_addr: str


class RouteTable:
    """All registered brokers and topics. They are kept in memory only.

    The topics of a dropped broker set disappear from all answers at once. Their entries are removed in slices, by
    `remove_in_slices` or by the next look-up that needs it, since there may be hundreds of thousands. The brokers of a
    connection that carried more than `BROKERS_PER_SLICE` are removed in the same way, and are in answers until then.

    Args:
        compat_49: as in RocketMQ 4.9, a closed connection takes only the first of the brokers along that registered
            over it, and a broker that unregisters removes the entry of its id, even if another broker has taken that
            id. A set stays in each cluster that a broker of it has ever named, until the set goes. And topics that a
            broker has made again after their deletion, or that its first registration did not contain, stay unknown
            until the broker's topics change.
    """

    def __init__(self, *, compat_49: bool = False) -> None:
        self._compat_49 = compat_49
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, BrokerData] = {}
        # Cluster -> broker names; a dict as an ordered set.
        self._clusters: dict[str, dict[str, None]] = {}
        # Broker name -> the clusters it has registered with.
        self._clusters_of: dict[str, dict[str, None]] = {}
        # Broker name -> its topics, so that a set can be removed without a search through those of all others.
        self._own_topics: dict[str, dict[str, None]] = {}
        # The same for dropped sets: topics still to be removed from `_topics`.
        self._gone_topics: dict[str, dict[str, None]] = {}
        # Address -> the sets in which it stands, and under which id, and connection -> the addresses that registered over
        # it last: a connection that ends must not be looked for among all brokers.
        self._sets_of: dict[str, dict[str, int]] = {}
        self._addresses_of: dict[Hashable, dict[str, None]] = {}
        # Address -> the ended connection; the broker is still to be removed with it.
        self._lost: dict[str, Hashable] = {}
        self._live: dict[str, LiveBroker] = {}
        self._filter_servers: dict[str, list[str]] = {}
        # Broker name -> since when topics of it may be missing here, until its master has shown its whole table again: one
        # was deleted here, or the set has registered first, perhaps with a single changed topic.
        self._incomplete_since: dict[str, int] = {}
        # Broker name -> the table that is being recorded, and which of its topics were deleted here since that began.
        self._recording: dict[str, tuple[dict[str, TopicConfig], set[str]]] = {}

    def sizes(self) -> tuple[int, int, int]:
        """How many brokers, names of brokers and topics there are."""
        return len(self._live), len(self._brokers), len(self._topics)

    # Coming and going

    def register(
        self,
        broker: BrokerIdentity,
        topics: dict[str, TopicConfig],
        data_version: DataVersion,
        *,
        channel: Hashable,
        now_ms: int,
        filter_servers: list[str] | None = None,
    ) -> Generator[None, None, Master | None]:
        """Record a broker's registration; yields after each slice of a long table, for other work in between.

        Topics count only from masters, and only when the data version is new; those not mentioned stay. With the same
        version come only topics that are missing here, once, `SETTLED_MS` or more after the first registration or after the
        last deletion of one of the broker's topics.

        Args:
            broker: who.
            topics: topic -> configuration.
            data_version: of ``topics``.
            channel: the connection; `channel_closed` gets the same object.
            now_ms: the time.
            filter_servers: None leaves those known before.

        Returns:
            For a slave its master, if that is alive.

        Raises:
            TooManyBrokersError: there are `MOST_BROKERS` addresses or sets, `MOST_BROKERS_OF_CONNECTION` of this
                connection, `MOST_CLUSTERS_OF_SET` clusters, `MOST_TOPICS` topics or `MOST_SETS_OF_TOPIC` sets of one
                topic, and this one would be new; or it has more filter servers than
                `MOST_FILTER_SERVERS_OF_BROKER`, or all brokers than `MOST_FILTER_SERVERS`.
            ValueError: a name or an address has more than `MAX_NAME_CHARACTERS`.
        """
        # Otherwise topics that an earlier set of this name had would be there again.
        yield from self._remove_gone(broker.broker_name)
        self._check_limits(broker, channel)
        self._check_filter_servers(broker.broker_addr, filter_servers or [])
        self._leave_other_sets(broker)
        self._clusters.setdefault(broker.cluster_name, {})[broker.broker_name] = None
        self._clusters_of.setdefault(broker.broker_name, {})[broker.cluster_name] = None
        data = self._brokers.get(broker.broker_name)
        is_first = data is None
        if data is None:
            data = BrokerData(broker_addrs={}, broker_name=broker.broker_name, cluster=broker.cluster_name)
            self._brokers[broker.broker_name] = data
        addresses = _addresses(data)
        # A broker that changed its role: one address must not stand under two ids.
        other = self._sets_of.get(broker.broker_addr, {}).get(broker.broker_name)
        if other is not None and other != broker.broker_id:
            self._take_address(data, other)
        is_first |= broker.broker_id not in addresses
        self._take_address(data, broker.broker_id)
        addresses[broker.broker_id] = broker.broker_addr
        self._sets_of.setdefault(broker.broker_addr, {})[broker.broker_name] = broker.broker_id
        takes_topics = broker.broker_id == 0 and (is_first or self._is_new(broker.broker_addr, data_version))
        live = LiveBroker(
            now_ms,
            NO_VERSION if takes_topics else data_version,
            channel,
            broker.ha_server_addr,
            broker.broker_name,
            broker.cluster_name,
        )
        if takes_topics and is_first:
            self._incomplete_since[broker.broker_name] = now_ms
        shows_again = not takes_topics and self._asks_again(broker.broker_addr, broker.broker_name, now_ms)
        self._drop_live(broker.broker_addr)
        self._live[broker.broker_addr] = live
        self._leave_clusters(data)
        self._addresses_of.setdefault(channel, {})[broker.broker_addr] = None
        self._set_filter_servers(broker.broker_addr, filter_servers)
        if takes_topics or shows_again:
            incomplete_since = self._incomplete_since.get(broker.broker_name)
            recording = self._recording[broker.broker_name] = topics, set()
            try:
                for _ in self._record(broker.broker_name, *recording, missing_only=shows_again):
                    yield
                    if self._live.get(broker.broker_addr) is not live or addresses.get(0) != broker.broker_addr:
                        return None  # it has gone, has registered again, or another master has come
            finally:
                if self._recording.get(broker.broker_name) is recording:
                    del self._recording[broker.broker_name]
            # Only now: a registration that is cut off must not count as having brought this version.
            live.data_version = data_version
            # One with a new version may contain a single topic, as a Java broker sends it after a change.
            if shows_again and self._incomplete_since.get(broker.broker_name) == incomplete_since:
                del self._incomplete_since[broker.broker_name]
        return self._master_of(broker, addresses)

    def unregister(self, broker: BrokerIdentity) -> None:
        """Remove a broker that unregisters. While its set has another member, the topics stay."""
        data = self._brokers.get(broker.broker_name)
        if data is not None and (self._compat_49 or _addresses(data).get(broker.broker_id) == broker.broker_addr):
            self._leave_set(data, broker.broker_id)
        # Not if it stands there under another name or id: without this entry nothing would remove it any more.
        if broker.broker_addr not in self._sets_of:
            self._drop_live(broker.broker_addr)
            self._filter_servers.pop(broker.broker_addr, None)

    def channel_closed(self, channel: Hashable, peer: str) -> list[str]:
        """A connection has ended; returns the addresses of the brokers that went with it.

        Args:
            channel: as given to ``register``.
            peer: the address of the other end, for which RocketMQ looks too when no broker used the connection.
        """
        lost = list(self._addresses_of.get(channel, ()))
        if self._compat_49:
            del lost[1:]
        for address in lost[:BROKERS_PER_SLICE] or [peer]:
            self._forget(address)
        self._lost.update(dict.fromkeys(lost[BROKERS_PER_SLICE:], channel))
        return lost

    def expire(self, now_ms: int) -> Generator[None, None, list[tuple[str, Hashable]]]:
        """Drop the brokers that have been silent too long; returns address and connection, which must be closed. In
        slices."""
        silent = [address for address, live in self._live.items() if now_ms > live.updated_at_ms + EXPIRY_MS]
        dropped: list[tuple[str, Hashable]] = []
        for address in silent:
            live = self._live.get(address)
            if live is None or now_ms <= live.updated_at_ms + EXPIRY_MS:
                continue  # it was dropped or registered again in the meantime
            self._forget(address)
            dropped.append((address, live.channel))
            if not len(dropped) % BROKERS_PER_SLICE:
                yield
        return dropped

    @property
    def has_gone(self) -> bool:
        """Whether `remove_in_slices` has something to do."""
        return bool(self._gone_topics or self._lost)

    def remove_in_slices(self) -> Generator[None, None, None]:
        """Remove the remains of dropped brokers and sets; yields after each slice. Several may be under way."""
        number = 0
        while self._lost:
            address, channel = self._lost.popitem()
            live = self._live.get(address)
            if live is not None and live.channel == channel:
                self._forget(address)
            number += 1
            if not number % BROKERS_PER_SLICE:
                yield
        number = 0
        while self._gone_topics:
            number = yield from self._remove_gone(next(iter(self._gone_topics)), number)

    def check_version(
        self, broker_addr: str, data_version: DataVersion, now_ms: int
    ) -> tuple[bool, DataVersion | None]:
        """Whether the broker should register: this version differs from the one registered, or topics of it may be missing
        here; and the registered version.

        A broker whose version has not changed counts as alive.
        """
        live = self._live.get(broker_addr)
        if live is None:
            return True, None
        changed = live.data_version != data_version
        if not changed:
            live.updated_at_ms = now_ms
        return changed or self._asks_again(broker_addr, live.broker_name, now_ms), live.data_version

    # Changes by operators

    def delete_topic(self, topic: str, now_ms: int, cluster: str | None = None) -> None:
        """Forget a topic, everywhere or only on the brokers of one cluster, until a broker registers it again.

        A producer may make the topic again on a broker between its deletion there and here. Unless the broker's topics
        changed again, the version that is known would hide it forever.
        """
        queues = self._topics.get(topic, {})
        recorded = [name for name, (topics, _) in self._recording.items() if topic in topics]
        for broker_name in {*queues, *recorded}:
            if cluster and broker_name not in self._clusters.get(cluster, ()):
                continue
            queues.pop(broker_name, None)
            self._own_topics.get(broker_name, {}).pop(topic, None)
            if broker_name in recorded:
                self._recording[broker_name][1].add(topic)
            if broker_name in self._brokers:
                self._incomplete_since[broker_name] = now_ms
        if not queues:
            self._topics.pop(topic, None)

    def wipe_write_permission(self, broker_name: str) -> Generator[None, None, int]:
        """Let producers see no writable queue on a broker set; in slices, returns the number of its topics."""
        return (yield from self._change_permission(broker_name, lambda permission: permission & ~PERM_WRITE))

    def add_write_permission(self, broker_name: str) -> Generator[None, None, int]:
        """Make all queues of a broker set readable and writable; in slices, returns the number of its topics."""
        return (yield from self._change_permission(broker_name, lambda _: READ_WRITE_PERM))

    # Look-ups

    def route(self, topic: str | None) -> TopicRouteData | None:
        """The route of a topic; None unless there is at least one queue and one broker."""
        queues = self._topics.get(topic) if topic is not None else None
        if not queues:
            return None
        names = [name for name in java_map_order(queues) if name not in self._gone_topics]
        brokers = [self._brokers[name] for name in names if name in self._brokers]
        if not brokers:
            return None
        addresses = [address for broker in brokers for address in _addresses(broker).values()]
        filters = {a: self._filter_servers[a] for a in addresses if a in self._filter_servers}
        return TopicRouteData(
            broker_datas=[_copy(broker) for broker in brokers],
            filter_server_table=filters,
            queue_datas=[queues[name] for name in names],
        )

    def cluster_info(self) -> Generator[None, None, ClusterInfo]:
        """All broker sets by name, and the names by cluster; yields after each slice of a long table."""
        brokers: dict[str, BrokerData] = {}
        number = 0
        for name in (yield from java_map_order_in_slices(self._brokers)):
            if (data := self._brokers.get(name)) is not None:
                brokers[name] = _copy(data)
                number += 1 + len(_addresses(data))
            if number >= TOPICS_PER_SLICE:
                number = 0
                yield
        clusters: dict[str, list[str]] = {}
        number = 0
        for cluster in (yield from java_map_order_in_slices(self._clusters)):
            if (names := self._clusters.get(cluster)) is not None:
                clusters[cluster] = yield from java_map_order_in_slices(names)
                number += 1 + len(names)
            if number >= TOPICS_PER_SLICE:
                number = 0
                yield
        return ClusterInfo(broker_addr_table=brokers, cluster_addr_table=clusters)

    def all_topics(self) -> Names:
        """Every topic. Like the other lists of topics, it yields after each slice of a long table."""
        yield from self.remove_in_slices()
        return (yield from java_map_order_in_slices(self._topics))

    def topics_of_cluster(self, cluster: str) -> Names:
        """Topics with queues on any broker of a cluster, none for an unknown cluster."""
        found: dict[str, None] = {}
        number = 0
        for broker_name in (yield from java_map_order_in_slices(self._clusters.get(cluster, ()))):
            for topic in tuple(self._own_topics.get(broker_name, ())):
                if broker_name in self._topics.get(topic, ()):
                    found[topic] = None
                number += 1
                if not number % TOPICS_PER_SLICE:
                    yield
        return (yield from java_map_order_in_slices(found))

    def system_topics(self) -> Generator[None, None, tuple[list[str], str | None]]:
        """Cluster and broker names, which are topics too, and the address of some broker that knows the others."""
        names: dict[str, None] = {}
        number = 0
        for cluster in (yield from java_map_order_in_slices(self._clusters)):
            brokers = yield from java_map_order_in_slices(self._clusters.get(cluster, ()))
            names[cluster] = None
            names.update(dict.fromkeys(brokers))
            number += 1 + len(brokers)
            if number >= TOPICS_PER_SLICE:
                number = 0
                yield
        address = None
        for name in (yield from java_map_order_in_slices(self._brokers)):
            data = self._brokers.get(name)
            if data is not None and data.broker_addrs:
                address = data.broker_addrs[min(data.broker_addrs)]
                break
        return (yield from java_map_order_in_slices(names)), address

    def unit_topics(self) -> Names:
        """Topics of units (sysFlag bit 1) on at least one broker."""
        return (yield from self._topics_where(lambda flag: flag & TOPIC_UNIT))

    def unit_sub_topics(self) -> Names:
        """Topics with unit subscriptions (sysFlag bit 2) on at least one broker."""
        return (yield from self._topics_where(lambda flag: flag & TOPIC_UNIT_SUB))

    def unit_sub_ununit_topics(self) -> Names:
        """Topics with unit subscriptions that are themselves of no unit, on at least one broker."""
        return (yield from self._topics_where(lambda flag: flag & TOPIC_UNIT_SUB and not flag & TOPIC_UNIT))

    # Within

    def _is_new(self, broker_addr: str, data_version: DataVersion) -> bool:
        live = self._live.get(broker_addr)
        return live is None or live.data_version != data_version

    def _set_filter_servers(self, broker_addr: str, addresses: list[str] | None) -> None:
        if addresses:
            self._filter_servers[broker_addr] = list(addresses)
        elif addresses is not None:
            self._filter_servers.pop(broker_addr, None)

    def _record(
        self, broker_name: str, topics: dict[str, TopicConfig], deleted: set[str], *, missing_only: bool
    ) -> Generator[None, None, None]:
        """Record a set's topics, or only those that it does not have here; permissions that an operator has changed then
        stay. Those that are deleted in the meantime are left out: nothing would remove them again."""
        own = self._own_topics.setdefault(broker_name, {})
        space = MOST_TOPICS - sum(map(len, self._own_topics.values())) - sum(map(len, self._gone_topics.values()))
        for number, (topic, config) in enumerate(topics.items(), 1):
            is_missing = topic not in own and topic not in deleted
            if is_missing:
                space -= 1
                self._check_topic(topic, broker_name, space)
            if is_missing or (topic in own and not missing_only):
                self._topics.setdefault(topic, {})[broker_name] = _queue_data(broker_name, config)
                own[topic] = None
            if not number % TOPICS_PER_SLICE:
                yield

    def _asks_again(self, broker_addr: str, broker_name: str, now_ms: int) -> bool:
        """Whether a master should show its whole table, although its version is known: topics of it may be missing here.

        Registrations that may be older than a deletion do not count. They would bring the topic back for good, as no
        later registration says that it is gone.
        """
        incomplete_since = self._incomplete_since.get(broker_name)
        data = self._brokers.get(broker_name)
        if self._compat_49 or incomplete_since is None or data is None or now_ms < incomplete_since + SETTLED_MS:
            return False
        return _addresses(data).get(0) == broker_addr

    def _master_of(self, broker: BrokerIdentity, addresses: dict[int, str]) -> Master | None:
        if broker.broker_id == 0:
            return None
        address = addresses.get(0)
        live = self._live.get(address) if address is not None else None
        return None if address is None or live is None else Master(address, live.ha_server_addr)

    def _check_limits(self, broker: BrokerIdentity, channel: Hashable) -> None:
        """Raise TooManyBrokersError for a registration that brings one too many of something, ValueError for a long
        name."""
        address, name = broker.broker_addr, broker.broker_name
        for text in (address, name, broker.cluster_name, broker.ha_server_addr):
            _check_length(text)
        clusters = self._clusters_of.get(name, {})
        of_connection = self._addresses_of.get(channel, {})
        data = self._brokers.get(name)
        # One that only changes its id takes no place more.
        of_set = {} if data is None or name in self._sets_of.get(address, ()) else _addresses(data)
        for what, known, new, most in (
            ("brokers are registered", self._live, address, MOST_BROKERS),
            ("broker sets are registered", self._brokers, name, MOST_BROKERS),
            (f"clusters are named by brokers of {name}", clusters, broker.cluster_name, MOST_CLUSTERS_OF_SET),
            ("brokers are registered over this connection", of_connection, address, MOST_BROKERS_OF_CONNECTION),
        ):
            if len(known) >= most and new not in known:
                raise TooManyBrokersError(f"{most} {what}; {new} is one too many")
        if len(of_set) >= MOST_BROKERS_OF_SET and broker.broker_id not in of_set:
            raise TooManyBrokersError(
                f"{MOST_BROKERS_OF_SET} brokers of {name} are registered; {address} is one too many"
            )

    def _check_filter_servers(self, broker_addr: str, servers: list[str]) -> None:
        """Raise TooManyBrokersError for too many filter servers, ValueError for a long name."""
        if len(servers) > MOST_FILTER_SERVERS_OF_BROKER:
            raise TooManyBrokersError(
                f"{len(servers)} filter servers; at most {MOST_FILTER_SERVERS_OF_BROKER} are kept"
            )
        for server in servers:
            _check_length(server)
        others = sum(map(len, self._filter_servers.values())) - len(self._filter_servers.get(broker_addr, ()))
        if servers and others + len(servers) > MOST_FILTER_SERVERS:
            raise TooManyBrokersError(
                f"{others} filter servers of other brokers are kept; {MOST_FILTER_SERVERS} are possible"
            )

    def _check_topic(self, topic: str, broker_name: str, space: int) -> None:
        """Raise TooManyBrokersError if a topic that is new for a set is one too many, ValueError for a long name."""
        _check_length(topic)
        if space < 0:
            raise TooManyBrokersError(
                f"{MOST_TOPICS} topics of all broker sets are registered; {topic} is one too many"
            )
        sets = self._topics.get(topic)
        if sets is not None and len(sets) >= MOST_SETS_OF_TOPIC:
            raise TooManyBrokersError(
                f"{MOST_SETS_OF_TOPIC} broker sets have the topic {topic}; {broker_name} is one too many"
            )

    def _drop_live(self, broker_addr: str) -> LiveBroker | None:
        """Take an address from the table of live brokers."""
        live = self._live.pop(broker_addr, None)
        if live is not None:
            _discard(self._addresses_of, live.channel, broker_addr)
        return live

    def _leave_clusters(self, data: BrokerData) -> None:
        """Remove a set from clusters that none of its live brokers names any more: a broker that was restarted with another
        `brokerClusterName` was dropped in between, so any registration may be the one that shows the change."""
        name = data.broker_name or ""
        clusters = self._clusters_of[name]
        if self._compat_49 or len(clusters) == 1:
            return
        named = {
            live.cluster_name: None
            for address in _addresses(data).values()
            if (live := self._live.get(address)) is not None and live.broker_name == name
        }
        for cluster in [one for one in clusters if one not in named]:
            _discard(self._clusters, cluster, name)
            _discard(self._clusters_of, name, cluster)
        if data.cluster not in named:
            data.cluster = next(iter(named))

    def _take_address(self, data: BrokerData, broker_id: int) -> None:
        """Take the address of an id from a set, if there is one."""
        address = _addresses(data).pop(broker_id, None)
        if address is not None:
            _discard(self._sets_of, address, data.broker_name or "")

    def _leave_set(self, data: BrokerData, broker_id: int) -> None:
        """Take the address of an id from a set, and remove the set when it was the last one, from all its clusters."""
        self._take_address(data, broker_id)
        if not _addresses(data):
            self._drop_set(data.broker_name or "")

    def _leave_other_sets(self, broker: BrokerIdentity) -> None:
        """Remove an address from the set in which it has registered before, under another name: only the set of its last
        registration is known when its connection ends or it falls silent, and the other one would never go."""
        for name, broker_id in tuple(self._sets_of.get(broker.broker_addr, {}).items()):
            if name != broker.broker_name:
                self._leave_set(self._brokers[name], broker_id)

    def _forget(self, broker_addr: str) -> None:
        """Remove one address from every table, and its broker set when it was the last one."""
        live = self._drop_live(broker_addr)
        self._filter_servers.pop(broker_addr, None)
        sets = self._sets_of.get(broker_addr, {})
        name = live.broker_name if live is not None else next(iter(sets), None)
        if name is None or name not in sets:
            return
        self._leave_set(self._brokers[name], sets[name])

    def _drop_set(self, broker_name: str) -> None:
        del self._brokers[broker_name]
        self._incomplete_since.pop(broker_name, None)
        for cluster in self._clusters_of.pop(broker_name, ()):
            _discard(self._clusters, cluster, broker_name)
        topics = self._own_topics.pop(broker_name, None)
        if topics:
            self._gone_topics[broker_name] = topics

    def _remove_gone(self, broker_name: str, number: int = 0) -> Generator[None, None, int]:
        """Remove the topics of a dropped set, unless that has been done; yields after each slice.

        Args:
            broker_name: the set.
            number: number of topics removed so far, including those of other sets; returns the new number.
        """
        while (topics := self._gone_topics.get(broker_name)) is not None:
            if topics:
                topic, _ = topics.popitem()
                queues = self._topics.get(topic)
                if queues is not None and queues.pop(broker_name, None) is not None and not queues:
                    del self._topics[topic]
            else:
                del self._gone_topics[broker_name]
            number += 1
            if not number % TOPICS_PER_SLICE:
                yield
        return number

    def _change_permission(self, broker_name: str, change: Callable[[int], int]) -> Generator[None, None, int]:
        count = 0
        for number, topic in enumerate(tuple(self._own_topics.get(broker_name, ())), 1):
            data = self._topics.get(topic, {}).get(broker_name)
            if data is not None:
                data.perm = change(data.perm)
                count += 1
            if not number % TOPICS_PER_SLICE:
                yield
        return count

    def _topics_where(self, matches: Callable[[int], object]) -> Names:
        yield from self.remove_in_slices()
        found = []
        number = 0
        for topic in tuple(self._topics):
            queues = self._topics.get(topic, {})
            if any(matches(data.topic_sys_flag) for data in queues.values()):
                found.append(topic)
            number += 1 + len(queues)
            if number >= TOPICS_PER_SLICE:
                number = 0
                yield
        return (yield from java_map_order_in_slices(found))


def _check_length(name: str) -> None:
    if len(name) > MAX_NAME_CHARACTERS:
        raise ValueError(f"{name[:50]!r}... has {len(name)} characters; at most {MAX_NAME_CHARACTERS} are possible")


def _addresses(data: BrokerData) -> dict[int, str]:
    assert data.broker_addrs is not None, "the table builds its broker data with addresses"
    return data.broker_addrs


def _copy(data: BrokerData) -> BrokerData:
    """For an answer; ids ascending, as a Java map of small numbers iterates."""
    return BrokerData(
        broker_addrs=dict(sorted(_addresses(data).items())), broker_name=data.broker_name, cluster=data.cluster
    )


def _queue_data(broker_name: str, config: TopicConfig) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        perm=config.perm,
        read_queue_nums=config.read_queue_nums,
        topic_sys_flag=config.topic_sys_flag,
        write_queue_nums=config.write_queue_nums,
    )


def _discard(table: dict[K, dict[str, V]], key: K, name: str) -> None:
    """Take a name from a set or map in a table, and the set when it is empty."""
    names = table.get(key)
    if names is not None:
        names.pop(name, None)
        if not names:
            del table[key]
