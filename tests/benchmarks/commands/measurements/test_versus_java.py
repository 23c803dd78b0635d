"""What the command says when it cannot start, or ends early."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from triomq_benchmarks.__main__ import bench
from triomq_benchmarks.commands.measurements import versus_java as module
from triomq_benchmarks.drivers.driver_processes import LoadError
from triomq_benchmarks.versus_java.brokers_and_clients import Single


def test_versus_java_refuses_unknown_scenarios(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["versus-java", "--scenario", "1 x 65", "--home", str(tmp_path)])
    assert done.exit_code == 2
    assert "1 x 65; known:" in done.output


@pytest.mark.parametrize(("free", "advice"), [(20, True), (30, False)])
def test_a_failed_load_is_an_error_that_names_a_full_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, advice: bool
) -> None:
    def fails(*_arguments: object) -> None:
        raise LoadError("triomq on java, drain: 0 failures, 0 messages, first: None")

    monkeypatch.setattr(module, "compare", fails)
    monkeypatch.setattr(module, "find_java", object)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=200, used=100 - free, free=free))
    done = CliRunner().invoke(bench, ["versus-java", "--home", str(tmp_path)])
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit), "no traceback"
    assert "Error: triomq on java, drain: 0 failures, 0 messages" in done.output
    assert (f"The disk of {tmp_path} is 80% full" in done.output) is advice


@pytest.mark.parametrize(
    ("error", "code", "cause"),
    [
        (LoadError("a driver ended"), 1, "Error: a driver ended\nWhat is shown was measured before."),
        (OSError("no space left"), 1, "Error: no space left\nWhat is shown was measured before."),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_was_measured_before_a_failure_is_shown(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, cause: str
) -> None:
    def compare(*_args: object):
        yield Single("start to first answer", "s", 0.3, 3.0, 0.1)
        raise error

    monkeypatch.setattr(module, "find_java", object)
    monkeypatch.setattr(module, "compare", compare)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=100, used=0, free=100))
    shown = CliRunner().invoke(bench, ["versus-java"])
    assert shown.exit_code == code
    assert "0.10x (<= 0.1)" in shown.stdout
    assert cause in shown.stderr

    output = json.loads(CliRunner().invoke(bench, ["versus-java", "--json"]).stdout)
    assert len(output["singles"]) == 1
    assert output["failure"].startswith("interrupted" if code == 130 else str(error))
