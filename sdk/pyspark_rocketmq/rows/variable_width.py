"""The buffers of large binary and large string arrays, as numpy and compiled modules read them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def ends_of(array: pa.LargeBinaryArray | pa.LargeStringArray) -> npt.NDArray[np.int64]:
    """The positions in the array's bytes where its values start, and where the last one ends."""
    return np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, 8 * array.offset)


def data_of(array: pa.LargeBinaryArray | pa.LargeStringArray) -> pa.Buffer:
    """The array's bytes, including those of values outside its slice."""
    data = array.buffers()[2]
    return pa.py_buffer(b"") if data is None else data
