"""A cancel at every await of the store: no message is lost, and the next flush, pass or start continues from there."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import trio
from cancellation import each_step
from memory_disk import MemoryDisk

from triomq_server.config import FlushDiskType, StoreConfig
from triomq_server.store import NewRecord, open_store
from triomq_server.store.flush.flusher import FLUSHED_PER_CHORE
from triomq_server.store.flush.offset_waiters import OffsetWaiters

ROOT = "/store"
HOUR_MS = 3_600_000
MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]


class SlowDisk(MemoryDisk):
    """A memory disk whose chores take time; a cancel waits for the chore, as it does for a worker thread."""

    async def run(self, chore: Callable[[], Any]) -> Any:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.01)
        await trio.lowlevel.checkpoint_if_cancelled()
        return chore()


async def test_opening_and_closing(
    autojump_clock: Any, clock: Any, make_config: MakeConfig, make_record: MakeRecord, record_number: Any
) -> None:
    disk = SlowDisk(now_ms=clock)
    config = make_config(ROOT, mapped_file_size_commit_log=3000)
    stored = 0
    for _ in range(60):
        async with open_store(config, disk=disk, clock=clock) as store:
            store.append(make_record(stored, queue_id=stored % 3))
            stored += 1
    reached: list[int] = []
    for steps, cancel in enumerate(each_step(), 1):
        with cancel:
            async with open_store(config, disk=disk, clock=clock) as store:
                reached.append(steps)
                store.append(make_record(stored, queue_id=stored % 3))
                stored += 1
                store.notify_arrivals()
                await store.flush()
                await store.cleaner.clean()
        # The lock is free; a store that was open has been closed in order, whatever was cancelled.
        assert disk.exists(f"{ROOT}/abort") == (steps not in reached)
        async with open_store(config, disk=disk, clock=clock) as store:
            assert sum(store.queue_bounds("T", queue_id)[1] for queue_id in range(3)) == stored
            for number in range(stored):
                result = store.read("T", number % 3, number // 3, 1, None)
                assert record_number(result.slices[0]) == number
    assert reached[0] > 3, "no step of the opening was cancelled"
    assert len(reached) > 3, "no step behind it was"


async def test_flushing_the_log(autojump_clock: Any, make_config: MakeConfig, make_record: MakeRecord) -> None:
    disk = SlowDisk()
    config = make_config(ROOT, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    async with open_store(config, disk=disk) as store:
        steps = 0
        for cancel in each_step():
            steps += 1
            answers: list[bool] = []
            for number in range(30):
                end = store.append(make_record(number, size=1000)).end_offset
            store.flusher.when_flushed(end, trio.current_time() + 5, answers.append)
            with cancel:
                await store.flush()
            await trio.sleep(1)
            assert answers == [True]
            await store.flush()
            assert store.flushed_offset == store.log_max_offset
            for segment in store.commitlog.segments.items:
                assert segment.flushed == segment.position
        assert steps > 1


async def test_flushing_queues_and_checkpoint(
    autojump_clock: Any, clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    disk = SlowDisk(now_ms=clock)
    config = make_config(ROOT, flush_interval_consume_queue=HOUR_MS)

    async with open_store(config, disk=disk, clock=clock) as store:
        steps = 0
        for cancel in each_step():
            steps += 1
            clock.now += 1000
            for number in range(6 * FLUSHED_PER_CHORE):
                store.append(make_record(number, queue_id=number % (3 * FLUSHED_PER_CHORE)))
            store.notify_arrivals()
            before = clock.now - 1000
            with cancel:
                await store.flusher.flush_queues(0, checkpoint=True)
            if disk.exists(f"{ROOT}/checkpoint"):
                saved = struct.unpack_from(">3q", disk.read(f"{ROOT}/checkpoint"))[1]
                assert saved in (before, clock.now)
                all_on_disk = not any(queue.dirty(0) for queue in store.consume_queues)
                assert saved == before or all_on_disk, "the checkpoint vouches for more than is on disk"
            await store.flusher.flush_queues(0, checkpoint=True)
            assert not any(queue.dirty(0) for queue in store.consume_queues)
            assert struct.unpack_from(">3q", disk.read(f"{ROOT}/checkpoint"))[1] == clock.now
        assert steps > 3


async def test_expiry(autojump_clock: Any, clock: Any, make_config: MakeConfig, make_record: MakeRecord) -> None:
    disk = MemoryDisk(now_ms=clock)
    config = make_config(
        ROOT, mapped_file_size_commit_log=3000, delete_commit_log_files_interval=10, delete_when="", max_index_num=20
    )
    async with open_store(config, disk=disk, clock=clock) as store:
        steps = number = 0
        for cancel in each_step():
            steps += 1
            for _ in range(40):
                store.append(make_record(number, queue_id=number % 3))
                number += 1
            store.notify_arrivals()
            await store.flush()
            clock.now += 73 * HOUR_MS
            store.cleaner.request_expiry()
            with cancel:
                await store.cleaner.clean()
            while await store.cleaner.clean():
                store.cleaner.request_expiry()
            assert len(store.commitlog.segments.items) == 1
            bases = [int(name) for name in disk.list(f"{ROOT}/commitlog")]
            kept = [segment.base for segment in store.commitlog.segments.items]
            assert bases[:1] == kept
            assert len(bases) <= 2, "besides it at most the file that was prepared ahead"
            for queue_id in range(3):
                low, high = store.queue_bounds("T", queue_id)
                assert all(store.read("T", queue_id, at, 1, None).message_count for at in range(low, high))
                assert store.record_offset_at("T", queue_id, low) >= store.log_min_offset
        assert steps > 5


def record_answer(answers: list[tuple[int, bool]], number: int, done: bool) -> None:
    answers.append((number, done))


async def test_waiters(autojump_clock: Any) -> None:
    steps = 0
    for cancel in each_step():
        steps += 1
        waiters = OffsetWaiters()
        answers: list[tuple[int, bool]] = []
        start = trio.current_time()
        for number in (3, 1, 2):
            waiters.add(100, start + number, partial(record_answer, answers, number))
        with cancel, trio.move_on_after(2.5):
            await waiters.expire_forever()
        waiters.release(100)
        assert sorted(number for number, _ in answers) == [1, 2, 3]
        assert waiters.waiting == 0
    assert answers == [(1, False), (2, False), (3, True)]
    assert steps > 2
