"""The Spark job finds what the local form finds: exactly what was planted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from planted_messages import check_exactly, write_ledger

from triomq_benchmarks.audit.checks import Defect
from triomq_benchmarks.audit.ledger_tables import audit_folder
from triomq_benchmarks.spark.audit import audit_folder_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("plant", [frozenset(), frozenset(Defect)], ids=["nothing", "everything"])
def test_finds_exactly_what_was_planted(spark: SparkSession, plant: frozenset[Defect], tmp_path: Path) -> None:
    write_ledger(tmp_path, plant)
    findings = audit_folder_on_spark(spark, tmp_path)
    check_exactly(findings, plant)
    assert findings == audit_folder(tmp_path)


def test_rows_travel_where_no_folder_is_shared(spark: SparkSession, tmp_path: Path) -> None:
    plant = frozenset({Defect.LOST, Defect.CORRUPT})
    write_ledger(tmp_path, plant)
    check_exactly(audit_folder_on_spark(spark, tmp_path, shared=False), plant)
