"""Chooses the target of a message's next attempt: a queue of its topic, round robin, and the link to the queue's broker.

Routes come from ``_cluster``, which also reports changes; ``faults.py`` decides which broker is better.
Upstream: ``TopicPublishInfo``, ``DefaultMQProducerImpl.selectOneMessageQueue``.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

import trio
from cachetools import LRUCache

from triomq._cluster.route import Route
from triomq._cluster.route_wait import PAUSES, WAITED_FOR, dial_again
from triomq._cluster.routes import TOPICS_MAX, Routes
from triomq._message.message import MessageQueue
from triomq._producer.attempts.outgoing import Outgoing
from triomq._producer.attempts.send_template import SendTemplate
from triomq._producer.strategies.faults import FaultStrategy, choose_plain
from triomq._transport.link import Link
from triomq._transport.links import Links
from triomq.errors import BrokerNotFound, ClientClosed, ConnectFailed, MQError, NotANameServer, NotReady

T = TypeVar("T")

log = logging.getLogger("triomq.producer")

DIAL_DOUBT_S: Final = 0.5
"""If a master's connection is not open after this time, its route is asked for: another address may have replaced it.
Sends may have less time than a dial, and would not see it fail."""

NO_CAPACITY: Final = "no connection with capacity for another send to topic {} in time"


class Target:
    """One queue to send to.

    Args:
        queue: the queue.
        address: its broker's master; empty if the route has none.
    """

    __slots__ = ("address", "queue", "template")

    def __init__(self, queue: MessageQueue, address: str) -> None:
        self.queue: MessageQueue = queue
        self.address: str = address
        self.template: SendTemplate | None = None


class TopicTargets:
    """The queues of one route, in round robin.

    Args:
        route: the snapshot that lists them.
        start: the number at which the round robin starts.
    """

    __slots__ = ("_by_queue", "_count", "masters", "queues", "route", "several_brokers", "targets", "topic")

    def __init__(self, route: Route, start: int) -> None:
        self.route: Route = route
        self.topic: str = route.topic
        self.queues: tuple[MessageQueue, ...] = route.publish_queues
        self.targets: list[Target] = [Target(queue, route.master(queue.broker_name) or "") for queue in self.queues]
        self.several_brokers: bool = len({queue.broker_name for queue in self.queues}) > 1
        self.masters: list[str] = list(dict.fromkeys(target.address for target in self.targets if target.address))
        self._by_queue = {target.queue: target for target in self.targets}
        self._count = start

    def count(self) -> int:
        """The next number of the round robin, masked to 31 bits as upstream."""
        self._count = count = (self._count + 1) & 0x7FFFFFFF
        return count

    def upcoming(self) -> Target | None:
        """The target for the next :meth:`count`, if there are any targets."""
        targets = self.targets
        return targets[((self._count + 1) & 0x7FFFFFFF) % len(targets)] if targets else None

    def of(self, queue: MessageQueue) -> Target:
        """The target for a queue, also for one that the route does not list."""
        target = self._by_queue.get(queue)
        return target if target is not None else Target(queue, self.route.master(queue.broker_name) or "")


class Targets:
    """The topics that one producer group sends to.

    Args:
        routes: where topics live; their changes are followed until :meth:`close`.
        links: the links to brokers.
        faults: decides which brokers are avoided; None chooses round robin.
        chance: gives the starts of round robins.
        first_timeouts_s: seconds that a first attempt may take if there is no other broker, and if there is one.

    Attributes:
        latest: the topic of the last send.
    """

    def __init__(
        self,
        routes: Routes,
        links: Links,
        *,
        faults: FaultStrategy | None,
        chance: random.Random,
        first_timeouts_s: tuple[float, float],
    ) -> None:
        self._routes = routes
        self._links = links
        self._faults = faults
        self._chance = chance
        self._first_timeouts_s = first_timeouts_s
        self._topics: LRUCache[str, TopicTargets] = LRUCache(TOPICS_MAX)
        # Most messages go to the topic of the one before: comparing two names is cheaper than a look-up in the cache.
        self.latest: TopicTargets | None = None
        # Topic -> the event after which all sends that wait for its brokers try again.
        self._waiting: dict[str, trio.Event] = {}
        self._readying: set[trio.CancelScope] = set()
        self._opening: dict[trio.CancelScope, Target] = {}
        """What sends and ends of transactions wait for a connection, or for capacity, to which target."""
        self._refuses = False
        routes.changed.append(self._route_changed)
        routes.forgotten.append(self._route_forgotten)

    def refuse(self) -> None:
        """End :meth:`ready` and :meth:`queues_of` with :class:`~triomq.errors.ClientClosed` from now on, also where they
        wait, and :meth:`pause` early: the producer is closed."""
        self._refuses = True
        for scope in self._readying:
            scope.cancel()

    def close(self) -> None:
        """Stop following route changes."""
        self._routes.changed.remove(self._route_changed)
        self._routes.forgotten.remove(self._route_forgotten)

    def known(self, topic: str) -> TopicTargets | None:
        """The queues of a topic, if its route was needed before."""
        latest = self.latest
        if latest is not None and latest.topic == topic:
            return latest
        found = self._topics.get(topic)
        if found is not None:
            self.latest = found
        return found

    async def of(self, topic: str) -> TopicTargets:
        """The queues of a topic, looked up if need be.

        Raises:
            MQError: there are none, or no name server answers.
        """
        found = self.known(topic)
        if found is None or not found.queues:
            found = self._take(await self._routes.for_publishing(topic), found)
        return found

    def ready_nowait(self, out: Outgoing) -> tuple[Target, Link, float] | None:
        """Queue, open link and timeout for a first attempt; None if it must wait for something first."""
        targets = self.latest
        if targets is None or targets.topic != out.topic:
            targets = self.known(out.topic)
        if targets is None or not targets.queues or self._refuses:
            return None
        elsewhere = targets.several_brokers
        if out.pinned is not None:
            target, elsewhere = targets.of(out.pinned), False
        elif self._faults is None:
            target = targets.targets[targets.count() % len(targets.targets)]
        else:
            target = targets.of(self._faults.choose(targets.queues, None, targets.count, trio.current_time()))
        link = self._links.ready(target.address)
        if link is None or not link.has_capacity:
            # Otherwise the send would wait for the next queue; if that always belonged to another broker, this one
            # would never be dialled.
            out.unready_queue = target.queue
            return None
        return target, link, self._first_timeouts_s[elsewhere]

    def idle_nowait(self, topic: str) -> tuple[Target, Link, float, TopicTargets] | None:
        """Next queue, open link and timeout for a first attempt, if nothing waits on that link; otherwise None. The round
        robin stays: the caller counts when the message can be sent."""
        targets = self.latest
        if targets is None or targets.topic != topic or self._faults is not None:
            return None
        target = targets.upcoming()
        if target is None:
            return None
        link = self._links.ready(target.address)
        if link is None or link.pending or link.unsent_bytes:
            return None
        return target, link, self._first_timeouts_s[targets.several_brokers], targets

    async def ready(self, out: Outgoing, until: float) -> tuple[Target, Link]:
        """Choose a queue and open the link to its broker's master; waits while none is available.

        Args:
            out: the message; ``out.last_broker`` is set to the chosen broker.
            until: on trio's clock; the end of this attempt if nothing refuses it, but nothing answers either.

        Raises:
            NotReady: no route, or no connection with capacity, in time.
            ClientClosed: the producer is closed.
            MQError: no route, no master, or no connection, also at ``out.wait_until``.
        """
        share_s = until - trio.current_time()
        return await self._unless_refused(
            lambda: self._ready_at_once(out, min(out.deadline, trio.current_time() + share_s)), out
        )

    async def queues_of(self, out: Outgoing) -> list[MessageQueue]:
        """The queues from which the sender of a message chooses one; waits as long as there are none.

        Raises:
            ClientClosed: the producer is closed.
            MQError: there are none, or no name server answers, also at ``out.wait_until``.
        """
        targets = await self._unless_refused(lambda: self.of(out.topic), out)
        return list(targets.queues)

    async def pause(self, seconds: float) -> None:
        """Wait before a further attempt, which raises :class:`~triomq.errors.ClientClosed` if :meth:`refuse` is called."""
        with trio.CancelScope() as scope:
            self._readying.add(scope)
            try:
                await trio.sleep(0 if self._refuses else seconds)
            finally:
                self._readying.discard(scope)

    async def _unless_refused(self, call: Callable[[], Awaitable[T]], out: Outgoing) -> T:
        """:meth:`wait_for` until :meth:`refuse`."""
        if not self._refuses:
            with trio.CancelScope() as scope:
                self._readying.add(scope)
                try:
                    found = await self.wait_for(call, out)
                finally:
                    self._readying.discard(scope)
                if not self._refuses:
                    return found
        raise ClientClosed("the client was closed" if self._links.closes_soon else "the producer is closed")

    async def wait_for(self, call: Callable[[], Awaitable[T]], out: Outgoing) -> T:
        """Make a call, and repeat it with pauses while the topic has no route, or no master that can be reached.

        Sends that wait for the same topic look for its brokers together. Time spent here moves the deadline of a
        message that may wait beyond it.

        Raises:
            MQError: the last error of the call, at ``out.wait_until``.
        """
        started = trio.current_time()
        looks, moves_deadline = 0, out.wait_until > out.deadline
        while True:
            try:
                return await call()
            except WAITED_FOR as error:
                if isinstance(error, NotANameServer) or trio.current_time() >= out.wait_until:
                    raise
                if isinstance(error, ConnectFailed) and out.pinned is None and self._has_another(out.topic):
                    continue
                looks += 1
                with trio.move_on_at(out.wait_until):
                    await self._look_again(out.topic, looks)
                now = trio.current_time()
                if moves_deadline:
                    out.deadline, started = out.deadline + now - started, now
                if now >= out.wait_until:
                    out.waited_in_vain = True
                    raise

    async def _look_again(self, topic: str, number: int) -> None:
        waiting = self._waiting.get(topic)
        if waiting is not None:
            await waiting.wait()
            return
        waiting = self._waiting[topic] = trio.Event()
        try:
            await trio.sleep(PAUSES.pause_s(number, self._chance.random()))
            await self._refresh(topic)
            targets = self.known(topic)
            if targets is not None:
                await dial_again(self._links, targets.masters)
        finally:
            del self._waiting[topic]
            waiting.set()

    def _has_another(self, topic: str) -> bool:
        """Whether a broker of the topic has a master that may be dialled now."""
        targets = self.known(topic)
        return targets is not None and not all(self._links.is_down(address) for address in targets.masters)

    async def _ready_at_once(self, out: Outgoing, until: float) -> tuple[Target, Link]:
        with trio.move_on_at(until):
            if out.refresh_route:
                out.refresh_route = False
                await self._refresh(out.topic)
            while True:
                targets = await self.of(out.topic)
                target = targets.of(self._queue_for(out, targets))
                out.last_broker = target.queue.broker_name
                if not target.address:
                    out.refresh_route = True
                    raise BrokerNotFound(
                        f"broker {out.last_broker} has no master in the route of topic {out.topic}",
                        address=self._routes.name_server,
                    )
                link = self._links.ready(target.address)
                if link is None or not link.has_capacity:
                    link = await self._open(out, target)
                else:
                    await trio.lowlevel.checkpoint_if_cancelled()
                if link is not None:
                    return target, link
        known = self.known(out.topic)
        if known is None or not known.queues:
            what = f"no route to topic {out.topic} in time"
            raise NotReady(what, address=self._routes.name_server, remark=self._routes.name_server_trouble)
        address = self._awaited_master(out, known)
        self.doubt(out.topic, address, "no connection in time")
        raise NotReady(NO_CAPACITY.format(out.topic), address=address)

    async def _open(self, out: Outgoing, target: Target) -> Link | None:
        """A link with capacity to a queue's master; None if the route names another master meanwhile.

        Raises:
            MQError: it cannot be reached.
        """
        with self._until_moved(target):
            try:
                while True:
                    link = await self._dial(out.topic, target.address)
                    if link.has_capacity:
                        return link
                    await link.wait_capacity()  # or until it is lost: nothing has been sent on it
            except ConnectFailed:
                out.refresh_route = True
                self._note_fault(target.queue.broker_name)
                raise
        return None

    @contextmanager
    def _until_moved(self, target: Target) -> Iterator[trio.CancelScope]:
        """A scope that is cancelled when the route names another master of the target's broker."""
        with trio.CancelScope() as scope:
            self._opening[scope] = target
            try:
                yield scope
            finally:
                del self._opening[scope]

    async def _dial(self, topic: str, address: str) -> Link:
        with trio.move_on_after(DIAL_DOUBT_S):
            return await self._links.get(address)
        self.doubt(topic, address, f"no connection within {DIAL_DOUBT_S:g} s")
        return await self._links.get(address)

    def _note_fault(self, broker_name: str) -> None:
        if self._faults is not None:
            self._faults.update(broker_name, 0.0, trio.current_time(), isolate=True)

    async def master(self, queue: MessageQueue) -> Link:
        """The link to the master of the broker that has taken a message, for requests that follow the send.

        Raises:
            BrokerNotFound: the refreshed route names no master.
            MQError: it cannot be reached.
        """
        address = self._master_address(queue)
        if address is not None:
            with self._until_moved(Target(queue, address)) as scope, suppress(ConnectFailed):
                # It continues while the name servers are asked: they may be silent.
                return await self._dial(queue.topic, address)
            if scope.cancelled_caught:
                return await self.master(queue)
            log.info("the master of %s cannot be reached at %s: asking for the route", queue.broker_name, address)
        await self._refresh(queue.topic)
        address = self._master_address(queue)
        if address is None:
            raise BrokerNotFound(
                f"broker {queue.broker_name} has no master in the route of topic {queue.topic}",
                address=self._routes.name_server,
            )
        return await self._links.get(address)

    def doubt(self, topic: str, address: str, why: str) -> None:
        """Ask for a topic's route again, as a broker has not taken a send to it; see :meth:`Routes.doubt`."""
        self._routes.doubt(topic, address, why)

    def _master_address(self, queue: MessageQueue) -> str | None:
        targets = self.known(queue.topic)
        return targets.route.master(queue.broker_name) if targets is not None else None

    def several_brokers(self, topic: str) -> bool | None:
        """Whether a topic has queues on more than one broker; None as long as its route is unknown."""
        targets = self.known(topic)
        return targets.several_brokers if targets is not None else None

    def redial_in_s(self, out: Outgoing) -> float:
        """Seconds until the broker of a message's last attempt may be dialled again; 0 if it may be now."""
        targets = self.known(out.topic)
        if targets is None or out.last_broker is None:
            return 0.0
        return self._links.retry_in_s(targets.route.master(out.last_broker) or "")

    @staticmethod
    def _awaited_master(out: Outgoing, targets: TopicTargets) -> str:
        return (targets.route.master(out.last_broker) if out.last_broker is not None else None) or ""

    def _queue_for(self, out: Outgoing, targets: TopicTargets) -> MessageQueue:
        if out.pinned is not None:
            return out.pinned
        queue, out.unready_queue = out.unready_queue, None
        if queue is not None and queue in targets.queues and self._may_be_dialled(targets, queue):
            return queue
        return self._choose(targets, out.last_broker)

    def _choose(self, targets: TopicTargets, last_broker: str | None) -> MessageQueue:
        faults, now = self._faults, trio.current_time()
        if faults is not None:
            queue = faults.choose(targets.queues, last_broker, targets.count, now)
        else:
            queue = choose_plain(targets.queues, last_broker, targets.count)
        if self._may_be_dialled(targets, queue):
            return queue
        # Not repeated for each queue: a broker may have hundreds, and many sends may choose in one turn of the loop.
        up = {address for address in targets.masters if not self._links.is_down(address)}
        if not up:
            return queue
        if faults is not None:
            left = [target.queue for target in targets.targets if target.address in up]
            return faults.choose(left, last_broker, targets.count, now)
        wanted = up - {targets.route.master(last_broker) if last_broker is not None else None} or up
        while True:
            target = targets.targets[targets.count() % len(targets.targets)]
            if target.address in wanted:
                return target.queue

    def _may_be_dialled(self, targets: TopicTargets, queue: MessageQueue) -> bool:
        master = targets.route.master(queue.broker_name)
        return master is not None and not self._links.is_down(master)

    async def _refresh(self, topic: str) -> None:
        try:
            await self._routes.refresh(topic)
        except MQError as error:
            log.info("the route of %s could not be refreshed: %s", topic, error.reason)

    def _take(self, route: Route, old: TopicTargets | None) -> TopicTargets:
        # The round robin continues where it was.
        targets = TopicTargets(route, self._chance.randrange(2**31) if old is None else old.count())
        self._topics[route.topic] = self.latest = targets
        return targets

    def _route_changed(self, route: Route) -> None:
        old = self._topics.get(route.topic)
        if old is not None:
            self._take(route, old)
            for scope, target in self._opening.items():
                master = route.master(target.queue.broker_name)
                if target.queue.topic == route.topic and master not in (None, target.address):
                    scope.cancel()

    def _route_forgotten(self, topic: str) -> None:
        self._topics.pop(topic, None)
        if self.latest is not None and self.latest.topic == topic:
            self.latest = None
