"""Where `triomq bench run` writes, which it looks at before it starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from triomq_benchmarks.commands import run


@pytest.fixture(autouse=True)
def never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> NoReturn:
        raise AssertionError("it has started")

    monkeypatch.setattr(run, "Session", start)


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_file_is_no_place_for_results(tmp_path: Path, below: str) -> None:
    file = tmp_path / "afile"
    file.write_text("")
    done = CliRunner().invoke(run.run, ["quick", "--out", str(file / below)])
    assert done.exit_code == 2
    assert f"{file} is not a directory; give another --out" in done.stderr


def test_a_folder_that_may_not_be_written_is_no_place_for_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    done = CliRunner().invoke(run.run, ["quick", "--out", str(tmp_path / "new")])
    assert done.exit_code == 2
    assert f"{tmp_path} is not writable" in done.stderr


def test_a_folder_that_is_still_to_be_made_is_a_place_for_results(tmp_path: Path) -> None:
    done = CliRunner().invoke(run.run, ["quick", "--out", str(tmp_path / "a" / "b")])
    assert str(done.exception) == "it has started"
    assert not list(tmp_path.iterdir())
