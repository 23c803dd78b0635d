"""Runs full garbage collections, each in a separate turn of the loop.

A full collection visits every object that may be part of a cycle: 20 ms for 40,000 of them. By default it starts where
most objects are made, in the longest requests, and adds to their time. The objects of many clients, 46 per connection,
would make it longer and longer: when many objects survive a collection, they are excluded from later ones.
"""

from __future__ import annotations

import gc
from typing import Final, NoReturn

import trio

LOOK_EVERY_S: Final = 0.2
"""Interval of checks whether a full collection is due: in it a thousand clients may connect, with 46,000 objects."""
DUE_AFTER: Final = 5
"""Number of young collections, of 7,000 objects each, after which a full one is due; Python's default is 10."""
FORCED_AFTER: Final = 100
"""Number after which a full collection starts by itself: so many objects have been made since the last check."""

FROZEN_FROM: Final = 10_000
"""If this many objects survive a full collection, later ones skip them: they would take 5 ms or more each time. Nearly
all belong to connections and tables, which are freed without a collection. Objects that become an unused cycle only
afterwards stay; these are few, since this many objects must have been added to the live ones each time."""

_GROWTH: Final = 0.25
"""Required growth of the objects that have survived young collections, as in Python."""
_OLDEST: Final = 2
"""The generation of those objects."""

_NAP_S: Final = 0.002
_LATE_S: Final = 0.0015
"""A task that wakes up no later than this finds the loop otherwise idle; epoll counts in milliseconds."""
_NAPS_MOST: Final = 200
_LATER_MOST: Final = 2
"""It waits for at most this many further young collections: their survivors make it longer."""


async def collect_in_turns() -> NoReturn:
    """Task of a server process: run full collections when they are due, so that they do not start by themselves."""
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], FORCED_AFTER)
    kept = last = 0
    due = DUE_AFTER
    try:
        while True:
            await trio.sleep(LOOK_EVERY_S)
            count = gc.get_count()[_OLDEST]
            if count < last:  # a full collection has started by itself
                due = DUE_AFTER
            last = count
            if count < due:
                continue
            # Counting the objects takes a third of a collection: not again before as many young collections.
            if len(gc.get_objects(_OLDEST)) <= (1 + _GROWTH) * kept:
                due = count + DUE_AFTER
                continue
            await _nothing_else_to_do()
            gc.collect()
            await trio.lowlevel.checkpoint()
            kept = len(gc.get_objects(_OLDEST))
            if kept >= FROZEN_FROM:
                gc.freeze()
                kept = 0
            last, due = 0, DUE_AFTER
    finally:
        gc.set_threshold(*before)


async def _nothing_else_to_do() -> None:
    """Wait for a turn of the loop without other work, but not for long."""
    latest = gc.get_count()[_OLDEST] + _LATER_MOST
    for _ in range(_NAPS_MOST):
        due = trio.current_time() + _NAP_S
        await trio.sleep_until(due)
        if trio.current_time() - due < _LATE_S or gc.get_count()[_OLDEST] >= latest:
            return
