"""Waiting for the disk: group commit, timers, deadlines, a disk that refuses (docs/protocol/store.md §12.3, §12.4)."""

from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import pytest
import trio
import trio.testing
from memory_disk import MemoryDisk, MemoryFile, NothingUnforced

from triomq_server.config import FlushDiskType, StoreConfig
from triomq_server.store import AppendStatus, NewRecord, open_store
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.store.entry_layout import ENTRY_BYTES
from triomq_server.store.files.segments import Segments, Unflushed
from triomq_server.store.flush.flusher import FLUSHED_AT_ONCE, FLUSHED_PER_CHORE, LOOK_AGAIN_S
from triomq_server.wire import to_the_end

ROOT = "/store"
MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]


class SlowDisk(MemoryDisk):
    """A memory disk whose chores take a second of the test's clock."""

    chore_s = 1.0

    async def run(self, chore: Callable[[], Any]) -> Any:
        await trio.sleep(self.chore_s)
        return chore()


async def test_group_commit(autojump_clock: Any, make_config: MakeConfig, make_record: MakeRecord) -> None:
    """One flush in flight; all that began to wait while it ran are released together by the next."""
    disk = SlowDisk()
    config = make_config(ROOT, flush_disk_type=FlushDiskType.SYNC_FLUSH, flush_interval_consume_queue=3_600_000)
    async with open_store(config, disk=disk) as store:
        await trio.sleep(0.5)
        start = trio.current_time()
        flushed: list[tuple[int, float, bool]] = []

        def wait(n: int) -> None:
            end = store.append(make_record(n)).end_offset
            store.flusher.when_flushed(
                end, trio.current_time() + 5, lambda done: flushed.append((n, trio.current_time() - start, done))
            )

        wait(0)
        wait(1)
        await trio.sleep(0.5)
        syncs = disk.syncs
        for n in range(2, 30):
            wait(n)
        assert flushed == []
        await trio.sleep(3)
        assert [n for n, _, _ in flushed] == list(range(30))
        assert {round(t, 3) for n, t, _ in flushed if n < 2} == {1.0}
        assert {round(t, 3) for n, t, _ in flushed if n >= 2} == {2.0}
        assert all(done for _, _, done in flushed)
        assert disk.syncs == syncs + 2
        assert store.flushed_offset == store.log_max_offset
        store.flusher.when_flushed(
            store.log_max_offset, trio.current_time(), lambda done: flushed.append((-1, 0, done))
        )
        assert flushed[-1] == (-1, 0, True)


async def test_deadline_passes_while_the_disk_hangs(
    autojump_clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    disk = SlowDisk()
    config = make_config(ROOT, flush_disk_type=FlushDiskType.SYNC_FLUSH, flush_interval_consume_queue=3_600_000)
    async with open_store(config, disk=disk) as store:
        disk.chore_s = 20
        start = trio.current_time()
        answers: list[tuple[str, float, bool]] = []
        for name, wait in (("long", 60), ("short", 5)):
            end = store.append(make_record(0)).end_offset
            store.flusher.when_flushed(
                end, start + wait, lambda done, name=name: answers.append((name, trio.current_time() - start, done))
            )
        await trio.sleep(25)
        assert [(name, done) for name, _, done in answers] == [("short", False), ("long", True)]
        assert answers[0][1] == pytest.approx(5, abs=0.01)
        assert answers[1][1] == pytest.approx(20, abs=0.01)
        disk.chore_s = 0


class NothingMore(random.Random):
    """What a power failure leaves of pages that have not been forced to the disk: nothing."""

    def random(self) -> float:
        return 1.0


async def test_a_promotion_during_a_flush_counts_only_what_is_on_the_disk(
    autojump_clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """The flush under way has taken the part of a record that the promotion drops."""
    config = make_config(ROOT, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    disk = SlowDisk()
    disk.chore_s = 0
    async with (
        open_store(make_config(ROOT), disk=MemoryDisk()) as master,
        open_store(config, disk=disk, is_slave=True) as slave,
        trio.open_nursery() as nursery,
    ):
        end = master.append(make_record(0)).end_offset
        master.append(make_record(1, size=8000))
        slave.append_raw(bytes(master.log_slice(0, end + 7900) or b""), 0)
        slave.dispatch()
        disk.chore_s = 1
        nursery.start_soon(slave.flusher.flush_log)
        await trio.sleep(0.5)
        await slave.promote()
        disk.chore_s = 0
        assert (slave.log_max_offset, slave.flushed_offset) == (end, end)
        stored = [slave.append(make_record(n)) for n in range(2, 12)]
        answers: list[bool] = []
        for one in stored:
            slave.flusher.when_flushed(one.end_offset, trio.current_time() + 5, answers.append)
        await trio.sleep(3)
        assert answers == [True] * 10
        lost = disk.after_power_loss(NothingMore())
    async with open_store(config, disk=lost) as store:
        assert store.log_max_offset == stored[-1].end_offset


async def test_a_cancel_while_a_cut_waits_for_a_flush_leaves_the_log_whole(
    autojump_clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    disk = SlowDisk()
    async with open_store(make_config(ROOT), disk=disk) as store, trio.open_nursery() as nursery:
        kept = store.append(make_record(0)).end_offset
        end = store.append(make_record(1)).end_offset
        nursery.start_soon(store.flusher.flush_log)
        await trio.sleep(0.5)
        with trio.move_on_after(0.1) as scope:
            await store.cut(kept)
        assert scope.cancelled_caught
        assert (store.log_max_offset, store.queue_bounds("T", 0)) == (end, (0, 2))


async def test_waiting_for_the_whole_log_does_not_wait_for_bytes_cut_off_before(
    autojump_clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    disk = SlowDisk()
    async with open_store(make_config(ROOT), disk=disk) as store, trio.open_nursery() as nursery:
        kept = store.append(make_record(0)).end_offset
        store.append(make_record(1))
        nursery.start_soon(store.flusher.flush_log)
        await trio.sleep(0.5)
        nursery.start_soon(store.cut, kept)
        await trio.sleep(0.1)
        await store.flush()
        assert store.log_max_offset == store.flushed_offset == kept


async def test_waiting_for_bytes_that_are_cut_off_fails_at_once(
    make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """Others will be in their place, and those may be on the disk before the deadline."""
    async with open_store(make_config(ROOT), disk=MemoryDisk()) as store:
        ends = [store.append(make_record(n)).end_offset for n in range(3)]
        answers: list[tuple[int, bool]] = []
        for n, end in enumerate(ends):
            store.flusher.when_flushed(end, trio.current_time() + 600, lambda done, n=n: answers.append((n, done)))
        await store.cut(ends[0])
        assert sorted(answers) == [(1, False), (2, False)]
        store.append(make_record(3))
        store.append(make_record(4))
        await store.flush()
        assert sorted(answers) == [(0, True), (1, False), (2, False)]


async def test_bytes_in_place_of_flushed_ones_that_were_cut_off_are_not_flushed(
    make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(ROOT), disk=MemoryDisk()) as store:
        first, *_ = [store.append(make_record(n)).end_offset for n in range(3)]
        await store.flush()
        await store.cut(first)
        assert store.flushed_offset == first
        answers: list[bool] = []
        store.flusher.when_flushed(store.append(make_record(3)).end_offset, trio.current_time() + 600, answers.append)
        assert answers == []
        await store.flush()
        assert answers == [True]


@pytest.mark.parametrize("change", ["cut", "rewrite"])
async def test_entries_changed_during_a_flush_are_flushed_by_the_next(
    autojump_clock: Any, make_config: MakeConfig, make_record: MakeRecord, change: str
) -> None:
    class LateDisk(MemoryDisk):
        """Its chores have their effect first, and then take a second."""

        chore_s = 0

        async def run(self, chore: Callable[[], Any]) -> Any:
            done = await super().run(chore)
            await trio.sleep(self.chore_s)
            return done

    disk = LateDisk()
    config = make_config(ROOT, mapped_file_size_consume_queue=20 * 1000, flush_interval_consume_queue=3_600_000)
    async with open_store(config, disk=disk) as store:
        stored = [store.append(make_record(n)) for n in range(500)]
        queue = store.consume_queues.obtain("T", 0)
        disk.chore_s = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(store.flusher.flush_queues, 0, checkpoint=False))
            await trio.sleep(0.5)
            disk.chore_s = 0
            if change == "cut":
                await store.cut(stored[10].physical_offset)
                for n in range(200):
                    store.append(make_record(1000 + n, size=100))
            else:
                offset, size, _ = store.queue_entry("T", 0, 10) or (0, 0, 0)
                queue.rewrite(10, offset, size, 4711)
        await store.flusher.flush_queues(0, checkpoint=False)
        file = disk.files[f"{ROOT}/consumequeue/T/0/{0:020d}"]
        assert isinstance(file, MemoryFile)
        assert all(file.durable[page] == file.page(page) for page in file.pages_written())
        assert queue.dirty(0) == []


async def test_sync_flush_also_covers_those_who_do_not_wait(
    autojump_clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    config = make_config(ROOT, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    async with open_store(config, disk=MemoryDisk()) as store:
        store.append(make_record(0))
        store.notify_arrivals()
        await trio.sleep(0.01)
        assert store.flushed_offset == store.log_max_offset > 0


async def test_async_flush_takes_whole_pages_and_everything_now_and_then(
    autojump_clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(ROOT), disk=MemoryDisk()) as store:
        store.append(make_record(0))
        await trio.sleep(1.1)
        assert store.flushed_offset == 0  # less than flushCommitLogLeastPages
        while store.log_max_offset < 4 * 4096:
            store.append(make_record(0, size=1000))
        assert store.flushed_offset == 0
        await trio.sleep(0.6)
        assert store.flushed_offset == store.log_max_offset
        store.append(make_record(0))
        await trio.sleep(10)
        assert store.flushed_offset == store.log_max_offset


async def test_flush_reaches_over_files(make_config: MakeConfig, make_record: MakeRecord) -> None:
    disk = MemoryDisk()
    async with open_store(make_config(ROOT, mapped_file_size_commit_log=1000), disk=disk) as store:
        for n in range(20):
            store.append(make_record(n))
        await store.flush()
        assert store.flushed_offset == store.log_max_offset
        for n in range(store.log_max_offset // 1000 + 1):
            file = disk.files[f"{ROOT}/commitlog/{n * 1000:020d}"]
            assert file.durable[0] == file.page(0)


async def test_checkpoint(autojump_clock: Any, clock: Any, make_config: MakeConfig, make_record: MakeRecord) -> None:
    disk = MemoryDisk(now_ms=clock)

    def times() -> tuple[int, ...]:
        return struct.unpack_from(">3q", disk.read(f"{ROOT}/checkpoint"))

    async with open_store(make_config(ROOT, max_index_num=5), disk=disk, clock=clock) as store:
        first = clock.now
        for n in range(4):
            store.append(make_record(n, queue_id=n))
        store.notify_arrivals()
        await trio.sleep(62)
        assert times() == (first, first, 0)
        assert len(disk.read(f"{ROOT}/checkpoint")) == 4096
        clock.now += 1000
        store.append(make_record(4))  # the first index file is full, a second is begun
        store.notify_arrivals()
        await trio.sleep(2)
        assert times()[2] == first
        assert store.checkpoint.min_timestamp == first - 3000
        assert store.checkpoint.min_timestamp_index == first - 3000
    assert times() == (first + 1000, first + 1000, first)
    assert not disk.exists(f"{ROOT}/abort")


async def test_the_checkpoint_covers_nothing_that_is_stored_during_a_flush(
    make_config: MakeConfig, make_record: MakeRecord
) -> None:
    class Disk(MemoryDisk):
        busy = False

        async def run(self, chore: Callable[[], Any]) -> Any:
            if self.busy:
                store.append(make_record(1))
            return await super().run(chore)

    disk = Disk()
    async with open_store(make_config(ROOT), disk=disk) as store:
        end = store.append(make_record(0)).end_offset
        disk.busy = True
        await store.flusher.flush_log()
        disk.busy = False
        assert store.log_max_offset > end
        assert (store.flushed_offset, store.checkpoint.log_offset) == (end, end)


async def test_a_lack_of_descriptors_is_no_broken_disk(
    autojump_clock: Any, caplog: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    disk = MemoryDisk()
    async with open_store(make_config(ROOT, flush_disk_type=FlushDiskType.SYNC_FLUSH), disk=disk) as store:
        await store.flush()
        run = disk.run

        async def lack(_chore: Callable[[], Any]) -> Any:
            await trio.lowlevel.checkpoint()
            raise OSError(errno.EMFILE, "Too many open files")

        disk.run = lack  # type: ignore[method-assign]
        answers: list[bool] = []
        end = store.append(make_record(0)).end_offset
        store.flusher.when_flushed(end, trio.current_time() + 60, answers.append)
        await trio.sleep(10)
        assert (answers, store.append(make_record(1)).status) == ([], AppendStatus.PUT_OK)
        disk.run = run  # type: ignore[method-assign]
        await trio.sleep(1)
        assert answers == [True]
        assert store.flushed_offset == store.log_max_offset
    assert caplog.text.count("for the time being") == 1


async def test_a_disk_that_refuses(
    autojump_clock: Any, caplog: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """After a failed fsync nothing is reported as safe, and no message is accepted, while the disk fails; reads
    continue."""
    disk = MemoryDisk()
    config = make_config(ROOT, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    async with open_store(config, disk=disk) as store:
        end = store.append(make_record(0)).end_offset
        await store.flush()
        disk.failing_syncs = True
        answers: list[bool] = []
        end = store.append(make_record(1)).end_offset
        store.flusher.when_flushed(end, trio.current_time() + 5, answers.append)
        await trio.sleep(0.1)
        assert answers == [False]
        store.flusher.when_flushed(end, trio.current_time() + 5, answers.append)
        assert answers == [False, False]
        await trio.sleep(10 * LOOK_AGAIN_S)
        assert store.append(make_record(2)).status is AppendStatus.SERVICE_NOT_AVAILABLE
        assert store.read("T", 0, 0, 32, None).message_count == 2
        with pytest.raises(OSError, match="on disk only up to"):
            await store.flush()
    assert disk.exists(f"{ROOT}/abort")
    assert "refused to take the log; the store accepts no messages until it does: [Errno 5]" in caplog.text
    assert "Traceback" not in caplog.text
    assert caplog.text.count("the disk still refuses") == 3


async def test_a_log_that_is_on_the_disk_costs_no_chore(
    autojump_clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """Each takes a hop to a worker thread, twice a second on an idle broker."""
    disk = SlowDisk()
    async with open_store(make_config(ROOT, flush_interval_consume_queue=3_600_000), disk=disk) as store:
        store.append(make_record(0))
        await store.flusher.flush_log()
        flushed = store.flushed_offset
        begin = trio.current_time()
        await store.flusher.flush_log()
        assert trio.current_time() == begin
        assert store.flushed_offset == flushed == store.log_max_offset


@pytest.mark.parametrize("log_file_bytes", [1 << 20, 1000])
async def test_a_disk_that_recovers_is_used_again(
    autojump_clock: Any, caplog: Any, make_config: MakeConfig, make_record: MakeRecord, log_file_bytes: int
) -> None:
    """What it had refused is written once more: the system counts those pages as written."""
    disk = MemoryDisk()
    config = make_config(ROOT, mapped_file_size_commit_log=log_file_bytes)
    async with open_store(config, disk=disk) as store:
        store.append(make_record(0))
        await store.flush()
        for n in range(1, 20):
            store.append(make_record(n))
        disk.failing_syncs = True
        await store.flusher.flush_log()
        assert store.append(make_record(20)).status is AppendStatus.SERVICE_NOT_AVAILABLE
        disk.failing_syncs = False
        await store.flusher.flush_log()
        assert store.flushed_offset < store.log_max_offset
        await trio.sleep(LOOK_AGAIN_S + 1)
        assert store.flushed_offset == store.log_max_offset
        answers: list[bool] = []
        end = store.append(make_record(20)).end_offset
        store.flusher.when_flushed(end, trio.current_time() + 5, answers.append)
        await trio.sleep(1)
        assert answers == [True]
        after = disk.after_power_loss(random.Random(1))
        for path, file in disk.files.items():
            if "/commitlog/" in path:
                pages = range(-(-file.size // 4096))
                assert [file.durable.get(page, bytes(4096))[:1000] for page in pages] == [
                    file.page(page)[:1000] for page in pages
                ]
    async with open_store(config, disk=after) as store:
        assert store.queue_bounds("T", 0) == (0, 21)
    assert caplog.text.count("takes the log again") == 1


@pytest.mark.parametrize("is_killed", [False, True])
async def test_what_a_disk_refused_is_written_again_by_the_next_start(
    is_killed: bool, clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """For the kernel it is on the disk: another flush would succeed, and a power failure take it, and all behind it."""
    config = make_config(
        "/store", flush_interval_commit_log=3_600_000, flush_interval_consume_queue=3_600_000, max_index_num=5
    )
    disk = MemoryDisk(now_ms=clock)
    async with open_store(config, disk=disk, clock=clock) as store:
        store.append(make_record(0))
        await store.flush()
        for n in range(1, 4):
            store.append(make_record(n, size=5000))
        disk.failing_syncs = True
        with pytest.raises(OSError, match="the log is on disk only up to"):
            await store.flush()
        killed = disk.after_kill()
    if is_killed:
        disk = killed
    disk.failing_syncs = False
    async with open_store(config, disk=disk, clock=clock) as store:
        assert store.recovery_report.records == 4
        assert store.writable
        end = store.append(make_record(4)).end_offset
        await store.flush()
        assert store.flushed_offset == end
        failed = disk.after_power_loss(NothingUnforced())
    async with open_store(config, disk=failed, clock=clock) as store:
        assert store.log_max_offset == end
        for n in range(5):
            assert len(to_the_end(store.query("T", f"{n:032X}", 9, 0, 1 << 60)).records) == 1
    assert not failed.exists("/store/triomq/refused")


async def test_a_disk_that_recovers_without_what_it_had_refused_is_not_used(
    autojump_clock: Any, caplog: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    disk = MemoryDisk()
    async with open_store(make_config(ROOT), disk=disk) as store:
        store.append(make_record(0))
        await store.flush()
        start = store.log_max_offset
        end = store.append(make_record(1)).end_offset
        disk.failing_syncs = True
        await store.flusher.flush_log()
        disk.failing_syncs = False
        file = disk.files[f"{ROOT}/commitlog/{0:020d}"]
        file.buffer[start:end] = bytes(end - start)  # dropped from memory, and read from the disk again
        await trio.sleep(10 * LOOK_AGAIN_S)
        assert store.flushed_offset == start
        assert store.append(make_record(2)).status is AppendStatus.SERVICE_NOT_AVAILABLE
    assert caplog.text.count("memory no longer has what the disk refused") == 1
    assert "zeros: nothing was written here" in caplog.text


async def test_the_checkpoint_stays_behind_queues_that_the_disk_refused(
    autojump_clock: Any, clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    disk = MemoryDisk(now_ms=clock)
    async with open_store(make_config(ROOT), disk=disk, clock=clock) as store:
        store.append(make_record(0))
        store.notify_arrivals()
        await trio.sleep(130)
        before = disk.read(f"{ROOT}/checkpoint")
        clock.now += 1000
        store.append(make_record(1))
        store.notify_arrivals()
        await store.flush()
        disk.failing_syncs = True
        with pytest.raises(OSError, match="set to fail"):
            await store.flusher.flush_queues(0, checkpoint=True)
        await trio.sleep(130)
        disk.failing_syncs = False
        await trio.sleep(130)
        assert disk.read(f"{ROOT}/checkpoint") == before
    assert disk.read(f"{ROOT}/checkpoint") == before
    assert disk.exists(f"{ROOT}/abort")
    async with open_store(make_config(ROOT), disk=disk.after_power_loss(random.Random(1)), clock=clock) as store:
        assert store.queue_bounds("T", 0) == (0, 2)


async def test_queues_that_the_disk_refuses_are_logged_once(
    autojump_clock: Any, caplog: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """They are tried each second: the log of a broker would fill what is left of the disk."""
    disk = MemoryDisk()
    async with open_store(make_config(ROOT), disk=disk) as store:
        for fault in (1, 2):
            store.append(make_record(fault))
            store.notify_arrivals()
            await store.flusher.flush_log()
            disk.failing_syncs = True
            await trio.sleep(300)
            assert caplog.text.count("queues or index cannot be forced to the disk") == fault
            assert "Traceback" not in caplog.text
            disk.failing_syncs = False
            await trio.sleep(130)
            assert caplog.text.count("are forced to the disk again") == fault


async def test_many_queues_are_flushed_side_by_side_at_the_end(
    autojump_clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """Eight files take a second; an operator who stops the broker waits for 10, not for 40 or 320."""
    disk = SlowDisk()
    config = make_config(ROOT, flush_interval_consume_queue=3_600_000, message_index_enable=False)
    async with open_store(config, disk=disk) as store:
        for n in range(40 * FLUSHED_PER_CHORE):
            store.append(make_record(n, topic=f"T{n}"))
        store.notify_arrivals()
        begin = trio.current_time()
    assert 40 / FLUSHED_AT_ONCE <= trio.current_time() - begin < 20
    assert not disk.exists(f"{ROOT}/abort")
    async with open_store(config, disk=disk.after_power_loss(random.Random(1))) as store:
        assert all(store.queue_bounds(f"T{n}", 0) == (0, 1) for n in range(40 * FLUSHED_PER_CHORE))


@pytest.mark.parametrize("seed", range(20))
def test_a_queue_that_is_passed_over_has_nothing_to_be_forced_to_the_disk(seed: int) -> None:
    chance = random.Random(seed)
    per_file = 300
    queue = ConsumeQueue("T", 0, Segments(MemoryDisk(), f"{ROOT}/consumequeue/T/0", per_file * ENTRY_BYTES))
    passed_over = 0

    def is_flushed() -> bool:
        queue.publish_position()
        return all(segment.flushed >= segment.position for segment in queue.segments.items)

    under_way: list[Unflushed] = []
    for _ in range(1200):
        match chance.choice(("push", "push", "flush", "flush", "flush", "confirm", "rewrite", "blank", "truncate")):
            case "push":
                for _ in range(chance.choice((1, 1, per_file // 2))):
                    queue.push(100 * queue.max_offset, 100, 0)
            case "rewrite" if queue.max_offset:
                number = chance.randrange(queue.max_offset)
                queue.rewrite(number, 100 * number, 100, 1)
            case "blank" if queue.max_offset:
                start = 100 * chance.randrange(queue.max_offset)
                queue.blank(start, start + 100)
            case "truncate" if queue.max_offset:
                queue.truncate(100 * (queue.max_offset - chance.randrange(3)))
            case "flush":
                if queue.flushed_until == queue.max_offset:
                    passed_over += 1
                else:
                    under_way += queue.dirty(chance.choice((0, 0, 2)))
            case "confirm":
                for one in under_way:
                    one.confirm()
                under_way.clear()
        assert queue.flushed_until != queue.max_offset or is_flushed()
        assert all(segment.flushed <= segment.position for segment in queue.segments.items[:-1])
        assert not queue.segments.items or queue.segments.items[-1].flushed <= queue.position
    for one in queue.dirty(0):
        one.confirm()
    assert is_flushed()
    assert queue.dirty(0) == []
    assert queue.flushed_until == queue.max_offset
    assert passed_over > 5


async def test_idle_queues_are_not_looked_at_again(
    autojump_clock: Any, make_config: MakeConfig, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []
    whole = ConsumeQueue.dirty

    def noted(queue: ConsumeQueue, least_pages: int) -> Any:
        looked_at.append(queue.topic)
        return whole(queue, least_pages)

    monkeypatch.setattr(ConsumeQueue, "dirty", noted)
    async with open_store(make_config(ROOT), disk=MemoryDisk()) as store:
        for n in range(50):
            store.append(make_record(n, topic=f"T{n}"))
        store.notify_arrivals()
        await trio.sleep(130)
        looked_at.clear()
        store.append(make_record(50, topic="T7"))
        store.notify_arrivals()
        await trio.sleep(130)
        assert set(looked_at) == {"T7"}


async def test_a_refused_file_ends_a_flush_side_by_side(make_config: MakeConfig, make_record: MakeRecord) -> None:
    disk = MemoryDisk()
    async with open_store(make_config(ROOT), disk=disk) as store:
        for n in range(8):
            store.append(make_record(n, topic=f"T{n}"))
        store.notify_arrivals()
        await store.flusher.flush_log()
        disk.failing_syncs = True
        with pytest.raises(OSError, match="set to fail"):
            await store.flusher.flush_queues(0, checkpoint=True, at_once=3)
        disk.failing_syncs = False


async def test_the_bodys_error_is_raised_unwrapped(make_config: MakeConfig) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_store(make_config(ROOT), disk=MemoryDisk()):
            raise ZeroDivisionError


async def test_cancelled_while_open_closes_in_order(make_config: MakeConfig, make_record: MakeRecord) -> None:
    disk = MemoryDisk()
    with trio.CancelScope() as scope:
        async with open_store(make_config(ROOT), disk=disk) as store:
            store.append(make_record(0))
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert not disk.exists(f"{ROOT}/abort")
    async with open_store(make_config(ROOT), disk=disk) as store:
        assert store.recovery_report.clean
        assert store.queue_bounds("T", 0) == (0, 1)


async def test_a_stop_on_a_disk_that_has_become_read_only_says_what_it_has_not_taken(
    memory_disk: MemoryDisk, clock: Any, make_config: Any, make_record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log file that was made ahead cannot be deleted either."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    config = make_config("/store")
    with monkeypatch.context() as patched:
        async with open_store(config, disk=memory_disk, clock=clock) as store:
            assert store.append(make_record(0)).status is AppendStatus.PUT_OK
            await trio.testing.wait_all_tasks_blocked()
            assert len(memory_disk.list("/store/commitlog")) == 2
            patched.setattr(memory_disk, "remove", refuse)
            patched.setattr(memory_disk, "write", refuse)
            patched.setattr(memory_disk, "check_sync", refuse)
        assert store.not_written == "[Errno 30] Read-only file system"
    async with open_store(config, disk=memory_disk.after_kill(), clock=clock) as store:
        assert store.queue_bounds("T", 0) == (0, 1)
        assert store.append(make_record(1)).status is AppendStatus.PUT_OK
