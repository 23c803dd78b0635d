"""Recovery beyond the recorded stores (docs/protocol/store.md §14).

Re-created topics, the torn last record, what a kill leaves unsynced.
"""

from __future__ import annotations

import errno
import gc
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from memory_disk import MemoryDisk
from trio.testing import wait_all_tasks_blocked

from triomq_protocol.record import encode
from triomq_protocol.record.batch import encode_batch_element
from triomq_protocol.record.check import LogRecord
from triomq_server.compiled import USED as COMPILED
from triomq_server.config import StoreConfig
from triomq_server.store import NewBatch, NewRecord, ReadStatus, open_store
from triomq_server.store.dispatch.dispatcher import Dispatcher
from triomq_server.store.last_run import last_run
from triomq_server.store.recovery import Recovery, looks_torn, written_bytes
from triomq_server.wire import to_the_end

ROOT = "/store"
FOREVER = 1 << 60
MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]


async def test_records_of_a_removed_topic_do_not_come_back(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, record_number: Any
) -> None:
    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        for n in range(20):
            store.append(make_record(n))
        await store.queue_removal.remove_topic("T")
        for n in range(100, 103):
            store.append(make_record(n))
        killed = memory_disk.after_kill()
    async with open_store(make_config(ROOT), disk=killed) as store:
        assert store.queue_bounds("T", 0) == (20, 23)
        assert [record_number(store.read("T", 0, n, 1, None).slices[0]) for n in range(20, 23)] == [100, 101, 102]


@pytest.mark.parametrize("written", range(5))
async def test_a_kill_amid_a_batch_leaves_its_first_records_and_no_gap(
    memory_disk: MemoryDisk,
    make_config: MakeConfig,
    make_record: MakeRecord,
    written: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Killed when so many records of the batch are complete, with all other bytes of the batch there."""
    write_mark = encode._write_mark
    left = iter(range(written))

    def write_or_end(buffer: Any, at: int, size: int, magic: int) -> None:
        if magic:
            next(left)  # ends the write, as if it were the process
        write_mark(buffer, at, size, magic)

    elements = [encode_batch_element(b"element %d" % n * 500, b"", 0) for n in range(5)]
    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        store.append(make_record(0))
        with monkeypatch.context() as patch:
            patch.setattr(encode, "_write_mark", write_or_end)
            store.append_batch(NewBatch("T", 0, b"".join(elements), b""))
        killed = memory_disk.after_kill()
    async with open_store(make_config(ROOT), disk=killed) as store:
        assert store.queue_bounds("T", 0) == (0, 1 + written)
        assert store.append(make_record(9)).queue_offset == 1 + written
    assert "lost to readers" not in caplog.text
    assert not any("damaged" in path for path in killed.files)


async def test_what_a_killed_process_wrote_is_flushed_by_the_next(
    make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """The next process finds it in memory, and must not take that for the disk."""
    disk = MemoryDisk()
    async with open_store(make_config(ROOT), disk=disk) as store:
        for n in range(50):
            store.append(make_record(n))
        killed = disk.after_kill()
    async with open_store(make_config(ROOT), disk=killed) as store:
        assert store.flushed_offset == 0
        await store.flush()
        assert store.flushed_offset == store.log_max_offset
        for chance in map(random.Random, range(5)):
            lost = killed.after_power_loss(chance)
            async with open_store(make_config(ROOT), disk=lost) as again:
                assert again.queue_bounds("T", 0) == (0, 50)


@pytest.mark.parametrize("missing", [1, 3, 4, 40, 70])
async def test_a_last_record_without_its_end_is_dropped(
    missing: int, memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """The checksum does not cover the properties; a copy of replicated bytes may have stopped in them."""
    async with (
        open_store(make_config(ROOT), disk=MemoryDisk()) as master,
        open_store(make_config(ROOT), disk=memory_disk, is_slave=True) as store,
    ):
        master.append(make_record(0))
        last = master.append(make_record(1, keys="k" * 80))
        store.append_raw(bytes(master.log_slice(0, FOREVER) or b""), 0)
        killed = memory_disk.after_kill()
    file = killed.open(f"{ROOT}/commitlog/{0:020d}")
    file.buffer[last.end_offset - missing : last.end_offset] = bytes(missing)
    async with open_store(make_config(ROOT), disk=killed) as store:
        # Fewer than four zeros may be the end of a property.
        kept = missing < 4
        assert store.log_max_offset == (last.end_offset if kept else last.physical_offset)
        assert store.recovery_report.stopped_by == ("nothing" if kept else "a record whose last part was never written")


async def kill_behind_zeros(
    disk: MemoryDisk, config: StoreConfig, make_record: MakeRecord, roles: tuple[str, ...]
) -> tuple[MemoryDisk, int]:
    """What a store has when it is killed after it took these roles; its last record's last property ends with zeros."""
    record = make_record(1)
    record.properties += b"\x02flag\x01" + (1).to_bytes(8, "little")
    async with (
        open_store(config, disk=MemoryDisk()) as other,
        open_store(config, disk=disk, is_slave=roles[0] == "slave") as store,
    ):
        for role in roles[1:]:
            await (store.promote() if role == "master" else store.demote())
        if store.is_slave:
            end = other.append(record).end_offset
            store.append_raw(bytes(other.log_slice(0, FOREVER) or b""), 0)
            store.dispatch()
        else:
            end = store.append(record).end_offset
        await store.flush()
        return disk.after_kill(), end


@pytest.mark.parametrize("roles", [("master",), ("slave", "master"), ("master", "slave", "master")])
@pytest.mark.parametrize("starts_as_slave", [False, True])
async def test_a_kill_takes_no_own_append_that_ends_with_zeros(
    memory_disk: MemoryDisk,
    make_config: MakeConfig,
    make_record: MakeRecord,
    roles: tuple[str, ...],
    starts_as_slave: bool,
) -> None:
    """Its first bytes are written last, so it is whole, and has been acknowledged."""
    config = make_config(ROOT)
    killed, end = await kill_behind_zeros(memory_disk, config, make_record, roles)
    async with open_store(config, disk=killed, is_slave=starts_as_slave) as store:
        assert store.log_max_offset == end
        assert store.queue_bounds("T", 0) == (0, 1)
        assert store.recovery_report.stopped_by == "nothing"


@pytest.mark.parametrize("roles", [("slave",), ("master", "slave")])
@pytest.mark.parametrize("starts_as_slave", [False, True])
async def test_a_copied_record_that_ends_with_zeros_is_fetched_again(
    memory_disk: MemoryDisk,
    make_config: MakeConfig,
    make_record: MakeRecord,
    roles: tuple[str, ...],
    starts_as_slave: bool,
) -> None:
    config = make_config(ROOT)
    killed, _ = await kill_behind_zeros(memory_disk, config, make_record, roles)
    async with open_store(config, disk=killed, is_slave=starts_as_slave) as store:
        assert store.log_max_offset == 0


async def test_a_role_that_cannot_be_noted_lets_the_next_start_take_care(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    config = make_config(ROOT)
    with monkeypatch.context() as patch:
        async with open_store(config, disk=memory_disk) as store:
            assert last_run(memory_disk, ROOT) == (True, True)
            patch.setattr(memory_disk, "write", refuse)
            await store.demote()
            assert last_run(memory_disk, ROOT) == (False, False)
            patch.undo()


def test_zeros_are_believed_when_something_follows() -> None:
    record = b"x" * 100 + bytes(10)
    assert looks_torn(record + bytes(50), 110, 160, record[80:])
    assert not looks_torn(record + struct.pack(">ii", 100, -626843481), 110, 118, record[80:])
    assert not looks_torn(record + bytes(50), 100, 160, record[60:100])
    assert not looks_torn(bytes(110), 110, 110, b"")


def test_written_bytes() -> None:
    for length in (0, 1, 65535, 65536, 65537, 200_000):
        for used in {0, min(1, length), length // 2, length}:
            data = b"x" * used + bytes(length - used)
            assert written_bytes(memoryview(data)) == used


async def test_missing_entries_far_back_are_made_good(
    memory_disk: MemoryDisk, clock: Any, make_config: MakeConfig, make_record: MakeRecord, caplog: Any
) -> None:
    """A queue that lost its end although the checkpoint vouched for it: dispatched again from where it ends."""
    config = make_config(ROOT, mapped_file_size_commit_log=3000)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        for n in range(60):
            clock.now += 1000
            store.append(make_record(n, queue_id=n % 2))
        store.notify_arrivals()
        await store.flush()
        await store.flusher.flush_queues(0, checkpoint=True)
        killed = memory_disk.after_kill()
    for name in killed.list(f"{ROOT}/consumequeue/T/0")[1:]:
        killed.remove(f"{ROOT}/consumequeue/T/0/{name}")
    async with open_store(config, disk=killed, clock=clock) as store:
        assert [store.queue_bounds("T", q) for q in range(2)] == [(0, 30), (0, 30)]
        for n in range(60):
            assert store.read("T", n % 2, n // 2, 1, None).status is ReadStatus.FOUND
            assert len(to_the_end(store.query("T", f"{n:032X}", 10, 0, FOREVER)).records) == 1
    assert "entries 10 to" in caplog.text


async def test_entries_whose_records_are_gone_become_blanks(
    memory_disk: MemoryDisk, clock: Any, make_config: MakeConfig, make_record: MakeRecord, caplog: Any
) -> None:
    config = make_config(ROOT, mapped_file_size_commit_log=3000)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        for n in range(40):
            store.append(make_record(n))
        store.commitlog.delete_first()
        store.commitlog.delete_first()
        start = next(n for n in range(40) if store.record_offset_at("T", 0, n) >= 6000)
        killed = memory_disk.after_kill()
    for name in killed.list(f"{ROOT}/consumequeue/T/0")[1:]:
        killed.remove(f"{ROOT}/consumequeue/T/0/{name}")
    async with open_store(config, disk=killed, clock=clock) as store:
        assert store.queue_bounds("T", 0) == (start, 40)
        assert all(store.read("T", 0, n, 1, None).status is ReadStatus.FOUND for n in range(start, 40))
    assert "left blank" in caplog.text


async def test_a_log_that_is_gone_takes_queues_and_index_along(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        store.append(make_record(0))
    memory_disk.remove_tree(f"{ROOT}/commitlog")
    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        assert store.queues() == []
        assert memory_disk.list(f"{ROOT}/consumequeue") == []
        assert store.append(make_record(0)).queue_offset == 0


async def test_a_file_prepared_ahead_is_no_loss(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, caplog: Any
) -> None:

    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        store.append(make_record(0))
        await wait_all_tasks_blocked()
        assert len(memory_disk.list(f"{ROOT}/commitlog")) == 2
        killed = memory_disk.after_kill()
    assert len(memory_disk.list(f"{ROOT}/commitlog")) == 1
    async with open_store(make_config(ROOT), disk=killed) as store:
        assert store.queue_bounds("T", 0) == (0, 1)
        assert store.recovery_report.deleted_files == ()
        assert store.recovery_report.dropped_bytes == 0
    assert "cut" not in caplog.text


async def test_a_start_in_order_dispatches_nothing_again(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the log ends there is no record; that is no reason to begin with the file's first one."""
    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        for n in range(20):
            store.append(make_record(n))
    dispatched: list[LogRecord] = []
    monkeypatch.setattr(Dispatcher, "dispatch", lambda _self, record, **_: dispatched.append(record))
    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        assert store.queue_bounds("T", 0) == (0, 20)
    assert not dispatched


@pytest.mark.skipif(not COMPILED, reason="no compiled modules in this installation")
async def test_a_start_after_a_kill_dispatches_what_lacks_an_entry(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last record that is in the index may have been killed between its keys."""
    config = make_config(ROOT, mapped_file_size_commit_log=3000)
    async with open_store(config, disk=memory_disk) as store:
        for n in range(20):
            store.append(make_record(n, queue_id=n % 3))
        store.notify_arrivals()
        for n in range(20, 23):
            store.append(make_record(n, queue_id=n % 3))
        killed = memory_disk.after_kill()
    dispatched: list[int] = []
    dispatch = Dispatcher.dispatch

    def watched(self: Dispatcher, record: LogRecord, *, fill: bool) -> None:
        dispatched.append(int(record.properties[-32:], 16))
        dispatch(self, record, fill=fill)

    monkeypatch.setattr(Dispatcher, "dispatch", watched)
    async with open_store(config, disk=killed) as store:
        assert [store.queue_bounds("T", queue)[1] for queue in range(3)] == [8, 8, 7]
        assert all(len(to_the_end(store.query("T", f"{n:032X}", 10, 0, FOREVER)).records) == 1 for n in range(23))
    assert dispatched == [19, 20, 21, 22]


async def test_a_start_looks_for_no_garbage(
    memory_disk: MemoryDisk, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled: list[bool] = []
    steps = Recovery.steps

    def watched(self: Recovery) -> Any:
        enabled.append(gc.isenabled())
        return steps(self)

    monkeypatch.setattr(Recovery, "steps", watched)
    async with open_store(make_config(ROOT), disk=memory_disk):
        enabled.append(gc.isenabled())
    assert enabled == [False, True]


async def test_the_first_messages_of_a_queue_reserve_one_page(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    config = make_config(ROOT, mapped_file_size_consume_queue=20 * 1000)
    async with open_store(config, disk=memory_disk) as store:
        for n in range(250):
            store.append(make_record(n))
            if n in (0, 203, 204):
                (segment,) = store.consume_queues.table["T", 0].segments.items
                assert segment.reserved == (4096 if n < 204 else segment.size)
    async with open_store(config, disk=memory_disk) as store:
        assert store.queue_bounds("T", 0) == (0, 250)
