"""The JSON and exit code of `triomq bench flights-pipeline --json`; Spark itself runs in tests/spark."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from triomq_benchmarks.commands import flights_pipeline
from triomq_benchmarks.spark.flights_pipeline import PipelineResult


class Table(list[int]):
    """As much of a table of pandas as is asked for."""

    def equals(self, other: object) -> bool:
        return self == other


@pytest.mark.parametrize(("found", "exit_code"), [([1, 2], 0), ([1, 3], 1)])
def test_json_is_alone_on_standard_output(monkeypatch: pytest.MonkeyPatch, found: list[int], exit_code: int) -> None:
    def measure(rows: int, _per_trigger: int, _master: str, say: Callable[[str], None]) -> PipelineResult:
        say("sending")
        return PipelineResult(Table([1, 2]), Table(found), rows, 7, (2, 3), 5, 1.5)

    monkeypatch.setattr(flights_pipeline, "measure", measure)
    done = CliRunner().invoke(flights_pipeline.flights_pipeline, ["--rows", "100", "--json"])
    assert done.exit_code == exit_code
    assert json.loads(done.stdout) == {
        "rows": 100,
        "windows": 2,
        "results": 7,
        "triggers_before_restart": 2,
        "triggers_after_restart": 3,
        "from_slave": 5,
        "elapsed_s": 1.5,
        "equal": exit_code == 0,
    }
    assert "sending" in done.stderr
