"""`triomq bench failover`: a master is killed under two readers at once, of our SDK and of the Java client."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import click
import trio
from rich.console import Console

import triomq
from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.clusters.java import find_java
from triomq_benchmarks.clusters.processes import ChildError, DriverError
from triomq_benchmarks.clusters.scratch import scratch_folder
from triomq_benchmarks.commands.measurements.progress import dim_progress
from triomq_benchmarks.ha.failover import measure_beside_java, measure_ours
from triomq_benchmarks.ha.tables import JAVA, OURS, loss_table


@click.command()
@click.option(
    "--kills", type=click.IntRange(1, 1000), default=20, show_default=True, help="How often the master is killed."
)
@click.option(
    "--client", type=click.Choice(["both", "ours"]), default="both", show_default=True,
    help="Whose readers are measured. The Java client refreshes its routes every 30 s, so that with it a kill takes half a minute.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def failover(kills: int, client: str, as_json: bool) -> None:
    """From the master's SIGKILL to the first message from the slave, our SDK and the Java client side by side."""
    try:
        taken_s = _measure(kills, client, dim_progress(as_json))
    except (ChildError, DriverError, triomq.MQError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)
    if as_json:
        click.echo(json.dumps({"kills": kills, "clients": {name: _figures(each) for name, each in taken_s.items()}}))
    else:
        Console().print(loss_table(taken_s))


def _measure(kills: int, client: str, progress: Callable[[str], None]) -> dict[str, list[float]]:
    java = None
    if client == "both":
        try:
            java = find_java()
        except ToolUnavailableError as error:
            click.echo(f"our SDK alone, no Java client to compare with: {error}", err=True)
    if java is None:

        async def ours_alone() -> list[float]:
            return await measure_ours(kills, progress=progress)

        return {OURS: trio.run(ours_alone)}
    with scratch_folder("triomq-failover-") as scratch:
        found = trio.run(measure_beside_java, kills, java, Path(scratch), progress)
    return {OURS: [kill.ours_s for kill in found], JAVA: [kill.java_s for kill in found]}


def _figures(seconds: Sequence[float]) -> dict[str, object]:
    return {
        "p50_ms": round(median(seconds) * 1e3, 3),
        "max_ms": round(max(seconds) * 1e3, 3),
        "ms": [round(each * 1e3, 3) for each in seconds],
    }
