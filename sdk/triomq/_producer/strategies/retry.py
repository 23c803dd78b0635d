"""Decisions about further attempts of a send: which failures are retried, an attempt's time limit, and the pause before
the next one.

All are pure functions: the time and the chance are arguments.  ``attempt.py`` makes the attempts and has ``tenacity``
call these functions after each; ``faults.py`` chooses the next broker.  Upstream: ``DefaultMQProducerImpl``
(docs/protocol/client.md §6.9).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import attrs

from triomq._arguments.numbers import counts, seconds, share
from triomq._message.send_result import SendResult, SendStatus
from triomq._transport.links import growing_pause_s
from triomq.errors import (
    MAY_BE_STORED,
    AccessRefused,
    Attempt,
    ConnectFailed,
    LinkLost,
    MQError,
    NoNameServer,
    NotReady,
    RequestRejected,
    RequestTimeout,
    RouteNotFound,
)
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
    """Decides whether and how a send is retried; one object serves all sends of a producer."""

    @property
    def attempts(self) -> int:
        """The number of attempts of a send, the first included."""

    def retries(self, error: MQError, /) -> bool:
        """Whether another attempt may succeed after this error."""

    def retries_result(self, result: SendResult, /) -> bool:
        """Whether a stored message with this status is to be sent to another broker as well."""

    def attempt_timeout_s(self, left_s: float, attempts_left: int, /, *, elsewhere: bool) -> float:
        """How long the next attempt may wait for its answer.

        Args:
            left_s: the time left until the send's deadline.
            attempts_left: attempts that may still be made, this one included.
            elsewhere: whether a further attempt could go to another broker.
        """

    def pause_s(self, attempt: int, chance: float, /) -> float:
        """How long to wait before a further attempt at the same broker; ``chance`` is in [0, 1)."""


@attrs.frozen
class Retries:
    """The default retry policy.

    Args:
        attempts: attempts per send (upstream ``retryTimesWhenSendFailed`` + 1).
        retry_codes: answers after which another broker is tried.
        retry_not_stored_ok: whether a status other than SEND_OK leads to an attempt elsewhere too
            (``retryAnotherBrokerWhenNotStoreOK``).
        reserve: share of the remaining time that is kept for each further attempt, 0-1.
        first_pause_s: before a second attempt at the same broker; doubles with each further one.
        max_pause_s: upper bound of the pause.

    Raises:
        InvalidCall: a number is out of its range.
    """

    attempts: int = attrs.field(default=3, validator=counts(1))
    retry_codes: frozenset[int] = RETRY_CODES
    retry_not_stored_ok: bool = False
    reserve: float = attrs.field(default=0.25, validator=share)
    first_pause_s: float = attrs.field(default=0.05, validator=seconds(zero=True))
    max_pause_s: float = attrs.field(default=1.0, validator=seconds(zero=True))

    def retries(self, error: MQError, /) -> bool:
        """Decides by the code of a broker's answer; for any other error, by the error's own flag."""
        return error.code in self.retry_codes if error.code is not None else error.retriable

    def retries_result(self, result: SendResult, /) -> bool:
        """Only if ``retry_not_stored_ok`` is set."""
        return self.retry_not_stored_ok and result.status is not SendStatus.SEND_OK

    def attempt_timeout_s(self, left_s: float, attempts_left: int, /, *, elsewhere: bool) -> float:
        """All the time left for a last or only attempt; otherwise the rest after the others' reserves.

        With no other broker to go to, nothing is held back: asking the same one twice does not make it faster,
        but may store the message twice.
        """
        if attempts_left <= 1 or not elsewhere:
            return left_s
        kept = self.reserve * (attempts_left - 1)
        return left_s * max(1.0 - kept, 1.0 / attempts_left)

    def pause_s(self, attempt: int, chance: float, /) -> float:
        """The doubling pause, reduced at random by up to half."""
        return growing_pause_s(attempt, self.first_pause_s, 2.0, self.max_pause_s) * (1.0 - chance / 2)


def wants_retry(policy: RetryPolicy, outcome: SendResult | MQError, *, elsewhere: bool = True) -> bool:
    """Whether an attempt with this outcome should be followed by another, as far as the policy is concerned.

    A broker that refuses the account would refuse it again; another one may have other accounts. One that rejects a
    request before it looks at it has stored nothing, and may be a slave by now, whatever the policy says about its code.

    Args:
        policy: decides about all other outcomes.
        outcome: the outcome of the last attempt.
        elsewhere: whether the topic has queues on another broker.
    """
    if isinstance(outcome, RequestRejected):
        return True
    if isinstance(outcome, MQError):
        return policy.retries(outcome) and (elsewhere or not isinstance(outcome, AccessRefused))
    return policy.retries_result(outcome)


def is_last_attempt(attempt: int, max_attempts: int, left_s: float) -> bool:
    """Whether this attempt, the first being 1, is the last: by its number, or because no time is left."""
    return attempt >= max_attempts or left_s <= 0


def pause_before_retry_s(
    policy: RetryPolicy, attempt: int, chance: float, *, elsewhere: bool, redial_in_s: float, left_s: float
) -> float:
    """How long to wait before the next attempt.

    Another broker may be asked at once; the same one needs a short pause, and an address that could not be dialled
    its own pause.

    Args:
        policy: gives the short pause.
        attempt: the number of attempts made.
        chance: in [0, 1).
        elsewhere: whether the topic has queues on another broker.
        redial_in_s: when the broker's address may be dialled again.
        left_s: the time left until the send's deadline.
    """
    if elsewhere:
        return 0.0
    return min(max(policy.pause_s(attempt, chance), redial_in_s), max(0.0, left_s))


def error_to_raise(last: MQError, attempts: Sequence[Attempt]) -> MQError:
    """The error whose kind ends a send: the last attempt's.

    If the last attempt sent nothing, but the outcome of an earlier one is unknown, it is that attempt's error: the send
    must not end as if nothing had been sent.
    """
    if not isinstance(last, ConnectFailed | RouteNotFound | NoNameServer):
        return last
    return next((each.error for each in reversed(attempts) if _may_be_stored(each.error)), last)


def attempts_text(attempts: Sequence[Attempt]) -> str:
    """The number of attempts as text; without a name server there are none, since no broker was known."""
    if attempts and all(isinstance(each.error, NoNameServer) for each in attempts):
        return "nothing was sent"
    return f"{len(attempts)} attempt(s)"


def advice_of(error: MQError, attempts: Sequence[Attempt]) -> str:
    """Advice for the caller of a failed send; whether the message may be stored depends on all attempts."""
    if not any(_may_be_stored(each.error) for each in attempts):
        return error.advice
    if _may_be_stored(error) or not error.advice:
        return MAY_BE_STORED
    return f"{error.advice}; an earlier attempt may have stored the message, compare UNIQ_KEY"


def _may_be_stored(error: MQError) -> bool:
    """Whether the broker may have stored the message although the attempt failed."""
    unanswered = isinstance(error, LinkLost | RequestTimeout) and not isinstance(error, NotReady)
    return unanswered or error.advice == MAY_BE_STORED  # e.g. from a client that closed before the answer
