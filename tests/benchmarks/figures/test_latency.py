"""Quantiles of recorded times."""

from __future__ import annotations

import pytest

from triomq_benchmarks.figures.latency import Latency, summarise


def test_quantiles() -> None:
    found = summarise(range(1_000, 1_001_000, 1_000))
    assert found.p50_us == pytest.approx(500, rel=0.01)
    assert found.p99_us == pytest.approx(990, rel=0.01)
    assert found.max_us == pytest.approx(1000, rel=0.01)


def test_nothing_recorded() -> None:
    assert summarise([]) == Latency(0.0, 0.0, 0.0)


def test_fractions_of_a_microsecond_count() -> None:
    assert summarise([2_500] * 10).p50_us == pytest.approx(2.5)
