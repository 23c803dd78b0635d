"""`triomq bench consume`: how fast consumers are, beside Java's; with `--stalled`, how much memory one takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import attrs
import click
import msgspec
from rich.console import Console

from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.clusters.java import Java, find_java
from triomq_benchmarks.clusters.processes import ChildError, DriverError
from triomq_benchmarks.clusters.scratch import scratch_folder
from triomq_benchmarks.commands.named_path import NamedPath
from triomq_benchmarks.figures.machine import machine_now
from triomq_benchmarks.versus_java.consume_memory import Stalled, measure_stalled
from triomq_benchmarks.versus_java.consume_speed import KINDS, ConsumePlan, ConsumeRow, measure_consumers
from triomq_benchmarks.versus_java.consume_tables import row_json, speed_table, stalled_table

COUNT, QUICK_COUNT = 300_000, 100_000
STALLED_COUNT, QUICK_STALLED_COUNT = 1_000_000, 200_000


@click.command()
@click.option("--body", "body_bytes", type=click.IntRange(1, 1 << 20), default=1024, show_default=True, help="Bytes.")
@click.option(
    "--count", type=click.IntRange(1000, 5_000_000), help="Messages per sample. Default 300000, quick 100000."
)
@click.option("--rounds", type=click.IntRange(1, 50), help="Samples per figure; medians are shown. Default 5, quick 3.")
@click.option("--warm-up", type=click.IntRange(0, 20), help="Samples before those. Default 3, quick 2.")
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Of consumers; default: all.")
@click.option("--stalled", is_flag=True, help="Memory of a push consumer whose handlers are held; needs no Java.")
@click.option("--ours", "ours_alone", is_flag=True, help="Our SDK on our broker alone.")
@click.option("--home", type=NamedPath(), help="Where stores and logs go, and stay. Default: scratch.")
@click.option("--quick", is_flag=True, help="Fewer messages, fewer samples.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def consume(
    body_bytes: int,
    count: int | None,
    rounds: int | None,
    warm_up: int | None,
    kinds: tuple[str, ...],
    stalled: bool,
    ours_alone: bool,
    home: Path | None,
    quick: bool,
    as_json: bool,
) -> None:
    """Messages/s and CPU per message of push and lite pull consumers, ours and the Java client's, on both brokers."""

    def progress(text: str) -> None:
        if not as_json:
            click.echo(text, err=True)

    plan = ConsumePlan(
        body_bytes=body_bytes,
        count=count or (QUICK_COUNT if quick else COUNT),
        rounds=rounds or (3 if quick else 5),
        warm_up=warm_up if warm_up is not None else (2 if quick else 3),
        kinds=kinds or KINDS,
    )
    java = None if stalled or ours_alone else _java()
    try:
        with scratch_folder("triomq-consume-") as scratch:
            place = (home or Path(scratch)).absolute()
            if stalled:
                messages = count or (QUICK_STALLED_COUNT if quick else STALLED_COUNT)
                _print_stalled(measure_stalled(messages, body_bytes, place, progress), as_json)
            else:
                _print_speed(measure_consumers(plan, java, place, progress), plan, as_json)
    except (ChildError, DriverError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)


def _java() -> Java | None:
    try:
        return find_java()
    except ToolUnavailableError as error:
        click.echo(f"our SDK on our broker alone, no RocketMQ 4.9.7 to compare with: {error}", err=True)
        return None


def _print_speed(rows: Sequence[ConsumeRow], plan: ConsumePlan, as_json: bool) -> None:
    if as_json:
        click.echo(_json({"plan": attrs.asdict(plan), "rows": [row_json(row) for row in rows]}))
    else:
        _console().print(speed_table(rows, plan))


def _print_stalled(found: Sequence[Stalled], as_json: bool) -> None:
    if as_json:
        found_json = [
            {**attrs.asdict(each), "allowed_bytes": each.allowed_bytes, "passed": each.passed} for each in found
        ]
        click.echo(_json({"stalled": found_json}))
    else:
        _console().print(stalled_table(found))
    if not all(each.passed for each in found):
        sys.exit(1)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 200)


def _json(found_json: dict[str, object]) -> str:
    return msgspec.json.format(msgspec.json.encode({"machine": machine_now(), **found_json}), indent=2).decode()
