"""Delayed messages that were damaged when they were due; they are delivered once their records are repaired.

The delay levels continue after them: one damaged record must not hold up all that follow. RocketMQ forgets them.
"""

from __future__ import annotations

import msgspec
import trio

from triomq_protocol.wire import fastjson
from triomq_server.disk.config_files import ConfigFile, damaged

REMEMBERED = 10_000
"""More are not kept; those noted first are forgotten."""


class Undelivered:
    """Queue id and queue offset in the schedule topic of each such message, in memory and in a file.

    Args:
        file: `triomq/undeliveredDelays.json`; None keeps them in memory only.
    """

    def __init__(self, file: ConfigFile | None) -> None:
        self._file = file
        self.places: dict[tuple[int, int], None] = {}
        """In the order in which they were noted."""
        self._changed = False

    def note(self, queue_id: int, queue_offset: int) -> None:
        """This message was due, and is damaged."""
        self.places[queue_id, queue_offset] = None
        if len(self.places) > REMEMBERED:
            del self.places[next(iter(self.places))]
        self._changed = True

    def remove(self, queue_id: int, queue_offset: int) -> None:
        """This message has been delivered, or has expired."""
        self.places.pop((queue_id, queue_offset), None)
        self._changed = True

    def load(self) -> None:
        """Read the file; a missing one is not an error. Raises OSError or ConfigFileDamaged."""
        content = self._file.load() if self._file is not None else None
        if self._file is None or content is None:
            return
        try:
            self.places = dict.fromkeys(msgspec.convert(content, list[tuple[int, int]]))
        except msgspec.ValidationError as error:
            raise damaged(self._file.path, f"does not hold what it should: {error}") from error

    def persist(self) -> None:
        """Write the file if anything has changed; if the disk fails, it logs an error, and the next call tries
        again."""
        if self._file is None or not self._changed:
            return
        self._changed = False
        try:
            self._file.save(self._text())
        except OSError as error:
            self._note_failure(self._file, error)

    async def persist_in_background(self) -> None:
        """As `persist`, without holding up the event loop; notes made in the meantime are written by the next call."""
        if self._file is None or not self._changed:
            await trio.lowlevel.checkpoint()
            return
        self._changed = False
        written = False
        try:
            await self._file.save_in_background(self._text())
            written = True
        except OSError as error:
            self._note_failure(self._file, error)
        finally:
            if not written:  # also at a cancel
                self._changed = True

    def _text(self) -> bytes:
        return fastjson.dumps([list(place) for place in self.places])

    def _note_failure(self, file: ConfigFile, error: OSError) -> None:
        self._changed = True
        file.log_failure(error)
