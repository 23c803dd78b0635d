"""Queues with one file are read at once by a start; the result must equal the general way's, for any file content."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest
from memory_disk import MemoryDisk

from triomq_server.disk import Disk, RealDisk
from triomq_server.disk.config_files import ConfigFile
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.store.entry_layout import BLANK_SIZE, ENTRY, ENTRY_BYTES
from triomq_server.store.queue_table import ConsumeQueues
from triomq_server.store.removed_queues import RemovedQueues

FILE_BYTES = 8000 * ENTRY_BYTES
ROOT = "consumequeue"


class OneByOne(RealDisk):
    """A disk that finds no directory with one file."""

    def only_files(self, paths: Iterable[str], length: int, most_bytes: int) -> Generator[None, None, None]:
        """Always more to look at."""
        for _ in paths:
            yield None


def content(chance: random.Random) -> bytes:
    """Entries, mostly sound ones; sometimes up to the end of the file, or more than are read at once."""
    count = chance.choice((0, 1, 2, 30, 300, 6600, FILE_BYTES // ENTRY_BYTES))
    entries, offset = bytearray(), chance.choice((0, 1 << 40))
    for _ in range(count):
        size = chance.choice((100, 256, 1 << 16))
        entries += ENTRY.pack(offset, size, chance.choice((0, 0, 1 << 56, -1)))
        offset += size
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        at = chance.randrange(FILE_BYTES // ENTRY_BYTES) * ENTRY_BYTES if chance.random() < 0.3 else 0
        damage = chance.choice(
            (bytes(ENTRY_BYTES), ENTRY.pack(0, BLANK_SIZE, 0), ENTRY.pack(-1, 5, 0), chance.randbytes(7))
        )
        if not at and count:
            at = chance.randrange(count) * ENTRY_BYTES
        entries += bytes(max(0, at + len(damage) - len(entries)))
        entries[at : at + len(damage)] = damage
    return bytes(entries[:FILE_BYTES])


def state(disk: Disk, root: str, *, unsafe_from: int | None) -> Any:
    removed = RemovedQueues(ConfigFile(f"{root}/removed.json", disk))
    queues = ConsumeQueues(disk, f"{root}/{ROOT}", FILE_BYTES, removed)
    for _ in queues.load():
        pass
    for queue in queues:
        for _ in queue.recover(unsafe_from):
            pass
    found = {(queue.topic, queue.queue_id): described(queue) for queue in queues}
    queues.close()
    return found


def described(queue: ConsumeQueue) -> Any:
    segments = [(s.base, s.position, s.flushed, s.reserved) for s in queue.segments.items]
    peeked = [
        s.peek(0, ENTRY_BYTES) + s.peek(max(s.position - ENTRY_BYTES, 0), ENTRY_BYTES) for s in queue.segments.items
    ]
    return (
        queue.min_offset, queue.max_offset, queue.max_physical_offset, queue.damaged, queue.known_end, queue.position,
        queue.last_entry(), segments, peeked,
    )  # fmt: skip


@pytest.mark.parametrize("unsafe_from", [None, 0, 1 << 41])
def test_any_content_is_found_as_by_the_general_way(tmp_path: Path, unsafe_from: int | None) -> None:
    chance = random.Random(3)
    for number in range(250):
        data = content(chance)
        base = chance.choice((0, 0, 0, FILE_BYTES, 3 * FILE_BYTES, 7))
        length = chance.choice((FILE_BYTES, FILE_BYTES, FILE_BYTES, FILE_BYTES, 0, FILE_BYTES - 1))
        for side in ("one", "other"):
            folder = tmp_path / side / ROOT / "topic" / str(number)
            folder.mkdir(parents=True)
            with (folder / f"{base:020}").open("wb") as file:
                file.write(data)
                file.truncate(length)
            if number % 9 == 0:
                (folder / f"{base + FILE_BYTES:020}").write_bytes(bytes(FILE_BYTES))
    one = state(RealDisk(), str(tmp_path / "one"), unsafe_from=unsafe_from)
    other = state(OneByOne(), str(tmp_path / "other"), unsafe_from=unsafe_from)
    assert one == other
    assert len(one) == 250
    assert tree(tmp_path / "one") == tree(tmp_path / "other")


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_plain_queue_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    file = disk.create(f"store/{ROOT}/topic/0/{0:020}", FILE_BYTES, 4096)
    ENTRY.pack_into(file.buffer, 0, 77, 100, 5)
    asked: list[str] = []
    for name in ("content", "read_part", "open"):
        whole = getattr(disk, name)

        def noted(*arguments: Any, name: str = name, whole: Any = whole) -> Any:
            asked.append(name)
            return whole(*arguments)

        monkeypatch.setattr(disk, name, noted)
    found = state(disk, "store", unsafe_from=None)["topic", 0]
    assert found[:7] == (0, 1, 177, False, 0, ENTRY_BYTES, (77, 100, 5))
    assert asked.count("content") == 1
    assert "read_part" not in asked
