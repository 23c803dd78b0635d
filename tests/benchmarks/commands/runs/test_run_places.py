"""The places where `triomq bench run` writes, which it checks before it starts."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest
import trio
from click.testing import CliRunner
from made_runs import made_run

from triomq_benchmarks.commands.runs import engines, run
from triomq_benchmarks.figures.run_files import FolderInUseError, claimed, read_run
from triomq_benchmarks.figures.run_result import RunResult
from triomq_benchmarks.run.session import Session
from triomq_benchmarks.run.targets import TargetError


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


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("1 topic / 16 partitions / 1Kb", "1-topic-16-partitions-1Kb-"),
        ("../up", "up-"),
        ("..", "run-"),
        ("Überlast", "Überlast-"),
        ("x" * 300, "x" * 80 + "-"),
        ("負" * 300, "負" * 26 + "-"),  # three bytes each
    ],
)
def test_results_lie_in_one_folder_whatever_the_workload_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    workload = tmp_path / "workload.toml"
    workload.write_text(f'name = "{name}"\n', encoding="utf-8")
    seen: list[Path] = []
    monkeypatch.setattr(run, "claimed", lambda place: seen.append(place) or claimed(tmp_path / "claimed"))
    CliRunner().invoke(run.run, [str(workload)])
    assert [place.parent for place in seen] == [Path("triomq-bench")]
    assert seen[0].name.startswith(folder)


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


def test_two_runs_do_not_write_to_one_folder(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    with claimed(place):
        done = CliRunner().invoke(run.run, ["quick", "--out", str(place)])
        assert done.exit_code == 2
        assert f"another run writes to {place}; give another --out" in done.stderr
    assert not list(tmp_path.iterdir()), "what was made for nothing is gone"
    with claimed(place):
        (place / "file").write_text("")
    assert (place / "file").exists()


def test_a_folder_that_another_run_removes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, lock = tmp_path / "a", fcntl.flock

    def remove_first(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        place.rmdir()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with claimed(place):
        (place / "file").write_text("")
        with pytest.raises(FolderInUseError), claimed(place):
            pass


class Measured(Session):
    """A session whose run is over as soon as it starts."""

    async def run(self) -> None:
        await trio.lowlevel.checkpoint()
        self.results.append(made_run())
        self.folders.append(self._write(self.results[-1], "ours", self._options.folder))


@pytest.mark.parametrize("full", ["result.json", "report.html"])
def test_what_was_measured_is_shown_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    replace = os.replace

    def fails(source: Path, target: Path) -> None:
        if target.name == full:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fails)
    monkeypatch.setattr(run, "Session", Measured)
    done = CliRunner().invoke(run.run, ["quick", "--out", str(tmp_path / "run")])
    assert "ours: PASSED" in done.stdout
    if full == "report.html":
        assert done.exit_code == 0
        assert "no report, [Errno 28] No space left on device: `triomq bench report" in done.stderr
    else:
        assert done.exit_code == 1
        assert f"the results of ours are not all in {tmp_path / 'run'}: [Errno 28]" in done.stderr
    assert not (tmp_path / "run" / "report.html.tmp").exists()


@pytest.mark.parametrize("arguments", [(), ("--json",)], ids=str)
def test_what_was_measured_is_written_elsewhere_if_its_folder_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    place = tmp_path / "run"

    class Removed(Measured):
        async def run(self) -> None:
            place.rmdir()
            place.write_text("another program's")
            await super().run()

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(run, "Session", Removed)
    done = CliRunner().invoke(run.run, ["quick", "--out", str(place), *arguments])
    assert done.exit_code == 1
    (elsewhere,) = scratch.iterdir()
    assert f"the results of ours are not all in {place}: " in done.stderr
    assert f"; they are in {elsewhere}, without the ledger" in done.stderr
    assert f"`triomq bench report {elsewhere} --out report.html` writes it elsewhere" in done.stderr
    assert read_run(elsewhere).target == "ours"
    if arguments:
        assert json.loads(done.stdout)["passed"] is False


def test_a_target_that_fails_does_not_hide_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Measured):
        async def run(self) -> None:
            await super().run()
            raise TargetError("no Java")

    monkeypatch.setattr(run, "Session", Failing)
    done = CliRunner().invoke(run.run, ["quick", "--out", str(tmp_path / "run")])
    assert done.exit_code == 1
    assert "ours: PASSED" in done.stdout
    assert "Error: no Java" in done.stderr
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize(
    ("results", "says"),
    [
        ([], "interrupted before anything was measured; no process is left"),
        ([made_run(partial=True)], "interrupted: what was measured until then is written as partial; no process"),
        ([made_run()], "interrupted when the run was over: its results are whole; no process is left"),
    ],
)
def test_what_is_kept_of_an_interrupted_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, results: list[RunResult], says: str
) -> None:
    class Interrupted(Session):
        async def run(self) -> None:
            await trio.lowlevel.checkpoint()
            self.results, self.folders, self.interrupted = results, [self._options.folder] * len(results), True

    monkeypatch.setattr(run, "Session", Interrupted)
    done = CliRunner().invoke(run.run, ["quick", "--out", str(tmp_path / "run")])
    assert done.exit_code == 130
    assert says in done.stderr
