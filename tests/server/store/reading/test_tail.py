"""The last record before an offset, and cutting a slave's log by an operator's order."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from memory_disk import MemoryDisk, NothingUnforced

from triomq_server.config import StoreConfig
from triomq_server.store import AppendStatus, NewRecord, StoreDamaged, open_store
from triomq_server.wire import to_the_end

FOREVER = 1 << 60
MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]


async def test_the_last_record_before_every_offset(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    chance = random.Random(3)
    async with open_store(make_config("/store", mapped_file_size_commit_log=3000), disk=memory_disk) as store:
        assert store.last_record_by(0) is None
        records = []
        for n in range(40):
            # Prepared records stand in the log and in no queue.
            flag = 4 if n % 5 == 0 else 0
            done = store.append(
                make_record(n, queue_id=n % 3, size=chance.randrange(8, 500), sys_flag=flag, topic=f"T{n % 2}")
            )
            records.append((done.physical_offset, done.size_bytes))
        for end in range(0, store.log_max_offset + 200, 7):
            whole = [record for record in records if sum(record) <= end]
            assert store.last_record_by(end) == (whole[-1] if whole else None), end


async def test_only_unqueued_records(memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord) -> None:
    async with open_store(make_config("/store"), disk=memory_disk) as store:
        done = [store.append(make_record(n, sys_flag=4)) for n in range(3)]
        assert store.last_record_by(store.log_max_offset) == (done[2].physical_offset, done[2].size_bytes)
        assert store.last_record_by(done[1].end_offset - 1) == (done[0].physical_offset, done[0].size_bytes)


@pytest.mark.parametrize("keep", [0, 1, 17, 29, 30])
async def test_a_cut_log_is_as_if_nothing_had_followed(
    keep: int, memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    config = make_config("/store", mapped_file_size_commit_log=3000)
    async with open_store(config, disk=memory_disk) as store:
        ends = [0, *(store.append(make_record(n, queue_id=n % 2, keys=f"k{n}")).end_offset for n in range(30))]
        store.notify_arrivals()
        await store.flush()
        end = store.log_max_offset
        await store.demote()
        assert await store.cut(ends[keep]) == end - ends[keep]
        assert store.log_max_offset == store.dispatched_offset == ends[keep]
        assert store.flushed_offset <= ends[keep]
        assert [store.queue_bounds("T", q)[1] for q in range(2)] == [(keep + 1) // 2, keep // 2]
        for n in range(30):
            assert len(to_the_end(store.query("T", f"k{n}", 9, 0, FOREVER)).records) == (n < keep)
        await store.promote()
        again = store.append(make_record(99, queue_id=keep % 2, keys="again"))
        assert (again.status, again.queue_offset) == (AppendStatus.PUT_OK, keep // 2)
        store.notify_arrivals()
        assert len(to_the_end(store.query("T", "again", 9, 0, FOREVER)).records) == 1
        log_end = store.log_max_offset
    async with open_store(config, disk=memory_disk) as store:
        assert store.recovery_report.clean
        assert store.log_max_offset == log_end


async def test_foreign_bytes_are_not_dropped_for_a_promotion(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    slave_disk = MemoryDisk()
    async with open_store(make_config("/store"), disk=memory_disk) as master:
        whole = master.append(make_record(0)).end_offset
        async with open_store(make_config("/store"), disk=slave_disk, is_slave=True) as slave:
            slave.append_raw(master.log_slice(0, whole), 0)
            slave.append_raw(b"whatever this is", whole)
            with pytest.raises(StoreDamaged, match=f"at offset {whole}: 16 bytes would be lost"):
                await slave.promote()
            assert slave.log_max_offset == whole + 16
            assert slave.is_slave
            await slave.cut(whole)
            await slave.promote()
            assert slave.append(make_record(1)).physical_offset == whole


async def test_a_descriptor_reads_the_file_behind_the_map(
    tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord, memory_disk: MemoryDisk
) -> None:
    async with open_store(make_config(tmp_path / "store", mapped_file_size_commit_log=3000)) as store:
        for n in range(20):
            end = store.append(make_record(n)).end_offset
        descriptor = store.open_log_file(end - 10)
        try:
            assert os.pread(descriptor, 10, (end - 10) % 3000) == bytes(store.log_slice(end - 10, 10))
        finally:
            os.close(descriptor)
        assert store.open_log_file(end + 3000) is None
    async with open_store(make_config("/store"), disk=memory_disk) as store:
        store.append(make_record(0))
        assert store.open_log_file(0) is None


async def test_the_index_of_a_log_that_was_cut_is_built_again_after_a_power_failure(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    """A full file is on the disk as it was before the cut, and hides what came in place of that."""
    config = make_config("/store", max_index_num=11, flush_interval_consume_queue=3_600_000)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        ends = [0]
        for n in range(23):
            clock.now += 10_000
            ends.append(store.append(make_record(n, keys=f"old{n}")).end_offset)
        store.notify_arrivals()
        await store.flusher.flush_everything()
        assert len(store.index.files) > 2
        await store.demote()
        await store.cut(ends[8])
        await store.promote()
        for n in range(8, 30):
            clock.now += 10_000
            store.append(make_record(n, keys=f"new{n}"))
        store.notify_arrivals()
        await store.flush()
        failed = memory_disk.after_power_loss(NothingUnforced())
    async with open_store(config, disk=failed, clock=clock) as store:
        found = [len(to_the_end(store.query("T", f"new{n}", 9, 0, FOREVER)).records) for n in range(8, 30)]
        assert found == [1] * 22
        assert [len(to_the_end(store.query("T", f"old{n}", 9, 0, FOREVER)).records) for n in range(8)] == [1] * 8


async def test_the_checkpoint_goes_back_before_a_log_is_cut(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    """It covers records that are dropped, and would cover those that are stored in their place."""
    config = make_config("/store", flush_interval_consume_queue=3_600_000)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        appended = []
        for n in range(4):
            clock.now += 10_000
            appended.append(store.append(make_record(n)))
        store.notify_arrivals()
        await store.flusher.flush_everything()
        await store.demote()
        at_the_cut = []
        truncate = store.commitlog.truncate

        def truncate_and_look(offset: int) -> Any:
            at_the_cut.append(struct.unpack_from(">2q", memory_disk.read("/store/checkpoint")))
            return truncate(offset)

        store.commitlog.truncate = truncate_and_look
        await store.cut(appended[1].end_offset)
        last = appended[1].store_timestamp
        assert at_the_cut == [(last, last)]
        assert store.commitlog.store_timestamp == last
        await store.flush()
        assert struct.unpack_from(">q", memory_disk.read("/store/checkpoint")) == (last,)
