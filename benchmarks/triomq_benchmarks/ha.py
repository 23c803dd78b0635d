"""``python -m triomq_benchmarks ha``: replication, ours and the real 4.9.7, in all four pairings of masters and slaves.

Catch-up, sends that wait for the slave, and what a reader notices when its master is killed, each part against Java's own
in the same run. The goals stand beside the ratios.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import trio
from rich.console import Console

from . import ha_report
from .builds import ToolUnavailableError
from .demo_cluster import ClusterError
from .ha_catch_up import CatchUp, CatchUpPlan, measure_catch_up
from .ha_failover import Kill, measure_failover
from .ha_report import HaFigures
from .ha_sync import SyncPlan, SyncSend, measure_sync
from .java import Java, find_java
from .load import LoadError
from .pipeline import AnswerError
from .processes import ChildError, DriverError
from .targets import Kind, namesrv

PARTS = ("catch-up", "sync", "failover")
MIB = 1 << 20
CATCH_UP = CatchUpPlan(bodies=(1024, 16_384), rounds=3, fill_bytes=128 * MIB, behind_bytes=32 * MIB)
QUICK_CATCH_UP = CatchUpPlan(bodies=(1024,), rounds=1, fill_bytes=48 * MIB, behind_bytes=16 * MIB)
SYNC = SyncPlan(rounds=5, seconds=1.5, warm_up_s=3.0)
QUICK_SYNC = SyncPlan(rounds=2, seconds=0.7, warm_up_s=1.5)
KILLS, QUICK_KILLS = 20, 2


@click.command()
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="What to measure; default: all.")
@click.option("--kills", type=click.IntRange(1, 1000), help="How often the master is killed. Default 20, quick 2.")
@click.option(
    "--home", type=click.Path(path_type=Path), help="Where stores and logs go while it runs. Default: scratch."
)
@click.option("--quick", is_flag=True, help="Bodies of 1 KiB alone, fewer rounds, smaller logs.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def ha(parts: tuple[str, ...], kills: int | None, home: Path | None, quick: bool, as_json: bool) -> None:
    """Replication: catch-up, sync sends and the loss of a master, beside the real 4.9.7.

    A master's loss takes half a minute per kill: the Java client looks at its routes no more often.
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
        with tempfile.TemporaryDirectory(prefix="triomq-ha-", dir=home, ignore_cleanup_errors=True) as scratch:
            figures = _measure(parts or PARTS, kills, quick, java, Path(scratch), _progress(as_json))
    except (ChildError, ClusterError, DriverError, LoadError, AnswerError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    if as_json:
        click.echo(ha_report.figures_json(figures))
    else:
        ha_report.print_figures(figures, Console(width=None if sys.stdout.isatty() else 160))


def _measure(
    parts: tuple[str, ...], kills: int, quick: bool, java: Java, home: Path, progress: Callable[[str], None]
) -> HaFigures:
    catch_ups: list[CatchUp] = []
    sync: list[SyncSend] = []
    lost: list[Kill] = []
    with namesrv(Kind.OURS, home / "namesrv") as names:
        if "catch-up" in parts:
            catch_ups = measure_catch_up(QUICK_CATCH_UP if quick else CATCH_UP, java, home, names.address, progress)
        if "sync" in parts:
            sync = measure_sync(QUICK_SYNC if quick else SYNC, java, home, names, progress)
    if "failover" in parts:
        lost = trio.run(measure_failover, kills, java, home, progress)
    return HaFigures(tuple(catch_ups), tuple(sync), tuple(lost))


def _progress(as_json: bool) -> Callable[[str], None]:
    console = Console(stderr=True)
    if as_json or not console.is_terminal:
        return lambda _text: None
    return lambda text: console.print(f"[dim]{text}")
