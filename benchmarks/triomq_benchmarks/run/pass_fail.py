"""Decides whether a run passed or failed: its thresholds with what was measured, and a status with its reason.  Pure.

In this order a run fails by being incomplete, by a late generator, failed sends, the audit, and thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from triomq_benchmarks.audit.checks import Findings
from triomq_benchmarks.figures.beside import beside
from triomq_benchmarks.figures.intervals import HISTOGRAMS, IntervalRow, Quantiles, histogram_of, quantiles
from triomq_benchmarks.figures.run_result import Decision, RunStatus, ThresholdResult, WorkerResult
from triomq_benchmarks.run.late_generator import generator_is_late, late_share
from triomq_benchmarks.workload.workload import PERCENTILES, Loop, Threshold, Workload

REACHED_SHARE = 0.99
"""A rate is reached when so much of what was intended was acknowledged within the measured part."""

NOTED_LATE_SHARE = 0.001
"""A generator's lateness with more of the messages than this is noted, though the run may count."""

HELD_SHARE = 0.01
"""Back-pressure is worth a note from this share of the producers' time on."""


class Figures:
    """What was measured, by the names that thresholds use.

    Args:
        workload: what was run.
        rows: of workers and monitor.
        workers: the generators at their end.
    """

    def __init__(self, workload: Workload, rows: Sequence[IntervalRow], workers: Sequence[WorkerResult]) -> None:
        self.workload = workload
        self.histograms = {name: histogram_of(rows, name) for name in HISTOGRAMS}
        self.quantiles: Mapping[str, Quantiles] = {name: quantiles(each) for name, each in self.histograms.items()}
        counted = [row for row in rows if not row.is_warm_up]
        within = [row for row in counted if row.second < workload.duration_s]
        self.sent = sum(row.sent for row in counted)
        self.acked = sum(row.acked for row in counted)
        self.rate = sum(row.acked for row in within) / workload.duration_s
        self.drained_s = drained_s(workload, workers)
        self._plain = {
            "rate": self.rate,
            "consume_rate": sum(row.consumed for row in within) / workload.duration_s,
            "errors": float(sum(row.errors for row in counted)),
            "unsent": float(sum(worker.unsent for worker in workers)),
            "backlog": float(_last_backlog(counted)),
            "caught_up_s": caught_up_s(counted),
            "held_s": sum(row.held_s for row in counted),
            "drained_s": math.inf if self.drained_s is None else self.drained_s,
            "from_master": float(sum(row.from_master for row in counted)),
            "from_slave": float(sum(row.from_slave for row in counted)),
        }

    def __getitem__(self, measure: str) -> float:
        """A measure of `workload.MEASURES`."""
        if measure in self._plain:
            return self._plain[measure]
        histogram, _, percentile = measure.rpartition(".")
        figures = self.quantiles[histogram or "intended_to_ack"]
        if percentile not in PERCENTILES:
            raise KeyError(measure)
        # Nothing recorded is not "fast".
        return float(getattr(figures, percentile)) if figures.count else math.inf


def drained_s(workload: Workload, workers: Sequence[WorkerResult]) -> float | None:
    """Seconds from the end of sending until the consumers had everything; None: they did not get there."""
    acked = sum(worker.acked for worker in workers)
    if not acked or sum(worker.consumed for worker in workers) < acked * workload.groups:
        return None
    last = max((worker.last_consumed_s for worker in workers if worker.last_consumed_s is not None), default=None)
    return None if last is None else max(0.0, last - workload.duration_s)


def caught_up_s(rows: Sequence[IntervalRow]) -> float:
    """The end of the first second of the measured part after which consumers had less than a second's sends before
    them."""
    backlogs: dict[int, int] = {}
    sent: dict[int, int] = {}
    for row in rows:
        sent[row.second] = sent.get(row.second, 0) + row.sent
        if row.backlog is not None:
            backlogs[row.second] = backlogs.get(row.second, 0) + row.backlog
    return next((second + 1.0 for second in sorted(backlogs) if backlogs[second] <= sent.get(second, 0)), math.inf)


def _last_backlog(rows: Sequence[IntervalRow]) -> int:
    known = [row for row in rows if row.backlog is not None]
    last = max((row.second for row in known), default=0)
    return sum(row.backlog or 0 for row in known if row.second == last)


def decide(
    workload: Workload,
    figures: Figures,
    workers: Sequence[WorkerResult],
    *,
    interrupted: bool = False,
    findings: Findings | None = None,
    notes: Sequence[str] = (),
) -> tuple[tuple[ThresholdResult, ...], Decision]:
    """Decide whether a run passed.

    Args:
        workload: what was run.
        figures: what was measured.
        workers: the generators at their end.
        interrupted: whether the run was ended early.
        findings: of the audit; None: there was none.
        notes: further remarks for the reader.
    """
    thresholds = tuple(_measure(threshold, figures) for threshold in workload.thresholds)
    status, explanation = _decision(workload, figures, workers, thresholds, interrupted, findings)
    allowed = (
        [f"the audit found what the workload allows: {findings}"]
        if findings is not None and not findings.clean and _keeps_promise(workload, workers, findings)
        else []
    )
    notes = (*notes, *_notes(workload, figures), *allowed)
    return thresholds, Decision(status=status, explanation=explanation, notes=notes)


def _keeps_promise(workload: Workload, workers: Sequence[WorkerResult], findings: Findings) -> bool:
    """Whether the audit found no more than the workload allows."""
    repeats = workload.repeats_allowed * findings.acknowledged * workload.groups
    return findings.is_within(repeats, sum(worker.errors for worker in workers) * workload.groups)


def _measure(threshold: Threshold, figures: Figures) -> ThresholdResult:
    measured = figures[threshold.measure]
    return ThresholdResult(
        text=str(threshold), measured=measured, passed=threshold.holds(measured), limit=threshold.limit
    )


def _decision(
    workload: Workload,
    figures: Figures,
    workers: Sequence[WorkerResult],
    thresholds: Sequence[ThresholdResult],
    interrupted: bool,
    findings: Findings | None,
) -> tuple[RunStatus, str]:
    dead = [f"worker {worker.worker}: {worker.failure}" for worker in workers if worker.failure]
    if interrupted:
        return RunStatus.INCOMPLETE, "the run was interrupted; what was measured until then is kept, and partial"
    if dead:
        return RunStatus.INCOMPLETE, f"{'; '.join(dead)}; what was measured is partial"
    if workload.loop is Loop.OPEN:
        late = generator_is_late(
            figures.histograms["lateness"],
            figures.histograms["intended_to_ack"],
            workload.lateness_limit_ms,
            workload.late_allowed,
        )
        if late:
            return RunStatus.GENERATOR_LATE, late
    errors = figures["errors"]
    if errors > workload.errors_allowed * max(1, figures.sent):
        example = next((text for worker in workers for text in worker.error_examples.values()), "")
        return RunStatus.ERRORS, (
            f"{errors:.0f} of {figures.sent} sends failed (allowed: {100 * workload.errors_allowed:.15g}%); the first: {example}"
        )
    if findings is not None and not _keeps_promise(workload, workers, findings):
        return RunStatus.AUDIT_FAILED, f"the audit found: {findings}; see audit.json"
    missed = [f"{each.text} (measured {each.measured_text})" for each in thresholds if not each.passed]
    if missed:
        return RunStatus.THRESHOLD_FAILED, f"not reached: {'; '.join(missed)}"
    return RunStatus.PASSED, "all thresholds are kept" if thresholds else "no thresholds were set"


def _notes(workload: Workload, figures: Figures) -> list[str]:
    notes = [f"{key} is ignored: {why}" for key, why in workload.ignored.items()]
    held_s, intended = figures["held_s"], workload.intended_rate_per_s
    if workload.loop is Loop.CLOSED:
        notes.append("closed loop: a stall holds the sender too, so that percentiles show little of it")
        return notes
    if held_s > HELD_SHARE * workload.duration_s * workload.producer_count:
        notes.append(
            f"back-pressure: producers waited {held_s:.1f} s, summed up, because all their {workload.in_flight} permitted "
            "sends were unanswered or no broker took a connection; that is not the generator's doing, and it is in "
            "intended_to_ack"
        )
    late = late_share(figures.histograms["lateness"], workload.lateness_limit_ms)
    if late > NOTED_LATE_SHARE:
        notes.append(
            f"{beside(100 * late, 100 * NOTED_LATE_SHARE, 2)}% of the messages were sent more than {workload.lateness_limit_ms:g} ms late by the generator's own doing: "
            f"of intended_to_ack and intended_to_consumed, read nothing above the {beside(100 - 100 * late, 100, 2).rstrip('0').rstrip('.')}th percentile"
        )
    if figures.histograms["intended_to_ack"].get_total_count() and figures.rate < REACHED_SHARE * intended:
        notes.append(
            f"{beside(figures.rate, intended, 0)} of {intended:.0f} messages per second were acknowledged in time"
        )
    return notes
