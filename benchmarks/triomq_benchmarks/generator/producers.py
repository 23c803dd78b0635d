"""The sending half of a load generator: each producer follows its timetable, or keeps a number of sends under way.

Whatever the way of sending, a message is handed to the library by one task per producer, in order; a producer that may
have no more sends under way waits, and `Pace` keeps that wait apart from the generator's own lateness.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, cycle
from typing import Protocol

import trio

import triomq
from triomq_benchmarks.generator.engine import Share
from triomq_benchmarks.generator.pace import Pace
from triomq_benchmarks.generator.precise_timer import SleepUntil
from triomq_benchmarks.generator.second_cells import Cell, SecondCells
from triomq_benchmarks.workload.bodies import head, number_of, payloads
from triomq_benchmarks.workload.workload import Keys, SendMode, Workload
from triomq_protocol.checksum import crc32

CHECKPOINT_EVERY = 16
"""A late producer lets other tasks run after this many messages: answers must not wait for the whole backlog."""

UNSENT_AT_ONCE = 1024
"""Number of abandoned messages that are counted at once before other tasks run."""

HOLD_FROM_S = 0.005
"""A send that is accepted at once may still let other tasks run for a moment; beyond this time it has had to wait."""

FILL_IN_FLIGHT = 256
"""Maximum number of sends in flight while a backlog is made."""

ROUND_ROBIN_KEYS = 10_000
ORDERING_KEYS = 1_000
_DRAWN = 4096
"""Tags, keys and payloads are chosen at random before the run, and then used in turn."""


class Acknowledged(Protocol):
    """The part of the ledger that producers use."""

    def acknowledged(self, number: int, topic: str, broker: str, queue_id: int, queue_offset: int, crc: int) -> None:
        """Record that a broker has taken a message."""


class SendTally:
    """Totals of all producers of a worker."""

    def __init__(self) -> None:
        self.sequence = 0
        self.sent = self.acked = self.errors = self.unsent = 0
        self.under_way = 0
        self.error_examples: dict[str, str] = {}
        self.error_counts: Counter[str] = Counter()

    async def wait_answered(self) -> None:
        """Wait until no send is in flight."""
        while self.under_way:  # noqa: ASYNC110 -- an event would cost time with every message
            await trio.sleep(0.005)

    def next_sequence(self) -> int:
        """Assign the next number, in the order of sending."""
        self.sequence += 1
        return self.sequence


class Slots:
    """Permits for one producer's sends in flight; like a semaphore, but taking a free one costs nothing."""

    __slots__ = ("_free", "_parking")

    def __init__(self, number: int) -> None:
        self._free = number
        self._parking = trio.lowlevel.ParkingLot()

    def take_nowait(self) -> bool:
        """Take a permit if one is free; returns whether it did."""
        if self._free > 0:
            self._free -= 1
            return True
        return False

    async def take(self) -> None:
        """Wait for a free permit, and take it."""
        await self._parking.park()

    def give(self) -> None:
        """Release a permit: the first waiting task gets it."""
        if not self._parking.unpark():
            self._free += 1


class MessageMaker:
    """Creates one producer's messages.

    Args:
        share: the part of the run to send.
        topic: the destination.
        producer: number of the producer.
    """

    def __init__(self, share: Share, topic: str, producer: int) -> None:
        workload = share.workload
        seed = f"{share.seed}/{producer}"
        chance = random.Random(seed)
        self._run_number = share.run_number
        self._topic = topic
        self._payloads = cycle(payloads(workload, share.payload, seed))
        self._tags: Iterator[str | None] = cycle([None])
        if workload.tags:
            self._tags = cycle(chance.choices(list(workload.tags), list(workload.tags.values()), k=_DRAWN))
        self._keys_kind = workload.keys
        self._keys = self._key_cycle(workload, chance)
        self._ordered = cycle(
            [f"o{chance.randrange(ORDERING_KEYS)}" if chance.random() < workload.ordered_share else None for _ in range(_DRAWN)]
        )  # fmt: skip

    @staticmethod
    def _key_cycle(workload: Workload, chance: random.Random) -> Iterator[str | None]:
        if workload.keys is Keys.ROUND_ROBIN:
            return cycle([f"key-{number}" for number in range(ROUND_ROBIN_KEYS)])
        if workload.keys is Keys.RANDOM:
            return cycle([f"key-{chance.getrandbits(48):x}" for _ in range(_DRAWN)])
        return cycle([None])

    def message(self, number: int, intended_ns: int, *, timed: bool = True) -> triomq.Message:
        """The next message."""
        body = head(self._run_number, number, intended_ns, timed=timed) + next(self._payloads)
        key = f"{number:x}" if self._keys_kind is Keys.UNIQUE else next(self._keys)
        return triomq.Message(self._topic, body, tags=next(self._tags), keys=key)

    def ordering_key(self) -> str | None:
        """The key that selects the next message's queue; None: queues are used in turn."""
        return next(self._ordered)


class ShareProducer:
    """One producer of a share.

    Args:
        share: the part of the run that it belongs to.
        producer: the client library's producer.
        number: its number among all producers of the run.
        topic: the destination.
        cells: takes the figures.
        tally: takes the totals.
        ledger: takes every acknowledged message.
        sleep_until: waits until an instant.
        lost_s: returns the seconds that the loop has lost so far; see `loop_lag.py`.
    """

    def __init__(
        self,
        share: Share,
        producer: triomq.Producer,
        number: int,
        topic: str,
        cells: SecondCells,
        tally: SendTally,
        ledger: Acknowledged | None,
        sleep_until: SleepUntil,
        lost_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        workload = share.workload
        self._producer = producer
        self._topic = topic
        self._workload = workload
        self._cells = cells
        self._tally = tally
        self._ledger = ledger
        self._sleep_until = sleep_until
        self._lost_s = lost_s
        self._worker = share.index
        self._maker = MessageMaker(share, topic, number)
        self._slots = Slots(1 if workload.send_mode is SendMode.SYNC else workload.in_flight)
        self._pace = Pace()
        self._ordered = workload.ordered_share > 0

    async def follow(self, instants: Iterator[float], begin: float, give_up: float, nursery: trio.Nursery) -> None:
        """Open loop: send at each of the given times.

        Args:
            instants: seconds after `begin`, ascending.
            begin: start of the timetable, on trio's clock.
            give_up: time at which to stop even if messages are left; these count as unsent.
            nursery: runs awaited sends.
        """
        batch = self._workload.batch
        due: list[float] = []
        behind = 0
        for instant in instants:
            due.append(begin + instant)
            if len(due) < batch:
                continue
            # A batch is complete, and therefore due, when its last message is.
            intended = due[-1]
            now = trio.current_time()
            if now < intended:
                behind = 0
                await self._sleep_until(intended)
                now = trio.current_time()
            else:
                behind += 1
                if behind % CHECKPOINT_EVERY == 0:
                    await trio.lowlevel.checkpoint()
                    now = trio.current_time()
                if now > give_up:
                    await self._leave_unsent(chain(due, (begin + each for each in instants)))
                    return
            count, due = len(due), []
            own = self._pace.arrive(max(0, int((now - intended) * 1e6)))
            self._cells.at(intended).lateness.extend([own] * count)
            await self._send(intended, count, nursery)

    async def _leave_unsent(self, instants: Iterable[float]) -> None:
        """Count messages whose turn never came; they count as having waited at least as long as for a failed send."""
        least_us = int(self._workload.send_timeout_s * 1e6)
        now = trio.current_time()
        for number, intended in enumerate(instants):
            late_us = int((now - intended) * 1e6)
            cell = self._cells.at(intended)
            cell.intended_to_ack.append(max(least_us, late_us))
            cell.lateness.append(self._pace.arrive(max(0, late_us)))
            self._tally.unsent += 1
            if number % UNSENT_AT_ONCE == UNSENT_AT_ONCE - 1:
                await trio.lowlevel.checkpoint()

    async def keep_busy(self, begin: float, until: float, nursery: trio.Nursery) -> None:
        """Closed loop: send whenever a permit is free; each message is intended for the time at which it is sent.

        Args:
            begin: start time, on trio's clock.
            until: end time.
            nursery: runs awaited sends.
        """
        await self._sleep_until(begin)
        number = 0
        while (now := trio.current_time()) < until:
            await self._send(now, self._workload.batch, nursery, closed=True)
            number += 1
            if number % CHECKPOINT_EVERY == 0:
                await trio.lowlevel.checkpoint()

    async def fill(self, count: int, nursery: trio.Nursery) -> None:
        """Send `count` messages as fast as possible, before the run; they are counted only for consumers.

        Raises:
            triomq.MQError: a message was not accepted.
        """
        under_way = trio.Semaphore(FILL_IN_FLIGHT)

        async def send(message: triomq.Message, number: int) -> None:
            result = await self._producer.send(message)
            under_way.release()
            self._tally.acked += 1
            if self._ledger is not None:
                self._note(number, result, result.queue_offset, message.body)

        for _ in range(count):
            await under_way.acquire()
            number = number_of(self._worker, self._tally.next_sequence())
            self._tally.sent += 1
            nursery.start_soon(send, self._maker.message(number, 0, timed=False), number)

    # -- one request ---------------------------------------------------------------------------------------------

    async def _send(self, intended: float, count: int, nursery: trio.Nursery, *, closed: bool = False) -> None:
        mode = self._workload.send_mode
        if mode is not SendMode.ONEWAY and not self._slots.take_nowait():
            since, lost_s = trio.current_time(), self._lost_s()
            await self._slots.take()
            self._note_hold(since, lost_s)
        now = trio.current_time()
        if closed:
            intended = now
        intended_ns = round((intended - self._cells.origin) * 1e9)
        tally, cell = self._tally, self._cells.at(now)
        numbers = [number_of(self._worker, tally.next_sequence()) for _ in range(count)]
        messages = [self._maker.message(number, intended_ns) for number in numbers]
        tally.sent += count
        cell.sent += count
        cell.sent_bytes += sum(len(message.body) for message in messages)
        sent = _Sent(self, messages, numbers, intended, now)
        lost_s = self._lost_s()
        if mode is not SendMode.ONEWAY:
            tally.under_way += 1
        if mode is SendMode.ASYNC:
            nursery.start_soon(self._awaited, sent)
        elif mode is SendMode.SYNC:
            await self._awaited(sent)
            # It may not send before it has the answer: any resulting delay is the broker's.
            self._pace.held(self._held_us(now, lost_s))
        else:
            await (self._with_callback(sent) if mode is SendMode.CALLBACK else self._oneway(sent))
            if trio.current_time() > now + HOLD_FROM_S:
                # The library waits for a route or a connection before it accepts a message.
                self._note_hold(now, lost_s)

    def _note_hold(self, since: float, lost_s: float) -> None:
        held_us = self._held_us(since, lost_s)
        self._pace.held(held_us)
        self._cells.at(trio.current_time()).held_s += held_us / 1e6

    def _held_us(self, since: float, lost_s: float) -> int:
        """Time for which the broker held the producer back: the wait, without the loop's own loss in it."""
        return max(0, int((trio.current_time() - since - (self._lost_s() - lost_s)) * 1e6))

    async def _with_callback(self, sent: _Sent) -> None:
        message = sent.messages[0]
        key = self._maker.ordering_key() if self._ordered else None
        try:
            if key is None:
                await self._producer.send(message, sent)
            else:
                await self._producer.send(message, sent, selector=triomq.plugins.select_by_hash, arg=key)
        except triomq.MQError as error:
            sent.on_exception(error)

    async def _awaited(self, sent: _Sent) -> None:
        key = self._maker.ordering_key() if self._ordered else None
        try:
            if len(sent.messages) > 1:
                result = await self._producer.send_batch(sent.messages)
            elif key is None:
                result = await self._producer.send(sent.messages[0])
            else:
                result = await self._producer.send(sent.messages[0], selector=triomq.plugins.select_by_hash, arg=key)
        except triomq.MQError as error:
            sent.on_exception(error)
        else:
            sent.on_success(result)

    async def _oneway(self, sent: _Sent) -> None:
        try:
            await self._producer.send_oneway(sent.messages[0])
        except triomq.MQError as error:
            self._failed(error, 1)

    # -- how it ended --------------------------------------------------------------------------------------------

    def taken(self, sent: _Sent, result: triomq.SendResult) -> None:
        """Record that a broker has taken a request."""
        now = trio.current_time()
        count = len(sent.messages)
        tally, cells = self._tally, self._cells
        tally.acked += count
        tally.under_way -= 1
        cells.at(now).acked += count
        cell = cells.at(sent.intended)
        _record(cell, count, int((now - sent.intended) * 1e6), int((now - sent.called) * 1e6))
        if self._ledger is not None:
            for place, (number, message) in enumerate(zip(sent.numbers, sent.messages, strict=True)):
                self._note(number, result, result.queue_offset + place, message.body)
        self._slots.give()

    def refused(self, sent: _Sent, error: triomq.MQError) -> None:
        """Record a failed request; to its caller, it took the send's timeout, however early it failed."""
        self._tally.under_way -= 1
        now, count = trio.current_time(), len(sent.messages)
        least_us = int(self._workload.send_timeout_s * 1e6)
        since_intended, since_called = int((now - sent.intended) * 1e6), int((now - sent.called) * 1e6)
        _record(self._cells.at(sent.intended), count, max(least_us, since_intended), max(least_us, since_called))
        self._failed(error, count)
        self._slots.give()

    def _failed(self, error: triomq.MQError, count: int) -> None:
        self._tally.errors += count
        self._cells.at(trio.current_time()).errors += count
        self._tally.error_counts[type(error).__name__] += count
        self._tally.error_examples.setdefault(type(error).__name__, str(error))

    def _note(self, number: int, result: triomq.SendResult, offset: int, body: bytes) -> None:
        assert self._ledger is not None
        queue = result.queue
        self._ledger.acknowledged(number, queue.topic, queue.broker_name, queue.queue_id, offset, crc32(body))


def _record(cell: Cell, count: int, since_intended: int, since_called: int) -> None:
    if count == 1:
        cell.intended_to_ack.append(since_intended)
        cell.actual_to_ack.append(since_called)
    else:
        cell.intended_to_ack.extend([since_intended] * count)
        cell.actual_to_ack.extend([since_called] * count)


class _Sent:
    """One request in flight; called exactly once, when it ends."""

    __slots__ = ("_producer", "called", "intended", "messages", "numbers")

    def __init__(
        self,
        producer: ShareProducer,
        messages: Sequence[triomq.Message],
        numbers: Sequence[int],
        intended: float,
        called: float,
    ) -> None:
        self._producer = producer
        self.messages = messages
        self.numbers = numbers
        self.intended = intended
        self.called = called

    def on_success(self, result: triomq.SendResult) -> None:
        self._producer.taken(self, result)

    def on_exception(self, error: triomq.MQError) -> None:
        self._producer.refused(self, error)
