"""Pulls: statuses, limits, filters, and that the short way answers like the long one (docs/protocol/store.md §15)."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from memory_disk import MemoryDisk

from triomq_server.config import StoreConfig
from triomq_server.disk import RealDisk
from triomq_server.store import NewRecord, ReadStatus, open_store
from triomq_server.store.entry_layout import BLANK_SIZE, ENTRY
from triomq_server.store.reading import queue_reads
from triomq_server.store.reading.queue_reads import read_queue

ROOT = "/store"
FOREVER = 1 << 60
MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]


@attrs.frozen
class Match:
    """Matches by tags code, then by record."""

    code: Callable[[int], bool] = lambda code: True
    record: Callable[[memoryview], bool] = lambda record: True

    def by_consume_queue(self, tags_code: int) -> bool:
        return self.code(tags_code)

    def by_commitlog(self, record: memoryview) -> bool:
        return self.record(record)


async def test_statuses(memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord) -> None:
    async with open_store(make_config(ROOT), disk=memory_disk) as store:

        def outcome(offset: int, queue_id: int = 0) -> tuple[ReadStatus, int, int, int]:
            r = store.read("T", queue_id, offset, 32, None)
            return r.status, r.next_offset, r.min_offset, r.max_offset

        assert outcome(7) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        for n in range(5):
            store.append(make_record(n))
        assert outcome(7, queue_id=9) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        assert outcome(0) == (ReadStatus.FOUND, 5, 0, 5)
        assert outcome(4) == (ReadStatus.FOUND, 5, 0, 5)
        assert outcome(5) == (ReadStatus.OFFSET_OVERFLOW_ONE, 5, 0, 5)
        assert outcome(6) == (ReadStatus.OFFSET_OVERFLOW_BADLY, 5, 0, 5)
        assert outcome(-1) == (ReadStatus.OFFSET_TOO_SMALL, 0, 0, 5)
        store.set_flag(1)
        assert store.read("T", 0, 0, 32, None) is None
        assert not store.readable


@pytest.mark.parametrize(("check_in_slave", "corrected"), [(False, False), (True, True)])
async def test_a_slave_does_not_correct_offsets(
    check_in_slave: bool, corrected: bool, memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        for n in range(5):
            store.append(make_record(n))
    config = make_config(ROOT, offset_check_in_slave=check_in_slave)
    async with open_store(config, disk=memory_disk, is_slave=True) as store:
        assert store.read("T", 0, 77, 32, None).next_offset == (5 if corrected else 77)
        assert store.read("T", 0, -3, 32, None).next_offset == (0 if corrected else -3)
        assert store.read("T", 1, 3, 32, None).next_offset == (0 if corrected else 3)


async def test_counts_and_bytes_in_memory_and_on_disk(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    config = make_config(ROOT, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=2000)
    async with open_store(config, disk=memory_disk) as store:
        for n in range(60):
            store.append(make_record(n, size=100))
        size = store.append(make_record(60, size=100)).size_bytes

        def count(offset: int, most: int, memory_bytes: int) -> tuple[int, bool]:
            config.in_memory_limit_bytes = memory_bytes
            r = store.read("T", 0, offset, most, None)
            assert r.bytes_total == r.message_count * size == sum(map(len, r.slices))
            assert r.next_offset == offset + r.message_count
            return r.message_count, r.suggest_slave

        assert count(0, 1000, FOREVER) == (32, False)
        assert count(0, 5, FOREVER) == (5, False)
        assert count(0, 0, FOREVER) == (1, False)
        assert count(50, 32, FOREVER) == (11, False)
        assert count(0, 32, 0) == (8, True)
        assert count(0, 3, 0) == (3, True)
        # 20 records old, the others not: eight of the old ones; from the border on they count as in memory.
        assert count(0, 32, 41 * size) == (8, True)
        assert count(20, 32, 41 * size) == (32, False)
        assert count(15, 32, 41 * size) == (32, False)
    config.max_transfer_bytes_on_message_in_memory = 10 * size
    config.max_transfer_bytes_on_message_in_disk = 2 * size - 1
    async with open_store(config, disk=memory_disk) as store:
        assert count(0, 32, FOREVER) == (10, False)
        assert count(0, 32, 0) == (1, True)


async def test_one_record_is_given_whatever_its_size(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    config = make_config(ROOT, mapped_file_size_commit_log=1 << 20)
    async with open_store(config, disk=memory_disk) as store:
        store.append(make_record(0, size=300_000))
        store.append(make_record(1, size=10))
        result = store.read("T", 0, 0, 32, None)
        assert (result.message_count, result.next_offset) == (1, 1)


async def test_neighbours_in_the_log_are_one_slice(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        for n, queue_id in enumerate([0, 0, 1, 0, 1, 0, 0]):
            store.append(make_record(n, queue_id=queue_id))
        for matcher in (None, Match()):
            result = store.read("T", 0, 0, 32, matcher)
            assert result.message_count == 5
            assert len(result.slices) == 3


async def test_filters(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, record_number: Any
) -> None:
    async with open_store(make_config(ROOT, mapped_file_size_consume_queue=20000), disk=memory_disk) as store:
        for n in range(40):
            store.append(make_record(n, tags="even" if n % 2 == 0 else "odd", size=20))
        from triomq_protocol.filters.tags import java_hash

        even = java_hash("even")
        result = store.read("T", 0, 1, 3, Match(code=lambda code: code == even))
        assert [record_number(s) for s in result.slices] == [2, 4, 6]
        assert (result.status, result.next_offset) == (ReadStatus.FOUND, 7)
        result = store.read("T", 0, 1, 3, Match(code=lambda code: False))
        assert (result.status, result.next_offset, result.slices) == (ReadStatus.NO_MATCHED_MESSAGE, 40, [])
        result = store.read("T", 0, 0, 32, Match(record=lambda r: record_number(r) >= 38))
        assert (result.message_count, result.next_offset) == (2, 40)


async def test_a_scan_without_matches_ends_after_a_while(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    config = make_config(ROOT, mapped_file_size_consume_queue=60_000, mapped_file_size_commit_log=1 << 20)
    async with open_store(config, disk=memory_disk) as store:
        for n in range(1000):
            store.append(make_record(n, size=8))
        result = store.read("T", 0, 0, 32, Match(code=lambda code: False))
        assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 800)


@pytest.mark.parametrize("wanted", [frozenset[int](), frozenset({1, 100})])
async def test_a_slow_filter_ends_a_pull_early(
    memory_disk: MemoryDisk,
    make_config: MakeConfig,
    make_record: MakeRecord,
    record_number: Any,
    wanted: frozenset[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_reads, "FILTER_TURN_S", 0.01)
    seconds = 0.0

    def slow(record: memoryview) -> bool:
        nonlocal seconds
        seconds += 0.003
        return record_number(record) in wanted

    config = make_config(ROOT, mapped_file_size_consume_queue=60_000, mapped_file_size_commit_log=1 << 20)
    async with open_store(config, disk=memory_disk) as store:
        for n in range(200):
            store.append(make_record(n, size=8))
        found, offset, pulls = [], 0, 0
        while offset < 200:
            result = read_queue(
                config,
                store.commitlog,
                store.consume_queues.get("T", 0),
                offset,
                32,
                Match(record=slow),
                correct=True,
                damaged=pytest.fail,
                now=lambda: seconds,
            )
            found += [record_number(one) for one in result.slices]
            assert result.status is (ReadStatus.FOUND if result.slices else ReadStatus.NO_MATCHED_MESSAGE)
            assert 0 < result.next_offset - offset <= 8
            offset, pulls = result.next_offset, pulls + 1
    assert found == sorted(wanted)
    assert seconds == pytest.approx(200 * 0.003), "each record is looked at once"
    assert pulls >= 25


async def test_reading_ends_with_the_queue_file(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        for n in range(25):
            store.append(make_record(n, size=20))
        assert [store.read("T", 0, n, 32, None).next_offset for n in (0, 9, 10, 20)] == [10, 10, 20, 25]


async def test_expired_records_are_skipped_file_by_file(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    config = make_config(
        ROOT, mapped_file_size_commit_log=2000, mapped_file_size_consume_queue=20_000, file_reserved_time=1
    )
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        for n in range(30):
            store.append(make_record(n))
        await store.flush()
        queue = store.consume_queues.get("T", 0)
        first_kept = next(n for n in range(30) if queue.entry(n)[0] >= 4000)
        store.commitlog.delete_first()
        store.commitlog.delete_first()
        assert store.log_min_offset == 4000
        assert store.record_at(0) is None
        result = store.read("T", 0, 0, 32, None)
        assert (result.status, result.message_count) == (ReadStatus.FOUND, 30 - first_kept)
        queue.max_offset = first_kept  # only expired entries left
        queue.position = first_kept * 20
        result = store.read("T", 0, 0, 32, None)
        assert (result.status, result.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVING, first_kept)


@pytest.mark.parametrize("seed", range(30))
async def test_short_and_long_way_agree(
    seed: int, make_config: MakeConfig, make_record: MakeRecord, clock: Any, record_number: Any
) -> None:
    chance = random.Random(seed)
    config = make_config(
        ROOT,
        mapped_file_size_commit_log=chance.choice([3000, 20_000, 65536]),
        max_transfer_bytes_on_message_in_memory=chance.choice([500, 5000, 262144]),
        max_transfer_bytes_on_message_in_disk=chance.choice([300, 3000, 65536]),
    )
    async with open_store(config, disk=MemoryDisk(), clock=clock) as store:
        expected: dict[int, list[int]] = {0: [], 1: []}
        for n in range(chance.randrange(1, 120)):
            queue_id = int(chance.random() < 0.3)
            store.append(make_record(n, queue_id=queue_id, size=chance.randrange(8, 400)))
            expected[queue_id].append(n)
        for _ in range(60):
            queue_id = chance.randrange(2)
            offset = chance.randrange(len(expected[queue_id]) + 2)
            most = chance.randrange(40)
            config.in_memory_limit_bytes = chance.choice([0, chance.randrange(store.log_max_offset + 1), FOREVER])
            one = store.read("T", queue_id, offset, most, None)
            other = store.read("T", queue_id, offset, most, Match())
            assert (b"".join(one.slices), one.slices) == (b"".join(other.slices), other.slices)
            assert {f: getattr(one, f) for f in one.__struct_fields__} == {
                f: getattr(other, f) for f in other.__struct_fields__
            }
            if one.slices:
                first = record_number(one.slices[0])
                assert first == expected[queue_id][offset]


@pytest.mark.parametrize("real", [False, True])
async def test_slices_stay_valid_after_their_file_and_store_are_closed(
    real: bool,
    memory_disk: MemoryDisk,
    tmp_path: Path,
    make_config: MakeConfig,
    make_record: MakeRecord,
    record_number: Any,
) -> None:
    disk = RealDisk() if real else memory_disk
    config = make_config(tmp_path if real else ROOT, mapped_file_size_commit_log=1000)
    held: list[memoryview] = []
    async with open_store(config, disk=disk) as store:
        for n in range(20):
            store.append(make_record(n))
        held += [store.read("T", 0, n, 1, None).slices[0] for n in range(20)]
        held.append(store.log_slice(0, 500))
        store.commitlog.delete_first()
    assert [record_number(view) for view in held] == [*range(20), 0]


async def test_log_slices_do_not_cross_files(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(ROOT, mapped_file_size_commit_log=1000), disk=memory_disk) as store:
        for n in range(20):
            store.append(make_record(n))
        copy = b""
        while (part := store.log_slice(len(copy), 300)) is not None:
            assert len(copy) // 1000 == (len(copy) + len(part) - 1) // 1000
            copy += part
        assert len(copy) == store.log_max_offset
        assert store.log_slice(store.log_max_offset, 10) is None
        assert store.log_slice(-1, 10) is None
        assert store.log_slice(0, 0) is None


async def test_times(memory_disk: MemoryDisk, clock: Any, make_config: MakeConfig, make_record: MakeRecord) -> None:
    config = make_config(ROOT)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        start = clock.now
        assert store.earliest_time() == -1
        assert store.earliest_time("T", 0) == -1
        assert store.offset_by_time("T", 0, start) == 0
        for n in range(35):
            clock.now = start + n * 10
            store.append(make_record(n, size=20))
        assert store.earliest_time() == store.earliest_time("T", 0) == start
        assert store.store_time_at("T", 0, 7) == start + 70
        assert store.store_time_at("T", 0, 35) == -1
        asked = {-100: 0, 0: 0, 70: 7, 73: 7, 75: 7, 76: 8, 340: 34, 5000: 34, 100: 10, 200: 20}
        assert {t: store.offset_by_time("T", 0, start + t) for t in asked} == asked
        config.in_memory_limit_bytes = store.log_max_offset
        assert store.in_memory(0)
        config.in_memory_limit_bytes -= 1
        assert not store.in_memory(0)


@pytest.mark.parametrize("compat", ["safe", "4.9"])
@pytest.mark.parametrize("blanks", [{17}, {0}, {34}, set(range(9, 30)), set(range(20)), set(range(15, 35))])
async def test_times_of_a_queue_with_blank_entries(
    memory_disk: MemoryDisk, clock: Any, make_config: MakeConfig, make_record: MakeRecord, blanks: set[int], compat: str
) -> None:
    """The message nearest to each time is found, wherever entries have lost their records."""
    config = make_config(ROOT, compat=compat, mapped_file_size_consume_queue=20 * 300)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        start = clock.now
        for n in range(35):
            clock.now = start + n * 10
            store.append(make_record(n, size=20))
        queue = store.consume_queues.get("T", 0)
        for n in blanks:
            queue.rewrite(n, queue.entry(n)[0], BLANK_SIZE, 0)
        left = [n for n in range(35) if n not in blanks]
        for time_ms in range(-10, 360):
            wanted = min(left, key=lambda n: (abs(n * 10 - time_ms), n))
            assert store.offset_by_time("T", 0, start + time_ms) == wanted
        for n in left:
            queue.rewrite(n, queue.entry(n)[0], BLANK_SIZE, 0)
        assert store.offset_by_time("T", 0, start + 100) == 0


async def test_times_where_a_queues_file_ends_with_blank_entries(
    memory_disk: MemoryDisk, clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    config = make_config(ROOT)
    per_file = config.mapped_file_size_consume_queue // 20
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        start = clock.now
        for n in range(2 * per_file + 5):
            clock.now = start + n * 10
            store.append(make_record(n, size=20))
        queue = store.consume_queues.get("T", 0)
        for n in range(per_file - 3, per_file):
            queue.rewrite(n, queue.entry(n)[0], BLANK_SIZE, 0)
        asked = [0, per_file // 2, per_file - 4, per_file, per_file + 1, 2 * per_file + 4]
        assert [store.offset_by_time("T", 0, start + n * 10) for n in asked] == asked


async def test_many_blanks_in_a_row_are_not_looked_at_one_by_one(
    memory_disk: MemoryDisk, clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """A lost file of the log may leave millions, and a search runs on the loop."""
    config = make_config(ROOT, mapped_file_size_consume_queue=20 * 50_000)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        store.append(make_record(0, size=20))
        queue = store.consume_queues.get("T", 0)
        queue.fill_to(420_000)
        clock.now += 10
        store.append(make_record(1, size=20))
        search, one_by_one = [], []
        for _ in range(5):
            begun = time.thread_time()
            assert store.offset_by_time("T", 0, clock.now) == 420_000
            searched = time.thread_time()
            for segment in queue.segments.items:
                deque(ENTRY.iter_unpack(segment.buffer[: segment.position]), maxlen=0)
            search.append(searched - begun)
            one_by_one.append(time.thread_time() - searched)
        assert min(search) < min(one_by_one) / 2


async def test_entries_out_of_order_are_still_followed_one_by_one(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, record_number: Any
) -> None:
    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        for n in range(6):
            store.append(make_record(n))
        queue = store.consume_queues.get("T", 0)
        queue.numbered = False  # else these entries would count as damaged
        entries = [queue.entry(n) for n in range(6)]
        for entry in (entries[1], entries[0], entries[0], entries[2]):
            queue.push(*entry)
        result = store.read("T", 0, 6, 32, None)
        joined = b"".join(result.slices)
        size = entries[0][1]
        numbers = [record_number(memoryview(joined)[at:]) for at in range(0, len(joined), size)]
        assert numbers == [1, 0, 0, 2]
        queue.push(*entries[0])
        queue.push(10**6, 100, 0)  # beyond the log, between two good ones
        queue.push(*entries[1])
        result = store.read("T", 0, 10, 32, None)
        assert (result.message_count, result.bytes_total) == (1, size)
        assert result == store.read("T", 0, 10, 32, Match())
