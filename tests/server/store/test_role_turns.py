"""A change of role takes the loop only for short turns, however much data has arrived, waits or is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from loop_lines import lines_of, lines_of_turns
from memory_disk import MemoryDisk

from triomq_server.compiled import USED as COMPILED
from triomq_server.store import MessageStore, open_store
from triomq_server.store.dispatch import dispatcher
from triomq_server.store.removed_queues import RemovedQueue

MakeConfig = Callable[..., Any]
MakeRecord = Callable[..., Any]

MOST_LINES = 150_000
"""Of one turn: some ten milliseconds."""
RECORDS = 20_000
QUEUES = 200
LARGE_FILES = {
    "mapped_file_size_commit_log": 1 << 24,
    "mapped_file_size_consume_queue": 20 * 1000,
    "max_index_num": 1 << 18,
}


def fill(store: MessageStore, make_record: MakeRecord) -> None:
    for n in range(RECORDS):
        store.append(make_record(n, queue_id=n % QUEUES, keys=f"k{n}"))
        if n % 1000 == 0:
            store.notify_arrivals()
    store.dispatcher.update_index()


def copy_log(source: MessageStore, target: MessageStore) -> None:
    """What was received has not been dispatched."""
    while (part := source.log_slice(target.log_max_offset, 1 << 20)) is not None:
        target.append_raw(part, target.log_max_offset)


@pytest.mark.parametrize("compiled", [False, True])
async def test_a_promotion_dispatches_in_turns(
    memory_disk: MemoryDisk,
    make_config: MakeConfig,
    make_record: MakeRecord,
    monkeypatch: pytest.MonkeyPatch,
    compiled: bool,
) -> None:
    """Lines of compiled code are not counted."""
    monkeypatch.setattr(dispatcher, "COMPILED", compiled and COMPILED)
    config = make_config("/store", **LARGE_FILES)
    async with (
        open_store(config, disk=memory_disk) as master,
        open_store(config, disk=MemoryDisk(), is_slave=True) as slave,
    ):
        fill(master, make_record)
        copy_log(master, slave)
        with lines_of_turns() as lines:
            await slave.promote()
        assert slave.queue_bounds("T", QUEUES - 1) == (0, RECORDS // QUEUES)
        assert slave.index is not None
        assert slave.index.files[-1].count == 2 * RECORDS + 1
        assert not slave.is_slave
    assert sum(lines) > (MOST_LINES // 2 if compiled else 2 * MOST_LINES)
    assert max(lines) < MOST_LINES


async def test_a_cancelled_promotion_has_changed_nothing(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    config = make_config("/store", **LARGE_FILES)
    async with (
        open_store(config, disk=memory_disk) as master,
        open_store(config, disk=MemoryDisk(), is_slave=True) as slave,
    ):
        fill(master, make_record)
        copy_log(master, slave)
        with trio.CancelScope() as scope:
            scope.cancel()
            await slave.promote()
        assert slave.is_slave
        assert 0 < slave.dispatched_offset < slave.log_max_offset == master.log_max_offset
        await slave.promote()
        assert slave.queue_bounds("T", QUEUES - 1) == (0, RECORDS // QUEUES)


class TurnsDisk(MemoryDisk):
    """Knows which files are written in the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.beside = False
        self.in_loop: list[str] = []

    async def run(self, chore: Callable[[], Any]) -> Any:
        def marked() -> Any:
            self.beside = True
            try:
                return chore()
            finally:
                self.beside = False

        return await super().run(marked)

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        if not self.beside:
            self.in_loop.append(path)
        super().write(path, data, sync=sync)


async def test_a_cut_takes_its_turns_and_writes_beside_the_loop(
    make_config: MakeConfig, make_record: MakeRecord
) -> None:
    disk = TurnsDisk()
    config = make_config("/store", **LARGE_FILES)
    async with open_store(config, disk=disk) as store:
        kept = store.append(make_record(0)).end_offset
        fill(store, make_record)
        end = store.log_max_offset
        removed = store.consume_queues.removed
        await removed.note_in_background([RemovedQueue("gone", n, 1, end) for n in range(100)])
        await store.demote()
        disk.in_loop.clear()
        readable: list[bool] = []

        async def look() -> None:
            while True:
                readable.append(store.read("T", 1, 0, 1, None) is not None)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            with lines_of_turns() as lines:
                assert await store.cut(kept) == end - kept
            nursery.cancel_scope.cancel()
        assert disk.in_loop == []
        assert {one.log_offset for one in removed.table.values()} == {kept}
        assert [store.queue_bounds("T", n)[1] for n in range(3)] == [1, 0, 0]
        assert store.index is not None
        assert store.index.files[-1].count == 2
        assert store.read("T", 0, 0, 9, None).message_count == 1  # type: ignore[union-attr]
        assert False in readable, "no pull may read an entry whose record is gone"
        killed = disk.after_kill()
    async with open_store(config, disk=killed) as store:
        assert store.log_max_offset == kept
    assert sum(lines) > 2 * MOST_LINES
    assert max(lines) < MOST_LINES


@pytest.mark.parametrize("waiting", [0, 5000])
async def test_a_demotion_indexes_in_turns_and_refuses_at_once(
    waiting: int, memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config("/store", **LARGE_FILES), disk=memory_disk) as store:
        many = " ".join(f"{n:x}" for n in range(5000))
        for n in range(waiting // 100):
            store.append(make_record(n, keys=many))
        with lines_of_turns() as lines:
            await store.demote()
        assert not store.writable
        assert not store.dispatcher.index_is_behind
        assert store.index is not None
        assert store.index.files == [] or store.index.files[-1].count > 1
    assert max(lines) < MOST_LINES


async def test_a_cut_of_a_long_queue_reads_one_entry_of_a_page(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config("/m", mapped_file_size_consume_queue=20 * 3000), disk=memory_disk) as store:
        ends = []
        for n in range(2500):
            store.append(make_record(n, size=8))
            ends.append(store.log_max_offset)
        queue = store.consume_queues.get("T", 0)
        for kept in (2300, 1837, 205, 204, 203, 1):
            assert lines_of(lambda kept=kept: queue.truncate(ends[kept - 1])) < 2500  # type: ignore[misc]
            assert (queue.max_offset, queue.max_physical_offset) == (kept, ends[kept - 1])
