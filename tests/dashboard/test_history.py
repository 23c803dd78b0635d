"""Rates and lags over time, of what pages have shown."""

from __future__ import annotations

from types import SimpleNamespace

import trio

from triomq import MessageQueue, MQError
from triomq.admin import GroupProgress, TopicOffset, TopicStats
from triomq_dashboard.history import POINTS_MAX, SAMPLE_EVERY_S, WATCHED_MAX, WATCHED_S, Figure, History, Series
from triomq_dashboard.looking import TopicFigures
from triomq_dashboard.pages import Pages


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


def ends(brokers, **without_master):
    queues = {
        MessageQueue("T", name, 0): TopicOffset(min_offset=0, max_offset=end, last_update_timestamp=0)
        for name, end in brokers.items()
    }
    return TopicFigures(queues, without_master, {}).ends


async def test_a_broker_that_goes_and_comes_back_is_no_growth():
    """Its queues are missing meanwhile, or have a slave's values."""
    both, one, slaves = ends({"a": 10, "b": 900}), ends({"a": 20}), ends({"a": 30, "b": 800}, b="it is away")
    assert (one, slaves) == (Figure(20, frozenset("a")), Figure(30, frozenset("a")))
    series = Series()
    for at_s, figure in enumerate([both, one, slaves, both, ends({"a": 14, "b": 901})]):
        series.add(at_s * 5.0, figure.value, figure.brokers)
        if figure is both:
            assert series.rate is None, "nothing to compare it with"
    assert [(point.at_s, point.value) for point in series.rates()] == [(10, 2), (20, 1)]
    assert series.rate == 1


async def test_what_was_shown_is_watched(autojump_clock):
    values = {"a": 0.0, "b": 0.0}
    asked = []

    async def read(name, _silent):
        asked.append(name)
        if name == "b":
            raise MQError("gone")
        values[name] += 50
        return Figure(values[name])

    history = History(read)
    history.seen("a", Figure(0.0))
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


async def test_figures_wait_once_for_a_broker_that_hangs(autojump_clock):
    async def ask(silent):
        if silent is None or "b:1" not in silent:
            await trio.sleep(5)
            (silent if silent is not None else {})["b:1"] = "no answer in time"

    async def topic_stats(_name, *, silent=None):
        await ask(silent)
        return TopicStats({}, {"b": "it does not answer"})

    async def progress(_name, *, silent=None):
        await ask(silent)
        return GroupProgress({}, {"b": "it does not answer"})

    client = SimpleNamespace(admin=SimpleNamespace(topic_stats=topic_stats), groups=SimpleNamespace(progress=progress))
    pages = Pages(client, None)  # type: ignore[arg-type]
    for history in (pages.topic_history, pages.lag_history):
        for number in range(WATCHED_MAX):
            history.seen(f"name-{number}", None)
        began = trio.current_time()
        await history.sample()
        assert trio.current_time() - began == 5


async def test_an_error_of_the_dashboard_itself_is_logged_once(autojump_clock, caplog):
    """The pages go on, and so do the figures of other names."""
    failing = {"a", "b"}

    async def read(name, _silent):
        if name in failing:
            raise ValueError(f"no figure of {name}")
        return Figure(7.0)

    history = History(read)
    for name in "abc":
        history.seen(name, None)

    def logged():
        return [(record.getMessage(), type(record.exc_info[1])) for record in caplog.records]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(history.run)
        await trio.sleep(SAMPLE_EVERY_S * 4)
        assert logged() == [("figures over time cannot be read for 2 names", ValueError)]
        assert len(history.seen("c", None).points) >= 3
        failing.clear()
        await trio.sleep(SAMPLE_EVERY_S * 2)
        assert history.seen("a", None).points
        failing.add("c")
        await trio.sleep(SAMPLE_EVERY_S * 2)
        assert len(logged()) == 2
        nursery.cancel_scope.cancel()


async def test_what_is_kept_is_bounded(autojump_clock):
    history = History(None)  # type: ignore[arg-type]
    for number in range(WATCHED_MAX + 50):
        history.seen(f"T{number}", Figure(1.0))
    assert len(history._series) == WATCHED_MAX
    series = Series()
    for number in range(POINTS_MAX + 50):
        series.add(number * 5.0, number)
    assert len(series.points) == POINTS_MAX
