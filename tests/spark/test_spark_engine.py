"""Load generators as tasks of a barrier stage, in the suite's own session: whole runs, killed ones, cancelled ones."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from triomq_benchmarks.audit.ledger_tables import audit_folder, find_ledger
from triomq_benchmarks.clusters.access import Access
from triomq_benchmarks.figures.intervals import IntervalRow, histogram_of
from triomq_benchmarks.figures.run_result import WorkerResult
from triomq_benchmarks.generator.engine import EngineError, RunPlan
from triomq_benchmarks.run.targets import open_run_target, prepare_topics
from triomq_benchmarks.spark.engine import SparkEngine
from triomq_benchmarks.workload.files import load_workload
from triomq_benchmarks.workload.workload import Workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
LIMIT_S = 400  # a busy machine starts a Python worker in seconds, an idle one in tenths


@attrs.define
class Trial:
    """A run, and what the driver learned of it."""

    engine: SparkEngine
    plan: RunPlan
    rows: list[IntervalRow]
    starts: list[float]
    lines: list[str]

    async def run(self) -> list[WorkerResult]:
        results: list[WorkerResult] = []
        await self.engine.run(self.plan, self.rows.append, self.starts.append, results.append)
        return results

    def pids(self) -> dict[int, int]:
        """Worker number -> process, from the lines about clocks."""
        found = (re.match(r"clock of worker (\d+) \(.*, pid (\d+)\)", line) for line in self.lines)
        return {int(match[1]): int(match[2]) for match in found if match}

    async def wait_second(self, second: int) -> None:
        """Until every worker has reported this second."""
        while len({row.worker for row in self.rows if row.second >= second}) < self.engine.workers:  # noqa: ASYNC110
            await trio.sleep(0.05)


def small_workload(seconds: float) -> Workload:
    workload, _folder = load_workload("quick", [f"duration={seconds} s", "warm_up=500 ms", "rate=400/s", "body=256 B"])
    return attrs.evolve(workload, cluster=attrs.evolve(workload.cluster, slaves=0), thresholds=())


@asynccontextmanager
async def trial(spark: SparkSession, seconds: float, folder: Path) -> AsyncIterator[Trial]:
    workload = small_workload(seconds)
    lines: list[str] = []
    with trio.fail_after(LIMIT_S):
        async with open_run_target("ours", workload) as target:
            topics = await prepare_topics(target, workload, 7)
            plan = RunPlan(
                workload=workload, name_servers=target.name_servers, topics=topics, groups=("g",), run_number=7, seed=1,
                ledger=folder,
            )  # fmt: skip
            yield Trial(SparkEngine(spark, "local[2]", 2, lines.append), plan, [], [], lines)


async def test_two_generators_begin_together_and_all_is_accounted_for(spark: SparkSession, tmp_path: Path) -> None:
    async with trial(spark, 3, tmp_path) as one:
        await one.engine.look_at_workers()
        results = await one.run()
        assert any("triomq" in line for line in one.lines)
        assert [(result.worker, result.failure) for result in results] == [(0, None), (1, None)]
        assert len(one.starts) == 1
        assert {result.pid for result in results} == set(one.pids().values())
        assert len({result.pid for result in results} | {os.getpid()}) == 3
        sent = sum(result.sent for result in results)
        assert sent == sum(result.acked for result in results) == sum(row.sent for row in one.rows) == 1400
        assert histogram_of(one.rows, "intended_to_ack").get_total_count() == 1200
        # One machine has one clock; the estimates must say so within their own error.
        for result in results:
            assert result.clock_offset_ms is not None
            assert result.clock_error_ms is not None
            assert abs(result.clock_offset_ms) <= result.clock_error_ms < 1000
        findings = await one.engine.audit(tmp_path)
        assert (findings.clean, findings.acknowledged, findings.consumed) == (True, sent, sent)
        assert findings == audit_folder(tmp_path)


async def test_a_killed_worker_ends_the_run_and_what_was_reported_stays(spark: SparkSession, tmp_path: Path) -> None:
    async with trial(spark, 30, tmp_path) as one, trio.open_nursery() as nursery:

        async def kill() -> None:
            await one.wait_second(2)
            os.kill(one.pids()[0], signal.SIGKILL)

        nursery.start_soon(kill)
        results = await one.run()
        assert results[0].failure == "its Python process died or was killed"
        assert results[1].failure == "ended with its stage: worker 0 ended before"
        assert all(result.acked > 300 and result.host for result in results)
        assert sum(row.acked for row in one.rows) == sum(result.acked for result in results)
        ledger = find_ledger(tmp_path)
        assert ledger.rows > 300, "two seconds of the ledger were written before the end"
        assert "the ledger of worker 0 has no end: the worker died or was stopped" in ledger.notes
        # The session is whole, and the next run is as good as any.
        assert spark.range(3).count() == 3


async def test_a_cancelled_run_reports_all_it_has_and_leaves_no_job(spark: SparkSession, tmp_path: Path) -> None:
    async with trial(spark, 30, tmp_path) as one:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.run)
                await one.wait_second(3)  # a loaded machine is behind with what it has sent
                scope.cancel()
        assert sum(row.acked for row in one.rows) > 400
        while spark.sparkContext.statusTracker().getActiveJobsIds():  # noqa: ASYNC110 - Spark has no event
            await trio.sleep(0.05)
        findings = audit_folder(tmp_path)
        assert findings.acknowledged >= sum(row.acked for row in one.rows) > 0
        assert len(findings.notes) == 2, "no worker came to the end, and the ledger says so"


async def test_a_job_cancelled_from_outside_is_reported_as_such(spark: SparkSession, tmp_path: Path) -> None:
    async with trial(spark, 30, tmp_path) as one, trio.open_nursery() as nursery:

        async def cancel() -> None:
            await one.wait_second(3)  # a loaded machine is behind with what it has sent
            await trio.to_thread.run_sync(spark.sparkContext.cancelAllJobs)

        nursery.start_soon(cancel)
        results = await one.run()
        assert "its Spark job was cancelled" in {result.failure for result in results}
        assert all(result.failure for result in results)
        assert sum(result.acked for result in results) > 300


async def test_a_cluster_that_does_not_answer_is_an_error_with_its_cause(spark: SparkSession) -> None:
    plan = RunPlan(
        workload=small_workload(3), name_servers="127.0.0.1:1", topics=("T",), groups=(), run_number=1, seed=1
    )
    with trio.fail_after(LIMIT_S), pytest.raises(EngineError, match=r"worker \d: .*127\.0\.0\.1:1"):
        await SparkEngine(spark, "local[2]", 2, lambda _line: None).run(
            plan, lambda _row: None, lambda _at: None, lambda _result: None
        )


async def test_a_file_that_a_worker_lacks_is_an_error_with_its_cause(spark: SparkSession, tmp_path: Path) -> None:
    access = Access(tls={"ca": str(tmp_path / "ca.pem")})
    plan = RunPlan(
        workload=small_workload(3), name_servers="127.0.0.1:1", access=access, topics=("T",), groups=(), run_number=1, seed=1
    )  # fmt: skip
    says = r"worker \d: ca='.*ca\.pem' cannot .* at the same path on every worker"
    with trio.fail_after(LIMIT_S), pytest.raises(EngineError, match=says):
        await SparkEngine(spark, "local[2]", 2, lambda _line: None).run(
            plan, lambda _row: None, lambda _at: None, lambda _result: None
        )
