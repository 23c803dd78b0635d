"""The line of a run under way: complete seconds, the sum of all workers, the latest percentiles."""

from __future__ import annotations

import errno
import io

import pytest

from triomq_benchmarks.figures.intervals import MONITOR, IntervalRow, encode, fold, new_histogram
from triomq_benchmarks.report.progress import ProgressLine, progress_on


def row(worker: int, second: int, **counts: int) -> IntervalRow:
    histogram = new_histogram()
    for _ in fold(histogram, [2000 + 2000 * worker] * 100):
        pass
    return IntervalRow(worker=worker, second=second, sent=100, acked=99, intended_to_ack=encode(histogram), **counts)


def test_a_second_is_shown_when_it_is_over() -> None:
    shown: list[str] = []
    line = ProgressLine(shown.append, 2, workers=2)
    for second in range(-1, 4):
        for worker in (0, 1):
            line.add(row(worker, second, errors=worker))
        line.add(IntervalRow(worker=MONITOR, second=second + 5, replication_lag_bytes=1))
    assert [each.strip().split("  ")[0] for each in shown] == ["warm-up", "1 of 2 s", "2 of 2 s", "draining"]
    assert "200/s sent  198/s acked  p50 2.00 ms, p99 4.00 ms" in shown[1]
    assert shown[-1].endswith("5 errors")


def test_a_dead_worker_delays_nothing() -> None:
    shown: list[str] = []
    line = ProgressLine(shown.append, 60, workers=2)
    line.add(row(1, 0))
    for second in range(10):
        line.add(row(0, second))
    assert shown[-1].strip().startswith("7 of 60 s")


def test_a_file_gets_plain_lines_and_json_gets_none() -> None:
    plain = io.StringIO()
    with progress_on(plain, shown=True) as (show, news):
        news("starting ours")
        show("1 of 2 s")
    assert plain.getvalue() == "starting ours\n1 of 2 s\n"
    silent = io.StringIO()
    with progress_on(silent, shown=False) as (show, news):
        news("a")
        show("b")
    assert silent.getvalue() == ""


class Unread(io.StringIO):
    """A terminal that was closed, or a pipe whose reader ended."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def write(self, _text: str) -> int:
        raise OSError(errno.EIO if self.terminal else errno.EPIPE, "nobody reads it")

    def flush(self) -> None:
        self.write("")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_continues_when_its_progress_is_not_read(terminal: bool) -> None:
    reached = False
    with progress_on(Unread(terminal=terminal), shown=True) as (show, news):
        show("1 of 2 s")
        news("starting ours")
        reached = True
    assert reached
