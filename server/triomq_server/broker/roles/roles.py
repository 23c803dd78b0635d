"""Keeps a broker in its role, master or slave, and changes the role while it runs.

RocketMQ 4.9 changes roles at run time only under DLedger (`BrokerController.changeToMaster`, `changeToSlave`;
docs/protocol/ha.md §7.3). Here an operator may do so in any broker set. A change is refused where it would give the set
two masters or lose messages.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator

import attrs
import trio

from triomq_server.broker.broker import Broker, Following
from triomq_server.broker.registration import RegistrationAnswer, members_of_set
from triomq_server.broker.roles.returning import PERIOD_S, log_two_masters, merge_offsets_of_slaves
from triomq_server.broker.roles.slave_tasks import SlaveTasks
from triomq_server.config import BrokerRole, dump_properties
from triomq_server.replication.divergence import LogRelation
from triomq_server.replication.rules import HaSettings
from triomq_server.restarting import restarted
from triomq_server.store import StoreDamaged
from triomq_server.wire import Dial, OpenLink

_log = logging.getLogger(__name__)


class RoleError(Exception):
    """The broker cannot take another role, or cannot keep the one that it has taken; the text says which and why."""


class _QueuesWatchedBySlave(Collection[tuple[str, int]]):
    """The queues whose arrivals matter on a slave: those with held pulls, and those of topics that its table lacks."""

    def __init__(self, broker: Broker) -> None:
        self._held = broker.held_pulls.queues
        self._topics = broker.topics.table

    def __contains__(self, queue: object) -> bool:
        return queue in self._held or queue[0] not in self._topics  # type: ignore[index]

    def __len__(self) -> int:
        return 1 + len(self._held)  # never empty: which topics are lacking is not known beforehand

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._held)


class Roles:
    """Keeps a broker in its role, and changes the role.

    Args:
        broker: the broker; its configuration names the role to begin with.
        settings: the HA keys.
        nursery: owns the slave's tasks.
        dial, open_link: the network.
    """

    def __init__(
        self,
        broker: Broker,
        settings: HaSettings,
        nursery: trio.Nursery,
        *,
        dial: Dial,
        open_link: OpenLink,
    ) -> None:
        self._broker = broker
        self._nursery = nursery
        self._settings = settings
        self._dial = dial
        self._open_link = open_link
        self._changing = trio.Lock()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._slave_tasks: SlaveTasks | None = None

    def start(self) -> None:
        """Start what the configured role needs."""
        self._choose_arrivals()
        if self._broker.is_slave:
            self._start_following()
        if not self._broker.compat_49:
            self._nursery.start_soon(restarted, self._merge_offsets_periodically)

    async def step_down(self, master: str) -> None:
        """Become a slave until an operator orders otherwise: a second master of the set would let the histories
        diverge.

        Called before anything is registered. The configuration file keeps the role that it names.
        """
        broker = self._broker
        members = await members_of_set(broker.config, self._open_link)
        broker_id = next(number for number in range(1, len(members) + 2) if number not in members)
        _log.error(
            "%s is the master of %s and alive, so this broker runs as its slave, with id %d; `triomq admin role` "
            "makes it "
            "master again; with followOtherMaster=false it starts as a second master",
            master, broker.config.broker_name, broker_id,
        )  # fmt: skip
        broker.store.demote()
        await self._take_role(BrokerRole.SLAVE, broker_id, keep=False)

    def handle_registration(self, answer: RegistrationAnswer) -> None:
        """Take over what a name server answered to a registration: ordered topics, and the master of the set."""
        if answer.order_topics is not None:
            # A name server that keeps a list of ordered topics decides on them.
            self._broker.topics.set_order_topics(answer.order_topics)
        if self._slave_tasks is not None:
            self._slave_tasks.handle_registration(answer)

    async def become_master(self, role: BrokerRole, *, force: bool = False) -> None:
        """Take messages from now on.

        Args:
            role: ASYNC_MASTER or SYNC_MASTER.
            force: also if the name servers know another master of this set.

        Raises:
            RoleError: there is another master, the log's end holds something that would be lost, or the disk is too
                full to recover the log: nothing has changed. Or the configuration file cannot be written: then the role
                is taken until the broker stops.
        """
        async with self._changing:
            broker = self._broker
            if broker.is_slave:
                await self._check_no_other_master(force=force)
                await self._stop_following()
                try:
                    if not self._broker.compat_49:
                        await merge_offsets_of_slaves(broker.config, broker.offsets, broker.address, self._open_link)
                    broker.store.promote()
                except BaseException as error:  # also a cancel: this broker is still a slave, and follows again
                    self._start_following()
                    if isinstance(error, StoreDamaged | OSError):
                        raise RoleError(f"this log cannot be a master's: {error}") from error
                    raise
                # Its slaves may have copied bytes that have just been dropped: let them compare again.
                broker.replication.close_links()
            await self._take_role(role, 0)

    async def become_slave(self, broker_id: int | None = None) -> None:
        """Refuse messages and follow the set's master from now on.

        Args:
            broker_id: the id to register under, greater than 0; None takes the smallest free one.

        Raises:
            RoleError: the id belongs to another member of the set: nothing has changed. Or the configuration file
                cannot be
                written: then the role is taken until the broker stops.
        """
        async with self._changing:
            broker = self._broker
            members = await members_of_set(broker.config, self._open_link)
            others = {number for number, address in members.items() if address != broker.address}
            if broker_id is None:
                free = (number for number in range(1, len(others) + 2) if number not in others)
                broker_id = broker.config.broker_id or next(free)
            if broker_id <= 0:
                raise RoleError("a slave's id is greater than 0; id 0 belongs to the master of the set")
            if broker_id in others:
                raise RoleError(f"id {broker_id} belongs to {members[broker_id]}")
            if not broker.is_slave:
                broker.store.demote()
                broker.replication.close_links()
                broker.config.store.broker_role = BrokerRole.SLAVE
                self._start_following()
            await self._take_role(BrokerRole.SLAVE, broker_id)

    async def cut(self) -> int:
        """Truncate the log to what the master has too, so that this slave can follow it again; only an operator orders
        it.

        Returns:
            How many bytes of the log are gone.

        Raises:
            RoleError: this broker is no slave, or its log is neither ahead of the master's nor diverged from it.
        """
        async with self._changing:
            following = self._broker.following
            if following is None:
                raise RoleError("only a slave's log can be cut")
            found = following.log.status.compared
            if found.relation not in (LogRelation.AHEAD, LogRelation.DIVERGED):
                raise RoleError(f"there is nothing to cut: this slave is {found.relation}")
            end = found.common_end if found.common_end is not None else found.master_end
            await self._stop_following()
            try:
                if self._broker.store.log_max_offset != found.own_end:
                    raise RoleError("the log has changed since it was compared")
                dropped = self._broker.store.cut(end)
            finally:
                self._start_following()
            self._broker.replication.close_links()
            self._broker.registration.register_soon()
            _log.warning(
                "the log was truncated to %d by an operator's order: %d bytes that the master does not have are "
                "dropped",
                end,
                dropped,
            )
            return dropped

    async def _merge_offsets_periodically(self) -> None:
        """While this broker is the master, look for offsets that only its slaves have, and for another master.

        There is another master when this broker was thought dead, or was cut off, and its slave was made master
        meanwhile. Name servers know only the one that registered last.
        """
        broker = self._broker
        logged = None
        while True:
            await trio.sleep(PERIOD_S)
            if broker.is_slave:
                logged = None
                continue
            members = await members_of_set(broker.config, self._open_link)
            known = members.get(0, broker.address)
            if known not in (broker.address, logged):
                logged = known
                log_two_masters(members, broker.address, broker.config.broker_name)
            await merge_offsets_of_slaves(
                broker.config, broker.offsets, broker.address, self._open_link, again=True, members=members
            )

    # -- the parts of a change

    async def _check_no_other_master(self, *, force: bool) -> None:
        if force:
            return
        broker = self._broker
        known = (await members_of_set(broker.config, self._open_link)).get(0)
        if known is not None and known != broker.address:
            raise RoleError(
                f"{known} is registered as the master of {broker.config.broker_name}; make it a slave or stop it "
                f"first, "
                "or give force if it is gone for good"
            )

    async def _take_role(self, role: BrokerRole, broker_id: int, *, keep: bool = True) -> None:
        """Apply the role to settings, tables and name servers; with `keep` write it to the configuration file too."""
        broker, config = self._broker, self._broker.config
        config.store.broker_role = role
        config.broker_id = broker_id
        registration = broker.registration
        registration.identity = attrs.evolve(registration.identity, broker_id=broker_id)
        for table in (broker.topics, broker.groups):
            table.follows = broker.is_slave
        self._choose_arrivals()
        for changed in broker.on_config_change:
            changed()
        if not broker.is_slave:
            broker.topics.bump()  # name servers take topics only of masters, and only with a version that is new to them
        _log.warning("this broker is now %s with id %d", role, broker_id)
        registration.register_soon()  # also if a cancel comes before the end
        unwritten = None
        if broker.config_file is not None and keep:
            try:
                await broker.config_file.save_in_background(dump_properties(config.to_properties()).encode())
            except OSError as error:
                unwritten = error
        await registration.register_now()
        if unwritten is not None:
            raise RoleError(
                f"this broker is {role} until it stops, but its configuration file cannot be written, so the next "
                f"start "
                f"takes the role that the file names: {unwritten}"
            )

    def _choose_arrivals(self) -> None:
        """Wake held pulls by arrivals, except on a 4.9 slave, which finds them by its scan only."""
        listeners, arrived = self._broker.store.arrival_listeners, self._broker.held_pulls.arrived
        wanted = not (self._broker.is_slave and self._broker.compat_49)
        if wanted and arrived not in listeners:
            listeners.append(arrived)
        elif not wanted and arrived in listeners:
            listeners.remove(arrived)
        held = self._broker.held_pulls.queues
        self._broker.store.watch_only(_QueuesWatchedBySlave(self._broker) if self._broker.is_slave else held)

    def _start_following(self) -> None:
        tasks = SlaveTasks(self._broker, self._settings, dial=self._dial, open_link=self._open_link)
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        self._slave_tasks = tasks
        self._broker.following = Following(tasks.log, tasks.metadata)
        self._nursery.start_soon(self._follow, tasks, self._scope, self._ended)

    @staticmethod
    async def _follow(tasks: SlaveTasks, scope: trio.CancelScope, ended: trio.Event) -> None:
        try:
            with scope:
                await tasks.run()
        finally:
            ended.set()

    async def _stop_following(self) -> None:
        """End the slave's tasks. A cancel does not interrupt this: half-ended tasks would neither follow nor be
        restarted."""
        self._scope.cancel()
        if self._slave_tasks is not None:
            with trio.CancelScope(shield=True):
                await self._ended.wait()
            self._slave_tasks = self._broker.following = None
