"""The cluster that `triomq run` provides: in this process, with files in a temporary directory."""

from __future__ import annotations

import errno
import signal
import socket
import time
from collections.abc import Mapping, Sequence

import trio

from triomq_protocol.flags import READ_WRITE_PERM
from triomq_server.broker.tables.topics import TopicTable
from triomq_server.cluster.embedded import run_cluster
from triomq_server.cluster.nodes import Machine
from triomq_server.cluster.plan import ClusterPlan, NodePlan, plan_cluster
from triomq_server.config import BrokerConfig
from triomq_server.disk import RealDisk
from triomq_server.disk.config_files import ConfigFile
from triomq_server.ports import ATTEMPTS, free_ports
from triomq_server.process.failures import leaves
from triomq_server.store import wall_ms
from triomq_server.wire import Listen, dial_tcp, listen_tcp
from triomq_testing.child import Child
from triomq_testing.clusters.broker_settings import SETTINGS
from triomq_testing.control import Control, ThreadCalls
from triomq_testing.directories import remove_left_behind, temporary_directory
from triomq_testing.steered.clock import SteeredClock
from triomq_testing.steered.disk import SteeredDisk
from triomq_testing.steered.faults import Faults, Weaknesses
from triomq_testing.steered.network import SteeredNetwork

QUEUES = 4
"""The number of queues of each topic on every master."""


def lend(
    child: Child,
    *,
    listening: socket.socket,
    steering: socket.socket,
    secret: str,
    masters: int,
    slaves: int,
    topics: Sequence[str],
    settings: Mapping[str, str],
    faults: bool,
) -> None:
    """Run the cluster, and the command as soon as all brokers have registered, until the command has ended.

    Args:
        child: the command, not started yet.
        listening: the listening socket of the name server.
        steering: the listening socket of the control of clock and faults.
        secret: the first part of paths there.
        masters: the number of broker sets.
        slaves: the number of slaves of each master.
        topics: topics that exist before the command gets an answer.
        settings: RocketMQ keys for every broker.
        faults: whether brokers can be broken.

    Raises:
        NotStartedError: the command cannot be started.
        OSError: there are no free ports, or the disk fails.
        ValueError: a broker must not start with these settings.
    """
    remove_left_behind()
    are_chosen = not any(key.endswith("Port") for key in settings)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with temporary_directory() as home:
                ports = [listening.getsockname()[1], *free_ports(masters * (1 + slaves))]
                plan = plan_cluster(
                    home, masters=masters, slaves=slaves, settings=SETTINGS | dict(settings), ports=ports
                )
                _write_topics(plan, topics)
                trio.run(_lend, child, plan, _listen_on(listening), steering, secret, faults)
        except Exception as error:
            is_taken = getattr(next(leaves(error)), "errno", None) == errno.EADDRINUSE
            if not (is_taken and are_chosen) or attempt == ATTEMPTS or child.is_started or child.has_ended():
                raise
        else:
            return


async def _lend(
    child: Child, plan: ClusterPlan, listen: Listen, steering: socket.socket, secret: str, faults: bool
) -> None:
    clock = SteeredClock()
    nodes: dict[str, Weaknesses] = {}

    def machine(node: NodePlan) -> Machine:
        weak = Weaknesses(SteeredDisk(clock), SteeredNetwork(dial_tcp))
        if not faults or node.kind != "broker":
            return Machine(weak.disk, dial_tcp, listen, clock, clock.waits)
        nodes[node.name] = weak
        return Machine(weak.disk, weak.network.dial, weak.network.listen, clock, clock.waits)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_wait_for, child, nursery.cancel_scope)
        async with run_cluster(plan, machine) as cluster:
            child.start()
            control = Control(
                cluster.name_servers,
                clock,
                Faults(cluster, nodes, clock, ThreadCalls(), possible=faults, how="start it by `triomq run --faults`"),
                secret,
            )
            await control.serve(steering)


async def _wait_for(child: Child, scope: trio.CancelScope) -> None:
    """Pass signals on, and cancel the scope when the command has ended; kill it if it takes too long after a signal."""
    while not child.has_ended():
        child.pass_on()
        if child.deadline is not None and time.monotonic() > child.deadline:
            child.send(signal.SIGKILL)
        with trio.move_on_after(0.1):  # signals wake no task
            await trio.lowlevel.wait_readable(child.descriptor)
    scope.cancel()


def _listen_on(listening: socket.socket) -> Listen:
    """Return a function that listens on TCP, but for the port of `listening` uses that socket."""
    _, held = listening.getsockname()

    async def listen(host: str, port: int) -> Sequence[trio.abc.Listener[trio.abc.Stream]]:
        if port != held:
            return await listen_tcp(host, port)
        # A copy, since another attempt needs it again.
        return [trio.SocketListener(trio.socket.from_stdlib_socket(listening.dup()))]

    return listen


def _write_topics(plan: ClusterPlan, topics: Sequence[str]) -> None:
    """Write the topics to brokers' files, so that their first registration contains them."""
    for node in plan.nodes:
        if topics and node.role == "master":
            config, _ = BrokerConfig.from_properties(node.properties)
            table = TopicTable(config, ConfigFile(str(node.directory / "config" / "topics.json"), RealDisk()), wall_ms)
            for topic in topics:
                table.ensure(topic, QUEUES, READ_WRITE_PERM)
            table.persist()
