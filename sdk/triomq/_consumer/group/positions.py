"""One consumer's positions in its queues: a cache over an offset store (docs/protocol/consumer.md §12).

Consuming advances the cache.  It is written to the store, at the brokers or in a file, every few seconds, before a queue
is given up, and at the end.  A queue that may have been taken by another member is in doubt: its offset is not written
until that is resolved.  The decisions (where to start, what to do if an offset is missing, whether another member has
got further) are pure functions.  Upstream: ``RemoteBrokerOffsetStore``, ``RebalancePushImpl.computePullFromWhere``.
"""

from __future__ import annotations

import enum
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from functools import partial
from typing import Final, Literal

import attrs
import trio

from triomq._cluster.broker_offsets import OFFSET_TIMEOUT_S, BrokerOffsets, offset_in_doubt
from triomq._cluster.queue_bounds import QueueBounds
from triomq._consumer.group.by_broker import at_each_broker, by_broker
from triomq._consumer.group.callbacks import ConsumerEvent, reporter
from triomq._consumer.offset_store import OffsetStore
from triomq._error_text import shown
from triomq._message.message import OFFSET_MAX, MessageQueue
from triomq._message.pull_result import PullResult
from triomq.errors import InvalidCall, MQError, OffsetIllegal, RequestTimeout
from triomq_protocol.names import RETRY_PREFIX
from triomq_protocol.requests.heartbeat import (
    CONSUME_FROM_FIRST_OFFSET,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_FROM_TIMESTAMP,
)

log = logging.getLogger("triomq.positions")

COMMIT_EVERY_S: Final = 5.0
"""How often offsets are persisted by default (``persistConsumerOffsetInterval``)."""

COMMIT_BOUNDS_S: Final = (0.1, 3600.0)
"""The bounds of that interval, in seconds."""

PERSIST_FIRST_S: Final = 10.0
"""A consumer's offsets are first persisted after two intervals, but at the latest after this time."""

PERSIST_ALL_S: Final = 30.0
"""How often offsets that have not moved are persisted again: a broker may have lost them in a crash."""

LEFT_MAX: Final = 10_000
"""The most queues whose position is kept after they were given up, as their broker is gone; it may never return."""

END_TIMEOUT_S: Final = 3.0
"""How long the last commit of a queue or a consumer, and unlocking, may take in any case."""


StartFrom = Literal["latest", "earliest"] | datetime | int
"""Where a group without offsets starts: at the queues' ends, at their beginnings, or at a time (int: ms since 1970)."""


class IllegalOffset(enum.Enum):
    """What to do if a broker does not have the offset to pull."""

    BROKER = "broker"
    """Continue at the offset that the broker proposes: the queue's nearer end."""

    EARLIEST = "earliest"
    """Continue at the queue's first message: some may be delivered again, none is skipped."""

    LATEST = "latest"
    """Continue after the queue's last message; all messages up to there are skipped."""

    RAISE = "raise"
    """End the consumer with :class:`~triomq.errors.OffsetIllegal`."""


def illegal_offset_policy(value: IllegalOffset | str) -> IllegalOffset:
    """The policy with a name.

    Raises:
        InvalidCall: there is no policy with this name.
    """
    try:
        return IllegalOffset(value)
    except ValueError:
        known = ", ".join(each.value for each in IllegalOffset)
        raise InvalidCall(f"no illegal_offset policy {shown(value)}; there are {known}") from None


def corrected_offset(policy: IllegalOffset, *, next_offset: int, min_offset: int, max_offset: int) -> int | None:
    """The offset to continue at after an illegal one; None if the consumer must end.

    Args:
        policy: the user's choice.
        next_offset: the broker's proposal.
        min_offset: the queue's first offset.
        max_offset: the offset after its last message.
    """
    proposals = {
        IllegalOffset.BROKER: next_offset,
        IllegalOffset.EARLIEST: min_offset,
        IllegalOffset.LATEST: max_offset,
    }
    chosen = proposals.get(policy)
    return None if chosen is None else max(chosen, 0)


def is_overtaken(known: int, committed: int | None, *, moved: bool) -> bool:
    """Whether another member has consumed more of a queue than this one, while this one was not in the group.

    Args:
        known: how far this member has consumed it.
        committed: the group's offset in the store now; None if there is none.
        moved: whether a seek, a reset, or a correction before this member was cut off, has set ``known``, and it has
            not been written since.
    """
    return committed is not None and committed > known and not moved


@attrs.frozen
class Start:
    """Where a queue without a committed offset starts: a fixed offset, the queue's end, or a time.

    Exactly one is set.

    Args:
        offset: this offset.
        at_end: after the last message.
        time_ms: at the first message stored then or later, in ms since 1970.
    """

    offset: int | None = None
    at_end: bool = False
    time_ms: int | None = None


def check_start_from(start_from: object) -> StartFrom:
    """Raise :class:`InvalidCall` unless a group can start there."""
    if start_from == "latest" or start_from == "earliest":
        return "latest" if start_from == "latest" else "earliest"
    if isinstance(start_from, datetime) or (
        isinstance(start_from, int) and not isinstance(start_from, bool) and start_from >= 0
    ):
        checked_time_ms("start_from", start_from)
        return start_from
    raise InvalidCall(f'start_from is {shown(start_from)}; use "latest", "earliest", a datetime, or ms since 1970')


def checked_time_ms(name: str, moment: object) -> int:
    """A time in ms since 1970.

    Args:
        name: its name for the error.
        moment: a datetime with a zone, or the milliseconds.

    Raises:
        InvalidCall: it is neither.
    """
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidCall(f"{name} has no time zone; use datetime(..., tzinfo=...) or datetime.astimezone()")
    elif not isinstance(moment, int) or isinstance(moment, bool) or not 0 <= moment <= OFFSET_MAX:
        raise InvalidCall(f"{name} is {shown(moment)}, neither a datetime nor ms since 1970")
    return time_ms_of(moment)


def start_of_new_group(start_from: StartFrom, topic: str) -> Start:
    """Where a group without an offset in a queue starts (the table of docs/protocol/consumer.md §12.4)."""
    is_retry = topic.startswith(RETRY_PREFIX)
    if start_from == "latest":
        # Messages that failed before the group had an offset must not be skipped.
        return Start(offset=0) if is_retry else Start(at_end=True)
    if start_from == "earliest":
        # The broker corrects it if older messages have been deleted.
        return Start(offset=0)
    if is_retry:
        return Start(at_end=True)
    return Start(time_ms=time_ms_of(start_from))


def time_ms_of(moment: datetime | int) -> int:
    """Milliseconds since 1970."""
    return int(moment.timestamp() * 1000) if isinstance(moment, datetime) else int(moment)


def consume_from_where(start_from: StartFrom) -> str:
    """The name of a start in heartbeats."""
    if start_from == "latest":
        return CONSUME_FROM_LAST_OFFSET
    return CONSUME_FROM_FIRST_OFFSET if start_from == "earliest" else CONSUME_FROM_TIMESTAMP


class Positions:
    """How far a consumer has consumed each queue.

    Args:
        store: keeps the offsets beyond this process.
        bounds: looks up the queues' ranges.
        start_from: where queues without an offset start.
        illegal_offset: what to do about offsets that brokers do not have.
        commit_every_s: seconds between two commits of :meth:`keep_persisting`.
        report: called with events ``offset_illegal``, ``offset_refused``, ``overtaken`` and ``reset``.

    Attributes:
        at_brokers: whether each broker keeps the offsets of its queues, and not one store those of all.
    """

    def __init__(
        self,
        store: OffsetStore,
        bounds: QueueBounds,
        *,
        start_from: StartFrom = "latest",
        illegal_offset: IllegalOffset | str = IllegalOffset.BROKER,
        commit_every_s: float = COMMIT_EVERY_S,
        report: Callable[[ConsumerEvent], None] | None = None,
    ) -> None:
        self.start_from = check_start_from(start_from)
        self.policy = illegal_offset_policy(illegal_offset)
        self._store = store
        self._bounds = bounds
        self._commit_every_s = commit_every_s
        self._report = report if report is not None else reporter(None)
        self._offsets: dict[MessageQueue, int] = {}
        self._persisted: dict[MessageQueue, int] = {}
        self._starts: dict[MessageQueue, int] = {}
        """Queue -> the start of a new group that is not in the store yet."""
        self._fenced: set[MessageQueue] = set()
        self._chosen: set[MessageQueue] = set()
        """Queues whose offset is one that a caller has named."""
        self._moved: dict[MessageQueue, bool] = {}
        """Queue that was moved, of which no later offset has been written -> whether one is being written."""
        self._lowest: dict[MessageQueue, int] = {}
        """Queue that another member has taken over -> the lowest offset that may be committed."""
        self._left: dict[MessageQueue, tuple[int, bool]] = {}
        """Queue that was given up and is no other member's -> the position, and whether a seek or a reset has set it."""
        self._doubted: set[MessageQueue] = set()
        self._certain = trio.Event()
        self._silent_until: dict[str, float] = {}
        """Broker that has let the commit of a start time out -> until when no start waits for it, on trio's clock."""
        self.at_brokers = isinstance(store, BrokerOffsets)
        # One at a time: brokers may serve two requests of one link in either order. A store of another kind has one lock
        # for all brokers: it does not have to allow two commits at a time.
        self._writing: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)

    # --- memory ----------------------------------------------------------------------------------------------

    def get(self, queue: MessageQueue) -> int | None:
        """The offset in memory."""
        return self._offsets.get(queue)

    def of_topic(self, topic: str) -> dict[MessageQueue, int]:
        """The offsets of a topic's queues, for a broker's request 221."""
        return {queue: offset for queue, offset in self._offsets.items() if queue.topic == topic}

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> bool:
        """Record how far a queue is consumed.

        Args:
            queue: the queue.
            offset: all messages below it are done.
            increase_only: refuse to go back; see also :meth:`commit_at` and :meth:`move`.

        Returns:
            Whether it was accepted; a refused jump back is reported once per queue.
        """
        known = self._offsets.get(queue)
        if offset < self._lowest.get(queue, 0):
            self._refuse(queue, f"{queue}: committing {offset} is refused, since another member has got further")
            return False
        if known is not None and offset < known and increase_only:
            if queue in self._chosen:
                return False  # a caller has committed messages that do not count as consumed yet
            why = f"{known} is committed and no seek or reset asked for a step back"
            self._refuse(queue, f"{queue}: committing {offset} is refused, since {why}")
            return False
        self._offsets[queue] = offset
        self._chosen.discard(queue)
        return True

    def commit_at(self, queue: MessageQueue, offset: int) -> bool:
        """Take a caller's commit of an offset, forwards or back, but not below one that another member has committed.

        Returns:
            Whether it was accepted. A queue that is not this member's is refused too: the caller may still hold its
            messages, while another member is further.
        """
        if queue not in self._offsets:
            self._refuse(queue, f"{queue}: committing {offset} is refused, since the queue is not this member's")
            return False
        accepted = self.update(queue, offset, increase_only=False)
        if accepted:
            self._chosen.add(queue)
        return accepted

    def _refuse(self, queue: MessageQueue, text: str) -> None:
        if queue not in self._fenced:
            self._fenced.add(queue)
            self._report(ConsumerEvent("offset_refused", text, queue))

    def move(self, queue: MessageQueue, offset: int) -> None:
        """Move a queue by a seek, a reset or a correction: it continues there, forwards or back."""
        self._lowest.pop(queue, None)
        self.update(queue, offset, increase_only=False)
        self._moved[queue] = False

    def forget(self, queue: MessageQueue) -> None:
        """Drop a queue from memory: it belongs to another member now."""
        self._offsets.pop(queue, None)
        self._persisted.pop(queue, None)
        self._starts.pop(queue, None)
        self._fenced.discard(queue)
        self._chosen.discard(queue)
        self._moved.pop(queue, None)
        self._lowest.pop(queue, None)
        self._end_doubt(queue)

    def leave(self, queue: MessageQueue, *, by_hand: bool = False) -> None:
        """:meth:`forget` a queue that may be no other member's, as its broker has left the route: unless
        :meth:`forget_left` or :meth:`forget_left_topic` is called, :meth:`start` continues here, not at an older offset
        in the store.

        Args:
            queue: the queue.
            by_hand: continue after what was committed: a broker that was killed may have lost that.
        """
        offset = (self._persisted if by_hand else self._offsets).get(queue)
        moved = queue in self._moved and not by_hand
        self.forget(queue)
        if offset is not None:
            self._left[queue] = offset, moved
            if len(self._left) > LEFT_MAX:
                del self._left[next(iter(self._left))]

    def forget_left(self, queues: Collection[MessageQueue]) -> None:
        """Drop the positions in queues that were given up: they are other members', or a reset overrules them."""
        for queue in self._left.keys() & set(queues):
            del self._left[queue]

    def forget_left_topic(self, topic: str) -> None:
        """Drop the positions in all queues of a topic that were given up: it is not consumed any more."""
        self._left = {queue: left for queue, left in self._left.items() if queue.topic != topic}

    # --- doubt -----------------------------------------------------------------------------------------------

    def doubt(self) -> None:
        """Write no offset until :meth:`confirm` or :meth:`forget`: this member may have been out of the group."""
        self._doubted.update(self._offsets)

    def in_doubt(self, queue: MessageQueue) -> bool:
        """Whether a queue may belong to another member by now."""
        return queue in self._doubted

    def confirm(self, queue: MessageQueue, committed: int | None) -> int | None:
        """Write a queue's offsets again: it is this member's, and the group's offset has been read since the doubt.

        Returns:
            The offset to continue at, if another member has got further meanwhile.
        """
        self._end_doubt(queue)
        self._drop_older_start(queue, committed)
        known = self._offsets.get(queue)
        if known is None or not is_overtaken(known, committed, moved=queue in self._moved):
            return None
        assert committed is not None
        self._offsets[queue] = self._persisted[queue] = self._lowest[queue] = committed
        text = f"{queue}: this member was cut off at {known}, and another one has committed {committed}; going on there"
        self._report(ConsumerEvent("overtaken", text, queue))
        return committed

    def confirm_progress(self, queue: MessageQueue, committed: int | None) -> None:
        """Like :meth:`confirm` for a queue that is given up: if another member has got further, nothing is written."""
        self._drop_older_start(queue, committed)
        known = self._offsets.get(queue)
        if known is not None and not is_overtaken(known, committed, moved=queue in self._moved):
            self._end_doubt(queue)

    def _drop_older_start(self, queue: MessageQueue, committed: int | None) -> None:
        """Do not write the start of a new group any more if another member has got further than that."""
        if committed is not None and committed > self._starts.get(queue, committed):
            del self._starts[queue]

    def _end_doubt(self, queue: MessageQueue) -> None:
        if queue in self._doubted:
            self._doubted.discard(queue)
            self._certain.set()
            self._certain = trio.Event()

    async def _wait_certain(self, queues: Collection[MessageQueue]) -> None:
        with trio.move_on_after(OFFSET_TIMEOUT_S):
            while not self._doubted.isdisjoint(queues):
                await self._certain.wait()

    # --- store -----------------------------------------------------------------------------------------------

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset in the store.

        Raises:
            MQError: it cannot be read now.
        """
        return await self._store.read(queue)

    async def persist(self, queues: Collection[MessageQueue]) -> bool:
        """Write the offsets of these queues to the store, changed or not; brokers that do not answer are logged.

        Returns:
            Whether all were written.
        """
        for error in await self._persist(queues):
            log.warning("offsets could not be persisted: %s", error.reason)
            return False
        return True

    async def commit(self, queues: Collection[MessageQueue]) -> None:
        """:meth:`persist` for callers who need the outcome; it waits for queues in doubt.

        Raises:
            LinkLost: a queue is still in doubt.
            MQError: some may not be stored.
        """
        await self._wait_certain(queues)
        for error in await self._persist(queues):
            raise error
        for queue in queues:
            if queue in self._doubted:
                raise offset_in_doubt(queue)

    @trio.lowlevel.enable_ki_protection
    async def keep_persisting(self, owned: Callable[[], Collection[MessageQueue]]) -> None:
        """Persist until cancelled: changed offsets every 5 s, or as set, first after 10 s at most; all every 30 s."""
        every_s = self._commit_every_s
        rounds_of_all = max(1, round(PERSIST_ALL_S / every_s))
        pause_s, rounds = min(PERSIST_FIRST_S, 2 * every_s), 0
        while True:
            await trio.sleep(pause_s)
            pause_s, rounds = every_s, rounds + 1
            queues = owned()
            if rounds % rounds_of_all:
                queues = [queue for queue in queues if self._offsets.get(queue) != self._persisted.get(queue)]
            await self.persist(queues)

    async def persist_at_end(self, owned: Collection[MessageQueue]) -> None:
        """Persist queues for the last time: shielded from cancellation, but limited in time."""
        with trio.move_on_after(END_TIMEOUT_S, shield=True):
            await (self.persist(owned) if self.at_brokers else self.persist_at_once(owned))

    async def persist_at_once(self, queues: Collection[MessageQueue]) -> None:
        """:meth:`persist` in one commit, for a store that is not at the brokers, where the time is limited: it may need
        a second or more for each.  If it fails, each broker's queues are committed as always: some may be refused."""
        errors: list[MQError] = []
        if queues:
            await self._persist_at(queues, errors)
        if errors and len(by_broker(queues)) > 1:
            errors = await self._persist(queues)
        for error in errors:
            log.warning("offsets could not be persisted: %s", error.reason)

    async def _persist(self, queues: Collection[MessageQueue]) -> list[MQError]:
        errors: list[MQError] = []
        if self.at_brokers:
            await at_each_broker(queues, partial(self._persist_at, errors=errors))
        else:
            for theirs in by_broker(queues):
                await self._persist_at(theirs, errors)
        return errors

    @trio.lowlevel.enable_ki_protection
    async def _persist_at(self, theirs: Collection[MessageQueue], errors: list[MQError]) -> None:
        """Write the offsets of queues of one broker; an error is added to the list."""
        place = next(iter(theirs)).broker_name if self.at_brokers else ""
        async with self._writing[place]:
            # Read only now: earlier writes may have taken seconds, in which a queue was given up or came into doubt.
            known = [queue for queue in theirs if queue in self._offsets and queue not in self._doubted]
            part = {queue: self._offsets[queue] for queue in known}
            if not part:
                return
            if not self.at_brokers:  # which ask for each offset, by `to_write`, when it is sent
                self._note_writing(part)
            try:
                await self._store.commit(part)
            except MQError as error:
                errors.append(error)
            else:
                for queue, offset in part.items():
                    self.note_persisted(queue, offset)

    def _note_writing(self, queues: Iterable[MessageQueue]) -> None:
        for queue in self._moved.keys() & set(queues):
            self._moved[queue] = True

    def to_write(self, queue: MessageQueue) -> int | None:
        """The offset of a queue to write now; None if it was given up meanwhile.

        Raises:
            LinkLost: it is in doubt.
        """
        if queue in self._doubted:
            raise offset_in_doubt(queue)
        self._note_writing([queue])
        return self._offsets.get(queue)

    def note_persisted(self, queue: MessageQueue, offset: int) -> None:
        """Record that an offset is in the store; brokers may store some and refuse others."""
        if queue in self._offsets:
            self._persisted[queue] = offset
            self._starts.pop(queue, None)
            if self._moved.get(queue):  # else the answer is to an offset that was sent before the move
                del self._moved[queue]

    # --- starting and correcting -----------------------------------------------------------------------------

    async def start(self, queue: MessageQueue) -> int:
        """The offset to start at in a queue that has just been assigned (docs/protocol/consumer.md §12.4).

        A committed offset wins, except over a later position of this member in a queue that no other one has had since.
        The start of a new group is committed at once: the next owner of the queue
        starts there too, even if this member dies before it has consumed anything.

        Raises:
            MQError: it cannot be determined now; ask again later.
        """
        self.forget(queue)
        committed = await self._store.read(queue)
        left = await self._position_left(queue, committed)
        if left is not None:
            return left
        if committed is not None and committed > 0:
            self._offsets[queue] = self._persisted[queue] = committed
            return committed
        # Brokers also answer 0 for new queues in which the group has no offset yet (docs/protocol/consumer.md §12.2).
        offset = 0
        if committed is None:
            offset = await self._resolve(queue, start_of_new_group(self.start_from, queue.topic))
        self._offsets[queue] = self._starts[queue] = offset
        await self._persist_start(queue)
        return offset

    async def _position_left(self, queue: MessageQueue, committed: int | None) -> int | None:
        """Where this member was in a queue before it had to be given up, and continues."""
        if queue not in self._left:
            return None
        offset, moved = self._left[queue]
        is_ours = moved or committed is None or offset > committed
        # A broker may have come back without its messages.
        if is_ours and offset > await self._bounds.max_offset(queue, only_master=True):
            is_ours = False
        # A reset may have dropped it meanwhile.
        if self._left.pop(queue, None) is None or not is_ours:
            return None
        log.info("%s is continued at %d, where this member was; %s is committed", queue, offset, committed)
        self._offsets[queue] = offset
        if committed is not None:
            self._persisted[queue] = committed
        if moved:
            self._moved[queue] = False
        return offset

    async def _persist_start(self, queue: MessageQueue) -> None:
        """Write the start of a queue, or leave it to :meth:`keep_persisting` if its broker has just let that time out:
        it would be waited for at each of its queues."""
        if trio.current_time() < self._silent_until.get(queue.broker_name, -math.inf):
            return
        for error in await self._persist([queue]):
            log.warning("offsets could not be persisted: %s", error.reason)
            if isinstance(error, RequestTimeout):
                self._silent_until[queue.broker_name] = trio.current_time() + PERSIST_FIRST_S

    def unwritten_starts(self) -> list[MessageQueue]:
        """Queues whose start has to be committed yet, and that are still there, for a consumer that commits nothing
        else by itself."""
        return [queue for queue, offset in self._starts.items() if self._offsets.get(queue) == offset]

    def return_to_starts(self, queues: Collection[MessageQueue]) -> list[MessageQueue]:
        """Those of the queues that are given up whose start has to be committed yet, by a consumer that commits nothing else
        by itself: what it has consumed since does not count, but an offset that its caller has named does."""
        found = [queue for queue in queues if queue in self._starts and queue in self._offsets]
        for queue in found:
            if queue not in self._chosen:
                self._offsets[queue] = self._starts[queue]
        return found

    async def _resolve(self, queue: MessageQueue, start: Start) -> int:
        if start.at_end:
            # A slave may be behind: messages that it does not have yet would be skipped or delivered again.
            return await self._bounds.max_offset(queue, only_master=True)
        if start.time_ms is not None:
            return await self._bounds.offset_by_time(queue, start.time_ms)
        assert start.offset is not None
        return start.offset

    async def correct(self, queue: MessageQueue, offset: int, result: PullResult) -> int:
        """Choose another offset after the broker reported this one as illegal, and persist it.

        The policy decides, except after an operator's reset.

        Args:
            queue: the queue.
            offset: the offset to be pulled.
            result: the broker's answer, with status ``OFFSET_ILLEGAL``.

        Raises:
            OffsetIllegal: the policy is ``"raise"``.
        """
        if result.was_reset:
            self.reset(queue, result.next_offset)
            await self.persist([queue])
            return result.next_offset
        chosen = corrected_offset(
            self.policy, next_offset=result.next_offset, min_offset=result.min_offset, max_offset=result.max_offset
        )
        what = f"{queue} has no offset {offset}, only {result.min_offset} to {result.max_offset}"
        goes_on = "the consumer ends" if chosen is None else f"going on at {chosen}"
        self._report(ConsumerEvent("offset_illegal", f"{what}; {goes_on} (policy {self.policy.value})", queue))
        if chosen is None:
            raise OffsetIllegal(what, address=result.broker_address)
        keeps_doubt = queue in self._doubted and queue not in self._moved
        self.move(queue, chosen)
        if keeps_doubt:
            self._moved.pop(queue)  # unlike a seek, it is no reason to go back behind another member
        await self.persist([queue])
        return chosen

    def reset(self, queue: MessageQueue, offset: int) -> None:
        """Carry out an operator's reset: the queue continues there, forwards or back. The caller persists it."""
        before = self._offsets.get(queue)
        text = f"{queue} was reset from {'an unknown offset' if before is None else before} to {offset}"
        self._report(ConsumerEvent("reset", text, queue))
        self.move(queue, offset)
        self._fenced.discard(queue)

    async def offset_at(self, queue: MessageQueue, moment: datetime | int) -> int:
        """The offset of the first message stored at a time or later; a datetime without zone is refused.

        Raises:
            InvalidCall: the time cannot be used.
            MQError: no broker could determine it.
        """
        return await self._bounds.offset_by_time(queue, checked_time_ms("the time", moment))
