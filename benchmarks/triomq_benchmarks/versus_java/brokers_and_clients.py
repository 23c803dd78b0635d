"""versus-java: the same load in the same run on two targets, or by two clients on one target, in turns.

Rounds alternate A B, B A, A B … so that whatever the machine does meanwhile falls on both alike; medians are compared.
Both sides are warmed up first, long enough for a JVM to compile what is hot; the warm-up counts nowhere.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import attrs

from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.clusters.cluster import SingleBroker, open_single_broker
from triomq_benchmarks.clusters.java import Java
from triomq_benchmarks.clusters.servers import Kind
from triomq_benchmarks.drivers.driver_processes import Load, Sample, go_driver, java_driver, node_driver, sdk_driver
from triomq_benchmarks.drivers.scenarios import (
    BROKER,
    BROKER_CPU_GOAL,
    MEMORY_GOAL,
    SDK,
    SDK_CPU_GOAL,
    START_GOAL,
    Scenario,
    broker_goal,
)
from triomq_benchmarks.figures.turns import in_turns

Progress = Callable[[str], None]
LOADS = ("raw", "java-client", "triomq")
# Shown next to our SDK if their tools are installed.
OTHER_CLIENTS = {"client-go": go_driver, "ali-ons": node_driver}
# Minimum warm-up of a JVM before it is measured; the sum over all scenarios of a target is many times that.
WARM_UP_DRAINS = 3


@attrs.frozen
class Plan:
    """The scenarios to run, and their durations.

    Attributes:
        bodies: body sizes in bytes.
        rounds: samples per cell; medians are taken over them.
        seconds: maximum duration of a sample's sends.
        warm_up_s: per scenario, load and target, before the first sample.
        loads: names of the loads for the broker's side.
        broker_scenarios: names of scenarios; empty: all.
        starts: number of starts of each broker, for the time to its first answer.
        keep_stores: whether stores and logs stay after their loads. A broker's loads of one body size write several GB.
    """

    bodies: tuple[int, ...] = (1024,)
    rounds: int = 5
    seconds: float = 1.5
    warm_up_s: float = 2.0
    loads: tuple[str, ...] = LOADS
    broker_scenarios: tuple[str, ...] = ()
    sdk_scenarios: tuple[str, ...] = ()
    starts: int = 3
    keep_stores: bool = False


@attrs.frozen
class Figures:
    """Medians of one side of a comparison.

    Attributes:
        per_s: messages per second.
        cpu_us: CPU per message of the compared end (broker or client), microseconds.
        other_cpu_us: CPU per message of the other end.
        p50_us: median request time.
        p99_us: its 99th percentile.
        all_per_s: every sample's messages per second, in order.
    """

    per_s: float
    cpu_us: float
    other_cpu_us: float
    p50_us: float
    p99_us: float
    all_per_s: tuple[float, ...]


@attrs.frozen
class Row:
    """Our figures compared with Java's.

    Attributes:
        side: `broker` or `sdk`: the compared end; the other is the same for both.
        scenario: the scenario's name.
        body_bytes: size of bodies.
        load: the sender (for the side `sdk`: the compared client).
        ours: our figures.
        java: Java's, or another client's.
        goal: wanted ratio of messages per second, or None.
        cpu_goal: maximum wanted ratio of CPU per message, or None.
    """

    side: str
    scenario: str
    body_bytes: int
    load: str
    ours: Figures
    java: Figures
    goal: float | None
    cpu_goal: float | None

    @property
    def ratio(self) -> float:
        """Ours divided by Java's, messages per second."""
        return self.ours.per_s / self.java.per_s if self.java.per_s else 0.0

    @property
    def cpu_ratio(self) -> float:
        """Ours divided by Java's, CPU per message."""
        return self.ours.cpu_us / self.java.cpu_us if self.java.cpu_us else 0.0


@attrs.frozen
class Single:
    """A figure that is compared once per broker: start, memory."""

    name: str
    unit: str
    ours: float
    java: float
    goal: float

    @property
    def ratio(self) -> float:
        """Ours divided by Java's."""
        return self.ours / self.java if self.java else 0.0


@attrs.frozen
class Comparison:
    """All figures of a run.

    Attributes:
        rows: what was measured under loads.
        singles: what was measured once per broker.
        failure: why the run ended before all was measured; empty if it did not.
    """

    rows: tuple[Row, ...]
    singles: tuple[Single, ...]
    failure: str = ""


def figures(samples: Sequence[Sample], side: str) -> Figures:
    """Medians of `samples`, seen from one end."""
    broker_us, client_us = median(s.broker_us for s in samples), median(s.client_us for s in samples)
    own, other = (broker_us, client_us) if side == "broker" else (client_us, broker_us)
    return Figures(
        per_s=median(s.per_s for s in samples),
        cpu_us=own,
        other_cpu_us=other,
        p50_us=median(s.p50_us for s in samples),
        p99_us=median(s.p99_us for s in samples),
        all_per_s=tuple(s.per_s for s in samples),
    )


@contextmanager
def _place(home: Path, name: str, plan: Plan) -> Iterator[Path]:
    place = home / name
    yield place
    # Not after a failure: a broker's log may have the cause.
    if not plan.keep_stores:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _loads(names: Sequence[str], java: Java, home: Path) -> Iterator[dict[str, Load]]:
    with ExitStack() as stack:
        loads: dict[str, Load] = {}
        if {"raw", "java-client"} & set(names):
            driver = stack.enter_context(java_driver(java, home))
            loads["raw"] = Load("raw", "raw", driver)
            loads["java-client"] = Load("java-client", "java", driver)
        if "triomq" in names:
            loads["triomq"] = Load("triomq", "triomq", stack.enter_context(sdk_driver(home)))
        yield {name: loads[name] for name in names}


@contextmanager
def _other_loads(home: Path, progress: Progress) -> Iterator[dict[str, Load]]:
    with ExitStack() as stack:
        loads = {}
        for name, driver in OTHER_CLIENTS.items():
            try:
                loads[name] = Load(name, name, stack.enter_context(driver(home)))
            except ToolUnavailableError as error:
                progress(f"without {name}: {error}")
        yield loads


def _warm_up(load: Load, on: SingleBroker, scenarios: Sequence[Scenario], body_bytes: int, seconds: float) -> None:
    for scenario in scenarios:
        for _ in range(WARM_UP_DRAINS if scenario.op == "drain" else 1):
            load.run(on, scenario, body_bytes, seconds)


def _chosen(scenarios: Sequence[Scenario], names: Sequence[str]) -> list[Scenario]:
    chosen = [one for one in scenarios if not names or one.name in names]
    # A drain needs messages to pull: those of earlier sends, at the latest in the warm-up.
    if chosen and all(one.op == "drain" for one in chosen):
        return [scenarios[1], *chosen]
    return chosen


def compare_brokers(plan: Plan, java: Java, home: Path, progress: Progress) -> Iterator[Row]:
    """Compare our broker with Java's under each load."""
    scenarios = _chosen(BROKER, plan.broker_scenarios)
    for body_bytes in plan.bodies:
        with (
            _place(home, f"brokers-{body_bytes}", plan) as place,
            _loads(plan.loads, java, place) as loads,
            open_single_broker(Kind.JAVA, place / "java", java=java) as theirs,
            open_single_broker(Kind.OURS, place / "triomq") as ours,
        ):
            for load in loads.values():
                for on in (theirs, ours):
                    progress(f"warming up {on.kind} with {load.name}, {body_bytes} B")
                    _warm_up(load, on, scenarios, body_bytes, plan.warm_up_s)
                for scenario in scenarios:
                    progress(f"broker, {load.name}, {scenario.name}, {body_bytes} B")
                    yield _broker_row(plan, load, scenario, body_bytes, (ours, theirs))


def _broker_row(
    plan: Plan, load: Load, scenario: Scenario, body_bytes: int, targets: tuple[SingleBroker, SingleBroker]
) -> Row:
    runs = [partial(load.run, on, scenario, body_bytes, plan.seconds) for on in targets]
    ours, theirs = in_turns(plan.rounds, runs)
    return Row(
        side="broker",
        scenario=scenario.name,
        body_bytes=body_bytes,
        load=load.name,
        ours=figures(ours, "broker"),
        java=figures(theirs, "broker"),
        goal=broker_goal(scenario, load.name),
        cpu_goal=BROKER_CPU_GOAL,
    )


def compare_clients(plan: Plan, java: Java, home: Path, progress: Progress) -> Iterator[Row]:
    """Compare our SDK with the Java client, and with other available clients, all on the real broker."""
    scenarios = _chosen(SDK, plan.sdk_scenarios)
    for body_bytes in plan.bodies:
        with (
            _place(home, f"clients-{body_bytes}", plan) as place,
            _loads(("triomq", "java-client"), java, place) as known,
            _other_loads(place, progress) as others,
            open_single_broker(Kind.JAVA, place / "java", java=java) as on,
        ):
            loads = [*known.values(), *others.values()]
            for load in loads:
                progress(f"warming up {load.name} on the real broker, {body_bytes} B")
                # Twice: the broker must be warm for the first of them as well.
                for _ in range(2):
                    _warm_up(load, on, scenarios, body_bytes, plan.warm_up_s)
            for scenario in scenarios:
                progress(f"clients, {scenario.name}, {body_bytes} B")
                yield from _client_rows(plan, loads, on, scenario, body_bytes)


def _client_rows(plan: Plan, loads: list[Load], on: SingleBroker, scenario: Scenario, body_bytes: int) -> list[Row]:
    """Rows that compare the first of `loads`, our SDK, with each of the others."""
    runs = [partial(load.run, on, scenario, body_bytes, plan.seconds) for load in loads]
    ours, *others = [figures(samples, "sdk") for samples in in_turns(plan.rounds, runs)]
    return [
        Row(
            side="sdk",
            scenario=scenario.name,
            body_bytes=body_bytes,
            load=f"triomq : {load.name}",
            ours=ours,
            java=theirs,
            goal=scenario.goal if load.name == "java-client" else None,
            cpu_goal=SDK_CPU_GOAL if load.name == "java-client" else None,
        )
        for load, theirs in zip(loads[1:], others, strict=True)
    ]


def compare_starts(plan: Plan, java: Java, home: Path, progress: Progress) -> list[Single]:
    """Compare the time from the start of the process to its first answer, and resident memory after a first load."""
    starts: dict[Kind, list[float]] = {Kind.OURS: [], Kind.JAVA: []}
    idle: dict[Kind, list[float]] = {Kind.OURS: [], Kind.JAVA: []}
    loaded: dict[Kind, list[float]] = {Kind.OURS: [], Kind.JAVA: []}
    with _place(home, "starts", plan) as place, _loads(("raw",), java, place) as loads:
        # One more than measured: the first finds neither byte code nor jars in the page cache.
        for number in range(plan.starts + 1):
            for kind in (Kind.OURS, Kind.JAVA):
                progress(f"starting {kind}, {number} of {plan.starts}")
                with open_single_broker(kind, place / f"{kind}-{number}", java=java) as on:
                    if number == 0:
                        continue
                    starts[kind].append(on.broker.first_answer_s)
                    idle[kind].append(on.broker.memory().total_bytes / 2**20)
                    loads["raw"].run(on, BROKER[1], 1024, plan.seconds)
                    loaded[kind].append(on.broker.memory().own_bytes / 2**20)

    def single(name: str, unit: str, values: dict[Kind, list[float]], goal: float) -> Single:
        return Single(name, unit, median(values[Kind.OURS]), median(values[Kind.JAVA]), goal)

    return [
        single("start to first answer", "s", starts, START_GOAL),
        single("resident memory, idle", "MiB", idle, MEMORY_GOAL),
        single("memory after load, without the mapped store", "MiB", loaded, MEMORY_GOAL),
    ]


def compare(plan: Plan, sides: Sequence[str], java: Java, home: Path, progress: Progress) -> Iterator[Row | Single]:
    """Run the chosen sides, `start`, `broker`, `sdk`, and yield each figure when it is measured."""
    if "start" in sides:
        yield from compare_starts(plan, java, home, progress)
    if "broker" in sides:
        yield from compare_brokers(plan, java, home, progress)
    if "sdk" in sides:
        yield from compare_clients(plan, java, home, progress)
