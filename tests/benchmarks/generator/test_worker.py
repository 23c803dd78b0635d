"""A load generator's end by an error."""

from __future__ import annotations

import pytest
import trio

import triomq
from triomq_benchmarks.generator import worker
from triomq_benchmarks.generator.engine import Share
from triomq_benchmarks.workload.workload import Workload

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
