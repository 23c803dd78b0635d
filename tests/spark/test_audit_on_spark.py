"""The Spark job finds what the local form finds: exactly the injected defects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from injected_messages import check_exactly, write_ledger

from triomq_benchmarks.audit.checks import Defect
from triomq_benchmarks.audit.ledger_tables import audit_folder
from triomq_benchmarks.spark.audit import audit_folder_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("defects", [frozenset(), frozenset(Defect)], ids=["nothing", "everything"])
def test_finds_exactly_the_injected_defects(spark: SparkSession, defects: frozenset[Defect], tmp_path: Path) -> None:
    write_ledger(tmp_path, defects)
    findings = audit_folder_on_spark(spark, tmp_path)
    check_exactly(findings, defects)
    assert findings == audit_folder(tmp_path)


def test_rows_travel_where_no_folder_is_shared(spark: SparkSession, tmp_path: Path) -> None:
    defects = frozenset({Defect.LOST, Defect.CORRUPT})
    write_ledger(tmp_path, defects)
    check_exactly(audit_folder_on_spark(spark, tmp_path, shared=False), defects)
