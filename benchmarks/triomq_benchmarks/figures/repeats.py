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
"""Probability that a comparison of a side with itself reports any of its measures as different: 2 of 500."""

PRIMARY_SHARE = 0.5
"""The first measure's own part of `ALPHA`; the others share the rest."""

POWER = 0.97
"""Probability with which a difference of the wanted size is found."""

ROUNDS_LEAST = 10
"""With fewer rounds, even ratios that are all on one side may be chance."""

_EXACT_MAX = 60
_INTERVAL = 0.95
_NORMAL = NormalDist()


@attrs.frozen(kw_only=True)
class Difference:
    """One measure over all rounds.

    Attributes:
        ratio: B : A, the Hodges-Lehmann estimate of the rounds' ratios.
        low: lower end of its 95 % interval.
        high: upper end.
        p: probability that chance alone makes such a difference.
        is_real: whether that is improbable enough, for all measures together.
    """

    ratio: float
    low: float
    high: float
    p: float
    is_real: bool = False


@functools.lru_cache(maxsize=64)
def _at_most(rounds: int) -> Sequence[float]:
    """Probabilities that the sum of positive ranks is at most each value, for `rounds` rounds without a difference."""
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
    """Probability that chance alone makes logarithms of ratios as one-sided as these, on either side."""
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
        # Half ranks, of equal amounts, count as the next higher sum, so that no p is too small.
        return min(1.0, 2 * _at_most(rounds)[math.ceil(smaller)])
    spread = math.sqrt(rounds * (rounds + 1) * (2 * rounds + 1) / 24)
    return min(1.0, 2 * _NORMAL.cdf((smaller + 0.5 - rounds * (rounds + 1) / 4) / spread))


def _walsh(logarithms: Sequence[float]) -> list[float]:
    """The means of all pairs, including each value with itself, ascending."""
    return sorted((one + other) / 2 for place, one in enumerate(logarithms) for other in logarithms[place:])


def _ends(means: Sequence[float], rounds: int, outside: float) -> tuple[float, float]:
    """The interval of the middle that leaves out the probability `outside`, of both sides together."""
    spread = math.sqrt(rounds * (rounds + 1) * (2 * rounds + 1) / 24)
    cut = round(rounds * (rounds + 1) / 4 + _NORMAL.inv_cdf(outside / 2) * spread)
    cut = min(max(cut, 0), (len(means) - 1) // 2)
    return means[cut], means[-1 - cut]


def difference(logarithms: Sequence[float]) -> Difference:
    """The difference of one measure by itself, from the rounds' logarithms of B : A; at least one."""
    means = _walsh(logarithms)
    low, high = _ends(means, len(logarithms), 1 - _INTERVAL)
    return Difference(ratio=math.exp(median(means)), low=math.exp(low), high=math.exp(high), p=p_value(logarithms))


def differences(measures: Mapping[str, Sequence[float]]) -> dict[str, Difference]:
    """Compute each measure's difference, and decide for all of them together which are real.

    Half of `ALPHA` is for the first measure; the others share the rest by Holm's method.

    Args:
        measures: the rounds' logarithms of B : A, by measure, the most important first.
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
    """The number of rounds that find a difference of the first measure with probability `POWER`.

    Computed from the width of the interval of the rounds so far, which takes heavy tails into account.

    Args:
        logarithms: the logarithms of B : A in the rounds so far.
        wanted: the relative difference to be found, for example 0.05.
    """
    rounds = len(logarithms)
    if rounds < ROUNDS_LEAST:
        return ROUNDS_LEAST
    within = 2 * _NORMAL.cdf(1) - 1
    low, high = _ends(_walsh(logarithms), rounds, 1 - within)
    # Half the width is one standard error of the middle.
    scale = (high - low) / 2 * math.sqrt(rounds)
    # The scatter measured in so few rounds varies too.
    scale *= 1 + 1.8 / math.sqrt(2 * rounds)
    distance = _NORMAL.inv_cdf(1 - ALPHA * PRIMARY_SHARE / 2) + _NORMAL.inv_cdf(POWER)
    return max(ROUNDS_LEAST, math.ceil((distance * scale / math.log1p(wanted)) ** 2) + 2)
