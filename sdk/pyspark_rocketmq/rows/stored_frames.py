"""Reads the fields of many stored records at once: scans their bytes once, and extracts the columns with numpy.

No object is made per record. Offsets and sizes come from `triomq_protocol.record.layout`. Unlike `RecordView`'s users,
this reader treats an unreadable record as an error: a query must not lose rows silently.
"""

from __future__ import annotations

import copy
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from triomq_protocol.record.layout import (
    BODY_AFTER_TIMESTAMP,
    BORN_HOST_V6,
    COMPRESSED,
    FIXED_BYTES,
    HEAD_FIELDS,
    INT32,
    IPV6_EXTRA_BYTES,
    MESSAGE_MAGIC,
    PROPERTIES_LENGTH,
    RECONSUME_TIMES_BEFORE_BODY,
    STORE_HOST_V6,
    STORE_TIMESTAMP_AT,
    TOPIC_LENGTH_BYTES,
    field_offset,
)

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]


def _columns(begin: int, *names: str) -> np.dtype[Any]:
    """A type of these fields of an IPv4 head, for reading from its byte `begin` on."""
    places = [field_offset(name) - begin for name in names]
    return np.dtype({"names": list(names), "formats": [">" + HEAD_FIELDS[name] for name in names], "offsets": places})


_HEAD: Final = _columns(0, "size", "magic", "queue_id", "queue_offset", "physical_offset", "sys_flag", "born_timestamp")
_TAIL: Final = _columns(field_offset("reconsume_times"), "reconsume_times", "body_length")
"""The fields that are read before the body; the store host before them varies in size."""
_TIMESTAMP: Final = np.dtype(">" + HEAD_FIELDS["store_timestamp"])
_LENGTH: Final = np.dtype(PROPERTIES_LENGTH.format)
_size = INT32.unpack_from

_SPARE_BYTES: Final = 48
_VIEW_BYTES: Final = 12
"""Texts up to this length are stored inside an Arrow view; of longer ones only the first four bytes are."""

_WORDS: Final = np.dtype(("<u4", (3,)))
_MASKS: Final = np.array(
    [list(b"\xff" * length + bytes(_VIEW_BYTES - length)) for length in range(_VIEW_BYTES + 1)], np.uint8
).view("<u4")
"""By a text's length: the bits of a view's twelve bytes that belong to it."""


class BrokenFramesError(ValueError):
    """The bytes are not a sequence of records."""


class StoredFrames:
    """The records of some pull answers.

    Args:
        pages: the answers' bodies, in order.

    Raises:
        BrokenFramesError: the bodies do not consist of whole records.
    """

    def __init__(self, pages: list[bytes]) -> None:
        # Padding, so that reads of a few bytes at any position stay inside the buffer.
        self.data = b"".join([*pages, bytes(_SPARE_BYTES)])
        end = len(self.data) - _SPARE_BYTES
        self.starts = _starts(self.data, end)
        head = _fields(self.data, _HEAD, self.starts)
        if np.any(head["magic"] != MESSAGE_MAGIC):
            raise BrokenFramesError("a record without the magic number of one")
        self.queue_offset: Ints = head["queue_offset"].astype(np.int64)
        self.queue_id = head["queue_id"].astype(np.int32)
        self.physical_offset: Ints = head["physical_offset"].astype(np.int64)
        self.born_ms: Ints = head["born_timestamp"].astype(np.int64)
        self.sys_flag = head["sys_flag"].astype(np.int32)
        self.middle_at: Ints = (
            self.starts + STORE_TIMESTAMP_AT + IPV6_EXTRA_BYTES * ((self.sys_flag & BORN_HOST_V6) != 0)
        )
        self.stored_ms: Ints = _fields(self.data, _TIMESTAMP, self.middle_at).astype(np.int64)
        store_v6 = (self.sys_flag & STORE_HOST_V6) != 0
        self.body_at: Ints = self.middle_at + BODY_AFTER_TIMESTAMP + IPV6_EXTRA_BYTES * store_v6
        tail = _fields(self.data, _TAIL, self.body_at - RECONSUME_TIMES_BEFORE_BODY)
        self.reconsume_times = tail["reconsume_times"].astype(np.int32)
        self.body_bytes: Ints = tail["body_length"].astype(np.int64)
        ends = self.starts + head["size"]
        topic_at = self.body_at + self.body_bytes + TOPIC_LENGTH_BYTES
        if np.any((self.body_bytes < 0) | (topic_at > ends)):
            raise BrokenFramesError("a body is longer than its record")
        self.properties_at: Ints = (
            topic_at + np.frombuffer(self.data, np.uint8)[topic_at - TOPIC_LENGTH_BYTES] + _LENGTH.itemsize
        )
        if np.any(self.properties_at > ends):
            raise BrokenFramesError("a topic is longer than its record")
        self.properties_bytes: Ints = _fields(self.data, _LENGTH, self.properties_at - _LENGTH.itemsize).astype(
            np.int64
        )
        if np.any((self.properties_bytes < 0) | (self.properties_at + self.properties_bytes != ends)):
            raise BrokenFramesError("a record's size disagrees with its parts")

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def compressed(self) -> npt.NDArray[np.bool_]:
        """Which bodies are compressed."""
        packed: npt.NDArray[np.bool_] = (self.sys_flag & COMPRESSED) != 0
        return packed

    def part(self, rows: npt.NDArray[np.bool_]) -> StoredFrames:
        """These rows alone, of the same bytes."""
        part = copy.copy(self)
        part.keep(rows)
        return part

    def keep(self, rows: npt.NDArray[np.bool_]) -> None:
        """Keep only these rows."""
        for name in ("starts", "queue_offset", "queue_id", "physical_offset", "born_ms", "sys_flag", "middle_at",
                     "stored_ms", "body_at", "reconsume_times", "body_bytes", "properties_at", "properties_bytes"):  # fmt: skip
            setattr(self, name, getattr(self, name)[rows])


def slices(
    data: bytes | Bytes, starts: Ints, lengths: Ints, kind: pa.DataType, present: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """An array of pieces of a buffer: they are first described as views, and Arrow copies them.

    Args:
        data: the buffer; at least twelve bytes must follow the last start.
        starts: the positions of the pieces.
        lengths: their lengths.
        kind: `pa.binary()` or `pa.string()`.
        present: which are not null; None means all.
    """
    count = len(starts)
    # A view is the length, and then the text itself if it is short, else its first bytes, a buffer's number, and a
    # place.
    views = np.empty((count, 4), np.uint32)
    views[:, 0] = lengths
    views[:, 1:] = _fields(data, _WORDS, starts)
    shorts = int(np.count_nonzero(lengths <= _VIEW_BYTES))
    if shorts:
        views[:, 1:] &= _MASKS[np.minimum(lengths, _VIEW_BYTES)]
    if shorts < count:
        long = lengths > _VIEW_BYTES
        views[:, 2] = np.where(long, 0, views[:, 2])
        views[:, 3] = np.where(long, starts, views[:, 3])
    nulls = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    view_kind = pa.binary_view() if pa.types.is_binary(kind) else pa.string_view()
    return pa.Array.from_buffers(view_kind, count, [nulls, pa.py_buffer(views), pa.py_buffer(data)]).cast(kind)


def _starts(data: bytes, end: int) -> Ints:
    """The start position of each record."""
    if not end:
        return np.zeros(0, np.int64)
    first = _size(data, 0)[0] if end >= FIXED_BYTES else 0
    if first >= FIXED_BYTES and end % first == 0:
        starts = np.arange(0, end, first, dtype=np.int64)
        if np.all(_fields(data, np.dtype(INT32.format), starts) == first):
            return starts
    found = []
    at = 0
    while at < end:
        size = _size(data, at)[0]
        if size < FIXED_BYTES or at + size > end:
            raise BrokenFramesError(f"a record of {size} bytes at {at} of {end}")
        found.append(at)
        at += size
    return np.array(found, np.int64)


def _fields(data: bytes | Bytes, kind: np.dtype[Any], places: Ints) -> npt.NDArray[Any]:
    """The values at these positions of a buffer, aligned or not."""
    flat, inner = (kind.base, kind.shape) if kind.shape else (kind, ())
    windows: npt.NDArray[Any] = np.ndarray(
        (max(0, len(data) - kind.itemsize + 1), *inner), flat, data, strides=(1, *([flat.itemsize] * len(inner)))
    )
    return windows[places]
