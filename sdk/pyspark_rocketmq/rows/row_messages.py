"""Rows -> messages, each with a key by which readers can drop duplicates.

A task that is run again sends all its rows again. The key is the same then: it is derived from the query, the batch and
the partition, which do not change, and from the row's contents, since the order of rows may change when a shuffle is
read again; equal rows are counted. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

import attrs
import pyarrow as pa

from pyspark_rocketmq.errors import WriteFailed
from triomq import Message, MQError
from triomq_protocol.names import RESERVED_PROPERTIES

ROW_KEY: Final = "spark_row_key"
"""The property that holds the key."""


@attrs.frozen
class RowMessage:
    """A row as a message to be sent.

    Args:
        message: what is sent.
        sharding_key: rows of the same key keep their order; None for any order.
    """

    message: Message
    sharding_key: str | None


class RowReader:
    """Makes messages of a task's rows.

    Args:
        scope: query or job, batch and partition, as text.
        topic: the topic of rows that do not name one.
        max_body_bytes: larger bodies are refused.
    """

    def __init__(self, scope: str, topic: str | None, max_body_bytes: int) -> None:
        self._scope = scope
        self._topic = topic
        self._max_body_bytes = max_body_bytes
        self._seen: Counter[str] = Counter()
        self._rows = 0

    def messages(self, batch: pa.RecordBatch) -> Iterator[RowMessage]:
        """The messages of some rows, in their order.

        Raises:
            WriteFailed: a row cannot be a message; the text gives the row and the reason.
        """
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        for row in range(batch.num_rows):
            yield self._message({name: values[row] for name, values in columns.items()})
            self._rows += 1

    def _message(self, row: Mapping[str, Any]) -> RowMessage:
        body, topic = row["body"], row.get("topic") or self._topic
        if body is None:
            raise WriteFailed(f"row {self._rows} of {self._scope} has no body; filter such rows out")
        if topic is None:
            raise WriteFailed(
                f"row {self._rows} of {self._scope} has no topic; set the option topic, or fill the column"
            )
        if isinstance(body, str):
            body = body.encode()
        message = Message(
            topic,
            body,
            tags=row.get("tags"),
            keys=_keys(row.get("keys")),
            properties=self._properties(row, topic, body),
            delay_level=row.get("delay_level") or 0,
        )
        try:
            message.check(self._max_body_bytes)
        except MQError as error:
            raise WriteFailed(f"row {self._rows} of {self._scope} cannot be sent: {error}") from error
        return RowMessage(message, row.get("sharding_key"))

    def _properties(self, row: Mapping[str, Any], topic: str, body: bytes) -> dict[str, str]:
        # Reserved names belong to the message that was read, not to the one that is written.
        own = [
            (name, value)
            for name, value in row.get("properties") or ()
            if value is not None and name not in RESERVED_PROPERTIES
        ]
        properties = dict(own)
        properties[ROW_KEY] = self._key((topic, row.get("tags"), row.get("keys"), row.get("sharding_key"), own), body)
        return properties

    def _key(self, parts: tuple[object, ...], body: bytes) -> str:
        digest = blake2b(body, digest_size=10)
        digest.update(repr(parts).encode())
        content = digest.hexdigest()
        self._seen[content] += 1
        repeats = self._seen[content]
        return f"{self._scope}/{content}" if repeats == 1 else f"{self._scope}/{content}.{repeats}"


def _keys(column: str | None) -> str | list[str] | None:
    """The column holds what a read of a message gives: keys separated by blanks."""
    return column.split() if column is not None and " " in column else column
