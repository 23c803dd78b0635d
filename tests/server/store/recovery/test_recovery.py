"""Recovery beyond the recorded stores (docs/protocol/store.md §14).

Re-created topics, the torn last record, what a kill leaves unsynced.
"""

from __future__ import annotations

import errno
import gc
import random
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from memory_disk import MemoryDisk, MemoryFile, NothingUnforced
from trio.testing import wait_all_tasks_blocked

from triomq_protocol.record import encode
from triomq_protocol.record.batch import encode_batch_element
from triomq_protocol.record.check import LogRecord
from triomq_server.compiled import USED as COMPILED
from triomq_server.config import StoreConfig
from triomq_server.store import MessageStore, NewBatch, NewRecord, ReadStatus, StoreDamaged, open_store
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.store.dispatch.dispatcher import Dispatcher
from triomq_server.store.files.checkpoint import Checkpoint
from triomq_server.store.recovery.log_check import looks_torn
from triomq_server.store.recovery.recovery import Recovery
from triomq_server.store.repair.damage import written_bytes
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


@pytest.mark.parametrize("ending", ["kill", "power failure"])
async def test_the_first_message_after_a_removal_is_not_stored_before_the_end(
    ending: str,
    memory_disk: MemoryDisk,
    make_config: MakeConfig,
    make_record: MakeRecord,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The queue's new file is there, but not the entries in it, nor the blanks in front of them."""
    left: list[MemoryDisk] = []
    create = MemoryDisk.create

    def then_end(disk: MemoryDisk, *arguments: Any, **more: Any) -> Any:
        file = create(disk, *arguments, **more)
        left.append(disk.after_kill() if ending == "kill" else disk.after_power_loss(NothingUnforced()))
        return file

    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        for n in range(26):
            store.append(make_record(n))
        await store.queue_removal.remove_topic("T")
        await store.flush()
        with monkeypatch.context() as patch:
            patch.setattr(MemoryDisk, "create", then_end)
            store.append(make_record(26))
    assert left[0].list(f"{ROOT}/consumequeue/T/0") == ["00000000000000000400"]
    for _ in range(2):
        async with open_store(make_config(ROOT), disk=left[0]) as store:
            assert store.queue_bounds("T", 0) == (26, 26)
    async with open_store(make_config(ROOT), disk=left[0]) as store:
        assert store.append(make_record(27)).queue_offset == 26


async def test_a_power_failure_in_a_removal_gives_no_number_again(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue's last files are still there, without all of their entries, and the log's last records are lost."""
    left: list[MemoryDisk] = []
    remove = MemoryDisk.remove

    def then_fail(disk: MemoryDisk, path: str) -> None:
        remove(disk, path)
        left.append(disk.after_power_loss(NothingUnforced()))

    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        for n in range(15):
            store.append(make_record(n))
        await store.flush()
        await store.flusher.flush_queues(0, checkpoint=True)
        for n in range(10):
            store.append(make_record(n))
        await store.flush()
        store.append(make_record(0, queue_id=1))
        with monkeypatch.context() as patch:
            patch.setattr(MemoryDisk, "remove", then_fail)
            await store.queue_removal.remove_topic("T")
    there = [disk for disk in left if disk.list(f"{ROOT}/consumequeue/T/0")]
    assert there
    for disk in there:
        async with open_store(make_config(ROOT), disk=disk) as store:
            assert store.queue_bounds("T", 0) == (25, 25)
            assert store.append(make_record(27)).queue_offset == 25


@pytest.mark.parametrize("written", range(5))
async def test_a_kill_during_a_batch_leaves_its_first_records_and_no_gap(
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


def idle_config(make_config: MakeConfig) -> StoreConfig:
    """Nothing is flushed by itself, not even where the machine is so slow that a timer would be due."""
    never = 3_600_000
    return make_config(ROOT, flush_interval_commit_log=never, flush_interval_consume_queue=never)


async def test_a_start_after_a_power_failure_begins_with_the_last_file_that_the_checkpoint_covers(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    """Of five files the checkpoint covers three, but the times of the third are too near to its own."""
    config = idle_config(make_config)
    file_bytes = config.mapped_file_size_commit_log
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        for number in range(5):
            while store.log_max_offset <= number * file_bytes:
                store.append(make_record(0, size=5000))
            if number == 2:
                store.notify_arrivals()
                await store.flush()
                await store.flusher.flush_queues(0, checkpoint=True)
            clock.now += 10_000
        end = store.log_max_offset
        lost = memory_disk.after_power_loss(random.Random(0), written=1.0)
    async with open_store(config, disk=lost, clock=clock) as store:
        assert store.recovery_report is not None
        assert (store.recovery_report.checked_from, store.log_max_offset) == (file_bytes, end)


@pytest.mark.parametrize("damaged", [5, 9])
async def test_after_a_power_failure_nothing_counts_from_a_damaged_body_on_that_was_not_flushed(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, clock: Any, damaged: int
) -> None:
    """Sound records that follow may be remains: pages reach the disk in any order."""
    config = idle_config(make_config)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        stored = []
        for number in range(10):
            if number == 5:
                store.notify_arrivals()
                await store.flush()
                await store.flusher.flush_queues(0, checkpoint=True)
            stored.append(store.append(make_record(number)))
        lost = memory_disk.after_power_loss(random.Random(0), written=1.0)
    lost.open(f"{ROOT}/commitlog/{0:020d}").buffer[stored[damaged].physical_offset + 150] ^= 1
    async with open_store(config, disk=lost, clock=clock) as store:
        assert store.recovery_report is not None
        assert (store.log_max_offset, store.queue_bounds("T", 0)) == (stored[damaged].physical_offset, (0, damaged))
        assert store.recovery_report.damaged == ()


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


@pytest.mark.parametrize("missing", [1, 3, 4, 50, 90, 400])
async def test_a_slave_that_stops_within_a_record_fetches_it_again(
    missing: int, memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    config = make_config(ROOT)
    async with open_store(config, disk=MemoryDisk()) as master:
        first = master.append(make_record(0))
        master.append(make_record(1, keys="k" * 80))
        data = bytes(master.log_slice(0, FOREVER) or b"")
    async with open_store(config, disk=memory_disk, is_slave=True) as slave:
        slave.append_raw(data[:-missing], 0)
    async with open_store(config, disk=memory_disk, is_slave=True) as slave:
        assert slave.recovery_report.clean
        assert slave.log_max_offset == first.end_offset
        slave.append_raw(data[first.end_offset :], first.end_offset)
        slave.dispatch()
        assert slave.record_at(first.end_offset) == data[first.end_offset :]
    async with open_store(config, disk=memory_disk) as store:
        assert store.queue_bounds("T", 0) == (0, 2)


@pytest.mark.parametrize("fails", ["dispatch", "cut"])
async def test_a_slave_on_a_full_disk_that_stops_within_a_record_fetches_it_again(
    fails: str,
    memory_disk: MemoryDisk,
    make_config: MakeConfig,
    make_record: MakeRecord,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The part that was received can neither be read as messages nor dropped: the next start examines it."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    config = make_config(ROOT)
    async with open_store(config, disk=MemoryDisk()) as master:
        first = master.append(make_record(0))
        master.append(make_record(1, keys="k" * 80))
        data = bytes(master.log_slice(0, FOREVER) or b"")
    with monkeypatch.context() as patch:
        async with open_store(config, disk=memory_disk, is_slave=True) as slave:
            slave.append_raw(data[:-50], 0)
            patch.setattr(*((slave.dispatcher, "follow") if fails == "dispatch" else (MemoryFile, "zero")), refuse)
    async with open_store(config, disk=memory_disk, is_slave=True) as slave:
        assert not slave.recovery_report.clean
        assert slave.log_max_offset == first.end_offset


class NothingMore(random.Random):
    """What a power failure leaves of pages that have not been forced to the disk: nothing."""

    def random(self) -> float:
        return 1.0


@pytest.mark.parametrize("back_ms", [0, 5_000, 3_600_000])
@pytest.mark.parametrize("is_slave", [False, True], ids=["master", "slave"])
async def test_messages_from_before_the_clock_was_set_back_outlast_the_machine(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any, back_ms: int, is_slave: bool
) -> None:
    """The first record of a log file is older than what the checkpoint covers, but the records before it are not."""
    config, disk = make_config(ROOT, mapped_file_size_consume_queue=20 * 1000), MemoryDisk(now_ms=clock)
    async with (
        open_store(config, disk=MemoryDisk(now_ms=clock), clock=clock) as master,
        open_store(config, disk=disk, clock=clock, is_slave=True) as slave,
    ):
        store = slave if is_slave else master

        async def flush() -> None:
            while (part := master.log_slice(slave.log_max_offset, FOREVER)) is not None:
                slave.append_raw(bytes(part), slave.log_max_offset)
                slave.dispatch()
            master.notify_arrivals()
            await store.flush()

        master.append(make_record(0))
        await flush()
        await store.flusher.flush_queues(0, checkpoint=True)
        clock.now += 10_000
        for n in range(5):
            master.append(make_record(n, topic="Quiet"))
        await flush()
        clock.now -= back_ms
        while master.log_max_offset < config.mapped_file_size_commit_log - 500:
            master.append(make_record(1, topic="Filling"))
        assert master.append(make_record(2, topic="Following", size=500)).physical_offset == 65536
        await flush()
        disk = store.disk
        assert isinstance(disk, MemoryDisk)
        lost = disk.after_power_loss(NothingMore())
    async with open_store(config, disk=lost, clock=clock, is_slave=False) as store:
        assert store.queue_bounds("Quiet", 0) == (0, 5)
        assert store.append(make_record(9, topic="Quiet")).queue_offset == 5


async def vouch_for_one_message(store: MessageStore, make_record: MakeRecord, clock: Any) -> None:
    """Make a checkpoint that covers one message, ten seconds ago."""
    store.append(make_record(0))
    store.notify_arrivals()
    await store.flush()
    await store.flusher.flush_queues(0, checkpoint=True)
    clock.now += 10_000


async def unforced_file_after_the_clock_was_set_back(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any, *, forced: bool
) -> tuple[StoreConfig, MemoryDisk]:
    """What a power failure leaves of a store whose checkpoint covers one message: the start of the next log file,
    which was not forced to the disk and has an earlier time, and of the five messages before it what was `forced`."""
    never = 3_600_000  # also where the machine is so slow that a timer would be due
    config = make_config(
        ROOT,
        mapped_file_size_consume_queue=20 * 1000,
        flush_interval_commit_log=never,
        flush_interval_consume_queue=never,
    )
    disk = MemoryDisk(now_ms=clock)
    async with open_store(config, disk=disk, clock=clock) as store:
        await vouch_for_one_message(store, make_record, clock)
        for n in range(5):
            store.append(make_record(n, topic="Quiet"))
        while store.log_max_offset < config.mapped_file_size_commit_log - 500:
            store.append(make_record(1, topic="Filling"))
        store.notify_arrivals()
        if forced:
            await store.flush()
        clock.now -= 3_600_000
        following = store.append(make_record(2, topic="Following", size=500))
        assert following.physical_offset == config.mapped_file_size_commit_log
        file = disk.files[store.commitlog.segments.items[1].path]
        assert isinstance(file, MemoryFile)
        file.durable[0] = file.page(0)
        return config, disk.after_power_loss(NothingMore())


async def test_a_file_that_is_on_disk_by_chance_confirms_nothing(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    """Its first record is older than what the checkpoint covers, but the queues lack the records before it."""
    config, lost = await unforced_file_after_the_clock_was_set_back(make_config, make_record, clock, forced=True)
    async with open_store(config, disk=lost, clock=clock) as store:
        assert store.queue_bounds("Quiet", 0) == (0, 5)
        assert store.append(make_record(9, topic="Quiet")).queue_offset == 5


async def test_what_was_not_forced_to_the_disk_is_no_damage_when_the_clock_was_set_back(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    config, lost = await unforced_file_after_the_clock_was_set_back(make_config, make_record, clock, forced=False)
    async with open_store(config, disk=lost, clock=clock) as store:
        assert store.recovery_report is not None
        assert store.recovery_report.damaged == ()
        assert store.queue_bounds("T", 0) == (0, 1)
        assert store.queue_bounds("Following", 0) == (0, 0)


@pytest.mark.parametrize("written_by_java", [False, True])
async def test_offsets_of_the_checkpoint_count_unless_rocketmq_has_written_its_times(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, clock: Any, written_by_java: bool
) -> None:
    async with open_store(make_config(ROOT), disk=memory_disk, clock=clock) as store:
        for n in range(5):
            store.append(make_record(n))
        store.notify_arrivals()
        end = store.log_max_offset
    data = bytearray(memory_disk.read(f"{ROOT}/checkpoint"))
    assert data[:24] == data[64:88]
    assert struct.unpack_from(">2q", data, 88) == (end, end)
    if written_by_java:
        struct.pack_into(">3q", data, 0, clock.now + 1, clock.now + 1, 0)
        memory_disk.load(f"{ROOT}/checkpoint", bytes(data))
    checkpoint = Checkpoint(memory_disk, f"{ROOT}/checkpoint")
    checkpoint.load()
    expected = 0 if written_by_java else end
    assert (checkpoint.log_offset, checkpoint.queues_offset) == (expected, expected)


async def test_a_cut_lowers_the_offsets_of_the_checkpoint_first(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    async with open_store(make_config(ROOT), disk=memory_disk, clock=clock) as store:
        for n in range(5):
            store.append(make_record(n))
        last = store.append(make_record(5)).physical_offset
        store.notify_arrivals()
        await store.flush()
        await store.flusher.flush_queues(0, checkpoint=True)
        assert saved_offsets(memory_disk) == (store.log_max_offset, store.log_max_offset)
        await store.cut(last)
        assert saved_offsets(memory_disk) == (last, last)


def saved_offsets(disk: MemoryDisk) -> tuple[int, ...]:
    """The checkpoint's file: offsets of log and queues."""
    return struct.unpack_from(">2q", disk.read(f"{ROOT}/checkpoint"), 88)


async def test_a_flush_of_the_queues_confirms_nothing_if_the_clock_is_set_back_during_it(
    autojump_clock: Any, make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    class SlowDisk(MemoryDisk):
        chore_s = 0

        async def run(self, chore: Callable[[], Any]) -> Any:
            await trio.sleep(self.chore_s)
            return chore()

    config = make_config(ROOT, flush_interval_commit_log=3_600_000, flush_interval_consume_queue=3_600_000)
    disk = SlowDisk(now_ms=clock)
    async with open_store(config, disk=disk, clock=clock) as store:
        await vouch_for_one_message(store, make_record, clock)
        store.append(make_record(1))
        store.notify_arrivals()
        await store.flush()
        disk.chore_s = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(store.flusher.flush_queues, 0, checkpoint=True))
            await trio.sleep(0.5)
            store.append(make_record(2, topic="Quiet"))
            clock.now -= 3_600_000
            store.append(make_record(3))
            store.notify_arrivals()
        disk.chore_s = 0
        assert saved_times(disk)[1] == clock.now
        clock.now += 1
        store.append(make_record(4))
        store.notify_arrivals()
        await store.flusher.flush_queues(0, checkpoint=True)
        assert saved_times(disk)[1] == clock.now


def saved_times(disk: MemoryDisk) -> tuple[int, ...]:
    """The checkpoint's file: times of log, queues and index."""
    return struct.unpack_from(">3q", disk.read(f"{ROOT}/checkpoint"))


async def test_a_checkpoint_later_than_the_end_of_the_log_goes_back(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    """Later records may have earlier times than what it covers."""
    async with open_store(make_config(ROOT), disk=memory_disk, clock=clock) as store:
        store.append(make_record(0))
        first = clock.now
        clock.now += 60_000
        last = store.append(make_record(1))
    file = memory_disk.open(f"{ROOT}/commitlog/{0:020d}")
    file.buffer[last.physical_offset : last.end_offset] = bytes(last.end_offset - last.physical_offset)
    assert saved_times(memory_disk)[:2] == (first + 60_000, first + 60_000)
    async with open_store(make_config(ROOT), disk=memory_disk, clock=clock) as store:
        assert saved_times(memory_disk)[:2] == (first, first), "before anything is appended"
        await store.flush()
        assert saved_times(memory_disk)[:2] == (first, first)


async def test_index_files_that_a_killed_process_filled_are_on_the_disk_after_a_stop(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    config = make_config(ROOT, max_index_num=5, flush_interval_consume_queue=3_600_000)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        for n in range(20):
            clock.now += 1000
            store.append(make_record(n, keys=f"k{n}"))
        store.notify_arrivals()
        await store.flush()
        assert len(store.index.files) > 5
        killed = memory_disk.after_kill()
    async with open_store(config, disk=killed, clock=clock):
        pass
    failed = killed.after_power_loss(NothingUnforced())
    async with open_store(config, disk=failed, clock=clock) as store:
        assert store.recovery_report.clean
        found = [len(to_the_end(store.query("T", f"k{n}", 9, 0, FOREVER)).records) for n in range(20)]
        assert found == [1] * 20


async def test_a_start_that_cuts_full_index_files_no_longer_confirms_them(
    memory_disk: MemoryDisk,
    make_config: MakeConfig,
    make_record: MakeRecord,
    clock: Any,
    autojump_clock: Any,
) -> None:
    """The file on the disk stays full until it is written again, and would hide the entries that replace its own."""

    config = make_config(
        ROOT,
        max_index_num=5,
        flush_interval_commit_log=3_600_000,
        flush_interval_consume_queue=1,
        flush_consume_queue_least_pages=2,
        flush_consume_queue_thorough_interval=3_600_000,
    )
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        store.append(make_record(0))
        await store.flush()
        for n in range(1, 6):
            clock.now += 1000
            store.append(make_record(n))
        store.notify_arrivals()
        await trio.sleep(1)
        assert not store.index.filled
        full = saved_times(memory_disk)[2]
        failed = memory_disk.after_power_loss(NothingUnforced())
    assert full > clock.now - 5000
    async with open_store(config, disk=failed, clock=clock) as store:
        assert (
            store.recovery_report.log_end < store.recovery_report.log_end + store.recovery_report.index_entries_dropped
        )
        assert saved_times(failed)[2] < full


async def test_a_checkpoint_that_cannot_go_back_is_logged_once(
    memory_disk: MemoryDisk,
    make_config: MakeConfig,
    make_record: MakeRecord,
    clock: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    async with open_store(make_config(ROOT), disk=memory_disk, clock=clock) as store:
        store.append(make_record(0))
        store.notify_arrivals()
        await store.flush()
        await store.flusher.flush_queues(0, checkpoint=True)
        clock.now -= 60_000
        store.append(make_record(1))
        with monkeypatch.context() as patch:
            patch.setattr(memory_disk, "write", refuse)
            await store.flush()
            await store.flush()
        assert caplog.text.count("the clock was set back, or the log cut, and the checkpoint cannot be saved") == 1
        await store.flush()
        assert max(saved_times(memory_disk)[:2]) == clock.now


async def test_a_full_index_file_confirms_no_queue(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    config = make_config(ROOT, max_index_num=5, flush_interval_consume_queue=3_600_000)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        store.append(make_record(0))
        store.notify_arrivals()
        await store.flush()
        await store.flusher.flush_queues(0, checkpoint=True)
        flushed = clock.now
        clock.now += 10_000
        for n in range(5):
            store.append(make_record(n, topic="Quiet"))
        store.notify_arrivals()
        await store.flush()
        await store.flusher._flush_filled_index_files()
        assert saved_times(memory_disk) == (clock.now, flushed, clock.now)


@pytest.mark.parametrize("flushed_first", [False, True])
async def test_an_index_file_from_after_the_clock_was_set_back_is_not_taken_for_a_known_one(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any, flushed_first: bool
) -> None:
    """The file before is on the disk, and has later times; of this one, the machine has lost all but the header."""
    never = 3_600_000  # also where the machine is so slow that a timer would be due
    config = make_config(ROOT, max_index_num=600, flush_interval_commit_log=never, flush_interval_consume_queue=never)
    disk = MemoryDisk(now_ms=clock)

    def append(*numbers: int) -> None:
        for n in range(*numbers):
            store.append(make_record(n))
        store.notify_arrivals()

    async with open_store(config, disk=disk, clock=clock) as store:
        append(700)
        if flushed_first:
            await store.flusher._flush_filled_index_files()
        clock.now -= 60_000
        append(700, 800)
        await store.flush()
        if not flushed_first:
            await store.flusher._flush_filled_index_files()
        append(800, 1300)
        await store.flush()
        assert store.index is not None
        known, following, _last = store.index.files
        assert following.full
        assert following.end_timestamp < known.end_timestamp
        file = disk.files[following.path]
        assert isinstance(file, MemoryFile)
        file.durable[0] = file.page(0)
        lost = disk.after_power_loss(NothingMore())
    async with open_store(config, disk=lost, clock=clock) as store:
        for n in range(0, 1300, 10):
            assert len(to_the_end(store.query("T", f"{n:032X}", 5, 0, FOREVER)).records) == 1, n


async def test_a_checkpoint_covers_nothing_that_is_cut_off(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    """What replaces it may have been stored earlier, and be on the disk in part when the machine goes down."""
    async with open_store(make_config(ROOT, max_index_num=5), disk=memory_disk, clock=clock) as store:
        for n in range(20):
            last = store.append(make_record(n))
            if n == 9:
                kept, kept_time = last.end_offset, clock.now
            clock.now += 1000
        store.notify_arrivals()
        await store.flusher.flush_everything()
        assert saved_times(memory_disk)[:2] == (kept_time + 10_000, kept_time + 10_000)
        await store.cut(kept)
        assert saved_times(memory_disk)[:2] == (kept_time, kept_time)
        assert saved_times(memory_disk)[2] <= kept_time
        await store.flusher.flush_everything()
        assert max(saved_times(memory_disk)) <= kept_time
        store.append(make_record(99))
        store.notify_arrivals()
        await store.flusher.flush_everything()
        assert saved_times(memory_disk)[:2] == (clock.now, clock.now)
        await store.cut(0)
        assert saved_times(memory_disk) == (0, 0, 0)


@pytest.mark.parametrize("by_recovery", [False, True])
async def test_an_index_file_that_is_cut_and_filled_again_is_not_taken_for_a_known_one(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any, by_recovery: bool
) -> None:
    """The machine goes down then, and leaves the file as it was before the cut: it is full, and has other entries."""
    never = 3_600_000  # also where the machine is so slow that a timer would be due
    config = make_config(ROOT, max_index_num=600, flush_interval_commit_log=never, flush_interval_consume_queue=never)
    disk = MemoryDisk(now_ms=clock)
    async with open_store(config, disk=disk, clock=clock) as store:
        kept = [store.append(make_record(n)).end_offset for n in range(100)][-1]
        await store.flush()
        for n in range(100, 700):
            store.append(make_record(n))
        store.notify_arrivals()
        await store.flusher._flush_filled_index_files()
        if by_recovery:
            disk = disk.after_power_loss(NothingUnforced())
        else:
            await store.cut(kept)
            clock.now += 1000
            await fill_again(store, make_record)
            disk = disk.after_power_loss(NothingUnforced())
    if by_recovery:
        clock.now += 1000
        async with open_store(config, disk=disk, clock=clock) as store:
            assert store.log_max_offset == kept
            await fill_again(store, make_record)
            disk = disk.after_power_loss(NothingUnforced())
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in (*range(100), *range(1000, 1700)):
            assert len(to_the_end(store.query("T", f"{n:032X}", 5, 0, FOREVER)).records) == 1, n


async def fill_again(store: MessageStore, make_record: MakeRecord) -> None:
    """Other records than those that were cut off; they are flushed, and the index is not."""
    for n in range(1000, 1700):
        store.append(make_record(n))
    store.notify_arrivals()
    await store.flusher.flush_log()


async def test_an_index_file_that_is_cut_during_its_flush_is_not_confirmed(
    memory_disk: MemoryDisk,
    make_config: MakeConfig,
    make_record: MakeRecord,
    clock: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = make_config(ROOT, max_index_num=600, flush_interval_consume_queue=3_600_000)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        kept = [store.append(make_record(n)).end_offset for n in range(100)][-1]
        clock.now += 1000
        for n in range(100, 700):
            store.append(make_record(n))
        store.notify_arrivals()
        assert store.index is not None
        filled = store.index.files[0]
        run = memory_disk.run

        async def cut_afterwards(chore: Callable[[], Any]) -> Any:
            done = await run(chore)
            if chore == filled.sync:
                await store.cut(kept)
            return done

        monkeypatch.setattr(memory_disk, "run", cut_afterwards)
        await store.flusher._flush_filled_index_files()
        assert store.index.files == [filled]
        assert store.index.filled == []
        assert store.checkpoint.index_timestamp == 0


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


def test_a_record_that_ends_with_zeros_is_whole_when_data_follows() -> None:
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


async def test_missing_entries_far_back_are_built_again(
    memory_disk: MemoryDisk, clock: Any, make_config: MakeConfig, make_record: MakeRecord, caplog: Any
) -> None:
    """A queue that lost its end although the checkpoint covered it: dispatched again from where it ends."""
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


async def test_entries_of_missing_records_become_blanks(
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


async def test_a_store_whose_log_is_missing_stays_as_it_is(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """The disk of the log may not be mounted."""
    config = make_config(ROOT, store_path_commit_log="/log")
    async with open_store(config, disk=memory_disk) as store:
        store.append(make_record(0))
    saved = memory_disk.after_kill()
    memory_disk.remove_tree("/log")
    memory_disk.make_directory("/log")
    with pytest.raises(StoreDamaged) as caught:
        async with open_store(config, disk=memory_disk):
            pass
    assert str(caught.value) == (
        "/log has no log files, but /store/consumequeue has entries of their messages: mount the disk of the log, or correct "
        "storePathCommitLog. If the log is lost, and another broker of the set has it, make that one the master. To start "
        "without messages, move /store/consumequeue and /store/index away"
    )
    for name in saved.list("/log"):
        memory_disk.write(f"/log/{name}", saved.read(f"/log/{name}"))
    async with open_store(config, disk=memory_disk) as store:
        assert store.recovery_report.clean
        assert store.queue_bounds("T", 0) == (0, 1)


async def test_a_store_whose_log_is_missing_keeps_its_damaged_queues_too(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """They are built again only when the log is there. Until then, their numbers are known from them alone."""
    config = make_config(ROOT, store_path_commit_log="/log")
    async with open_store(config, disk=memory_disk) as store:
        for n in range(25):
            store.append(make_record(n))
    memory_disk.remove_tree("/log")
    folder = f"{ROOT}/consumequeue/T/0"
    *_, last = memory_disk.list(folder)
    memory_disk.write(f"{folder}/{last}", memory_disk.read(f"{folder}/{last}")[:-7])
    before = {path: memory_disk.read(path) for path in memory_disk.files if path.startswith(folder)}
    with pytest.raises(StoreDamaged, match="has no log files"):
        async with open_store(config, disk=memory_disk):
            pass
    assert {path: memory_disk.read(path) for path in memory_disk.files if path.startswith(folder)} == before


async def test_a_queue_file_without_entries_needs_no_log(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """A failure of the machine may leave no more of the first message, if the log has a disk of its own."""
    config = make_config(ROOT)
    memory_disk.create(f"{ROOT}/consumequeue/T/0/{0:020}", config.mapped_file_size_consume_queue, 0)
    memory_disk.write(f"{ROOT}/consumequeue/T/1/{0:020}", b"")
    memory_disk.write(f"{ROOT}/abort", b"")
    async with open_store(config, disk=memory_disk) as store:
        assert store.append(make_record(0)).queue_offset == 0


async def test_a_kill_while_the_whole_log_is_cut_off_does_not_count_as_a_missing_log(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave whose log begins behind the end of its master's has nothing of it: an operator's cut removes all files."""
    config = make_config(ROOT, mapped_file_size_commit_log=4096)
    killed: list[MemoryDisk] = []
    async with open_store(config, disk=memory_disk) as store:
        for n in range(40):
            store.append(make_record(n, queue_id=n % 2))
        store.commitlog.delete_first()
        await store.demote()
        truncate = ConsumeQueue.truncate

        def truncate_and_kill(queue: ConsumeQueue, offset: int) -> None:
            killed.append(memory_disk.after_kill())
            truncate(queue, offset)

        with monkeypatch.context() as patched:
            patched.setattr(ConsumeQueue, "truncate", truncate_and_kill)
            await store.cut(100)
        assert (store.log_min_offset, store.log_max_offset) == (0, 0)
        assert [store.queue_bounds("T", queue_id) for queue_id in (0, 1)] == [(0, 0), (0, 0)]
        async with open_store(make_config("/master", mapped_file_size_commit_log=4096), disk=MemoryDisk()) as master:
            for n in range(4):
                master.append(make_record(n))
            store.append_raw(bytes(master.log_slice(0, master.log_max_offset) or b""), 0)
        await store.cut(store.log_max_offset)
        assert store.queue_bounds("T", 0) == (0, 4)
        assert store.read("T", 0, 0, 32, None).message_count == 4
        await store.cut(0)
    for disk in (*killed, memory_disk):
        async with open_store(config, disk=disk) as store:
            assert store.queues() == []
            assert store.append(make_record(0)).physical_offset == 0
        disk.remove_tree(f"{ROOT}/commitlog")
        with pytest.raises(StoreDamaged, match="has no log files"):
            async with open_store(config, disk=disk):
                pass
    assert len(killed) == 2


async def test_a_store_starts_without_messages_if_its_queues_are_moved_away_with_its_log(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        store.append(make_record(0))
    for name in ("commitlog", "consumequeue", "index"):
        memory_disk.remove_tree(f"{ROOT}/{name}")
    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        assert store.queues() == []
        assert store.append(make_record(0)).queue_offset == 0


async def test_with_compat_queues_and_index_of_a_missing_log_are_removed(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        store.append(make_record(0))
    memory_disk.remove_tree(f"{ROOT}/commitlog")
    async with open_store(make_config(ROOT, compat="4.9"), disk=memory_disk) as store:
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


async def test_a_file_prepared_ahead_is_removed_when_the_log_is_cut(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """Behind a later file it would look as if files were missing, and the log as if it ended behind them."""
    config = make_config(ROOT, mapped_file_size_commit_log=3000)
    async with open_store(config, disk=memory_disk) as store:
        for n in range(20):
            store.append(make_record(n))
        await wait_all_tasks_blocked()
        bases = [segment.base for segment in store.commitlog.segments.items]
        assert int(memory_disk.list(f"{ROOT}/commitlog")[-1]) == bases[-1] + 3000
        await store.cut(bases[1])
        assert [int(name) for name in memory_disk.list(f"{ROOT}/commitlog")] == bases[:2]
        while store.log_max_offset < bases[2]:
            store.append(make_record(99))
        end = store.log_max_offset
    async with open_store(config, disk=memory_disk) as store:
        assert store.log_max_offset == end
        assert store.recovery_report is not None
        assert store.recovery_report.damaged == ()


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
async def test_a_start_after_a_kill_dispatches_records_without_an_entry(
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


async def test_messages_behind_damage_in_which_the_clock_was_set_back_are_kept(
    memory_disk: MemoryDisk, clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """Older records behind the last sound one may be remains, but not where the log is known to be on the disk."""
    config = make_config("/store", mapped_file_size_commit_log=65536)
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        for n in range(60):
            clock.now -= 3_600_000 * (n == 10)
            store.append(make_record(n))
        damaged, end = store.record_offset_at("T", 0, 10), store.log_max_offset
    memory_disk.files[f"/store/commitlog/{0:020d}"].buffer[damaged + 5] ^= 1
    async with open_store(config, disk=memory_disk, clock=clock) as store:
        assert store.log_max_offset == end
        assert store.queue_bounds("T", 0) == (0, 60)
        found = store.read("T", 0, 11, 1, None)
        assert found is not None
        assert found.status is ReadStatus.FOUND
