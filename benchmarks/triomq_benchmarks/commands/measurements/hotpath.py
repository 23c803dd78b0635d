"""`triomq bench hotpath`: the work done for every message, on one core, without a network."""

from __future__ import annotations

import click
from rich.console import Console

from triomq_benchmarks.commands.measurements.progress import dim_progress
from triomq_benchmarks.commands.number_range import NumberRange
from triomq_benchmarks.drivers.scenarios import BODY_BYTES, QUICK_BODY_BYTES
from triomq_benchmarks.hotpath.rates import measure
from triomq_benchmarks.hotpath.tables import print_rates, rates_json


@click.command()
@click.option("--body", "bodies", type=click.IntRange(1, 1 << 22), multiple=True, help="Bytes of a body; repeatable.")
@click.option("--count", type=click.IntRange(100, 1_000_000), default=100_000, show_default=True, help="Messages sent.")
@click.option(
    "--seconds", type=NumberRange(0, min_open=True), default=0.5, show_default=True, help="Per figure of the protocol."
)
@click.option("--quick", is_flag=True, help="Bodies of 1 KiB alone, fewer messages.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def hotpath(bodies: tuple[int, ...], count: int, seconds: float, quick: bool, as_json: bool) -> None:
    """Frames parsed, sends stored, pulls answered, per second and core."""
    rates = measure(
        bodies or (QUICK_BODY_BYTES if quick else BODY_BYTES),
        min(count, 20_000) if quick else count,
        seconds,
        dim_progress(as_json),
    )
    if as_json:
        click.echo(rates_json(rates))
    else:
        print_rates(rates, Console())
