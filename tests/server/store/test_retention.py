"""Expiry: the decisions as tables, then what is deleted with a log file (docs/protocol/store.md §13)."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
from memory_disk import MemoryDisk
from trio.testing import wait_all_tasks_blocked

from triomq_server.config import StoreConfig
from triomq_server.disk.access import DiskUsage
from triomq_server.store import MessageStore, NewRecord, ReadStatus, open_store
from triomq_server.store.retention import SpaceMeasures, count_expired, is_deleting_hour, space_measures, used_ratio
from triomq_server.wire import to_the_end

ROOT = "/store"
HOUR_MS = 3_600_000
FOREVER = 1 << 60
MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]


@pytest.mark.parametrize(
    ("total", "free", "usable", "ratio"),
    [
        (1000, 1000, 1000, 0.0),
        (1000, 250, 250, 0.75),
        (1000, 249, 249, 0.76),  # 75.1 per cent, rounded up
        (1000, 200, 100, 0.89),  # root's reserve does not count as usable: 800 of 900
        (1000, 0, 0, 1.0),
        (0, 0, 0, -1),
    ],
)
def test_used_ratio(total: int, free: int, usable: int, ratio: float) -> None:
    assert used_ratio(DiskUsage(total, free, usable)) == ratio


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((0.10, 0.10), SpaceMeasures(refuse=False, at_once=False, space_full=False)),
        ((0.75, 0.75), SpaceMeasures(refuse=False, at_once=False, space_full=False)),
        ((0.76, 0.10), SpaceMeasures(refuse=False, at_once=False, space_full=True)),
        ((0.85, 0.10), SpaceMeasures(refuse=False, at_once=False, space_full=True)),
        ((0.86, 0.10), SpaceMeasures(refuse=False, at_once=True, space_full=True)),
        ((0.90, 0.10), SpaceMeasures(refuse=False, at_once=True, space_full=True)),
        ((0.91, 0.10), SpaceMeasures(refuse=True, at_once=True, space_full=True)),
        ((0.10, 0.91), SpaceMeasures(refuse=True, at_once=True, space_full=True)),
        ((-1, 0.10), SpaceMeasures(refuse=False, at_once=False, space_full=True)),
    ],
)
def test_space_measures(ratios: tuple[float, float], expected: SpaceMeasures) -> None:
    assert space_measures(ratios, limit=0.75, warning=0.90, forcibly=0.85) == expected


@pytest.mark.parametrize(
    ("delete_when", "hour", "due"),
    [
        ("04", 4, True),
        ("04", 5, False),
        ("4", 4, True),
        ("04;16", 16, True),
        ("04;16", 10, False),
        ("", 0, False),
        ("x", 0, False),
        ("x;\u00b2;04", 4, True),  # a superscript two is a digit to `isdigit`, and none to `int`
    ],
)
def test_in_which_hours_files_are_deleted(delete_when: str, hour: int, due: bool) -> None:
    assert is_deleting_hour(delete_when, hour) is due


@pytest.mark.parametrize(
    ("ages_h", "at_once", "count"),
    [
        ([], False, 0),
        ([80, 73, 72, 71, 90], False, 3),
        ([71, 100], False, 0),
        ([1, 2, 3], True, 3),
        ([100] * 20, False, 10),
        ([1] * 20, True, 10),
    ],
)
def test_count_expired(ages_h: list[int], at_once: bool, count: int) -> None:
    now = 10_000 * HOUR_MS
    modified = [now - h * HOUR_MS for h in ages_h]
    assert count_expired(modified, now_ms=now, reserved_hours=72, at_once=at_once) == count


def in_utc(time_ms: int) -> time.struct_time:
    return time.gmtime(time_ms // 1000)


@pytest.fixture
def four_oclock(clock: Any) -> Any:
    """A clock whose local hour is not 4 until it is turned; gives the function that turns it to the next 04:00."""

    def turn() -> None:
        clock.now += HOUR_MS
        while in_utc(clock.now).tm_hour != 4:
            clock.now += HOUR_MS

    turn()
    clock.now += 3 * HOUR_MS
    return turn


async def fill(store: MessageStore, make_record: MakeRecord, count: int = 60) -> None:
    for n in range(count):
        store.append(make_record(n, queue_id=n % 2, keys=f"k{n}"))
        store.notify_arrivals()
    await store.flush()


def settings(make_config: MakeConfig, **more: Any) -> StoreConfig:
    ratios = {
        "disk_max_used_space_ratio": 75,
        "disk_space_warning_level_ratio": 0.90,
        "disk_space_clean_forcibly_ratio": 0.85,
    }
    return make_config(ROOT, mapped_file_size_commit_log=3000, delete_commit_log_files_interval=0, **ratios, **more)


async def test_files_are_deleted_at_their_hour_with_their_queue_and_index_files(
    memory_disk: MemoryDisk, clock: Any, four_oclock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(
        settings(make_config, max_index_num=20), disk=memory_disk, clock=clock, local_time=in_utc
    ) as store:
        await fill(store, make_record)
        await store.flusher.flush_queues(0, checkpoint=False)
        log_files = len(store.commitlog.segments.items)
        clock.now += 71 * HOUR_MS
        four_oclock()
        if clock.now - memory_disk.modified_ms(f"{ROOT}/commitlog/{0:020d}") < 72 * HOUR_MS:
            assert await store.cleaner.clean() == 0
        clock.now += 30 * HOUR_MS
        while in_utc(clock.now).tm_hour == 4:
            clock.now += HOUR_MS
        assert await store.cleaner.clean() == 0  # old enough, but not the hour
        four_oclock()
        deleted = await store.cleaner.clean()
        assert deleted == min(10, log_files - 1)
        start = store.log_min_offset
        assert start == deleted * 3000
        for queue_id in range(2):
            low, high = store.queue_bounds("T", queue_id)
            assert high == 30
            assert store.record_offset_at("T", queue_id, low) >= start
            assert low == 0 or store.consume_queues.get("T", queue_id).entry(low - 1) is None
            assert store.read("T", queue_id, low, 1, None).status is ReadStatus.FOUND
            first = int(memory_disk.list(f"{ROOT}/consumequeue/T/{queue_id}")[0])
            assert first == low // 10 * 200
        assert store.index.files[0].end_offset >= start
        assert len(to_the_end(store.query("T", "k59", 10, 0, FOREVER)).records) == 1
        bounds = [store.queue_bounds("T", q) for q in range(2)]
    async with open_store(
        settings(make_config, max_index_num=20), disk=memory_disk, clock=clock, local_time=in_utc
    ) as store:
        assert [store.queue_bounds("T", q) for q in range(2)] == bounds
        assert store.log_min_offset == start
        assert store.earliest_time() > 0


@pytest.mark.parametrize(
    ("used", "forcibly", "some_deleted"),
    [(0.5, True, False), (0.8, True, False), (0.88, True, True), (0.88, False, False)],
)
async def test_files_are_deleted_early_when_the_disk_fills_up(
    used: float, forcibly: bool, some_deleted: bool, clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    disk = MemoryDisk(now_ms=clock, capacity_bytes=10_000 * 4096)
    config = settings(make_config, clean_file_forcibly_enable=forcibly, delete_when="")
    async with open_store(config, disk=disk, clock=clock, local_time=in_utc) as store:
        await fill(store, make_record)
        disk.used_bytes = int(disk.capacity_bytes * used)
        assert (await store.cleaner.clean() > 0) == some_deleted
        assert store.writable
        if not some_deleted:
            # Expired files go at any hour once the disk is fuller than diskMaxUsedSpaceRatio.
            clock.now += 73 * HOUR_MS
            assert (await store.cleaner.clean() > 0) == (used > 0.75)


async def test_the_operators_request(
    autojump_clock: Any, clock: Any, memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    config = settings(make_config, delete_when="")
    async with open_store(config, disk=memory_disk, clock=clock, local_time=in_utc) as store:
        await fill(store, make_record, 120)
        clock.now += 73 * HOUR_MS
        await trio.sleep(105)
        assert store.log_min_offset == 0
        store.cleaner.request_expiry()
        await trio.sleep(8)
        assert store.log_min_offset == 30_000
        await trio.sleep(300)
        assert store.log_min_offset == store.log_max_offset // 3000 * 3000  # never the last file


async def test_a_file_that_cannot_be_deleted_stays_readable(
    memory_disk: MemoryDisk,
    clock: Any,
    make_config: MakeConfig,
    make_record: MakeRecord,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """For example an immutable one. Later passes must not forget one more file each."""
    async with open_store(settings(make_config), disk=memory_disk, clock=clock, local_time=in_utc) as store:
        await fill(store, make_record)
        clock.now += 100 * HOUR_MS
        files = [segment.path for segment in store.commitlog.segments.items]
        remove = memory_disk.remove

        def refuse(path: str) -> None:
            if path == files[2]:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
            remove(path)

        store.cleaner.request_expiry()
        with monkeypatch.context() as patch:
            patch.setattr(memory_disk, "remove", refuse)
            assert [await store.cleaner.clean() for _ in range(3)] == [2, 0, 0]
        assert [segment.path for segment in store.commitlog.segments.items] == files[2:]
        assert store.log_min_offset == 2 * 3000
        low, _ = store.queue_bounds("T", 0)
        found = store.read("T", 0, low, 1, None)
        assert found is not None
        assert found.status is ReadStatus.FOUND
        assert (
            caplog.text.count(f"cannot be deleted, and is kept: [Errno 1] Operation not permitted: '{files[2]}'") == 1
        )
        assert await store.cleaner.clean() == len(files) - 3


async def test_files_that_somebody_has_removed_keep_no_others_from_being_deleted(
    memory_disk: MemoryDisk, clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """They are at least as old as the next file that is still there."""
    async with open_store(settings(make_config), disk=memory_disk, clock=clock, local_time=in_utc) as store:
        await fill(store, make_record)
        files = [segment.path for segment in store.commitlog.segments.items]
        for path in (files[0], files[2], files[3]):
            memory_disk.remove(path)
        store.cleaner.request_expiry()
        assert await store.cleaner.clean() == 0
        clock.now += 100 * HOUR_MS
        deleted = await store.cleaner.clean()
        assert deleted == min(len(files) - 1, 10)
        assert store.log_min_offset == deleted * 3000


@pytest.mark.parametrize("kept_files", [0, 1, 2, 3])
@pytest.mark.parametrize("appended", [0, 3])
async def test_a_cut_between_two_deletions_ends_the_pass(
    kept_files: int,
    appended: int,
    memory_disk: MemoryDisk,
    clock: Any,
    make_config: MakeConfig,
    make_record: MakeRecord,
    nursery: trio.Nursery,
    autojump_clock: object,
) -> None:
    """What has been appended since then has not expired."""
    config = attrs.evolve(settings(make_config), delete_commit_log_files_interval=100)
    async with open_store(config, disk=memory_disk, clock=clock, local_time=in_utc) as store:
        await fill(store, make_record)
        clock.now += 100 * HOUR_MS
        store.cleaner.request_expiry()
        nursery.start_soon(store.cleaner.clean)
        await wait_all_tasks_blocked()
        assert store.log_min_offset == 3000
        await store.cut(3000 * kept_files)
        ends = [store.append(make_record(n, size=2000)).physical_offset for n in range(appended)]
        await trio.sleep(10)
        assert store.log_min_offset == 3000 * kept_files
        assert len(store.commitlog.segments.items) == (appended or min(kept_files, 1))
        assert [store.record_at(end) is not None for end in ends] == [True] * appended


async def test_queues_follow_a_log_that_begins_again_with_a_lower_offset(
    memory_disk: MemoryDisk, clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(settings(make_config), disk=memory_disk, clock=clock, local_time=in_utc) as store:
        await fill(store, make_record)
        clock.now += 100 * HOUR_MS
        store.cleaner.request_expiry()
        assert await store.cleaner.clean() == 7
        await store.cut(0)
        await fill(store, make_record, 40)
        clock.now += 100 * HOUR_MS
        assert await store.cleaner.clean() == 4
        assert store.log_min_offset == 4 * 3000
        for queue_id in range(2):
            low, high = store.queue_bounds("T", queue_id)
            assert store.record_offset_at("T", queue_id, low) >= 4 * 3000
            assert high == 20


async def test_a_cut_while_queues_follow_the_log_hides_no_message(
    memory_disk: MemoryDisk,
    clock: Any,
    make_config: MakeConfig,
    make_record: MakeRecord,
    nursery: trio.Nursery,
    autojump_clock: object,
) -> None:
    config = attrs.evolve(settings(make_config), delete_consume_queue_files_interval=100)
    async with open_store(config, disk=memory_disk, clock=clock, local_time=in_utc) as store:
        await fill(store, make_record)
        clock.now += 100 * HOUR_MS
        store.cleaner.request_expiry()
        done = trio.Event()

        async def clean() -> None:
            await store.cleaner.clean()
            done.set()

        nursery.start_soon(clean)
        await wait_all_tasks_blocked()
        assert store.log_min_offset == 7 * 3000  # and the pass pauses after the first queue
        assert not done.is_set()
        await store.cut(0)
        await fill(store, make_record, 20)
        await done.wait()
        assert [store.queue_bounds("T", queue_id) for queue_id in range(2)] == [(0, 10), (0, 10)]


@pytest.mark.parametrize("place", ["consumequeue/T/0", "index"])
async def test_a_queue_or_index_file_that_cannot_be_deleted(
    memory_disk: MemoryDisk,
    clock: Any,
    make_config: MakeConfig,
    make_record: MakeRecord,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: str,
) -> None:
    """It keeps nothing else back, stays one of the files, and goes when the disk allows it."""
    config = settings(make_config, max_index_num=20)
    async with open_store(config, disk=memory_disk, clock=clock, local_time=in_utc) as store:
        await fill(store, make_record)
        assert store.index is not None
        clock.now += 100 * HOUR_MS
        index_files = len(store.index.files)
        remove = memory_disk.remove

        def refuse(path: str) -> None:
            if path.startswith(f"{ROOT}/{place}/"):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
            remove(path)

        store.cleaner.request_expiry()
        with monkeypatch.context() as patch:
            patch.setattr(memory_disk, "remove", refuse)
            assert [await store.cleaner.clean() > 0 for _ in range(3)] == [True, False, False]
        for queue_id in range(2):
            low, _ = store.queue_bounds("T", queue_id)
            assert store.record_offset_at("T", queue_id, low) >= store.log_min_offset > 0
        assert (len(store.index.files) == index_files) == (place == "index")
        assert len(memory_disk.list(f"{ROOT}/index")) == len(store.index.files)
        assert len(to_the_end(store.query("T", "k59", 10, 0, FOREVER)).records) == 1
        to_the_end(store.query("T", "k0", 10, 0, FOREVER))
        assert caplog.text.count("a file of a queue or of the index that has expired cannot be deleted") == 1
        kept = memory_disk.list(f"{ROOT}/{place}")
        await store.cleaner.clean()
        assert len(memory_disk.list(f"{ROOT}/{place}")) < len(kept)
        assert len(memory_disk.list(f"{ROOT}/index")) == len(store.index.files) < index_files


async def test_removing_queues(memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord) -> None:
    async with open_store(settings(make_config), disk=memory_disk) as store:
        for n in range(20):
            store.append(make_record(n, topic="Old", queue_id=n % 2))
        for topic in ("A", "B", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "%LMQ%x"):
            store.append(make_record(0, topic=topic))
        while store.log_max_offset < 15_000:
            store.append(make_record(0, topic="B"))
        assert await store.queue_removal.remove_expired() == 0
        while store.log_min_offset < 12_000:
            store.commitlog.delete_first()
        assert await store.queue_removal.remove_expired() == 5
        assert set(store.queues()) == {("B", 0), ("SCHEDULE_TOPIC_XXXX", 0)}
        assert "Old" not in memory_disk.list(f"{ROOT}/consumequeue")
        store.append(make_record(0, topic="RMQ_SYS_TRANS_OP_HALF_TOPIC"))
        store.append(make_record(0, topic="%LMQ%x"))
        store.append(make_record(0, topic="A"))
        assert store.append(make_record(0, topic="Old")).queue_offset == 10
        assert await store.queue_removal.remove_unused({"A"}) == 2
        assert {t for t, _ in store.queues()} == {"A", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "%LMQ%x"}
        assert await store.queue_removal.remove_topic("A") == 1
        assert store.queue_bounds("A", 0) == (2, 2)
        assert store.read("A", 0, 0, 1, None).status is ReadStatus.OFFSET_TOO_SMALL


async def test_a_removed_queue_whose_file_cannot_be_deleted(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays as it was, and is removed when the disk allows it."""
    async with open_store(settings(make_config), disk=memory_disk) as store:
        for n in range(10):
            store.append(make_record(n, topic="Old"))
        while store.log_max_offset < 5000:
            store.append(make_record(0, topic="B"))
        remove = memory_disk.remove

        def refuse(path: str) -> None:
            if path.startswith(f"{ROOT}/consumequeue/Old/"):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
            remove(path)

        with monkeypatch.context() as patch:
            patch.setattr(memory_disk, "remove", refuse)
            with pytest.raises(PermissionError):
                await store.queue_removal.remove_topic("Old")
        assert store.queue_bounds("Old", 0) == (0, 10)
        assert store.append(make_record(10, topic="Old")).queue_offset == 10
        assert [store.read("Old", 0, n, 1, None).status for n in (0, 9, 10)] == [ReadStatus.FOUND] * 3
        while store.log_max_offset < 9000:
            store.append(make_record(0, topic="B"))
        while store.log_min_offset < 6000:
            store.commitlog.delete_first()
        assert await store.queue_removal.remove_expired() == 1
        assert "Old" not in memory_disk.list(f"{ROOT}/consumequeue")
        assert store.append(make_record(11, topic="Old")).queue_offset == 11


async def test_a_completely_expired_queue_moves_its_minimum_to_its_end(
    memory_disk: MemoryDisk, clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """Java leaves the minimum where it was, and pulls crawl through entries without records."""
    async with open_store(settings(make_config), disk=memory_disk, clock=clock, local_time=in_utc) as store:
        for n in range(5):
            store.append(make_record(n, topic="Old"))
        while store.log_max_offset < 9000:
            store.append(make_record(0, topic="New"))
        store.commitlog.delete_first()
        store.commitlog.delete_first()
        await store.cleaner.follow_log_min()
        assert store.queue_bounds("Old", 0) == (5, 5)
        assert store.read("Old", 0, 0, 1, None).status is ReadStatus.OFFSET_TOO_SMALL
        assert store.append(make_record(6, topic="Old")).queue_offset == 5
        assert store.read("Old", 0, 5, 1, None).status is ReadStatus.FOUND
