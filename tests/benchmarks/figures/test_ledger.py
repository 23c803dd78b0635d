"""The files of a ledger that an earlier run left."""

from __future__ import annotations

from pathlib import Path

from triomq_benchmarks.figures.ledger import remove_ledger


def test_the_ledger_of_a_killed_run_is_removed(tmp_path: Path) -> None:
    for name in ("acknowledged/worker-0001-000000.parquet", "consumed/worker-0001-000000.unfinished", "mine.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"old")
    for _ in range(2):
        remove_ledger(tmp_path)
        assert [each.name for each in tmp_path.iterdir()] == ["mine.toml"]
