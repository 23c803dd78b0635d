"""Thresholds beside what was measured."""

from __future__ import annotations

import math

import pytest

from triomq_benchmarks.figures.run_result import ThresholdResult
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
