"""Examines a whole cluster: queries name servers, brokers and members for the data of the findings.

All queries run concurrently and within one deadline: a dead node costs only its own answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import attrs
import trio

from triomq._admin.broker_sets import addresses_of
from triomq._admin.groups import GroupAdmin
from triomq._admin.long_bodies import body_of
from triomq._admin.topics import CONTESTED_KEY
from triomq._arguments.kinds import check_callback, check_kind
from triomq._arguments.numbers import check_seconds
from triomq._cluster.identity import Clock
from triomq._cluster.name_servers import KNOWS_NO_BROKERS, NameServerGroup
from triomq._constructors import NoPublicConstructor
from triomq._examination.findings import Finding, FindingLimits, findings_of
from triomq._examination.snapshot import (
    BrokerView,
    ClusterSnapshot,
    GroupView,
    MemberView,
    NameServerView,
    StuckQueue,
    TopicView,
)
from triomq._producer import compiled
from triomq._tasks.exception_groups import open_plain_nursery
from triomq._transport.answers import checked
from triomq._transport.links import Links
from triomq.errors import (
    AccessRefused,
    MQError,
    NoNameServer,
    NotFound,
    PermissionDenied,
    ProtocolViolation,
    RequestTimeout,
    UnsupportedRequest,
)
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import (
    ClusterInfo,
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    GetConsumerConnectionListRequest,
    GetConsumerRunningInfoRequest,
    GetConsumeStatsInBrokerRequest,
    HeartbeatData,
    KVTable,
    ProducerData,
    ProducerTableInfo,
    SubscriptionGroupTable,
    TopicConfigTable,
    UnregisterClientRequest,
)
from triomq_protocol.requests.group_admin import ConsumerRunningInfo
from triomq_protocol.requests.heartbeat import CONSUME_PASSIVELY
from triomq_protocol.wire.body import Body
from triomq_protocol.wire.command import Command

T = TypeVar("T")
B = TypeVar("B", bound=Body)

ANSWER_S: Final = 5.0
"""How long a server or a member may take for an answer."""

LONG_ANSWER_S: Final = 15.0
"""The same for the progress of all groups."""

AGAIN_S: Final = 2.0
"""The pause before a slave that is behind is asked again."""

AT_ONCE: Final = 32
"""The most groups and members that are queried at the same time."""

GROUPS_MAX: Final = 2000
MEMBERS_MAX: Final = 500
"""The most groups whose members are listed, and the most members asked for their state; those with most lag first."""

IDLE_S: Final = 60
"""A queue whose messages are held for this time without any being finished is stuck, as in mqadmin."""

HA_STATUS: Final = 29_001
"""Request code for our brokers' state of replication; others answer that they do not know the code."""

CLOCK_GROUP: Final = "triomq_doctor"
"""The producer group of a heartbeat whose time of arrival shows the broker's clock."""


class _Following(Body, kw_only=True):
    connected: bool = False
    relation: str = ""


class _HaStatus(Body, kw_only=True):
    following: _Following | None = None


@attrs.frozen
class LookedAt:
    """The progress of an examination.

    Args:
        kind: what is looked at: name servers, brokers, masters' groups, groups, members.
        name: the latest; empty when the first is still awaited. Of a member, its group's.
        done: how many of the kind have been looked at.
        total: how many there are.
    """

    kind: str
    name: str
    done: int
    total: int


@attrs.define
class _Asked:
    """The data gathered so far; it is also used when time is up."""

    brokers: dict[str, BrokerView] = attrs.field(factory=dict)
    groups: dict[str, GroupView] = attrs.field(factory=dict)
    online_at: dict[str, str] = attrs.field(factory=dict)
    unknown: list[str] = attrs.field(factory=list)
    progress: Callable[[LookedAt], None] | None = None

    async def each(
        self, kind: str, call: Callable[[T], Awaitable[None]], items: Collection[T], name: Callable[[T], str] = str
    ) -> None:
        """Make a call for each item concurrently, and report the progress."""
        done = 0

        def report(latest: str) -> None:
            if self.progress is not None:
                self.progress(LookedAt(kind, latest, done, len(items)))

        async def one(item: T) -> None:
            nonlocal done
            await call(item)
            done += 1
            report(name(item))

        if items:
            report("")
        await _side_by_side(one, items)


class Doctor(metaclass=NoPublicConstructor):
    """Examines a whole cluster; ``client.doctor``."""

    def __init__(self, name_servers: NameServerGroup, links: Links, clock: Clock, client_id: str) -> None:
        self._name_servers = name_servers
        self._links = links
        self._clock = clock
        self._client_id = f"{client_id}#doctor"

    async def findings(
        self,
        *,
        timeout_s: float = 30.0,
        limits: FindingLimits | None = None,
        progress: Callable[[LookedAt], None] | None = None,
    ) -> list[Finding]:
        """The cluster's problems, and what to do about them; empty for a healthy cluster.

        Args:
            timeout_s: seconds the examination may take; anything unknown by then is a finding of its own.
            limits: the sizes from which something is a problem.
            progress: called when something has been examined.

        Raises:
            NoNameServer: none answers.
        """
        if limits is not None:
            check_kind("limits", limits, FindingLimits)
        return findings_of(await self.look(timeout_s=timeout_s, progress=progress), limits)

    async def look(
        self, *, timeout_s: float = 30.0, progress: Callable[[LookedAt], None] | None = None
    ) -> ClusterSnapshot:
        """The cluster's current state.

        Args:
            timeout_s: seconds the examination may take.
            progress: called when something has been examined.

        Nothing is changed. Brokers see one heartbeat of a producer group ``triomq_doctor``, which ends at once.

        Raises:
            NoNameServer: none answers.
        """
        check_seconds("timeout_s", timeout_s)
        check_callback("progress", progress, plain=True)
        servers: dict[str, NameServerView] = {}
        asked = _Asked(progress=progress)
        addresses = self._name_servers.addresses

        async def ask_server(address: str) -> None:
            servers[address] = await self._name_server(address)

        with trio.move_on_after(timeout_s) as scope:
            await asked.each("name servers", ask_server, addresses)
            if not all(server.error for server in servers.values()):
                await self._look_at_brokers(servers.values(), asked)
                await self._look_at_groups(asked)
        late = f"not within {timeout_s:g} s"
        views = [servers.get(address) or NameServerView(address, late) for address in sorted(addresses)]
        if all(view.error for view in views):
            reasons = "; ".join(f"{each.address}: {each.error}" for each in views)
            raise NoNameServer("no name server answers", remark=reasons or "no address is known")
        if scope.cancelled_caught:
            asked.unknown.append(f"The cluster could not be looked at wholly within {timeout_s:g} s.")
        return ClusterSnapshot(
            tuple(views),
            tuple(sorted(asked.brokers.values(), key=lambda each: (each.name, each.broker_id or 0, each.address))),
            tuple(asked.groups[name] for name in sorted(asked.groups)),
            tuple(asked.unknown),
            client_compiled=compiled.STATE,
        )

    # --- name servers --------------------------------------------------------------------------------------------

    async def _name_server(self, address: str) -> NameServerView:
        try:
            command = Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)
            info = await self._body(address, command, ClusterInfo)
        except UnsupportedRequest:
            return NameServerView(address, KNOWS_NO_BROKERS)
        except MQError as error:
            return NameServerView(address, _why(error))
        sets = addresses_of(info.broker_addr_table or {})
        clusters = {name: frozenset(members) for name, members in (info.cluster_addr_table or {}).items()}
        return NameServerView(address, "", sets, clusters)

    # --- brokers -------------------------------------------------------------------------------------------------

    async def _look_at_brokers(self, servers: Iterable[NameServerView], asked: _Asked) -> None:
        for server in servers:
            for name, ids in server.sets.items():
                for broker_id, address in ids.items():
                    late = "not in time"
                    asked.brokers.setdefault(address, BrokerView(name, broker_id, address, late))

        async def look(address: str) -> None:
            seen = asked.brokers[address]
            view = await self._broker(seen.name, seen.broker_id, address)
            asked.brokers[address] = view

        await asked.each("brokers", look, list(asked.brokers))
        # Two brokers with one id hide each other: name servers list one.
        hidden = [
            BrokerView(view.name, None, other, "not in time")
            for view in list(asked.brokers.values())
            if (other := view.runtime.get(CONTESTED_KEY)) and other not in asked.brokers
        ]
        for view in hidden:
            asked.brokers[view.address] = view
        await _side_by_side(look, [view.address for view in hidden])
        await self._look_again(asked)

    async def _broker(self, name: str, broker_id: int | None, address: str) -> BrokerView:
        view = BrokerView(name, broker_id, address)
        try:
            runtime = await self._body(address, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), KVTable)
        except MQError as error:
            return attrs.evolve(view, error=_why(error), refused=isinstance(error, (AccessRefused, PermissionDenied)))
        found: dict[str, Any] = {"runtime": runtime.table}

        async def ask(question: Callable[[str], Awaitable[Mapping[str, object]]]) -> None:
            with suppress(MQError):  # data that it does not show stays unknown
                found.update(await question(address))

        questions: list[Callable[[str], Awaitable[Mapping[str, object]]]] = [
            self._config, self._replication, self._clock_of,
        ]  # fmt: skip
        if view.is_master:
            questions += [self._topics, self._slow_reads]
        await _side_by_side(ask, questions)
        return attrs.evolve(view, **found)

    async def _config(self, address: str) -> Mapping[str, object]:
        answer = await self._ask(address, Command.request(RequestCode.GET_BROKER_CONFIG))
        lines = answer.body.decode("utf-8", "replace").splitlines()
        pairs = (line.partition("=") for line in lines if not line.startswith("#"))
        return {"config": {key.strip(): value.strip() for key, equals, value in pairs if equals}}

    async def _replication(self, address: str) -> Mapping[str, object]:
        try:
            following = (await self._body(address, Command.request(HA_STATUS), _HaStatus)).following
        except UnsupportedRequest:
            return {}
        return {} if following is None else {"relation": following.relation, "connected": following.connected}

    async def _clock_of(self, address: str) -> Mapping[str, object]:
        beat = HeartbeatData(client_id=self._client_id, producer_data_set=[ProducerData(group_name=CLOCK_GROUP)])
        before = self._clock()
        await self._ask(address, Command.request(RequestCode.HEART_BEAT, body=beat.encode()))
        after = self._clock()
        try:
            known = await self._body(address, Command.request(RequestCode.GET_ALL_PRODUCER_INFO), ProducerTableInfo)
        finally:
            leaving = UnregisterClientRequest(client_id=self._client_id, producer_group=CLOCK_GROUP)
            with suppress(MQError):
                await self._ask(address, Command.request(RequestCode.UNREGISTER_CLIENT, leaving))
        for producer in known.data.get(CLOCK_GROUP, []):
            if producer.client_id == self._client_id:
                middle = (before + after) // 2
                return {
                    "clock_ms": producer.last_update_timestamp - middle,
                    "clock_error_ms": (after - before + 1) // 2,
                }
        return {}

    async def _topics(self, address: str) -> Mapping[str, object]:
        command = Command.request(RequestCode.GET_ALL_TOPIC_CONFIG)
        table = (await self._body(address, command, TopicConfigTable)).topic_config_table
        return {
            "topics": {
                name: TopicView(each.read_queue_nums, each.write_queue_nums, each.perm) for name, each in table.items()
            }
        }

    async def _slow_reads(self, address: str) -> Mapping[str, object]:
        command = Command.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table = (await self._body(address, command, SubscriptionGroupTable)).subscription_group_table
        users = {name: group for name, group in table.items() if not GroupAdmin.is_system_group(name)}
        return {"slow_reads": {name: group.which_broker_when_consume_slowly for name, group in users.items()}}

    async def _look_again(self, asked: _Asked) -> None:
        """Ask slaves that are behind, and their masters, once more: slaves that follow have grown meanwhile."""
        ends = {view.name: view.log_end for view in asked.brokers.values() if view.is_master}
        behind = {
            view.name
            for view in asked.brokers.values()
            if not view.is_master and view.log_end is not None and view.log_end != ends.get(view.name, view.log_end)
        }
        again = [view.address for view in asked.brokers.values() if view.name in behind and not view.error]
        if not again:
            return
        await trio.sleep(AGAIN_S)

        async def look(address: str) -> None:
            view = asked.brokers[address]
            try:
                later = await self._body(address, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), KVTable)
            except MQError as error:
                asked.brokers[address] = attrs.evolve(view, error=_why(error))
            else:
                end = attrs.evolve(view, runtime=later.table).log_end
                asked.brokers[address] = attrs.evolve(view, log_end_later=end)

        await _side_by_side(look, again)

    # --- groups --------------------------------------------------------------------------------------------------

    async def _look_at_groups(self, asked: _Asked) -> None:
        masters = [view for view in asked.brokers.values() if view.is_master and not view.error]
        names = {name for view in masters for name in view.slow_reads}
        lags: dict[str, dict[str, int]] = {name: {} for name in names}
        beyond: dict[str, dict[str, tuple[int, int]]] = {}

        async def progress(view: BrokerView) -> None:
            try:
                found = await self._progress(view.address)
            except MQError as error:
                asked.unknown.append(f"Broker {view.label} does not report the progress of its groups: {_why(error)}.")
                return
            for group, parts in found:
                _add_lags(lags.setdefault(group, {}), parts)
            if not (ahead := {group for group, parts in found if beyond_end(parts)}):
                return
            with suppress(MQError):  # then nothing is reported about them
                # A busy broker may have read a queue's end before the offset.
                for group, parts in await self._progress(view.address):
                    if group in ahead:
                        beyond.setdefault(group, {}).update(beyond_end(parts))

        await asked.each("masters' groups", progress, masters, lambda view: view.label)
        asked.groups.update({name: GroupView(name, lags[name], beyond.get(name, {})) for name in lags})
        order = sorted(asked.groups.values(), key=lambda group: (-group.lag, group.name))
        if len(order) > GROUPS_MAX:
            asked.unknown.append(f"The members of {len(order) - GROUPS_MAX} groups with little lag were not asked for.")
        addresses = [view.address for view in masters]
        await asked.each("groups", partial(self._members, asked, addresses), [each.name for each in order[:GROUPS_MAX]])
        await self._look_at_members(asked, order)

    async def _progress(self, address: str) -> list[tuple[str, list[ConsumeStats]]]:
        """The progress of all groups on a broker, except the system's. Raises MQError."""
        header = GetConsumeStatsInBrokerRequest(is_order=False)
        command = Command.request(RequestCode.GET_BROKER_CONSUME_STATS, header)
        found = await self._body(address, command, ConsumeStatsList, LONG_ANSWER_S)
        entries = (entry for one in found.consume_stats_list for entry in one.items())
        return [(group, parts) for group, parts in entries if not GroupAdmin.is_system_group(group)]

    async def _members(self, asked: _Asked, addresses: Iterable[str], group: str) -> None:
        """Ask for a group's members, one master after the other until one has some: members are on all of them."""
        for address in addresses:
            header = GetConsumerConnectionListRequest(consumer_group=group)
            command = Command.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
            try:
                online = await self._body(address, command, ConsumerConnection)
            except NotFound:
                asked.groups[group] = attrs.evolve(asked.groups[group], members=())
                continue
            except MQError:
                continue
            members = tuple(
                MemberView(each.client_id or "", each.client_addr or "")
                for each in sorted(online.connection_set, key=lambda each: each.client_id or "")
            )
            asked.groups[group] = attrs.evolve(asked.groups[group], members=members)
            if online.consume_type == CONSUME_PASSIVELY:
                asked.online_at[group] = address
            return

    async def _look_at_members(self, asked: _Asked, order: Iterable[GroupView]) -> None:
        wanted = [
            (group.name, number)
            for group in order
            if group.name in asked.online_at
            for number in range(len(asked.groups[group.name].members or ()))
        ]
        if len(wanted) > MEMBERS_MAX:
            asked.unknown.append(f"{len(wanted) - MEMBERS_MAX} members of groups were not asked for their state.")

        async def look(place: tuple[str, int]) -> None:
            name, number = place
            members = asked.groups[name].members or ()
            view = await self._member(asked.online_at[name], name, members[number])
            now = list(asked.groups[name].members or ())
            now[number] = view
            asked.groups[name] = attrs.evolve(asked.groups[name], members=tuple(now))

        await asked.each("members", look, wanted[:MEMBERS_MAX], lambda place: place[0])

    async def _member(self, address: str, group: str, member: MemberView) -> MemberView:
        header = GetConsumerRunningInfoRequest(consumer_group=group, client_id=member.client_id, jstack_enable=False)
        command = Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        try:
            info = await self._body(address, command, ConsumerRunningInfo)
        except (UnsupportedRequest, NotFound, ProtocolViolation):
            return member
        except MQError as error:
            if "not online" in (error.remark or ""):
                return member  # it has left since
            return attrs.evolve(member, error=_why(error))
        wanted = {each.topic or "": each.sub_string or "*" for each in info.subscription_set}
        return attrs.evolve(member, subscriptions=wanted, stuck=stuck_queues(info, self._clock()))

    # --- asking --------------------------------------------------------------------------------------------------

    async def _body(self, address: str, command: Command, kind: type[B], timeout_s: float = ANSWER_S) -> B:
        return await body_of(kind, await self._ask(address, command, timeout_s), address, "the answer")

    async def _ask(self, address: str, command: Command, timeout_s: float = ANSWER_S) -> Command:
        with trio.move_on_after(timeout_s):
            link = await self._links.get(address, patient=False)
            answer = await link.request(command, timeout_s)
            return checked(answer, f"request {command.code}", address)
        raise RequestTimeout(f"request {command.code}", address=address, remark=f"not within {timeout_s:g} s")


def _add_lags(known: dict[str, int], parts: Iterable[ConsumeStats]) -> None:
    for stats in parts:
        for queue, offsets in stats.offset_table.items():
            known[queue.topic] = known.get(queue.topic, 0) + max(0, offsets.broker_offset - offsets.consumer_offset)


def beyond_end(parts: Iterable[ConsumeStats]) -> dict[str, tuple[int, int]]:
    """The queues that end before the offset committed by a group: that offset and the queue's end."""
    return {
        f"queue {queue.queue_id} of {queue.topic} on {queue.broker_name}": (
            offsets.consumer_offset,
            offsets.broker_offset,
        )
        for stats in parts
        for queue, offsets in stats.offset_table.items()
        if offsets.consumer_offset > offsets.broker_offset
    }


def stuck_queues(info: ConsumerRunningInfo, now_ms: int) -> tuple[StuckQueue, ...]:
    """The queues of which a member holds messages, but has finished none for a minute.

    Args:
        info: what the member reports; its times are by its own clock.
        now_ms: ms since 1970.
    """
    found = []
    for queue, state in sorted(info.mq_table.items()):
        idle_s = (now_ms - state.last_consume_timestamp) // 1000
        if state.cached_msg_count > 0 and state.last_consume_timestamp > 0 and idle_s >= IDLE_S and not state.droped:
            found.append(StuckQueue(queue.topic, queue.broker_name, queue.queue_id, state.cached_msg_count, idle_s))
    return tuple(found)


def _why(error: MQError) -> str:
    return (error.remark or error.what).rstrip(".")


async def _side_by_side(call: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    limit = trio.CapacityLimiter(AT_ONCE)

    async def one(item: T) -> None:
        async with limit:
            await call(item)

    async with open_plain_nursery() as nursery:
        for item in items:
            nursery.start_soon(one, item)
