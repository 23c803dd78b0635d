"""Finds the link to a queue's broker: the route has its address, the client's links carry the request.

Offset queries, queue locks and messages sent back use it; sends choose their queue, and with it the master,
in ``_producer``.  Upstream: ``MQClientInstance.findBrokerAddressInSubscribe``.
"""

from __future__ import annotations

from collections.abc import Mapping

from triomq._cluster.replica_choice import find
from triomq._cluster.routes import Routes
from triomq._message.message import MessageQueue
from triomq._message.namespace import Namespace
from triomq._transport.link import Link
from triomq._transport.links import Links
from triomq.errors import BrokerNotFound, ConnectFailed, MQError
from triomq_protocol.names import MASTER_ID


class BrokerLinks:
    """Finds the link to a queue's broker: its master's, or that of another broker of the same name.

    Args:
        routes: where topics live.
        links: the client's links.
    """

    def __init__(self, routes: Routes, links: Links) -> None:
        self._routes = routes
        self._links = links
        self._to_masters: dict[str, Link] = {}
        """Broker -> the last link to its master."""
        self.namespace: Namespace = routes.namespace

    def topic_of(self, queue: MessageQueue) -> str:
        """A queue's topic as its broker knows it."""
        return self.namespace.wrap(queue.topic)

    async def of(self, queue: MessageQueue, *, only_master: bool = False) -> Link:
        """The link to the queue's broker: the master, or at once the next one if it cannot be reached.

        Args:
            queue: the queue.
            only_master: choose no other broker as long as the route has a master.

        Raises:
            BrokerNotFound: no broker of this name is in the topic's route, even after a refresh, and its master is not
                connected.
            ConnectFailed: it cannot be reached.
        """
        try:
            addresses = await self.addresses(queue)
        except MQError:
            # A broker out of the route may run, as after the restart of a name server: a queue that is given up for that
            # can be committed and unlocked, or its next owner would begin earlier, or wait until the lock has expired.
            link = self._to_masters.get(queue.broker_name)
            if link is None or not link.is_open:
                raise
            return link
        link = await self._of(queue, addresses, only_master=only_master)
        if link.address == addresses.get(MASTER_ID):
            self._to_masters[queue.broker_name] = link
        return link

    async def _of(self, queue: MessageQueue, addresses: Mapping[int, str], *, only_master: bool) -> Link:
        if only_master and MASTER_ID in addresses:
            try:
                return await self._links.get(addresses[MASTER_ID])
            except ConnectFailed:
                addresses = await self.fresh_addresses(queue) or addresses
                if MASTER_ID in addresses:
                    raise
        return await self._nearest(addresses)

    async def _nearest(self, addresses: Mapping[int, str]) -> Link:
        failed: set[str] = set()
        while True:
            node = find(addresses, MASTER_ID, is_down=lambda address: address in failed or self._links.is_down(address))
            assert node is not None
            try:
                return await self._links.get(node.address)
            except ConnectFailed:
                failed.add(node.address)
                if all(each in failed or self._links.is_down(each) for each in addresses.values()):
                    raise

    async def fresh_addresses(self, queue: MessageQueue) -> Mapping[int, str] | None:
        """Broker id -> address, fresh from the name server, or of a moment ago; None if it cannot be asked, or has no such
        broker."""
        try:
            route = await self._routes.refresh_failing(queue.topic)
        except MQError:
            return None
        return route.addresses.get(queue.broker_name) if route is not None else None

    async def addresses(self, queue: MessageQueue) -> Mapping[int, str]:
        """Broker id -> address, of the queue's broker; the route is refreshed once if it lacks the broker.

        Raises:
            BrokerNotFound: it is not in the refreshed route either.
        """
        route = await self._routes.for_subscribing(queue.topic)
        found = route.addresses.get(queue.broker_name)
        if not found:
            fresh = await self._routes.refresh(queue.topic)
            found = fresh.addresses.get(queue.broker_name) if fresh is not None else None
        if not found:
            raise BrokerNotFound(f"broker {queue.broker_name} is not in the route of topic {queue.topic}")
        return found
