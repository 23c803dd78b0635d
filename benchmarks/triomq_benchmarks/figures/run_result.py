"""The result of a workload's run, as values: rows, workers, faults, status, and the data needed to repeat it.

`run_files.py` writes these values to files, `report/` draws them and compares two of them, `run/decisions/pass_fail.py`
decides whether a run failed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

import attrs

from triomq_benchmarks.figures.beside import beside
from triomq_benchmarks.figures.intervals import HISTOGRAMS, IntervalRow, Quantiles, above, histogram_of, quantiles
from triomq_benchmarks.figures.resources import ResourceRow

FORMAT = 3
"""Version of the files' layout; it grows when a field changes its meaning."""


class RunStatus(enum.StrEnum):
    """How a run ended, in one word."""

    PASSED = "passed"
    AUDIT_FAILED = "audit failed"
    """Messages were lost, repeated, reordered or altered."""
    NODE_ENDED = "node ended"
    """A process of the target ended, and not by a fault of the workload."""
    ERRORS = "errors"
    """More sends failed than the workload permits."""
    THRESHOLD_FAILED = "threshold failed"
    GENERATOR_LATE = "generator late"
    """The load generator, not the broker, was late: the figures describe this machine, and count for nothing."""
    INCOMPLETE = "incomplete"
    """A worker died, or the run was interrupted: what there is, is partial."""


@attrs.frozen(kw_only=True)
class Machine:
    """Where a run ran."""

    host: str
    system: str
    python: str
    cpus: int
    memory_bytes: int


@attrs.frozen(kw_only=True)
class WorkerResult:
    """One load generator at its end.

    Attributes:
        worker: its number, from 0.
        host: where it ran.
        pid: its process.
        sent: messages handed to the client library, warm-up included; so are the next three.
        acked: acknowledged messages.
        errors: sends that failed for good.
        consumed: messages its consumers got.
        last_consumed_s: when the last message was consumed, in seconds since the measured part began; None: none was.
        unsent: messages that were meant to be sent but were not, because the run was over before their turn.
        error_examples: error class -> the first such error's text.
        error_counts: error class -> how many messages failed by it, and how many pulls.
        clock_offset_ms: this worker's wall clock minus the driver's, as estimated; None where both are one clock.
        clock_error_ms: half the width of that estimate.
        failure: why it ended early; None: it did not.
    """

    worker: int
    host: str
    pid: int
    sent: int = 0
    acked: int = 0
    errors: int = 0
    consumed: int = 0
    last_consumed_s: float | None = None
    unsent: int = 0
    error_examples: Mapping[str, str] = attrs.field(factory=dict)
    error_counts: Mapping[str, int] = attrs.field(factory=dict)
    clock_offset_ms: float | None = None
    clock_error_ms: float | None = None
    failure: str | None = None


BEYOND_LEAST = 10
"""A percentile needs so many messages beyond it."""

_FROM_INTENDED = ("intended_to_ack", "intended_to_consumed")
_PERCENTILES = {
    "p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p999_ms": 99.9, "p9999_ms": 99.99, "max_ms": 100.0,
}  # fmt: skip

ENDED = "process ended"
"""What happened to a node whose process was gone without a fault of the workload."""

STOPPED = "process stopped"
"""What happened to a node whose process was stopped (SIGSTOP) without a fault of the workload."""


@attrs.frozen(kw_only=True)
class FaultInstant:
    """A fault that was injected, or the unexpected end of a process.

    Attributes:
        what: as the workload names it, for example `kill master`; or `ENDED`.
        node: which node it met.
        second: seconds since the measured part began.
        until: when it was over, where it ends (a pause, a restart, a cut).
    """

    what: str
    node: str
    second: float
    until: float | None = None


@attrs.frozen(kw_only=True)
class ThresholdResult:
    """One threshold of the workload, and what was measured.

    Attributes:
        text: the threshold.
        measured: in the measure's unit.
        passed: whether it was kept.
        limit: the threshold's limit; None in files of versions that did not write it.
    """

    text: str
    measured: float
    passed: bool
    limit: float | None = None

    @property
    def measured_text(self) -> str:
        """The measured value with as many digits as show on which side of the limit it lies."""
        if self.limit is None:
            return f"{self.measured:.15g}"
        text = beside(self.measured, self.limit, 3)
        return text.rstrip("0").rstrip(".") if "." in text else text


@attrs.frozen(kw_only=True)
class Decision:
    """Whether a run passed, and why.

    Attributes:
        status: passed, or how it failed.
        explanation: one sentence with the figures that decided.
        notes: what else a reader must know, for example that the broker held the generator back.
        is_late: whether the load generator was late, also where another status comes first.
    """

    status: RunStatus
    explanation: str
    notes: tuple[str, ...] = ()
    is_late: bool = False

    @property
    def passed(self) -> bool:
        """Whether a continuous-integration job should go on."""
        return self.status is RunStatus.PASSED


def elapsed_s(rows: Iterable[IntervalRow], intended_s: float, ended_s: float | None = None) -> float:
    """Length of the part of a measurement that there is, in seconds: until `ended_s`, or as long as there are rows."""
    if ended_s is not None:
        return min(intended_s, max(0.0, ended_s))
    return min(intended_s, max((row.second + 1.0 for row in rows if row.second >= 0), default=0.0))


@attrs.frozen(kw_only=True)
class RunResult:
    """One workload on one target.

    Attributes:
        run_id: unique, part of the topics' names.
        started_at: wall clock at the beginning of the measured part, ISO 8601 in UTC.
        engine: `local`, `processes` or `spark`, with what it was given, for example `spark local[2]`.
        target: label of what was measured: `ours`, `java` or an address.
        target_details: roles and addresses of the brokers, versions where they report them.
        workload: every setting with its unit in its name, defaults included.
        loop: `open` or `closed`.
        versions: of triomq, its dependencies that matter, the servers.
        machine: where the driver ran.
        seed: of everything that is drawn by chance.
        measured_s: length of the measured part, as it was intended.
        partial: whether the run ended before its end.
        rows: all increments, workers and monitor.
        workers: the load generators at their end.
        faults: faults that were done.
        thresholds: the workload's, with what was measured.
        decision: whether it passed, and why.
        audit: the audit's figures, if there was one (`audit.json`).
        drained_s: seconds from the end of sending until consumers had everything; None: they did not, or there are
            none.
        ended_s: when the run was interrupted, in seconds since the measured part began; None: it was not.
        resources: what the processes used of the machine, second by second.
        surroundings: what else the machine did: its load and its free memory, before and after.
    """

    run_id: str
    started_at: str
    engine: str
    target: str
    target_details: Mapping[str, object]
    workload: Mapping[str, object]
    loop: str
    versions: Mapping[str, str]
    machine: Machine
    seed: int
    measured_s: float
    partial: bool
    rows: tuple[IntervalRow, ...] = attrs.field(repr=False)
    workers: tuple[WorkerResult, ...]
    faults: tuple[FaultInstant, ...]
    thresholds: tuple[ThresholdResult, ...]
    decision: Decision
    audit: Mapping[str, object] | None = None
    drained_s: float | None = None
    ended_s: float | None = None
    resources: tuple[ResourceRow, ...] = attrs.field(default=(), repr=False)
    surroundings: Mapping[str, object] = attrs.field(factory=dict)

    @property
    def elapsed_s(self) -> float:
        """Length of the measured part as it was: shorter than intended where the run was cut short."""
        return elapsed_s(self.rows, self.measured_s, self.ended_s) if self.partial else self.measured_s

    def unsupported(self, histogram: str) -> dict[str, str]:
        """The percentiles of a histogram that say nothing about the broker: field of `Quantiles` -> why.

        Too few messages lie beyond them, or the load generator itself was late with more of the messages than that.
        """
        count = histogram_of(self.rows, histogram).get_total_count()
        late = self._late_share_in(histogram)
        found = {}
        for field, percentile in _PERCENTILES.items():
            beyond = 1 - percentile / 100
            if percentile < 100 and round(count * beyond, 6) < BEYOND_LEAST:
                found[field] = f"fewer than {BEYOND_LEAST} of {count:,} messages took longer"
            elif late > beyond:
                found[field] = f"the load generator itself was late with {100 * late:.3g}% of the messages"
        return found if count else {}

    def supported_share(self, histogram: str) -> float:
        """The smallest share of the longest times of a histogram whose beginning still says something of the broker."""
        count = histogram_of(self.rows, histogram).get_total_count()
        return min(1.0, max(BEYOND_LEAST / count if count else 1.0, self._late_share_in(histogram)))

    def _late_share_in(self, histogram: str) -> float:
        """The part of a histogram's messages that the generator itself may have made late."""
        return self._late_share() if self.loop == "open" and histogram in _FROM_INTENDED else 0.0

    def _late_share(self) -> float:
        """The part of the messages with which the generator was later than the workload's limit."""
        limit_ms = self.workload.get("lateness_limit_ms")
        lateness = histogram_of(self.rows, "lateness")
        if not isinstance(limit_ms, int | float) or not lateness.get_total_count():
            return 0.0
        return above(lateness, limit_ms * 1000) / int(lateness.get_total_count())

    def quantiles(self) -> dict[str, Quantiles]:
        """Each histogram over the whole measured part, in figures."""
        return {field: quantiles(histogram_of(self.rows, field)) for field in HISTOGRAMS}

    def total(self, counter: str) -> int:
        """A counter of the rows, over the measured part and what came after it."""
        return sum(getattr(row, counter) for row in self.rows if not row.is_warm_up)
