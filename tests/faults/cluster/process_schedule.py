"""One schedule with real processes: load, faults chosen by a seed, a final phase, and the audit of the nodes' files.

What is expected of a pair, master and slave each ours or the real 4.9.7:

* Whatever a master has acknowledged is in its log, and in the logs of all its slaves when all nodes run again. SIGKILL
  leaves the page cache, so this holds for ASYNC_FLUSH and ASYNC_MASTER too, and for Java's as for ours.
* SEND_OK of a SYNC_MASTER is on a slave at once: whenever the master has been killed, and when its disk is lost. All
  other statuses, and ASYNC_MASTER, guarantee nothing without the master's disk.
* A master that restarts without its disk acknowledges nothing as replicated to slaves whose logs are longer, and these
  keep their logs. A 4.9 slave even of an empty master keeps its log, but takes over its topics: they are created again
  after its promotion. (A 4.9 master accepts a first report beyond its own end; our slave never makes one, since it
  compares first. A 4.9 slave does not compare: once our empty master's log has outgrown it, it would follow, so nothing
  is sent to it for long.)
* Committed offsets: offsets in our tables never decrease, and our master ends with every commit that survived
  (`cluster_offsets`). A 4.9 slave replaces its offsets by its master's, so commits that it accepted after our master
  had restarted, but before the consumer's route showed it, may be lost; earlier ones may not: our master queries them.
  Of a 4.9 master nothing is expected: it begins to write offsets ten seconds after its start, and does not query
  slaves.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import process_endings
import trio
from cluster_audit import Contents, Ledger, differing, missing, queue_faults, read_log
from cluster_offsets import OffsetLedger
from cluster_setting import Setting
from cutting_proxy import CuttingProxy
from process_nodes import MASTER, NAME_SERVER, OFFSETS_WRITTEN_S, READY_S, SLAVES, Nodes, RealFiles, forked_nodes
from process_traffic import TOPIC, commit, create_topic, send, watch_offsets
from separate_nodes import OURS, Pair, SeparateNodes, separate_nodes

from triomq_benchmarks.clusters.java import Java
from triomq_benchmarks.clusters.processes import reserved_port
from triomq_benchmarks.clusters.servers import Kind

EVENTS = (3, 6)
GAP_S = (0.05, 0.4)
LASTING_S = (0.02, 0.1, 0.2, 0.5, 0.5, 2.0)
LEAST_ACKS = 50
LEAST_ACKS_LIMIT_S = 120.0
OFFSETS_SURELY_WRITTEN_S = OFFSETS_WRITTEN_S + 1.0
OFFSETS_LATE_S = 8.0
FIRST_REPLICA_S = 120.0


@attrs.frozen
class Outcome:
    """The result of a schedule."""

    seed: int
    setting: Setting
    acknowledged: int
    refused: int
    statuses: Counter[str]
    stored: int
    commits: int
    events: list[str]
    faults: list[str]
    output: str


class Schedule:
    """One schedule.

    Args:
        seed: decides everything but the machine's timing.
        home: an empty directory.
        port: where the proxy listens, there and one above.
        pair: implementation of the master and of the slaves.
        java: needed for 4.9.7 brokers.
        setting: replaces the seed's own.
        injected: a fault injected into our servers, by its name in `injected_faults`.
    """

    def __init__(
        self,
        seed: int,
        home: Path,
        port: int,
        *,
        pair: Pair = OURS,
        java: Java | None = None,
        setting: Setting | None = None,
        injected: str = "",
    ) -> None:
        self.seed = seed
        self.home = home
        self.pair = pair
        self.java = java
        self.injected = injected
        self.chance = random.Random(f"processes {seed}")
        drawn = Setting.drawn(self.chance)
        self.setting = setting or drawn
        self.slaves = list(SLAVES[: self.setting.slaves])
        self.ledger = Ledger()
        self.offsets = OffsetLedger()
        self.faults: list[str] = []
        self.events: list[str] = []
        self.sending = True
        self.proxy = CuttingProxy(port)
        self._pauses: dict[str, list[tuple[float, float]]] = {}
        self._output = ""

    async def run(self) -> Outcome:
        """Run from an empty directory to the audit."""
        stored = 0
        async with trio.open_nursery() as nursery:
            await nursery.start(self.proxy.serve)
            try:
                async with self._nodes() as nodes:
                    await self._live(nodes)
                    self.faults += nodes.faults
                    if self.faults and isinstance(nodes, SeparateNodes):
                        self._output = nodes.output()
            except* trio.TooSlowError:
                self.faults.append("hung: the schedule could not be ended")
            nursery.cancel_scope.cancel()
        self.faults += self.ledger.own_faults() + self.offsets.faults
        stored = process_endings.audit(self)
        if len(self.ledger.acks) < LEAST_ACKS:
            self.faults.append(f"idle: only {len(self.ledger.acks)} messages were acknowledged, which proves nothing")
        if self.setting.synchronous and not self.ledger.statuses["SEND_OK"]:
            self.faults.append("idle: no message was acknowledged as replicated")
        log = self.home / "cluster.log"
        if self.faults and log.exists():
            self._output = log.read_text(errors="replace")[-6000:]
        ledger = self.ledger
        return Outcome(
            self.seed,
            self.setting,
            len(ledger.acks),
            ledger.refused,
            ledger.statuses,
            stored,
            self.offsets.count,
            self.events,
            self.faults,
            self._output,
        )

    @asynccontextmanager
    async def _nodes(self) -> AsyncIterator[Nodes]:
        if self.pair == OURS and not self.setting.disk_lost:
            async with forked_nodes(self.home, self.setting, self.proxy, self.injected) as forked:
                self.proxy.lead_to(forked.addresses[MASTER])
                yield forked
        else:
            async with separate_nodes(self.pair, self.home, self.setting, self.proxy, self.java) as separate:
                yield separate

    def kind(self, name: str) -> Kind:
        """The implementation of a broker."""
        return self.pair.master if name == MASTER else self.pair.slave

    async def _live(self, nodes: Nodes) -> None:
        await create_topic(nodes)
        if self.setting.synchronous:
            await self._await_replica(nodes)
        async with trio.open_nursery() as traffic:
            for number in range(3):
                traffic.start_soon(self._send, nodes, f"sender-{number}")
            traffic.start_soon(commit, nodes, self.offsets, self.seed, self._more)
            for name in (MASTER, *self.slaves):
                if self.kind(name) is Kind.OURS:
                    traffic.start_soon(watch_offsets, nodes, self.offsets, name, self._more)
            await trio.sleep(0.2)
            try:
                await self._disturb(nodes)
            except* trio.TooSlowError:
                self.faults.append(f"hung: a node was not ready, or not gone, within {READY_S:g} s: {nodes.pids}")
            # On a loaded machine no sender may have run yet.
            with trio.move_on_after(LEAST_ACKS_LIMIT_S):
                while len(self.ledger.acks) < LEAST_ACKS:  # noqa: ASYNC110 -- the ledger is plain
                    await trio.sleep(0.1)
            self.sending = False
        await process_endings.end(self, nodes)

    def _more(self) -> bool:
        return self.sending

    async def _send(self, nodes: Nodes, name: str) -> None:
        await send(nodes, self.ledger, name, self.seed, synchronous=self.setting.synchronous, more=self._more)

    async def _await_replica(self, nodes: Nodes) -> None:
        """Wait for the first report of a slave; a 4.9 slave sends it one heartbeat interval after connecting to its
        master."""
        more = True

        async def watch() -> None:
            nonlocal more
            with trio.move_on_after(FIRST_REPLICA_S):
                while not self.ledger.statuses["SEND_OK"]:  # noqa: ASYNC110 -- the ledger is plain
                    await trio.sleep(0.02)
            more = False

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await send(nodes, self.ledger, "first-sender", self.seed, synchronous=True, more=lambda: more)

    # -- faults

    async def _disturb(self, nodes: Nodes) -> None:
        chance = self.chance
        for _ in range(chance.randint(*EVENTS)):
            await trio.sleep(chance.uniform(*GAP_S))
            kind = chance.choice(("kill", "kill", "pause", "cut", "mute"))
            name = chance.choice([MASTER, MASTER, *self.slaves, NAME_SERVER])
            lasting_s = chance.choice(LASTING_S) * chance.uniform(0.5, 1.5)
            self.events.append(f"{kind} {name if kind in ('kill', 'pause') else 'replication'} for {lasting_s:.2f} s")
            # One after the other, or two at a time: a slave is killed while its master is paused.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._fault, nodes, kind, name, lasting_s)
                if chance.random() < 0.3:
                    other = chance.choice([each for each in (MASTER, *self.slaves) if each != name])
                    self.events.append(f"   meanwhile kill {other}")
                    await trio.sleep(chance.uniform(0, lasting_s))
                    nursery.start_soon(self._fault, nodes, "kill", other, 0.1)

    async def _fault(self, nodes: Nodes, kind: str, name: str, lasting_s: float) -> None:
        if kind == "kill":
            if await self.kill(nodes, name):
                await trio.sleep(lasting_s)
                await self.start(nodes, name)
        elif kind == "pause":
            pid, begin = nodes.pids.get(name), trio.current_time()
            if nodes.signal(name, signal.SIGSTOP):
                await trio.sleep(lasting_s)
                if nodes.pids.get(name) == pid:
                    nodes.signal(name, signal.SIGCONT)
                self._pauses.setdefault(name, []).append((begin, trio.current_time()))
        else:
            (self.proxy.cut if kind == "cut" else self.proxy.mute)()
            await trio.sleep(lasting_s)
            self.proxy.heal()

    async def kill(self, nodes: Nodes, name: str) -> bool:
        """Send SIGKILL and wait for the exit; False if it does not run."""
        since = self._unwritten_since(name, trio.current_time())
        if not nodes.signal(name, signal.SIGKILL):
            return False
        await nodes.until(name, up=False)
        if name != NAME_SERVER:
            # Not earlier: its last answers may have been in transit when it was killed, and are read after that.
            self.offsets.lost(name, since, trio.current_time())
        if name == MASTER and self.setting.synchronous:
            self.check_slaves("just after the master was killed")
        return True

    async def start(self, nodes: Nodes, name: str) -> None:
        """Restart a node and wait until it is ready."""
        await nodes.start(name)
        await nodes.until(name, up=True)

    def _unwritten_since(self, name: str, now: float) -> float:
        """Since when offsets that a broker received may be missing in its file if it is killed now."""
        since = now - max(OFFSETS_SURELY_WRITTEN_S, min(self._age_of_offsets(name) + 1.0, OFFSETS_LATE_S))
        for begin, end in reversed(self._pauses.get(name, [])):
            if end > since:  # it was paused
                since = min(since, begin - OFFSETS_SURELY_WRITTEN_S)
        return since

    def _age_of_offsets(self, name: str) -> float:
        """Seconds since a broker wrote its offsets: on a loaded machine it may write late."""
        file = Path(self.root(name)) / "config" / "consumerOffset.json"
        return time.time() - file.stat().st_mtime if file.exists() else OFFSETS_LATE_S

    # -- checks

    def contents(self, name: str) -> Contents:
        """The contents of a broker's log now."""
        return read_log(RealFiles(), self.root(name), TOPIC)

    def root(self, name: str) -> str:
        """A broker's store directory."""
        separate = self.pair != OURS or self.setting.disk_lost
        return str(self.home / name / "store" if separate else self.home / name)

    def check_slaves(self, when: str) -> None:
        """Check the slaves' logs while they are being written; what was acknowledged before must be there."""
        replicated = [ack for ack in self.ledger.acks if ack.replicated]
        holders = {name: self.contents(name) for name in self.slaves}
        self.faults += [f"{fault} ({when})" for fault in missing(replicated, holders)]

    def queue_faults(self, name: str, found: Contents) -> list[str]:
        """The faults of a broker's consume queues."""
        return queue_faults(RealFiles(), self.root(name), TOPIC, found)

    def differing(self, found: dict[str, Contents], of: str) -> list[str]:
        """Differences between the logs and one of them."""
        return [f"{name}: {fault}" for name in found for fault in differing(found[of], found[name])]


async def run_schedule(
    seed: int,
    home: Path,
    *,
    pair: Pair = OURS,
    java: Java | None = None,
    setting: Setting | None = None,
    injected: str = "",
) -> Outcome:
    """Run one seed in an empty directory."""
    with reserved_port(1) as port:
        return await Schedule(seed, home, port, pair=pair, java=java, setting=setting, injected=injected).run()
