"""The work of a call: the number of executed lines of Python, which is the same on fast and slow machines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import trio


def lines_of(call: Callable[[], object]) -> int:
    """The lines that a call runs; each turn of a loop or comprehension counts, the inside of C functions does not."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def lines_of_slices(slices: Generator[None, None, object]) -> list[int]:
    """The lines of each slice of sliced work, which is done to its end."""
    counts: list[int] = []
    done = False

    def step() -> None:
        nonlocal done
        try:
            next(slices)
        except StopIteration:
            done = True

    while not done:
        counts.append(lines_of(step))
    return counts


class _Turns(trio.abc.Instrument):
    def __init__(self) -> None:
        self.lines: list[int] = []
        self._begun = self.count = 0

    def trace(self, _frame: FrameType, event: str, _argument: object) -> Any:
        self.count += event == "line"
        return self.trace

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._begun = self.count

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.lines.append(self.count - self._begun)


@contextmanager
def lines_of_turns() -> Iterator[list[int]]:
    """The lines of each turn of each task, from the next function called on: complete when the block has ended."""
    turns = _Turns()
    before = sys.gettrace()
    trio.lowlevel.add_instrument(turns)
    sys.settrace(turns.trace)
    try:
        yield turns.lines
    finally:
        sys.settrace(before)
        trio.lowlevel.remove_instrument(turns)
        turns.after_task_step(trio.lowlevel.current_task())
