"""The reading half of a load generator: pull consumers with a task per queue, or push consumers of the client
library."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Protocol, Self

import trio

import triomq
from triomq_benchmarks.generator.engine import Share
from triomq_benchmarks.generator.second_cells import SecondCells
from triomq_benchmarks.workload.bodies import read_head
from triomq_benchmarks.workload.workload import ConsumeMode
from triomq_protocol.checksum import crc32
from triomq_protocol.names import MASTER_ID

SUSPEND_S = 1.0
"""Wait of a pull at the end of its queue; short, so that the end of a run is noticed."""

ANSWER_S = 1.0
"""Additional time for an answer, after which the state of the queue counts as unknown."""

ERROR_PAUSE_S = 0.1
ASSIGNMENT_LIMIT_S = 15.0
ASSIGNMENT_REST_S = 0.5
PUSH_CONCURRENCY = 4
"""Number of handlers of one push consumer; they only count, so more would not help."""


class Consumed(Protocol):
    """The part of the ledger that consumers use."""

    def consumed(
        self, number: int, topic: str, broker: str, queue_id: int, queue_offset: int, crc: int, group: str
    ) -> None:
        """Record that a consumer got a message."""


class ReadTally:
    """Totals of all consumers of a worker."""

    def __init__(self) -> None:
        self.consumed = 0
        """Messages of this run, over all groups."""
        self.foreign = 0
        """Messages of other runs."""
        self.errors = 0
        self.last_at = -math.inf
        """Time of the run's last message, on trio's clock."""
        self.error_examples: dict[str, str] = {}
        self.error_counts: Counter[str] = Counter()


class Consumers:
    """All consumers of a share; an asynchronous context manager opens and closes their clients.

    Args:
        share: the part of the run that it belongs to.
        cells: takes the figures.
        ledger: takes every message.
    """

    def __init__(self, share: Share, cells: SecondCells, ledger: Consumed | None) -> None:
        self.tally = ReadTally()
        self._share = share
        self._workload = workload = share.workload
        self._first_s = -workload.warm_up_s
        self._last_s = workload.duration_s + workload.drain_s
        """The first and the last instant for which a message may be intended, in seconds since the measured part began."""
        self._options = share.access.options()
        self._cells = cells
        self._ledger = ledger
        self._lags: dict[tuple[str, triomq.MessageQueue], int] = {}
        self._asked: dict[tuple[str, triomq.MessageQueue], float] = {}
        """Times since when pulls have waited for their answers, on trio's clock."""
        self._places: dict[tuple[str, triomq.MessageQueue], int] = {}
        """The positions of pull consumers, by queue."""
        self._roles: dict[str, str] = {}
        self._clients: list[triomq.Client] = []
        self._pulled: list[tuple[triomq.PullConsumer, str, triomq.MessageQueue, int]] = []
        self._pushed: list[tuple[triomq.PushConsumer, str]] = []
        self._assigned_at: float | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        # Closes the clients that are open if another cannot be opened.
        async with self._stack as stack:
            if self._workload.consume is not ConsumeMode.NONE:
                for group in self._share.groups:
                    for number in range(self._share.index, self._workload.consumers, self._share.count):
                        await self._open(group, number)
            if self._pushed:
                await self._wait_for_assignment()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def backlog(self) -> int | None:
        """Number of messages not yet pulled by this worker's consumers, from the last pulls' answers; None if unknown.

        It is also unknown while a broker does not answer a pull: there may be new messages.
        """
        oldest = trio.current_time() - SUSPEND_S - ANSWER_S
        if any(since < oldest for since in self._asked.values()):
            return None
        return sum(self._lags.values()) if self._lags else None

    async def has_all(self) -> bool | None:
        """Whether pull consumers are at the ends of their queues; asks the brokers for these now.

        The answers to the last pulls are too old: a consumer that waits for a broker may not have had any for long.

        Returns:
            False also if a broker does not answer; None for push consumers, whose positions are unknown.
        """
        if not self._pulled:
            return None
        try:
            for consumer, group, queue, begin in self._pulled:
                if self._places.get((group, queue), begin) < await consumer.max_offset(queue):
                    return False
        except triomq.MQError:
            return False
        return True

    async def _open(self, group: str, number: int) -> None:
        # Separate clients: two consumers of one group in one client count as one for the broker.
        opening = triomq.open_client(self._share.name_servers, **self._options)
        client = await self._stack.enter_async_context(opening)
        self._clients.append(client)
        await self._learn_roles(client)
        if self._workload.consume is ConsumeMode.PUSH:
            await self._open_push(client, group)
            return
        preference = self._workload.read_preference
        consumer = await self._stack.enter_async_context(client.pull_consumer(group, read_preference=preference))
        await self._check_may_read(consumer)
        queues = [queue for topic in self._share.topics for queue in await consumer.fetch_queues(topic)]
        for queue in queues[number :: self._workload.consumers]:
            # Messages that were in a topic before the run do not count.
            known = bool(self._workload.topic_names)
            begin = await (consumer.max_offset(queue) if known else consumer.min_offset(queue))
            self._pulled.append((consumer, group, queue, begin))

    async def _check_may_read(self, consumer: triomq.PullConsumer) -> None:
        """Pull once from each topic: during the run a refusal would look like lost messages.

        Raises:
            triomq.MQError: a broker refuses the account, or a topic has no queue that can be read.
        """
        for topic in self._share.topics:
            queue = (await consumer.fetch_queues(topic))[0]
            try:
                await consumer.pull(queue, offset=await consumer.max_offset(queue), max_messages=1)
            except (triomq.errors.AccessRefused, triomq.errors.PermissionDenied):
                raise
            except triomq.MQError:
                continue  # the run shows what it is, and may be about it

    async def _learn_roles(self, client: triomq.Client) -> None:
        for topic in self._share.topics:
            route = await client.admin.route(topic)
            for broker in route.broker_datas or []:
                for broker_id, address in (broker.broker_addrs or {}).items():
                    self._roles[address] = "master" if broker_id == MASTER_ID else "slave"

    async def run(self, slow_from: float) -> None:
        """Consume until cancelled.

        Args:
            slow_from: start of the time in which slow consumers are slow, on trio's clock.
        """
        async with trio.open_nursery() as nursery:
            for consumer, group, queue, offset in self._pulled:
                nursery.start_soon(self._pull_queue, consumer, group, queue, offset, slow_from)
            for pushed, group in self._pushed:
                nursery.start_soon(self._push, pushed, group, slow_from)
            await trio.sleep_forever()

    async def _pull_queue(
        self, consumer: triomq.PullConsumer, group: str, queue: triomq.MessageQueue, offset: int, slow_from: float
    ) -> None:
        most = self._workload.pull_batch
        while True:
            await self._hold_back(slow_from)
            slow = self._is_slow(slow_from)
            self._asked.setdefault((group, queue), trio.current_time())
            try:
                result = await consumer.pull(
                    queue, offset=offset, max_messages=1 if slow else most, block=True, suspend_s=SUSPEND_S
                )
            except triomq.MQError as error:
                self._failed(error)
                await trio.sleep(ERROR_PAUSE_S)
                continue
            del self._asked[group, queue]
            offset = result.next_offset
            self._lags[group, queue] = max(0, result.max_offset - offset)
            if result.messages:
                role = await self._role_of(result.broker_address)
                self._take(result.messages, group, role)
            self._places[group, queue] = offset

    async def _open_push(self, client: triomq.Client, group: str) -> None:
        workload = self._workload
        hook = _RolesServed(self._cells, self._roles)
        consumer = client.push_consumer(
            group,
            ordered=workload.ordered_share > 0,
            # Messages that were in a topic before the run do not count.
            start_from="latest" if workload.topic_names else "earliest",
            batch_max=max(2, workload.pull_batch),
            pulling=triomq.PullOptions(max_messages=workload.pull_batch),
            read_preference=workload.read_preference,
            pull_hooks=[hook],
            callbacks=triomq.ConsumerCallbacks(on_assigned=self._on_assignment, on_revoked=self._on_assignment),
        )
        await self._stack.enter_async_context(consumer)
        for topic in self._share.topics:
            await consumer.subscribe(topic)
        self._pushed.append((consumer, group))

    def _on_assignment(self, queues: Sequence[triomq.MessageQueue]) -> None:
        # The queue of the group's retry topic does not count: a member may have nothing else.
        if any(queue.topic in self._share.topics for queue in queues):
            self._assigned_at = trio.current_time()

    async def _wait_for_assignment(self) -> None:
        """Wait until rebalancing has ended: queues that move under load are delivered twice."""
        begin = trio.current_time()
        while trio.current_time() < begin + ASSIGNMENT_LIMIT_S:
            if self._assigned_at is not None and trio.current_time() > self._assigned_at + ASSIGNMENT_REST_S:
                return
            await trio.sleep(0.02)
        async with triomq.open_client(self._share.name_servers, **self._options) as client:
            for group in self._share.groups:
                await self._check_may_read(client.pull_consumer(group))

    async def _push(self, consumer: triomq.PushConsumer, group: str, slow_from: float) -> None:
        async def handle(messages: Sequence[triomq.ReceivedMessage]) -> None:
            for message in messages if self._is_slow(slow_from) else ():
                await self._hold_back(slow_from)
                self._take([message], group, None)
                messages = messages[1:]
            self._take(messages, group, None)

        await consumer.run(handler=handle, concurrency=PUSH_CONCURRENCY)

    def _take(self, messages: Sequence[triomq.ReceivedMessage], group: str, role: str | None) -> None:
        now = trio.current_time()
        cells, tally, run_number = self._cells, self.tally, self._share.run_number
        cell = cells.at(now)
        for message in messages:
            try:
                body = message.body
            except triomq.MQError as error:
                self._failed(error)
                continue
            head = read_head(body)
            if head is not None and head.run_number != run_number:
                tally.foreign += 1
                continue
            tally.consumed += 1
            tally.last_at = now
            cell.consumed += 1
            cell.consumed_bytes += len(body)
            if head is not None and head.timed:
                intended_s = head.intended_ns / 1e9
                # An altered message may name any instant: the seconds of a run would have no end.
                if self._first_s <= intended_s <= self._last_s:
                    intended = cells.origin + intended_s
                    cells.at(intended).intended_to_consumed.append(int((now - intended) * 1e6))
            if self._ledger is not None:
                self._note(message, body, -1 if head is None else head.number, group)
        if role == "master":
            cell.from_master += len(messages)
        elif role == "slave":
            cell.from_slave += len(messages)

    def _note(self, message: triomq.ReceivedMessage, body: bytes, number: int, group: str) -> None:
        assert self._ledger is not None
        queue = message.queue
        self._ledger.consumed(
            number, message.topic, queue.broker_name, queue.queue_id, message.queue_offset, crc32(body), group
        )

    async def _role_of(self, address: str) -> str | None:
        role = self._roles.get(address)
        if role is None:
            # A new broker, or one that changed its role; a broker that the name server does not know stays unknown.
            try:
                await self._learn_roles(self._clients[0])
            except triomq.MQError as error:
                self._failed(error)
            role = self._roles.setdefault(address, "unknown")
        return role

    def _is_slow(self, slow_from: float) -> bool:
        slow = self._workload.slow_consumer
        return slow is not None and trio.current_time() < slow_from + slow.until_s

    async def _hold_back(self, slow_from: float) -> None:
        """Pause a slow consumer after a message; its rate is that of all queues of its group together."""
        slow = self._workload.slow_consumer
        if slow is None or not self._is_slow(slow_from):
            return
        readers = max(1, len(self._pulled) * self._share.count // len(self._share.groups))
        pause_s = readers / slow.rate_per_s if slow.rate_per_s else math.inf
        end = slow_from + slow.until_s
        await trio.sleep_until(min(trio.current_time() + pause_s, end))

    def _failed(self, error: triomq.MQError) -> None:
        self.tally.errors += 1
        self.tally.error_counts[type(error).__name__] += 1
        self.tally.error_examples.setdefault(type(error).__name__, str(error))


class _RolesServed:
    """A push consumer's pull hook that counts messages by the role of the broker."""

    def __init__(self, cells: SecondCells, roles: dict[str, str]) -> None:
        self._cells = cells
        self._roles = roles

    def before_pull(self, context: triomq.plugins.PullContext) -> None:
        """Do nothing yet."""

    def after_pull(self, _context: triomq.plugins.PullContext, outcome: triomq.PullResult | triomq.MQError) -> None:
        """Count the received messages."""
        if isinstance(outcome, triomq.MQError) or not outcome.messages:
            return
        cell = self._cells.at(trio.current_time())
        if self._roles.get(outcome.broker_address) == "slave":
            cell.from_slave += len(outcome.messages)
        else:
            cell.from_master += len(outcome.messages)
