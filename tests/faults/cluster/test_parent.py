"""The parent of a cluster of processes notices every event, also simultaneous ones.

Simultaneity is forced: the parent is stopped until two events wait for it, and is then continued.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

LIMIT_S = 30.0
MASTER, SLAVE = "broker-a", "broker-a-s"


class Parent:
    """A cluster's parent process and its events."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.pids: dict[str, int] = {}
        self._received = b""

    async def event(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while b"\n" not in self._received:
            data = await self.process.stdout.receive_some()
            assert data, "the parent has ended"
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event

    async def command(self, text: str) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(text.encode() + b"\n")

    def children(self) -> set[int]:
        pid = self.process.pid
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))

    async def kill(self, name: str) -> None:
        os.kill(self.pids[name], signal.SIGKILL)
        event = await self.event()
        assert (event["event"], event["name"]) == ("ended", name)

    async def start_and_pause(self, name: str) -> int:
        """The node's new process; the parent is stopped before it reads that this is ready."""
        before = self.children()
        await self.command(f"start {name}")
        while not self.children() - before:  # noqa: ASYNC110 -- a fork sends no event
            await trio.sleep(0.001)
        self.process.send_signal(signal.SIGSTOP)
        (pid,) = self.children() - before
        while not _listens(pid):  # noqa: ASYNC110
            await trio.sleep(0.02)
        await trio.sleep(0.3)
        return pid


def _listens(pid: int) -> bool:
    """A broker has its three ports before it reports that it is ready; sockets that listen have state 0A."""
    inodes = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # the broker closes files meanwhile
            inodes.add(os.readlink(file))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return sum(row[3] == "0A" and f"socket:[{row[9]}]" in inodes for row in rows) >= 3


@asynccontextmanager
async def running_parent(home: Path, program: Sequence[str] = ("-m", "triomq_server")) -> AsyncIterator[Parent]:
    command = [sys.executable, *program, "cluster", "--json", "--control", "--directory", str(home)]
    with (home / "cluster.log").open("wb") as errors:
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with trio.fail_after(LIMIT_S):
            parent = Parent(process)
            ready = await parent.event()
            parent.pids = {node["name"]: node["pid"] for node in ready["nodes"]}
            yield parent
    finally:
        with trio.CancelScope(shield=True):
            process.send_signal(signal.SIGCONT)
            await process.stdin.aclose()
            with trio.move_on_after(LIMIT_S):
                await process.wait()
            process.kill()
            await process.wait()
            await process.stdout.aclose()


pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are looked up in /proc")


async def test_a_node_gets_ready_while_another_is_to_start(tmp_path: Path) -> None:
    async with running_parent(tmp_path) as parent:
        await parent.kill(SLAVE)
        await parent.kill(MASTER)
        await parent.start_and_pause(MASTER)
        await parent.command(f"start {SLAVE}")
        parent.process.send_signal(signal.SIGCONT)
        events = [await parent.event(), await parent.event()]
        assert [(each["event"], each.get("name")) for each in events] == [("started", MASTER), ("started", SLAVE)]


async def test_a_node_ends_as_soon_as_it_is_ready(tmp_path: Path) -> None:
    async with running_parent(tmp_path) as parent:
        await parent.kill(SLAVE)
        os.kill(await parent.start_and_pause(SLAVE), signal.SIGKILL)
        parent.process.send_signal(signal.SIGCONT)
        events = [await parent.event(), await parent.event()]
        assert [each["event"] for each in events] == ["started", "ended"]
        await parent.command(f"start {SLAVE}")
        assert (await parent.event())["event"] == "started"


SLOW_FORK = """
import os, signal, sys, time
from triomq_server.__main__ import main

def wait_for_signal():
    limit = time.monotonic() + 20
    while os.path.exists(FLAG) and time.monotonic() < limit and signal.SIGTERM not in signal.sigpending():
        time.sleep(0.005)

os.register_at_fork(after_in_child=wait_for_signal)
sys.exit(main())
"""
"""A cluster whose nodes have no handlers of their own before a SIGTERM arrives, as long as the file FLAG exists."""


async def test_a_signal_that_a_node_gets_just_after_its_fork_is_the_nodes_own(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    async with running_parent(tmp_path, ["-c", SLOW_FORK.replace("FLAG", repr(str(flag)))]) as parent:
        await parent.kill(SLAVE)
        flag.touch()
        await parent.command(f"start {SLAVE}\nstop {SLAVE}")
        events = [await parent.event(), await parent.event()]
        assert [(each["event"], each["name"]) for each in events] == [("error", SLAVE), ("ended", SLAVE)]
        assert events[1]["status"] == -signal.SIGTERM
        flag.unlink()
        await parent.command(f"start {SLAVE}")
        assert (await parent.event())["event"] == "started", "the cluster itself runs on"


async def test_a_stop_during_a_restart_is_the_last_word(tmp_path: Path) -> None:
    async with running_parent(tmp_path) as parent:
        await parent.command(f"restart {SLAVE}\nstop {SLAVE}")
        event = await parent.event()
        assert (event["event"], event["name"], event["wanted"]) == ("ended", SLAVE, True)
        await parent.command(f"start {SLAVE}")
        assert (await parent.event())["event"] == "started"


NO_FORK = """
import errno, os, sys
from triomq_server.__main__ import main

fork = os.fork

def refused():
    if os.path.exists(FLAG):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()

os.fork = refused
sys.exit(main())
"""
"""A cluster that can make no process while the file FLAG exists."""


async def test_a_node_for_which_there_is_no_process(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    async with running_parent(tmp_path, ["-c", NO_FORK.replace("FLAG", repr(str(flag)))]) as parent:
        await parent.kill(SLAVE)
        flag.touch()
        for _ in range(2):
            await parent.command(f"start {SLAVE}")
            event = await parent.event()
            assert (event["event"], event["name"]) == ("error", SLAVE)
            assert "no process can be made, Resource temporarily unavailable; end other processes" in event["error"]
        flag.unlink()
        await parent.command(f"start {SLAVE}")
        assert (await parent.event())["event"] == "started", "the others run on"
