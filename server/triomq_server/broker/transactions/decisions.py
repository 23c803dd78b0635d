"""Decides what the check of open transactions does with a half message.

Pure: the message's fields and the clock in, an action out. It answers to the conditions in
`TransactionalMessageServiceImpl.check`; rules: docs/protocol/store.md §20.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from triomq_protocol.names import CHECK_IMMUNITY, CHECK_TIMES, PREPARED_QUEUE_OFFSET

_HOUR_MS = 3_600_000
_NO_NUMBER = -1
"""What Java takes for a property that is not a number."""
MUTE_ROUNDS = 3
"""Consecutive rounds in which no member of a producer group reads its messages, and which do not count as checks."""


class Action(Enum):
    """The action for one half message."""

    PASS = "pass"
    """Nothing: its transaction has ended."""
    DISCARD = "discard"
    """Store it in the topic of messages that were checked too often."""
    WAIT = "wait"
    """Nothing yet: it is too new, and so are all after it."""
    RENEW = "renew"
    """Store it again at the end of the queue, without asking: its producer wants more time."""
    CHECK = "check"
    """Store it again at the end of the queue, and ask a producer of its group how the transaction ended."""


class Limits(msgspec.Struct, frozen=True):
    """The settings of the check.

    Attributes:
        time_out_ms: age of a half message at its first check (`transactionTimeOut`).
        check_max: checks before it is discarded (`transactionCheckMax`).
        reserved_hours: age at which it is discarded in any case (`fileReservedTime`).
        interval_ms: from one round to the next (`transactionCheckInterval`).
    """

    time_out_ms: int
    check_max: int
    reserved_hours: int
    interval_ms: int

    @property
    def immunity_max_ms(self) -> int:
        """The longest time that a producer may want: when it is over, 4.9.7 gives the half message up unasked.

        Each round of that time stores the half message again, so that a longer one would fill the disk.
        """
        return max(self.time_out_ms, self.check_max * self.interval_ms)


class HalfState(msgspec.Struct, frozen=True):
    """What the decision needs to know of a half message.

    Attributes:
        born_ms: when its producer made it, by the producer's clock.
        check_times: how often it has been checked; None: never.
        immunity_ms: the age before which its producer does not want to be asked; None: `time_out_ms` counts.
        ended: whether its transaction has been committed or rolled back.
    """

    born_ms: int
    check_times: int | None = None
    immunity_ms: int | None = None
    ended: bool = False


def decide(half: HalfState, *, now_ms: int, limits: Limits) -> Action:
    """The action for a half message that existed when the round began.

    Of this broker's clock only the present time is used: messages stored while the clock was ahead have a store time in
    the future. A message that seems to come from the future, because its producer's clock is ahead, is checked at once.
    """
    if half.ended:
        return Action.PASS
    age_ms = now_ms - half.born_ms
    if checked_out(half, limits) or age_ms > limits.reserved_hours * _HOUR_MS:
        return Action.DISCARD
    if half.immunity_ms is not None:
        return Action.RENEW if 0 <= age_ms < min(half.immunity_ms, limits.immunity_max_ms) else Action.CHECK
    return Action.WAIT if 0 <= age_ms < limits.time_out_ms else Action.CHECK


def checked_out(half: HalfState, limits: Limits) -> bool:
    """Whether it has been checked as often as it may be."""
    return half.check_times is not None and half.check_times >= limits.check_max


def counts_unasked(mute_rounds: int) -> bool:
    """Whether a round counts as a check though no member of the producer group takes a question.

    A group that is busy for a while loses nothing. One that never reads would have its half messages stored again in
    each round for as long as they are kept.

    Args:
        mute_rounds: how many rounds in a row it has been so, this one included.
    """
    return mute_rounds > MUTE_ROUNDS


def is_later_copy(properties: Mapping[str, str], older: Mapping[str, str], older_offset: int) -> bool:
    """Whether a half message can only be a copy of an older one with the same unique key, born time and born host.

    A copy counts one more check, or names the first half message. Others may be of two transactions: a producer may send
    one message object twice within a millisecond.

    Args:
        properties: of the newer one.
        older: properties of the older one.
        older_offset: its offset in the half queue.
    """
    times, times_before = check_times(properties) or 0, check_times(older) or 0
    first = properties.get(PREPARED_QUEUE_OFFSET)
    if first is not None and first == older.get(PREPARED_QUEUE_OFFSET, str(older_offset)):
        return times >= times_before
    return first is None and PREPARED_QUEUE_OFFSET not in older and times > times_before


def naming_first(properties: Mapping[str, str], offset: int) -> dict[str, str]:
    """The properties of a copy that counts no check: it names the first half message, so that a later master knows it for
    a copy.

    Args:
        properties: of the half message that is copied, which may be a copy itself.
        offset: its offset in the half queue.
    """
    return {**properties, PREPARED_QUEUE_OFFSET: properties.get(PREPARED_QUEUE_OFFSET, str(offset))}


def check_times(properties: Mapping[str, str]) -> int | None:
    """How often a half message has been checked; None: never."""
    text = properties.get(CHECK_TIMES)
    return None if text is None else number(text)


def immunity_ms(properties: Mapping[str, str], time_out_ms: int) -> int | None:
    """The age before which a producer does not want to be asked; None if it is not set."""
    text = properties.get(CHECK_IMMUNITY)
    if text is None:
        return None
    seconds = number(text)
    return time_out_ms if seconds == _NO_NUMBER else seconds * 1000


def number(text: str) -> int:
    """The number that a text is, -1 for any other text, as `TransactionalMessageServiceImpl.getLong` reads it."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        return _NO_NUMBER
    return int(text)
