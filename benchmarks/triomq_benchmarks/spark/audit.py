"""The audit as a Spark job: acknowledged meets consumed on the cluster, checked piece by piece by `audit/checks.py`.

For ledgers that are too large for one machine's memory or patience, and right after a run on Spark, whose session is
still there. Messages are cut by a hash of their number into buckets, consumptions by group and queue; each piece comes
to a Python worker as Arrow tables, and goes back as encoded findings, which the driver adds up.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from triomq_benchmarks.audit.checks import UNREADABLE, Findings, check_places
from triomq_benchmarks.audit.ledger_tables import (
    BUCKET_ROWS,
    MESSAGE_COLUMNS,
    PLACE,
    QUEUE,
    check_message_tables,
    check_order_table,
    find_ledger,
    read_ledger,
)
from triomq_benchmarks.figures.ledger import ACKNOWLEDGED, CONSUMED
from triomq_benchmarks.spark.environment import is_on_loopback

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_FINDINGS = "findings binary"


def audit_folder_on_spark(session: SparkSession, folder: Path, *, shared: bool | None = None) -> Findings:
    """Audit the ledger below a run directory with Spark.

    Args:
        session: an open session.
        folder: the run directory.
        shared: whether the cluster's workers see `folder` under the same path; otherwise the driver sends them the
            rows. Default: only if everything runs on this machine.

    Raises:
        LedgerError: there is no ledger.
    """
    files = find_ledger(folder)
    if shared is None:
        shared = is_on_loopback(session.sparkContext.master or "")
    acknowledged, consumed = (
        _frame(session, kind, paths, shared=shared)
        for kind, paths in ((ACKNOWLEDGED, files.acknowledged), (CONSUMED, files.consumed))
    )
    buckets = max(session.sparkContext.defaultParallelism, files.rows // BUCKET_ROWS)
    by_message = _by_message(acknowledged, consumed, files.groups, buckets)
    by_queue = consumed.groupBy(*QUEUE).applyInArrow(_check_queue, _FINDINGS)
    total = Findings(notes=files.notes)
    for row in by_message.union(by_queue).toLocalIterator():
        total += Findings.decode(bytes(row["findings"]))
    again = _given_again(acknowledged).toLocalIterator()
    return total + check_places((*(row[name] for name in PLACE), list(row["numbers"])) for row in again)


def _frame(session: SparkSession, kind: str, paths: Sequence[Path], *, shared: bool) -> DataFrame:
    if shared and paths:
        return session.read.parquet(*(path.absolute().as_uri() for path in paths))
    return session.createDataFrame(read_ledger(paths, kind))


def _by_message(acknowledged: DataFrame, consumed: DataFrame, groups: Sequence[str], buckets: int) -> DataFrame:
    from pyspark.sql import functions as sql

    bucket = sql.pmod(sql.hash("number"), sql.lit(buckets)).alias("bucket")
    sent = acknowledged.select(*MESSAGE_COLUMNS, bucket)
    came = _name_unreadable(acknowledged, consumed).select(*MESSAGE_COLUMNS, "group", bucket)
    check = functools.partial(_check_bucket, tuple(groups))

    def check_pair(left: pa.Table, right: pa.Table) -> pa.Table:
        return check(left, right)

    return sent.groupBy("bucket").cogroup(came.groupBy("bucket")).applyInArrow(check_pair, _FINDINGS)


def _given_again(acknowledged: DataFrame) -> DataFrame:
    """Places that were acknowledged for more than one message, with the messages' numbers."""
    from pyspark.sql import functions as sql

    given = acknowledged.groupBy(*PLACE).agg(sql.collect_set("number").alias("numbers"))
    return given.where(sql.size("numbers") > 1)


def _name_unreadable(acknowledged: DataFrame, consumed: DataFrame) -> DataFrame:
    """As `ledger_tables.name_unreadable`: an unreadable message gets the number acknowledged for its place."""
    from pyspark.sql import functions as sql

    wanted = [*MESSAGE_COLUMNS, "group"]
    number = sql.coalesce(sql.col("number"), sql.lit(UNREADABLE).cast("long")).alias("number")
    bad = consumed.where(sql.col("number") == UNREADABLE).select(*PLACE, "crc", "group")
    named = bad.join(acknowledged.select("number", *PLACE), list(PLACE), "left").select(number, *PLACE, "crc", "group")
    return consumed.where(sql.col("number") != UNREADABLE).select(*wanted).unionByName(named)


def _check_bucket(groups: Sequence[str], acknowledged: pa.Table, consumed: pa.Table) -> pa.Table:
    return _encoded(check_message_tables(acknowledged, consumed, groups))


def _check_queue(queue: pa.Table) -> pa.Table:
    return _encoded(check_order_table(queue))


def _encoded(findings: Findings) -> pa.Table:
    import pyarrow as pa

    return pa.table({"findings": pa.array([findings.encode()], pa.binary())})
