"""Whether the generator or the broker delayed a send, message by message."""

from __future__ import annotations

from triomq_benchmarks.generator.pace import Pace


def test_a_generator_that_lags_is_late_itself() -> None:
    pace = Pace()
    assert [pace.arrive(late) for late in (0, 10, 30, 5)] == [0, 10, 30, 5]


def test_what_was_held_back_is_not_late_until_it_has_caught_up() -> None:
    pace = Pace()
    assert pace.arrive(0) == 0
    pace.held(1000)
    # Behind by the hold, and getting closer.
    assert [pace.arrive(late) for late in (1000, 900, 300)] == [0, 0, 0]
    # It had caught up to 300: any further delay is its own.
    assert pace.arrive(350) == 50
    assert pace.arrive(0) == 0
    assert pace.arrive(200) == 200


def test_holds_are_added() -> None:
    pace = Pace()
    pace.held(100)
    assert pace.arrive(100) == 0
    pace.held(100)
    assert pace.arrive(260) == 60
