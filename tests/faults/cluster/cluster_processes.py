"""Seeded disasters in a cluster of real processes: SIGKILL, SIGSTOP, partitions and restarts under load, then the audit of the files.

python tests/faults/cluster/cluster_processes.py --count 200
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio
from cluster_audit import Ledger, differing, missing, queue_faults, read_log
from cluster_setting import Setting, kinds
from cutting_proxy import CuttingProxy

import triomq
from triomq_protocol.codes import RequestCode
from triomq_protocol.command import Command
from triomq_protocol.requests.route import KVTable
from triomq_server.cluster.plan import free_ports
from triomq_server.wire import LinkError, open_link

TOPIC = "ledger"
QUEUES = 4
MASTER = "broker-a"
EVENTS = (3, 6)
GAP_S = (0.05, 0.4)
LASTING_S = (0.02, 0.1, 0.2, 0.5, 0.5, 2.0)
SETTLE_S = 60.0
READY_S = 30.0
LEAST_ACKS = 50
SETTINGS = {
    "mappedFileSizeCommitLog": "262144",
    "mappedFileSizeConsumeQueue": "4000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "haSendHeartbeatInterval": "300",
    "haHousekeepingInterval": "1500",
    "slaveTimeout": "500",
}


@attrs.frozen
class Outcome:
    """What a schedule showed."""

    seed: int
    setting: Setting
    acknowledged: int
    refused: int
    statuses: Counter[str]
    stored: int
    events: list[str]
    faults: list[str]


class RealFiles:
    """Directories as the audit reads them."""

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path)) if os.path.isdir(path) else []

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def exists(self, path: str) -> bool:
        return os.path.exists(path)


class Processes:
    """The parent of the nodes, and what it has said."""

    def __init__(self, parent: trio.Process) -> None:
        self.parent = parent
        self.pids: dict[str, int] = {}
        self.addresses: dict[str, str] = {}
        self.name_servers = ""
        self.stopping = False
        self.faults: list[str] = []
        self._killed: set[int] = set()
        self._heard = trio.Event()
        self._one_at_a_time = trio.Lock()

    async def listen(self) -> None:
        """Follow the parent's events until it ends."""
        received = b""
        assert self.parent.stdout is not None
        async for data in self.parent.stdout:
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                self._hear(json.loads(line))
            heard, self._heard = self._heard, trio.Event()
            heard.set()

    def _hear(self, event: dict[str, object]) -> None:
        kind = event["event"]
        if kind == "ready":
            self.name_servers = str(event["name_servers"])
        nodes = event["nodes"] if kind == "ready" else [event] if kind == "started" else []
        assert isinstance(nodes, list)
        for node in nodes:
            self.pids[node["name"]] = node["pid"]
            self.addresses[node["name"]] = node["address"]
        if kind == "ended":
            self.pids.pop(str(event["name"]), None)
            if event["pid"] not in self._killed and not self.stopping:
                self.faults.append(f"{event['name']} ended by itself with status {event['status']}")
        elif kind == "error":
            self.faults.append(f"the parent says: {event['error']}")

    async def until(self, name: str, *, up: bool) -> None:
        """Until a node is ready, or gone."""
        with trio.fail_after(READY_S):
            while (name in self.pids) != up or not self.name_servers:
                await self._heard.wait()

    def signal(self, name: str, number: int) -> bool:
        """Send a signal to a node; False if it does not run."""
        pid = self.pids.get(name)
        if not pid:  # never 0, which would be ourselves
            return False
        if number == signal.SIGKILL:
            self._killed.add(pid)
        os.kill(pid, number)
        return True

    async def say(self, text: str) -> None:
        """A command to the parent."""
        assert self.parent.stdin is not None
        async with self._one_at_a_time:
            await self.parent.stdin.send_all(text.encode() + b"\n")


@asynccontextmanager
async def _cluster(home: Path, setting: Setting, proxy: CuttingProxy) -> AsyncIterator[Processes]:
    asked = {"sync": setting.synchronous, "flush": setting.flush, "slaves": setting.slaves, "proxy": proxy.port + 1}
    command = [sys.executable, str(Path(__file__).with_name("cluster_parent.py")), str(home)]
    with (home / "cluster.log").open("wb") as errors:
        parent = await trio.lowlevel.open_process(
            [*command, json.dumps({**asked, "settings": SETTINGS})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    processes = Processes(parent)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(processes.listen)
        try:
            await processes.until(MASTER, up=True)
            host, _, port = processes.addresses[MASTER].rpartition(":")
            proxy.target = (host, int(port))
            yield processes
        finally:
            for name in list(processes.pids):
                processes.signal(name, signal.SIGCONT)
            processes.stopping = True
            with trio.CancelScope(shield=True):
                assert parent.stdin is not None
                await parent.stdin.aclose()
                with trio.move_on_after(READY_S):
                    await parent.wait()
                parent.kill()
                await parent.wait()
            nursery.cancel_scope.cancel()
    assert parent.stdout is not None
    await parent.stdout.aclose()


class Trial:
    """One schedule."""

    def __init__(self, seed: int, home: Path) -> None:
        self.seed = seed
        self.home = home
        self.chance = random.Random(f"processes {seed}")
        self.setting = Setting.drawn(self.chance)
        self.slaves = ["broker-a-s", "broker-a-s2"][: self.setting.slaves]
        self.ledger = Ledger()
        self.faults: list[str] = []
        self.events: list[str] = []
        self.sending = True
        self.proxy = CuttingProxy(free_ports(1)[0])

    async def run(self) -> Outcome:
        """From an empty directory to the audit."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.proxy.serve)
            async with _cluster(self.home, self.setting, self.proxy) as nodes:
                await self._create_topic(nodes)
                async with trio.open_nursery() as traffic:
                    for number in range(3):
                        traffic.start_soon(self._send, nodes, f"sender-{number}")
                    await trio.sleep(0.2)
                    try:
                        await self._disturb(nodes)
                    except* trio.TooSlowError:
                        self.faults.append(
                            f"hung: a node was not ready, or not gone, within {READY_S:g} s: {nodes.pids}"
                        )
                    self.sending = False
                if self.setting.disk_lost:
                    for name in (MASTER, *self.slaves):
                        nodes.signal(name, signal.SIGKILL)
                        await nodes.until(name, up=False)
                else:
                    await self._settle(nodes)
                self.faults += nodes.faults
            nursery.cancel_scope.cancel()
        stored = self._audit()
        if len(self.ledger.acks) < LEAST_ACKS:
            self.faults.append(f"idle: only {len(self.ledger.acks)} messages were acknowledged, which proves nothing")
        ledger = self.ledger
        return Outcome(
            self.seed, self.setting, len(ledger.acks), ledger.refused, ledger.statuses, stored, self.events, self.faults
        )

    async def _create_topic(self, nodes: Processes) -> None:
        async with triomq.open_client(nodes.name_servers) as client:
            with trio.fail_after(READY_S):
                while True:
                    try:
                        await client.admin.create_topic(TOPIC, queues=QUEUES)
                        await client.admin.route(TOPIC)
                    except triomq.MQError:
                        await trio.sleep(0.05)
                    else:
                        return

    async def _send(self, nodes: Processes, name: str) -> None:
        chance = random.Random(f"{name} {self.seed}")
        number = 0
        async with (
            triomq.open_client(nodes.name_servers) as client,
            client.producer("load", send_timeout_s=1.0, compressor=None) as producer,
        ):
            while self.sending:
                number += 1
                body = b"%s-%d " % (name.encode(), number) + bytes(chance.choice((10, 100, 1000, 9000)))
                bodies = (
                    [body] if chance.random() < 0.9 else [b"%s-%d.%d " % (name.encode(), number, i) for i in range(5)]
                )
                messages = [triomq.Message(TOPIC, each, keys=f"k{number}") for each in bodies]
                try:
                    result = await (producer.send(messages[0]) if len(bodies) == 1 else producer.send_batch(messages))
                except triomq.MQError:
                    self.ledger.refused += 1
                    await trio.sleep(0.02)
                else:
                    place = (result.queue.queue_id, result.queue_offset)
                    self.ledger.acknowledge(
                        place, bodies, status=result.status.name, synchronous=self.setting.synchronous, sender=name
                    )
                await trio.sleep(0.002)

    # -- faults

    async def _disturb(self, nodes: Processes) -> None:
        chance = self.chance
        for _ in range(chance.randint(*EVENTS)):
            await trio.sleep(chance.uniform(*GAP_S))
            kind = chance.choice(("kill", "kill", "pause", "cut", "mute"))
            name = chance.choice([MASTER, MASTER, *self.slaves, "namesrv-0"])
            lasting_s = chance.choice(LASTING_S) * chance.uniform(0.5, 1.5)
            self.events.append(f"{kind} {name if kind in ('kill', 'pause') else 'replication'} for {lasting_s:.2f} s")
            # One after the other, or two at a time: a slave is killed while its master stands still.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._fault, nodes, kind, name, lasting_s)
                if chance.random() < 0.3:
                    other = chance.choice([each for each in (MASTER, *self.slaves) if each != name])
                    self.events.append(f"   meanwhile kill {other}")
                    await trio.sleep(chance.uniform(0, lasting_s))
                    nursery.start_soon(self._fault, nodes, "kill", other, 0.1)

    async def _fault(self, nodes: Processes, kind: str, name: str, lasting_s: float) -> None:
        if kind == "kill":
            if nodes.signal(name, signal.SIGKILL):
                await nodes.until(name, up=False)
                if name == MASTER and self.setting.synchronous:
                    self._check_slaves("the master just gone")
                await trio.sleep(lasting_s)
                await nodes.say(f"start {name}")
                await nodes.until(name, up=True)
        elif kind == "pause":
            pid = nodes.pids.get(name)
            if nodes.signal(name, signal.SIGSTOP):
                await trio.sleep(lasting_s)
                if nodes.pids.get(name) == pid:
                    nodes.signal(name, signal.SIGCONT)
        else:
            (self.proxy.cut if kind == "cut" else self.proxy.mute)()
            await trio.sleep(lasting_s)
            self.proxy.heal()

    # -- checks

    def _root(self, name: str) -> str:
        return str(self.home / name)

    def _check_slaves(self, when: str) -> None:
        """Slaves write on while they are looked at; what they acknowledged before is there."""
        promised = [ack for ack in self.ledger.acks if ack.replicated]
        holders = {name: read_log(RealFiles(), self._root(name), TOPIC) for name in self.slaves}
        self.faults += [f"{fault} ({when})" for fault in missing(promised, holders)]

    async def _log_end(self, address: str) -> int:
        try:
            with trio.fail_after(5):
                async with open_link(address) as link:
                    answer = await link.request(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), 3)
                    return int(KVTable.decode(answer.body).table["commitLogMaxOffset"])
        except (OSError, LinkError, trio.TooSlowError):
            return -1

    async def _settle(self, nodes: Processes) -> None:
        ends: dict[str, int] = {}
        with trio.move_on_after(SETTLE_S):
            while True:
                ends = {name: await self._log_end(nodes.addresses[name]) for name in (MASTER, *self.slaves)}
                if len(set(ends.values())) == 1 and -1 not in ends.values():
                    return
                await trio.sleep(0.05)
        self.faults.append(f"stuck: after {SETTLE_S:g} quiet seconds the logs end at {ends}, pids {nodes.pids}")
        for name in (MASTER, *self.slaves):
            nodes.signal(name, signal.SIGUSR1)
        await trio.sleep(1)

    def _audit(self) -> int:
        files = RealFiles()
        self.faults += self.ledger.own_faults()
        if self.setting.disk_lost:
            self._check_slaves("the master's disk lost")
        contents = {name: read_log(files, self._root(name), TOPIC) for name in (MASTER, *self.slaves)}
        for name, found in contents.items():
            faults = differing(contents[MASTER], found)
            if not self.setting.disk_lost:
                faults += found.faults + queue_faults(files, self._root(name), TOPIC, found)
                faults += missing(self.ledger.acks, {name: found})
            elif name == MASTER:
                # Killed, not burnt: with its disk, it has everything.
                faults += missing(self.ledger.acks, {name: found})
            self.faults += [f"{name}: {fault}" for fault in faults]
        return len(contents[MASTER].bodies)


async def run_schedule(seed: int, home: Path) -> Outcome:
    """Run one seed in an empty directory."""
    return await Trial(seed, home).run()


def summary(outcomes: list[Outcome], spent_s: float) -> str:
    """One line with the counts."""
    found: Counter[str] = Counter()
    statuses: Counter[str] = Counter()
    for each in outcomes:
        found += kinds(each.faults)
        statuses += each.statuses
    named = ("lost", "duplicated", "order")
    return (
        f"{len(outcomes)} schedules of real processes, {sum(len(each.events) for each in outcomes)} events, "
        f"{sum(each.acknowledged for each in outcomes)} acknowledged {dict(statuses)}, "
        f"{sum(each.refused for each in outcomes)} refused, {sum(each.stored for each in outcomes)} stored: "
        f"lost {found['lost']}, duplicated offsets {found['duplicated']}, order violations {found['order']}, "
        f"others {sum(found.values()) - sum(found[each] for each in named)}; {spent_s:.0f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("-v", "--verbose", action="store_true", help="show events")
    options = parser.parse_args()
    begin = time.perf_counter()
    outcomes = []
    for seed in range(options.first, options.first + options.count):
        with tempfile.TemporaryDirectory(prefix="triomq-faults-", ignore_cleanup_errors=True) as home:
            outcome = trio.run(run_schedule, seed, Path(home))
            if outcome.faults:
                print((Path(home) / "cluster.log").read_text(errors="replace")[-6000:])
        outcomes.append(outcome)
        if outcome.faults or options.verbose:
            print(
                f"seed {seed} {outcome.setting}: {outcome.acknowledged} acknowledged {dict(outcome.statuses)}, {outcome.stored} stored"
            )
            print(*outcome.events, *outcome.faults[:10], sep="\n", flush=True)
    print(summary(outcomes, time.perf_counter() - begin))
    return 1 if any(outcome.faults for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
