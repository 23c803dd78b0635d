"""The rows that a load generator reports while it runs, one per worker and second, and their addition.

A row is an increment: a worker may send several rows of the same second (late answers of messages that were meant for
it), and rows are joined by adding, in any order, over workers as over time.  Latencies travel as encoded HdrHistograms,
which add without loss; nothing here ever averages a percentile.  Pure: no clock, no I/O.
"""

from __future__ import annotations

import base64
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, Final

import attrs
from hdrh.histogram import HdrHistogram

MONITOR = -1
"""The worker number in rows from the observer of the brokers instead of a load generator."""

LONGEST_US = 3_600_000_000
"""Upper bound of recorded latencies, an hour; longer ones count as this."""

SIGNIFICANT_DIGITS = 3
HISTOGRAMS = ("intended_to_ack", "actual_to_ack", "lateness", "intended_to_consumed")
"""The row fields that are histograms, all in microseconds."""

_COUNTERS = ("sent", "acked", "errors", "consumed", "sent_bytes", "consumed_bytes", "from_master", "from_slave")
_FOLDED_AT_ONCE = 256


@attrs.frozen(kw_only=True)
class IntervalRow:
    """The events of one second, as one worker saw them.

    Attributes:
        worker: number of the load generator, from 0; `MONITOR` for the observer of the brokers.
        second: whole seconds since the measured part began; negative values are warm-up, in no total and no percentile.
        sent: messages handed to the client library in this second.
        acked: messages whose acknowledgement arrived in this second.
        errors: sends that failed for good in this second.
        consumed: messages received by consumers in this second.
        sent_bytes: size of the bodies of `sent`.
        consumed_bytes: size of the bodies of `consumed`.
        from_master: those of `consumed` that a master served.
        from_slave: those of `consumed` that a slave served.
        held_s: seconds in which a producer could not send because all its permitted sends were unanswered
            (back-pressure), summed over the worker's producers.
        backlog: messages between the consumers' positions and the ends of their queues, as last measured in this
            second; None if not measured.
        replication_lag_bytes: distance of the slowest slave's log from its master's, measured at the same time; None if
            not measured.
        intended_to_ack: from the intended instant to the acknowledgement, of the messages intended for this second.
        actual_to_ack: from the call to the acknowledgement, of the same messages.
        lateness: delay of these messages caused by the generator itself (see `generator/pace.py`).
        intended_to_consumed: from the intended instant to the consumer, of the messages intended for this second.
    """

    worker: int
    second: int
    sent: int = 0
    acked: int = 0
    errors: int = 0
    consumed: int = 0
    sent_bytes: int = 0
    consumed_bytes: int = 0
    from_master: int = 0
    from_slave: int = 0
    held_s: float = 0.0
    backlog: int | None = None
    replication_lag_bytes: int | None = None
    intended_to_ack: bytes = b""
    actual_to_ack: bytes = b""
    lateness: bytes = b""
    intended_to_consumed: bytes = b""

    @property
    def is_warm_up(self) -> bool:
        """Whether the second is warm-up, which does not count."""
        return self.second < 0


def new_histogram() -> HdrHistogram:
    """An empty histogram of microseconds, in the shape of all ours."""
    return HdrHistogram(1, LONGEST_US, SIGNIFICANT_DIGITS)


def fold(histogram: HdrHistogram, microseconds: Iterable[int]) -> Iterator[None]:
    """Record values; yields now and then so that the caller can let other tasks run. Exhaust it."""
    record = histogram.record_value
    for number, (value, count) in enumerate(Counter(microseconds).items()):
        record(min(max(value, 1), LONGEST_US), count)
        if number % _FOLDED_AT_ONCE == _FOLDED_AT_ONCE - 1:
            yield


_MAGIC: Final = bytes.fromhex("1c849314")
"""The start of a compressed histogram in the library's second format, the only one that it writes."""


def encode(histogram: HdrHistogram) -> bytes:
    """Base64 of the compressed histogram; empty if it has no values."""
    encoded: bytes = histogram.encode() if histogram.get_total_count() else b""
    return encoded


def check_encoded(encoded: bytes) -> None:
    """Check bytes of :func:`encode` that were read from a file, without the cost of adding them to a histogram.

    Raises:
        ValueError: they are damaged.
    """
    if not encoded:
        return
    data = base64.b64decode(encoded, validate=True)
    try:
        # Two big-endian numbers of 32 bits, a magic number and the length of the rest, which zlib has a checksum of.
        whole = data[:4] == _MAGIC and int.from_bytes(data[4:8]) == len(data) - 8 and zlib.decompress(data[8:])
    except zlib.error as error:
        raise ValueError(f"a histogram cannot be decompressed: {error}") from error
    if not whole:
        raise ValueError(f"the first of the {len(data)} bytes of a histogram have changed, or some are missing")


def histogram_of(rows: Iterable[IntervalRow], field: str, *, warm_up: bool = False) -> HdrHistogram:
    """Add one histogram over rows.

    Args:
        rows: rows of any workers and seconds.
        field: one of `HISTOGRAMS`.
        warm_up: whether to include warm-up seconds.
    """
    if field not in HISTOGRAMS:
        raise ValueError(f"{field} is not a histogram; there are {', '.join(HISTOGRAMS)}")
    total = new_histogram()
    for row in rows:
        encoded = getattr(row, field)
        if encoded and (warm_up or not row.is_warm_up):
            total.decode_and_add(encoded)
    return total


def add(rows: Iterable[IntervalRow], *, worker: int | None = None) -> IntervalRow:
    """Add `rows` to one: counters and histograms are added, and the last value of each gauge of each worker.

    Args:
        rows: at least one row, all of one second.
        worker: the worker number of the sum; default: the first row's.
    """
    several = list(rows)
    first = several[0]
    encoded: dict[str, Any] = {}
    for field in HISTOGRAMS:
        parts = [getattr(row, field) for row in several if getattr(row, field)]
        encoded[field] = parts[0] if len(parts) == 1 else encode(histogram_of(several, field, warm_up=True))
    counters: dict[str, Any] = {name: sum(getattr(row, name) for row in several) for name in _COUNTERS}
    return IntervalRow(
        worker=first.worker if worker is None else worker,
        second=first.second,
        held_s=sum(row.held_s for row in several),
        backlog=_gauge(several, "backlog"),
        replication_lag_bytes=_gauge(several, "replication_lag_bytes"),
        **counters,
        **encoded,
    )


def by_second(rows: Iterable[IntervalRow]) -> list[IntervalRow]:
    """One row per second over all workers, in order of time; its worker number is 0."""
    groups: defaultdict[int, list[IntervalRow]] = defaultdict(list)
    for row in rows:
        groups[row.second].append(row)
    return [add(groups[second], worker=0) for second in sorted(groups)]


def every_second(rows: Sequence[IntervalRow]) -> list[IntervalRow]:
    """Fill gaps between rows of single seconds with empty rows: nothing happened then, and that counts.

    Args:
        rows: at most one row per second, as returned by `by_second`.
    """
    by_number = {row.second: row for row in rows}
    seconds = range(min(by_number), max(by_number) + 1) if by_number else ()
    return [by_number.get(second) or IntervalRow(worker=0, second=second) for second in seconds]


def _gauge(rows: list[IntervalRow], name: str) -> int | None:
    """The sum of the workers' last values; None if there are none."""
    last = {row.worker: getattr(row, name) for row in rows if getattr(row, name) is not None}
    return sum(last.values()) if last else None


@attrs.frozen
class Quantiles:
    """The figures of a histogram, all in milliseconds; zeros if nothing was recorded."""

    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    p9999_ms: float
    max_ms: float


def recorded(histogram: HdrHistogram) -> list[tuple[int, int]]:
    """A histogram's non-empty classes: the lowest value of each, ascending, and its count.

    The library visits each of its 44 thousand classes with several calls for every query; for a generator that reports
    a second's percentiles while messages are due, that is a tenth of a second too long.
    """
    if not histogram.get_total_count():
        return []
    filled = memoryview(histogram.counts).cast("B").cast("Q")[: histogram._counts_index_for(histogram.max_value) + 1]  # noqa: SLF001
    value_of = histogram.get_value_from_index
    return [(value_of(index), filled[index]) for index in compress(range(len(filled)), filled)]


def above(histogram: HdrHistogram, limit: float) -> int:
    """Number of recorded values above `limit`, to the histogram's three digits."""
    return sum(count for value, count in recorded(histogram) if value > limit)


def at_percentiles(histogram: HdrHistogram, percentiles: Sequence[float]) -> list[int]:
    """The values at percentiles, equal to the library's `get_value_at_percentile`, in one pass.

    Args:
        histogram: a histogram with at least one value.
        percentiles: ascending.
    """
    found: list[int] = []
    wanted = [histogram.get_target_count_at_percentile(each) for each in percentiles]
    passed = 0
    for value, count in recorded(histogram):
        passed += count
        while len(found) < len(wanted) and passed >= wanted[len(found)]:
            lowest = percentiles[len(found)] == 0
            found.append(value if lowest else histogram.get_highest_equivalent_value(value))
    return found


def quantiles(histogram: HdrHistogram) -> Quantiles:
    """The most used percentiles."""
    count = histogram.get_total_count()
    if not count:
        return Quantiles(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    p50, p90, p99, p999, p9999, longest = at_percentiles(histogram, (50, 90, 99, 99.9, 99.99, 100))
    # A class counts as its middle, as in the library's mean.
    classes = [(value, histogram.get_highest_equivalent_value(value), times) for value, times in recorded(histogram)]
    total = sum((lowest + (highest - lowest + 1) // 2) * times for lowest, highest, times in classes)
    return Quantiles(
        count=count,
        mean_ms=total / count / 1000,
        p50_ms=p50 / 1000,
        p90_ms=p90 / 1000,
        p99_ms=p99 / 1000,
        p999_ms=p999 / 1000,
        p9999_ms=p9999 / 1000,
        max_ms=longest / 1000,
    )
