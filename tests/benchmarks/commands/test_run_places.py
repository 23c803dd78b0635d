"""Where `triomq bench run` writes, which it looks at before it starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from triomq_benchmarks.commands import engines, run


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


@pytest.mark.parametrize(("targets", "folder"), [((), ""), (("ours", "127.0.0.1:9876"), "127.0.0.1-9876")])
def test_the_results_of_an_earlier_run_are_not_replaced(tmp_path: Path, targets: tuple[str, ...], folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    older = tmp_path / folder / "result.json"
    older.write_text("{}")
    given = [part for target in targets for part in ("--target", target)]
    done = CliRunner().invoke(run.run, ["quick", *given, "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert f"{older} is of an earlier run; give another --out" in done.stderr


def test_rounds_of_engines_do_not_replace_those_of_earlier_ones(tmp_path: Path) -> None:
    older = tmp_path / "local-1" / "result.json"
    older.parent.mkdir()
    older.write_text("{}")
    done = CliRunner().invoke(engines.engines, ["--side", "local", "--out", str(tmp_path), "--set", "duration=1 s"])
    assert done.exit_code == 2
    assert f"{older} is of an earlier run" in done.stderr


def test_a_target_that_is_given_twice_would_have_one_folder_for_two_runs(tmp_path: Path) -> None:
    given = ["quick", "--target", "ours", "--target", "ours", "--out", str(tmp_path)]
    done = CliRunner().invoke(run.run, given)
    assert done.exit_code == 2
    assert "ours is given twice" in done.stderr
