"""The progress of a run: one line that changes on a terminal, one line per second elsewhere, nothing for
`--json`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from triomq_benchmarks.figures.intervals import MONITOR, IntervalRow, by_second, histogram_of, quantiles

Say = Callable[[str], None]
KEPT_S = 4
"""Seconds whose rows are kept for the line: late answers change a past second."""


class ProgressLine:
    """Makes a progress line from rows.

    Args:
        show: draws the line.
        length_s: length of the measured part.
        workers: number of load generators that report rows.
    """

    def __init__(self, show: Say, length_s: float, *, workers: int = 1) -> None:
        self._show = show
        self._length_s = length_s
        self._workers = workers
        self._rows: list[IntervalRow] = []
        self._newest: dict[int, int] = {}
        self._shown = -math.inf
        self._errors = 0

    def add(self, row: IntervalRow) -> None:
        """Add an increment; when all workers are past a second, it is shown."""
        if row.worker == MONITOR:
            return
        self._rows.append(row)
        self._errors += row.errors
        self._newest[row.worker] = max(row.second, self._newest.get(row.worker, row.second))
        newest = max(self._newest.values())
        complete = newest - KEPT_S + 1
        if len(self._newest) == self._workers:
            # A worker that no longer reports delays the line for a limited time.
            complete = max(complete, min(self._newest.values()) - 1)
        if complete > self._shown:
            self._shown = complete
            self._rows = [each for each in self._rows if each.second > newest - 2 * KEPT_S]
            rows = [each for each in self._rows if each.second == complete]
            if rows:
                self._show(self._line(by_second(rows)[0]))

    def _line(self, row: IntervalRow) -> str:
        latency = quantiles(histogram_of([row], "intended_to_ack", warm_up=True))
        when = f"{row.second + 1:>3} of {self._length_s:g} s" if row.second >= 0 else "warm-up"
        if row.second >= self._length_s:
            when = "draining"
        parts = [when, f"{row.sent:,}/s sent", f"{row.acked:,}/s acked"]
        if latency.count:
            parts.append(f"p50 {latency.p50_ms:.2f} ms, p99 {latency.p99_ms:.2f} ms")
        parts.append(f"{row.consumed:,}/s consumed")
        if row.backlog:
            parts.append(f"backlog {row.backlog:,}")
        if row.from_slave:
            parts.append(f"{row.from_slave:,} from the slave")
        return "  ".join([*parts, f"{self._errors:,} errors"])


@contextmanager
def progress_on(stream: TextIO, *, shown: bool) -> Iterator[tuple[Say, Say]]:
    """Two functions: one shows the changing line, the other permanent lines.

    Once the stream's reader has ended (a closed terminal, or a pipe to `head`), nothing more is shown, and nothing else
    changes.
    """
    if not shown:
        yield (lambda _line: None), (lambda _news: None)
    elif stream.isatty():
        console = Console(file=stream)
        live = Live(Text(), console=console, refresh_per_second=4, transient=True, auto_refresh=False)
        with suppress(OSError):
            live.start()
        try:
            yield (
                _if_read(lambda line: live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)),
                _if_read(lambda news: console.print(Text(news, style="dim"))),
            )
        finally:
            with suppress(OSError):
                live.stop()
    else:

        def write(text: str) -> None:
            stream.write(text + "\n")
            stream.flush()

        say = _if_read(write)
        yield say, say


def _if_read(say: Say) -> Say:
    def say_if_read(text: str) -> None:
        with suppress(OSError):
            say(text)

    return say_if_read
