"""Keeps a broker in its role, master or slave, and changes the role while it runs.

RocketMQ 4.9 changes roles at run time only under DLedger (`BrokerController.changeToMaster`, `changeToSlave`;
docs/protocol/ha.md §7.3). Here an operator may do so in any broker set. A change is refused if it would give the set
two masters or lose messages.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial

import msgspec
import trio

from triomq_protocol.names import MASTER_ID
from triomq_server.broker.broker import Broker, Following
from triomq_server.broker.refusals import INT64_MOST
from triomq_server.broker.registration import RegistrationAnswer, has_identity, members_of_set
from triomq_server.broker.roles.lost_messages import end_in, lower_offsets, note_slave
from triomq_server.broker.roles.returning import PERIOD_S, log_two_masters, merge_offsets_of_slaves
from triomq_server.broker.roles.slave_tasks import SlaveTasks
from triomq_server.config import ROLE_KEYS, BrokerRole, dump_properties
from triomq_server.replication.divergence import LogRelation, cut_offset
from triomq_server.replication.rules import HaSettings
from triomq_server.restarting import restarted
from triomq_server.store import HALF_CUT, StoreDamaged
from triomq_server.wire import Dial, OpenLink

_log = logging.getLogger(__name__)

CONTESTED_LINE_S = 60.0
"""How often it is logged that another broker has this broker's id, as long as it has."""


_NOTHING_TO_CUT = {
    LogRelation.UNKNOWN: "this slave has not compared its log with a master's since it started or lost its master; "
    "`triomq admin ha` shows whether there is a master and what keeps the slave from it",
    LogRelation.CLEAN: "this slave has exactly its master's log",
    LogRelation.BEHIND: "this slave has nothing that its master lacks",
}
"""The relations to the master's log in which a slave's log is not cut, and why; a cut resolves all others."""


class RoleError(Exception):
    """The broker cannot take another role, or cannot keep the one that it has taken; the text states which and why."""


class RoleNotKept(RoleError):  # noqa: N818 - named after the state one is in
    """The role is taken, and the next start takes another one: the file that keeps it cannot be written."""


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
        self._next_contested_line = -math.inf

    def start(self) -> None:
        """Start what the configured role needs."""
        self._choose_arrivals()
        if self._broker.is_slave:
            self._start_following()
        if not self._broker.compat_49:
            self._nursery.start_soon(restarted, self._look_at_set_periodically)

    async def step_down(self, master: str) -> None:
        """Become a slave until an operator orders otherwise: a second master of the set would let the histories
        diverge.

        Called before anything is registered. The configuration file keeps the role that it names.
        """
        broker = self._broker
        broker_id = broker.set_members.free_id(await self._members())
        _log.error(
            "%s is the master of %s and alive, so this broker runs as its slave, with id %d; `triomq admin role` "
            "makes it "
            "master again; with followOtherMaster=false it starts as a second master",
            master, broker.config.broker_name, broker_id,
            extra={"broker": broker.config.broker_name, "address": master},
        )  # fmt: skip
        await note_slave(broker)
        await broker.store.demote()
        await self._take_role(BrokerRole.SLAVE, broker_id, keep=False)

    def handle_registration(self, answer: RegistrationAnswer) -> None:
        """Apply a name server's answer to a registration: ordered topics, and the master of the set."""
        if answer.order_topics is not None:
            # A name server that keeps a list of ordered topics decides on them.
            self._broker.topics.set_order_topics(answer.order_topics)
        if self._slave_tasks is not None:
            self._slave_tasks.handle_registration(answer)

    async def become_master(self, role: BrokerRole, *, force: bool = False, despite_contest: bool = False) -> None:
        """Take messages from now on.

        Args:
            role: ASYNC_MASTER or SYNC_MASTER.
            force: also if the name servers know another master of this set.
            despite_contest: also if another live broker has this broker's id.

        Raises:
            RoleError: there is another master, or another broker with this id; the log's end holds something that would be lost, or the disk is too
                full to recover the log: nothing has changed.
            RoleNotKept: the configuration file cannot be written; the role is taken until the broker stops.
        """
        async with self._changing:
            broker = self._broker
            if broker.is_slave:
                await self._check_promotion(force=force, despite_contest=despite_contest)
                await self._stop_following()
                try:
                    if not self._broker.compat_49:
                        await self._merge_offsets()
                    await broker.store.promote()
                except BaseException as error:  # also a cancel: this broker is still a slave, and follows again
                    self._start_following()
                    if isinstance(error, StoreDamaged | OSError):
                        raise RoleError(f"this log cannot be a master's: {error}") from error
                    raise
                await lower_offsets(broker)
                # Its slaves may have copied bytes that have just been dropped: let them compare again.
                broker.replication.close_links()
            await self._take_role(role, 0)

    async def become_slave(self, broker_id: int | None = None, *, force: bool = False) -> None:
        """Refuse messages and follow the set's master from now on.

        Args:
            broker_id: the id to register under, greater than 0. None: a slave keeps its id, and a master gets the
                smallest id that no broker of the set has, or had when it was last registered.
            force: take the id of a broker that is not registered now.

        Raises:
            RoleError: the id belongs to another member of the set, or none is given and no name server says which are
                taken: nothing has changed.
            RoleNotKept: the configuration file cannot be written; the role is taken until the broker stops.
        """
        async with self._changing:
            broker = self._broker
            broker_id = self._slave_id(broker_id, await self._members(), force=force)
            if not broker.is_slave:
                await note_slave(broker)
                await broker.store.demote()
                broker.replication.close_links()
                broker.config.store.broker_role = BrokerRole.SLAVE
                self._start_following()
            await self._take_role(BrokerRole.SLAVE, broker_id)

    async def cut(self) -> int:
        """Truncate the log to the part that the master has too, so that this slave can follow it again; only an operator
        orders it.

        Returns:
            The number of bytes removed from the log.

        Raises:
            RoleError: this broker is not a slave, its log is neither ahead of the master's nor diverged from it, or the
                disk fails.
        """
        async with self._changing:
            following = self._broker.following
            if following is None:
                raise RoleError("only a slave's log can be cut")
            found = following.log.status.compared
            if found.relation not in (LogRelation.AHEAD, LogRelation.DIVERGED):
                raise RoleError(f"there is nothing to cut: {_NOTHING_TO_CUT[found.relation]}")
            await self._stop_following()
            try:
                if self._broker.store.log_max_offset != found.own_end:
                    raise RoleError("the log has changed since it was compared")
                end = cut_offset(self._broker.store, found)
                dropped = await self._broker.store.cut(end)
            except OSError as error:
                cure = HALF_CUT if self._broker.store.half_cut else "give the order again when that is mended"
                raise RoleError(f"the disk refuses the cut: {error}; {cure}") from error
            finally:
                self._start_following()
            self._broker.replication.close_links()
            _log.warning(
                "the log was truncated to %d by an operator's order: %d bytes that the master does not have are "
                "dropped",
                end,
                dropped,
            )
            return dropped

    async def check_id(self) -> None:
        """Ask whether another live broker of the set has this broker's id; log it once in CONTESTED_LINE_S if so.

        Name servers list the one of the two that registered last, so each of them sees the other now and then.
        """
        await self._find_contest(await self._members())

    async def _look_at_set_periodically(self) -> None:
        """Search for a broker with the same id; a master also for another master, and for offsets that only slaves have.

        There is another master if this broker was believed dead, or was cut off, and its slave was promoted in the
        meantime. Name servers know only the master that registered last.
        """
        broker = self._broker
        logged = None
        while True:
            await trio.sleep(PERIOD_S)
            members = await self._members()
            await broker.set_members.look_up(members.values())
            await broker.set_members.save()
            await self._find_contest(members)
            if broker.is_slave:
                logged = None
                continue
            known = members.get(0, broker.address)
            if known not in (broker.address, logged):
                logged = known
                log_two_masters(members, broker.address, broker.config.broker_name)
            await self._merge_offsets(again=True, members=members)

    # -- the parts of a change

    async def _merge_offsets(self, *, again: bool = False, members: Mapping[int, str] | None = None) -> None:
        broker = self._broker
        await merge_offsets_of_slaves(
            broker.config, broker.offsets, broker.store, broker.replication.is_known, broker.address, self._open_link,
            end_of=partial(end_in, broker.store, broker.topics), again=again, members=members,
        )  # fmt: skip

    async def _members(self) -> Mapping[int, str]:
        """The set's brokers that are registered now, by id; they are remembered."""
        members = await members_of_set(self._broker.config, self._open_link)
        self._broker.set_members.note(members)
        return members

    async def _find_contest(self, members: Mapping[int, str]) -> str | None:
        """The address of another live broker with this broker's id, which is remembered as long as it has it."""
        broker, config = self._broker, self._broker.config
        known = broker.set_members
        found = None
        for suspect in dict.fromkeys((members.get(config.broker_id), known.contested_by)):
            if suspect in (None, broker.address):
                continue
            if await has_identity(suspect, config.broker_name, config.broker_id, self._open_link):
                found = suspect
        if found is None and known.contested_by is not None:
            _log.warning(
                "id %d of %s is no longer contested",
                config.broker_id,
                config.broker_name,
                extra={"broker": config.broker_name},
            )
            self._next_contested_line = -math.inf
        known.contested_by = found
        # Two masters are logged elsewhere: then more is wrong than the id.
        if found is not None and broker.is_slave and trio.current_time() >= self._next_contested_line:
            self._next_contested_line = trio.current_time() + CONTESTED_LINE_S
            _log.error(
                "id %d of %s is contested: %s has it too, and name servers list only the one of the two that registered "
                "last; stop one, or give it another id: `triomq admin role %s slave --id %d`",
                config.broker_id, config.broker_name, found, broker.address, known.free_id(members),
                extra={"broker": config.broker_name, "address": found},
            )  # fmt: skip
        return found

    def _slave_id(self, asked: int | None, members: Mapping[int, str], *, force: bool) -> int:
        """The id of a slave that this broker becomes or is. Raises RoleError if it may be another's."""
        config, known = self._broker.config, self._broker.set_members
        if asked is None:
            if not config.broker_id and config.name_servers and not members:
                raise RoleError("no name server says which ids are taken, so the id has to be given")
            return config.broker_id or known.free_id(members)
        if asked <= 0:
            raise RoleError("a slave's id is greater than 0; id 0 belongs to the master of the set")
        if asked > INT64_MOST:
            raise RoleError(f"a slave's id is at most {INT64_MOST}: name servers take no larger one")
        holder = known.holder(asked, members)
        if holder is not None and holder in members.values():
            raise RoleError(f"id {asked} belongs to {holder}")
        if holder is not None and asked != config.broker_id and not force:
            raise RoleError(
                f"id {asked} was that of {holder}, which is not registered now: when it returns, one of the two hides the "
                f"other; take another id, such as {known.free_id(members)}, or give --force if it is gone for good"
            )
        return asked

    async def _check_promotion(self, *, force: bool, despite_contest: bool) -> None:
        members = await self._members()
        await self._check_not_contested(members, despite_contest=despite_contest)
        if force:
            return
        broker = self._broker
        known = members.get(0)
        if known is not None and known != broker.address:
            raise RoleError(
                f"{known} is registered as the master of {broker.config.broker_name}; make it a slave or stop it "
                f"first, "
                "or give --force if it is gone for good"
            )
        # That no name server lists a master may be the name servers' fault.
        followed = None if self._slave_tasks is None else self._slave_tasks.main_address
        name = broker.config.broker_name
        if known is None and followed is not None and await has_identity(followed, name, MASTER_ID, self._open_link):
            raise RoleError(
                f"{followed} answers as the master of {name}, although no name server lists it; make it a slave or stop it "
                "first, or give --force"
            )

    async def _check_not_contested(self, members: Mapping[int, str], *, despite_contest: bool) -> None:
        """Raise RoleError if another live broker has this id: an operator who names the id may mean the other one, and
        the other one may have messages that this one lacks."""
        if despite_contest:
            return
        other = await self._find_contest(members)
        if other is not None:
            config = self._broker.config
            raise RoleError(
                f"id {config.broker_id} of {config.broker_name} is contested: {other} has it too, and may have messages "
                f"that {self._broker.address} lacks; stop one of them or give it another id (`triomq admin role ADDRESS "
                "slave --id N`), or give --despite-contest if this is the right one"
            )

    async def _take_role(self, role: BrokerRole, broker_id: int, *, keep: bool = True) -> None:
        """Apply the role to settings, tables and name servers; with `keep` write it to the configuration file too."""
        broker, config = self._broker, self._broker.config
        config.store.broker_role = role
        if config.broker_id != broker_id:
            config.broker_id = broker_id
            broker.set_members.contested_by = None
            self._next_contested_line = -math.inf
        registration = broker.registration
        registration.identity = msgspec.structs.replace(registration.identity, broker_id=broker_id)
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
        if keep:
            try:
                await self._keep_role()
            except OSError as error:
                unwritten = error
        await registration.register_now()
        if unwritten is not None:
            raise RoleNotKept(
                f"this broker is {role} with id {broker_id} until it stops, but its configuration file cannot be "
                f"written, so the next start takes the role that the file names: {unwritten}"
            )

    async def _keep_role(self) -> None:
        """Write the role into the files that the next start reads. Raises OSError."""
        broker = self._broker

        def text(keys: Iterable[str] | None) -> bytes:
            values = broker.config.to_file()
            return dump_properties(values if keys is None else {key: values[key] for key in keys}).encode()

        for file, keys in ((broker.config_file, None), (broker.role_file, ROLE_KEYS)):
            if file is not None:
                await file.save_change(
                    partial(text, keys),
                    "the next start takes the role that it names; change the role again once it can be written",
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
        self._broker.registration.register_soon()  # the answer names the master

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
