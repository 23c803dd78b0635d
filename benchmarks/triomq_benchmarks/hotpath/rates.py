"""Rates of the hot path: frames parsed and encoded, records encoded and read, sends stored, pulls answered, per second and core.

The protocol is measured in this process. The broker is a child process (benchmarks reach servers only over the wire):
its figures are messages divided by the CPU seconds it used for them, so they are per core and do not depend on the
client's speed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import attrs

from triomq_benchmarks.clusters.cluster import open_single_broker
from triomq_benchmarks.clusters.scratch import scratch_folder
from triomq_benchmarks.clusters.servers import Kind, Server
from triomq_benchmarks.drivers.prepared_frames import Moved, per_second, pull_all, send_all, send_frames
from triomq_benchmarks.drivers.scenarios import BYTES_LIMIT
from triomq_benchmarks.hotpath.codecs import WORKS, material

IN_FLIGHT = 64
BATCH = 32
DRAINS = 3


@attrs.frozen
class Rate:
    """One figure.

    Attributes:
        name: the counted operation.
        body_bytes: size of message bodies.
        per_s: number per second of one core.
    """

    name: str
    body_bytes: int
    per_s: float


def protocol_rates(body_bytes: int, seconds: float) -> list[Rate]:
    """The rates of the pure part in this process."""
    on = material(body_bytes)
    return [Rate(name, body_bytes, per_second(partial(work, on), seconds)) for name, work in WORKS.items()]


@contextmanager
def _broker(home: Path) -> Iterator[Server]:
    with open_single_broker(Kind.OURS, home) as ours:
        yield ours.broker


def _per_core(name: str, body_bytes: int, broker: Server, work: Callable[[], Moved]) -> Rate:
    before = broker.cpu_s()
    moved = work()
    # The clock behind the figure ticks a hundred times a second; less than one tick is not zero.
    return Rate(name, body_bytes, moved.messages / max(0.01, broker.cpu_s() - before))


def broker_rates(body_bytes: int, count: int, home: Path) -> list[Rate]:
    """The rates at which one core of our broker stores and serves `count` single messages, and as many in batches."""
    count = min(count, BYTES_LIMIT // (body_bytes + 256))
    single = send_frames("bench", body_bytes, count)
    batches = send_frames("bench-batch", body_bytes, max(1, count // BATCH), batch=BATCH)
    gc.collect()
    with _broker(home) as broker:
        address = broker.address
        send_all(address, single[: count // 10 + 1], IN_FLIGHT)
        one = _per_core(
            "sends stored, 1 in flight", body_bytes, broker, lambda: send_all(address, single[: count // 4 + 1], 1)
        )
        many = _per_core("sends stored, 64 in flight", body_bytes, broker, lambda: send_all(address, single, IN_FLIGHT))
        batched = _per_core(
            "sends stored, batches of 32", body_bytes, broker, lambda: send_all(address, batches, 8, batch=BATCH)
        )

        def drains() -> Moved:
            moved = [pull_all(address, "bench") for _ in range(DRAINS)]
            return Moved(sum(m.messages for m in moved), sum(m.requests for m in moved), sum(m.seconds for m in moved))

        pulled = _per_core("messages pulled", body_bytes, broker, drains)
    return [one, many, batched, pulled]


def measure(bodies: Sequence[int], count: int, seconds: float, progress: Callable[[str], None]) -> list[Rate]:
    """Measure all rates for all body sizes; the broker's files are deleted at the end."""
    rates: list[Rate] = []
    for body_bytes in bodies:
        progress(f"protocol, {body_bytes} B")
        rates += protocol_rates(body_bytes, seconds)
        progress(f"broker, {body_bytes} B")
        with scratch_folder("triomq-hotpath-") as home:
            rates += broker_rates(body_bytes, count, Path(home))
    return rates
