"""One pull on the wire: choice of the broker, the request, the answer's meaning (docs/protocol/consumer.md §2 and §3).

Pull, push and lite pull consumers all pull through a :class:`Puller` of their own; each keeps its group's
node cache.  Upstream: ``PullAPIWrapper``, ``MQClientAPIImpl``.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import trio

from triomq._cluster.broker_links import BrokerLinks
from triomq._cluster.counters import Counters
from triomq._cluster.replica_choice import Node, NodeCache, Preference, ReadPreference
from triomq._cluster.route import Route
from triomq._cluster.routes import Routes
from triomq._message.hooks import PullContext, PullHook, call_after_pull, call_before_pull
from triomq._message.message import MessageQueue
from triomq._message.pull_result import PullResult, PullStatus
from triomq._message.received import ReceivedMessage
from triomq._message.subscription import SQL92_VERSION, Subscription
from triomq._transport.link import Link, Waiter
from triomq._transport.links import NO_ANSWER, Links
from triomq.errors import (
    Attempt,
    LinkLost,
    MQError,
    Overloaded,
    ProtocolViolation,
    RequestRejected,
    RequestTimeout,
    RouteNotFound,
    UnsupportedRequest,
    error_for_code,
)
from triomq_protocol import flags
from triomq_protocol.errors import HeaderError
from triomq_protocol.record.view import record_starts, records_end
from triomq_protocol.requests.pull import decode_pull_answer, encode_pull_request
from triomq_protocol.wire.command import Command

log = logging.getLogger("triomq.consumer")

_STATUSES: Final = {int(status): status for status in PullStatus}

SUSPEND_S: Final = 20.0
"""How long brokers may hold a pull, except those of push consumers (``brokerSuspendMaxTimeMillis``)."""

SUSPEND_MARGIN_S: Final = 10.0
"""How much longer the client waits than the broker may hold a pull: brokers check every 5 s
(docs/protocol/consumer.md §3)."""

OFFSET_RESET: Final = "OFFSET_RESET"
"""Answer of RocketMQ 5's brokers, with the code of an illegal offset, to the first pull after an operator's reset."""

GROWTH_MAX: Final = 1_000_000
"""How far beyond the queue's end an answer may lead: the broker reads the end first, then the entries, and messages arrive
in between; and it continues at the next file of a queue, 300,000 entries each, if one cannot be read."""


NOT_ADMITTED_ADVICE: Final = (
    "choose another read_preference, or start the broker: `triomq cluster-status` lists those that are registered"
)
"""The topic exists, so the advice of other route errors, to create it, would not help."""


class PullCall:
    """The parts of one pull that stay the same for every broker.

    Args:
        queue: the queue.
        offset: where to start.
        max_messages: the most messages to return.
        suspend_ms: how long the broker may hold the request; 0: not at all.
        subscription: the topic's subscription.
        sub_version: ``subVersion`` on the wire; 0 for consumers whose heartbeat carries no subscription.
        timeout_s: how long to wait for an answer that is not held.
        carries_expression: whether the pull carries the expression; otherwise the broker uses the heartbeat's.
        commit_offset: the group's consumed offset, for the master to store; None: nothing to store.
        lite: the bit of lite pull consumers.
        at_once: whether the request is written at once; otherwise it shares a system call with those of other pulls
            whose answers have come together.
    """

    __slots__ = (
        "at_once", "carries_expression", "commit_offset", "lite", "max_messages", "offset", "queue", "sub_version",
        "subscription", "suspend_ms", "timeout_s",
    )  # fmt: skip

    def __init__(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int,
        suspend_ms: int,
        subscription: Subscription,
        sub_version: int,
        timeout_s: float,
        carries_expression: bool = True,
        commit_offset: int | None = None,
        lite: bool = False,
        at_once: bool = True,
    ) -> None:
        self.at_once = at_once
        self.queue = queue
        self.offset = offset
        self.max_messages = max_messages
        self.suspend_ms = suspend_ms
        self.subscription = subscription
        self.sub_version = sub_version
        self.timeout_s = timeout_s
        self.carries_expression = carries_expression
        self.commit_offset = commit_offset
        self.lite = lite

    def frame(self, group: str, topic: str, opaque: int, *, to_slave: bool = False) -> bytes:
        """The request for one broker; slaves do not get the commit bit (docs/protocol/consumer.md §2.2)."""
        wanted = self.subscription
        sys_flag = flags.PULL_SUSPEND if self.suspend_ms else 0
        if self.carries_expression:
            sys_flag |= flags.PULL_SUBSCRIPTION
        if self.commit_offset is not None and not to_slave:
            sys_flag |= flags.PULL_COMMIT_OFFSET
        if self.lite:
            sys_flag |= flags.PULL_LITE
        if wanted.class_filter:
            sys_flag |= flags.PULL_CLASS_FILTER
        return encode_pull_request(
            opaque,
            consumer_group=group,
            topic=topic,
            queue_id=self.queue.queue_id,
            queue_offset=self.offset,
            max_msg_nums=self.max_messages,
            sys_flag=sys_flag,
            commit_offset=self.commit_offset or 0,
            suspend_timeout_millis=self.suspend_ms,
            subscription=wanted.expression if self.carries_expression else None,
            sub_version=self.sub_version,
            expression_type=wanted.kind,
            broker_name=self.queue.broker_name,
        )


def _violation(call: PullCall, node: Node, remark: str) -> ProtocolViolation:
    return ProtocolViolation(f"pull of {call.queue} at offset {call.offset}", address=node.address, remark=remark)


def _none_admitted(queue: MessageQueue, preference: Preference, addresses: Mapping[int, str]) -> RouteNotFound:
    """The error for a queue that has brokers, but none to read from."""
    ids = ", ".join(map(str, sorted(addresses)))
    error = RouteNotFound(
        f"the route has no broker of {queue} to read from as {preference.value}: the ids of {queue.broker_name} are {ids}"
    )
    error.advice = NOT_ADMITTED_ADVICE
    return error


GoOn = Callable[[PullResult], bool]
"""A plain, quick function: takes a result with messages, changes the call, and returns whether to send it at once."""

RecordScan = Callable[[bytes], tuple[int, int]]
"""Returns the number of records at the beginning of an answer's body, and where the last of them ends."""


class _MasterChangedError(Exception):
    """A pull was given up, or not sent, since another broker is the master of its set now."""


class _Pull(Waiter):
    """One pull under way, and the task that waits for its answer.

    Args:
        puller: the puller that it belongs to.
        link: the link to the broker.
        node: the same broker.
        call: the request.
        timeout_s: how long the answer may take.
    """

    __slots__ = ("_call", "_error", "_link", "_node", "_opaque", "_puller", "_result", "_task", "_timeout_s")

    def __init__(self, puller: Puller, link: Link, node: Node, call: PullCall, timeout_s: float) -> None:
        self._puller = puller
        self._link = link
        self._node = node
        self._call = call
        self._timeout_s = timeout_s
        self._opaque = 0
        self._task: trio.lowlevel.Task | None = None
        self._result: PullResult | None = None
        self._error: Exception | None = None

    def is_for_former_master(self, route: Route) -> bool:
        """Whether it is for a broker that has been replaced as the master of its set, by a new route."""
        queue, node = self._call.queue, self._node
        if queue.topic != route.topic or node.is_slave or self._call.subscription.class_filter:
            return False
        return route.master(queue.broker_name) not in (None, node.address)

    def give_up(self) -> None:
        """Forget the request: its late answer is dropped. The next broker holds the pull only for the rest of the time."""
        if self._result is None and self._error is None:
            call = self._call
            if call.suspend_ms:
                held_until_s = self.deadline - SUSPEND_MARGIN_S
                call.suspend_ms = max(1, round((held_until_s - trio.current_time()) * 1000))
            self._link.forget(self._opaque)
            self._end(None, _MasterChangedError())

    def send(self, now: float) -> None:
        """Send the request. Raises LinkLost if the link is no longer open."""
        self.deadline = now + self._timeout_s
        link = self._link
        self._opaque = opaque = link.next_opaque()
        # Mostly at once: the broker looks for the next messages while these are processed here. If the requests were
        # kept until a whole round of answers is processed, the broker would be idle meanwhile, and then this client.
        topic = self._puller.brokers.topic_of(self._call.queue)
        frame = self._call.frame(self._puller.group, topic, opaque, to_slave=self._node.is_slave)
        link.submit(frame, opaque, self, now=self._call.at_once)

    def answered(self, answer: Command) -> None:
        try:
            self._end(self._puller.result_of(answer, self._call, self._node))
        except Exception as error:  # noqa: BLE001 - for the task that waits, not for the link's reader
            self._end(None, error)

    def failed(self, error: MQError) -> None:
        self._end(None, error)

    def _end(self, result: PullResult | None, error: Exception | None = None) -> None:
        self._result = result
        self._error = error
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)

    async def wait(self) -> PullResult:
        """Wait until there is something to decide; a cancel forgets the request, and its late answer is dropped."""
        if self._result is None and self._error is None:

            def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
                self._link.forget(self._opaque)
                self._task = None  # a change of the route may come before the task runs
                return trio.lowlevel.Abort.SUCCEEDED

            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


class _RepeatedPull(_Pull):
    """Pulls of one queue, one after the other, whose task sleeps until there is something else to decide.

    The link's reader takes each answer and sends the next request: to wake the task for that would cost as much as
    ten messages do.

    Args:
        puller: the puller that it belongs to.
        link: the link to the broker.
        node: the same broker.
        call: the request; changed by ``go_on``.
        timeout_s: how long each answer may take.
        go_on: see :data:`GoOn`.
        route: the route at the time the broker was chosen.
    """

    __slots__ = ("_go_on", "_route")

    def __init__(
        self,
        puller: Puller,
        link: Link,
        node: Node,
        call: PullCall,
        timeout_s: float,
        *,
        go_on: GoOn,
        route: Route | None,
    ) -> None:
        super().__init__(puller, link, node, call, timeout_s)
        self._go_on = go_on
        self._route = route

    def answered(self, answer: Command) -> None:
        try:
            result = self._puller.result_of(answer, self._call, self._node)
            if result.status is not PullStatus.FOUND or not self._may_stay(result):
                self._end(result)
            elif self._go_on(result):
                self.send(trio.current_time())
            else:
                result.taken = True
                self._end(result)
        except Exception as error:  # noqa: BLE001 - for the task that waits, not for the link's reader
            self._end(None, error)

    def _may_stay(self, result: PullResult) -> bool:
        """Whether the next pull should go to the same broker, over the same link, as far as is known here."""
        puller = self._puller
        return (
            self._link.is_open
            and self._link.has_capacity
            and puller.nodes.stays(self._node, result.suggested_broker_id)
            and puller.known_route(self._call.queue.topic) is self._route
        )


class Puller:
    """Pulls for one consumer group.

    Args:
        group: consumer group.
        routes: where topics live.
        links: the links to brokers.
        preference: the brokers to pull from.
        hooks: see :class:`PullHook`.
        wanted: chooses the messages of a result to deliver; None: all.
        chance: chooses among filter servers.
        beat: sends heartbeats now: brokers send their version in the answers.
        introduction: returns an event set when a new link's first heartbeat has been answered; None: it has been.
        counters: the client's counters.
        scan: for readers that use the bytes of results and not their messages; None: where each record starts is found
            and kept for the messages.
    """

    def __init__(
        self,
        group: str,
        routes: Routes,
        links: Links,
        *,
        counters: Counters,
        preference: Preference = ReadPreference.SUGGESTED,
        hooks: Sequence[PullHook] = (),
        wanted: Callable[[list[ReceivedMessage]], list[ReceivedMessage]] | None = None,
        chance: random.Random | None = None,
        beat: Callable[[], Awaitable[None]] | None = None,
        introduction: Callable[[Link], trio.Event | None] | None = None,
        scan: RecordScan | None = None,
    ) -> None:
        self.group = group
        self.scan = scan
        self.nodes = NodeCache(preference)
        """Remembers the broker that serves each queue next."""
        self.brokers = BrokerLinks(routes, links)
        """The links to the queues' masters, for offsets and locks."""
        self._routes = routes
        self._links = links
        self._counters = counters
        self._hooks = tuple(hooks)
        self._wanted = wanted
        self._chance = chance if chance is not None else random.Random()
        self._beat = beat
        self._introduction = introduction
        self._waiting: set[_Pull] = set()
        routes.changed.append(self._on_route)

    def close(self) -> None:
        """Stop following route changes."""
        self._routes.changed.remove(self._on_route)

    async def pull(self, call: PullCall, go_on: GoOn | None = None) -> PullResult:
        """Pull once, or as often as ``go_on`` asks for.

        If the broker that was asked cannot be reached, the next one of the same name is asked at once.

        Args:
            call: the request; ``go_on`` changes it into the next one.
            go_on: takes results with messages as they arrive. Without it, or if more must be decided than it can
                (another broker, hooks), only one pull is made.

        Returns:
            The last result; ``taken`` says whether ``go_on`` had it.

        Raises:
            MQError: no broker of the queue could answer; all attempts are listed.
        """
        if not self._hooks:
            return await self._pull(call, go_on)
        context = PullContext(self.group, call.queue, call.offset)
        call_before_pull(self._hooks, context)
        try:
            result = await self._pull(call, None)
        except MQError as error:
            call_after_pull(self._hooks, context, error)
            raise
        call_after_pull(self._hooks, context, result)
        return result

    async def _pull(self, call: PullCall, go_on: GoOn | None) -> PullResult:
        addresses = await self.brokers.addresses(call.queue)
        attempts: list[Attempt] = []
        failed: set[str] = set()
        lost: set[str] = set()
        refreshed = False
        is_down = self._links.is_down
        while True:
            started = trio.current_time()
            # Saves creating a function if nothing has failed yet.
            skip = (lambda address: address in failed or is_down(address)) if failed else is_down
            node = self.nodes.choose(call.queue, addresses, skip=skip)
            if node is None:
                raise _none_admitted(call.queue, self.nodes.preference, addresses)
            try:
                result = await self._pull_from(node, call, go_on, started)
            except _MasterChangedError:
                addresses = await self.brokers.addresses(call.queue)
            except (*NO_ANSWER, RequestRejected) as error:
                attempts.append(Attempt(node.address, error, trio.current_time() - started))
                if isinstance(error, LinkLost) and node.address not in lost:
                    # The broker may have restarted: a new link may work. Repeating a pull is harmless.
                    lost.add(node.address)
                    continue
                self._note_failure(node, call.queue, error)
                failed.add(node.address)
                allowed = set(self.nodes.allowed(addresses).values())
                if failed >= allowed or len(attempts) > 2 * len(addresses):
                    # The route may have changed since: a new slave, or the master at another address.
                    fresh = None if refreshed else await self.brokers.fresh_addresses(call.queue)
                    if fresh and not failed >= set(self.nodes.allowed(fresh).values()):
                        addresses, refreshed = fresh, True
                        continue
                    what = f"pull of {call.queue} at offset {call.offset}"
                    kind, code = type(error), error.code
                    raise kind(what, address=node.address, code=code, remark=error.remark, attempts=attempts) from error
            else:
                return await self._ask_others(node, addresses, call, result) if result.lacks_offset else result

    def _note_failure(self, node: Node, queue: MessageQueue, error: MQError) -> None:
        if isinstance(error, RequestTimeout):
            self.nodes.record_silence(node.address)
        elif isinstance(error, RequestRejected):
            # A slave that serves no reads, perhaps the master of a moment ago; its successor may be another broker.
            self._routes.doubt(queue.topic, node.address, "it serves no pulls")

    async def _ask_others(
        self, node: Node, addresses: Mapping[int, str], call: PullCall, lacking: PullResult
    ) -> PullResult:
        """The answer of another broker of the set to a pull whose offset a slave does not have.

        Returns:
            The first answer of a broker that has the offset or, as a master, decides on it; ``lacking`` if there is none.

        Raises:
            MQError: a broker that could be reached refuses.
        """
        for other in self.nodes.others(node, addresses):
            if self._links.is_down(other.address) or self.nodes.is_silent(other.address):
                continue
            try:
                result = await self._pull_from(other, call, None, trio.current_time())
            except _MasterChangedError:
                continue
            except (*NO_ANSWER, RequestRejected) as error:
                log.debug("%s was not reached for offset %d of %s: %s", other, call.offset, call.queue, error.reason)
                self._note_failure(other, call.queue, error)
                continue
            if not result.lacks_offset:
                return result
        return lacking

    async def _pull_from(self, node: Node, call: PullCall, go_on: GoOn | None, now: float) -> PullResult:
        subscription = call.subscription
        address = self._filter_server(call.queue, node) if subscription.class_filter else node.address
        link = self._links.ready(address)
        if link is None:
            link = await self._links.get(address)
            now = trio.current_time()
        if self._introduction is not None and not call.carries_expression:
            # The broker takes the expression from the heartbeat, and would refuse a pull that overtakes it.
            first_beat = self._introduction(link)
            if first_beat is not None:
                await first_beat.wait()
                now = trio.current_time()
        if not subscription.filters_by_tag and link.peer_version == 0 and self._beat is not None:
            await self._beat()
        if not subscription.filters_by_tag and link.peer_version < SQL92_VERSION:
            raise UnsupportedRequest(
                "the broker does not filter by SQL, or has not sent its version in an answer to a heartbeat yet",
                address=link.address,
            )
        if not link.has_capacity:
            with trio.move_on_after(call.timeout_s):
                await link.wait_capacity()
            if link.is_open and not link.has_capacity:
                raise Overloaded("the link has too many requests waiting", address=link.address)
            now = trio.current_time()
        timeout_s = call.timeout_s if not call.suspend_ms else call.suspend_ms / 1000 + SUSPEND_MARGIN_S
        route = self.known_route(call.queue.topic)
        pull = (
            _Pull(self, link, node, call, timeout_s)
            if go_on is None
            else _RepeatedPull(self, link, node, call, timeout_s, go_on=go_on, route=route)
        )
        if route is not None and pull.is_for_former_master(route):
            # Since the broker was chosen, as while its link was opened.
            raise _MasterChangedError
        pull.send(now)
        self._waiting.add(pull)
        try:
            return await pull.wait()
        finally:
            self._waiting.discard(pull)

    def known_route(self, topic: str) -> Route | None:
        """The newest cached route of a topic."""
        return self._routes.known(topic)

    def result_of(self, answer: Command, call: PullCall, node: Node) -> PullResult:
        """The meaning of an answer; its suggestion is recorded.

        Raises:
            MQError: the broker refuses, or its answer cannot be read.
        """
        self.nodes.record_answer(node.address)
        try:
            status = _STATUSES[answer.code]
        except KeyError:
            what = f"pull of {call.queue} at offset {call.offset}"
            raise error_for_code(answer.code, answer.remark, what=what, address=node.address) from None
        try:
            header = decode_pull_answer(answer)
        except HeaderError as error:
            raise _violation(call, node, str(error)) from error
        suggested = header.suggest_which_broker_id or 0
        self.nodes.suggest(call.queue, suggested)
        tags = call.subscription.tags
        next_offset = header.next_begin_offset if header.next_begin_offset is not None else call.offset
        min_offset = header.min_offset if header.min_offset is not None else -1
        max_offset = header.max_offset if header.max_offset is not None else -1
        lacks_offset = False
        if next_offset < 0 or min_offset < -1 or max_offset < -1:
            remark = f"the next offset is {next_offset}, of a queue from {min_offset} to {max_offset}"
            raise _violation(call, node, remark)
        end_offset = max(max_offset, call.offset)
        if status is not PullStatus.OFFSET_ILLEGAL and max_offset >= 0 and next_offset - end_offset > GROWTH_MAX:
            # All messages before it would count as consumed.
            raise _violation(call, node, f"the next offset is {next_offset}, and the queue ends at {max_offset}")
        starts: list[int] | None = None
        count = 0
        if status is PullStatus.FOUND:
            if next_offset <= call.offset:
                raise _violation(call, node, f"there are messages, and the next offset is {next_offset}")
            # Here, while the consumer is still before them: it would skip messages that cannot be read later.
            starts, count, end = self._records_of(answer.body)
            if not count or end != len(answer.body):
                raise _violation(call, node, f"the bytes at {end} of {len(answer.body)} are not a record")
        elif next_offset <= call.offset and status is PullStatus.NO_MATCHED_MESSAGE:
            # "Pull again at once" at the same offset: a slave's answer to one outside its queue, as it cannot decide.
            status, next_offset, lacks_offset = PullStatus.NO_NEW_MESSAGE, call.offset, True
        passed = next_offset - call.offset - count
        missing = (
            passed if passed > 0 and status is not PullStatus.OFFSET_ILLEGAL and call.subscription.takes_all else 0
        )
        counted = self._counters.of_pulls(self.group, call.queue.topic)
        counted.pulls[status.name] = counted.pulls.get(status.name, 0) + 1
        if count:
            counted.messages += count
            counted.record_bytes += len(answer.body)
        return PullResult(
            status,
            call.queue,
            next_offset=next_offset,
            min_offset=min_offset,
            max_offset=max_offset,
            suggested_broker_id=suggested,
            broker_address=node.address,
            body=answer.body,
            tags=tags,
            lacks_offset=lacks_offset,
            starts=starts,
            wanted=self._wanted,
            namespace=self.brokers.namespace,
            missing=missing,
            was_reset=status is PullStatus.OFFSET_ILLEGAL and answer.remark == OFFSET_RESET,
        )

    def _records_of(self, body: bytes) -> tuple[list[int] | None, int, int]:
        """Where the records of a body start, if that is kept; their number, and where the last of them ends."""
        if self.scan is not None:
            return None, *self.scan(body)
        starts = record_starts(body)
        return starts, len(starts), records_end(body, starts)

    def _filter_server(self, queue: MessageQueue, node: Node) -> str:
        """One of the filter servers that the broker announced: these, not the broker, run filter classes."""
        route = self._routes.known(queue.topic)
        table: Mapping[str, list[str]] = (route.data.filter_server_table or {}) if route is not None else {}
        servers = table.get(node.address)
        if not servers:
            raise UnsupportedRequest(
                f"the route of {queue.topic} has no filter server of this broker", address=node.address
            )
        return self._chance.choice(servers)

    def _on_route(self, route: Route) -> None:
        self.nodes.forget_gone(route.topic, route.addresses)
        # Messages arrive at the new master: the former one may hold a pull for as long as it asks for.
        for pull in [pull for pull in self._waiting if pull.is_for_former_master(route)]:
            pull.give_up()
