"""One pull task per assigned queue, for push and lite pull consumers alike (docs/protocol/consumer.md §5, §6.2).

It pulls and holds messages, pauses while too many are held, commits along the way, and corrects offsets; its sink
processes the messages.  Pauses end when their reason ends: nothing here polls.  Upstream: ``PullMessageService``, ``DefaultMQPushConsumerImpl``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import attrs
import trio

from triomq._cluster.counters import Counters, TopicCalls
from triomq._consumer.group.callbacks import ConsumerEvent, offset_unavailable, reporter
from triomq._consumer.group.failed_pulls import FailedPulls
from triomq._consumer.group.missing import MissingMessages
from triomq._consumer.group.positions import Positions
from triomq._consumer.group.process_queue import FlowLimits, HeldMessage, HeldPage, ProcessQueue, held_messages
from triomq._consumer.group.statistics import ConsumerStatistics
from triomq._consumer.puller import PullCall, Puller
from triomq._message.hooks import FilterHook, wanted_messages
from triomq._message.log_fields import queue_fields
from triomq._message.message import MessageQueue
from triomq._message.pull_result import PullResult, PullStatus
from triomq._message.subscription import Subscription, tags_taken
from triomq._transport.links import Backoff
from triomq.errors import BrokerBusy, ClientClosed, MQError, NotFound, OffsetIllegal, SubscriptionRefused

log = logging.getLogger("triomq.consumer")

SUSPENDED_PULL_TIMEOUT_S: Final = 30.0
"""How long a pull that brokers may hold waits for its link to accept it (``CONSUMER_TIMEOUT_MILLIS_WHEN_SUSPEND``)."""

BUSY_PAUSE_S: Final = 0.02
"""The first pause after a broker's flow control, codes 2 and 215 (docs/protocol/consumer.md §1)."""

ERROR_PAUSE_S: Final = 1.0
"""Pause after any other failure (``pullTimeDelayMillsWhenException``)."""

_BUSY_PAUSES: Final = Backoff(first_s=BUSY_PAUSE_S, max_s=ERROR_PAUSE_S)

HELD_S: Final = 0.1
"""An answer without messages that arrives sooner was not held by the broker."""

EMPTY_PAUSE_MAX_S: Final = 3.0
"""The longest pause after answers that make no progress."""

_EMPTY_PAUSES: Final = Backoff(first_s=0.05, max_s=EMPTY_PAUSE_MAX_S)

EMPTY_REPORTED_FROM: Final = 4
"""After this many such answers in a row the queue is reported; a slave that lags for a moment is not."""

QUARANTINE_S: Final = 10.0
"""How long a queue rests after an illegal offset, so that running handlers can end
(docs/protocol/consumer.md §6.2)."""


def busy_pause_s(failures: int) -> float:
    """The pause after a number of failures in a row, the last of them a broker's flow control.

    A slave that serves no reads rejects each pull in the same words as a busy broker, for as long as there is no master.
    """
    return _BUSY_PAUSES.pause_s(failures, 0.0)


def empty_pause_s(number: int) -> float:
    """The pause after a number of answers in a row that made no progress."""
    return _EMPTY_PAUSES.pause_s(number, 0.0)


@attrs.frozen(kw_only=True)
class PullSettings:
    """Settings of a consumer's pulls.

    Args:
        max_messages: messages per pull (``pullBatchSize``).
        suspend_s: seconds that brokers may hold a pull: 15 for push, 20 for lite pull consumers.
        lite: whether pulls carry the lite bit, and their expression.
        expression_in_pulls: whether pulls carry their expression, even if heartbeats have carried it.
        commit: whether pulls from masters carry the consumed offset: push consumers in clustering mode.
        ordered: whether the span is no limit.
        limits: when pulling pauses.
        quarantine_s: how long a queue rests after an illegal offset.
        interval_s: pause between two pulls of a queue (``pullInterval``).
        retry_topic: the group's retry topic; its messages get back the topic they were sent to.
    """

    max_messages: int = 32
    suspend_s: float = 15.0
    lite: bool = False
    expression_in_pulls: bool = False
    commit: bool = False
    ordered: bool = False
    limits: FlowLimits = attrs.Factory(FlowLimits)
    quarantine_s: float = QUARANTINE_S
    interval_s: float = 0.0
    retry_topic: str | None = None


class PullSink(Protocol):
    """Takes pulled messages; all its methods are plain and quick."""

    def pulled(self, source: PulledQueue, messages: list[HeldMessage]) -> None:
        """Take new messages of a queue, in order, at least one."""

    def given_up(self, source: PulledQueue, count: int, size_bytes: int) -> None:
        """A queue's messages were given up, as many, with as many bytes: it was revoked, or continues elsewhere."""

    def failed(self, error: MQError) -> None:
        """The consumer cannot continue."""


class PulledQueue:
    """One assigned queue.

    Args:
        queue: the queue.
        offset: where its first pull starts.
        settings: see :class:`PullSettings`.
        counters: its topic's counters.

    Attributes:
        process: the held messages; replaced after a seek or an illegal offset.
        next_offset: where the next pull starts.
        paused: whether pulling is paused.
        failures: number of pulls in a row that failed.
        empty_answers: number of answers in a row that made no progress and that the broker did not hold.
        pulled_s: trio's clock at the last round.
        consumed_s: trio's clock when a message was last given to a handler.
        limits: when its pulling pauses.
        call: the current or last request.
    """

    def __init__(self, queue: MessageQueue, offset: int, settings: PullSettings, counters: TopicCalls) -> None:
        self.queue = queue
        self.counters = counters
        self.settings = settings
        self.limits = settings.limits
        self.process = ProcessQueue(queue, self)
        self.next_offset = offset
        self.paused = False
        self.failures = 0
        self.empty_answers = 0
        self.pulled_s = trio.current_time()
        self.consumed_s = self.pulled_s
        self.scope = trio.CancelScope()
        self.call: PullCall | None = None
        self.awaited: trio.Event | None = None
        """The event that pulling waits for, if it waits."""

    def wake(self) -> None:
        """Wake pulling: something that it may wait for has changed."""
        if self.awaited is not None:
            self.awaited.set()

    def finish(self, message: HeldMessage) -> bool:
        """A message has ended.

        Returns:
            Whether that counts: its queue is still owned, and it has not ended before.
        """
        counts = message.page.holder.finish(message)
        self.wake_unless_full()
        return counts

    def wake_unless_full(self) -> None:
        """Continue pulling after messages have ended, if it waited for that and the limits allow."""
        if self.awaited is not None and not self.is_full:
            self.awaited.set()

    @property
    def is_full(self) -> bool:
        """Whether it holds more than its limits allow."""
        return self.process.exceeds(self.limits, ordered=self.settings.ordered) is not None

    def finish_page(self, messages: Sequence[HeldMessage]) -> None:
        """Record that messages of one pulled answer have ended."""
        messages[0].page.holder.finish_page(messages)
        self.wake_unless_full()

    async def wait_change(self) -> None:
        """Sleep until :meth:`wake`."""
        event = self.awaited = trio.Event()
        try:
            await event.wait()
        finally:
            # After a seek another task may wait already.
            if self.awaited is event:
                self.awaited = None


class PullEngine:
    """The assigned queues of one consumer.

    Args:
        puller: makes the single pulls.
        counters: the client's.
        positions: the group's offsets.
        subscription: topic -> its subscription; None: not subscribed (any more).
        announced: topic -> the last subscription sent to brokers, which may be newer; None: there is none.
        sink: takes the messages.
        settings: see :class:`PullSettings`.
        beat: sends heartbeats now: they carry subscriptions that brokers do not know yet.
        report: called with events ``offset_unavailable`` and ``messages_missing``.
        held_back: further reasons not to pull a queue now; the end of one must call :meth:`PulledQueue.wake`.
        filter_hooks: choose among the pulled messages.
    """

    def __init__(
        self,
        *,
        puller: Puller,
        counters: Counters,
        positions: Positions,
        subscription: Callable[[str], Subscription | None],
        announced: Callable[[str], Subscription | None],
        sink: PullSink,
        settings: PullSettings,
        beat: Callable[[], Awaitable[None]],
        report: Callable[[ConsumerEvent], None] | None = None,
        held_back: Callable[[PulledQueue], bool] | None = None,
        filter_hooks: Sequence[FilterHook] = (),
    ) -> None:
        self.queues: dict[MessageQueue, PulledQueue] = {}
        """Queue -> its state; changed by :meth:`start` and :meth:`stop` alone."""
        self.statistics = ConsumerStatistics(puller.group, counters)
        self.suspended = False
        self.paused = False
        self._puller = puller
        self._positions = positions
        self._subscription = subscription
        self._announced = announced
        self._sink = sink
        self._settings = settings
        self._beat = beat
        self._report = report if report is not None else reporter(None)
        self._missing = MissingMessages(puller.group, counters, self._report)
        self._held_back = held_back
        self._filter_hooks = filter_hooks
        self._failed = FailedPulls()
        self._expected: dict[str, int] = {}
        """Topic -> how many of its queues this member should have."""
        self._nursery: trio.Nursery | None = None
        self._stopped = False

    @trio.lowlevel.enable_ki_protection
    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the pull tasks until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._stopped = True  # another task may start a queue yet, when the nursery has closed

    def expect(self, topic: str, queues: int) -> None:
        """A topic has as many queues for this member, which are started or stopped one after the other.

        The first ones must not take the topic's limits for themselves until the others are there.
        """
        if queues:
            self._expected[topic] = queues
        else:
            self._expected.pop(topic, None)
        self._share_limits(topic)

    def start(self, queue: MessageQueue, offset: int) -> PulledQueue:
        """Start pulling an assigned queue."""
        source = self.queues[queue] = PulledQueue(queue, offset, self._settings, self.statistics.of(queue.topic))
        self._share_limits(queue.topic)
        self._spawn(source)
        return source

    def stop(self, queue: MessageQueue) -> PulledQueue | None:
        """Stop pulling a queue and give up its held messages; does not wait for running handlers.

        Its commit point is in the positions' memory afterwards.
        """
        source = self.queues.pop(queue, None)
        if source is not None:
            source.scope.cancel()
            self.note_position(source)
            self.give_up(source)
            self._share_limits(queue.topic)
            self._missing.end(queue)
            self._failed.end(queue)
        return source

    def give_up(self, source: PulledQueue) -> None:
        """Give the held messages of a queue up: their results no longer count."""
        process = source.process
        if not process.dropped:
            count, size_bytes = process.count, process.size_bytes
            process.drop()
            self._sink.given_up(source, count, size_bytes)

    def stop_pulling(self) -> None:
        """End all pulls; held messages stay."""
        self._stopped = True
        for source in self.queues.values():
            source.scope.cancel()

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Give up the held messages and continue at another offset; the answer of a running pull is dropped."""
        source = self.queues[queue]
        source.scope.cancel()
        self._restart(source, offset)
        self._spawn(source)

    def pause(self, queue: MessageQueue) -> None:
        """Pause pulling a queue; a running pull may still return messages."""
        self.queues[queue].paused = True

    def resume(self, queue: MessageQueue) -> None:
        """Pull it again."""
        self.queues[queue].paused = False
        self.queues[queue].wake()

    def pause_all(self) -> None:
        """Pause pulling of all queues, including those that are assigned later."""
        self.paused = True

    def resume_all(self) -> None:
        """End :meth:`pause_all`."""
        self.paused = False
        self.wake()

    def suspend(self, suspended: bool) -> None:
        """Pause all queues while an operator resets offsets, or resume them afterwards."""
        self.suspended = suspended
        self.wake()

    def wake(self) -> None:
        """Wake pulling: something that it may wait for has changed."""
        for source in self.queues.values():
            source.wake()

    def note_position(self, source: PulledQueue) -> None:
        """Update the positions' memory to a queue's commit point."""
        point = source.process.commit_point
        if point is not None and not source.process.dropped:
            self._positions.update(source.queue, point, increase_only=True)

    def note_positions(self) -> None:
        """:meth:`note_position` for all queues, before the memory is read or persisted."""
        for source in self.queues.values():
            self.note_position(source)

    def withhold_offsets(self) -> None:
        """Make pulls that are about to be sent carry no offsets of the group: the queues are in doubt."""
        for source in self.queues.values():
            if source.call is not None:
                source.call.commit_offset = None

    def _share_limits(self, topic: str) -> None:
        """Divide a topic's limits among its queues again: some were assigned or given up."""
        limits = self._settings.limits
        if limits.covers_topics:
            sources = [source for source in self.queues.values() if source.queue.topic == topic]
            count = max(len(sources), self._expected.get(topic, 0))
            for source in sources:
                source.limits = limits.of_one(count)
                source.wake_unless_full()

    # --- one queue -------------------------------------------------------------------------------------------

    def _spawn(self, source: PulledQueue) -> None:
        assert self._nursery is not None
        source.scope = trio.CancelScope()
        if not self._stopped:
            self._nursery.start_soon(self._pull_queue, source, source.scope)

    @trio.lowlevel.enable_ki_protection
    async def _pull_queue(self, source: PulledQueue, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                while self._must_wait(source):
                    await source.wait_change()
                process = source.process
                subscription = self._subscription(source.queue.topic)
                assert subscription is not None
                call = source.call = self._call(source, subscription)
                # Not if pulls are spaced by an interval: then each one passes here.
                go_on = None if self._settings.interval_s else self._taker(source, process, subscription, call)
                self._begin_pull(source)
                try:
                    result = await self._puller.pull(call, go_on)
                except ClientClosed:
                    return
                except MQError as error:
                    source.failures += 1
                    await self._after_failure(source, error)
                    continue
                self._end_failures(source)
                if result.taken:
                    continue
                source.counters.pulling_s += trio.current_time() - source.pulled_s
                if source.process is not process:
                    return  # a seek was made while the answer was in flight: the queue has another task by now
                # If it was given up meanwhile, its offset is another member's, or an operator's reset follows.
                if result.status is PullStatus.OFFSET_ILLEGAL and not process.dropped:
                    await self._correct(source, result)
                    continue
                self._take(source, process, subscription, result)
                if result.status is PullStatus.NO_NEW_MESSAGE and (
                    result.lacks_offset or trio.current_time() - source.pulled_s < HELD_S
                ):
                    await self._rest(source, result)
                else:
                    self._note_progress(source)
                if self._settings.interval_s:
                    await trio.sleep(self._settings.interval_s)

    def _begin_pull(self, source: PulledQueue) -> None:
        source.pulled_s = trio.current_time()
        source.counters.pulls += 1

    def _taker(
        self, source: PulledQueue, process: ProcessQueue, subscription: Subscription, call: PullCall
    ) -> Callable[[PullResult], bool]:
        """A function that takes each result and prepares the next call, as long as there is nothing to wait for."""

        def take(result: PullResult) -> bool:
            source.counters.pulling_s += trio.current_time() - source.pulled_s
            if source.failures:
                self._end_failures(source)
            if source.empty_answers:
                self._note_progress(source)
            self._take(source, process, subscription, result)
            if (
                source.process is not process
                or self._must_wait(source)
                or self._subscription(source.queue.topic) is not subscription
            ):
                return False
            call.offset = source.next_offset
            call.commit_offset = self._commit_offset(source)
            self._begin_pull(source)
            return True

        return take

    def _must_wait(self, source: PulledQueue) -> bool:
        return (
            source.paused
            or self.paused
            or self.suspended
            or source.is_full
            or (self._held_back is not None and self._held_back(source))
            or self._subscription(source.queue.topic) is None
        )

    def _call(self, source: PulledQueue, subscription: Subscription) -> PullCall:
        settings = self._settings
        return PullCall(
            source.queue,
            source.next_offset,
            max_messages=settings.max_messages,
            suspend_ms=int(settings.suspend_s * 1000),
            subscription=subscription,
            # Lite pulls by tag carry 0, as their heartbeats' subscription does (docs/protocol/consumer.md §3).
            sub_version=0 if settings.lite and subscription.filters_by_tag else subscription.version_ms,
            timeout_s=SUSPENDED_PULL_TIMEOUT_S,
            carries_expression=settings.lite or settings.expression_in_pulls or subscription.class_filter,
            commit_offset=self._commit_offset(source),
            lite=settings.lite,
        )

    def _commit_offset(self, source: PulledQueue) -> int | None:
        if not self._settings.commit:
            return None
        self.note_position(source)
        if self._positions.in_doubt(source.queue):
            return None
        # Upstream sets the bit for positive offsets only (docs/protocol/consumer.md §6.2).
        return self._positions.get(source.queue) or None

    def _take(self, source: PulledQueue, process: ProcessQueue, subscription: Subscription, result: PullResult) -> None:
        if process.dropped:
            return  # given up while the answer was in flight: it starts again elsewhere
        if result.missing or self._missing:
            self._note_missing(source, subscription, result)
        source.next_offset = result.next_offset
        if result.status is PullStatus.FOUND:
            page = HeldPage(result.body, source.queue, result.min_offset, result.max_offset, result.namespace)
            wanted = self._wanted(held_messages(page, result.record_starts), source.queue, subscription)
            if self._filter_hooks:
                wanted = wanted_messages(self._filter_hooks, self._puller.group, wanted)
            messages = process.put(page, wanted)
            process.scan(result.next_offset)
            if messages:
                source.counters.pulled += len(messages)
                self._sink.pulled(source, messages)
        else:
            process.scan(result.next_offset)

    def _note_missing(self, source: PulledQueue, subscription: Subscription, result: PullResult) -> None:
        # A broker that holds a pull filters with the subscription it has by then, and may omit what that excludes.
        announced = self._announced(source.queue.topic)
        if not (announced is None or announced is subscription or announced.takes_all):
            result.missing = 0
        self._missing.note(result, source.next_offset)

    def _wanted(
        self, messages: list[HeldMessage], queue: MessageQueue, subscription: Subscription
    ) -> list[HeldMessage]:
        if queue.topic == self._settings.retry_topic:
            namespace = self._puller.brokers.namespace
            for message in messages:
                original = message.properties.get("RETRY_TOPIC")
                message.original_topic = namespace.unwrap(original) if original is not None else None
            return messages
        tags = tags_taken(subscription, self._announced(queue.topic))
        # The broker compares 32-bit hashes only.
        return [message for message in messages if message.tags in tags] if tags else messages

    async def _after_failure(self, source: PulledQueue, error: MQError) -> None:
        failures, unknown = source.failures, isinstance(error, SubscriptionRefused | NotFound)
        # A broker that is busy or has restarted may not know the group yet: warn only if one more heartbeat does not
        # help.
        self._failed.note(source.queue, error, may_warn=not (unknown and failures == 1))
        if self.queues.get(source.queue) is not source:
            self._failed.end(source.queue)  # it has been given up
        if isinstance(error, BrokerBusy):
            await trio.sleep(busy_pause_s(failures))
        elif unknown and failures == 1:
            # The broker does not know the subscription's newest version: send it, and ask again at once.
            await self._beat()
        else:
            await trio.sleep(ERROR_PAUSE_S)

    def _end_failures(self, source: PulledQueue) -> None:
        """A pull has succeeded."""
        source.failures = 0
        self._failed.end(source.queue)

    async def _rest(self, source: PulledQueue, result: PullResult) -> None:
        """Pause after an answer that made no progress: an immediate pull would get the same answer at once."""
        source.empty_answers += 1
        if source.empty_answers == EMPTY_REPORTED_FROM:
            if result.lacks_offset:
                self._report(offset_unavailable(result))
            else:
                log.warning(
                    "%s holds no pulls of %s; pauses between them grow to %g s",
                    result.broker_address,
                    source.queue,
                    EMPTY_PAUSE_MAX_S,
                )
        await trio.sleep(empty_pause_s(source.empty_answers))

    def _note_progress(self, source: PulledQueue) -> None:
        if source.empty_answers >= EMPTY_REPORTED_FROM:
            log.info(
                "%s is pulled again at offset %d", source.queue, source.next_offset, extra=queue_fields(source.queue)
            )
        source.empty_answers = 0

    async def _correct(self, source: PulledQueue, result: PullResult) -> None:
        self.note_position(source)
        self.give_up(source)
        try:
            offset = await self._positions.correct(source.queue, source.next_offset, result)
        except OffsetIllegal as error:
            self._sink.failed(error)
            await trio.sleep_forever()
        await trio.sleep(self._settings.quarantine_s)
        self._restart(source, offset)

    def _restart(self, source: PulledQueue, offset: int) -> None:
        self.give_up(source)
        source.process = ProcessQueue(source.queue, source)
        source.next_offset = offset
        source.empty_answers = 0
