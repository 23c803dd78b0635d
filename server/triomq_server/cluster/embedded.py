"""A real cluster inside the caller's process and event loop: real sockets, real files, no child processes.

For users' tests: it starts within milliseconds, and its nodes can be stopped and started one by one.
"""

import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import trio

from triomq_server.cluster.nodes import Machine, run_node
from triomq_server.cluster.plan import ClusterPlan, NodePlan, check_settings, plan_cluster
from triomq_server.process.failures import leaves

_log = logging.getLogger(__name__)


class Node:
    """One name server or broker of an embedded cluster."""

    def __init__(self, plan: NodePlan, nursery: trio.Nursery, machine: Machine | None = None) -> None:
        self._machine = machine
        self._nursery = nursery
        self._scope: trio.CancelScope | None = None
        self._started = trio.Event()
        self._ended = trio.Event()
        self.plan = plan
        """Its name, address, directory and properties; the role is that of its last start."""

    @property
    def name(self) -> str:
        """Unique in the cluster: ``namesrv-0``, ``broker-a``, ``broker-a-s``."""
        return self.plan.name

    @property
    def address(self) -> str:
        """``host:port`` for clients; the same after every start."""
        return self.plan.address

    @property
    def running(self) -> bool:
        """Whether the node serves."""
        return self._scope is not None

    async def start(self) -> None:
        """Start on the same directory and port as before; returns when the node serves. No effect if it already runs.

        If another start is under way, it returns when that has ended.

        Raises:
            OSError: a port is taken, or the disk fails.
            RuntimeError: the node was stopped meanwhile.
            Exception: the node's files cannot be used; the text names the cause and the cure.
        """
        if self._scope is not None:
            await self._started.wait()
            return
        self.plan = self.plan.with_kept_role()
        scope = self._scope = trio.CancelScope()
        self._started, self._ended = trio.Event(), trio.Event()
        try:
            await self._nursery.start(self._run, scope)
        except RuntimeError:
            if scope.cancel_called:
                raise RuntimeError(f"{self.name} was stopped before it served; start it again") from None
            raise
        except ExceptionGroup as group:
            causes = list(leaves(group))
            if len(causes) > 1:
                raise
            raise causes[0] from None
        finally:
            self._started.set()

    async def stop(self) -> None:
        """Stop in order; returns when the ports and files are free. No effect if the node does not run."""
        if self._scope is not None:
            self._scope.cancel()
            await self._ended.wait()

    async def restart(self) -> None:
        """Stop and start the node."""
        await self.stop()
        await self.start()

    async def _run(self, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            with scope:
                await run_node(self.plan, self._machine, task_status=task_status)
        finally:
            self._scope = None
            self._ended.set()


class Cluster:
    """A running embedded cluster; made by `open_cluster`."""

    def __init__(
        self, plan: ClusterPlan, nursery: trio.Nursery, machine: Callable[[NodePlan], Machine] | None = None
    ) -> None:
        self.plan = plan
        self.nodes = {node.name: Node(node, nursery, None if machine is None else machine(node)) for node in plan.nodes}
        """All nodes by name, in starting order."""

    @property
    def name_servers(self) -> str:
        """The name servers' addresses for a client: ``host:port;host:port``."""
        return self.plan.name_servers

    @property
    def directory(self) -> Path:
        """The directory with one folder per node, named like the node."""
        return self.plan.directory

    def __getitem__(self, name: str) -> Node:
        """The node called `name`; KeyError if it does not exist."""
        return self.nodes[name]

    async def start(self) -> None:
        """Start all nodes that do not run, in the order of their dependencies."""
        for stage in self.plan.stages():
            async with trio.open_nursery() as nursery:
                for node in stage:
                    nursery.start_soon(self.nodes[node.name].start)

    async def stop(self) -> None:
        """Stop all nodes, dependent nodes first."""
        for stage in reversed(self.plan.stages()):
            async with trio.open_nursery() as nursery:
                for node in stage:
                    nursery.start_soon(self.nodes[node.name].stop)


@asynccontextmanager
async def open_cluster(
    *,
    masters: int = 1,
    slaves: int = 1,
    name_servers: int = 1,
    directory: str | Path | None = None,
    sync_replication: bool = False,
    sync_flush: bool = False,
    settings: Mapping[str, str] | None = None,
    machine: Callable[[NodePlan], Machine] | None = None,
) -> AsyncIterator[Cluster]:
    """Run a cluster on free loopback ports for as long as the block lasts.

    ::

        async with open_cluster() as cluster:
            async with triomq.open_client(cluster.name_servers) as client:
                ...

    Args:
        masters: number of broker sets (``broker-a``, ``broker-b``, ...).
        slaves: number of slaves of each master (``broker-a-s``, ``broker-a-s2``, ...).
        name_servers: number of name servers; every broker registers with all of them.
        directory: the directory of all files; by default a temporary one, removed at the end.
        sync_replication: whether masters answer a send only when a slave has the message.
        sync_flush: whether brokers answer a send only when the message is on disk.
        settings: RocketMQ keys for every broker, such as ``{"mappedFileSizeCommitLog": "1048576"}``; TLS keys also
            apply to name servers.
        machine: the environment of each node, for tests with their own clock, disk or network.

    Raises:
        OSError: no free ports, or the disk fails.
        ValueError: a count is out of range, or a broker must not start with the settings.
    """
    with _directory(directory) as home:
        plan = plan_cluster(
            home,
            masters=masters,
            slaves=slaves,
            name_servers=name_servers,
            sync_replication=sync_replication,
            sync_flush=sync_flush,
            settings=settings,
        )
        async with run_cluster(plan, machine) as cluster:
            yield cluster


@asynccontextmanager
async def run_cluster(
    plan: ClusterPlan, machine: Callable[[NodePlan], Machine] | None = None
) -> AsyncIterator[Cluster]:
    """Run the nodes of a plan for as long as the block lasts; their directories stay.

    Args:
        plan: the nodes.
        machine: the environment of each node.

    Raises:
        OSError: a port is taken, or the disk fails.
        ValueError: a node must not start with its settings.
    """
    for line in check_settings(plan):
        _log.warning("%s", line)
    failure: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            cluster = Cluster(plan, nursery, machine)
            try:
                await cluster.start()
                yield cluster
            except Exception as error:  # noqa: BLE001 -- raised below, unchanged, once the nodes have ended
                failure = error
            with trio.CancelScope(shield=True):
                await cluster.stop()
    except* trio.Cancelled:
        # The nodes' tasks are also cancelled if the code around the block is: then the block's error takes precedence.
        if failure is None:
            raise
    if failure is not None:
        raise failure


@contextmanager
def _directory(given: str | Path | None) -> Iterator[Path]:
    if given is not None:
        yield Path(given)
        return
    home = Path(tempfile.mkdtemp(prefix="triomq-"))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)
