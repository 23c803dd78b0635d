"""Properties of many messages at once: the map column, and columns of single properties.

A property string is `name 0x01 value 0x02 name 0x01 value ...` (docs/protocol/messages.md §2). If all of them are well
formed, as every client writes them, names and values are found by their separators alone; otherwise they are decoded one
by one, by the same function as everywhere else, so that both ways give the same result.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_rocketmq.rows.stored_frames import Bytes, Ints, StoredFrames, slices
from triomq_protocol.properties import decode_properties

_NAME_END: Final = 1
_VALUE_END: Final = 2
_PAD: Final = np.zeros(16, np.uint8)


class PropertyColumns:
    """The properties of some records.

    Args:
        frames: the records.
    """

    def __init__(self, frames: StoredFrames) -> None:
        self._rows = len(frames)
        text = slices(frames.data, frames.properties_at, frames.properties_bytes, pa.binary())
        found = _entries(text)
        self._columns: _Entries | _Decoded = found if found is not None else _Decoded(text)

    def column(self, name: str) -> pa.Array:
        """One property as text; null where a message has none of this name."""
        return self._columns.column(name)

    def map_column(self, kind: pa.DataType) -> pa.Array:
        """All of them, as a map of this type."""
        return self._columns.map_column(kind)


class _Entries:
    """Names and values by their positions in a buffer."""

    def __init__(self, text: Bytes, first: Ints, names: tuple[Ints, Ints], values: tuple[Ints, Ints]) -> None:
        self._text = text
        self._first = first
        self._values = values
        self._names = slices(text, *names, pa.string())
        encoded = self._names.dictionary_encode()
        self._codes = encoded.indices.to_numpy()
        self._known = {name: code for code, name in enumerate(encoded.dictionary.to_pylist())}
        self._row_of = np.repeat(np.arange(len(first) - 1), np.diff(first))

    def has_repeats(self) -> bool:
        """Whether a message has a name twice; only the last one counts then, which cutting at separators does not
        detect."""
        if not len(self._codes):
            return False
        cells = self._row_of * len(self._known) + self._codes
        if len(self._known) > 64:
            return len(np.unique(cells)) != len(cells)
        return bool(np.bincount(cells).max() > 1)

    def column(self, name: str) -> pa.Array:
        rows = len(self._first) - 1
        code = self._known.get(name)
        if code is None:
            return pa.nulls(rows, pa.string())
        entries = np.flatnonzero(self._codes == code)
        starts, lengths = self._values
        if len(entries) == rows:
            return slices(self._text, starts[entries], lengths[entries], pa.string())
        at, length = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        present = np.zeros(rows, np.bool_)
        where = self._row_of[entries]
        at[where], length[where], present[where] = starts[entries], lengths[entries], True
        return slices(self._text, at, length, pa.string(), present)

    def map_column(self, kind: pa.DataType) -> pa.Array:
        values = slices(self._text, *self._values, pa.string())
        return pa.MapArray.from_arrays(pa.array(self._first, pa.int32()), self._names, values, type=kind)


class _Decoded:
    """The same columns, decoded message by message."""

    def __init__(self, text: pa.Array) -> None:
        self._all = [decode_properties(each.decode("utf-8", "replace")) for each in text.to_pylist()]

    def column(self, name: str) -> pa.Array:
        return pa.array([each.get(name) for each in self._all], pa.string())

    def map_column(self, kind: pa.DataType) -> pa.Array:
        return pa.array([list(each.items()) for each in self._all], kind)


def _entries(array: pa.Array) -> _Entries | None:
    """Cut property strings at their separators; None if any of them does not have the plain form."""
    offsets: Ints = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1).astype(np.int64)
    buffer = array.buffers()[2]
    text: Bytes = np.concatenate((np.frombuffer(buffer, np.uint8, int(offsets[-1])) if buffer else _PAD[:0], _PAD))
    length = int(offsets[-1])
    # A string that starts in the middle of a character is broken, though its start may complete the string before it.
    begins = text[offsets[:-1][np.diff(offsets) > 0]]
    if np.any((begins & 0xC0) == 0x80) or not _is_utf8(text[:length]):
        return None
    ends, name_ends = _ends(text[:length], offsets)
    if len(ends) != len(name_ends):
        return None
    name_starts = np.zeros(len(ends), np.int64)
    name_starts[1:] = (ends + (text[ends] == _VALUE_END))[:-1]
    if np.any(name_starts >= name_ends) or np.any(name_ends + 1 >= ends):
        return None
    first = np.searchsorted(name_starts, offsets)
    names, values = (name_starts, name_ends - name_starts), (name_ends + 1, ends - name_ends - 1)
    found = _Entries(text, first, names, values)
    return None if found.has_repeats() else found


def _ends(text: Bytes, offsets: Ints) -> tuple[Ints, Ints]:
    """The positions where values end, at a separator or with their row, and where names end."""
    separators = np.flatnonzero((text - np.uint8(1)) < 2)
    kinds = text[separators]
    row_ends = offsets[1:][np.diff(offsets) > 0]
    row_ends = row_ends[text[row_ends - 1] != _VALUE_END]
    value_ends = np.concatenate((separators[kinds == _VALUE_END], row_ends))
    value_ends.sort(kind="stable")
    return value_ends, separators[kinds == _NAME_END]


def _is_utf8(text: npt.NDArray[np.uint8]) -> bool:
    if not len(text) or int(text.max()) < 0x80:
        return True
    try:
        text.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True
