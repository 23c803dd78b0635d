"""Runs of real processes - name server, master, slave, load generators - in which a fault is planted."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

import attrs
import pyarrow.parquet as pq
import trio
from fault_kinds import LEDGER_KINDS
from ledger_defects import Row, planted

import triomq
from triomq_benchmarks.audit.checks import Findings
from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.figures.ledger import folder_sink, open_ledger
from triomq_benchmarks.figures.run_result import Decision
from triomq_benchmarks.generator.engine import Engine
from triomq_benchmarks.generator.local_engine import LocalEngine
from triomq_benchmarks.generator.process_engine import ProcessEngine
from triomq_benchmarks.run.one_run import audit_here, run_workload
from triomq_benchmarks.run.resource_watch import descendants
from triomq_benchmarks.run.targets import RunTarget, open_run_target
from triomq_benchmarks.workload.workload import ClusterShape, Fault, Threshold, Workload

LIMIT_S = 180.0
STOP_S = 1.5

# Where a busy machine makes the generator late is not what is looked at, but for one kind.
WORKLOAD = Workload(
    name="planted", rate_per_s=100, duration_s=5, warm_up_s=0.5, producers=2, consumers=2, send_timeout_s=3.0, drain_s=6,
    lateness_limit_ms=60_000, repeats_allowed=1.0,
)  # fmt: skip
_P99 = (Threshold.parse("p99_ms < 500"),)
SLOW_FLUSH = """import os, time
_real = os.fdatasync
def _slow(descriptor):
    time.sleep(0.6)
    _real(descriptor)
os.fdatasync = _slow
"""

Plant = Callable[[RunTarget, tuple[str, ...]], Awaitable[None]]


def _process(role: str, number: int, for_s: float = 0.0) -> Plant:
    async def plant(target: RunTarget, _topics: tuple[str, ...]) -> None:
        pid = next(node.pid for node in target.nodes.values() if node.role == role)
        os.kill(pid, number)
        if number == signal.SIGSTOP:
            try:
                await trio.sleep(for_s)
            finally:
                os.kill(pid, signal.SIGCONT)

    return plant


def _generators() -> list[int]:
    return [
        pid for pid in descendants(os.getpid(), []) if b"worker_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


async def _starve(_target: RunTarget, _topics: tuple[str, ...]) -> None:
    for pid in _generators():
        os.kill(pid, signal.SIGSTOP)
    try:
        await trio.sleep(STOP_S)
    finally:
        for pid in _generators():
            os.kill(pid, signal.SIGCONT)


async def _kill_generator(_target: RunTarget, _topics: tuple[str, ...]) -> None:
    os.kill(max(_generators()), signal.SIGKILL)
    await trio.lowlevel.checkpoint()


async def _delete_topics(target: RunTarget, topics: tuple[str, ...]) -> None:
    async with triomq.open_client(target.name_servers) as client:
        for topic in topics:
            await client.admin.delete_topic(topic)


async def _nothing(_target: RunTarget, _topics: tuple[str, ...]) -> None:
    await trio.lowlevel.checkpoint()


@attrs.frozen(kw_only=True)
class _Planting:
    """How a kind is planted: before the run, in its workload, or while it runs."""

    plant: Plant = _nothing
    thresholds: tuple[Threshold, ...] = ()
    faults: tuple[Fault, ...] = ()
    slaves: int = 0
    settings: dict[str, str] = attrs.field(factory=dict)
    processes: bool = False
    lateness_limit_ms: float = 60_000


_PLANTINGS = {
    "kill -9 of the broker": _Planting(plant=_process("master", signal.SIGKILL)),
    "kill -9 of the slave": _Planting(plant=_process("slave", signal.SIGKILL), slaves=1),
    "kill -9 of the name server": _Planting(plant=_process("namesrv", signal.SIGKILL)),
    "the workload's own kill": _Planting(faults=(Fault.parse("kill master at 2 s"),)),
    "the workload's own pause": _Planting(faults=(Fault.parse("pause master at 2 s for 1500 ms"),), thresholds=_P99),
    "SIGSTOP of the broker": _Planting(plant=_process("master", signal.SIGSTOP, STOP_S), thresholds=_P99),
    "SIGSTOP of the name server": _Planting(plant=_process("namesrv", signal.SIGSTOP, STOP_S)),
    "SIGSTOP of the slave": _Planting(plant=_process("slave", signal.SIGSTOP, STOP_S), slaves=1),
    "cut links": _Planting(faults=(Fault.parse("cut master at 2 s for 900 ms"),), thresholds=_P99),
    "full disk": _Planting(settings={"diskSpaceWarningLevelRatio": "0.01", "diskMaxUsedSpaceRatio": "10"}),
    "slow flush": _Planting(settings={"flushDiskType": "SYNC_FLUSH"}, thresholds=_P99),
    "refused topic": _Planting(plant=_delete_topics, settings={"autoCreateTopicEnable": "false"}),
    "wrong permissions": _Planting(settings={"brokerPermission": "4"}),
    "generator starved of CPU": _Planting(plant=_starve, processes=True, lateness_limit_ms=10),
    "generator killed": _Planting(plant=_kill_generator, processes=True),
    "run interrupted": _Planting(),
    **{name: _Planting() for name in LEDGER_KINDS},
}


async def run_really(kind: str, seed: int, folder: Path) -> Decision:
    """One run with one fault, on a cluster of its own; the ledger goes below `folder`."""
    planting = _PLANTINGS[kind]
    shape = ClusterShape(slaves=planting.slaves, settings=planting.settings)
    workload = attrs.evolve(
        WORKLOAD, cluster=shape, thresholds=planting.thresholds, faults=planting.faults,
        lateness_limit_ms=planting.lateness_limit_ms, repeats_allowed=0.0 if kind in LEDGER_KINDS else 1.0,
    )  # fmt: skip
    engine: Engine = ProcessEngine(2) if planting.processes else LocalEngine()
    began, stop, topics = trio.Event(), trio.CancelScope(), list[str]()

    def on_row(row: IntervalRow) -> None:
        if row.second >= 1 and row.worker >= 0:
            began.set()

    async def plant() -> None:
        await began.wait()
        if kind == "run interrupted":
            stop.cancel()
        await planting.plant(target, tuple(topics))

    async def audit(ledger: Path) -> Findings:
        if kind in LEDGER_KINDS:
            _rewrite(kind, seed, ledger)
        return await audit_here(ledger)

    with trio.fail_after(LIMIT_S):
        async with (
            _slow_flush(folder, kind == "slow flush"),
            open_run_target("ours", workload) as target,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(plant)
            if kind == "refused topic":
                nursery.start_soon(_learn_topics, target, topics)
            result = await run_workload(
                workload, target, engine, seed=seed, folder=folder, audit=audit, on_row=on_row, stop=stop
            )
            nursery.cancel_scope.cancel()
    return result.decision


async def _learn_topics(target: RunTarget, topics: list[str]) -> None:
    """The topics that the run made."""
    while not topics:
        await trio.sleep(0.2)
        async with triomq.open_client(target.name_servers) as client:
            topics += [name for name in await client.admin.topics() if name.startswith("bench-")]


@asynccontextmanager
async def _slow_flush(folder: Path, wanted: bool) -> AsyncIterator[None]:
    """Servers that are started within the block take six tenths of a second for each flush of their disk."""
    if not wanted:
        yield
        return
    (folder / "slow").mkdir()
    (folder / "slow" / "sitecustomize.py").write_text(SLOW_FLUSH)
    path = os.pathsep.join([str(folder / "slow"), *filter(None, [os.environ.get("PYTHONPATH")])])
    with mock.patch.dict(os.environ, {"PYTHONPATH": path}):
        yield


def _rewrite(kind: str, seed: int, folder: Path) -> None:
    """Plant a defect in the ledger of a run."""
    columns = ("number", "topic", "broker", "queue_id", "queue_offset", "crc")
    rows: dict[str, list[Row]] = {}
    groups: list[str] = []
    for name in ("acknowledged", "consumed"):
        rows[name] = []
        for path in sorted((folder / name).iterdir()):
            table = pq.read_table(path)
            rows[name] += zip(*(table.column(column).to_pylist() for column in columns), strict=True)
            groups += table.column("group").to_pylist()[:1] if name == "consumed" else []
            path.unlink()
    acknowledged, consumed = planted(kind, random.Random(seed), rows["acknowledged"], rows["consumed"])
    with open_ledger(folder_sink(folder), worker=0, workers=1, groups=groups[:1]) as ledger:
        for row in acknowledged:
            ledger.acknowledged(*row)
        for row in consumed:
            ledger.consumed(*row, groups[0])
