"""A load's consumers: their backlog, and messages that were altered."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

import triomq
from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.generator.consumers import ANSWER_S, SUSPEND_S, Consumers
from triomq_benchmarks.generator.engine import Share
from triomq_benchmarks.generator.second_cells import SecondCells
from triomq_benchmarks.workload.bodies import head
from triomq_benchmarks.workload.workload import Workload

QUEUE = triomq.MessageQueue("t", "broker-a", 0)


class StoppedBroker:
    """Answers pulls after a second, as one that holds them, but not while it is stopped; or it cannot be reached."""

    def __init__(self) -> None:
        self.runs = trio.Event()
        self.runs.set()
        self.is_reachable = True

    async def pull(self, queue: triomq.MessageQueue, *, offset: int, **_options: object) -> triomq.PullResult:
        await trio.sleep(SUSPEND_S)
        await self.runs.wait()
        if not self.is_reachable:
            raise triomq.errors.ConnectFailed("pull", address="127.0.0.1:1")
        return triomq.PullResult(
            triomq.PullStatus.NO_NEW_MESSAGE, queue, next_offset=offset, min_offset=0, max_offset=7,
            suggested_broker_id=0, broker_address="127.0.0.1:1", body=b"",
        )  # fmt: skip


def consumers_of(workload: Workload, emit: Callable[[IntervalRow], None], ledger: Any = None) -> Consumers:
    share = Share(
        index=0, count=1, workload=workload, name_servers="", topics=("t",), groups=("g",), run_number=1, seed=1
    )
    return Consumers(share, SecondCells(0, emit, lambda: None), ledger)


async def test_a_message_with_an_altered_head_adds_no_second(autojump_clock: trio.testing.MockClock) -> None:
    """The seconds of a report go from the first to the last that a message names."""
    rows, numbers = list[IntervalRow](), list[int]()
    ledger = SimpleNamespace(consumed=lambda number, *_others: numbers.append(number))
    consumers = consumers_of(Workload(name="x", duration_s=5, warm_up_s=1, drain_s=2), rows.append, ledger)
    consumers._cells.begin(trio.current_time())
    await trio.sleep(3.5)
    intended = [-2.0, -1.0, 0.5, 2.5, 7.0, 8.0, 9.2e9, -9.2e9]
    heads = [head(1, number, int(at * 1e9)) for number, at in enumerate(intended)]
    heads += [head(1, 1 << 63, 0), head(1, (1 << 63) - 1, 0)]
    messages: Any = [SimpleNamespace(body=body, topic="t", queue=QUEUE, queue_offset=0) for body in heads]
    consumers._take(messages, "g", "master")
    await consumers._cells.flush()
    assert [row.second for row in rows if row.intended_to_consumed] == [-1, 0, 2, 7]
    assert sum(row.consumed for row in rows) == len(heads)
    # The ledger's numbers have 63 bits.
    assert numbers == [0, 1, 2, 3, 4, 5, 6, 7, -1, (1 << 63) - 1]


async def test_messages_of_other_runs_are_not_the_last_ones(autojump_clock: trio.testing.MockClock) -> None:
    """Given topics may have other traffic, which goes on after the run."""
    consumers = consumers_of(Workload(name="x"), lambda _row: None)
    consumers._cells.begin(trio.current_time())

    def take(run_number: int) -> None:
        message: Any = SimpleNamespace(body=head(run_number, 1, 0), topic="t", queue=QUEUE, queue_offset=0)
        consumers._take([message], "g", "master")

    take(1)
    last_at = trio.current_time()
    await trio.sleep(5)
    take(2)
    tally = consumers.tally
    assert (tally.consumed, tally.foreign, tally.last_at) == (1, 1, last_at)


async def test_a_backlog_is_unknown_while_a_broker_does_not_answer(autojump_clock: trio.testing.MockClock) -> None:
    consumers = consumers_of(Workload(name="x"), lambda _row: None)
    broker = StoppedBroker()
    consumers._pulled.append((broker, "g", QUEUE, 5))  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consumers.run, 0.0)
        assert consumers.backlog() is None
        await trio.sleep(3.5 * SUSPEND_S)
        assert consumers.backlog() == 2
        broker.runs = trio.Event()
        await trio.sleep(SUSPEND_S + ANSWER_S + 0.1)
        assert consumers.backlog() is None
        broker.runs.set()
        await trio.sleep(0.1)
        assert consumers.backlog() == 2
        broker.is_reachable = False
        await trio.sleep(2 * SUSPEND_S + ANSWER_S)
        assert consumers.backlog() is None
        nursery.cancel_scope.cancel()
