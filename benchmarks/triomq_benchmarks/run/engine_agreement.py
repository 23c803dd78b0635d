"""Checks whether engines agree: each runs the same workload on one cluster, in turns.

A generator that runs elsewhere must not measure something else.  An engine's own spread is the range of its median from
second to second, over all its rounds; two engines agree when the median of each lies within the other's spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import trio

from triomq_benchmarks.figures.intervals import by_second, histogram_of, quantiles
from triomq_benchmarks.figures.run_files import write_run
from triomq_benchmarks.figures.run_result import RunResult
from triomq_benchmarks.figures.turns import turns
from triomq_benchmarks.generator.engine import most_workers
from triomq_benchmarks.report.progress import ProgressLine, Say
from triomq_benchmarks.run.engine_choice import EngineChoice, open_engine
from triomq_benchmarks.run.interrupts import on_interrupt
from triomq_benchmarks.run.one_run import run_workload
from triomq_benchmarks.run.targets import OURS, RunTarget, open_run_target
from triomq_benchmarks.spark.cluster import open_spark_cluster
from triomq_benchmarks.workload.workload import Workload

LOCAL, PROCESSES, SPARK, CLUSTER = "local", "processes", "spark", "spark-cluster"
SIDES = (LOCAL, PROCESSES, SPARK, CLUSTER)


@attrs.frozen
class Spread:
    """One engine's median from intended to acknowledged, and its range over the seconds; milliseconds."""

    name: str
    p50_ms: float
    lowest_ms: float
    highest_ms: float

    def holds(self, p50_ms: float) -> bool:
        """Whether another engine's median is within this one's range."""
        return self.lowest_ms <= p50_ms <= self.highest_ms


def spread_of(name: str, results: Sequence[RunResult]) -> Spread:
    """The median of an engine's rounds, and the range of its seconds' medians; NaN if nothing was measured."""
    seconds = [row for result in results for row in by_second(result.rows) if 0 <= row.second < result.measured_s]
    medians = [quantiles(histogram_of([row], "intended_to_ack")).p50_ms for row in seconds if row.intended_to_ack]
    whole = quantiles(histogram_of([row for result in results for row in result.rows], "intended_to_ack"))
    if not medians:
        return Spread(name, math.nan, math.nan, math.nan)
    return Spread(name, whole.p50_ms, min(medians), max(medians))


def disagreements(spreads: Sequence[Spread]) -> list[str]:
    """A sentence for each pair in which one median is outside the other's range."""
    return [
        f"{one.name} measures {one.p50_ms:.3f} ms, outside {other.name}'s {other.lowest_ms:.3f} to {other.highest_ms:.3f} ms"
        for one in spreads
        for other in spreads
        if one is not other and not other.holds(one.p50_ms)
    ]


class EngineRounds:
    """Runs the rounds one after the other."""

    def __init__(self, workload: Workload, payload: bytes, seed: int, folder: Path, show: Say, news: Say) -> None:
        self._workload = workload
        self._payload = payload
        self._seed = seed
        self._folder = folder
        self._show = show
        self._news = news
        self.results: dict[str, list[RunResult]] = {}
        self.interrupted = False

    async def run(self, sides: Sequence[str], rounds: int) -> None:
        """Run all rounds on one cluster."""
        self.results = {side: [] for side in sides}
        with trio.CancelScope() as everything:
            async with on_interrupt(everything.cancel), open_run_target(OURS, self._workload) as target:
                await self._rounds(sides, rounds, target)
        self.interrupted = everything.cancelled_caught

    async def _rounds(self, sides: Sequence[str], rounds: int, target: RunTarget) -> None:
        for number, side in turns(sides, rounds):
            self.results[side].append(await self._run(side, number, target))

    async def _run(self, side: str, number: int, target: RunTarget) -> RunResult:
        async with AsyncExitStack() as stack:
            most = most_workers(self._workload)
            choice = EngineChoice(name=side, most=most)
            if side == CLUSTER:
                self._news("starting a Spark cluster of two workers")
                cluster = await stack.enter_async_context(open_spark_cluster(workers=2))
                choice = EngineChoice(name=SPARK, most=most, master=cluster.master)
            engine, audit = await stack.enter_async_context(open_engine(choice, self._news))
            self._news(f"{self._workload.name}, engine {engine.label}")
            line = ProgressLine(self._show, self._workload.duration_s, workers=engine.workers)
            folder = self._folder / f"{side}-{number + 1}"
            result = await run_workload(
                self._workload,
                target,
                engine,
                seed=self._seed,
                payload=self._payload,
                folder=folder,
                audit=audit,
                on_row=line.add,
            )
            write_run(result, folder)
            return result
