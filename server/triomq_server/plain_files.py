"""Opens and replaces files that operators provide, without blocking.

Opening a FIFO blocks until another process opens its other end, and reading a device may never end."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotAFileError(OSError):
    """The path names something other than a file or a directory."""


def not_a_file(path: str, mode: int) -> OSError:
    """The error for a path of this mode (`st_mode`)."""
    if stat.S_ISDIR(mode):
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    kind = _KINDS.get(stat.S_IFMT(mode), "of an unknown kind")
    return NotAFileError(errno.EINVAL, f"it is {kind}, not a file", path)


def open_plain(path: str, flags: int, mode: int = 0o666) -> int:
    """`os.open`, only for files and `/dev/null`. The descriptor is closed in children. Raises OSError.

    Raises:
        NotAFileError: the path names something else, such as a FIFO, which has not been waited for.
        IsADirectoryError: the path names a directory.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        # A socket, a FIFO without a reader, a missing device; a directory that was to be written.
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise not_a_file(path, os.stat(path).st_mode) from None
        raise
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) or os.path.samestat(found, os.stat(os.devnull)):
        return descriptor
    os.close(descriptor)
    raise not_a_file(path, found.st_mode)


def read_plain(path: str, most_bytes: int = -1) -> bytes:
    """The content of a file, up to `most_bytes`; -1 reads all of it. Raises as `open_plain`."""
    with open(open_plain(path, os.O_RDONLY), "rb") as file:
        return file.read(most_bytes)


def replace_plain(source: str, target: str) -> None:
    """Rename a file in place of another one, in one step. Raises OSError; then the target is unchanged.

    A file that is mounted by itself, as one file of a container often is, cannot be replaced: it is overwritten, and the
    source stays until all of it is on the disk, also if that fails midway. If the target cannot be written at all, nothing
    needs the source, which may have secrets: it is removed.
    """
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        data = read_plain(source)
        try:
            descriptor = open_plain(target, os.O_WRONLY)
        except OSError:
            os.unlink(source)
            raise
        with open(descriptor, "wb", buffering=0) as file:
            # Over the old content, and not behind a cut: the file is never empty, and little space is enough.
            os.posix_fallocate(descriptor, 0, max(len(data), 1))
            file.write(data)
            file.truncate()
            os.fsync(descriptor)
        os.unlink(source)
