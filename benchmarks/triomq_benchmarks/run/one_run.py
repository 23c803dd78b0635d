"""One workload on one target: topics, engine, faults, monitor, audit; a run that is ended early gives a partial
result."""

from __future__ import annotations

import datetime as dt
import platform
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import attrs
import trio

from triomq_benchmarks.audit.checks import Findings
from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.figures.ledger import LedgerError, remove_ledger
from triomq_benchmarks.figures.machine import commit_of, surroundings, this_machine
from triomq_benchmarks.figures.resources import ResourceRow
from triomq_benchmarks.figures.run_result import ENDED, STOPPED, FaultInstant, RunResult, WorkerResult
from triomq_benchmarks.generator.engine import Engine, OnRow, RunPlan
from triomq_benchmarks.run.decisions.pass_fail import Figures, decide, unexplained_ends, unexplained_stops
from triomq_benchmarks.run.faults import check_faults, do_faults
from triomq_benchmarks.run.monitor import broker_facts, watch, watch_processes
from triomq_benchmarks.run.resource_watch import watch_resources
from triomq_benchmarks.run.targets import RunTarget, prepare_topics, remove_groups, remove_topics
from triomq_benchmarks.workload.workload import ConsumeMode, SendMode, Workload

LedgerAudit = Callable[[Path], Awaitable[Findings]]
"""Audits the ledger below a run directory: in this process, or as a Spark job."""

PACKAGES = ("triomq", "trio", "msgspec", "hdrhistogram", "isal", "pyarrow", "pyspark")


@attrs.define
class _Seen:
    """All reports so far; they outlive the tasks that make them."""

    started_at_s: float = 0.0
    ended_s: float | None = None
    rows: list[IntervalRow] = attrs.field(factory=list)
    workers: list[WorkerResult] = attrs.field(factory=list)
    faults: list[FaultInstant] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)
    resources: list[ResourceRow] = attrs.field(factory=list)
    failed_faults: list[str] = attrs.field(factory=list)


async def run_workload(
    workload: Workload,
    target: RunTarget,
    engine: Engine,
    *,
    seed: int,
    payload: bytes = b"",
    folder: Path | None = None,
    audit: LedgerAudit | None = None,
    on_row: OnRow = lambda _row: None,
    stop: trio.CancelScope | None = None,
) -> RunResult:
    """Run a workload, and decide whether it passed.

    Args:
        workload: the workload.
        target: the target.
        engine: runs the load generators.
        seed: seed of all random choices.
        payload: the payload file's content.
        folder: folder for the ledger, which replaces one of an earlier run; needed for an audit.
        audit: audits the ledger; None: no ledger is written.
        on_row: takes every increment, for progress.
        stop: is cancelled to end the run early; a partial result is then returned.

    Raises:
        TargetError: topics could not be prepared.
        LedgerError: the ledger of an earlier run in this folder cannot be removed.
        WorkloadError: a fault names a node that does not exist.
        EngineError: the generators could not be started.
        triomq.MQError: the local generator could not be started.
    """
    check_faults(workload.faults, target)
    run_number = random.Random(f"{seed}/{time.time_ns()}").getrandbits(32)
    topics = await prepare_topics(target, workload, run_number)
    ledger = folder if audit is not None and auditable(workload) else None
    plan = RunPlan(
        workload=workload,
        name_servers=target.name_servers,
        access=target.access,
        topics=topics,
        groups=tuple(f"bench-{run_number:08x}-group-{number}" for number in range(workload.groups)),
        run_number=run_number,
        seed=seed,
        payload=payload,
        ledger=ledger,
    )
    seen = _Seen(notes=list(target.notes))
    try:
        if ledger is not None:
            await trio.to_thread.run_sync(remove_ledger, ledger)
        details = await _details(target)
        before = surroundings()
        # With `stop` nothing else ends the run: a second interrupt while generators end would lose what they report.
        with trio.CancelScope(shield=stop is not None), stop or trio.CancelScope() as scope:
            await _run(plan, target, engine, on_row, seen)
    finally:
        if not target.is_temporary:
            with trio.CancelScope(shield=True):
                seen.notes += await remove_groups(target, plan.groups)
                if not workload.topic_names:
                    seen.notes += await remove_topics(target, topics)
    after = surroundings()
    interrupted = scope.cancelled_caught
    findings: Findings | None = None
    if audit is not None and ledger is not None and not interrupted:
        findings = await _audit(audit, ledger)
    figures = Figures(workload, seen.rows, seen.workers, interrupted=interrupted, ended_s=seen.ended_s)
    own = [each for each in seen.faults if each.what not in (ENDED, STOPPED)]
    unexplained = unexplained_ends(seen.faults) + unexplained_stops(seen.faults)
    faults = sorted(own + unexplained, key=lambda fault: fault.second)
    thresholds, decision = decide(
        workload,
        figures,
        seen.workers,
        interrupted=interrupted,
        findings=findings,
        faults=faults,
        failed_faults=seen.failed_faults,
        notes=seen.notes,
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
        faults=tuple(faults),
        thresholds=thresholds,
        decision=decision,
        audit=None if findings is None else findings.as_dict(),
        drained_s=figures.drained_s,
        ended_s=seen.ended_s if interrupted else None,
        resources=tuple(seen.resources),
        surroundings={"before": before, "after": after},
    )


def auditable(workload: Workload) -> bool:
    """Whether both ends of every message are observed."""
    return workload.consume is not ConsumeMode.NONE and workload.send_mode is not SendMode.ONEWAY


async def _run(plan: RunPlan, target: RunTarget, engine: Engine, on_row: OnRow, seen: _Seen) -> None:
    def take(row: IntervalRow) -> None:
        seen.rows.append(row)
        on_row(row)

    failure: Exception | None = None
    async with trio.open_nursery() as nursery:

        def started(wall_s: float) -> None:
            seen.started_at_s = wall_s
            origin = trio.current_time() + wall_s - time.time_ns() / 1e9
            nursery.start_soon(_note_the_end, origin, seen)
            nursery.start_soon(watch, target, origin, take)
            nursery.start_soon(watch_resources, target, origin, seen.resources.append)
            nursery.start_soon(watch_processes, target, origin, seen.faults.append)
            nursery.start_soon(
                do_faults, plan.workload.faults, target, origin, seen.faults.append, seen.failed_faults.append
            )

        try:
            await engine.run(plan, take, started, seen.workers.append)
        except Exception as error:  # noqa: BLE001 -- raised below, plain, once the others have ended
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _note_the_end(origin: float, seen: _Seen) -> None:
    try:
        await trio.sleep_forever()
    finally:
        seen.ended_s = trio.current_time() - origin


async def audit_here(folder: Path) -> Findings:
    """Audit the ledger below a run directory in a thread of this process. Raises LedgerError."""
    # Arrow is needed only by a run with a ledger.
    from triomq_benchmarks.audit.ledger_tables import audit_folder

    return await trio.to_thread.run_sync(audit_folder, folder)


async def _audit(audit: LedgerAudit, folder: Path) -> Findings:
    """The findings, which are also written to `audit.json`; a ledger that cannot be read is a finding."""
    from triomq_benchmarks.audit.ledger_tables import write_findings

    try:
        findings = await audit(folder)
    except LedgerError as error:
        findings = Findings(notes=(str(error),))
    # If it cannot be written, neither can the result, which contains it too; that is reported then.
    with suppress(OSError):
        write_findings(findings, folder)
    return findings


async def _details(target: RunTarget) -> Mapping[str, object]:
    """The measured nodes, with the versions that they report."""
    brokers: dict[str, object] = {}
    for node in target.nodes.values():
        about: dict[str, object] = {"role": node.role, "address": node.address}
        if node.role != "namesrv":
            about["version"] = (await broker_facts(target, node.address)).get("brokerVersionDesc")
        brokers[node.name] = about
    about_links = {"tls": target.access.tls is not None, "signed": target.access.is_signed}
    return {"name_servers": target.name_servers, **about_links, "nodes": brokers}


def versions() -> dict[str, str]:
    """The versions of the software on our side."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if (commit := commit_of(Path(__file__).parent)) is not None:
        found["commit"] = commit
    return found
