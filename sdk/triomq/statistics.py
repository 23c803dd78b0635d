"""What a client counts: the answer of ``client.statistics()``, part by part.

Where statistics go by themselves is a plug point, :class:`triomq.plugins.StatisticsSink`.
"""

# Sorted by purpose and by hand; this module only re-exports.
# ruff: noqa: RUF022

from triomq._cluster.client_statistics import (
    CallStatistics,
    ClientStatistics,
    Durations,
    LinkStatistics,
    Metric,
    PullStatistics,
    Sample,
    SendStatistics,
)

__all__ = [
    "ClientStatistics",
    "SendStatistics",
    "PullStatistics",
    "CallStatistics",
    "LinkStatistics",
    "Durations",
    "Metric",
    "Sample",
]
