"""`triomq bench spark-read`: how fast Spark reads a topic."""

from __future__ import annotations

import json
import statistics

import attrs
import click
from rich.console import Console
from rich.table import Table

from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.commands.spark_master import spark_master
from triomq_benchmarks.figures.beside import beside
from triomq_benchmarks.spark.read import GOAL, SparkReadRates, measure


@click.command("spark-read")
@click.option(
    "--rows", type=click.IntRange(1000, 100_000_000), default=1_000_000, show_default=True, help="Messages read."
)
@click.option(
    "--body", "body_bytes", type=click.IntRange(1, 1 << 20), default=1024, show_default=True, help="Bytes of a body."
)
@click.option("--queues", type=click.IntRange(1, 256), default=4, show_default=True, help="Queues of the topic.")
@click.option("--rounds", type=click.IntRange(1, 50), default=3, show_default=True, help="Medians of so many.")
@spark_master
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def spark_read(rows: int, body_bytes: int, queues: int, rounds: int, master: str, as_json: bool) -> None:
    """Rows per second that Spark reads from a topic, beside a pull loop and beside Parquet."""
    console = Console(stderr=True)
    try:
        rates = measure(
            rows, body_bytes, queues, rounds, master, lambda text: None if as_json else console.print(f"[dim]{text}")
        )
    except ToolUnavailableError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps({**attrs.asdict(rates), "ratio": rates.ratio, "goal": GOAL}))
        return
    _print(rates, Console())


def _print(rates: SparkReadRates, console: Console) -> None:
    table = Table(title=f"{rates.rows:,} messages of {rates.body_bytes} bytes, {rates.master}")
    for name in ("read by", "rows/s, median", "lowest", "highest", "of the pull loop"):
        table.add_column(name, justify="left" if name == "read by" else "right")
    plain = statistics.median(rates.pull_loop)
    for name, series in (
        ("one plain pull loop", rates.pull_loop),
        ("Spark, rocketmq", rates.source),
        ("Spark, rocketmq, bodies alone", rates.body_only),
        ("Spark, Parquet", rates.parquet),
    ):
        middle = statistics.median(series)
        table.add_row(
            name, f"{middle:,.0f}", f"{min(series):,.0f}", f"{max(series):,.0f}", f"{beside(middle / plain, GOAL, 2)}x"
        )
    console.print(table)
    share = rates.share
    console.print(
        f"tasks' main threads under the profiler, {share.total_s:.2f} s: "
        f"{beside(100 * share.waiting_s / share.total_s, 0, 0)}% waiting for pulls, {beside(100 * share.arrow_s / share.total_s, 0, 0)}% making Arrow batches, "
        f"{beside(100 * share.other_s / share.total_s, 0, 0)}% Spark's part and writing to it"
    )
    console.print(
        f"goal {GOAL:g}x of the pull loop: {'reached' if rates.ratio >= GOAL else 'not reached'}, {beside(rates.ratio, GOAL, 2)}x"
    )
