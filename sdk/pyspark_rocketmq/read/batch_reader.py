"""The batch read: plans tasks from the current offsets, each with its range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rocketmq.clients import borrowed
from pyspark_rocketmq.errors import ShortStack
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.read.bounds import plan_batch
from pyspark_rocketmq.read.task import RangePartition, key_of, read_range


class BatchReader(DataSourceReader):
    """Reads between two sets of offsets.

    It takes no filters from Spark. Spark 4.3 plans a Python reader once for all queries of a DataFrame, view or table
    reference, and plans it again only if one of them has filters; a later query without filters then reads with the
    plan of the earlier one, and the reader is not notified. So the plan must not depend on filters. For the same
    reason later actions of a DataFrame read up to the offsets that the first one found.

    Args:
        options: the options of the read.
        schema: the columns wanted.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """One task per range; see :func:`plan_batch` for the errors."""
        options = self._options
        with ShortStack(), borrowed(key_of(options)) as client:
            parts = client.call(lambda session: plan_batch(session, options))
        # If there is none, Spark creates its own partition and reads it.
        return [RangePartition(part) for part in parts] or [RangePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as record batches."""
        return read_range(self._options, self._schema, partition)
