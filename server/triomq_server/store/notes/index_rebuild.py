"""The log offset from which the index has to be built again, in `triomq/reindexFrom`.

It is written before index files are deleted, and kept until their replacements are on the disk: a start that is killed in
between leaves an index that looks sound but lacks keys.
"""

from __future__ import annotations

import logging
from typing import Final

from triomq_server.disk import Disk
from triomq_server.store.notes.noted_offset import forget_offset, note_offset, noted_offset

_log = logging.getLogger(__name__)

_NAME: Final = "reindexFrom"


def noted_rebuild(disk: Disk, root: str) -> int | None:
    """The log offset; None if nothing has to be built again. A note that cannot be read means the whole log."""
    return noted_offset(disk, root, _NAME)


def note_rebuild(disk: Disk, root: str, log_offset: int) -> bool:
    """Note that index files after this log offset are about to be deleted; false if the disk has no space for the note.

    The start continues without it. It is needed if this start does not come to its end.
    """
    try:
        note_offset(disk, root, _NAME, log_offset)
    except OSError as error:
        _log.error("that the index is to be built again from log offset %d cannot be noted: %s", log_offset, error)
        return False
    return True


def forget_rebuild(disk: Disk, root: str) -> None:
    """The index is complete, and on the disk."""
    forget_offset(disk, root, _NAME)
