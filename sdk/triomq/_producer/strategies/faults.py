"""Chooses the broker of a send's next attempt: plain round robin, or avoiding brokers that were slow or failed.

The time and the counter are arguments; the only state is the memory of a strategy, one for all sends of a producer.
Upstream: ``MQFaultStrategy``, ``LatencyFaultToleranceImpl`` (docs/protocol/client.md §6.7).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import attrs

from triomq._message.message import MessageQueue


class FaultStrategy(Protocol):
    """Records slow and failing brokers, and chooses queues of others."""

    def choose(
        self, queues: Sequence[MessageQueue], last_broker: str | None, count: Callable[[], int], now: float, /
    ) -> MessageQueue:
        """Choose a queue.

        Args:
            queues: the topic's writable queues, at least one.
            last_broker: the broker of this message's previous attempt, if there was one.
            count: the next number of the topic's round robin.
            now: seconds on any steady clock.
        """

    def update(self, broker_name: str, latency_s: float, now: float, /, *, isolate: bool) -> None:
        """Record the outcome of an attempt.

        Args:
            broker_name: its broker.
            latency_s: its duration.
            now: seconds on the same clock.
            isolate: whether it failed, and the broker may be the cause.
        """


def choose_plain(queues: Sequence[MessageQueue], last_broker: str | None, count: Callable[[], int]) -> MessageQueue:
    """Round robin over the queues, passing over the broker of the previous attempt while there is another."""
    number = len(queues)
    if last_broker is not None:
        for _ in range(number):
            queue = queues[count() % number]
            if queue.broker_name != last_broker:
                return queue
    return queues[count() % number]


LATENCY_LIMITS_S: Final = (0.05, 0.1, 0.55, 1.0, 2.0, 3.0, 15.0)
NOT_AVAILABLE_S: Final = (0.0, 0.0, 30.0, 60.0, 120.0, 180.0, 600.0)
ISOLATION_LATENCY_S: Final = 30.0
"""A failed attempt counts as one that took this long."""


def not_available_for_s(latency_s: float) -> float:
    """How long a broker with this latency is avoided (docs/protocol/client.md §6.7)."""
    for limit, duration in zip(reversed(LATENCY_LIMITS_S), reversed(NOT_AVAILABLE_S), strict=True):
        if latency_s >= limit:
            return duration
    return 0.0


@attrs.define
class _Fault:
    latency_s: float
    available_at: float


class LatencyFaults:
    """Upstream's latency fault tolerance: brokers that were slow or failed are avoided for a while.

    It remembers every broker that was sent to, even one that is no longer in a route.
    """

    def __init__(self) -> None:
        self._faults: dict[str, _Fault] = {}
        self._worst_pick = 0

    def choose(
        self, queues: Sequence[MessageQueue], _last_broker: str | None, count: Callable[[], int], now: float, /
    ) -> MessageQueue:
        """The next queue whose broker is available; otherwise one of the better half of the brokers."""
        start, number = count(), len(queues)
        for step in range(number):
            queue = queues[(start + step) % number]
            if self.is_available(queue.broker_name, now):
                return queue
        broker_name = self._least_bad(now)
        of_broker = [queue for queue in queues if queue.broker_name == broker_name]
        if of_broker:
            return of_broker[count() % len(of_broker)]
        self._faults.pop(broker_name, None)
        return queues[count() % number]

    def update(self, broker_name: str, latency_s: float, now: float, /, *, isolate: bool) -> None:
        """Record an attempt."""
        duration = not_available_for_s(ISOLATION_LATENCY_S if isolate else latency_s)
        self._faults[broker_name] = _Fault(latency_s, now + duration)

    def is_available(self, broker_name: str, now: float) -> bool:
        """Whether a broker is not avoided now."""
        fault = self._faults.get(broker_name)
        return fault is None or now >= fault.available_at

    def _least_bad(self, now: float) -> str:
        names = sorted(
            self._faults,
            key=lambda name: (
                not self.is_available(name, now),
                self._faults[name].latency_s,
                self._faults[name].available_at,
            ),
        )
        half = len(names) // 2
        if half == 0:
            return names[0]
        self._worst_pick += 1
        return names[self._worst_pick % half]
