"""How much work a call does: the lines of Python that it runs, which are the same on a fast and on a slow machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any


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
