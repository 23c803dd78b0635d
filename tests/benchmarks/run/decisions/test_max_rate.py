"""The search for the highest rate, on brokers and generators of known strength; and the rule, rule by rule."""

from __future__ import annotations

import attrs
import pytest

from triomq_benchmarks.figures.intervals import IntervalRow, encode, fold, new_histogram
from triomq_benchmarks.figures.run_result import RunStatus, WorkerResult
from triomq_benchmarks.run.decisions.max_rate import TRIALS_MAX, Answer, MaxRate, Search, Trial, backlog_growth, examine
from triomq_benchmarks.run.decisions.pass_fail import Figures
from triomq_benchmarks.workload.workload import SendMode, Workload


def search(first: float, broker: float, generator: float = 1e9) -> MaxRate:
    found = Search(first)
    while (rate := found.next_rate) is not None:
        answer = Answer.SUSTAINED
        if rate > generator:
            answer = Answer.GENERATOR_LATE
        elif rate > broker:
            answer = Answer.NOT_SUSTAINED
        found.add(Trial(rate, answer, "", 1.0, rate))
    return found.result


@pytest.mark.parametrize("first", [100, 7_300, 1_000_000])
def test_it_finds_the_brokers_limit_from_below_and_from_above(first: float) -> None:
    found = search(first, broker=7_400)
    assert 7_400 * 0.95 <= found.rate_per_s <= 7_400
    assert found.limited_by == "broker"
    assert len(found.trials) <= TRIALS_MAX


def test_a_generator_that_is_weaker_than_the_broker_is_named() -> None:
    found = search(100, broker=50_000, generator=5_000)
    assert 5_000 * 0.95 <= found.rate_per_s <= 5_000
    assert found.limited_by == "generator"


def test_a_broker_that_sustains_nothing() -> None:
    assert search(1000, broker=0).rate_per_s == 0


@pytest.mark.parametrize(
    ("first", "broker", "rate", "limited_by"),
    [
        (1, 1e9, 2**15, "trials"),  # each trial was sustained
        (1, 20_000, 2**14, "trials"),  # no trial is left to bisect
        (1e9, 10, 0, "trials"),  # no trial was sustained, but 10 would be
        (2**14, 2**14, 2**14, "broker"),
        (2, 1, 1, "broker"),
        (2**16 * 0.9, 0, 0, "broker"),  # the last trial is the lowest one of all
    ],
)
def test_a_search_that_ends_with_its_trials_has_not_found_the_limit(
    first: float, broker: float, rate: float, limited_by: str
) -> None:
    found = search(first, broker)
    assert (found.rate_per_s, found.limited_by) == (pytest.approx(rate, rel=0.05), limited_by)


def test_a_search_that_ended_early_says_so() -> None:
    begun = Search(100)
    assert (begun.result.rate_per_s, begun.result.limited_by) == (0, "unfinished")
    begun.add(Trial(100, Answer.SUSTAINED, "", 1, 100))
    assert (begun.result.rate_per_s, begun.result.limited_by) == (100, "unfinished")


WORKLOAD = Workload(name="x", rate_per_s=100, duration_s=9)
WORKER = WorkerResult(worker=0, host="h", pid=1, sent=900, acked=900)


def rows(*, ack_us: int = 1000, acked: int = 100, errors: int = 0, grows: int = 0) -> list[IntervalRow]:
    histogram = new_histogram()
    for _ in fold(histogram, [ack_us] * 100):
        pass
    return [
        IntervalRow(
            worker=0, second=number, sent=100, acked=acked, errors=errors, backlog=10 + grows * number,
            intended_to_ack=encode(histogram),
        )
        for number in range(9)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "worker", "status", "reason"),
    [
        (rows(), WORKER, RunStatus.PASSED, None),
        (rows(acked=99), WORKER, RunStatus.PASSED, None),
        (rows(acked=98), WORKER, RunStatus.PASSED, "only 882 of 900 messages"),
        (rows(ack_us=120_000), WORKER, RunStatus.PASSED, "p99 120.1 ms is above 100 ms"),
        (rows(errors=1), WORKER, RunStatus.ERRORS, "9 sends failed"),
        (rows(), attrs.evolve(WORKER, unsent=1), RunStatus.PASSED, "1 messages were left unsent"),
        (rows(grows=8), WORKER, RunStatus.PASSED, None),
        (rows(grows=9), WORKER, RunStatus.PASSED, "the backlog grew by 54"),
        (rows(), WORKER, RunStatus.INCOMPLETE, "did not get to its end"),
    ],
)
def test_the_rule(seen: list[IntervalRow], worker: WorkerResult, status: RunStatus, reason: str | None) -> None:
    trial = examine(WORKLOAD, Figures(WORKLOAD, seen, [worker]), seen, status, 100)
    assert trial.answer is (Answer.SUSTAINED if reason is None else Answer.NOT_SUSTAINED)
    assert reason is None or reason in trial.reason


@pytest.mark.parametrize(
    ("sent", "acked", "producers", "reason"),
    [
        # Producers that send rarely: most of what was sent would be one message of each.
        (64, 58, 64, None),
        (64, 57, 64, "only 57 of 64"),
        (8, 7, 4, None),
        (8, 6, 4, "only 6 of 8"),
        (38, 38, 1, None),
        (38, 37, 1, None),
        (38, 36, 1, "only 36 of 38 messages were acknowledged in time"),
        (38, 36, 2, None),
        (38, 35, 2, "only 35 of 38"),
        # Independent arrivals are rarely as many as the rate says.
        (30, 30, 1, None),
        (45, 43, 1, "only 43 of 45"),
        (10_000, 9_900, 1, None),
        (10_000, 9_899, 1, "only 9,899 of 10,000"),
    ],
)
def test_a_message_that_is_on_its_way_at_the_end_is_not_missed(
    sent: int, acked: int, producers: int, reason: str | None
) -> None:
    workload = attrs.evolve(WORKLOAD, rate_per_s=37.5, duration_s=1, producers=producers, in_flight=2)
    seen = [attrs.evolve(rows()[0], sent=sent, acked=acked)]
    trial = examine(workload, Figures(workload, seen, [WORKER]), seen, RunStatus.PASSED, 100)
    assert trial.reason == "all rules kept" if reason is None else reason in trial.reason


@pytest.mark.parametrize(("acked", "reached"), [(30, True), (29, False)])
def test_a_batch_that_is_on_its_way_at_the_end_is_not_missed(acked: int, reached: bool) -> None:
    workload = attrs.evolve(WORKLOAD, rate_per_s=40, duration_s=1, producers=1, batch=10, send_mode=SendMode.ASYNC)
    seen = [attrs.evolve(rows()[0], sent=40, acked=acked)]
    assert bool(Figures(workload, seen, [WORKER]).shortfall()) is not reached


def test_no_rate_of_less_than_a_message_is_tried() -> None:
    assert [trial.rate_per_s for trial in search(9.375, broker=0).trials] == [9.375, 4.6875, 2.34375, 1.171875]


def test_a_late_generator_is_no_answer_about_the_broker() -> None:
    seen = rows(ack_us=120_000)
    trial = examine(WORKLOAD, Figures(WORKLOAD, seen, [WORKER]), seen, RunStatus.GENERATOR_LATE, 100)
    assert trial.answer is Answer.GENERATOR_LATE


def test_backlogs_of_workers_are_added() -> None:
    both = [IntervalRow(worker=worker, second=second, backlog=second) for worker in (0, 1) for second in range(6)]
    assert backlog_growth(both, 6) == pytest.approx(8)
    assert backlog_growth([], 6) == 0
