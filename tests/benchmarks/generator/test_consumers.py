"""The backlog of a load's consumers."""

from __future__ import annotations

import trio
import trio.testing

import triomq
from triomq_benchmarks.generator.consumers import ANSWER_S, SUSPEND_S, Consumers
from triomq_benchmarks.generator.engine import Share
from triomq_benchmarks.generator.second_cells import SecondCells
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


async def test_a_backlog_is_unknown_while_a_broker_does_not_answer(autojump_clock: trio.testing.MockClock) -> None:
    workload = Workload(name="x")
    share = Share(
        index=0, count=1, workload=workload, name_servers="", topics=("t",), groups=("g",), run_number=1, seed=1
    )
    consumers = Consumers(share, SecondCells(0, lambda _row: None, lambda: None), None)
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
