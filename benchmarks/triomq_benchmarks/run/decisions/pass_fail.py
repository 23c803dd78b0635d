"""Decides whether a run passed or failed: its thresholds with what was measured, and a status with its reason.  Pure.

A run fails by the first of these: it is incomplete, lost or altered messages, the end of a process of the target, failed
sends, other findings of the audit, a fault that could not be done, thresholds, a late generator. So a dead broker is not mistaken for a slow generator;
the generator is examined over the seconds in which something was acknowledged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from triomq_benchmarks.audit.checks import Defect, Findings
from triomq_benchmarks.figures.beside import beside
from triomq_benchmarks.figures.intervals import HISTOGRAMS, IntervalRow, Quantiles, histogram_of, quantiles
from triomq_benchmarks.figures.run_result import (
    ENDED,
    STOPPED,
    Decision,
    FaultInstant,
    RunStatus,
    ThresholdResult,
    WorkerResult,
    elapsed_s,
)
from triomq_benchmarks.run.decisions.late_generator import generator_is_late, late_share
from triomq_benchmarks.workload.workload import PERCENTILES, FaultKind, Loop, SendMode, Threshold, Workload

REACHED_SHARE = 0.99
"""A rate is reached if this share of the intended messages was acknowledged within the measured part."""

ON_ITS_WAY_SHARE = 0.1
"""At most this share of the messages, but always one request, may be on its way at the end of the measured part."""

NOTED_LATE_SHARE = 0.001
"""A generator's lateness with more than this share of messages is noted, even if the run may count."""

KILL_SEEN_S = 2.0
"""A killed process is found to have ended at most this long after the kill, or before its fault is noted."""

HELD_SHARE = 0.01
"""Back-pressure is noted from this share of the producers' time on."""


class Figures:
    """The measured figures, by their names in thresholds.

    Args:
        workload: the workload that was run.
        rows: rows of workers and monitor.
        workers: the generators' results.
        interrupted: whether the run was ended early: rates are then those of its actual length.
        ended_s: end in seconds since the measured part began; default: after the last second that has a row.
    """

    def __init__(
        self,
        workload: Workload,
        rows: Sequence[IntervalRow],
        workers: Sequence[WorkerResult],
        *,
        interrupted: bool = False,
        ended_s: float | None = None,
    ) -> None:
        self.workload = workload
        # At least a tenth of a second: anything shorter does not give a rate.
        length_s = max(0.1, elapsed_s(rows, workload.duration_s, ended_s)) if interrupted else workload.duration_s
        self.histograms = {name: histogram_of(rows, name) for name in HISTOGRAMS}
        self.quantiles: Mapping[str, Quantiles] = {name: quantiles(each) for name, each in self.histograms.items()}
        counted = [row for row in rows if not row.is_warm_up]
        self.silent_seconds = silent_seconds(workload, counted)
        answered = [row for row in counted if row.second not in self.silent_seconds]
        self.late = (
            generator_is_late(
                histogram_of(answered, "lateness"),
                histogram_of(answered, "intended_to_ack"),
                workload.lateness_limit_ms,
                workload.late_allowed,
            )
            if workload.loop is Loop.OPEN
            else None
        )
        """Why the generator was too slow for the figures to count, over seconds with an answer; None: it was not."""
        within = [row for row in counted if row.second < workload.duration_s]
        self.sent = sum(row.sent for row in counted)
        self.acked = sum(row.acked for row in counted)
        self.acked_in_time = sum(row.acked for row in within)
        self.rate = self.acked_in_time / length_s
        self.drained_s = drained_s(workload, workers)
        self._plain = {
            "rate": self.rate,
            "consume_rate": sum(row.consumed for row in within) / length_s,
            "errors": float(sum(row.errors for row in counted)),
            "unsent": float(sum(worker.unsent for worker in workers)),
            "backlog": last_backlog(counted),
            "caught_up_s": caught_up_s(counted),
            "held_s": sum(row.held_s for row in counted),
            "drained_s": math.inf if self.drained_s is None else self.drained_s,
            "from_master": float(sum(row.from_master for row in counted)),
            "from_slave": float(sum(row.from_slave for row in counted)),
        }

    def shortfall(self) -> str:
        """Text about messages that were acknowledged too late for the intended rate; empty if it was reached.

        It is reached with `REACHED_SHARE` of the messages, or with all but one request of each producer, which may be on its
        way at the end of the measured part: in a short run, the share of 1 % is less than one message. Of many producers
        that send rarely, `ON_ITS_WAY_SHARE` may be on their way: all of them would be most of what was sent.
        """
        intended, batch = self.sent + round(self["unsent"]), self.workload.batch
        missing = intended - self.acked_in_time
        on_way = max(batch, min(batch * self.workload.producer_count, ON_ITS_WAY_SHARE * intended))
        if missing <= max((1 - REACHED_SHARE) * intended, on_way):
            return ""
        return f"{self.acked_in_time:,} of {intended:,} messages were acknowledged in time"

    def __getitem__(self, measure: str) -> float:
        """The value of a measure of `workload.MEASURES`."""
        if measure in self._plain:
            return self._plain[measure]
        histogram, _, percentile = measure.rpartition(".")
        figures = self.quantiles[histogram or "intended_to_ack"]
        if percentile not in PERCENTILES:
            raise KeyError(measure)
        # Missing values are not "fast".
        return float(getattr(figures, percentile)) if figures.count else math.inf


def silent_seconds(workload: Workload, rows: Sequence[IntervalRow]) -> set[int]:
    """The seconds of the measured part in which producers sent, or waited to send, and nothing was acknowledged."""
    if workload.send_mode is SendMode.ONEWAY:
        return set()
    tried = {row.second for row in rows if (row.sent or row.held_s) and 0 <= row.second < workload.duration_s}
    return tried - {row.second for row in rows if row.acked}


def unexplained_ends(faults: Sequence[FaultInstant]) -> list[FaultInstant]:
    """Ended processes that no fault of the workload had killed."""
    killed = [
        fault for fault in faults if fault.what.startswith((FaultKind.KILL.value + " ", FaultKind.RESTART.value + " "))
    ]
    return [
        end
        for end in faults
        if end.what == ENDED
        and not any(
            fault.node == end.node
            and fault.second - KILL_SEEN_S <= end.second
            and (fault.until is None or end.second <= fault.until + KILL_SEEN_S)
            for fault in killed
        )
    ]


def unexplained_stops(faults: Sequence[FaultInstant]) -> list[FaultInstant]:
    """Stopped processes that no fault of the workload had paused."""
    paused = [fault for fault in faults if fault.what.startswith(FaultKind.PAUSE.value + " ")]
    return [
        stop
        for stop in faults
        if stop.what == STOPPED
        and not any(
            fault.node == stop.node
            and fault.second - KILL_SEEN_S <= stop.second <= (fault.second if fault.until is None else fault.until)
            for fault in paused
        )
    ]


def drained_s(workload: Workload, workers: Sequence[WorkerResult]) -> float | None:
    """Seconds from the end of sending until consumers had everything; None if they never had."""
    acked = sum(worker.acked for worker in workers)
    if not acked or sum(worker.consumed for worker in workers) < acked * workload.groups:
        return None
    last = max((worker.last_consumed_s for worker in workers if worker.last_consumed_s is not None), default=None)
    return None if last is None else max(0.0, last - workload.duration_s)


def caught_up_s(rows: Sequence[IntervalRow]) -> float:
    """The end of the first measured second after which consumers were less than a second's sends behind."""
    backlogs: dict[int, int] = {}
    sent: dict[int, int] = {}
    for row in rows:
        sent[row.second] = sent.get(row.second, 0) + row.sent
        if row.backlog is not None:
            backlogs[row.second] = backlogs.get(row.second, 0) + row.backlog
    return next((second + 1.0 for second in sorted(backlogs) if backlogs[second] <= sent.get(second, 0)), math.inf)


def last_backlog(rows: Sequence[IntervalRow]) -> float:
    """The sum of the workers' last backlogs; infinity if none was measured, as with push consumers."""
    last: dict[int, int] = {}
    for row in sorted(rows, key=lambda row: row.second):
        if row.backlog is not None:
            last[row.worker] = row.backlog
    return float(sum(last.values())) if last else math.inf


def decide(
    workload: Workload,
    figures: Figures,
    workers: Sequence[WorkerResult],
    *,
    interrupted: bool = False,
    findings: Findings | None = None,
    faults: Sequence[FaultInstant] = (),
    failed_faults: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> tuple[tuple[ThresholdResult, ...], Decision]:
    """Decide whether a run passed.

    Args:
        workload: the workload that was run.
        figures: the measured figures.
        workers: the generators' results.
        interrupted: whether the run was ended early.
        findings: the audit's findings; None if there was no audit.
        faults: the injected faults, and unexpected ends of the target's processes.
        failed_faults: the faults of the workload that could not be done, each with the reason.
        notes: further remarks for the reader.
    """
    thresholds = tuple(_measure(threshold, figures) for threshold in workload.thresholds)
    failed = [f"a fault could not be done: {text}" for text in failed_faults]
    status, explanation = _decision(workload, figures, workers, thresholds, interrupted, findings, faults, failed)
    allowed = (
        [f"the audit found what the workload allows: {findings}"]
        if findings is not None and not findings.clean and _keeps_promise(workload, workers, findings)
        else []
    )
    stops = [
        f"the process of {stop.node} was stopped (SIGSTOP) from {stop.second:.1f} to {stop.until or stop.second:.1f} s, by none "
        "of the workload's faults"
        for stop in unexplained_stops(faults)
    ]
    notes = (
        *notes,
        *(text for text in failed if text not in explanation),
        *stops,
        *_notes(workload, figures),
        *allowed,
    )
    return thresholds, Decision(status=status, explanation=explanation, notes=notes, is_late=figures.late is not None)


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
    faults: Sequence[FaultInstant],
    failed_faults: Sequence[str],
) -> tuple[RunStatus, str]:
    example = next((text for worker in workers for text in worker.error_examples.values()), "")
    dead = [f"worker {worker.worker}: {worker.failure}" for worker in workers if worker.failure]
    if interrupted:
        return RunStatus.INCOMPLETE, "the run was interrupted; what was measured until then is kept, and partial"
    if dead:
        return RunStatus.INCOMPLETE, f"{'; '.join(dead)}; what was measured is partial"
    broken = findings is not None and not _keeps_promise(workload, workers, findings)
    if (
        broken
        and findings is not None
        and (findings.counts[Defect.LOST] or findings.counts[Defect.CORRUPT] or findings.given_again)
    ):
        met = f"; the first error of a producer or consumer: {example}" if example else ""
        return RunStatus.AUDIT_FAILED, f"the audit found: {findings}{_after(faults)}; see audit.json{met}"
    failed = _failed_sends(workload, figures)
    if ends := unexplained_ends(faults):
        ended = "; ".join(f"the process of {end.node} ended at {end.second:.1f} s, by itself or killed" for end in ends)
        return RunStatus.NODE_ENDED, "; ".join(filter(None, [ended, failed]))
    if failed:
        return RunStatus.ERRORS, f"{failed}{_after(faults)}; the first: {example}"
    if broken:
        return RunStatus.AUDIT_FAILED, f"the audit found: {findings}{_after(faults)}; see audit.json"
    if failed_faults:
        # The thresholds are those of a run with this fault.
        return RunStatus.INCOMPLETE, f"{'; '.join(failed_faults)}{_after(faults)}"
    missed = [f"{each.text} (measured {each.measured_text})" for each in thresholds if not each.passed]
    if missed:
        late = f"; besides, {figures.late}" if figures.late else ""
        return RunStatus.THRESHOLD_FAILED, f"not reached: {'; '.join(missed)}{_after(faults)}{late}"
    if figures.late:
        return RunStatus.GENERATOR_LATE, figures.late
    kept = "all thresholds are kept" if thresholds else "no thresholds were set"
    return RunStatus.PASSED, f"{kept}{_after(faults)}"


def _failed_sends(workload: Workload, figures: Figures) -> str:
    """The failed sends, if there are more than the workload permits; otherwise empty."""
    errors = figures["errors"]
    if errors <= workload.errors_allowed * max(1, figures.sent):
        return ""
    allowed = f"{100 * workload.errors_allowed:.15g}%"
    # Messages sent during warm-up may fail after it.
    return f"{errors:.0f} of {max(figures.sent, round(errors))} sends failed (allowed: {allowed})"


def _after(faults: Sequence[FaultInstant]) -> str:
    """The faults, as a part of an explanation."""
    found = [
        f"{fault.what} ({fault.node}) at {fault.second:.1f} s" for fault in faults if fault.what not in (ENDED, STOPPED)
    ]
    found += [f"the end of the process of {fault.node} at {fault.second:.1f} s" for fault in unexplained_ends(faults)]
    found += [f"a stop of the process of {fault.node} at {fault.second:.1f} s" for fault in unexplained_stops(faults)]
    return f", after {' and '.join(found)}" if found else ""


def _silence(seconds: Sequence[int]) -> str:
    """Format seconds without an answer as ranges: `5 to 7 s, 9 to 10 s`."""
    stretches: list[list[int]] = []
    for second in seconds:
        if stretches and stretches[-1][1] == second:
            stretches[-1][1] = second + 1
        else:
            stretches.append([second, second + 1])
    return ", ".join(f"{first} to {last} s" for first, last in stretches)


def _notes(workload: Workload, figures: Figures) -> list[str]:
    notes = [f"{key} is ignored: {why}" for key, why in workload.ignored.items()]
    if figures.silent_seconds:
        notes.append(
            f"nothing was acknowledged from {_silence(sorted(figures.silent_seconds))}, although there was something to send: "
            "the brokers stood still, refused, or could not be reached"
        )
    held_s = figures["held_s"]
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
    if figures.histograms["intended_to_ack"].get_total_count() and (shortfall := figures.shortfall()):
        notes.append(shortfall)
    return notes
