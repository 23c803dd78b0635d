"""Producers on a virtual clock against a broker made of a few lines: a stall shows in an open loop and not in a closed
one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import attrs
import pytest
import trio
import trio.testing

import triomq
from triomq.errors import RequestTimeout
from triomq_benchmarks.figures.intervals import IntervalRow, histogram_of, quantiles
from triomq_benchmarks.generator.engine import Share
from triomq_benchmarks.generator.loop_lag import LoopLag
from triomq_benchmarks.generator.producers import SendTally, ShareProducer
from triomq_benchmarks.generator.second_cells import SecondCells
from triomq_benchmarks.workload.bodies import number_of, read_head
from triomq_benchmarks.workload.schedule import constant
from triomq_benchmarks.workload.workload import Keys, SendMode, Workload
from triomq_protocol.checksum import crc32

ANSWER_S = 0.001


class StallingBroker:
    """In place of the library's producer: answers after a millisecond, except while it stalls.

    Args:
        stall: from when to when nothing is answered, on trio's clock.
    """

    def __init__(self, stall: tuple[float, float] = (0, 0)) -> None:
        self.stall = stall
        self.got: list[triomq.Message] = []
        self.keys: list[object] = []
        self.fails = False
        self.gone = (0.0, 0.0)
        """From when to when the library finds no connection and accepts nothing."""
        self.nursery: trio.Nursery | None = None

    async def _answer(self, messages: list[triomq.Message]) -> triomq.SendResult:
        offset = len(self.got)
        self.got += messages
        await trio.sleep(ANSWER_S)
        begin, end = self.stall
        if begin <= trio.current_time() < end:
            await trio.sleep_until(end + ANSWER_S)
        if self.fails:
            raise RequestTimeout("a send")
        queue = triomq.MessageQueue("t", "broker-a", 0)
        return triomq.SendResult(triomq.SendStatus.SEND_OK, "id", "oid", queue, offset)

    async def send(
        self, message: triomq.Message, callback: object = None, *, selector: object = None, arg: object = None
    ) -> triomq.SendResult | None:
        self.keys.append(arg)
        if self.gone[0] <= trio.current_time() < self.gone[1]:
            await trio.sleep_until(self.gone[1])
        if callback is None:
            return await self._answer([message])
        assert self.nursery is not None
        self.nursery.start_soon(self._tell, message, callback)
        return None

    async def _tell(self, message: triomq.Message, callback: triomq.SendCallback) -> None:
        try:
            result = await self._answer([message])
        except triomq.MQError as error:
            callback.on_exception(error)
        else:
            callback.on_success(result)

    async def send_batch(self, messages: list[triomq.Message]) -> triomq.SendResult:
        return await self._answer(messages)

    async def send_oneway(self, message: triomq.Message) -> None:
        self.got.append(message)


class LedgerList:
    def __init__(self) -> None:
        self.rows: list[tuple[int, str, str, int, int, int]] = []

    def acknowledged(self, number: int, topic: str, broker: str, queue_id: int, queue_offset: int, crc: int) -> None:
        self.rows.append((number, topic, broker, queue_id, queue_offset, crc))


Sleep = Callable[[float], object]


@attrs.define
class Loaded:
    rows: list[IntervalRow]
    tally: SendTally
    broker: StallingBroker
    ledger: LedgerList

    def milliseconds(self, name: str, percentile: str) -> float:
        return float(getattr(quantiles(histogram_of(self.rows, name)), percentile))

    def total(self, name: str) -> float:
        return sum(getattr(row, name) for row in self.rows)


async def load(
    workload: Workload,
    broker: StallingBroker,
    *,
    rate: float = 500,
    seconds: float = 5,
    closed: bool = False,
    sleep_until: Callable[[float], object] = trio.sleep_until,
    lost_s: Callable[[], float] = lambda: 0.0,
) -> Loaded:
    """One producer of worker 2 for so many virtual seconds."""
    share = Share(
        index=2, count=3, workload=workload, name_servers="", topics=("t",), groups=("g",), run_number=77, seed=1
    )
    loaded = Loaded([], SendTally(), broker, LedgerList())
    cells = SecondCells(2, loaded.rows.append, lambda: None)
    begin = trio.current_time()
    cells.begin(begin)
    producer = ShareProducer(share, broker, 0, "t", cells, loaded.tally, loaded.ledger, sleep_until, lost_s)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        broker.nursery = nursery
        if closed:
            await producer.keep_busy(begin, begin + seconds, nursery)
        else:
            instants: Iterator[float] = itertools.takewhile(lambda instant: instant < seconds, constant(rate))
            await producer.follow(instants, begin, begin + seconds + 2, nursery)
    await cells.flush()
    return loaded


WORKLOAD = Workload(name="x", body_bytes=64, in_flight=100_000)


@pytest.mark.parametrize("mode", [SendMode.CALLBACK, SendMode.ASYNC])
async def test_an_open_loop_shows_a_stall_of_two_seconds(
    autojump_clock: trio.testing.MockClock, mode: SendMode
) -> None:
    begin = trio.current_time() + 2
    loaded = await load(attrs.evolve(WORKLOAD, send_mode=mode), StallingBroker((begin, begin + 2)))
    assert loaded.tally.acked == 2500
    assert loaded.milliseconds("intended_to_ack", "p999_ms") == pytest.approx(2000, rel=0.02)
    assert loaded.milliseconds("intended_to_ack", "p50_ms") == pytest.approx(1, rel=0.2)
    # Two fifths of the messages were meant to be sent during the stall, and waited a second on average.
    assert loaded.milliseconds("intended_to_ack", "p90_ms") == pytest.approx(1500, rel=0.1)


async def test_a_closed_loop_hides_it(autojump_clock: trio.testing.MockClock) -> None:
    begin = trio.current_time() + 2
    loaded = await load(attrs.evolve(WORKLOAD, in_flight=1), StallingBroker((begin, begin + 2)), closed=True)
    assert loaded.tally.acked > 2500
    # One message of three thousand waited.
    assert loaded.milliseconds("intended_to_ack", "max_ms") == pytest.approx(2000, rel=0.02)
    assert loaded.milliseconds("intended_to_ack", "p999_ms") < 5


async def test_a_stall_counts_as_held_back_when_all_sends_are_unanswered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    begin = trio.current_time() + 2
    loaded = await load(attrs.evolve(WORKLOAD, in_flight=50), StallingBroker((begin, begin + 2)))
    assert loaded.tally.acked == 2500
    # 50 went into the stall, the rest had to wait: late, but held back.
    assert loaded.milliseconds("intended_to_ack", "p999_ms") == pytest.approx(2000, rel=0.02)
    assert loaded.milliseconds("actual_to_ack", "p90_ms") < 100
    assert loaded.milliseconds("lateness", "p99_ms") < 1
    assert loaded.total("held_s") == pytest.approx(1.9, abs=0.1)


async def test_synchronous_sends_are_held_back_by_every_answer(autojump_clock: trio.testing.MockClock) -> None:
    loaded = await load(attrs.evolve(WORKLOAD, send_mode=SendMode.SYNC), StallingBroker(), rate=2000, seconds=1)
    # One at a time and a millisecond each: half the rate, and none of it is the generator's doing.
    assert loaded.tally.acked == 2000
    assert loaded.milliseconds("intended_to_ack", "max_ms") == pytest.approx(1000, rel=0.05)
    assert loaded.milliseconds("lateness", "max_ms") < 1


async def test_a_generator_that_sleeps_too_long_is_late(autojump_clock: trio.testing.MockClock) -> None:
    async def overslept(instant: float) -> None:
        await trio.sleep_until(instant + 0.02)

    loaded = await load(WORKLOAD, StallingBroker(), rate=10, seconds=5, sleep_until=overslept)
    assert loaded.milliseconds("lateness", "p50_ms") == pytest.approx(20, rel=0.02)
    assert loaded.milliseconds("intended_to_ack", "p50_ms") == pytest.approx(21, rel=0.02)
    assert loaded.milliseconds("actual_to_ack", "p50_ms") == pytest.approx(1, rel=0.02)


async def test_waiting_for_a_connection_counts_as_held_back(autojump_clock: trio.testing.MockClock) -> None:
    broker = StallingBroker()
    broker.gone = (trio.current_time() + 2, trio.current_time() + 3)
    loaded = await load(WORKLOAD, broker)
    assert loaded.milliseconds("intended_to_ack", "p99_ms") == pytest.approx(1000, rel=0.1)
    assert loaded.milliseconds("lateness", "p99_ms") < 1
    assert loaded.total("held_s") == pytest.approx(1, abs=0.01)


async def test_what_the_loop_loses_while_it_waits_is_not(autojump_clock: trio.testing.MockClock) -> None:
    broker = StallingBroker()
    begin = trio.current_time() + 2
    broker.gone = (begin, begin + 1)

    def lost_s() -> float:
        return 0.75 * min(1.0, max(0.0, trio.current_time() - begin))

    loaded = await load(WORKLOAD, broker, lost_s=lost_s)
    assert loaded.milliseconds("lateness", "max_ms") == pytest.approx(750, rel=0.02)
    assert loaded.total("held_s") == pytest.approx(0.25, abs=0.01)


async def test_a_blocked_loop_is_measured() -> None:
    lag = LoopLag()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lag.run)
        await trio.sleep(0.05)
        before = lag.lost_s()
        time.sleep(0.2)  # noqa: ASYNC251 -- that is what a busy loop looks like
        # Also before the measuring task has run.
        assert lag.lost_s() - before > 0.17
        await trio.sleep(0.05)
        assert lag.lost_s() - before > 0.17
        nursery.cancel_scope.cancel()


async def test_what_cannot_be_sent_in_time_is_counted(autojump_clock: trio.testing.MockClock) -> None:
    begin = trio.current_time()
    broker = StallingBroker((begin + 0.5, begin + 60))
    with trio.move_on_after(100):
        loaded = await load(attrs.evolve(WORKLOAD, in_flight=10), broker, rate=100, seconds=1)
    assert loaded.tally.sent + loaded.tally.unsent == 100
    assert loaded.tally.unsent == pytest.approx(39, abs=2)
    # A user who waited for such a message has waited for the timeout of a send at least; it was never called.
    intended, called = (quantiles(histogram_of(loaded.rows, name)) for name in ("intended_to_ack", "actual_to_ack"))
    assert (intended.count - called.count, intended.count) == (loaded.tally.unsent, 100)
    assert intended.p90_ms >= 0.999 * WORKLOAD.send_timeout_s * 1000
    # They are late because the broker held their producer back.
    assert histogram_of(loaded.rows, "lateness").get_max_value() < 1000


async def test_failures_are_counted_with_an_example(autojump_clock: trio.testing.MockClock) -> None:
    broker = StallingBroker()
    broker.fails = True
    loaded = await load(WORKLOAD, broker, rate=100, seconds=1)
    assert (loaded.tally.errors, loaded.tally.acked, loaded.tally.under_way) == (100, 0, 0)
    assert loaded.total("errors") == 100
    assert list(loaded.tally.error_examples) == ["RequestTimeout"]
    assert loaded.tally.error_counts == {"RequestTimeout": 100}
    # However early they fail: who waits for such a send has waited for its timeout at least.
    for name in ("intended_to_ack", "actual_to_ack"):
        measured = quantiles(histogram_of(loaded.rows, name))
        assert measured.count == 100
        assert measured.p50_ms >= 0.999 * WORKLOAD.send_timeout_s * 1000


async def test_every_message_names_itself(autojump_clock: trio.testing.MockClock) -> None:
    workload = attrs.evolve(
        WORKLOAD, tags={"new": 3, "old": 1}, keys=Keys.UNIQUE, ordered_share=0.25, random_share=1, payload_pool=3
    )
    loaded = await load(workload, StallingBroker(), rate=1000, seconds=2)
    heads = [read_head(message.body) for message in loaded.broker.got]
    assert all(head is not None and head.run_number == 77 and head.timed for head in heads)
    numbers = [head.number for head in heads if head is not None]
    assert numbers == sorted(set(numbers))
    assert numbers == [number_of(2, sequence) for sequence in range(1, len(numbers) + 1)]
    assert heads[500] is not None
    assert heads[500].intended_ns == pytest.approx(0.5e9)
    assert {len(message.body) for message in loaded.broker.got} == {64}
    assert len({message.body[24:] for message in loaded.broker.got}) == 3
    assert [message.keys for message in loaded.broker.got[:2]] == [f"{number:x}" for number in numbers[:2]]
    new = sum(message.tags == "new" for message in loaded.broker.got)
    assert new == pytest.approx(1500, rel=0.1)
    assert sum(key is not None for key in loaded.broker.keys) == pytest.approx(500, rel=0.2)
    # What was acknowledged is written down with the body's checksum.
    assert loaded.ledger.rows[7] == (numbers[7], "t", "broker-a", 0, 7, crc32(loaded.broker.got[7].body))


async def test_batches_are_due_when_they_are_complete(autojump_clock: trio.testing.MockClock) -> None:
    workload = attrs.evolve(WORKLOAD, send_mode=SendMode.ASYNC, batch=5)
    loaded = await load(workload, StallingBroker(), rate=100, seconds=1)
    assert (loaded.tally.sent, loaded.tally.acked) == (100, 100)
    assert quantiles(histogram_of(loaded.rows, "intended_to_ack")).count == 100
    assert loaded.milliseconds("intended_to_ack", "max_ms") == pytest.approx(1, rel=0.02)
    assert [row[4] for row in loaded.ledger.rows[:6]] == [0, 1, 2, 3, 4, 5]


async def test_one_way_sends_have_no_answer(autojump_clock: trio.testing.MockClock) -> None:
    loaded = await load(attrs.evolve(WORKLOAD, send_mode=SendMode.ONEWAY), StallingBroker(), rate=100, seconds=1)
    assert (loaded.tally.sent, loaded.tally.acked, loaded.tally.under_way) == (100, 0, 0)
    assert quantiles(histogram_of(loaded.rows, "lateness")).count == 100


async def test_a_backlog_is_sent_ahead_and_untimed(autojump_clock: trio.testing.MockClock) -> None:
    share = Share(
        index=0, count=1, workload=WORKLOAD, name_servers="", topics=("t",), groups=("g",), run_number=1, seed=1
    )
    broker, tally = StallingBroker(), SendTally()
    cells = SecondCells(0, lambda _row: None, lambda: None)
    producer = ShareProducer(share, broker, 0, "t", cells, tally, None, trio.sleep_until)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        await producer.fill(1000, nursery)
    assert (tally.sent, tally.acked) == (1000, 1000)
    heads = [read_head(message.body) for message in broker.got]
    assert not any(head is None or head.timed for head in heads)


async def test_rows_are_reported_each_second_with_the_backlog(autojump_clock: trio.testing.MockClock) -> None:
    rows: list[IntervalRow] = []
    left = itertools.count(10, -1)
    cells = SecondCells(4, rows.append, lambda: next(left))
    cells.begin(trio.current_time() + 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cells.run)
        for _ in range(30):
            cells.at(trio.current_time()).sent += 1
            await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    assert [(row.second, row.backlog) for row in rows if row.backlog is not None] == [(-1, 10), (0, 9)]
    assert sum(row.sent for row in rows) < 30
    await cells.flush()
    assert sum(row.sent for row in rows) == 30
    assert {row.worker for row in rows} == {4}


async def test_a_row_being_made_is_reported_even_if_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    rows: list[IntervalRow] = []
    cells = SecondCells(0, rows.append, lambda: None)
    cells.begin(trio.current_time())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cells.run)
        # So many different values that making the histogram passes checkpoints.
        cells.at(trio.current_time()).lateness.extend(range(10_000))
        await trio.sleep(1.02)
        nursery.cancel_scope.cancel()
    await cells.flush()
    assert histogram_of(rows, "lateness").get_total_count() == 10_000


async def test_counts_before_the_start_is_known_are_discarded(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rows: list[IntervalRow] = []
    cells = SecondCells(0, rows.append, lambda: None)
    cells.at(trio.current_time()).from_slave += 1
    cells.begin(trio.current_time())
    await cells.flush()
    assert rows == []
