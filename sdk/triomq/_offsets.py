"""Where consumer groups stand: offsets kept by the brokers (consumer.md §12.2).

Local files are in ``_offset_files.py``, the memory of a running consumer in ``_positions.py``.  Upstream:
``RemoteBrokerOffsetStore``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from triomq._link import Link
from triomq._links import Links
from triomq._message import MessageQueue
from triomq._node_cache import MASTER, find
from triomq._routes import Routes
from triomq.errors import ConnectFailed, MQError, ProtocolViolation, RouteNotFound, error_for_code
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.command import Command
from triomq_protocol.errors import HeaderError
from triomq_protocol.requests import (
    QueryConsumerOffsetRequest,
    QueryConsumerOffsetResponse,
    UpdateConsumerOffsetRequest,
)

OFFSET_TIMEOUT_S = 5.0
"""How long a broker may take for codes 14 and 15 (client.md §3.8)."""


class OffsetStore(Protocol):
    """Keeps the offsets of one consumer group."""

    async def read(self, queue: MessageQueue, /) -> int | None:
        """The committed offset, or None when the group has none there.

        Raises:
            MQError: it cannot be told now.
        """

    async def commit(self, offsets: Mapping[MessageQueue, int], /) -> None:
        """Keep these offsets; lower ones than before are allowed.

        Raises:
            MQError: some may not be kept.
        """


class BrokerLinks:
    """Finds the link over which a queue's offsets are asked and told: the master's, else any of its brokers'.

    Args:
        routes: where topics live.
        links: how brokers are reached.
    """

    def __init__(self, routes: Routes, links: Links) -> None:
        self._routes = routes
        self._links = links

    async def of(self, queue: MessageQueue, *, only_master: bool = False) -> Link:
        """The link to the queue's broker: the master, or the next one at once when it cannot be reached.

        Args:
            queue: whose broker.
            only_master: as long as the route has a master, nobody else will do.

        Raises:
            RouteNotFound: no broker of this name is in the topic's route, also after a refresh.
            ConnectFailed: it cannot be reached.
        """
        addresses = await self.addresses(queue)
        if only_master and MASTER in addresses:
            try:
                return await self._links.get(addresses[MASTER])
            except ConnectFailed:
                addresses = await self.fresh_addresses(queue) or addresses
                if MASTER in addresses:
                    raise
        return await self._nearest(addresses)

    async def _nearest(self, addresses: Mapping[int, str]) -> Link:
        failed: set[str] = set()
        while True:
            node = find(addresses, MASTER, is_down=lambda address: address in failed or self._links.is_down(address))
            assert node is not None
            try:
                return await self._links.get(node.address)
            except ConnectFailed:
                failed.add(node.address)
                if all(each in failed or self._links.is_down(each) for each in addresses.values()):
                    raise

    async def fresh_addresses(self, queue: MessageQueue) -> Mapping[int, str] | None:
        """What the name server says now; None when it cannot be asked, or does not know the broker."""
        try:
            route = await self._routes.refresh(queue.topic)
        except MQError:
            return None
        return route.addresses.get(queue.broker_name) if route is not None else None

    async def addresses(self, queue: MessageQueue) -> Mapping[int, str]:
        """Broker id -> address, of the queue's broker; the route is refreshed once if it is not there.

        Raises:
            RouteNotFound: it is not there then, either.
        """
        route = await self._routes.for_subscribing(queue.topic)
        found = route.addresses.get(queue.broker_name)
        if not found:
            fresh = await self._routes.refresh(queue.topic)
            found = fresh.addresses.get(queue.broker_name) if fresh is not None else None
        if not found:
            raise RouteNotFound(f"broker {queue.broker_name} is not in the route of topic {queue.topic}")
        return found


class BrokerOffsets:
    """Offsets kept by the brokers: the default, shared by all members of the group.

    Args:
        group: consumer group.
        brokers: how brokers are reached.
    """

    def __init__(self, group: str, brokers: BrokerLinks) -> None:
        self._group = group
        self._brokers = brokers

    async def read(self, queue: MessageQueue, /) -> int | None:
        """Ask the broker (code 14)."""
        link = await self._brokers.of(queue)
        header = QueryConsumerOffsetRequest(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        answer = await link.request(Command.request(RequestCode.QUERY_CONSUMER_OFFSET, header), OFFSET_TIMEOUT_S)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        what = f"the offset of group {self._group} in {queue}"
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_code(answer.code, answer.remark, what=what, address=link.address)
        try:
            return answer.header(QueryConsumerOffsetResponse).offset
        except HeaderError as error:
            raise ProtocolViolation(what, address=link.address, remark=str(error)) from error

    async def commit(self, offsets: Mapping[MessageQueue, int], /) -> None:
        """Tell the brokers (code 15) and wait for their answers.

        Never a slave as long as the route has a master: its word would be overwritten by the master's.
        """
        for queue, offset in offsets.items():
            link = await self._brokers.of(queue, only_master=True)
            header = UpdateConsumerOffsetRequest(
                consumer_group=self._group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                commit_offset=offset,
                bname=queue.broker_name,
            )
            answer = await link.request(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header), OFFSET_TIMEOUT_S)
            if answer.code != ResponseCode.SUCCESS:
                what = f"committing offset {offset} of group {self._group} in {queue}"
                raise error_for_code(answer.code, answer.remark, what=what, address=link.address)
