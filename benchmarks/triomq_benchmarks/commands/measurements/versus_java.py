"""`triomq bench versus-java`: the same load on our broker and on the real one, by our SDK and by the Java client."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click
from rich.console import Console

from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.clusters.java import find_java
from triomq_benchmarks.clusters.processes import ChildError, DriverError
from triomq_benchmarks.clusters.scratch import scratch_folder
from triomq_benchmarks.commands.measurements.early_end import INTERRUPTED, end_early, measured_until_end
from triomq_benchmarks.commands.measurements.progress import dim_progress
from triomq_benchmarks.commands.named_path import NamedPath
from triomq_benchmarks.commands.number_range import NumberRange
from triomq_benchmarks.drivers.driver_processes import LoadError
from triomq_benchmarks.drivers.scenarios import BODY_BYTES, BROKER, QUICK_BODY_BYTES, SDK
from triomq_benchmarks.versus_java.brokers_and_clients import LOADS, Comparison, Plan, Row, Single, compare
from triomq_benchmarks.versus_java.tables import comparison_json, print_comparison

SIDES = ("start", "broker", "sdk")

FULL_SHARE = 0.75
"""Used share of a disk from which on a full run may reach the 85 % where brokers delete their oldest log files."""


@click.command("versus-java")
@click.option("--body", "bodies", type=click.IntRange(1, 1 << 20), multiple=True, help="Bytes of a body; repeatable.")
@click.option("--rounds", type=click.IntRange(1, 50), help="Samples per figure; medians are shown. Default 5, quick 3.")
@click.option("--seconds", type=NumberRange(0.05, 30), help="Longest sample. Default 1.5, quick 1.")
@click.option("--warm-up", type=NumberRange(0.05, 60), help="Seconds per scenario before it counts. Default 2.")
@click.option("--side", "sides", type=click.Choice(SIDES), multiple=True, help="What to compare; default: all.")
@click.option("--load", "loads", type=click.Choice(LOADS), multiple=True, help="Who drives the brokers; default: all.")
@click.option("--scenario", "scenarios", multiple=True, help="Names of scenarios; default: all.")
@click.option("--home", type=NamedPath(), help="Where stores and logs go, and stay. Default: scratch.")
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
        bodies=bodies or (QUICK_BODY_BYTES if quick else BODY_BYTES),
        rounds=rounds or (3 if quick else 5),
        seconds=seconds or (1.0 if quick else 1.5),
        warm_up_s=warm_up or 2.0,
        loads=loads or LOADS,
        broker_scenarios=tuple(one.name for one in BROKER if one.name in scenarios),
        sdk_scenarios=tuple(one.name for one in SDK if one.name in scenarios),
        keep_stores=home is not None,
    )
    with scratch_folder("triomq-versus-java-") as scratch:
        place = home or Path(scratch)
        measured, failure = measured_until_end(
            lambda: compare(plan, sides or SIDES, java, place, dim_progress(as_json)),
            ChildError, DriverError, LoadError, OSError,
        )  # fmt: skip
        if failure and failure != INTERRUPTED:
            failure += _disk_advice(place)
    comparison = Comparison(
        rows=tuple(each for each in measured if isinstance(each, Row)),
        singles=tuple(each for each in measured if isinstance(each, Single)),
        failure=failure,
    )
    if as_json:
        click.echo(comparison_json(comparison))
    else:
        print_comparison(comparison, Console(width=None if sys.stdout.isatty() else 220))
    end_early(failure, has_figures=bool(measured))


def _disk_advice(place: Path) -> str:
    """What to do if the disk may be the cause: the loads of a body size stay in the stores until its last one."""
    disk = shutil.disk_usage(place)
    # As brokers measure it: what the system reserves counts neither as used nor as free.
    share = disk.used / (disk.used + disk.free)
    if share < FULL_SHARE:
        return ""
    return (
        f"\nThe disk of {place} is {share:.0%} full, and the loads of one body size write several GB: from 85 % on, "
        "brokers delete their oldest files. Free space, give --home on another disk, or choose fewer --body and "
        "--scenario."
    )
