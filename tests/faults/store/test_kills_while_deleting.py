"""SIGKILL at each step of a cut of the log, and of the deletion of expired files, on the memory disk.

A copy of the disk is made in front of each change of a file, and of each turn of a task. A store is opened on each of
them. A failure prints its seed, and the step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing
from memory_disk import MemoryDisk, MemoryFile

from triomq_protocol.record.view import RecordView
from triomq_server.config import FlushDiskType, StoreConfig
from triomq_server.store import AppendStatus, MessageStore, NewRecord, open_store
from triomq_server.wire import to_the_end

ROOT = "/store"
FOREVER = 1 << 60
HOUR_MS = 3_600_000
LATER = 1_000_000
"""The first number of the records that are stored after a kill."""
LATER_COUNT = 5

Stored = dict[tuple[int, int], "Place"]


class Place(NamedTuple):
    """A stored record: its number, and where it is in the log."""

    number: int
    log_offset: int


class Steps(trio.abc.Instrument):
    """Makes the copies."""

    def __init__(self, disk: MemoryDisk, patched: pytest.MonkeyPatch) -> None:
        self._disk = disk
        self.copies: list[tuple[str, MemoryDisk]] = []
        for owner, names in ((MemoryDisk, "create remove remove_tree write replace"), (MemoryFile, "zero reserve")):
            for name in names.split():
                patched.setattr(owner, name, self._watched(name, getattr(owner, name)))

    def _watched(self, name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(changing: Any, *args: Any, **more: Any) -> Any:
            if changing is self._disk or getattr(changing, "_disk", None) is self._disk:
                self.copies.append((f"{name} {args[0] if args else ''}", self._disk.after_kill()))
            return change(changing, *args, **more)

        return changed

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task of the store continues."""
        self.copies.append((task.name, self._disk.after_kill()))


@contextmanager
def stepping(disk: MemoryDisk) -> Iterator[list[tuple[str, MemoryDisk]]]:
    with pytest.MonkeyPatch.context() as patched:
        steps = Steps(disk, patched)
        trio.lowlevel.add_instrument(steps)
        try:
            yield steps.copies
        finally:
            trio.lowlevel.remove_instrument(steps)
    steps.copies.append(("the end", disk.after_kill()))


class Life:
    """Opens stores with small files, and knows what is in them."""

    def __init__(self, writer: ModuleType, seed: str) -> None:
        self._writer = writer
        self.chance = random.Random(seed)
        self.now_ms = 1_795_300_000_000

    def clock(self) -> int:
        return self.now_ms

    def open(self, disk: MemoryDisk, *, is_slave: bool = False) -> Any:
        config: StoreConfig = self._writer.config(ROOT)
        config.mapped_file_size_commit_log, config.mapped_file_size_consume_queue = 20_000, 400
        config.max_index_num, config.delete_when = 100, ""
        config.flush_disk_type = FlushDiskType.ASYNC_FLUSH
        return open_store(config, disk=disk, clock=self.clock, is_slave=is_slave)

    def append(self, store: MessageStore, numbers: range) -> None:
        for number in numbers:
            queue_id = self.chance.randrange(self._writer.QUEUES)
            body, properties = self._writer.body(number), self._writer.properties(number)
            record = NewRecord("T", queue_id, body, properties, uniq_key=f"{number:032X}", keys=f"k{number}")
            assert store.append(record).status is AppendStatus.PUT_OK
        store.notify_arrivals()

    def ends(self, store: MessageStore) -> list[int]:
        return [store.queue_bounds("T", queue_id)[1] for queue_id in range(self._writer.QUEUES)]

    def stored(self, store: MessageStore) -> Stored:
        """All that can be read, each with the right body, and found by its key."""
        found: Stored = {}
        for queue_id in range(self._writer.QUEUES):
            low, high = store.queue_bounds("T", queue_id)
            for number in range(low, high):
                result = store.read("T", queue_id, number, 1, None)
                assert result is not None
                (data,) = result.slices
                record = RecordView(bytes(data))
                assert record.queue_offset == number
                place = Place(int.from_bytes(record.body[:8], "big"), record.physical_offset)
                assert record.body == self._writer.body(place.number)
                assert len(to_the_end(store.query("T", f"k{place.number}", 10, 0, FOREVER)).records) == 1
                found[queue_id, number] = place
        return found

    async def goes_on(self, disk: MemoryDisk, left: Stored, ends: list[int]) -> None:
        """After a kill and another start: the numbers of new messages are behind all that have been given."""
        async with self.open(disk) as store:
            assert self.stored(store) == left
            self.append(store, range(LATER, LATER + LATER_COUNT))
            now = self.stored(store)
            assert len(now) == len(left) + LATER_COUNT
            assert all(number >= ends[queue_id] for queue_id, number in now.keys() - left.keys())


@pytest.mark.parametrize("seed", range(16))
async def test_a_cut_that_is_killed_is_ended_by_the_next_order(
    seed: int, autojump_clock: Any, writer: ModuleType
) -> None:
    """A start finds all that is in front of the place of the cut, and of the rest what is still in the log."""
    life, disk = Life(writer, f"cut {seed}"), MemoryDisk()
    chance = life.chance
    async with life.open(disk) as store:
        life.append(store, range(1, chance.randrange(20, 160)))
        for _ in range(chance.randrange(len(store.commitlog.segments.items))):
            store.commitlog.delete_first()
        await store.cleaner.follow_log_min()
        await store.flush()
        before = life.stored(store)
        at = 0 if seed % 4 == 0 else chance.choice(sorted(place.log_offset for place in before.values()))
        with stepping(disk) as copies:
            await store.cut(at)
        ends = life.ends(store)
    left = {key: place for key, place in before.items() if place.log_offset < at}
    for step, copy in copies:
        try:
            async with life.open(copy, is_slave=chance.random() < 0.5) as store:
                end = store.log_max_offset
                assert life.stored(store) == {key: place for key, place in before.items() if place.log_offset < end}
                if end > at:
                    await store.cut(at)
                assert life.stored(store) == left
                assert life.ends(store) == ends
            await life.goes_on(copy, left, ends)
        except BaseException as error:
            error.add_note(f"killed before: {step}")
            raise


@pytest.mark.parametrize("seed", range(4))
async def test_a_kill_while_expired_files_are_deleted_costs_nothing_else(
    seed: int, autojump_clock: Any, writer: ModuleType
) -> None:
    life = Life(writer, f"expiry {seed}")
    disk = MemoryDisk(now_ms=life.clock)
    async with life.open(disk) as store:
        expired = life.chance.randrange(40, 150)
        life.append(store, range(1, expired))
        await store.flush()
        life.now_ms += 80 * HOUR_MS
        life.append(store, range(expired, expired + life.chance.randrange(1, 60)))
        await store.flush()
        before, ends = life.stored(store), life.ends(store)
        store.cleaner.request_expiry()
        with stepping(disk) as copies:
            assert await store.cleaner.clean() > 0
    for step, copy in copies:
        try:
            async with life.open(copy, is_slave=life.chance.random() < 0.5) as store:
                begin = store.log_min_offset
                left = {key: place for key, place in before.items() if place.log_offset >= begin}
                assert life.stored(store) == left
                assert life.ends(store) == ends
                await store.cleaner.follow_log_min()
                assert life.stored(store) == left
            await life.goes_on(copy, left, ends)
        except BaseException as error:
            error.add_note(f"killed before: {step}")
            raise
