"""The property by which readers drop the repeats of rows that were sent twice.

A task that is run again sends all its rows again. The key is the same then: it is derived from the query, the batch and
the partition, which do not change, and from the row's contents, since the order of rows may change when a shuffle is
read again; equal rows are counted. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

ROW_KEY: Final = "spark_row_key"
"""The property that holds the key."""

_DIGEST_BYTES: Final = 10


class RowKeys:
    """Gives keys to the rows of one task.

    Args:
        scope: query or job, batch and partition, as text.
    """

    def __init__(self, scope: str) -> None:
        self._prefix = f"{scope}/"
        self._seen: dict[str, int] = {}

    def of(self, contents: Iterable[bytes | memoryview]) -> list[str]:
        """The keys of some rows, in their order.

        Args:
            contents: all of what distinguishes each row from others.
        """
        prefix, seen, size = self._prefix, self._seen, _DIGEST_BYTES
        keys = []
        for content in contents:
            digest = blake2b(content, digest_size=size).hexdigest()
            repeats = seen.get(digest, 0) + 1
            seen[digest] = repeats
            keys.append(f"{prefix}{digest}" if repeats == 1 else f"{prefix}{digest}.{repeats}")
        return keys
