"""`triomq bench flights-pipeline`: a streaming pipeline of Spark as an example."""

from __future__ import annotations

import json
import time

import click
from rich.console import Console
from rich.table import Table

from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.commands.spark_master import spark_master
from triomq_benchmarks.spark.flights_pipeline import PipelineError, PipelineResult, measure
from triomq_benchmarks.workload.flights import NoDataError


@click.command("flights-pipeline")
@click.option("--rows", type=click.IntRange(100, 336_776), default=50_000, show_default=True, help="Flights.")
@click.option("--per-trigger", type=click.IntRange(10, 336_776), help="Flights per trigger. Default: an eighth.")
@spark_master
@click.option("--json", "as_json", is_flag=True, help="One JSON object; progress goes to standard error.")
def flights_pipeline(rows: int, per_trigger: int | None, master: str, as_json: bool) -> None:
    """Flights through a topic, a streaming query and a second topic; the query is stopped once, and a master killed, on
    the way."""
    console = Console(stderr=as_json)
    try:
        result = measure(rows, per_trigger or max(10, rows // 8), master, lambda text: console.print(f"[dim]{text}"))
    except (NoDataError, PipelineError, ToolUnavailableError) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(_figures(result)))
    else:
        _print(console, result)
    if not result.equal:
        raise click.ClickException("the result is not what pandas computes from the file")
    console.print("[green]equal to what pandas computes from the file")


def _figures(result: PipelineResult) -> dict[str, object]:
    before, after = result.triggers
    return {
        "rows": result.rows,
        "windows": len(result.found),
        "results": result.results,
        "triggers_before_restart": before,
        "triggers_after_restart": after,
        "from_slave": result.from_slave,
        "elapsed_s": result.elapsed_s,
        "equal": result.equal,
    }


def _print(console: Console, result: PipelineResult) -> None:
    table = Table(title=f"{result.rows:,} flights, {len(result.found):,} windows; the worst ten")
    for name in ("carrier", "hour", "flights", "mean delay"):
        table.add_column(name, justify="left" if name == "carrier" else "right")
    worst = result.found.assign(mean=result.found.minutes / result.found.delayed).nlargest(10, "mean")
    for row in worst.itertuples():
        hour = time.strftime("%Y-%m-%d %H:00", time.gmtime(row.hour))
        table.add_row(row.carrier, hour, str(row.flights), f"{row.mean:.1f} min")
    console.print(table)
    console.print(
        f"{result.triggers[0]} triggers before the restart and {result.triggers[1]} after, {result.results:,} results; "
        f"{result.from_slave:,} flights read from the slave; {result.elapsed_s:.1f} s"
    )
