"""Load generators in processes: how long they may take until they are ready."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from triomq_benchmarks.generator import process_engine
from triomq_benchmarks.generator.engine import EngineError, RunPlan
from triomq_benchmarks.generator.process_engine import FILL_BYTES_PER_S, READY_LIMIT_S, ProcessEngine
from triomq_benchmarks.workload.workload import Workload


class SlowChild:
    """A worker that is ready after 200 s, and then runs for a moment."""

    def __init__(self, share: Any, _on_row: object) -> None:
        self.index = share.index
        self.earliest = math.inf
        self.result: Any = None

    async def start(self) -> None:
        await trio.lowlevel.checkpoint()

    async def wait_ready(self) -> None:
        await trio.sleep(200)
        self.earliest = trio.current_time()

    async def say(self, _line: bytes) -> None:
        await trio.lowlevel.checkpoint()

    listen = stop = start


@pytest.mark.parametrize("backlog_s", [0, 100, 150])
async def test_workers_have_time_to_make_a_backlog(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, backlog_s: int
) -> None:
    monkeypatch.setattr(process_engine, "_ChildShare", SlowChild)
    workload = Workload(name="x", producers=2, consumers=2, backlog_bytes=backlog_s * FILL_BYTES_PER_S)
    plan = RunPlan(workload=workload, name_servers="", topics=("t",), groups=("g",), run_number=1, seed=1)
    started: list[float] = []

    async def run() -> None:
        await ProcessEngine(2).run(plan, lambda _row: None, started.append, lambda _result: None)

    if READY_LIMIT_S + backlog_s >= 200:
        await run()
        assert len(started) == 1
        return
    with pytest.raises(EngineError, match=f"workers 0, 1 were not ready after {READY_LIMIT_S + backlog_s:g} s"):
        await run()
    assert started == []


@pytest.mark.parametrize("said", ["hello", '{"ready": 0.0}'])
async def test_a_worker_that_writes_something_else_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str
) -> None:
    """A library prints to the output that is the driver's, at the start or while the others run."""
    module = tmp_path / "worker.py"
    module.write_text(
        f"import sys\nprint({said!r}, flush=True)\nsys.stdin.readline()\nprint('hello', flush=True)\nsys.stdin.read()\n"
    )
    open_process = trio.lowlevel.open_process

    async def open_own(_command: list[str], **more: Any) -> trio.Process:
        return await open_process([sys.executable, str(module)], **more)

    monkeypatch.setattr(trio.lowlevel, "open_process", open_own)
    workload = Workload(name="x", producers=2, consumers=2)
    plan = RunPlan(workload=workload, name_servers="", topics=("t",), groups=("g",), run_number=1, seed=1)
    results: list[Any] = []
    with pytest.raises(EngineError, match=r"worker [01] sends a line that cannot be read: b'hello'"):
        await ProcessEngine(2).run(plan, lambda _row: None, lambda _start: None, results.append)
    assert len(results) == 2
