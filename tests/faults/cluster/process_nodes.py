"""Nodes as real processes: their interface to a schedule, and the nodes of our own cluster, forked from one parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

import trio
from cluster_setting import Setting
from cutting_proxy import CuttingProxy

from triomq_benchmarks.clusters.processes import kept_port

MASTER = "broker-a"
SLAVES = ("broker-a-s", "broker-a-s2")
NAME_SERVER = "namesrv-0"
READY_S = 180.0
"""A Java broker needs half a minute on a loaded machine."""
OFFSETS_WRITTEN_S = 0.2
SETTINGS = {
    "mappedFileSizeCommitLog": "262144",
    "mappedFileSizeConsumeQueue": "4000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "haSendHeartbeatInterval": "300",
    "haHousekeepingInterval": "1500",
    "slaveTimeout": "500",
    "flushConsumerOffsetInterval": str(int(OFFSETS_WRITTEN_S * 1000)),
}


class RealFiles:
    """Directories as the audit reads them."""

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path)) if os.path.isdir(path) else []

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def exists(self, path: str) -> bool:
        return os.path.exists(path)


class Nodes(Protocol):
    """A cluster of processes.

    Attributes:
        pids: of nodes that are ready, by name.
        lives: how often each was started.
        addresses: where each serves.
        name_servers: what a client is opened with.
        faults: nodes that exited unexpectedly, or could not start.
    """

    pids: dict[str, int]
    lives: dict[str, int]
    addresses: dict[str, str]
    name_servers: str
    faults: list[str]

    async def until(self, name: str, *, up: bool) -> None:
        """Wait until a node is ready, or has ended. Raises trio.TooSlowError."""

    def signal(self, name: str, number: int) -> bool:
        """Send a signal to a node; False if it does not run."""

    async def start(self, name: str) -> None:
        """Start a node that has ended, with its configuration."""

    def store(self, name: str) -> str:
        """A broker's store directory."""


class NodeRegistry:
    """The processes that run, and those whose exit is expected; for both kinds of nodes."""

    def __init__(self) -> None:
        self.pids: dict[str, int] = {}
        self.lives: dict[str, int] = {}
        self.addresses: dict[str, str] = {}
        self.name_servers = ""
        self.faults: list[str] = []
        self.stopping = False
        self._expected_exits: set[int] = set()
        self._changed = trio.Event()

    def notify(self) -> None:
        """Wake the tasks in `until`: a node became ready or ended."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def ready(self, name: str, pid: int) -> None:
        """Record that a node is ready."""
        self.pids[name] = pid
        self.lives[name] = self.lives.get(name, 0) + 1

    def ended(self, name: str, pid: int, status: object) -> None:
        """Record that a process has ended."""
        if self.pids.get(name) == pid:
            del self.pids[name]
        if pid not in self._expected_exits and not self.stopping:
            self.faults.append(f"{name} ended by itself with status {status}")

    async def until(self, name: str, *, up: bool) -> None:
        with trio.fail_after(READY_S):
            while (name in self.pids) != up or not self.name_servers:
                await self._changed.wait()

    def signal(self, name: str, number: int) -> bool:
        pid = self.pids.get(name)
        if not pid:  # never 0: that would signal this process group
            return False
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._expected_exits.add(pid)
        os.kill(pid, number)
        return True


class ForkedNodes(NodeRegistry):
    """The parent process of the nodes, and the events that it reported."""

    def __init__(self, parent: trio.Process, home: Path, ports: ExitStack) -> None:
        super().__init__()
        self.parent = parent
        self.home = home
        self._one_at_a_time = trio.Lock()
        self._ports = ports

    def store(self, name: str) -> str:
        return str(self.home / name)

    async def listen(self) -> None:
        """Follow the parent's events until it ends."""
        received = b""
        assert self.parent.stdout is not None
        async for data in self.parent.stdout:
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                self._handle(json.loads(line))
            self.notify()
        if not self.stopping:
            self.faults.append("the parent ended by itself")

    def _handle(self, event: dict[str, object]) -> None:
        kind = event["event"]
        if kind == "ready":
            self.name_servers = str(event["name_servers"])
        nodes = event["nodes"] if kind == "ready" else [event] if kind == "started" else []
        assert isinstance(nodes, list)
        for node in nodes:
            if node["name"] not in self.addresses:  # it may be down for some time, and starts again on its port
                self._ports.enter_context(kept_port(int(node["address"].rpartition(":")[2]), -2, 1))
            self.addresses[node["name"]] = node["address"]
            self.ready(node["name"], node["pid"])
        if kind == "ended":
            pid = event["pid"]
            assert isinstance(pid, int)
            self.ended(str(event["name"]), pid, event["status"])
        elif kind == "error":
            self.faults.append(f"the parent reports: {event['error']}")

    async def start(self, name: str) -> None:
        assert self.parent.stdin is not None
        async with self._one_at_a_time:
            await self.parent.stdin.send_all(f"start {name}\n".encode())


@asynccontextmanager
async def forked_nodes(home: Path, setting: Setting, proxy: CuttingProxy, injected: str = "") -> AsyncIterator[Nodes]:
    """Our cluster, whose slaves reach their master through the proxy."""
    asked = {
        "sync": setting.synchronous,
        "flush": setting.flush,
        "slaves": setting.slaves,
        "proxy": proxy.port + 1,
        "injected": injected,
        "settings": SETTINGS,
    }
    command = [sys.executable, str(Path(__file__).with_name("cluster_parent.py")), str(home), json.dumps(asked)]
    with (home / "cluster.log").open("wb") as errors:
        parent = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
    with ExitStack() as ports:
        async with trio.open_nursery() as nursery:
            nodes = ForkedNodes(parent, home, ports)
            nursery.start_soon(nodes.listen)
            try:
                await nodes.until(MASTER, up=True)
                yield nodes
            finally:
                for name in list(nodes.pids):
                    nodes.signal(name, signal.SIGCONT)
                nodes.stopping = True
                with trio.CancelScope(shield=True):
                    assert parent.stdin is not None
                    await parent.stdin.aclose()
                    with trio.move_on_after(READY_S):
                        await parent.wait()
                    parent.kill()
                    await parent.wait()
                nursery.cancel_scope.cancel()
    assert parent.stdout is not None
    await parent.stdout.aclose()
