"""SIGKILL of broker and producer between half messages and their ends, by seeded schedules: real processes.

Every schedule has a topic of its own; ten schedules share a store, which goes on from one to the next. With `--pair mixed`, a broker of ours
and one of RocketMQ 4.9.7 take turns: each opens the store of the other with the half messages that are open.

    python tests/faults/broker/transaction_schedules.py --schedules 200
    python tests/faults/broker/transaction_schedules.py --pair mixed --first 17 --schedules 1 -v
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import attrs
import trio
from transaction_producer import decisions

import triomq
from triomq_benchmarks.clusters.java import QUICK_JVM, Java, find_java
from triomq_benchmarks.clusters.processes import Child, reserved_port
from triomq_benchmarks.clusters.servers import PATIENT, Kind, Server, broker, namesrv

HERE = Path(__file__).parent
LIMIT_S = 900.0
"""How long a schedule waits for what it has committed. A broker may first have to go through hundreds of thousands of half
messages that one of RocketMQ has written again, which takes half a minute on a busy machine and minutes on a busier one."""
GROUP = "payments"
SCHEDULES_PER_STORE = 10
"""Producers that are killed leave half messages that nobody answers for; Java's broker writes each of them again at every
check, so that a store of 25 schedules takes gigabytes."""
LEAST_DECIDED = 5
"""Local transactions before a kill."""
SETTINGS: dict[str, object] = {
    **PATIENT,
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 5000,
    "maxIndexNum": 20_000,
    "maxMessageSize": 1 << 19,
    "flushConsumerOffsetInterval": 100,
    "transactionCheckInterval": 300,
    "transactionTimeOut": 200,
    "transactionCheckMax": 100_000,
}


@attrs.frozen
class Kill:
    """One step of a schedule.

    Attributes:
        broker, producer: which of them is killed.
        wait_s: after the least number of decisions.
    """

    broker: bool
    producer: bool
    wait_s: float


def kills_of(seed: int) -> tuple[Kill, ...]:
    """One or two kills; broker and producer are each killed at least once."""
    chance = random.Random(f"transactions {seed}")
    shape = chance.choice([("both",), ("broker", "producer"), ("producer", "broker"), ("producer", "both")])
    return tuple(Kill(name != "producer", name != "broker", chance.uniform(0, 0.4)) for name in shape)


@attrs.define
class Totals:
    """What all schedules have found."""

    schedules: int = 0
    broker_kills: int = 0
    producer_kills: int = 0
    committed: int = 0
    repeated: int = 0
    rolled_back: int = 0
    lost: list[str] = attrs.field(factory=list)
    false: list[str] = attrs.field(factory=list)

    def __str__(self) -> str:
        return (
            f"{self.schedules} schedules, {self.broker_kills} kills of the broker and {self.producer_kills} of the "
            f"producer: {self.committed} committed and delivered, {self.repeated} of them more than once, "
            f"{self.rolled_back} rolled back and never seen; {len(self.lost)} lost, {len(self.false)} delivered without "
            "a commit"
        )


class Run:
    """One store, and its schedules one after the other.

    Args:
        folder: for everything that is written.
        kinds: the brokers that take turns.
        java: for a Java broker.
        say: receives lines.
        totals: counts what is found.
    """

    def __init__(
        self, folder: Path, kinds: tuple[Kind, ...], java: Java | None, say: Callable[[str], None], totals: Totals
    ) -> None:
        folder.mkdir()
        self._folder = folder
        self._kinds = kinds
        self._say = say
        self._broker = partial(broker, java=java)
        self._turn = 0
        self._broker_of_now: Server | None = None
        self._closing: ExitStack | None = None
        self._databases: dict[str, Path] = {}
        self.totals = totals

    @contextmanager
    def started(self) -> Iterator[Run]:
        """With a name server and the first broker."""
        with (
            reserved_port(-2, 1) as self._port,
            namesrv(Kind.OURS, self._folder / "namesrv") as names,
            ExitStack() as self._closing,
        ):
            self._names = names.address
            self._start_broker()
            yield self

    def _start_broker(self) -> None:
        assert self._closing is not None
        self._closing.close()
        kind = self._kinds[self._turn % len(self._kinds)]
        self._turn += 1
        self._broker_of_now = self._closing.enter_context(
            self._broker(kind, self._folder / "broker", self._names, settings=SETTINGS, port=self._port)
        )

    def _producer(self, topic: str, life: str, *more: str) -> Child:
        path = self._databases[topic]
        argv = [sys.executable, str(HERE / "transaction_producer.py"), "--name-servers", self._names, "--topic", topic]
        argv += ["--group", f"{GROUP}-{topic}", "--database", str(path), "--life", life, *more]
        return Child(f"producer {life}", argv, self._folder / "producers.out")

    def schedule(self, seed: int) -> None:
        """Run one schedule; what it found is added to the totals."""
        began = time.monotonic()
        topic = f"paid-{seed}"
        path = self._databases[topic] = self._folder / f"{topic}.txt"
        kills = kills_of(seed)
        lives = iter(range(100))
        trio.run(_create, self._names, topic)
        producer = self._producer(topic, str(next(lives)))
        try:
            for kill in kills:
                least = len(decisions(path)) + LEAST_DECIDED
                producer.wait_until(partial(_are_decided, path, least), LIMIT_S, pause_s=0.02)
                time.sleep(kill.wait_s)
                self._kill(kill, producer)
                if kill.broker:
                    self._start_broker()
                if kill.producer:
                    producer = self._producer(topic, str(next(lives)))
            producer.kill()
            producer = self._producer(topic, str(next(lives)), "--answers-only")
            seen = trio.run(self._until_delivered, topic)
        finally:
            producer.kill()
        self._count(topic, seen)
        self.totals.schedules += 1
        self._say(
            f"schedule {seed}: {len(kills)} kills, {sum(seen.values())} delivered, {time.monotonic() - began:.1f} s"
        )

    def _kill(self, kill: Kill, producer: Child) -> None:
        assert self._broker_of_now is not None
        if kill.producer:
            producer.kill()
            self.totals.producer_kills += 1
        if kill.broker:
            self._broker_of_now.kill()
            self.totals.broker_kills += 1

    async def _until_delivered(self, topic: str) -> Counter[str]:
        wanted = {body for body, state in decisions(self._databases[topic]).items() if state == "COMMIT"}
        seen: Counter[str] = Counter()
        async with triomq.open_client(self._names, route_wait_s=60) as client:
            with trio.move_on_after(LIMIT_S):
                while True:
                    seen = await _everything(client, topic)
                    if wanted <= seen.keys():
                        break
                    await trio.sleep(0.1)
        return seen

    def _count(self, topic: str, seen: Counter[str]) -> None:
        states = decisions(self._databases[topic])
        committed = {body for body, state in states.items() if state == "COMMIT"}
        totals = self.totals
        totals.committed += len(committed)
        totals.repeated += sum(count > 1 for count in seen.values())
        totals.rolled_back += len(states) - len(committed)
        totals.lost += [f"{topic}: {body}" for body in committed - seen.keys()]
        totals.false += [f"{topic}: {body}" for body in seen.keys() - committed]

    async def audit(self) -> None:
        """Once more, at the end: nothing has been delivered later that was not committed."""
        async with triomq.open_client(self._names, route_wait_s=60) as client:
            for topic, path in self._databases.items():
                states, seen = decisions(path), await _everything(client, topic)
                late = [f"{topic}: {body}, late" for body in seen if states.get(body) != "COMMIT"]
                self.totals.false += [line for line in late if line.removesuffix(", late") not in self.totals.false]
                gone = [body for body, state in states.items() if state == "COMMIT" and body not in seen]
                self.totals.lost += [f"{topic}: {body}, at the end" for body in gone]


def _are_decided(path: Path, count: int) -> bool:
    return len(decisions(path)) >= count


async def _create(name_servers: str, topic: str) -> None:
    async with triomq.open_client(name_servers, route_wait_s=60) as client:
        with trio.fail_after(LIMIT_S):
            await client.admin.create_topic(topic, queues=2)


async def _everything(client: triomq.Client, topic: str) -> Counter[str]:
    found: Counter[str] = Counter()
    async with client.pull_consumer("auditor") as consumer:
        for queue in await consumer.fetch_queues(topic):
            offset = 0
            while (result := await consumer.pull(queue, offset=offset, block=False)).messages:
                found.update(message.body.decode() for message in result.messages)
                offset = result.next_offset
    return found


def run_schedules(
    folder: Path, first: int, count: int, kinds: tuple[Kind, ...], say: Callable[[str], None] = print
) -> Totals:
    """Run schedules and the last audit."""
    java = find_java(options=QUICK_JVM) if Kind.JAVA in kinds else None
    totals = Totals()
    for start in range(first, first + count, SCHEDULES_PER_STORE):
        with Run(folder / f"from-{start}", kinds, java, say, totals).started() as run:
            for seed in range(start, min(start + SCHEDULES_PER_STORE, first + count)):
                run.schedule(seed)
            trio.run(run.audit)
    return totals


PAIRS = {"ours": (Kind.OURS,), "mixed": (Kind.OURS, Kind.JAVA)}


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="seed of the first schedule")
    parser.add_argument("--pair", choices=sorted(PAIRS), default="ours")
    parser.add_argument("-v", "--verbose", action="store_true")
    given = parser.parse_args()
    say = partial(print, flush=True) if given.verbose else lambda _line: None
    with tempfile.TemporaryDirectory(prefix="triomq-transactions-") as folder:
        totals = run_schedules(Path(folder), given.first, given.schedules, PAIRS[given.pair], say)
    print(f"transactions, {given.pair}: {totals}")
    for line in (*totals.lost, *totals.false):
        print(line)
    if totals.lost or totals.false:
        sys.exit(1)


if __name__ == "__main__":
    main()
