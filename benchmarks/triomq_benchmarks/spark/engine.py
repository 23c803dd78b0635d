"""The Spark engine: load generators as the tasks of one barrier stage, together or not at all, on threads or on a
cluster.

A session is opened, slots are counted and workers are looked at before anything else of a run starts.  While the run
lasts, generators report to the driver over links of their own (`collector.py`), and once more at the end as
the stage's result; what a link did not bring, the result does. A stage ends as a whole when one of its tasks dies: what
was reported until then is kept, and each worker's result says how it ended.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from triomq_benchmarks.audit.checks import Findings
from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.figures.ledger import folder_sink
from triomq_benchmarks.figures.run_result import WorkerResult
from triomq_benchmarks.generator.engine import STOPPED, Ended, EngineError, OnRow, RunPlan, check_workers
from triomq_benchmarks.spark.class_archive import ClassArchive
from triomq_benchmarks.spark.collector import Collector, Peer, open_collector
from triomq_benchmarks.spark.environment import (
    check_reachable,
    check_slots,
    check_spark,
    class_archive,
    end_java,
    java_end,
    open_session,
    too_few,
)
from triomq_benchmarks.spark.worker import OTHERS_FAILURE, Order, Report, decode_report, generate, probe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

STOP_LIMIT_S: Final = 10.0
"""Time for generators' last rows when a run is ended early."""

SLOTS_LIMIT_S: Final = 120.0
"""Time for executors of a cluster to register."""

QUIET_S: Final = 2.0
QUIET_MAX_S: Final = 20.0
"""Time without a further executor after which all of a cluster are assumed to have registered: within these limits, as
long as the first one took. All are started at once, and a machine that is slow with one is slow with the next."""

PATIENCE_S: Final = 30.0
"""Time without a further executor after which fewer than requested are assumed to be all."""

WAITING_S: Final = 5.0
"""Interval of reports about what is awaited."""

SETTINGS: Final = {
    "spark.dynamicAllocation.enabled": "false",
    "spark.speculation": "false",
    "spark.locality.wait": "0",
    "spark.barrier.sync.timeout": "120",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "2s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "3",
}


@asynccontextmanager
async def open_spark_engine(
    master: str,
    *,
    workers: int | None = None,
    most: int | None = None,
    settings: Mapping[str, str] | None = None,
    py_files: Sequence[str] = (),
    keep_classes: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> AsyncIterator[SparkEngine]:
    """An engine whose session is open and whose workers have answered, for as long as the block lasts.

    Args:
        master: `local[N]`, `spark://host:port`, or any other master of Spark.
        workers: number of load generators; default: one per slot.
        most: number of generators that have work, if `workers` is not given.
        settings: Spark settings, which override ours.
        py_files: archives that workers add to their Python path.
        keep_classes: whether the JVM writes Spark's classes for later sessions, if none has yet.
        say: takes lines for people.

    Raises:
        EngineError: Java, pyspark, the master, slots or the workers' environment is unusable; the message has the
            remedy.
    """
    await trio.to_thread.run_sync(_check, master, workers)
    found = await trio.to_thread.run_sync(_archive)
    archive = found if keep_classes or found.part is None else None
    wanted = {**SETTINGS, **(settings or {})}
    if py_files:
        wanted["spark.submit.pyFiles"] = ",".join(py_files)
    # At OFF: we report the end of a worker, in a line instead of pages.
    context = open_session(master, name="triomq bench", settings=wanted, level="OFF", short_lived=True, archive=archive)
    say(f"starting Spark at {master}")
    # Opening and closing a session are not interrupted: a cancellation takes effect afterwards.
    session = await trio.to_thread.run_sync(_enter, context.__enter__)
    engine: SparkEngine | None = None
    try:
        slots = await _wait_slots(session, master, workers, most, say)
        engine = SparkEngine(session, master, workers or min(slots, most or slots), say)
        await engine.look_at_workers()
        yield engine
    finally:
        in_order = engine is not None and not engine.cancelled and sys.exception() is None
        if in_order and archive is not None and archive.part is not None:
            say("Spark's JVM writes its classes for later runs")
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_leave, context, archive, in_order)


def _leave(context: AbstractContextManager[SparkSession], archive: ClassArchive | None, in_order: bool) -> None:
    """End the session and its JVM: after a run, none of its processes is left."""
    context.__exit__(None, None, None)
    end_java(archive, in_order=in_order)


def _enter(enter: Callable[[], SparkSession]) -> SparkSession:
    try:
        return enter()
    except Exception as error:
        # py4j and Java have no common error: whatever it is, there is no session.
        raise EngineError(f"Spark could not be started: {_job_failure(error)}") from error


def _archive() -> ClassArchive:
    try:
        return class_archive()
    except ToolUnavailableError as error:
        raise EngineError(str(error)) from error


def _check(master: str, workers: int | None) -> None:
    """Check everything possible before a JVM is started. Raises EngineError."""
    try:
        check_slots(master, workers)
        check_spark()
        check_reachable(master)
    except (ValueError, ToolUnavailableError) as error:
        raise EngineError(str(error)) from error


def _slots(session: SparkSession) -> int:
    """The number of tasks that can run at once now, against which a barrier stage is checked."""
    context = session.sparkContext._jsc.sc()  # noqa: SLF001 - the Python side does not offer it
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


class SlotsRule:
    """Decides when to stop waiting for executors. Pure.

    Args:
        begin: time at which the session was open.
        workers: number of slots needed; None: all there are.
        most: number of useful slots in that case.
        is_cluster: whether executors are still being started.
    """

    def __init__(self, begin: float, workers: int | None, most: int | None, *, is_cluster: bool) -> None:
        self._begin = self._since = begin
        self._enough = workers or most
        self._is_cluster = is_cluster
        self._wanted = workers
        self._slots = 0
        self._quiet_s = QUIET_S

    def is_enough(self, slots: int, now: float) -> bool:
        """Whether to start with this many slots."""
        if slots != self._slots:
            if not self._slots:
                self._quiet_s = min(max(QUIET_S, now - self._begin), QUIET_MAX_S)
            self._slots, self._since = slots, now
        if self._enough is not None and slots >= self._enough:
            return True
        if self._wanted is not None or not slots:
            return False
        return not self._is_cluster or now - self._since >= self._quiet_s

    def is_hopeless(self, now: float) -> bool:
        """Whether there are executors, but no longer any chance of as many as requested."""
        return self._wanted is not None and 0 < self._slots < self._wanted and now - self._since >= PATIENCE_S


async def _wait_slots(
    session: SparkSession, master: str, workers: int | None, most: int | None, say: Callable[[str], None]
) -> int:
    """Wait for executors. Raises EngineError if there are too few."""
    begin = said = trio.current_time()
    rule = SlotsRule(begin, workers, most, is_cluster=not master.startswith("local"))
    slots = 0
    with trio.move_on_after(SLOTS_LIMIT_S):
        while True:
            slots = await trio.to_thread.run_sync(_slots, session)
            now = trio.current_time()
            if rule.is_enough(slots, now):
                return slots
            if rule.is_hopeless(now):
                break
            if now >= said + WAITING_S:
                said = now
                say(f"waiting for executors of {master}: {slots} tasks can run at once, {workers or 'some'} are wanted")
            await trio.sleep(0.2)
    if not slots:
        raise EngineError(
            f"{master} gave no executor within {SLOTS_LIMIT_S:g} s: it has no worker with free cores and memory "
            f"(an executor wants 1 GiB: --spark-conf spark.executor.memory=512m asks for less)"
        )
    raise EngineError(too_few(master, slots, workers or 1))


class SparkEngine:
    """Runs plans in an open session; see `open_spark_engine`.

    Attributes:
        cancelled: whether one of its jobs has been cancelled, so that a caller waits for the end.
    """

    def __init__(self, session: SparkSession, master: str, workers: int, say: Callable[[str], None]) -> None:
        self.session = session
        self.workers = workers
        self.cancelled = False
        self._master = master
        self._say = say

    @property
    def label(self) -> str:
        """The label in results."""
        return f"spark {self._master}" + ("" if self._master.startswith("local") else f" {self.workers}")

    async def look_at_workers(self) -> None:
        """Let every slot import the code that it will run. Raises EngineError with the missing part and the remedy."""
        group = f"triomq-{uuid.uuid4().hex[:8]}"
        try:
            found = await self._job(group, "looking at workers", self._probe)
        except Exception as error:
            raise EngineError(_environment_failure(_job_failure(error))) from error
        own = importlib.metadata.version("triomq")
        for host, interpreter, version in sorted(set(found)):
            self._say(f"workers on {host}: {interpreter}, triomq {version}")
            if version != own:
                raise EngineError(_environment_failure(f"{host} has triomq {version}, and the driver has {own}"))

    def _probe(self) -> list[tuple[str, str, str]]:
        numbers = self.session.sparkContext.parallelize(range(self.workers), self.workers)
        found: list[tuple[str, str, str]] = numbers.barrier().mapPartitions(probe).collect()
        return found

    async def audit(self, folder: Path) -> Findings:
        """Audit a run directory in a Spark job; here, if Spark's JVM has ended during the run. Raises LedgerError."""
        from triomq_benchmarks.audit.ledger_tables import audit_folder
        from triomq_benchmarks.spark.audit import audit_folder_on_spark

        if await trio.to_thread.run_sync(java_end) is not None:
            return await trio.to_thread.run_sync(audit_folder, folder)
        return await self._job("triomq-audit", "audit", functools.partial(audit_folder_on_spark, self.session, folder))

    async def run(self, plan: RunPlan, on_row: OnRow, started: Callable[[float], None], ended: Ended) -> None:
        """Run the plan; see `Engine.run`."""
        check_workers(plan.workload, self.workers)
        group = f"triomq-{plan.run_number:08x}-{uuid.uuid4().hex[:8]}"
        keep = None if plan.ledger is None else folder_sink(plan.ledger)
        host = self.session.sparkContext.getConf().get("spark.driver.host") or "127.0.0.1"
        async with open_collector(host, self.workers, on_row, keep, started, self._say) as collector:
            order = Order(plan, self.workers, collector.address, collector.token)
            failure: str | None = None
            end: str | None = None
            stop = functools.partial(collector.stop_generators, STOP_LIMIT_S)
            try:
                reports = await self._job(group, "load", functools.partial(self._generate, order), stop)
            except Exception as error:  # noqa: BLE001 - py4j and Java have no common error, and all mean: the stage has failed
                end = await trio.to_thread.run_sync(java_end)
                failure, reports = end or _job_failure(error), []
            except trio.Cancelled:
                for peer in collector.peers:
                    ended(peer.result or _unfinished(peer, STOPPED))
                raise
            # The last data sent may still be in transit, or in a link's buffer.
            with trio.move_on_after(STOP_LIMIT_S):
                for peer in collector.peers:
                    if peer.stream is not None:
                        await peer.ended.wait()
            results = _results(collector, [decode_report(report) for report in reports], failure)
        if end is not None:
            # Also for those that have reported, just before they ended with it, that they were stopped.
            results = [attrs.evolve(result, failure=end) for result in results]
        if not collector.agreed:
            raise EngineError(_cause(results))
        for result in results:
            ended(result)

    def _generate(self, order: Order) -> list[bytes]:
        numbers = self.session.sparkContext.parallelize(range(order.workers), order.workers)
        reports: list[bytes] = numbers.barrier().mapPartitions(functools.partial(generate, order)).collect()
        return reports

    async def _job(
        self, group: str, what: str, action: Callable[[], T], before_cancel: Callable[[], Awaitable[None]] | None = None
    ) -> T:
        """Run a blocking Spark action in a thread; if cancelled, its job is cancelled too, after `before_cancel`."""
        context = self.session.sparkContext

        def act() -> T:
            context.setJobGroup(group, f"triomq bench: {what}", interruptOnCancel=True)
            return action()

        try:
            return await trio.to_thread.run_sync(act, abandon_on_cancel=True)
        except trio.Cancelled:
            self.cancelled = True
            with trio.CancelScope(shield=True):
                if before_cancel is not None:
                    await before_cancel()
                await trio.to_thread.run_sync(context.cancelJobGroup, group)
            raise


def _results(collector: Collector, reports: Sequence[Report], failure: str | None) -> list[WorkerResult]:
    """One result per worker: its task's, or that of its link, or else the one that the driver can give."""
    for report in reports:
        peer = collector.peers[report.result.worker]
        for sequence, row in enumerate(report.rows):
            collector.take_row(peer, sequence, row)
        peer.result = report.result
        if peer.unkept:
            # The generator sees at most that its link has broken.
            why = "; ".join(filter(None, (peer.unkept, report.result.failure)))
            peer.result = attrs.evolve(report.result, failure=why)
    gone = [peer for peer in collector.peers if peer.result is None and peer.gone_at is not None]
    first = min(gone, key=lambda peer: peer.gone_at or 0.0, default=None)
    return [peer.result or _died(peer, first, failure) for peer in collector.peers]


def _died(peer: Peer, first: Peer | None, failure: str | None) -> WorkerResult:
    why = failure or "its link ended"
    if peer is not first:
        why = f"ended with its stage: {f'worker {first.worker} ended before' if first else why}"
    return _unfinished(peer, why)


def _unfinished(peer: Peer, why: str) -> WorkerResult:
    """The driver's result for a generator that has not sent its own."""
    clock = peer.clock
    return WorkerResult(
        worker=peer.worker,
        host=peer.host,
        pid=peer.pid,
        sent=peer.sent,
        acked=peer.acked,
        errors=peer.errors,
        consumed=peer.consumed,
        clock_offset_ms=clock.ahead_ns / 1e6 if clock else None,
        clock_error_ms=clock.error_ns / 1e6 if clock else None,
        failure=why,
    )


def _cause(results: Sequence[WorkerResult]) -> str:
    """The reason why nothing started: the first failure that is not about another worker's."""
    failures = [result for result in results if result.failure]
    own = [result for result in failures if not str(result.failure).startswith(OTHERS_FAILURE)] or failures
    return f"worker {own[0].worker}: {own[0].failure}" if own else "the load generators agreed on no start"


_FAILURES: Final = (
    (r"Python worker exited unexpectedly", "its Python process died or was killed"),
    (r"ExecutorLostFailure.*?Reason: (?P<reason>[^\n]+)", "its executor was lost: {reason}"),
    (r"executor (?:lost|.* exited)[^\n]*", "its executor was lost"),
    (r"cancelled part of cancelled job group|[Jj]ob \d+ (?:was )?cancelled", "its Spark job was cancelled"),
    (r"SparkContext was shut down|Cannot call methods on a stopped SparkContext", "Spark was shut down"),
    (r"(?P<reason>(?:ModuleNotFoundError|ImportError|PySparkRuntimeError)[^\n]*)", "{reason}"),
    (r"(?P<reason>Cannot run program [^\n]*)", "{reason}"),
)


def _job_failure(error: Exception) -> str:
    """One line for a failed job's pages of Java output."""
    text = str(error)
    for pattern, words in _FAILURES:
        if found := re.search(pattern, text):
            return words.format(**found.groupdict())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    return "; ".join(lines[:3])[:500] or repr(error)


def _environment_failure(why: str) -> str:
    return (
        f"Spark's workers cannot run the load generator: {why}. They need this version of Python and triomq[bench]: set "
        f"PYSPARK_PYTHON to an interpreter that has both on every machine, or ship a packed environment "
        f"(docs/how-to/benchmark-on-spark.md)"
    )
