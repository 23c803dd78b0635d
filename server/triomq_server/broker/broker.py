"""The object passed to request handlers: the store, the tables, replication and registration of one broker.

Handlers are functions `(broker, link, command)`. Nothing here waits, listens or answers: `lifecycle` builds this object
and opens the listeners around it. It answers to the getters of `BrokerController`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import msgspec
import trio

from triomq_server.acl import AclFiles
from triomq_server.broker.registration import Registration
from triomq_server.broker.set_members import SetMembers
from triomq_server.broker.tables.clients import ClientTable
from triomq_server.broker.tables.consumer_filters import ConsumerFilters
from triomq_server.broker.tables.groups import GroupTable
from triomq_server.broker.tables.held_pulls import HeldPulls
from triomq_server.broker.tables.notifications import Notifications
from triomq_server.broker.tables.offsets.committed import OffsetTable
from triomq_server.broker.tables.offsets.delay_levels import DelayOffsets
from triomq_server.broker.tables.stats import BrokerStats
from triomq_server.broker.tables.topics import TopicTable
from triomq_server.broker.tables.undelivered import Undelivered
from triomq_server.clock_waits import ClockWaits
from triomq_server.config import BrokerConfig
from triomq_server.disk.config_files import ConfigFile
from triomq_server.repeats import PeerLog
from triomq_server.replication.master import HaMaster
from triomq_server.replication.metadata import MetadataSync
from triomq_server.replication.slave import HaSlave
from triomq_server.store import MessageStore
from triomq_server.wire import Budget, Traffic

_log = logging.getLogger(__name__)


class Following(msgspec.Struct, frozen=True, eq=False):
    """A slave's two connections to its master.

    Attributes:
        log: copies the master's log.
        metadata: copies its topics, groups and offsets.
    """

    log: HaSlave
    metadata: MetadataSync


class Broker(msgspec.Struct, eq=False, kw_only=True):
    """Everything one broker consists of.

    Attributes:
        config: the broker's settings; request 25 changes them while it runs.
        store: its messages.
        topics, groups, offsets: its tables; topics and groups persist each change, offsets every few seconds.
        delay_offsets: how far delayed messages have been delivered, for slaves to fetch.
        undelivered: delayed messages that were damaged when they were due.
        clients: producers and consumers with a live link.
        filters: compiled property filters of consumer groups.
        stats: counters of traffic.
        held_pulls: pulls that wait for messages.
        notifications: notifies the members of changed groups; `requests.clients` sets it.
        registration: keeps the name servers informed; `registration.register_soon()` after a change.
        nursery: owns background tasks of handlers; ends before the store is closed.
        clock: wall clock in ms.
        chance: source of random queue choices.
        address: `brokerIP1:listenPort`, as registered at name servers.
        ha_address: `brokerIP2:haListenPort`.
        store_host: `address` packed, the STOREHOST of every record (8 or 20 bytes).
        set_members: the other brokers of the set, and whether one of them has this broker's id.
        replication: sends the log to slaves and tracks their progress; a slave has one too, for slaves of its own.
        traffic: counters of the links of both listeners.
        peer_log: logger for lines that clients can cause.
        incomplete_frames, unsent: memory held by the links of both listeners, see ``Limits``.
        config_file: the file to which request 25 writes the whole configuration; None keeps changes in memory.
        role_file: the file in which a change of the role sets the keys ``brokerRole`` and ``brokerId``, and nothing else.
        following: copies topics, groups and offsets from the master; None on a master. `roles` sets it.
        acl: the accounts and white lists; None without access control.
        clock_waits: the tasks that wait for times of `clock`; woken when the clock is set.
        started_s: time of creation by trio's clock, which is never set.
        on_config_change: called after request 25 has changed `config`, to read cached settings again.
    """

    config: BrokerConfig
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    delay_offsets: DelayOffsets
    undelivered: Undelivered
    clients: ClientTable
    filters: ConsumerFilters
    stats: BrokerStats
    held_pulls: HeldPulls
    registration: Registration
    nursery: trio.Nursery
    clock: Callable[[], int]
    chance: random.Random
    address: str
    ha_address: str
    store_host: bytes
    set_members: SetMembers
    replication: HaMaster
    incomplete_frames: Budget = msgspec.field(default_factory=Budget)
    unsent: Budget = msgspec.field(default_factory=Budget)
    traffic: Traffic = msgspec.field(default_factory=Traffic)
    notifications: Notifications = msgspec.field(default_factory=lambda: Notifications(lambda _group: iter(())))
    peer_log: PeerLog = msgspec.field(default_factory=lambda: PeerLog(_log))
    config_file: ConfigFile | None = None
    role_file: ConfigFile | None = None
    following: Following | None = None
    acl: AclFiles | None = None
    clock_waits: ClockWaits = msgspec.field(default_factory=ClockWaits)
    started_s: float = msgspec.field(default_factory=trio.current_time)
    on_config_change: list[Callable[[], None]] = msgspec.field(default_factory=list)

    @property
    def is_slave(self) -> bool:
        """Whether this broker follows a master: it takes no messages and changes no topics."""
        return self.config.store.is_slave

    @property
    def compat_49(self) -> bool:
        """Whether this broker copies the defects of RocketMQ 4.9 (``compat=4.9``)."""
        return self.config.store.compat_49
