"""A log offset that one start, or run, of a store notes for the next, in a file of `triomq/`."""

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
        disk: where the store is.
        root: its directory.
        name: of the file.
        log_offset: what is noted.
        sync: whether the note has to outlast the machine.
    """
    disk.make_directory(f"{root}/triomq")
    disk.write(_path(root, name), str(log_offset).encode(), sync=sync)


def forget_offset(disk: Disk, root: str, name: str) -> None:
    """Remove the note, if there is one."""
    disk.remove(_path(root, name))


def _path(root: str, name: str) -> str:
    return f"{root}/triomq/{name}"
