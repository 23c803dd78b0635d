"""Files of a store: locks, names and sizes that do not belong, segments."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from memory_disk import MemoryDisk

from triomq_server.config import StoreConfig
from triomq_server.disk import RealDisk, StoreLocked
from triomq_server.disk.access import Disk
from triomq_server.disk.real_files import RealMappedFile
from triomq_server.plain_files import NotAFileError
from triomq_server.store import NewRecord, StoreDamaged, open_store
from triomq_server.store.files.segments import Segments

MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]


async def test_one_store_per_directory(disk: Disk, tmp_path: Path, make_config: MakeConfig) -> None:
    config = make_config(tmp_path)
    async with open_store(config, disk=disk):
        with pytest.raises(StoreLocked, match=r"lock is locked"):
            async with open_store(config, disk=disk if isinstance(disk, MemoryDisk) else RealDisk()):
                pass
        assert disk.read(f"{tmp_path}/lock") == b"lock"
    async with open_store(config, disk=disk):
        pass


@pytest.mark.parametrize("name", ["pwrite", "scandir"])
def test_a_lock_that_fails_halfway_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        with pytest.raises(OSError, match="broken"):
            RealDisk().lock(f"{tmp_path}/lock")
    assert os.listdir("/proc/self/fd") == before
    RealDisk().lock(f"{tmp_path}/lock")()


async def test_the_lock_holds_between_processes(tmp_path: Path, make_config: MakeConfig) -> None:
    taker = (
        "import sys\nfrom triomq_server.disk.access import StoreLocked\n"
        "from triomq_server.disk.real_disk import RealDisk\n"
        f"try: RealDisk().lock({str(tmp_path / 'lock')!r})\nexcept StoreLocked as e: sys.exit(str(e))\n"
    )
    async with open_store(make_config(tmp_path)):
        refused = await trio.run_process([sys.executable, "-c", taker], capture_stderr=True, check=False)
        assert refused.returncode == 1
        assert b"another broker process" in refused.stderr
    assert (await trio.run_process([sys.executable, "-c", taker], check=False)).returncode == 0


async def test_one_store_per_log(disk: Disk, tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord) -> None:
    log = str(tmp_path / "log")
    one, other = (make_config(tmp_path / name, store_path_commit_log=log) for name in ("one", "other"))
    async with open_store(one, disk=disk) as store:
        store.append(make_record(0))
        for _ in range(2):  # the refusal holds nothing
            with pytest.raises(StoreLocked, match=rf"the directory {log} is locked"):
                async with open_store(other, disk=disk):
                    pass
        assert disk.list(log) == [f"{0:020d}"], "RocketMQ takes every name for a log file"
        assert not disk.exists(f"{tmp_path}/other/abort")
    async with open_store(other, disk=disk):
        pass


async def test_the_lock_of_the_log_holds_between_processes_and_against_tools(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    log = str(tmp_path / "log")
    (tmp_path / "other").mkdir()
    tool = [sys.executable, "-m", "triomq_server", "admin", "repair-store", str(tmp_path / "other"), "--log", log]
    async with open_store(make_config(tmp_path / "one", store_path_commit_log=log)):
        for options in (["--yes"], ["--from", "127.0.0.1:1"]):
            refused = await trio.run_process([*tool, *options], capture_stderr=True, check=False)
            assert refused.returncode == 2
            assert f"the directory {log} is locked: another broker process has its log there" in refused.stderr.decode()


def test_a_file_system_without_locks_of_directories_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.EBADF, "not open for writing")

    monkeypatch.setattr(fcntl, "flock", flock)
    RealDisk().lock_directory(str(tmp_path))()


@pytest.mark.parametrize(
    "name",
    [
        "00000000000000032768",  # its records would hide those of the first file
        "65536",
        "000000000000000000000",
        "00000000000999999999",
        "09223372036854775808",  # a multiple, but offsets end before
        "99999999999999967232",
    ],
)
async def test_a_log_file_with_a_wrong_name_is_refused_and_nothing_is_touched(
    name: str, disk: Disk, tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    config = make_config(tmp_path)
    async with open_store(config, disk=disk) as store:
        store.append(make_record(0))
    disk.create(f"{tmp_path}/commitlog/{name}", 65536, 4096)
    with pytest.raises(StoreDamaged, match=f"{name}: a log file of 65536 bytes cannot have this name"):
        async with open_store(config, disk=disk):
            pass
    assert not disk.exists(f"{tmp_path}/abort")
    disk.remove(f"{tmp_path}/commitlog/{name}")
    async with open_store(config, disk=disk) as store:
        assert store.queue_bounds("T", 0) == (0, 1)


@pytest.mark.parametrize("name", ["abc", "0000000000000000000x", ".DS_Store"])
@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/T/0"])
async def test_foreign_files_are_refused_and_nothing_is_touched(
    name: str, folder: str, disk: Disk, tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    config = make_config(tmp_path)
    async with open_store(config, disk=disk) as store:
        store.append(make_record(0))
    disk.write(f"{tmp_path}/{folder}/{name}", b"x")
    with pytest.raises(StoreDamaged, match="not the name of a store file"):
        async with open_store(config, disk=disk):
            pass
    assert not disk.exists(f"{tmp_path}/abort")
    disk.remove(f"{tmp_path}/{folder}/{name}")
    disk.make_directory(f"{tmp_path}/consumequeue/T/not-a-queue")
    async with open_store(config, disk=disk) as store:
        assert store.queue_bounds("T", 0) == (0, 1)


@pytest.mark.parametrize(
    "name",
    [
        *("checkpoint", "abort", "lock", "triomq/boot_id", "triomq/repairing", "triomq/removedQueues.json"),
        *("commitlog/00000000000000000000", "commitlog/00000000000000001000", "consumequeue/T/0/00000000000000000000"),
    ],
)
async def test_a_fifo_is_refused_by_name(
    name: str, tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """To open one waits for another process. A log of which a file was taken for an empty one lost its queues."""
    config = make_config(tmp_path)
    async with open_store(config) as store:
        store.append(make_record(0))
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    kept = path.read_bytes() if path.exists() else None
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(NotAFileError, match=f"it is a FIFO, not a file: '{path}'"):
        async with open_store(config):
            pass
    path.unlink()
    if kept is not None:
        path.write_bytes(kept)
    async with open_store(config) as store:
        assert store.queue_bounds("T", 0) == (0, 1)


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/T/0"])
async def test_a_directory_named_like_a_store_file_is_refused(
    folder: str, tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    config = make_config(tmp_path)
    async with open_store(config) as store:
        store.append(make_record(0))
    path = tmp_path / folder / "00000000000000000000"
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreDamaged, match=f"{path}: it is a directory, not a file; move it away"):
        async with open_store(config):
            pass
    assert (tmp_path / "consumequeue/T/0").exists()


async def test_a_log_file_of_a_wrong_size_is_refused(
    disk: Disk, tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(tmp_path), disk=disk) as store:
        store.append(make_record(0))
    with pytest.raises(StoreDamaged, match="mappedFileSizeCommitLog is 4096: the setting has changed"):
        async with open_store(make_config(tmp_path, mapped_file_size_commit_log=4096), disk=disk):
            pass


async def test_queues_with_files_of_another_size_are_built_again(
    disk: Disk, tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(tmp_path), disk=disk) as store:
        for n in range(25):
            store.append(make_record(n))
    async with open_store(make_config(tmp_path, mapped_file_size_consume_queue=220), disk=disk) as store:
        assert store.queue_bounds("T", 0) == (0, 25)
        assert disk.list(f"{tmp_path}/consumequeue/T/0") == [f"{base:020d}" for base in (0, 220, 440)]


def sizes(root: Path) -> dict[str, int]:
    return {str(p.relative_to(root)): p.stat().st_size for p in root.rglob("*") if p.is_file()}


async def test_files_of_a_fresh_store(tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord) -> None:
    async with open_store(make_config(tmp_path)) as store:
        assert (tmp_path / "commitlog").is_dir()
        assert not (tmp_path / "index").exists()
        assert (tmp_path / "abort").exists()
        store.append(make_record(0, topic="%RETRY%g|x"))
    found = sizes(tmp_path)
    index = next(iter(k for k in found if k.startswith("index/")))
    assert len(index) == len("index/20261121044530391")
    assert found == {
        "lock": 4,
        "checkpoint": 4096,
        f"commitlog/{0:020d}": 65536,
        f"consumequeue/%RETRY%g|x/0/{0:020d}": 200,
        index: 40 + 20 * 4 + 60 * 20,
        "triomq/boot_id": found["triomq/boot_id"],
    }


def test_segments_with_a_gap(memory_disk: MemoryDisk) -> None:
    segments = Segments(memory_disk, "/x", 100)
    for base in (300, 400, 700):
        segments.add(segments.build(base, 100))
    assert [s.base if (s := segments.find(o)) else None for o in (299, 300, 499, 500, 699, 700, 799, 800)] == [
        None, 300, 400, None, None, 700, 700, None,
    ]  # fmt: skip
    assert (segments.min_offset, segments.max_offset) == (300, 700)
    assert [s.base for s in segments.truncate(450)] == [700]
    assert segments.max_offset == 450
    assert Segments(memory_disk, "/y", 100).min_offset == -1


async def test_a_missing_log_is_reported_before_its_queues_are_removed(
    memory_disk: MemoryDisk, make_config: Any, make_record: Any, caplog: Any
) -> None:
    config = make_config("/store", compat="4.9")
    async with open_store(config, disk=memory_disk) as store:
        assert not caplog.text, "an empty store is none that has lost anything"
        store.append(make_record(0))
        store.append(make_record(1, queue_id=3))
    for path in [path for path in memory_disk.files if "/commitlog/" in path]:
        memory_disk.remove(path)
    async with open_store(config, disk=memory_disk) as store:
        assert store.queue_bounds("T", 0) == (0, 0)
    assert "there are no log files: 2 queues of an earlier log and its index are removed" in caplog.text


async def test_holes_are_not_looked_into(
    make_config: MakeConfig, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system in memory a look takes a page, and ends the process when there is none."""
    most = 0

    def taken() -> int:
        return sum(path.stat().st_blocks * 512 for path in Path(root).rglob("0*") if path.is_file())

    def punch(file: RealMappedFile, start: int, end: int) -> None:
        nonlocal most  # recovery gives back what it took by looking: ask before
        most = max(most, taken())
        zero(file, start, end)

    zero = RealMappedFile.zero
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        config = make_config(
            root,
            mapped_file_size_commit_log=64 << 20,
            mapped_file_size_consume_queue=6_000_000,
            max_message_size=16 << 20,
        )
        async with open_store(config) as store:
            store.append(make_record(0))
        before = taken()
        monkeypatch.setattr(RealMappedFile, "zero", punch)
        for unclean in (False, True):
            if unclean:
                RealDisk().write(f"{root}/abort", b"")
            async with open_store(config) as store:
                assert store.recovery_report.clean != unclean
    assert 0 < most < before + (1 << 17)


async def test_a_cut_that_cannot_delete_a_file_forgets_the_deleted_ones(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("/store", mapped_file_size_commit_log=4096)
    async with open_store(config, disk=memory_disk) as store:
        for n in range(75):
            store.append(make_record(n))
        log, remove = store.commitlog, memory_disk.remove
        assert log.segments.items[-1].base > 4 * 4096

        def refuse(path: str) -> None:
            if path.endswith("/00000000000000008192"):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
            remove(path)

        with monkeypatch.context() as patch:
            patch.setattr(memory_disk, "remove", refuse)
            with pytest.raises(PermissionError):
                log.truncate(100)
        assert [segment.base for segment in log.segments.items] == [0, 4096, 8192]
        assert log.max_offset == 12288
        assert [segment.base for segment in log.truncate(4096)] == [8192]
        assert log.max_offset == 4096
