"""The broker as its request handlers see it: one object that holds the store, the tables and what runs beside them.

Handlers are functions `(broker, link, command)`; nothing here waits, listens or answers. `lifecycle.py` builds this object,
opens the listeners around it and takes it down again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from triomq_server.config import BrokerConfig, BrokerRole
from triomq_server.replication.master import HaMaster
from triomq_server.replication.metadata import MetadataSync
from triomq_server.replication.slave import HaSlave
from triomq_server.store import MessageStore
from triomq_server.store.config_files import ConfigFile

from .clients import ClientTable
from .consumer_filters import ConsumerFilters
from .delay_offsets import DelayOffsets
from .groups import GroupTable
from .long_polling import HeldPulls
from .offsets import OffsetTable
from .registration import Registration
from .stats import BrokerStats
from .topics import TopicTable


class Replication(Protocol):
    """What sends need of a master's replication (`replication.master.HaMaster`)."""

    def slave_ok(self, end_offset: int) -> bool:
        """Whether a slave is near enough to be waited for."""

    def park_until_replicated(self, end_offset: int, deadline: float, done: Callable[[bool], None]) -> None:
        """Call `done(True)` when a slave holds everything before `end_offset`, `done(False)` at `deadline` (trio's clock)."""


class RoleError(Exception):
    """The broker cannot take another role, or cannot keep the one that it has taken; the text says which and why."""


class RoleKeeper(Protocol):
    """What operators' requests need of the broker's role (`roles.Roles`)."""

    @property
    def master(self) -> HaMaster:
        """The end of replication towards slaves."""

    @property
    def following(self) -> FollowedMaster | None:
        """The end of replication towards the master; None on a master."""

    async def become_master(self, role: BrokerRole, *, force: bool = False) -> None:
        """Take messages from now on; RoleError."""

    async def become_slave(self, broker_id: int | None = None) -> None:
        """Follow from now on; RoleError."""

    async def cut(self) -> int:
        """Drop what the master does not have; returns bytes. RoleError."""


class FollowedMaster(Protocol):
    """What a slave's tasks have to show."""

    @property
    def log(self) -> HaSlave:
        """Follows the master's log."""

    @property
    def metadata(self) -> MetadataSync:
        """Copies its tables."""


def ignore_topic(topic: str) -> None:
    """What a master does about a topic it does not know: nothing."""


@attrs.define(eq=False, kw_only=True)
class Broker:
    """Everything one broker consists of.

    Attributes:
        config: the broker's settings; request 25 changes them while it runs.
        store: its messages.
        topics, groups, offsets: its tables; topics and groups persist each change, offsets every few seconds.
        delay_offsets: how far delayed messages have been delivered, for slaves to fetch.
        clients: producers and consumers with a live link.
        filters: compiled property filters of consumer groups.
        stats: counters of traffic.
        held_pulls: pulls that wait for messages.
        registration: keeps the name servers informed; `registration.register_soon()` after a change.
        replication: the master's end of replication; None until it runs.
        nursery: owns background tasks of handlers; ends before the store is closed.
        clock: wall clock in ms.
        chance: where random queue choices come from.
        address: `brokerIP1:listenPort`, as registered at name servers.
        ha_address: `brokerIP2:haListenPort`.
        store_host: `address` packed, the STOREHOST of every record (8 or 20 bytes).
    """

    config: BrokerConfig
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    delay_offsets: DelayOffsets
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
    replication: Replication | None = None
    roles: RoleKeeper | None = None
    """Changes the role; None until the broker has started."""
    config_file: ConfigFile | None = None
    """Where request 25 writes the whole configuration; None keeps changes in memory."""
    unknown_topic: Callable[[str], None] = ignore_topic
    """Told of a topic that someone asks for and the table lacks; a slave then asks its master sooner."""
    on_config_change: list[Callable[[], None]] = attrs.Factory(list)
    """Called after request 25 has changed `config`: caches of settings are made anew."""

    @property
    def is_slave(self) -> bool:
        """Whether this broker follows a master: it takes no messages and changes no topics."""
        return self.config.store.broker_role == "SLAVE"
