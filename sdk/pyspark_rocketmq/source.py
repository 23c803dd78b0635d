"""The data source itself: Spark finds :class:`DefaultSource` by the name of this package, and users by the name
`rocketmq`."""

from __future__ import annotations

from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_rocketmq.errors import BadColumns
from pyspark_rocketmq.options import read_options, write_options
from pyspark_rocketmq.read.batch_reader import BatchReader
from pyspark_rocketmq.read.stream_reader import StreamReader
from pyspark_rocketmq.rows.schema import READ_SCHEMA, check_read_schema, check_write_schema
from pyspark_rocketmq.write.writer import BatchWriter, StreamWriter

_NOT_IN_TRANSACTIONS: Final = {
    "sharding_key": "messages are committed in any order",
    "delay_level": "brokers deliver messages of transactions as soon as they are committed",
}


class DefaultSource(DataSource):
    """`spark.read.format("rocketmq")`, and the same for `readStream`, `write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        """The name users give to `format`."""
        return "rocketmq"

    def schema(self) -> StructType:
        """All columns; a query may select some of them with its own schema.

        Raises:
            BadOption: an option is wrong, so that `load()` reports it already.
        """
        read_options(self.options, streaming=False)
        return READ_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read.

        Raises:
            BadOption: an option is wrong.
            BadColumns: a column does not exist.
        """
        check_read_schema(schema)
        return BatchReader(read_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A streaming read; raises as :meth:`reader` does."""
        check_read_schema(schema)
        return StreamReader(read_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write.

        Raises:
            BadOption: an option is wrong, or the mode is `overwrite`: a topic cannot be emptied.
            BadColumns: the columns are not those of messages.
        """
        options = write_options(self.options)
        check_write_schema(schema, options.topic)
        return BatchWriter(options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """A streaming write; raises as :meth:`writer` does."""
        options = write_options(self.options)
        check_write_schema(schema, options.topic)
        if options.decisions is not None:
            for name in ("sharding_key", "delay_level"):
                if name in schema.fieldNames():
                    raise BadColumns(
                        f"transactional=true takes no column {name}: drop it; {_NOT_IN_TRANSACTIONS[name]}"
                    )
        return StreamWriter(options, overwrite=overwrite)
