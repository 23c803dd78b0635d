"""The history page: every run below the folders, in order of time, with its known figures."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner, Result
from made_runs import made_run

from triomq_benchmarks.__main__ import bench
from triomq_benchmarks.figures.run_files import RESULT, write_run
from triomq_benchmarks.figures.run_result import RunResult, RunStatus


def history(*arguments: Path | str) -> Result:
    return CliRunner().invoke(bench, ["history", *map(str, arguments)], catch_exceptions=False)


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(run_of_day(1), tmp_path / "a")
    write_run(run_of_day(2), tmp_path / "b")
    (tmp_path / "a" / "consumed").mkdir()
    scandir = os.scandir

    def refused(folder: str) -> object:
        # Permissions do not bind every user that runs tests.
        if folder in (str(tmp_path / "b"), str(tmp_path / "a" / "consumed")):
            raise PermissionError(errno.EACCES, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refused)
    done = history(tmp_path)
    assert done.exit_code == 0
    assert done.stderr == f"left out: {tmp_path / 'b'} cannot be read: Permission denied\n"


def run_of_day(day: int, **others: object) -> RunResult:
    run = made_run(**others)  # type: ignore[arg-type]
    versions = {**run.versions, "commit": f"{day:02d}" * 20}
    return attrs.evolve(run, started_at=f"2026-11-{day:02d}T08:00:00+00:00", versions=versions)


def test_all_runs_are_on_the_page_in_order_of_time(tmp_path: Path) -> None:
    write_run(run_of_day(3, slower=2.0, status=RunStatus.THRESHOLD_FAILED), tmp_path / "late" / "z")
    write_run(run_of_day(1), tmp_path / "b")
    write_run(run_of_day(2, target="java", errors=4), tmp_path / "a<b>" / "java")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / RESULT).write_text("{}")
    done = history(tmp_path)
    assert done.exit_code == 0
    assert "left out:" in done.stderr
    assert done.stdout == f"{tmp_path / 'history.html'}\n"
    page = (tmp_path / "history.html").read_text("utf-8")
    rows = re.findall(r'<td class="name">(2026[^<]+)</td><td class="name">([^<]+)</td>', page)
    assert rows == [
        ("2026-11-03 08:00:00 UTC", "late/z"),
        ("2026-11-02 08:00:00 UTC", "a&lt;b&gt;/java"),
        ("2026-11-01 08:00:00 UTC", "b"),
    ]
    assert "3 runs, 2026-11-01 to 2026-11-03" in page
    assert "threshold failed" in page
    assert "030303030" in page
    figures = {
        key: json.loads(text)
        for key, text in re.findall(
            r'id="plot-([\w-]+)"></div>\s*<script type="application/json">(.*?)</script>', page, re.DOTALL
        )
    }
    assert list(figures) == ["p50", "p99", "rate", "cpu", "memory"]
    ours, java = figures["p50"]["data"]
    assert (ours["meta"], java["meta"]) == ("quick on ours", "quick on java")
    assert ours["x"] == ["2026-11-01T08:00:00", "2026-11-03T08:00:00"]
    assert ours["y"][1] > 1.9 * ours["y"][0]
    assert java["text"] == ["a&lt;b&gt;/java 020202020"]
    assert not re.search(
        r"https?:|\bsrc=|\bhref=|url\(|@import|<link|<iframe", page.partition('<script type="application/gzip"')[0]
    )


def test_runs_of_several_folders_keep_them_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_run(run_of_day(1), tmp_path / name)
    done = history(tmp_path / "one", tmp_path / "two", "--out", tmp_path / "page.html")
    assert done.exit_code == 0
    page = (tmp_path / "page.html").read_text("utf-8")
    assert f"{tmp_path}/one/." in page
    assert f"{tmp_path}/two/." in page


def test_no_run_is_an_error(tmp_path: Path) -> None:
    done = history(tmp_path)
    assert (done.exit_code, done.stderr) == (1, f"Error: no run is below {tmp_path}\n")


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    write_run(run_of_day(1), tmp_path / "run")
    page = tmp_path / "history.html"
    page.mkdir()
    done = history(tmp_path)
    assert (done.exit_code, done.stderr) == (1, f"Error: {page} cannot be written: Is a directory\n")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["history.html", "run"]


@pytest.mark.parametrize("command", [("history",), ("report",), ("compare", "--json", "r\udcff")])
def test_names_of_folders_that_are_not_utf_8(
    command: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a\udcfc", "b"):
        write_run(made_run(), tmp_path / "r\udcff" / name)
    done = CliRunner().invoke(bench, [*command, "r\udcff", *([] if "compare" in command else ["--out", "page.html"])])
    assert done.exit_code == 0, done.exception
    if "compare" in command:
        assert json.loads(done.stdout)["folders"] == ["r\\udcff", "r\\udcff"]
    else:
        assert "a\\udcfc" in (tmp_path / "page.html").read_text("utf-8")
