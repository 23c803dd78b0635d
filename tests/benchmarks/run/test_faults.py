"""Faults: at their instants, on the node that is meant, undone when they are over or the run ends."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import pytest
import trio
import trio.testing

from triomq_benchmarks.figures.run_result import FaultInstant
from triomq_benchmarks.run.faults import break_links, check_faults, do_faults
from triomq_benchmarks.run.targets import TargetError, TargetNode, pause, resume
from triomq_benchmarks.workload.workload import Fault, WorkloadError

NODES = [
    TargetNode("namesrv-1", "namesrv", "", "127.0.0.1:1"),
    TargetNode("broker-a", "master", "broker-a", "127.0.0.1:2"),
    TargetNode("broker-a-s", "slave", "broker-a", "127.0.0.1:3"),
    TargetNode("broker-b", "master", "broker-b", "127.0.0.1:4"),
]


class RecordingTarget:
    label = "ours"
    name_servers = "127.0.0.1:1"
    is_temporary = True
    notes = ()

    def __init__(self) -> None:
        self.nodes = {node.name: node for node in NODES}
        self.done: list[tuple[float, str, str]] = []
        self.start_fails = False
        self.start_takes_s = 0.0

    async def kill(self, name: str) -> None:
        self.done.append((trio.current_time(), "kill", name))

    async def start(self, name: str) -> None:
        if self.start_fails:
            raise TargetError(f"{name} does not start")
        await trio.sleep(self.start_takes_s)
        self.done.append((trio.current_time(), "start", name))


async def test_each_message_is_delivered_at_its_time(autojump_clock: trio.testing.MockClock) -> None:
    target, reported = RecordingTarget(), list[FaultInstant]()
    origin = trio.current_time() + 3
    faults = [Fault.parse("restart slave at 2 s for 1.5 s"), Fault.parse("kill broker-b at 1 s")]
    await do_faults(faults, target, origin, reported.append, pytest.fail)
    assert [(round(at - origin, 3), what, name) for at, what, name in target.done] == [
        (1, "kill", "broker-b"), (2, "kill", "broker-a-s"), (3.5, "start", "broker-a-s"),
    ]  # fmt: skip
    assert [(each.what, each.node, each.second, each.until) for each in reported] == [
        ("kill broker-b", "broker-b", pytest.approx(1), None),
        ("restart slave", "broker-a-s", pytest.approx(2), pytest.approx(3.5)),
    ]


async def test_a_fault_in_progress_at_the_end_is_reported(autojump_clock: trio.testing.MockClock) -> None:
    target, reported = RecordingTarget(), list[FaultInstant]()
    with trio.move_on_after(5):
        await do_faults(
            [Fault.parse("restart master at 2 s for 60 s")], target, trio.current_time(), reported.append, pytest.fail
        )
    assert [each.node for each in reported] == ["broker-a"]
    assert reported[0].until == pytest.approx(5)


async def test_a_fault_waits_until_its_node_has_been_started_again(autojump_clock: trio.testing.MockClock) -> None:
    """Until then, its process is that of before, whose id may be another one's by now."""
    target, reported = RecordingTarget(), list[FaultInstant]()
    target.start_takes_s = 4
    faults = [Fault.parse("restart master at 1 s for 1 s"), Fault.parse("kill broker-a at 2 s")]
    check_faults(faults, target)
    origin = trio.current_time()
    await do_faults(faults, target, origin, reported.append, pytest.fail)
    assert [(round(at - origin, 3), what) for at, what, _ in target.done] == [(1, "kill"), (6, "start"), (6, "kill")]
    assert [each.second for each in reported] == [pytest.approx(1), pytest.approx(6)]


def ended_process() -> int:
    """The id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


async def test_faults_that_cannot_be_done_are_named_and_others_go_on(autojump_clock: trio.testing.MockClock) -> None:
    """A node that ended by itself before its fault; the fault is not noted as done, and so does not explain the end."""
    target, reported, failed = RecordingTarget(), list[FaultInstant](), list[str]()
    target.nodes["broker-a"] = attrs.evolve(target.nodes["broker-a"], pid=ended_process())
    target.start_fails = True
    texts = ["pause master", "kill broker-a", "cut master", "restart broker-b", "restart broker-a", "kill slave"]
    faults = [Fault.parse(f"{text} at {second} s") for second, text in enumerate(texts, 1)]
    await do_faults(faults, target, trio.current_time(), reported.append, failed.append)
    assert [each.what for each in reported] == ["restart broker-b", "kill slave"]
    ended = "the process of broker-a had ended before"
    assert failed == [
        f"pause master at 1 s for 2 s: {ended}",
        f"kill broker-a at 2 s: {ended}",
        f"cut master at 3 s for 2 s: {ended}",
        "restart broker-b at 4 s for 1 s: broker-b does not start",
        f"restart broker-a at 5 s for 1 s: {ended}",
    ]


async def test_a_fault_of_a_process_that_ends_at_its_instant(autojump_clock: trio.testing.MockClock) -> None:
    target, reported, failed = RecordingTarget(), list[FaultInstant](), list[str]()

    async def kill(_name: str) -> None:
        raise ProcessLookupError(3, "No such process")

    target.kill = kill  # type: ignore[method-assign]
    await do_faults([Fault.parse("kill master at 1 s")], target, 0.0, reported.append, failed.append)
    assert not reported
    assert failed == ["kill master at 1 s: the process of broker-a cannot be reached: No such process"]


def test_an_unknown_node() -> None:
    target = RecordingTarget()
    check_faults([Fault.parse("kill master at 1 s")], target)
    with pytest.raises(WorkloadError, match="there is no broker-c; there are namesrv-1, broker-a, "):
        check_faults([Fault.parse("kill broker-c at 1 s")], target)


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        (
            ["kill master at 1 s", "pause broker-a at 5 s"],
            "fault pause broker-a at 5 s for 2 s: broker-a has been killed",
        ),
        (
            ["cut master at 5 s", "kill master at 5 s"],
            "fault kill master at 5 s: `cut master at 5 s for 2 s` is not over",
        ),
        (
            ["restart broker-b at 2 s for 3 s", "cut broker-b at 4 s"],
            "`restart broker-b at 2 s for 3 s` is not over by then",
        ),
        (
            ["pause slave at 2 s for 3 s", "restart slave at 1 s for 2 s"],
            "`restart slave at 1 s for 2 s` is not over by then",
        ),
        (["restart slave at 1 s for 2 s", "pause slave at 3 s", "kill slave at 5 s", "kill master at 2 s"], None),
    ],
)
def test_faults_of_a_node_follow_each_other(faults: list[str], message: str | None) -> None:
    parsed = [Fault.parse(text) for text in faults]
    if message is None:
        check_faults(parsed, RecordingTarget())
        return
    with pytest.raises(WorkloadError) as refused:
        check_faults(parsed, RecordingTarget())
    assert message in str(refused.value)


SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    link, _ = server.accept()
    while data := link.recv(100):
        link.sendall(data)
    link.close()
"""


@contextmanager
def echo_process() -> Iterator[tuple[int, int]]:
    """A process that echoes, one link at a time: its pid and port."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="pidfd_getfd is Linux's")
def test_a_cut_breaks_links_and_leaves_the_listener() -> None:
    with echo_process() as (pid, port), socket.create_connection(("127.0.0.1", port), 5) as link:
        link.sendall(b"a")
        assert link.recv(1) == b"a"
        assert break_links(pid) == 1
        assert link.recv(1) == b""
        with socket.create_connection(("127.0.0.1", port), 5) as again:
            again.sendall(b"b")
            assert again.recv(1) == b"b"


def test_a_paused_process_does_not_answer() -> None:
    with echo_process() as (pid, port), socket.create_connection(("127.0.0.1", port), 5) as link:
        node = TargetNode("broker-a", "master", "broker-a", "", pid)
        pause(node)
        link.settimeout(0.2)
        link.sendall(b"a")
        with pytest.raises(TimeoutError):
            link.recv(1)
        resume(node)
        link.settimeout(5)
        assert link.recv(1) == b"a"


def test_resuming_an_exited_process_does_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    resume(TargetNode("broker-a", "master", "broker-a", "", process.pid))
