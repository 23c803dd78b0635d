"""The audit as a Spark job: acknowledged meets consumed on the cluster, piece by piece judged as `audit.py` says.

For ledgers that are too large for one machine's memory or patience, and right after a run on Spark, whose session is
still there.  Messages are cut by a hash of their number into buckets, consumptions by group and queue; each piece comes to a
Python worker as Arrow tables, and goes back as encoded findings, which the driver adds up.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .audit import UNREADABLE, Findings
from .audit_tables import (
    BUCKET_ROWS,
    MESSAGE_COLUMNS,
    PLACE,
    QUEUE,
    find_ledger,
    judge_message_tables,
    judge_order_table,
    read_ledger,
)
from .run_ledger import ACKNOWLEDGED, CONSUMED
from .spark_environment import is_on_loopback

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_FINDINGS = "findings binary"


def audit_folder_on_spark(session: SparkSession, folder: Path, *, shared: bool | None = None) -> Findings:
    """Judge the ledger below a run directory with Spark.

    Args:
        session: an open one.
        folder: the run directory.
        shared: whether the cluster's workers see `folder` under the same path; the driver sends them the rows otherwise.
            Default: only where everything runs on this machine.

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
    by_queue = consumed.groupBy(*QUEUE).applyInArrow(_judge_queue, _FINDINGS)
    total = Findings(notes=files.notes)
    for row in by_message.union(by_queue).toLocalIterator():
        total += Findings.decode(bytes(row["findings"]))
    return total


def _frame(session: SparkSession, kind: str, paths: Sequence[Path], *, shared: bool) -> DataFrame:
    if shared and paths:
        return session.read.parquet(*(path.absolute().as_uri() for path in paths))
    return session.createDataFrame(read_ledger(paths, kind))


def _by_message(acknowledged: DataFrame, consumed: DataFrame, groups: Sequence[str], buckets: int) -> DataFrame:
    from pyspark.sql import functions as sql

    bucket = sql.pmod(sql.hash("number"), sql.lit(buckets)).alias("bucket")
    sent = acknowledged.select(*MESSAGE_COLUMNS, bucket)
    came = _name_unreadable(acknowledged, consumed).select(*MESSAGE_COLUMNS, "group", bucket)
    judge = functools.partial(_judge_bucket, tuple(groups))

    def judge_pair(left: pa.Table, right: pa.Table) -> pa.Table:
        return judge(left, right)

    return sent.groupBy("bucket").cogroup(came.groupBy("bucket")).applyInArrow(judge_pair, _FINDINGS)


def _name_unreadable(acknowledged: DataFrame, consumed: DataFrame) -> DataFrame:
    """As `audit_tables.name_unreadable`: what cannot be read is the message acknowledged for its place."""
    from pyspark.sql import functions as sql

    wanted = [*MESSAGE_COLUMNS, "group"]
    number = sql.coalesce(sql.col("number"), sql.lit(UNREADABLE).cast("long")).alias("number")
    bad = consumed.where(sql.col("number") == UNREADABLE).select(*PLACE, "crc", "group")
    named = bad.join(acknowledged.select("number", *PLACE), list(PLACE), "left").select(number, *PLACE, "crc", "group")
    return consumed.where(sql.col("number") != UNREADABLE).select(*wanted).unionByName(named)


def _judge_bucket(groups: Sequence[str], acknowledged: pa.Table, consumed: pa.Table) -> pa.Table:
    return _encoded(judge_message_tables(acknowledged, consumed, groups))


def _judge_queue(queue: pa.Table) -> pa.Table:
    return _encoded(judge_order_table(queue))


def _encoded(findings: Findings) -> pa.Table:
    import pyarrow as pa

    return pa.table({"findings": pa.array([findings.encode()], pa.binary())})
