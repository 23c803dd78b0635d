"""Creates the columns of a batch with the compiled module; if it cannot, the numpy columns are used instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_rocketmq.rows import compiled
from pyspark_rocketmq.rows.instants import instants
from pyspark_rocketmq.rows.stored_frames import BrokenFramesError
from triomq_protocol.names import KEYS, TAGS, UNIQ_KEY

_TEXT: Final = pa.string()


class UnusualRecordsError(ValueError):
    """These records are left to the numpy columns: compressed bodies, broken UTF-8, a missing message id."""


class CompiledColumns:
    """The columns of some records.

    Args:
        pages: the answers' bodies, in order.
        start: the first offset wanted.
        end: the offset after the last one wanted.
        with_properties: whether a column of properties is wanted.

    Raises:
        BrokenFramesError: the bytes are not records.
        UnusualRecordsError: the compiled module does not support them.
    """

    def __init__(self, pages: list[bytes], start: int, end: int, *, with_properties: bool) -> None:
        try:
            self._records = compiled.records.Records(pages, start, end)
        except ValueError as error:
            raise BrokenFramesError(str(error)) from None
        self._properties = self._records.properties() if with_properties else None
        if with_properties and self._properties is None:
            raise UnusualRecordsError
        self._makers: dict[str, Callable[[], pa.Array]] = {
            "queue_id": lambda: self._numbers(pa.int32(), self._records.queue_ids),
            "queue_offset": lambda: self._numbers(pa.int64(), self._records.queue_offsets),
            "message_id": self._message_ids,
            "keys": lambda: self.property(KEYS),
            "tags": lambda: self.property(TAGS),
            "body": self._bodies,
            "born_timestamp": lambda: instants(np.frombuffer(self._records.born_ms, np.int64)),
            "store_timestamp": lambda: instants(np.frombuffer(self._records.stored_ms, np.int64)),
            "reconsume_times": lambda: self._numbers(pa.int32(), self._records.reconsume_times),
            "commit_log_offset": lambda: self._numbers(pa.int64(), self._records.physical_offsets),
        }

    def __len__(self) -> int:
        return self._records.count

    def column(self, field: pa.Field) -> pa.Array:
        """A column that is not the same in all rows.

        Raises:
            UnusualRecordsError: the compiled module does not create it from these records.
        """
        if field.name == "properties":
            return self._map_column(field.type)
        return self._makers[field.name]()

    def property(self, name: str) -> pa.Array:
        """One property as text; null where a message has none of this name."""
        assert self._properties is not None
        nulls, bits, offsets, data = self._properties.column(name.encode())
        buffers = [pa.py_buffer(bits) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(_TEXT, len(self), buffers, nulls)

    def _numbers(self, kind: pa.DataType, values: bytes) -> pa.Array:
        return pa.Array.from_buffers(kind, len(self), [None, pa.py_buffer(values)], 0)

    def _bodies(self) -> pa.Array:
        if self._records.compressed:
            raise UnusualRecordsError
        offsets, data = self._records.bodies()
        return pa.Array.from_buffers(pa.binary(), len(self), [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0)

    def _message_ids(self) -> pa.Array:
        ids = self.property(UNIQ_KEY)
        if ids.null_count:
            raise UnusualRecordsError
        return ids

    def _map_column(self, kind: pa.DataType) -> pa.Array:
        assert self._properties is not None
        first, entries, name_offsets, names, value_offsets, values = self._properties.map_column()
        offsets = pa.Array.from_buffers(pa.int32(), len(self) + 1, [None, pa.py_buffer(first)], 0)
        texts = [
            pa.Array.from_buffers(_TEXT, entries, [None, pa.py_buffer(ends), pa.py_buffer(data)], 0)
            for ends, data in ((name_offsets, names), (value_offsets, values))
        ]
        return pa.MapArray.from_arrays(offsets, *texts, type=kind)
