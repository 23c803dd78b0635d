"""Counters and their windows: traffic in the answers to 315 and 28 (docs/protocol/broker-api.md §15)."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from types import FrameType

import pytest

import triomq_server.broker.tables.stats as stats_module
from triomq_server.broker.tables.stats import (
    IDLE_LIMIT_MS,
    SAMPLES_AT_ONCE,
    BrokerStats,
    DayMarks,
    Figures,
    RateLog,
)

START_MS = 1_795_236_000_000


@pytest.fixture
def stats() -> BrokerStats:
    return BrokerStats("C", START_MS)


def run(stats: BrokerStats, seconds: int, begin_ms: int = START_MS) -> int:
    """Let the timer tick once a second; returns the time after it."""
    for second in range(1, seconds + 1):
        stats.sample(begin_ms + second * 1000)
    return begin_ms + seconds * 1000


def minute(stats: BrokerStats, name: str, key: str) -> Figures:
    found = stats.statistic(name, key)
    assert found is not None
    return found.minute


def test_what_was_never_counted_does_not_exist(stats: BrokerStats) -> None:
    assert stats.statistic("TOPIC_PUT_NUMS", "T") is None
    assert stats.statistic("NO_SUCH_NAME", "T") is None


def test_a_counted_name_exists_at_once_and_has_figures_after_the_first_sample(stats: BrokerStats) -> None:
    stats.count_put("T", 1, 200)
    assert minute(stats, "TOPIC_PUT_NUMS", "T") == Figures()
    run(stats, 10)
    assert minute(stats, "TOPIC_PUT_NUMS", "T") == Figures(sum=1, tps=0.1, avgpt=1.0)
    assert minute(stats, "TOPIC_PUT_SIZE", "T") == Figures(sum=200, tps=20.0, avgpt=200.0)


def test_figures_as_4_9_gave_them_after_half_a_minute(stats: BrokerStats) -> None:
    """29 messages in 27 sends within 30 s, as in vector 315_client_to_master__0_0."""
    for _ in range(26):
        stats.count_put("T", 1, 100)
    stats.count_put("T", 3, 300)
    run(stats, 30)
    assert minute(stats, "TOPIC_PUT_NUMS", "T") == Figures(sum=29, tps=0.9666666666666667, avgpt=1.0740740740740742)


def test_the_minute_drops_what_is_older(stats: BrokerStats) -> None:
    stats.count_put("T", 600, 0)
    now_ms = run(stats, 10)
    assert minute(stats, "TOPIC_PUT_NUMS", "T").sum == 600
    now_ms = run(stats, 50, now_ms)
    assert minute(stats, "TOPIC_PUT_NUMS", "T") == Figures(sum=600, tps=10.0, avgpt=600.0)
    run(stats, 10, now_ms)
    assert minute(stats, "TOPIC_PUT_NUMS", "T") == Figures()


def test_hour_and_day_begin_with_their_first_step(stats: BrokerStats) -> None:
    stats.count_put("T", 36, 0)
    now_ms = run(stats, 599)
    found = stats.statistic("TOPIC_PUT_NUMS", "T")
    assert found is not None
    assert found.hour == Figures()
    now_ms = run(stats, 1, now_ms)
    found = stats.statistic("TOPIC_PUT_NUMS", "T")
    assert found is not None
    assert found.hour == Figures(sum=36, tps=0.06, avgpt=36.0)
    assert found.day == Figures()
    run(stats, 3000, now_ms)
    found = stats.statistic("TOPIC_PUT_NUMS", "T")
    assert found is not None
    assert found.day == Figures(sum=36, tps=0.01, avgpt=36.0)


@pytest.mark.parametrize(
    ("name", "key", "total"),
    [
        ("GROUP_GET_NUMS", "T@G", 5),
        ("GROUP_GET_SIZE", "T@G", 500),
        ("QUEUE_GET_NUMS", "T@0@G", 2),
        ("QUEUE_GET_SIZE", "T@1@G", 300),
        ("GROUP_GET_LATENCY", "1@T@G", 7),
        ("BROKER_GET_NUMS", "C", 9),
        ("BROKER_PUT_NUMS", "C", 4),
        ("SNDBCK_PUT_NUMS", "T@G", 1),
        ("QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@2", 1),
        ("QUEUE_PUT_SIZE", "SCHEDULE_TOPIC_XXXX@2", 80),
    ],
)
def test_sums_by_group_queue_and_broker(stats: BrokerStats, name: str, key: str, total: int) -> None:
    stats.count_put("T", 4, 400)
    stats.count_queue_put("SCHEDULE_TOPIC_XXXX", 2, 1, 80)
    stats.count_get("T", 0, "G", 2, 200)
    stats.count_get("T", 1, "G", 3, 300, latency_ms=7)
    stats.count_get("T", 1, "H", 4, 400)
    stats.count_send_back("T", "G")
    run(stats, 10)
    assert minute(stats, name, key).sum == total


def test_every_count_is_one_call(stats: BrokerStats) -> None:
    stats.count_put("T", 4, 400)
    stats.count_queue_put("T", 0, 4, 400)
    stats.count_get("T", 0, "G", 4, 400, latency_ms=4)
    stats.count_send_back("T", "G")
    run(stats, 10)
    for name, key in (("TOPIC_PUT_NUMS", "T"), ("QUEUE_PUT_NUMS", "T@0"), ("GROUP_GET_LATENCY", "0@T@G")):
        assert minute(stats, name, key).avgpt == 4.0
    assert minute(stats, "SNDBCK_PUT_NUMS", "T@G").avgpt == 1.0


def test_a_groups_rate_is_that_of_the_last_minute(stats: BrokerStats) -> None:
    stats.count_get("T", 0, "G", 30, 1)
    run(stats, 10)
    assert stats.group_get_tps("T", "G") == 3.0
    assert stats.group_get_tps("T", "missing") == 0.0


def test_counters_idle_for_two_days_are_removed_and_the_totals_stay(stats: BrokerStats) -> None:
    stats.count_put("T", 5, 50)
    stats.count_get("T", 0, "G", 2, 20)
    stats.count_send_back("T", "G")
    stats.count_queue_put("T", 0, 1, 1)
    run(stats, 10)
    stats.sample(START_MS + IDLE_LIMIT_MS + 3_600_000)
    for name, key in (("TOPIC_PUT_NUMS", "T"), ("GROUP_GET_NUMS", "T@G"), ("SNDBCK_PUT_NUMS", "T@G")):
        assert stats.statistic(name, key) is None
    assert stats.statistic("QUEUE_PUT_NUMS", "T@0") is None
    assert (stats.messages_put, stats.bytes_put, stats.messages_got) == (5, 50, 2)


def test_rates_over_ten_seconds_a_minute_and_ten_minutes() -> None:
    log = RateLog()
    for second in range(61):
        log.sample(second * 1000, second * 3 if second <= 50 else 150 + (second - 50) * 6)
    assert log.rates() == [6.0, 3.5, None]


def test_rates_are_known_from_the_first_whole_span_on() -> None:
    log = RateLog()
    for second in range(10):
        log.sample(second * 1000, second)
    assert log.rates() == [None, None, None]
    for second in range(10, 602):
        log.sample(second * 1000, second)
    assert log.rates() == [1.0, 1.0, 1.0]


def test_averages_are_those_of_the_window(stats: BrokerStats) -> None:
    stats.count_put("T", 9, 0)
    now_ms = run(stats, 60)
    stats.count_put("T", 2, 0)
    run(stats, 10, now_ms)
    assert minute(stats, "TOPIC_PUT_NUMS", "T") == Figures(sum=2, tps=2 / 60, avgpt=2.0)


def test_ten_second_samples_keep_their_step_after_the_clock_jumped(stats: BrokerStats) -> None:
    stats.count_put("T", 1, 0)
    stats.sample(START_MS + 35_000)
    stats.count_put("T", 5, 0)
    stats.sample(START_MS + 36_000)
    assert minute(stats, "TOPIC_PUT_NUMS", "T").sum == 1
    stats.sample(START_MS + 45_000)
    assert minute(stats, "TOPIC_PUT_NUMS", "T").sum == 6


def test_an_hour_is_made_of_ten_minute_steps(stats: BrokerStats) -> None:
    for step in range(1, 9):
        stats.count_put("T", step, 0)
        run(stats, 600, START_MS + (step - 1) * 600_000)
    found = stats.statistic("TOPIC_PUT_NUMS", "T")
    assert found is not None
    assert found.hour.sum == 3 + 4 + 5 + 6 + 7 + 8


def test_totals_are_marked_at_local_midnight() -> None:
    marks = DayMarks()
    noon = time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1)) * 1000
    day_ms = 86_400_000
    marks.sample(int(noon), 10)
    marks.sample(int(noon + 1000), 20)
    assert (marks.yesterday_morning, marks.today_morning) == (0, 0)
    marks.sample(int(noon + day_ms), 30)
    assert (marks.yesterday_morning, marks.today_morning) == (0, 30)
    marks.sample(int(noon + 2 * day_ms), 50)
    assert (marks.yesterday_morning, marks.today_morning) == (30, 50)


def test_names_that_clients_invent_are_counted_up_to_a_limit(
    stats: BrokerStats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_module, "MOST_COUNTERS", 10)
    for number in range(50):
        stats.count_put(f"T{number}", 1, 100)
        stats.count_get("T", 0, f"G{number}", 1, 100)
        stats.count_send_back("T", f"G{number}")
    run(stats, 10)
    assert stats.statistic("TOPIC_PUT_NUMS", "T9") is not None
    for name, key in (("TOPIC_PUT_NUMS", "T10"), ("GROUP_GET_NUMS", "T@G10"), ("SNDBCK_PUT_NUMS", "T@G10")):
        assert stats.statistic(name, key) is None
    assert (stats.messages_put, stats.messages_got) == (50, 50)
    assert minute(stats, "BROKER_PUT_NUMS", "C").sum == 50
    assert minute(stats, "BROKER_GET_NUMS", "C").sum == 50


def test_counters_without_changes_take_little_memory(stats: BrokerStats) -> None:
    for number in range(50):
        stats.count_get("T", 0, f"G{number}", 1, 100)
    now_ms = run(stats, 10)
    tracemalloc.start()
    try:
        now_ms = run(stats, 2 * 3600, now_ms)
        # Not counters. Whether the samples of ten minutes are in a trace depends on tuples that the interpreter has kept.
        stats.put_rate = stats.transferred_rate = stats.found_rate = stats.missed_rate = RateLog()
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown / 100 < 600
    stats.count_get("T", 0, "G7", 30, 3000)
    run(stats, 20, now_ms)
    assert minute(stats, "GROUP_GET_NUMS", "T@G7") == Figures(sum=30, tps=0.5, avgpt=30.0)


def test_a_sample_of_many_counters_is_taken_in_slices(stats: BrokerStats) -> None:
    for number in range(3 * SAMPLES_AT_ONCE):
        stats.count_put(f"T{number}", 1, 100)
    slices = stats.sample_in_slices(START_MS + 10_000, START_MS + 10_000)
    next(slices)
    stats.count_put("new", 1, 100)  # a request between two slices
    assert sum(1 for _ in slices) == 2
    assert minute(stats, "TOPIC_PUT_NUMS", f"T{3 * SAMPLES_AT_ONCE - 1}").sum == 1


def test_a_question_for_one_counter_does_not_look_at_all_of_them(stats: BrokerStats) -> None:
    for number in range(50):
        stats.count_get("T", 0, f"G{number}", 1, 100)
    looked = 0

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal looked
        looked += event == "call" and "stats" in frame.f_code.co_filename

    sys.setprofile(look)
    try:
        found = stats.statistic("GROUP_GET_NUMS", "T@G49"), stats.statistic("QUEUE_GET_NUMS", "T@0@G49")
        assert stats.statistic("QUEUE_GET_NUMS", "T@" + "9" * 5000 + "@G49") is None
    finally:
        sys.setprofile(None)
    assert None not in found
    assert looked < 30
