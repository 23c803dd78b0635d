"""`triomq bench engines`: the same workload by each engine on one cluster, and whether they measure the same."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import attrs
import click
import trio
from rich.console import Console
from rich.table import Table

import triomq
from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.clusters.processes import ChildError
from triomq_benchmarks.clusters.scratch import scratch_folder
from triomq_benchmarks.commands.named_path import NamedPath
from triomq_benchmarks.figures.ledger import LedgerError
from triomq_benchmarks.figures.run_files import finite, why_taken
from triomq_benchmarks.figures.run_result import RunResult
from triomq_benchmarks.generator.engine import EngineError
from triomq_benchmarks.report.progress import progress_on
from triomq_benchmarks.run.engine_agreement import SIDES, EngineRounds, disagreements, spread_of
from triomq_benchmarks.run.targets import TargetError
from triomq_benchmarks.workload.bodies import read_payload
from triomq_benchmarks.workload.files import load_workload
from triomq_benchmarks.workload.workload import WorkloadError
from triomq_command.running import EXIT_INTERRUPTED


@click.command("engines")
@click.argument("workload_name", metavar="[WORKLOAD]", default="quick")
@click.option("--side", "sides", type=click.Choice(SIDES), multiple=True, help="Repeatable; default: all four.")
@click.option(
    "--rounds", type=click.IntRange(1, 20), default=2, show_default=True, help="Runs of each, there and back."
)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="A key of the workload; repeatable.")
@click.option("--out", type=NamedPath(), metavar="DIR", help="Where results stay. Default: they do not.")
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

    `local` is one process, `processes` two, `spark` is local[2], `spark-cluster` a Master with two Workers that are
    started for it. Exit code 0: all rounds passed, and each engine's median is within the others' range from second to
    second. 130: interrupted.
    """
    try:
        workload, folder = load_workload(workload_name, changes)
        payload = read_payload(workload, folder)
    except WorkloadError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    if workload.faults:
        # A later round would find the cluster as an earlier round's faults have left it.
        text = f"workload {workload.name} has faults, and all rounds use one cluster: --set 'faults=[]'"
        click.echo(f"Error: {text}", err=True)
        sys.exit(2)
    if out is not None and (reason := why_taken(sorted(out.glob("*")))):
        click.echo(f"Error: {reason}; give another --out", err=True)
        sys.exit(2)
    seed = random.randrange(1 << 32) if seed is None else seed
    with progress_on(sys.stderr, shown=not as_json) as (show, news), scratch_folder("triomq-engines-") as scratch:
        compared = EngineRounds(workload, payload, seed, out or Path(scratch), show, news)
        try:
            trio.run(compared.run, sides or SIDES, rounds)
        except (TargetError, EngineError, ToolUnavailableError, ChildError, LedgerError, triomq.MQError) as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(1)
    if compared.interrupted:
        click.echo("interrupted: no process is left", err=True)
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(_print(compared.results, as_json))


def _print(results: dict[str, list[RunResult]], as_json: bool) -> int:
    spreads = [spread_of(side, rounds) for side, rounds in results.items()]
    apart = disagreements(spreads)
    passed = not apart and all(result.decision.passed for rounds in results.values() for result in rounds)
    statuses = {side: [str(result.decision.status) for result in rounds] for side, rounds in results.items()}
    if as_json:
        found = {"spreads": [attrs.asdict(each) for each in spreads], "statuses": statuses}
        click.echo(json.dumps(finite({"passed": passed, "disagreements": apart, **found})))
        return int(not passed)
    table = Table("engine", "p50, ms", "from second to second", "rounds", title="intended to acknowledged")
    for spread in spreads:
        table.add_row(
            spread.name,
            f"{spread.p50_ms:.3f}",
            f"{spread.lowest_ms:.3f} to {spread.highest_ms:.3f}",
            ", ".join(statuses[spread.name]),
        )
    console = Console()
    console.print(table)
    for text in apart:
        console.print(f"[red]apart:[/] {text}")
    if not apart:
        console.print("the engines agree: each median is within the others' own spread")
    for side, rounds in results.items():
        for result in rounds:
            if not result.decision.passed:
                console.print(f"{side}: {result.decision.explanation}", markup=False)
    return int(not passed)
