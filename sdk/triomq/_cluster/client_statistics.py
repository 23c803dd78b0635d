"""A client's state and counters at one moment, for metrics and debugging, and the protocol of a sink for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Final, Literal, NoReturn, Protocol

import attrs
import trio

from triomq._cluster.counters import BOUNDS_S, Counters, TopicCalls, TopicPulls, TopicSends
from triomq_protocol.names import RETRY_PREFIX

log = logging.getLogger("triomq.client")

SINK_EVERY_S: Final = 10.0

_PULL_CODES: Final = (19, 20, 21)
"""Codes of answers to pulls that are not errors; they are counted with the pulls."""


@attrs.frozen
class LinkStatistics:
    """One link, at one moment.

    Args:
        address: the peer.
        pending: requests that wait for an answer.
        unsent_bytes: bytes that wait for the kernel.
    """

    address: str
    pending: int
    unsent_bytes: int


@attrs.frozen
class Durations:
    """A histogram of durations.

    Args:
        counts: the number in each bucket, not cumulative: one for each of :attr:`bounds_s`, and one for all longer ones.
        total_s: the sum of all, in seconds.
    """

    bounds_s: ClassVar[tuple[float, ...]] = BOUNDS_S
    """Upper bounds in seconds, the same for all histograms."""

    counts: tuple[int, ...]
    total_s: float

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.counts)


@attrs.frozen
class SendStatistics:
    """Messages of one producer group to one topic, since the client was opened.

    Args:
        group: the producer group.
        topic: the topic's name.
        stored: messages that a broker has stored.
        weakly: name of a :class:`triomq.SendStatus` -> messages of ``stored`` with it instead of ``SEND_OK``.
        oneway: one-way messages that were written.
        errors: class of the error -> sends that failed with it.
        retries: attempts after a send's first one.
        body_bytes: bytes of the bodies of ``stored`` and ``oneway``, as they were sent.
        durations: how long the last attempt took, for one in 16 sends that were stored.
    """

    group: str
    topic: str
    stored: int
    weakly: Mapping[str, int]
    oneway: int
    errors: Mapping[str, int]
    retries: int
    body_bytes: int
    durations: Durations


@attrs.frozen
class PullStatistics:
    """Pulls of one consumer group from one topic, since the client was opened.

    Args:
        group: the consumer group.
        topic: the topic's name; ``%RETRY%`` and the group's name for messages that are delivered again.
        pulls: name of a :class:`triomq.PullStatus` -> answers with it.
        messages: messages in them, before filters of the client.
        record_bytes: the bytes of their records.
        missing: messages that brokers passed over in answers without a filter: they had deleted them, while their queues
            still listed them.
    """

    group: str
    topic: str
    pulls: Mapping[str, int]
    messages: int
    record_bytes: int
    missing: int = 0

    @property
    def is_retry(self) -> bool:
        """Whether the topic is the group's retry topic, whose messages are delivered again."""
        return self.topic.startswith(RETRY_PREFIX)


@attrs.frozen
class CallStatistics:
    """Messages of one topic that the handler or loop of one push consumer has answered, since the client was opened.

    Args:
        group: the consumer group.
        topic: the topic's name; ``%RETRY%`` and the group's name for messages that are delivered again.
        consumed: messages that succeeded.
        failed: messages that failed.
        durations: how long each call of the handler took.
    """

    group: str
    topic: str
    consumed: int
    failed: int
    durations: Durations


@attrs.frozen
class Sample:
    """One value of a metric.

    Args:
        labels: the values of the labels, in the order of their names in the :class:`Metric`.
        value: the value.
    """

    labels: tuple[str, ...]
    value: float | Durations


@attrs.frozen
class Metric:
    """One metric, in the terms of most metrics systems.

    Args:
        name: its name in Prometheus style, without ``_total``.
        kind: counter, gauge or histogram; a counter only grows, as do the counts of a histogram.
        help: its description.
        labels: the names of its labels.
        samples: its values; :class:`Durations` for a histogram, numbers for others.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...]
    samples: tuple[Sample, ...]


@attrs.frozen
class ClientStatistics:
    """A client's state at one moment, and its counters since it was opened.

    Every number of its state has a limit in :class:`triomq.ClientOptions` or the producer's. 10,000 pairs of group and topic
    are counted separately, of sends, pulls and calls each; the rest is counted under ``(others)``.

    Args:
        links: the open links.
        topics: topics whose routes are kept.
        callbacks: producer group -> sends whose callback has not ended.
        positions: consumer group -> queues with a position.
        sends: what producers have sent.
        pulls: what consumers have pulled.
        calls: what handlers of push consumers have done.
        rebalances: consumer group -> changes of its queues here.
        codes: response code -> answers of any peer with it; without success and the codes that pulls count.
    """

    links: tuple[LinkStatistics, ...]
    topics: int
    callbacks: dict[str, int]
    positions: dict[str, int]
    sends: tuple[SendStatistics, ...] = ()
    pulls: tuple[PullStatistics, ...] = ()
    calls: tuple[CallStatistics, ...] = ()
    rebalances: Mapping[str, int] = attrs.Factory(dict)
    codes: Mapping[int, int] = attrs.Factory(dict)

    @classmethod
    def of(
        cls,
        counters: Counters,
        *,
        links: tuple[LinkStatistics, ...],
        topics: int,
        callbacks: dict[str, int],
        positions: dict[str, int],
    ) -> ClientStatistics:
        """A client's state, and its counters as they are now. They are copied at once, so threads may call this too."""
        return cls(
            links,
            topics,
            callbacks,
            positions,
            sends=tuple(_sends(group, each) for (group, _), each in list(counters.sends.items())),
            pulls=tuple(_pulls(*key, each) for key, each in list(counters.pulls.items())),
            calls=tuple(_calls(*key, each) for key, each in list(counters.calls.items())),
            rebalances=dict(counters.rebalances),
            codes={code: count for code, count in list(counters.codes.items()) if code not in _PULL_CODES},
        )

    def metrics(self) -> tuple[Metric, ...]:
        """The same as a list of metrics, for any metrics system."""
        topic, group = ("group", "topic"), ("group",)
        sends, pulls, calls = self.sends, self.pulls, self.calls
        return (
            _metric("counter", "sent_messages", "Messages that brokers have stored.", topic, _each(sends, "stored")),
            _metric(
                "counter",
                "weakly_stored_messages",
                "Those stored less safely than configured, by status.",
                (*topic, "status"),
                _nested(sends, "weakly"),
            ),
            _metric("counter", "oneway_messages", "One-way messages written.", topic, _each(sends, "oneway")),
            _metric(
                "counter", "failed_sends", "Sends that failed, by error.", (*topic, "error"), _nested(sends, "errors")
            ),
            _metric("counter", "send_retries", "Attempts after a send's first one.", topic, _each(sends, "retries")),
            _metric("counter", "sent_body_bytes", "Bodies sent, as they travelled.", topic, _each(sends, "body_bytes")),
            _metric(
                "histogram",
                "send_seconds",
                "How long a send's last attempt took, of one in 16 sends.",
                topic,
                _each(sends, "durations"),
            ),
            _metric("counter", "pulls", "Answers to pulls, by status.", (*topic, "status"), _nested(pulls, "pulls")),
            _metric("counter", "pulled_messages", "Messages pulled.", topic, _each(pulls, "messages")),
            _metric("counter", "pulled_record_bytes", "Bytes of their records.", topic, _each(pulls, "record_bytes")),
            _metric(
                "counter",
                "missing_messages",
                "Messages that brokers had deleted before they were pulled, and still listed.",
                topic,
                _each(pulls, "missing"),
            ),
            _metric(
                "counter",
                "redelivered_messages",
                "Messages pulled from the group's retry topic.",
                group,
                [((each.group,), each.messages) for each in pulls if each.is_retry],
            ),
            _metric("counter", "consumed_messages", "Messages that succeeded.", topic, _each(calls, "consumed")),
            _metric("counter", "failed_messages", "Messages that failed.", topic, _each(calls, "failed")),
            _metric("histogram", "handler_seconds", "How long handlers took.", topic, _each(calls, "durations")),
            _metric(
                "counter",
                "rebalances",
                "Changes of the queues of a group here.",
                group,
                [((name,), count) for name, count in self.rebalances.items()],
            ),
            _metric(
                "counter",
                "error_answers",
                "Answers other than success, by response code.",
                ("code",),
                [((str(code),), count) for code, count in self.codes.items()],
            ),
            _metric("gauge", "links", "Open connections.", (), [((), len(self.links))]),
            _metric(
                "gauge",
                "pending_requests",
                "Requests that wait for an answer.",
                ("address",),
                [((each.address,), each.pending) for each in self.links],
            ),
            _metric(
                "gauge",
                "unsent_bytes",
                "Bytes that wait for the kernel.",
                ("address",),
                [((each.address,), each.unsent_bytes) for each in self.links],
            ),
            _metric("gauge", "routes", "Topics whose routes are kept.", (), [((), self.topics)]),
            _metric(
                "gauge",
                "callbacks",
                "Sends whose callback has not ended.",
                group,
                [((name,), count) for name, count in self.callbacks.items()],
            ),
        )


class StatisticsSink(Protocol):
    """Takes a client's counters, for any metrics system."""

    def take(self, statistics: ClientStatistics, /) -> None:
        """Take the counters as they are now. Called in the client's loop, so it must be quick; exceptions are logged.

        The value never changes: it may be kept for another thread to read.
        """


def sink_once(sink: StatisticsSink, statistics: Callable[[], ClientStatistics]) -> None:
    """Pass the statistics to a sink; a failure of the sink is logged."""
    try:
        sink.take(statistics())
    except Exception:
        log.exception("the statistics sink %r failed", sink)


async def keep_sinking(sink: StatisticsSink, statistics: Callable[[], ClientStatistics], every_s: float) -> NoReturn:
    """Pass the statistics to a sink periodically, until cancelled."""
    while True:
        sink_once(sink, statistics)
        await trio.sleep(every_s)


def _sends(group: str, sends: TopicSends) -> SendStatistics:
    return SendStatistics(
        group,
        sends.topic,
        sends.stored + sends.stored_in_batches,
        dict(sends.weakly),
        sends.oneway,
        dict(sends.errors),
        sends.retries,
        sends.body_bytes,
        Durations(tuple(sends.buckets), sends.total_s),
    )


def _pulls(group: str, topic: str, pulls: TopicPulls) -> PullStatistics:
    return PullStatistics(group, topic, dict(pulls.pulls), pulls.messages, pulls.record_bytes, pulls.missing)


def _calls(group: str, topic: str, calls: TopicCalls) -> CallStatistics:
    return CallStatistics(group, topic, calls.ok, calls.failed, Durations(tuple(calls.buckets), calls.handling_s))


Figures = Iterable[tuple[tuple[str, ...], float | Durations]]
OfTopic = SendStatistics | PullStatistics | CallStatistics


def _metric(
    kind: Literal["counter", "gauge", "histogram"], name: str, help_: str, labels: tuple[str, ...], figures: Figures
) -> Metric:
    return Metric(f"triomq_client_{name}", kind, help_, labels, tuple(Sample(*figure) for figure in figures))


def _each(rows: Sequence[OfTopic], attribute: str) -> Figures:
    return [((row.group, row.topic), getattr(row, attribute)) for row in rows]


def _nested(rows: Sequence[OfTopic], attribute: str) -> Figures:
    return [((row.group, row.topic, key), count) for row in rows for key, count in getattr(row, attribute).items()]
