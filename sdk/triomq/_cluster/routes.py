"""Keeps the routes of topics that a client uses (docs/protocol/client.md §4 and §6.6).

Routes are immutable snapshots (`route`): a holder has a consistent view, and a look-up returns the newest. Watched
topics are refreshed every 30 s, or sooner when a broker does not answer or has lost its master; others are queried on
demand. Sending to a topic that no name server knows borrows the default topic's queues. Upstream: ``MQClientInstance``.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import trio
from cachetools import LRUCache

from triomq._cluster.name_servers import NameServerGroup
from triomq._cluster.route import (
    Route,
    borrow,
    lost_masters,
    make_route,
    perhaps_acting,
    route_differs,
    writable_without_master,
)
from triomq._message.namespace import Namespace
from triomq._transport.answers import checked, short_body_of
from triomq.errors import (
    BrokerNotFound,
    ClientClosed,
    InvalidCall,
    MQError,
    NoNameServer,
    PermissionDenied,
    RouteNotFound,
    TransientError,
)
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.names import DEFAULT_TOPIC, MASTER_ID
from triomq_protocol.requests import ClusterInfo, GetRouteInfoRequest, TopicRouteData
from triomq_protocol.wire.command import Command

log = logging.getLogger("triomq.routes")

_ALL = ""  # no topic has this name

DEFAULT_TOPIC_QUEUES = 4
"""Upper bound of the queues an auto-created topic gets (``defaultTopicQueueNums``)."""

NEW_TOPIC_S = 1.0
"""The time until name servers must know a topic that this client has just created by sending to it."""

NEW_TOPIC_PAUSE_S = 0.02
"""The first pause between two look-ups of such a topic; each is twice as long as the one before."""

REFRESH_EVERY_S = 30.0
"""How often known routes are refreshed (``pollNameServerInterval``)."""

DOUBT_EVERY_S = 1.0
"""The shortest time between two refreshes of a topic's route because its brokers do not answer, refuse, or close their
connections."""

FAILING_MAX_S = 5.0
"""The longest time between two look-ups of a topic's route by calls whose brokers cannot be reached, however long that
lasts: its brokers may come back at other addresses."""

LOST_FIRST_S = 1.0
"""The first pause before a route that has lost a master is refreshed; a restarting master is often back soon."""

TOPICS_MAX = 10_000
"""The most topics whose routes a client keeps; beyond that the least recently used one is dropped."""


def pause_after_loss_s(lost_for_s: float, refresh_every_s: float) -> float | None:
    """The pause until a route that has lost a master is refreshed; None: until the regular refresh.

    It is as long as the loss has lasted: a master is used again at the latest after it has been back for as long as it
    was away, and one that never returns costs six requests.
    """
    pause_s = max(LOST_FIRST_S, lost_for_s)
    return pause_s if pause_s < refresh_every_s else None


class _Lookup:
    """A running look-up of a topic's route, by one caller for all."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answered = False
        self.error: MQError | None = None


class _Topic:
    """The state of one topic.

    Attributes:
        route: its newest route.
        watched: whether it is kept fresh.
        publishing: whether it may borrow the default topic's queues.
        no_master: whether it is unknown, and no master at all was registered when it was looked up.
        lost: its broker sets that have lost their master.
        cut_off: addresses of its brokers to which a connection was lost.
        asked_at: when its route was last asked for because of that, on trio's clock.
        lost_at: when the last master or connection was lost, on trio's clock.
        doubted_at: when a broker's silence last caused a refresh of its route, on trio's clock.
        failing_from: when calls have begun to fail since its brokers cannot be reached, on trio's clock.
        failing_at: when its route was last asked for because of that, on trio's clock.
    """

    __slots__ = (
        "asked_at",
        "cut_off",
        "doubted_at",
        "failing_at",
        "failing_from",
        "lost",
        "lost_at",
        "no_master",
        "publishing",
        "route",
        "watched",
    )

    def __init__(self) -> None:
        self.route: Route | None = None
        self.watched = False
        self.publishing = False
        self.no_master = False
        self.lost: frozenset[str] = frozenset()
        self.cut_off: set[str] = set()
        self.asked_at = self.lost_at = self.doubted_at = self.failing_from = self.failing_at = -math.inf


class BrokerAddresses:
    """The brokers of many routes; an update costs as much as the brokers of one route, whatever the number of routes.

    Attributes:
        table: broker name -> broker id -> address; if routes differ, the address in the newest.
    """

    def __init__(self) -> None:
        self.table: dict[str, dict[int, str]] = {}
        self._routes: Counter[tuple[str, int, str]] = Counter()
        """Broker name, id and address -> the number of routes that have them."""

    def add(self, route: Route) -> None:
        """Add the brokers of a route."""
        for name, addresses in route.addresses.items():
            self.table.setdefault(name, {}).update(addresses)
            self._routes.update((name, broker_id, address) for broker_id, address in addresses.items())

    def remove(self, route: Route) -> None:
        """Remove the brokers of a route that was added."""
        for name, addresses in route.addresses.items():
            for broker_id, address in addresses.items():
                self._routes[name, broker_id, address] -= 1
                if not self._routes[name, broker_id, address]:
                    del self._routes[name, broker_id, address]
                    self._forget(name, broker_id, address)

    def _forget(self, name: str, broker_id: int, address: str) -> None:
        brokers = self.table[name]
        if brokers[broker_id] != address:
            return
        left = [other for each, each_id, other in self._routes if (each, each_id) == (name, broker_id)]
        if left:
            brokers[broker_id] = left[-1]
        else:
            del brokers[broker_id]
        if not brokers:
            del self.table[name]


def _is_unreachable(error: MQError) -> bool:
    """Whether a look-up failed because no name server could be asked."""
    return isinstance(error, TransientError | NoNameServer) and error.code is None


class _Topics(LRUCache[str, _Topic]):
    """The topics of one client; a new one replaces the least recently used one."""

    def __init__(self, max_topics: int, dropped: Callable[[str, _Topic], None]) -> None:
        super().__init__(max_topics)
        self._dropped = dropped

    def popitem(self) -> tuple[str, _Topic]:
        """Drop a topic; called by the cache when it is full."""
        name, topic = super().popitem()
        self._dropped(name, topic)
        return name, topic


def _check(topic: object) -> None:
    # Any other error would also end the task that refreshes the routes of all topics.
    if not isinstance(topic, str):
        raise InvalidCall(f"the topic is {type(topic).__name__}, not text")


class Routes:
    """The route cache of one client.

    Args:
        name_servers: asked for routes.
        default_topic: the topic whose queues an unknown topic borrows.
        default_topic_queues: the most borrowed queues per broker.
        refresh_every_s: seconds between two refreshes.
        max_topics: the most topics whose routes are kept.
        namespace: topics are looked up with its prefix, and known here without it.
    """

    def __init__(
        self,
        name_servers: NameServerGroup,
        *,
        namespace: Namespace | None = None,
        default_topic: str = DEFAULT_TOPIC,
        default_topic_queues: int = DEFAULT_TOPIC_QUEUES,
        refresh_every_s: float = REFRESH_EVERY_S,
        max_topics: int = TOPICS_MAX,
    ) -> None:
        self.changed: list[Callable[[Route], None]] = []
        """Called with every route that is new or has changed."""
        self.forgotten: list[Callable[[str], None]] = []
        """Called with every topic whose route is dropped; it is looked up again when needed."""
        self.namespace: Namespace = namespace if namespace is not None else Namespace()
        self.default_topic = default_topic
        self.default_topic_queues = default_topic_queues
        self._name_servers = name_servers
        self._refresh_every_s = refresh_every_s
        self._topics = _Topics(max_topics, self._dropped)
        self._addresses = BrokerAddresses()
        self._lookups: dict[str, _Lookup] = {}
        self._ask_at: dict[str, float] = {}
        """Topic -> when its route is refreshed outside the regular rounds, on trio's clock."""
        self._asked_earlier = trio.Event()
        self._failing: set[str] = set()
        """Topics whose last refresh in the background failed; `_ALL` while no name server can be asked."""

    @property
    def name_server(self) -> str:
        """The name server that is currently asked; the whole list while none is chosen."""
        return self._name_servers.chosen or ";".join(self._name_servers.addresses)

    @property
    def name_server_trouble(self) -> str | None:
        """A note about name servers that cannot be reached, or about one that has never answered."""
        return self._name_servers.trouble

    def known(self, topic: str) -> Route | None:
        """The newest route in the cache."""
        found = self._topics.get(topic)
        return found.route if found is not None else None

    def watch(self, topic: str) -> None:
        """Keep a topic's route fresh."""
        self._watch(topic)

    def __len__(self) -> int:
        return len(self._topics)

    def broker_addresses(self) -> Mapping[str, Mapping[int, str]]:
        """Broker name -> broker id -> address, over all known routes.

        It includes brokers that the older route of a topic lacks.
        """
        return self._addresses.table

    def is_shared(self, address: str) -> bool:
        """Whether an address is that of brokers of several sets, as a proxy's is."""
        return sum(address in brokers.values() for brokers in self._addresses.table.values()) > 1

    async def for_publishing(self, topic: str) -> Route:
        """The route for sending; unknown topics are looked up now, and borrow queues if no name server knows them.

        Raises:
            BrokerNotFound: no master of the topic is registered now.
            PermissionDenied: no queue is writable.
            RouteNotFound: neither the topic nor the default topic is known.
            MQError: the name server could not be asked.
        """
        route = self._watch(topic, publishing=True).route
        if route is None or not route.publish_queues:
            route = await self.refresh(topic)
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        if route is None or not route.publish_queues:
            raise self._cannot_publish(topic, route)
        return route

    async def for_subscribing(self, topic: str) -> Route:
        """The route for pulling.

        Raises:
            BrokerNotFound: the topic is unknown, and no master at all is registered now.
            RouteNotFound: the topic is unknown.
        """
        route = self._watch(topic).route
        if route is None:
            route = await self.refresh(topic)
        elif route.borrowed:
            route = await self._new_topic(topic)
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        if route is None or route.borrowed:
            raise self.unknown(topic, f"no route to topic {topic}")
        return route

    def unknown(self, topic: str, what: str) -> RouteNotFound:
        """The error for a topic that was looked up and is not known."""
        address = self._name_servers.chosen or ""
        known = self._topics.get(topic)
        if known is not None and known.no_master:
            return BrokerNotFound(f"{what}: no master of any broker is registered", address=address)
        return RouteNotFound(what, address=address)

    def _cannot_publish(self, topic: str, route: Route | None) -> MQError:
        what, address = f"no route to send to topic {topic}", self._name_servers.chosen or ""
        if route is None:
            return self.unknown(topic, what)
        without = writable_without_master(route)
        if without:
            return BrokerNotFound(f"{what}: no master of {', '.join(without)} is registered", address=address)
        acting = perhaps_acting(route)
        if acting:
            reason = (
                f"no master of {', '.join(acting)} is registered, and a slave serves reads in its place "
                "(enableSlaveActingMaster); or the topic is read-only"
            )
            return BrokerNotFound(f"{what}: {reason}", address=address)
        return PermissionDenied(f"{what}: none of its queues may be written to", address=address)

    async def _new_topic(self, topic: str) -> Route | None:
        """The route of a topic that this client created with a borrowed one: its broker may be about to announce it."""
        pause_s = NEW_TOPIC_PAUSE_S
        limit = trio.current_time() + NEW_TOPIC_S
        route = await self.refresh(topic)
        while (route is None or route.borrowed) and trio.current_time() < limit:
            await trio.sleep(pause_s)
            pause_s *= 2
            route = await self.refresh(topic)
        return route

    async def refresh(self, topic: str) -> Route | None:
        """Look up a topic's route now; callers of the same topic share one look-up.

        Returns:
            The newest route, or None if no name server knows the topic.

        Raises:
            MQError: the name server could not be asked, or answered with an error.
        """
        while (lookup := self._lookups.get(topic)) is not None:
            await lookup.done.wait()
            if lookup.answered:
                if lookup.error is not None:
                    error = lookup.error
                    raise type(error)(error.what, address=error.address, code=error.code, remark=error.remark)
                return self.known(topic)
            # The caller that asked was cancelled: another one must ask.
        lookup = self._lookups[topic] = _Lookup()
        try:
            route = await self._refresh(topic)
            lookup.answered = True
        except MQError as error:
            lookup.answered, lookup.error = True, error
            raise
        finally:
            del self._lookups[topic]
            lookup.done.set()
        return route

    async def refresh_failing(self, topic: str) -> Route | None:
        """:meth:`refresh` for a call whose broker cannot be reached, less and less often while calls go on failing.

        Returns:
            The newest route, perhaps as it was a moment ago; None if no name server knows the topic.

        Raises:
            MQError: the name server could not be asked, or answered with an error.
        """
        known = self._topics.get(topic)
        if known is None or topic in self._lookups:
            return await self.refresh(topic)
        now = trio.current_time()
        if now >= known.failing_at + 2 * FAILING_MAX_S:
            known.failing_from = now
        elif now < known.failing_at + min(max(DOUBT_EVERY_S, known.failing_at - known.failing_from), FAILING_MAX_S):
            await trio.lowlevel.checkpoint_if_cancelled()
            return known.route
        known.failing_at = now
        return await self.refresh(topic)

    def doubt(self, topic: str, address: str, why: str) -> None:
        """Have a topic's route refreshed soon, as a broker does not do its work: another one may have replaced it.

        This happens at most once in :data:`DOUBT_EVERY_S`, in the client's own task, so that no send waits for it.

        Args:
            topic: the topic.
            address: the broker's address.
            why: what it does, or does not do, for the log.
        """
        if self.look_soon(topic):
            log.info("%s: %s; asking for the route of %s", address, why, topic, extra={"topic": topic})

    def look_soon(self, topic: str) -> bool:
        """Have a topic's route refreshed in the client's own task; at most once in :data:`DOUBT_EVERY_S`.

        Returns:
            Whether it will be.
        """
        known = self._topics.get(topic)
        now = trio.current_time()
        if known is None or now < known.doubted_at + DOUBT_EVERY_S:
            return False
        known.doubted_at = now
        self._ask_soon(topic, now)
        return True

    def note_cut_off(self, topic: str, address: str, *, again: bool = False) -> None:
        """Have a topic's route refreshed now, and later, until :meth:`note_connected`, while it has this broker.

        The members of a group must notice at the same time that a broker leaves the route, also those that do not pull
        from it: until then, two of them have the same queues.

        Args:
            topic: the topic.
            address: a broker to which the connection was lost.
            again: whether nothing has arrived on this connection: so it belongs to the loss before, after which the
                route is refreshed less and less often. A proxy in front of a broker that is down may take each
                connection and close it.
        """
        known = self._topics.get(topic)
        if known is None or known.route is None or not known.route.has(address):
            return
        now = trio.current_time()
        known.cut_off.add(address)
        if again and known.lost_at > -math.inf:
            self._plan_after_loss(topic, known.asked_at)
            return
        self._ask_soon(topic, max(now, known.asked_at + DOUBT_EVERY_S))
        known.lost_at = now

    def note_connected(self, topic: str, address: str) -> None:
        """A broker of a topic is connected again."""
        known = self._topics.get(topic)
        if known is not None:
            known.cut_off.discard(address)

    def _ask_soon(self, topic: str, at: float) -> None:
        self._ask_at[topic] = min(at, self._ask_at.get(topic, math.inf))
        self._asked_earlier.set()

    @trio.lowlevel.enable_ki_protection
    async def keep_fresh(self) -> None:
        """Refresh all watched topics until cancelled; those with missing or silent brokers also in between."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_between)
            await self._ask_regularly()
            nursery.cancel_scope.cancel()

    @trio.lowlevel.enable_ki_protection
    async def _ask_between(self) -> None:
        while True:
            self._asked_earlier = trio.Event()
            with trio.move_on_at(min(self._ask_at.values(), default=math.inf)):
                await self._asked_earlier.wait()
            now = trio.current_time()
            due = [topic for topic, at in self._ask_at.items() if at <= now]
            for topic in due:
                del self._ask_at[topic]
                known = self._topics.get(topic)
                if known is not None and known.cut_off:
                    known.asked_at = now
            await self._ask_for(due)
            for topic in due:
                self._plan_after_loss(topic)

    async def _ask_for(self, topics: Iterable[str]) -> None:
        """Refresh topics; a name server that cannot be asked ends it."""
        for topic in topics:
            try:
                await self.refresh(topic)
            except MQError as error:
                log.info("the route of %s could not be refreshed: %s", topic, error.reason, extra={"topic": topic})
                if _is_unreachable(error):
                    break

    def _plan_after_loss(self, topic: str, asked_at: float | None = None) -> None:
        """Schedule the refresh of a topic's route that has lost a master, or is about to.

        Args:
            topic: the topic.
            asked_at: when it was last refreshed, if that is not now.
        """
        known = self._topics.get(topic)
        if known is None or not (known.lost or known.cut_off):
            return
        now = trio.current_time()
        asked_at = now if asked_at is None else asked_at
        pause_s = pause_after_loss_s(asked_at - known.lost_at, self._refresh_every_s)
        if pause_s is not None:
            self._ask_soon(topic, max(now, asked_at + pause_s))

    async def _ask_regularly(self) -> None:
        """Refresh all watched topics until cancelled; a name server that cannot be asked ends the round.

        A failure is logged once as a warning, until the refresh has succeeded again.
        """
        while True:
            await trio.sleep(self._refresh_every_s)
            for topic in [name for name, each in self._topics.items() if each.watched]:
                try:
                    await self.refresh(topic)
                except ClientClosed:
                    return  # the end of the client, not a fault
                except MQError as error:
                    unreachable = _is_unreachable(error)
                    self._log_failed_refresh(topic, error, _ALL if unreachable else topic)
                    if unreachable:
                        break
                else:
                    self._log_refreshed(topic)

    def _log_failed_refresh(self, topic: str, error: MQError, failing: str) -> None:
        level = logging.DEBUG if failing in self._failing else logging.WARNING
        self._failing.add(failing)
        every_s, extra = self._refresh_every_s, {"topic": topic}
        text = "the route of %s could not be refreshed, it is tried again every %g s: %s"
        log.log(level, text, topic, every_s, error, extra=extra)

    def _log_refreshed(self, topic: str) -> None:
        if _ALL in self._failing:
            log.info("the name servers answer again: the route of %s was refreshed", topic, extra={"topic": topic})
        elif topic in self._failing:
            log.info("the route of %s was refreshed again", topic, extra={"topic": topic})
        self._failing -= {_ALL, topic}

    async def fetch(self, topic: str) -> TopicRouteData | None:
        """Ask the chosen name server, bypassing the cache; None if it does not know the topic.

        Raises:
            InvalidCall: the topic is not text.
            MQError: the name server could not be asked, or answered with an error.
        """
        _check(topic)
        header = GetRouteInfoRequest(topic=self.namespace.wrap(topic))
        answer = await self._name_servers.ask(Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header))
        what, address = f"the route of topic {topic}", self._name_servers.chosen or ""
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return short_body_of(TopicRouteData, checked(answer, what, address), what, address)

    async def _refresh(self, topic: str) -> Route | None:
        data = await self.fetch(topic)
        borrowed = False
        known = self._topics.get(topic)
        if data is None and known is not None and known.publishing:
            old = known.route
            if old is not None and not old.borrowed:
                # A topic that existed keeps its known route: a name server may have just restarted.
                return old
            template = await self.fetch(self.default_topic)
            data = borrow(template, self.default_topic_queues) if template is not None else None
            borrowed = True
        if data is None:
            if known is not None and known.watched and known.route is None:
                known.no_master = not await self._some_master_is_registered()
            return self.known(topic)
        return self._store(topic, data, borrowed=borrowed)

    async def _some_master_is_registered(self) -> bool:
        """Whether any master is registered; also True if this cannot be determined."""
        try:
            return bool(await self.masters())
        except MQError:
            return True

    async def masters(self) -> frozenset[str]:
        """The addresses of all masters that are registered now.

        Raises:
            MQError: the name server could not be asked, or its answer cannot be read.
        """
        answer = await self._name_servers.ask(Command.request(RequestCode.GET_BROKER_CLUSTER_INFO))
        what, address = "the registered brokers", self._name_servers.chosen or ""
        brokers = short_body_of(ClusterInfo, checked(answer, what, address), what, address).broker_addr_table or {}
        every = (broker.broker_addrs or {} for broker in brokers.values())
        return frozenset(addresses[MASTER_ID] for addresses in every if MASTER_ID in addresses)

    def _store(self, topic: str, data: TopicRouteData, *, borrowed: bool) -> Route:
        known = self._entry(topic)
        old = known.route
        if old is not None and old.borrowed == borrowed and not route_differs(old.data, data):
            return old
        known.route = route = make_route(topic, data, borrowed=borrowed)
        if data.topic_queue_mapping_by_broker and not (old is not None and old.data.topic_queue_mapping_by_broker):
            text = "topic %s is a static topic of RocketMQ 5: clients of the 4.9 protocol cannot use all of its queues"
            log.warning(text, topic, extra={"topic": topic})
        lost = lost_masters(known.lost, old, route)
        if lost - known.lost:
            known.lost_at = trio.current_time()
        known.lost = lost
        known.cut_off = {address for address in known.cut_off if route.has(address)}
        self._plan_after_loss(topic)
        self._addresses.add(route)
        if old is not None:
            self._addresses.remove(old)
        for changed in self.changed:
            changed(route)
        return route

    def _entry(self, topic: str) -> _Topic:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = _Topic()
        return found

    def _watch(self, topic: str, *, publishing: bool = False) -> _Topic:
        _check(topic)
        found = self._entry(topic)
        found.watched = True
        found.publishing = found.publishing or publishing
        return found

    def _dropped(self, topic: str, dropped: _Topic) -> None:
        self._failing.discard(topic)
        self._ask_at.pop(topic, None)
        if dropped.route is not None:
            self._addresses.remove(dropped.route)
        for forgotten in self.forgotten:
            forgotten(topic)
