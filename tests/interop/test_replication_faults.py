"""Fault schedules with mixed pairs: a Java master with our slaves, our master with Java slaves.

TRIOMQ_FAULT_SCHEDULES sets how many schedules per pair, TRIOMQ_SEED the first one.
`tests/faults/cluster/process_schedule.py` describes what is expected of a pair;
`cluster_processes.py --pair java/ours --first SEED -v` beside it runs one again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from triomq_benchmarks.clusters.java import Java

SCHEDULES = int(os.environ.get("TRIOMQ_FAULT_SCHEDULES", "2"))
FIRST = int(os.environ.get("TRIOMQ_SEED", "0"))
LEDGER = Path(__file__).parents[1] / "faults" / "cluster"


@pytest.mark.parametrize("pair", ["java/ours", "ours/java"])
async def test_nothing_acknowledged_is_lost(
    pair: str, java: Java, scratch: Path, figures: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(LEDGER))
    from cluster_processes import summary
    from process_schedule import run_schedule
    from separate_nodes import Pair

    begin = time.perf_counter()
    outcomes = []
    for seed in range(FIRST, FIRST + SCHEDULES):
        home = scratch / f"faults-{pair.replace('/', '-')}-{seed}"
        home.mkdir()
        outcomes.append(await run_schedule(seed, home, pair=Pair.parsed(pair), java=java))
    figures(f"{summary(outcomes, time.perf_counter() - begin, Pair.parsed(pair))}")
    lines = [f"seed {each.seed} {each.setting} {each.events}: {each.faults[:5]}" for each in outcomes if each.faults]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize("pair", ["java/ours", "ours/java"])
async def test_a_synchronous_master_may_lose_its_disk(
    pair: str, java: Java, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(LEDGER))
    from cluster_setting import Setting
    from process_schedule import run_schedule
    from separate_nodes import Pair

    setting = Setting(
        synchronous=True,
        flush=False,
        slaves=1,
        disk_lost=True,
        power=False,
        succession=False,
        returns=pair == "java/ours",
    )
    home = scratch / f"burnt-{pair.replace('/', '-')}"
    home.mkdir()
    outcome = await run_schedule(FIRST, home, pair=Pair.parsed(pair), java=java, setting=setting)
    assert not outcome.faults, f"{outcome.events}: {outcome.faults[:5]}\n{outcome.output}"
