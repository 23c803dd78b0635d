"""Figures next to their limits: rounding hides no difference."""

from __future__ import annotations

import pytest

from triomq_benchmarks.figures.beside import beside
from triomq_benchmarks.report.goals import ratio_text


@pytest.mark.parametrize(
    ("value", "limit", "digits", "text"),
    [
        (0.5, 1, 2, "0.50"),
        (1.0, 1, 2, "1.00"),
        (0.996, 1, 2, "0.996"),
        (10.04, 10, 1, "10.04"),
        (999.6, 1000, 0, "999.6"),
        (1.00001, 1, 1, "1.00001"),
        (0.0, 0, 2, "0.00"),
        (1e-5, 0, 2, "0.00001"),
        (0.3 / 3, 0.1, 2, "0.10"),
        (float("inf"), 1, 1, "inf"),
    ],
)
def test_rounded_figures_stay_on_their_side(value: float, limit: float, digits: int, text: str) -> None:
    assert beside(value, limit, digits) == text


def test_a_goal_that_is_missed_by_little_is_not_shown_as_reached() -> None:
    assert ratio_text(0.9961, 1).plain == "0.996x (>= 1)"
    assert ratio_text(1.0004, 1, at_most=True).plain == "1.0004x (<= 1)"
