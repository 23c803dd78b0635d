"""A task that fails starts again, and does not take the server with it."""

from __future__ import annotations

import itertools

import pytest
import trio
from trio.testing import MockClock

from triomq_server.restarting import FIRST_PAUSE_S, LONGEST_PAUSE_S, restarted


async def test_a_failed_task_starts_again_after_growing_pauses(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    starts: list[float] = []

    async def flush_forever() -> None:
        starts.append(trio.current_time())
        if len(starts) < 12:
            raise OverflowError("a value nobody thought of")
        await trio.sleep(5 * LONGEST_PAUSE_S)

    with trio.move_on_after(1000):
        await restarted(flush_forever)
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert pauses[:3] == pytest.approx([FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S])
    assert max(pauses[:11]) == pytest.approx(LONGEST_PAUSE_S)
    assert pauses[11] == pytest.approx(5 * LONGEST_PAUSE_S + FIRST_PAUSE_S), "a long run ends the growth"
    assert "flush_forever has failed" in caplog.text
    assert "a value nobody thought of" in caplog.text
    assert f"flush_forever has ended; it starts again in {FIRST_PAUSE_S:.0f} s" in caplog.text


async def test_a_cancelled_task_does_not_start_again() -> None:
    starts = 0

    async def task() -> None:
        nonlocal starts
        starts += 1
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(restarted, task)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert starts == 1
