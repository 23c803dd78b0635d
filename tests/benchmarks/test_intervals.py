"""Rows add up: histograms as histograms, never percentiles; gauges by worker."""

from __future__ import annotations

import pytest

from triomq_benchmarks.intervals import (
    LONGEST_US,
    IntervalRow,
    add,
    by_second,
    encode,
    fold,
    histogram_of,
    new_histogram,
    quantiles,
)


def encoded(*microseconds: int) -> bytes:
    histogram = new_histogram()
    for _ in fold(histogram, microseconds):
        pass
    return encode(histogram)


def test_percentiles_come_from_the_sum_of_histograms() -> None:
    # 98 quick answers on one worker, 2 slow ones on the other: a mean of the two p50 would be 50 ms.
    rows = [
        IntervalRow(worker=0, second=0, intended_to_ack=encoded(*[1_000] * 98)),
        IntervalRow(worker=1, second=0, intended_to_ack=encoded(100_000, 100_000)),
    ]
    figures = quantiles(histogram_of(rows, "intended_to_ack"))
    assert figures.count == 100
    assert figures.p50_ms == pytest.approx(1, rel=0.01)
    assert figures.p99_ms == pytest.approx(100, rel=0.01)
    assert figures.max_ms == pytest.approx(100, rel=0.01)
    assert quantiles(histogram_of([add(rows)], "intended_to_ack")) == figures


def test_warm_up_is_in_no_percentile() -> None:
    rows = [
        IntervalRow(worker=0, second=-1, lateness=encoded(5_000)),
        IntervalRow(worker=0, second=0, lateness=encoded(1)),
    ]
    assert histogram_of(rows, "lateness").get_total_count() == 1
    assert histogram_of(rows, "lateness", warm_up=True).get_total_count() == 2
    with pytest.raises(ValueError, match="sent is no histogram"):
        histogram_of(rows, "sent")


def test_rows_of_one_second_are_joined() -> None:
    rows = [
        IntervalRow(worker=0, second=1, sent=5, acked=4, held_s=0.5, backlog=7),
        IntervalRow(worker=1, second=1, sent=3, backlog=2),
        IntervalRow(worker=0, second=0, sent=1),
        # Late news of second 1: counters add, the gauge is the newer look of the same worker.
        IntervalRow(worker=0, second=1, acked=1, backlog=6),
        IntervalRow(worker=-1, second=1, replication_lag_bytes=512),
    ]
    first, second = by_second(rows)
    assert (first.second, first.sent, first.backlog) == (0, 1, None)
    assert (second.sent, second.acked, second.held_s) == (8, 5, 0.5)
    assert second.backlog == 8
    assert second.replication_lag_bytes == 512


def test_values_beyond_the_scale_are_kept_at_its_ends() -> None:
    figures = quantiles(
        histogram_of([IntervalRow(worker=0, second=0, lateness=encoded(0, LONGEST_US * 2))], "lateness")
    )
    assert figures.count == 2
    assert figures.max_ms == pytest.approx(LONGEST_US / 1000, rel=0.01)


def test_nothing_recorded_is_nothing_sent() -> None:
    assert encoded() == b""
    assert quantiles(new_histogram()).count == 0
