"""The table of the next offsets of removed consume queues.

A topic that is deleted and created again must not number its messages from 0: consumer groups keep their offsets, and a
slave may still have the old queue. So the next offset of each removed queue is kept in `triomq/removedQueues.json` below
the store's directory, with the log's end at the time of removal. Records before that log offset never get an entry again.
RocketMQ 4.9 keeps the next offset in memory only. A slave fetches the table from its master.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import trio

from triomq_protocol.wire import fastjson
from triomq_server.disk.config_files import ConfigFile, damaged

_log = logging.getLogger(__name__)

QUEUES_REMEMBERED = 10_000
"""More removed queues are not kept; those removed first are forgotten."""


class RemovedQueue(NamedTuple):
    """A removed queue as the file and slaves see it.

    Attributes:
        topic, queue_id: which queue.
        next_offset: the queue offset of the next message.
        log_offset: records in front of this log offset belong to the removed queue.
    """

    topic: str
    queue_id: int
    next_offset: int
    log_offset: int


class RemovedQueues:
    """The removed queues of one store, in memory and in a file.

    Args:
        file: where they are kept.

    Attributes:
        forgotten: the topics of queues that have been forgotten; what uses them clears it.
    """

    def __init__(self, file: ConfigFile) -> None:
        self._file = file
        self._writing = trio.Lock()
        self.table: dict[tuple[str, int], RemovedQueue] = {}
        self.forgotten: set[str] = set()

    def get(self, topic: str, queue_id: int) -> RemovedQueue | None:
        """The last removal of this queue, or None."""
        return self.table.get((topic, queue_id))

    def load(self) -> None:
        """Read the file; a missing one is not an error. Raises ConfigFileDamaged."""
        content = self._file.load()
        if content is not None:
            try:
                found = msgspec.convert(content, list[RemovedQueue])
            except msgspec.ValidationError as error:
                raise damaged(self._file.path, f"does not hold what it should: {error}") from error
            self.table = {(queue.topic, queue.queue_id): queue for queue in found}

    def note(self, removed: Iterable[RemovedQueue]) -> None:
        """Keep these removals, and write the file at once, as recovery needs it.

        If the disk fails, it logs an error: they last until a restart.
        """
        self._keep(removed)
        self._write(self._text())

    async def note_in_background(self, removed: Iterable[RemovedQueue]) -> None:
        """As `note`; the table has the removals at once, and its file when this returns. Cannot be cancelled."""
        self._keep(removed)
        with trio.CancelScope(shield=True):
            async with self._writing:  # so that no older text comes last
                text = self._text()
                await self._file.in_background(lambda: self._write(text))

    def _keep(self, removed: Iterable[RemovedQueue]) -> None:
        for queue in removed:
            key = queue.topic, queue.queue_id
            self.table.pop(key, None)
            self.table[key] = queue
        if len(self.table) > QUEUES_REMEMBERED:
            _log.warning("more than %d removed queues; the numbers of the first ones are forgotten", QUEUES_REMEMBERED)
            for key in list(self.table)[: len(self.table) - QUEUES_REMEMBERED]:
                del self.table[key]
                self.forgotten.add(key[0])

    def _text(self) -> bytes:
        return fastjson.dumps(list(self.table.values()))

    def _write(self, text: bytes) -> None:
        try:
            self._file.save(text)
        except OSError as error:
            self._file.log_failure(error)

    def truncate(self, log_offset: int) -> None:
        """The log has been cut at `log_offset`: records written there from now on belong to no removed queue.

        As `note`, for recovery.
        """
        if behind := self._behind(log_offset):
            self.note(behind)

    async def truncate_in_background(self, log_offset: int) -> None:
        """As `truncate`; a kill before the file is written does no damage, since recovery does the same."""
        if behind := self._behind(log_offset):
            await self.note_in_background(behind)

    def _behind(self, log_offset: int) -> list[RemovedQueue]:
        return [queue._replace(log_offset=log_offset) for queue in self.table.values() if queue.log_offset > log_offset]
