"""Damaged files of a store other than the log's: it starts, builds them again from the log, and loses nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from memory_disk import MemoryDisk, NothingUnforced
from trio.testing import wait_all_tasks_blocked

from triomq_protocol.record.view import RecordView
from triomq_server.config import StoreConfig
from triomq_server.store import MessageStore, NewRecord, ReadStatus, open_store
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.store.dispatch import dispatcher
from triomq_server.store.dispatch.dispatcher import Dispatcher
from triomq_server.store.entry_layout import BLANK_SIZE, ENTRY
from triomq_server.store.files.checkpoint import Checkpoint
from triomq_server.store.files.segments import Segments, StoreDamaged
from triomq_server.store.flush import flusher
from triomq_server.store.placement import put_entry
from triomq_server.store.recovery import queue_check, recovery
from triomq_server.wire import to_the_end

MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]
FOREVER = 1 << 60
RECORDS = 75
QUEUES = 2


@pytest.fixture
async def closed(tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord) -> StoreConfig:
    """A store of two queues with four files each, closed in order."""
    config = make_config(tmp_path / "store", mapped_file_size_commit_log=8192)
    async with open_store(config) as store:
        for n in range(RECORDS):
            store.append(make_record(n, queue_id=n % QUEUES))
    return config


async def all_numbers(store: MessageStore, record_number: Callable[[memoryview], int], most: int = 1) -> list[int]:
    """The numbers of all records that the queues give, in order; where an entry is being repaired, waits for that."""
    found = []
    for queue_id in range(QUEUES):
        at, high = store.queue_bounds("T", queue_id)
        while at < high:
            result = store.read("T", queue_id, at, most, None)
            assert result is not None
            if result.status is ReadStatus.OFFSET_OVERFLOW_ONE:
                await wait_all_tasks_blocked()
                result = store.read("T", queue_id, at, most, None)
                assert result is not None
                assert result.status is not ReadStatus.OFFSET_OVERFLOW_ONE
            for records in result.slices:
                position = 0
                while position < len(records):
                    record = RecordView(records, position)
                    found.append(record_number(records[position:]))
                    position += record.size_bytes
            assert result.next_offset > at
            at = result.next_offset
    return sorted(found)


def give_length(file: Path, length: int) -> None:
    """Cut a file off, or let it go on with bytes that mean nothing."""
    file.write_bytes(file.read_bytes()[:length].ljust(length, b"\xff"))


async def assert_whole(config: StoreConfig, make_record: MakeRecord, record_number: Any) -> None:
    """All records are there, by queue and by key; numbers go on; nothing of the damage is left at the next start."""
    async with open_store(config) as store:
        assert await all_numbers(store, record_number) == list(range(RECORDS))
        for n in range(RECORDS):
            assert len(to_the_end(store.query("T", f"{n:032X}", 10, 0, FOREVER)).records) == 1
        assert [store.append(make_record(RECORDS + n, queue_id=n)).queue_offset for n in range(QUEUES)] == [38, 37]
    async with open_store(config) as store:
        assert await all_numbers(store, record_number) == list(range(RECORDS + QUEUES))


def file_of(config: StoreConfig, path: str) -> Path:
    return Path(config.store_path_root_dir, path)


def queue_file(config: StoreConfig, base: int = 0) -> Path:
    return Path(config.store_path_root_dir, "consumequeue", "T", "0", f"{base:020d}")


@pytest.mark.parametrize(
    ("base", "length", "abort"), [(0, 100, False), (0, 201, True), (200, 1, True), (600, 199, False), (600, 4096, True)]
)
async def test_a_queue_file_of_a_wrong_length_is_built_again(
    base: int, length: int, abort: bool, closed: StoreConfig, make_record: MakeRecord, record_number: Any, caplog: Any
) -> None:
    file = queue_file(closed, base)
    give_length(file, length)
    if abort:
        file_of(closed, "abort").write_bytes(b"")
    await assert_whole(closed, make_record, record_number)
    assert f"damaged or missing from entry {base // 20} on" in caplog.text
    assert f"has {length} bytes" in caplog.text


@pytest.mark.parametrize("base", [200, 600])
async def test_a_missing_queue_file_is_built_again(
    base: int, closed: StoreConfig, make_record: MakeRecord, record_number: Any
) -> None:
    queue_file(closed, base).unlink()
    await assert_whole(closed, make_record, record_number)


@pytest.mark.parametrize("bases", [(0,), (0, 200), (0, 400), (0, 200, 400)])
@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("empty", [False, True])
async def test_missing_first_files_of_a_queue_are_built_again(
    bases: tuple[int, ...], abort: bool, empty: bool, closed: StoreConfig, make_record: MakeRecord, record_number: Any,
    caplog: Any
) -> None:  # fmt: skip
    for base in bases:
        if empty:
            queue_file(closed, base).write_bytes(b"")
        else:
            queue_file(closed, base).unlink()
    if abort:
        file_of(closed, "abort").write_bytes(b"")
    await assert_whole(closed, make_record, record_number)
    first = min({0, 200, 400, 600}.difference(bases)) // 20
    assert f"queue T-0: its files in front of entry {first} are missing" in caplog.text


@pytest.mark.parametrize(
    ("lost", "old"), [("file", False), ("file", True), ("content", False), ("content", True), ("directory", False)]
)
@pytest.mark.parametrize("abort", [False, True])
async def test_a_queue_without_files_is_built_again(
    lost: str, abort: bool, old: bool, make_config: MakeConfig, make_record: MakeRecord, clock: Any, caplog: Any
) -> None:
    """Of which the part of the log that a start reads has the last messages, or (old) none at all."""
    sizes = {"mapped_file_size_commit_log": 8192, "mapped_file_size_consume_queue": 4000}
    config, disk = make_config("/store", **sizes), MemoryDisk()
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in range(150):
            clock.now += 10_000
            store.append(make_record(n, queue_id=int(n % 2 == 0 or (old and n >= 60))))
        bounds = store.queue_bounds("T", 0)
    if lost == "directory":
        disk.remove_tree("/store/consumequeue/T/0")
    elif lost == "file":
        disk.remove(f"/store/consumequeue/T/0/{0:020d}")
    else:
        disk.write(f"/store/consumequeue/T/0/{0:020d}", b"")
    if abort:
        disk.write("/store/abort", b"")
    async with open_store(config, disk=disk, clock=clock) as store:
        assert store.queue_bounds("T", 0) == bounds
    assert sum("built again from the log" in line for line in caplog.messages) == 1
    async with open_store(config, disk=disk, clock=clock) as store:
        assert store.queue_bounds("T", 0) == bounds
    assert sum("built again from the log" in line for line in caplog.messages) == 1


async def test_an_empty_directory_of_a_queue_without_messages_is_removed(
    make_config: MakeConfig, make_record: MakeRecord, caplog: Any
) -> None:
    config, disk = make_config("/store"), MemoryDisk()
    async with open_store(config, disk=disk) as store:
        store.append(make_record(0))
    disk.make_directory("/store/consumequeue/T/7")
    for _ in range(2):
        async with open_store(config, disk=disk) as store:
            assert store.queue_bounds("T", 0) == (0, 1)
            assert not disk.is_directory("/store/consumequeue/T/7")
    assert sum("queue T-7: it has no files" in line for line in caplog.messages) == 1


async def test_a_topic_that_is_named_like_a_directory_of_another_does_not_prevent_a_start(
    make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """A master of 4.9.7 accepts such names."""
    config, disk = make_config("/store"), MemoryDisk()
    async with open_store(make_config("/master"), disk=disk) as master:
        master.append(make_record(0, topic="T.0"))
        end = master.append(make_record(1)).end_offset
        data = bytes(master.commitlog.segments.items[0].buffer[:end])
    disk.make_directory("/store/consumequeue/T/0")
    for _ in range(2):
        async with open_store(config, disk=disk, is_slave=True) as slave:
            if not slave.log_max_offset:
                slave.append_raw(data.replace(b"T.0", b"T/0"), 0)
                slave.notify_arrivals()


async def test_a_queue_that_is_built_again_keeps_its_end(make_config: MakeConfig, make_record: MakeRecord) -> None:
    """Its last record was damaged, and its entry is blank: groups have consumed that number."""
    config, disk = make_config("/store"), MemoryDisk()
    async with open_store(config, disk=disk) as store:
        for n in range(50):
            store.append(make_record(n, queue_id=int(n >= 30)))
        damaged = store.record_offset_at("T", 0, 29)
    disk.files[f"/store/commitlog/{0:020d}"].buffer[damaged + 108] ^= 4
    async with open_store(config, disk=disk):
        pass
    disk.remove(f"/store/consumequeue/T/0/{0:020d}")
    async with open_store(config, disk=disk) as store:
        assert store.queue_bounds("T", 0) == (0, 30)
        assert store.append(make_record(50)).queue_offset == 30
    async with open_store(config, disk=disk) as store:
        assert store.queue_bounds("T", 0) == (0, 31)


@pytest.mark.parametrize("what", ["queue", "index"])
async def test_damage_of_the_log_does_not_end_what_is_built_again(
    what: str, make_config: MakeConfig, make_record: MakeRecord, caplog: Any
) -> None:
    """After a clean stop only the last files of the log are checked, and all of it is read for a damaged queue."""
    config, disk = make_config("/store", mapped_file_size_commit_log=4096), MemoryDisk()
    async with open_store(config, disk=disk) as store:
        for n in range(RECORDS):
            store.append(make_record(n, queue_id=n % QUEUES))
        damaged = store.record_offset_at("T", 0, 5)
    disk.files[f"/store/commitlog/{0:020d}"].buffer[damaged + 5] ^= 1
    paths = {
        "queue": [f"/store/consumequeue/T/0/{base:020d}" for base in (200, 400, 600)],
        "index": [path for path in disk.files if path.startswith("/store/index/")],
    }
    for path in paths[what]:
        disk.remove(path)
    if what == "index":
        disk.write("/store/triomq/reindexFrom", b"0")
    async with open_store(config, disk=disk) as store:
        assert store.queue_bounds("T", 0) == (0, 38)
        entries = [store.queue_entry("T", 0, n) or (0, 0, 0) for n in range(38)]
        assert [n for n in range(38) if entries[n][1] == BLANK_SIZE] == ([5] if what == "queue" else [])
        found = [bool(to_the_end(store.query("T", f"{n:032X}", 10, 0, FOREVER)).records) for n in range(RECORDS)]
        assert [n for n, is_found in enumerate(found) if not is_found] == [10]
        assert store.append(make_record(RECORDS)).queue_offset == 38
    line = (
        f"the log holds neither a record nor an end-of-file mark at offset {damaged}: queues and index that are built"
    )
    assert caplog.text.count(line) == 1


async def test_a_kill_while_first_files_are_built_again_loses_nothing(
    make_config: MakeConfig, make_record: MakeRecord, record_number: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a start after the kill reads only the end of the log, by the checkpoint's times."""
    config, disk = make_config("/store", mapped_file_size_commit_log=8192), MemoryDisk()
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in range(RECORDS):
            clock.now += 10_000
            store.append(make_record(n, queue_id=n % QUEUES if n >= 40 else 1))
    disk.remove("/store/consumequeue/T/0/00000000000000000000")
    killed: list[MemoryDisk] = []

    def put_and_kill(queue: ConsumeQueue, *arguments: int, fill: bool) -> bool:
        done = put_entry(queue, *arguments, fill=fill)
        killed.append(disk.after_kill())
        return done

    with monkeypatch.context() as patch:
        for module in (dispatcher, queue_check, recovery):
            patch.setattr(module, "put_entry", put_and_kill)
        async with open_store(config, disk=disk):
            pass
    assert killed
    for left in [*killed, disk]:
        async with open_store(config, disk=left) as store:
            assert await all_numbers(store, record_number) == list(range(RECORDS))


IDLE = 38
"""Messages of a queue that is idle since: none of its records is in the part of the log that a start checks."""


async def with_idle_queue(config: StoreConfig, make_record: MakeRecord, clock: Any) -> MemoryDisk:
    """A store closed in order, with 38 messages in queue 0 and later ones in queue 1."""
    disk = MemoryDisk(now_ms=clock)
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in range(200):
            clock.now += 10_000
            store.append(make_record(n, queue_id=int(n >= IDLE)))
    return disk


@asynccontextmanager
async def open_with_hundred(
    config: StoreConfig, disk: MemoryDisk, make_record: MakeRecord, clock: Any
) -> AsyncIterator[ConsumeQueue]:
    """The queue of an open store with 100 messages."""
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in range(100):
            store.append(make_record(n))
        queue = store.consume_queues.get("T", 0)
        assert queue is not None
        yield queue


async def with_one_entry_left(config: StoreConfig, disk: MemoryDisk, make_record: MakeRecord, clock: Any) -> int:
    """A store closed in order, with message 10 in queue 0, the first one of a file, and those in front of it expired.

    Returns where the message is in the log, whose files have 8192 bytes.
    """
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in range(10):
            store.append(make_record(n))
        for n in range(60):
            store.append(make_record(n, queue_id=1))
        last = store.append(make_record(70))
    assert last.queue_offset == 10
    disk.remove(f"/store/commitlog/{0:020d}")
    disk.remove(f"/store/consumequeue/T/0/{0:020d}")
    return last.physical_offset


def lose_record(disk: MemoryDisk, offset: int) -> None:
    """Put zeros in place of a record of the log, whose files have 8192 bytes."""
    at = offset % 8192
    disk.open(f"/store/commitlog/{offset - at:020d}").buffer[at : at + 400] = bytes(400)


def damage_idle_queue(disk: MemoryDisk, what: str) -> None:
    files = sorted(path for path in disk.files if "/consumequeue/T/0/" in path)
    assert len(files) == 4
    if what == "an entry":
        disk.open(files[1]).buffer[60:80] = bytes(20)
    elif what == "last entry":
        disk.open(files[3]).buffer[140:160] = ENTRY.pack(1 << 20, 200, 0)
    elif what.startswith("two entries"):
        # The first one stays what an entry may be: it points behind the log's end, or to a record that ends there.
        offset, size = (1 << 50, 200) if what.endswith("offset") else (400, 1 << 30)
        buffer = disk.open(files[1]).buffer
        buffer[:40] = ENTRY.pack(offset, size, 0) + bytes(20)
    elif what == "a wrong length":
        content = disk.open(files[1]).buffer[:]
        disk.remove(files[1])
        disk.write(files[1], content[:100])
    else:
        lost = {"first file": files[:1], "second file": files[1:2], "all files": files, "last file": files[3:]}
        for path in lost[what]:
            disk.remove(path)


@pytest.mark.parametrize("power", [False, True])
async def test_a_kill_while_a_file_is_put_in_place_of_a_missing_one(
    power: bool, make_config: MakeConfig, make_record: MakeRecord, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its mark, nothing behind it can be walked to: queues that lie there could not be built again."""
    config = make_config("/store", mapped_file_size_commit_log=8192)
    disk = await with_idle_queue(config, make_record, clock)
    missing = f"/store/commitlog/{8192:020d}"
    disk.remove(missing)
    killed: list[MemoryDisk] = []
    create = MemoryDisk.create

    def create_and_kill(owner: MemoryDisk, path: str, *arguments: Any, **more: Any) -> Any:
        made = create(owner, path, *arguments, **more)
        killed.append(disk.after_power_loss(NothingUnforced()) if power else disk.after_kill())
        return made

    with monkeypatch.context() as patch:
        patch.setattr(MemoryDisk, "create", create_and_kill)
        async with open_store(config, disk=disk, clock=clock):
            pass
    left = killed[0]
    assert left.exists(missing)
    for path in [path for path in left.files if "/consumequeue/T/1/" in path]:
        left.remove(path)
    async with open_store(config, disk=left, clock=clock) as store:
        _, high = store.queue_bounds("T", 1)
        assert high == 200 - IDLE
        found = store.read("T", 1, high - 1, 1, None)
        assert found is not None
        assert found.status is ReadStatus.FOUND


@pytest.mark.parametrize("left", [None, b""])
async def test_an_empty_copy_of_a_damaged_part_tells_nothing_of_its_file(
    left: bytes | None, make_config: MakeConfig, make_record: MakeRecord, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A kill, or a full disk, leaves one when the first bytes of a log file are damaged. All others stay readable."""
    config = make_config("/store", mapped_file_size_commit_log=8192)
    disk = await with_idle_queue(config, make_record, clock)
    disk.open(f"/store/commitlog/{8192:020d}").buffer[:100] = bytes(100)
    if left is not None:
        disk.write(f"/store/triomq/damaged/{8192:020d}", left)
    disk.remove_tree("/store/consumequeue/T/0")
    disk.make_directory("/store/consumequeue/T/0")
    disk.write("/store/abort", b"")
    async with open_store(config, disk=disk, clock=clock) as store:
        low, high = store.queue_bounds("T", 0)
        entries = [store.queue_entry("T", 0, number) for number in range(low, high)]
        low, high = store.queue_bounds("T", 1)
        entries += [store.queue_entry("T", 1, number) for number in range(low, high)]
    assert sum(1 for entry in entries if entry is not None and entry[1] != BLANK_SIZE) == 199
    assert "no log file" not in caplog.text


async def test_after_a_kill_the_only_entry_of_a_queue_points_far_behind_the_log(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    """It is damaged, and its record may lie in front of the part of the log that the start checks."""
    config = make_config("/store", mapped_file_size_commit_log=8192)
    disk = MemoryDisk(now_ms=clock)
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in range(200):
            clock.now += 10_000
            store.append(make_record(n, queue_id=int(n > 0)))
    disk.open(f"/store/consumequeue/T/0/{0:020d}").buffer[2] ^= 1
    disk.write("/store/abort", b"")
    async with open_store(config, disk=disk, clock=clock) as store:
        assert store.queue_bounds("T", 0) == (0, 1)
        assert store.append(make_record(200, queue_id=0)).queue_offset == 1


async def test_many_queues_that_miss_the_same_part_of_the_log(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is walked through once, not once more for each of the queues."""
    queues, each = 60, 12
    config = make_config("/store", mapped_file_size_commit_log=8192)
    disk = MemoryDisk(now_ms=clock)
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in range(queues * each):
            store.append(make_record(n, queue_id=n % queues))
    files = sorted(path for path in disk.files if "/commitlog/" in path)
    for path in files[len(files) // 4 : len(files) // 2]:
        disk.remove(path)
    for queue_id in range(queues):
        disk.remove_tree(f"/store/consumequeue/T/{queue_id}")
        disk.make_directory(f"/store/consumequeue/T/{queue_id}")
    dispatched = []
    dispatch = Dispatcher.dispatch

    def count(owner: Dispatcher, record: Any, **options: Any) -> None:
        dispatched.append(record.offset)
        dispatch(owner, record, **options)

    monkeypatch.setattr(Dispatcher, "dispatch", count)
    async with open_store(config, disk=disk, clock=clock) as store:
        for queue_id in range(queues):
            assert store.queue_bounds("T", queue_id) == (0, each)
    assert len(dispatched) <= queues * (each + 1)


DAMAGES = [
    "an entry", "two entries, offset", "two entries, size", "a wrong length", "first file", "second file",
    "all files", "last file", "last entry",
]  # fmt: skip


@pytest.mark.parametrize("what", DAMAGES[:-3])
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_queue_without_its_last_records_keeps_its_end_when_it_is_built_again(
    at_once: bool, what: str, make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    """The records of its last four messages are damaged, and so is the queue further in front, later or at once."""
    config = make_config("/store", mapped_file_size_commit_log=8192)
    disk = await with_idle_queue(config, make_record, clock)
    queue = b"".join(disk.read(path) for path in sorted(disk.files) if "/consumequeue/T/0/" in path)
    for offset, _, _ in list(ENTRY.iter_unpack(queue))[IDLE - 4 : IDLE]:
        lose_record(disk, offset)
    disk.write("/store/abort", b"")
    disk.remove("/store/checkpoint")
    if not at_once:
        async with open_store(config, disk=disk, clock=clock) as store:
            assert store.queue_bounds("T", 0) == (0, IDLE)
    damage_idle_queue(disk, what)
    async with open_store(config, disk=disk, clock=clock) as store:
        assert store.queue_bounds("T", 0) == (0, IDLE)
        entries = [store.queue_entry("T", 0, n) or (0, 0, 0) for n in range(IDLE)]
        assert [n for n in range(IDLE) if entries[n][1] == BLANK_SIZE] == [*range(IDLE - 4, IDLE)]
        assert store.append(make_record(200)).queue_offset == IDLE
    async with open_store(config, disk=disk, clock=clock) as store:
        assert store.queue_bounds("T", 0) == (0, IDLE + 1)


@pytest.mark.parametrize("directory", ["T/0", "T"])
async def test_a_lost_directory_of_idle_queues_is_built_again(
    directory: str, make_config: MakeConfig, make_record: MakeRecord, clock: Any, caplog: Any
) -> None:
    """Also that of a topic, which might have been deleted."""
    config, disk = make_config("/store", mapped_file_size_commit_log=8192), MemoryDisk(now_ms=clock)
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in range(200):
            clock.now += 10_000
            store.append(make_record(n, topic="U" if n >= IDLE else "T"))
    disk.remove_tree(f"/store/consumequeue/{directory}")
    async with open_store(config, disk=disk, clock=clock) as store:
        assert store.queue_bounds("T", 0) == (0, IDLE)
        assert store.append(make_record(200)).queue_offset == IDLE
    line = f"{IDLE} queue entries are missing that were there when the store was closed"
    assert caplog.text.count(line) == 1
    async with open_store(config, disk=disk, clock=clock) as store:
        assert store.queue_bounds("T", 0) == (0, IDLE + 1)
    assert caplog.text.count(line) == 1


@pytest.mark.parametrize(
    ("number", "entries"),
    [(1, ENTRY.pack(0, BLANK_SIZE & ~0xFF, 0) + bytes(20)), (2, ENTRY.pack(1 << 20, 200, 0))],
    ids=["blank", "behind the log's end"],
)
async def test_a_damaged_entry_of_a_queue_that_was_removed_hides_no_message(
    number: int, entries: bytes, make_config: MakeConfig, make_record: MakeRecord, clock: Any, caplog: Any
) -> None:
    """Entries 0 and 1 are blank, 2 is the only one of a record."""
    config, disk = make_config("/store", mapped_file_size_commit_log=8192), MemoryDisk(now_ms=clock)
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in range(2):
            store.append(make_record(n))
        await store.queue_removal.remove_topic("T")
        for n in range(30):
            store.append(make_record(n, topic="U"))
        kept = store.append(make_record(2))
        for n in range(120):
            store.append(make_record(n, topic="U"))
    disk.remove(f"/store/commitlog/{0:020d}")
    disk.open(f"/store/consumequeue/T/0/{0:020d}").buffer[20 * number : 60] = entries
    async with open_store(config, disk=disk, clock=clock) as store:
        entry = store.queue_entry("T", 0, 2)
        assert entry is not None
        assert entry[0] == kept.physical_offset
        assert store.append(make_record(3)).queue_offset == 3
    assert "had been closed cleanly, and its queues know" not in caplog.text


async def test_zeros_within_a_long_queue_hide_nothing_in_front_of_them(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    """In a file that no start reads, where the search for the first entry whose record is in the log comes to."""
    config, disk = make_config("/store", mapped_file_size_commit_log=8192), MemoryDisk(now_ms=clock)
    async with open_with_hundred(config, disk, make_record, clock):
        pass
    disk.remove(f"/store/commitlog/{0:020d}")
    async with open_store(config, disk=disk, clock=clock) as store:
        first, _ = store.queue_bounds("T", 0)
        assert 20 < first < 30
    disk.open(f"/store/consumequeue/T/0/{1000:020d}").buffer[:] = bytes(200)
    async with open_store(config, disk=disk, clock=clock) as store:
        assert store.queue_bounds("T", 0) == (first, 100)


async def test_zeros_at_the_first_message_that_is_left_hide_nothing(
    make_config: MakeConfig, make_record: MakeRecord, record_number: Any, clock: Any
) -> None:
    """They do not count as entries of expired messages when they are read, either."""
    config, disk = make_config("/store", mapped_file_size_commit_log=8192), MemoryDisk(now_ms=clock)
    async with open_with_hundred(config, disk, make_record, clock):
        pass
    disk.remove(f"/store/commitlog/{0:020d}")
    disk.open(f"/store/consumequeue/T/0/{400:020d}").buffer[80:] = bytes(120)
    async with open_store(config, disk=disk, clock=clock) as store:
        assert store.queue_bounds("T", 0) == (24, 100)
        for n in range(24, 30):
            store.read("T", 0, n, 1, None)
            await wait_all_tasks_blocked()
            result = store.read("T", 0, n, 1, None)
            assert result is not None
            assert result.status is ReadStatus.FOUND
            assert record_number(result.slices[0]) == n


async def test_zeros_in_place_of_entries_of_expired_messages_are_passed_over(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    """What follows them decides: readers at the queue's minimum do not have them repaired one by one."""
    values = {"mapped_file_size_commit_log": 8192, "mapped_file_size_consume_queue": 2000}
    config, disk = make_config("/store", **values), MemoryDisk(now_ms=clock)
    async with open_with_hundred(config, disk, make_record, clock) as queue:
        queue.segments.items[0].buffer[200:300] = bytes(100)
        queue.correct_min_offset(8192)
        assert queue.min_offset == 24
        queue.segments.items[0].buffer[0:300] = bytes(300)
        queue.min_offset = 0
        queue.correct_min_offset(8192)
        assert queue.min_offset == 24


async def test_a_file_with_zeros_at_its_end_is_kept_while_it_has_messages(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    """Its last entry decides whether it has expired, if that can be right; else the first one of the next file."""
    config, disk = make_config("/store", mapped_file_size_commit_log=8192), MemoryDisk(now_ms=clock)
    async with open_with_hundred(config, disk, make_record, clock) as queue:
        queue.segments.items[2].buffer[160:] = bytes(40)
        assert queue.delete_expired(8192) == 2
        queue.correct_min_offset(8192)
        assert queue.min_offset == 24
        assert queue.delete_expired(16384) == 2
        queue.segments.items[0].buffer[160:] = bytes(40)
        assert queue.delete_expired(24576) == 3


async def test_queues_removed_before_a_kill_are_not_missed(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any, caplog: Any
) -> None:
    config = make_config("/store", mapped_file_size_commit_log=8192)
    disk = await with_idle_queue(config, make_record, clock)
    async with open_store(config, disk=disk, clock=clock) as store:
        store.append(make_record(200, topic="U"))
        await store.queue_removal.remove_topic("T")
        left = disk.after_kill()
    async with open_store(config, disk=left, clock=clock) as store:
        assert store.queue_bounds("T", 0) == (IDLE, IDLE)
    assert "are missing" not in caplog.text


@pytest.mark.parametrize("what", DAMAGES)
async def test_a_kill_while_an_idle_queue_is_built_again_loses_nothing(
    what: str, make_config: MakeConfig, make_record: MakeRecord, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start must learn that the queue was damaged: its files look sound, and only lack its last entries."""
    config = make_config("/store", mapped_file_size_commit_log=8192)
    disk = await with_idle_queue(config, make_record, clock)
    damage_idle_queue(disk, what)
    killed: list[MemoryDisk] = []

    def kill_behind(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def then_kill(*arguments: Any, **more: Any) -> Any:
            result = original(*arguments, **more)
            killed.append(disk.after_kill())
            return result

        monkeypatch.setattr(owner, name, then_kill)

    with monkeypatch.context():
        kill_behind(dispatcher, "put_entry")
        kill_behind(queue_check, "put_entry")
        kill_behind(recovery, "put_entry")
        kill_behind(Segments, "truncate")
        kill_behind(MemoryDisk, "remove")
        async with open_store(config, disk=disk, clock=clock):
            monkeypatch.undo()
    assert len(killed) > IDLE - 30
    for left in [*killed, disk]:
        async with open_store(config, disk=left, clock=clock) as store:
            assert store.queue_bounds("T", 0) == (0, IDLE)


async def test_a_loss_of_power_while_a_long_queue_is_built_again_loses_nothing(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first file may be empty then, and the last ones complete, which are those that a start reads."""
    config = make_config("/store", mapped_file_size_commit_log=8192)
    disk = await with_idle_queue(config, make_record, clock)
    first = "/store/consumequeue/T/1/00000000000000000000"
    disk.remove(first)
    lost: list[MemoryDisk] = []

    def put_and_lose(queue: ConsumeQueue, *arguments: Any, **more: Any) -> bool:
        done = put_entry(queue, *arguments, **more)
        if queue.max_offset in (100, 200 - IDLE):
            left = disk.after_power_loss(Random(0), written=1)
            left.open(first).buffer[:] = bytes(200)
            lost.append(left)
        return done

    with monkeypatch.context() as patch:
        for module in (dispatcher, queue_check, recovery):
            patch.setattr(module, "put_entry", put_and_lose)
        async with open_store(config, disk=disk, clock=clock):
            patch.undo()
    assert lost
    for left in lost:
        async with open_store(config, disk=left, clock=clock) as store:
            assert store.queue_bounds("T", 1) == (0, 200 - IDLE)
            entries = [store.queue_entry("T", 1, n) for n in range(200 - IDLE)]
            assert all(entry is not None and 0 < entry[1] < BLANK_SIZE for entry in entries)


@pytest.mark.parametrize("how", ["cut", "power failure"])
async def test_a_cut_in_front_of_the_first_entry_that_is_left_gives_no_number_again(
    how: str, memory_disk: MemoryDisk, clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """The entry is the first one of a file, and those in front of it have expired."""
    config, disk = make_config("/store", mapped_file_size_commit_log=8192), memory_disk
    last_at = await with_one_entry_left(config, disk, make_record, clock)
    async with open_store(config, disk=disk, clock=clock) as store:
        assert store.queue_bounds("T", 0) == (10, 11)
        if how == "cut":
            await store.cut(last_at)
            assert store.queue_bounds("T", 0) == (10, 10)
            assert store.append(make_record(71)).queue_offset == 10
        left = disk.after_power_loss(Random(1), written=1)
    if how != "cut":
        lose_record(left, last_at)
    async with open_store(config, disk=left, clock=clock) as store:
        number = 11 if how == "cut" else 10
        assert store.queue_bounds("T", 0) == (10, number)
        assert store.append(make_record(72)).queue_offset == number
    async with open_store(config, disk=left, clock=clock) as store:
        assert store.queue_bounds("T", 0) == (10, number + 1)


@pytest.mark.parametrize("how", ["cut", "power failure"])
async def test_a_kill_in_a_cut_that_leaves_a_queue_without_entries_gives_no_number_again(
    how: str,
    memory_disk: MemoryDisk,
    clock: Any,
    make_config: MakeConfig,
    make_record: MakeRecord,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kill comes when the queue's files have just been deleted."""
    config, disk = make_config("/store", mapped_file_size_commit_log=8192), memory_disk
    last_at = await with_one_entry_left(config, disk, make_record, clock)
    killed: list[MemoryDisk] = []
    destroy = Segments.destroy

    def then_kill(segments: Segments) -> None:
        destroy(segments)
        killed.append(disk.after_kill())

    async with open_store(config, disk=disk, clock=clock) as store:
        if how == "cut":
            with monkeypatch.context() as patch:
                patch.setattr(Segments, "destroy", then_kill)
                await store.cut(last_at)
        left = disk.after_power_loss(Random(1), written=1)
    if how != "cut":
        lose_record(left, last_at)
        disk = left
        with monkeypatch.context() as patch:
            patch.setattr(Segments, "destroy", then_kill)
            async with open_store(config, disk=disk, clock=clock):
                pass
    assert len(killed) == 1
    async with open_store(config, disk=killed[0], clock=clock) as store:
        assert store.queue_bounds("T", 0) == (10, 10)
        assert store.append(make_record(71)).queue_offset == 10


async def test_a_kill_before_a_start_finds_that_a_queue_file_is_lost(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill a start checks the log from the checkpoint on, which is less than after a clean stop."""
    config = make_config("/store", mapped_file_size_commit_log=8192)
    disk = MemoryDisk(now_ms=clock)
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in range(200):
            clock.now += 10_000
            store.append(make_record(n, queue_id=0 if n % 10 == 0 and n < 170 else 1))
    disk.remove("/store/consumequeue/T/0/00000000000000000200")
    killed: list[MemoryDisk] = []
    write = MemoryDisk.write

    def write_and_kill(owner: MemoryDisk, path: str, data: bytes, **more: Any) -> None:
        write(owner, path, data, **more)
        killed.append(disk.after_kill())

    with monkeypatch.context() as patch:
        patch.setattr(MemoryDisk, "write", write_and_kill)
        async with open_store(config, disk=disk, clock=clock):
            patch.undo()
    assert any(left.exists("/store/abort") for left in killed)
    assert not disk.exists("/store/triomq/queuesFrom")
    for left in [*killed, disk]:
        async with open_store(config, disk=left, clock=clock) as store:
            assert store.queue_bounds("T", 0) == (0, 17)
            assert store.append(make_record(200, queue_id=0)).queue_offset == 17


@pytest.mark.parametrize("what", DAMAGES)
async def test_a_refused_start_does_not_hide_the_damage_of_a_queue(
    what: str, make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    """An operator moves a foreign file away, and starts the broker again."""
    config = make_config("/store", mapped_file_size_commit_log=8192)
    disk = await with_idle_queue(config, make_record, clock)
    damage_idle_queue(disk, what)
    disk.write("/store/consumequeue/T/1/core", b"foreign")
    with pytest.raises(StoreDamaged, match="core"):
        async with open_store(config, disk=disk, clock=clock):
            pass
    disk.remove("/store/consumequeue/T/1/core")
    async with open_store(config, disk=disk, clock=clock) as store:
        assert store.queue_bounds("T", 0) == (0, IDLE)


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("refusing", [False, True])
async def test_a_queue_that_was_built_again_is_not_lost_with_the_power(
    what: str, refusing: bool, make_config: MakeConfig, make_record: MakeRecord, clock: Any, monkeypatch: Any
) -> None:
    config = make_config("/store", mapped_file_size_commit_log=8192)
    disk = await with_idle_queue(config, make_record, clock)
    damage_idle_queue(disk, what)
    with monkeypatch.context() as patch:
        if refusing:
            patch.setattr(flusher, "sync_segments", refuse)
        async with open_store(config, disk=disk, clock=clock):
            left = disk.after_power_loss(NothingUnforced())
    assert left.exists("/store/triomq/queuesFrom") is refusing
    async with open_store(config, disk=left, clock=clock) as store:
        assert store.queue_bounds("T", 0) == (0, IDLE)
    assert not left.exists("/store/triomq/queuesFrom")


def refuse(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("per_log_file", [20, 24, 40])
@pytest.mark.parametrize("abort", [False, True])
async def test_a_queue_whose_first_messages_have_expired_stays_as_it_is(
    per_log_file: int, abort: bool, tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord, caplog: Any
) -> None:
    """Its first file begins with an expired message, or (20, 40) with the first of its messages in the log."""
    async with open_store(make_config(tmp_path / "other")) as store:
        size_bytes = store.append(make_record(0)).size_bytes
    config = make_config(tmp_path / "store", mapped_file_size_commit_log=per_log_file * size_bytes + 8)
    async with open_store(config) as store:
        for n in range(RECORDS):
            store.append(make_record(n, queue_id=n % QUEUES))
    file_of(config, f"commitlog/{0:020d}").unlink()
    for base in range(0, per_log_file // QUEUES // 10 * 200, 200):
        queue_file(config, base).unlink()
    if abort:
        file_of(config, "abort").write_bytes(b"")
    files = {file.name: file.stat().st_ino for file in queue_file(config).parent.iterdir()}
    async with open_store(config) as store:
        assert store.queue_bounds("T", 0) == (per_log_file // QUEUES, 38)
    assert {file.name: file.stat().st_ino for file in queue_file(config).parent.iterdir()} == files
    assert not [line for line in caplog.records if line.levelname == "ERROR"]


async def test_a_missing_queue_is_built_again(closed: StoreConfig, make_record: MakeRecord, record_number: Any) -> None:
    folder = queue_file(closed).parent
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    await assert_whole(closed, make_record, record_number)


@pytest.mark.parametrize(("number", "bit"), [(10, 0), (10, 62), (19, 71), (27, 62), (36, 95), (37, 54), (37, 64)])
async def test_a_damaged_entry_is_built_again(
    bit: int, number: int, closed: StoreConfig, make_record: MakeRecord, record_number: Any
) -> None:
    """A flipped bit of an entry's offset or size."""
    file = queue_file(closed, number * 20 // 200 * 200)
    data = bytearray(file.read_bytes())
    data[number * 20 % 200 + bit // 8] ^= 0x80 >> bit % 8
    file.write_bytes(data)
    await assert_whole(closed, make_record, record_number)


@pytest.mark.parametrize("wrong", ["offset", "size", "offset and size", "an entry lacks", "an entry is there twice"])
async def test_a_wrong_end_of_a_queue_is_found_at_the_start(
    wrong: str, closed: StoreConfig, make_record: MakeRecord, record_number: Any, caplog: Any
) -> None:
    """Of the queue whose last record is not the log's last one: its end does not show where the log ends."""
    file = file_of(closed, f"consumequeue/T/1/{600:020d}")
    written, end = file.read_bytes(), 7 * ENTRY.size
    assert not any(written[end:])
    entries = [written[at : at + ENTRY.size] for at in range(0, end, ENTRY.size)]
    offset, size, tags_code = ENTRY.unpack(entries[-1])
    if wrong == "an entry lacks":
        del entries[2]
    elif wrong == "an entry is there twice":
        entries.insert(2, entries[2])
    else:
        entries[-1] = ENTRY.pack(offset - ("offset" in wrong), size + ("size" in wrong), tags_code)
    file.write_bytes(b"".join(entries).ljust(len(written), b"\0"))
    async with open_store(closed) as store:
        assert store.queue_bounds("T", 1) == (0, 37)
    assert "built again from the log" in caplog.text
    await assert_whole(closed, make_record, record_number)


@pytest.mark.parametrize("what", ["cut off", "cut off, others behind it", "with another name"])
async def test_a_kill_before_the_number_of_a_damaged_queue_without_records_is_noted(
    what: str, make_config: MakeConfig, make_record: MakeRecord, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("/store", mapped_file_size_commit_log=8192)
    disk = await with_idle_queue(config, make_record, clock)
    files = sorted(path for path in disk.files if "/consumequeue/T/0/" in path)
    for base in (0, 8192):
        disk.remove(f"/store/commitlog/{base:020d}")
    first, last = disk.read(files[0]), disk.read(files[3])
    for path in files[:1] if what.endswith("behind it") else files:
        disk.remove(path)
    if what == "cut off":
        disk.write(files[3], last[:160])
    elif what == "with another name":
        disk.write(files[3].replace("600", "610"), last)
    else:
        disk.write(files[0], first[:160])
    killed: list[MemoryDisk] = []
    remove = MemoryDisk.remove

    def then_kill(owner: MemoryDisk, path: str) -> None:
        remove(owner, path)
        killed.append(disk.after_kill())

    with monkeypatch.context() as patch:
        patch.setattr(MemoryDisk, "remove", then_kill)
        async with open_store(config, disk=disk, clock=clock) as store:
            patch.undo()
            bounds = store.queue_bounds("T", 0)
    number = 40 if what == "cut off" else IDLE
    assert bounds == (number, number)
    assert killed
    for left in killed:
        async with open_store(config, disk=left, clock=clock) as store:
            assert store.append(make_record(200)).queue_offset == number


async def test_offsets_continue_where_a_damaged_queue_without_records_ended(
    closed: StoreConfig, make_record: MakeRecord
) -> None:
    log = Path(closed.store_path_root_dir, "commitlog")
    async with open_store(closed) as store:
        for n in range(60):
            store.append(make_record(n, topic="other"))
        first = store.record_offset_at("other", 0, 0)
    for base in range(0, first + 1, 8192):
        (log / f"{base:020d}").unlink()
    file = queue_file(closed, 600)
    file.write_bytes(file.read_bytes()[:161])
    for base in (0, 200, 400):
        queue_file(closed, base).unlink()
    async with open_store(closed) as store:
        assert store.queue_bounds("T", 0) == (40, 40)  # the numbers of the missing part are not known
        assert store.append(make_record(0)).queue_offset == 40
    async with open_store(closed) as store:
        assert store.queue_bounds("T", 0) == (40, 41)


async def test_a_queue_that_seemed_to_have_no_records_does_not_lose_its_first_file_unnoticed(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    """Its next number was noted in case of a kill before its records are found."""
    config = make_config("/store", mapped_file_size_commit_log=8192)
    disk = await with_idle_queue(config, make_record, clock)
    first, *others = sorted(path for path in disk.files if "/consumequeue/T/0/" in path)
    content = disk.read(first)
    for path in (first, *others):
        disk.remove(path)
    disk.write(first, content[:160])
    disk.write(others[-1], content[:160])
    async with open_store(config, disk=disk, clock=clock) as store:
        assert store.queue_bounds("T", 0) == (0, IDLE)
    disk.remove(first)
    async with open_store(config, disk=disk, clock=clock) as store:
        assert store.queue_bounds("T", 0) == (0, IDLE)
        assert store.queue_entry("T", 0, 0) is not None


def index_file(config: StoreConfig, number: int) -> Path:
    return sorted(file_of(config, "index").iterdir())[number]


@pytest.mark.parametrize(
    ("number", "length", "abort"), [(0, 1, False), (0, 500, True), (1, 39, True), (1, 5000, False)]
)
async def test_an_index_file_of_a_wrong_length_is_built_again(
    number: int, length: int, abort: bool, closed: StoreConfig, make_record: MakeRecord, record_number: Any, caplog: Any
) -> None:
    file = index_file(closed, number)
    give_length(file, length)
    if abort:
        file_of(closed, "abort").write_bytes(b"")
    await assert_whole(closed, make_record, record_number)
    assert f"has {length} bytes instead of" in caplog.text


async def test_a_start_that_a_full_disk_refuses_loses_no_keys(
    make_config: MakeConfig, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note that the index is to be built again finds space only when the first file is gone."""
    config, disk = make_config("/store", mapped_file_size_commit_log=8192), MemoryDisk()
    async with open_store(config, disk=disk) as store:
        for n in range(RECORDS):
            store.append(make_record(n, queue_id=n % QUEUES))
    for path in [path for path in disk.files if path.startswith("/store/index/")]:
        disk.files[path].buffer[16:24] = b"\xff" * 8  # type: ignore[union-attr]
    write, remove = disk.write, disk.remove
    is_full = True

    def full(path: str, data: bytes, *, sync: bool = True) -> None:
        if is_full or not path.startswith("/store/triomq/"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        write(path, data, sync=sync)

    def leave_space(path: str) -> None:
        nonlocal is_full
        remove(path)
        is_full = False

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", full)
        patch.setattr(disk, "remove", leave_space)
        with pytest.raises(OSError, match="No space left"):
            async with open_store(config, disk=disk):
                pass
    async with open_store(config, disk=disk.after_kill()) as store:
        found = [len(to_the_end(store.query("T", f"{n:032X}", 10, 0, FOREVER)).records) for n in range(RECORDS)]
    assert found == [1] * RECORDS


@pytest.mark.parametrize(("number", "byte"), [(0, 16), (0, 23), (1, 24), (1, 31), (0, 32), (1, 36), (0, 39)])
async def test_a_damaged_index_header_hides_nothing(
    number: int, byte: int, closed: StoreConfig, make_record: MakeRecord, record_number: Any
) -> None:
    file = index_file(closed, number)
    data = bytearray(file.read_bytes())
    data[byte] ^= 0x80
    file.write_bytes(data)
    async with open_store(closed) as store:
        found = [len(to_the_end(store.query("T", f"{n:032X}", 10, 0, FOREVER)).records) for n in range(RECORDS)]
    assert found == [1] * RECORDS


async def test_indexes_of_another_configuration_are_built_again(
    closed: StoreConfig, make_config: MakeConfig, make_record: MakeRecord, record_number: Any
) -> None:
    other = make_config(closed.store_path_root_dir, mapped_file_size_commit_log=8192, max_index_num=70)
    await assert_whole(other, make_record, record_number)


@pytest.mark.parametrize("damage", [b"", b"x", bytes(24), b"\x7f" * 24, b"\xff" * 4096, b"\x7f" * 24 + bytes(40)])
async def test_a_damaged_checkpoint_does_not_shorten_recovery(
    damage: bytes, closed: StoreConfig, make_record: MakeRecord, record_number: Any
) -> None:
    checkpoint = file_of(closed, "checkpoint")
    data = checkpoint.read_bytes()
    checkpoint.write_bytes(damage + data[len(damage) :] if len(damage) == 64 else damage)
    file_of(closed, "abort").write_bytes(b"whatever")
    queue_file(closed, 200).write_bytes(bytes(200))
    await assert_whole(closed, make_record, record_number)


async def test_a_flipped_bit_of_the_checkpoint_does_not_count(closed: StoreConfig, memory_disk: Any) -> None:
    for byte in range(24):
        for at in (byte, byte + 64):
            checkpoint = Checkpoint(memory_disk, "/checkpoint")
            checkpoint.physic_timestamp = checkpoint.index_timestamp = 1_795_300_000_000
            checkpoint.queues_timestamp = 1_795_300_000_000
            data = bytearray(checkpoint.encode())
            data[at] ^= 0x40
            memory_disk.write("/checkpoint", bytes(data))
            again = Checkpoint(memory_disk, "/checkpoint")
            again.load()
            times = again.physic_timestamp, again.logics_timestamp, again.index_timestamp
            assert max(times) <= 1_795_300_000_000


async def test_lines_about_a_queue_have_fields(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(make_config("/store"), disk=memory_disk) as store:
        store.append(make_record(1))
        with caplog.at_level("INFO"):
            await store.queue_removal.remove_topic("T")
    (line,) = [record for record in caplog.records if record.getMessage() == "queue T-0 removed"]
    assert (line.__dict__["topic"], line.__dict__["queue"]) == ("T", 0)


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_log_without_its_end_is_reported(
    lost: int, closed: StoreConfig, record_number: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can be read of it, and new messages take its place: an operator has to know before that."""
    log = Path(closed.store_path_root_dir) / "commitlog"
    async with open_store(closed) as store:
        end = store.log_max_offset
    assert not [record for record in caplog.records if record.levelname == "CRITICAL"]
    for file in sorted(log.iterdir())[-lost:]:
        file.unlink()
    async with open_store(closed) as store:
        left = await all_numbers(store, record_number)
        assert left == list(range(len(left)))
        missing = end - store.log_max_offset
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "CRITICAL"]
    assert f"know of messages up to log offset {end}, but the log in {log} ends at {end - missing}: its last" in line
    assert f"its last {missing} bytes are missing" in line


async def fill_and_force(store: MessageStore, make_record: MakeRecord) -> int:
    """Append 30 messages and have them on the disk, the checkpoint, too. Returns the log's end."""
    for n in range(30):
        store.append(make_record(n))
    await store.flusher.flush_log()
    await store.flusher.flush_queues(0, checkpoint=True)
    return store.log_max_offset


def lose_half(disk: MemoryDisk, config: StoreConfig, end: int) -> None:
    """Make the second half of a log of one file, in `/log`, blank."""
    name = f"/log/{0:020}"
    disk.write(name, disk.read(name)[: end // 2] + bytes(config.mapped_file_size_commit_log - end // 2))


def check_reported(caplog: pytest.LogCaptureFixture, end: int, left: int, where: str) -> None:
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "CRITICAL"]
    assert line.startswith(f"the log had been forced to the disk up to log offset {end}, but the log in /log ends at ")
    assert f"its last {end - left} bytes are missing, and so are their messages{where}. What" in line


@pytest.mark.parametrize("how", ["killed", "power failure"])
async def test_a_log_without_its_end_is_reported_after_a_crash_too(
    how: str,
    memory_disk: MemoryDisk,
    make_config: MakeConfig,
    make_record: MakeRecord,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was on the disk cannot have been lost in a crash."""
    config = make_config("/store", store_path_commit_log="/log")
    async with open_store(config, disk=memory_disk) as store:
        end = await fill_and_force(store, make_record)
        for n in range(30, 40):
            store.append(make_record(n))
        disk = memory_disk.after_kill() if how == "killed" else memory_disk.after_power_loss(Random(1), written=0)
    async with open_store(config, disk=disk.after_kill()) as store:
        assert store.queue_bounds("T", 0)[1] >= 30
    assert not [record for record in caplog.records if record.levelname == "CRITICAL"]
    lose_half(disk, config, end)
    async with open_store(config, disk=disk) as store:
        left = store.log_max_offset
    check_reported(caplog, end, left, ", in 1 queues")


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_a_log_without_its_end_is_reported_if_the_queues_have_lost_theirs_too(
    how: str,
    memory_disk: MemoryDisk,
    make_config: MakeConfig,
    make_record: MakeRecord,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As on a disk that did not keep what it had confirmed; then only the checkpoint knows of the messages."""
    config = make_config("/store", store_path_commit_log="/log")
    async with open_store(config, disk=memory_disk) as store:
        end = await fill_and_force(store, make_record)
        killed = memory_disk.after_kill()
    disk = killed if how == "killed" else memory_disk
    lose_half(disk, config, end)
    disk.remove_tree("/store/consumequeue")
    async with open_store(config, disk=disk) as store:
        left = store.log_max_offset
    check_reported(caplog, end, left, "")
