"""The measurement of replication as a whole: catch-up, sends that wait for the slave, and the loss of a master."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from triomq_benchmarks.clusters.java import Java
from triomq_benchmarks.clusters.servers import Kind, namesrv
from triomq_benchmarks.ha.catch_up import CatchUp, CatchUpPlan, measure_catch_up
from triomq_benchmarks.ha.failover import Kill, measure_beside_java
from triomq_benchmarks.ha.sync_sends import SyncPlan, SyncSend, measure_sync

PARTS = ("catch-up", "sync", "failover")
MIB = 1 << 20
CATCH_UP = CatchUpPlan(bodies=(1024, 16_384), rounds=3, fill_bytes=128 * MIB, behind_bytes=32 * MIB)
QUICK_CATCH_UP = CatchUpPlan(bodies=(1024,), rounds=1, fill_bytes=48 * MIB, behind_bytes=16 * MIB)
SYNC = SyncPlan(rounds=5, seconds=1.5, warm_up_s=3.0)
QUICK_SYNC = SyncPlan(rounds=2, seconds=0.7, warm_up_s=1.5)
KILLS, QUICK_KILLS = 20, 2


@attrs.frozen
class HaFigures:
    """All figures of a run; parts that did not run are empty."""

    catch_ups: tuple[CatchUp, ...]
    sync: tuple[SyncSend, ...]
    kills: tuple[Kill, ...]


def measure(
    parts: tuple[str, ...], kills: int, quick: bool, java: Java, home: Path, progress: Callable[[str], None]
) -> HaFigures:
    """Measure the named parts of `PARTS` one after the other; all processes have ended afterwards."""
    catch_ups: list[CatchUp] = []
    sync: list[SyncSend] = []
    lost: list[Kill] = []
    with namesrv(Kind.OURS, home / "namesrv") as names:
        if "catch-up" in parts:
            catch_ups = measure_catch_up(QUICK_CATCH_UP if quick else CATCH_UP, java, home, names.address, progress)
        if "sync" in parts:
            sync = measure_sync(QUICK_SYNC if quick else SYNC, java, home, names, progress)
    if "failover" in parts:
        lost = trio.run(measure_beside_java, kills, java, home, progress)
    return HaFigures(tuple(catch_ups), tuple(sync), tuple(lost))
