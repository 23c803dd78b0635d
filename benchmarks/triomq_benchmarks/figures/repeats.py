"""Do repeats of two sides differ by more than the noise between runs?  Pure.

Each round runs both sides, so that disturbances of the machine affect both: the ratio B : A of each round is compared.
Without a difference, such a ratio is above 1 as often as below, by similar amounts: this is the only assumption of the
test (Wilcoxon's signed ranks). It also gives the number of rounds needed to find a difference of a given size.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, median

import attrs

ALPHA = 0.004
"""How often a comparison of a side with itself may call any of its measures different: 2 of 500."""

PRIMARY_SHARE = 0.5
"""The part of `ALPHA` that is the first measure's own; the others share the rest."""

POWER = 0.97
"""How often a difference of the wanted size is to be found."""

ROUNDS_LEAST = 10
"""With fewer rounds even ratios that all lie on one side may be chance."""

_EXACT_MAX = 60
_INTERVAL = 0.95
_NORMAL = NormalDist()


@attrs.frozen(kw_only=True)
class Difference:
    """One measure over all rounds.

    Attributes:
        ratio: B : A, the middle of the rounds' ratios (Hodges and Lehmann's).
        low: lower end of its 95 % interval.
        high: upper end.
        p: how often chance alone makes a difference like this.
        is_real: whether that is rare enough, for all measures together.
    """

    ratio: float
    low: float
    high: float
    p: float
    is_real: bool = False


@functools.lru_cache(maxsize=64)
def _at_most(rounds: int) -> Sequence[float]:
    """How probable each sum of positive ranks is, or a smaller one; for so many rounds, without a difference."""
    ways = [1]
    for rank in range(1, rounds + 1):
        longer = ways + [0] * rank
        for place, count in enumerate(ways):
            longer[place + rank] += count
        ways = longer
    total, sums = 1 << rounds, []
    passed = 0
    for count in ways:
        passed += count
        sums.append(passed / total)
    return sums


def p_value(logarithms: Sequence[float]) -> float:
    """How often chance alone makes logarithms of ratios as one-sided as these, on either side."""
    known = sorted((each for each in logarithms if each), key=abs)
    rounds = len(known)
    if not rounds:
        return 1.0
    positive, place = 0.0, 0
    while place < rounds:
        # Equal amounts share their ranks.
        end = place
        while end < rounds and abs(known[end]) == abs(known[place]):
            end += 1
        positive += (place + 1 + end) / 2 * sum(each > 0 for each in known[place:end])
        place = end
    smaller = min(positive, rounds * (rounds + 1) / 2 - positive)
    if rounds <= _EXACT_MAX:
        # Half ranks, of equal amounts, count as the next higher sum: no p is smaller than it is.
        return min(1.0, 2 * _at_most(rounds)[math.ceil(smaller)])
    spread = math.sqrt(rounds * (rounds + 1) * (2 * rounds + 1) / 24)
    return min(1.0, 2 * _NORMAL.cdf((smaller + 0.5 - rounds * (rounds + 1) / 4) / spread))


def _walsh(logarithms: Sequence[float]) -> list[float]:
    """The means of all pairs, each with itself too, ascending."""
    return sorted((one + other) / 2 for place, one in enumerate(logarithms) for other in logarithms[place:])


def _ends(means: Sequence[float], rounds: int, outside: float) -> tuple[float, float]:
    """The interval of the middle that leaves out so much of the probability, of both sides together."""
    spread = math.sqrt(rounds * (rounds + 1) * (2 * rounds + 1) / 24)
    cut = round(rounds * (rounds + 1) / 4 + _NORMAL.inv_cdf(outside / 2) * spread)
    cut = min(max(cut, 0), (len(means) - 1) // 2)
    return means[cut], means[-1 - cut]


def difference(logarithms: Sequence[float]) -> Difference:
    """What the rounds' logarithms of B : A say about one measure, of itself; at least one."""
    means = _walsh(logarithms)
    low, high = _ends(means, len(logarithms), 1 - _INTERVAL)
    return Difference(ratio=math.exp(median(means)), low=math.exp(low), high=math.exp(high), p=p_value(logarithms))


def differences(measures: Mapping[str, Sequence[float]]) -> dict[str, Difference]:
    """Each measure, with a decision on which real differences there are in all of them together.

    Half of `ALPHA` is for the first measure; the others share the rest by Holm's method.

    Args:
        measures: the rounds' logarithms of B : A, by measure, that which matters first.
    """
    found = {name: difference(values) for name, values in measures.items() if values}
    names = list(found)
    real = {name for name in names[:1] if found[name].p <= ALPHA * PRIMARY_SHARE}
    others = sorted(names[1:], key=lambda name: found[name].p)
    for place, name in enumerate(others):
        if found[name].p > ALPHA * (1 - PRIMARY_SHARE) / (len(others) - place):
            break
        real.add(name)
    return {name: attrs.evolve(each, is_real=name in real) for name, each in found.items()}


def rounds_needed(logarithms: Sequence[float], wanted: float) -> int:
    """How many rounds find a difference of the first measure with the probability `POWER`.

    From the width of the interval that the rounds so far give, which knows heavy tails.

    Args:
        logarithms: of B : A in the rounds so far.
        wanted: the relative difference that must be found, for example 0.05.
    """
    rounds = len(logarithms)
    if rounds < ROUNDS_LEAST:
        return ROUNDS_LEAST
    within = 2 * _NORMAL.cdf(1) - 1
    low, high = _ends(_walsh(logarithms), rounds, 1 - within)
    # The half width is one standard error of the middle.
    scale = (high - low) / 2 * math.sqrt(rounds)
    # The scatter that so few rounds show scatters too.
    scale *= 1 + 1.8 / math.sqrt(2 * rounds)
    distance = _NORMAL.inv_cdf(1 - ALPHA * PRIMARY_SHARE / 2) + _NORMAL.inv_cdf(POWER)
    return max(ROUNDS_LEAST, math.ceil((distance * scale / math.log1p(wanted)) ** 2) + 2)
