"""The only files of directories, found by compiled code, and ahead of who asks, as by the disk's other methods."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from triomq_server.compiled import USED
from triomq_server.disk.access import find_only_files
from triomq_server.disk.real_disk import RealDisk

if USED:
    from triomq_server.compiled import directories

pytestmark = pytest.mark.skipif(not USED, reason="no compiled modules in this installation")

LENGTH = 64 * 1024
MOST = 12_000


def make_file(chance: random.Random, path: Path) -> None:
    """A file with up to three pieces of content, and holes, or zeros, in front of them and behind."""
    with path.open("wb") as file:
        for _ in range(chance.randrange(4)):
            file.seek(chance.randrange(chance.choice((1, MOST, LENGTH - 100))))
            file.write(chance.choice((chance.randbytes(100), bytes(60), b"x" + bytes(90), bytes(90) + b"x")))
        file.truncate(chance.choice((LENGTH, LENGTH, LENGTH, LENGTH, 0, LENGTH - 1, LENGTH + 1)))


def test_both_ways_find_the_same(tmp_path: Path) -> None:
    chance, disk = random.Random(11), RealDisk()
    paths = []
    for number in range(600):
        folder = tmp_path / f"{number}-größer"
        folder.mkdir()
        names = ["00000000000000000000", "x" * 255, "größer", os.fsdecode(b"\xff\xfe"), ".hidden"]
        for name in chance.sample(names, chance.choice((0, 1, 1, 1, 1, 1, 2))):
            make_file(chance, folder / name)
        if chance.random() < 0.1:
            (folder / "folder").mkdir()
        paths.append(str(folder))
    expected = list(find_only_files(disk, paths, LENGTH, MOST))
    assert 100 < sum(one is not None for one in expected) < 500
    assert directories.only_files(paths, LENGTH, MOST) == expected
    assert list(disk.only_files(iter(paths), LENGTH, MOST)) == expected
    assert list(disk.only_files((), LENGTH, MOST)) == directories.only_files([], LENGTH, MOST) == []


def test_no_thread_is_left_of_a_look_that_ends_early(tmp_path: Path) -> None:
    paths = [str(tmp_path / str(number)) for number in range(2000)]
    asked = iter(paths)
    files = RealDisk().only_files(asked, LENGTH, MOST)
    assert next(files) is None
    assert 0 < len(list(asked)) < 2000  # it looks ahead, not at all of them
    files.close()
    assert not [thread for thread in threading.enumerate() if "looks for files" in thread.name]
    files = RealDisk().only_files([*paths, "\ud800"], LENGTH, MOST)
    with pytest.raises(UnicodeEncodeError):
        list(files)
    assert not [thread for thread in threading.enumerate() if "looks for files" in thread.name]


def test_what_is_no_plain_file_is_left_to_others(tmp_path: Path) -> None:
    (tmp_path / "fifo").mkdir()
    os.mkfifo(tmp_path / "fifo" / "0")  # to open it for reading would wait for a writer
    (tmp_path / "link").mkdir()
    (tmp_path / "target").write_bytes(bytes(LENGTH))
    (tmp_path / "link" / "0").symlink_to(tmp_path / "target")
    (tmp_path / "a\nb").mkdir()
    names = ("fifo", "link", "missing", "target", "a\nb", "target/0", "x" * 300, "a\0b")
    assert directories.only_files([f"{tmp_path}/{name}" for name in names], LENGTH, MOST) == [None] * len(names)
    with pytest.raises(UnicodeEncodeError):
        directories.only_files([f"{tmp_path}/fifo", f"{tmp_path}/\ud800"], LENGTH, MOST)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "0").write_bytes(b"x" * LENGTH)
    (tmp_path / "two").mkdir()
    for name in "ab":
        (tmp_path / "two" / name).write_bytes(b"")
    for _ in range(50):
        found = directories.only_files([f"{tmp_path}/two", f"{tmp_path}/one"], LENGTH, LENGTH)
        assert found == [None, ("0", b"x" * LENGTH)]
        assert directories.only_files([f"{tmp_path}/one"], LENGTH, MOST) == [None]
        assert directories.only_files([f"{tmp_path}/one"], 7, MOST) == [None]
    assert not before or len(os.listdir("/proc/self/fd")) == before
