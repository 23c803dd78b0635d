"""Decisions of sending: what is tried again, how long an attempt may take, and which broker is next.

All pure: the time, the counter and the chance are arguments.  ``attempt.py`` makes the attempts and has ``tenacity``
ask these functions after each.  Upstream: ``DefaultMQProducerImpl``, ``MQFaultStrategy``, ``LatencyFaultToleranceImpl``
(docs/protocol/client.md §6.7 and §6.9).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import attrs

from triomq._message.message import MessageQueue
from triomq._message.send_result import SendResult, SendStatus
from triomq.errors import Attempt, ConnectFailed, LinkLost, MQError, NotReady, RequestTimeout
from triomq_protocol.codes import ResponseCode

RETRY_CODES: Final[frozenset[int]] = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)
"""Answers after which another broker is tried (upstream ``retryResponseCodes``)."""


class RetryPolicy(Protocol):
    """Decides whether and how a send is tried again; one object serves all sends of a producer."""

    @property
    def attempts(self) -> int:
        """How many attempts a send gets, the first included."""

    def retries(self, error: MQError, /) -> bool:
        """Whether another attempt may succeed after this."""

    def retries_result(self, result: SendResult, /) -> bool:
        """Whether a stored message with this status is to be sent to another broker as well."""

    def attempt_timeout_s(self, left_s: float, attempts_left: int, /, *, elsewhere: bool) -> float:
        """How long the next attempt may wait for its answer.

        Args:
            left_s: what is left of the send's deadline.
            attempts_left: attempts that may still be made, this one included.
            elsewhere: whether a further attempt could go to another broker.
        """

    def pause_s(self, attempt: int, chance: float, /) -> float:
        """How long to wait before a further attempt at the same broker; ``chance`` is in [0, 1)."""


@attrs.frozen
class Retries:
    """The default policy.

    Args:
        attempts: attempts per send (upstream ``retryTimesWhenSendFailed`` + 1).
        retry_codes: answers after which another broker is tried.
        retry_not_stored_ok: whether a status other than SEND_OK is tried elsewhere too
            (``retryAnotherBrokerWhenNotStoreOK``).
        reserve: share of what is left that is kept for each further attempt, 0-1.
        first_pause_s: before a second attempt at the same broker; doubles with each further one.
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
        """All that is left for a last or only attempt; else what remains beside the others' reserves.

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


def wants_retry(policy: RetryPolicy, outcome: SendResult | MQError) -> bool:
    """Whether an attempt that ended so should be followed by another, as far as the policy is concerned."""
    if isinstance(outcome, MQError):
        return policy.retries(outcome)
    return policy.retries_result(outcome)


def is_last_attempt(attempt: int, max_attempts: int, left_s: float) -> bool:
    """Whether this attempt, the first being 1, is the last: by its number, or because no time is left."""
    return attempt >= max_attempts or left_s <= 0


def pause_before_retry_s(
    policy: RetryPolicy, attempt: int, chance: float, *, elsewhere: bool, redial_in_s: float, left_s: float
) -> float:
    """How long to wait before the next attempt.

    Another broker may be asked at once; the same one needs a moment, and an address that could not be dialled
    its pause.

    Args:
        policy: says how long a moment is.
        attempt: how many attempts were made.
        chance: in [0, 1).
        elsewhere: whether the topic has queues on another broker.
        redial_in_s: when the broker's address may be dialled again.
        left_s: what is left of the send's deadline.
    """
    if elsewhere:
        return 0.0
    return min(max(policy.pause_s(attempt, chance), redial_in_s), max(0.0, left_s))


def error_to_raise(last: MQError, attempts: Sequence[Attempt]) -> MQError:
    """The error whose kind ends a send: the last attempt's.

    Except that after a failed connection it must not say that nothing was sent if the outcome of an earlier attempt is
    unknown: then it is that attempt's.
    """
    if not isinstance(last, ConnectFailed):
        return last
    return next((each.error for each in reversed(attempts) if _may_be_stored(each.error)), last)


def _may_be_stored(error: MQError) -> bool:
    """Whether the broker may have stored the message although the attempt failed."""
    return isinstance(error, LinkLost | RequestTimeout) and not isinstance(error, NotReady)


class FaultStrategy(Protocol):
    """Remembers slow and broken brokers, and chooses queues around them."""

    def choose(
        self, queues: Sequence[MessageQueue], last_broker: str | None, count: Callable[[], int], now: float, /
    ) -> MessageQueue:
        """Choose a queue.

        Args:
            queues: the topic's writable queues, at least one.
            last_broker: where the previous attempt of this message went, if there was one.
            count: the next number of the topic's round robin.
            now: seconds on any steady clock.
        """

    def update(self, broker_name: str, latency_s: float, now: float, /, *, isolate: bool) -> None:
        """Record how an attempt went.

        Args:
            broker_name: where it went.
            latency_s: how long it took.
            now: seconds on the same clock.
            isolate: it failed in a way that the broker may be the cause of.
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
        """Remember an attempt."""
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
