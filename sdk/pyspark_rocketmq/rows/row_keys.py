"""Keys of rows: a property with which readers drop repeats of rows that were sent twice.

A task that is run again sends all its rows again, with the same keys: a key is derived from the query, the batch and the
partition, which do not change, and from the row's contents, since the order of rows may change when a shuffle is read
again. Equal rows are numbered. Pure.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import pyarrow as pa

from pyspark_rocketmq.rows import compiled
from pyspark_rocketmq.rows.variable_width import data_of, ends_of

ROW_KEY: Final = "spark_row_key"
"""The property that holds the key."""

_DIGEST_BYTES: Final = 10
_MAX_NUMBER_BYTES: Final = 20
"""The longest dot and number that distinguish equal rows, in bytes."""


class RowKeys:
    """Creates the keys of one task's rows.

    It remembers the digest of each row: with the compiled module 24 to 48 bytes a row, else about 130.

    Args:
        scope: query or job, batch and partition, as text.
    """

    def __init__(self, scope: str) -> None:
        self._prefix = f"{scope}/"
        self._compiled = compiled.row_keys.Keys(self._prefix.encode()) if compiled.USED else None
        self._seen: dict[str, int] = {}

    @property
    def max_bytes(self) -> int:
        """An upper bound of the length of an encoded key."""
        return len(self._prefix.encode()) + 2 * _DIGEST_BYTES + _MAX_NUMBER_BYTES

    def of(self, contents: pa.LargeBinaryArray) -> pa.LargeStringArray:
        """The keys of some rows, in their order.

        Args:
            contents: everything that distinguishes each row from others; none is null.
        """
        if self._compiled is None:
            return pa.array([self._key_of(content) for content in contents.to_pylist()], pa.large_string())
        offsets, text = self._compiled.of(data_of(contents), ends_of(contents).data)
        return pa.Array.from_buffers(
            pa.large_string(), len(contents), [None, pa.py_buffer(offsets), pa.py_buffer(text)], 0
        )

    def _key_of(self, content: bytes) -> str:
        digest = blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()
        self._seen[digest] = repeats = self._seen.get(digest, 0) + 1
        return f"{self._prefix}{digest}" if repeats == 1 else f"{self._prefix}{digest}.{repeats}"
