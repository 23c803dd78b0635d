"""The named scenarios, and the goals for their figures.

A scenario defines the requests to a broker, not the client: every load (ours, the Java client, prepared frames) drives
the same ones. Everything is bounded: by time first, by count and by bytes so that a fast machine does not fill the
disk.
"""

from __future__ import annotations

import attrs

BODY_BYTES = (128, 1024, 16_384)
QUICK_BODY_BYTES = (1024,)
COUNT_LIMIT = 400_000
BYTES_LIMIT = 96 << 20


@attrs.frozen
class Scenario:
    """One workload.

    Attributes:
        name: its name in reports and on the command line.
        op: `send` or `drain` (pull a filled topic from its beginning).
        links: connections to the broker, with one client instance each.
        in_flight: unanswered requests per link.
        mode: `sync` (each request waited for by its own thread or task) or `async` (callbacks).
        batch: messages per send request.
        goal: wanted throughput of ours divided by Java's, when prepared frames drive the brokers; None: no goal, shown for
            information.
    """

    name: str
    op: str = "send"
    links: int = 1
    in_flight: int = 1
    mode: str = "sync"
    batch: int = 1
    goal: float | None = None

    def count(self, body_bytes: int) -> int:
        """Maximum number of messages that one sample may send or pull."""
        return max(self.links * self.in_flight * self.batch, min(COUNT_LIMIT, BYTES_LIMIT // (body_bytes + 256)))

    def command(self, body_bytes: int, seconds: float) -> dict[str, object]:
        """The part of a driver's command that describes this workload; addresses and topic are added by the load."""
        return {
            "op": self.op,
            "links": self.links,
            "inFlight": self.in_flight,
            "mode": self.mode,
            "batch": self.batch,
            "bodyBytes": body_bytes,
            "count": self.count(body_bytes),
            "maxSeconds": seconds,
        }


# The broker's side: ours against Java's under the same client process.
BROKER = (
    Scenario("1 x 1", goal=1.7),
    Scenario("1 x 64", in_flight=64, goal=2.0),
    Scenario("8 x 32", links=8, in_flight=32, mode="async", goal=2.0),
    Scenario("64 x 1", links=64, goal=1.3),
    Scenario("batch 32", batch=32, goal=1.5),
    Scenario("batch 32 x 8", batch=32, in_flight=8),
    Scenario("async 256", in_flight=256, mode="async"),
    Scenario("drain", op="drain", goal=2.0),
)

# The client's side: ours against the Java client on the same real broker.
SDK = (
    Scenario("1 in flight", goal=1.2),
    Scenario("64 in flight", in_flight=64, goal=2.2),
    Scenario("256 in flight", in_flight=256, mode="async", goal=2.0),
)

JAVA_CLIENT_GOAL = 1.2
"""When the Java client drives both brokers: its own work takes most of a core."""
BROKER_CPU_GOAL = 0.4
SDK_CPU_GOAL = 0.3
START_GOAL = 0.1
MEMORY_GOAL = 0.2


def broker_goal(scenario: Scenario, load: str) -> float | None:
    """The wanted throughput of our broker divided by the Java broker's when `load` drives both.

    There is none for our own SDK: on two cores it shows what the client can do.
    """
    if scenario.goal is None or load == "triomq":
        return None
    return scenario.goal if load == "raw" else JAVA_CLIENT_GOAL
