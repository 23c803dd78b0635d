"""SIGTERM ends a benchmark with all that it has started, whatever the shell does with SIGINT."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

LONG = """
import signal, time, trio
from triomq_benchmarks.commands.termination import interrupted_by_sigterm

signal.signal(signal.SIGINT, {sigint})
with interrupted_by_sigterm():
    try:
        print("begun", flush=True)
        {wait}
    finally:
        print("cleaned up", flush=True)
"""


@pytest.mark.parametrize("sigint", ["signal.default_int_handler", "signal.SIG_IGN"])
@pytest.mark.parametrize("wait", ["time.sleep(1000)", "trio.run(trio.sleep, 1000)"])
def test_the_block_is_left_in_order(sigint: str, wait: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LONG.format(sigint=sigint, wait=wait)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "cleaned up\n"
    assert process.returncode == 128 + signal.SIGTERM
