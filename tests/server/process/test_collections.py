"""Full collections of garbage begin in turns of their own."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from triomq_server.process import collections

TURN_S = 0.01
"""How long a turn takes that has other work."""


@pytest.fixture(autouse=True)
def usual_threshold() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


@pytest.fixture
def full_collections() -> Iterator[list[float]]:
    """When full collections began."""
    begun: list[float] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            begun.append(trio.current_time())

    gc.collect()
    gc.callbacks.append(note)
    yield begun
    gc.callbacks.remove(note)


async def begin_at_once(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, *, naps_most: int) -> None:
    """Start the task: it looks in every long turn, and waits for a turn without other work so often at most."""
    monkeypatch.setattr(collections, "LOOK_EVERY_S", TURN_S)
    monkeypatch.setattr(collections, "_NAPS_MOST", naps_most)
    nursery.start_soon(collections.collect_in_turns)
    await trio.testing.wait_all_tasks_blocked()


async def test_they_are_done_when_due_and_not_in_the_turn_that_makes_objects(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, full_collections: list[float]
) -> None:
    nursery.start_soon(collections.collect_in_turns)
    await trio.testing.wait_all_tasks_blocked()
    start = trio.current_time()
    kept: list[list[int]] = []
    for _ in range(collections.DUE_AFTER + 5):
        kept.extend([0] for _ in range(1000))
        gc.collect(1)
    assert full_collections == []
    await trio.sleep(3.5 * collections.LOOK_EVERY_S)
    (at,) = full_collections
    assert at - start == pytest.approx(collections.LOOK_EVERY_S, abs=0.01)


async def test_they_wait_for_a_turn_without_other_work_but_not_for_ever(
    mock_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    full_collections: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await begin_at_once(nursery, monkeypatch, naps_most=10)
    kept: list[list[int]] = []
    for _ in range(collections.DUE_AFTER + 5):
        kept.extend([0] for _ in range(1000))
        gc.collect(1)
    turns = 0
    while not full_collections:
        turns += 1
        mock_clock.jump(TURN_S)
        await trio.lowlevel.checkpoint()
    assert turns >= 10


async def test_they_do_not_wait_while_many_objects_are_made(
    mock_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    full_collections: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await begin_at_once(nursery, monkeypatch, naps_most=1_000_000)
    for _ in range(collections.DUE_AFTER):
        gc.collect(1)
    kept = [[0] for _ in range(1000)]
    turns = 0
    while not full_collections and turns < 50:
        turns += 1
        mock_clock.jump(TURN_S)
        gc.collect(1)
        await trio.lowlevel.checkpoint()
    assert full_collections
    assert kept


async def test_many_objects_that_survive_a_collection_are_not_examined_again(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, full_collections: list[float]
) -> None:
    nursery.start_soon(collections.collect_in_turns)
    kept: list[list[list[int]]] = []

    async def make(count: int) -> int:
        """How many of so many objects that stay, and of what else there is, the next full collection looks at."""
        done = len(full_collections)
        kept.append([[0] for _ in range(count)])
        for _ in range(collections.DUE_AFTER + 1):
            gc.collect(1)
        await trio.sleep(1.5 * collections.LOOK_EVERY_S)
        assert len(full_collections) == done + 1
        return len(gc.get_objects())

    assert await make(collections.FROZEN_FROM) < collections.FROZEN_FROM
    assert await make(collections.FROZEN_FROM // 2) > collections.FROZEN_FROM // 2
    assert await make(collections.FROZEN_FROM) < collections.FROZEN_FROM
    frozen = gc.get_freeze_count()
    kept.clear()
    assert gc.get_freeze_count() <= frozen - 2.5 * collections.FROZEN_FROM, "they are freed without a collection"


async def test_the_next_one_is_done_when_there_are_a_quarter_more_objects(
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    full_collections: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collections, "FROZEN_FROM", sys.maxsize)
    nursery.start_soon(collections.collect_in_turns)
    kept: list[list[list[int]]] = []

    async def make(count: int) -> int:
        """How many full collections there were after so many further objects that stay."""
        kept.append([[0] for _ in range(count)])
        for _ in range(collections.DUE_AFTER + 1):
            gc.collect(1)
        await trio.sleep(1.5 * collections.LOOK_EVERY_S)
        return len(full_collections)

    assert await make(1000) == 1
    present = len(gc.get_objects(2))
    assert await make(present // 10) == 1
    assert await make(present // 4) == 2


async def test_objects_are_not_counted_again_before_as_many_younger_collections(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[float] = []
    real = gc.get_objects

    def count(generation: int) -> list[object]:
        counted.append(trio.current_time())
        return real(generation)

    def collect_younger(times: int) -> None:
        for _ in range(times):
            gc.collect(1)

    # Enough objects that those of this test do not matter, and none is excluded, however many other tests have left.
    monkeypatch.setattr(collections, "FROZEN_FROM", sys.maxsize)
    kept = [[0] for _ in range(1000)]
    gc.collect()
    nursery.start_soon(collections.collect_in_turns)
    monkeypatch.setattr(gc, "get_objects", count)
    collect_younger(collections.DUE_AFTER)
    await trio.sleep(1.5 * collections.LOOK_EVERY_S)
    assert len(counted) == 2, "before and after the first full collection"
    for _ in range(2):
        counted.clear()
        collect_younger(collections.DUE_AFTER)
        await trio.sleep(50 * collections.LOOK_EVERY_S)
        assert len(counted) == 1
    assert kept


async def test_those_that_are_not_due_are_not_done(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, full_collections: list[float]
) -> None:
    nursery.start_soon(collections.collect_in_turns)
    await trio.sleep(20 * collections.LOOK_EVERY_S)
    assert full_collections == []


async def test_pythons_own_rule_is_restored_at_the_end(autojump_clock: trio.testing.MockClock) -> None:
    with trio.move_on_after(5):
        await collections.collect_in_turns()
    assert gc.get_threshold() == (700, 10, 10)
