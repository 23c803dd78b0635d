"""The figures of a quickstart run: filled in by the run, read by the report."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import attrs

from triomq_benchmarks.demo.body_check import Comparison


@attrs.define
class QuickstartFigures:
    """The figures of a run; times in seconds, latencies in nanoseconds."""

    data: str
    rows: int = 0
    body_bytes: int = 0
    cluster_ready_s: float = 0.0
    send_s: float = 0.0
    send_latency_ns: array[int] = attrs.field(factory=lambda: array("Q"))
    send_failures: int = 0
    first_send_failure: str = ""
    catch_up_s: float = 0.0
    replicated_bytes: int = 0
    first_message_s: float = 0.0
    pull_s: float = 0.0
    pulls: int = 0
    pulled: int = 0
    served_by: set[str] = attrs.field(factory=set)
    total_s: float = 0.0
    comparison: Comparison | None = None

    @property
    def clean(self) -> bool:
        """Whether every row was acknowledged, and received once and unaltered from the slave."""
        comparison = self.comparison
        return (
            comparison is not None
            and comparison.clean
            and not self.send_failures
            and comparison.acknowledged == self.rows
        )


Progress = Callable[[str, int, int | None], None]
"""Takes the current step, its progress, and the total (None if unknown)."""
