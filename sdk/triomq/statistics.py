"""A client's counters: the result of ``client.statistics()``, part by part.

To have them reported periodically, give the client a :class:`triomq.plugins.StatisticsSink`.
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
