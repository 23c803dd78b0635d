"""Decisions of sending: what is tried again, how long a try may take, and which broker is next.

All pure: the time, the counter and the chance are arguments.  The loop around them is in
``_sending.py``.  Upstream: ``DefaultMQProducerImpl``, ``MQFaultStrategy``, ``LatencyFaultToleranceImpl``
(client.md §6.7 and §6.9).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import attrs

from triomq._message import MessageQueue
from triomq._results import SendResult, SendStatus
from triomq.errors import MQError

RETRY_CODES: Final = frozenset({17, 14, 1, 16, 204, 205})
"""Answers after which another broker is tried (upstream ``retryResponseCodes``)."""


class RetryPolicy(Protocol):
    """Says whether and how a send is tried again; one object serves all sends of a producer."""

    @property
    def attempts(self) -> int:
        """How many tries a send gets, the first included."""

    def retries(self, error: MQError, /) -> bool:
        """Whether another try may mend this."""

    def retries_result(self, result: SendResult, /) -> bool:
        """Whether a stored message with this status is to be sent to another broker as well."""

    def attempt_timeout_s(self, left_s: float, attempts_left: int, /, *, elsewhere: bool) -> float:
        """How long the next try may wait for its answer.

        Args:
            left_s: what is left of the send's deadline.
            attempts_left: tries that may still be made, this one included.
            elsewhere: whether a further try could go to another broker.
        """

    def pause_s(self, attempt: int, chance: float, /) -> float:
        """How long to wait before a further try at the same broker; ``chance`` is in [0, 1)."""


@attrs.frozen
class Retries:
    """The default policy.

    Args:
        attempts: tries per send (upstream ``retryTimesWhenSendFailed`` + 1).
        retry_codes: answers after which another broker is tried.
        retry_not_stored_ok: whether a status other than SEND_OK is tried elsewhere too
            (``retryAnotherBrokerWhenNotStoreOK``).
        reserve: share of what is left that each further try has reserved for it, 0-1.
        first_pause_s: before a second try at the same broker; doubles with each further one.
        max_pause_s: upper bound of the pause.
    """

    attempts: int = 3
    retry_codes: frozenset[int] = RETRY_CODES
    retry_not_stored_ok: bool = False
    reserve: float = 0.25
    first_pause_s: float = 0.05
    max_pause_s: float = 1.0

    def retries(self, error: MQError, /) -> bool:
        """A broker's answer by its code, anything else by the error's own flag."""
        return error.code in self.retry_codes if error.code is not None else error.retriable

    def retries_result(self, result: SendResult, /) -> bool:
        """Only when asked to."""
        return self.retry_not_stored_ok and result.status is not SendStatus.SEND_OK

    def attempt_timeout_s(self, left_s: float, attempts_left: int, /, *, elsewhere: bool) -> float:
        """All that is left for a last or only try; else what remains beside the others' reserves.

        With no other broker to go to, nothing is held back: asking the same one twice does not make it faster,
        but may store the message twice.
        """
        if attempts_left <= 1 or not elsewhere:
            return left_s
        kept = self.reserve * (attempts_left - 1)
        return left_s * max(1.0 - kept, 1.0 / attempts_left)

    def pause_s(self, attempt: int, chance: float, /) -> float:
        """Doubling, up to half of it taken away by chance."""
        return float(min(self.first_pause_s * 2 ** (attempt - 1), self.max_pause_s)) * (1.0 - 0.5 * chance)


class FaultStrategy(Protocol):
    """Remembers slow and broken brokers, and chooses queues around them."""

    def choose(
        self, queues: Sequence[MessageQueue], last_broker: str | None, count: Callable[[], int], now: float, /
    ) -> MessageQueue:
        """Choose a queue.

        Args:
            queues: the topic's writable queues, at least one.
            last_broker: where the previous try of this message went, if there was one.
            count: the next number of the topic's round robin.
            now: seconds on any steady clock.
        """

    def update(self, broker_name: str, latency_s: float, now: float, /, *, isolate: bool) -> None:
        """Hear how a try went.

        Args:
            broker_name: where it went.
            latency_s: how long it took.
            now: seconds on the same clock.
            isolate: it failed in a way that speaks against the broker.
        """


def choose_plain(queues: Sequence[MessageQueue], last_broker: str | None, count: Callable[[], int]) -> MessageQueue:
    """Round robin over the queues, passing over the broker of the previous try while there is another."""
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
"""A failed try counts as one that took this long."""


def not_available_for_s(latency_s: float) -> float:
    """How long a broker with this latency is avoided (client.md §6.7)."""
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

    The memory is bounded by the number of brokers in the routes.
    """

    def __init__(self) -> None:
        self._faults: dict[str, _Fault] = {}
        self._worst_pick = 0

    def choose(
        self, queues: Sequence[MessageQueue], _last_broker: str | None, count: Callable[[], int], now: float, /
    ) -> MessageQueue:
        """The next queue whose broker is available; else one of the less bad half of the brokers."""
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
        """Remember a try."""
        duration = not_available_for_s(ISOLATION_LATENCY_S if isolate else latency_s)
        self._faults[broker_name] = _Fault(latency_s, now + duration)

    def is_available(self, broker_name: str, now: float) -> bool:
        """Whether nothing speaks against a broker."""
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
