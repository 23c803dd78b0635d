"""The plug point for where a consumer group's offsets are kept.

The default is ``triomq._cluster.broker_offsets``, local files are in ``offset_files.py``; the positions of a running
consumer are in ``group/positions.py``.  Upstream: ``OffsetStore``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from triomq._message.message import MessageQueue


class OffsetStore(Protocol):
    """Keeps the offsets of one consumer group."""

    async def read(self, queue: MessageQueue, /) -> int | None:
        """The committed offset, or None when the group has none there.

        Raises:
            MQError: it is not known now.
        """

    async def commit(self, offsets: Mapping[MessageQueue, int], /) -> None:
        """Keep these offsets; lower ones than before are allowed.

        Raises:
            MQError: some may not be kept.
        """
