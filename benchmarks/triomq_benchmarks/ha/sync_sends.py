"""The cost of a send that waits for a slave: SYNC_MASTER with one slave, every pairing, under the same prepared frames.

All four clusters run at once and are measured in turns; the idle ones cost next to nothing. A send whose answer is not
SEND_OK ends the run: its time would mean nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import attrs

from triomq_benchmarks.clusters.cluster import PAIRINGS, Pairing, SingleBroker, open_master, open_slave
from triomq_benchmarks.clusters.java import Java
from triomq_benchmarks.clusters.servers import Server
from triomq_benchmarks.drivers.driver_processes import Load, LoadError, Sample, java_driver
from triomq_benchmarks.drivers.scenarios import Scenario
from triomq_benchmarks.figures.turns import in_turns
from triomq_benchmarks.ha.watching import role_settings

FILE_BYTES = 256 << 20
BODY_BYTES = 1024
ONE = Scenario("one sender")
MANY = Scenario("64 senders", in_flight=64)
READY_LIMIT_S = 30.0


@attrs.frozen
class SyncPlan:
    """The amounts to measure.

    Attributes:
        rounds: samples per figure.
        seconds: maximum duration of a sample's sends.
        warm_up_s: per pairing and scenario, before the first sample.
    """

    rounds: int
    seconds: float
    warm_up_s: float


@attrs.frozen
class SyncSend:
    """Medians of one pairing.

    Attributes:
        pairing: the master's and slave's kinds.
        p50_us, p99_us: of one sender.
        per_s: sends per second of 64 senders.
        many_p50_us, many_p99_us: of the 64 senders.
        master_us: the master's CPU per send of the 64, microseconds.
    """

    pairing: Pairing
    p50_us: float
    p99_us: float
    per_s: float
    many_p50_us: float
    many_p99_us: float
    master_us: float


def measure_sync(
    plan: SyncPlan, java: Java, home: Path, names: Server, progress: Callable[[str], None]
) -> list[SyncSend]:
    """Measure all pairings in turns."""
    settings = role_settings(FILE_BYTES, brokerRole="SYNC_MASTER")
    with ExitStack() as stack:
        load = Load("raw", "raw", stack.enter_context(java_driver(java, home / "driver")))
        targets = []
        for number, pairing in enumerate(PAIRINGS):
            progress(f"starting {pairing.name}, SYNC_MASTER")
            place, name = home / f"sync-{number}", f"sync-{number}"
            leader = stack.enter_context(
                open_master(pairing.master, place / "master", names.address, java, settings, name)
            )
            stack.enter_context(open_slave(pairing.slave, place / "slave", names.address, java, settings, name, leader))
            targets.append(SingleBroker(pairing.master, names, leader))
        for pairing, on in zip(PAIRINGS, targets, strict=True):
            progress(f"warming up {pairing.name}")
            _wait_until_ok(load, on)
            for scenario in (ONE, MANY):
                load.run(on, scenario, BODY_BYTES, plan.warm_up_s)
        progress("one sender")
        one = _samples(plan, load, targets, ONE)
        progress("64 senders")
        many = _samples(plan, load, targets, MANY)
    return [_summed_up(*figures) for figures in zip(PAIRINGS, one, many, strict=True)]


def _wait_until_ok(load: Load, on: SingleBroker) -> None:
    """Wait until sends succeed: a slave counts from its first report on."""
    deadline = time.perf_counter() + READY_LIMIT_S
    while True:
        try:
            load.run(on, ONE, BODY_BYTES, 0.05)
        except LoadError:
            if time.perf_counter() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def _samples(plan: SyncPlan, load: Load, targets: list[SingleBroker], scenario: Scenario) -> list[list[Sample]]:
    return in_turns(plan.rounds, [partial(load.run, on, scenario, BODY_BYTES, plan.seconds) for on in targets])


def _summed_up(pairing: Pairing, one: list[Sample], many: list[Sample]) -> SyncSend:
    return SyncSend(
        pairing=pairing,
        p50_us=median(each.p50_us for each in one),
        p99_us=median(each.p99_us for each in one),
        per_s=median(each.per_s for each in many),
        many_p50_us=median(each.p50_us for each in many),
        many_p99_us=median(each.p99_us for each in many),
        master_us=median(each.broker_us for each in many),
    )
