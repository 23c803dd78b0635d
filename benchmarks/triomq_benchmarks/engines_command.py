"""`triomq bench engines`: the same workload by each engine on one cluster, and whether they measure the same.

A generator that runs elsewhere must not measure something else.  An engine's own spread is the range of its median from
second to second, over all its rounds; two engines agree when the median of each lies within the other's spread.  Rounds go there
and back (A B C, C B A), so that a machine that gets slower meanwhile is not taken for an engine that is.
"""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import click
import trio
from rich.console import Console
from rich.table import Table

import triomq

from .builds import ToolUnavailableError
from .engine_choice import EngineChoice, open_engine
from .engines import EngineError, most_workers
from .interrupts import interrupts_heard
from .intervals import by_second, histogram_of, quantiles
from .processes import ChildError
from .progress import ProgressLine, Say, progress_on
from .run_driver import run_workload
from .run_ledger import LedgerError
from .run_result import RunResult
from .run_results import write_run
from .run_targets import OURS, RunTarget, TargetError, open_run_target
from .spark_cluster import open_spark_cluster
from .workload import Workload, WorkloadError
from .workload_files import load_workload

LOCAL, PROCESSES, SPARK, CLUSTER = "local", "processes", "spark", "spark-cluster"
SIDES = (LOCAL, PROCESSES, SPARK, CLUSTER)


@attrs.frozen
class Spread:
    """One engine's median from intended to acknowledged, and its range from second to second; milliseconds."""

    name: str
    p50_ms: float
    lowest_ms: float
    highest_ms: float

    def holds(self, p50_ms: float) -> bool:
        """Whether another engine's median is within this one's own spread."""
        return self.lowest_ms <= p50_ms <= self.highest_ms


def spread_of(name: str, results: Sequence[RunResult]) -> Spread:
    """What an engine's rounds say about its median; not a number where nothing was measured."""
    seconds = [row for result in results for row in by_second(result.rows) if 0 <= row.second < result.measured_s]
    medians = [quantiles(histogram_of([row], "intended_to_ack")).p50_ms for row in seconds if row.intended_to_ack]
    whole = quantiles(histogram_of([row for result in results for row in result.rows], "intended_to_ack"))
    if not medians:
        return Spread(name, math.nan, math.nan, math.nan)
    return Spread(name, whole.p50_ms, min(medians), max(medians))


def disagreements(spreads: Sequence[Spread]) -> list[str]:
    """A sentence for each pair of which one's median is outside the other's spread."""
    return [
        f"{one.name} measures {one.p50_ms:.3f} ms, outside {other.name}'s {other.lowest_ms:.3f} to {other.highest_ms:.3f} ms"
        for one in spreads
        for other in spreads
        if one is not other and not other.holds(one.p50_ms)
    ]


@click.command("engines")
@click.argument("workload_name", metavar="[WORKLOAD]", default="quick")
@click.option("--side", "sides", type=click.Choice(SIDES), multiple=True, help="Repeatable; default: all four.")
@click.option(
    "--rounds", type=click.IntRange(1, 20), default=2, show_default=True, help="Runs of each, there and back."
)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="A key of the workload; repeatable.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Where results stay. Default: they do not.")
@click.option("--seed", type=int, help="Of arrivals, tags and payloads, the same for all. Default: drawn.")
@click.option("--json", "as_json", is_flag=True, help="For machines: one JSON object, no progress.")
def engines(
    workload_name: str,
    sides: tuple[str, ...],
    rounds: int,
    changes: tuple[str, ...],
    out: Path | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Run WORKLOAD (quick) by each engine on one cluster of ours, and compare the medians.

    `local` is one process, `processes` two, `spark` is local[2], `spark-cluster` a Master with two Workers that are started
    for it.  Exit code 0: all rounds passed, and each engine's median is within the others' range from second to second. 130: interrupted.
    """
    try:
        workload, _folder = load_workload(workload_name, changes)
    except WorkloadError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    seed = random.randrange(1 << 32) if seed is None else seed
    with progress_on(sys.stderr, shown=not as_json) as (show, news), tempfile.TemporaryDirectory() as scratch:
        trial = _Trial(workload, seed, out or Path(scratch), show, news)
        try:
            trio.run(trial.run, sides or SIDES, rounds)
        except (TargetError, EngineError, ToolUnavailableError, ChildError, LedgerError, triomq.MQError) as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(1)
    if trial.interrupted:
        click.echo("interrupted: no process is left", err=True)
        sys.exit(130)
    sys.exit(_tell(trial.results, as_json))


class _Trial:
    """The runs, one after the other."""

    def __init__(self, workload: Workload, seed: int, folder: Path, show: Say, news: Say) -> None:
        self._workload = workload
        self._seed = seed
        self._folder = folder
        self._show = show
        self._news = news
        self.results: dict[str, list[RunResult]] = {}
        self.interrupted = False

    async def run(self, sides: Sequence[str], rounds: int) -> None:
        """All of them, on one cluster."""
        self.results = {side: [] for side in sides}
        with trio.CancelScope() as everything:
            async with interrupts_heard(everything.cancel), open_run_target(OURS, self._workload) as target:
                await self._rounds(sides, rounds, target)
        self.interrupted = everything.cancelled_caught

    async def _rounds(self, sides: Sequence[str], rounds: int, target: RunTarget) -> None:
        for number in range(rounds):
            for side in reversed(sides) if number % 2 else sides:
                self.results[side].append(await self._run(side, number, target))

    async def _run(self, side: str, number: int, target: RunTarget) -> RunResult:
        async with AsyncExitStack() as stack:
            most = most_workers(self._workload)
            choice = EngineChoice(name=side, most=most)
            if side == CLUSTER:
                self._news("starting a Spark cluster of two workers")
                cluster = await stack.enter_async_context(open_spark_cluster(workers=2))
                choice = EngineChoice(name=SPARK, most=most, master=cluster.master)
            engine = await stack.enter_async_context(open_engine(choice, self._news))
            self._news(f"{self._workload.name}, engine {engine.label}")
            line = ProgressLine(self._show, self._workload.duration_s, workers=engine.workers)
            folder = self._folder / f"{side}-{number + 1}"
            result = await run_workload(
                self._workload, target, engine, seed=self._seed, folder=folder, audit=True, hear=line.hear
            )
            write_run(result, folder)
            return result


def _tell(results: dict[str, list[RunResult]], as_json: bool) -> int:
    spreads = [spread_of(side, rounds) for side, rounds in results.items()]
    apart = disagreements(spreads)
    passed = not apart and all(result.verdict.passed for rounds in results.values() for result in rounds)
    outcomes = {side: [str(result.verdict.outcome) for result in rounds] for side, rounds in results.items()}
    if as_json:
        found = {"spreads": [attrs.asdict(each) for each in spreads], "outcomes": outcomes}
        click.echo(json.dumps({"passed": passed, "disagreements": apart, **found}))
        return int(not passed)
    table = Table("engine", "p50, ms", "from second to second", "rounds", title="intended to acknowledged")
    for spread in spreads:
        table.add_row(
            spread.name,
            f"{spread.p50_ms:.3f}",
            f"{spread.lowest_ms:.3f} to {spread.highest_ms:.3f}",
            ", ".join(outcomes[spread.name]),
        )
    console = Console()
    console.print(table)
    for text in apart:
        console.print(f"[red]apart:[/] {text}")
    if not apart:
        console.print("the engines agree: each median is within the others' own spread")
    for side, rounds in results.items():
        for result in rounds:
            if not result.verdict.passed:
                console.print(f"{side}: {result.verdict.explanation}")
    return int(not passed)
