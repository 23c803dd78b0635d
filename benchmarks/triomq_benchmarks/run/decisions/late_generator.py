"""The rule by which a run does not count because its load generator was late.  Pure.

Only the generator's own lateness counts (`generator/pace.py`); back-pressure is caused by the broker.
"""

from __future__ import annotations

from hdrh.histogram import HdrHistogram

from triomq_benchmarks.figures.beside import beside
from triomq_benchmarks.figures.intervals import above, at_percentiles

NOTICEABLE_SHARE = 0.1
"""Lateness below this share of the measured latency has no effect on the result."""


def generator_is_late(
    lateness: HdrHistogram, intended_to_ack: HdrHistogram, limit_ms: float, allowed_share: float
) -> str | None:
    """Check whether the generator was too slow for the figures to count.

    A message is late if the generator's own delay of it is above `limit_ms`, and also above a tenth of the latency that
    `allowed_share` of the messages exceeded. The generator was late if more than that share of them was.

    Args:
        lateness: the generator's own delays, in microseconds, without back-pressure.
        intended_to_ack: the measured latencies; may be empty, for one-way sends.
        limit_ms: the workload's limit.
        allowed_share: the workload's share; 0.01 keeps the 99th percentile free of the generator.

    Returns:
        None if it was in time, otherwise a sentence with the figures.
    """
    allowed_ms = max(limit_ms, NOTICEABLE_SHARE * _exceeded_ms(intended_to_ack, allowed_share))
    share = late_share(lateness, allowed_ms)
    if share <= allowed_share:
        return None
    return (
        f"the load generator was too slow, not the broker: {beside(100 * share, 100 * allowed_share, 1)}% of the messages were sent more than {allowed_ms:.1f} ms "
        f"after their instant although the broker held nothing back (allowed: {100 * allowed_share:g}%). "
        "Lower the rate, add producers and workers (--engine processes --workers N), or use a machine with more free cores"
    )


def late_share(lateness: HdrHistogram, limit_ms: float) -> float:
    """The share of messages with which the generator itself was later than `limit_ms`; 0 if there are no messages."""
    count: int = lateness.get_total_count()
    return above(lateness, limit_ms * 1000) / max(1, count)


def _exceeded_ms(histogram: HdrHistogram, share: float) -> float:
    """The value that this share of the values exceeds."""
    if not histogram.get_total_count():
        return 0.0
    return at_percentiles(histogram, [max(0.001, 100 * (1 - share))])[0] / 1000
