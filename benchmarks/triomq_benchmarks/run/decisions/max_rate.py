"""The search for the highest sustainable rate: a rule that says whether a rate was sustained, and a search that asks
it.

A rate is sustained when, in one run at that rate,

1. at least 99 % of what was intended was acknowledged within the measured part, or all but one request of each
   producer, which may be on its way at the end; these are one request, or 10 % of the messages at most,
2. no send failed beyond what the workload permits, and none was left unsent,
3. the 99th percentile from the intended instant to the acknowledgement is below the limit,
4. the consumers' backlog did not grow: its mean over the last third of the seconds is at most its mean over the first
   third plus half a second's worth of messages (no rule without consumers),
5. the generator was not late, with 1 % of the messages at most, whatever the workload allows: more would be in the 99th
   percentile.  A rate that fails by this alone ends the search: the broker's limit is higher, and this
   machine cannot show where.

The search doubles from the first rate until one is not sustained (or halves until one is), and then bisects.  Pure.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

import attrs

from triomq_benchmarks.figures.beside import beside
from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.figures.run_result import RunStatus
from triomq_benchmarks.run.decisions.pass_fail import Figures
from triomq_benchmarks.workload.workload import Workload

BACKLOG_SLACK_S = 0.5
PRECISION = 0.05
"""The search ends when the lowest failing rate is less than this share above the highest sustained one."""

TRIALS_MAX = 16
LOWEST_PER_S = 1.0
"""No lower rate is tried: in a short run it is not even one message."""

LATE_ALLOWED_MAX = 0.01


class Answer(enum.StrEnum):
    """The result of a trial."""

    SUSTAINED = "sustained"
    NOT_SUSTAINED = "not sustained"
    GENERATOR_LATE = "generator late"


@attrs.frozen
class Trial:
    """One run of the search.

    Attributes:
        rate_per_s: the intended rate.
        answer: the result.
        reason: the rule that decided.
        p99_ms: 99th percentile from intended to acknowledged.
        acked_per_s: the rate within the measured part.
    """

    rate_per_s: float
    answer: Answer
    reason: str
    p99_ms: float
    acked_per_s: float


@attrs.frozen
class MaxRate:
    """The result of the search.

    Attributes:
        rate_per_s: the highest sustained rate; 0 if there was none.
        limited_by: `broker`; `generator` if the search had to end early; `trials` if it ended with `TRIALS_MAX` trials,
            and the limit may be elsewhere; or `unfinished` if a further trial would have followed.
        trials: the trials in order.
    """

    rate_per_s: float
    limited_by: str
    trials: tuple[Trial, ...]


def examine(
    workload: Workload, figures: Figures, rows: Sequence[IntervalRow], status: RunStatus, p99_limit_ms: float
) -> Trial:
    """Apply the rule to a run.

    Args:
        workload: the run's workload, at its rate.
        figures: the measured figures.
        rows: the run's increments.
        status: the run's decision, for the generator's lateness.
        p99_limit_ms: the limit of rule 3.
    """
    rate, p99_ms = workload.rate_per_s, figures["p99_ms"]
    growth = backlog_growth(rows, workload.duration_s)
    broken = [
        (status is RunStatus.INCOMPLETE, "the run did not get to its end"),
        (figures["errors"] > workload.errors_allowed * max(1, figures.sent), f"{figures['errors']:.0f} sends failed"),
        (figures["unsent"] > 0, f"{figures['unsent']:.0f} messages were left unsent"),
        (bool(shortfall := figures.shortfall()), f"only {shortfall}"),
        (p99_ms > p99_limit_ms, f"p99 {beside(p99_ms, p99_limit_ms, 1)} ms is above {p99_limit_ms:g} ms"),
        (growth > BACKLOG_SLACK_S * rate, f"the backlog grew by {growth:.0f} messages"),
    ]
    reasons = [text for is_broken, text in broken if is_broken]
    if status is RunStatus.GENERATOR_LATE:
        return Trial(rate, Answer.GENERATOR_LATE, "the generator was too slow for this rate", p99_ms, figures.rate)
    answer = Answer.NOT_SUSTAINED if reasons else Answer.SUSTAINED
    return Trial(rate, answer, "; ".join(reasons) or "all rules kept", p99_ms, figures.rate)


def backlog_growth(rows: Sequence[IntervalRow], length_s: float) -> float:
    """Increase of the mean backlog from the first third of the seconds to the last; 0 if it was not measured."""
    by_second: dict[int, int] = {}
    for row in rows:
        if row.backlog is not None and 0 <= row.second < length_s:
            by_second[row.second] = by_second.get(row.second, 0) + row.backlog
    seconds = sorted(by_second)
    third = max(1, len(seconds) // 3)
    if len(seconds) < 2:
        return 0.0
    first, last = seconds[:third], seconds[-third:]
    return sum(by_second[each] for each in last) / len(last) - sum(by_second[each] for each in first) / len(first)


class Search:
    """Chooses the next rate to try.

    Args:
        first: rate of the first trial, messages per second.
    """

    def __init__(self, first: float) -> None:
        self._next: float | None = first
        self._sustained = 0.0
        self._failed = math.inf
        self._trials: list[Trial] = []
        self._limited_by = "broker"

    @property
    def next_rate(self) -> float | None:
        """The rate of the next trial; None if the search is over."""
        return self._next

    @property
    def result(self) -> MaxRate:
        """The result so far."""
        limited_by = self._limited_by
        if self._next is not None:
            limited_by = "unfinished"
        elif len(self._trials) >= TRIALS_MAX and not self._is_found():
            limited_by = "trials"
        return MaxRate(self._sustained, limited_by, tuple(self._trials))

    def add(self, trial: Trial) -> None:
        """Add the trial of `next_rate`."""
        self._trials.append(trial)
        if trial.answer is Answer.SUSTAINED:
            self._sustained = max(self._sustained, trial.rate_per_s)
        else:
            self._failed = min(self._failed, trial.rate_per_s)
            # The lowest failing rate shows whose limit was found.
            if self._failed == trial.rate_per_s:
                self._limited_by = "generator" if trial.answer is Answer.GENERATOR_LATE else "broker"
        self._next = self._following()

    def _following(self) -> float | None:
        if len(self._trials) >= TRIALS_MAX or self._is_found():
            return None
        if math.isinf(self._failed):
            return self._sustained * 2
        if not self._sustained:
            return self._failed / 2
        return self._middle()

    def _middle(self) -> float:
        return round((self._sustained + self._failed) / 2, 1)

    def _is_found(self) -> bool:
        """Whether the highest sustained rate is known, or that no rate is sustained."""
        if math.isinf(self._failed):
            return False
        if not self._sustained:
            return self._failed < 2 * LOWEST_PER_S
        near = self._failed - self._sustained <= PRECISION * self._failed
        return near or self._failed <= LOWEST_PER_S or self._middle() in (self._sustained, self._failed)
