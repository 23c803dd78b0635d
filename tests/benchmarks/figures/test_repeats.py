"""Repeats of two sides: what chance explains, what it does not, and how many rounds a difference takes."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from repeat_noise import made_noise, tally

from triomq_benchmarks.figures.repeats import ALPHA, ROUNDS_LEAST, difference, differences, p_value, rounds_needed


def counted(values: list[float]) -> float:
    """The p value by going through all signs."""
    ranks = sorted(range(len(values)), key=lambda place: abs(values[place]))
    rank = {place: number for number, place in enumerate(ranks, 1)}
    total = sum(rank.values())

    def smaller(signs: tuple[bool, ...]) -> int:
        positive = sum(rank[place] for place, sign in enumerate(signs) if sign)
        return min(positive, total - positive)

    seen = smaller(tuple(value > 0 for value in values))
    signs = list(itertools.product((False, True), repeat=len(values)))
    return sum(smaller(each) <= seen for each in signs) / len(signs)


@pytest.mark.parametrize("seed", range(8))
def test_the_p_value_is_that_of_all_signs(seed: int) -> None:
    chance = random.Random(seed)
    values = [chance.gauss(0.3, 1) for _ in range(3 + seed)]
    assert p_value(values) == pytest.approx(counted(values))
    assert p_value([-value for value in values]) == pytest.approx(counted(values))


@pytest.mark.parametrize(
    ("values", "p"),
    [
        ([], 1),
        ([0.0, 0.0], 1),
        ([0.1], 1),
        ([0.1] * 10, 2 / 1024),
        ([-0.1] * 10, 2 / 1024),
        ([0.1, -0.1] * 5, 1),
        # No ratio is no sign.
        ([0.1 + number / 100 for number in range(10)] + [0.0] * 5, 2 / 1024),
    ],
)
def test_p_values(values: list[float], p: float) -> None:
    assert p_value(values) == pytest.approx(p)


def test_many_rounds_are_approximated_without_a_step() -> None:
    chance = random.Random(1)
    values = [chance.gauss(0.35, 1) for _ in range(61)]
    assert p_value(values) == pytest.approx(p_value(values[:60]), rel=0.5)
    assert p_value(values) < 0.05


def test_a_difference_has_its_interval() -> None:
    chance = random.Random(2)
    found = difference([math.log(1.1) + chance.gauss(0, 0.02) for _ in range(25)])
    assert found.low < found.ratio < found.high
    assert found.ratio == pytest.approx(1.1, rel=0.01)
    assert found.low > 1.08
    one = difference([math.log(2)])
    assert (one.low, one.ratio, one.high, one.p) == (pytest.approx(2), pytest.approx(2), pytest.approx(2), 1)


def test_the_first_measure_needs_the_least() -> None:
    all_above = [0.1 + number / 1000 for number in range(ROUNDS_LEAST)]
    assert difference(all_above).p <= ALPHA / 2
    noise = [0.1, -0.1] * 5
    found = differences({"first": all_above, "second": all_above, "third": noise})
    assert [name for name, each in found.items() if each.is_real] == ["first"]
    more = [0.1 + number / 1000 for number in range(16)]
    found = differences({"first": [0.1, -0.1] * 8, "second": more, "third": more, "none": []})
    assert {name: each.is_real for name, each in found.items()} == {"first": False, "second": True, "third": True}


def test_rounds_grow_with_the_square_of_the_noise() -> None:
    chance = random.Random(3)
    noise = [chance.gauss(0, 1) for _ in range(200)]
    quiet, loud = (rounds_needed([scatter * each for each in noise], 0.05) for scatter in (0.05, 0.1))
    assert quiet == pytest.approx(30, abs=8)
    assert loud == pytest.approx(4 * quiet, rel=0.1)
    assert rounds_needed([0.1 * each for each in noise], 0.1) == pytest.approx(quiet, rel=0.15)
    assert rounds_needed(noise[:9], 0.05) == ROUNDS_LEAST
    assert rounds_needed([0.0] * 20, 0.05) == ROUNDS_LEAST


@pytest.mark.parametrize("heavy", [False, True])
def test_a_side_is_like_itself_and_five_percent_are_found(heavy: bool) -> None:
    # `repeat_noise.py` does the same with more comparisons, and with runs that were made.
    draw = made_noise(random.Random(4), 0.04, heavy=heavy)
    assert tally(draw, 100, 0.0).called <= 2
    assert tally(draw, 100, 0.05).called >= 93
