"""The pull consumer: whoever calls decides what is pulled, and when (consumer.md §2-§4).

Upstream: ``DefaultMQPullConsumer``, ``PullAPIWrapper``, ``MQAdminImpl``.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

import trio
from cachetools import LRUCache

from triomq._hooks import PullHook
from triomq._links import Links
from triomq._message import MessageQueue
from triomq._node_cache import ReadPreference
from triomq._offsets import OffsetStore
from triomq._pull_call import PullCall, Puller
from triomq._pull_result import PullResult
from triomq._queue_bounds import QueueBounds
from triomq._routes import Routes
from triomq._subscription import Sql, Subscription, make_subscription
from triomq.errors import (
    ClientClosed,
    InvalidCall,
    RouteNotFound,
)
from triomq_protocol.sql92 import Sql92Error, parse

PULL_TIMEOUT_S: Final = 10.0
"""How long a pull that does not block may take (``consumerPullTimeoutMillis``)."""

SUSPEND_S: Final = 20.0
"""How long a broker may hold a blocking pull (``brokerSuspendMaxTimeMillis``)."""

FILTERS_MAX: Final = 256
"""How many parsed tag expressions a consumer keeps."""


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
        beat: sends heartbeats now.
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
        beat: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.group = group
        self._puller = Puller(group, routes, links, preference=preference, hooks=hooks, beat=beat)
        self.nodes = self._puller.nodes
        """Which broker serves each queue next."""
        self._routes = routes
        self._bounds = QueueBounds(self._puller.brokers)
        self._offsets = offsets
        self._leave = leave
        self._positions: dict[MessageQueue, int] = {}
        self._subscriptions: LRUCache[tuple[str, str | None, str | None], Subscription] = LRUCache(FILTERS_MAX)
        self._closed = False

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
            suspend_s: for how many seconds, not without end; a nearer deadline of the caller shortens it.

        Returns:
            The result, whatever its status.

        Raises:
            InvalidCall: an argument is out of range, or the SQL92 expression cannot be parsed.
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
        if not math.isfinite(suspend_s):
            raise InvalidCall(
                f"suspend_s is {suspend_s}, and a broker wants to know for how many seconds to hold a pull"
            )
        wanted = self._subscription(queue.topic, tags, sql)
        start = offset if offset is not None else await self.position(queue)
        suspend_ms = self._suspend_ms(suspend_s) if block else 0
        result = await self._puller.pull(
            PullCall(
                queue,
                start,
                max_messages=max_messages,
                suspend_ms=suspend_ms,
                subscription=wanted,
                # A pull consumer's heartbeat carries no subscription (consumer.md §4).
                sub_version=0,
                timeout_s=PULL_TIMEOUT_S,
            )
        )
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

    async def min_offset(self, queue: MessageQueue, *, only_master: bool = False) -> int:
        """The offset of the queue's first message.

        Args:
            queue: which.
            only_master: do not ask a slave when the master cannot be reached; it may hold other messages.
        """
        self._check_open()
        return await self._bounds.min_offset(queue, only_master=only_master)

    async def max_offset(self, queue: MessageQueue, *, only_master: bool = False) -> int:
        """The offset behind the queue's last message.

        Args:
            queue: which.
            only_master: do not ask a slave when the master cannot be reached; it may end earlier.
        """
        self._check_open()
        return await self._bounds.max_offset(queue, only_master=only_master)

    async def offset_by_time(self, queue: MessageQueue, time_ms: int) -> int:
        """The offset of the message stored nearest to a time, in ms since 1970, within the queue's range."""
        self._check_open()
        return await self._bounds.offset_by_time(queue, time_ms)

    async def earliest_stored_ms(self, queue: MessageQueue) -> int | None:
        """When the queue's first message was stored, in ms since 1970; None when the queue is empty."""
        self._check_open()
        return await self._bounds.earliest_stored_ms(queue)

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
        self._puller.close()
        with trio.CancelScope(shield=True):
            await self._leave()

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- arguments -------------------------------------------------------------------------------------------

    def _subscription(self, topic: str, tags: str | None, sql: str | None) -> Subscription:
        if tags is not None and not isinstance(tags, str):
            raise InvalidCall(f"the tags are {type(tags).__name__}, not text like 'a || b'")
        found = self._subscriptions.get((topic, tags, sql))
        if found is None:
            found = make_subscription(topic, _checked(sql) if sql is not None else tags, 0)
            self._subscriptions[topic, tags, sql] = found
        return found

    def _suspend_ms(self, suspend_s: float) -> int:
        # The broker must not hold a request longer than its caller will wait for it (consumer.md §4).
        # In a scope that is cancelled already the deadline is minus infinity: the pull ends at its first checkpoint.
        left_s = max(0.0, trio.current_effective_deadline() - trio.current_time())
        return max(1, int(min(suspend_s, left_s) * 1000))

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed(f"the consumer of group {self.group} is closed")


def _checked(sql: str) -> Sql:
    """An expression that can be parsed: to one that cannot, brokers answer with every message (broker-api.md §5.2)."""
    try:
        parse(sql)
    except Sql92Error as error:
        raise InvalidCall(f"the SQL92 expression {sql!r} cannot be used: {error}") from error
    return Sql(sql)
