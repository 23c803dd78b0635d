"""Consumer groups: their settings, members and progress (docs/protocol/admin.md §4 and §5).

Offset resets and rates are those of other modules, with what is asked here.

Upstream: the part of ``DefaultMQAdminExtImpl`` about groups.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

import trio

from triomq._admin.broker_sets import SetAnswers, Silent, ask_sets, outage_text
from triomq._admin.group_results import GroupNames, GroupProgress, ResetQueue, SettingsBySet, TopicTraffic
from triomq._admin.group_settings import GroupSettings, config_of, settings_of
from triomq._admin.long_bodies import body_of
from triomq._admin.masters import ask_broker
from triomq._admin.offset_resets import END, OffsetResets
from triomq._admin.topics import ADMIN_TIMEOUT_S, Admin
from triomq._admin.traffic import TrafficCounters
from triomq._arguments.kinds import check_kind, check_mapping, check_text, check_texts
from triomq._arguments.numbers import check_count
from triomq._cluster.route_wait import RouteWait
from triomq._cluster.routes import Routes
from triomq._constructors import NoPublicConstructor
from triomq._error_text import one_line
from triomq._half_done import with_places
from triomq._message.message import MessageQueue, check_group, check_queue
from triomq._message.subscription import retry_topic
from triomq._tasks.exception_groups import open_plain_nursery
from triomq._transport.answers import checked
from triomq._transport.links import Links
from triomq.errors import (
    REMARK_CHARS_MAX,
    AccessRefused,
    BrokerFault,
    BrokerNotFound,
    InvalidCall,
    MQError,
    NotFound,
    code_name,
)
from triomq_protocol.codes import RequestCode
from triomq_protocol.names import MASTER_ID, SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS
from triomq_protocol.requests import (
    ConsumerConnection,
    ConsumeStats,
    DeleteSubscriptionGroupRequest,
    GetConsumerConnectionListRequest,
    GetConsumerRunningInfoRequest,
    GetConsumeStatsRequest,
    OffsetWrapper,
    SubscriptionGroupTable,
)
from triomq_protocol.requests.group_admin import ConsumerRunningInfo
from triomq_protocol.wire.body import Body
from triomq_protocol.wire.command import Command

B = TypeVar("B", bound=Body)

log = logging.getLogger("triomq.admin")

MEMBERS_AT_ONCE: Final = 16
"""The most members that are asked for their state at the same time."""

STATS_TIMEOUT_S: Final = 15.0
"""How long a broker may take for a group's progress."""


class GroupAdmin(metaclass=NoPublicConstructor):
    """Administrative calls about consumer groups; ``client.groups``."""

    END: Final = END
    """The ends of the queues, in place of a time."""

    def __init__(self, admin: Admin, routes: Routes, links: Links, route_wait: RouteWait) -> None:
        self._admin = admin
        self._routes = routes
        self._wrap = routes.namespace.wrap
        self._links = links
        self._route_wait = route_wait
        self._resets = OffsetResets(routes, links, route_wait, is_known=self._is_known, members=self.members)
        self._traffic = TrafficCounters(routes, links, progress=self.progress)

    @staticmethod
    def is_system_group(group: str) -> bool:
        """Whether a group belongs to the system and not to users."""
        check_text("the group", group)
        return group in SYSTEM_GROUPS or group.startswith((SYSTEM_GROUP_PREFIX, "CID_ONSAPI_", "CID_ONS-HTTP-PROXY"))

    async def names(self, *, silent: Silent | None = None) -> GroupNames:
        """The groups of which any broker has settings, sorted, and the sets whose groups are not known.

        Args:
            silent: the address of a broker -> why it does not answer. Such a broker is not asked, and those that do not
                answer now are added: calls with the same dict wait only once for each.

        Raises:
            BrokerNotFound: no broker answers.
            AccessRefused: all that answer refuse the account.
        """
        request = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        found = await self._ask_sets(lambda: Command.request(request), ADMIN_TIMEOUT_S, silent)
        if not found.answers:
            raise BrokerNotFound(f"the list of groups: no broker answers: {outage_text(found.without_master)}")
        found.set_refusals_aside("the list of groups")
        names: set[str] = set()
        for each in found.answers:
            answer = checked(each.answer, "the list of groups", each.address)
            names.update((await body_of(SubscriptionGroupTable, answer, each.address)).subscription_group_table)
        unknown = {name: found.without_master[name] for name in found.silent}
        return GroupNames(sorted(names), found.refused, unknown)

    # --- settings ----------------------------------------------------------------------------------------------------

    async def settings(self, group: str) -> SettingsBySet:
        """The settings of a group at brokers: broker name -> settings; sets that do not know the group are missing.

        Sets of which no broker answers are missing too; see ``SettingsBySet.unknown``. A slave is asked while its master
        does not answer; see ``SettingsBySet.of_slaves``.

        Raises:
            BrokerNotFound: no broker answers.
        """
        check_group(group)
        request = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        what = f"the settings of group {group}"
        found = await self._ask_sets(lambda: Command.request(request), ADMIN_TIMEOUT_S)
        if not found.answers:
            raise BrokerNotFound(f"{what}: no broker answers: {outage_text(found.without_master)}")
        unknown = {name: found.without_master[name] for name in found.silent}
        of_slaves = {name: why for name, why in found.without_master.items() if name not in unknown}
        settings = SettingsBySet({}, unknown, of_slaves)
        for each in found.answers:
            answer = checked(each.answer, what, each.address)
            table = (await body_of(SubscriptionGroupTable, answer, each.address)).subscription_group_table
            config = table.get(self._wrap(group))
            if config is not None:
                settings[each.broker_name] = settings_of(config)
        return settings

    async def create(
        self, group: str, settings: GroupSettings | None = None, *, brokers: Collection[str] | None = None
    ) -> list[str]:
        """Create a group, or replace its settings, on masters.

        Args:
            group: its name.
            settings: by default those that a broker gives to a group that it creates itself.
            brokers: names of the broker sets; by default all.

        Returns:
            The broker sets that have it now.

        Raises:
            InvalidCall: the group belongs to the system, or there is no such broker set.
            BrokerNotFound: a broker set has no master now; the others have it.
            MQError: a broker refused or could not be reached; the others have it, which a note of the error names.
        """
        self._check_own(group)
        if settings is not None:
            check_kind("settings", settings, GroupSettings)
        masters, lacking = await self._masters(brokers)
        body = config_of(self._wrap(group), settings or GroupSettings()).encode()
        done: list[str] = []
        failures: dict[str, MQError] = {}
        for name, address in masters.items():
            request = Command.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
            try:
                await ask_broker(self._links, address, request, f"create group {group}")
                done.append(name)
            except MQError as error:
                failures[name] = error
        if failures:
            raise with_places(next(iter(failures.values())), done, [*failures, *lacking])
        if lacking:
            raise BrokerNotFound(
                f"group {group} is on {', '.join(done) or 'no broker'} now, and not on {', '.join(lacking)}: no master of it "
                "is registered; start it, then create the group again"
            )
        return done

    async def delete(self, group: str, *, force: bool = False) -> list[str]:
        """Delete a group with its offsets and its retry topic from all masters; its dead letters stay.

        Args:
            group: the group's name.
            force: delete it although members are online, for which brokers would soon create it again.

        Returns:
            The broker sets that had it, or may have had it.

        Raises:
            InvalidCall: members are online, or the group belongs to the system.
            BrokerNotFound: a broker set has no master now; nothing was deleted.
            MQError: a broker refused or could not be reached; a note of the error names those that have done it.
        """
        self._check_own(group)
        masters, lacking = await self._masters(None)
        if lacking:
            raise BrokerNotFound(
                f"no master of {', '.join(lacking)} is registered, which may have group {group}; nothing was deleted, start it first"
            )
        if not force:
            await self.check_offline(group)
        header = DeleteSubscriptionGroupRequest(group_name=self._wrap(group), remove_offset=True)
        names = list(masters)
        for number, name in enumerate(names):
            request = Command.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
            try:
                await ask_broker(self._links, masters[name], request, f"delete group {group}")
            except MQError as error:
                raise with_places(error, names[:number], names[number:]) from None
        await self._admin.delete_topic(retry_topic(group))
        return list(masters)

    def _check_own(self, group: str) -> None:
        check_group(group)
        if self.is_system_group(group):
            raise InvalidCall(f"{group} is a system group")

    async def _masters(self, brokers: Collection[str] | None) -> tuple[dict[str, str], list[str]]:
        """The masters' addresses by broker name, and the names of the sets that have none."""
        if brokers is not None:
            check_texts("brokers", brokers)
        sets = await self._admin.broker_sets()
        unknown = set(brokers or ()) - sets.keys()
        if unknown:
            raise InvalidCall(f"there is no broker {', '.join(sorted(unknown))}; known: {', '.join(sorted(sets))}")
        wanted = sorted(sets if brokers is None else brokers)
        masters = {name: sets[name][MASTER_ID] for name in wanted if MASTER_ID in sets[name]}
        return masters, [name for name in wanted if name not in masters]

    # --- members and offsets -----------------------------------------------------------------------------------------

    async def members(self, group: str, *, silent: Silent | None = None) -> ConsumerConnection | None:
        """The group's members and subscriptions, merged over all broker sets; None when no member is online.

        Args:
            group: the group's name.
            silent: the address of a broker -> why it does not answer. Such a broker is not asked, and those that do not
                answer now are added: calls with the same dict wait only once for each.

        Raises:
            BrokerNotFound: no member is known, and no broker of some set answers.
            AccessRefused: no member is known, and a broker refuses the account.
        """
        check_group(group)
        header = GetConsumerConnectionListRequest(consumer_group=self._wrap(group))
        what = f"the members of group {group}"
        found = await self._ask_sets(
            lambda: Command.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header), ADMIN_TIMEOUT_S, silent
        )
        found.set_refusals_aside(what)
        merged: ConsumerConnection | None = None
        for each in found.answers:
            try:
                answer = checked(each.answer, what, each.address)
            except NotFound:
                continue
            connection = await body_of(ConsumerConnection, answer, each.address)
            if merged is None:
                merged = connection
                continue
            known = merged.members
            merged.connection_set += [each for each in connection.connection_set if each.client_id not in known]
            merged.subscription_table.update(connection.subscription_table)
        if merged is None and found.silent:
            raise BrokerNotFound(f"{what} are unknown: {outage_text(found.without_master)}")
        if merged is None and found.refused:
            raise AccessRefused(f"{what} are unknown: {outage_text(found.refused)}")
        return merged

    async def progress(self, group: str, topic: str | None = None, *, silent: Silent | None = None) -> GroupProgress:
        """The progress of the group in each queue that it has an offset in.

        Args:
            group: the group's name.
            topic: only this topic, asked of the sets that have it; default: all.
            silent: the address of a broker -> why it does not answer. Such a broker is not asked, and those that do not
                answer now are added: calls with the same dict wait only once for each.

        Returns:
            The offsets, and the sets that have no master, answer with a fault, or refuse the account, whose lag is unknown.

        Raises:
            BrokerNotFound: no broker is registered at all.
            AccessRefused: all that answer refuse the account.
            MQError: a broker's answer cannot be used.
        """
        check_group(group)
        if topic is not None:
            check_text("the topic", topic)
        header = GetConsumeStatsRequest(
            consumer_group=self._wrap(group), topic=self._wrap(topic) if topic is not None else None
        )
        sets = await self._admin.broker_sets(topic)
        found = await ask_sets(
            self._links,
            sets,
            lambda: Command.request(RequestCode.GET_CONSUME_STATS, header),
            STATS_TIMEOUT_S,
            silent=silent,
        )
        what = f"the progress of group {group}"
        found.set_refusals_aside(what)
        offsets: dict[MessageQueue, OffsetWrapper] = {}
        for each in found.answers:
            try:
                answer = checked(each.answer, what, each.address)
            except NotFound as error:
                # A broker that has no such group, or not this topic.
                log.info("%s: %s", each.address, error.reason)
                continue
            except BrokerFault as error:
                # Only masters: faults of slaves are not taken for answers.
                why = error.remark or code_name(each.answer.code)
                found.without_master[each.broker_name] = f"the master {each.address} answers with a fault: {why}"
                continue
            table = (await body_of(ConsumeStats, answer, each.address)).offset_table
            offsets.update((self._routes.namespace.unwrap_queue(queue), offset) for queue, offset in table.items())
        return GroupProgress(dict(sorted(offsets.items())), found.without_master, found.refused)

    async def running_info(
        self, group: str, client_id: str, *, stacks: bool = False, silent: Silent | None = None
    ) -> ConsumerRunningInfo:
        """The state that one member reports about itself.

        A slave is asked while its master does not answer: members also send heartbeats to slaves.

        Args:
            group: the group's name.
            client_id: the member.
            stacks: whether the member also reports its threads or tasks.
            silent: as for :meth:`members`.

        Raises:
            NotFound: no broker has it online.
            BrokerNotFound: no broker of some set answers, and it may be online there.
        """
        check_text("the group", group)
        check_text("client_id", client_id)
        header = GetConsumerRunningInfoRequest(
            consumer_group=self._wrap(group), client_id=client_id, jstack_enable=stacks
        )
        what = f"running info of {client_id}"
        failure: MQError = NotFound(f"{client_id} is not online in group {group}")
        unknown: dict[str, str] = {}
        # One set after the other: each broker that has it online would ask the member itself.
        for name, addresses in sorted((await self._admin.broker_sets()).items()):
            found = await ask_sets(
                self._links,
                {name: addresses},
                lambda: Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header),
                STATS_TIMEOUT_S,
                silent=silent,
            )
            unknown.update({each: found.without_master[each] for each in found.silent})
            for each in found.answers:
                try:
                    return await body_of(ConsumerRunningInfo, checked(each.answer, what, each.address), each.address)
                except MQError as error:
                    failure = error
        if unknown:
            raise BrokerNotFound(f"{what} in group {group} is unknown: {outage_text(unknown)}")
        raise failure

    async def owners(self, group: str, *, silent: Silent | None = None) -> dict[MessageQueue, str]:
        """The member that consumes each queue now, as reported by the members: queue -> client id.

        A missing queue belongs to no member that answered. In broadcasting mode each member has all queues, and one
        member is named.

        Args:
            group: the group's name.
            silent: as for :meth:`members`.

        Raises:
            NotFound: no member is online.
            BrokerNotFound: no member is known, and no broker of some set answers.
        """
        silent = {} if silent is None else silent
        online = await self.members(group, silent=silent)
        if online is None:
            raise NotFound(f"no member of group {group} is online")
        found: dict[MessageQueue, str] = {}
        limit = trio.CapacityLimiter(MEMBERS_AT_ONCE)

        async def ask(client_id: str) -> None:
            async with limit:
                try:
                    info = await self.running_info(group, client_id, silent=silent)
                except MQError as error:
                    # Any client may have any id.
                    text = "%s in group %s does not report what it consumes: %s"
                    log.warning(text, one_line(client_id), group, one_line(str(error), REMARK_CHARS_MAX))
                    return
            for queue, state in info.mq_table.items():
                if not state.droped:
                    found[self._routes.namespace.unwrap_queue(queue)] = client_id

        async with open_plain_nursery() as nursery:
            for each in online.connection_set:
                if each.client_id:
                    nursery.start_soon(ask, each.client_id)
        return dict(sorted(found.items()))

    async def traffic(self, topic: str, *, silent: Silent | None = None) -> list[TopicTraffic]:
        """The rates at which a topic gets messages and each group pulls them; one entry without a group if none does.

        Brokers have rates over the last minute. The numbers of the last day cover less
        than a day while a broker has counted for less.

        Args:
            topic: the topic's name.
            silent: the address of a broker -> why it does not answer. Such a broker is not asked, and those that do not
                answer now are added: calls with the same dict wait only once for each.

        Raises:
            RouteNotFound: the name server does not know the topic.
            BrokerNotFound: no broker set of the topic has a master that answers now.
            MQError: a broker refused.
        """
        return await self._traffic.of(topic, {} if silent is None else silent)

    async def reset(
        self, group: str, topic: str, time_ms: int, *, new_group: bool = False, silent: Silent | None = None
    ) -> list[ResetQueue]:
        """Set a group to the first messages stored at a time or later, or to the end.

        Online members are notified by the broker and go there; if none is online, the broker's offsets are set.

        Args:
            group: the group's name.
            topic: the topic's name.
            time_ms: ms since 1970; 0 is the beginning, ``-1`` the end.
            new_group: also set the offsets of a group that no broker knows yet; otherwise that is an error.
            silent: the address of a broker -> why it does not answer, as other calls have found out. Such a broker is
                not asked again.

        Raises:
            RouteNotFound: no name server knows the topic.
            BrokerNotFound: a broker set has no master now, or a silent one; the others have reset the group.
            MQError: a broker failed; the others have reset the group, and a note of the error names them.
        """
        check_group(group)
        check_text("the topic", topic)
        check_count("time_ms", time_ms, self.END)
        silent = {} if silent is None else silent
        return await self._resets.to_time(group, topic, time_ms, new_group=new_group, silent=silent)

    async def _is_known(self, group: str, silent: Silent) -> bool:
        """Whether some broker has the group, under its name there."""
        return self._wrap(group) in await self.names(silent=silent)

    async def set_offsets(self, group: str, offsets: Mapping[MessageQueue, int], *, force: bool = False) -> None:
        """Set the brokers' offsets of a group without online members.

        Args:
            group: the group's name.
            offsets: queue -> offset at which the group continues; at most the end of the queue: new messages only.
            force: set them even if members are online, which will soon overwrite them.

        Raises:
            InvalidCall: members are online, or an offset is beyond the end of its queue; nothing was set.
            GroupNotFound: the group does not exist at a broker of RocketMQ 5, which needs it: create it first.
            MQError: a broker could not set an offset.
        """
        check_mapping("offsets", offsets)
        for queue, offset in offsets.items():
            check_queue(queue)
            check_count(f"the offset of {queue}", offset, 0)
        if not force:
            await self.check_offline(group)
        await self._resets.to_offsets(group, offsets)

    async def clone_offsets(
        self, source: str, target: str, topic: str | None = None, *, force: bool = False
    ) -> dict[MessageQueue, int]:
        """Set a group without online members to the offsets of another group.

        Args:
            source: the group whose offsets are copied; its retry topic is omitted.
            target: the group that gets them.
            topic: only this topic; default: all.
            force: set them even if members of ``target`` are online, which will soon overwrite them.

        Returns:
            The offsets that were set; empty if ``source`` has none. A queue of a topic that ``source`` consumes in
            which it has no offset yet counts as one at 0, as brokers report it.

        Raises:
            InvalidCall: both are the same group, or members of ``target`` are online.
            BrokerNotFound: a broker set has no master now; nothing was set.
            GroupNotFound: as for :meth:`set_offsets`.
            MQError: a broker could not set an offset.
        """
        offsets = await self.offsets_to_clone(source, target, topic)
        await self.set_offsets(target, offsets, force=force)
        return offsets

    async def offsets_to_clone(self, source: str, target: str, topic: str | None = None) -> dict[MessageQueue, int]:
        """The offsets that :meth:`clone_offsets` would set."""
        check_group(target)
        if topic is not None:
            check_text("the topic", topic)
        if source == target:
            raise InvalidCall(f"{source} is both the group whose offsets are taken and the one that gets them")
        # Of all topics, even for one: asked for one, brokers answer 0 for queues in which the group has no offset.
        progress = await self.progress(source)
        if progress.without_master:
            raise BrokerNotFound(
                f"offsets of group {source} are unknown: {outage_text(progress.without_master)}; nothing was set"
            )
        if progress.refused:
            raise AccessRefused(
                f"offsets of group {source} are unknown: {outage_text(progress.refused)}; nothing was set"
            )
        return {
            queue: offsets.consumer_offset
            for queue, offsets in progress.items()
            if queue.topic != retry_topic(source) and topic in {None, queue.topic} and offsets.consumer_offset >= 0
        }

    async def check_offline(self, group: str) -> None:
        """Raise :class:`triomq.errors.InvalidCall` if members of the group are online; waits until that is known."""
        if await self._route_wait.until_there(lambda: self.members(group), ADMIN_TIMEOUT_S) is not None:
            raise InvalidCall(
                f"group {group} has members online, who would overwrite it; stop them first, or reset by time"
            )

    async def _ask_sets(
        self, make_request: Callable[[], Command], timeout_s: float, silent: Silent | None = None
    ) -> SetAnswers:
        return await ask_sets(self._links, await self._admin.broker_sets(), make_request, timeout_s, silent=silent)
