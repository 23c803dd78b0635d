"""One workload on one target: topics, engine, faults, monitor, audit, verdict; ended early, what there is comes back as partial."""

from __future__ import annotations

import datetime as dt
import os
import platform
import random
import socket
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import attrs
import trio

from .audit import Findings
from .engines import Engine, RunPlan
from .intervals import IntervalRow
from .run_faults import check_faults, do_faults
from .run_monitor import broker_facts, watch
from .run_result import FaultInstant, Machine, RunResult, WorkerResult
from .run_targets import RunTarget, TargetError, prepare_topics, remove_topics
from .verdict import Figures, judge
from .workload import ConsumeMode, SendMode, Workload

Hear = Callable[[IntervalRow], None]
PACKAGES = ("triomq", "trio", "msgspec", "hdrhistogram", "isal", "pyarrow", "pyspark")


@attrs.define
class _Seen:
    """What has come in so far; it survives the end of whoever brought it."""

    started_at_s: float = 0.0
    rows: list[IntervalRow] = attrs.field(factory=list)
    workers: list[WorkerResult] = attrs.field(factory=list)
    faults: list[FaultInstant] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)


async def run_workload(
    workload: Workload,
    target: RunTarget,
    engine: Engine,
    *,
    seed: int,
    payload: bytes = b"",
    folder: Path | None = None,
    audit: bool = False,
    hear: Hear = lambda _row: None,
    stop: trio.CancelScope | None = None,
) -> RunResult:
    """Run it, and say how it is to be taken.

    Args:
        workload: what.
        target: on what.
        engine: by whom.
        seed: of everything drawn by chance.
        payload: the payload file's content.
        folder: where the ledger goes; needed for an audit.
        audit: whether to write a ledger and to audit it.
        hear: gets every increment, for progress.
        stop: cancelled by whoever ends the run early; a partial result is returned then.

    Raises:
        TargetError: topics could not be prepared.
        WorkloadError: a fault names a node that is not there.
        EngineError: the generators could not be started.
        triomq.MQError: the local generator could not be started.
    """
    check_faults(workload.faults, target)
    run_number = random.Random(f"{seed}/{time.time_ns()}").getrandbits(32)
    topics = await prepare_topics(target, workload, run_number)
    audited = audit and folder is not None and auditable(workload)
    plan = RunPlan(
        workload=workload,
        name_servers=target.name_servers,
        topics=topics,
        groups=tuple(f"bench-{run_number:08x}-group-{number}" for number in range(workload.groups)),
        run_number=run_number,
        seed=seed,
        payload=payload,
        ledger=folder if audited else None,
    )
    seen = _Seen(notes=list(target.notes))
    details = await _details(target)
    try:
        with stop if stop is not None else trio.CancelScope() as scope:
            await _run(plan, target, engine, hear, seen)
    finally:
        if not target.is_temporary and not workload.topic_names:
            with trio.CancelScope(shield=True):
                await remove_topics(target, topics)
    interrupted = scope.cancelled_caught
    findings: Findings | None = None
    if audited and not interrupted:
        assert folder is not None
        findings = await _audit(engine, folder)
    figures = Figures(workload, seen.rows, seen.workers)
    thresholds, verdict = judge(
        workload, figures, seen.workers, interrupted=interrupted, findings=findings, notes=seen.notes
    )
    return RunResult(
        run_id=f"{run_number:08x}",
        started_at=dt.datetime.fromtimestamp(seen.started_at_s or time.time_ns() / 1e9, dt.UTC).isoformat(),
        engine=engine.label,
        target=target.label,
        target_details=details,
        workload=workload.settings(),
        loop=str(workload.loop),
        versions=versions(),
        machine=this_machine(),
        seed=seed,
        measured_s=workload.duration_s,
        partial=interrupted or any(worker.failure for worker in seen.workers),
        rows=tuple(seen.rows),
        workers=tuple(seen.workers),
        faults=tuple(sorted(seen.faults, key=lambda fault: fault.second)),
        thresholds=thresholds,
        verdict=verdict,
        audit=None if findings is None else findings.as_dict(),
        drained_s=figures.drained_s,
    )


def auditable(workload: Workload) -> bool:
    """Whether both ends of every message are seen."""
    return workload.consume is not ConsumeMode.NONE and workload.send_mode is not SendMode.ONEWAY


async def _run(plan: RunPlan, target: RunTarget, engine: Engine, hear: Hear, seen: _Seen) -> None:
    def take(row: IntervalRow) -> None:
        seen.rows.append(row)
        hear(row)

    failure: Exception | None = None
    async with trio.open_nursery() as nursery:

        def started(wall_s: float) -> None:
            seen.started_at_s = wall_s
            origin = trio.current_time() + wall_s - time.time_ns() / 1e9
            nursery.start_soon(watch, target, origin, take)
            nursery.start_soon(_faults, plan.workload, target, origin, seen)

        try:
            await engine.run(plan, take, started, seen.workers.append)
        except Exception as error:  # noqa: BLE001 -- raised below, plain, once the others have ended
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _faults(workload: Workload, target: RunTarget, origin: float, seen: _Seen) -> None:
    try:
        await do_faults(workload.faults, target, origin, seen.faults.append)
    except* TargetError as errors:
        seen.notes.extend(f"a fault could not be done: {error}" for error in errors.exceptions)


async def _audit(engine: Engine, folder: Path) -> Findings:
    """By the engine where it can, else here; `audit.json` keeps it too."""
    # Only a run with a ledger needs Arrow.
    from .audit_tables import audit_folder, write_findings
    from .run_ledger import LedgerError

    try:
        if (by_engine := getattr(engine, "audit", None)) is not None:
            findings: Findings = await by_engine(folder)
        else:
            findings = await trio.to_thread.run_sync(audit_folder, folder)
    except LedgerError as error:
        findings = Findings(notes=(str(error),))
    write_findings(findings, folder)
    return findings


async def _details(target: RunTarget) -> Mapping[str, object]:
    """Who is measured, and which version they say they are."""
    brokers: dict[str, object] = {}
    for node in target.nodes.values():
        about: dict[str, object] = {"role": node.role, "address": node.address}
        if node.role != "namesrv":
            about["version"] = (await broker_facts(node.address)).get("brokerVersionDesc")
        brokers[node.name] = about
    return {"name_servers": target.name_servers, "nodes": brokers}


def versions() -> dict[str, str]:
    """Of what took part on our side."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def this_machine() -> Machine:
    """Where the driver runs."""
    return Machine(
        host=socket.gethostname(),
        system=platform.platform(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
