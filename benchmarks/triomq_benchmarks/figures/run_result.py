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
"""Version of the files' layout; it increases when a field changes its meaning."""


RUN_S_MAX = 1_000_000
"""Maximum length of a run, warm-up and drain included: a report of 300,000 seconds takes two minutes and 1.5 GB."""


class RunStatus(enum.StrEnum):
    """The end of a run, in one word."""

    PASSED = "passed"
    AUDIT_FAILED = "audit failed"
    """Messages were lost, repeated, reordered or altered."""
    NODE_ENDED = "node ended"
    """A process of the target ended, but not because of a fault in the workload."""
    ERRORS = "errors"
    """More sends failed than the workload permits."""
    THRESHOLD_FAILED = "threshold failed"
    GENERATOR_LATE = "generator late"
    """The load generator, not the broker, was late: the figures describe this machine, and are not used."""
    INCOMPLETE = "incomplete"
    """A worker died, or the run was interrupted: all results are partial; or a fault of the workload was not done."""


@attrs.frozen(kw_only=True)
class Machine:
    """The machine of a run."""

    host: str
    system: str
    python: str
    cpus: int
    memory_bytes: int


@attrs.frozen(kw_only=True)
class WorkerResult:
    """The result of one load generator.

    Attributes:
        worker: its number, from 0.
        host: its machine.
        pid: its process id.
        sent: messages handed to the client library, warm-up included; so are the next three.
        acked: acknowledged messages.
        errors: sends that failed for good.
        consumed: messages received by its consumers.
        last_consumed_s: time of the last consumed message, in seconds since the measured part began; None if there was
            none.
        unsent: messages that were due but not sent, because the run was over before their turn.
        error_examples: error class -> the first such error's text.
        error_counts: error class -> number of messages that failed by it, and of pulls.
        clock_offset_ms: this worker's wall clock minus the driver's, as estimated; None if both are the same clock.
        clock_error_ms: half the width of that estimate.
        failure: the reason for an early end; None if there was none.
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
"""Minimum number of messages beyond a percentile."""

_FROM_INTENDED = ("intended_to_ack", "intended_to_consumed")
_PERCENTILES = {
    "p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p999_ms": 99.9, "p9999_ms": 99.99, "max_ms": 100.0,
}  # fmt: skip

ENDED = "process ended"
"""The event of a node whose process ended without a fault in the workload."""

STOPPED = "process stopped"
"""The event of a node whose process was stopped (SIGSTOP) without a fault in the workload."""


@attrs.frozen(kw_only=True)
class FaultInstant:
    """A fault that was injected, or the unexpected end of a process.

    Attributes:
        what: its name in the workload, for example `kill master`; or `ENDED`.
        node: the node that it affected.
        second: seconds since the measured part began.
        until: its end, for faults that have one (a pause, a restart, a cut).
    """

    what: str
    node: str
    second: float
    until: float | None = None


@attrs.frozen(kw_only=True)
class ThresholdResult:
    """One threshold of the workload, with the measured value.

    Attributes:
        text: the threshold.
        measured: the value in the measure's unit.
        passed: whether the threshold was met.
        limit: the threshold's limit; None in files of versions that did not write it.
    """

    text: str
    measured: float
    passed: bool
    limit: float | None = None

    @property
    def measured_text(self) -> str:
        """The measured value with enough digits to show on which side of the limit it is."""
        if self.limit is None:
            return f"{self.measured:.15g}"
        text = beside(self.measured, self.limit, 3)
        return text.rstrip("0").rstrip(".") if "." in text else text


@attrs.frozen(kw_only=True)
class Decision:
    """Whether a run passed, and the reason.

    Attributes:
        status: passed, or how it failed.
        explanation: one sentence with the figures that decided.
        notes: other important facts, for example that the broker held the generator back.
        is_late: whether the load generator was late, even if another status takes precedence.
    """

    status: RunStatus
    explanation: str
    notes: tuple[str, ...] = ()
    is_late: bool = False

    @property
    def passed(self) -> bool:
        """Whether a continuous-integration job should continue."""
        return self.status is RunStatus.PASSED


def elapsed_s(rows: Iterable[IntervalRow], intended_s: float, ended_s: float | None = None) -> float:
    """Actual length of a measurement in seconds: until `ended_s`, or as long as there are rows."""
    if ended_s is not None:
        return min(intended_s, max(0.0, ended_s))
    return min(intended_s, max((row.second + 1.0 for row in rows if row.second >= 0), default=0.0))


@attrs.frozen(kw_only=True)
class RunResult:
    """The result of one workload on one target.

    Attributes:
        run_id: unique, part of the topics' names.
        started_at: wall clock at the beginning of the measured part, ISO 8601 in UTC.
        engine: `local`, `processes` or `spark`, with its parameters, for example `spark local[2]`.
        target: label of the measured target: `ours`, `java` or an address.
        target_details: roles and addresses of the brokers, and versions if they report them.
        workload: every setting with its unit in its name, defaults included.
        loop: `open` or `closed`.
        versions: versions of triomq, its important dependencies, and the servers.
        machine: the driver's machine.
        seed: the seed of all random choices.
        measured_s: intended length of the measured part.
        partial: whether the run ended early.
        rows: all increments of workers and monitor.
        workers: the load generators' results.
        faults: the injected faults.
        thresholds: the workload's thresholds, with measured values.
        decision: whether it passed, and the reason.
        audit: the audit's figures, if there was one (`audit.json`).
        drained_s: seconds from the end of sending until consumers had everything; None if they did not, or if there are
            none.
        ended_s: time of an interruption, in seconds since the measured part began; None if there was none.
        resources: the processes' use of the machine, second by second.
        surroundings: other activity on the machine: its load and its free memory, before and after.
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
        """Actual length of the measured part: shorter than intended if the run was cut short."""
        return elapsed_s(self.rows, self.measured_s, self.ended_s) if self.partial else self.measured_s

    def unsupported(self, histogram: str) -> dict[str, str]:
        """The percentiles of a histogram that are not about the broker: field of `Quantiles` -> reason.

        Too few messages are beyond them, or the load generator itself was late with more messages than that.
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
        """The smallest share of a histogram's longest times whose start still is about the broker."""
        count = histogram_of(self.rows, histogram).get_total_count()
        return min(1.0, max(BEYOND_LEAST / count if count else 1.0, self._late_share_in(histogram)))

    def _late_share_in(self, histogram: str) -> float:
        """The share of a histogram's messages that the generator itself may have delayed."""
        return self._late_share() if self.loop == "open" and histogram in _FROM_INTENDED else 0.0

    def _late_share(self) -> float:
        """The share of messages for which the generator was later than the workload's limit."""
        limit_ms = self.workload.get("lateness_limit_ms")
        lateness = histogram_of(self.rows, "lateness")
        if not isinstance(limit_ms, int | float) or not lateness.get_total_count():
            return 0.0
        return above(lateness, limit_ms * 1000) / int(lateness.get_total_count())

    def quantiles(self) -> dict[str, Quantiles]:
        """The figures of each histogram over the whole measured part."""
        return {field: quantiles(histogram_of(self.rows, field)) for field in HISTOGRAMS}

    def per_second(self, counter: str) -> float:
        """The mean rate of a counter of the rows within the measured part, by its actual length; 0 if it had none."""
        counted = sum(getattr(row, counter) for row in self.rows if 0 <= row.second < self.measured_s)
        return counted / self.elapsed_s if self.elapsed_s else 0.0

    def total(self, counter: str) -> int:
        """The sum of a counter of the rows, over the measured part and everything after it."""
        return sum(getattr(row, counter) for row in self.rows if not row.is_warm_up)
