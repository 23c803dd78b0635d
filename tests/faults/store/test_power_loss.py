"""Power loss and flipped bits on the memory disk, for a few hundred seeds. A failure prints its seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import trio
from memory_disk import MemoryDisk

from triomq_protocol.record.batch import encode_batch_element
from triomq_server.config import FlushDiskType, StoreConfig
from triomq_server.store import AppendStatus, MessageStore, NewBatch, NewRecord, open_store
from triomq_server.wire import to_the_end

ROOT = "/store"
Inspect = Callable[..., dict[tuple[int, int], int]]


class Writing:
    """One run of a store on the memory disk, and what was safe at each moment."""

    def __init__(self, writer: ModuleType, chance: random.Random) -> None:
        self._writer = writer
        self._chance = chance
        self.written: dict[tuple[int, int], int] = {}
        self.safe: dict[tuple[int, int], int] = {}
        self.number = 1
        self.now = 1_795_300_000_000

    def clock(self) -> int:
        self.now += self._chance.randrange(3)
        return self.now

    def config(self) -> StoreConfig:
        config: StoreConfig = self._writer.config(ROOT)
        config.mapped_file_size_commit_log = 20_000
        config.mapped_file_size_consume_queue = 400
        config.max_index_num = 100
        config.flush_disk_type = FlushDiskType.ASYNC_FLUSH
        return config

    async def go(self, store: MessageStore, steps: int) -> None:
        chance = self._chance
        for _ in range(steps):
            act = chance.random()
            if act < 0.85:
                self._append(store)
            elif act < 0.93:
                store.notify_arrivals()
            elif act < 0.98:
                sure = dict(self.written)
                await store.flush()
                self.safe = sure
            else:
                self.now += 5000
                await store.flusher.flush_queues(0, checkpoint=True)

    def _append(self, store: MessageStore) -> None:
        queue_id = self._chance.randrange(self._writer.QUEUES)
        n = self.number
        if self._chance.random() < 0.1:
            numbers = [n, n + 1, n + 2]
            elements = b"".join(encode_batch_element(self._writer.body(i), self._writer.properties(i)) for i in numbers)
            result = store.append_batch(NewBatch("T", queue_id, elements, b""))
        else:
            numbers = [n]
            record = NewRecord(
                "T", queue_id, self._writer.body(n), self._writer.properties(n), uniq_key=f"{n:032X}", keys=f"k{n}"
            )
            result = store.append(record)
        assert result.status is AppendStatus.PUT_OK
        self.number += len(numbers)
        for i, number in enumerate(numbers):
            self.written[queue_id, result.queue_offset + i] = number


@pytest.mark.parametrize("block", range(10))
async def test_power_loss(block: int, autojump_clock: Any, writer: ModuleType, inspect: Inspect) -> None:
    """After each power loss all that was flushed is stored, whichever other pages were written."""
    for seed in range(block * 20, block * 20 + 20):
        try:
            await one_life(seed, writer, inspect)
        except BaseException as e:
            e.add_note(f"seed {seed}")
            raise


async def one_life(seed: int, writer: ModuleType, inspect: Inspect) -> None:
    chance = random.Random(seed)
    life = Writing(writer, chance)
    disk = MemoryDisk(now_ms=lambda: life.now)
    for _ in range(4):
        async with open_store(life.config(), disk=disk, clock=life.clock) as store:
            found = inspect(store)
            lost = {k: n for k, n in life.safe.items() if found.get(k) != n}
            assert not lost
            strange = {k: n for k, n in found.items() if life.written.get(k) != n}
            assert not strange
            life.written = dict(found)
            life.safe = {}
            await store.flush()
            life.safe = dict(found)
            for number in found.values():
                records = to_the_end(store.query("T", f"k{number}", 10, 0, 1 << 60)).records
                assert len(records) == 1, f"key of {number}"
            await life.go(store, chance.randrange(10, 150))
            assert disk.unreserved_writes() == []
            how = chance.random()
            after = disk.after_power_loss(chance) if how < 0.7 else disk.after_kill() if how < 0.9 else None
        if after is None:
            life.safe = dict(life.written)
        else:
            disk = after
            if how >= 0.7:
                life.safe = dict(life.written)


@pytest.mark.parametrize("block", range(10))
async def test_flipped_bits(block: int, autojump_clock: Any, writer: ModuleType, inspect: Inspect) -> None:
    """A damaged record costs that record only; the report gives its offset, and its bytes are moved aside."""
    for seed in range(block * 30, block * 30 + 30):
        try:
            await one_flip(seed, writer, inspect)
        except BaseException as e:
            e.add_note(f"seed {seed}")
            raise


async def one_flip(seed: int, writer: ModuleType, inspect: Inspect) -> None:
    chance = random.Random(seed)
    life = Writing(writer, chance)
    disk = MemoryDisk(now_ms=lambda: life.now)
    config = life.config()
    config.mapped_file_size_commit_log = 60_000  # at most three files: all of them are checked after a clean stop, too
    offsets = []
    async with open_store(config, disk=disk, clock=life.clock) as store:
        while store.log_max_offset < 100_000:
            life._append(store)
        offset = 0
        while offset < store.log_max_offset:
            data = store.record_at(offset)
            if data is None:
                offset = 60_000
                continue
            offsets.append((offset, bytes(data)))
            offset += len(data)
        killed = disk.after_kill()
    clean = chance.random() < 0.5
    disk = disk if clean else killed
    n = chance.randrange(len(offsets))
    offset, data = offsets[n]
    body_end = 88 + int.from_bytes(data[84:88], "big")
    # Anywhere but in times, hosts, flags and properties, which no checksum covers.
    place = chance.choice([*range(12), *range(28, 36), *range(84, body_end + 1)])
    file = disk.open(f"{ROOT}/commitlog/{offset // 60_000 * 60_000:020d}")
    file.buffer[offset % 60_000 + place] ^= 1 << chance.randrange(8)
    async with open_store(config, disk=disk, clock=life.clock) as store:
        report = store.recovery_report
        assert report.clean == clean
        found = inspect(store, blanks_allowed=True)
        assert len(found) == len(offsets) - 1
        assert {k: v for k, v in life.written.items() if k in found} == found
        if n == len(offsets) - 1:
            assert report.log_end == offset, (report, place)
            assert report.dropped_bytes > 0
        else:
            assert report.damaged == ((offset, offset + len(data)),), (report, place)
            moved = disk.read(f"{ROOT}/triomq/damaged/{offset:020d}")
            assert sum((a ^ b).bit_count() for a, b in zip(moved, data, strict=True)) == 1
        life.written = dict(found)
        await life.go(store, 40)
        assert len(inspect(store, blanks_allowed=True)) == len(life.written)
        disk = disk.after_kill() if chance.random() < 0.5 else disk
        await trio.lowlevel.checkpoint()
    async with open_store(config, disk=disk, clock=life.clock) as store:
        assert store.recovery_report.damaged == ()
        assert inspect(store, blanks_allowed=True) == life.written
