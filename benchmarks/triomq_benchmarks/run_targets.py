"""What a run is measured on: a cluster of ours, one of the real RocketMQ 4.9.7, or any cluster that is there already.

The first two are started for the run, as processes with fresh stores, and can be harmed; the third is only used.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

import attrs
import trio

import triomq
from triomq_protocol.requests import BrokerData

from .builds import ToolUnavailableError
from .demo_cluster import ClusterError, DemoCluster, knows_topic, open_demo_cluster
from .java import Java, find_java
from .processes import ChildError
from .targets import PATIENT, Kind, Server, broker, namesrv
from .workload import ClusterShape, Workload
from .workload_files import with_name_servers

OURS, JAVA = "ours", "java"
TOPIC_LIMIT_S = 30.0
"""Java's slaves fetch topics every 10 s."""

ANSWER_LIMIT_S = 10.0
_PAUSE_S = 0.02


class TargetError(Exception):
    """A target cannot be used; the message says which, why, and what to do."""


@attrs.frozen
class TargetNode:
    """A process of a target, or a broker of a cluster that was there.

    Attributes:
        name: `namesrv-1`, `broker-a`, `broker-a-s`, or `broker-a/1` (name and id) where it was there already.
        role: `namesrv`, `master` or `slave`.
        broker_name: of its set; empty for a name server.
        address: where it answers.
        pid: its process; 0 where it is not ours.
    """

    name: str
    role: str
    broker_name: str
    address: str
    pid: int = 0


class RunTarget(Protocol):
    """A running target."""

    @property
    def label(self) -> str:
        """For results: `ours`, `java`, or the address."""

    @property
    def name_servers(self) -> str:
        """What clients are opened with."""

    @property
    def nodes(self) -> Mapping[str, TargetNode]:
        """Its nodes by name, as they are now."""

    @property
    def is_temporary(self) -> bool:
        """Whether it ends with the run, and everything in it."""

    @property
    def notes(self) -> Sequence[str]:
        """What of the workload's cluster could not be had."""

    async def kill(self, name: str) -> None:
        """SIGKILL a node."""

    async def start(self, name: str) -> None:
        """Start a node that was killed, on the same files and port; returns when it serves."""


def pause(node: TargetNode) -> None:
    """SIGSTOP: the process is there and says nothing."""
    os.kill(node.pid, signal.SIGSTOP)


def resume(node: TargetNode) -> None:
    """SIGCONT; a process that is gone meanwhile is left alone."""
    try:
        os.kill(node.pid, signal.SIGCONT)
    except ProcessLookupError:
        return


def check_choice(choice: str) -> None:
    """Whether this can be a target at all. Raises TargetError."""
    wrong = [each for each in choice.split(";") if not each.rpartition(":")[2].isdigit()]
    if wrong and choice not in (OURS, JAVA):
        raise TargetError(f"--target {wrong[0]}: it is ours, java, or name servers as HOST:PORT;HOST:PORT")


@asynccontextmanager
async def open_run_target(choice: str, workload: Workload) -> AsyncIterator[RunTarget]:
    """The target for as long as the block lasts.

    Args:
        choice: `ours`, `java`, or name servers as `host:port;host:port`.
        workload: says what to start.

    Raises:
        TargetError: it cannot be started or reached.
        WorkloadError: the workload would harm a cluster that is not ours.
    """
    if choice == OURS:
        shape = workload.cluster
        settings = dict(shape.settings)
        if shape.memory_bytes is not None:
            settings["memoryBytes"] = str(shape.memory_bytes)
        try:
            async with open_demo_cluster(
                masters=shape.masters, slaves=shape.slaves, sync_replication=shape.sync_replication, settings=settings
            ) as cluster:
                yield _Ours(cluster)
        except ClusterError as error:
            raise TargetError(str(error)) from error
    elif choice == JAVA:
        async with _java(workload.cluster) as target:
            yield target
    else:
        with_name_servers(workload)
        yield await _existing(choice)


class _Ours:
    """Ours, as child processes of a child."""

    label = OURS
    is_temporary = True
    notes: Sequence[str] = ()

    def __init__(self, cluster: DemoCluster) -> None:
        self._cluster = cluster

    @property
    def name_servers(self) -> str:
        return self._cluster.name_servers

    @property
    def nodes(self) -> Mapping[str, TargetNode]:
        return {
            node.name: TargetNode(node.name, node.role, _set_of(node.name, node.role), node.address, node.pid)
            for node in self._cluster.nodes.values()
        }

    async def kill(self, name: str) -> None:
        await trio.lowlevel.checkpoint()
        self._cluster.kill(name)

    async def start(self, name: str) -> None:
        try:
            await self._cluster.start(name)
        except ClusterError as error:
            raise TargetError(str(error)) from error


def _set_of(name: str, role: str) -> str:
    """`broker-a` of `broker-a-s` or `broker-a-s2`."""
    return "" if role == "namesrv" else "-".join(name.split("-")[:2])


# -- the real one ------------------------------------------------------------------------------------------------------


@attrs.define
class _JavaNode:
    role: str
    home: Path
    settings: Mapping[str, object]
    stack: ExitStack = attrs.field(factory=ExitStack)
    server: Server | None = None
    port: int | None = None


class _Java:
    """RocketMQ 4.9.7, as child processes."""

    label = JAVA
    is_temporary = True

    def __init__(self, java: Java, home: Path, shape: ClusterShape) -> None:
        self._java = java
        self._home = home
        self._shape = shape
        self._brokers: dict[str, _JavaNode] = {}
        self._names = ExitStack()
        self._namesrv: Server | None = None
        self.name_servers = ""
        self.notes: list[str] = []
        if shape.memory_bytes is not None:
            self.notes.append("Java's brokers take the memory they find: cluster.memory has no effect on them")

    @property
    def nodes(self) -> Mapping[str, TargetNode]:
        assert self._namesrv is not None
        found = {"namesrv-1": TargetNode("namesrv-1", "namesrv", "", self.name_servers, self._namesrv.pid)}
        for name, node in self._brokers.items():
            assert node.server is not None
            found[name] = TargetNode(name, node.role, _set_of(name, node.role), node.server.address, node.server.pid)
        return found

    async def open(self) -> None:
        """Start all: name server, masters, slaves."""
        self._namesrv = await trio.to_thread.run_sync(
            self._names.enter_context, namesrv(Kind.JAVA, self._home / "namesrv", java=self._java)
        )
        self.name_servers = self._namesrv.address
        master_role = "SYNC_MASTER" if self._shape.sync_replication else "ASYNC_MASTER"
        for number in range(self._shape.masters):
            name = f"broker-{chr(ord('a') + number)}"
            await self._add(name, "master", {"brokerName": name, "brokerRole": master_role})
            for slave in range(1, self._shape.slaves + 1):
                own = {"brokerName": name, "brokerRole": "SLAVE", "brokerId": slave}
                await self._add(f"{name}-s{slave if slave > 1 else ''}", "slave", own)

    async def _add(self, name: str, role: str, own: Mapping[str, object]) -> None:
        settings = {**PATIENT, **own, **self._shape.settings}
        self._brokers[name] = _JavaNode(role, self._home / name, settings)
        await self.start(name)

    async def start(self, name: str) -> None:
        node = self._brokers[name]
        again = broker(Kind.JAVA, node.home, self.name_servers, java=self._java, port=node.port, settings=node.settings)
        try:
            node.server = await trio.to_thread.run_sync(node.stack.enter_context, again)
        except ChildError as error:
            raise TargetError(str(error)) from error
        node.port = int(node.server.address.rpartition(":")[2])

    async def kill(self, name: str) -> None:
        node = self._brokers[name]
        assert node.server is not None
        await trio.to_thread.run_sync(node.server.kill)

    def close(self) -> None:
        """End all, slaves first."""
        for node in reversed(self._brokers.values()):
            node.stack.close()
        self._names.close()


@asynccontextmanager
async def _java(shape: ClusterShape) -> AsyncIterator[_Java]:
    try:
        java = await trio.to_thread.run_sync(find_java)
    except ToolUnavailableError as error:
        raise TargetError(f"no RocketMQ 4.9.7 to measure: {error}") from error
    with tempfile.TemporaryDirectory(prefix="triomq-bench-java-", ignore_cleanup_errors=True) as home:
        target = _Java(java, Path(home), shape)
        try:
            try:
                await target.open()
            except ChildError as error:
                raise TargetError(str(error)) from error
            yield target
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(target.close)


# -- one that is there -------------------------------------------------------------------------------------------------


@attrs.frozen
class _Existing:
    """A cluster that somebody else looks after."""

    name_servers: str
    nodes: Mapping[str, TargetNode]
    notes: Sequence[str] = ()
    is_temporary: bool = False

    @property
    def label(self) -> str:
        return self.name_servers

    async def kill(self, name: str) -> None:
        raise TargetError(f"{name} is not ours to kill")

    async def start(self, name: str) -> None:
        raise TargetError(f"{name} is not ours to start")


async def _existing(name_servers: str) -> _Existing:
    check_choice(name_servers)
    try:
        with trio.fail_after(ANSWER_LIMIT_S):
            async with triomq.open_client(name_servers) as client:
                info = await client.admin.cluster_info()
    except (triomq.MQError, OSError, trio.TooSlowError) as error:
        raise TargetError(
            f"no name server answers at {name_servers}: {str(error) or 'nothing is heard from there'}. Is one running there? "
            "`triomq cluster` starts a whole cluster, --target ours one for the run"
        ) from error
    nodes = [node for data in (info.broker_addr_table or {}).values() for node in _nodes_of(data)]
    if not nodes:
        raise TargetError(f"the name server at {name_servers} knows no broker; start one with -n {name_servers}")
    return _Existing(name_servers, {node.name: node for node in nodes})


def _nodes_of(data: BrokerData) -> list[TargetNode]:
    name = data.broker_name or ""
    return [
        TargetNode(f"{name}/{broker_id}", "slave" if broker_id else "master", name, address)
        for broker_id, address in sorted((data.broker_addrs or {}).items())
    ]


# -- topics ------------------------------------------------------------------------------------------------------------


async def prepare_topics(target: RunTarget, workload: Workload, run_number: int) -> tuple[str, ...]:
    """The names of the topics, which exist when this returns, on slaves too.

    Raises:
        TargetError: one is missing, or could not be made.
    """
    given = workload.topic_names
    names = given or tuple(f"bench-{run_number:08x}-{number}" for number in range(workload.topics))
    try:
        async with triomq.open_client(target.name_servers) as client:
            for name in names:
                await _prepare(client, target, workload, name, make=not given or workload.create_topics)
    except triomq.MQError as error:
        raise TargetError(f"the topics of {target.label} could not be prepared: {error}") from error
    return names


async def _prepare(client: triomq.Client, target: RunTarget, workload: Workload, name: str, *, make: bool) -> None:
    known = await _is_known(client, name)
    if not known and not make:
        raise TargetError(
            f"topic {name} is missing: no name server of {target.name_servers} knows it. Create it "
            f"(triomq topics {name} --create -n '{target.name_servers}'), or set create_topics = true in the workload"
        )
    if not known:
        masters = await client.admin.create_topic(name, queues=workload.queues_per_topic)
        with trio.move_on_after(TOPIC_LIMIT_S) as limit:
            while not await _is_everywhere(client, target, name, len(masters)):  # noqa: ASYNC110 -- brokers tell nobody
                await trio.sleep(_PAUSE_S)
        if limit.cancelled_caught:
            raise TargetError(f"topic {name} was made, but not every broker knew it after {TOPIC_LIMIT_S:g} s")


async def _is_known(client: triomq.Client, name: str) -> bool:
    try:
        await client.admin.route(name)
    except triomq.RouteError:
        return False
    return True


async def _is_everywhere(client: triomq.Client, target: RunTarget, name: str, masters: int) -> bool:
    try:
        route = await client.admin.route(name)
    except triomq.RouteError:
        return False
    if len(route.queue_datas or []) < masters:
        return False
    for node in target.nodes.values():
        if node.role == "slave":
            try:
                if not await knows_topic(node.address, name):
                    return False
            except ClusterError:
                return False
    return True


async def remove_topics(target: RunTarget, topics: Sequence[str]) -> None:
    """Take away topics that were made for a run; what cannot be removed stays."""
    with trio.move_on_after(ANSWER_LIMIT_S):
        async with triomq.open_client(target.name_servers) as client:
            for topic in topics:
                try:
                    await client.admin.delete_topic(topic)
                except triomq.MQError:
                    continue
