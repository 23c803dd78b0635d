"""The order of measurements that are compared: all in each round, forwards in one round and backwards in the next.

Disturbances of the machine then affect all of them alike.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def turns(items: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Yield the number of the round and an item; each item occurs once in each round."""
    for number in range(rounds):
        for item in items if number % 2 == 0 else reversed(items):
            yield number, item


def in_turns(rounds: int, runs: Sequence[Callable[[], T]]) -> list[list[T]]:
    """Call all `runs` in turns, and return the results of each."""
    results: list[list[T]] = [[] for _ in runs]
    for _, index in turns(range(len(runs)), rounds):
        results[index].append(runs[index]())
    return results
