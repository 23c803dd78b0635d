"""A load generator's end by an error."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing

import triomq
from triomq_benchmarks.generator import worker
from triomq_benchmarks.generator.engine import Share
from triomq_benchmarks.workload.workload import ConsumeMode, Workload

SHARE = Share(
    index=0, count=1, workload=Workload(name="x"), name_servers="", topics=("t",), groups=("g",), run_number=1, seed=1
)


@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_an_error_within_a_nursery_is_raised_plain(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is none of the errors that an engine reports: the backlog, for example, is sent within a nursery."""

    async def run(_share_run: object, _agree_start: object) -> None:
        await fail(depth)

    async def fail(left: int) -> None:
        if not left:
            raise triomq.errors.MessageIllegal("too large")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, left - 1)

    monkeypatch.setattr(worker._ShareRun, "run", run)
    with pytest.raises(triomq.errors.MessageIllegal, match="too large"):
        await worker.run_share(SHARE, lambda _row: None)


async def test_a_defect_is_not_taken_for_an_error_of_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(_share_run: object, _agree_start: object) -> None:
        async with trio.open_nursery():
            raise TypeError("a defect")

    monkeypatch.setattr(worker._ShareRun, "run", run)
    with pytest.RaisesGroup(TypeError):
        await worker.run_share(SHARE, lambda _row: None)


@pytest.mark.parametrize(
    ("mode", "has_all", "ends_s"),
    [
        (ConsumeMode.PUSH, None, 0.5 + worker.QUIET_S),  # where push consumers are is not known
        (ConsumeMode.PULL, True, 0.0),
        (ConsumeMode.PULL, False, 3.0),
    ],
)
async def test_repeated_messages_do_not_hide_those_on_the_way(
    autojump_clock: trio.testing.MockClock, mode: ConsumeMode, has_all: bool | None, ends_s: float
) -> None:
    """Two of ten messages came twice; the last two come half a second after the end of the sends."""
    workload = Workload(name="x", duration_s=10, drain_s=3, consume=mode)
    run = worker._ShareRun(attrs.evolve(SHARE, workload=workload), lambda _row: None, None)
    run._cells.begin(trio.current_time())
    await trio.sleep(workload.duration_s)
    run._tally.acked, read = 10, run._consumers.tally
    read.consumed, read.last_at, begin = 10, trio.current_time(), trio.current_time()

    async def ask() -> bool | None:
        return has_all

    async def come() -> None:
        await trio.sleep(0.5)
        read.consumed, read.last_at = 12, trio.current_time()

    run._consumers.has_all = ask  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(come)
        with trio.move_on_at(begin + workload.drain_s):
            await run._drained()
        assert trio.current_time() - begin == pytest.approx(ends_s, abs=0.05)
