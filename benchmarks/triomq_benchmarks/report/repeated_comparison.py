"""Decides by repeats of both sides in turns whether side B is worse than side A. Rounds are paired; their scatter is noise.

`figures/repeats.py` decides what counts as a difference; this module has the measures, and both sides' environment. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import attrs

from triomq_benchmarks.figures.intervals import at_percentiles, histogram_of
from triomq_benchmarks.figures.repeats import Difference, differences, rounds_needed
from triomq_benchmarks.figures.resources import GENERATORS, of_nodes, together, use_of
from triomq_benchmarks.figures.run_result import RunResult
from triomq_benchmarks.report.run_comparison import (
    Change,
    exit_code_of,
    result_of,
    unfit,
    workload_differences,
)

_PERCENTILES = (50.0, 99.0, 99.9)
_HISTOGRAMS = {
    "intended_to_ack": "send",
    "actual_to_ack": "sent to acknowledged",
    "intended_to_consumed": "intended to consumed",
}
PRIMARY = "send p50, ms"
DEFECTS = ("lost", "corrupt", "reordered", "duplicated", "unexpected")


@attrs.frozen(kw_only=True)
class RepeatedMeasure:
    """One figure of both sides.

    Attributes:
        name: the figure's name, with its unit.
        before: the median of side A's runs.
        after: the median of side B's runs.
        difference: the difference between them, round by round; None if a round has no ratio.
        change: the resulting assessment.
    """

    name: str
    before: float
    after: float
    difference: Difference | None
    change: Change


@attrs.frozen(kw_only=True)
class Side:
    """The resources of one side: medians over its runs."""

    target: str
    versions: Mapping[str, str]
    machine: str
    load_average: float | None
    memory_available_bytes: float | None
    servers_cpu_cores: float | None
    servers_memory_bytes: float | None
    generators_cpu_cores: float | None


@attrs.frozen(kw_only=True)
class RepeatedComparison:
    """The comparison of both sides.

    Attributes:
        rounds: number of rounds that count.
        wanted: the difference of the median that should be found.
        rounds_needed: number of rounds that can find it.
        measures: the compared figures.
        sides: the resources of each side.
        differences: settings of the workload that differ, as `name: A -> B`.
        left_out: rounds that are not about a broker, with the reason.
        obstacles: reasons why nothing can be compared; empty if it can.
    """

    rounds: int
    wanted: float
    rounds_needed: int
    measures: tuple[RepeatedMeasure, ...]
    sides: tuple[Side, ...]
    differences: tuple[str, ...]
    left_out: tuple[str, ...]
    obstacles: tuple[str, ...]

    @property
    def result(self) -> str:
        """One word: `worse`, `better`, `mixed`, `same`; `unclear` with fewer rounds than are needed; `not comparable`."""
        unchanged = "same" if self.rounds >= self.rounds_needed else "unclear"
        return result_of(self.measures, self.obstacles, unchanged=unchanged)

    @property
    def exit_code(self) -> int:
        """0: nothing became worse; 1: something did; 2: the sides cannot be compared."""
        return exit_code_of(self.measures, self.obstacles)


def compare_repeats(
    before: Sequence[RunResult],
    after: Sequence[RunResult],
    *,
    tolerance: float = 0.0,
    wanted: float = 0.05,
    force: bool = False,
) -> RepeatedComparison:
    """Compare two sides, run by run.

    Args:
        before: runs of side A.
        after: runs of side B; the first was in the same round as A's first, and so on.
        tolerance: real differences up to this are not reported.
        wanted: the relative difference of the median that the rounds must be able to show.
        force: compare in spite of different workloads, partial runs, or late generators.
    """
    rounds = list(zip(before, after, strict=False))
    left_out = []
    if not force:
        reasons = [
            [f"{side} {text}" for side, run in zip("AB", pair, strict=True) for text in unfit(run)] for pair in rounds
        ]
        left_out = [f"round {number}: {'; '.join(why)}" for number, why in enumerate(reasons, 1) if why]
        rounds = [pair for pair, why in zip(rounds, reasons, strict=True) if not why]
    apart = tuple(dict.fromkeys(text for pair in rounds for text in workload_differences(*pair)))
    obstacles = []
    if not rounds:
        obstacles.append("no round has a run of each side that can be compared")
    if apart and not force:
        obstacles.append("the workloads differ, see above; --force compares them anyway")
    figures = [(_figures(old), _figures(new)) for old, new in rounds]
    names = _common(figures)
    ratios = {name: _logarithms([(old[name], new[name]) for old, new in figures]) for name in names}
    found = differences({name: values for name, values in ratios.items() if values})
    measures = [
        _measure(name, [old[name] for old, _ in figures], [new[name] for _, new in figures], found.get(name), tolerance)
        for name in names
    ]
    if rounds:
        measures += _counts(rounds)
    primary = ratios.get(PRIMARY, ())
    return RepeatedComparison(
        rounds=len(rounds),
        wanted=wanted,
        rounds_needed=rounds_needed(primary, wanted),
        measures=tuple(measures),
        sides=tuple(_side(runs) for runs in (before, after)) if before and after else (),
        differences=apart,
        left_out=tuple(left_out),
        obstacles=tuple(obstacles),
    )


def logarithms_of(before: Sequence[RunResult], after: Sequence[RunResult]) -> dict[str, list[float]]:
    """The rounds' logarithms of B : A, by measure, the most important first; only measures that all runs have."""
    figures = [(_figures(old), _figures(new)) for old, new in zip(before, after, strict=True)]
    found = {name: _logarithms([(old[name], new[name]) for old, new in figures]) for name in _common(figures)}
    return {name: values for name, values in found.items() if values}


def _common(figures: Sequence[tuple[Mapping[str, float], Mapping[str, float]]]) -> list[str]:
    return [
        name for name in (figures[0][0] if figures else {}) if all(name in old and name in new for old, new in figures)
    ]


def more_rounds(before: Sequence[RunResult], after: Sequence[RunResult], wanted: float) -> int:
    """The number of rounds needed, computed from the existing ones."""
    return rounds_needed(logarithms_of(before, after).get(PRIMARY, ()), wanted)


def _figures(run: RunResult) -> dict[str, float]:
    """The measures of one run, the most important first."""
    found: dict[str, float] = {}
    for field, prefix in _HISTOGRAMS.items():
        histogram = histogram_of(run.rows, field)
        if histogram.get_total_count():
            for percentile, value in zip(_PERCENTILES, at_percentiles(histogram, _PERCENTILES), strict=True):
                found[f"{prefix} p{percentile:g}, ms"] = value / 1000
    for counter, name in (("acked", "acknowledged per second"), ("consumed", "consumed per second")):
        if rate := run.per_second(counter):
            found[name] = rate
    servers = use_of(together(of_nodes(run.resources), ""), run.measured_s)
    if servers is not None and servers.cpu_cores:
        found["CPU of servers, cores"] = servers.cpu_cores
        found["memory of servers, MiB"] = servers.memory_bytes / (1 << 20)
    return found


def _logarithms(pairs: Sequence[tuple[float, float]]) -> list[float]:
    return [math.log(new / old) for old, new in pairs] if all(old > 0 and new > 0 for old, new in pairs) else []


def _measure(
    name: str, before: Sequence[float], after: Sequence[float], found: Difference | None, tolerance: float
) -> RepeatedMeasure:
    change = Change.SAME
    if found is not None and found.is_real and not 1 / (1 + tolerance) <= found.ratio <= 1 + tolerance:
        better_if_larger = name.endswith("per second")
        change = Change.BETTER if (found.ratio > 1) == better_if_larger else Change.WORSE
    return RepeatedMeasure(name=name, before=median(before), after=median(after), difference=found, change=change)


def _counts(rounds: Sequence[tuple[RunResult, RunResult]]) -> list[RepeatedMeasure]:
    """Failed sends, and the findings of the rounds in which both runs were audited: sums, 0 on both sides without errors."""
    made = [_count("failed sends", *(sum(run.total("errors") for run in side) for side in zip(*rounds, strict=True)))]
    # Without an audit, a run has no count: a side would seem to be better only because it was not looked at.
    audited = [(old, new) for old, new in rounds if old.audit is not None and new.audit is not None]
    sides = list(zip(*audited, strict=True))
    for defect in DEFECTS if audited else ():
        sums = (sum(_audited(run, defect) for run in side) for side in sides)
        made.append(_count(defect, *sums))
    return made


def _count(name: str, before: int, after: int) -> RepeatedMeasure:
    change = Change.SAME if before == after else Change.WORSE if after > before else Change.BETTER
    return RepeatedMeasure(name=name, before=before, after=after, difference=None, change=change)


def _audited(run: RunResult, defect: str) -> int:
    counts = (run.audit or {}).get("counts")
    return int(counts.get(defect, 0)) if isinstance(counts, Mapping) else 0


def _side(runs: Sequence[RunResult]) -> Side:
    servers = [use for run in runs if (use := use_of(together(of_nodes(run.resources), ""), run.measured_s))]
    generators = [
        use for run in runs if (use := use_of([row for row in run.resources if row.who == GENERATORS], run.measured_s))
    ]
    first = runs[0]
    return Side(
        target=first.target,
        versions={**first.versions, **_server_versions(first)},
        machine=f"{first.machine.host}, {first.machine.cpus} CPUs, {first.machine.memory_bytes / (1 << 30):.1f} GiB",
        load_average=_middle([_number(run, "load_average_1_minute") for run in runs]),
        memory_available_bytes=_middle([_number(run, "memory_available_bytes") for run in runs]),
        servers_cpu_cores=_middle([use.cpu_cores for use in servers]),
        servers_memory_bytes=_middle([float(use.memory_bytes) for use in servers]),
        generators_cpu_cores=_middle([use.cpu_cores for use in generators]),
    )


def _server_versions(run: RunResult) -> Mapping[str, str]:
    nodes = run.target_details.get("nodes")
    if not isinstance(nodes, Mapping):
        return {}
    return {f"server {name}": str(about["version"]) for name, about in nodes.items() if about.get("version")}


def _number(run: RunResult, name: str) -> float | None:
    before = run.surroundings.get("before")
    value = before.get(name) if isinstance(before, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
