"""Our own name server, master and slave on real sockets, for the SDK's tests."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial

import pytest
import trio

import triomq
from triomq._cli.messages import run as run_command
from triomq_server.cluster import Cluster, open_cluster
from triomq_server.disk import RealDisk
from triomq_server.disk.access import DiskUsage


@pytest.fixture(autouse=True)
def half_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """How full the machine's own disk is decides no test: above 75 % brokers and doctor say so."""
    monkeypatch.setattr(RealDisk, "usage", lambda _disk, _path: DiskUsage(100 << 30, 50 << 30, 50 << 30))


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with open_cluster(settings={"mappedFileSizeCommitLog": "4194304"}) as running:
        yield running


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[triomq.Client]:
    async with triomq.open_client(cluster.name_servers) as opened:
        yield opened


@pytest.fixture
def run(cluster: Cluster) -> Callable[..., Awaitable[tuple[int, str, str]]]:
    """Run the command line in a process of its own: exit code, output, errors."""

    async def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        call = partial(
            trio.run_process,
            [sys.executable, "-m", "triomq", *arguments],
            stdin=stdin,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={**os.environ, "NAMESRV_ADDR": cluster.name_servers},
        )
        with trio.fail_after(120):
            done = await call()
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    return run


@pytest.fixture
def call(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[tuple[int, str, str]]]:
    """Run the command line in a thread of this process, in a tenth of the time: exit code, output, errors."""
    monkeypatch.setenv("NAMESRV_ADDR", cluster.name_servers)

    async def call(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), trio.fail_after(120):
            code = await trio.to_thread.run_sync(run_command, list(arguments))
        return code, out.getvalue(), err.getvalue()

    return call
