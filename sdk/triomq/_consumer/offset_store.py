"""The plug point for the storage of a consumer group's offsets.

The default is ``triomq._cluster.broker_offsets``, local files are in ``offset_files.py``; the positions of a running
consumer are in ``group/positions.py``.  Upstream: ``OffsetStore``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn, Protocol

from triomq._arguments.kinds import check_methods
from triomq._error_text import named_error
from triomq._message.message import OFFSET_MAX, MessageQueue
from triomq.errors import MQError


class OffsetStore(Protocol):
    """Keeps the offsets of one consumer group."""

    async def read(self, queue: MessageQueue, /) -> int | None:
        """The committed offset, or None (or -1) if the group has none in this queue.

        Raises:
            MQError: it cannot be read now. Any other exception counts as one.
        """

    async def commit(self, offsets: Mapping[MessageQueue, int], /) -> None:
        """Keep these offsets; lower ones than before are allowed.

        Raises:
            MQError: some may not have been stored. Any other exception counts as one.
        """


class CheckedStore:
    """A user's offset store: its exceptions become an :class:`MQError`, as for brokers that cannot be reached.

    A database that is down for a moment must not end the consumer.

    Args:
        store: the user's store.

    Raises:
        InvalidCall: it lacks the methods of a store.
    """

    def __init__(self, store: OffsetStore) -> None:
        check_methods("offset_store", store, "read", "commit", asynchronous=True)
        self._store = store
        self._name = type(store).__name__

    async def read(self, queue: MessageQueue, /) -> int | None:
        """The committed offset.

        Raises:
            MQError: the store has failed, or returned something else.
        """
        try:
            offset: object = await self._store.read(queue)
        except MQError:
            raise
        except Exception as error:  # noqa: BLE001 - the user's
            self._failed("read", error)
        if offset is None:
            return None
        if isinstance(offset, int) and not isinstance(offset, bool) and -1 <= offset <= OFFSET_MAX:
            return offset if offset >= 0 else None  # Java's stores return -1 for none
        what = f"read of the offset store {self._name} returned {offset!r} for {queue}"
        raise MQError(what, remark=f"an offset is None or an int from 0 to {OFFSET_MAX}")

    async def commit(self, offsets: Mapping[MessageQueue, int], /) -> None:
        """Keep these offsets.

        Raises:
            MQError: the store has failed.
        """
        try:
            await self._store.commit(offsets)
        except MQError:
            raise
        except Exception as error:  # noqa: BLE001 - the user's
            self._failed("commit", error)

    def _failed(self, method: str, error: Exception) -> NoReturn:
        what = f"{method} of the offset store {self._name} failed"
        raise MQError(what, remark=named_error(error)) from error
