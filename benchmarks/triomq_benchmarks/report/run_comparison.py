"""Decides from merged histograms and the scatter of the seconds whether run B is worse than run A; the exit code shows it.

A difference counts only if it is larger than the tolerance *and* larger than chance: the seconds of each run are drawn
again many times (a bootstrap; in blocks if there are many), and the interval of the ratio must be on one side of 1. Pure,
except for the command.
"""

from __future__ import annotations

import bisect
import enum
import math
import random
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Protocol, TypeVar

import attrs
from hdrh.histogram import HdrHistogram

from triomq_benchmarks.figures.intervals import (
    IntervalRow,
    at_percentiles,
    by_second,
    every_second,
    histogram_of,
    recorded,
)
from triomq_benchmarks.figures.run_result import RunResult, RunStatus

DRAWS = 300
STRETCHES = 60
"""Longer runs are resampled in this many blocks: neighbouring seconds are similar, and so the time of a comparison is
bounded."""

_INTERVAL = 0.95
_GRID = math.log(1.005)
"""Resampled latencies are distinguished by half a percent; the figures themselves come from the histograms."""

_PERCENTILES = (50.0, 99.0, 99.9)
_T = TypeVar("_T")
_IGNORED_SETTINGS = frozenset({"description", "thresholds", "ignored"})


class Change(enum.StrEnum):
    """The change of one measure."""

    BETTER = "better"
    SAME = "same"
    WORSE = "worse"
    UNCLEAR = "unclear"
    """Further apart than the tolerance, but the seconds scatter so much that it may be chance."""


class Changed(Protocol):
    """A figure of both sides."""

    @property
    def change(self) -> Change:
        """The change of the figure."""


def result_of(measures: Iterable[Changed], obstacles: Sequence[str], *, unchanged: str = "same") -> str:
    """One word for all measures; `unchanged` if none is better or worse."""
    if obstacles:
        return "not comparable"
    changes = {each.change for each in measures}
    if Change.WORSE in changes:
        return "mixed" if Change.BETTER in changes else "worse"
    return "better" if Change.BETTER in changes else unchanged


def exit_code_of(measures: Iterable[Changed], obstacles: Sequence[str]) -> int:
    """0: nothing became worse; 1: something did; 2: the sides cannot be compared."""
    return 2 if obstacles else int(any(each.change is Change.WORSE for each in measures))


@attrs.frozen(kw_only=True)
class Measure:
    """One figure of both runs.

    Attributes:
        name: the figure's name, with its unit.
        before: the value of run A.
        after: the value of run B.
        ratio: after / before; None if before is 0.
        low: lower end of the ratio's 95 % interval; None if it has none.
        high: upper end.
        change: the resulting assessment.
    """

    name: str
    before: float
    after: float
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    change: Change = Change.SAME


@attrs.frozen(kw_only=True)
class RunComparison:
    """The comparison of two runs.

    Attributes:
        measures: the compared figures.
        differences: settings that differ, as `name: A -> B`.
        circumstances: other differences (target, engine, machine), in that form; a comparison is possible nevertheless,
            and may be about them.
        obstacles: reasons why the runs cannot be compared; empty if they can.
    """

    measures: tuple[Measure, ...]
    differences: tuple[str, ...]
    circumstances: tuple[str, ...]
    obstacles: tuple[str, ...]

    @property
    def result(self) -> str:
        """One word: `worse`, `better`, `same`, `mixed`, or `not comparable`."""
        return result_of(self.measures, self.obstacles)

    @property
    def exit_code(self) -> int:
        """0: nothing became worse; 1: something did; 2: the runs cannot be compared."""
        return exit_code_of(self.measures, self.obstacles)


def compare_runs(before: RunResult, after: RunResult, *, tolerance: float = 0.1, force: bool = False) -> RunComparison:
    """Compare two runs.

    Args:
        before: run A.
        after: run B.
        tolerance: relative difference that is not reported, for example 0.1.
        force: compare in spite of different workloads or late generators.
    """
    differences = tuple(workload_differences(before, after))
    obstacles = (
        [] if force else [f"run {name} {text}" for name, run in (("A", before), ("B", after)) for text in unfit(run)]
    )
    if differences and not force:
        obstacles.append("the workloads differ, see above; --force compares them anyway")
    chance = random.Random(0)  # The same runs always give the same result.
    seconds = [_measured_seconds(run) for run in (before, after)]
    measures: list[Measure] = []
    for field, prefix in (("intended_to_ack", "send"), ("intended_to_consumed", "intended to consumed")):
        if all(any(getattr(row, field) for row in rows) for rows in seconds):
            measures += _latencies(prefix, field, seconds, tolerance, chance)
    for counter, name in (("acked", "acknowledged per second"), ("consumed", "consumed per second")):
        samples = [[float(getattr(row, counter)) for row in rows] for rows in seconds]
        if any(any(each) for each in samples):
            rates = before.per_second(counter), after.per_second(counter)
            measures.append(_rate(name, rates, samples, tolerance, chance))
    if any(len(rows) < 2 for rows in seconds):
        measures = list(map(_without_scatter, measures))
    measures.append(_count("failed sends", before.total("errors"), after.total("errors")))
    for fault in ("lost", "duplicated", "reordered", "corrupt", "unexpected"):
        if (old := _audited(before, fault)) is not None and (new := _audited(after, fault)) is not None:
            measures.append(_count(fault, old, new))
    return RunComparison(
        measures=tuple(measures),
        differences=differences,
        circumstances=tuple(_differences(_circumstances(before), _circumstances(after))),
        obstacles=tuple(obstacles),
    )


def unfit(run: RunResult) -> list[str]:
    """The reasons why a run is not about a broker."""
    reasons = []
    if run.partial:
        reasons.append("is partial; run it to its end, or use --force")
    elif run.decision.status is RunStatus.INCOMPLETE:
        reasons.append(f"is incomplete: {run.decision.explanation}; run it again, or use --force")
    if run.decision.status is RunStatus.GENERATOR_LATE or run.decision.is_late:
        reasons.append(
            "had a late load generator: its figures describe the machine, not the broker; run it again, or use --force"
        )
    return reasons


def workload_differences(before: RunResult, after: RunResult) -> list[str]:
    """Settings of the workload that differ, as `name: A -> B`."""
    return _differences(before.workload, after.workload)


def _differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    names = dict.fromkeys((*before, *after))
    return [
        f"{name}: {before.get(name)} -> {after.get(name)}"
        for name in names
        if name not in _IGNORED_SETTINGS and before.get(name) != after.get(name)
    ]


def _circumstances(run: RunResult) -> Mapping[str, object]:
    machine = run.machine
    return {
        "target": run.target,
        "engine": run.engine,
        "machine": f"{machine.host}, {machine.cpus} CPUs, {machine.memory_bytes / (1 << 30):.1f} GiB",
    }


def _measured_seconds(run: RunResult) -> list[IntervalRow]:
    """The seconds from the first to the last of the measured part: in a second without a row nothing happened."""
    ends = (IntervalRow(worker=0, second=0), IntervalRow(worker=0, second=max(0, math.ceil(run.measured_s) - 1)))
    rows = [row for row in run.rows if 0 <= row.second < run.measured_s]
    return every_second(by_second([*rows, *(ends[: 1 if run.partial else 2])]))


def _stretches(seconds: Sequence[_T]) -> list[Sequence[_T]]:
    """Neighbouring seconds in groups, at most `STRETCHES` of them, with lengths as equal as possible."""
    count = min(len(seconds), STRETCHES)
    edges = [len(seconds) * number // count for number in range(count + 1)]
    return [seconds[begin:end] for begin, end in pairwise(edges)]


@attrs.frozen
class _Cells:
    """The histograms of a run's groups of seconds on one grid.

    Attributes:
        grid: logarithms of latencies, in steps of `_GRID`, ascending.
        counts: for each group, the count for each grid point: 64 bits each, side by side in one integer, because adding
            integers is a hundred times as fast as adding lists.
    """

    grid: Sequence[int]
    counts: Sequence[int]

    @classmethod
    def of(cls, seconds: Sequence[IntervalRow], field: str) -> _Cells:
        """Build them from one histogram."""
        sparse = [_on_the_grid(histogram_of(rows, field)) for rows in _stretches(seconds)]
        grid = sorted(set().union(*sparse))
        dense = (array("Q", (cell[place] for place in grid)) for cell in sparse)
        return cls(grid, [int.from_bytes(each.tobytes(), sys.byteorder) for each in dense])

    def drawn(self, chance: random.Random) -> list[float]:
        """The percentiles of a random sample of as many groups, in microseconds."""
        total = sum(chance.choices(self.counts, k=len(self.counts)))
        lanes = memoryview(total.to_bytes(8 * len(self.grid), sys.byteorder)).cast("Q")
        sums = list(accumulate(lanes))
        if not sums or not sums[-1]:
            return [0.0 for _ in _PERCENTILES]
        places = (bisect.bisect_left(sums, sums[-1] * percentile / 100) for percentile in _PERCENTILES)
        return [math.exp(self.grid[min(place, len(sums) - 1)] * _GRID) for place in places]


def _on_the_grid(histogram: HdrHistogram) -> Counter[int]:
    found: Counter[int] = Counter()
    for value, count in recorded(histogram):
        found[round(math.log(max(1, value)) / _GRID)] += count
    return found


def _latencies(
    prefix: str, field: str, seconds: Sequence[Sequence[IntervalRow]], tolerance: float, chance: random.Random
) -> Iterable[Measure]:
    whole = [histogram_of(rows, field) for rows in seconds]
    drawn = [[cells.drawn(chance) for _ in range(DRAWS)] for cells in (_Cells.of(rows, field) for rows in seconds)]
    before, after = (at_percentiles(histogram, _PERCENTILES) for histogram in whole)
    for place, percentile in enumerate(_PERCENTILES):
        yield _measure(
            f"{prefix} p{percentile:g}, ms",
            before[place] / 1000,
            after[place] / 1000,
            [[draw[place] for draw in one] for one in drawn],
            tolerance,
            smaller_is_better=True,
        )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _rate(
    name: str,
    rates: tuple[float, float],
    samples: Sequence[Sequence[float]],
    tolerance: float,
    chance: random.Random,
) -> Measure:
    stretches = [[_mean(stretch) for stretch in _stretches(one)] for one in samples]
    # The last second of a run may be shorter than a second: its rate is by its actual length.
    scales = [rate / (_mean(one) or 1.0) for rate, one in zip(rates, samples, strict=True)]
    return _measure(
        name,
        *rates,
        [
            [scale * _mean(chance.choices(one, k=len(one))) for _ in range(DRAWS)]
            for scale, one in zip(scales, stretches, strict=True)
        ],
        tolerance,
        smaller_is_better=False,
    )


def _without_scatter(measure: Measure) -> Measure:
    """A measure of a run of one second: nothing is known about chance, so that a difference is unclear."""
    change = Change.SAME if measure.change is Change.SAME else Change.UNCLEAR
    return attrs.evolve(measure, low=None, high=None, change=change)


def _measure(
    name: str,
    before: float,
    after: float,
    drawn: Sequence[Sequence[float]],
    tolerance: float,
    *,
    smaller_is_better: bool,
) -> Measure:
    ratios = sorted(new / old for old, new in zip(*drawn, strict=True) if old)
    if not before or not ratios:
        appeared = Change.SAME if not after else Change.WORSE if smaller_is_better else Change.BETTER
        return Measure(name=name, before=before, after=after, change=appeared)
    edge = int(len(ratios) * (1 - _INTERVAL) / 2)
    low, high, ratio = ratios[edge], ratios[-1 - edge], after / before
    return Measure(
        name=name,
        before=before,
        after=after,
        ratio=ratio,
        low=low,
        high=high,
        change=change_of(ratio, low, high, tolerance, smaller_is_better=smaller_is_better),
    )


def change_of(ratio: float, low: float, high: float, tolerance: float, *, smaller_is_better: bool) -> Change:
    """Assess a ratio B : A.

    Args:
        ratio: the measured ratio.
        low: lower end of its interval.
        high: upper end.
        tolerance: relative difference that is not reported.
        smaller_is_better: true for latencies, false for rates.
    """
    if 1 / (1 + tolerance) <= ratio <= 1 + tolerance:
        return Change.SAME
    if low <= 1 <= high:
        return Change.UNCLEAR
    return Change.BETTER if (ratio < 1) == smaller_is_better else Change.WORSE


def _count(name: str, before: int, after: int) -> Measure:
    change = Change.SAME if before == after else Change.WORSE if after > before else Change.BETTER
    return Measure(name=name, before=before, after=after, change=change)


def _audited(run: RunResult, fault: str) -> int | None:
    counts = (run.audit or {}).get("counts")
    return int(counts.get(fault, 0)) if isinstance(counts, Mapping) else None
