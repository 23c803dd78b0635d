"""Pulls one range of offsets, several parts concurrently, and passes the answers on in queue order.

A broker answers a pull with at most about thirty messages; a reader that waits for each answer before its next request
spends most of its time waiting. The range's offsets are known, so it is cut into strides, and several strides are
pulled at once. Messages that a broker does not have (yet) are pulled from another one; see :class:`Strides`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import attrs
import trio

from pyspark_rocketmq.clients import Session
from pyspark_rocketmq.errors import BrokerBehind, DataLoss
from pyspark_rocketmq.read.cluster_view import is_deleted
from pyspark_rocketmq.read.holes import first_offset, goes_on_at
from pyspark_rocketmq.read.planning import QueueRange
from triomq import Backoff, MessageQueue, MQError, PullResult, PullStatus, ReadPreference
from triomq._companions import pull_run
from triomq.errors import QueueIllegal, RouteNotFound, TopicNotFound
from triomq_protocol.record.layout import INT64, QUEUE_OFFSET_AT
from triomq_protocol.record.view import record_starts

LANES: Final = 8
"""The number of pulls of a range in flight."""

STRIDE: Final = 256
"""The number of offsets that one lane takes at a time."""

FILTERED_STRIDE: Final = 8192
"""The same if the broker filters, and may scan many entries for one answer."""

BUFFERED_BYTES: Final = 32 * 1024 * 1024
"""Limit of bytes pulled and not yet taken. Bytes of later strides do not stop the current stride, since only its end
releases them."""

BUNDLE_BYTES: Final = 2 * 1024 * 1024
"""The number of bytes passed on at a time."""

BEHIND_LIMIT_S: Final = 30.0
"""How long a range waits for a slave that does not have it yet, or for a master that cannot be reached."""

BEHIND_PAUSE_S: Final = 0.2
"""The first pause in such a wait; each further one is twice as long."""

BEHIND_PAUSE_MAX_S: Final = 3.0
"""The longest such pause."""

RUN_PULLS: Final = 8
"""The number of consecutive pulls before a task checks them: a wait for a broker is counted from the first of them."""

PAGE_MAX: Final = 1024
"""The number of messages that one pull requests; brokers return fewer."""

_PERHAPS: Final = "perhaps before it was asked for those that match"

_log = logging.getLogger(__name__)
_offset_of = INT64.unpack_from


@attrs.frozen
class PullPlan:
    """How a range is pulled.

    Args:
        part: the range.
        tags: a tag expression for the broker.
        sql: an SQL92 expression for the broker.
        fail_on_data_loss: whether deleted offsets are an error.
        only: the value of `readPreference` if it allows no other broker to be queried for missing messages: `slave`, or
            a broker's id; else None.
    """

    part: QueueRange
    tags: str | None = None
    sql: str | None = None
    fail_on_data_loss: bool = True
    only: str | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether the broker filters messages, so that a hole in an answer means nothing."""
        return self.tags is not None or self.sql is not None

    @property
    def queue(self) -> MessageQueue:
        """The queue as the SDK names it."""
        return MessageQueue(self.part.queue.topic, self.part.queue.broker_name, self.part.queue.queue_id)


def _lacks_queue(refused: MQError) -> str:
    return f"{refused.address} does not have the queue any more"


class _Gap(NamedTuple):
    """Offsets at the start of a broker's answer without a match: the broker has filtered them out, or deleted them."""

    start: int
    end: int
    address: str


@attrs.define(eq=False)
class _Stride:
    """Some offsets: the next one to pull, the end, and the offset from which on none is known to be deleted.

    Attributes:
        repeats: the stride whose offsets these are, if they are pulled again.
        preference: which brokers are asked; None: as for the whole read.
        answered: the first offset that each broker has been asked for and has answered, by its address.
        gaps: with a filter, the offsets that answers start without. Brokers delete messages from the first on, so
            answers lack deleted ones nowhere else.
    """

    at: int
    end: int
    repeats: _Stride | None = None
    preference: ReadPreference | None = None
    kept_from: int = attrs.field(init=False, default=attrs.Factory(lambda self: self.at, takes_self=True))
    answered: dict[str, int] = attrs.field(factory=dict)
    gaps: list[_Gap] = attrs.field(factory=list)
    pages: list[bytes] = attrs.field(factory=list)
    is_done: bool = False

    def note_gap(self, end: int, address: str) -> None:
        """Note that an answer for the next offset has no match before `end`."""
        start, end = max(self.at, self.kept_from), min(end, self.end)
        if start >= end:
            return
        if self.gaps and self.gaps[-1][1:] == (start, address):
            start = self.gaps.pop().start
        self.gaps.append(_Gap(start, end, address))


class Strides:
    """The strides of one range.

    Args:
        session: the open client.
        plan: the plan of the range.
        hand_over: called with the answers' bodies, some at a time, in order.

    Attributes:
        skipped: the number of offsets of the range that were left out, which is logged.
    """

    def __init__(self, session: Session, plan: PullPlan, hand_over: Callable[[list[bytes]], None]) -> None:
        self._session = session
        self._plan = plan
        self._hand_over = hand_over
        self.skipped = 0
        self._size = FILTERED_STRIDE if plan.is_filtered else STRIDE
        self._next_at = plan.part.start
        self._open: list[_Stride] = []
        self._bundle: list[bytes] = []
        self._bundle_bytes = 0
        self._held = 0
        self._handed = 0
        self._taken = trio.Event()

    def taken(self, size: int) -> None:
        """Release the bytes that a consumer has taken."""
        self._handed -= size
        self._wake_lanes()

    async def pull(self) -> None:
        """Pull the whole range.

        Raises:
            DataLoss: offsets have been deleted.
            BrokerBehind: a slave does not have them, and no other broker may be queried.
            MQError: no broker could answer.
        """
        failures: list[BaseException] = []
        async with trio.open_nursery() as nursery:

            async def lane() -> None:
                try:
                    while self._next_at < self._plan.part.end:
                        await self._pull_stride(self._open_next())
                except (MQError, DataLoss, BrokerBehind) as error:
                    # Stored, so that it is raised unchanged and not in a group.
                    failures.append(error)
                    nursery.cancel_scope.cancel()

            for _ in range(min(LANES, math.ceil(len(self._plan.part) / self._size))):
                nursery.start_soon(lane)
        if failures:
            raise failures[0]
        self._flush()

    def _open_next(self) -> _Stride:
        """The next stride; they are made one by one, as a range may have millions of them."""
        end = min(self._next_at + self._size, self._plan.part.end)
        stride, self._next_at = _Stride(self._next_at, end), end
        self._open.append(stride)
        return stride

    async def _pull_stride(self, stride: _Stride) -> None:
        await self._pull_offsets(stride)
        stride.is_done = True
        while self._open and self._open[0].is_done:
            self._open.pop(0)
            if self._open:
                for page in self._open[0].pages:
                    self._held -= len(page)
                    self._bundle_up(page)
                self._open[0].pages.clear()
                self._wake_lanes()

    async def _pull_offsets(self, stride: _Stride) -> None:
        while stride.at < stride.end:
            while self._is_full(stride):
                await self._taken.wait()
            result = await self._page(stride)
            if result is None:
                break
            if not result.taken:
                self._take(stride, result)
        if self._plan.is_filtered:
            await self._check_kept(stride)

    def _is_full(self, stride: _Stride) -> bool:
        return self._handed + (0 if (stride.repeats or stride) is self._open[0] else self._held) >= BUFFERED_BYTES

    def _take(self, stride: _Stride, result: PullResult) -> None:
        stride.answered.setdefault(result.broker_address, stride.at)
        if self._plan.is_filtered:
            stride.note_gap(first_offset(result), result.broker_address)
        if result.status is PullStatus.FOUND:
            # A broker that filters continues to the next match, which may belong to the next stride.
            page = result.body if result.next_offset <= stride.end else records_before(result.body, stride.end)
            if page:
                self._keep(stride.repeats or stride, page)
        stride.at = result.next_offset

    def _keep(self, stride: _Stride, page: bytes) -> None:
        if stride is self._open[0]:
            self._bundle_up(page)
        else:
            stride.pages.append(page)
            self._held += len(page)

    def _bundle_up(self, page: bytes) -> None:
        self._bundle.append(page)
        self._bundle_bytes += len(page)
        if self._bundle_bytes >= BUNDLE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._bundle:
            bundle, size = self._bundle, self._bundle_bytes
            self._bundle, self._bundle_bytes = [], 0
            self._handed += size
            self._hand_over(bundle)

    def _wake_lanes(self) -> None:
        self._taken.set()
        self._taken = trio.Event()

    # --- one answer ------------------------------------------------------------------------------------------

    async def _page(self, stride: _Stride) -> PullResult | None:
        """An answer with messages or a later offset; None if nothing is left in the stride.

        Answers before it may have been taken, with all their messages.
        """
        try:
            result = await (
                self._asked(stride.at, stride.end, stride.preference) if stride.preference else self._run(stride)
            )
        except (QueueIllegal, TopicNotFound) as error:
            return await self._without_queue(stride, error)
        except RouteNotFound as error:
            await self._without_route(stride, error)
            return None
        if result.taken or self._leads_on(result, stride.at):
            return result
        return await self._elsewhere(stride, result)

    async def _run(self, stride: _Stride) -> PullResult:
        """Pull from the stride's offset on, as long as the answers are plain: a task switch costs as much as ten
        messages."""
        plan, pulls, refused = self._plan, 1, False

        def go_on(result: PullResult) -> int:
            nonlocal pulls, refused
            if not self._leads_on(result, stride.at):
                refused = True
                return 0
            pulls += 1
            self._take(stride, result)
            return 0 if pulls > RUN_PULLS or self._is_full(stride) else max(0, min(stride.end - stride.at, PAGE_MAX))

        # Without a filter only the rest of the stride is requested, so that nothing is sent twice. With one this limits
        # the matches, not the offsets.
        count = min(stride.end - stride.at, PAGE_MAX)
        result = await pull_run(
            self._session.consumer, plan.queue, stride.at, go_on, tags=plan.tags, sql=plan.sql, max_messages=count
        )
        if refused:
            result.taken = False
        return result

    async def _asked(self, at: int, end: int, preference: ReadPreference | None = None) -> PullResult:
        count = min(end - at, PAGE_MAX)
        plan = self._plan
        return await self._session.consumer.pull(
            plan.queue,
            at,
            tags=plan.tags,
            sql=plan.sql,
            max_messages=count,
            read_preference=preference,
        )

    async def _elsewhere(self, stride: _Stride, result: PullResult) -> PullResult | None:
        """Find an offset that the broker does not have, although it or its master was reported to have it.

        A slave may be behind its master, so the master is queried. If it cannot be reached, the slave is retried for a
        time. Messages that the master does not have either are lost.
        """
        at, end = stride.at, stride.end
        deadline = trio.current_time() + BEHIND_LIMIT_S
        pauses = Backoff(first_s=BEHIND_PAUSE_S, max_s=BEHIND_PAUSE_MAX_S)
        attempts = 0
        while True:
            if self._plan.only is None:
                try:
                    result = await self._asked(at, end, ReadPreference.MASTER)
                except MQError as error:
                    unreachable: MQError | None = error
                else:
                    return result if self._leads_on(result, at) else self._lost(stride, result)
            else:
                unreachable = None
            if self._resumes_at(result, at) is not None:
                return self._lost(stride, result)
            # The clock is read once: it may pass the deadline between two readings.
            left_s = deadline - trio.current_time()
            if left_s <= 0:
                self._behind(at, end, result, unreachable)
                return None
            attempts += 1
            await trio.sleep(min(pauses.pause_s(attempts, 0.0), left_s))
            try:
                result = await self._asked(at, end)
            except MQError as error:
                if trio.current_time() >= deadline:
                    raise
                _log.info("no broker answered for offset %d of %s: %s", at, self._plan.part.queue, error)
                continue
            if self._leads_on(result, at):
                return result

    def _leads_on(self, result: PullResult, at: int) -> bool:
        """Whether an answer contains the messages at an offset, or with a filter a later offset, because the messages
        before it do not match."""
        if result.next_offset <= at:
            return False
        if self._plan.is_filtered:
            return result.status in (PullStatus.FOUND, PullStatus.NO_MATCHED_MESSAGE)
        return result.status is PullStatus.FOUND and first_offset(result) <= at

    def _resumes_at(self, result: PullResult, at: int) -> int | None:
        """The offset from which on a broker has messages, if it no longer has those at `at`; None if it may get them.

        Brokers delete a file of their log first, and the entries of its messages in the queues up to seconds later.
        Meanwhile the queue seems to contain them, and an answer starts after them.
        """
        if result.min_offset <= at and (self._plan.is_filtered or result.next_offset <= at):
            return None
        return goes_on_at(result, at)

    def _lost(self, stride: _Stride, result: PullResult) -> PullResult | None:
        at, end = stride.at, stride.end
        resumes_at = self._resumes_at(result, at)
        until = end if resumes_at is None else min(end, resumes_at)
        held = f"{result.broker_address} holds offsets {result.min_offset} to {result.max_offset}"
        if resumes_at is not None and result.min_offset <= at:
            held = f"{result.broker_address} has deleted their messages, and goes on at {resumes_at}"
        self._report_gone(at, until, held)
        self.skipped += until - at
        stride.kept_from = until
        if resumes_at is not None or result.max_offset <= at:
            self._skip(resumes_at, held)
        return _moved(result, until) if until < end else None

    def _skip(self, until: int | None, why: str) -> None:
        """Leave out strides that are not open yet: no broker is asked for each of them, and there is one line for all.

        Args:
            until: the first offset that a broker may have; None if it has none of the range any more.
            why: the reason.
        """
        end = self._plan.part.end
        until = end if until is None else min(until, end)
        if until > self._next_at:
            self._report_gone(self._next_at, until, why)
            self.skipped += until - self._next_at
            self._next_at = until

    async def _without_queue(self, stride: _Stride, refused: MQError) -> PullResult | None:
        """The master's answer, if another broker does not have the queue; None if the master does not have it either.

        A slave may not have a new topic yet.
        """
        if self._plan.only is not None:
            raise refused
        try:
            result = await self._asked(stride.at, stride.end, ReadPreference.MASTER)
        except (QueueIllegal, TopicNotFound) as error:
            self._all_lost(stride, _lacks_queue(error))
            return None
        return result if self._leads_on(result, stride.at) else await self._elsewhere(stride, result)

    async def _without_route(self, stride: _Stride, missing: MQError) -> None:
        """Return if the topic has been deleted from the queue's broker; a broker that is away may have it."""
        if not await is_deleted(self._session, self._plan.part.queue):
            raise missing
        self._all_lost(stride, self._topic_deleted())

    def _topic_deleted(self) -> str:
        queue = self._plan.part.queue
        return f"topic {queue.topic} has been deleted from {queue.broker_name}"

    def _report_gone(self, at: int, end: int, why: str) -> None:
        report_gone(self._plan, f"offsets {at} to {end} of {self._plan.part.queue} are gone: {why}")

    def _all_lost(self, stride: _Stride, why: str) -> None:
        self._report_gone(stride.at, stride.end, why)
        self.skipped += stride.end - stride.at
        stride.kept_from = stride.end
        self._skip(None, why)

    async def _check_kept(self, stride: _Stride) -> None:
        """Check whether brokers have deleted messages of a filtered stride: an answer with a filter does not show it.

        Messages are deleted from the first on, so the first one is requested, after all others. Each broker deletes its
        own: what one has deleted, or may have deleted before it stopped, is pulled again from one that still has it.
        """
        at, end = stride.kept_from, stride.end
        if at >= end:
            return
        try:
            results = await self._first_kept(stride)
        except (QueueIllegal, TopicNotFound) as error:
            if self._plan.only is not None:
                raise
            self._report_gone(at, end, f"{_lacks_queue(error)}, {_PERHAPS}")
            return
        except RouteNotFound:
            if not await is_deleted(self._session, self._plan.part.queue):
                raise
            self._report_gone(at, end, f"{self._topic_deleted()}, {_PERHAPS}")
            return
        held_to = at
        kept_by = {each.broker_address for each in results.values() if goes_on_at(each, at) is None}
        # The last one first: the first one may be the master, too, and would not be known as such.
        for preference, result in reversed(results.items()):
            if result.broker_address in kept_by and result.max_offset > at:
                held_to = min(end, result.max_offset)
                # As brokers suggest, the next answer could be of one that has deleted messages, again and again.
                chosen = preference or (ReadPreference.SLAVE if ReadPreference.MASTER in results else None)
                await self._pull_gaps(stride, kept_by, held_to, chosen)
                break
        self._report_deleted(stride, {each.broker_address: goes_on_at(each, at) for each in results.values()}, held_to)

    async def _pull_gaps(
        self, stride: _Stride, kept_by: Container[str], held_to: int, preference: ReadPreference | None
    ) -> None:
        """Pull again what brokers may have deleted before they answered.

        Args:
            stride: a filtered stride.
            kept_by: the brokers that still have its first message, and so have deleted none.
            held_to: the end of the offsets that one of them has.
            preference: chooses that one.
        """
        for gap in stride.gaps:
            if gap.address not in kept_by and gap.start < held_to:
                again = _Stride(gap.start, min(gap.end, held_to), stride.repeats or stride, preference)
                await self._pull_offsets(again)

    def _report_deleted(self, stride: _Stride, starts: Mapping[str, int | None], held_to: int) -> None:
        """Report what brokers may have deleted before they answered, and no broker has.

        Args:
            stride: a filtered stride.
            starts: the offset at which each broker that still answers goes on behind messages that it has deleted; None
                if it has deleted none.
            held_to: the end of the offsets that one of them has.
        """
        for address, until in starts.items():
            # What brokers that cannot be asked any more had is not known: they may have deleted the same.
            others = starts.keys() - {address}
            if until is None or min(until, stride.end) <= held_to:
                continue
            if any(first < until for who, first in stride.answered.items() if who not in others):
                self._report_gone(held_to, min(until, stride.end), f"{address} has deleted their messages, {_PERHAPS}")

    async def _first_kept(self, stride: _Stride) -> dict[ReadPreference | None, PullResult]:
        """Answers for the first offset of a filtered stride, without the filter: under `None` of the broker that is asked
        first, then of the master, if another one has answered the stride or has deleted messages, then of a slave that has
        answered it, if these have deleted messages.

        Raises:
            MQError: the first one refuses; or it lacks the queue, and so does the master.
        """
        at = stride.kept_from
        ask = partial(self._session.consumer.pull, self._plan.queue, at, max_messages=1)
        results: dict[ReadPreference | None, PullResult] = {}
        try:
            results[None] = await ask()
        except (QueueIllegal, TopicNotFound):
            # A slave may not have a new topic yet; then the stride is from the master.
            if self._plan.only is not None:
                raise
        if self._plan.only is None and (
            self._unchecked(stride, results) or any(goes_on_at(result, at) is not None for result in results.values())
        ):
            try:
                results[ReadPreference.MASTER] = await ask(read_preference=ReadPreference.MASTER)
            except MQError:
                if not results:
                    raise
                # It has answered, and is away now.
            if self._unchecked(stride, results) and all(goes_on_at(each, at) is not None for each in results.values()):
                with suppress(MQError):
                    results[ReadPreference.SLAVE] = await ask(read_preference=ReadPreference.SLAVE)
        return results

    @staticmethod
    def _unchecked(stride: _Stride, results: Mapping[ReadPreference | None, PullResult]) -> set[str]:
        """The brokers that have answered a stride, and are not among those that were asked for its first message."""
        return stride.answered.keys() - {result.broker_address for result in results.values()}

    def _behind(self, at: int, end: int, result: PullResult, unreachable: MQError | None) -> None:
        queue = self._plan.part.queue
        why = (
            f"its master does not answer: {unreachable}"
            if unreachable
            else f"readPreference={self._plan.only} allows no other broker"
        )
        held = f"{result.broker_address}, which ends at {result.max_offset}"
        what = f"offsets {at} to {end} of {queue} are not on {held}, and {why}"
        if self._plan.fail_on_data_loss:
            raise BrokerBehind(f"{what}; try again when the slave has caught up or the master is back")
        _log.warning("%s; going on without them, because failOnDataLoss=false", what)
        self.skipped += end - at


def report_gone(plan: PullPlan, what: str) -> None:
    """Report that rows of a range no longer exist.

    Raises:
        DataLoss: lost rows are an error; otherwise the loss is logged.
    """
    if plan.fail_on_data_loss:
        raise DataLoss(f"{what}; start later, keep messages longer, or set failOnDataLoss=false to go on without them")
    _log.warning("%s; going on without them, because failOnDataLoss=false", what)


def records_before(page: bytes, end: int) -> bytes:
    """The records of a pull answer whose queue offset is less than `end`; they are in the order of the queue.

    Bytes that cannot be decoded are kept, so that the reader of the records reports them.
    """
    for at in record_starts(page):
        if _offset_of(page, at + QUEUE_OFFSET_AT)[0] >= end:
            return page[:at]
    return page


def _moved(result: PullResult, at: int) -> PullResult:
    return PullResult(
        PullStatus.NO_MATCHED_MESSAGE,
        result.queue,
        next_offset=at,
        min_offset=result.min_offset,
        max_offset=result.max_offset,
        suggested_broker_id=result.suggested_broker_id,
        broker_address=result.broker_address,
    )
