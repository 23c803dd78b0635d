"""Rows add up: histograms as histograms, never percentiles; gauges by worker."""

from __future__ import annotations

import random

import pytest

from triomq_benchmarks.figures.intervals import (
    LONGEST_US,
    IntervalRow,
    above,
    add,
    at_percentiles,
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
    with pytest.raises(ValueError, match="sent is not a histogram"):
        histogram_of(rows, "sent")


def test_rows_of_one_second_are_joined() -> None:
    rows = [
        IntervalRow(worker=0, second=1, sent=5, acked=4, held_s=0.5, backlog=7),
        IntervalRow(worker=1, second=1, sent=3, backlog=2),
        IntervalRow(worker=0, second=0, sent=1),
        # A late row of second 1: counters add, the gauge is the newer look of the same worker.
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


PERCENTILES = (0.001, 50, 90, 99, 99.9, 99.99, 100)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 1_000, 20_000])
def test_percentiles_are_those_of_the_library(count: int) -> None:
    chance = random.Random(count)
    one, other = new_histogram(), new_histogram()
    for histogram in (one, other):
        for _ in fold(histogram, [int(chance.lognormvariate(7, 3)) for _ in range(count)]):
            pass
    one.decode_and_add(encode(other))
    assert at_percentiles(one, PERCENTILES) == [one.get_value_at_percentile(each) for each in PERCENTILES]
    figures = quantiles(one)
    assert figures.mean_ms == pytest.approx(one.get_mean_value() / 1000)
    assert figures.max_ms == one.get_max_value() / 1000


def test_how_many_are_above_a_limit() -> None:
    histogram = new_histogram()
    for _ in fold(histogram, [10] * 90 + [11] * 7 + [5_000_000] * 3):
        pass
    assert [above(histogram, limit) for limit in (9, 10, 11, 5_100_000)] == [100, 10, 3, 0]
    assert above(new_histogram(), 0) == 0
