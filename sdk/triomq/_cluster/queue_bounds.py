"""Queries brokers for a queue's range: first offset, end, offset by time (docs/protocol/consumer.md §4).

Upstream: ``MQAdminImpl``.
"""

from __future__ import annotations

from typing import Final, TypeVar

from triomq._cluster.broker_links import BrokerLinks
from triomq._cluster.route_wait import RouteWait
from triomq._constructors import NoPublicConstructor
from triomq._error_text import shown
from triomq._message.message import OFFSET_MAX, MessageQueue, check_queue
from triomq._transport.answers import checked, header_of
from triomq.errors import InvalidCall, LinkLost, ProtocolViolation
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import (
    GetEarliestMsgStoretimeRequest,
    GetEarliestMsgStoretimeResponse,
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    SearchOffsetRequest,
    SearchOffsetResponse,
)
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.header import Header

H = TypeVar("H", bound=Header)

QUERY_TIMEOUT_S: Final = 6.0
"""How long a broker may take for an offset query (docs/protocol/client.md §3.8)."""


class QueueBounds(metaclass=NoPublicConstructor):
    """Asks the queues' masters, or another broker of the same name if the master is down.

    Every method raises :class:`~triomq.errors.MQError` if no broker of the queue answers.
    """

    def __init__(self, brokers: BrokerLinks, route_wait: RouteWait | None = None) -> None:
        """Called only by the client.

        Args:
            brokers: the links to brokers.
            route_wait: makes calls wait for a broker; None: they do not wait.
        """
        self._brokers = brokers
        self._route_wait = route_wait

    async def min_offset(self, queue: MessageQueue, *, only_master: bool = False) -> int:
        """The offset of the queue's first message.  See ``BrokerLinks.of`` for `only_master`."""
        check_queue(queue)
        header = GetMinOffsetRequest(
            topic=self._brokers.topic_of(queue), queue_id=queue.queue_id, bname=queue.broker_name
        )
        answer = await self._query(queue, RequestCode.GET_MIN_OFFSET, header, GetMinOffsetResponse, only_master)
        return _checked(answer.offset, queue)

    async def max_offset(self, queue: MessageQueue, *, only_master: bool = False) -> int:
        """The offset after the queue's last message.  See ``BrokerLinks.of`` for `only_master`."""
        check_queue(queue)
        header = GetMaxOffsetRequest(
            topic=self._brokers.topic_of(queue), queue_id=queue.queue_id, bname=queue.broker_name
        )
        answer = await self._query(queue, RequestCode.GET_MAX_OFFSET, header, GetMaxOffsetResponse, only_master)
        return _checked(answer.offset, queue)

    async def offset_by_time(self, queue: MessageQueue, time_ms: int) -> int:
        """The offset of the message stored nearest to a time, in ms since 1970, within the queue's range."""
        check_queue(queue)
        _check_time_ms(time_ms)
        header = SearchOffsetRequest(
            topic=self._brokers.topic_of(queue), queue_id=queue.queue_id, timestamp=time_ms, bname=queue.broker_name
        )
        answer = await self._query(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, SearchOffsetResponse)
        return _checked(answer.offset, queue)

    async def earliest_stored_ms(self, queue: MessageQueue) -> int | None:
        """When the queue's first message was stored, in ms since 1970; None if the queue is empty."""
        check_queue(queue)
        header = GetEarliestMsgStoretimeRequest(
            topic=self._brokers.topic_of(queue), queue_id=queue.queue_id, bname=queue.broker_name
        )
        code = RequestCode.GET_EARLIEST_MSG_STORETIME
        stored_ms = (await self._query(queue, code, header, GetEarliestMsgStoretimeResponse)).timestamp
        return stored_ms if stored_ms >= 0 else None

    async def _query(
        self, queue: MessageQueue, code: RequestCode, header: Header, answer_type: type[H], only_master: bool = False
    ) -> H:
        if self._route_wait is None:
            return await self._query_now(queue, code, header, answer_type, only_master)
        return await self._route_wait.until_there(
            lambda: self._query_now(queue, code, header, answer_type, only_master), QUERY_TIMEOUT_S, queue=queue
        )

    async def _query_now(
        self, queue: MessageQueue, code: RequestCode, header: Header, answer_type: type[H], only_master: bool
    ) -> H:
        link = await self._brokers.of(queue, only_master=only_master)
        try:
            answer = await link.request(Command.request(code, header), QUERY_TIMEOUT_S)
        except LinkLost:
            # The broker has restarted, or is down and another one of its name answers.
            link = await self._brokers.of(queue, only_master=only_master)
            answer = await link.request(Command.request(code, header), QUERY_TIMEOUT_S)
        what = f"{code.name} of {queue}"
        return header_of(answer_type, checked(answer, what, link.address), what, link.address)


def _check_time_ms(time_ms: object) -> None:
    if not isinstance(time_ms, int) or isinstance(time_ms, bool) or abs(time_ms) > OFFSET_MAX:
        raise InvalidCall(f"time_ms is {shown(time_ms)}, not ms since 1970")


def _checked(offset: int, queue: MessageQueue) -> int:
    """A broker's offset, checked; RocketMQ 5's brokers answer -1 for a queue in which nothing was ever stored."""
    if offset < -1:
        raise ProtocolViolation(f"an offset of {queue}", remark=f"the broker answered {offset}")
    return max(offset, 0)
