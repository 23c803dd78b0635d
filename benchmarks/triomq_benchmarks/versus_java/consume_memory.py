"""Measures a push consumer's memory while its handlers are held: a child process, a full topic, one figure per set of limits.

The consumer holds what its limits let it hold; then its handlers go on, and it has to get through everything that was
sent. What may come on top of the limits is one allowance for everything else: Python, the client, answers under way.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import attrs

from triomq_benchmarks.clusters.cluster import open_single_broker
from triomq_benchmarks.clusters.servers import Kind
from triomq_benchmarks.drivers.driver_processes import GRACE_S
from triomq_benchmarks.versus_java.consume_speed import sdk_consumers

ALLOWANCE_BYTES = 64 << 20
TOPIC = "bench-stalled"
QUEUES = 8
STALL_S = 300.0


@attrs.frozen
class Limits:
    """One configuration of a consumer.

    Attributes:
        name: its name in the table.
        settings: arguments of `triomq.FlowLimits`; empty: its defaults.
    """

    name: str
    settings: dict[str, int]


UNLIMITED = 1 << 40
CASES = (
    Limits("default", {}),
    # Only bytes limit it: as many messages as fit.
    Limits("16 MiB x 8", {"size_bytes": 16 << 20, "count": UNLIMITED, "span": UNLIMITED}),
)


@attrs.frozen
class Stalled:
    """The memory used with one configuration.

    Attributes:
        name: the name of the limits.
        messages: number sent, and consumed in the end.
        held: number of them in the consumer while the handlers were held.
        held_bytes: their size as counted by the consumer.
        limit_bytes: the limit of all its queues together.
        before_bytes: resident memory of the process before the consumer started.
        stalled_bytes: resident memory while the handlers were held.
        peak_bytes: the maximum, from the start to the last message.
    """

    name: str
    messages: int
    held: int
    held_bytes: int
    limit_bytes: int
    before_bytes: int
    stalled_bytes: int
    peak_bytes: int

    @property
    def allowed_bytes(self) -> int:
        """Maximum memory that the process may use."""
        return self.limit_bytes + ALLOWANCE_BYTES

    @property
    def passed(self) -> bool:
        """Whether it never used more."""
        return self.peak_bytes <= self.allowed_bytes


def measure_stalled(
    count: int, body_bytes: int, home: Path, progress: Callable[[str], None], *, cases: tuple[Limits, ...] = CASES
) -> list[Stalled]:
    """Fill a topic on our broker, and run a consumer with each of the limits on it.

    Args:
        count: number of messages.
        body_bytes: size of each body.
        home: folder for the broker's and consumers' files.
        progress: takes lines for people.
        cases: the limits to measure.

    Raises:
        ChildError: the broker or a consumer died or hangs.
        DriverError: messages did not arrive, or could not be sent.
    """
    found = []
    with open_single_broker(Kind.OURS, home / "servers") as on:
        addressed: dict[str, object] = {"nameServers": on.namesrv.address, "topic": TOPIC, "count": count}
        progress(f"{count:,} messages of {body_bytes:,} B")
        with sdk_consumers(home / "filling") as driver:
            driver.call({"op": "fill", "queues": QUEUES, "bodyBytes": body_bytes, **addressed}, STALL_S)
        for number, limits in enumerate(cases):
            progress(f"limits: {limits.name}")
            # A separate process, so that its maximum memory is its own, too.
            with sdk_consumers(home / f"consumer-{number}") as driver:
                command = {
                    "op": "stall",
                    "group": f"stalled-{number}",
                    "limits": limits.settings,
                    "maxSeconds": STALL_S,
                }
                found.append(stalled_of(limits.name, driver.call({**addressed, **command}, STALL_S + GRACE_S)))
    return found


def stalled_of(name: str, answer: dict[str, object]) -> Stalled:
    """Convert a driver's answer."""
    values = {key: cast("int", value) for key, value in answer.items()}
    return Stalled(
        name=name,
        messages=values["messages"],
        held=values["held"],
        held_bytes=values["heldBytes"],
        limit_bytes=values["limitBytes"] * values["queues"],
        before_bytes=values["beforeBytes"],
        stalled_bytes=values["stalledBytes"],
        peak_bytes=values["peakBytes"],
    )
