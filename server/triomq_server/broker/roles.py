"""What a broker is to its set, master or slave, and how that changes while it runs.

4.9 changes roles at run time only under DLedger (`BrokerController.changeToMaster`, `changeToSlave`; ha.md §7.3); here an
operator may do so in any broker set. A change is refused where it would give the set two masters or lose messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager

import attrs
import trio

from triomq_server.config import BrokerRole, dump_properties
from triomq_server.replication.master import HaMaster
from triomq_server.replication.rules import HaSettings
from triomq_server.replication.standing import Standing
from triomq_server.replication.streams import Dial
from triomq_server.store import StoreDamaged
from triomq_server.wire import Link

from .following import Following
from .registration import Registered
from .returning import PERIOD_S, learn_offsets, members_of_set, tell_of_two_masters
from .service import Broker, RoleError

_log = logging.getLogger(__name__)

OpenLink = Callable[[str], AbstractAsyncContextManager[Link]]


class _WatchOfSlave(Collection[tuple[str, int]]):
    """The queues whose arrivals matter on a slave: where pulls wait, and those of topics that its table lacks."""

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
    """Keeps a broker in its role, and changes it.

    Args:
        broker: the broker; its configuration names the role to begin with.
        master: its end of replication towards slaves, which runs in either role.
        settings: the HA keys.
        nursery: owns the slave's tasks.
        dial, open_link: the network.
    """

    def __init__(
        self,
        broker: Broker,
        master: HaMaster,
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
        self.master = master
        self.following: Following | None = None
        """The tasks of a slave; None on a master."""

    def begin(self) -> None:
        """Start what the configured role needs."""
        self._settle_arrivals()
        if self._broker.is_slave:
            self._start_following()
        if not self._settings.compat_49:
            self._nursery.start_soon(self._keep_learning_offsets)

    async def give_way(self, master: str) -> None:
        """Be a slave until an operator says otherwise: the set has another master, and a second one would part its history.

        Called before anything is registered. The configuration file keeps the role that it names.
        """
        broker = self._broker
        members = await members_of_set(broker.config, self._open_link)
        broker_id = next(number for number in range(1, len(members) + 2) if number not in members)
        _log.error(
            "%s is the master of %s and alive, so this broker is its slave from now on, with id %d; `triomq admin role` "
            "makes it master again, and followOtherMaster=false lets it start as a second one",
            master, broker.config.broker_name, broker_id,
        )  # fmt: skip
        broker.store.demote()
        await self._take_role(BrokerRole.SLAVE, broker_id, keep=False)

    def told(self, registered: Registered) -> None:
        """Every answer of a name server to a registration comes here."""
        if registered.order_topics is not None:
            # A name server that keeps a list of ordered topics has the last word on them.
            self._broker.topics.set_order_topics(registered.order_topics)
        if self.following is not None:
            self.following.told(registered)

    async def become_master(self, role: BrokerRole, *, force: bool = False) -> None:
        """Take messages from now on.

        Args:
            role: ASYNC_MASTER or SYNC_MASTER.
            force: also if the name servers know another master of this set.

        Raises:
            RoleError: there is another master, the log's end holds something that would be lost, or what has come cannot be
                read for want of room: nothing has changed. Or the configuration file cannot be written: then the role is taken
                until the broker stops.
        """
        async with self._changing:
            broker = self._broker
            if broker.is_slave:
                await self._check_no_other_master(force=force)
                await self._stop_following()
                if not self._settings.compat_49:
                    await learn_offsets(broker.config, broker.offsets, broker.address, self._open_link)
                try:
                    broker.store.promote()
                except (StoreDamaged, OSError) as error:
                    self._start_following()
                    raise RoleError(f"this log cannot be a master's: {error}") from error
                # Whoever follows this broker has copied bytes that may just have been dropped: compare anew.
                self.master.close_links()
            await self._take_role(role, 0)

    async def become_slave(self, broker_id: int | None = None) -> None:
        """Refuse messages and follow the set's master from now on.

        Args:
            broker_id: the id to register under, greater than 0; None takes the smallest free one.

        Raises:
            RoleError: the id belongs to another member of the set: nothing has changed. Or the configuration file cannot be
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
                self.master.close_links()
                broker.config.store.broker_role = BrokerRole.SLAVE
                self._start_following()
            await self._take_role(BrokerRole.SLAVE, broker_id)

    async def cut(self) -> int:
        """Drop what the master does not have, so that this slave can follow it again: an operator's order.

        Returns:
            How many bytes of the log are gone.

        Raises:
            RoleError: this broker is no slave, or its log does not stand against the master's as such an order supposes.
        """
        async with self._changing:
            if self.following is None:
                raise RoleError("only a slave's log can be cut")
            found = self.following.log.status.compared
            if found.standing not in (Standing.AHEAD, Standing.DIVERGED):
                raise RoleError(f"there is nothing to cut: this slave is {found.standing}")
            end = found.common_end if found.common_end is not None else found.master_end
            await self._stop_following()
            try:
                if self._broker.store.log_max_offset != found.own_end:
                    raise RoleError("the log has changed since it was compared")
                dropped = self._broker.store.cut(end)
            finally:
                self._start_following()
            self.master.close_links()
            self._broker.registration.register_soon()
            _log.warning(
                "by order: the log was cut at %d, %d bytes that the master does not have are gone", end, dropped
            )
            return dropped

    async def _keep_learning_offsets(self) -> None:
        """While this broker is the master, look for offsets that only its slaves have, and for another master.

        There is one when this broker was thought dead, or was cut off, and its slave was made master meanwhile. Name servers
        know only the one that has registered last.
        """
        broker = self._broker
        told_of = None
        while True:
            await trio.sleep(PERIOD_S)
            if broker.is_slave:
                told_of = None
                continue
            members = await members_of_set(broker.config, self._open_link)
            known = members.get(0, broker.address)
            if known not in (broker.address, told_of):
                told_of = known
                tell_of_two_masters(members, broker.address, broker.config.broker_name)
            await learn_offsets(
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
                f"{known} is registered as the master of {broker.config.broker_name}; make it a slave or stop it first, "
                "or give force if it is gone for good"
            )

    async def _take_role(self, role: BrokerRole, broker_id: int, *, keep: bool = True) -> None:
        """Let settings, tables and name servers know; `keep` writes it to the configuration file, too."""
        broker, config = self._broker, self._broker.config
        config.store.broker_role = role
        config.broker_id = broker_id
        registration = broker.registration
        registration.identity = attrs.evolve(registration.identity, broker_id=broker_id)
        for table in (broker.topics, broker.groups):
            table.follows = broker.is_slave
        self._settle_arrivals()
        for changed in broker.on_config_change:
            changed()
        if not broker.is_slave:
            broker.topics.bump()  # name servers take topics only of masters, and only with a version that is new to them
        _log.warning("this broker is %s with id %d from now on", role, broker_id)
        unwritten = None
        if broker.config_file is not None and keep:
            try:
                await broker.config_file.save_in_background(dump_properties(config.to_properties()).encode())
            except OSError as error:
                unwritten = error
        await registration.register_now()
        if unwritten is not None:
            raise RoleError(
                f"this broker is {role} until it stops, but its configuration file cannot be written, and what the file "
                f"says holds at the next start: {unwritten}"
            )

    def _settle_arrivals(self) -> None:
        """Held pulls hear of arrivals; but a 4.9 slave finds them by its scan only."""
        listeners, arrived = self._broker.store.arrival_listeners, self._broker.held_pulls.arrived
        wanted = not (self._broker.is_slave and self._settings.compat_49)
        if wanted and arrived not in listeners:
            listeners.append(arrived)
        elif not wanted and arrived in listeners:
            listeners.remove(arrived)
        held = self._broker.held_pulls.queues
        self._broker.store.watch_only(_WatchOfSlave(self._broker) if self._broker.is_slave else held)

    def _start_following(self) -> None:
        following = Following(self._broker, self._settings, dial=self._dial, open_link=self._open_link)
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        self.following = following
        self._nursery.start_soon(self._follow, following, self._scope, self._ended)

    @staticmethod
    async def _follow(following: Following, scope: trio.CancelScope, ended: trio.Event) -> None:
        try:
            with scope:
                await following.run()
        finally:
            ended.set()

    async def _stop_following(self) -> None:
        self._scope.cancel()
        if self.following is not None:
            await self._ended.wait()
            self.following = None
