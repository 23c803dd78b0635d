"""The fixtures, as a user's tests use them: plain, with trio, with asyncio, on several workers at once."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

import triomq
import triomq.aio
import triomq.blocking
from triomq_server.cluster import Cluster, open_cluster
from triomq_testing import RocketMQ, Servers, directories
from triomq_testing.clock import SteeredClock
from triomq_testing.sharing import SharedCluster

pytest_plugins = ["pytester"]


def test_plain(rocketmq: RocketMQ) -> None:
    topic = rocketmq.topic("orders", queues=1)
    with triomq.blocking.open_client(rocketmq.namesrv_addr) as client:
        client.producer("writers").send(triomq.Message(topic, b"one", tags="new"))
    rocketmq.send(topic, b"two", keys="k", properties={"colour": "red"})
    found = rocketmq.messages(topic)
    assert [(message.body, message.tags, message.keys) for message in found] == [
        (b"one", "new", []),
        (b"two", None, ["k"]),
    ]
    assert found[1].properties["colour"] == "red"
    assert rocketmq.messages("no-such-topic") == []


async def test_trio(rocketmq: RocketMQ) -> None:
    topic = rocketmq.topic("orders")
    async with triomq.open_client(rocketmq.namesrv_addr) as client:
        await client.producer("writers").send(triomq.Message(topic, b"one"))
    assert [message.body for message in rocketmq.messages(topic)] == [b"one"]


def test_asyncio(rocketmq: RocketMQ) -> None:
    async def main() -> None:
        async with triomq.aio.open_client(rocketmq.namesrv_addr) as client:
            await client.producer("writers").send(triomq.Message(rocketmq.topic("orders"), b"one"))

    asyncio.run(main())
    assert [message.body for message in rocketmq.messages("orders")] == [b"one"]


@pytest.mark.rocketmq(masters=2, topics=["orders"], settings={"autoCreateTopicEnable": "false"})
async def test_the_marker_changes_the_cluster(rocketmq: RocketMQ) -> None:
    async with triomq.open_client(rocketmq.namesrv_addr) as client:
        route = await client.admin.route("orders")
        assert sorted(data.broker_name or "" for data in route.broker_datas or []) == ["broker-a", "broker-b"]
        with pytest.raises(triomq.errors.RouteNotFound):
            await client.producer("writers").send(triomq.Message("others", b"one"))


def test_tests_of_a_session_cluster_have_names_of_their_own(rocketmq_cluster: RocketMQ) -> None:
    topic = rocketmq_cluster.topic("orders")
    assert topic.endswith("-test_tests_of_a_session_cluster_have_nam-orders")
    rocketmq_cluster.send(topic, b"one")
    assert [message.body for message in rocketmq_cluster.messages(topic)] == [b"one"]


# --- the clock


def test_two_hours_pass_at_once(rocketmq: RocketMQ) -> None:
    topic = rocketmq.topic("orders", queues=1)
    before = rocketmq.clock.now()
    rocketmq.send(topic, b"late", delay_level=18)
    rocketmq.send(topic, b"early", delay_level=1)
    rocketmq.clock.advance(hours=1, minutes=59)
    assert [message.body for message in rocketmq.messages(topic)] == [b"early"]
    rocketmq.clock.advance(timedelta(minutes=2))
    early, late = rocketmq.messages(topic)
    assert late.body == b"late"
    # Each was delivered at its own time.
    assert early.stored_ms - before.timestamp() * 1000 < 60_000
    assert 7_200_000 <= late.stored_ms - before.timestamp() * 1000 < 7_260_000
    with pytest.raises(ValueError, match="forward only"):
        rocketmq.clock.advance(seconds=-1)


async def test_ten_years_pass_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through every hour of the day before anything is due, and of the last day."""
    clock = SteeredClock()
    hour_ms, day_ms = 3_600_000, 86_400_000
    began = clock()
    due_ms: int | None = began + 1000 * day_ms
    shown: list[int] = []

    def next_due_ms() -> int | None:
        shown.append(clock())
        return due_ms if due_ms is not None and clock() < due_ms else None

    monkeypatch.setattr(clock.waits, "next_due_ms", next_due_ms)
    await clock.advance(3660 * day_ms)
    for last in (began + 1000 * day_ms, began + 3660 * day_ms):
        hours = {time_ms // hour_ms % 24 for time_ms in shown if last - 25 * hour_ms <= time_ms < last + hour_ms}
        assert hours == set(range(24))
    assert any(time_ms // 1000 == (began + 1000 * day_ms) // 1000 for time_ms in shown)
    assert len(shown) < 100


async def test_sixteen_retries_pass_at_once(rocketmq: RocketMQ, figures: Callable[[str], None]) -> None:
    topic = rocketmq.topic("orders")
    tries = 0

    async def handle(_: triomq.ReceivedMessage) -> None:
        nonlocal tries
        tries += 1
        raise triomq.Later

    async with (
        triomq.open_client(rocketmq.namesrv_addr) as client,
        client.push_consumer("readers", start_from="earliest") as consumer,
        trio.open_nursery() as nursery,
    ):
        await consumer.subscribe(topic)
        nursery.start_soon(consumer.run, handle)
        before, began = rocketmq.clock.now(), trio.current_time()
        with rocketmq.clock.fast_forward(), trio.fail_after(60):
            rocketmq.send(topic, b"bad")
            while not rocketmq.messages("%DLQ%readers"):  # noqa: ASYNC110 - the broker is in another thread
                await trio.sleep(0.01)
        took = trio.current_time() - began
        nursery.cancel_scope.cancel()
    assert tries == 17
    assert rocketmq.clock.now() - before > timedelta(hours=4, minutes=45)
    figures(f"16 retries, {rocketmq.clock.now() - before} by the broker's clock: {took:.3f} s")


@pytest.mark.rocketmq(settings={"mappedFileSizeCommitLog": "1048576"})
def test_old_messages_expire(rocketmq: RocketMQ) -> None:
    topic = rocketmq.topic("orders", queues=1)
    rocketmq.send(topic, *[os.urandom(400_000)] * 4)
    rocketmq.clock.advance(days=2)
    assert len(rocketmq.messages(topic)) == 4
    rocketmq.send(topic, *[os.urandom(400_000)] * 4)
    rocketmq.clock.advance(days=2)
    # Three days are kept: the older ones are gone, but for the newest file of the time.
    assert 4 <= len(rocketmq.messages(topic)) < 8


CONSUMER = """
import sys, triomq.blocking
with triomq.blocking.open_client(sys.argv[1]) as client:
    consumer = client.pull_consumer("readers")
    (queue,) = consumer.fetch_queues("orders")
    print("waits", flush=True)
    while not (messages := consumer.pull(queue, offset=0, suspend_s=15).messages):
        pass
    print(messages[0].body.decode(), flush=True)
"""


def test_a_client_in_another_process_gets_what_is_due(rocketmq: RocketMQ) -> None:
    topic = rocketmq.topic("orders", queues=1)
    rocketmq.send(topic, b"late", delay_level=18)
    command = [sys.executable, "-c", CONSUMER, rocketmq.namesrv_addr]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        rocketmq.clock.advance(hours=2)
        assert process.stdout.readline() == "late\n"


async def test_open_transactions_are_checked(rocketmq: RocketMQ) -> None:
    topic = rocketmq.topic("orders")

    async def check(_: triomq.ReceivedMessage) -> triomq.TransactionState:
        return triomq.TransactionState.COMMIT

    async with (
        triomq.open_client(rocketmq.namesrv_addr) as client,
        client.producer("writers", transactions=check) as producer,
    ):
        await producer.send_half(triomq.Message(topic, b"one"))
        assert rocketmq.messages(topic) == []
        rocketmq.clock.advance(minutes=1)
        with trio.fail_after(30):
            while not rocketmq.messages(topic):  # noqa: ASYNC110 - the broker is in another thread
                await trio.sleep(0.01)


# --- nothing is left behind


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


def test_a_cluster_that_cannot_start_says_why() -> None:
    with Servers() as servers:
        with pytest.raises(OSError, match="/proc/none"), servers.open(settings={"storePathRootDir": "/proc/none"}):
            pass
        with servers.open() as rocketmq:
            rocketmq.send("orders", b"one")


def test_a_directory_that_is_removed_before_it_is_locked_is_made_anew(
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


def test_the_marker_takes_names_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.rocketmq(2)
        def test_it(rocketmq):
            pass
        """
    )
    pytester.runpytest_inprocess("-p", "no:randomly").stdout.fnmatch_lines(
        ["*takes arguments by name, such as masters=2*"]
    )


def test_a_cluster_that_breaks_does_not_break_others(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def open_breaking(**options: Any) -> AsyncIterator[Cluster]:
        async with open_cluster(**options) as cluster:
            yield cluster
        raise RuntimeError("the broker broke")

    with Servers() as servers, servers.open() as other:
        with monkeypatch.context() as patch:
            patch.setattr("triomq_testing.servers.open_cluster", open_breaking)
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
def test_the_shared_cluster_outlives_a_killed_worker(
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
    monkeypatch.setattr("triomq_testing.servers.SETTINGS", {"storePathRootDir": "/proc/none"})
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


def test_a_shared_cluster_for_which_nobody_asks_is_never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("triomq_testing.servers.Servers")
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
