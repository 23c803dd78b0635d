"""Administration: topics, routes, the cluster (docs/protocol/admin.md; upstream ``DefaultMQAdminExt``).

Changes of topics go to brokers, queries to the chosen name server, and changes of data that each name server
keeps for itself to all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import attrs

from triomq._admin.broker_sets import Addresses, Silent, addresses_of, ask_sets
from triomq._admin.long_bodies import body_of
from triomq._arguments.kinds import check_text, check_texts
from triomq._arguments.numbers import check_count
from triomq._cluster.name_servers import NameServerGroup
from triomq._cluster.route import QUEUES_MOST, check_queues
from triomq._cluster.route_wait import RouteWait
from triomq._cluster.routes import Routes
from triomq._constructors import NoPublicConstructor
from triomq._error_text import shown
from triomq._half_done import with_places
from triomq._message.message import MessageQueue, check_name, check_topic
from triomq._tasks.exception_groups import open_plain_nursery
from triomq._tasks.side_by_side import side_by_side
from triomq._transport.answers import checked, header_of
from triomq._transport.links import Links
from triomq.errors import (
    BrokerNotFound,
    InvalidCall,
    MQError,
    RouteError,
    RouteNotFound,
)
from triomq_protocol import flags
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.errors import BodyError
from triomq_protocol.names import (
    BENCHMARK_TOPIC,
    DEFAULT_TOPIC,
    MASTER_ID,
    MAX_TOPIC_BYTES,
    SYSTEM_TOPIC_PREFIX,
    TRACE_TOPIC,
)
from triomq_protocol.requests import (
    ClusterInfo,
    CreateTopicRequest,
    DeleteTopicFromNamesrvRequest,
    DeleteTopicRequest,
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    KVTable,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
)
from triomq_protocol.requests.admin import GetTopicConfigRequest, GetTopicStatsInfoRequest, TopicOffset
from triomq_protocol.wire.command import Command

ADMIN_TIMEOUT_S = 5.0
"""How long a broker may take for an administrative request (docs/protocol/client.md §3.8)."""

SYSTEM_TOPICS = frozenset({DEFAULT_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC})
"""Topics that may not be created or deleted, in addition to those that may not be sent to."""

CONTESTED_KEY: Final = "triomqIdContestedBy"
"""The key in a broker's runtime information for the address of another broker with its id."""

QUEUES: Final = 8
"""The number of queues of a new topic, per broker."""

QUEUES_MAX = 65_536
"""More queues than any topic needs; our brokers refuse more, RocketMQ's would loop over them endlessly."""

NEW_TOPIC: Final = TopicConfig(read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=flags.READ_WRITE_PERM)
"""The settings that a topic gets where it is new and none are given."""

PERM_BITS = flags.READ_WRITE_PERM | flags.PERM_INHERIT


@attrs.frozen
class TopicStats:
    """Bounds of a topic's queues, as far as a broker of their set answered.

    Args:
        offset_table: queue -> its bounds and when it was last written to.
        without_master: broker name -> why its master did not answer. The set's queues are missing in `offset_table`, or
            have the values of a slave, which may lack the newest messages.
        refused: broker name -> which broker refuses the account, why, and what to do. The broker's queues are missing.
    """

    offset_table: Mapping[MessageQueue, TopicOffset]
    without_master: Mapping[str, str]
    refused: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class TopicSettings:
    """A topic's settings on one broker set.

    Args:
        read_queues: the number of readable queues.
        write_queues: the number of writable queues.
        perm: the sum of 4 read, 2 write, 1 inherit.
    """

    read_queues: int
    write_queues: int
    perm: int


class Admin(metaclass=NoPublicConstructor):
    """Administrative calls about topics and the cluster; ``client.admin``."""

    def __init__(self, name_servers: NameServerGroup, routes: Routes, links: Links, route_wait: RouteWait) -> None:
        self._name_servers = name_servers
        self._routes = routes
        self._links = links
        self._route_wait = route_wait

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int | None = QUEUES,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = flags.READ_WRITE_PERM,
        order: bool = False,
        brokers: Sequence[str] | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Create a topic, or change its settings, on masters.

        Args:
            topic: its name.
            queues: number of queues per broker, 1 to 65536; None: as each broker has it, 8 for a new topic.
            read_queues: number of readable ones, if it differs.
            write_queues: number of writable ones, if it differs.
            perm: the sum of 4 read, 2 write, 1 inherit; None: as each broker has it, 6 for a new topic. A route may show
                less, during a broker's maintenance.
            order: kept for readers of the setting; brokers ignore it.
            brokers: broker names; by default all brokers of the cluster.
            cluster: the cluster's name; by default all clusters.

        Returns:
            The addresses of the brokers that have it now.

        Raises:
            InvalidCall: the name or a number is not allowed, or the queues for reading and writing on all masters are
                more than 131,072, beyond which clients do not use a topic.
            BrokerNotFound: a broker set has no master now; the others have it.
            MQError: a broker refused or could not be reached; the others have it, which a note of the error names.
        """
        _check_creation(topic, QUEUES if queues is None else queues)
        for name, number in (("read_queues", read_queues), ("write_queues", write_queues)):
            if number is not None:
                check_count(name, number, 0, QUEUES_MAX)
        if perm is not None:
            _check_perm(perm)
        read = queues if read_queues is None else read_queues
        write = queues if write_queues is None else write_queues

        async def header_for(address: str) -> CreateTopicRequest:
            if read is None or write is None or perm is None:
                has = await self._config_on_broker(address, topic)
            else:
                has = NEW_TOPIC
            return self._topic_header(
                topic,
                has.read_queue_nums if read is None else read,
                has.write_queue_nums if write is None else write,
                has.perm if perm is None else perm,
                order=order,
            )

        each = 0 if read is None or write is None else read + write
        created, error = await self._create(header_for, topic, brokers, cluster, queues_each=each)
        if error is not None:
            raise error
        return created

    async def ensure_topic(self, topic: str, *, queues: int = 8) -> bool:
        """Create a topic on all masters unless it has a route; an existing topic is not changed.

        A send of another client may let a broker create the topic at the same moment, with as many queues as the
        broker's template has; or a master has it, and the name servers lack it. The topic then has `queues` to write to,
        and as many to read from as hold messages.

        Args:
            topic: its name.
            queues: number of queues per broker, 1 to 65536.

        Returns:
            Whether it was created.

        Raises:
            InvalidCall, BrokerNotFound, MQError: as for :meth:`create_topic`.
        """
        try:
            await self.route(topic)
        except BrokerNotFound:
            raise  # an outage: the masters that come back may have the topic, with other settings
        except RouteNotFound:
            pass
        else:
            return False
        _check_creation(topic, queues)
        template = await self._routes.fetch(DEFAULT_TOPIC)
        last = max((each.write_queue_nums for each in (template and template.queue_datas) or ()), default=0)
        last = min(last, QUEUES_MAX)
        had: dict[str, int] = {}

        async def look(address: str) -> None:
            with suppress(MQError):  # the creation fails, too
                had[address] = await self._queues_on_broker(address, topic) or 0

        # Name servers may lack a topic of a master that has it: the master has registered only in part, or the topic was
        # deleted on name servers alone.
        await side_by_side(*(partial(look, address) for address in (await self._masters(None, None))[0]))

        async def header_for(_address: str) -> CreateTopicRequest:
            return self._topic_header(topic, queues, queues, flags.READ_WRITE_PERM)

        created, error = await self._create(header_for, topic, None, None, queues_each=2 * queues)
        # If a broker had more queues, no consumer would read their messages. From now on they get no messages.
        await side_by_side(
            *(partial(self._show_queues, address, topic, queues, max(last, had.get(address, 0))) for address in created)
        )
        if error is not None:
            raise error
        return True

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic from all masters of a cluster (by default of all clusters), then from all name servers, for that
        cluster alone.

        A topic that no broker and no name server knows is no error.

        Raises:
            InvalidCall: it is a system topic.
            RouteError: a broker set that has it has no master now; nothing was deleted, as the set would register
                the topic again.
            MQError: a broker or name server refused or could not be reached; a note of the error names those that have
                done it.
        """
        _check_own_topic(topic)
        await self._check_masters_of(topic, cluster)
        masters, _ = await self._masters(None, cluster)
        for number, address in enumerate(masters):
            request = Command.request(
                RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic=self._routes.namespace.wrap(topic))
            )
            try:
                await self._request(address, request, f"delete topic {topic}")
            except MQError as error:
                raise with_places(error, masters[:number], masters[number:]) from None
        # Without the cluster's name the topic would have no route in other clusters either.
        header = DeleteTopicFromNamesrvRequest(topic=self._routes.namespace.wrap(topic), cluster_name=cluster)
        name_servers = self._name_servers.addresses
        for number, address in enumerate(name_servers):
            request = Command.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
            try:
                answer = await self._name_servers.ask_at(address, request)
                checked(answer, f"delete topic {topic}", address)
            except MQError as error:
                raise with_places(error, [*masters, *name_servers[:number]], name_servers[number:]) from None

    async def topics(self) -> list[str]:
        """The names of all topics the name server knows, sorted."""
        what = "the list of topics"
        answer = await self._ask(Command.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), what)
        return sorted((await body_of(TopicList, answer, self._name_servers.chosen or "", what)).topic_list)

    async def route(self, topic: str) -> TopicRouteData:
        """The current route of a topic, past the cache; waits while no master is registered.

        Raises:
            BrokerNotFound: the name server knows neither the topic nor any master: an outage, rather than a wrong name.
            RouteNotFound: the name server does not know it.
            ProtocolViolation: it has more queues than are possible.
        """
        return await self._route_wait.until_there(lambda: self._route_now(topic), ADMIN_TIMEOUT_S)

    async def _route_now(self, topic: str) -> TopicRouteData:
        data = await self._routes.fetch(topic)
        if data is None:
            no_route, address = f"no route to topic {topic}", self._name_servers.chosen or ""
            # Name servers learn of topics from masters only: a slave may be the first that registers after a restart.
            if not await self._routes.masters():
                raise BrokerNotFound(f"{no_route}: no master of any broker is registered", address=address)
            raise RouteNotFound(no_route, address=address)
        check_queues(topic, data)
        return data

    async def topic_settings(self, topic: str) -> dict[str, TopicSettings]:
        """A topic's settings in the tables of the masters, whatever name servers know of it: broker name -> settings.

        Masters that do not have the topic, or do not answer, are missing.
        """
        check_text("the topic", topic)
        found: dict[str, TopicSettings] = {}

        async def look(name: str, address: str) -> None:
            with suppress(MQError):
                config = await self._config_on_broker(address, topic)
                if config is not NEW_TOPIC:
                    found[name] = TopicSettings(config.read_queue_nums, config.write_queue_nums, config.perm)

        sets = await self.broker_sets()
        masters = {name: addresses[MASTER_ID] for name, addresses in sets.items() if MASTER_ID in addresses}
        await side_by_side(*(partial(look, name, address) for name, address in masters.items()))
        return found

    async def cluster_info(self) -> ClusterInfo:
        """All brokers with their addresses, by cluster."""
        what = "the cluster's brokers"
        answer = await self._ask(Command.request(RequestCode.GET_BROKER_CLUSTER_INFO), what)
        return await body_of(ClusterInfo, answer, self._name_servers.chosen or "", what)

    async def topic_stats(self, topic: str, *, silent: Silent | None = None) -> TopicStats:
        """Bounds and last store time of every queue of a topic; a slave is asked while its master does not answer.

        Args:
            topic: the topic's name.
            silent: the address of a broker -> why it does not answer. Such a broker is not asked, and those that do not
                answer now are added: calls with the same dict wait only once for each.

        Raises:
            RouteNotFound: the name server does not know the topic.
            AccessRefused: all that answer refuse the account.
            MQError: a broker failed to answer with the topic's bounds.
        """
        data = await self.route(topic)
        sets = addresses_of({broker.broker_name or "": broker for broker in data.broker_datas or []})
        header = GetTopicStatsInfoRequest(topic=self._routes.namespace.wrap(topic))
        found = await ask_sets(
            self._links,
            sets,
            lambda: Command.request(RequestCode.GET_TOPIC_STATS_INFO, header),
            ADMIN_TIMEOUT_S,
            silent=silent,
        )
        what = f"statistics of topic {topic}"
        found.set_refusals_aside(what)
        table: dict[MessageQueue, TopicOffset] = {}
        for each in found.answers:
            answer = checked(each.answer, what, each.address)
            found_there = (await body_of(TopicStatsTable, answer, each.address, what)).offset_table
            table.update((self._routes.namespace.unwrap_queue(queue), each) for queue, each in found_there.items())
        return TopicStats(table, found.without_master, found.refused)

    async def _queues_on_broker(self, address: str, topic: str) -> int | None:
        """How many queues to write to a topic has on a broker, whatever the name servers know; None if the broker
        does not have the topic.

        Raises:
            MQError: the broker could not be asked, or refused.
        """
        header = GetTopicStatsInfoRequest(topic=self._routes.namespace.wrap(topic))
        link = await self._links.get(address, patient=False)
        answer = await link.request(Command.request(RequestCode.GET_TOPIC_STATS_INFO, header), ADMIN_TIMEOUT_S)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        what = f"statistics of topic {topic}"
        return len((await body_of(TopicStatsTable, checked(answer, what, address), address, what)).offset_table)

    async def without_master(self, *, silent: Silent | None = None) -> dict[str, str]:
        """The broker sets whose master is not registered or does not answer: broker name -> why.

        Args:
            silent: the address of a broker -> why it does not answer. Such a broker is not asked, and those that do not
                answer now are added: calls with the same dict wait only once for each.

        Raises:
            BrokerNotFound: no broker is registered at all.
        """
        found = await ask_sets(
            self._links,
            await self.broker_sets(),
            lambda: Command.request(RequestCode.GET_BROKER_RUNTIME_INFO),
            ADMIN_TIMEOUT_S,
            slaves=False,
            silent=silent,
        )
        return found.without_master

    async def contested_ids(self) -> dict[str, str]:
        """The registered brokers that found another live broker of their set with their own id, by address.

        Name servers list the one of the two that registered last. Only triomq's brokers look for others.

        Returns:
            The broker's address -> the other one's. A broker that does not answer is omitted.
        """
        found: dict[str, str] = {}

        async def ask(address: str) -> None:
            request = Command.request(RequestCode.GET_BROKER_RUNTIME_INFO)
            with suppress(MQError, BodyError):
                link = await self._links.get(address, patient=False)
                answer = await link.request(request, ADMIN_TIMEOUT_S)
                other = KVTable.decode(answer.body).table.get(CONTESTED_KEY)
                if other is not None:
                    found[address] = other

        async with open_plain_nursery() as nursery:
            for addresses in (await self.broker_sets()).values():
                for address in addresses.values():
                    nursery.start_soon(ask, address)
        return found

    async def broker_sets(self, topic: str | None = None) -> Addresses:
        """Broker name -> broker id -> address: all registered sets, and those no longer registered that are still in a
        route known to this client.

        Args:
            topic: without the registered sets that do not have this topic, if name servers know it.
        """
        registered = addresses_of((await self.cluster_info()).broker_addr_table or {})
        # A copy: the routes may change while the brokers are asked.
        known = {name: dict(addresses) for name, addresses in self._routes.broker_addresses().items()}
        found = {**known, **registered}
        if topic is None or (data := await self._routes.fetch(topic)) is None:
            return found
        lacking = registered.keys() - {broker.broker_name or "" for broker in data.broker_datas or []}
        return {name: addresses for name, addresses in found.items() if name not in lacking} or found

    async def _create(
        self,
        header_for: Callable[[str], Awaitable[CreateTopicRequest]],
        topic: str,
        brokers: Sequence[str] | None,
        cluster: str | None,
        *,
        queues_each: int,
    ) -> tuple[list[str], MQError | None]:
        """The addresses of the brokers that have the topic now, and why not all have it.

        Args:
            header_for: creates the header for a master's address.
            topic, brokers, cluster: as for :meth:`create_topic`.
            queues_each: how many queues to read and to write each master is to have together; 0 if it is not known.
        """
        masters, lacking = await self._masters(brokers, cluster)
        if queues_each * len(masters) > QUEUES_MOST:
            raise InvalidCall(
                f"{queues_each} queues for reading and writing on each of {len(masters)} masters: clients use a topic of at "
                f"most {QUEUES_MOST} on all of them; give fewer queues, or fewer brokers"
            )
        failures: dict[str, MQError] = {}

        async def create_at(address: str) -> None:
            try:
                request = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, await header_for(address))
                await self._request(address, request, f"create topic {topic}")
            except MQError as error:
                failures[address] = error

        await side_by_side(*(partial(create_at, address) for address in masters))
        created = [address for address in masters if address not in failures]
        if failures:
            failed = [address for address in masters if address in failures]
            return created, with_places(failures[failed[0]], created, [*failed, *lacking])
        if lacking:
            return created, BrokerNotFound(
                f"topic {topic} is on {', '.join(created)} now, and not on {', '.join(lacking)}: no master of it is "
                "registered; start it, then create the topic again",
                address=self._name_servers.chosen or "",
            )
        return created, None

    async def _config_on_broker(self, address: str, topic: str) -> TopicConfig:
        """A topic's settings in a broker's own table. Name servers may lack the topic; and they, and a broker with another
        `brokerPermission`, may have removed the write permission from the route."""
        what = f"the settings of topic {topic}"
        link = await self._route_wait.until_there(lambda: self._links.get(address, patient=False), ADMIN_TIMEOUT_S)
        name = self._routes.namespace.wrap(topic)
        one = Command.request(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequest(topic=name))
        answer = await link.request(one, ADMIN_TIMEOUT_S)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return NEW_TOPIC
        if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return await body_of(TopicConfig, checked(answer, what, address), address, what)
        answer = await link.request(Command.request(RequestCode.GET_ALL_TOPIC_CONFIG), ADMIN_TIMEOUT_S)  # RocketMQ 4.9
        table = (await body_of(TopicConfigTable, checked(answer, what, address), address, what)).topic_config_table
        return table.get(name, NEW_TOPIC)

    async def _show_queues(self, address: str, topic: str, queues: int, last: int) -> None:
        """Make the queues of a topic from number `queues` to `last` readable on a broker, up to the last that holds
        messages."""
        wanted = queues
        for queue_id in range(queues, last):
            header = GetMaxOffsetRequest(topic=self._routes.namespace.wrap(topic), queue_id=queue_id)
            what = f"the end of queue {queue_id} of topic {topic}"
            answer = await self._request(address, Command.request(RequestCode.GET_MAX_OFFSET, header), what)
            if header_of(GetMaxOffsetResponse, answer, what, address).offset > 0:
                wanted = queue_id + 1
        if wanted > queues:
            request = Command.request(
                RequestCode.UPDATE_AND_CREATE_TOPIC, self._topic_header(topic, wanted, queues, flags.READ_WRITE_PERM)
            )
            await self._request(address, request, f"create topic {topic}")

    def _topic_header(
        self, topic: str, read_queues: int, write_queues: int, perm: int, *, order: bool = False
    ) -> CreateTopicRequest:
        return CreateTopicRequest(
            topic=self._routes.namespace.wrap(topic),
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=read_queues,
            write_queue_nums=write_queues,
            perm=perm,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=order,
        )

    async def _masters(self, brokers: Sequence[str] | None, cluster: str | None) -> tuple[list[str], list[str]]:
        """Addresses of masters, and the names of the broker sets that have none."""
        if brokers is not None:
            check_texts("brokers", brokers)
        if cluster is not None:
            check_text("cluster", cluster)
        return await self._route_wait.until_there(lambda: self._masters_now(brokers, cluster), ADMIN_TIMEOUT_S)

    async def _masters_now(self, brokers: Sequence[str] | None, cluster: str | None) -> tuple[list[str], list[str]]:
        info = await self.cluster_info()
        table = info.broker_addr_table or {}
        clusters = info.cluster_addr_table or {}
        if cluster is not None and cluster not in clusters:
            raise InvalidCall(f"there is no cluster {cluster}; known: {', '.join(sorted(clusters)) or 'none'}")
        names = set(table if cluster is None else clusters[cluster])
        if brokers is not None:
            unknown = set(brokers) - names
            if unknown:
                raise InvalidCall(f"there is no broker {', '.join(sorted(unknown))}; known: {', '.join(sorted(names))}")
            names = set(brokers)
        elif cluster is None:
            names |= self._routes.broker_addresses().keys()
        found = {name: ((table[name].broker_addrs or {}).get(MASTER_ID) if name in table else None) for name in names}
        masters = [address for _, address in sorted(found.items()) if address is not None]
        lacking = sorted(name for name, address in found.items() if address is None)
        if not masters:
            of = f" of {', '.join(lacking)}" if lacking else ""
            raise BrokerNotFound(f"no master{of} is registered", address=self._name_servers.chosen or "")
        return masters, lacking

    async def _check_masters_of(self, topic: str, cluster: str | None) -> None:
        data = await self._routes.fetch(topic)
        lacking = [
            broker.broker_name or ""
            for broker in (data.broker_datas if data is not None else None) or []
            if cluster in {None, broker.cluster} and MASTER_ID not in (broker.broker_addrs or {})
        ]
        if lacking:
            raise RouteError(
                f"no master of {', '.join(sorted(lacking))} is registered, which has topic {topic} too; nothing was "
                "deleted, start it first",
                address=self._name_servers.chosen or "",
            )

    async def _ask(self, request: Command, what: str) -> Command:
        answer = await self._route_wait.until_there(
            lambda: self._name_servers.ask(request, timeout_s=ADMIN_TIMEOUT_S), ADMIN_TIMEOUT_S
        )
        return checked(answer, what, self._name_servers.chosen or "")

    async def _request(self, address: str, request: Command, what: str) -> Command:
        """Send a request to a broker, and wait while it cannot be reached."""
        link = await self._route_wait.until_there(lambda: self._links.get(address, patient=False), ADMIN_TIMEOUT_S)
        return checked(await link.request(request, ADMIN_TIMEOUT_S), what, address)


def _check_creation(topic: str, queues: int) -> None:
    _check_own_topic(topic)
    check_count("queues", queues, 1, QUEUES_MAX)


def _check_own_topic(topic: str) -> None:
    check_name(topic, "topic", MAX_TOPIC_BYTES)
    check_topic(topic)
    if topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX):
        raise InvalidCall(f"{topic} is a system topic")


def _check_perm(perm: object) -> None:
    if not isinstance(perm, int) or isinstance(perm, bool) or perm & ~PERM_BITS:
        raise InvalidCall(f"perm is {shown(perm)}, not a sum of 4 (read), 2 (write) and 1 (inherit); 6 is the default")
