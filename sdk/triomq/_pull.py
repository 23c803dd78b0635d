"""The pull consumer: whoever calls decides what is pulled, and when (consumer.md §2-§4).

Upstream: ``DefaultMQPullConsumer``, ``PullAPIWrapper``, ``MQAdminImpl``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

import trio
from cachetools import LRUCache

from triomq._hooks import PullContext, PullHook, call_after_pull, call_before_pull
from triomq._link import Link, TaskWaiter
from triomq._links import Links
from triomq._message import MessageQueue
from triomq._node_cache import Node, NodeCache, ReadPreference
from triomq._offsets import BrokerLinks, OffsetStore
from triomq._pull_result import PullResult, PullStatus
from triomq._routes import Route, Routes
from triomq.errors import (
    Attempt,
    ClientClosed,
    ConnectFailed,
    InvalidCall,
    LinkLost,
    MQError,
    Overloaded,
    ProtocolViolation,
    RequestTimeout,
    RouteNotFound,
    UnsupportedRequest,
    error_for_code,
)
from triomq_protocol import flags
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.command import Command
from triomq_protocol.errors import HeaderError, LocalProtocolError
from triomq_protocol.header import Header
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
from triomq_protocol.requests.pull import decode_pull_answer, encode_pull_request
from triomq_protocol.tags import TagFilter, parse_subscription

H = TypeVar("H", bound=Header)

PULL_TIMEOUT_S: Final = 10.0
"""How long a pull that does not block may take (``consumerPullTimeoutMillis``)."""

SUSPEND_S: Final = 20.0
"""How long a broker may hold a blocking pull (``brokerSuspendMaxTimeMillis``)."""

SUSPEND_MARGIN_S: Final = 10.0
"""How much longer than that the client waits: brokers look at held pulls every 5 s (consumer.md §3)."""

QUERY_TIMEOUT_S: Final = 6.0
"""How long a broker may take for an offset query (client.md §3.8)."""

FILTERS_MAX: Final = 256
"""How many parsed tag expressions a consumer keeps."""

SQL92_VERSION: Final = 232
"""Brokers older than this do not filter by SQL (client.md §1.1)."""


class PullConsumer:
    """Pulls messages for one consumer group; handed out by ``client.pull_consumer(group)``.

    Nothing is committed unless :meth:`commit` is called.

    Args:
        group: consumer group.
        routes: where topics live.
        links: how brokers are reached.
        offsets: where the group's offsets are kept.
        leave: called at the end, to unregister the group.
        preference: from whom to pull.
        hooks: see :class:`PullHook`.
    """

    def __init__(
        self,
        group: str,
        routes: Routes,
        links: Links,
        *,
        offsets: OffsetStore,
        leave: Callable[[], Awaitable[None]],
        preference: ReadPreference = ReadPreference.SUGGESTED,
        hooks: Sequence[PullHook] = (),
    ) -> None:
        self.group = group
        self.nodes = NodeCache(preference)
        """Which broker serves each queue next."""
        self._routes = routes
        self._links = links
        self._brokers = BrokerLinks(routes, links)
        self._offsets = offsets
        self._leave = leave
        self._hooks = tuple(hooks)
        self._positions: dict[MessageQueue, int] = {}
        self._filters: LRUCache[str, TagFilter] = LRUCache(FILTERS_MAX)
        self._closed = False
        routes.changed.append(self._hear_route)

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read, brokers by name, then queue ids.

        Raises:
            RouteNotFound: nobody knows the topic, or none of its queues can be read.
        """
        self._check_open()
        route = await self._routes.for_subscribing(topic)
        if not route.subscribe_queues:
            raise RouteNotFound(f"no queue of topic {topic} can be read")
        return list(route.subscribe_queues)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int | None = None,
        *,
        tags: str | None = None,
        sql: str | None = None,
        max_messages: int = 32,
        block: bool = False,
        suspend_s: float = SUSPEND_S,
    ) -> PullResult:
        """Pull one queue once.

        Args:
            queue: what to pull.
            offset: from where; by default from this consumer's own position, which then moves on to the result's
                ``next_offset``. At first that is the group's committed offset, or the queue's first message.
            tags: ``"a || b"``; None and ``"*"`` mean all.
            sql: an SQL92 expression over properties, instead of tags.
            max_messages: at most so many.
            block: whether the broker holds the request until a message comes.
            suspend_s: for how long; a nearer deadline of the caller shortens it.

        Returns:
            The result, whatever its status.

        Raises:
            InvalidCall: an argument is out of range.
            MQError: no broker of the queue could answer; all attempts are listed.

        When the broker that was asked cannot be reached, the next one of the same name is asked at once.
        Cancelling leaves the position where it was.
        """
        self._check_open()
        if not isinstance(queue, MessageQueue):
            raise InvalidCall(f"the queue is {type(queue).__name__}, not MessageQueue; fetch_queues(topic) tells them")
        if max_messages < 1:
            raise InvalidCall(f"max_messages is {max_messages}, not at least 1")
        if offset is not None and offset < 0:
            raise InvalidCall(f"the offset is {offset}, not at least 0")
        wanted = self._filter(tags) if sql is None else None
        start = offset if offset is not None else await self.position(queue)
        suspend_ms = self._suspend_ms(suspend_s) if block else 0
        call = _Pull(queue, start, max_messages, suspend_ms, wanted, sql, PULL_TIMEOUT_S)
        result = await (self._pull_with_hooks(call) if self._hooks else self._pull(call))
        if offset is None:
            self._positions[queue] = result.next_offset
        return result

    async def position(self, queue: MessageQueue) -> int:
        """Where the next pull without an offset starts.

        At first: the group's committed offset, or else the queue's first message.
        """
        position = self._positions.get(queue)
        if position is None:
            committed = await self.committed(queue)
            position = committed if committed is not None else await self.min_offset(queue)
            self._positions[queue] = position
        return position

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Set the position."""
        if offset < 0:
            raise InvalidCall(f"the offset is {offset}, not at least 0")
        self._positions[queue] = offset

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset, or None when it has none."""
        self._check_open()
        return await self._offsets.read(queue)

    async def commit(self, queue: MessageQueue, offset: int | None = None) -> None:
        """Commit an offset for the group; by default this consumer's position.

        Raises:
            InvalidCall: no offset is given and nothing was pulled yet.
            MQError: it may not be kept.
        """
        self._check_open()
        if offset is None:
            offset = self._positions.get(queue)
            if offset is None:
                raise InvalidCall(f"nothing was pulled from {queue} yet, so there is no position to commit")
        await self._offsets.commit({queue: offset})

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the queue's first message."""
        header = GetMinOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name)
        return (await self._query(queue, RequestCode.GET_MIN_OFFSET, header, GetMinOffsetResponse)).offset

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset behind the queue's last message."""
        header = GetMaxOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name)
        return (await self._query(queue, RequestCode.GET_MAX_OFFSET, header, GetMaxOffsetResponse)).offset

    async def offset_by_time(self, queue: MessageQueue, time_ms: int) -> int:
        """The offset of the message stored nearest to a time, in ms since 1970, within the queue's range."""
        header = SearchOffsetRequest(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=time_ms, bname=queue.broker_name
        )
        return (await self._query(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, SearchOffsetResponse)).offset

    async def earliest_stored_ms(self, queue: MessageQueue) -> int | None:
        """When the queue's first message was stored, in ms since 1970; None when the queue is empty."""
        header = GetEarliestMsgStoretimeRequest(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name)
        code = RequestCode.GET_EARLIEST_MSG_STORETIME
        stored_ms = (await self._query(queue, code, header, GetEarliestMsgStoretimeResponse)).timestamp
        return stored_ms if stored_ms >= 0 else None

    @property
    def position_count(self) -> int:
        """In how many queues this consumer stands."""
        return len(self._positions)

    def positions(self, topic: str) -> Mapping[MessageQueue, int]:
        """The positions of a topic's queues: what a broker's request 221 asks for."""
        return {queue: offset for queue, offset in self._positions.items() if queue.topic == topic}

    async def aclose(self) -> None:
        """Pull no more and unregister the group; nothing is committed."""
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        self._routes.changed.remove(self._hear_route)
        with trio.CancelScope(shield=True):
            await self._leave()

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- one pull --------------------------------------------------------------------------------------------

    async def _pull_with_hooks(self, call: _Pull) -> PullResult:
        context = PullContext(self.group, call.queue, call.offset)
        call_before_pull(self._hooks, context)
        try:
            result = await self._pull(call)
        except MQError as error:
            call_after_pull(self._hooks, context, error)
            raise
        call_after_pull(self._hooks, context, result)
        return result

    async def _pull(self, call: _Pull) -> PullResult:
        addresses = await self._brokers.addresses(call.queue)
        attempts: list[Attempt] = []
        failed: set[str] = set()
        lost: set[str] = set()
        refreshed = False
        while True:
            started = trio.current_time()
            node = self.nodes.choose(
                call.queue, addresses, started, skip=lambda address: address in failed or self._links.is_down(address)
            )
            if node is None:
                raise RouteNotFound(
                    f"the route has no broker of {call.queue} to read from as {self.nodes.preference.value}"
                )
            try:
                return await self._pull_from(node, call)
            except (ConnectFailed, LinkLost, RequestTimeout) as error:
                attempts.append(Attempt(node.address, error, trio.current_time() - started))
                if isinstance(error, LinkLost) and node.address not in lost:
                    # A broker that restarted: its old link is gone, a new one may do. A pull changes nothing there.
                    lost.add(node.address)
                    continue
                if isinstance(error, RequestTimeout):
                    self.nodes.note_silence(node.address, trio.current_time())
                failed.add(node.address)
                allowed = set(self.nodes.allowed(addresses).values())
                if failed >= allowed or len(attempts) > 2 * len(addresses):
                    # Somebody may have come since the route was fetched: a slave, or the master at another address.
                    fresh = None if refreshed else await self._brokers.fresh_addresses(call.queue)
                    if fresh and not failed >= set(self.nodes.allowed(fresh).values()):
                        addresses, refreshed = fresh, True
                        continue
                    what = f"pull of {call.queue} at offset {call.offset}"
                    raise type(error)(what, address=node.address, remark=error.remark, attempts=attempts) from error

    async def _pull_from(self, node: Node, call: _Pull) -> PullResult:
        link = await self._links.get(node.address)
        if call.sql is not None and link.peer_version < SQL92_VERSION:
            raise UnsupportedRequest(
                "the broker does not filter by SQL, or has not told its version by a heartbeat yet",
                address=link.address,
            )
        if not link.has_room:
            with trio.move_on_after(call.timeout_s):
                await link.wait_room()
            if not link.has_room:
                raise Overloaded("the link has too many requests waiting", address=link.address)
        timeout_s = call.timeout_s if not call.suspend_ms else call.suspend_ms / 1000 + SUSPEND_MARGIN_S
        waiter = TaskWaiter(trio.current_time() + timeout_s)
        opaque = link.next_opaque()
        link.submit(call.frame(self.group, opaque), opaque, waiter)
        answer = await waiter.wait(link.pending, opaque)
        self.nodes.note_answer(node.address)
        return self._result_of(answer, call, node)

    def _result_of(self, answer: Command, call: _Pull, node: Node) -> PullResult:
        what = f"pull of {call.queue} at offset {call.offset}"
        try:
            status = PullStatus(answer.code)
        except ValueError:
            raise error_for_code(answer.code, answer.remark, what=what, address=node.address) from None
        try:
            header = decode_pull_answer(answer)
        except HeaderError as error:
            raise ProtocolViolation(what, address=node.address, remark=str(error)) from error
        suggested = header.suggest_which_broker_id or 0
        self.nodes.suggest(call.queue, suggested, trio.current_time())
        return PullResult(
            status,
            call.queue,
            next_offset=header.next_begin_offset if header.next_begin_offset is not None else call.offset,
            min_offset=header.min_offset if header.min_offset is not None else -1,
            max_offset=header.max_offset if header.max_offset is not None else -1,
            suggested_broker_id=suggested,
            broker_address=node.address,
            body=answer.body,
            tags=call.tags,
        )

    def _filter(self, tags: str | None) -> TagFilter | None:
        if tags is None or tags == "*":
            return None
        if not isinstance(tags, str):
            raise InvalidCall(f"the tags are {type(tags).__name__}, not text like 'a || b'")
        found = self._filters.get(tags)
        if found is None:
            try:
                found = parse_subscription(tags)
            except LocalProtocolError as error:
                raise InvalidCall(f"the tags {tags!r} cannot be used: {error}") from error
            self._filters[tags] = found
        return found

    def _suspend_ms(self, suspend_s: float) -> int:
        # The broker must not hold a request longer than its caller will wait for it (consumer.md §4).
        left_s = trio.current_effective_deadline() - trio.current_time()
        return max(1, int(min(suspend_s, left_s) * 1000))

    # --- queries ---------------------------------------------------------------------------------------------

    async def _query(self, queue: MessageQueue, code: RequestCode, header: Header, answer_type: type[H]) -> H:
        self._check_open()
        link: Link = await self._brokers.of(queue)
        try:
            answer = await link.request(Command.request(code, header), QUERY_TIMEOUT_S)
        except LinkLost:
            # The broker restarted, or is gone and another one of its name answers.
            link = await self._brokers.of(queue)
            answer = await link.request(Command.request(code, header), QUERY_TIMEOUT_S)
        what = f"{code.name} of {queue}"
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_code(answer.code, answer.remark, what=what, address=link.address)
        try:
            return answer.header(answer_type)
        except HeaderError as error:
            raise ProtocolViolation(what, address=link.address, remark=str(error)) from error

    def _hear_route(self, route: Route) -> None:
        self.nodes.forget_gone(route.topic, route.addresses)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed(f"the consumer of group {self.group} is closed")


class _Pull:
    """The parts of one pull that stay the same whoever is asked."""

    __slots__ = ("max_messages", "offset", "queue", "sql", "suspend_ms", "tags", "timeout_s")

    def __init__(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int,
        suspend_ms: int,
        tags: TagFilter | None,
        sql: str | None,
        timeout_s: float,
    ) -> None:
        self.queue = queue
        self.offset = offset
        self.max_messages = max_messages
        self.suspend_ms = suspend_ms
        self.tags = tags
        self.sql = sql
        self.timeout_s = timeout_s

    def frame(self, group: str, opaque: int) -> bytes:
        """The request; its expression travels with it, since a pull consumer's heartbeat carries none."""
        return encode_pull_request(
            opaque,
            consumer_group=group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=self.offset,
            max_msg_nums=self.max_messages,
            sys_flag=flags.PULL_SUBSCRIPTION | (flags.PULL_SUSPEND if self.suspend_ms else 0),
            commit_offset=0,
            suspend_timeout_millis=self.suspend_ms,
            subscription=self.sql if self.sql is not None else self.tags.expression if self.tags is not None else "*",
            sub_version=0,
            expression_type="SQL92" if self.sql is not None else "TAG",
            broker_name=self.queue.broker_name,
        )
