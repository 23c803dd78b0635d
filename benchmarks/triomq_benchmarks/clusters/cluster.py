"""Whole clusters as child processes, triomq's and the real 4.9.7; everything that starts more than one server is here.

triomq's clusters are started by `triomq cluster`, Java's and mixed pairs server by server (`servers.py`). They are used
by plain blocking calls; `in_thread` opens any of them for code in trio's loop. Whatever happens, nothing is left over:
the processes end first, and the temporary directory is removed last.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import attrs
import trio

from triomq_benchmarks.clusters.java import Java
from triomq_benchmarks.clusters.processes import Child, ChildError, check_cancelled
from triomq_benchmarks.clusters.scratch import scratch_folder
from triomq_benchmarks.clusters.server_state import ask_blocking
from triomq_benchmarks.clusters.servers import PATIENT, Kind, Server, broker, namesrv
from triomq_protocol.codes import RequestCode, ResponseCode

T = TypeVar("T")
READY_LIMIT_S = 60.0
STOP_LIMIT_S = 30.0
_LOOK_S = 0.05
"""Interval at which a wait in a thread checks whether its task in trio's loop was cancelled."""


class ClusterError(ChildError):
    """A cluster did not start, or a node did not answer; the text names it and the cause."""


@attrs.frozen
class Node:
    """One process of a cluster.

    Attributes:
        name: `namesrv-1`, `broker-a`, `broker-a-s`.
        role: `namesrv`, `master` or `slave`.
        pid: its process id.
        address: the address at which it answers.
        directory: the directory of its files.
    """

    name: str
    role: str
    pid: int
    address: str
    directory: str

    @property
    def broker_name(self) -> str:
        """`broker-a` of `broker-a-s` or `broker-a-s2`; empty for a name server."""
        return "" if self.role == "namesrv" else "-".join(self.name.split("-")[:2])


class Cluster(Protocol):
    """A running cluster whose nodes can be killed and started again."""

    @property
    def name_servers(self) -> str:
        """The addresses with which a client is opened."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Its processes by name, as they are now."""

    def kill_node(self, name: str) -> None:
        """SIGKILL a node."""

    def start_node(self, name: str) -> None:
        """Start a node that was killed, on the same files and port, and wait until it serves. Raises ChildError."""


@asynccontextmanager
async def in_thread(context: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a blocking context manager in a thread; yields its value.

    Cancellation while it is being entered ends its waits (`check_cancelled`), and it cleans up before this returns.
    """
    opened = await trio.to_thread.run_sync(context.__enter__)
    try:
        yield opened
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(context.__exit__, None, None, None)


# -- ours
# ----------------------------------------------------------------------------------------------------------------


class OurCluster(Child):
    """A running cluster of ours; made by `open_cluster`.

    Attributes:
        name_servers: the addresses with which a client is opened.
        nodes: its processes by name.
        ready_s: seconds from the start of the child, its interpreter included, until the last node served.
    """

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        super().__init__("cluster", argv, log, pipes=True)
        self.name_servers = ""
        self.nodes: dict[str, Node] = {}
        self.ready_s = 0.0
        self._unread = b""
        self._ended: set[str] = set()

    def wait_ready(self) -> None:
        """Wait until every node serves. Raises ClusterError if one does not, or not in time."""
        event = self._wait_event("ready")
        self.name_servers = event["name_servers"]
        self.ready_s = event["ready_s"]
        self.nodes = {node["name"]: Node(**node) for node in event["nodes"]}

    def first(self, role: str) -> str:
        """The name of the first node with a role: `namesrv`, `master` or `slave`."""
        return next(name for name, node in sorted(self.nodes.items()) if node.role == role)

    def kill_node(self, name: str) -> None:
        """SIGKILL a node; `wait_ended` waits until the cluster has noticed."""
        os.kill(self.nodes[name].pid, signal.SIGKILL)

    def wait_ended(self, name: str) -> None:
        """Wait until a killed node has ended. Raises ClusterError if it has not."""
        while name not in self._ended:
            self._wait_event("ended")

    def start_node(self, name: str) -> None:
        """Start a killed node on the same directory and port, and wait until it serves.

        Raises:
            ClusterError: it was not killed, cannot be started, or was not ready in time.
        """
        self.wait_ended(name)
        assert self.process.stdin is not None
        self.process.stdin.write(f"start {name}\n".encode())
        self.process.stdin.flush()
        event = self._wait_event("started")
        self._ended.discard(name)
        self.nodes[name] = Node(**{field.name: event[field.name] for field in attrs.fields(Node)})

    def stop(self, limit_s: float = STOP_LIMIT_S) -> int:
        """Close the child's standard input, which shuts down its nodes cleanly, and wait; then SIGTERM and SIGKILL."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(limit_s)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass  # only `Child.stop` is left to try
        return super().stop()

    def _wait_event(self, wanted: str) -> dict[str, Any]:
        """The child's next event of a kind; nodes that end meanwhile are recorded."""
        deadline = time.perf_counter() + READY_LIMIT_S
        while True:
            event: dict[str, Any] = json.loads(self._line(wanted, deadline))
            if event["event"] == "ended":
                self._ended.add(event["name"])
            if event["event"] == wanted:
                return event
            if event["event"] == "error":
                raise ClusterError(f"the cluster could not start: {event['error']}")

    def _line(self, wanted: str, deadline: float) -> bytes:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                check_cancelled()
                if not selector.select(_LOOK_S):
                    if time.perf_counter() > deadline:
                        raise ClusterError(str(self.failure(f"did not report {wanted!r} within {READY_LIMIT_S:g} s")))
                    continue
                data = os.read(self.process.stdout.fileno(), 1 << 16)
                if not data:
                    raise ClusterError(str(self.failure("ended")))
                self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line


@contextmanager
def open_cluster(
    *, masters: int = 1, slaves: int = 1, sync_replication: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[OurCluster]:
    """Run a cluster of ours for as long as the block lasts, in a temporary directory.

    Args:
        masters: number of broker sets.
        slaves: number of slaves of each master.
        sync_replication: whether sends wait for a slave.
        settings: RocketMQ keys of all brokers.

    Raises:
        ClusterError: it cannot be started, or was not ready in time; the text states the reason.
    """
    with scratch_folder("triomq-cluster-") as directory:
        argv = [
            sys.executable, "-m", "triomq_server", "cluster", "--json", "--control", "--directory", directory,
            "--masters", str(masters), "--slaves", str(slaves), *(["--sync-replication"] if sync_replication else []),
            *(f"--set={key}={value}" for key, value in (settings or {}).items()),
        ]  # fmt: skip
        with OurCluster(argv, Path(directory) / "cluster.log") as cluster:
            cluster.wait_ready()
            yield cluster


# -- Java's
# --------------------------------------------------------------------------------------------------------------


@attrs.define
class _JavaBroker:
    role: str
    home: Path
    settings: Mapping[str, object]
    stack: ExitStack = attrs.field(factory=ExitStack)
    server: Server | None = None
    port: int | None = None


class JavaCluster:
    """A running cluster of the real 4.9.7; made by `open_java_cluster`."""

    def __init__(self, java: Java, home: Path, names: Server) -> None:
        self.name_servers = names.address
        self._java = java
        self._home = home
        self._names = names
        self._brokers: dict[str, _JavaBroker] = {}

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Its processes by name, as they are now."""
        found = {"namesrv-1": Node("namesrv-1", "namesrv", self._names.pid, self.name_servers, str(self._home))}
        for name, node in self._brokers.items():
            assert node.server is not None
            found[name] = Node(name, node.role, node.server.pid, node.server.address, str(node.home))
        return found

    def add(self, name: str, role: str, settings: Mapping[str, object]) -> None:
        """Start one more broker. Raises ChildError."""
        self._brokers[name] = _JavaBroker(role, self._home / name, {**PATIENT, **settings})
        self.start_node(name)

    def kill_node(self, name: str) -> None:
        """SIGKILL a broker, and wait until it has ended."""
        server = self._brokers[name].server
        assert server is not None
        server.kill()

    def start_node(self, name: str) -> None:
        """Start a broker, on the same files and port if it was killed, and wait until it serves. Raises ChildError."""
        node = self._brokers[name]
        again = broker(Kind.JAVA, node.home, self.name_servers, java=self._java, port=node.port, settings=node.settings)
        node.server = node.stack.enter_context(again)
        node.port = int(node.server.address.rpartition(":")[2])

    def close(self) -> None:
        """End the brokers, slaves first."""
        for node in reversed(self._brokers.values()):
            node.stack.close()


@contextmanager
def open_java_cluster(
    java: Java, *, masters: int, slaves: int, sync_replication: bool, settings: Mapping[str, object]
) -> Iterator[JavaCluster]:
    """Run a cluster of the real 4.9.7 for as long as the block lasts; the arguments are those of `open_cluster`.

    Raises:
        ChildError: a server was not ready in time; the text quotes its output.
    """
    with (
        scratch_folder("triomq-java-cluster-") as directory,
        namesrv(Kind.JAVA, Path(directory) / "namesrv", java=java) as names,
    ):
        cluster = JavaCluster(java, Path(directory), names)
        try:
            for number in range(masters):
                name = f"broker-{chr(ord('a') + number)}"
                own = {"brokerName": name, "brokerRole": "SYNC_MASTER" if sync_replication else "ASYNC_MASTER"}
                cluster.add(name, "master", {**own, **settings})
                for slave_id in range(1, slaves + 1):
                    own = {"brokerName": name, "brokerRole": "SLAVE", "brokerId": str(slave_id)}
                    cluster.add(f"{name}-s{slave_id if slave_id > 1 else ''}", "slave", {**own, **settings})
            yield cluster
        finally:
            cluster.close()


# -- one broker of either kind -----------------------------------------------------------------------------------------


@attrs.frozen
class SingleBroker:
    """One name server and one broker, of one kind."""

    kind: Kind
    namesrv: Server
    broker: Server

    def ensure_topic(self, name: str, queues: int) -> None:
        """Create a topic and wait for its route; a topic with a route is not changed.

        Clients differ in how long they wait for a topic that their first send creates: client-go fails at once.
        """
        if self._has_route(name):
            return
        fields = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        ask_blocking(self.broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        self.broker.wait_until(lambda: self._has_route(name))

    def _has_route(self, topic: str) -> bool:
        answer = ask_blocking(self.namesrv.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        return answer.code == ResponseCode.SUCCESS


@contextmanager
def open_single_broker(
    kind: Kind,
    home: Path,
    *,
    java: Java | None = None,
    settings: Mapping[str, object] | None = None,
) -> Iterator[SingleBroker]:
    """Run a name server and a broker of the given kind below `home`."""
    merged = {**PATIENT, **(settings or {})}
    with (
        namesrv(kind, home / "namesrv", java=java) as names,
        broker(kind, home / "broker", names.address, java=java, heap="1g", settings=merged) as serving,
    ):
        yield SingleBroker(kind, names, serving)


# -- a master and its slaves, each of either kind
# ------------------------------------------------------------------------


@attrs.frozen
class Pairing:
    """The kind of a master, and the kind of its slave."""

    master: Kind
    slave: Kind

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{_KIND_NAMES[self.master]} → {_KIND_NAMES[self.slave]}"


_KIND_NAMES = {Kind.OURS: "ours", Kind.JAVA: "Java"}
OURS_TO_OURS = Pairing(Kind.OURS, Kind.OURS)
JAVA_TO_JAVA = Pairing(Kind.JAVA, Kind.JAVA)
PAIRINGS = (JAVA_TO_JAVA, OURS_TO_OURS, Pairing(Kind.OURS, Kind.JAVA), Pairing(Kind.JAVA, Kind.OURS))


@contextmanager
def open_master(
    kind: Kind, home: Path, name_servers: str, java: Java, settings: Mapping[str, object], name: str
) -> Iterator[Server]:
    """A master of broker name `name`."""
    role = {"brokerRole": "ASYNC_MASTER", **settings, "brokerName": name}
    with _killed_in_the_end(kind, home, name_servers, java, role) as server:
        yield server


@contextmanager
def open_slave(
    kind: Kind, home: Path, name_servers: str, java: Java, settings: Mapping[str, object], name: str, of: Server
) -> Iterator[Server]:
    """A slave that follows the master `of`."""
    host, _, port = of.address.rpartition(":")
    role = {
        **settings,
        "brokerName": name,
        "brokerRole": "SLAVE",
        "brokerId": 1,
        # A Java slave that has to ask for the address first waits five seconds between attempts.
        "haMasterAddress": f"{host}:{int(port) + 1}",
    }
    with _killed_in_the_end(kind, home, name_servers, java, role) as server:
        yield server


@contextmanager
def _killed_in_the_end(
    kind: Kind, home: Path, name_servers: str, java: Java, settings: Mapping[str, object]
) -> Iterator[Server]:
    """A broker that is ended with SIGKILL: a clean shutdown of Java's takes seconds."""
    with broker(kind, home, name_servers, java=java, heap="1g", settings=settings) as server:
        try:
            yield server
        finally:
            server.kill()
