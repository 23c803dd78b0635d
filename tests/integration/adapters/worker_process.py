"""Worker processes of task queues, and the files in which their tasks record their work."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

WAIT_S = 120.0


def wait_until(condition: object, what: str, limit_s: float = WAIT_S) -> None:
    """Look every 20 ms until a function is true."""
    end = time.monotonic() + limit_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, f"{what} did not come in {limit_s:.0f} s"
        time.sleep(0.02)


def lines(path: Path) -> list[str]:
    """What tasks have appended to a file."""
    return path.read_text().splitlines() if path.exists() else []


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker with all its children at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def worker(module: str, arguments: Sequence[str], folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``python -m module`` in a process group of its own, and kill what is left of it."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(folder)},
        )
    try:
        yield process
    finally:
        kill_group(process)


def end(process: subprocess.Popen[bytes], log: Path) -> None:
    """Ask a worker to end, and see that it does so by itself."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(WAIT_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(log.read_text()) from None
