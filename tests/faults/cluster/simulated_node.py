"""A node of a simulated cluster, on a network, a disk and a clock of one process: what all kinds of worlds have in common."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio
from cluster_network import SimHost, SimNetwork
from memory_disk import MemoryDisk


class WorldOfNodes(Protocol):
    """What a node needs of its world."""

    nursery: trio.Nursery
    network: SimNetwork
    faults: list[str]


class SimulatedNode:
    """A name server or broker: its tasks, its network and its disk.

    Args:
        name: the node's.
        disk: it is empty.
        serve: runs the server on the node's host, until it is cancelled.
        world: where errors are noted that end the node.
    """

    def __init__(
        self, name: str, disk: MemoryDisk, serve: Callable[[SimHost], Awaitable[Any]], world: WorldOfNodes
    ) -> None:
        self.name = name
        self.disk = disk
        self.up = False
        self._serve = serve
        self._world = world
        self._host: SimHost | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    def start(self) -> None:
        """Start on the disk as it is."""
        if not self.up:
            self.up = True
            self._host, self._scope, self._ended = self._world.network.host(self.name), trio.CancelScope(), trio.Event()
            self._world.nursery.start_soon(self._live, self._host, self._scope, self._ended)

    def crash(self, *, deliver: bool) -> None:
        """End at once, as by SIGKILL.

        Args:
            deliver: whether what was sent before still arrives.
        """
        assert self._host is not None
        self._host.crash(deliver=deliver)
        self._scope.cancel()
        self.up = False

    async def stop(self) -> None:
        """Shut down cleanly, as on SIGTERM."""
        if self.up:
            self.up = False
            self._scope.cancel()
            await self._ended.wait()

    async def _live(self, host: SimHost, scope: trio.CancelScope, ended: trio.Event) -> None:
        try:
            with scope:
                await self._serve(host)
        except Exception as error:
            # Errors in the tasks of a killed node do not count.
            if host.alive:
                self._world.faults.append(f"{self.name} ended by itself: {error!r}")
                logging.getLogger(__name__).exception("%s", self.name)
        finally:
            host.crash(deliver=True)
            ended.set()
