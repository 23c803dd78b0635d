"""A simulated cluster: nodes that can be killed, on the network, disks and clock of one process."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import trio
from cluster_audit import Ledger
from cluster_network import SimHost, SimNetwork
from cluster_offsets import OffsetLedger
from cluster_setting import Setting
from memory_disk import MemoryDisk
from seeded_run import virtual_clock
from simulated_node import SimulatedNode

import triomq
from triomq_server.broker.lifecycle import serve_broker
from triomq_server.config import BrokerConfig, NamesrvConfig
from triomq_server.namesrv import serve_namesrv

TOPIC = "ledger"
QUEUES = 3
COMMITTED = 1000
"""Consumers commit to queues of these ids, which the topic does not have: then any number may be committed, and stays
whatever messages a power failure or a new master has lost."""
NAME_SERVER = "127.0.0.1:9876"
MASTER = "broker-a"
EPOCH_MS = 1_795_000_000_000
SYNC_S = (0.001, 0.03)
OFFSETS_WRITTEN_S = 0.4
OFFSETS_SURELY_WRITTEN_S = OFFSETS_WRITTEN_S + 0.1
PORTS = {MASTER: 10911, "broker-a-s": 11911, "broker-a-s2": 12911}


class SimNode(SimulatedNode):
    """A node whose disk can lose what was not forced to it."""

    def __init__(self, world: World, name: str, serve: Callable[[SimNode, SimHost], Any]) -> None:
        self.world = world
        super().__init__(name, self._with_latency(MemoryDisk(now_ms=world.clock)), partial(serve, self), world)
        self.lives = 0

    def start(self) -> None:
        """Start on the disk as it is."""
        if not self.up:
            self.lives += 1
        super().start()

    def kill(self, *, power: bool = False) -> None:
        """SIGKILL: what was written remains. After a loss of power, only what was forced to the disk certainly
        remains."""
        if self.up:
            chance = self.world.chance
            left = self.disk.after_power_loss(chance) if power else self.disk.after_kill()
            self.disk = self._with_latency(left)
            now = trio.current_time()
            self.world.offsets.lost(self.name, now - OFFSETS_SURELY_WRITTEN_S, now)
            self.crash(deliver=not power and chance.random() < 0.5)

    def _with_latency(self, disk: MemoryDisk) -> MemoryDisk:
        """Add latency to forcing bytes to the disk, so that a slave may have what its master's disk does not."""

        async def run(chore: Callable[[], Any]) -> Any:
            network = self.world.network
            await network.clock.sleep(network.chance.uniform(*SYNC_S))
            return chore()

        disk.run = run  # type: ignore[method-assign]
        return disk

    def lose_disk(self) -> None:
        """Lose the disk; the node must be down."""
        self.disk = self._with_latency(MemoryDisk(now_ms=self.world.clock))
        self.world.offsets.disk_lost(self.name)


class World:
    """One run of one seed."""

    def __init__(self, seed: int, nursery: trio.Nursery, setting: Setting | None = None) -> None:
        self.seed = seed
        self.nursery = nursery
        self.chance = random.Random(f"cluster {seed}")
        self.setting = setting or Setting.drawn(self.chance)
        names = [MASTER, "broker-a-s", "broker-a-s2"][: 1 + self.setting.slaves]
        owners = {NAME_SERVER: "namesrv"}
        for name in names:
            owners |= {f"127.0.0.1:{PORTS[name] + distance}": name for distance in (-2, 0, 1)}
        self.network = SimNetwork(random.Random(f"network {seed}"), owners, virtual_clock())
        self.ledger = Ledger()
        self.offsets = OffsetLedger()
        self.faults: list[str] = []
        self.events: list[str] = []
        self.read: dict[tuple[int, int], bytes] = {}
        self.sending = True
        self.nodes = {"namesrv": SimNode(self, "namesrv", _serve_namesrv)}
        self.nodes |= {name: SimNode(self, name, _serve_broker) for name in names}
        self.roles = dict.fromkeys(names, "SLAVE")
        self.roles[MASTER] = "SYNC_MASTER" if self.setting.synchronous else "ASYNC_MASTER"

    def clock(self) -> int:
        """The wall clock of all nodes and clients, ms."""
        return EPOCH_MS + int(trio.current_time() * 1000)

    def note(self, text: str) -> None:
        """Something happened."""
        self.events.append(f"{trio.current_time():8.3f} {text}")

    @property
    def slaves(self) -> list[str]:
        """Names of the slaves."""
        return [name for name in self.nodes if name not in ("namesrv", MASTER)]

    def client(self, name: str) -> Any:
        """The real SDK, on this network and clock."""
        return triomq.open_client(
            NAME_SERVER,
            dial=self.network.host(name).dial,
            client_ip="127.0.0.1",
            instance_name=name,
            clock=self.clock,
            chance=random.Random(f"{name} {self.seed}"),
            refresh_every_s=5.0,
        )

    def broker_config(self, name: str) -> BrokerConfig:
        """Tiny files, so that a few messages roll all of them over."""
        setting = self.setting
        config, _ = BrokerConfig.from_properties(
            {
                "brokerClusterName": "C",
                "brokerName": "broker-a",
                "brokerId": "0" if self.roles[name] != "SLAVE" else str(list(self.roles).index(name) or 9),
                "brokerRole": self.roles[name],
                "brokerIP1": "127.0.0.1",
                "brokerIP2": "127.0.0.1",
                "listenPort": str(PORTS[name]),
                "namesrvAddr": NAME_SERVER,
                "storePathRootDir": "/store",
                "flushDiskType": "SYNC_FLUSH" if setting.flush else "ASYNC_FLUSH",
                "mappedFileSizeCommitLog": "32768",
                "mappedFileSizeConsumeQueue": "640",
                "maxHashSlotNum": "100",
                "maxIndexNum": "400",
                "memoryBytes": "65536",
                "flushConsumerOffsetInterval": str(int(OFFSETS_WRITTEN_S * 1000)),
            }
        )
        return config


async def _serve_namesrv(node: SimNode, host: SimHost) -> None:
    config, _ = NamesrvConfig.from_properties({"listenPort": "9876", "bindAddress": "127.0.0.1"})
    await serve_namesrv(config, listen=host.listen, disk=node.disk, clock=node.world.clock)


async def _serve_broker(node: SimNode, host: SimHost) -> None:
    world = node.world
    await serve_broker(
        world.broker_config(node.name),
        disk=node.disk,
        dial=host.dial,
        listen=host.listen,
        clock=world.clock,
        chance=random.Random(f"{node.name} {world.seed}"),
    )


async def _create_topic(world: World) -> None:
    async with world.client("operator") as client:
        with trio.fail_after(30):
            while True:
                try:
                    await client.admin.create_topic(TOPIC, queues=QUEUES)
                    await client.admin.route(TOPIC)
                except triomq.MQError:
                    await trio.sleep(0.1)
                else:
                    return


async def begin(world: World) -> None:
    """Start every node and create the topic."""
    for name, node in world.nodes.items():
        node.start()
        await trio.sleep(0.2 if name == "namesrv" else 0.05)
    await _create_topic(world)
