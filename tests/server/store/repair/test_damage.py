"""Searching a mapped file for the next sound record."""

from __future__ import annotations

import mmap
import random
from collections.abc import Callable
from typing import Any

from memory_disk import MemoryDisk

from triomq_server.store import open_store
from triomq_server.store.repair.damage import _find, write_copy

SIZE = 4096
WANTED = b"\xda\xa3 \xa7"


class Map(mmap.mmap):
    """A mapped file whose search must end before the last byte: Python before 3.11.5 reads the byte after the range."""

    def find(self, wanted: bytes, start: int, end: int) -> int:  # type: ignore[override]
        assert end < len(self)
        return super().find(wanted, start, end)


def test_a_search_up_to_the_end_of_a_map_reads_nothing_after_it() -> None:
    for at in (None, 0, 5, SIZE // 2, *range(SIZE - 8, SIZE - 3)):
        with Map(-1, SIZE) as buffer:
            if at is not None:
                buffer[at : at + len(WANTED)] = WANTED
            content = bytes(buffer)
            for start in (0, 1, 5, 6, *range(SIZE - 9, SIZE + 9)):
                for end in (4, SIZE // 2, *range(SIZE - 9, SIZE + 9)):
                    assert _find(buffer, WANTED, start, end) == content.find(WANTED, start, end), (at, start, end)


def test_searches_in_random_content_are_those_of_bytes() -> None:
    chance = random.Random(3)
    for _ in range(300):
        with Map(-1, SIZE) as buffer:
            buffer[:] = content = bytes(chance.choices(WANTED, k=SIZE))
            start, end = sorted(chance.choices(range(SIZE + 9), k=2))
            assert _find(buffer, WANTED, start, end) == content.find(WANTED, start, end)


def test_an_older_copy_is_kept() -> None:
    disk = MemoryDisk()
    disk.make_directory("/damaged")
    path = "/damaged/00000000000000003330"
    for data in (b"", b"ab", b"abc", b"abc", b"xy", b""):
        write_copy(disk, path, data)
    assert {name[len(path) :]: disk.read(name) for name in disk.files} == {"": b"", ".1": b"abc", ".2": b"xy"}


async def test_a_second_cut_at_the_same_offset_keeps_the_first_copy(
    make_config: Callable[..., Any], make_record: Callable[..., Any]
) -> None:
    """For example, when the power is lost again soon."""
    config, disk = make_config("/store", mapped_file_size_commit_log=65536), MemoryDisk()
    async with open_store(config, disk=disk) as store:
        store.append(make_record(0))
        end = store.log_max_offset
    path = f"/store/triomq/damaged/{end:020d}"
    copies = []
    for count in (30, 2):
        async with open_store(config, disk=disk) as store:
            for n in range(count):
                store.append(make_record(n))
            lost = disk.after_power_loss(random.Random(1), written=1)
        disk = lost
        disk.files[f"/store/commitlog/{0:020d}"].buffer[end + 5] ^= 1
        async with open_store(config, disk=disk) as store:
            assert store.log_max_offset == end
        copies.append(disk.read(path))
    assert copies[0] != copies[1]
    assert disk.read(f"{path}.1") == copies[0]
