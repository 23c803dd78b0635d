"""Rates and lags over time, of what pages have shown."""

from __future__ import annotations

import trio

from triomq import MQError
from triomq_dashboard.history import POINTS_MAX, SAMPLE_EVERY_S, WATCHED_MAX, WATCHED_S, History, Series


async def test_a_rate_needs_two_figures():
    series = Series()
    series.add(0, 100)
    assert series.rate is None
    series.add(0.5, 1000)
    assert series.rate is None, "too soon after the one before"
    series.add(10, 150)
    assert series.rate == 5
    assert [point.value for point in series.rates()] == [5]


async def test_offsets_that_go_back_are_no_negative_rate():
    series = Series()
    series.add(0, 100)
    series.add(10, 0)
    assert series.rate == 0


async def test_what_was_shown_is_watched(autojump_clock):
    values = {"a": 0.0, "b": 0.0}
    asked = []

    async def read(name):
        asked.append(name)
        if name == "b":
            raise MQError("gone")
        values[name] += 50
        return values[name]

    history = History(read)
    history.seen("a", 0.0)
    history.seen("b", None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(history.run)
        await trio.sleep(SAMPLE_EVERY_S * 3 + 1)
        assert history.seen("a", None).rate == 50 / SAMPLE_EVERY_S
        assert history.seen("b", None).rate is None
        assert asked.count("a") == 3
        await trio.sleep(WATCHED_S + 10)
        asked.clear()
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert asked == [], "nobody has looked for a long time"


async def test_what_is_kept_is_bounded(autojump_clock):
    history = History(None)  # type: ignore[arg-type]
    for number in range(WATCHED_MAX + 50):
        history.seen(f"T{number}", 1.0)
    assert len(history._series) == WATCHED_MAX
    series = Series()
    for number in range(POINTS_MAX + 50):
        series.add(number * 5.0, number)
    assert len(series.points) == POINTS_MAX
