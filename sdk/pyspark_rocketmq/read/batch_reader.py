"""The batch read: plans tasks from the current offsets, and gives each its range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_rocketmq.clients import borrowed
from pyspark_rocketmq.filters import push
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.read.bounds import plan_batch
from pyspark_rocketmq.read.task import RangePartition, key_of, read_range


class _PushFilters:
    """`BatchReader.pushFilters`, which may also remain unused.

    Spark refuses readers that can take filters as long as `spark.sql.python.filterPushdown.enabled` is false, which is
    its default, and recognizes them by whether this method is the base class's. So this one claims to be: with the
    setting it is called, and without it the reader is accepted too.
    """

    def __init__(self, push_filters: Callable[[list[Filter]], Iterable[Filter]]) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._push = push_filters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._push(filters)


class BatchReader(DataSourceReader):
    """Reads between two sets of offsets.

    Args:
        options: of the read.
        schema: the columns wanted.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @property
    def pushFilters(self) -> Any:  # noqa: N802 - Spark's name
        """Accepts the filters that can be handled exactly, and returns the others."""
        return _PushFilters(self._push)

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        selection, left = push(self._options.selection, filters)
        self._options = attrs.evolve(self._options, selection=selection)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        """One task per range; see :func:`plan_batch` for the errors."""
        options = self._options
        with borrowed(key_of(options)) as client:
            parts = client.call(lambda session: plan_batch(session, options))
        # Where there is none, Spark creates a partition of its own and reads it.
        return [RangePartition(part, options.selection.test) for part in parts] or [
            RangePartition(None, options.selection.test)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as record batches."""
        return read_range(self._options, self._schema, partition)
