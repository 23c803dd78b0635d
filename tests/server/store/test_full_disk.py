"""A full disk: appends are refused, the store continues, and accepts appends when there is space again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import trio
from memory_disk import MemoryDisk

from triomq_protocol.record.batch import encode_batch_element
from triomq_server.config import StoreConfig
from triomq_server.store import AppendStatus, NewBatch, NewRecord, open_store
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.store.entry_layout import ENTRY_BYTES
from triomq_server.store.files.segments import Segments
from triomq_server.store.placement import put_entry
from triomq_server.wire import to_the_end

ROOT = "/store"
FOREVER = 1 << 60
MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]


@pytest.mark.parametrize("capacity_pages", range(5, 60, 3))
async def test_a_full_disk_is_answered_and_reads_continue(
    capacity_pages: int, autojump_clock: Any, make_config: MakeConfig, make_record: MakeRecord, record_number: Any
) -> None:
    disk = MemoryDisk(capacity_bytes=capacity_pages * 4096)
    config = make_config(ROOT, mapped_file_size_commit_log=16384, clean_file_forcibly_enable=False)
    stored: dict[int, list[int]] = {0: [], 1: [], 2: []}
    async with open_store(config, disk=disk) as store:
        for n in range(400):
            queue_id = n * 7 % 3
            if n % 10 == 9:
                element = encode_batch_element(make_record(n).body, b"")
                result = store.append_batch(NewBatch("T", queue_id, element * 3, b""))
                numbers = [n] * 3
            else:
                result = store.append(make_record(n, queue_id=queue_id))
                numbers = [n]
            assert result.status in (AppendStatus.PUT_OK, AppendStatus.SERVICE_NOT_AVAILABLE)
            if result.status is AppendStatus.PUT_OK:
                assert result.queue_offset == len(stored[queue_id])
                stored[queue_id] += numbers
            if n % 5 == 0:
                store.notify_arrivals()
        assert not store.writable
        for queue_id, numbers in stored.items():
            assert store.queue_bounds("T", queue_id) == (0, len(numbers))
            for n, number in enumerate(numbers):
                assert record_number(store.read("T", queue_id, n, 1, None).slices[0]) == number
        assert disk.unreserved_writes() == []
        disk.capacity_bytes *= 100
        await trio.sleep(10.5)
        assert store.writable
        assert store.append(make_record(1000)).status is AppendStatus.PUT_OK
        stored[0].append(1000)
        for number in {n for numbers in stored.values() for n in numbers if n % 10 != 9}:
            assert len(to_the_end(store.query("T", f"{number:032X}", 32, 0, FOREVER)).records) == 1
    assert disk.unreserved_writes() == []
    async with open_store(config, disk=disk) as store:
        assert store.recovery_report.clean
        assert {q: store.queue_bounds("T", q)[1] for q in stored} == {q: len(v) for q, v in stored.items()}


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EMFILE])
async def test_files_that_cannot_be_made_are_logged_now_and_then(
    number: int,
    autojump_clock: Any,
    make_config: MakeConfig,
    make_record: MakeRecord,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As with a quota, or too many open files: a look at the disk sees space."""
    disk = MemoryDisk()

    def refuse(path: str, *_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number), path)

    async with open_store(make_config(ROOT, clean_file_forcibly_enable=False), disk=disk) as store:
        with monkeypatch.context() as patched:
            patched.setattr(disk, "create", refuse)
            for n in range(100):
                store.append(make_record(n))
                store.notify_arrivals()
                await trio.sleep(1)
        lacking = "no space left for the store", "a file of the store cannot be made or extended"
        counts = [caplog.text.count(text) for text in (lacking if number == errno.EDQUOT else lacking[::-1])]
        assert 1 <= counts[0] <= 10
        assert counts[1] == 0
        assert 1 <= caplog.text.count("the store cannot grow") <= 10
        assert caplog.text.count("the index cannot grow") <= 1
        await trio.sleep(25)
        assert store.append(make_record(100)).status is AppendStatus.PUT_OK
        store.notify_arrivals()
        assert store.writable


async def test_a_disk_that_fills_up_costs_nothing_that_was_acknowledged(
    autojump_clock: Any, clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """By default only expired files go; sends are refused within seconds of the disk becoming too full."""
    disk = MemoryDisk(capacity_bytes=100 * 4096, now_ms=clock)
    config = make_config(ROOT, mapped_file_size_commit_log=16384, delete_when="")
    taken = 0
    async with open_store(config, disk=disk, clock=clock) as store:
        while store.append(make_record(taken)).status is AppendStatus.PUT_OK:
            taken += 1
            await trio.sleep(0.1)
        assert store.cleaner.used_ratios[0] > 0.9
        await trio.sleep(300)
        assert store.append(make_record(taken)).status is AppendStatus.SERVICE_NOT_AVAILABLE
        assert store.queue_bounds("T", 0) == (0, taken)
        clock.now += 73 * 3_600_000
        await trio.sleep(60)
        assert store.queue_bounds("T", 0)[0] > 0
        assert store.append(make_record(taken)).status is AppendStatus.PUT_OK


async def test_appends_are_refused_above_the_warning_level(
    autojump_clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    disk = MemoryDisk(capacity_bytes=100 * 4096)
    config = make_config(ROOT, disk_space_warning_level_ratio=0.90, clean_file_forcibly_enable=False)
    async with open_store(config, disk=disk) as store:
        assert store.append(make_record(0)).status is AppendStatus.PUT_OK
        disk.used_bytes += 80 * 4096
        await trio.sleep(12)
        assert store.cleaner.used_ratios[0] > 0.9
        assert store.append(make_record(1)).status is AppendStatus.SERVICE_NOT_AVAILABLE
        disk.used_bytes -= 80 * 4096
        await trio.sleep(12)
        assert store.append(make_record(1)).status is AppendStatus.PUT_OK


async def test_a_start_ends_a_cut_that_the_disk_has_refused(
    memory_disk: MemoryDisk, clock: Any, make_config: Any, make_record: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def refused(_queue: ConsumeQueue, _offset: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    config = make_config("/store")
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        for n in range(6):
            store.append(make_record(n))
        store.notify_arrivals()
        await store.demote()
        end = store.record_offset_at("T", 0, 4)
        log = bytes(store.log_slice(end, store.log_max_offset - end))
        with monkeypatch.context() as patch:
            patch.setattr(ConsumeQueue, "truncate", refused)
            with pytest.raises(OSError, match="Cannot allocate"):
                await store.cut(end)
        assert store.half_cut
        assert store.log_max_offset == end
        with pytest.raises(OSError, match="restart this broker"):
            store.append_raw(log, end)
        with pytest.raises(OSError, match="restart this broker"):
            await store.promote()
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        assert store.queue_bounds("T", 0) == (0, 4)
        assert store.append(make_record(4)).queue_offset == 4


async def test_a_start_ends_a_cut_in_which_a_log_file_could_not_be_deleted(
    memory_disk: MemoryDisk, clock: Any, make_config: Any, make_record: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The files behind it are gone: what a master sends must not be written into one of them."""
    config = make_config("/store", mapped_file_size_commit_log=3000)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        for n in range(60):
            store.append(make_record(n))
        store.notify_arrivals()
        await store.demote()
        files = [segment.path for segment in store.commitlog.segments.items]
        assert len(files) == 8
        end = store.log_max_offset
        remove = memory_disk.remove

        def refuse(path: str) -> None:
            if path == files[refused]:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
            remove(path)

        with monkeypatch.context() as patch:
            patch.setattr(memory_disk, "remove", refuse)
            for refused, log_end in ((7, end), (5, 6 * 3000)):
                with pytest.raises(PermissionError):
                    await store.cut(3000)
                assert store.log_max_offset == log_end
                assert store.half_cut is (log_end < end)
                assert [segment.path for segment in store.commitlog.segments.items] == files[: refused + 1]
                assert memory_disk.list("/store/commitlog") == [
                    path.rpartition("/")[2] for path in files[: refused + 1]
                ]
        with pytest.raises(OSError, match="restart this broker"):
            store.append_raw(b"more", store.log_max_offset)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        assert store.log_max_offset == 6 * 3000
        low, high = store.queue_bounds("T", 0)
        assert (low, high) == (0, store.append(make_record(0)).queue_offset)
        assert store.record_offset_at("T", 0, high - 1) < 6 * 3000


async def test_a_start_that_cannot_note_what_a_later_one_has_to_do_names_no_damage(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, monkeypatch: Any, caplog: Any
) -> None:
    config = make_config(ROOT)
    async with open_store(config, disk=memory_disk) as store:
        store.append(make_record(0))
    write = MemoryDisk.write

    def refuse_note(disk: MemoryDisk, path: str, data: bytes, **more: Any) -> None:
        if path.endswith("/queuesFrom"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        write(disk, path, data, **more)

    monkeypatch.setattr(MemoryDisk, "write", refuse_note)
    async with open_store(config, disk=memory_disk) as store:
        assert store.queue_bounds("T", 0) == (0, 1)
    lines = [line for line in caplog.messages if "cannot be noted" in line]
    assert len(lines) == 1
    assert "would have to be built again after a kill of this start" in lines[0]


def test_a_record_behind_a_gap_gets_its_entry_when_there_is_space_again() -> None:
    """The disk takes only a part of the blanks for the gap."""
    disk = MemoryDisk(capacity_bytes=4 * 4096)
    queue = ConsumeQueue("T", 0, Segments(disk, f"{ROOT}/consumequeue/T/0", 30_000 * ENTRY_BYTES))
    put_entry(queue, 0, 100, 0, 0, fill=True)
    for _ in range(2):
        with pytest.raises(OSError, match="no space"):
            put_entry(queue, 10**6, 100, 0, 8000, fill=True)
    disk.capacity_bytes *= 100
    assert put_entry(queue, 10**6, 100, 0, 8000, fill=True)
    assert queue.entry(8000) == (10**6, 100, 0)
    assert queue.max_physical_offset == 10**6 + 100
