"""The consumers' measurement with real processes, as small as it can be, and its end by Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from triomq_benchmarks.versus_java.consume_memory import UNLIMITED, Limits, measure_stalled

COMMAND = [sys.executable, "-m", "triomq_benchmarks", "consume"]


def environment(tmp_path):
    return {**os.environ, "TMPDIR": str(tmp_path)}


def test_our_half(tmp_path):
    argv = [*COMMAND, "--ours", "--count", "3000", "--rounds", "1", "--warm-up", "0", "--json"]
    done = subprocess.run(argv, env=environment(tmp_path), capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["kind"] for row in rows] == ["push", "lite"]
    for row in rows:
        assert row["ours"]["per_s"] > 0
        assert row["ours"]["client_us"] > 0
    assert left(tmp_path) == []


def left(tmp_path):
    """What stayed in the temporary directory; compiled things are to stay."""
    return [path.name for path in tmp_path.iterdir() if not path.name.startswith("triomq-builds")]


def processes_below(folder: Path) -> list[str]:
    """Command lines of processes that stand in a folder: all that is started for a measurement does."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if Path(os.readlink(process / "cwd")).is_relative_to(folder):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks at processes by /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing_behind(tmp_path, number, code):
    argv = [*COMMAND, "--ours", "--count", "5000", "--rounds", "50"]
    # A shell in the background ignores SIGINT, and so would all that it starts.
    quiet = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            argv, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGINT, quiet)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "warm-up 1" in line:
                break
        assert len(processes_below(tmp_path)) == 3
        process.send_signal(number)
        process.stderr.read()
        assert process.wait(60) == code
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    deadline = time.monotonic() + 120
    while processes_below(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_below(tmp_path) == []
    assert left(tmp_path) == []


@pytest.mark.slow
def test_a_stalled_consumer_keeps_to_its_limits(tmp_path):
    limits = Limits("4 MiB x 8", {"size_bytes": 4 << 20, "count": UNLIMITED, "span": UNLIMITED})
    (taken,) = measure_stalled(60_000, 1024, tmp_path, lambda _text: None, cases=(limits,))
    assert taken.messages == 60_000
    # It is bytes that stop it, and all queues come near their limits.
    assert taken.limit_bytes == 32 << 20
    assert 0.9 * taken.limit_bytes < taken.held_bytes < 1.05 * taken.limit_bytes
    # What it counts is what it takes: neither less, nor so much more that half the limit lies idle.
    assert taken.stalled_bytes - taken.before_bytes < taken.held_bytes + (8 << 20)
    assert taken.stalled_bytes - taken.before_bytes > taken.held_bytes / 2
    assert taken.passed, f"{taken.peak_bytes >> 20} MiB, allowed {taken.allowed_bytes >> 20}"
