"""The rule by which a run does not count because its load generator was late."""

from __future__ import annotations

from triomq_benchmarks.figures.intervals import new_histogram
from triomq_benchmarks.run.decisions.late_generator import generator_is_late


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
    assert "(allowed: 1%)" in said
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
