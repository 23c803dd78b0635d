"""The status of a run and its reason: the order of the rules, and what thresholds are measured on."""

from __future__ import annotations

import math

import attrs
import pytest

from triomq_benchmarks.audit.checks import Defect, Findings
from triomq_benchmarks.figures.intervals import IntervalRow, encode, fold, new_histogram
from triomq_benchmarks.figures.run_result import ENDED, STOPPED, Decision, FaultInstant, RunStatus, WorkerResult
from triomq_benchmarks.run.decisions.pass_fail import (
    Figures,
    caught_up_s,
    decide,
    drained_s,
    last_backlog,
    unexplained_ends,
    unexplained_stops,
)
from triomq_benchmarks.workload.workload import Loop, SendMode, Threshold, Workload

WORKLOAD = Workload(name="x", rate_per_s=100, duration_s=10, thresholds=(Threshold.parse("p99_ms < 50"),))
WORKER = WorkerResult(worker=0, host="h", pid=1, sent=1100, acked=1100, consumed=1100, last_consumed_s=10.25)


def encoded(microseconds: int, count: int = 100) -> bytes:
    histogram = new_histogram()
    for _ in fold(histogram, [microseconds] * count):
        pass
    return encode(histogram)


def second(number: int, *, ack_us: int = 2_000, late_us: int = 100, **others: object) -> IntervalRow:
    figures: dict[str, object] = {"sent": 100, "acked": 100, "consumed": 90, "backlog": 10, **others}
    return IntervalRow(worker=0, second=number, intended_to_ack=encoded(ack_us), lateness=encoded(late_us), **figures)  # type: ignore[arg-type]


ROWS = [second(number) for number in range(-1, 10)]


def status(
    rows: list[IntervalRow], worker: WorkerResult = WORKER, workload: Workload = WORKLOAD, **others: object
) -> RunStatus:
    return decide(workload, Figures(workload, rows, [worker]), [worker], **others)[1].status  # type: ignore[arg-type]


def test_a_run_that_kept_everything() -> None:
    thresholds, decision = decide(WORKLOAD, Figures(WORKLOAD, ROWS, [WORKER]), [WORKER])
    assert decision.passed
    assert decision.notes == ()
    assert thresholds[0].passed
    assert thresholds[0].measured == pytest.approx(2, rel=0.01)


def found(**counts: int) -> Findings:
    return Findings(acknowledged=1000, counts={defect: counts.get(defect.value, 0) for defect in Defect})


@pytest.mark.parametrize(
    ("findings", "kept"),
    [
        (found(), True),
        (found(duplicated=100), True),
        (found(duplicated=101), False),
        # Three sends failed, and may have been stored.
        (found(unexpected=3), True),
        (found(unexpected=4), False),
        (found(lost=1), False),
        (found(reordered=1), False),
        (found(corrupt=1), False),
        (attrs.evolve(found(), notes=("the ledger of worker 0 has no end",)), False),
    ],
)
def test_at_least_once_may_be_allowed(findings: Findings, kept: bool) -> None:
    workload = attrs.evolve(WORKLOAD, repeats_allowed=0.1, errors_allowed=1)
    worker = attrs.evolve(WORKER, errors=3)
    decision = decide(workload, Figures(workload, ROWS, [worker]), [worker], findings=findings)[1]
    assert decision.status is (RunStatus.PASSED if kept else RunStatus.AUDIT_FAILED)
    reported = str(findings) in (decision.notes[-1] if kept and not findings.clean else decision.explanation)
    assert reported is not findings.clean
    strict = decide(WORKLOAD, Figures(WORKLOAD, ROWS, [WORKER]), [WORKER], findings=findings)[1]
    assert strict.passed is findings.clean


LATE = {"late_us": 40_000}
SLOW = {"ack_us": 60_000}
KILLED = FaultInstant(what="kill master", node="broker-a", second=6.0)
GONE = FaultInstant(what=ENDED, node="broker-a", second=6.1)


@pytest.mark.parametrize(
    ("rows", "others", "expected"),
    [
        ({}, {}, RunStatus.PASSED),
        (LATE, {}, RunStatus.GENERATOR_LATE),
        (LATE | SLOW, {}, RunStatus.THRESHOLD_FAILED),
        (LATE | SLOW, {"findings": found(reordered=1)}, RunStatus.AUDIT_FAILED),
        (LATE | SLOW | {"errors": 1}, {"findings": found(reordered=1)}, RunStatus.ERRORS),
        (LATE | SLOW | {"errors": 1}, {"faults": [GONE]}, RunStatus.NODE_ENDED),
        (LATE | SLOW | {"errors": 1}, {"faults": [KILLED, GONE]}, RunStatus.ERRORS),
        (LATE | SLOW | {"errors": 1}, {"faults": [GONE], "findings": found(reordered=1)}, RunStatus.NODE_ENDED),
        (LATE | SLOW | {"errors": 1}, {"faults": [GONE], "findings": found(lost=1)}, RunStatus.AUDIT_FAILED),
        (LATE | SLOW | {"errors": 1}, {"faults": [GONE], "findings": found(corrupt=1)}, RunStatus.AUDIT_FAILED),
        (
            LATE | SLOW | {"errors": 1},
            {"faults": [GONE], "findings": attrs.evolve(found(unexpected=1), given_again=1)},
            RunStatus.AUDIT_FAILED,
        ),
        ({}, {"faults": [GONE]}, RunStatus.NODE_ENDED),
        ({}, {"faults": [KILLED, GONE]}, RunStatus.PASSED),
        ({"errors": 1}, {"interrupted": True, "findings": found(lost=1)}, RunStatus.INCOMPLETE),
    ],
)
def test_the_first_of_these_causes_is_named(
    rows: dict[str, int], others: dict[str, object], expected: RunStatus
) -> None:
    assert status([second(number, **rows) for number in range(10)], **others) is expected


def test_lost_messages_are_shown_with_the_first_error_of_a_client() -> None:
    refused = attrs.evolve(WORKER, error_examples={"AccessRefused": "pull of orders: SUB is missing"})
    lost = decide(WORKLOAD, Figures(WORKLOAD, ROWS, [refused]), [refused], findings=found(lost=1))[1]
    assert lost.explanation.endswith("the first error of a producer or consumer: pull of orders: SUB is missing")


def test_a_dead_worker_makes_a_run_incomplete() -> None:
    dead = attrs.evolve(WORKER, failure="was killed by SIGKILL during the run")
    assert status([second(number, **LATE) for number in range(10)], dead) is RunStatus.INCOMPLETE


def explained(rows: list[IntervalRow], **others: object) -> Decision:
    return decide(WORKLOAD, Figures(WORKLOAD, rows, [WORKER]), [WORKER], **others)[1]  # type: ignore[arg-type]


def test_explanations_name_the_faults_of_the_target() -> None:
    failing = [second(number, errors=1) for number in range(10)]
    said = explained(failing, faults=[KILLED, GONE]).explanation
    assert said.startswith("10 of 1000 sends failed (allowed: 0%), after kill master (broker-a) at 6.0 s; the first: ")
    said = explained(failing, faults=[GONE]).explanation
    assert said == "the process of broker-a ended at 6.1 s, by itself or killed; 10 of 1000 sends failed (allowed: 0%)"
    said = explained(ROWS, faults=[GONE], findings=found(lost=2)).explanation
    assert said == "the audit found: 2 lost, after the end of the process of broker-a at 6.1 s; see audit.json"
    decision = explained([second(number, **LATE, **SLOW) for number in range(10)], faults=[KILLED])
    assert "p99_ms < 50 (measured 60.0" in decision.explanation
    assert ", after kill master (broker-a) at 6.0 s; besides, the load generator was too slow" in decision.explanation
    assert decision.is_late


@pytest.mark.parametrize(
    ("fault", "end_s", "explains"),
    [
        (KILLED, 6.1, True),
        (KILLED, 5.9, True),
        (KILLED, 3.0, False),
        (attrs.evolve(KILLED, node="broker-b"), 6.1, False),
        (attrs.evolve(KILLED, what="pause master"), 6.1, False),
        (attrs.evolve(KILLED, what="restart master", until=8.0), 6.1, True),
        (attrs.evolve(KILLED, what="restart master", until=8.0), 12.0, False),
    ],
)
def test_an_end_that_the_run_s_own_fault_explains(fault: FaultInstant, end_s: float, explains: bool) -> None:
    end = attrs.evolve(GONE, second=end_s)
    assert unexplained_ends([end, fault]) == ([] if explains else [end])


STOP = FaultInstant(what=STOPPED, node="broker-a", second=6.1, until=8.0)
PAUSED = FaultInstant(what="pause master", node="broker-a", second=6.0, until=8.0)


@pytest.mark.parametrize(
    ("fault", "begin_s", "explains"),
    [
        (PAUSED, 6.1, True),
        (PAUSED, 5.9, True),
        (PAUSED, 8.5, False),
        (attrs.evolve(PAUSED, node="broker-b"), 6.1, False),
        (attrs.evolve(PAUSED, what="cut master"), 6.1, False),
    ],
)
def test_a_stop_that_the_run_s_own_fault_explains(fault: FaultInstant, begin_s: float, explains: bool) -> None:
    stop = attrs.evolve(STOP, second=begin_s)
    assert unexplained_stops([stop, fault]) == ([] if explains else [stop])


def test_a_process_that_was_stopped_is_named() -> None:
    decision = explained(ROWS, faults=[STOP])
    assert decision.passed
    assert decision.notes[0].startswith("the process of broker-a was stopped (SIGSTOP) from 6.1 to 8.0 s, by none of")
    slow = explained([second(number, **SLOW) for number in range(10)], faults=[STOP])
    assert ", after a stop of the process of broker-a at 6.1 s" in slow.explanation
    assert "stopped" not in str(explained(ROWS, faults=[STOP, PAUSED]).notes)
    assert (
        explained(ROWS, faults=[PAUSED]).explanation
        == "all thresholds are kept, after pause master (broker-a) at 6.0 s"
    )


def test_a_generator_is_examined_while_brokers_answer() -> None:
    # From second 4 on the broker is gone: sends fail at once, and the texts of their errors make the generator late.
    rows = [second(number) for number in range(4)]
    rows += [second(number, acked=0, errors=100, late_us=900_000) for number in range(4, 10)]
    lenient = attrs.evolve(WORKLOAD, errors_allowed=1, thresholds=())
    assert status(rows, workload=lenient) is RunStatus.PASSED
    assert status([*rows[:3], second(3, late_us=900_000), *rows[4:]], workload=lenient) is RunStatus.GENERATOR_LATE
    # Nobody answers one-way sends.
    oneway = attrs.evolve(lenient, send_mode=SendMode.ONEWAY)
    assert status(rows, workload=oneway) is RunStatus.GENERATOR_LATE


def test_seconds_without_an_answer_are_named() -> None:
    rows = [second(number, acked=0 if number in (2, 5, 6) else 100) for number in range(10)]
    # Nothing is sent while a producer waits for answers, and nothing need be acknowledged where nothing was sent.
    rows[6] = second(6, acked=0, sent=0, held_s=1.0)
    rows[8] = second(8, acked=0, sent=0)
    notes = explained(rows).notes
    assert any("nothing was acknowledged from 2 to 3 s, 5 to 7 s, although" in note for note in notes)
    assert not any("nothing was acknowledged" in note for note in explained(ROWS).notes)


def test_errors_may_be_allowed() -> None:
    rows = [second(number, errors=1) for number in range(10)]
    assert status(rows, workload=attrs.evolve(WORKLOAD, errors_allowed=0.01)) is RunStatus.PASSED
    assert status(rows, workload=attrs.evolve(WORKLOAD, errors_allowed=0.009)) is RunStatus.ERRORS


def test_a_closed_loop_is_never_late_and_reports_what_it_hides() -> None:
    closed = attrs.evolve(WORKLOAD, loop=Loop.CLOSED)
    rows = [second(number, late_us=40_000) for number in range(10)]
    assert status(rows, workload=closed) is RunStatus.PASSED
    decision = decide(closed, Figures(closed, rows, [WORKER]), [WORKER])[1]
    assert "closed loop" in decision.notes[0]


def test_back_pressure_and_a_missed_rate_are_reported() -> None:
    rows = [second(number, acked=80, held_s=0.5) for number in range(10)]
    notes = decide(WORKLOAD, Figures(WORKLOAD, rows, [WORKER]), [WORKER])[1].notes
    assert "back-pressure: producers waited 5.0 s" in notes[0]
    assert notes[1] == "800 of 1,000 messages were acknowledged in time"


def test_lateness_is_reported_although_the_run_counts() -> None:
    rows = [second(number, late_us=40_000 if number == 0 else 100) for number in range(10)]
    assert status(rows) is RunStatus.GENERATOR_LATE
    lenient = attrs.evolve(WORKLOAD, late_allowed=0.1)
    decision = decide(lenient, Figures(lenient, rows, [WORKER]), [WORKER])[1]
    assert decision.passed
    assert "10.00% of the messages were sent more than 10 ms late" in decision.notes[0]
    assert "above the 90th percentile" in decision.notes[0]


def test_measures() -> None:
    rows = [*ROWS, IntervalRow(worker=0, second=10, acked=7, consumed=50, backlog=0, from_slave=3)]
    figures = Figures(WORKLOAD, rows, [attrs.evolve(WORKER, unsent=4)])
    assert figures["rate"] == 100
    assert figures["consume_rate"] == 90
    assert figures["unsent"] == 4
    assert figures["backlog"] == 0
    assert figures["from_slave"] == 3
    assert figures["drained_s"] == pytest.approx(0.25)
    assert figures["lateness.p50_ms"] == pytest.approx(0.1)
    assert figures["caught_up_s"] == 1
    # Nothing was recorded: no threshold is kept by that.
    assert figures["intended_to_consumed.p99_ms"] == math.inf
    with pytest.raises(KeyError):
        figures["p98_ms"]


def test_consumers_are_done_when_every_group_has_everything() -> None:
    two = attrs.evolve(WORKLOAD, groups=2)
    assert drained_s(two, [WORKER]) is None
    assert drained_s(two, [attrs.evolve(WORKER, consumed=2200, last_consumed_s=9.0)]) == 0
    assert drained_s(WORKLOAD, [attrs.evolve(WORKER, acked=0, consumed=0)]) is None


def test_catching_up_is_being_less_than_a_second_behind() -> None:
    rows = [second(0, backlog=5000), second(1, backlog=101), second(2, backlog=99), second(3, backlog=0)]
    assert caught_up_s(rows) == 3
    assert caught_up_s([second(0, backlog=None)]) == math.inf


def test_rates_of_an_interrupted_run_are_those_of_the_part_there_is() -> None:
    rows = [second(number) for number in range(4)]
    assert Figures(WORKLOAD, rows, [WORKER])["rate"] == 40
    interrupted = Figures(WORKLOAD, rows, [WORKER], interrupted=True)
    assert (interrupted["rate"], interrupted["consume_rate"]) == (100, 90)
    # The last of its seconds was not a whole one.
    assert Figures(WORKLOAD, rows, [WORKER], interrupted=True, ended_s=3.2)["rate"] == 125
    assert Figures(WORKLOAD, rows, [WORKER], interrupted=True, ended_s=12.0)["rate"] == 40


@pytest.mark.parametrize(
    ("backlogs", "last"),
    [
        # A worker whose broker does not answer stops to report, and the other one goes on.
        ([(0, 4, 5000), (1, 4, 7), (1, 9, 0)], 5000),
        ([(0, 4, 5000), (0, 9, 3), (1, 9, 4)], 7),
        ([(0, 9, 3), (0, 4, 5000)], 3),
        ([(0, 9, None), (0, 4, 0)], 0),
        # Push consumers' positions are unknown: nothing measured is not nothing left.
        ([(0, 9, None)], math.inf),
        ([], math.inf),
    ],
)
def test_the_last_backlog_is_that_of_each_worker(backlogs: list[tuple[int, int, int | None]], last: float) -> None:
    rows = [IntervalRow(worker=worker, second=second, backlog=backlog) for worker, second, backlog in backlogs]
    assert last_backlog(rows) == last


def test_a_run_whose_fault_could_not_be_done_does_not_pass() -> None:
    figures, failed = Figures(WORKLOAD, ROWS, [WORKER]), ["cut master at 3 s for 2 s: not permitted"]
    decision = decide(WORKLOAD, figures, [WORKER], failed_faults=failed)[1]
    text = "a fault could not be done: cut master at 3 s for 2 s: not permitted"
    assert (decision.status, decision.explanation) == (RunStatus.INCOMPLETE, text)
    assert text not in decision.notes
    # The end of its node is the cause, and a threshold that was missed without the fault is none.
    end = FaultInstant(what=ENDED, node="broker-a", second=1.0)
    ended = decide(WORKLOAD, figures, [WORKER], faults=[end], failed_faults=failed)[1]
    assert (ended.status, text in ended.notes) == (RunStatus.NODE_ENDED, True)
    missed = attrs.evolve(WORKLOAD, thresholds=(Threshold.parse("rate > 5000"),))
    assert decide(missed, figures, [WORKER], failed_faults=failed)[1].status is RunStatus.INCOMPLETE
