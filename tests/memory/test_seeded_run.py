"""Runs that only their seed decides, whatever else the process does."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import trio
from seeded_run import seeded_run


@pytest.fixture
def other_loop() -> Iterator[None]:
    """A loop in another thread, as a client of `triomq.blocking` has one, with several tasks that can always run."""
    ended = threading.Event()

    async def turn() -> None:
        while not ended.is_set():
            await trio.lowlevel.checkpoint()

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(turn)

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


async def _order_of_tasks() -> list[int]:
    order: list[int] = []

    async def task(number: int) -> None:
        for _ in range(500):
            await trio.lowlevel.checkpoint()
            order.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(task, number)
    return order


def test_a_loop_in_another_thread_changes_no_order(other_loop: None) -> None:
    first, second, third = (seeded_run(seed, _order_of_tasks) for seed in (1, 1, 2))
    assert first == second
    assert first != third
