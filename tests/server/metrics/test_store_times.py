"""Times of puts and gets, as RocketMQ's exporter reads them."""

from __future__ import annotations

import pytest

from triomq_server.metrics.store_times import StoreTimes


def minute(times: StoreTimes, puts: int) -> None:
    """The first minute ends; it had so many puts, those included that have been noted as slow."""
    times.sample(59_999, lambda: pytest.fail("the minute is not over"))
    times.sample(60_000, lambda: puts)


@pytest.fixture
def times() -> StoreTimes:
    made = StoreTimes()
    made.sample(0, lambda: 0)
    return made


def test_puts_are_counted_by_time_once_their_minute_is_over(times: StoreTimes) -> None:
    for duration_s in (0.001, 0.0099, 0.01, 0.4999, 0.5, 4.9, 9.9999, 10.0, 3600.0):
        times.appended(duration_s, 2)
    assert set(times.distribution().values()) == {0}
    minute(times, 100)
    assert times.distribution() == {
        "<=0ms": 82, "0~10ms": 4, "10~50ms": 2, "50~100ms": 0, "100~200ms": 0, "200~500ms": 2, "500ms~1s": 2, "1~2s": 0,
        "2~3s": 0, "3~4s": 0, "4~5s": 2, "5~10s": 2, "10s~": 4,
    }  # fmt: skip
    times.sample(120_000, lambda: 107)
    assert times.distribution()["<=0ms"] == 7
    assert sum(times.distribution().values()) == 7
    assert times.longest_put_ms == 3_600_000


@pytest.mark.parametrize(
    ("slow", "puts", "of_99", "of_999"),
    [
        ({}, 0, 0.0, 0.0),
        ({}, 1000, 0.99, 0.999),
        ({0.021: 100}, 1000, 21.8, 21.98),
        ({0.0205: 1000}, 1000, 19.99, 19.999),
        ({60.0: 1}, 1, 0.0, 0.0),
        ({60.0: 1000}, 1000, 10_000.0, 10_000.0),
    ],
)
def test_latencies_are_estimated_as_rocketmq_does(
    slow: dict[float, int], puts: int, of_99: float, of_999: float, times: StoreTimes
) -> None:
    for duration_s, count in slow.items():
        times.appended(duration_s, count)
    minute(times, puts)
    assert times.latency_ms(0.99) == pytest.approx(of_99)
    assert times.latency_ms(0.999) == pytest.approx(of_999)


def test_of_puts_that_wait_the_waits_are_counted(times: StoreTimes) -> None:
    times.waits = True
    times.appended(0.03, 5)
    times.waited(0.0009, 3)
    times.waited(0.02, 2)
    minute(times, 5)
    assert {span: puts for span, puts in times.distribution().items() if puts} == {"<=0ms": 3, "10~50ms": 2}
    assert times.longest_put_ms == 30


def test_a_put_whose_wait_ends_in_the_next_minute_makes_no_negative_number(times: StoreTimes) -> None:
    times.waits = True
    minute(times, 1)
    times.waited(0.02, 1)
    times.sample(120_000, lambda: 1)
    assert {span: puts for span, puts in times.distribution().items() if puts} == {"10~50ms": 1}


def test_puts_before_the_first_minute_belong_to_none() -> None:
    times = StoreTimes()
    times.appended(0.005, 1)
    times.sample(1, lambda: 1)
    times.appended(0.02, 1)
    times.sample(60_001, lambda: 3)
    assert {span: puts for span, puts in times.distribution().items() if puts} == {"<=0ms": 1, "10~50ms": 1}


def test_gets() -> None:
    times = StoreTimes()
    times.read(0.005)
    times.read(0.002)
    assert times.longest_get_ms == 5
