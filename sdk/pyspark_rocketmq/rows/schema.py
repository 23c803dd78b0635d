"""The columns of a read and of a write (their names follow Spark's other sources).

A query that needs few columns may select them with `spark.read.schema("body binary, tags string")`: Spark does not
report to a Python data source which columns the rest of the query uses, so this is the only way to omit the others.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_rocketmq.errors import BadColumns, nearest

TEXT_MAP: Final = MapType(StringType(), StringType())

READ_SCHEMA: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("queue_id", IntegerType()),
        StructField("queue_offset", LongType()),
        StructField("broker_name", StringType()),
        StructField("message_id", StringType()),
        StructField("keys", StringType()),
        StructField("tags", StringType()),
        StructField("body", BinaryType()),
        StructField("properties", TEXT_MAP),
        StructField("born_timestamp", TimestampType()),
        StructField("store_timestamp", TimestampType()),
        StructField("reconsume_times", IntegerType()),
        StructField("commit_log_offset", LongType()),
    ]
)
"""All columns of a read."""

_MAY_BE_NULL: Final = frozenset({"keys", "tags", "born_timestamp", "store_timestamp"})
"""Columns that may be null. Spark relies on `NOT NULL`: its generated code does not test for null, and fails at one."""

_WRITE_TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "body": (BinaryType, StringType),
    "topic": (StringType,),
    "tags": (StringType,),
    "keys": (StringType,),
    "sharding_key": (StringType,),
    "properties": (MapType,),
    "delay_level": (IntegerType, LongType, ShortType, ByteType),
}


def check_read_schema(schema: StructType) -> None:
    """Raise unless every column is one of the data source's, with its type, and occurs once.

    Raises:
        BadColumns: a column is not.
    """
    if not schema.fields:
        raise BadColumns("the schema has no column; leave it out to get all of them")
    names = schema.fieldNames()
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadColumns(f"the schema names the column {twice[0]} {names.count(twice[0])} times; name it once")
    ours = {field.name: field.dataType for field in READ_SCHEMA}
    for field in schema:
        if field.name not in ours:
            raise BadColumns(
                f"a read has no column {field.name!r}{nearest(field.name, ours)}; it has {', '.join(ours)}"
            )
        if not _same(field.dataType, ours[field.name]):
            raise BadColumns(
                f"the column {field.name} is {ours[field.name].simpleString()}, not {field.dataType.simpleString()}; "
                "cast it after the read"
            )
        if not field.nullable and field.name in _MAY_BE_NULL:
            raise BadColumns(f"the column {field.name} is null where a message has none; leave out NOT NULL")


def check_write_schema(schema: StructType, topic: str | None) -> None:
    """Raise unless the rows can be turned into messages.

    Args:
        schema: the schema of the rows.
        topic: the option `topic`.

    Raises:
        BadColumns: `body` is missing, a column is unknown or has another type, or no topic is given.
    """
    names = schema.fieldNames()
    if "body" not in names:
        raise BadColumns(
            f"the rows have no column body, only {', '.join(names) or 'none at all'}; select it, or rename"
        )
    for field in schema:
        types = _WRITE_TYPES.get(field.name)
        if types is None:
            raise BadColumns(
                f"a write takes no column {field.name!r}{nearest(field.name, _WRITE_TYPES)}; it takes "
                f"{', '.join(_WRITE_TYPES)}: drop the others"
            )
        if not isinstance(field.dataType, types) or (types == (MapType,) and not _same(field.dataType, TEXT_MAP)):
            wanted = (
                TEXT_MAP.simpleString() if types == (MapType,) else " or ".join(each().simpleString() for each in types)
            )
            raise BadColumns(
                f"the column {field.name} is {field.dataType.simpleString()}, and must be {wanted}; cast it"
            )
    if topic is None and "topic" not in names:
        raise BadColumns("nothing says where the rows go; give the option topic, or a column topic")


def _same(one: DataType, other: DataType) -> bool:
    """Whether two types are equal, apart from what may be null."""
    return one.simpleString() == other.simpleString()


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow form of this schema that Spark expects in record batches."""
    return to_arrow_schema(schema, timezone="UTC")
