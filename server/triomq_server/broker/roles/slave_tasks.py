"""The tasks of a slave: follow the master's log, and keep topics, groups and offsets equal to the master's.

`replication` does the work; this module puts its results into the broker's tables. It answers to `SlaveSynchronize`; rules:
docs/protocol/ha.md §7.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import msgspec
import trio

from triomq_protocol.errors import ProtocolError
from triomq_protocol.names import OP_HALF_TOPIC
from triomq_protocol.requests.admin import SubscriptionGroupTable
from triomq_protocol.requests.offset import DelayOffsetTable
from triomq_protocol.requests.registration import DataVersion, TopicConfigTableForSlaves
from triomq_server.broker.broker import Broker
from triomq_server.broker.registration import RegistrationAnswer
from triomq_server.broker.roles.lost_messages import end_in
from triomq_server.broker.tables.offsets.committed import decode_received
from triomq_server.broker.tables.offsets.resets import FIELD
from triomq_server.replication.divergence import NotComparableError, RemoteLog
from triomq_server.replication.metadata import LOG_END_FIELD, MetadataSync
from triomq_server.replication.rules import HaSettings
from triomq_server.replication.slave import HaSlave
from triomq_server.restarting import restarted
from triomq_server.store import Arrival
from triomq_server.wire import Dial, OpenLink, in_turns

_log = logging.getLogger(__name__)

FIRST_ANSWER_S = 10.0
"""How long a comparison waits for a name server's first answer; a registration may take six seconds."""


LOG_WAIT_S = 1.0
"""How long a table that has come waits for the log, before the next one is asked for."""
TABLES_WAITING = 1000
"""Tables that a slave keeps which is far behind; of more the oldest are dropped."""


class _WaitingTable(msgspec.Struct, frozen=True):
    """A master's progress with delayed messages, for which this slave does not have all copies yet.

    Attributes:
        log_end: the copies are before this log offset.
        links: number of links to the master opened before this arrived.
        body: the table.
    """

    log_end: int
    links: int
    body: bytes


class FollowedTables:
    """The broker's tables, as a master's metadata replaces them."""

    def __init__(self, broker: Broker, log: HaSlave) -> None:
        self._broker = broker
        self._log = log
        self._waiting: deque[_WaitingTable] = deque(maxlen=TABLES_WAITING)
        self._before: tuple[int, Mapping[str, Mapping[int, int]]] | None = None

    @property
    def _is_followed(self) -> bool:
        """Whether the master's tables replace these: its log is followed, or this slave's log is empty.

        A master that has lost its disk has no topics either. If its table replaced the slave's, messages that only the
        slave still has would be out of reach when it becomes master.
        """
        broker = self._broker
        return self._log.status.connected or not broker.store.log_max_offset or broker.compat_49

    async def replace_topics(self, body: bytes) -> None:
        """The master's topics (code 21); from a master that is not followed, only new ones.

        Queues removed by a followed triomq master are removed here too.
        """
        with _undecodable_as_value_error():
            received = await in_turns(TopicConfigTableForSlaves.decode_in_slices(body))
        topics = self._broker.topics
        if self._is_followed:
            await self._broker.store.queue_removal.follow(received.triomq_removed_queues)
        else:
            both = {**received.topic_config_table, **topics.table}
            received = msgspec.structs.replace(
                received, topic_config_table=both, data_version=_version_of_no_master(received.data_version)
            )
        if topics.replace_all(received):
            _log.info("topics of the master taken over: %d", len(topics.table))

    async def merge_consumer_offsets(self, body: bytes, fields: Mapping[str, str]) -> None:
        """The master's consumer offsets (code 43); they are written down by the broker's timer.

        Those of a master that is not followed may count messages of another log.
        """
        if not self._is_followed:
            return
        status = self._log.status
        links = status.links if status.connected else None  # when the answer came
        with _undecodable_as_value_error():
            received, times = await decode_received(body, fields.get(FIELD))
        before = None
        if links is not None and self._before is not None and self._before[0] == links:
            before = self._before[1]  # the log's link has not broken since then, so the master was never offline
        await in_turns(self._broker.offsets.merge(received, times, before))
        self._before = None if links is None else (links, received)

    async def save_delay_offsets(self, body: bytes, fields: Mapping[str, str]) -> None:
        """The master's progress with delayed messages (code 45).

        A triomq master also sends the offset that the log must reach first: a broker that takes over must have the
        copies of the messages that it counts as delivered. RocketMQ's master does not.
        """
        if not self._is_followed:
            return
        broker, end = self._broker, fields.get(LOG_END_FIELD)
        with _undecodable_as_value_error():
            if end is None or broker.compat_49:
                await broker.delay_offsets.save_received(body, broker.store.log_max_offset)
                return
            DelayOffsetTable.decode(body)
            self._waiting.append(_WaitingTable(int(end), self._log.status.links, body))
            await self._wait_for_log(int(end))
            await self._take_reached()

    async def _wait_for_log(self, end: int) -> None:
        """Wait a moment for bytes that are on their way."""
        store, reached = self._broker.store, trio.Event()

        def grown(_end: int) -> None:
            if store.log_max_offset >= end:
                reached.set()

        grown(0)
        store.append_listeners.append(grown)
        try:
            with trio.move_on_after(LOG_WAIT_S):
                await reached.wait()
        finally:
            store.append_listeners.remove(grown)

    async def _take_reached(self) -> None:
        """Take the newest table that this log has all copies of; one from before the last link may be of another log."""
        waiting, log_end, taken = self._waiting, self._broker.store.log_max_offset, None
        while waiting and (waiting[0].links != self._log.status.links or waiting[0].log_end <= log_end):
            first = waiting.popleft()
            if first.links == self._log.status.links:
                taken = first
        if taken is not None and self._is_followed:
            await self._broker.delay_offsets.save_received(taken.body, taken.log_end)

    async def replace_groups(self, body: bytes) -> None:
        """The master's subscription groups (code 201); from a master that is not followed, only new ones."""
        with _undecodable_as_value_error():
            received = await in_turns(SubscriptionGroupTable.decode_in_slices(body))
        groups = self._broker.groups
        if not self._is_followed:
            both = {**received.subscription_group_table, **groups.table}
            received = msgspec.structs.replace(
                received, subscription_group_table=both, data_version=_version_of_no_master(received.data_version)
            )
        if groups.replace_all(received):
            _log.info("subscription groups of the master taken over: %d", len(groups.table))


def _version_of_no_master(version: DataVersion) -> DataVersion:
    """A version that no master has, so that the next table of a followed master replaces this one."""
    return msgspec.structs.replace(version, counter=-1)


class SlaveTasks:
    """The tasks of a slave from one role change to the next: `run` until cancelled.

    Attributes:
        log: follows the master's log.
        metadata: copies its tables.
    """

    def __init__(self, broker: Broker, settings: HaSettings, *, dial: Dial, open_link: OpenLink) -> None:
        self._broker = broker
        self._open_link = open_link
        self._fixed = broker.config.store.ha_master_address or None
        self._answered = trio.Event()
        self._main_address = broker.config.store.ha_master_main_address or None
        self._compared_at: str | None = None
        """Where the master's log was last asked for, before the link to it was opened."""
        self.log = HaSlave(
            broker.store,
            settings,
            dial=dial,
            master=self._fixed,
            open_master=None if broker.compat_49 else self._open_master,
            on_loss=None if broker.compat_49 else broker.registration.register_soon,
            on_cut=broker.replication.close_links,
            seed=broker.chance.getrandbits(32),
        )
        self.metadata = MetadataSync(FollowedTables(broker, self.log), open_link, own_address=broker.address)
        if not broker.compat_49:
            self.metadata.follow(self._main_address)  # no name server may ever answer

    @property
    def main_address(self) -> str | None:
        """The address at which the master answers requests, or last did; None if it is not known."""
        return self._main_address

    async def run(self) -> None:
        """Follow until cancelled."""
        broker = self._broker
        broker.store.arrival_listeners.append(self._arrived)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(restarted, self.log.run)
                nursery.start_soon(restarted, self.metadata.run)
        finally:
            broker.store.arrival_listeners.remove(self._arrived)

    def handle_registration(self, answer: RegistrationAnswer) -> None:
        """Follow the master that a name server named in its answer."""
        stays = self._is_linked_to(answer)
        self.metadata.follow(self._master_of_tables(answer))
        if not self._broker.config.store.ha_master_main_address:
            # A master that is unregistered for a while usually keeps its address.
            self._main_address = answer.master_address or self._main_address
        self._answered.set()
        if self._fixed is None and answer.ha_address is not None and not stays:
            self.log.follow(answer.ha_address)

    def _is_linked_to(self, answer: RegistrationAnswer) -> bool:
        """Whether the master that an answer names is the one to which a link is open, whatever its HA address.

        A broker changes its HA address only with a restart, which ends its links. Anyone can register the right master
        with an HA address of their own, and the logs are compared with the master, not with the peer at that address.
        """
        if self._broker.compat_49 or self.log.linked is None:
            return False
        return answer.master_address is not None and answer.master_address == self.metadata.master

    def _master_of_tables(self, answer: RegistrationAnswer) -> str | None:
        """The address from which to fetch tables after a name server's answer: the source of the log, if that is known.

        Anyone can register as the master of this set, and another cluster's broker of the same name may do so by mistake.
        An open link to the log stays at first, or for good with a fixed address, and tables of another master would not
        fit the log.
        """
        broker = self._broker
        if broker.compat_49:
            return answer.master_address
        if broker.config.store.ha_master_main_address:
            return broker.config.store.ha_master_main_address
        if answer.master_address is None:
            return None
        if self.log.linked is not None and self._compared_at is not None:
            return self._compared_at
        return answer.master_address

    def _arrived(self, arrival: Arrival) -> None:
        # The topic of the ends of transactions has no configuration at any master.
        if arrival.topic not in self._broker.topics.table and arrival.topic != OP_HALF_TOPIC:
            self.metadata.fetch_soon()

    @asynccontextmanager
    async def _open_master(self, _ha_address: str) -> AsyncIterator[RemoteLog]:
        """Connect to the master's main port, as configured or as name servers know it; its HA port does not reveal
        it."""
        self._compared_at = None
        if self._main_address is None:
            with trio.move_on_after(FIRST_ANSWER_S):
                await self._answered.wait()
        address = self._main_address
        if address is None:
            text = "no name server knows the master; set haMasterMainAddress to the address where it answers requests"
            if self._broker.store.log_max_offset:
                raise ConnectionError(text)  # its log may have another history
            raise NotComparableError(text)
        async with self._open_link(address) as link:
            self._compared_at = address
            broker = self._broker
            # Offsets that were copied from the master may count messages that have not come here, and that a master
            # which returns may have lost. As soon as others with their numbers come, they look like any offset; the
            # master, which may ask for them, has the right ones.
            end_of = partial(end_in, broker.store, broker.topics)
            await in_turns(broker.offsets.lower_to_ends(end_of, as_reset=False))
            yield RemoteLog(link)


@contextmanager
def _undecodable_as_value_error() -> Iterator[None]:
    try:
        yield
    except ProtocolError as error:
        raise ValueError(str(error)) from error
