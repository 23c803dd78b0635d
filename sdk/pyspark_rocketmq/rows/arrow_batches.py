"""Converts stored records to Arrow record batches, without an object per row.

Only the columns of the schema are created; the others cost only their bytes on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.rows import compiled
from pyspark_rocketmq.rows.compiled_columns import CompiledColumns, UnusualRecordsError
from pyspark_rocketmq.rows.instants import instants
from pyspark_rocketmq.rows.property_columns import PropertyColumns
from pyspark_rocketmq.rows.stored_frames import StoredFrames, slices
from triomq import MessageQueue, ReceivedMessage
from triomq_protocol.names import KEYS, TAGS, UNIQ_KEY
from triomq_protocol.record.view import RecordView

EXPANDED_BYTES: Final = 64 * 1024 * 1024
"""Limit of the decompressed bodies of a batch with several rows: pull answers of 2 MiB may hold 2 GiB of them, which
takes more than twice as much memory, and no batch can have more."""

_OF_PROPERTIES: Final = frozenset({"keys", "tags", "message_id", "properties"})


class BatchMaker:
    """Creates record batches from one queue's messages.

    Args:
        queue: the queue of the messages.
        schema: the columns wanted, in Spark's Arrow form.
        tags: the selected tags, None for all rows; the broker's filter may pass others.
    """

    def __init__(self, queue: MessageQueue, schema: pa.Schema, tags: frozenset[str] | None = None) -> None:
        self._queue = queue
        self._schema = schema
        self._tags = tags
        self._properties_wanted = tags is not None or not _OF_PROPERTIES.isdisjoint(schema.names)
        self._constants = {"topic": pa.scalar(queue.topic), "broker_name": pa.scalar(queue.broker_name)}
        self._makers: dict[str, Callable[[StoredFrames, PropertyColumns | None], pa.Array]] = {
            "body": lambda frames, _: slices(frames.data, frames.body_at, frames.body_bytes, pa.binary()),
            "queue_id": lambda frames, _: pa.array(frames.queue_id),
            "queue_offset": lambda frames, _: pa.array(frames.queue_offset),
            "message_id": _message_ids,
            "keys": lambda _, properties: _sure(properties).column(KEYS),
            "tags": lambda _, properties: _sure(properties).column(TAGS),
            "properties": lambda _, properties: _sure(properties).map_column(schema.field("properties").type),
            "born_timestamp": lambda frames, _: instants(frames.born_ms),
            "store_timestamp": lambda frames, _: instants(frames.stored_ms),
            "reconsume_times": lambda frames, _: pa.array(frames.reconsume_times),
            "commit_log_offset": lambda frames, _: pa.array(frames.physical_offset),
        }

    def batches(self, pages: list[bytes], start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The wanted rows of some pull answers: one batch, or several if many bytes are decompressed.

        Args:
            pages: the answers' bodies.
            start: the first offset wanted.
            end: the offset after the last one wanted.

        Raises:
            BrokenFramesError: the bytes are not records.
            MessageIllegal: a body cannot be decompressed.
        """
        for columns, tags in self._columns(pages, start, end):
            batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
            if tags is not None:
                # The broker compares hashes of tags only.
                batch = batch.filter(pc.is_in(tags, pa.array(sorted(self._tags or ()), pa.string())))
            yield batch

    def _columns(self, pages: list[bytes], start: int, end: int) -> Iterator[tuple[list[pa.Array], pa.Array | None]]:
        """The columns of the schema, and the tags of the rows if some of them may not be wanted."""
        if compiled.USED:
            try:
                yield self._compiled_columns(pages, start, end)
            except UnusualRecordsError:
                pass
            else:
                return
        whole = StoredFrames(pages)
        wanted = (whole.queue_offset >= start) & (whole.queue_offset < end)
        if not wanted.all():
            whole.keep(wanted)
        has_bodies = "body" in self._schema.names and bool(whole.compressed.any())
        parts = _expanded(whole, self._queue) if has_bodies else [(whole, None)]
        for frames, bodies in parts:
            properties = PropertyColumns(frames) if self._properties_wanted else None
            columns = [
                bodies
                if name == "body" and bodies is not None
                else self._makers[name](frames, properties)
                if name in self._makers
                else self._constant(name, len(frames))
                for name in self._schema.names
            ]
            yield columns, None if self._tags is None else _sure(properties).column(TAGS)

    def _compiled_columns(self, pages: list[bytes], start: int, end: int) -> tuple[list[pa.Array], pa.Array | None]:
        records = CompiledColumns(pages, start, end, with_properties=self._properties_wanted)
        columns = [
            records.column(field) if field.name in self._makers else self._constant(field.name, len(records))
            for field in self._schema
        ]
        return columns, None if self._tags is None else records.property(TAGS)

    def _constant(self, name: str, rows: int) -> pa.Array:
        return pa.repeat(self._constants[name], rows)


def _sure(properties: PropertyColumns | None) -> PropertyColumns:
    assert properties is not None
    return properties


def _expanded(frames: StoredFrames, queue: MessageQueue) -> Iterator[tuple[StoredFrames, pa.Array]]:
    """Records of which some are compressed, in parts of at most `EXPANDED_BYTES` or one record, with their bodies."""
    view = memoryview(frames.data)
    rows = np.arange(len(frames))
    bodies: list[bytes | memoryview] = []
    begin = size = 0
    for row, (packed, start, at, stored) in enumerate(
        zip(
            frames.compressed.tolist(),
            frames.starts.tolist(),
            frames.body_at.tolist(),
            frames.body_bytes.tolist(),
            strict=True,
        )
    ):
        body = ReceivedMessage(RecordView(view, start), queue).body if packed else view[at : at + stored]
        if bodies and size + len(body) > EXPANDED_BYTES:
            yield frames.part((rows >= begin) & (rows < row)), pa.array(bodies, pa.binary())
            bodies, begin, size = [], row, 0
        bodies.append(body)
        size += len(body)
    yield frames.part(rows >= begin), pa.array(bodies, pa.binary())


def _message_ids(frames: StoredFrames, properties: PropertyColumns | None) -> pa.Array:
    """The sender's id of each message, or the broker's if there is none."""
    ids = _sure(properties).column(UNIQ_KEY)
    if not ids.null_count:
        return ids
    missing = np.flatnonzero(ids.is_null().to_numpy(zero_copy_only=False))
    own = {int(row): RecordView(frames.data, int(frames.starts[row])).offset_message_id for row in missing}
    return pa.array([own.get(row, value) for row, value in enumerate(ids.to_pylist())], pa.string())
