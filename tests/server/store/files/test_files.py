"""Small files and the real disk: configuration tables, lock, abort marker, names that do not belong."""

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
from triomq_server.plain_files import NotAFileError
from triomq_server.store import NewRecord, RealDisk, StoreDamaged, StoreLocked, open_store
from triomq_server.store.files.config_files import ConfigFile, ConfigFileDamaged
from triomq_server.store.files.disk import Disk, RealMappedFile
from triomq_server.store.files.segments import Segments

MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]


@pytest.fixture(params=["real", "memory"])
def disk(request: Any) -> Disk:
    return RealDisk() if request.param == "real" else MemoryDisk()


async def test_config_file(disk: Disk, tmp_path: Path, caplog: Any) -> None:
    path = f"{tmp_path}/config/topics.json"
    file = ConfigFile(path, disk)
    assert file.load() is None
    file.save(b'{"offsetTable":{"T@G":{0:1,1:2\n\t\t}}}')
    assert file.load() == {"offsetTable": {"T@G": {0: 1, 1: 2}}}
    file.save(b'{"second":2}')
    assert disk.read(path + ".bak") == b'{"second":2}'
    assert not disk.exists(path + ".tmp")
    await file.save_in_background(b'{"third":3}')
    assert file.load() == {"third": 3}
    disk.write(path, b"")
    assert file.load() == {"third": 3}
    assert f"{path} is empty" in caplog.text
    disk.write(path, b"{broken")
    assert file.load() == {"third": 3}
    assert "cannot be parsed" in caplog.text
    disk.remove(path)
    assert file.load() == {"third": 3}
    assert f"{path} is missing" in caplog.text
    disk.write(path + ".bak", b"{broken")
    with pytest.raises(ConfigFileDamaged, match=r"topics\.json"):
        file.load()
    disk.write(path, b"{broken")
    disk.remove(path + ".bak")
    with pytest.raises(ConfigFileDamaged, match=r"there is no .*\.bak: .*; repair the file or move it away"):
        file.load()


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, backup = tmp_path / "broker.conf", tmp_path / "broker.conf.bak"
    file = ConfigFile(str(path), RealDisk())
    path.write_bytes(b"tls.server.keyPassword=x")
    backup.write_bytes(b"an older one, which all may read")
    for mode in (0o600, 0o640, 0o664):
        path.chmod(mode)
        file.save(b"[1]")
        assert [each.stat().st_mode & 0o777 for each in (path, backup)] == [mode, mode]
    owner = (path.stat().st_uid, path.stat().st_gid)
    assert (backup.stat().st_uid, backup.stat().st_gid) == owner

    # A file of another group, which this process may not give away.
    def refuse(*_: int) -> None:
        raise PermissionError

    real = os.stat
    path.chmod(0o640)
    monkeypatch.setattr(os, "fchown", refuse)
    monkeypatch.setattr(os, "stat", lambda name: os.stat_result([*real(name)[:5], owner[1] + 1, *real(name)[6:10]]))
    file.save(b"[2]")
    monkeypatch.undo()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_table_that_is_empty_is_said(tmp_path: Path, caplog: Any) -> None:
    path = f"{tmp_path}/topics.json"
    disk = RealDisk()
    disk.write(path, b"")
    assert ConfigFile(path, disk).load() is None
    assert "what it held is lost" in caplog.text


def test_a_failed_save_leaves_the_old_table(tmp_path: Path) -> None:
    disk = MemoryDisk()
    file = ConfigFile("/s/x.json", disk)
    file.save(b"[1]")
    disk.failing_syncs = True
    with pytest.raises(OSError, match="set to fail"):
        file.save(b"[2]")
    assert file.load() == [1]


def test_a_failure_is_logged_once_and_its_end(caplog: Any) -> None:
    """Tables on a timer are tried every few seconds, and a full disk may stay full for days."""
    disk = MemoryDisk()
    file = ConfigFile("/s/x.json", disk)
    full = OSError(errno.ENOSPC, "no space")
    for error in (full, full, OSError(errno.EIO, "broken"), full):
        file.log_failure(error)
    for _ in range(2):
        file.save(b"[2]")
    file.log_failure(full)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "/s/x.json cannot be written: [Errno 28] no space"),
        ("ERROR", "/s/x.json cannot be written: [Errno 5] broken"),
        ("ERROR", "/s/x.json cannot be written: [Errno 28] no space"),
        ("WARNING", "/s/x.json is written again"),
        ("ERROR", "/s/x.json cannot be written: [Errno 28] no space"),
    ]


def test_a_backup_that_cannot_be_written_is_logged_once_for_each_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    disk = MemoryDisk()
    file = ConfigFile("/s/x.json", disk)
    write = disk.write
    full, broken = OSError(errno.ENOSPC, "no space"), OSError(errno.EIO, "broken")
    failures = [full, full, broken, None, broken]

    def write_but_no_backup(path: str, data: bytes, *, sync: bool = True) -> None:
        if path.endswith(".bak") and (failure := failures.pop(0)) is not None:
            raise failure
        write(path, data, sync=sync)

    monkeypatch.setattr(disk, "write", write_but_no_backup)
    while failures:
        file.save(b"[1]")
    assert file.load() == [1]
    assert [record.getMessage() for record in caplog.records] == [
        "/s/x.json.bak cannot be written: [Errno 28] no space",
        "/s/x.json.bak cannot be written: [Errno 5] broken",
        "/s/x.json.bak cannot be written: [Errno 5] broken",
    ]


async def test_one_store_per_directory(disk: Disk, tmp_path: Path, make_config: MakeConfig) -> None:
    config = make_config(tmp_path)
    async with open_store(config, disk=disk):
        with pytest.raises(StoreLocked, match=r"lock is locked"):
            async with open_store(config, disk=disk if isinstance(disk, MemoryDisk) else RealDisk()):
                pass
        assert disk.read(f"{tmp_path}/lock") == b"lock"
    async with open_store(config, disk=disk):
        pass


async def test_the_lock_holds_between_processes(tmp_path: Path, make_config: MakeConfig) -> None:
    taker = (
        "import sys\nfrom triomq_server.store.files.disk import RealDisk, StoreLocked\n"
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


def test_a_file_system_without_locks_of_directories_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.EBADF, "not open for writing")

    monkeypatch.setattr(fcntl, "flock", flock)
    RealDisk().lock_directory(str(tmp_path))()


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


def test_disks_agree(disk: Disk, tmp_path: Path) -> None:
    root = f"{tmp_path}/d"
    assert disk.list(root) == []
    assert not disk.exists(root)
    file = disk.create(f"{root}/a/b", 10_000, 4096)
    assert disk.is_directory(f"{root}/a")
    file.buffer[0:3] = b"abc"
    file.reserve(4096, 10_000)
    file.buffer[9000:9003] = b"xyz"
    file.sync(0, 10_000)
    assert disk.read(f"{root}/a/b")[9000:9003] == b"xyz"
    file.zero(2, 10_000)
    assert disk.read(f"{root}/a/b") == b"ab" + bytes(9998)
    file.close()
    assert disk.size(f"{root}/a/b") == 10_000
    assert disk.open(f"{root}/a/b").buffer[0:2] == b"ab"
    disk.write(f"{root}/c", b"1")
    disk.replace(f"{root}/c", f"{root}/e")
    assert disk.list(root) == ["a", "e"]
    disk.remove(f"{root}/e")
    disk.remove(f"{root}/e")
    disk.remove_tree(f"{root}/a")
    disk.remove_tree(f"{root}/a")
    assert disk.list(root) == []
    with pytest.raises(FileNotFoundError):
        disk.read(f"{root}/e")
    with pytest.raises(FileNotFoundError):
        disk.size(f"{root}/e")
    for path in (f"{root}/not/there", "not/there", "not", "", "a\0b"):
        usage = disk.usage(path)
        assert usage.total_bytes >= usage.free_bytes >= usage.usable_bytes > 0
    file.sync(0, 10)  # deleted meanwhile: nothing to do


def test_the_real_disk_punches_holes_and_reserves_space(tmp_path: Path) -> None:
    disk = RealDisk()
    path = f"{tmp_path}/f"
    file = disk.create(path, 1 << 20, 1 << 19)
    assert os.stat(path).st_blocks * 512 >= 1 << 19
    with pytest.raises(OSError, match=os.strerror(errno.EFBIG)) as e:
        file.reserve(0, 1 << 62)
    assert e.value.errno == errno.EFBIG
    file.close()


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


async def test_a_log_that_has_gone_is_told_before_its_queues_go_too(
    memory_disk: MemoryDisk, make_config: Any, make_record: Any, caplog: Any
) -> None:
    config = make_config("/store")
    async with open_store(config, disk=memory_disk) as store:
        assert not caplog.text, "an empty store is none that has lost anything"
        store.append(make_record(0))
        store.append(make_record(1, queue_id=3))
    for path in [path for path in memory_disk.files if "/commitlog/" in path]:
        memory_disk.remove(path)
    async with open_store(config, disk=memory_disk) as store:
        assert store.queue_bounds("T", 0) == (0, 0)
    assert "there are no log files: 2 queues of an earlier log and its index are removed" in caplog.text


def test_bytes_are_written_again(disk: Disk, tmp_path: Path) -> None:
    file = disk.create(str(tmp_path / "f"), 8192, 8192)
    file.buffer[4000:4100] = b"x" * 100
    assert file.read_back(3999, 4101) == b"\0" + b"x" * 100 + b"\0"
    file.write_back(4000, b"x" * 50 + b"y" * 50)
    assert file.buffer[3999:4101] == b"\0" + b"x" * 50 + b"y" * 50 + b"\0"
    file.sync(4000, 4100)


def test_a_file_that_has_been_cut_cannot_be_read_back(tmp_path: Path) -> None:
    file = RealDisk().create(str(tmp_path / "f"), 8192, 8192)
    os.truncate(tmp_path / "f", 5000)
    with pytest.raises(OSError, match="ends at 5000"):
        file.read_back(0, 8192)


def test_where_a_files_content_ends(disk: Disk, tmp_path: Path) -> None:
    file = disk.create(f"{tmp_path}/f", 1 << 20, 4096)
    assert file.content_end(0, 1 << 20) <= 4096
    file.reserve(200_000, 210_000, blank=True)
    file.buffer[200_000] = 1
    file.sync(0, 1 << 20)
    assert 200_001 <= file.content_end(0, 1 << 20) < 220_000
    assert file.content_end(300_000, 1 << 20) == 300_000
    assert file.content_end(200_000, 200_500) == 200_500
    file.zero(102_400, 1 << 20)
    assert file.content_end(0, 1 << 20) <= 102_400
    file.close()


def test_what_was_read_of_a_file_holds_until_it_is_mapped(disk: Disk, tmp_path: Path) -> None:
    disk.write(f"{tmp_path}/00000000000000000000", b"x" * 4096)
    segments = Segments(disk, str(tmp_path), 4096)
    segments.load("mappedFileSizeCommitLog")
    (segment,) = segments.items
    assert segment.content(10) == (b"x" * 10, 4096)
    segment.remember({0: b"kept"})
    assert segment.peek(0, 4) == b"kept"
    assert segment.peek(0, 3) == segment.peek(1, 3) == b"xxx"
    segment.buffer[:4] = b"new!"
    assert segment.peek(0, 4) == b"new!"
    assert segment.content(10) is None
    segment.close()
    assert segment.peek(0, 4) == b"new!"


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a file system in memory at /dev/shm")
def test_a_file_is_read_without_a_map(disk: Disk, tmp_path: Path) -> None:
    file = disk.create(f"{tmp_path}/f", 1 << 20, 8192)
    file.buffer[:8192] = b"x" * 8192
    content, end = disk.content(f"{tmp_path}/f", 1 << 17)
    assert content == b"x" * 8192 + bytes(end - 8192)
    assert end <= 1 << 16
    assert disk.content(f"{tmp_path}/f", 10) == (b"x" * 10, end)
    assert disk.read_part(f"{tmp_path}/f", 8190, 4) == b"xx\0\0"
    assert disk.read_part(f"{tmp_path}/f", (1 << 20) - 2, 4) == b"\0\0"
    disk.make_directory(f"{tmp_path}/d")
    assert [name for name, is_directory, _ in disk.entries(str(tmp_path)) if is_directory] == ["d"]
    assert [(name, length) for name, is_directory, length in disk.entries(str(tmp_path)) if not is_directory] == [
        ("f", 1 << 20)
    ]
    assert not disk.entries(f"{tmp_path}/missing")


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


def test_a_file_is_forced_to_the_disk_without_a_free_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealDisk().create(f"{tmp_path}/log", 8192, 8192)

    def lack(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", lack)
    file.sync(0, 4096)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux's list of descriptors")
def test_mapped_files_keep_no_descriptors(tmp_path: Path) -> None:
    disk = RealDisk()
    before = len(os.listdir("/proc/self/fd"))
    files = [disk.create(f"{tmp_path}/{number}", 8192, 4096) for number in range(50)]
    files += [disk.open(f"{tmp_path}/{number}") for number in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    for number in range(50):
        files[number].buffer[100:104] = b"here"
        assert files[50 + number].buffer[100:104] == b"here", "both map the file"
        files[number].sync(0, 4096)
        files[number].buffer.flush()
    assert (tmp_path / "7").read_bytes()[100:104] == b"here"
    assert len(files[0].buffer) == 8192
    for file in files:
        file.close()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(), "closing unmaps"


def test_an_empty_file_cannot_be_mapped(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="empty file"):
        RealDisk().open(f"{tmp_path}/empty")
