"""A simulated cluster with a consumer group in one process: brokers and members start, stop and are killed.

Brokers and name server are the real ones, members are the real SDK; network, disks and clock are simulated.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from functools import partial

import attrs
import trio
from cluster_network import SimHost, SimNetwork
from consumer_ledger import Ledger
from memory_disk import MemoryDisk
from seeded_run import virtual_clock
from simulated_node import SimulatedNode

import triomq
from triomq_server.broker.lifecycle import serve_broker
from triomq_server.config import BrokerConfig, NamesrvConfig
from triomq_server.namesrv import serve_namesrv

TOPIC = "work"
GROUP = "workers"
NAME_SERVER = "127.0.0.1:9876"
EPOCH_MS = 1_795_000_000_000
PORTS = {"broker-a": 10911, "broker-b": 12911}
STRATEGIES: dict[str, triomq.plugins.AllocateStrategy] = {
    "AVG": triomq.plugins.Average(),
    "AVG_BY_CIRCLE": triomq.plugins.AverageByCircle(),
    "CONSISTENT_HASH": triomq.plugins.ConsistentHash(),
    "STICKY": triomq.plugins.Sticky(),
}


@attrs.frozen
class Setting:
    """The settings that a seed chooses.

    Args:
        kind: concurrent, ordered, or lite.
        brokers: how many.
        queues: per broker.
        strategy: the allocation of queues to members.
        failing: share of handler calls that fail.
    """

    kind: str
    brokers: int
    queues: int
    strategy: str
    failing: float

    @classmethod
    def drawn(cls, chance: random.Random) -> Setting:
        """A seed's."""
        kind = chance.choice(("concurrent", "ordered", "ordered", "lite"))
        return cls(
            kind=kind,
            brokers=chance.randint(1, 2),
            queues=chance.randint(1, 5),
            strategy=chance.choice(list(STRATEGIES)),
            failing=0.0 if kind == "lite" else chance.choice((0.0, 0.05, 0.2)),
        )


class Node(SimulatedNode):
    """A node whose starts are in the ledger."""

    def __init__(self, world: World, name: str, serve: Callable[[Node, SimHost], Awaitable[None]]) -> None:
        self.world = world
        super().__init__(name, MemoryDisk(now_ms=world.clock), partial(serve, self), world)

    def start(self) -> None:
        """Start on the disk as it is."""
        if not self.up and self.name != "namesrv":
            self.world.ledger.broker_starts_s.append(trio.current_time())
        super().start()

    def kill(self) -> None:
        """SIGKILL: what was written remains."""
        if self.up:
            self.disk = self.disk.after_kill()
            self.crash(deliver=self.world.chance.random() < 0.5)


class Member:
    """One run of one member of the group."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.host = world.network.host(name)
        self.up = True
        self._leave = trio.Event()
        self._scope = trio.CancelScope()
        self.ended = trio.Event()
        world.nursery.start_soon(self._live)

    def kill(self) -> None:
        """SIGKILL: nothing more is sent or handled."""
        self.up = False
        self.host.crash(deliver=self.world.chance.random() < 0.5)
        self.world.ledger.disown(self.name, trio.current_time())
        self._scope.cancel()

    def leave(self) -> None:
        """Leave the group cleanly."""
        self.up = False
        self._leave.set()

    async def _live(self) -> None:
        world, ledger = self.world, self.world.ledger
        try:
            with self._scope:
                async with world.client(self.name, self.host) as client:
                    await (self._poll(client) if world.setting.kind == "lite" else self._push(client))
        except Exception as error:
            if self.host.alive:
                world.faults.append(f"{self.name} ended by itself: {error!r}")
                logging.getLogger(__name__).exception("%s", self.name)
        finally:
            self.up = False
            self.host.crash(deliver=True)
            ledger.disown(self.name, trio.current_time())
            self.ended.set()

    async def _push(self, client: triomq.Client) -> None:
        setting = self.world.setting
        async with client.push_consumer(
            GROUP,
            ordered=setting.kind == "ordered",
            start_from="earliest",
            allocate=STRATEGIES[setting.strategy],
            drain_s=2.0,
            callbacks=triomq.ConsumerCallbacks(on_assigned=self._assigned, on_revoked=self._revoked),
        ) as consumer:
            await self._subscribe(consumer.subscribe)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run, consumer, nursery.cancel_scope)
                await self._leave.wait()
                consumer.drain()

    async def _run(self, consumer: triomq.PushConsumer, scope: trio.CancelScope) -> None:
        await consumer.run(self._handle, concurrency=self.world.chance.randint(1, 4))
        scope.cancel()

    async def _subscribe(self, subscribe: Callable[[str], Awaitable[None]]) -> None:
        while True:
            try:
                await subscribe(TOPIC)
            except triomq.TransientError:
                await trio.sleep(0.5)
            else:
                return

    async def _handle(self, message: triomq.ReceivedMessage) -> None:
        world = self.world
        place = (message.queue.broker_name, message.queue.queue_id)
        handling = world.ledger.begin(self.name, place, message.queue_offset, message.body, trio.current_time())
        try:
            await trio.sleep(world.chance.choice((0.0, 0.001, 0.02, 0.02, 0.3)))
            if world.chance.random() < world.setting.failing and not world.faultless:
                raise RuntimeError("the handler fails on purpose")
            handling.done = self.host.alive
        finally:
            handling.end_s = trio.current_time()

    async def _poll(self, client: triomq.Client) -> None:
        setting = self.world.setting
        async with client.lite_pull_consumer(
            GROUP,
            start_from="earliest",
            allocate=STRATEGIES[setting.strategy],
            callbacks=triomq.ConsumerCallbacks(on_assigned=self._assigned, on_revoked=self._revoked),
        ) as consumer:
            await self._subscribe(consumer.subscribe)
            while not self._leave.is_set():
                for message in await consumer.poll(1.0):
                    await self._handle(message)

    def _assigned(self, queues: Collection[triomq.MessageQueue]) -> None:
        for queue in queues:
            if queue.topic == TOPIC:
                self.world.ledger.own(self.name, (queue.broker_name, queue.queue_id), trio.current_time())

    def _revoked(self, queues: Collection[triomq.MessageQueue]) -> None:
        for queue in queues:
            if queue.topic == TOPIC:
                self.world.ledger.disown(self.name, trio.current_time(), (queue.broker_name, queue.queue_id))


class World:
    """One run of one seed."""

    def __init__(self, seed: int, nursery: trio.Nursery) -> None:
        self.seed = seed
        self.nursery = nursery
        self.chance = random.Random(f"consumers {seed}")
        self.setting = Setting.drawn(self.chance)
        names = list(PORTS)[: self.setting.brokers]
        owners = {NAME_SERVER: "namesrv"}
        for name in names:
            owners |= {f"127.0.0.1:{PORTS[name] + distance}": name for distance in (-2, 0, 1)}
        self.network = SimNetwork(random.Random(f"network {seed}"), owners, virtual_clock())
        self.ledger = Ledger()
        self.faults: list[str] = []
        self.events: list[str] = []
        self.sending = True
        self.faultless = False
        """Whether handlers no longer fail."""
        self.nodes = {"namesrv": Node(self, "namesrv", _serve_namesrv)}
        self.nodes |= {name: Node(self, name, _serve_broker) for name in names}
        self.members: list[Member] = []

    def clock(self) -> int:
        """The wall clock of all nodes and members, ms."""
        return EPOCH_MS + int(trio.current_time() * 1000)

    def note(self, text: str) -> None:
        """Something happened."""
        self.events.append(f"{trio.current_time():8.3f} {text}")

    def join(self) -> None:
        """Start another member."""
        self.members.append(Member(self, f"member-{len(self.members)}"))

    @property
    def present(self) -> list[Member]:
        """Members that have neither ended nor begun to leave."""
        return [member for member in self.members if member.up]

    def client(self, name: str, host: SimHost) -> AbstractAsyncContextManager[triomq.Client]:
        """The real SDK, on this network and clock."""
        return triomq.open_client(
            NAME_SERVER,
            dial=host.dial,
            client_ip="127.0.0.1",
            instance_name=name,
            clock=self.clock,
            chance=random.Random(f"{name} {self.seed}"),
            refresh_every_s=10.0,
        )


async def _serve_namesrv(node: Node, host: SimHost) -> None:
    config, _ = NamesrvConfig.from_properties({"listenPort": "9876", "bindAddress": "127.0.0.1"})
    await serve_namesrv(config, listen=host.listen, disk=node.disk, clock=node.world.clock)


async def _serve_broker(node: Node, host: SimHost) -> None:
    world = node.world
    config, _ = BrokerConfig.from_properties(
        {
            "brokerClusterName": "C",
            "brokerName": node.name,
            "brokerId": "0",
            "brokerRole": "ASYNC_MASTER",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": str(PORTS[node.name]),
            "namesrvAddr": NAME_SERVER,
            "storePathRootDir": "/store",
            "messageDelayLevel": "1s 1s 1s 2s 2s 3s 4s 5s",
            # Small files: creating large ones would take most of a run.
            "mappedFileSizeCommitLog": "262144",
            "mappedFileSizeConsumeQueue": "20000",
            "maxHashSlotNum": "100",
            "maxIndexNum": "400",
            "memoryBytes": "1048576",
        }
    )
    await serve_broker(
        config,
        disk=node.disk,
        dial=host.dial,
        listen=host.listen,
        clock=world.clock,
        chance=random.Random(f"{node.name} {world.seed}"),
    )
