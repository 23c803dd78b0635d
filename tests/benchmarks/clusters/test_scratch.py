"""Temporary folders: removed at the end, and no error if that is impossible."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from triomq_benchmarks.clusters.scratch import scratch_folder


def test_a_folder_is_gone_after_its_block(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with scratch_folder("one-", tmp_path) as folder:
        (Path(folder) / "file").write_text("x")
    with scratch_folder("two-", tmp_path) as folder:
        os.rmdir(folder)
    assert not list(tmp_path.iterdir())
    assert not caplog.records


def test_a_folder_that_cannot_be_removed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_arguments: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    with scratch_folder("one-", tmp_path) as folder:
        # As in a folder without the right to write, which does not hold back root.
        monkeypatch.setattr(os, "rmdir", fails)
    assert f"the temporary folder {folder} could not be removed, and stays: [Errno 13]" in caplog.text
