"""Converts rows to messages one by one: for rows that cannot be in a batch, and to report the fault of a row. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs
import pyarrow as pa

from pyspark_rocketmq.errors import WriteFailed
from pyspark_rocketmq.rows.batch_elements import NOT_WRITTEN, row_content
from pyspark_rocketmq.rows.row_keys import ROW_KEY, RowKeys
from triomq import Message, MQError
from triomq_protocol.names import MAX_PROPERTIES_BYTES, UNIQ_KEY

_OF_MESSAGE_ID: Final = len(UNIQ_KEY) + 1 + 32
"""Bytes of the message id among the properties."""


@attrs.frozen
class RowMessage:
    """A row as a message to be sent.

    Args:
        message: the message.
        sharding_key: rows of the same key keep their order; None for any order.
    """

    message: Message
    sharding_key: str | None

    @property
    def topic(self) -> str:
        """The topic to send to."""
        return self.message.topic


def utf8_rows(batch: pa.RecordBatch, scope: str, first_row: int) -> pa.RecordBatch:
    """The rows with their bodies as bytes, whatever these are, and with texts checked to be UTF-8.

    Spark's texts need not be, such as `cast(X'ff' as string)`.

    Args:
        batch: some rows.
        scope: query or job, batch and partition, as text.
        first_row: the number of the first row in the task.

    Raises:
        WriteFailed: a text is not UTF-8; the error names row and column.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns["body"] = columns["body"].cast(pa.large_binary())
    for name, column in columns.items():
        if not _is_utf8(column):
            row = next(row for row in range(len(column)) if not _is_utf8(column.take(pa.array([row]))))
            raise WriteFailed(
                f"row {first_row + row} of {scope} cannot be sent: its column {name} holds bytes that are not UTF-8, as "
                f"messages need them in all but the body; filter such rows out, or write base64({name})"
            )
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _is_utf8(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


class RowReader:
    """Converts a task's rows to messages.

    Args:
        scope: query or job, batch and partition, as text.
        topic: the topic of rows that do not name one.
        max_body_bytes: larger bodies are refused.
        keys: creates the key of each row.
    """

    def __init__(self, scope: str, topic: str | None, max_body_bytes: int, keys: RowKeys) -> None:
        self._scope = scope
        self._topic = topic
        self._max_body_bytes = max_body_bytes
        self._keys = keys

    def messages(self, batch: pa.RecordBatch, numbers: Iterable[int]) -> Iterator[RowMessage]:
        """The messages of some rows, in their order.

        Args:
            batch: the rows.
            numbers: their numbers in the task.

        Raises:
            WriteFailed: a row cannot be a message; the error names the row and the reason.
        """
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        for row, number in zip(range(batch.num_rows), numbers, strict=True):
            yield self._message({name: values[row] for name, values in columns.items()}, number)

    def _message(self, row: Mapping[str, Any], number: int) -> RowMessage:
        body, topic = row["body"], row.get("topic") or self._topic
        if body is None:
            raise WriteFailed(f"row {number} of {self._scope} has no body; filter such rows out")
        if topic is None:
            raise WriteFailed(f"row {number} of {self._scope} has no topic; set the option topic, or fill the column")
        if len(body) > self._max_body_bytes:
            raise WriteFailed(
                f"row {number} of {self._scope} cannot be sent: its body has {len(body)} bytes, more than "
                f"{self._max_body_bytes}; set rocketmq.max_body_bytes higher, as the brokers' maxMessageSize allows, or "
                "filter such rows out"
            )
        tags, keys, sharding_key = row.get("tags"), _keys(row.get("keys")), row.get("sharding_key")
        own = _own_properties(row)
        content = row_content(
            body, own.items(), " ".join(keys) if isinstance(keys, list) else keys, tags, topic, sharding_key
        )
        key = self._keys.of(pa.array([content], pa.large_binary()))[0].as_py()
        message = Message(
            topic, body, tags=tags, keys=keys, properties={**own, ROW_KEY: key}, delay_level=row.get("delay_level") or 0
        )
        try:
            message.check(self._max_body_bytes)
        except MQError as error:
            raise WriteFailed(f"row {number} of {self._scope} cannot be sent: {error}") from error
        pairs = message.property_pairs()
        size = _OF_MESSAGE_ID + sum(len(name.encode()) + len(value.encode()) + 2 for name, value in pairs)
        if size > MAX_PROPERTIES_BYTES:
            raise WriteFailed(
                f"row {number} of {self._scope} cannot be sent: its properties, tags and keys have {size} bytes, and "
                f"brokers take {MAX_PROPERTIES_BYTES}"
            )
        return RowMessage(message, sharding_key)


def _own_properties(row: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in row.get("properties") or () if value is not None and name not in NOT_WRITTEN}


def _keys(column: str | None) -> str | list[str] | None:
    """The keys in a column, as reads return them: separated by blanks, in messages of Java's producers also by other
    white space."""
    return column.split() if column is not None and any(blank in column for blank in " \t\n\r") else column
