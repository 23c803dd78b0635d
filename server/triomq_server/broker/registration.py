"""Registers this broker at every name server with its address, role and topics, and reads the set's members from them.

One task and one lasting link per name server; an unreachable name server is tried again with growing pauses, without
delaying the others. It answers to `BrokerOuterAPI` and the registration timer of `BrokerController`; rules:
docs/protocol/namesrv.md §3.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from typing import NoReturn

import msgspec
import trio

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.errors import ProtocolError
from triomq_protocol.flags import READ_WRITE_PERM
from triomq_protocol.requests.registration import (
    QueryDataVersionRequest,
    QueryDataVersionResponse,
    RegisterBrokerBody,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    TopicConfigTable,
    UnRegisterBrokerRequest,
    registration_crc,
)
from triomq_protocol.requests.route import ClusterInfo, KVTable
from triomq_protocol.wire.command import Command
from triomq_server.config import MOST_SETTINGS_BYTES, BrokerConfig, PropertiesError, load_properties, register_period_ms
from triomq_server.pauses import Pauses
from triomq_server.restarting import restarted
from triomq_server.wire import Asking, LinkError, OpenLink, failure_reason, in_turns

_log = logging.getLogger(__name__)

FIRST_PERIOD_S = 10.0
"""`registerNameServerPeriod` counts only between these; the second registration comes after FIRST_PERIOD_S."""
RETRY_LEAST_S = 0.5
RETRY_MOST_S = 10.0
LINK_CHECK_S = 1.0
"""How soon a lost link is noticed between registrations."""
CLUSTER_INFO_TIMEOUT_S = 1.0
"""How long the name servers may take to name the members of a broker set."""
SHORT_BYTES = 16_384
"""Of a list of brokers, which any of them can make longer: a shorter one is read at once, in a few milliseconds."""
KNOWN_WITHIN_S = 0.5
"""How long a send that has made its topic waits at most for the name servers to know it."""
OTHER_MASTER_TIMEOUT_S = 3.0
"""How long a broker that is registered as the set's master may take to prove that it is alive."""
MASTER_UNKNOWN_PERIOD_S = 1.0
"""How often a slave registers while no name server knows its master."""

AWAY_REMEDY = "; it is tried again and again: start it, or take it out of namesrvAddr"
"""What to do about a name server that cannot be reached."""

TLS_REMEDY = "; it is tried again and again: see useTLS and tls.client settings here, tls.server settings there"
"""The same if it can, and only one of the two speaks TLS, or one refuses the other's certificate."""

_FAILURES = (OSError, LinkError, trio.TooSlowError, ProtocolError)
_DECODING = trio.CapacityLimiter(1)


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who registers: the names and addresses in every registration."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str


class RegistrationAnswer(msgspec.Struct, frozen=True):
    """A name server's answer to a registration.

    Attributes:
        master_address: for slaves, the address of the master's ordinary port; None for masters and while there is none.
        ha_address: for slaves, the address of the master's HA port.
        order_topics: the ordered topics; None if the name server keeps no such list.
    """

    master_address: str | None
    ha_address: str | None
    order_topics: Mapping[str, str] | None


class Registration:
    """Registers a broker at its name servers until it unregisters.

    Args:
        config: periods, timeouts and permission.
        identity: names and addresses.
        topics: the topic table at this moment.
        open_link: opens a link to `host:port`.
        chance: spreads attempts, so that not all brokers register at once.
    """

    def __init__(
        self,
        config: BrokerConfig,
        identity: Identity,
        topics: Callable[[], TopicConfigTable],
        open_link: OpenLink,
        *,
        chance: random.Random,
    ) -> None:
        self.config = config
        self.identity = identity
        self.topics = topics
        self.open_link = open_link
        self.chance = chance
        self._servers: dict[str, _NameServer] = {}
        self._reconfigured = trio.Event()
        self.changes = 0
        """How many changes there were that name servers should know: the number of the last one."""
        self._unknown: list[Callable[[], None]] = []
        self._unknown_change = 0
        self._unknown_added = trio.Event()
        self.on_answer: Callable[[RegistrationAnswer], None] = _ignore
        """Called with each answer: slaves learn of their master, masters of ordered topics."""
        self.on_period: Callable[[], None] = _nothing
        """Called before each registration that is made only because it is due."""

    def register_soon(self) -> None:
        """Register soon, since something that name servers should know has changed; returns at once."""
        self.changes += 1
        for server in self._servers.values():
            server.wanted.set()

    async def register_now(self) -> None:
        """Register, and wait until every name server that can be reached has answered, registerBrokerTimeoutMills at
        most."""
        self.register_soon()
        with trio.move_on_after(self.config.register_broker_timeout_mills / 1000):
            await self._wait_until_known(self.changes)

    async def _wait_until_known(self, change: int) -> None:
        async with trio.open_nursery() as nursery:
            for server in self._servers.values():
                nursery.start_soon(server.wait_until_known, change)

    def when_known(self, done: Callable[[], None], change: int) -> bool:
        """Call `done` when every name server that can be reached knows a change, KNOWN_WITHIN_S at most after the calls
        before it.

        Args:
            done: must not raise.
            change: the number of the change, from `changes`.

        Returns:
            Whether it will be called: not if all that can be reached know the change, or none can be reached.
        """
        if not any(server.lacks(change) for server in self._servers.values()):
            return False
        self._unknown.append(done)
        self._unknown_change = max(self._unknown_change, change)
        self._unknown_added.set()
        return True

    async def _call_when_known(self) -> NoReturn:
        """Task: one round for all who have asked in the meantime."""
        try:
            while True:
                await self._unknown_added.wait()
                self._unknown_added = trio.Event()
                asked = len(self._unknown)
                with trio.move_on_after(KNOWN_WITHIN_S):
                    await self._wait_until_known(self._unknown_change)
                self._finish(asked)
        finally:
            self._finish(len(self._unknown))

    def _finish(self, count: int) -> None:
        finished, self._unknown = self._unknown[:count], self._unknown[count:]
        for done in finished:
            done()

    def read_config(self) -> None:
        """Read the list of name servers and the permission again."""
        self._reconfigured.set()
        self.register_soon()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Register until cancelled; "started" when each name server has been tried once or registerBrokerTimeoutMills
        are over."""
        async with trio.open_nursery() as nursery:
            self._follow_list(nursery)
            nursery.start_soon(self._call_when_known)
            with trio.move_on_after(self.config.register_broker_timeout_mills / 1000):
                for server in list(self._servers.values()):
                    await server.tried.wait()
            task_status.started()
            while True:
                self._reconfigured = trio.Event()
                await self._reconfigured.wait()
                self._follow_list(nursery)

    def with_known_master(self, answer: RegistrationAnswer) -> RegistrationAnswer:
        """One name server's answer, with the master that another name server knows if this one knows none.

        RocketMQ takes the first answer: a name server that the master cannot reach would stop its slaves' metadata.
        """
        if answer.master_address is not None:
            return answer
        for server in self._servers.values():
            other = server.last_answer
            if other is not None and other.master_address is not None:
                return msgspec.structs.replace(answer, master_address=other.master_address, ha_address=other.ha_address)
        return answer

    async def unregister(self) -> None:
        """Unregister at every name server with a live link (code 104); waits a second at most."""
        identity = self.identity
        header = UnRegisterBrokerRequest(
            broker_name=identity.broker_name,
            broker_addr=identity.address,
            cluster_name=identity.cluster_name,
            broker_id=identity.broker_id,
        )
        with trio.move_on_after(1.0):
            async with trio.open_nursery() as nursery:
                for server in self._servers.values():
                    nursery.start_soon(server.send_if_connected, Command.request(RequestCode.UNREGISTER_BROKER, header))

    async def request(self, topics: TopicConfigTable) -> Command:
        """A registration of the whole table (code 103), made in turns."""
        body = RegisterBrokerBody(topic_config_serialize_wrapper=masked(topics, self.config.broker_permission))
        compressed = self.config.compressed_register
        data = await in_turns(body.encode_compressed_in_slices() if compressed else body.encode_in_slices())
        identity = self.identity
        header = RegisterBrokerRequest(
            broker_name=identity.broker_name,
            broker_addr=identity.address,
            cluster_name=identity.cluster_name,
            ha_server_addr=identity.ha_address,
            broker_id=identity.broker_id,
            compressed=compressed,
            body_crc32=registration_crc(data),
        )
        return Command.request(RequestCode.REGISTER_BROKER, header, body=data)

    def version_request(self, topics: TopicConfigTable) -> Command:
        """A question whether the name server's table is this one (code 322)."""
        identity = self.identity
        header = QueryDataVersionRequest(
            broker_name=identity.broker_name,
            broker_addr=identity.address,
            cluster_name=identity.cluster_name,
            broker_id=identity.broker_id,
        )
        return Command.request(RequestCode.QUERY_DATA_VERSION, header, body=topics.data_version.encode())

    def _follow_list(self, nursery: trio.Nursery) -> None:
        """Start with new name servers and stop with those no longer listed."""
        listed = self.config.name_servers
        for address in [address for address in self._servers if address not in listed]:
            self._servers.pop(address).scope.cancel()
        for address in listed:
            if address not in self._servers:
                server = self._servers[address] = _NameServer(self, address)
                nursery.start_soon(server.run_until_unlisted)


class _NameServer:
    """The task and the link for one name server."""

    def __init__(self, owner: Registration, address: str) -> None:
        self._owner = owner
        self._address = address
        self._link: Asking | None = None
        self._complaint: str | None = None
        self._pauses = Pauses(RETRY_LEAST_S, RETRY_MOST_S)
        self.scope = trio.CancelScope()
        self.wanted = trio.Event()
        self.tried = trio.Event()
        self.registered = False
        self.last_answer: RegistrationAnswer | None = None
        """The last answer over the present link."""
        self._begun = self._known = 0  # the last change in the table of the round that has begun, and that has ended
        self._round_ended = trio.Event()

    async def run_until_unlisted(self) -> None:
        """Register until `scope` is cancelled."""
        with self.scope:
            await restarted(self._run)

    async def _run(self) -> None:
        """Hold a link and register over it, again and again; a lost link is opened again."""
        owner = self._owner
        while True:
            try:
                async with owner.open_link(self._address) as self._link:
                    await self._keep_registered(self._link)
                self._note_failure("the link was closed")
            except _FAILURES as error:
                text = failure_reason(error)
                self._note_failure(text, remedy=TLS_REMEDY if "TLS" in text else AWAY_REMEDY)
            finally:
                self._link = self.last_answer = None
                self.registered = False
                self._end_round()
            await trio.sleep(self._pauses.next_s() * owner.chance.uniform(0.5, 1.0))

    def lacks(self, change: int) -> bool:
        """Whether it can be reached, and does not know a change."""
        return self.registered and self._known < change

    async def wait_until_known(self, change: int) -> None:
        """Wait for the end of a round that has a change, or for the loss of the link."""
        while self.lacks(change):
            await self._round_ended.wait()

    def _end_round(self) -> None:
        self._known = self._begun
        self.tried.set()
        ended, self._round_ended = self._round_ended, trio.Event()
        ended.set()

    async def send_if_connected(self, command: Command) -> None:
        """Send one request over the live link, if there is one; a failure is only logged."""
        if self._link is None or self._link.closed:
            return
        try:
            await self._link.request(command, 1.0)
        except _FAILURES as error:
            _log.debug("name server %s: %s", self._address, failure_reason(error))

    async def _keep_registered(self, link: Asking) -> None:
        config = self._owner.config
        period_s = FIRST_PERIOD_S
        forced = True
        while not link.closed:
            self.wanted = trio.Event()
            self._begun = self._owner.changes
            answer = await self._register(link, forced=forced or config.force_register)
            self._end_round()
            unknown = answer is not None and config.store.is_slave and answer.master_address is None
            if unknown:
                wait_s = MASTER_UNKNOWN_PERIOD_S
            else:
                wait_s, period_s = period_s, register_period_ms(config.register_name_server_period) / 1000
            await self._wait(link, wait_s)
            if not self.wanted.is_set():
                self._owner.on_period()
            forced = self.wanted.is_set() or unknown  # only a registration is answered with the master's address

    async def _wait(self, link: Asking, wait_s: float) -> None:
        """Wait until the next registration is due, something has changed, or the link has ended."""
        end = trio.current_time() + wait_s
        while not link.closed and trio.current_time() < end:
            with trio.move_on_at(min(end, trio.current_time() + LINK_CHECK_S)):
                await self.wanted.wait()
                return

    async def _register(self, link: Asking, *, forced: bool) -> RegistrationAnswer | None:
        """One round; None if the name server has the table already or did not take it."""
        owner = self._owner
        timeout_s = owner.config.register_broker_timeout_mills / 1000
        topics = owner.topics()
        if not forced:
            answer = await link.request(owner.version_request(topics), timeout_s)
            if answer.code == ResponseCode.SUCCESS and not answer.header(QueryDataVersionResponse).changed:
                return None
        answer = await link.request(await owner.request(topics), timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            self.registered = False
            text = f"registration answered with code {answer.code}: {answer.remark}"
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                text += "; this looks like a broker's port: check namesrvAddr (-n)"
            self._note_failure(text, remedy="")
            return None
        if not self.registered:
            _log.info(
                "registered %s at name server %s",
                owner.identity.address,
                self._address,
                extra={"address": self._address},
            )
        self.registered = True
        self._complaint = None
        self._pauses.reset()
        header = answer.header(RegisterBrokerResponse)
        order = KVTable.decode(answer.body).table if answer.body else None
        self.last_answer = RegistrationAnswer(header.master_addr, header.ha_server_addr, order)
        completed = owner.with_known_master(self.last_answer)
        owner.on_answer(completed)
        return completed

    def _note_failure(self, text: str, *, remedy: str = AWAY_REMEDY) -> None:
        """Log a failure once, not at every attempt: an offline server may fail in several ways."""
        complaint = remedy or text
        if complaint != self._complaint:
            _log.warning("name server %s: %s%s", self._address, text, remedy, extra={"address": self._address})
        self._complaint = complaint


def masked(topics: TopicConfigTable, permission: int) -> TopicConfigTable:
    """The table as it is registered: a broker without read or write permission lends that permission to all its
    topics."""
    if permission & READ_WRITE_PERM == READ_WRITE_PERM:
        return topics
    return TopicConfigTable(
        data_version=topics.data_version,
        topic_config_table={
            name: msgspec.structs.replace(topic, perm=permission) for name, topic in topics.topic_config_table.items()
        },
    )


async def members_of_set(config: BrokerConfig, open_link: OpenLink) -> dict[int, str]:
    """The broker set's live members at the name servers, by broker id; empty if no name server answers in time."""
    members: dict[int, str] = {}

    async def ask(name_server: str) -> None:
        try:
            async with open_link(name_server) as link:
                answer = await link.request(
                    Command.request(RequestCode.GET_BROKER_CLUSTER_INFO), CLUSTER_INFO_TIMEOUT_S
                )
            brokers = (await _decoded(answer.body)).broker_addr_table or {}
        except (*_FAILURES, RuntimeError) as error:  # RuntimeError: no thread can be started
            # This is asked every few seconds, and the registration has already logged it.
            _log.debug("name server %s: %s", name_server, failure_reason(error))
            return
        found = brokers.get(config.broker_name)
        if found is not None and found.broker_addrs:
            members.update(found.broker_addrs)

    with trio.move_on_after(CLUSTER_INFO_TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            for name_server in config.name_servers:
                nursery.start_soon(ask, name_server)
    return members


async def _decoded(body: bytes) -> ClusterInfo:
    """All brokers of a name server; a long list is read in a worker thread, since its numbers as keys are not standard
    JSON: a megabyte takes a tenth of a second, or one if a broker's id is large. BodyError."""
    if len(body) <= SHORT_BYTES:
        return ClusterInfo.decode(body)
    return await trio.to_thread.run_sync(ClusterInfo.decode, body, limiter=_DECODING)


async def other_master(members: Mapping[int, str], own_address: str, open_link: OpenLink) -> str | None:
    """The address of another live master among a set's members; None if there is none, or it does not answer.

    A registration outlives its broker by up to two minutes, and may be this broker's own under a former address: only
    an answer counts.
    """
    known = members.get(0, own_address)
    if known == own_address:
        return None
    with trio.move_on_after(OTHER_MASTER_TIMEOUT_S):
        try:
            async with open_link(known) as link:
                await link.request(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), OTHER_MASTER_TIMEOUT_S)
        except _FAILURES as error:
            reason = failure_reason(error)
            _log.info(
                "%s is registered as the master of this set, but does not answer: %s",
                known,
                reason,
                extra={"address": known},
            )
        else:
            return known
    return None


async def has_identity(address: str, broker_name: str, broker_id: int, open_link: OpenLink) -> bool:
    """Whether a broker answers at this address and has this name and id, by its own configuration (code 26)."""
    with trio.move_on_after(OTHER_MASTER_TIMEOUT_S):
        try:
            async with open_link(address) as link:
                answer = await link.request(Command.request(RequestCode.GET_BROKER_CONFIG), OTHER_MASTER_TIMEOUT_S)
            # Anyone may register with this name and id; no broker has so many settings.
            values = {} if len(answer.body) > MOST_SETTINGS_BYTES else load_properties(answer.body)
        except (*_FAILURES, PropertiesError) as error:
            text = "%s is listed with id %d of %s, but does not answer: %s"
            _log.debug(text, address, broker_id, broker_name, failure_reason(error))
            return False
        return (values.get("brokerName"), values.get("brokerId")) == (broker_name, str(broker_id))
    return False


def _nothing() -> None:
    """Do nothing: the default of `Registration.on_period`."""


def _ignore(answer: RegistrationAnswer) -> None:
    """Do nothing: the default of `Registration.on_answer`."""
