"""Waits for times of a wall clock that is set meanwhile."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from triomq_server.clock_waits import ClockWaits


async def test_a_wait_ends_when_the_clock_is_set(autojump_clock: MockClock) -> None:
    waits = ClockWaits()

    async def work() -> None:
        with waits.task() as task:
            await task.until(7_200_000, 0)
            await trio.sleep(3)  # what was due takes its time

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await waits.wait_idle()
        assert waits.next_due_ms() == 7_200_000
        waits.clock_set()
        await waits.wait_idle()
        assert trio.current_time() == 3
    assert waits.next_due_ms() is None


async def test_the_clock_is_read_again_every_second(autojump_clock: MockClock) -> None:
    with ClockWaits().task() as task:
        await task.until(7_200_000, 0)
    assert trio.current_time() == 1


async def test_a_pause_is_no_due_time_and_ends_when_the_clock_is_set(autojump_clock: MockClock) -> None:
    waits = ClockWaits()
    ends: list[float] = []

    async def work() -> None:
        with waits.task() as task:
            for _ in range(2):
                await task.pause(60)
                ends.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await waits.wait_idle()
        assert waits.next_due_ms() is None
        waits.clock_set()
    assert ends == [0, 60]


async def test_a_cancelled_task_no_longer_takes_part() -> None:
    waits = ClockWaits()

    async def work() -> None:
        with waits.task() as task:
            await task.pause(60)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        waits.clock_set()
    with trio.fail_after(5):
        await waits.wait_idle()
