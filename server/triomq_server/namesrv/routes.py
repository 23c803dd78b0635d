"""The route table: the addresses and topics of each broker set, from the brokers' registrations.

Pure: the time is an argument, connections are opaque objects, and what must be closed is returned. The rules are those
of
RocketMQ's ``RouteInfoManager`` (docs/protocol/namesrv.md §3 and §4), its maps' iteration order included, so that
answers are equal byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import attrs

from triomq_protocol.flags import PERM_READ, PERM_WRITE, TOPIC_UNIT, TOPIC_UNIT_SUB
from triomq_protocol.requests import BrokerData, ClusterInfo, DataVersion, QueueData, TopicConfig, TopicRouteData
from triomq_protocol.wire.fastjson import java_map_order

EXPIRY_MS = 120_000
"""A broker that has not registered for longer than this is dropped."""

V = TypeVar("V")


@attrs.frozen
class BrokerIdentity:
    """Who registers: one process of a broker set."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_addr: str
    ha_server_addr: str = ""


@attrs.define
class LiveBroker:
    """What is remembered of a broker's latest registration.

    Attributes:
        updated_at_ms: when it came, or when its data version was last found unchanged.
        data_version: of the topics it carried.
        channel: the connection it came by.
        ha_server_addr: where slaves of this broker connect to.
    """

    updated_at_ms: int
    data_version: DataVersion
    channel: Hashable
    ha_server_addr: str


@attrs.frozen
class Master:
    """The master of a registering slave's set."""

    broker_addr: str
    ha_server_addr: str


class RouteTable:
    """All brokers and topics that are registered. Nothing of it is kept anywhere else.

    Args:
        compat_49: as in RocketMQ 4.9, a closed connection takes only the first of the brokers along that registered
            over it, and a broker that unregisters removes the entry of its id, even if another broker has taken that
            id.
    """

    def __init__(self, *, compat_49: bool = False) -> None:
        self._compat_49 = compat_49
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, BrokerData] = {}
        # Cluster -> broker names; a dict as an ordered set.
        self._clusters: dict[str, dict[str, None]] = {}
        self._live: dict[str, LiveBroker] = {}
        self._filter_servers: dict[str, list[str]] = {}

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
    ) -> Master | None:
        """Record a broker's registration.

        Topics count only from masters, and only when the data version is new; those not mentioned stay.

        Args:
            broker: who.
            topics: topic -> configuration.
            data_version: of ``topics``.
            channel: the connection; `channel_closed` gets the same object.
            now_ms: the time.
            filter_servers: None leaves those known before.

        Returns:
            For a slave its master, if that is alive.
        """
        self._clusters.setdefault(broker.cluster_name, {})[broker.broker_name] = None
        data = self._brokers.get(broker.broker_name)
        is_first = data is None
        if data is None:
            data = BrokerData(broker_addrs={}, broker_name=broker.broker_name, cluster=broker.cluster_name)
            self._brokers[broker.broker_name] = data
        addresses = _addresses(data)
        # A broker that changed its role: one address must not stand under two ids.
        for other in [i for i, a in addresses.items() if a == broker.broker_addr and i != broker.broker_id]:
            del addresses[other]
        is_first |= broker.broker_id not in addresses
        addresses[broker.broker_id] = broker.broker_addr
        if broker.broker_id == 0 and (is_first or self._is_new(broker.broker_addr, data_version)):
            for topic, config in topics.items():
                self._topics.setdefault(topic, {})[broker.broker_name] = _queue_data(broker.broker_name, config)
        self._live[broker.broker_addr] = LiveBroker(now_ms, data_version, channel, broker.ha_server_addr)
        if filter_servers:
            self._filter_servers[broker.broker_addr] = list(filter_servers)
        elif filter_servers is not None:
            self._filter_servers.pop(broker.broker_addr, None)
        return self._master_of(broker, addresses)

    def unregister(self, broker: BrokerIdentity) -> None:
        """Remove a broker that unregisters. While its set has another member, the topics stay."""
        self._live.pop(broker.broker_addr, None)
        self._filter_servers.pop(broker.broker_addr, None)
        data = self._brokers.get(broker.broker_name)
        if data is None:
            return
        addresses = _addresses(data)
        if self._compat_49 or addresses.get(broker.broker_id) == broker.broker_addr:
            addresses.pop(broker.broker_id, None)
        if not addresses:
            self._drop_set(broker.broker_name, broker.cluster_name)

    def channel_closed(self, channel: Hashable, peer: str) -> list[str]:
        """A connection has ended; returns the addresses of the brokers that went with it.

        Args:
            channel: as given to ``register``.
            peer: the address of the other end, for which RocketMQ looks too when no broker used the connection.
        """
        lost = [address for address, live in self._live.items() if live.channel == channel]
        if self._compat_49:
            del lost[1:]
        for address in lost or [peer]:
            self._forget(address)
        return lost

    def expire(self, now_ms: int) -> list[tuple[str, Hashable]]:
        """Drop the brokers that have been silent too long; returns address and connection, which must be closed."""
        silent = [(a, live.channel) for a, live in self._live.items() if now_ms > live.updated_at_ms + EXPIRY_MS]
        for address, _ in silent:
            self._forget(address)
        return silent

    def check_version(
        self, broker_addr: str, data_version: DataVersion, now_ms: int
    ) -> tuple[bool, DataVersion | None]:
        """Whether this version differs from the one registered, and the registered one.

        A broker whose version has not changed counts as heard of.
        """
        live = self._live.get(broker_addr)
        if live is None:
            return True, None
        changed = live.data_version != data_version
        if not changed:
            live.updated_at_ms = now_ms
        return changed, live.data_version

    # Changes by operators

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, everywhere or only on the brokers of one cluster, until a broker registers it again."""
        if not cluster:
            self._topics.pop(topic, None)
            return
        queues = self._topics.get(topic)
        if queues is None:
            return
        for broker_name in self._clusters.get(cluster, ()):
            queues.pop(broker_name, None)
        if not queues:
            del self._topics[topic]

    def wipe_write_permission(self, broker_name: str) -> int:
        """Let producers see no writable queue on a broker set; returns the number of its topics."""
        return self._change_permission(broker_name, lambda permission: permission & ~PERM_WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Make all queues of a broker set readable and writable; returns the number of its topics."""
        return self._change_permission(broker_name, lambda _: PERM_READ | PERM_WRITE)

    # Look-ups

    def route(self, topic: str | None) -> TopicRouteData | None:
        """Where a topic lives; None unless there is at least one queue and one broker."""
        queues = self._topics.get(topic) if topic is not None else None
        if not queues:
            return None
        names = java_map_order(queues)
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

    def cluster_info(self) -> ClusterInfo:
        """All broker sets by name, and the names by cluster."""
        return ClusterInfo(
            broker_addr_table={name: _copy(data) for name, data in _in_java_order(self._brokers)},
            cluster_addr_table={
                cluster: list(java_map_order(names)) for cluster, names in _in_java_order(self._clusters)
            },
        )

    def all_topics(self) -> list[str]:
        """Every topic."""
        return list(java_map_order(self._topics))

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics with queues on any broker of a cluster, none for an unknown cluster."""
        found: dict[str, None] = {}
        for broker_name in java_map_order(self._clusters.get(cluster, ())):
            found.update(dict.fromkeys(topic for topic, queues in self._topics.items() if broker_name in queues))
        return list(java_map_order(found))

    def system_topics(self) -> tuple[list[str], str | None]:
        """Cluster and broker names, which are topics too, and the address of some broker that knows the others."""
        names: dict[str, None] = {}
        for cluster, brokers in _in_java_order(self._clusters):
            names[cluster] = None
            names.update(dict.fromkeys(java_map_order(brokers)))
        address = next(
            (a for _, data in _in_java_order(self._brokers) for _, a in sorted(_addresses(data).items())), None
        )
        return list(java_map_order(names)), address

    def unit_topics(self) -> list[str]:
        """Topics of units (sysFlag bit 1) on at least one broker."""
        return self._topics_where(lambda flag: flag & TOPIC_UNIT)

    def unit_sub_topics(self) -> list[str]:
        """Topics with unit subscriptions (sysFlag bit 2) on at least one broker."""
        return self._topics_where(lambda flag: flag & TOPIC_UNIT_SUB)

    def unit_sub_ununit_topics(self) -> list[str]:
        """Topics with unit subscriptions that are themselves of no unit, on at least one broker."""
        return self._topics_where(lambda flag: flag & TOPIC_UNIT_SUB and not flag & TOPIC_UNIT)

    # Within

    def _is_new(self, broker_addr: str, data_version: DataVersion) -> bool:
        live = self._live.get(broker_addr)
        return live is None or live.data_version != data_version

    def _master_of(self, broker: BrokerIdentity, addresses: dict[int, str]) -> Master | None:
        if broker.broker_id == 0:
            return None
        address = addresses.get(0)
        live = self._live.get(address) if address is not None else None
        return None if address is None or live is None else Master(address, live.ha_server_addr)

    def _forget(self, broker_addr: str) -> None:
        """Remove one address from every table, and its broker set when it was the last one."""
        self._live.pop(broker_addr, None)
        self._filter_servers.pop(broker_addr, None)
        for name, data in self._brokers.items():
            addresses = _addresses(data)
            ids = [broker_id for broker_id, address in addresses.items() if address == broker_addr]
            if not ids:
                continue
            del addresses[ids[0]]
            if not addresses:
                clusters = [cluster for cluster, names in self._clusters.items() if name in names]
                self._drop_set(name, *clusters)
            return

    def _drop_set(self, broker_name: str, *clusters: str) -> None:
        self._brokers.pop(broker_name, None)
        for cluster in clusters:
            names = self._clusters.get(cluster)
            if names is not None:
                names.pop(broker_name, None)
                if not names:
                    del self._clusters[cluster]
        for topic in [topic for topic, queues in self._topics.items() if broker_name in queues]:
            queues = self._topics[topic]
            del queues[broker_name]
            if not queues:
                del self._topics[topic]

    def _change_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self._topics.values():
            data = queues.get(broker_name)
            if data is not None:
                data.perm = change(data.perm)
                count += 1
        return count

    def _topics_where(self, matches: Callable[[int], object]) -> list[str]:
        return list(
            java_map_order(
                topic
                for topic, queues in self._topics.items()
                if any(matches(data.topic_sys_flag) for data in queues.values())
            )
        )


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


def _in_java_order(table: dict[str, V]) -> Iterable[tuple[str, V]]:
    return [(key, table[key]) for key in java_map_order(table)]
