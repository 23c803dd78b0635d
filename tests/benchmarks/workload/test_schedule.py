"""Timetables: the instants are known in advance, follow their rate, and add up over producers."""

from __future__ import annotations

from itertools import chain, islice, pairwise, takewhile

import pytest

from triomq_benchmarks.workload.schedule import constant, instants, ramp, stepped
from triomq_benchmarks.workload.workload import Arrivals, Step, Workload

CONSTANT = Workload(name="x", rate_per_s=100, duration_s=3, warm_up_s=1)
POISSON = Workload(name="x", rate_per_s=2000, duration_s=9, warm_up_s=1, arrivals=Arrivals.POISSON)
RAMP = Workload(name="x", rate_per_s=100, rate_to_per_s=300, duration_s=4, warm_up_s=2, arrivals=Arrivals.RAMP)
STEPS = Workload(
    name="x", steps=(Step(100, 1), Step(0, 1), Step(50, 2)), duration_s=4, warm_up_s=1, arrivals=Arrivals.STEP
)


def between(workload: Workload, begin: float, end: float) -> int:
    """How many messages of the whole workload are due then, counted from the beginning of the measured part."""
    begin, end = begin + workload.warm_up_s, end + workload.warm_up_s
    return sum(begin <= instant < end for instant in instants(workload, 0, 1, seed=1))


def test_constant_does_not_drift() -> None:
    assert list(islice(constant(3), 4)) == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert next(islice(constant(3), 3_000_000, None)) == pytest.approx(1_000_000, abs=1e-6)


def test_constant_covers_warm_up_and_measured_part() -> None:
    assert len(list(instants(CONSTANT, 0, 1, seed=1))) == 400
    assert max(instants(CONSTANT, 0, 1, seed=1)) < 4


def test_a_ramp_has_the_area_below_its_line() -> None:
    assert between(RAMP, 0, 4) == pytest.approx(800, abs=1)
    assert between(RAMP, 0, 1) == pytest.approx(125, abs=1)
    assert between(RAMP, 3, 4) == pytest.approx(275, abs=1)
    assert between(RAMP, -2, 0) == 200
    falling = list(takewhile(lambda instant: instant < 2, ramp(100, 0, 2)))
    assert len(falling) == pytest.approx(100, abs=1)
    assert falling == sorted(falling)
    assert len(list(islice(ramp(0, 100, 2), 101))) == 101


def test_steps() -> None:
    assert [between(STEPS, second, second + 1) for second in range(-1, 4)] == [100, 100, 0, 50, 50]
    assert list(stepped([Step(2, 1), Step(0, 1)])) == [0, 0.5]


def test_poisson_follows_its_rate_and_its_seed() -> None:
    mine = list(instants(POISSON, 0, 1, seed=7))
    assert len(mine) == pytest.approx(20_000, rel=0.03)
    assert mine == list(instants(POISSON, 0, 1, seed=7))
    assert mine != list(instants(POISSON, 0, 1, seed=8))
    gaps = [later - earlier for earlier, later in pairwise(mine)]
    mean = sum(gaps) / len(gaps)
    # The deviation of an exponential distribution is its mean; that of a constant rate would be nothing.
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.05)


@pytest.mark.parametrize("workload", [CONSTANT, RAMP, STEPS], ids=["constant", "ramp", "steps"])
def test_producers_together_follow_the_timetable(workload: Workload) -> None:
    whole = list(instants(workload, 0, 1, seed=1))
    dealt = [list(instants(workload, number, 3, seed=1)) for number in range(3)]
    assert sorted(chain(*dealt)) == whole
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_poisson_producers_are_independent() -> None:
    first, second = (list(instants(POISSON, number, 2, seed=7)) for number in range(2))
    assert first != second
    assert len(first) + len(second) == pytest.approx(20_000, rel=0.03)
