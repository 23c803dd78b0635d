"""A store with more files than may be mapped at once."""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from memory_disk import MemoryDisk

from triomq_server.config import StoreConfig
from triomq_server.disk import RealDisk, real_files
from triomq_server.disk import maps as maps_module
from triomq_server.disk.config_files import ConfigFile
from triomq_server.disk.maps import Maps, map_limit
from triomq_server.store import NewRecord, open_store
from triomq_server.store.queue_table import ConsumeQueues
from triomq_server.store.removed_queues import RemovedQueues

MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]
QUEUES = 40


@attrs.define(eq=False)
class File:
    name: str
    unmapped: list[str]

    def unmap(self) -> None:
        self.unmapped.append(self.name)


def test_the_oldest_maps_are_given_up() -> None:
    gone: list[str] = []
    maps = Maps(3)
    files = {name: File(name, gone) for name in "abcde"}
    for name in "abc":
        maps.add(files[name])
    assert gone == []
    maps.add(files["d"])
    assert gone == ["a"]
    maps.remove(files["b"])
    maps.add(files["e"])
    assert gone == ["a"]
    maps.add(files["a"])
    assert gone == ["a", "c"]
    assert len(maps) == 3
    assert maps.give_up() == 2
    assert gone == ["a", "c", "d", "e"]


def test_another_thread_gives_up_nothing() -> None:
    gone: list[str] = []
    maps = Maps(1)
    maps.add(File("a", gone))
    answers: list[int] = []

    def elsewhere() -> None:
        maps.add(File("b", gone))
        answers.append(maps.give_up())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert (answers, gone, len(maps)) == ([0], [], 2)
    maps.add(File("c", gone))
    assert gone == ["a", "b"]


def test_all_disks_of_a_process_share_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[str] = []
    already = sum(map(len, maps_module._sharing))
    monkeypatch.setattr(maps_module, "map_limit", lambda: already + 3)
    first, second = Maps(), Maps()
    for name in "ab":
        first.add(File(name, gone))
    for name in "cde":
        second.add(File(name, gone))
    assert gone == ["c", "d"]  # each gives up its own


def test_the_limit_leaves_room_below_what_the_system_allows() -> None:
    allowed = int(Path("/proc/sys/vm/max_map_count").read_text())
    assert allowed // 2 < map_limit() <= allowed * 3 // 4 + 1


def mapped_in(folder: Path) -> int:
    return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())


async def test_a_store_of_more_queues_than_maps(
    tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord, record_number: Callable[[memoryview], int]
) -> None:
    """Written in any order, read, restarted after a clean stop and after a kill: as if all were mapped."""
    chance = random.Random(1)
    written: dict[int, list[int]] = {number: [] for number in range(QUEUES)}
    limit, most = 6, 0
    config = make_config(tmp_path / "store")
    for stop in ("clean", "killed", "clean"):
        async with open_store(config, disk=RealDisk(maps=Maps(limit))) as store:
            for queue, numbers in written.items():
                assert store.queue_bounds("T", queue) == (0, len(numbers))
            for number in range(1000):
                queue = chance.randrange(QUEUES)
                store.append(make_record(number, queue_id=queue))
                written[queue].append(number)
                most = max(most, mapped_in(tmp_path))
                if not number % 10:
                    other = chance.choice([queue for queue, numbers in written.items() if numbers])
                    at = chance.randrange(len(written[other]))
                    (found,) = store.read("T", other, at, 1, None).slices
                    assert record_number(found) == written[other][at]
                if not number % 200:
                    await store.flush()
            if stop == "killed":
                await store.flush()
                copy = tmp_path / "killed"
                shutil.copytree(tmp_path / "store", copy)
        if stop == "killed":
            config = make_config(copy)
    # The log's own files, and what a reader's slice keeps, come on top.
    assert limit <= most <= limit + 6


async def test_a_system_that_allows_no_more_maps(
    tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something else in the process has taken them: half of the store's are given up, and nothing fails."""
    real, refused = real_files._map_once, 0

    def scarce(fd: int, size: int) -> mmap.mmap:
        nonlocal refused
        if mapped_in(tmp_path) >= 12:
            refused += 1
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return real(fd, size)

    monkeypatch.setattr(real_files, "_map_once", scarce)
    async with open_store(make_config(tmp_path / "store"), disk=RealDisk()) as store:
        for number in range(200):
            store.append(make_record(number, queue_id=number % QUEUES))
        assert [store.queue_bounds("T", queue) for queue in range(QUEUES)] == [(0, 5)] * QUEUES
    assert refused


def test_a_file_that_was_closed_is_not_mapped_again(tmp_path: Path) -> None:
    file = RealDisk().create(f"{tmp_path}/file", 8192, 4096)
    assert isinstance(file, real_files.RealMappedFile)
    file.buffer[:5] = b"begin"
    view = memoryview(file.buffer)
    let_go = []
    file.on_unmap = lambda: let_go.append(True)
    file.unmap()
    assert bytes(view[:5]) == b"begin"  # a slice stays readable
    view.release()
    assert mapped_in(tmp_path) == 0
    assert (file.buffer[:5], let_go) == (b"begin", [True])
    assert mapped_in(tmp_path) == 1
    file.unmap()
    file.close()
    with pytest.raises(ValueError, match="is closed"):
        _ = file.buffer


@pytest.mark.parametrize("killed", [False, True])
async def test_a_start_maps_no_queue_and_waits_for_none(
    tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord, killed: bool
) -> None:
    """A start reads what little a queue holds; its file is mapped by the first who reads or writes it."""
    config = make_config(tmp_path / "store", mapped_file_size_consume_queue=600_000)
    async with open_store(config) as store:
        for number in range(3 * QUEUES):
            store.append(make_record(number, queue_id=number % QUEUES))
    if killed:
        (tmp_path / "store" / "abort").touch()
    folder = tmp_path / "store" / "consumequeue"
    async with open_store(config) as store:
        assert store.recovery_report.clean != killed
        assert mapped_in(folder) == 0
        assert all(segment._read is None for queue in store.consume_queues for segment in queue.segments.items)
        assert [store.queue_bounds("T", queue) for queue in range(QUEUES)] == [(0, 3)] * QUEUES
        assert len(store.read("T", 1, 2, 1, None).slices) == 1
        assert mapped_in(folder) == 1
        assert store.append(make_record(1000, queue_id=2)).queue_offset == 3
        assert len(store.read("T", 2, 0, 9, None).slices) == 4


def test_a_long_queue_is_recovered_in_pieces(memory_disk: MemoryDisk) -> None:
    queues = ConsumeQueues(
        memory_disk, "/queues", 20 * 100_000, RemovedQueues(ConfigFile("/removed.json", memory_disk))
    )
    queue = queues.obtain("T", 0)
    for number in range(60_000):
        queue.push(100 * number, 100, 0)
    again = ConsumeQueues(memory_disk, "/queues", 20 * 100_000, RemovedQueues(ConfigFile("/removed.json", memory_disk)))
    for _ in again.load():
        pass
    (found,) = again
    assert sum(1 for _ in found.recover(None)) >= 5
    assert (found.max_offset, found.max_physical_offset, found.damaged) == (60_000, 6_000_000, False)
