"""A slave's tasks: follow the master's log, and keep topics, groups and offsets equal to the master's.

The work is done in `replication`; here its results are put into the broker's tables. It answers to `SlaveSynchronize`;
rules: ha.md §7.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import trio

from triomq_protocol.errors import ProtocolError
from triomq_protocol.requests.admin import SubscriptionGroupTable
from triomq_protocol.requests.offset import ConsumerOffsetTable
from triomq_protocol.requests.registration import TopicConfigTable
from triomq_server.replication.metadata import MetadataSync, OpenLink
from triomq_server.replication.rules import HaSettings
from triomq_server.replication.slave import HaSlave
from triomq_server.replication.standing import RemoteLog
from triomq_server.replication.streams import Dial
from triomq_server.store import Arrival

from .registration import Registered
from .resets import FIELD
from .service import Broker


class FollowedTables:
    """The broker's tables, as a master's metadata replaces them."""

    def __init__(self, broker: Broker, log: HaSlave) -> None:
        self._broker = broker
        self._log = log
        self._before: tuple[int, Mapping[str, Mapping[int, int]]] | None = None

    def replace_topics(self, body: bytes) -> None:
        """The master's topics (code 21)."""
        with _undecodable_as_value_error():
            self._broker.topics.replace_all(TopicConfigTable.decode(body))

    def merge_consumer_offsets(self, body: bytes, fields: Mapping[str, str]) -> None:
        """The master's consumer offsets (code 43); they are written down by the broker's timer."""
        with _undecodable_as_value_error():
            received = ConsumerOffsetTable.decode(body).offset_table
            status, before = self._log.status, None
            if status.connected and self._before is not None and self._before[0] == status.links:
                before = self._before[1]  # the log's link has held since then, so the master was never away
            self._broker.offsets.merge(received, fields.get(FIELD), before)
            self._before = (status.links, received) if status.connected else None

    def save_delay_offsets(self, body: bytes) -> None:
        """The master's progress with delayed messages (code 45)."""
        with _undecodable_as_value_error():
            self._broker.delay_offsets.save_received(body)

    def replace_groups(self, body: bytes) -> None:
        """The master's subscription groups (code 201)."""
        with _undecodable_as_value_error():
            self._broker.groups.replace_all(SubscriptionGroupTable.decode(body))


def follow_master(
    broker: Broker, settings: HaSettings, nursery: trio.Nursery, *, dial: Dial, open_link: OpenLink
) -> Callable[[Registered], None]:
    """Start a slave's tasks.

    Returns:
        What to call with every answer of a name server: it says where the master is.
    """
    fixed = broker.config.store.ha_master_address or None
    log = HaSlave(broker.store, settings, dial=dial, master=fixed, seed=broker.chance.getrandbits(32))
    metadata = MetadataSync(FollowedTables(broker, log), open_link, own_address=broker.address)

    def arrived(arrival: Arrival) -> None:
        if arrival.topic not in broker.topics.table:
            metadata.fetch_soon()

    def told(registered: Registered) -> None:
        metadata.follow(registered.master_address)
        if fixed is None and registered.ha_address is not None:
            log.follow(registered.ha_address)

    broker.store.arrival_listeners.append(arrived)
    broker.unknown_topic = lambda _topic: metadata.fetch_soon()
    nursery.start_soon(log.run)
    nursery.start_soon(metadata.run)
    return told


def _main_address(ha_address: str) -> str:
    """A broker's ordinary address, from that of its HA service, which is always the next port."""
    host, _, port = ha_address.rpartition(":")
    return f"{host}:{int(port) - 1}"


@contextmanager
def _undecodable_as_value_error() -> Iterator[None]:
    try:
        yield
    except ProtocolError as error:
        raise ValueError(str(error)) from error
