"""The data source under a profiler: each task's main thread, from its first batch to its last, Spark's part of it
included.

Spark's own profiler does not reach the reads of Python data sources (4.3.0). This module imports pyspark, so it is
imported late.
"""

from __future__ import annotations

import cProfile
import pstats
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from pyspark_rocketmq.options import ReadOptions, read_options
from pyspark_rocketmq.read.batch_reader import BatchReader
from pyspark_rocketmq.rows.schema import READ_SCHEMA

FOLDER = "profilefolder"


class ProfiledReader(BatchReader):
    """A reader that writes a profile of every task.

    Args:
        options: the read's options.
        schema: the wanted columns.
        folder: the folder for the profiles.
    """

    def __init__(self, options: ReadOptions, schema: StructType, folder: str) -> None:
        super().__init__(options, schema)
        self._folder = folder

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task; the profiler continues while Spark takes them."""
        profile = cProfile.Profile()
        profile.enable()
        try:
            yield from super().read(partition)
        finally:
            profile.disable()
            profile.dump_stats(Path(self._folder) / f"{uuid.uuid4().hex}.pstats")


class ProfiledSource(DataSource):
    """The data source `rocketmq-profiled`; its option `profileFolder` is the folder for the profiles."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "rocketmq-profiled"

    def schema(self) -> StructType:
        """The schema with all columns."""
        return READ_SCHEMA

    def reader(self, schema: StructType) -> ProfiledReader:
        """A reader for a batch read."""
        options = dict(self.options)
        folder = options.pop(FOLDER)
        return ProfiledReader(read_options(options, streaming=False), schema, folder)


def times(folder: Path) -> tuple[float, float, float]:
    """Total seconds of all tasks: overall, waiting for pulled pages, and making Arrow batches."""
    stats = pstats.Stats(*map(str, sorted(folder.glob("*.pstats"))))
    table: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = stats.stats  # type: ignore[attr-defined]
    waiting = sum(own for (_, _, name), (_, _, own, _, _) in table.items() if "_queue.SimpleQueue" in name)
    arrow = sum(
        cumulative
        for (file, _, name), (_, _, _, cumulative, _) in table.items()
        if name == "batch" and file.endswith("arrow_batches.py")
    )
    return float(stats.total_tt), waiting, arrow  # type: ignore[attr-defined]
