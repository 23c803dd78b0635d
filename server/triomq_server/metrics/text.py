"""The text that Prometheus reads, version 0.0.4, made in slices.

`prometheus-client` writes the whole text at once, and needs some microseconds per line: with 10,000 topics a broker would
block for a second. So the lines are written here; the tests read them with that library's parser.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec

from triomq_server.metrics.histogram import BOUNDS_S, Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

SLICE_S: Final = 0.002
"""Time spent on writing lines before other tasks run."""

ROWS_PER_LOOK: Final = 64
"""Number of rows between two readings of the clock."""

LINES_PER_PIECE: Final = 4096
"""Number of a column's lines that are encoded before other tasks run."""

_ESCAPES: Final = {
    **{number: f"\\\\x{number:02x}" for number in (*range(32), *range(127, 160))},
    0x0A: "\\n",
    0x22: '\\"',
    0x5C: "\\\\",
    # Ends of lines for `str.splitlines`, which some readers use.
    0x2028: "\\\\u2028",
    0x2029: "\\\\u2029",
    # Halves of surrogate pairs, which a name from JSON may have and UTF-8 has not.
    **{number: f"\\\\u{number:04x}" for number in range(0xD800, 0xE000)},
}

Kind = Literal["counter", "gauge", "histogram", "summary"]


class Family(msgspec.Struct, frozen=True):
    """One metric.

    Attributes:
        name: as stored by Prometheus; a counter's name ends in ``_total``.
        kind: its type.
        help: its meaning, in one line.
        labels: the names of its labels.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


Row = tuple[tuple[str, ...], float]
"""The values of the labels, and the number."""


def escaped(value: str) -> str:
    """A label's value, as in quotes. Control characters are shown like ``\\x0d``: readers may end a line there."""
    return value if value.isidentifier() else value.translate(_ESCAPES)


class TextWriter:
    """Writes metrics into pieces of bytes.

    The methods are generators: their caller lets other tasks run at each step.

    Args:
        now: a clock in seconds, for `SLICE_S`.

    Attributes:
        pieces: the bytes written so far.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.pieces: list[bytes] = []
        self._now = now
        self._slice_ends = now() + SLICE_S
        self._lines: list[str] = []

    def rows(self, family: Family, rows: Iterator[Row | None]) -> Iterator[None]:
        """Write a metric with labels. A row of None stands for time spent without a line."""
        self._head(family)
        places = ",".join(f'{label}="%s"' for label in family.labels)
        form = f"{family.name}{{{places}}} %s\n"
        lines = self._lines
        for number, row in enumerate(rows, 1):
            if row is not None:
                lines.append(form % (*map(escaped, row[0]), row[1]))
            if number % ROWS_PER_LOOK == 0 and self._now() > self._slice_ends:
                self._end_piece()
                yield
                self._slice_ends = self._now() + SLICE_S

    def columns(
        self, families: Sequence[Family], rows: Iterable[tuple[tuple[str, ...], Sequence[float]]]
    ) -> Iterator[None]:
        """Write several metrics with the same labels together: each row has a value for each metric.

        A summary has two values, the sum of the observed values and their number.
        """
        labels = families[0].labels
        form = ",".join(f'{label}="%s"' for label in labels) + "} "
        begins = [f"{family.name}{part}{{" for family in families for part in _parts(family)]
        columns: list[list[str]] = [[] for _ in begins]
        targets = [(column.append, begin) for column, begin in zip(columns, begins, strict=True)]
        for number, (names, values) in enumerate(rows, 1):
            label = form % tuple(map(escaped, names))
            for (append, begin), value in zip(targets, values, strict=True):
                append(f"{begin}{label}{value}\n")
            if number % ROWS_PER_LOOK == 0 and self._now() > self._slice_ends:
                yield
                self._slice_ends = self._now() + SLICE_S
        left = iter(columns)
        for family in families:
            self._head(family)
            for column in [next(left) for _ in _parts(family)]:
                for at in range(0, len(column), LINES_PER_PIECE):
                    self._lines += column[at : at + LINES_PER_PIECE]
                    self._end_piece()
                    yield
        self._slice_ends = self._now() + SLICE_S

    def value(self, family: Family, value: float) -> None:
        """Write a metric without labels."""
        self._head(family)
        self._lines.append(f"{family.name} {_number(value)}\n")

    def few(self, family: Family, rows: Iterator[Row] | list[Row]) -> None:
        """Write a metric with few rows at once."""
        for _ in self.rows(family, iter(rows)):
            pass

    def histogram(self, family: Family, histogram: Histogram) -> None:
        """Write a histogram."""
        self._head(family)
        count = 0
        for bound, of_bucket in zip((*BOUNDS_S, math.inf), histogram.counts, strict=True):
            count += of_bucket
            self._lines.append(f'{family.name}_bucket{{le="{_number(bound)}"}} {count}\n')
        self._lines.append(f"{family.name}_sum {histogram.total_s}\n{family.name}_count {count}\n")

    def finish(self) -> list[bytes]:
        """Return all that has been written."""
        self._end_piece()
        return self.pieces

    def _head(self, family: Family) -> None:
        self._lines.append(f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n")

    def _end_piece(self) -> None:
        if self._lines:
            self.pieces.append("".join(self._lines).encode())
            self._lines.clear()


def _parts(family: Family) -> tuple[str, ...]:
    return ("_sum", "_count") if family.kind == "summary" else ("",)


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else str(value)
