"""The engine Spark from the command line, interrupted by a real signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from process_tree import alive, command_line, descendants
from progress_lines import measured_s

pytestmark = pytest.mark.slow
LIMIT_S = 400


def commands(pids: set[int]) -> str:
    return "\n".join(command_line(pid) for pid in pids)


def test_ctrl_c_keeps_what_there_is_and_leaves_no_process(tmp_path: Path) -> None:
    argv = [
        sys.executable, "-m", "triomq", "bench", "run", "quick", "--engine", "spark", "--out", str(tmp_path / "run"),
        "--set", "duration=300 s", "--set", "warm_up=500 ms", "--set", "rate=200/s",
        "--keep-classes",
    ]  # fmt: skip
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stderr is not None
        measured = False
        # Every two seconds workers write what was acknowledged.
        while not (measured and (tmp_path / "run" / "acknowledged").exists()):
            line = run.stderr.readline()
            assert line, "it ended by itself"
            measured |= measured_s(line) >= 2
            assert "WARN" not in line, "the JVM's own lines are not for the terminal"
        family = descendants(run.pid)
        names = commands(family)
        assert "java" in names
        assert "pyspark.daemon" in names
        assert "triomq_server" in names
        run.send_signal(signal.SIGINT)
        out, errors = run.communicate(timeout=LIMIT_S)
        left = alive(family)
    assert run.returncode == 130, errors
    assert left == set(), commands(left)
    assert list(temporary.glob("triomq-builds-*/spark-classes/*")) == []
    assert "interrupted: what was measured until then is written as partial; no process is left" in errors
    assert "Traceback" not in errors
    assert "INCOMPLETE" in out
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (stored["partial"], stored["decision"]["status"]) == (True, "incomplete")
    workers = stored["workers"]
    assert [worker["failure"] for worker in workers] == ["it was stopped before its end"] * 2
    assert {worker["pid"] for worker in workers} <= family
    assert sum(worker["acked"] for worker in workers) >= 400
    assert stored["quantiles"]["intended_to_ack"]["count"] >= 300
    assert (tmp_path / "run" / "intervals.parquet").exists()
    assert (tmp_path / "run" / "report.html").exists()
    assert list((tmp_path / "run" / "acknowledged").iterdir())


def test_a_killed_jvm_is_named_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    argv = [
        sys.executable, "-m", "triomq", "bench", "run", "quick", "--engine", "spark", "--out", str(tmp_path / "run"),
        "--set", "duration=300 s", "--set", "warm_up=500 ms", "--set", "rate=200/s",
    ]  # fmt: skip
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        line = ""
        while measured_s(line) < 2:
            line = run.stderr.readline()
            assert line, "it ended by itself"
        family = descendants(run.pid)
        # A process that has just ended has no command line.
        (java,) = (pid for pid in family if Path(command_line(pid).split(" ")[0]).name == "java")
        os.kill(java, signal.SIGKILL)
        out, errors = run.communicate(timeout=LIMIT_S)
        left = alive(family)
    assert run.returncode == 1, errors
    assert left == set(), commands(left)
    assert "Traceback" not in errors
    assert "Spark's JVM ended by signal 9; what was measured is partial" in " ".join(out.split())
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    assert stored["partial"] is True
    assert stored["quantiles"]["intended_to_ack"]["count"] >= 100
