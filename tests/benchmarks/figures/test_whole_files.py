"""Files that are whole or not there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from triomq_benchmarks.figures.whole_files import whole_file


def write(path: Path, text: str, failure: OSError | None = None) -> None:
    with whole_file(path) as unfinished:
        unfinished.write_text(text)
        if failure is not None:
            raise failure


def test_a_full_disk_leaves_the_earlier_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write(path, "first")
    with pytest.raises(OSError, match="No space"):
        write(path, "a part", OSError(errno.ENOSPC, "No space left on device"))
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_link_points_to_is_replaced(tmp_path: Path) -> None:
    link, path = tmp_path / "link", tmp_path / "below" / "file"
    path.parent.mkdir()
    link.symlink_to(path)  # there is no such file yet
    for text in ("first", "second"):
        write(link, text)
        assert link.readlink() == path
        assert path.read_text() == text
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_pipe_is_written_and_stays(tmp_path: Path, fails: bool) -> None:
    """So do devices: root's `--out /dev/null` replaced the device by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        try:
            write(pipe, "text", OSError("injected") if fails else None)
        except OSError:
            assert fails
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]
