"""A log offset that a start or run of a store notes for the next start, in a file in `triomq/`."""

from __future__ import annotations

from triomq_server.disk import Disk


def noted_offset(disk: Disk, root: str, name: str) -> int | None:
    """The log offset; None if there is no note. One that cannot be read means the whole log."""
    try:
        text = disk.read(_path(root, name))
    except FileNotFoundError:
        return None
    return int(text) if text.isdigit() else 0


def note_offset(disk: Disk, root: str, name: str, log_offset: int, *, sync: bool = True) -> None:
    """Write the note. OSError.

    Args:
        disk: access to the files.
        root: the store's directory.
        name: name of the file.
        log_offset: the offset to note.
        sync: whether the note has to survive a power failure.
    """
    disk.make_directory(f"{root}/triomq")
    disk.write(_path(root, name), str(log_offset).encode(), sync=sync)


def forget_offset(disk: Disk, root: str, name: str) -> None:
    """Remove the note, if there is one."""
    disk.remove(_path(root, name))


def _path(root: str, name: str) -> str:
    return f"{root}/triomq/{name}"
