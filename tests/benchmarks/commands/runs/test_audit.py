"""The audit command, where its file cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from triomq_benchmarks.audit.checks import Findings
from triomq_benchmarks.commands.runs import audit


def test_findings_that_cannot_be_written_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "audit_folder", lambda _folder: Findings())
    (tmp_path / "audit.json").mkdir()
    done = CliRunner().invoke(audit.audit, [str(tmp_path)])
    assert (done.exit_code, done.stderr) == (1, f"Error: audit.json cannot be written to {tmp_path}: Is a directory\n")
    assert [each.name for each in tmp_path.iterdir()] == ["audit.json"]
