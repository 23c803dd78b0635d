"""Two well-behaved clients: one sends and remembers what was acknowledged, the other consumes; and what they met."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence

import attrs
import trio

import triomq
from triomq_benchmarks.generator.loop_lag import LoopLag

AUDITOR = "innocent-auditor"
TOPIC = "innocent"
QUEUES = 4
PAUSE_S = 0.05
"""Between two messages."""
READ_S = 60.0
"""How long the last messages may take, once all is quiet."""


@attrs.define
class Durations:
    """Many durations: how long something took, and how much of it this process's own loop lost.

    Attributes:
        seconds: as a client waits for them.
        without_lag: the same, less what this loop, busy or starved by others, woke too late.
    """

    seconds: list[float] = attrs.field(factory=list)
    without_lag: list[float] = attrs.field(factory=list)

    def add(self, seconds: float, lag_s: float = 0.0) -> None:
        self.seconds.append(seconds)
        self.without_lag.append(max(0.0, seconds - lag_s))

    def figures(self) -> dict[str, float | int]:
        """Count, p50, p99 and the worst, in milliseconds."""
        return {
            "count": len(self.seconds),
            "p50_ms": _ms(self.seconds, 0.5),
            "p99_ms": _ms(self.seconds, 0.99),
            "worst_ms": _ms(self.seconds, 1.0),
            "p99_without_lag_ms": _ms(self.without_lag, 0.99),
            "worst_without_lag_ms": _ms(self.without_lag, 1.0),
        }


def _ms(values: Sequence[float], part: float) -> float:
    if not values:
        return 0.0
    return round(1000 * sorted(values)[min(len(values) - 1, math.ceil(part * len(values)) - 1)], 1)


@attrs.define
class Innocents:
    """What the two clients saw.

    Attributes:
        acknowledged: body by place (queue, offset).
        sends: durations of acknowledged sends.
        deliveries: from the begin of a send until its message is consumed.
        failures: of sends, by the error's class.
        received: bodies that the consumer got, with how often.
        twice: places that were acknowledged for two messages.
    """

    name_servers: str
    acknowledged: dict[tuple[int, int], bytes] = attrs.field(factory=dict)
    sends: Durations = attrs.field(factory=Durations)
    deliveries: Durations = attrs.field(factory=Durations)
    failures: Counter[str] = attrs.field(factory=Counter)
    statuses: Counter[str] = attrs.field(factory=Counter)
    received: Counter[bytes] = attrs.field(factory=Counter)
    twice: list[tuple[int, int]] = attrs.field(factory=list)
    worst: list[tuple[float, str]] = attrs.field(factory=list)
    _lag: LoopLag = attrs.field(factory=LoopLag)
    _arrived: trio.Event = attrs.field(factory=trio.Event)
    _begun: dict[bytes, float] = attrs.field(factory=dict)

    async def create_topic(self) -> None:
        """Create the topic, wait until it can be sent to, and make the auditor's group. Raises trio.TooSlowError.

        Groups that strangers invent end at the broker's limit, and so would a first use of the group afterwards.
        """
        async with triomq.open_client(self.name_servers) as client, client.pull_consumer(AUDITOR) as auditor:
            await client.admin.create_topic(TOPIC, queues=QUEUES)
            with trio.fail_after(READ_S):
                while True:
                    try:
                        await client.admin.route(TOPIC)
                    except triomq.MQError:
                        await trio.sleep(0.05)
                    else:
                        break
            for queue in await auditor.fetch_queues(TOPIC):
                await auditor.pull(queue, offset=0, block=False)

    async def measure(self, nursery: trio.Nursery) -> None:
        """Start what measures this process's own lag."""
        nursery.start_soon(self._lag.run)

    async def produce(self, until: trio.Event) -> None:
        """Send one message after the other, each awaited."""
        number = 0
        async with (
            triomq.open_client(self.name_servers) as client,
            client.producer("innocent-producers", send_timeout_s=10.0) as producer,
        ):
            while not until.is_set():
                number += 1
                body = b"%d %s" % (number, b"." * (number % 300))
                self._begun[body] = begun = trio.current_time()
                lag_s = self._lag.lost_s()
                try:
                    result = await producer.send(triomq.Message(TOPIC, body))
                except triomq.MQError as error:
                    self.failures[type(error).__name__] += 1
                    self._note(trio.current_time() - begun, f"failed: {error}")
                else:
                    spent_s = trio.current_time() - begun
                    self.sends.add(spent_s, self._lag.lost_s() - lag_s)
                    self.statuses[result.status.name] += 1
                    self._note(spent_s, "send")
                    place = (result.queue.queue_id, result.queue_offset)
                    if place in self.acknowledged:
                        self.twice.append(place)
                    self.acknowledged[place] = body
                await trio.sleep(PAUSE_S)

    async def consume(self) -> None:
        """Handle messages until cancelled."""

        async def handle(message: triomq.ReceivedMessage) -> None:
            self.received[message.body] += 1
            self._arrived.set()
            if (begun := self._begun.pop(message.body, None)) is not None:
                spent_s = trio.current_time() - begun
                self.deliveries.add(spent_s)
                self._note(spent_s, "delivery")

        async with (
            triomq.open_client(self.name_servers) as client,
            client.push_consumer("innocent-consumers", start_from="earliest") as consumer,
        ):
            await consumer.subscribe(TOPIC)
            await consumer.run(handle)

    async def all_received(self) -> None:
        """Wait until the consumer has got every acknowledged message, or that takes too long."""
        with trio.move_on_after(READ_S):
            while self.unconsumed():
                self._arrived = trio.Event()
                await self._arrived.wait()

    def unconsumed(self) -> int:
        """Acknowledged messages that the consumer did not get."""
        return sum(body not in self.received for body in self.acknowledged.values())

    async def missing(self, read_preference: str) -> list[tuple[int, int]]:
        """Places of acknowledged messages that are not at their place, read from a master or a slave. Raises MQError."""
        found: dict[tuple[int, int], bytes] = {}
        async with (
            triomq.open_client(self.name_servers) as client,
            client.pull_consumer(AUDITOR, read_preference=read_preference) as consumer,
        ):
            for queue in await consumer.fetch_queues(TOPIC):
                last = max((offset for number, offset in self.acknowledged if number == queue.queue_id), default=-1)
                offset = 0
                with trio.move_on_after(READ_S):
                    while offset <= last:
                        result = await consumer.pull(queue, offset=offset, block=False)
                        found.update(((queue.queue_id, each.queue_offset), each.body) for each in result.messages)
                        if result.next_offset == offset:
                            await trio.sleep(0.05)
                        offset = result.next_offset
        return [place for place, body in self.acknowledged.items() if found.get(place) != body]

    def _note(self, spent_s: float, what: str) -> None:
        """Keep the slowest with their time of day."""
        if len(self.worst) < 20 or spent_s > self.worst[-1][0]:
            self.worst.append((spent_s, f"{time.strftime('%H:%M:%S')} {what}"[:200]))
            self.worst = sorted(self.worst, reverse=True)[:20]
