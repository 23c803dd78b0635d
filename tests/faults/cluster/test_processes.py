"""Real processes under load, killed, stopped and cut off by a seed's schedule; the files are audited afterwards.

TRIOMQ_FAULT_SCHEDULES sets how many schedules, TRIOMQ_SEED the first one. A failure prints its seed, and
`python tests/faults/cluster/cluster_processes.py --first SEED -v` runs the same schedule again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_audit import Ledger, differing, missing, read_log
from cluster_processes import summary
from cluster_setting import Setting
from process_nodes import RealFiles
from process_schedule import run_schedule

from triomq_server.config import StoreConfig
from triomq_server.store import NewRecord, open_store

SCHEDULES = int(os.environ.get("TRIOMQ_FAULT_SCHEDULES", "3"))
ENOUGH = 10
"""Number of schedules that detects every injected fault."""
FIRST = int(os.environ.get("TRIOMQ_SEED", "0"))


@pytest.mark.slow
async def test_nothing_acknowledged_is_lost(tmp_path: Path, figures: Callable[[str], None]) -> None:
    begin = time.perf_counter()
    outcomes = []
    for seed in range(FIRST, FIRST + SCHEDULES):
        home = tmp_path / str(seed)
        home.mkdir()
        outcomes.append(await run_schedule(seed, home))
    figures(f"{summary(outcomes, time.perf_counter() - begin)}")
    lines = [f"seed {each.seed} {each.setting} {each.events}: {each.faults[:5]}" for each in outcomes if each.faults]
    assert not lines, "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("returns", [False, True])
async def test_a_synchronous_master_may_lose_its_disk(tmp_path: Path, returns: bool) -> None:
    """Its store directory is deleted; then a slave replaces it, perhaps after the master restarted empty."""
    setting = Setting(
        synchronous=True, flush=False, slaves=2, disk_lost=True, power=False, succession=False, returns=returns
    )
    outcome = await run_schedule(FIRST, tmp_path, setting=setting)
    assert not outcome.faults, f"{outcome.events}: {outcome.faults[:5]}\n{outcome.output}"
    assert outcome.statuses["SEND_OK"]


@pytest.mark.slow
@pytest.mark.parametrize(("injected", "words"), [("acknowledges early", "lost:"), ("skips records", "queue")])
async def test_an_injected_fault_is_detected(tmp_path: Path, injected: str, words: str) -> None:
    """With a fault injected into the brokers some schedule fails, and for that reason."""
    setting = Setting(synchronous=True, flush=False, slaves=1, disk_lost=False, power=False, succession=False)
    for seed in range(ENOUGH):
        home = tmp_path / str(seed)
        home.mkdir()
        outcome = await run_schedule(seed, home, setting=setting, injected=injected)
        if any(words in fault for fault in outcome.faults):
            return
    pytest.fail(f"{ENOUGH} schedules with a broker that {injected}, and no fault was detected")


async def test_the_audit_detects_faults(tmp_path: Path) -> None:
    """Messages that are missing, changed, acknowledged twice or out of order; logs that differ."""
    logs = {}
    for name, bodies in (("one", (b"a", b"b", b"c")), ("other", (b"a", b"x"))):
        config = StoreConfig(store_path_root_dir=str(tmp_path / name), mapped_file_size_commit_log=65536)
        async with open_store(config) as store:
            for body in bodies:
                store.append(NewRecord("ledger", 0, body, b""))
        logs[name] = read_log(RealFiles(), str(tmp_path / name), "ledger")
    one, other = logs["one"], logs["other"]
    assert one.bodies == {(0, 0): b"a", (0, 1): b"b", (0, 2): b"c"}
    assert one.faults == other.faults == []
    assert differing(one, one) == []
    assert len(differing(one, other)) == 1

    ledger = Ledger()
    ledger.acknowledge((0, 0), [b"a", b"b"], status="SEND_OK", synchronous=True, sender="s")
    assert missing(ledger.acks, {"one": one}) == []
    assert len(missing(ledger.acks, {"other": other})) == 1
    assert missing(ledger.acks, logs) == []
    assert ledger.own_faults() == []
    ledger.acknowledge((0, 1), [b"c"], status="SEND_OK", synchronous=True, sender="t")
    assert [fault.split(":")[0] for fault in ledger.own_faults()] == ["duplicated"]
    ledger.acknowledge((0, 0), [b"a"], status="SEND_OK", synchronous=False, sender="s")
    assert [fault.split(":")[0] for fault in ledger.own_faults()] == ["duplicated", "duplicated", "order"]
