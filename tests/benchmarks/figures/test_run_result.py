"""A run's figures: thresholds with measured values, and percentiles without support."""

from __future__ import annotations

import math

import attrs
import pytest
from made_runs import histogram, made_run

from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.figures.run_result import ThresholdResult, elapsed_s
from triomq_benchmarks.workload.workload import Threshold


@pytest.mark.parametrize(
    ("measured", "limit", "text"),
    [
        (12.0, 50, "12"),
        (12.3456, 50, "12.346"),
        (1999.99999, 2000, "1999.99999"),
        (1_000_000.4, 1_000_000, "1000000.4"),
        (0.0000001, 0, "0.0000001"),
        (0.0, 0, "0"),
        (100.0, 200, "100"),
        (math.inf, 5, "inf"),
        (1999.9999, None, "1999.9999"),
    ],
)
def test_a_measured_value_is_shown_on_its_side_of_the_limit(measured: float, limit: float | None, text: str) -> None:
    assert ThresholdResult(text="", measured=measured, passed=False, limit=limit).measured_text == text


def test_a_limit_is_shown_with_all_its_digits() -> None:
    assert str(Threshold.parse("rate >= 1234567")) == "rate >= 1234567"


@pytest.mark.parametrize(
    ("count", "late", "loop", "fields"),
    [
        (1000, 0, "open", ["p999_ms", "p9999_ms"]),
        (999, 0, "open", ["p99_ms", "p999_ms", "p9999_ms"]),
        (10, 0, "open", ["p50_ms", "p90_ms", "p99_ms", "p999_ms", "p9999_ms"]),
        (1000, 20, "open", ["p99_ms", "p999_ms", "p9999_ms", "max_ms"]),
        (1000, 10, "open", ["p999_ms", "p9999_ms", "max_ms"]),
        (1000, 20, "closed", ["p999_ms", "p9999_ms"]),
        (0, 0, "open", []),
    ],
)
def test_percentiles_that_do_not_describe_the_broker(count: int, late: int, loop: str, fields: list[str]) -> None:
    row = IntervalRow(
        worker=0,
        second=0,
        intended_to_ack=histogram([1.0] * count),
        actual_to_ack=histogram([1.0] * count),
        lateness=histogram([0.1] * (count - late) + [50.0] * late),
    )
    run = attrs.evolve(made_run(), rows=(row,), loop=loop, workload={"lateness_limit_ms": 10.0})
    assert list(run.unsupported("intended_to_ack")) == fields
    # What counts from the call holds whichever side was late.
    assert "max_ms" not in run.unsupported("actual_to_ack")


def test_the_part_of_a_run_that_there_is() -> None:
    rows = [IntervalRow(worker=0, second=number) for number in range(-1, 5)]
    assert elapsed_s(rows, 20) == 5
    assert elapsed_s(rows, 3) == 3
    assert elapsed_s(rows[:1], 20) == 0
