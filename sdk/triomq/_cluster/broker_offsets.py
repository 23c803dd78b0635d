"""Consumer offsets kept by the brokers (docs/protocol/consumer.md §12.2).

Consumers use it as their default offset store, and administration uses it to set a group's offsets.
Upstream: ``RemoteBrokerOffsetStore``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio

from triomq._cluster.broker_links import BrokerLinks
from triomq._message.message import MessageQueue
from triomq._tasks.exception_groups import open_plain_nursery
from triomq._transport.answers import checked, header_of
from triomq.errors import LinkLost, MQError, ProtocolViolation, RouteError, error_for_code
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests import (
    QueryConsumerOffsetRequest,
    QueryConsumerOffsetResponse,
    UpdateConsumerOffsetRequest,
)
from triomq_protocol.wire.command import Command

log = logging.getLogger("triomq.consumer")

OFFSET_TIMEOUT_S: Final = 5.0
"""How long a broker may take for codes 14 and 15 (docs/protocol/client.md §3.8)."""

AT_ONCE: Final = 16
"""The most offsets that are on their way together: one after the other, those of many queues at a distant broker would
not be committed within the time that the end of a consumer has."""

RESET_BEFORE: Final = "Offset has been previously reset"
"""The answer of a RocketMQ 5 broker, with success, to an offset that it does not accept: an operator has reset the
group, and no member has pulled the queue since."""

Overruled = Callable[[MessageQueue, int, str], Awaitable[object]]
"""Called with queue, offset and the broker's address when a reset overrules an offset."""


class BrokerOffsets:
    """Offsets kept by the brokers: the default, shared by all members of the group.

    Args:
        group: consumer group.
        brokers: the links to brokers.
        look_again: called just before an offset is sent, since earlier requests take time: returns the offset to send
            now, None for none. It raises :class:`~triomq.errors.LinkLost` for a queue in doubt.
        stored: called with each offset that a broker has stored, also if others of a commit are refused.
        overruled: called if the broker does not accept an offset as the group was reset; None: the reset holds.
    """

    def __init__(
        self,
        group: str,
        brokers: BrokerLinks,
        look_again: Callable[[MessageQueue, int], int | None] = lambda _queue, offset: offset,
        stored: Callable[[MessageQueue, int], object] = lambda _queue, _offset: None,
        overruled: Overruled | None = None,
    ) -> None:
        self._group = group
        self._brokers = brokers
        self._look_again = look_again
        self._stored = stored
        self._overruled = overruled

    async def read(self, queue: MessageQueue, /) -> int | None:
        """Ask the broker (code 14)."""
        link = await self._brokers.of(queue)
        header = QueryConsumerOffsetRequest(
            consumer_group=self._group,
            topic=self._brokers.topic_of(queue),
            queue_id=queue.queue_id,
            bname=queue.broker_name,
        )
        answer = await link.request(Command.request(RequestCode.QUERY_CONSUMER_OFFSET, header), OFFSET_TIMEOUT_S)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        what = f"the offset of group {self._group} in {queue}"
        answer = checked(answer, what, link.address)
        offset = header_of(QueryConsumerOffsetResponse, answer, what, link.address).offset
        if offset < -1:
            raise ProtocolViolation(what, address=link.address, remark=f"it is {offset}")
        return offset if offset >= 0 else None  # Java's clients also read -1 as "the group has none"

    async def commit(self, offsets: Mapping[MessageQueue, int], /) -> None:
        """Send the offsets to the brokers (code 15) and wait for their answers.

        Those of different queues are sent together, at most :data:`AT_ONCE` at a time; a queue has one request at a time,
        since brokers may serve two of one link in either order.  They are never sent to a slave as long as the route has
        a master: the master's offsets would overwrite them.  If one is refused, or its topic has no broker, the others
        are sent before that is raised; after a broker could not be reached, no more are sent to it.

        Raises:
            LinkLost: a queue is in doubt.
            MQError: a broker cannot be reached, or refuses; the first such error.
        """
        failures: list[MQError] = []
        unreachable: set[str] = set()
        left = iter(offsets.items())

        @trio.lowlevel.enable_ki_protection
        async def send_rest() -> None:
            for queue, wanted in left:
                if queue.broker_name in unreachable:
                    continue  # each would take the whole time limit again
                try:
                    failure = await self._commit(queue, wanted)
                except MQError as error:
                    failure = error
                    unreachable.add(queue.broker_name)
                if failure is not None:
                    failures.append(failure)

        if len(offsets) == 1:
            await send_rest()
        else:
            async with open_plain_nursery() as nursery:
                for _ in range(min(AT_ONCE, len(offsets))):
                    nursery.start_soon(send_rest)
        if failures:
            raise failures[0]

    async def _commit(self, queue: MessageQueue, wanted: int) -> MQError | None:
        """Send one offset; returns why it could not be committed, if others of the same broker still can be.

        Raises:
            MQError: the broker cannot be reached.
        """
        try:
            link = await self._brokers.of(queue, only_master=True)
        except RouteError as error:
            return error
        # Only now: the link may have been opened for this, and earlier requests may have taken seconds.
        try:
            offset = self._look_again(queue, wanted)
        except LinkLost as error:
            return error
        if offset is None:
            return None
        header = UpdateConsumerOffsetRequest(
            consumer_group=self._group,
            topic=self._brokers.topic_of(queue),
            queue_id=queue.queue_id,
            commit_offset=offset,
            bname=queue.broker_name,
        )
        answer = await link.request(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header), OFFSET_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            what = f"committing offset {offset} of group {self._group} in {queue}"
            return error_for_code(answer.code, answer.remark, what=what, address=link.address)
        self._stored(queue, offset)
        if answer.remark == RESET_BEFORE:
            log.info(
                "offset %d of group %s in %s is not committed: an operator's reset applies", offset, self._group, queue
            )
            if self._overruled is not None:
                await self._overruled(queue, offset, link.address)
        return None


def offset_in_doubt(queue: MessageQueue) -> LinkLost:
    """The error of a commit that is not sent, as the queue may belong to another member by now."""
    return LinkLost(
        f"the offset of {queue} is not committed: a connection of this member was lost, and other members may have "
        "got further; it goes on when the brokers list it in the group again"
    )
