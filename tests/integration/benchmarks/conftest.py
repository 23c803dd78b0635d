"""A cluster of processes for workloads of seconds, and the command as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from triomq_benchmarks.run.targets import RunTarget, start_target
from triomq_benchmarks.workload.workload import ClusterShape


@pytest.fixture(scope="module")
def ours() -> Iterator[RunTarget]:
    """A name server and a master; each run creates its own topics, and a test that stops a node starts it again."""
    with start_target("ours", ClusterShape()) as target:
        yield target


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `bench` with arguments; both outputs are pipes, it runs in a folder of its own and is gone afterwards."""
    with ExitStack() as started:

        def start(*arguments: str) -> subprocess.Popen[str]:
            process = started.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "triomq_benchmarks", *arguments],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    cwd=tmp_path,
                    env={**os.environ, "COLUMNS": "200"},
                )
            )
            started.callback(process.kill)
            return process

        yield start
