"""The command line: `python -m triomq_benchmarks hotpath|versus-java|run|compare|…`, also reachable as `triomq bench`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from . import hotpath as hotpath_room
from . import report, run_compare
from .audit_command import audit
from .builds import ToolUnavailableError
from .comparison import LOADS, Plan, compare
from .consume_command import consume
from .engines_command import engines
from .flights_pipeline import flights_pipeline
from .ha import ha
from .ha_failover import failover
from .java import find_java
from .report_command import report_command
from .run_command import run, workloads
from .scenarios import BODY_BYTES, BROKER, QUICK_BODY_BYTES, SDK
from .spark_cluster import spark_cluster
from .spark_read import spark_read

SIDES = ("start", "broker", "sdk")


@click.group()
def bench() -> None:
    """Measure: the hot path alone, or ours against the real RocketMQ 4.9.7."""


def _progress(as_json: bool) -> Callable[[str], None]:
    console = Console(stderr=True)
    if as_json or not console.is_terminal:
        return lambda _text: None
    return lambda text: console.print(f"[dim]{text}")


def _bodies(bodies: tuple[int, ...], quick: bool) -> tuple[int, ...]:
    return bodies or (QUICK_BODY_BYTES if quick else BODY_BYTES)


@bench.command()
@click.option("--body", "bodies", type=click.IntRange(1, 1 << 22), multiple=True, help="Bytes of a body; repeatable.")
@click.option("--count", type=click.IntRange(100, 1_000_000), default=100_000, show_default=True, help="Messages sent.")
@click.option("--seconds", type=float, default=0.5, show_default=True, help="Per figure of the protocol.")
@click.option("--quick", is_flag=True, help="Bodies of 1 KiB alone, fewer messages.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def hotpath(bodies: tuple[int, ...], count: int, seconds: float, quick: bool, as_json: bool) -> None:
    """Frames parsed, sends stored, pulls answered, per second and core."""
    rates = hotpath_room.measure(
        _bodies(bodies, quick), min(count, 20_000) if quick else count, seconds, _progress(as_json)
    )
    if as_json:
        click.echo(report.rates_json(rates))
    else:
        report.print_rates(rates, Console())


@bench.command("versus-java")
@click.option("--body", "bodies", type=click.IntRange(1, 1 << 20), multiple=True, help="Bytes of a body; repeatable.")
@click.option("--rounds", type=click.IntRange(1, 50), help="Samples per figure; medians are shown. Default 5, quick 3.")
@click.option("--seconds", type=click.FloatRange(0.05, 30), help="Longest sample. Default 1.5, quick 1.")
@click.option("--warm-up", type=click.FloatRange(0.05, 60), help="Seconds per scenario before it counts. Default 2.")
@click.option("--side", "sides", type=click.Choice(SIDES), multiple=True, help="What to compare; default: all.")
@click.option("--load", "loads", type=click.Choice(LOADS), multiple=True, help="Who drives the brokers; default: all.")
@click.option("--scenario", "scenarios", multiple=True, help="Names of scenarios; default: all.")
@click.option("--home", type=click.Path(path_type=Path), help="Where stores and logs go, and stay. Default: scratch.")
@click.option("--quick", is_flag=True, help="Bodies of 1 KiB alone, fewer and shorter samples.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def versus_java(
    bodies: tuple[int, ...],
    rounds: int | None,
    seconds: float | None,
    warm_up: float | None,
    sides: tuple[str, ...],
    loads: tuple[str, ...],
    scenarios: tuple[str, ...],
    home: Path | None,
    quick: bool,
    as_json: bool,
) -> None:
    """The same load, same run: our broker and the real one, our SDK and the Java client."""
    known = {one.name for one in (*BROKER, *SDK)}
    if unknown := set(scenarios) - known:
        raise click.BadParameter(f"{', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
    try:
        java = find_java()
    except ToolUnavailableError as error:
        click.echo(f"no RocketMQ 4.9.7 to compare with: {error}", err=True)
        sys.exit(2)
    plan = Plan(
        bodies=_bodies(bodies, quick),
        rounds=rounds or (3 if quick else 5),
        seconds=seconds or (1.0 if quick else 1.5),
        warm_up_s=warm_up or 2.0,
        loads=loads or LOADS,
        broker_scenarios=tuple(one.name for one in BROKER if one.name in scenarios),
        sdk_scenarios=tuple(one.name for one in SDK if one.name in scenarios),
    )
    with tempfile.TemporaryDirectory(prefix="triomq-versus-java-") as scratch:
        comparison = compare(plan, sides or SIDES, java, home or Path(scratch), _progress(as_json))
    if as_json:
        click.echo(report.comparison_json(comparison))
    else:
        report.print_comparison(comparison, Console(width=None if sys.stdout.isatty() else 220))


bench.add_command(consume)
bench.add_command(failover)
bench.add_command(ha)
bench.add_command(run)
bench.add_command(workloads)
bench.add_command(engines)
bench.add_command(audit)
bench.add_command(run_compare.compare)
bench.add_command(report_command)
bench.add_command(spark_cluster)
bench.add_command(spark_read)
bench.add_command(flights_pipeline)


if __name__ == "__main__":
    bench()
