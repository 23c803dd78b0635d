"""Heartbeats: they report this client's group memberships to brokers (docs/protocol/client.md §5).

A broker reaches a client over the link of its last heartbeat, so one is sent at once when a link is opened again, and at
every change of membership.  Upstream: ``MQClientInstance``.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from typing import Final

import trio

from triomq._cluster.name_servers import API_TIMEOUT_S
from triomq._cluster.route import Route
from triomq._cluster.routes import Routes
from triomq._tasks.exception_groups import open_plain_nursery
from triomq._transport.link import Link
from triomq._transport.links import Links
from triomq.errors import InvalidCall, MQError, NotANameServer
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.names import MASTER_ID
from triomq_protocol.requests import ConsumerData, HeartbeatData, ProducerData, UnregisterClientRequest
from triomq_protocol.wire.command import Command

log = logging.getLogger("triomq.heartbeats")

HEARTBEAT_EVERY_S: Final = 30.0
"""Period (``heartbeatBrokerInterval``)."""

LOST_AGAIN_S: Final = 3.0
"""How soon, and how often, a broker that should know consumers, or may ask about transactions, is dialled again after its
link was lost."""

MASTERS_AGAIN_S: Final = 3.0
"""How soon the name server is asked again for all masters if it has not answered."""

LEAVE_TIMEOUT_S: Final = 2.0
"""How long unregistering may delay the end of a producer or consumer."""


class _Turns:
    """The heartbeats of one link: one at a time, since brokers may handle two in either order.

    Attributes:
        lock: held while a heartbeat is sent.
        begun: number of heartbeats begun.
        ended: the number of the last completed one; cancelled ones do not count.
        users: number of tasks that send one or wait for their turn.
    """

    __slots__ = ("begun", "ended", "lock", "users")

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.begun = 0
        self.ended = 0
        self.users = 0


class Heartbeats:
    """The groups of one client, and the tasks that report them.

    Args:
        client_id: the id under which brokers know the client.
        routes: the addresses of brokers.
        links: the links to them.
        nursery: runs the heartbeats of links that have just opened.
        every_s: the period in seconds.
    """

    def __init__(
        self, client_id: str, routes: Routes, links: Links, nursery: trio.Nursery, *, every_s: float = HEARTBEAT_EVERY_S
    ) -> None:
        self.client_id = client_id
        self._routes = routes
        self._links = links
        self._nursery = nursery
        self._every_s = every_s
        self._producers: set[str] = set()
        # Counts the changes of the above, and records for each link the change that its peer knows.
        self._changes = 0
        self._sent: weakref.WeakKeyDictionary[Link, int] = weakref.WeakKeyDictionary()
        # Groups that brokers ask about transactions: each master must know them, even one that they do not send to.
        self._answering: set[str] = set()
        self._masters: frozenset[str] | None = None
        self._consumers: dict[str, ConsumerData] = {}
        self._change = trio.Event()
        self._first_beats: dict[Link, trio.Event] = {}
        self._turns: dict[Link, _Turns] = {}
        self._lost: set[str] = set()
        links.opened.append(self._link_opened)
        links.lost.append(self._link_lost)
        routes.changed.append(self._route_changed)

    def add_producer(self, group: str, *, answers: bool = False) -> None:
        """Join a producer group; a heartbeat reports it at once.

        Args:
            group: its name.
            answers: whether it answers checks of transactions; every master that is registered then gets heartbeats.

        Raises:
            InvalidCall: this client is already in the group.
        """
        if group in self._producers:
            raise InvalidCall(f"this client has a producer of group {group} already; share it, or close it first")
        self._producers.add(group)
        self._changes += 1
        if answers:
            self._answering.add(group)
        self._change.set()

    def add_consumer(self, group: str, data: ConsumerData) -> None:
        """Join a consumer group.

        Raises:
            InvalidCall: this client is already in the group.
        """
        if group in self._consumers:
            raise InvalidCall(f"this client has a consumer of group {group} already; share it, or close it first")
        self._consumers[group] = data
        self._change.set()

    def update_consumer(self, group: str, data: ConsumerData) -> None:
        """Update a consumer's subscriptions: the next heartbeat reports them; :meth:`beat` reports them now."""
        if group in self._consumers:
            self._consumers[group] = data

    async def remove_producer(self, group: str) -> None:
        """Leave a producer group, and unregister it at every broker that answers."""
        self._producers.discard(group)
        self._answering.discard(group)
        await self._unregister(UnregisterClientRequest(client_id=self.client_id, producer_group=group))

    async def remove_consumer(self, group: str) -> None:
        """Leave a consumer group."""
        self._consumers.pop(group, None)
        await self._unregister(UnregisterClientRequest(client_id=self.client_id, consumer_group=group))

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Send heartbeats until cancelled, every period and at every change."""
        while True:
            looks_again = bool(self._answering) and self._masters is None
            with trio.move_on_after(min(self._every_s, MASTERS_AGAIN_S) if looks_again else self._every_s):
                await self._change.wait()
            self._change = trio.Event()
            if self._answering:
                await self._look_for_masters()
            await self.beat()

    async def beat(self) -> None:
        """Send one round: to every broker that should know this client, concurrently."""
        async with open_plain_nursery() as nursery:
            for address in self._addresses():
                nursery.start_soon(self._beat_at, address)

    def first_beat(self, link: Link) -> trio.Event | None:
        """An event that is set when the immediate heartbeat of a new link has been answered, or has failed.

        Returns:
            None if that has already happened, or will not happen.
        """
        return self._first_beats.get(link)

    def reached(self, addresses: Iterable[str]) -> bool:
        """Whether all these brokers know all producer groups of this client, on open links."""
        links = map(self._links.ready, addresses)
        return all(link is not None and self._sent.get(link) == self._changes for link in links)

    async def reach(self, addresses: Iterable[str]) -> None:
        """Report this client's producer groups to the brokers that do not know them yet, and wait for answers.

        Brokers that cannot be reached are skipped.
        """
        async with open_plain_nursery() as nursery:
            for address in addresses:
                if not self.reached([address]):
                    nursery.start_soon(self._beat_at, address)

    def body(self) -> HeartbeatData:
        """The body of a heartbeat."""
        return HeartbeatData(
            client_id=self.client_id,
            consumer_data_set=[self._consumers[group] for group in sorted(self._consumers)],
            producer_data_set=[ProducerData(group_name=group) for group in sorted(self._producers)],
        )

    def _addresses(self) -> list[str]:
        if not self._producers and not self._consumers:
            return []
        # A slave does not need a client that only sends.
        found = [
            address
            for broker in self._routes.broker_addresses().values()
            for broker_id, address in broker.items()
            if self._consumers or broker_id == MASTER_ID
        ]
        return found + sorted(self._further_masters().difference(found))

    def _further_masters(self) -> frozenset[str]:
        """The masters that must know a group although no route of this client names them."""
        return (self._masters or frozenset()) if self._answering else frozenset()

    async def _look_for_masters(self) -> None:
        try:
            self._masters = await self._routes.masters()
        except NotANameServer as error:
            # A RocketMQ 5 proxy lists no brokers; it is the only one that asks about transactions.
            log.debug("no further masters: %s", error.reason)
            self._masters = frozenset()
        except MQError as error:
            log.info("the masters that may ask about transactions are not known now: %s", error.reason)

    @trio.lowlevel.enable_ki_protection
    async def _beat_at(self, address: str) -> None:
        link = self._links.ready(address)
        if link is not None:
            await self._beat_on(link)
            return
        try:
            link = await self._links.get(address)
        except MQError as error:
            log.info("no heartbeat to %s: %s", address, error.reason)
            return
        # Opening the link sends the heartbeat; wait until that has been answered.
        first = self.first_beat(link)
        if first is not None:
            await first.wait()
        else:
            await self._beat_on(link)

    async def _beat_on(self, link: Link) -> None:
        turns = self._turns.setdefault(link, _Turns())
        turns.users += 1
        begun = turns.begun
        try:
            async with turns.lock:
                # One that began meanwhile carried what this one would.
                if turns.ended <= begun:
                    turns.begun += 1
                    await self._send(link)
                    turns.ended = turns.begun
        finally:
            turns.users -= 1
            if not turns.users:
                del self._turns[link]

    async def _send(self, link: Link) -> None:
        changes = self._changes
        try:
            answer = await link.request(
                Command.request(RequestCode.HEART_BEAT, body=self.body().encode()), API_TIMEOUT_S
            )
        except MQError as error:
            log.info("no heartbeat to %s: %s", link.address, error.reason)
            return
        if answer.code == ResponseCode.SUCCESS:
            link.peer_version = answer.version
            self._sent[link] = changes
        else:
            log.warning("%s refused a heartbeat with code %d: %s", link.address, answer.code, answer.remark)

    def _link_opened(self, link: Link) -> None:
        if link.address in self._addresses():
            self._first_beats[link] = trio.Event()
            self._nursery.start_soon(self._beat_first, link)

    @trio.lowlevel.enable_ki_protection
    async def _beat_first(self, link: Link) -> None:
        try:
            await self._beat_on(link)
        finally:
            self._first_beats.pop(link).set()

    @property
    def _must_return(self) -> bool:
        """Whether brokers must know this client all the time."""
        return bool(self._answering or self._consumers)

    def _link_lost(self, link: Link) -> None:
        # Nothing else may dial it for a whole period, in which a restarted broker would know no producer to ask, and would
        # list the members of a group without those that have no queue there: others would take all their queues.
        if self._must_return and link.address not in self._lost and link.address in self._addresses():
            self._lost.add(link.address)
            self._nursery.start_soon(self._return_to, link.address)

    @trio.lowlevel.enable_ki_protection
    async def _return_to(self, address: str) -> None:
        try:
            while True:
                await trio.sleep(LOST_AGAIN_S)
                if not self._must_return or address not in self._addresses() or self._links.ready(address) is not None:
                    return
                await self._beat_at(address)
        finally:
            self._lost.remove(address)

    def _route_changed(self, _route: Route) -> None:
        links = [self._links.ready(address) for address in self._addresses()]
        # A link that is already open, as for an administrative call, carried no heartbeat when it was opened.
        if any(link is None or link not in self._sent for link in links):
            self._change.set()

    async def _unregister(self, header: UnregisterClientRequest) -> None:
        with trio.move_on_after(LEAVE_TIMEOUT_S):
            await self._unregister_everywhere(header)

    async def _unregister_everywhere(self, header: UnregisterClientRequest) -> None:
        known = {address for broker in self._routes.broker_addresses().values() for address in broker.values()}
        known |= self._masters or frozenset()
        async with open_plain_nursery() as nursery:
            for link in self._links.open_links():
                if link.address in known:
                    nursery.start_soon(self._unregister_at, link, header)

    @trio.lowlevel.enable_ki_protection
    async def _unregister_at(self, link: Link, header: UnregisterClientRequest) -> None:
        try:
            await link.request(Command.request(RequestCode.UNREGISTER_CLIENT, header), API_TIMEOUT_S)
        except MQError as error:
            log.info("could not unregister at %s: %s", link.address, error.reason)
