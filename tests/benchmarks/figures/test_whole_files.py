"""Files that are whole or not there."""

from __future__ import annotations

import errno
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
