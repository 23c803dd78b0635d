"""`triomq bench growth`: the cost of a broker's work as its content grows."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from triomq_benchmarks.clusters.processes import ChildError
from triomq_benchmarks.clusters.scratch import scratch_folder
from triomq_benchmarks.commands.measurements.early_end import end_early, measured_until_end
from triomq_benchmarks.commands.measurements.progress import dim_progress
from triomq_benchmarks.commands.named_path import NamedPath
from triomq_benchmarks.drivers.prepared_frames import AnswerError
from triomq_benchmarks.growth.points import TERMS, measure_growth
from triomq_benchmarks.growth.tables import growth_json, print_growth


@click.command()
@click.option(
    "--term",
    "names",
    type=click.Choice([term.name for term in TERMS]),
    multiple=True,
    help="What grows; repeatable, default: all.",
)
@click.option(
    "--messages", type=click.IntRange(64, 1_000_000), default=100_000, show_default=True, help="Sends of one sample."
)
@click.option("--home", type=NamedPath(), help="Where stores and logs go, and stay. Default: scratch.")
@click.option("--quick", is_flag=True, help="Few of everything, fewer messages.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def growth(names: tuple[str, ...], messages: int, home: Path | None, quick: bool, as_json: bool) -> None:
    """CPU per send, idle CPU, memory and start of a broker with ever more idle links, topics, groups and log files.

    Each figure is of a fresh broker. The log's files are sparse: 50 GiB take a few pages of the disk.

    Exit code 1: it could not be measured to its end; 130: interrupted. What was measured before is shown.
    """
    terms = [term for term in TERMS if not names or term.name in names]
    with scratch_folder("triomq-growth-") as scratch:
        points, failure = measured_until_end(
            lambda: measure_growth(
                terms,
                home or Path(scratch),
                messages=min(messages, 5000) if quick else messages,
                quick=quick,
                progress=dim_progress(as_json),
            ),
            ChildError, AnswerError, OSError,
        )  # fmt: skip
    if as_json:
        click.echo(growth_json(points, failure))
    else:
        print_growth(points, Console())
    end_early(failure, has_figures=bool(points))
