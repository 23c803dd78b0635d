"""Workloads on real clusters: figures that do not hide a stall, generators that die, runs that are interrupted."""

from __future__ import annotations

import errno
import gc
import json
import math
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio
from click.testing import CliRunner
from process_tree import alive, command_line, descendants
from progress_lines import measured_s

from triomq_benchmarks.__main__ import bench as bench_command
from triomq_benchmarks.figures import ledger
from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.figures.ledger import Sink
from triomq_benchmarks.figures.run_result import ENDED, RunResult, RunStatus
from triomq_benchmarks.generator.engine import Ended, EngineError, OnRow, RunPlan
from triomq_benchmarks.generator.local_engine import LocalEngine
from triomq_benchmarks.generator.process_engine import ProcessEngine
from triomq_benchmarks.run.one_run import audit_here, run_workload
from triomq_benchmarks.run.targets import RunTarget, TargetError, open_run_target
from triomq_benchmarks.workload.workload import ConsumeMode, Fault, Loop, SlowConsumer, Threshold, Workload

# Machines that run tests are busy: how late the generator is, is not what is tested here.
SHORT = Workload(
    name="short", rate_per_s=200, duration_s=2, warm_up_s=0.5, lateness_limit_ms=60_000, producers=2, consumers=2
)
LIMIT_S = 180.0
"""A busy machine takes many seconds to start a process; what is tested is not that."""

Bench = Callable[..., "subprocess.Popen[str]"]


async def run(target: RunTarget, workload: Workload, folder: Path | None = None) -> RunResult:
    with trio.fail_after(LIMIT_S):
        audit = None if folder is None else audit_here
        return await run_workload(workload, target, LocalEngine(), seed=1, folder=folder, audit=audit)


@pytest.mark.slow
async def test_a_pause_of_two_seconds_is_two_seconds_in_an_open_loop_and_hidden_in_a_closed_one(
    ours: RunTarget,
) -> None:
    paused = attrs.evolve(
        SHORT, duration_s=6, consume=ConsumeMode.NONE, producers=1, faults=(Fault.parse("pause master at 2 s for 2 s"),)
    )
    open_loop = (await run(ours, paused)).quantiles()["intended_to_ack"]
    closed = await run(ours, attrs.evolve(paused, loop=Loop.CLOSED, in_flight=1))
    closed_loop = closed.quantiles()["intended_to_ack"]
    assert open_loop.p999_ms > 1900
    # A third of the messages was meant to be sent meanwhile.
    assert open_loop.p90_ms > 500
    # Of the messages that waited for each other, one met the pause.
    assert closed_loop.p90_ms < 500
    assert closed_loop.max_ms > 1900
    assert [fault.node for fault in closed.faults] == ["broker-a"]
    assert 3.9 < closed.faults[0].until < LIMIT_S


async def test_everything_that_was_sent_is_consumed_and_audited(ours: RunTarget, tmp_path: Path) -> None:
    workload = attrs.evolve(SHORT, thresholds=(Threshold.parse("unsent == 0"), Threshold.parse("p50_ms < 0.0001")))
    of_a_killed_run = tmp_path / "acknowledged" / "worker-0001-000000.parquet"
    of_a_killed_run.parent.mkdir()
    of_a_killed_run.write_bytes(b"")
    result = await run(ours, workload, tmp_path)
    assert result.decision.status is RunStatus.THRESHOLD_FAILED
    assert "p50_ms < 0.0001 (measured" in result.decision.explanation
    assert sum(row.sent for row in result.rows) == 500
    assert result.workers[0].consumed == result.workers[0].acked == 500
    assert result.total("from_master") == pytest.approx(400, abs=100)
    assert {each.count for each in result.quantiles().values()} == {400}
    assert result.audit is not None
    assert result.audit["clean"] is True
    assert result.drained_s is not None
    assert not result.partial


async def test_a_ledger_that_cannot_be_written_does_not_lose_the_figures(
    ours: RunTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_folder: Path) -> Sink:
        def keep(_name: str, _content: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        return keep

    monkeypatch.setattr(ledger, "folder_sink", full)
    result = await run(ours, attrs.evolve(SHORT, duration_s=1), tmp_path)
    assert result.decision.status is RunStatus.INCOMPLETE
    assert "the ledger of worker 0 could not be written: [Errno 28]" in result.decision.explanation
    assert result.partial
    assert result.workers[0].acked == sum(row.acked for row in result.rows) == 300


@pytest.mark.parametrize("consume", [ConsumeMode.PULL, ConsumeMode.PUSH])
async def test_a_backlog_is_consumed_by_every_group(ours: RunTarget, consume: ConsumeMode) -> None:
    workload = attrs.evolve(SHORT, consume=consume, groups=2, consumers=1, backlog_bytes=200 * 1024, duration_s=1)
    result = await run(ours, workload)
    assert result.decision.passed, result.decision
    assert result.workers[0].acked == 500
    assert result.workers[0].consumed == 1000
    # The backlog is in the counts, not in the latencies.
    assert result.quantiles()["intended_to_consumed"].count == 400


async def test_a_collection_does_not_make_the_first_messages_late(ours: RunTarget) -> None:
    # In a process of many objects it may take longer than from the agreed start to the first message.
    frozen: list[int] = []

    class Watched(LocalEngine):
        async def run(self, plan: RunPlan, on_row: OnRow, started: Callable[[float], None], ended: Ended) -> None:
            def agreed(start: float) -> None:
                frozen.append(gc.get_freeze_count())
                started(start)

            await LocalEngine().run(plan, on_row, agreed, ended)

    before = gc.get_freeze_count()
    with trio.fail_after(LIMIT_S):
        await run_workload(attrs.evolve(SHORT, duration_s=1), ours, Watched(), seed=1)
    assert frozen[0] > before


def share_processes() -> list[int]:
    """The generators of this process."""
    return [pid for pid in descendants(os.getpid()) if "worker_process" in command_line(pid)]


async def test_a_worker_that_is_killed_leaves_partial_results(ours: RunTarget) -> None:
    killed: list[int] = []
    reported: set[int] = set()
    workload = attrs.evolve(SHORT, duration_s=5)  # long enough that both have reported long before it ends

    def on_row(row: IntervalRow) -> None:
        if row.second >= 0 and row.sent:
            reported.add(row.worker)
        if len(reported) == 2 and not killed:
            killed.append(max(share_processes()))
            os.kill(killed[0], signal.SIGKILL)

    with trio.fail_after(LIMIT_S):
        result = await run_workload(workload, ours, ProcessEngine(2), seed=1, on_row=on_row)
    dead = [worker for worker in result.workers if worker.failure]
    assert [worker.pid for worker in dead] == killed
    assert dead[0].failure == "was killed by SIGKILL during the run"
    assert f"worker {dead[0].worker}: was killed by SIGKILL during the run" in result.decision.explanation
    # What it had reported counts, though it could not add it up itself any more.
    assert dead[0].sent == sum(row.sent for row in result.rows if row.worker == dead[0].worker) > 0
    assert result.partial
    assert result.decision.status is RunStatus.INCOMPLETE
    # The other one went on to its end.
    alive = next(worker for worker in result.workers if not worker.failure)
    assert alive.sent == 550
    assert sum(row.sent for row in result.rows if row.worker == alive.worker) == 550


async def test_a_broker_that_is_killed_is_named(tmp_path: Path) -> None:
    """From outside, and by a fault of the workload; either way it is not the generator that was too slow."""
    workload = attrs.evolve(SHORT, duration_s=3, drain_s=0, send_timeout_s=1, consume=ConsumeMode.NONE)
    with trio.fail_after(LIMIT_S):
        async with open_run_target("ours", workload) as target:
            killed: list[str] = []

            def on_row(row: IntervalRow) -> None:
                if row.second >= 0 and row.acked and not killed:
                    killed.extend(node.name for node in target.nodes.values() if node.role == "master")
                    os.kill(target.nodes[killed[0]].pid, signal.SIGKILL)

            outside = await run_workload(workload, target, LocalEngine(), seed=1, on_row=on_row)
        by_fault = attrs.evolve(workload, faults=(Fault.parse("kill master at 1 s"),), errors_allowed=0.00001)
        async with open_run_target("ours", by_fault) as target:
            inside = await run_workload(by_fault, target, LocalEngine(), seed=1)
    assert outside.decision.status is RunStatus.NODE_ENDED
    assert outside.decision.explanation.startswith("the process of broker-a ended at ")
    assert [(fault.what, fault.node) for fault in outside.faults] == [(ENDED, "broker-a")]
    assert inside.decision.status is RunStatus.ERRORS
    assert "sends failed (allowed: 0.001%), after kill master (broker-a) at " in inside.decision.explanation
    assert [fault.what for fault in inside.faults] == ["kill master"]
    assert any("nothing was acknowledged from" in note for note in inside.decision.notes)


@pytest.mark.slow
async def test_consumers_get_what_is_left_after_a_restart_late_in_the_run(ours: RunTarget, tmp_path: Path) -> None:
    # The broker is away when sending is to end. Sends wait for it; some of what it holds may have been sent twice.
    workload = attrs.evolve(
        SHORT,
        duration_s=4,
        queues_per_topic=8,
        drain_s=120,
        errors_allowed=1,
        repeats_allowed=1,
        slow_consumer=SlowConsumer(rate_per_s=20, until_s=2.5),
        faults=(Fault.parse("restart master at 3 s for 2 s"),),
    )
    result = await run(ours, workload, tmp_path)
    assert [fault.what for fault in result.faults] == ["restart master"]
    assert result.audit is not None
    assert result.audit["counts"]["lost"] == 0
    assert result.decision.passed, result.decision


async def test_a_generator_that_is_really_late_is_distinguished_from_a_slow_broker(ours: RunTarget) -> None:
    workload = attrs.evolve(SHORT, duration_s=4, lateness_limit_ms=700)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:

            async def hold(pid: int) -> None:
                os.kill(pid, signal.SIGSTOP)
                await trio.sleep(1.5)
                os.kill(pid, signal.SIGCONT)

            def on_row(row: IntervalRow) -> None:
                if row.second >= 0 and not held:
                    held.append(min(share_processes()))
                    nursery.start_soon(hold, held[0])

            held: list[int] = []
            result = await run_workload(workload, ours, ProcessEngine(2), seed=1, on_row=on_row)
    assert result.decision.status is RunStatus.GENERATOR_LATE
    assert "the load generator was too slow, not the broker" in result.decision.explanation
    # All that it meant to send it has sent, and nothing else is wrong.
    assert sum(row.sent for row in result.rows) == 900
    assert not result.partial
    assert result.total("errors") == 0


async def test_mistakes_are_found_before_anything_starts(ours: RunTarget) -> None:
    with pytest.raises(EngineError, match="3 workers for 2 producers and 2 consumers"):
        await run_workload(SHORT, ours, ProcessEngine(3), seed=1)
    missing = attrs.evolve(SHORT, topic_names=("never-created",))
    with pytest.raises(TargetError, match=r"topic never-created is missing: .*--create"):
        await run(ours, missing)
    made = await run(ours, attrs.evolve(missing, create_topics=True, duration_s=3, warm_up_s=0))
    (worker,) = made.workers
    assert worker.consumed == worker.acked == 600
    # It is there now, with what the first run left in it: that is none of the second run's.
    again = await run(ours, attrs.evolve(missing, duration_s=3, warm_up_s=0))
    (worker,) = again.workers
    assert worker.consumed == worker.acked == 600


async def test_an_existing_cluster_keeps_no_topic_and_no_group_of_the_benchmark(ours: RunTarget) -> None:
    async with open_run_target(ours.name_servers, SHORT) as existing:
        assert {node.role for node in existing.nodes.values()} == {"master"}
        result = await run(existing, attrs.evolve(SHORT, duration_s=1, warm_up_s=0))
    assert result.decision.passed, result.decision
    assert result.target == ours.name_servers
    import triomq

    async with triomq.open_client(ours.name_servers) as client:
        assert not [topic for topic in await client.admin.topics() if result.run_id in topic]
        assert not [group for group in await client.groups.names() if result.run_id in group]


@pytest.mark.parametrize("seen", [1, 40])
async def test_topics_of_a_run_that_ends_before_it_starts_are_removed(ours: RunTarget, seen: int) -> None:
    import triomq

    async def of_runs(client: triomq.Client) -> list[str]:
        return [topic for topic in await client.admin.topics() if topic.startswith("bench-")]

    async with triomq.open_client(ours.name_servers) as client, open_run_target(ours.name_servers, SHORT) as existing:
        before = await of_runs(client)
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, existing, attrs.evolve(SHORT, topics=40))
                while len(await of_runs(client)) < len(before) + seen:  # noqa: ASYNC110 -- brokers send no event
                    await trio.sleep(0.001)
                nursery.cancel_scope.cancel()
        assert await of_runs(client) == before


@pytest.mark.parametrize("consume", [ConsumeMode.PULL, ConsumeMode.PUSH])
async def test_a_topic_that_cannot_be_read_ends_a_run_before_it_starts(ours: RunTarget, consume: ConsumeMode) -> None:
    import triomq

    async with triomq.open_client(ours.name_servers) as client:
        await client.admin.create_topic("write-only", queues=1, perm=2)
    with pytest.raises(triomq.RouteError, match="no queue of topic write-only can be read"):
        await run(ours, attrs.evolve(SHORT, topic_names=("write-only",), consume=consume))


async def test_an_address_where_no_server_is() -> None:
    with pytest.raises(TargetError, match=r"no name server answers at 127.0.0.1:1: .*triomq cluster"):
        async with open_run_target("127.0.0.1:1", SHORT):
            pass
    with pytest.raises(TargetError, match="must be ours, java,"):
        async with open_run_target("nonsense", SHORT):
            pass


FILE = """
rate = "100/s"
producers = 2
consumers = 2
lateness_limit = "60 s"
warm_up = "500 ms"
thresholds = ["errors == 0"]
"""


def test_the_command_writes_results_and_prints_where(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(FILE + 'duration = "1 s"')
    process = bench("run", "mine.toml", "--engine", "processes", "--out", "results", "--json")
    out, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    assert errors == ""
    found = json.loads(out)
    assert found["passed"] is True
    assert found["runs"][0]["engine"] == "processes 2"
    assert found["runs"][0]["quantiles"]["intended_to_ack"]["count"] == 100
    stored = json.loads((tmp_path / "results" / "result.json").read_text())
    assert stored["decision"]["status"] == "passed"
    assert (tmp_path / "results" / "intervals.parquet").stat().st_size > 0
    assert json.loads((tmp_path / "results" / "audit.json").read_text())["clean"] is True


@pytest.mark.parametrize("engine", [pytest.param("local", marks=pytest.mark.slow), "processes"])
def test_ctrl_c_keeps_what_there_is_and_leaves_no_process(bench: Bench, tmp_path: Path, engine: str) -> None:
    (tmp_path / "mine.toml").write_text(FILE + 'duration = "60 s"')
    process = bench("run", "mine.toml", "--engine", engine, "--out", "results")
    assert process.stderr is not None
    while measured_s(process.stderr.readline()) < 3:
        assert process.poll() is None
    family = descendants(process.pid)
    assert len(family) >= 3
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, errors
    assert "interrupted: what was measured until then is written as partial" in errors
    assert "INCOMPLETE" in out
    assert alive(family) == set()
    stored = json.loads((tmp_path / "results" / "result.json").read_text())
    assert stored["partial"] is True
    assert stored["quantiles"]["intended_to_ack"]["count"] >= 75
    assert stored["decision"]["status"] == "incomplete"
    workers = stored["workers"]
    assert [worker["failure"] for worker in workers] == ["it was stopped before its end"] * (
        1 + (engine == "processes")
    )
    assert {worker["pid"] for worker in workers} <= family | {process.pid}
    # Three seconds and the warm-up; a busy machine is behind with the last ones.
    assert all(worker["acked"] >= 75 / len(workers) for worker in workers)


async def test_a_second_interrupt_keeps_what_the_first_one_does(ours: RunTarget) -> None:
    stop, result = trio.CancelScope(), None
    with trio.fail_after(LIMIT_S), trio.CancelScope() as everything:

        def interrupt_twice(row: IntervalRow) -> None:
            if row.second >= 0:
                stop.cancel()
                everything.cancel()

        workload = attrs.evolve(SHORT, duration_s=60)
        result = await run_workload(workload, ours, LocalEngine(), seed=1, on_row=interrupt_twice, stop=stop)
    assert result is not None
    assert result.partial
    assert sum(row.acked for row in result.rows) > 0


@pytest.mark.slow
def test_ctrl_c_ends_a_comparison_of_engines(bench: Bench) -> None:
    process = bench("engines", "--side", "processes", "--set", "duration=60 s")
    assert process.stderr is not None
    while measured_s(process.stderr.readline()) < 3:
        assert process.poll() is None
    family = descendants(process.pid)
    assert len(family) >= 4
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (130, ""), errors
    assert errors.endswith("interrupted: no process is left\n")
    assert alive(family) == set()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["quik"], 2, "did you mean quick?"),
        (["quick", "--set", "rat=5"], 2, "unknown key rat: did you mean rate?"),
        (["throughput", "--find-max-rate"], 2, "needs an open loop"),
        (["quick", "--set", "faults=kill slave at 1 s"], 2, "there is no slave"),
        (["failover", "--target", "127.0.0.1:1"], 2, "they are done only to a cluster that is started"),
        (["quick", "--target", "127.0.0.1:1"], 1, "no name server answers at 127.0.0.1:1"),
        (["quick", "--workers", "9"], 2, "for several take --engine processes"),
    ],
)
def test_what_cannot_be_done_is_reported(
    arguments: list[str], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(bench_command, ["run", *arguments])
    assert result.exit_code == code, result.output
    assert says in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_highest_rate_is_looked_for(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(FILE.replace("100/s", "8/s") + 'duration = "1 s"\nsend_timeout = "100 ms"')
    process = bench("run", "mine.toml", "--find-max-rate", "--json", "--max-p99", "0.001")
    out, errors = process.communicate(timeout=LIMIT_S)
    answer = json.loads(out)
    assert answer["passed"] is False
    found = answer["max_rate"]["ours"]
    # Nothing is answered within a microsecond: 8, 4, 2 and 1 a second all fail.
    assert process.returncode == 1, errors
    assert found["rate_per_s"] == 0
    assert [trial["rate_per_s"] for trial in found["trials"]] == [8, 4, 2, 1]
    assert all("is above 0.001 ms" in trial["reason"] for trial in found["trials"])


@pytest.mark.slow
def test_a_real_limit_is_found_in_bounded_time(bench: Bench, tmp_path: Path) -> None:
    # One producer that waits for each answer cannot do more than one message per round trip, whatever the machine. And it
    # waits for the disk: without that, the machine is busy for the whole search.
    file = FILE.replace("100/s", "300/s").replace("producers = 2", 'producers = 1\nsend = "sync"\ndrain = "1 s"')
    flush = '[cluster]\nsettings = { flushDiskType = "SYNC_FLUSH" }\n'
    (tmp_path / "mine.toml").write_text(f'{file}duration = "1 s"\n{flush}')
    process = bench("run", "mine.toml", "--find-max-rate", "--json", "--max-p99", "200", "--out", "results")
    out, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors + out
    found = json.loads(out)["max_rate"]["ours"]
    trials = found["trials"]
    assert len(trials) <= 16
    sustained = [trial["rate_per_s"] for trial in trials if trial["answer"] == "sustained"]
    failed = [trial["rate_per_s"] for trial in trials if trial["answer"] == "not sustained"]
    assert found["rate_per_s"] == max(sustained) > 0
    assert found["limited_by"] == "broker"
    # The lowest that failed is within the search's precision, and nothing below it did.
    assert max(sustained) < min(failed) <= max(sustained) / 0.95 + 0.1
    # The measured part is one second: whole messages, of which the last one may be on its way.
    assert all(
        trial["acked_per_s"] >= min(0.99 * trial["rate_per_s"], math.floor(trial["rate_per_s"]) - 1)
        for trial in trials
        if trial["answer"] == "sustained"
    )
    assert json.loads((tmp_path / "results" / "max_rate.json").read_text())["searches"]["ours"] == found
