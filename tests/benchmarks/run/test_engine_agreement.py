"""Agreement of two engines: each median within the other's range; and the command's output."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner
from made_runs import made_run

from triomq_benchmarks.__main__ import bench
from triomq_benchmarks.figures.run_result import RunResult
from triomq_benchmarks.generator.engine import most_workers
from triomq_benchmarks.run import engine_agreement
from triomq_benchmarks.run.engine_agreement import EngineRounds, Spread, disagreements, spread_of
from triomq_benchmarks.workload.workload import Workload


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ((1.0, 0.8, 1.2), (1.1, 0.9, 1.3), 0),
        ((1.0, 0.8, 1.2), (1.2, 1.0, 1.4), 0),
        # Ranges that overlap are not enough.
        ((1.0, 0.8, 1.2), (1.25, 1.0, 1.4), 1),
        ((1.0, 0.8, 1.2), (1.3, 1.1, 1.4), 2),
        ((1.0, 0.8, 1.2), (math.nan, math.nan, math.nan), 2),
    ],
)
def test_each_median_must_be_within_the_others_spread(
    one: tuple[float, float, float], other: tuple[float, float, float], apart: int
) -> None:
    said = disagreements([Spread("a", *one), Spread("b", *other)])
    assert len(said) == apart
    assert disagreements([Spread("a", *one)]) == []


def test_which_ones_are_apart_is_said() -> None:
    said = disagreements([Spread("local", 1.0, 0.8, 1.2), Spread("spark", 1.25, 1.0, 1.4)])
    assert said == ["spark measures 1.250 ms, outside local's 0.800 to 1.200 ms"]


def test_the_spread_is_that_of_all_rounds() -> None:
    one, slower = made_run(slower=1.0), made_run(slower=2.0)
    spread = spread_of("local", [one, slower])
    alone = spread_of("local", [one])
    assert alone.p50_ms == one.quantiles()["intended_to_ack"].p50_ms
    assert alone.lowest_ms < alone.p50_ms < spread.p50_ms < 2.2
    assert spread.lowest_ms == alone.lowest_ms
    assert spread.highest_ms >= spread_of("local", [slower]).highest_ms
    nothing = spread_of("local", [attrs.evolve(one, rows=())])
    assert math.isnan(nothing.p50_ms)
    # Not a number agrees with nothing.
    assert disagreements([alone, nothing])


def test_no_more_workers_than_find_something_to_do() -> None:
    assert most_workers(Workload(name="x", producers=2, topics=3, consumers=4)) == 6
    assert most_workers(Workload(name="x", producers=1, consumers=4)) == 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("faults=pause master at 1 s", "has faults, and all rounds use one cluster: --set 'faults=[]'"),
        ("payload_file=gone", "payload_file gone cannot be read"),
    ],
)
def test_a_workload_that_engines_cannot_run_is_refused(change: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineRounds, "run", None)
    done = CliRunner().invoke(bench, ["engines", "quick", "--set", change])
    assert (done.exit_code, done.exception.__class__) == (2, SystemExit)
    assert says in done.stderr


def test_the_payload_file_is_sent_and_missing_figures_are_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []

    async def run_workload(*_args: object, payload: bytes, **_others: object) -> RunResult:
        taken.append(payload)
        return attrs.evolve(made_run(), rows=())

    @asynccontextmanager
    async def opened(*_args: object) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(engine_agreement, "run_workload", run_workload)
    monkeypatch.setattr(engine_agreement, "open_run_target", opened)
    (tmp_path / "body").write_bytes(bytes(100))
    arguments = ["--side", "local", "--rounds", "1", "--json", "--set", f"payload_file={tmp_path / 'body'}"]
    done = CliRunner().invoke(bench, ["engines", "quick", *arguments])
    assert taken == [bytes(100)]
    assert "NaN" not in done.stdout
    assert json.loads(done.stdout)["spreads"] == [
        {"name": "local", "p50_ms": None, "lowest_ms": None, "highest_ms": None}
    ]


@pytest.mark.slow
def test_two_engines_on_one_cluster() -> None:
    arguments = ["engines", "--side", "local", "--side", "processes", "--rounds", "1", "--json", "--seed", "5"]
    changes = ["duration=2 s", "warm_up=500 ms", "rate=100/s", "late_allowed=100 %"]
    done = CliRunner().invoke(bench, [*arguments, *(part for change in changes for part in ("--set", change))])
    found = json.loads(done.stdout)
    assert found["statuses"] == {"local": ["passed"], "processes": ["passed"]}
    assert [spread["name"] for spread in found["spreads"]] == ["local", "processes"]
    assert all(0 < spread["lowest_ms"] <= spread["p50_ms"] <= spread["highest_ms"] for spread in found["spreads"])
    # Whether they agree within two seconds of a busy machine is not tested; that the exit code says so is.
    assert done.exit_code == (1 if found["disagreements"] else 0)
    assert found["passed"] is not bool(found["disagreements"])
