"""Moves the offsets of a group: its members are notified, or the brokers' offsets are set (docs/protocol/admin.md §5)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from triomq._admin.broker_sets import Silent
from triomq._admin.group_results import ResetQueue
from triomq._admin.long_bodies import body_of
from triomq._admin.masters import ask_broker, masters_of
from triomq._cluster.broker_links import BrokerLinks
from triomq._cluster.broker_offsets import OFFSET_TIMEOUT_S, BrokerOffsets
from triomq._cluster.queue_bounds import QueueBounds
from triomq._cluster.route_wait import RouteWait
from triomq._cluster.routes import Routes
from triomq._constructors import construct
from triomq._half_done import with_places
from triomq._message.message import MessageQueue
from triomq._tasks.exception_groups import open_plain_nursery
from triomq._transport.links import Links
from triomq.errors import BrokerFault, BrokerNotFound, GroupNotFound, InvalidCall, MQError, NotFound
from triomq_protocol.codes import FIRST_VERSION_5, RequestCode
from triomq_protocol.requests import ConsumerConnection, ResetOffsetBody, ResetOffsetRequest
from triomq_protocol.wire.command import Command

END: Final = -1
"""The ends of the queues, in place of a time."""


@contextmanager
def _unknown_group(group: str) -> Iterator[None]:
    """Add how to create a group to the error of a RocketMQ 5 broker, which keeps no offsets of unknown groups."""
    try:
        yield
    except GroupNotFound as error:
        error.add_note(f"The group has to exist first: `triomq groups {group} --create` creates it at all brokers.")
        raise


class OffsetResets:
    """Moves groups to a time or to offsets; arguments are checked by :class:`GroupAdmin`.

    Args:
        routes: the client's routes.
        links: the links to brokers.
        route_wait: makes calls wait for a broker.
        is_known: whether some broker has a group; silent brokers are not asked, and added.
        members: the online members of a group; None: there are none.
    """

    def __init__(
        self,
        routes: Routes,
        links: Links,
        route_wait: RouteWait,
        *,
        is_known: Callable[[str, Silent], Awaitable[bool]],
        members: Callable[[str], Awaitable[ConsumerConnection | None]],
    ) -> None:
        self._routes = routes
        self._wrap = routes.namespace.wrap
        self._links = links
        self._route_wait = route_wait
        self._is_known = is_known
        self._members = members
        self._brokers = BrokerLinks(routes, links)

    async def to_time(
        self, group: str, topic: str, time_ms: int, *, new_group: bool, silent: Silent
    ) -> list[ResetQueue]:
        """Move a group at all masters of a topic; see :meth:`GroupAdmin.reset`.

        Args:
            group: the group's name.
            topic: the topic's name.
            time_ms: ms since 1970, or :data:`END`.
            new_group: whether a group that no broker knows is moved, too.
            silent: the address of a broker that is not asked -> why it does not answer.
        """
        with suppress(MQError):  # the known route is used if no name server answers
            await self._routes.refresh(topic)  # it may lack new queues and brokers
        masters, lacking = await masters_of(self._routes, topic)
        unknown = new_group and not await self._is_known(group, silent)
        done: dict[str, list[ResetQueue]] = {}
        failures: dict[str, MQError] = {}

        async def reset_at(name: str) -> None:
            address = masters[name]
            try:
                if address in silent:
                    raise BrokerNotFound(
                        f"reset of group {group} in topic {topic}: the master {address} does not answer: {silent[address]}"
                    )
                if unknown:
                    done[name] = await self._reset_offline(group, topic, name, time_ms)
                else:
                    done[name] = await self._reset_at(name, address, group, topic, time_ms)
            except MQError as error:
                failures[name] = error

        async with open_plain_nursery() as nursery:
            for name in masters:
                nursery.start_soon(reset_at, name)
        for _, failure in sorted(failures.items()):
            raise with_places(failure, sorted(done), [*sorted(failures), *lacking])
        if lacking:
            raise BrokerNotFound(
                f"group {group} in topic {topic} was moved on {', '.join(sorted(done))}, and not on {', '.join(lacking)}: no "
                "master of it is registered; start it, then move the group again"
            )
        return [each for _, queues in sorted(done.items()) for each in queues]

    async def _reset_at(self, name: str, address: str, group: str, topic: str, time_ms: int) -> list[ResetQueue]:
        try:
            try:
                return await self._reset_members(address, group, topic, time_ms)
            except BrokerFault as error:
                # RocketMQ answers so for any group that has no offset yet in one of the queues: of a new queue, or an idle one.
                if f"<{self._wrap(group)}> not exist" not in (error.remark or "") or not await self._is_known(
                    group, {}
                ):
                    raise
            await self._set_first_offsets(group, topic, name, time_ms)
            return await self._reset_members(address, group, topic, time_ms)
        except NotFound:
            return await self._reset_offline(group, topic, name, time_ms)

    async def _reset_members(self, address: str, group: str, topic: str, time_ms: int) -> list[ResetQueue]:
        """Have the broker notify the members. Raises NotFound if none is online."""
        header = ResetOffsetRequest(topic=self._wrap(topic), group=self._wrap(group), timestamp=time_ms, is_force=True)
        request = Command.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        answer = await ask_broker(self._links, address, request, f"reset of group {group} in topic {topic}")
        table = (await body_of(ResetOffsetBody, answer, address)).offset_table
        unwrap = self._routes.namespace.unwrap_queue
        online = answer.version < FIRST_VERSION_5 or await self._may_have_members(group)
        return [ResetQueue(unwrap(queue), offset, online) for queue, offset in sorted(table.items())]

    async def _may_have_members(self, group: str) -> bool:
        """Whether members are online, as far as is known: a broker of 5 answers a reset in the same way when none is."""
        try:
            return await self._members(group) is not None
        except MQError:
            return True

    async def _reset_queue(self, address: str, group: str, queue: MessageQueue, offset: int) -> None:
        """Have a broker of RocketMQ 5 reset one queue: until its next pull an earlier reset counts before what is set."""
        header = ResetOffsetRequest(
            topic=self._wrap(queue.topic),
            group=self._wrap(group),
            timestamp=0,
            is_force=True,
            queue_id=queue.queue_id,
            offset=offset,
        )
        request = Command.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        await ask_broker(self._links, address, request, f"reset of group {group} in {queue} to offset {offset}")

    async def to_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Set the brokers' offsets of a group without online members; see :meth:`GroupAdmin.set_offsets`."""
        bounds = construct(QueueBounds, self._brokers, self._route_wait)
        for queue, offset in offsets.items():
            end = await bounds.max_offset(queue)
            if offset > end:
                # Members would silently skip to the end.
                raise InvalidCall(f"{queue} ends at {end}, before offset {offset}; nothing was set")

        async def reset_again(queue: MessageQueue, offset: int, address: str) -> None:
            await self._reset_queue(address, group, queue, offset)

        at_brokers = BrokerOffsets(self._wrap(group), self._brokers, overruled=reset_again)
        for queue, offset in offsets.items():
            one = {queue: offset}
            with _unknown_group(group):
                await self._route_wait.until_there(partial(at_brokers.commit, one), OFFSET_TIMEOUT_S, queue=queue)

    async def _reset_offline(self, group: str, topic: str, broker_name: str, time_ms: int) -> list[ResetQueue]:
        route = await self._routes.for_subscribing(topic)
        queues = [queue for queue in route.subscribe_queues if queue.broker_name == broker_name]
        offsets = {queue: await self._offset_at(queue, time_ms) for queue in queues}
        with _unknown_group(group):
            await BrokerOffsets(self._wrap(group), self._brokers).commit(offsets)
        return [ResetQueue(queue, offset, False) for queue, offset in offsets.items()]

    async def _set_first_offsets(self, group: str, topic: str, broker_name: str, time_ms: int) -> None:
        """Give a group the offset it is reset to in each queue in which it may have none: brokers may call that 0."""
        at_brokers = BrokerOffsets(self._wrap(group), self._brokers)
        route = await self._routes.for_subscribing(topic)
        for queue in sorted({*route.publish_queues, *route.subscribe_queues}):
            if queue.broker_name == broker_name and not await at_brokers.read(queue):
                await at_brokers.commit({queue: await self._offset_at(queue, time_ms)})

    async def _offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        bounds = construct(QueueBounds, self._brokers)
        return max(0, await (bounds.max_offset(queue) if time_ms == END else bounds.offset_by_time(queue, time_ms)))
