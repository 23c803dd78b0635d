"""A client's counters: plain numbers that are only added to, from the client's own loop.

``client_statistics.py`` makes values for users from them.  A successful send adds two numbers; everything else is
counted off the hot path (docs/explanation/hot-path.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from typing import Final

BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets; longer durations are in a last one."""

TIMED_EVERY: Final = 16
"""One of this many sends is timed, starting with the first: timing each would cost more than all other counting."""

NAMES_MAX: Final = 10_000
"""Pairs of group and topic counted separately, for sends, pulls and handlers each; others share :data:`OTHERS`."""

OTHERS: Final = "(others)"
"""Counts the topics beyond :data:`NAMES_MAX`; brokers allow no such name."""

CODES_MAX: Final = 256
"""Response codes that are counted separately; others are counted as -1."""


class TopicSends:
    """Sends of one producer group to one topic.

    Attributes:
        topic: the topic's name.
        stored: sends that a broker has stored, a batch as one.
        stored_in_batches: messages beyond the first one of each batch.
        body_bytes: the sizes of their bodies as sent.
        total_s: the total duration of the last attempts of the timed sends.
        buckets: the same by :data:`BOUNDS_S`.
        weakly: status -> messages stored with it instead of ``SEND_OK``; they are in ``stored`` too.
        oneway: one-way messages that were written.
        retries: attempts after the first one.
        errors: class of the error -> sends that failed with it.
    """

    __slots__ = (
        "body_bytes",
        "buckets",
        "errors",
        "oneway",
        "retries",
        "stored",
        "stored_in_batches",
        "topic",
        "total_s",
        "weakly",
    )

    def __init__(self, topic: str) -> None:
        self.topic: str = topic
        self.stored: int = 0
        self.stored_in_batches: int = 0
        self.body_bytes: int = 0
        self.oneway: int = 0
        self.retries: int = 0
        self.total_s: float = 0.0
        self.buckets: list[int] = [0] * (len(BOUNDS_S) + 1)
        self.weakly: dict[str, int] = {}
        self.errors: dict[str, int] = {}

    def took(self, duration_s: float) -> None:
        """Count how long a send's last attempt took."""
        self.total_s += duration_s
        self.buckets[bisect_left(BOUNDS_S, duration_s)] += 1

    def weakly_stored(self, status: str, messages: int = 1) -> None:
        """Count a status other than ``SEND_OK``."""
        if messages:
            self.weakly[status] = self.weakly.get(status, 0) + messages


class TopicPulls:
    """Pulls of one consumer group from one topic, which may be the group's retry topic.

    Attributes:
        pulls: status of the answer -> pulls.
        messages: records in the answers, before filters of the client.
        missing: messages that brokers passed over, having deleted them while their queues still listed them.
        record_bytes: their bytes.
    """

    __slots__ = ("messages", "missing", "pulls", "record_bytes")

    def __init__(self) -> None:
        self.messages: int = 0
        self.missing: int = 0
        self.record_bytes: int = 0
        self.pulls: dict[str, int] = {}


class TopicCalls:
    """Messages of one topic that one consumer group has pulled by itself and handled.

    Attributes:
        ok: messages consumed.
        failed: messages whose handler failed, or asked for them later.
        handling_s: the total duration of handlers.
        pulls: pulls with messages.
        pulled: their messages.
        pulling_s: their total duration.
        buckets: calls of handlers by :data:`BOUNDS_S`; not in copies.
    """

    __slots__ = ("buckets", "failed", "handling_s", "ok", "pulled", "pulling_s", "pulls")

    def __init__(self) -> None:
        self.ok: int = 0
        self.failed: int = 0
        self.handling_s: float = 0.0
        self.pulls: int = 0
        self.pulled: int = 0
        self.pulling_s: float = 0.0
        self.buckets: list[int] = [0] * (len(BOUNDS_S) + 1)

    def took(self, duration_s: float, calls: int = 1) -> None:
        """Count the total duration of calls of a handler."""
        self.handling_s += duration_s
        self.buckets[bisect_left(BOUNDS_S, duration_s / calls)] += calls

    def copy(self) -> TopicCalls:
        """The sums as they are now."""
        copied = TopicCalls()
        for name in ("failed", "handling_s", "ok", "pulled", "pulling_s", "pulls"):
            setattr(copied, name, getattr(self, name))
        return copied


class Counters:
    """All counters of one client; they stay when a producer or consumer closes, and continue if its group returns.

    Attributes:
        sends: (producer group, topic) -> what was sent.
        pulls: (consumer group, topic) -> what was pulled.
        calls: (consumer group, topic) -> what was handled.
        rebalances: consumer group -> rounds that changed its queues here.
        codes: response code -> answers with it, except success.
    """

    def __init__(self) -> None:
        self.sends: dict[tuple[str, str], TopicSends] = {}
        self.pulls: dict[tuple[str, str], TopicPulls] = {}
        self.calls: dict[tuple[str, str], TopicCalls] = {}
        self.rebalances: dict[str, int] = {}
        self.codes: dict[int, int] = {}

    def of_sends(self, group: str, topic: str) -> TopicSends:
        """The counters of a group's sends to a topic."""
        key = _key(self.sends, group, topic)
        found = self.sends.get(key)
        if found is None:
            found = self.sends[key] = TopicSends(key[1])
        return found

    def of_pulls(self, group: str, topic: str) -> TopicPulls:
        """The counters of a group's pulls from a topic."""
        key = _key(self.pulls, group, topic)
        found = self.pulls.get(key)
        if found is None:
            found = self.pulls[key] = TopicPulls()
        return found

    def of_calls(self, group: str, topic: str) -> TopicCalls:
        """The counters of a group's handlers for a topic."""
        key = _key(self.calls, group, topic)
        found = self.calls.get(key)
        if found is None:
            found = self.calls[key] = TopicCalls()
        return found

    def rebalanced(self, group: str) -> None:
        """Count a round that has changed a group's queues."""
        self.rebalances[group] = self.rebalances.get(group, 0) + 1


def count_code(codes: dict[int, int], code: int) -> None:
    """Count a response code; peers may send any."""
    if code not in codes and len(codes) >= CODES_MAX:
        code = -1
    codes[code] = codes.get(code, 0) + 1


def _key(table: Collection[tuple[str, str]], group: str, topic: str) -> tuple[str, str]:
    key = group, topic
    if key in table or len(table) < NAMES_MAX:
        return key
    return OTHERS, OTHERS
