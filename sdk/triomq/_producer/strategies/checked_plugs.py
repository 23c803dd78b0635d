"""Checks users' retry policies and fault strategies: their exceptions and invalid results must not end the client.

They are called by tasks that serve all sends of a connection.  An unusable result is logged, and the send continues with
the default.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import trio

from triomq._arguments.kinds import check_methods
from triomq._arguments.numbers import check_count, check_seconds
from triomq._error_text import named_error, shown
from triomq._message.message import MessageQueue
from triomq._message.send_result import SendResult
from triomq._producer.strategies.faults import FaultStrategy, LatencyFaults, choose_plain
from triomq._producer.strategies.retry import Retries, RetryPolicy
from triomq.errors import InvalidCall, MQError

log = logging.getLogger("triomq.producer")

T = TypeVar("T")

LINE_EVERY_S: Final = 10.0
"""The shortest time between two log lines about one method: it may fail with every send."""

_DEFAULT: Final = Retries()


class _Calls:
    """Calls of one object's methods.

    Args:
        what: the name of the plug point.
        of: the user's object.
    """

    def __init__(self, what: str, of: object) -> None:
        self._what = what
        self._of = type(of).__name__
        self._written_s: dict[str, float] = {}

    def strict(self, name: str, call: Callable[[], T], check: Callable[[str, T], None] | None = None) -> T:
        """Call a method.

        Args:
            name: the method's name.
            call: calls it.
            check: given the name and the answer, raises :class:`InvalidCall` unless the answer can be used.

        Raises:
            InvalidCall: the method has raised, or its answer cannot be used.
        """
        where = f"{name} of the {self._what} {self._of}"
        try:
            answer = call()
        except Exception as error:
            raise InvalidCall(f"{where} failed: {named_error(error)}") from error
        if check is not None:
            check(where, answer)
        return answer

    def lenient(self, name: str, call: Callable[[], T], default: T, check: Callable[[str, T], None] | None = None) -> T:
        """:meth:`strict`, but with the default in place of an answer that cannot be used."""
        try:
            return self.strict(name, call, check)
        except InvalidCall as error:
            self.write(name, error)
            return default

    def write(self, name: str, error: InvalidCall) -> None:
        """Log that a method's answer cannot be used."""
        now = trio.current_time()
        if now - self._written_s.get(name, -math.inf) >= LINE_EVERY_S:
            self._written_s[name] = now
            log.error("%s; the default is used instead", error, exc_info=error.__cause__)


def _check_attempts(name: str, value: object) -> None:
    check_count(name, value, 1)


def _check_timeout(name: str, value: object) -> None:
    check_seconds(name, value)


def _check_pause(name: str, value: object) -> None:
    check_seconds(name, value, zero=True)


class CheckedPolicy:
    """A user's retry policy; see :class:`RetryPolicy`.

    Args:
        policy: the user's policy.
        timeout_s: the timeout of the producer's sends.

    Raises:
        InvalidCall: it fails when asked for the time of a first attempt.
    """

    def __init__(self, policy: RetryPolicy, timeout_s: float) -> None:
        self._policy = policy
        self._calls = calls = _Calls("retry policy", policy)
        attempts = calls.strict("attempts", lambda: policy.attempts, _check_attempts)
        for elsewhere in (False, True):
            calls.strict("attempt_timeout_s", self._timeout_s(timeout_s, attempts, elsewhere), _check_timeout)

    def _timeout_s(self, left_s: float, attempts_left: int, elsewhere: bool) -> Callable[[], float]:
        return lambda: self._policy.attempt_timeout_s(left_s, attempts_left, elsewhere=elsewhere)

    @property
    def attempts(self) -> int:
        """The user's answer; 1 if it cannot be used."""
        return self._calls.lenient("attempts", lambda: self._policy.attempts, 1, _check_attempts)

    def retries(self, error: MQError, /) -> bool:
        """The user's answer; false if it fails, as a further attempt may store the message twice."""
        return self._calls.lenient("retries", lambda: bool(self._policy.retries(error)), False)

    def retries_result(self, result: SendResult, /) -> bool:
        """The user's answer; false if it fails."""
        return self._calls.lenient("retries_result", lambda: bool(self._policy.retries_result(result)), False)

    def attempt_timeout_s(self, left_s: float, attempts_left: int, /, *, elsewhere: bool) -> float:
        """The user's answer; all remaining time if it cannot be used."""
        call = self._timeout_s(left_s, attempts_left, elsewhere)
        return self._calls.lenient("attempt_timeout_s", call, left_s, _check_timeout)

    def pause_s(self, attempt: int, chance: float, /) -> float:
        """The user's answer; that of :class:`Retries` if it cannot be used."""
        default = _DEFAULT.pause_s(attempt, chance)
        return self._calls.lenient("pause_s", lambda: self._policy.pause_s(attempt, chance), default, _check_pause)


class CheckedFaults:
    """A user's fault strategy; see :class:`FaultStrategy`."""

    def __init__(self, faults: FaultStrategy) -> None:
        self._faults = faults
        self._calls = _Calls("fault strategy", faults)

    def choose(
        self, queues: Sequence[MessageQueue], last_broker: str | None, count: Callable[[], int], now: float, /
    ) -> MessageQueue:
        """The user's choice; the next queue of the round robin if it is none of the queues."""

        def check(name: str, queue: object) -> None:
            if queue not in queues:
                raise InvalidCall(f"{name} chose {shown(queue)}, which is none of the topic's {len(queues)} queues")

        try:
            return self._calls.strict("choose", lambda: self._faults.choose(queues, last_broker, count, now), check)
        except InvalidCall as error:
            self._calls.write("choose", error)
            return choose_plain(queues, last_broker, count)

    def update(self, broker_name: str, latency_s: float, now: float, /, *, isolate: bool) -> None:
        """Call the user's method; its exceptions are logged."""
        self._calls.lenient("update", lambda: self._faults.update(broker_name, latency_s, now, isolate=isolate), None)


def checked_policy(policy: RetryPolicy | None, timeout_s: float) -> RetryPolicy:
    """The policy for further attempts; the default is used as it is, without checks.

    Args:
        policy: the user's policy.
        timeout_s: the timeout of the producer's sends.

    Raises:
        InvalidCall: the user's policy cannot be used.
    """
    if policy is None:
        return _DEFAULT
    return policy if type(policy) is Retries else CheckedPolicy(policy, timeout_s)


def checked_faults(faults: FaultStrategy | None) -> FaultStrategy | None:
    """The strategy that chooses queues, if there is one; the one that we ship is used as it is, without checks.

    Raises:
        InvalidCall: it lacks the methods of a strategy.
    """
    if faults is None or type(faults) is LatencyFaults:
        return faults
    check_methods("faults", faults, "choose", "update")
    return CheckedFaults(faults)
