"""Faults that a test can cause in a cluster: of nodes, their connections, their disks."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from triomq_server.cluster import Cluster
from triomq_testing.steered.clock import Calls, SteeredClock
from triomq_testing.steered.disk import SteeredDisk
from triomq_testing.steered.network import SteeredNetwork

SLOWEST_S = 3600
"""The longest delay of a piece of data, in seconds."""

SILENT_MS = 120_000
"""How long a name server keeps a broker that sends nothing, in ms."""


@attrs.define
class Weaknesses:
    """The parts of one node that can be broken, and since when it is frozen, by the test's clock."""

    disk: SteeredDisk
    network: SteeredNetwork
    frozen_at_ms: int | None = None


class Faults:
    """Breaks and mends the nodes of a cluster by their names: ``broker-a``, ``broker-a-s``, ``namesrv-0``.

    Every method may be called from any thread; without a name it affects all brokers. Methods raise ValueError if
    there is no such node, RuntimeError if the cluster was not started for faults.
    """

    def __init__(
        self,
        cluster: Cluster | None,
        nodes: dict[str, Weaknesses],
        clock: SteeredClock,
        calls: Calls,
        *,
        possible: bool,
        how: str = "ask for the fixture `rocketmq_faults` among the test's arguments, or for `Servers.open(faults=True)`",
    ) -> None:
        self._nodes_by_name = {} if cluster is None else cluster.nodes
        self._nodes = nodes
        self._clock = clock
        clock.passed.append(self._expire_frozen)
        self._calls = calls
        self._possible = possible
        self._how = how

    @property
    def broker_sets(self) -> frozenset[str]:
        """The names of the broker sets, including those that do not run."""
        plans = (self._nodes_by_name[node].plan for node in self._nodes)
        return frozenset(plan.properties["brokerName"] for plan in plans if plan.kind == "broker")

    def kill(self, name: str | None = None) -> None:
        """End a node as SIGKILL would: connections break, and nothing more is written or unregistered."""

        async def kill() -> None:
            for node, weak in self._chosen(name):
                weak.disk.dead = True
                await weak.network.cut()
                await self._nodes_by_name[node].stop()
                weak.disk.dead = False
                weak.network.mend()
                weak.frozen_at_ms = None  # cutting it off has ended that

        self._calls.call(kill)

    def stop(self, name: str | None = None) -> None:
        """Stop a node cleanly, as SIGTERM would."""

        async def stop() -> None:
            for node, _ in self._chosen(name):
                await self._nodes_by_name[node].stop()

        self._calls.call(stop)

    def start(self, name: str | None = None) -> None:
        """Start a killed or stopped node again, on its files."""

        async def start() -> None:
            for node, _ in self._chosen(name):
                await self._nodes_by_name[node].start()

        self._calls.call(start)

    def freeze(self, name: str | None = None) -> None:
        """Stop a node's work: its connections stay open, and requests get no answer.

        After `Clock.advance` by two minutes, the name servers drop a frozen broker.
        """

        async def freeze() -> None:
            for _, weak in self._chosen(name):
                weak.network.freeze()
                weak.frozen_at_ms = self._clock()

        self._calls.call(freeze)

    def cut(self, name: str | None = None) -> None:
        """Break a node's connections; new ones end at once."""

        async def cut() -> None:
            for _, weak in self._chosen(name):
                await weak.network.cut()

        self._calls.call(cut)

    def slow(self, name: str | None = None, *, seconds: float) -> None:
        """Delay each piece of data that a node sends or receives by some seconds.

        Raises:
            ValueError: the seconds are not between 0 and 3600.
        """
        if not 0 <= seconds <= SLOWEST_S:
            raise ValueError(f"slow needs seconds, from 0 to {SLOWEST_S}, not {seconds:g}")

        async def slow() -> None:
            for _, weak in self._chosen(name):
                weak.network.delay_s = seconds

        self._calls.call(slow)

    def fill_disk(self, name: str | None = None) -> None:
        """Leave a broker no space: it refuses messages."""
        self._calls.call(lambda: self._set_full(name, full=True))

    def mend(self, name: str | None = None) -> None:
        """Undo `freeze`, `cut`, `slow` and `fill_disk`; `start` starts killed nodes."""

        async def mend() -> None:
            for _, weak in self._chosen(name):
                weak.network.delay_s = 0
                weak.network.mend()
                weak.network.thaw()
                weak.frozen_at_ms = None
            await self._set_full(name, full=False)

        self._calls.call(mend)

    async def _set_full(self, name: str | None, *, full: bool) -> None:
        for _, weak in self._chosen(name):
            weak.disk.full = full
        self._clock.waits.clock_set()  # brokers check their disks now
        await self._clock.waits.wait_idle()

    async def _expire_frozen(self) -> None:
        for weak in self._nodes.values():
            if weak.frozen_at_ms is not None and self._clock() >= weak.frozen_at_ms + SILENT_MS:
                await weak.network.break_dialled()

    def _chosen(self, name: str | None) -> Iterable[tuple[str, Weaknesses]]:
        if not self._possible:
            raise RuntimeError(f"this cluster was started without faults: {self._how}")
        if name is None:
            return [
                (node, weak) for node, weak in self._nodes.items() if self._nodes_by_name[node].plan.kind == "broker"
            ]
        if name not in self._nodes:
            raise ValueError(f"there is no node {name}; known: {', '.join(self._nodes)}")
        return [(name, self._nodes[name])]
