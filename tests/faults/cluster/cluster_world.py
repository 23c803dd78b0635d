"""A simulated cluster: nodes that can be killed, on the network, disks and clock of one process."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import trio
from cluster_audit import ENTRY, Contents, Ledger, missing, read_log, restart_faults
from cluster_later import TOPIC as LATER
from cluster_later import LaterLedger
from cluster_network import SimHost, SimNetwork
from cluster_offsets import OffsetLedger
from cluster_setting import Setting
from memory_disk import MemoryDisk, MemoryFile
from seeded_run import virtual_clock
from simulated_node import SimulatedNode

import triomq
from triomq_protocol.message_id import decode_offset_message_id
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
_CHECKPOINT_OFFSETS = struct.Struct(">qq")
_CHECKPOINT_OFFSETS_AT = 64 + 24
SYNC_S = (0.001, 0.03)
LOG_FILE_BYTES = 32768
MOST_RECORD_BYTES = 3400
"""Of one message."""
WRITTEN = (0.0, 0.0, 0.5, 0.5, 1.0)
"""Probabilities that bytes are found after a loss of power which were not forced to the disk."""
OFFSETS_WRITTEN_S = 0.4
OFFSETS_SURELY_WRITTEN_S = OFFSETS_WRITTEN_S + 0.1
PORTS = {MASTER: 10911, "broker-a-s": 11911, "broker-a-s2": 12911}


def checkpoint_faults(disk: MemoryDisk, root: str) -> list[str]:
    """The checkpoint vouches for no more than what was forced to the disk (docs/protocol/store.md §11.1)."""
    data = disk.files.get(f"{root}/checkpoint")
    if not isinstance(data, bytes):
        return []
    faults = []
    log_offset, queues_offset = _CHECKPOINT_OFFSETS.unpack_from(data, _CHECKPOINT_OFFSETS_AT)
    for path, file in disk.files.items():
        if not isinstance(file, MemoryFile):
            continue
        if path.startswith(f"{root}/commitlog/"):
            size = max(0, min(file.size, log_offset - int(path.rpartition("/")[2])))
            if file.durable_part(0, size) != file.buffer[:size]:
                faults.append(f"lost: the checkpoint says {log_offset}, and {path} is not on the disk up to there")
        elif path.startswith(f"{root}/consumequeue/"):
            on_disk = ENTRY.iter_unpack(file.durable_part(0, file.size))
            for entry, other in zip(ENTRY.iter_unpack(file.buffer[: file.size]), on_disk, strict=True):
                if entry != other and entry[1] > 0 and entry[0] < queues_offset:
                    faults.append(f"lost: the checkpoint says {queues_offset} of queues, and {path} lacks {entry}")
    return faults


class SimNode(SimulatedNode):
    """A node whose disk can lose what was not forced to it."""

    def __init__(self, world: World, name: str, serve: Callable[[SimNode, SimHost], Any]) -> None:
        self.world = world
        super().__init__(name, self._with_latency(MemoryDisk(now_ms=world.clock)), partial(serve, self), world)
        self.lives = 0
        self.kills = 0
        self.lost_power = False
        """Since its last start."""
        self.has_all = name == MASTER
        """Whether its disk must have whatever is acknowledged."""

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
            self.world.faults += [f"{self.name}: {fault}" for fault in checkpoint_faults(self.disk, "/store")]
            left = (
                self.disk.after_power_loss(chance, written=chance.choice(WRITTEN)) if power else self.disk.after_kill()
            )
            self.disk = self._with_latency(left)
            self.lost_power |= power
            self.kills += 1
            now = trio.current_time()
            self.world.offsets.lost(self.name, now - OFFSETS_SURELY_WRITTEN_S, now)
            self.crash(deliver=not power and chance.random() < 0.5)

    def log_part(self, offset: int, *, forced: bool = False) -> bytes:
        """Some bytes of the log; with `forced`, those that a loss of power certainly leaves."""
        start = offset % LOG_FILE_BYTES
        file = self.disk.files.get(f"/store/commitlog/{offset - start:020d}")
        if not isinstance(file, MemoryFile):
            return b""
        return (
            file.durable_part(start, start + MOST_RECORD_BYTES)
            if forced
            else file.buffer[start : start + MOST_RECORD_BYTES]
        )

    def _with_latency(self, disk: MemoryDisk) -> MemoryDisk:
        """Add latency to forcing bytes to the disk, so that a slave may have what its master's disk does not, and bytes
        that are written in the meantime are not forced."""

        async def run(chore: Callable[[], Any]) -> Any:
            network = self.world.network
            with disk.taking_time() as under_way:
                result = chore()
            await network.clock.sleep(network.chance.uniform(*SYNC_S))
            for end in under_way:
                end()
            return result

        disk.run = run  # type: ignore[method-assign]
        return disk

    def lose_disk(self) -> None:
        """Lose the disk; the node must be down."""
        self.disk = self._with_latency(MemoryDisk(now_ms=self.world.clock))
        self.world.offsets.disk_lost(self.name)
        self.has_all = False


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
        self.later = LaterLedger()
        self.faults: list[str] = []
        self.events: list[str] = []
        self.read: dict[tuple[int, int], bytes] = {}
        self.sending = True
        self.acknowledged = trio.Event()
        """Set when the next message is acknowledged."""
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

    def acknowledge(self, *args: Any, **kwargs: Any) -> None:
        """Enter an acknowledgement into the ledger (`Ledger.acknowledge`)."""
        self.ledger.acknowledge(*args, **kwargs)
        self.answered()

    def check_copies(self, body: bytes, result: triomq.SendResult) -> None:
        """A message was just acknowledged: it must be where the master and its answer say."""
        offset = decode_offset_message_id(result.offset_message_id).physical_offset
        master, replicated = self.nodes[MASTER], self.setting.synchronous and result.status is triomq.SendStatus.SEND_OK
        if self.setting.flush and master.up and body not in master.log_part(offset, forced=True):
            self.faults.append(f"lost: {body[:12]!r} is acknowledged, and is not yet on the disk")
        if replicated and not any(body in self.nodes[name].log_part(offset) for name in self.slaves):
            self.faults.append(f"lost: {body[:12]!r} is acknowledged, and no slave has it yet")

    def answered(self) -> None:
        """Wake those that wait for an acknowledgement."""
        acknowledged, self.acknowledged = self.acknowledged, trio.Event()
        acknowledged.set()

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
                "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
                "mappedFileSizeConsumeQueue": "640",
                "maxHashSlotNum": "100",
                "maxIndexNum": "400",
                "memoryBytes": "65536",
                # So that the checkpoint is written now and then.
                "flushIntervalConsumeQueue": "400",
                "flushConsumeQueueThoroughInterval": "800",
                "flushConsumerOffsetInterval": str(int(OFFSETS_WRITTEN_S * 1000)),
                "flushDelayOffsetInterval": "700",
                "transactionTimeOut": "1000",
                "transactionCheckMax": "1000",
                "transactionCheckInterval": "1500",
            }
        )
        return config


async def _serve_namesrv(node: SimNode, host: SimHost) -> None:
    config, _ = NamesrvConfig.from_properties({"listenPort": "9876", "bindAddress": "127.0.0.1"})
    await serve_namesrv(config, listen=host.listen, disk=node.disk, clock=node.world.clock)


@attrs.frozen
class _Restarted(trio.TaskStatus[Any]):
    """Checks a broker's files as soon as it serves."""

    node: SimNode
    before: Contents
    lost_power: bool

    def started(self, value: Any = None) -> None:
        node, world = self.node, self.node.world
        follows = world.roles[node.name] == "SLAVE"
        found, faults = restart_faults(
            node.disk, "/store", TOPIC, self.before, may_be_torn=self.lost_power or follows, is_growing=follows
        )
        if node.has_all:
            faults += missing(world.ledger.acks, {node.name: found})
        world.faults += [f"{node.name}: {fault} (at {trio.current_time():.3f}, at its start)" for fault in faults]


async def _serve_broker(node: SimNode, host: SimHost) -> None:
    world = node.world
    restarted = _Restarted(node, read_log(node.disk, "/store", TOPIC), node.lost_power)
    node.lost_power = False
    await serve_broker(
        world.broker_config(node.name),
        disk=node.disk,
        dial=host.dial,
        listen=host.listen,
        clock=world.clock,
        chance=random.Random(f"{node.name} {world.seed}"),
        task_status=restarted,
    )


async def _create_topic(world: World) -> None:
    async with world.client("operator") as client:
        with trio.fail_after(30):
            while True:
                try:
                    for topic, queues in ((TOPIC, QUEUES), (LATER, 1)):
                        await client.admin.create_topic(topic, queues=queues)
                        await client.admin.route(topic)
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
