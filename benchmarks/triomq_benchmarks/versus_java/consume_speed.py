"""How fast consumers are: push and lite pull, our SDK and the Java client, on our broker and on the real one, in one
run.

Each broker keeps one filled topic; a sample is a new group that reads it from the beginning and looks at every body,
timed from its first message. Samples are taken in turns, forwards in one round and backwards in the next, so that
whatever the machine does meanwhile falls on all alike. Without Java, our client on our broker is measured alone.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import cast

import attrs

from triomq_benchmarks.clusters.cluster import SingleBroker, open_single_broker
from triomq_benchmarks.clusters.java import Java
from triomq_benchmarks.clusters.processes import Driver, DriverError
from triomq_benchmarks.clusters.servers import Kind
from triomq_benchmarks.drivers.driver_processes import GRACE_S, java_driver
from triomq_benchmarks.figures.turns import turns

Progress = Callable[[str], None]
KINDS = ("push", "lite")
TOPIC = "bench-consume"
PULL_BATCH = 32
CONCURRENCY = 20
"""Number of handlers, or threads of the Java client, whose default this is."""

SPARE = 1.1
"""More is sent than is consumed: at the very end of a topic, some queues are empty before others."""

GOALS = {"push": 0.7, "lite": 1.0}
"""Minimum ratio of messages per second, ours divided by the Java client's on the same broker."""
CPU_GOALS: dict[str, float | None] = {"push": None, "lite": 1.0}
"""Maximum ratio of the client's CPU per message."""


@attrs.frozen
class ConsumePlan:
    """The samples to run.

    Attributes:
        body_bytes: body size.
        count: number of messages per sample.
        rounds: samples per figure; medians are taken over them.
        warm_up: samples per figure before that, which are not counted.
        kinds: the kinds of consumers.
        sample_s: time limit of a sample.
    """

    body_bytes: int = 1024
    count: int = 300_000
    rounds: int = 5
    warm_up: int = 2
    kinds: tuple[str, ...] = KINDS
    sample_s: float = 120.0


@attrs.frozen(order=True)
class Cell:
    """The subject of one figure.

    Attributes:
        kind: the kind of consumer.
        broker: ours or the real one.
        client: ours or the real one.
    """

    kind: str
    broker: Kind
    client: Kind


@attrs.frozen
class ConsumeSample:
    """One measurement.

    Attributes:
        messages: number of consumed messages.
        seconds: time from the first to the last.
        client_cpu_s: the client's CPU seconds in that time.
        broker_cpu_s: the broker's, including the consumer's start and end.
    """

    messages: int
    seconds: float
    client_cpu_s: float
    broker_cpu_s: float


@attrs.frozen
class ConsumeFigures:
    """Medians of one cell.

    Attributes:
        per_s: messages per second.
        client_us: CPU of the client per message, microseconds.
        broker_us: CPU of the broker per message.
        all_per_s: every sample's messages per second, in order.
    """

    per_s: float
    client_us: float
    broker_us: float
    all_per_s: tuple[float, ...]


@attrs.frozen
class ConsumeRow:
    """Two clients on one broker.

    Attributes:
        kind: the kind of consumers.
        broker: ours or the real one.
        ours: our SDK.
        java: the Java client; None if it is not available.
    """

    kind: str
    broker: Kind
    ours: ConsumeFigures
    java: ConsumeFigures | None

    @property
    def ratio(self) -> float | None:
        """Messages per second, ours divided by Java's."""
        return self.ours.per_s / self.java.per_s if self.java is not None else None

    @property
    def cpu_ratio(self) -> float | None:
        """The client's CPU per message, ours divided by Java's."""
        return self.ours.client_us / self.java.client_us if self.java is not None else None


def figures(samples: Sequence[ConsumeSample]) -> ConsumeFigures:
    """Compute medians."""
    return ConsumeFigures(
        per_s=median(each.messages / each.seconds for each in samples),
        client_us=median(each.client_cpu_s / each.messages * 1e6 for each in samples),
        broker_us=median(each.broker_cpu_s / each.messages * 1e6 for each in samples),
        all_per_s=tuple(each.messages / each.seconds for each in samples),
    )


def rows(samples: Mapping[Cell, Sequence[ConsumeSample]]) -> list[ConsumeRow]:
    """Our client compared with Java's, by kind and broker, in the order of the samples."""
    return [
        ConsumeRow(
            kind=cell.kind,
            broker=cell.broker,
            ours=figures(samples[cell]),
            java=figures(samples[other]) if (other := attrs.evolve(cell, client=Kind.JAVA)) in samples else None,
        )
        for cell in samples
        if cell.client is Kind.OURS
    ]


def measure_consumers(plan: ConsumePlan, java: Java | None, home: Path, progress: Progress) -> list[ConsumeRow]:
    """Measure all cells; all processes have ended afterwards, whatever happens.

    Args:
        plan: the samples to run.
        java: Java's half; None: only our client on our broker.
        home: folder for all files of brokers and drivers.
        progress: takes lines for people.

    Raises:
        ChildError: a server or a driver died or hangs.
        DriverError: messages did not arrive, or could not be sent.
    """
    sides = [Kind.OURS] if java is None else [Kind.OURS, Kind.JAVA]
    cells = [Cell(kind, broker, client) for kind in plan.kinds for broker in sides for client in sides]
    groups = itertools.count()
    with ExitStack() as stack:
        drivers = {Kind.OURS: stack.enter_context(sdk_consumers(home))}
        if java is not None:
            drivers[Kind.JAVA] = stack.enter_context(java_driver(java, home / "consumers"))
        # Not by the module's name: Python would import from a folder `triomq` in a driver's working directory.
        targets = {
            side: stack.enter_context(open_single_broker(side, home / f"{side}-servers", java=java)) for side in sides
        }
        for side in sides:
            progress(f"{plan.count * SPARE:,.0f} messages of {plan.body_bytes:,} B for the broker of {side}")
            _fill(drivers[Kind.OURS], targets[side], plan)

        def sample(cell: Cell) -> ConsumeSample:
            return _sample(drivers[cell.client], targets[cell.broker], cell.kind, f"bench-{next(groups)}", plan)

        for number, cell in turns(cells, plan.warm_up):
            progress(f"warm-up {number + 1} of {plan.warm_up}: {describe(cell)}")
            sample(cell)
        samples: dict[Cell, list[ConsumeSample]] = {cell: [] for cell in cells}
        for number, cell in turns(cells, plan.rounds):
            taken = sample(cell)
            samples[cell].append(taken)
            progress(f"round {number + 1} of {plan.rounds}: {describe(cell)}: {taken.messages / taken.seconds:,.0f}/s")
        return rows(samples)


def describe(cell: Cell) -> str:
    """A cell in words."""
    client = "our SDK" if cell.client is Kind.OURS else "the Java client"
    broker = "our broker" if cell.broker is Kind.OURS else "the real broker"
    return f"{cell.kind}, {client} on {broker}"


def _fill(driver: Driver, on: SingleBroker, plan: ConsumePlan) -> None:
    command = {
        "op": "fill",
        "nameServers": on.namesrv.address,
        "topic": TOPIC,
        "count": int(plan.count * SPARE),
        "bodyBytes": plan.body_bytes,
    }
    driver.call(command, plan.sample_s + GRACE_S)


def _sample(driver: Driver, on: SingleBroker, kind: str, group: str, plan: ConsumePlan) -> ConsumeSample:
    command = {
        "op": kind,
        "nameServers": on.namesrv.address,
        "topic": TOPIC,
        "count": plan.count,
        "group": group,
        "pullBatch": PULL_BATCH,
        "concurrency": CONCURRENCY,
        "maxSeconds": plan.sample_s,
    }
    before = on.broker.cpu_s()
    answer = driver.call(command, plan.sample_s + GRACE_S)
    taken = ConsumeSample(
        messages=cast("int", answer["messages"]),
        seconds=cast("float", answer["seconds"]),
        client_cpu_s=cast("float", answer["cpuSeconds"]),
        broker_cpu_s=on.broker.cpu_s() - before,
    )
    # Other threads may have read on before the last message was counted.
    if cast("int", answer["bytes"]) < taken.messages * plan.body_bytes:
        raise DriverError(
            f"{driver.name}: {answer['bytes']} bytes in {taken.messages} messages: {plan.body_bytes} each"
        )
    return taken


@contextmanager
def sdk_consumers(home: Path) -> Iterator[Driver]:
    """The process that runs our consumers."""
    argv = [sys.executable, "-m", "triomq_benchmarks.drivers.sdk_consume_driver"]
    with Driver("SDK consumers", argv, home / "sdk_consumers.out") as driver:
        yield driver
