"""Whose fault a late send is, message by message; and the rule by which a run does not count."""

from __future__ import annotations

from triomq_benchmarks.intervals import new_histogram
from triomq_benchmarks.lateness import Pace, generator_is_late


def test_a_generator_that_lags_is_late_itself() -> None:
    pace = Pace()
    assert [pace.arrive(late) for late in (0, 10, 30, 5)] == [0, 10, 30, 5]


def test_what_was_held_back_is_not_late_until_it_has_caught_up() -> None:
    pace = Pace()
    assert pace.arrive(0) == 0
    pace.held(1000)
    # Behind by the hold, and getting closer.
    assert [pace.arrive(late) for late in (1000, 900, 300)] == [0, 0, 0]
    # It had come up to 300: what is more than that now is its own.
    assert pace.arrive(350) == 50
    assert pace.arrive(0) == 0
    assert pace.arrive(200) == 200


def test_holds_add_up() -> None:
    pace = Pace()
    pace.held(100)
    assert pace.arrive(100) == 0
    pace.held(100)
    assert pace.arrive(260) == 60


def histogram(*values: tuple[int, int]) -> object:
    filled = new_histogram()
    for value, count in values:
        filled.record_value(value, count)
    return filled


def test_the_rule() -> None:
    quick = histogram((1_000, 1000))
    assert generator_is_late(histogram((100, 1000)), quick, 10, 0.01) is None
    # One in two hundred may be late, however late.
    assert generator_is_late(histogram((100, 995), (5_000_000, 5)), quick, 10, 0.01) is None
    late = histogram((100, 980), (50_000, 20))
    said = generator_is_late(late, quick, 10, 0.01)
    assert said is not None
    assert "the load generator was too slow, not the broker: 2.0% of the messages" in said
    assert "more than 10.0 ms" in said
    assert "(allowed: 1.0%)" in said
    # Who asks for no more than the median may allow more.
    assert generator_is_late(late, quick, 10, 0.02) is None
    assert generator_is_late(histogram((100, 979), (50_000, 21)), quick, 10, 0.02) is not None
    # Where answers take a second, 50 ms do not change the picture; where only those that may be late do, they do.
    assert generator_is_late(histogram((50_000, 1000)), histogram((1_000_000, 1000)), 10, 0.01) is None
    assert generator_is_late(late, histogram((1_000, 970), (1_000_000, 30)), 10, 0.05) is None
    assert generator_is_late(histogram((50_000, 1000)), histogram((1_000, 970), (1_000_000, 30)), 10, 0.05) is not None
    # Nobody answers one-way sends.
    assert generator_is_late(histogram((50_000, 1000)), new_histogram(), 10, 0.01) is not None
    assert generator_is_late(new_histogram(), new_histogram(), 10, 0.01) is None
    # Nobody can be later than is allowed where everything is.
    assert generator_is_late(late, quick, 10, 1) is None
