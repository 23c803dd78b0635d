"""From where on the index has to be built again from the log, in `triomq/reindexFrom`.

Noted before index files are deleted, and kept until those that take their places are on the disk: a start that is killed
in between leaves an index in which nothing looks wrong, but which lacks keys.
"""

from __future__ import annotations

import logging

from triomq_server.store.files.disk import Disk

_log = logging.getLogger(__name__)


def _path(root: str) -> str:
    return f"{root}/triomq/reindexFrom"


def noted_rebuild(disk: Disk, root: str) -> int | None:
    """The log offset; None if nothing has to be built again. A note that cannot be read means the whole log."""
    try:
        text = disk.read(_path(root))
    except FileNotFoundError:
        return None
    return int(text) if text.isdigit() else 0


def note_rebuild(disk: Disk, root: str, log_offset: int) -> None:
    """Index files behind this log offset are about to be deleted.

    On a full disk the start goes on without the note, which only a kill during this start would need.
    """
    try:
        disk.make_directory(f"{root}/triomq")
        disk.write(_path(root), str(log_offset).encode())
    except OSError as error:
        _log.error("that the index is to be built again from log offset %d cannot be noted: %s", log_offset, error)


def forget_rebuild(disk: Disk, root: str) -> None:
    """The index is complete, and on the disk."""
    disk.remove(_path(root))
