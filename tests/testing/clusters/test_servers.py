"""Clusters in a thread, one after another, and one for all workers of a run: nothing of them is left behind."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import triomq
from triomq_server.cluster import Cluster, open_cluster
from triomq_testing import Servers, directories
from triomq_testing.clusters.sharing import SharedCluster

pytest_plugins = ["pytester"]


def left(servers: Servers | None = None) -> tuple[set[threading.Thread], int, int]:
    """The threads, but for workers that trio keeps for a while, and the numbers of open files and tasks."""

    async def count_tasks() -> int:
        return trio.lowlevel.current_statistics().tasks_living

    tasks = servers._loop.call(count_tasks) if servers else 0
    threads = {thread for thread in threading.enumerate() if not thread.name.startswith("Trio thread")}
    return threads, len(os.listdir("/proc/self/fd")), tasks


def test_clusters_one_after_another_leave_nothing_behind(
    figures: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    at_first = left()[0]
    with Servers() as servers:
        with servers.open(topics=["orders"]) as rocketmq:
            rocketmq.send("orders", b"one")
        before = left(servers)
        began = time.monotonic()
        for _ in range(20):
            with servers.open() as rocketmq:
                rocketmq.send("orders", b"one")
                assert len(os.listdir(tmp_path)) == 1
        figures(f"a cluster from start to end, with a message: {(time.monotonic() - began) / 20 * 1000:.0f} ms")
        assert left(servers) == before
        assert os.listdir(tmp_path) == []
    assert left()[0] == at_first


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="forking a process with threads is a warning since Python 3.12")
def test_a_forked_child_is_refused_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    parent = os.getpid()
    code = 1
    try:
        with Servers() as servers, servers.open() as rocketmq:
            child = os.fork()
            if not child:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(20)
                with pytest.raises(triomq.errors.InvalidCall, match="was forked"):
                    rocketmq.send("orders", b"one")
                code = 0
                sys.exit()  # and leave all blocks
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            rocketmq.send("orders", b"two")
            assert [message.body for message in rocketmq.messages("orders")] == [b"two"]
            assert len(list(tmp_path.glob("*/namesrv-0"))) == 1
    finally:
        if os.getpid() != parent:
            os._exit(code)


def test_a_cluster_that_cannot_start_names_the_cause() -> None:
    with Servers() as servers:
        with pytest.raises(OSError, match="/proc/none"), servers.open(settings={"storePathRootDir": "/proc/none"}):
            pass
        with servers.open() as rocketmq:
            rocketmq.send("orders", b"one")


def test_a_directory_that_is_removed_before_it_is_locked_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, others = fcntl.flock, [directories.remove_left_behind]

    def late(descriptor: int, how: int) -> None:
        while others:
            others.pop()()
        lock(descriptor, how)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(fcntl, "flock", late)
    with directories.temporary_directory() as home:
        assert [path.name for path in home.iterdir()] == ["in-use"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"topics": "orders"}, "not a list of names"),
        ({"settings": {"autoCreateTopicEnable": False}}, "autoCreateTopicEnable is False, not text.*'false'"),
    ],
)
def test_arguments_of_other_types_are_refused(options: dict[str, Any], what: str) -> None:
    with Servers() as servers, pytest.raises(TypeError, match=what), servers.open(**options):
        pass


def test_settings_that_brokers_ignore_are_warnings() -> None:
    with (
        Servers() as servers,
        pytest.warns(UserWarning, match="fileReservedTim"),
        servers.open(settings={"fileReservedTim": "48"}),
    ):
        pass


def test_a_cluster_that_breaks_does_not_break_others(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def open_breaking(**options: Any) -> AsyncIterator[Cluster]:
        async with open_cluster(**options) as cluster:
            yield cluster
        raise RuntimeError("the broker broke")

    with Servers() as servers, servers.open() as other:
        with monkeypatch.context() as patch:
            patch.setattr("triomq_testing.clusters.servers.open_cluster", open_breaking)
            with pytest.raises(RuntimeError, match="the broker broke"), servers.open():
                pass
        other.send("orders", b"one")


USERS_TESTS = """
import os, pathlib

def write(rocketmq, worker):
    topic = rocketmq.topic("orders")
    rocketmq.send(topic, worker.encode())
    assert [message.body for message in rocketmq.messages(topic)] == [worker.encode()]
    return topic

import pytest

@pytest.mark.parametrize("number", range(4))
def test_own(rocketmq, number):
    assert write(rocketmq, os.environ["PYTEST_XDIST_WORKER"]) == "orders"

@pytest.mark.parametrize("number", range(4))
def test_shared(rocketmq_cluster, number):
    assert write(rocketmq_cluster, os.environ["PYTEST_XDIST_WORKER"]).startswith(os.environ["PYTEST_XDIST_WORKER"])
    before = rocketmq_cluster.clock.now()
    with rocketmq_cluster.clock.fast_forward():
        rocketmq_cluster.clock.advance(hours=1)
    assert (rocketmq_cluster.clock.now() - before).total_seconds() >= 3600
    with pytest.raises(ValueError, match="forward only"):
        rocketmq_cluster.clock.advance(hours=-1)
    with pytest.raises(RuntimeError, match="without faults"):
        rocketmq_cluster.faults.kill()
    pathlib.Path(f"address-{number}").write_text(rocketmq_cluster.namesrv_addr)
"""
# No other plug-ins: three processes would import them.
WORKERS = ["-p", "xdist", "-p", "triomq_testing.plugin", "-p", "no:cacheprovider", "-n", "2", "--dist", "load"]


@pytest.fixture
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.mark.usefixtures("no_other_plugins")
def test_two_workers_at_once(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = pytester.mkdir("temporary")
    monkeypatch.setenv("TMPDIR", str(temporary))
    pytester.makepyfile(USERS_TESTS)
    done = pytester.runpytest_subprocess(*WORKERS, timeout=120)
    done.assert_outcomes(passed=8)
    assert len({path.read_text() for path in pytester.path.glob("address-*")}) == 1
    assert list(temporary.glob("triomq-*")) == []


A_WORKER_IS_KILLED = """
import os, pytest, signal

@pytest.mark.parametrize("number", range(6))
def test_shared(rocketmq_cluster, number):
    topic = rocketmq_cluster.topic("orders")
    rocketmq_cluster.send(topic, b"one")
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    assert [message.body for message in rocketmq_cluster.messages(topic)] == [b"one"]
"""


@pytest.mark.usefixtures("no_other_plugins")
def test_the_shared_cluster_survives_a_killed_worker(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = pytester.mkdir("temporary")
    monkeypatch.setenv("TMPDIR", str(temporary))
    pytester.makepyfile(A_WORKER_IS_KILLED)
    done = pytester.runpytest_subprocess(*WORKERS, timeout=120)
    done.assert_outcomes(passed=5, failed=1)
    done.stdout.fnmatch_lines(["*crashed while running*test_shared?1?*"])
    assert list(temporary.glob("triomq-*")) == []


def test_workers_get_why_the_shared_cluster_could_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("triomq_testing.clusters.servers.SETTINGS", {"storePathRootDir": "/proc/none"})
    before = left()
    shared = SharedCluster()
    with Servers() as servers:
        for _ in range(2):
            with (
                pytest.raises(ValueError, match=r"the cluster of this run failed: .*/proc/none"),
                servers.join(shared.url),
            ):
                pass
        shared.close()
        with pytest.raises(ConnectionError, match="has the process that ran it ended"), servers.join(shared.url):
            pass
    assert left() == before
    assert os.listdir(tmp_path) == []


def test_a_shared_cluster_that_no_test_uses_is_never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("triomq_testing.clusters.servers.Servers")
    before = left()
    SharedCluster().close()
    assert left() == before


THE_CONTROLLER_IS_KILLED = """
import os, pathlib, pytest, time

@pytest.mark.parametrize("number", range(2))
def test_shared(rocketmq_cluster, number):
    rocketmq_cluster.topic("orders")
    pathlib.Path(f"written-{number}").write_text(str(os.getpid()))
    os.rename(f"written-{number}", f"pid-{number}")
    time.sleep(1000)
"""


@pytest.mark.usefixtures("no_other_plugins")
def test_when_the_controller_is_killed_workers_end_and_the_next_run_cleans_up(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = pytester.mkdir("temporary")
    monkeypatch.setenv("TMPDIR", str(temporary))
    pytester.makepyfile(THE_CONTROLLER_IS_KILLED)
    command = [sys.executable, "-m", "pytest", *WORKERS]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as controller:
        try:
            while len(list(pytester.path.glob("pid-*"))) < 2:
                assert controller.poll() is None
                time.sleep(0.02)
        finally:
            controller.kill()
    for path in pytester.path.glob("pid-*"):
        while Path(f"/proc/{path.read_text()}").exists():
            time.sleep(0.02)
    assert len(list(temporary.glob("triomq-testing-*"))) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with Servers():
        assert list(temporary.glob("triomq-testing-*")) == []
