"""What the command says when it cannot start, or ends early."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from triomq_benchmarks.__main__ import bench
from triomq_benchmarks.commands.measurements import versus_java as module
from triomq_benchmarks.drivers.driver_processes import LoadError


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
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=100, free=free))
    done = CliRunner().invoke(bench, ["versus-java", "--home", str(tmp_path)])
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit), "no traceback"
    assert "Error: triomq on java, drain: 0 failures, 0 messages" in done.output
    assert (f"The disk of {tmp_path} is 80% full" in done.output) is advice
