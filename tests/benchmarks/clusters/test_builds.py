"""Builds are kept in a folder of the temporary directory, where other users may have put something."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from triomq_benchmarks.clusters.builds import ToolUnavailableError, cache_folder


def other_users(root: Path) -> None:
    root.mkdir(mode=0o777)
    root.chmod(0o777)


def link(root: Path) -> None:
    (root.parent / "elsewhere").mkdir()
    root.symlink_to(root.parent / "elsewhere")


@pytest.mark.parametrize("planted", [other_users, link, Path.touch])
def test_a_planted_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    planted(tmp_path / f"triomq-builds-{os.getuid()}")
    with pytest.raises(ToolUnavailableError, match=r"is another user's.* set TMPDIR"):
        cache_folder("go")


def test_our_own_folder_is_for_us_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "new"))
    folder = cache_folder("go")
    assert cache_folder("go") == folder
    assert folder.parent.stat().st_mode & 0o777 == 0o700
