"""A generator's measurements that are not reported yet, second by second; they become rows a little at a time.

On the hot path a latency is one append to an array.  Histograms are made once a second, with a checkpoint now and then,
so that the generator does not stop to count while messages are due.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import Any

import trio

from triomq_benchmarks.figures.intervals import HISTOGRAMS, IntervalRow, encode, fold, new_histogram

ROW_DELAY_S = 0.02
"""Delay of a row after the end of its second: long enough for most answers to its last messages."""


class Cell:
    """The unreported part of one second of one worker; latencies in microseconds."""

    __slots__ = (
        "acked", "actual_to_ack", "consumed", "consumed_bytes", "errors", "from_master", "from_slave", "held_s",
        "intended_to_ack", "intended_to_consumed", "lateness", "sent", "sent_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.sent = self.acked = self.errors = self.consumed = 0
        self.sent_bytes = self.consumed_bytes = 0
        self.from_master = self.from_slave = 0
        self.held_s = 0.0
        self.intended_to_ack = array("q")
        self.actual_to_ack = array("q")
        self.lateness = array("q")
        self.intended_to_consumed = array("q")


class SecondCells:
    """The cells of one worker.

    Args:
        worker: its number.
        emit: takes the rows.
        backlog: returns the messages before the consumers at each flush; None if unknown.
    """

    def __init__(self, worker: int, emit: Callable[[IntervalRow], None], backlog: Callable[[], int | None]) -> None:
        self.origin = 0.0
        """Start of the measured part, on trio's clock; see `begin`."""
        self._worker = worker
        self._emit = emit
        self._backlog = backlog
        self._cells: dict[int, Cell] = {}

    def begin(self, origin: float) -> None:
        """Set the start of the measured part; everything counted before that is dropped."""
        self.origin = origin
        self._cells = {}

    def at(self, instant: float) -> Cell:
        """The cell for a time of trio's clock."""
        second = math.floor(instant - self.origin)
        cell = self._cells.get(second)
        if cell is None:
            cell = self._cells[second] = Cell()
        return cell

    async def run(self) -> None:
        """Report all rows soon after the end of each second, until cancelled."""
        while True:
            second = math.floor(trio.current_time() - self.origin)
            await trio.sleep_until(self.origin + second + 1 + ROW_DELAY_S)
            # Values taken out of the cells must be reported, even if this is cancelled; it takes milliseconds.
            with trio.CancelScope(shield=True):
                await self.flush()

    async def flush(self) -> None:
        """Report all cells."""
        # This backlog belongs to the second that has just ended.
        looked_at = math.floor(trio.current_time() - self.origin - 2 * ROW_DELAY_S)
        backlog = self._backlog()
        cells, self._cells = self._cells, {}
        for second, cell in sorted(cells.items()):
            encoded: dict[str, Any] = {name: await _encoded(getattr(cell, name)) for name in HISTOGRAMS}
            row = IntervalRow(
                worker=self._worker,
                second=second,
                sent=cell.sent,
                acked=cell.acked,
                errors=cell.errors,
                consumed=cell.consumed,
                sent_bytes=cell.sent_bytes,
                consumed_bytes=cell.consumed_bytes,
                from_master=cell.from_master,
                from_slave=cell.from_slave,
                held_s=cell.held_s,
                backlog=backlog if second == looked_at else None,
                **encoded,
            )
            self._emit(row)
        if looked_at not in cells and backlog is not None:
            self._emit(IntervalRow(worker=self._worker, second=looked_at, backlog=backlog))


async def _encoded(microseconds: array[int]) -> bytes:
    if not microseconds:
        return b""
    histogram = new_histogram()
    for _ in fold(histogram, microseconds):
        await trio.lowlevel.checkpoint()
    return encode(histogram)
