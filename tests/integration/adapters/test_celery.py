"""Celery with worker processes: results, children, ETA, inspection, the end of a worker, and workers that are killed."""

from __future__ import annotations

import importlib
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from kombu.pools import reset
from worker_process import WAIT_S, end, kill_group, lines, wait_until, worker

import triomq
from triomq_testing import RocketMQ

JOBS = """
import os, time
import celery
import triomq_adapters.kombu

app = celery.Celery("jobs", broker="rocketmq://ADDRESS/", backend="rpc://")
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    broker_transport_options={"send_timeout": 60},
)

@app.task
def add(a, b):
    return a + b

@app.task
def length(text):
    return len(text)

@app.task
def write(number, wait_s=0):
    time.sleep(wait_s)
    with open("done", "a") as file:
        file.write(f"{number}\\n")

@app.task
def send_another(number):
    write.delay(number)
    return os.getpid()
"""
WORKER = ["-A", "jobs", "worker", "-c", "2", "-l", "INFO", "--without-gossip", "--without-mingle"]
TASKS = int(os.environ.get("TRIOMQ_CELERY_TASKS", "300"))
KILLS = int(os.environ.get("TRIOMQ_CELERY_KILLS", "4"))

pytestmark = [
    # Celery and Kombu leave descriptors of their pools to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def jobs(rocketmq: RocketMQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "jobs.py").write_text(JOBS.replace("ADDRESS", rocketmq.namesrv_addr))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("jobs")
    del sys.modules["jobs"]
    yield module
    module.app.close()
    reset()


def test_tasks_of_a_prefork_worker(jobs: ModuleType, rocketmq: RocketMQ, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with worker("celery", WORKER, tmp_path, log) as process:
        assert [jobs.add.delay(number, 1).get(timeout=WAIT_S) for number in range(10)] == list(range(1, 11))
        # A child of the worker sends, by a connection of its own.
        assert jobs.send_another.delay(7).get(timeout=WAIT_S) != process.pid
        wait_until(lambda: lines(tmp_path / "done") == ["7"], "the task of a task")
        assert jobs.add.apply_async((5, 6), countdown=0.5).get(timeout=WAIT_S) == 11
        assert jobs.length.delay("x" * 4_190_000).get(timeout=WAIT_S) == 4_190_000
        with pytest.raises(triomq.errors.MessageIllegal, match="more than 4194304"):
            jobs.length.delay("x" * 5_000_000)
        answers: list[object] = []
        for method, found in (("ping", {"ok": "pong"}), ("active", [])):
            wait_until(
                lambda method=method: (
                    answers.append(getattr(jobs.app.control.inspect(timeout=1), method)()) or answers[-1]
                ),  # type: ignore[misc]
                f"an answer of the worker to {method}",
            )
            assert list(answers[-1].values()) == [found]  # type: ignore[attr-defined]
        jobs.write.delay("last", 1)
        end(process, log)  # after what is at work
        assert process.returncode == 0, log.read_text()
    jobs.app.backend.result_consumer.stop()  # else its client would stay until a garbage collection
    assert "last" in lines(tmp_path / "done")
    with triomq.blocking.open_client(rocketmq.namesrv_addr) as client:
        assert client.groups.progress("celery-workers").lag == 0
        assert client.groups.members("celery-workers") is None


def test_workers_that_are_killed_lose_no_task(jobs: ModuleType, tmp_path: Path) -> None:
    log, done = tmp_path / "log", tmp_path / "done"
    chance = random.Random(5)
    for number in range(TASKS):
        jobs.write.delay(number, 0.002)
    for kill in range(KILLS):
        # Somewhere among the tasks that are left to do.
        goal = len(set(lines(done))) + chance.randrange(1, max(2, TASKS // (KILLS + 2)))
        with worker("celery", WORKER, tmp_path, log) as process:
            wait_until(lambda goal=goal: len(set(lines(done))) >= goal, f"{goal} tasks before kill {kill}")  # type: ignore[misc]
            kill_group(process)
    with worker("celery", WORKER, tmp_path, log):
        wait_until(lambda: len(set(lines(done))) == TASKS, "all tasks", max(WAIT_S, TASKS / 50))
    counts = Counter(lines(done))
    assert set(counts) == {str(number) for number in range(TASKS)}
    repeated = sum(counts.values()) - TASKS
    print(f"{TASKS} tasks, {KILLS} kills: 0 lost, {repeated} done again")
