"""A real Master with two Workers, started and used from the command line, and ended without leftovers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from triomq_benchmarks.spark.environment import class_archive

pytestmark = pytest.mark.slow
TRIOMQ = (sys.executable, "-m", "triomq")
LIMIT_S = 400


def processes_below(folder: str) -> list[int]:
    """Whose environment names the cluster's folder: all of it, executors included."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"TRIOMQ_SPARK_CLUSTER={Path(folder).name}".encode() in environment:
                found.append(int(entry.name))
    return found


@contextmanager
def spark_cluster(*options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    argv = [*TRIOMQ, "bench", "spark-cluster", "--json", *options]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as cluster:
        try:
            assert cluster.stdout is not None
            event = json.loads(cluster.stdout.readline())
            assert event["event"] == "ready"
            yield cluster, event
        finally:
            if cluster.poll() is None:
                cluster.terminate()


def keep_for_later(archive: Path) -> None:
    """Let the JVMs of the other tests use the classes."""
    found = class_archive()
    if found.part is not None:
        assert found.path.name == archive.name
        shutil.move(archive, found.part)
        assert found.take_written()


def test_a_run_on_a_standalone_cluster_and_its_end(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with spark_cluster("--workers", "2") as (cluster, event):
        assert (event["slots"], len(event["workers"])) == (2, 2)
        folder = str(event["directory"])
        assert len(processes_below(folder)) == 3
        run = [
            *TRIOMQ, "bench", "run", "quick", "--engine", "spark", "--master", str(event["master"]), "--out", str(out),
            "--set", "duration=4 s", "--set", "warm_up=1 s", "--set", "rate=200/s", "--spark-conf",
            "spark.executor.memory=512m", "--json", "--keep-classes",
            # Machines that run tests are busy: how late the generator is, is not what is tested here.
            "--set", "late_allowed=100 %",
        ]  # fmt: skip
        temporary = tmp_path / "a folder"
        temporary.mkdir()
        environment = {**os.environ, "TMPDIR": str(temporary)}
        done = subprocess.run(run, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        (archive,) = temporary.glob("triomq-builds-*/spark-classes/*")
        assert archive.suffix == ".jsa"
        assert archive.stat().st_size > 50_000_000
        assert json.loads(done.stdout)["passed"] is True
        assert (out / "report.html").exists()
        result = json.loads((out / "result.json").read_text())
        assert (result["engine"], result["partial"]) == (f"spark {event['master']} 2", False)
        assert [worker["failure"] for worker in result["workers"]] == [None, None]
        assert sum(worker["acked"] for worker in result["workers"]) == 1000
        assert result["audit"] == json.loads((out / "audit.json").read_text())
        assert result["audit"]["clean"]
        keep_for_later(archive)
        cluster.send_signal(signal.SIGINT)
        assert cluster.wait(60) == 0
        assert cluster.stdout is not None
        assert json.loads(cluster.stdout.readline()) == {"event": "stopped"}
        assert processes_below(folder) == []
        assert not Path(folder).exists()


def test_flights_are_counted_once_while_workers_and_executors_are_killed() -> None:
    # In a process of its own: this one's Spark session runs on this one's threads.
    program = Path(__file__).with_name("flights_kills.py")
    done = subprocess.run(
        [sys.executable, str(program), "--kills", "2"], capture_output=True, text=True, timeout=2 * LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "2 kills" in done.stdout
    assert "equal to what pandas computes" in done.stdout
