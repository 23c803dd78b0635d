"""The Spark job finds what the local form finds: exactly what was planted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from triomq_benchmarks.audit import Fault
from triomq_benchmarks.audit_spark import audit_folder_on_spark
from triomq_benchmarks.audit_tables import audit_folder

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from planted_messages import check_exactly, write_ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("plant", [frozenset(), frozenset(Fault)], ids=["nothing", "everything"])
def test_finds_exactly_what_was_planted(spark: SparkSession, plant: frozenset[Fault], tmp_path: Path) -> None:
    write_ledger(tmp_path, plant)
    findings = audit_folder_on_spark(spark, tmp_path)
    check_exactly(findings, plant)
    assert findings == audit_folder(tmp_path)


def test_rows_travel_where_no_folder_is_shared(spark: SparkSession, tmp_path: Path) -> None:
    plant = frozenset({Fault.LOST, Fault.CORRUPT})
    write_ledger(tmp_path, plant)
    check_exactly(audit_folder_on_spark(spark, tmp_path, shared=False), plant)
