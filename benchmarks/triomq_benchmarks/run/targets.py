"""The targets of a run: a triomq cluster, a cluster of the real RocketMQ 4.9.7 or 5.5.0, or any existing cluster.

The first two are started for the run, as processes with fresh stores, and faults can be injected into them; the third
is only used.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol

import attrs
import trio

import triomq
from triomq_benchmarks.clusters.access import PLAIN, Access
from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.clusters.cluster import Cluster, in_thread, open_cluster, open_java_cluster
from triomq_benchmarks.clusters.java import find_java
from triomq_benchmarks.clusters.processes import ChildError
from triomq_benchmarks.clusters.server_state import NoAnswerError, knows_topic
from triomq_benchmarks.workload.files import with_name_servers
from triomq_benchmarks.workload.workload import ClusterShape, Workload
from triomq_protocol.requests import BrokerData

OURS, JAVA, JAVA_5 = "ours", "java", "java-5.5.0"
STARTED = {OURS: "", JAVA: "4.9.7", JAVA_5: "5.5.0"}
"""Targets that are started for a run, with the version of the real RocketMQ."""

TOPIC_LIMIT_S = 30.0
"""Java's slaves fetch topics every 10 s."""

ANSWER_LIMIT_S = 10.0
_PAUSE_S = 0.02


class TargetError(Exception):
    """A target cannot be used; the message names it, the cause and the remedy."""


@attrs.frozen
class TargetNode:
    """A process of a target, or a broker of an existing cluster.

    Attributes:
        name: `namesrv-1`, `broker-a`, `broker-a-s`, or `broker-a/1` (name and id) in an existing cluster.
        role: `namesrv`, `master` or `slave`.
        broker_name: the name of its set; empty for a name server.
        address: the address at which it answers.
        pid: its process id; 0 if it is not ours.
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
        """The label in results: `ours`, `java`, or the address."""

    @property
    def name_servers(self) -> str:
        """The addresses with which clients are opened."""

    @property
    def access(self) -> Access:
        """The account and TLS of its clients."""

    @property
    def options(self) -> triomq.ClientOptions:
        """The options of its clients, as `access` gave them when the target was opened."""

    @property
    def nodes(self) -> Mapping[str, TargetNode]:
        """Its nodes by name, as they are now."""

    @property
    def is_temporary(self) -> bool:
        """Whether it ends with the run, with all its data."""

    @property
    def notes(self) -> Sequence[str]:
        """Properties of the workload's cluster that are not available."""

    async def kill(self, name: str) -> None:
        """SIGKILL a node."""

    async def start(self, name: str) -> None:
        """Start a killed node on the same files and port; returns when it serves."""


def pause(node: TargetNode) -> None:
    """Send SIGSTOP: the process exists, but does not answer."""
    os.kill(node.pid, signal.SIGSTOP)


def resume(node: TargetNode) -> None:
    """Send SIGCONT; does nothing if the process has ended."""
    try:
        os.kill(node.pid, signal.SIGCONT)
    except ProcessLookupError:
        return


ENDED_STATES, STOPPED_STATE = ("Z", "X", ""), "T"


def process_state(pid: int) -> str:
    """Linux' letter for a process's state, such as `T` for a stopped one; empty if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def check_choice(choice: str) -> None:
    """Check that this can be a target. Raises TargetError."""
    wrong = [each for each in choice.split(";") if not each.rpartition(":")[2].isdigit()]
    if wrong and choice not in STARTED:
        raise TargetError(f"--target {wrong[0]}: must be {', '.join(STARTED)}, or name servers as HOST:PORT;HOST:PORT")


@asynccontextmanager
async def open_run_target(choice: str, workload: Workload, access: Access = PLAIN) -> AsyncIterator[RunTarget]:
    """Open the target while the block lasts.

    Args:
        choice: one of `STARTED`, or name servers as `host:port;host:port`.
        workload: determines what to start.
        access: the account and TLS for those name servers and their brokers; started clusters need neither.

    Raises:
        TargetError: it cannot be started or reached.
        WorkloadError: the workload has faults, and the cluster existed before.
    """
    if choice not in STARTED:
        with_name_servers(workload)
        yield await _existing(choice, access)
        return
    async with in_thread(start_target(choice, workload.cluster)) as started:
        yield started


@contextmanager
def start_target(choice: str, shape: ClusterShape) -> Iterator[RunTarget]:
    """Start a cluster for runs, one of `STARTED`, while the block lasts.

    Raises:
        TargetError: it cannot be started.
    """
    settings, notes = dict(shape.settings), []
    cluster: AbstractContextManager[Cluster]
    if choice == OURS:
        if shape.memory_bytes is not None:
            settings["memoryBytes"] = str(shape.memory_bytes)
        cluster = open_cluster(
            masters=shape.masters, slaves=shape.slaves, sync_replication=shape.sync_replication, settings=settings
        )
    else:
        if shape.memory_bytes is not None:
            notes.append("Java's brokers take the memory they find: cluster.memory has no effect on them")
        try:
            java = find_java(STARTED[choice])
        except ToolUnavailableError as error:
            raise TargetError(f"no RocketMQ {STARTED[choice]} to measure: {error}") from error
        cluster = open_java_cluster(
            java, masters=shape.masters, slaves=shape.slaves, sync_replication=shape.sync_replication, settings=settings
        )
    try:
        with cluster as started:
            yield _Started(choice, started, notes)
    except ChildError as error:
        raise TargetError(str(error)) from error


@attrs.frozen
class _Started:
    """A cluster that was started for the run."""

    label: str
    cluster: Cluster
    notes: Sequence[str]
    is_temporary: bool = True
    access: Access = PLAIN
    options: triomq.ClientOptions = attrs.field(factory=triomq.ClientOptions)

    @property
    def name_servers(self) -> str:
        return self.cluster.name_servers

    @property
    def nodes(self) -> Mapping[str, TargetNode]:
        return {
            node.name: TargetNode(node.name, node.role, node.broker_name, node.address, node.pid)
            for node in self.cluster.nodes.values()
        }

    async def kill(self, name: str) -> None:
        await trio.to_thread.run_sync(self.cluster.kill_node, name)

    async def start(self, name: str) -> None:
        try:
            await trio.to_thread.run_sync(self.cluster.start_node, name)
        except ChildError as error:
            raise TargetError(str(error)) from error


# -- an existing one ---------------------------------------------------------------------------------------------------


@attrs.frozen
class _Existing:
    """A cluster that existed before the run."""

    name_servers: str
    nodes: Mapping[str, TargetNode]
    access: Access
    options: triomq.ClientOptions
    notes: Sequence[str] = ()
    is_temporary: bool = False

    @property
    def label(self) -> str:
        return self.name_servers

    async def kill(self, name: str) -> None:
        raise TargetError(f"{name} is not ours to kill")

    async def start(self, name: str) -> None:
        raise TargetError(f"{name} is not ours to start")


async def _existing(name_servers: str, access: Access) -> _Existing:
    check_choice(name_servers)
    options = access.options()
    try:
        with trio.fail_after(ANSWER_LIMIT_S):
            async with triomq.open_client(name_servers, **options) as client:
                info = await client.admin.cluster_info()
    except (triomq.MQError, OSError, trio.TooSlowError) as error:
        raise TargetError(
            f"no name server answers at {name_servers}: {str(error) or 'there is no answer'}; --target ours starts a cluster for "
            "the run"
        ) from error
    nodes = [node for data in (info.broker_addr_table or {}).values() for node in _nodes_of(data)]
    if not nodes:
        raise TargetError(f"the name server at {name_servers} knows no broker; start one with -n {name_servers}")
    return _Existing(name_servers, {node.name: node for node in nodes}, access, options)


def _nodes_of(data: BrokerData) -> list[TargetNode]:
    name = data.broker_name or ""
    return [
        TargetNode(f"{name}/{broker_id}", "slave" if broker_id else "master", name, address)
        for broker_id, address in sorted((data.broker_addrs or {}).items())
    ]


# -- topics ------------------------------------------------------------------------------------------------------------


async def prepare_topics(target: RunTarget, workload: Workload, run_number: int) -> tuple[str, ...]:
    """Make the topics, or find given ones; returns their names once they exist, on slaves too.

    If not all can be made, or this is cancelled, those made for the run are removed from a cluster that outlives it.

    Raises:
        TargetError: a topic is missing, or could not be made.
    """
    given = workload.topic_names
    names = given or tuple(f"bench-{run_number:08x}-{number}" for number in range(workload.topics))
    tried: list[str] = []
    try:
        async with triomq.open_client(target.name_servers, **target.options) as client:
            for name in names:
                tried.append(name)
                await _prepare(client, target, workload, name, make=not given or workload.create_topics)
    except BaseException as error:
        if not given and not target.is_temporary:
            with trio.CancelScope(shield=True):
                await remove_topics(target, tried)
        if isinstance(error, triomq.MQError):
            cure = (
                "; or measure on a topic that exists: --set topic_names=NAME"
                if isinstance(error, triomq.errors.AccessRefused)
                else ""
            )
            raise TargetError(f"the topics of {target.label} could not be prepared: {error}{cure}") from error
        raise
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
        missing = ""
        with trio.move_on_after(TOPIC_LIMIT_S) as limit:
            while missing := await _where_missing(client, target, name, len(masters)):  # noqa: ASYNC110 -- no event
                await trio.sleep(_PAUSE_S)
        if limit.cancelled_caught:
            raise TargetError(
                f"topic {name} was made, but not every broker knew it after {TOPIC_LIMIT_S:g} s: {missing}"
            )


async def _is_known(client: triomq.Client, name: str) -> bool:
    try:
        await client.admin.route(name)
    except triomq.RouteError:
        return False
    return True


async def _where_missing(client: triomq.Client, target: RunTarget, name: str, masters: int) -> str:
    """The place where a topic is not known yet, and why; empty if it is known everywhere."""
    try:
        route = await client.admin.route(name)
    except triomq.RouteError as error:
        return str(error)
    if len(route.queue_datas or []) < masters:
        return f"the name servers know it at {len(route.queue_datas or [])} of {masters} masters"
    for node in target.nodes.values():
        if node.role == "slave":
            try:
                if not await knows_topic(node.address, name, target.options):
                    return f"the slave {node.name} does not have it"
            except NoAnswerError as error:
                return f"the slave {node.name} cannot be asked: {error}"
    return ""


async def remove_topics(target: RunTarget, topics: Sequence[str]) -> list[str]:
    """Delete the topics that were created for a run; returns a note for each that stays."""
    return await _remove(target, topics, "topic", lambda client, name: client.admin.delete_topic(name))


async def remove_groups(target: RunTarget, groups: Sequence[str]) -> list[str]:
    """Delete the consumer groups of a run with their offsets; returns a note for each that stays.

    Its members have ended. Brokers may not know this of a killed member yet, and would refuse without force.
    """
    return await _remove(target, groups, "group", lambda client, name: client.groups.delete(name, force=True))


async def _remove(
    target: RunTarget, names: Sequence[str], what: str, delete: Callable[[triomq.Client, str], Awaitable[object]]
) -> list[str]:
    left = dict.fromkeys(names, f"no answer within {ANSWER_LIMIT_S:g} s")
    with trio.move_on_after(ANSWER_LIMIT_S):
        async with triomq.open_client(target.name_servers, **target.options) as client:
            for name in names:
                try:
                    await delete(client, name)
                except triomq.MQError as error:
                    left[name] = str(error)
                else:
                    del left[name]
    return [
        f"{what} {name} stays on the cluster: {why}; `triomq {what}s {name} --delete` deletes it"
        for name, why in left.items()
    ]
