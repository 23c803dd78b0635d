"""`triomq quickstart`: a cluster takes a data set, loses its master, and returns every message."""

from __future__ import annotations

import sys

import click
import trio

import triomq
from triomq_benchmarks.clusters.processes import ChildError
from triomq_benchmarks.demo.quickstart import Quickstart, QuickstartError
from triomq_benchmarks.demo.quickstart_figures import Progress, QuickstartFigures
from triomq_benchmarks.run.interrupts import on_interrupt
from triomq_benchmarks.workload.flights import DataSet, NoDataError, data_set
from triomq_command.running import EXIT_INTERRUPTED, missing_package


@click.command()
@click.option(
    "--input", "source", metavar="FILE|-", help="Lines of a text, or of standard input, instead of the flights."
)
@click.option("--count", type=click.IntRange(1), help="At most this many rows.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
def quickstart(source: str | None, count: int | None, as_json: bool) -> None:
    """Start a cluster, send a data set, kill the master, and read everything back from the slave.

    Exit code 0: nothing lost, nothing changed. 1: something was, or the run could not be finished.
    """
    # Only an actual run needs the drawing code.
    try:
        from triomq_benchmarks.demo.quickstart_output import as_object, progress_on, table_of
    except ModuleNotFoundError as error:
        raise missing_package("quickstart", "demo", error) from None

    try:
        data = data_set(source, count)
        with progress_on(sys.stderr, shown=not as_json) as progress:
            figures = trio.run(_until_signal, data, progress)
    except (NoDataError, ChildError, QuickstartError, triomq.MQError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)
    if figures is None:
        click.echo("interrupted; the cluster is stopped and its files are removed", err=True)
        sys.exit(EXIT_INTERRUPTED)
    if as_json:
        click.echo(as_object(figures))
    else:
        table_of(figures)
    sys.exit(0 if figures.clean else 1)


async def _until_signal(data: DataSet, progress: Progress) -> QuickstartFigures | None:
    """Run it; None after SIGINT or SIGTERM. Both end the cluster cleanly."""
    figures = None
    with trio.CancelScope() as scope:
        async with on_interrupt(scope.cancel):
            figures = await Quickstart(data, progress).run()
    return figures
