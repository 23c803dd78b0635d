"""Topic routes: which queues a topic has, on which brokers, at which addresses (client.md §4 and §6.6).

Routes are immutable snapshots; whoever holds one sees a consistent picture, and whoever looks a topic
up gets the newest.  Known topics are refreshed every 30 s; an unknown one is asked for by whoever
needs it, and sending to one that nobody knows borrows the default topic's queues.
Upstream: ``MQClientInstance``, ``TopicRouteData``, ``TopicPublishInfo``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import attrs
import trio

from triomq._message import MessageQueue
from triomq._name_servers import NameServerGroup
from triomq.errors import ClientClosed, MQError, ProtocolViolation, RouteNotFound, TransientError, error_for_code
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.command import Command
from triomq_protocol.errors import BodyError
from triomq_protocol.flags import PERM_READ, PERM_WRITE
from triomq_protocol.requests import BrokerData, GetRouteInfoRequest, QueueData, TopicRouteData

log = logging.getLogger("triomq.routes")

DEFAULT_TOPIC = "TBW102"
"""The template topic of auto-creation (``createTopicKey``)."""

DEFAULT_TOPIC_QUEUES = 4
"""Upper bound of the queues an auto-created topic gets (``defaultTopicQueueNums``)."""

NEW_TOPIC_S = 1.0
"""How long the name servers may take to hear of a topic that this client has just made by sending to it."""

NEW_TOPIC_PAUSE_S = 0.02
"""The first pause between two questions for such a topic; each is twice as long as the one before."""

REFRESH_EVERY_S = 30.0
"""How often known routes are asked for again (``pollNameServerInterval``)."""

TOPICS_MAX = 10_000
"""How many topics a client keeps fresh; beyond that the one watched longest ago is forgotten."""

MASTER = 0
"""The broker id of a master."""


@attrs.frozen(eq=False)
class Route:
    """Where a topic lives, at one moment.

    Args:
        topic: its name.
        data: as the name server told it.
        publish_queues: queues to send to, in Java's order: brokers by name, then queue ids.
        subscribe_queues: queues to pull from.
        addresses: broker name -> broker id -> ``host:port``.
        borrowed: the topic is unknown and these are the default topic's queues.
    """

    topic: str
    data: TopicRouteData
    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    addresses: Mapping[str, Mapping[int, str]]
    borrowed: bool = False

    def master(self, broker_name: str) -> str | None:
        """The address of a broker's master."""
        return self.addresses.get(broker_name, {}).get(MASTER)


def make_route(topic: str, data: TopicRouteData, *, borrowed: bool = False) -> Route:
    """Work out the queues of a route (client.md §4.3)."""
    addresses = {
        broker.broker_name: dict(sorted(broker.broker_addrs.items()))
        for broker in data.broker_datas or []
        if broker.broker_name and broker.broker_addrs
    }
    queue_datas = sorted(data.queue_datas or [], key=lambda queues: queues.broker_name or "")
    return Route(
        topic=topic,
        data=data,
        publish_queues=tuple(_publish_queues(topic, data, queue_datas, addresses)),
        subscribe_queues=tuple(
            MessageQueue(topic, queues.broker_name or "", queue_id)
            for queues in queue_datas
            if queues.perm & PERM_READ
            for queue_id in range(queues.read_queue_nums)
        ),
        addresses=addresses,
        borrowed=borrowed,
    )


def _publish_queues(
    topic: str, data: TopicRouteData, queue_datas: list[QueueData], addresses: Mapping[str, Mapping[int, str]]
) -> list[MessageQueue]:
    if data.order_topic_conf:
        # Upstream asks neither for write permission nor for a master here.
        pairs = [part.split(":") for part in data.order_topic_conf.split(";") if ":" in part]
        return [MessageQueue(topic, name, queue_id) for name, count in pairs for queue_id in range(int(count))]
    return [
        MessageQueue(topic, queues.broker_name or "", queue_id)
        for queues in queue_datas
        if queues.perm & PERM_WRITE and MASTER in addresses.get(queues.broker_name or "", {})
        for queue_id in range(queues.write_queue_nums)
    ]


def borrow(data: TopicRouteData, max_queues: int) -> TopicRouteData:
    """The default topic's route, with its queues bounded as the broker will bound them when it creates the topic."""
    return TopicRouteData(
        broker_datas=data.broker_datas,
        queue_datas=[
            QueueData(
                broker_name=queues.broker_name,
                perm=queues.perm,
                read_queue_nums=min(max_queues, queues.read_queue_nums),
                topic_sys_flag=queues.topic_sys_flag,
                write_queue_nums=min(max_queues, queues.read_queue_nums),
            )
            for queues in data.queue_datas or []
        ],
    )


def route_differs(old: TopicRouteData, new: TopicRouteData) -> bool:
    """Whether two routes differ, the order of brokers aside."""

    def picture(data: TopicRouteData) -> object:
        brokers: list[BrokerData] = sorted(data.broker_datas or [], key=lambda broker: broker.broker_name or "")
        queues = sorted(data.queue_datas or [], key=lambda each: each.broker_name or "")
        return data.order_topic_conf or None, brokers, queues, data.filter_server_table or None

    return picture(old) != picture(new)


class _Question:
    """A topic's route being asked for, by one caller for all."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answered = False
        self.error: MQError | None = None


class Routes:
    """The route cache of one client.

    Args:
        name_servers: whom to ask.
        default_topic: whose queues an unknown topic borrows.
        default_topic_queues: how many of them at most, per broker.
        refresh_every_s: period of the refresh.
        max_topics: how many topics are kept fresh.
    """

    def __init__(
        self,
        name_servers: NameServerGroup,
        *,
        default_topic: str = DEFAULT_TOPIC,
        default_topic_queues: int = DEFAULT_TOPIC_QUEUES,
        refresh_every_s: float = REFRESH_EVERY_S,
        max_topics: int = TOPICS_MAX,
    ) -> None:
        self.changed: list[Callable[[Route], None]] = []
        """Called with every route that is new or has changed."""
        self.forgotten: list[Callable[[str], None]] = []
        """Called with every topic that is no longer kept fresh; whoever needs it again looks it up again."""
        self.default_topic = default_topic
        self.default_topic_queues = default_topic_queues
        self._name_servers = name_servers
        self._refresh_every_s = refresh_every_s
        self._max_topics = max_topics
        self._routes: dict[str, Route] = {}
        self._wanted: dict[str, bool] = {}
        self._questions: dict[str, _Question] = {}

    @property
    def name_server(self) -> str:
        """The name server that is asked now; the whole list while none is chosen."""
        return self._name_servers.chosen or ";".join(self._name_servers.addresses)

    def known(self, topic: str) -> Route | None:
        """The newest route in the cache."""
        return self._routes.get(topic)

    def watch(self, topic: str, *, publishing: bool = False) -> None:
        """Keep a topic's route fresh; ``publishing`` lets an unknown topic borrow the default topic's queues."""
        self._wanted[topic] = publishing or self._wanted.get(topic, False)
        if len(self._wanted) > self._max_topics:
            oldest = next(iter(self._wanted))
            del self._wanted[oldest]
            self._routes.pop(oldest, None)
            for hear in self.forgotten:
                hear(oldest)

    def __len__(self) -> int:
        return len(self._wanted)

    def broker_addresses(self) -> dict[str, Mapping[int, str]]:
        """Broker name -> broker id -> address, over all known routes."""
        found: dict[str, Mapping[int, str]] = {}
        for route in self._routes.values():
            found.update(route.addresses)
        return found

    async def for_publishing(self, topic: str) -> Route:
        """The route to send by; unknown topics are looked up now, and borrow queues if nobody knows them.

        Raises:
            RouteNotFound: neither the topic nor the default topic has a queue to write to.
            MQError: the name server could not be asked.
        """
        self.watch(topic, publishing=True)
        route = self._routes.get(topic)
        if route is None or not route.publish_queues:
            route = await self.refresh(topic)
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        if route is None or not route.publish_queues:
            raise RouteNotFound(f"no route to send to topic {topic}", address=self._name_servers.chosen or "")
        return route

    async def for_subscribing(self, topic: str) -> Route:
        """The route to pull by.

        Raises:
            RouteNotFound: the topic is unknown.
        """
        self.watch(topic)
        route = self._routes.get(topic)
        if route is None:
            route = await self.refresh(topic)
        elif route.borrowed:
            route = await self._new_topic(topic)
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        if route is None or route.borrowed:
            raise RouteNotFound(f"no route to topic {topic}", address=self._name_servers.chosen or "")
        return route

    async def _new_topic(self, topic: str) -> Route | None:
        """The route of a topic that sends of this client borrowed one for: its broker may be about to announce it."""
        pause_s = NEW_TOPIC_PAUSE_S
        limit = trio.current_time() + NEW_TOPIC_S
        route = await self.refresh(topic)
        while (route is None or route.borrowed) and trio.current_time() < limit:
            await trio.sleep(pause_s)
            pause_s *= 2
            route = await self.refresh(topic)
        return route

    async def refresh(self, topic: str) -> Route | None:
        """Ask for a topic's route now; callers of the same topic share one question.

        Returns:
            The newest route, or None when nobody knows the topic.

        Raises:
            MQError: the name server could not be asked, or answered with an error.
        """
        while (question := self._questions.get(topic)) is not None:
            await question.done.wait()
            if question.answered:
                if question.error is not None:
                    error = question.error
                    raise type(error)(error.what, address=error.address, code=error.code, remark=error.remark)
                return self._routes.get(topic)
            # Whoever asked was cancelled: somebody else has to.
        question = self._questions[topic] = _Question()
        try:
            route = await self._refresh(topic)
            question.answered = True
        except MQError as error:
            question.answered, question.error = True, error
            raise
        finally:
            del self._questions[topic]
            question.done.set()
        return route

    async def keep_fresh(self) -> None:
        """Refresh all watched topics for ever; a name server that cannot be asked ends the round."""
        while True:
            await trio.sleep(self._refresh_every_s)
            for topic in list(self._wanted):
                try:
                    await self.refresh(topic)
                except ClientClosed:
                    return  # the end of the client, not a fault
                except MQError as error:
                    log.warning("the route of %s could not be refreshed: %s", topic, error)
                    if isinstance(error, TransientError):
                        break

    async def fetch(self, topic: str) -> TopicRouteData | None:
        """One question to the chosen name server, past the cache; None when it does not know the topic."""
        header = GetRouteInfoRequest(topic=topic)
        answer = await self._name_servers.ask(Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header))
        what, address = f"the route of topic {topic}", self._name_servers.chosen or ""
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_code(answer.code, answer.remark, what=what, address=address)
        try:
            return TopicRouteData.decode(answer.body)
        except BodyError as error:
            raise ProtocolViolation(what, address=address, remark=str(error)) from error

    async def _refresh(self, topic: str) -> Route | None:
        data = await self.fetch(topic)
        borrowed = False
        if data is None and self._wanted.get(topic, False):
            old = self._routes.get(topic)
            if old is not None and not old.borrowed:
                # A topic that was real stays as it was known: a name server may have restarted a moment ago.
                return old
            template = await self.fetch(self.default_topic)
            data = borrow(template, self.default_topic_queues) if template is not None else None
            borrowed = True
        if data is None:
            return self._routes.get(topic)
        return self._store(topic, data, borrowed=borrowed)

    def _store(self, topic: str, data: TopicRouteData, *, borrowed: bool) -> Route:
        old = self._routes.get(topic)
        if old is not None and old.borrowed == borrowed and not route_differs(old.data, data):
            return old
        route = make_route(topic, data, borrowed=borrowed)
        self._routes[topic] = route
        for hear in self.changed:
            hear(route)
        return route
