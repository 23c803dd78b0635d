"""Latencies of answers: recorded as plain nanoseconds on the hot path, summed up in an HDR histogram afterwards."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from hdrh.histogram import HdrHistogram

LONGEST_US = 60_000_000
SIGNIFICANT_DIGITS = 3


@attrs.frozen
class Latency:
    """Quantiles in microseconds."""

    p50_us: float
    p99_us: float
    max_us: float


def summarise(nanoseconds: Iterable[int]) -> Latency:
    """Compute quantiles of `nanoseconds`; zeros if there are none."""
    histogram = HdrHistogram(1, LONGEST_US * 10, SIGNIFICANT_DIGITS)
    for taken in nanoseconds:
        # Tenths of a microsecond: a prepared frame on loopback is answered in less than fifty.
        histogram.record_value(max(1, taken // 100))
    if not histogram.get_total_count():
        return Latency(0.0, 0.0, 0.0)
    return Latency(
        p50_us=histogram.get_value_at_percentile(50) / 10,
        p99_us=histogram.get_value_at_percentile(99) / 10,
        max_us=histogram.get_max_value() / 10,
    )
