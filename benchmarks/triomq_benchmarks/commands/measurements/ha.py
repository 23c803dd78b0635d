"""`triomq bench ha`: replication, ours and the real 4.9.7, in all four pairings of masters and slaves.

Catch-up, sends that wait for the slave, and a reader's pause when its master is killed, each compared with Java in the
same run. The goals are shown next to the ratios.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.clusters.java import find_java
from triomq_benchmarks.clusters.processes import ChildError, DriverError
from triomq_benchmarks.clusters.scratch import scratch_folder
from triomq_benchmarks.commands.measurements.progress import dim_progress
from triomq_benchmarks.commands.named_path import NamedPath
from triomq_benchmarks.drivers.driver_processes import LoadError
from triomq_benchmarks.drivers.prepared_frames import AnswerError
from triomq_benchmarks.ha.measurement import KILLS, PARTS, QUICK_KILLS, measure
from triomq_benchmarks.ha.tables import figures_json, print_figures


@click.command()
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="What to measure; default: all.")
@click.option("--kills", type=click.IntRange(1, 1000), help="How often the master is killed. Default 20, quick 2.")
@click.option("--home", type=NamedPath(), help="Where stores and logs go while it runs. Default: scratch.")
@click.option("--quick", is_flag=True, help="Bodies of 1 KiB alone, fewer rounds, smaller logs.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def ha(parts: tuple[str, ...], kills: int | None, home: Path | None, quick: bool, as_json: bool) -> None:
    """Replication: catch-up, sync sends and the loss of a master, beside the real 4.9.7.

    A master's loss takes half a minute per kill: the Java client refreshes its routes no more often.
    """
    try:
        java = find_java()
    except ToolUnavailableError as error:
        click.echo(f"no RocketMQ 4.9.7 to compare with: {error}", err=True)
        sys.exit(2)
    kills = kills or (QUICK_KILLS if quick else KILLS)
    try:
        if home is not None:
            home.mkdir(parents=True, exist_ok=True)
        with scratch_folder("triomq-ha-", home) as scratch:
            figures = measure(parts or PARTS, kills, quick, java, Path(scratch), dim_progress(as_json))
    except (ChildError, DriverError, LoadError, AnswerError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)
    if as_json:
        click.echo(figures_json(figures))
    else:
        print_figures(figures, Console(width=None if sys.stdout.isatty() else 160))
