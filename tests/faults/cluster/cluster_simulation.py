"""A whole cluster in one process: name server, master, slaves, senders and a reader, on a virtual clock, in-memory network and disks.

A seed decides everything: how the cluster is set up, what is sent, and which nodes are killed, stopped, muted, cut off or slowed
down, and when. Every acknowledgement goes into a ledger outside; afterwards the nodes' files are read and compared with it.
The same seed does the same again, down to the order of tasks.

    python tests/faults/cluster/cluster_simulation.py --count 1000      # seeds 0 to 999
    python tests/faults/cluster/cluster_simulation.py --first 4711 -v   # one seed, with its events
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import attrs
import trio
import trio.testing
from cluster_audit import Contents, Ledger, differing, missing, queue_faults, read_log
from cluster_network import SimHost, SimNetwork

import triomq
from triomq_protocol.codes import RequestCode
from triomq_protocol.command import Command
from triomq_protocol.requests.route import KVTable
from triomq_server.broker.lifecycle import serve_broker
from triomq_server.config import BrokerConfig, NamesrvConfig
from triomq_server.namesrv import serve_namesrv
from triomq_server.replication.master import HaMaster
from triomq_server.store.memory_disk import MemoryDisk
from triomq_server.wire import LinkError, open_link

__all__ = ["MASTER", "TOPIC", "HaMaster", "Outcome", "Setting", "World", "begin", "kinds", "simulate"]

TOPIC = "ledger"
QUEUES = 3
NAME_SERVER = "127.0.0.1:9876"
MASTER = "broker-a"
EPOCH_MS = 1_795_000_000_000
EVENTS = (8, 14)
GAP_S = (0.05, 1.5)
THINK_S = 0.35
SYNC_S = (0.001, 0.03)
SETTLE_S = 90.0
QUIET_ROUNDS = 10
"""So many rounds over all queues without a message, and a reader takes itself to be at the end."""
READ_LIMIT_S = 300.0
LEAST_ACKS = 10
PORTS = {MASTER: 10911, "broker-a-s": 11911, "broker-a-s2": 12911}


@attrs.frozen
class Setting:
    """What a seed makes of the cluster.

    Attributes:
      synchronous: SYNC_MASTER: SEND_OK promises that a slave has the message.
      flush: SYNC_FLUSH: SEND_OK promises that the master's disk has it.
      slaves: how many.
      disk_lost: at the end the master is gone with its disk, and a slave takes its place.
      power: the master's machine may lose its power, which leaves it what it had forced to its disk: perhaps less than a
        slave has.
      succession: at the end a slave takes the master's place, and the old master comes back as a slave, perhaps with
        messages that its successor has not.
    """

    synchronous: bool
    flush: bool
    slaves: int
    disk_lost: bool
    power: bool
    succession: bool

    @classmethod
    def drawn(cls, chance: random.Random) -> Setting:
        synchronous = chance.random() < 0.6
        flush = chance.random() < 0.4
        power = flush and chance.random() < 0.5
        disk_lost = synchronous and not power and chance.random() < 0.4
        succession = not power and not disk_lost and chance.random() < 0.3
        return cls(synchronous, flush, chance.choice((1, 1, 2)), disk_lost, power, succession)


@attrs.frozen
class Outcome:
    """What a seed showed; `digest` is equal for equal runs."""

    seed: int
    setting: Setting
    acknowledged: int
    refused: int
    statuses: Counter[str]
    stored: int
    read: int
    virtual_s: float
    events: list[str]
    faults: list[str]
    digest: str


class SimNode:
    """A name server or broker that can be killed: its tasks, its network and its disk."""

    def __init__(self, world: World, name: str, serve: Callable[[SimNode, SimHost], Any]) -> None:
        self.world = world
        self.name = name
        self.serve = serve
        self.disk = self._with_latency(MemoryDisk(now_ms=world.clock))
        self.up = False
        self._host: SimHost | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    def start(self) -> None:
        """A new life, on the disk as it is."""
        if not self.up:
            self.up = True
            self._host, self._scope, self._ended = self.world.network.host(self.name), trio.CancelScope(), trio.Event()
            self.world.nursery.start_soon(self._live, self._host, self._scope, self._ended)

    def kill(self, *, power: bool = False) -> None:
        """SIGKILL: what was written stays. With the machine's power, only what was forced to the disk surely does."""
        if self.up:
            assert self._host is not None
            chance = self.world.chance
            left = self.disk.after_power_loss(chance) if power else self.disk.after_kill()
            self.disk = self._with_latency(left)
            self._host.crash(deliver=not power and chance.random() < 0.5)
            self._scope.cancel()
            self.up = False

    def _with_latency(self, disk: MemoryDisk) -> MemoryDisk:
        """Forcing bytes to the disk takes a while, so that a slave may have what its master's disk does not."""

        async def run(chore: Callable[[], Any]) -> Any:
            await trio.sleep(self.world.network.chance.uniform(*SYNC_S))
            return chore()

        disk.run = run  # type: ignore[method-assign]
        return disk

    async def stop(self) -> None:
        """In order, as SIGTERM asks."""
        if self.up:
            self.up = False
            self._scope.cancel()
            await self._ended.wait()

    async def _live(self, host: SimHost, scope: trio.CancelScope, ended: trio.Event) -> None:
        try:
            with scope:
                await self.serve(self, host)
        except Exception as error:
            # What a dead node's tasks run into is nobody's business.
            if host.alive:
                self.world.faults.append(f"{self.name} ended by itself: {error!r}")
                logging.getLogger(__name__).exception("%s", self.name)
        finally:
            host.crash(deliver=True)
            ended.set()


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
        self.network = SimNetwork(random.Random(f"network {seed}"), owners)
        self.ledger = Ledger()
        self.faults: list[str] = []
        self.events: list[str] = []
        self.read: dict[tuple[int, int], bytes] = {}
        self.sending = True
        self.nodes = {"namesrv": SimNode(self, "namesrv", _serve_namesrv)}
        self.nodes |= {name: SimNode(self, name, _serve_broker) for name in names}
        self.roles = dict.fromkeys(names, "SLAVE")
        self.roles[MASTER] = "SYNC_MASTER" if self.setting.synchronous else "ASYNC_MASTER"

    def clock(self) -> int:
        """The wall clock of everybody, ms."""
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


# -- traffic -----------------------------------------------------------------------------------------------------------


async def _send(world: World, name: str) -> None:
    chance = random.Random(f"load {name} {world.seed}")
    number = 0
    async with world.client(name) as client, client.producer("load") as producer:
        while world.sending:
            number += 1
            body = b"%s-%d " % (name.encode(), number) + bytes(chance.choice((10, 100, 1000, 3000)))
            bodies = [body] if chance.random() < 0.9 else [b"%s-%d.%d " % (name.encode(), number, i) for i in range(5)]
            messages = [triomq.Message(TOPIC, each, keys=f"k{number}") for each in bodies]
            try:
                result = await (producer.send(messages[0]) if len(bodies) == 1 else producer.send_batch(messages))
            except triomq.MQError:
                world.ledger.refused += 1
            else:
                world.ledger.acknowledge(
                    (result.queue.queue_id, result.queue_offset),
                    bodies,
                    status=result.status.name,
                    synchronous=world.setting.synchronous,
                    sender=name,
                )
            await trio.sleep(chance.uniform(0, THINK_S))


async def _read(world: World, name: str) -> None:
    """Pull from wherever the brokers say, and remember: what was read once must never be something else later."""
    async with world.client(name) as client, client.pull_consumer("readers") as consumer:
        await _read_to_end(world, consumer, lambda: world.sending)


async def _read_to_end(world: World, consumer: triomq.PullConsumer, more: Callable[[], bool]) -> None:
    queues = [triomq.MessageQueue(TOPIC, "broker-a", number) for number in range(QUEUES)]
    positions = dict.fromkeys(queues, 0)
    latest = trio.current_time() + READ_LIMIT_S
    idle_rounds = 0
    while more() or idle_rounds < QUIET_ROUNDS:
        idle_rounds += 1
        if trio.current_time() > latest:
            break
        for queue in queues:
            try:
                result = await consumer.pull(queue, offset=positions[queue])
            except triomq.MQError:
                await trio.sleep(0.2)
                continue
            idle_rounds = 0 if result.messages else idle_rounds
            for message in result.messages:
                place = (queue.queue_id, message.queue_offset)
                if message.queue_offset != positions[queue]:
                    world.faults.append(f"order: the reader got {place} at offset {positions[queue]}")
                if world.read.setdefault(place, message.body) != message.body and not world.setting.power:
                    world.faults.append(f"changed: the reader got another message from {place} than before")
                positions[queue] = message.queue_offset + 1
            if not result.messages and result.next_offset != positions[queue]:
                # What a reader saw before it was acknowledged may be gone with the master's power.
                if not world.setting.power:
                    world.faults.append(f"order: the reader was sent from {positions[queue]} to {result.next_offset}")
                positions[queue] = result.next_offset
        await trio.sleep(0.3)


# -- faults ------------------------------------------------------------------------------------------------------------


async def _disturb(world: World) -> None:
    chance = world.chance
    async with trio.open_nursery() as nursery:
        for _ in range(chance.randint(*EVENTS)):
            await trio.sleep(chance.uniform(*GAP_S))
            kind = chance.choice(("kill", "kill", "kill", "stop", "mute", "mute", "cut", "slow"))
            lasting_s = chance.choice((0.05, 0.5, 2.0, 5.0, 25.0 if kind in ("mute", "cut") else 1.0)) * chance.uniform(
                0.5, 1.5
            )
            name = chance.choice([MASTER, MASTER, *world.slaves, *world.slaves, "namesrv"])
            nursery.start_soon(_FAULTS[kind], world, name, lasting_s)


async def _kill(world: World, name: str, lasting_s: float) -> None:
    node = world.nodes[name]
    if not node.up:
        return
    # A slave's acknowledgement is for its memory, so it keeps its power where that was promised.
    may_lose_power = world.setting.power if name == MASTER else name in world.slaves and not world.setting.synchronous
    power = may_lose_power and world.chance.random() < 0.5
    world.note(f"kill {name}{' by loss of power' if power else ''} for {lasting_s:.2f} s")
    node.kill(power=power)
    if name == MASTER:
        _check_slaves(world)
    await trio.sleep(lasting_s)
    world.note(f"start {name}")
    node.start()


async def _stop(world: World, name: str, lasting_s: float) -> None:
    node = world.nodes[name]
    if node.up:
        world.note(f"stop {name} for {lasting_s:.2f} s")
        await node.stop()
        await trio.sleep(lasting_s)
        world.note(f"start {name}")
        node.start()


async def _mute(world: World, name: str, lasting_s: float) -> None:
    world.note(f"mute {name} for {lasting_s:.2f} s")
    end = world.network.mute_node(name)
    await trio.sleep(lasting_s)
    world.note(f"unmute {name}")
    end()


async def _between(world: World, name: str, lasting_s: float, *, how: str) -> None:
    other = world.chance.choice([each for each in (*world.nodes, "sender-0") if each != name])
    world.note(f"{how} {name} and {other} for {lasting_s:.2f} s")
    network = world.network
    end = (
        network.cut_pair(name, other)
        if how == "cut"
        else network.slow_pair(name, other, world.chance.choice((0.05, 1.0)))
    )
    await trio.sleep(lasting_s)
    end()


_FAULTS: dict[str, Callable[[World, str, float], Any]] = {
    "kill": _kill,
    "stop": _stop,
    "mute": _mute,
    "cut": partial(_between, how="cut"),
    "slow": partial(_between, how="slow"),
}


# -- checks ------------------------------------------------------------------------------------------------------------


def _contents(world: World, name: str) -> Contents:
    return read_log(world.nodes[name].disk, "/store", TOPIC)


def _check_slaves(world: World) -> None:
    """The master is gone, perhaps for ever: what it promised to be on a slave must be there now."""
    if world.setting.synchronous:
        promised = [ack for ack in world.ledger.acks if ack.replicated]
        faults = missing(promised, {name: _contents(world, name) for name in world.slaves})
        world.faults += [f"{fault} (at {trio.current_time():.3f}, the master just gone)" for fault in faults]


async def _log_end(world: World, name: str) -> int:
    try:
        with trio.fail_after(5):
            async with open_link(f"127.0.0.1:{PORTS[name]}", dial=world.network.host("auditor").dial) as link:
                answer = await link.request(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), 3)
                return int(KVTable.decode(answer.body).table["commitLogMaxOffset"])
    except (OSError, LinkError, trio.TooSlowError):
        return -1


async def _settle(world: World) -> None:
    """Everything runs and nothing disturbs: slaves catch up."""
    for node in world.nodes.values():
        node.start()
    with trio.move_on_after(SETTLE_S if not world.setting.power else SETTLE_S / 3):
        while True:
            ends = {name: await _log_end(world, name) for name in (MASTER, *world.slaves)}
            if len(set(ends.values())) == 1 and -1 not in ends.values():
                return
            await trio.sleep(0.5)
    if not world.setting.power:
        world.faults.append(f"stuck: after {SETTLE_S:g} quiet seconds the logs end at {ends}")


async def _audit_all(world: World) -> int:
    """Stop in order and look at every node's files; returns the number of messages stored."""
    names = (MASTER, *world.slaves)
    for name in reversed((*world.nodes,)):
        await world.nodes[name].stop()
    contents = {name: _contents(world, name) for name in names}
    for name in names:
        found = contents[name].faults + queue_faults(world.nodes[name].disk, "/store", TOPIC, contents[name])
        histories = differing(contents[MASTER], contents[name])
        if not world.setting.power or name == MASTER:
            found += histories + missing(world.ledger.acks, {name: contents[name]})
        elif not histories and contents[name].end < contents[MASTER].end:
            # A slave that has what its master lost must not follow; every other one must.
            found.append(f"stuck: it ends at {contents[name].end} with its master's history")
        world.faults += [f"{name}: {fault}" for fault in found]
    _check_slaves(world)
    return len(contents[MASTER].bodies)


async def _promote(world: World) -> str:
    """The master is gone: the slave with the longest log takes its place. Returns its name."""
    _check_slaves(world)
    await trio.sleep(5)  # what the master had sent is still under way
    heir = max(world.slaves, key=lambda name: _contents(world, name).end)
    world.note(f"{heir} becomes the master")
    await world.nodes[heir].stop()
    world.roles[heir] = "ASYNC_MASTER"
    world.nodes["namesrv"].start()
    world.nodes[heir].start()
    await trio.sleep(15)
    return heir


async def _lose_the_master(world: World) -> int:
    """The master's machine burns down; its best slave becomes master, and the SDK reads what was promised."""
    world.note("the master's disk is lost")
    world.nodes[MASTER].kill()
    world.nodes[MASTER].disk = MemoryDisk(now_ms=world.clock)
    heir = await _promote(world)
    async with world.client("heirs-reader") as client, client.pull_consumer("heirs-readers") as consumer:
        world.read.clear()
        await _read_to_end(world, consumer, lambda: False)
    for ack in world.ledger.acks:
        if ack.replicated and world.read.get(ack.place) != ack.body:
            world.faults.append(f"lost: {ack.body[:12]!r} at {ack.place} cannot be read from {heir}")
    for name in world.slaves:
        await world.nodes[name].stop()
    contents = _contents(world, heir)
    world.faults += [f"{heir}: {fault}" for fault in contents.faults]
    return len(contents.bodies)


async def _succeed(world: World) -> int:
    """The master is gone, a slave takes its place and messages; then the old master comes back as a slave.

    If it has nothing of its own it follows. If it has, it must not lose it without an order: it stays as it is.
    """
    world.nodes[MASTER].kill()
    world.network.heal()
    before = _contents(world, MASTER)
    heir = await _promote(world)
    later = Ledger()
    async with world.client("heirs-sender") as client, client.producer("heirs-load") as producer:
        for number in range(20):
            body = b"later-%d" % number
            result = await producer.send(triomq.Message(TOPIC, body))
            place = (result.queue.queue_id, result.queue_offset)
            later.acknowledge(place, [body], status="SEND_OK", synchronous=True, sender="later")
    world.note("the old master comes back as a slave")
    world.roles[MASTER] = "SLAVE"
    world.nodes[MASTER].start()
    await trio.sleep(30)
    names = (heir, *(name for name in world.slaves if name != heir), MASTER)
    for name in reversed(names):
        await world.nodes[name].stop()
    contents = {name: _contents(world, name) for name in names}
    promised = [ack for ack in world.ledger.acks if ack.replicated] + later.acks
    faults = [f"{name}: {fault}" for name in names for fault in contents[name].faults]
    faults += missing(promised, {heir: contents[heir]}) + missing(world.ledger.acks, {MASTER: contents[MASTER]})
    for start, data in before.log.items():
        if contents[MASTER].log.get(start, b"")[: len(data)] != data:
            faults.append(f"cut: the old master's log file {start} has lost bytes, and nobody has ordered it")
    followers = [name for name in names if name not in (heir, MASTER)]
    if not differing(before, contents[heir]) and before.end <= contents[heir].end:
        followers.append(MASTER)
    for name in followers:
        if contents[name].end != contents[heir].end or differing(contents[name], contents[heir]):
            faults.append(f"stuck: {name} ends at {contents[name].end}, {heir} at {contents[heir].end}")
    world.faults += faults
    return len(contents[heir].bodies)


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


async def _run(seed: int) -> Outcome:
    async with trio.open_nursery() as nursery:
        world = World(seed, nursery)
        await begin(world)
        async with trio.open_nursery() as traffic:
            for number in range(3):
                traffic.start_soon(_send, world, f"sender-{number}")
            traffic.start_soon(_read, world, "reader")
            await trio.sleep(1)
            await _disturb(world)
            world.network.heal()
            if world.setting.succession and world.chance.random() < 0.6:
                world.note("the slaves are cut off")
                for name in world.slaves:
                    world.network.cut_pair(MASTER, name)
                await trio.sleep(1.5)
            world.sending = False
        world.note("quiet")
        world.faults += world.ledger.own_faults()
        if world.setting.disk_lost:
            stored = await _lose_the_master(world)
        elif world.setting.succession:
            stored = await _succeed(world)
        else:
            await _settle(world)
            world.read.clear()
            async with world.client("last-reader") as client, client.pull_consumer("last-readers") as consumer:
                await _read_to_end(world, consumer, lambda: False)
            for ack in world.ledger.acks:
                if world.read.get(ack.place) != ack.body:
                    world.faults.append(f"lost: {ack.body[:12]!r} at {ack.place} cannot be read")
            stored = await _audit_all(world)
        if len(world.ledger.acks) < LEAST_ACKS:
            world.faults.append(f"idle: only {len(world.ledger.acks)} messages were acknowledged, which proves nothing")
        virtual_s = trio.current_time()
        nursery.cancel_scope.cancel()
    picture = repr((world.events, world.faults, [(a.place, a.body, a.sender) for a in world.ledger.acks], virtual_s))
    return Outcome(
        seed,
        world.setting,
        len(world.ledger.acks),
        world.ledger.refused,
        world.ledger.statuses,
        stored,
        len(world.read),
        virtual_s,
        world.events,
        world.faults,
        hashlib.sha256(picture.encode()).hexdigest()[:16],
    )


@contextmanager
def _same_order_of_tasks(seed: int) -> Iterator[None]:
    """trio deliberately shuffles tasks that could run at the same moment; here the seed does."""
    import trio._core._run as scheduler

    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduler._r.seed(seed)
    try:
        yield
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before
        scheduler._r.seed()


def simulate(seed: int) -> Outcome:
    """Run one seed from its start to the audit."""
    # The epoch of the virtual clock is 0 for every seed.
    with _same_order_of_tasks(seed):
        return trio.run(_run, seed, clock=trio.testing.MockClock(autojump_threshold=0))


def kinds(faults: list[str]) -> Counter[str]:
    """How many faults of each kind: lost, duplicated, order, ..."""
    words = ("lost", "duplicated", "order", "changed", "histories", "stuck")
    return Counter(next((word for word in words if f"{word}:" in fault or word in fault), "other") for fault in faults)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("-v", "--verbose", action="store_true", help="show events, and what the nodes log")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO if options.verbose else logging.CRITICAL, format="%(name)s: %(message)s")
    logging.getLogger("trio").setLevel(logging.CRITICAL)
    begin = time.perf_counter()
    failed = acknowledged = events = 0
    found: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.count):
        outcome = simulate(seed)
        acknowledged += outcome.acknowledged
        events += len(outcome.events)
        found += kinds(outcome.faults)
        if options.verbose:
            print(*outcome.events, sep="\n")
        if outcome.faults or options.verbose or options.count == 1:
            print(
                f"seed {seed} {outcome.setting}: {outcome.acknowledged} acknowledged {dict(outcome.statuses)}, "
                f"{outcome.refused} refused, {outcome.stored} stored, {outcome.read} read, "
                f"{outcome.virtual_s:.1f} virtual s, digest {outcome.digest}, {len(outcome.faults)} faults"
            )
            print(*(f"    {fault}" for fault in outcome.faults[:10]), sep="\n")
        failed += bool(outcome.faults)
    spent_s = time.perf_counter() - begin
    print(
        f"{options.count} schedules, {events} events, {acknowledged} acknowledged: lost {found['lost']}, duplicated offsets "
        f"{found['duplicated']}, order violations {found['order']}, others {sum(found.values()) - found['lost'] - found['duplicated'] - found['order']}; "
        f"{failed} failed; {spent_s:.1f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
