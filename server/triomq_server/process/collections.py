"""Full collections of garbage, each in a turn of the loop of its own.

A full collection looks at every object that may be part of a cycle: 20 ms for 40,000 of them. By itself it begins where
most objects are made, in the requests that take longest, and adds to their time.
"""

from __future__ import annotations

import gc
from typing import Final, NoReturn

import trio

LOOK_EVERY_S: Final = 1.0
"""How often a full collection may be due."""
DUE_AFTER: Final = 10
"""Collections of younger objects after which one is due, as by default in Python."""
FORCED_AFTER: Final = 100
"""After so many it begins by itself: so many objects have been made since the last look."""

_GROWTH: Final = 0.25
"""By how much the objects that have outlived younger collections must have grown, as in Python: with very many that stay,
such as queues, a full collection takes long and finds nothing."""
_OLDEST: Final = 2
"""The generation of those objects."""

_NAP_S: Final = 0.002
_LATE_S: Final = 0.0015
"""A task that wakes up no later than this finds the loop without other work; epoll counts in milliseconds."""
_NAPS_MOST: Final = 200


async def collect_in_turns() -> NoReturn:
    """Task of a server process: do full collections when they are due, so that they do not begin by themselves."""
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], FORCED_AFTER)
    kept = last = 0
    due = DUE_AFTER
    try:
        while True:
            await trio.sleep(LOOK_EVERY_S)
            count = gc.get_count()[_OLDEST]
            if count < last:  # a full collection has begun by itself
                due = DUE_AFTER
            last = count
            if count < due:
                continue
            # To count the objects takes a third of a collection: not again before as many younger collections.
            if len(gc.get_objects(_OLDEST)) <= (1 + _GROWTH) * kept:
                due = count + DUE_AFTER
                continue
            await _nothing_else_to_do()
            gc.collect()
            await trio.lowlevel.checkpoint()
            kept = len(gc.get_objects(_OLDEST))
            last, due = 0, DUE_AFTER
    finally:
        gc.set_threshold(*before)


async def _nothing_else_to_do() -> None:
    """Wait for a turn of the loop without other work, but not for long."""
    for _ in range(_NAPS_MOST):
        due = trio.current_time() + _NAP_S
        await trio.sleep_until(due)
        if trio.current_time() - due < _LATE_S:
            return
