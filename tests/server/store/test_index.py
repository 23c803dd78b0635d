"""The key index: hashes, chains over files, taking entries back (docs/protocol/store.md §10)."""

from __future__ import annotations

import errno
import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_disk import MemoryDisk

from triomq_protocol.filters.tags import java_hash
from triomq_server.config import StoreConfig
from triomq_server.disk import RealDisk, real_disk, real_files
from triomq_server.disk.access import MappedFile
from triomq_server.store import NewRecord, open_store
from triomq_server.store import index as index_module
from triomq_server.store.dispatch.key_hashes import index_hashes
from triomq_server.store.index import HASHED_KEY, Index, IndexFile
from triomq_server.store.stopped.whole_repair import look
from triomq_server.wire import to_the_end

FOREVER = 1 << 60
MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]


def plain_hash(text: str) -> int:
    value = abs(java_hash(text))
    return 0 if value == 1 << 31 else value


def unpacked(entries: bytes) -> list[tuple[int, ...]]:
    return list(HASHED_KEY.iter_unpack(entries))


topics = st.sampled_from(["T", "%RETRY%group", "主题", ""])
keys = st.one_of(
    st.text(max_size=40), st.text("0123456789ABCDEF", min_size=32, max_size=32), st.text("\0a", max_size=32)
)


@given(st.lists(st.tuples(topics, keys), max_size=150))
def test_batch_of_hashes(pairs: list[tuple[str, str]]) -> None:
    entries = [(topic, key, n, n + 1) for n, (topic, key) in enumerate(pairs)]
    assert unpacked(index_hashes(entries)) == [(plain_hash(f"{t}#{k}"), n, n + 1) for t, k, n, _ in entries]


def test_the_hash_that_has_no_absolute_value() -> None:
    # "polygenelubricants" hashes to -2**31; find a key that does so behind "T#".
    prefix = java_hash("T#") & 0xFFFFFFFF
    low = (0x80000000 - prefix * pow(31, 7, 1 << 32)) % (1 << 32)
    found = ""
    for first in range(1, 120):
        rest = (low - first * pow(31, 6, 1 << 32)) % (1 << 32)
        digits = []
        for power in range(5, -1, -1):
            digit, rest = divmod(rest, 31**power)
            digits.append(digit)
        if all(0 < d < 128 for d in digits):
            found = "".join(map(chr, [first, *digits]))
            break
    assert java_hash(f"T#{found}") == -(1 << 31)
    assert unpacked(index_hashes([("T", found, 1, 2)] * 5)) == [(0, 1, 2)] * 5


def make_index(disk: MemoryDisk, capacity: int = 20) -> Index:
    return Index(disk, "/i", 7, capacity, lambda: 1_795_300_000_123, lambda ms: time.gmtime(ms // 1000))


def test_chains_over_several_files() -> None:
    index = make_index(MemoryDisk())
    entries = index_hashes([("T", f"k{n % 5}", n * 100, 1000 + n * 1000) for n in range(50)])
    assert index.add(entries) == 50
    assert [f.count for f in index.files] == [20, 20, 13]
    assert index.filled == index.files[:2]
    names = [f.path for f in index.files]
    assert names == sorted(names)
    assert len(set(names)) == 3
    for n in range(5):
        assert to_the_end(index.query("T", f"k{n}", 64, 0, FOREVER)) == list(range(4500 + n * 100, -1, -500))
        assert to_the_end(index.query("T", f"k{n}", 3, 0, FOREVER)) == [4500 + n * 100, 4000 + n * 100, 3500 + n * 100]
    assert to_the_end(index.query("T", "k0", 64, 11_000, 21_000)) == [2000, 1500, 1000]
    assert to_the_end(index.query("T", "nothing", 64, 0, FOREVER)) == []
    assert index.end_offset == 4900


def test_a_file_that_expires_during_a_query_has_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq_server.store.index._ENTRIES_PER_SLICE", 8)
    index = Index(RealDisk(), str(tmp_path), 10, 51, lambda: 10**12, lambda ms: time.gmtime(ms // 1000))
    found = [HASHED_KEY.pack(plain_hash("T#k"), number, 10**12 + number) for number in range(1, 101)]
    assert index.add(b"".join(found)) == 100
    query = index.query("T", "k", 100, 0, FOREVER)
    for _ in range(7):  # the newer file is done after six slices
        next(query)
    assert index.delete_expired(51) == 1
    assert to_the_end(query) == list(range(100, 100 - 50 - 8, -1))
    index.close()


@pytest.mark.parametrize("seed", range(10))
def test_taking_back_leaves_what_was_there_before(seed: int) -> None:
    chance = random.Random(seed)
    disk = MemoryDisk()
    index = make_index(disk)
    packed = index_hashes([("T", f"k{chance.randrange(9)}", n // 2 * 10, 1000 + n) for n in range(100)])
    all_entries = unpacked(packed)
    keep = chance.randrange(1, 100)
    index.add(packed[: keep * HASHED_KEY.size])
    before = {path: disk.read(path) for path in disk.files}
    index.add(packed[keep * HASHED_KEY.size :])
    log_end = all_entries[keep][1]
    to_the_end(index.truncate(log_end, lambda offset: next(t for _, o, t in reversed(all_entries) if o == offset)))
    survivors = [e for e in all_entries[:keep] if e[1] < log_end]
    if len(survivors) == keep and keep % 19:
        assert {path: disk.read(path) for path in disk.files} == before
    again = make_index(disk)
    assert again.load(lambda file: True) is None
    for n in range(9):
        wanted = plain_hash(f"T#k{n}")
        expected = [o for h, o, _ in reversed(survivors) if h == wanted]
        assert to_the_end(index.query("T", f"k{n}", 64, 0, FOREVER)) == expected
        assert to_the_end(again.query("T", f"k{n}", 64, 0, FOREVER)) == expected


def test_a_batch_that_was_not_published_is_undone_at_load() -> None:
    disk = MemoryDisk()
    index = make_index(disk, capacity=60)
    entries = index_hashes([("T", f"k{n % 5}", n * 100, 1000) for n in range(40)])
    index.add(entries[: 25 * HASHED_KEY.size])
    published = disk.read(index.files[0].path)
    index.files[0].insert(entries, 25)  # and then the process is killed
    assert disk.read(index.files[0].path) != published
    killed = disk.after_kill()
    again = make_index(killed, capacity=60)
    again.load(lambda file: True)
    assert killed.read(again.files[0].path) == published
    again.add(entries[25 * HASHED_KEY.size :])
    assert to_the_end(again.query("T", "k0", 64, 0, FOREVER)) == list(range(3500, -1, -500))


def test_no_more_entries_are_undone_than_were_inserted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if one is in slot 0, as the zeros behind the last one seem to be: writing there takes the whole file's space."""
    disk = MemoryDisk()
    index = make_index(disk, capacity=500)
    entries = b"".join(HASHED_KEY.pack(key_hash, 1000 + key_hash, 5) for key_hash in (1, 2, 14, 3, 28, 4))
    index.add(entries[: 2 * HASHED_KEY.size])
    file = index.files[0]
    assert file.slots == 7
    file.insert(entries, 2)  # and then the process is killed
    again = make_index(disk.after_kill(), capacity=500)
    undone: list[int] = []
    monkeypatch.setattr(IndexFile, "_take_back", lambda _, number: undone.append(number))
    again.load(lambda file: True)
    assert undone == [6, 5, 4, 3]


def test_damaged_chains_do_not_loop_forever() -> None:
    disk = MemoryDisk()
    index = make_index(disk, capacity=60)
    index.add(index_hashes([("T", "k", n, 1000) for n in range(10)]))
    file = index.files[0]
    struct.pack_into(">i", file.buffer, file.entries_at + 5 * 20 + 16, 9)
    assert to_the_end(index.query("T", "k", 64, 0, FOREVER)) == [9, 8, 7, 6, 5, 4]


def test_files_of_another_geometry_are_left_alone_or_built_again(caplog: Any) -> None:
    disk = MemoryDisk()
    make_index(disk).add(index_hashes([("T", "k", 1, 1000)]))
    other = make_index(disk, capacity=30)
    assert other.load(lambda file: True, rebuild=False) is None
    assert other.files == []
    assert len(disk.list("/i")) == 1
    assert "another size than configured" in caplog.text
    assert other.load(lambda file: True) == 0
    assert other.files == []
    assert len(disk.list("/i")) == 0
    assert "built again from the log" in caplog.text


async def test_query_needs_no_notification_first(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config("/s", message_index_enable=True), disk=memory_disk) as store:
        store.append(make_record(1, keys="a  b"))
        assert [len(to_the_end(store.query("T", k, 5, 0, FOREVER)).records) for k in ("a", "b", "", "c")] == [
            1,
            1,
            0,
            0,
        ]
        assert len(to_the_end(store.query("T", "a", 5, 0, 1)).records) == 0
    async with open_store(make_config("/s", message_index_enable=False), disk=memory_disk) as store:
        assert to_the_end(store.query("T", "a", 5, 0, FOREVER)).records == []
        assert store.append(make_record(2)).queue_offset == 1
        store.notify_arrivals()


async def test_index_lost_with_the_machine_is_rebuilt_from_the_log(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    """Java loses the keys of everything older than the log file where recovery starts."""
    disk = MemoryDisk()
    config = make_config("/s", mapped_file_size_commit_log=3000, max_index_num=1000)
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in range(100):
            clock.now += 1000
            store.append(make_record(n, keys=f"k{n}"))
            store.notify_arrivals()
        await store.flush()
        await store.flusher.flush_queues(0, checkpoint=True)
        lost = disk.after_power_loss(random.Random(0))
    async with open_store(config, disk=lost, clock=clock) as store:
        assert not store.recovery_report.clean
        assert store.recovery_report.checked_from > 20_000
        for n in range(100):
            assert len(to_the_end(store.query("T", f"k{n}", 5, 0, FOREVER)).records) == 1, n


async def test_keys_stored_before_a_stop_in_order_outlast_the_machine(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    """The machine goes down soon after the stop: of the last file, which is not full, everything is on the disk."""
    disk = MemoryDisk()
    config = make_config("/s")
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in range(70):
            store.append(make_record(n))
    lost = disk.after_power_loss(NothingMore())
    async with open_store(config, disk=lost, clock=clock) as store:
        assert store.recovery_report.clean
        for n in range(70):
            assert len(to_the_end(store.query("T", f"{n:032X}", 5, 0, FOREVER)).records) == 1, n


class NothingMore(random.Random):
    """What a power failure leaves of pages that have not been forced to the disk: nothing."""

    def random(self) -> float:
        return 1.0


class RecordingDisk(MemoryDisk):
    """Keeps what a kill would leave at each change of the files, once `kills` is a list."""

    kills: list[tuple[MemoryDisk, MemoryDisk]] | None = None

    def _keep(self) -> None:
        if self.kills is not None:
            self.kills.append((self.after_kill(), self.after_power_loss(NothingMore())))

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        super().write(path, data, sync=sync)
        self._keep()

    def remove(self, path: str) -> None:
        super().remove(path)
        self._keep()

    def create(self, path: str, size: int, reserve: int, *, populate: bool = True) -> MappedFile:
        try:
            return super().create(path, size, reserve, populate=populate)
        finally:
            self._keep()


@pytest.mark.parametrize("stopped", [False, True], ids=["killed", "stopped"])
async def test_a_start_that_is_killed_while_it_builds_the_index_again_loses_no_key(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any, stopped: bool
) -> None:
    config = make_config("/s", mapped_file_size_commit_log=3000)
    disk = RecordingDisk()
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in range(200):
            clock.now += 1000
            store.append(make_record(n))
        store.notify_arrivals()
        await store.flush()
        await store.flusher.flush_queues(0, checkpoint=True)
        await store.flusher._flush_filled_index_files()
        assert store.index is not None
        paths = [file.path for file in store.index.files]
        assert len(paths) == 4
        killed = disk.after_kill()
    found = disk if stopped else killed
    struct.pack_into(">q", found.open(paths[1]).buffer, 16, 1)  # its header's first log offset
    found.__class__ = RecordingDisk
    assert isinstance(found, RecordingDisk)
    found.kills = kills = []
    async with open_store(config, disk=found, clock=clock) as store:
        found.kills = None
        assert len(kills) > 6
        assert found.exists("/s/triomq/reindexFrom") is False
        lost = found.after_power_loss(NothingMore())
    for left in [*(left for both in kills for left in both), lost]:
        async with open_store(config, disk=left, clock=clock) as store:
            for n in range(200):
                assert len(to_the_end(store.query("T", f"{n:032X}", 5, 0, FOREVER)).records) == 1, n


async def test_index_files_behind_one_that_is_built_again_are_built_again_too(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any
) -> None:
    """Entries are only ever added at the end. The clock was set back before the second file, so it is not known to be
    on the disk; the third one's times alone would do."""
    config = make_config("/s", flush_interval_consume_queue=3_600_000)
    disk = MemoryDisk()
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in range(181):
            clock.now += {59: -60_000, 118: 120_000}.get(n, 0)
            store.append(make_record(n))
            store.notify_arrivals()
        await store.flush()
        await store.flusher._flush_filled_index_files()
        assert store.index is not None
        times = [file.end_timestamp for file in store.index.files[:3]]
        assert times[1] < times[0] < times[2]
        lost = disk.after_power_loss(NothingMore())
    async with open_store(config, disk=lost, clock=clock) as store:
        for n in range(181):
            assert len(to_the_end(store.query("T", f"{n:032X}", 5, 0, FOREVER)).records) == 1, n


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_file_that_ends_before_it_began_is_kept_as_long_as_its_entries_agree(
    damaged: bool, make_config: MakeConfig, make_record: MakeRecord, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The clock was set back within the file; or its header is wrong."""
    config = make_config("/s", flush_interval_consume_queue=3_600_000)
    disk = MemoryDisk()
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in range(10):
            clock.now += -3_600_000 if n == 5 and not damaged else 5000
            store.append(make_record(n))
        store.notify_arrivals()
        await store.flush()
        assert store.index is not None
        (file,) = store.index.files
        path, begin = file.path, file.begin_timestamp
    if damaged:
        struct.pack_into(">q", disk.open(path).buffer, 8, begin - 1)
    async with open_store(config, disk=disk, clock=clock) as store:
        assert ("built again" in caplog.text) is damaged
        for n in range(10):
            assert len(to_the_end(store.query("T", f"{n:032X}", 5, 0, FOREVER)).records) == 1, n


async def test_a_full_disk_does_not_keep_the_index_from_being_built_again(
    make_config: MakeConfig, make_record: MakeRecord, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("/s", mapped_file_size_commit_log=3000)
    disk = MemoryDisk()
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in range(70):
            store.append(make_record(n))
        store.notify_arrivals()
        assert store.index is not None
        path = store.index.files[0].path
    struct.pack_into(">q", disk.open(path).buffer, 16, 1)  # its header's first log offset
    write = disk.write

    def refuse(to: str, data: bytes, *, sync: bool = True) -> None:
        if to.endswith("reindexFrom"):
            raise OSError(errno.ENOSPC, "no space left")
        write(to, data, sync=sync)

    monkeypatch.setattr(disk, "write", refuse)
    async with open_store(config, disk=disk, clock=clock) as store:
        for n in range(70):
            assert len(to_the_end(store.query("T", f"{n:032X}", 5, 0, FOREVER)).records) == 1, n


def test_a_file_that_cannot_grow_is_logged_once(
    memory_disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk is asked again each second."""
    monkeypatch.setattr(index_module, "_RESERVE_ENTRIES", 1000)
    index = Index(memory_disk, "/i", 7, 9000, lambda: 1_795_300_000_123, lambda ms: time.gmtime(ms // 1000))
    entries = index_hashes([("T", f"k{n}", n, n) for n in range(8000)])
    assert index.add(entries[: HASHED_KEY.size]) == 1
    memory_disk.capacity_bytes = memory_disk.used_bytes
    added = 1 + index.add(entries[HASHED_KEY.size :])
    assert 1 < added < 8000
    for _ in range(10):
        assert index.add(entries[added * HASHED_KEY.size :]) == 0
    assert caplog.text.count("the index cannot grow") == 1
    memory_disk.capacity_bytes = None
    assert index.add(entries[added * HASHED_KEY.size :]) == 8000 - added
    assert index.files[0].count == 8001


def test_a_file_that_cannot_be_made_is_logged_once_and_the_full_one_kept_once(
    memory_disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each file that is tried has a name of its own."""
    now_ms = 1_795_300_000_123
    index = Index(memory_disk, "/i", 7, 6, lambda: now_ms, lambda ms: time.gmtime(ms // 1000))
    entries = index_hashes([("T", f"k{n}", n, n) for n in range(6)])
    assert index.add(entries[: 5 * HASHED_KEY.size]) == 5

    def refuse(path: str, *_: object, **__: object) -> NoReturn:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), path)

    with monkeypatch.context() as patched:
        patched.setattr(memory_disk, "create", refuse)
        for _ in range(10):
            assert index.add(entries[5 * HASHED_KEY.size :]) == 0
            now_ms += 1000
    assert caplog.text.count("the index cannot grow") == 1
    assert index.add(entries[5 * HASHED_KEY.size :]) == 1
    assert index.filled == index.files[:1]


def test_a_file_is_named_after_the_time_of_its_making(memory_disk: MemoryDisk) -> None:
    index = make_index(memory_disk, 3)
    assert index.add(b"".join(HASHED_KEY.pack(n, n, n) for n in range(3))) == 3
    assert [file.path for file in index.files] == ["/i/20261121222640123", "/i/20261121222640124"]


def test_a_file_made_after_the_local_time_went_back_has_the_next_name(memory_disk: MemoryDisk) -> None:
    """Summer time has ended: names go on behind the last one, and no name in between is tried."""
    asked: list[int] = []
    back_s = 0

    def local_time(ms: int) -> time.struct_time:
        asked.append(ms)
        return time.gmtime(ms // 1000 - back_s)

    index = Index(memory_disk, "/i", 7, 3, lambda: 1_795_300_019_999, local_time)
    assert index.add(b"".join(HASHED_KEY.pack(n, n, n) for n in range(2))) == 2
    back_s = 60
    memory_disk.load("/i/20261121222660000", b"of another size")
    assert index.add(b"".join(HASHED_KEY.pack(n, n, n) for n in range(2, 6))) == 4
    assert [file.path for file in index.files] == [
        "/i/20261121222659999",
        "/i/20261121222660001",  # no time, but a number that sorts behind the last
        "/i/20261121222660002",
    ]
    assert len(asked) == 3
    back_s = -3600
    assert index.add(HASHED_KEY.pack(6, 6, 6)) == 1
    assert index.files[-1].path == "/i/20261121232659999"
    again = Index(memory_disk, "/i", 7, 3, lambda: 0, local_time)
    assert again.load(lambda _: True, rebuild=False) is None
    assert [file.path for file in again.files] == [file.path for file in index.files]


def test_a_new_file_has_its_space_and_no_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000,000 slots take 20 MB: to write and map them at once would keep the loop for 60 ms."""

    mapped: list[int] = []
    populate = real_files.RealMappedFile.populate

    def count(file: real_files.RealMappedFile, start: int, end: int) -> None:
        mapped.append(end - start)
        populate(file, start, end)

    monkeypatch.setattr(real_files.RealMappedFile, "populate", count)
    for module in (real_disk, real_files):
        monkeypatch.setattr(module, "write_zeros", lambda _fd, start, end: mapped.append(end - start))
    slots = 500_000
    index = Index(RealDisk(), str(tmp_path), slots, 1000, lambda: 0, lambda ms: time.gmtime(ms // 1000))
    assert index.add(HASHED_KEY.pack(1, 10, 20)) == 1
    (path,) = tmp_path.iterdir()
    assert path.stat().st_blocks * 512 >= 40 + 4 * slots
    assert sum(mapped) <= 20 * 1000, "no more than the entries"
    index.close()


async def test_a_directory_among_the_files_is_ignored(
    tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """For example of copies, named after their time."""
    config = make_config(tmp_path / "store")
    async with open_store(config) as store:
        store.append(make_record(1))
    copies = tmp_path / "store" / "index" / "20250101000000000"
    copies.mkdir()
    async with open_store(config) as store:
        assert len(to_the_end(store.query("T", f"{1:032X}", 10, 0, FOREVER)).records) == 1
    assert copies.is_dir()
    assert look(config).problems == []
