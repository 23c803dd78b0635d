"""The disk and its mapped files: the real one, and the one in memory that tests use."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
import trio

from triomq_server.disk import Disk, RealDisk
from triomq_server.store.files.segments import Segments


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


async def test_chores_are_done_in_the_loop_while_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As at a limit of processes. Nothing would be flushed or saved otherwise, not even at the stop."""

    async def refused(*_: object, **__: object) -> None:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("can't start new thread")

    disk = RealDisk()
    assert await disk.run(threading.get_ident) != threading.get_ident()
    with monkeypatch.context() as patch:
        patch.setattr(trio.to_thread, "run_sync", refused)
        assert await disk.run(threading.get_ident) == threading.get_ident()
        assert await disk.run(lambda: 7) == 7
    assert len(caplog.messages) == 1
    assert "all requests wait for the disk meanwhile; raise the limit of processes" in caplog.text
    assert await disk.run(threading.get_ident) != threading.get_ident()


async def test_a_chore_that_fails_is_not_done_again() -> None:
    done = []

    def chore() -> None:
        done.append(1)
        raise RuntimeError("can't start new thread")

    with pytest.raises(RuntimeError):
        await RealDisk().run(chore)
    assert done == [1]


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


def test_a_store_behind_a_link_to_nothing_is_not_made(tmp_path: Path) -> None:
    """Its file system may not be mounted yet: a new store would be on another disk."""
    (tmp_path / "store").symlink_to(tmp_path / "mounted" / "store")
    with pytest.raises(FileExistsError):
        RealDisk().lock(f"{tmp_path}/store/lock")
    assert not (tmp_path / "mounted").exists()
