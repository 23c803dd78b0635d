"""Arguments that the command refuses before anything starts."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from triomq_benchmarks.__main__ import bench


def test_versus_java_refuses_unknown_scenarios(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["versus-java", "--scenario", "1 x 65", "--home", str(tmp_path)])
    assert done.exit_code == 2
    assert "1 x 65; known:" in done.output
