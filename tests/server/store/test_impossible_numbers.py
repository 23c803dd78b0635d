"""Queue offsets and times that no record of the log can have, in damaged records: neither a start nor a slave fails, and no
queue grows without an end."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import Any

import pytest
from memory_disk import MemoryDisk

from triomq_protocol.names import SCHEDULE_TOPIC
from triomq_protocol.record.layout import QUEUE_OFFSET_AT, STORE_TIMESTAMP_AT
from triomq_server.config import StoreConfig
from triomq_server.store import NewRecord, open_store

ROOT = "/store"
MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]


@pytest.mark.parametrize("number", [4 + 1000, 1 << 40, (1 << 63) - 1])
@pytest.mark.parametrize("follows", [False, True])
async def test_a_damaged_number_costs_one_entry(
    follows: bool,
    number: int,
    memory_disk: MemoryDisk,
    clock: Any,
    make_config: MakeConfig,
    make_record: MakeRecord,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the start of a master and at a slave that copies the record."""
    config = make_config(ROOT, mapped_file_size_commit_log=6000)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        for n in range(8):
            store.append(make_record(n))
        log = bytearray(store.log_slice(0, store.log_max_offset))
        damaged = store.record_offset_at("T", 0, 4)
        store.notify_arrivals()
    struct.pack_into(">q", log, damaged + QUEUE_OFFSET_AT, number)
    disk = MemoryDisk()
    caplog.set_level(logging.ERROR)
    async with open_store(config, disk=disk, clock=clock, is_slave=True) as store:
        store.append_raw(bytes(log if follows else log[:damaged]), 0)
        while store.dispatch(1 << 20):
            pass
        if not follows:
            store.append_raw(bytes(log[damaged:]), damaged)
            disk = disk.after_kill()
    async with open_store(config, disk=disk, clock=clock) as store:
        assert store.queue_bounds("T", 0) == (0, 8)
        places = [store.record_offset_at("T", 0, n) for n in range(8)]
        assert places[:4] + places[5:] == [n * (damaged // 4) for n in range(8) if n != 4]
        assert store.read("T", 0, 5, 32, None).message_count == 3
    assert f"queue offset {number}" in caplog.text


@pytest.mark.parametrize("number", [2, 6, 8 + 1000, 1 << 40])
@pytest.mark.parametrize("is_killed", [False, True])
async def test_the_place_of_a_last_record_with_a_damaged_number_is_not_given_again(
    is_killed: bool,
    number: int,
    memory_disk: MemoryDisk,
    clock: Any,
    make_config: MakeConfig,
    make_record: MakeRecord,
) -> None:
    """A group that has consumed it would miss the message there."""
    config = make_config(ROOT)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        for n in range(8):
            store.append(make_record(n))
        damaged = store.record_offset_at("T", 0, 7)
        killed = memory_disk.after_kill()
    disk = killed if is_killed else memory_disk
    log = disk.files[f"{ROOT}/commitlog/{0:020d}"].buffer
    struct.pack_into(">q", log, damaged + QUEUE_OFFSET_AT, number)
    async with open_store(config, disk=disk, clock=clock) as store:
        following = store.append(make_record(8)).queue_offset
        assert following >= 8
        assert store.read("T", 0, 6, 1, None).message_count == 1
        assert store.read("T", 0, following, 1, None).message_count == 1


async def read_again(config: StoreConfig, clock: Any, log: bytes) -> list[tuple[str, int, int, int]]:
    """Queues, their bounds and the first entries' codes, at a slave that copies a log and at the start after its kill."""
    found = []
    disk = MemoryDisk()
    for copies in (True, False):
        async with open_store(config, disk=disk, clock=clock, is_slave=True) as store:
            if copies:
                store.append_raw(log, 0)
                while store.dispatch(1 << 20):
                    pass
            assert store.dispatched_offset == len(log)
            for topic, queue_id in store.queues():
                low, high = store.queue_bounds(topic, queue_id)
                entry = store.queue_entry(topic, queue_id, low)
                found.append((topic, low, high, 0 if entry is None else entry[2]))
            disk = disk.after_kill()
    return found


async def test_a_queue_cannot_begin_behind_all_files(
    clock: Any, make_config: MakeConfig, make_record: MakeRecord, memory_disk: MemoryDisk
) -> None:
    config = make_config(ROOT)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        for n in range(3):
            store.append(make_record(n))
        log = bytearray(store.log_slice(0, store.log_max_offset))
    struct.pack_into(">q", log, QUEUE_OFFSET_AT, (1 << 63) - 1)
    for topic, low, high, _ in await read_again(config, clock, bytes(log)):
        assert (topic, low, high) == ("T", 1, 3)


async def test_a_delayed_message_of_an_impossible_time_is_due(
    clock: Any, make_config: MakeConfig, make_record: MakeRecord, memory_disk: MemoryDisk
) -> None:
    config = make_config(ROOT)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        record = make_record(0, topic=SCHEDULE_TOPIC)
        record.properties = b"DELAY\x013\x02REAL_TOPIC\x01T\x02REAL_QID\x010"
        store.append(record)
        log = bytearray(store.log_slice(0, store.log_max_offset))
    struct.pack_into(">q", log, STORE_TIMESTAMP_AT, (1 << 63) - 1)
    for topic, low, high, due_ms in await read_again(config, clock, bytes(log)):
        assert (topic, low, high, due_ms) == (SCHEDULE_TOPIC, 0, 1, (1 << 63) - 1)
