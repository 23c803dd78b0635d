"""The log offset from which records have to get their queue entries again, in `triomq/queuesFrom`.

It is written before the files of a damaged queue are cut or deleted, and kept until its entries are on the disk again: a
start that is killed in between leaves a queue that looks sound but lacks its last entries. A start after a clean stop
writes it, too: it may find that a queue has lost its last file, and one that follows a kill might not read as far back.
"""

from __future__ import annotations

import logging
from typing import Final

from triomq_server.disk import Disk
from triomq_server.store.notes.noted_offset import forget_offset, note_offset, noted_offset

_log = logging.getLogger(__name__)

_NAME: Final = "queuesFrom"


class QueueRebuild:
    """The note of one store.

    Args:
        disk: access to the files.
        root: the store's directory.

    Attributes:
        log_offset: the log offset; None if no queue has to be built again.
    """

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root
        self.log_offset: int | None = None
        self._start: int | None = None

    def load(self) -> None:
        """Read the note of a start that did not come to its end. One that cannot be read means the whole log."""
        self.log_offset = noted_offset(self._disk, self._root, _NAME)

    def note_start(self, log_offset: int) -> None:
        """A start after a clean stop reads the log from this log offset on. If it is killed, the next one has to do the same."""
        self._start = log_offset
        self._write()

    def note(self, log_offset: int) -> None:
        """A queue may lack the entries of records from this log offset on.

        On a full disk the start continues without the note, which is needed only after a kill during this start.
        """
        if self.log_offset is not None and self.log_offset <= log_offset:
            return
        self.log_offset = max(log_offset, 0)
        self._write()

    def _write(self) -> None:
        log_offset = min(offset for offset in (self.log_offset, self._start) if offset is not None)
        try:
            note_offset(self._disk, self._root, _NAME, log_offset)
        except OSError as error:
            _log.error(
                "the log offset %d, from which queues would have to be built again after a kill of this start, cannot be noted: "
                "%s", log_offset, error,
            )  # fmt: skip

    def forget(self) -> None:
        """The queues are complete, and on the disk. OSError."""
        if self.log_offset is not None or self._start is not None:
            self.log_offset = self._start = None
            forget_offset(self._disk, self._root, _NAME)
