"""When each message is meant to be sent: timetables of an open loop, fixed in advance.  Pure, chance from a seed.

Instants are seconds since the beginning of the timetable, ascending.  A timetable is distributed to producers, who
follow it together: constant, ramp and step are distributed in turns; Poisson arrivals are split into independent
Poisson processes, whose union is one again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

from triomq_benchmarks.workload.workload import Arrivals, Step, Workload


def constant(rate_per_s: float) -> Iterator[float]:
    """One message every 1/rate seconds, without end."""
    number = 0
    while True:
        # Not by adding up steps, because rounding would drift.
        yield number / rate_per_s
        number += 1


def poisson(rate_per_s: float, chance: random.Random) -> Iterator[float]:
    """Independent arrivals at a mean rate, without end."""
    now = 0.0
    while True:
        now += chance.expovariate(rate_per_s)
        yield now


def ramp(from_per_s: float, to_per_s: float, length_s: float) -> Iterator[float]:
    """A rate that changes evenly from one value to another within `length_s`, and stays there.

    Message n is due when the area below the line reaches n.
    """
    slope = (to_per_s - from_per_s) / length_s
    total = (from_per_s + to_per_s) / 2 * length_s
    number = 0
    while number <= total:
        # from*t + slope*t*t/2 = n, in the form that is exact for slope 0 too.
        yield 2 * number / (from_per_s + math.sqrt(max(0.0, from_per_s * from_per_s + 2 * slope * number)) or 1.0)
        number += 1
    while to_per_s > 0:
        yield length_s + (number - total) / to_per_s
        number += 1


def stepped(steps: Sequence[Step]) -> Iterator[float]:
    """Constant rates one after the other; the last one goes on without end."""
    begin = 0.0
    for step in steps[:-1]:
        for number in range(math.ceil(step.rate_per_s * step.for_s)):
            yield begin + number / step.rate_per_s
        begin += step.for_s
    if steps[-1].rate_per_s > 0:
        for instant in constant(steps[-1].rate_per_s):
            yield begin + instant


def instants(workload: Workload, producer: int, producers: int, seed: int) -> Iterator[float]:
    """One producer's send times, from the start of the warm-up to the end of the measured part.

    Args:
        workload: an open-loop workload; the warm-up of a ramp or of steps runs at the first rate.
        producer: its number among all producers of the run.
        producers: number of producers.
        seed: the run's seed; the same seed gives the same times.
    """
    warm_up_s, end_s = workload.warm_up_s, workload.warm_up_s + workload.duration_s
    if workload.arrivals is Arrivals.POISSON:
        chance = random.Random(f"{seed}/{producer}/arrivals")
        mine = poisson(workload.rate_per_s / producers, chance)
    else:
        mine = _dealt(_whole(workload, warm_up_s), producer, producers)
    for instant in mine:
        if instant >= end_s:
            return
        yield instant


def _whole(workload: Workload, warm_up_s: float) -> Iterator[float]:
    """The timetable of all producers, its warm-up first."""
    if workload.arrivals is Arrivals.CONSTANT:
        yield from constant(workload.rate_per_s)
        return
    first = workload.steps[0].rate_per_s if workload.steps else workload.rate_per_s
    if first > 0:
        yield from (number / first for number in range(math.ceil(first * warm_up_s)))
    if workload.steps:
        measured = stepped(workload.steps)
    else:
        assert workload.rate_to_per_s is not None
        measured = ramp(workload.rate_per_s, workload.rate_to_per_s, workload.duration_s)
    for instant in measured:
        yield warm_up_s + instant


def _dealt(whole: Iterator[float], producer: int, producers: int) -> Iterator[float]:
    for number, instant in enumerate(whole):
        if number % producers == producer:
            yield instant
