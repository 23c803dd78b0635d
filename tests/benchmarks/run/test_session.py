"""The session of `triomq bench run`: what is kept of a search that cannot go on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from triomq_benchmarks.clusters.access import PLAIN
from triomq_benchmarks.figures.run_result import RunStatus
from triomq_benchmarks.run import session as sessions
from triomq_benchmarks.run.engine_choice import EngineChoice
from triomq_benchmarks.run.session import Options, Session
from triomq_benchmarks.run.targets import TargetError
from triomq_benchmarks.workload.workload import Workload


@pytest.mark.parametrize("trials", [0, 2])
@pytest.mark.parametrize("has_run", [False, True], ids=["no run", "a run without its fault"])
async def test_the_tried_rates_are_kept_if_the_target_ends(
    trials: int, has_run: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []

    async def run_workload(workload: Workload, *_args: object, **_options: object) -> Any:
        status = RunStatus.PASSED
        if len(rates) == trials:
            status = RunStatus.INCOMPLETE
            if not has_run:
                raise TargetError("it is gone")
        else:
            rates.append(workload.rate_per_s)
        decision = SimpleNamespace(status=status, explanation="it is gone")
        return SimpleNamespace(rows=(), workers=(), partial=False, decision=decision)

    @asynccontextmanager
    async def opened(*_args: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(label="there")

    @asynccontextmanager
    async def engine(*_args: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(label="local", workers=1), None

    monkeypatch.setattr(sessions, "run_workload", run_workload)
    monkeypatch.setattr(sessions, "open_run_target", opened)
    monkeypatch.setattr(sessions, "open_engine", engine)
    options = Options(
        workload=attrs.evolve(Workload(name="w"), rate_per_s=80),
        payload=b"",
        targets=("127.0.0.1:1",),
        access=PLAIN,
        engine=EngineChoice(name="local"),
        folder=tmp_path / "out",
        seed=1,
        audit=False,
        find_max_rate=True,
        p99_limit_ms=100,
    )
    session = Session(options, lambda _line: None, lambda _line: None)
    with pytest.raises(TargetError, match="it is gone"):
        await session.run()
    assert rates == [80, 40][:trials]
    if not trials:
        assert not session.searches
        return
    assert [trial.rate_per_s for trial in session.searches["127.0.0.1:1"].trials] == rates
    kept = json.loads((tmp_path / "out" / "max_rate.json").read_text())
    assert kept["partial"] is True
    assert len(kept["searches"]["127.0.0.1:1"]["trials"]) == trials
