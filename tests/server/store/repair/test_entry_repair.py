"""Damaged queue entries met by pulls, and what readers see of their repair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from memory_disk import MemoryDisk
from trio.testing import wait_all_tasks_blocked

from triomq_server.config import StoreConfig
from triomq_server.store import MessageStore, NewRecord, ReadStatus, open_store
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.store.entry_layout import ENTRY
from triomq_server.store.repair import entry_repair

MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]


class Everything:
    """A filter that lets everything pass."""

    def by_consume_queue(self, tags_code: int) -> bool:
        return True

    def by_commitlog(self, record: memoryview) -> bool:
        return True


def change_entry(store: MessageStore, number: int, offset: int = 0, size: int = 0, topic: str = "T") -> None:
    """Add to an entry's log offset and size."""
    buffer, at, _ = store.consume_queues.get(topic, 0).locate(number)
    before = ENTRY.unpack_from(buffer, at)
    ENTRY.pack_into(buffer, at, before[0] + offset, before[1] + size, before[2])


def numbers(store: MessageStore, at: int, most: int, record_number: Any, topic: str = "T") -> list[int]:
    result = store.read(topic, 0, at, most, None)
    joined = b"".join(result.slices)
    size = len(joined) // max(1, result.message_count)
    return [record_number(memoryview(joined)[n * size :]) for n in range(result.message_count)]


async def start(store: MessageStore, make_record: MakeRecord, count: int = 8) -> None:
    for n in range(count):
        store.append(make_record(n))
        store.append(make_record(n, topic="other"))
    store.notify_arrivals()
    await wait_all_tasks_blocked()


@pytest.mark.parametrize("matcher", [None, Everything()])
@pytest.mark.parametrize(("offset", "size"), [(1, 0), (0, 256), (0, -1), (1 << 40, 0), (-(1 << 50), 0)])
async def test_a_pull_ends_at_a_damaged_entry_until_it_is_repaired(
    offset: int,
    size: int,
    matcher: Everything | None,
    memory_disk: MemoryDisk,
    make_config: MakeConfig,
    make_record: MakeRecord,
    record_number: Any,
    caplog: Any,
) -> None:
    async with open_store(make_config("/s"), disk=memory_disk) as store:
        await start(store, make_record)
        arrivals: list[Any] = []
        store.arrival_listeners.append(arrivals.append)
        change_entry(store, 3, offset, size)
        before = store.read("T", 0, 0, 32, matcher)
        assert (before.status, before.next_offset, before.message_count) == (ReadStatus.FOUND, 3, 3)
        at_it = store.read("T", 0, 3, 32, matcher)
        assert (at_it.status, at_it.next_offset, at_it.slices) == (ReadStatus.OFFSET_OVERFLOW_ONE, 3, [])
        await wait_all_tasks_blocked()
        assert [(arrival.queue_id, arrival.next_offset) for arrival in arrivals] == [(0, 4)]
        assert numbers(store, 0, 32, record_number) == list(range(8))
        assert (store.entry_repair.rebuilt, store.entry_repair.blanked) == (1, 0)
    assert "entry 3 was damaged: built again" in caplog.text


async def test_an_entry_that_points_to_another_record_of_the_same_size_is_repaired(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, record_number: Any
) -> None:
    async with open_store(make_config("/s"), disk=memory_disk) as store:
        await start(store, make_record)
        queue = store.consume_queues.get("T", 0)
        change_entry(store, 3, queue.entry(5)[0] - queue.entry(3)[0])
        assert numbers(store, 0, 32, record_number) == [0, 1, 2]
        await wait_all_tasks_blocked()
        assert numbers(store, 0, 32, record_number) == list(range(8))


async def test_an_entry_without_a_sound_record_is_skipped(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, record_number: Any, caplog: Any
) -> None:
    async with open_store(make_config("/s"), disk=memory_disk) as store:
        await start(store, make_record, 40)
        queue = store.consume_queues.get("T", 0)
        for number in (3, 4, 20):
            offset = queue.entry(number)[0]
            segment = store.commitlog.segments.find(offset)
            segment.buffer[offset - segment.base + 5] ^= 1
        found, at, reads = [], 0, 0
        while at < 40:
            found += numbers(store, at, 32, record_number)
            at = store.read("T", 0, at, 32, None).next_offset
            await wait_all_tasks_blocked()
            reads += 1
        assert found == [n for n in range(40) if n not in (3, 4, 20)]
        assert reads < 12
        assert store.entry_repair.blanked == 3
    assert caplog.text.count("no sound record for it in the log; readers skip it") == 1


async def test_records_that_are_numbered_otherwise_are_served(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, record_number: Any
) -> None:
    """RocketMQ appends an entry to the queue's end whatever number the record has."""
    async with open_store(make_config("/s"), disk=memory_disk) as store:
        await start(store, make_record)
        queue = store.consume_queues.get("T", 0)
        queue.max_offset += 6
        for n in range(8, 11):
            assert store.append(make_record(n)).queue_offset == n + 6
        queue.max_offset -= 6
        assert numbers(store, 0, 32, record_number) == list(range(8))
        await wait_all_tasks_blocked()
        assert numbers(store, 0, 10, record_number) == list(range(10))
        assert numbers(store, 10, 10, record_number) == [10]


FURTHER = ["%LMQ%light", "copies"]


def start_with_further_entries(store: MessageStore, make_record: MakeRecord, count: int = 20) -> None:
    """Records of which every second has entries in two further queues, as RocketMQ makes them."""
    queues: list[ConsumeQueue] = [store.consume_queues.obtain(topic, 0) for topic in FURTHER]
    for n in range(count):
        record = make_record(n)
        if n % 2:
            places = ",".join(str(queue.max_offset) for queue in queues)
            text = f"INNER_MULTI_DISPATCH\x01{','.join(FURTHER)}\x02INNER_MULTI_QUEUE_OFFSET\x01{places}"
            record.properties += b"\x02" + text.encode()
        result = store.append(record)
        for queue in queues if n % 2 else ():
            queue.push(result.physical_offset, result.size_bytes, 0)


@pytest.mark.parametrize("topic", FURTHER)
async def test_entries_of_records_that_belong_to_another_queue_are_served_and_built_again(
    topic: str, memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, record_number: Any
) -> None:
    async with open_store(make_config("/s"), disk=memory_disk) as store:
        start_with_further_entries(store, make_record)
        await wait_all_tasks_blocked()
        assert numbers(store, 0, 32, record_number, topic) == list(range(1, 20, 2))
        change_entry(store, 3, 1, topic=topic)
        change_entry(store, 5, 2 * store.consume_queues.get(topic, 0).entry(5)[1], topic=topic)  # to the next but one
        for at in (3, 5):
            assert numbers(store, 0, 32, record_number, topic) == list(range(1, 2 * at, 2))
            await wait_all_tasks_blocked()
        assert numbers(store, 0, 32, record_number, topic) == list(range(1, 20, 2))
        assert store.read("T", 0, 0, 32, None).message_count == 10  # a file
        assert (store.entry_repair.rebuilt, store.entry_repair.blanked) == (2, 0)


@pytest.mark.parametrize("topic", FURTHER)
async def test_lost_files_of_a_queue_with_records_of_another_are_built_again(
    topic: str, memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, record_number: Any
) -> None:
    async with open_store(make_config("/s", mapped_file_size_consume_queue=100), disk=memory_disk) as store:
        start_with_further_entries(store, make_record, 40)
    damage = memory_disk.files[f"/s/consumequeue/{topic}/0/{100:020d}"]
    ENTRY.pack_into(damage.buffer, 20, 1, 1, 1)
    async with open_store(make_config("/s", mapped_file_size_consume_queue=100), disk=memory_disk) as store:
        found, at = [], 0
        while more := numbers(store, at, 32, record_number, topic):
            found += more
            at = len(found)
        assert found == list(range(1, 40, 2))
        assert store.entry_repair.rebuilt == store.entry_repair.blanked == 0


async def test_log_files_that_expire_during_a_search_do_not_end_the_task(
    memory_disk: MemoryDisk,
    make_config: MakeConfig,
    make_record: MakeRecord,
    record_number: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: Any,
) -> None:
    """The next pull has the entry searched again, in the files that are left."""
    monkeypatch.setattr(entry_repair, "_RECORDS_PER_STEP", 1)
    async with open_store(make_config("/s", mapped_file_size_commit_log=4096), disk=memory_disk) as store:
        for n in range(3):
            store.append(make_record(n))
            for other in range(60):
                store.append(make_record(other, topic="other"))
        change_entry(store, 1, offset=1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.entry_repair._repair, store.consume_queues.get("T", 0), 1)
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            for _ in range(2):
                store.commitlog.delete_first()
        assert numbers(store, 1, 1, record_number) == []
        await wait_all_tasks_blocked()
        assert numbers(store, 1, 32, record_number) == [1, 2]
