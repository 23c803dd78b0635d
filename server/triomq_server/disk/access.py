"""The protocol of a disk, `Disk`, which the store is written for, and what can be done by its methods alone.

The store works on offsets and buffers, except that a master's bytes are written through a descriptor of a
log file (`raw_file`, `CommitLog.append_raw`) and replication sends from and splices into such descriptors. Tests use
a disk in memory instead.
A mapped file must be reserved before it is written: a store into an unbacked page of a full disk would kill the
process with SIGBUS, while a failed reservation is an ordinary ENOSPC that can be answered.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

T = TypeVar("T")

NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that are not about the disk: the process or the system lacks descriptors or memory for now."""

PAGE_BYTES = 4096


class StoreLocked(Exception):  # noqa: N818 - named after the state
    """Another process, or another store in this process, has this store directory open. Stop it first."""


class Entry(NamedTuple):
    """A file or directory in a directory; the length of a directory has no meaning."""

    name: str
    is_directory: bool
    length: int


class DiskUsage(msgspec.Struct, frozen=True):
    """Space in bytes on a path's partition: `free` includes root's reserve, `usable` is available to this process."""

    total_bytes: int
    free_bytes: int
    usable_bytes: int


class MappedFile(Protocol):
    """A file of fixed size as a writable buffer. Unwritten bytes read as zero."""

    on_unmap: Callable[[], None] | None
    """Called in the disk's thread before the file's map is released: the holder of `buffer` must drop it."""

    @property
    def buffer(self) -> mmap.mmap:
        """The bytes; write only into reserved ranges. Do not keep it beyond one step, unless `on_unmap` is set."""
        ...

    def reserve(self, start: int, end: int, *, blank: bool = False, populate: bool = True) -> None:
        """Ensure that bytes start..end can be written; OSError(ENOSPC) if not. Keeps the content; can be repeated.

        `blank` promises that nothing was ever written there: then zeros may be written, which is cheaper. `populate`
        has the meaning that it has in `Disk.create`.
        """
        ...

    def zero(self, start: int, end: int) -> None:
        """Make bytes start..end read as zero again and free their space; they are no longer reserved."""
        ...

    def sync(self, start: int, end: int) -> None:
        """Force bytes start..end (perhaps more) to the disk. Blocks: call it in `Disk.run`."""
        ...

    def read_back(self, start: int, end: int) -> bytes:
        """Read bytes start..end; OSError if they cannot be read, whereas access in the buffer would kill the process.
        Blocks."""
        ...

    def write_back(self, start: int, data: bytes) -> None:
        """Rewrite existing bytes, so that the next `sync` writes them to the disk again. Blocks. Raises OSError."""
        ...

    def content_end(self, start: int, end: int) -> int:
        """The end of the last part of a range that the disk stores; all bytes after it are zero.

        Finding the end of a file's content by reading would be slow. In memory file systems (tmpfs) reading a hole also
        takes a page, or kills the process if there is none.
        """
        ...

    def open_descriptor(self, *, writable: bool = False) -> int | None:
        """Open a new descriptor, which the caller closes; None if this is not a file of the system. Raises OSError.

        Writes through a descriptor are visible in the buffer, and the reverse. They need no reservation: a full disk is
        an ordinary ENOSPC there.
        """
        ...

    def close(self) -> None:
        """Release the file. Slices of the buffer stay valid until they are dropped."""
        ...


class Disk(Protocol):
    """Files by path. Plain methods take little time; work that may wait for the hardware is done with `run`."""

    async def run(self, chore: Callable[[], T]) -> T:
        """Run a blocking chore off the event loop (in a worker thread, if there is hardware to wait for)."""
        ...

    def create(self, path: str, size: int, reserve: int, *, populate: bool = True) -> MappedFile:
        """Create a zero-filled file, its first `reserve` bytes reserved, and its parent directories. Raises OSError.

        `populate` maps the reserved pages now, in one step, which suits a file that is filled from its start. A file
        with scattered writes gets its pages one by one, so that no caller waits for all.
        """
        ...

    def open(self, path: str) -> MappedFile:
        """Map an existing file."""
        ...

    def size(self, path: str) -> int:
        """The length of a file. Raises FileNotFoundError."""
        ...

    def modified_ms(self, path: str) -> int:
        """The time of a file's last modification, in ms since the epoch."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if there is no such directory."""
        ...

    def entries(self, path: str) -> Sequence[Entry]:
        """Entries of a directory, by name; empty if it does not exist. Raises OSError for a FIFO and the like."""
        ...

    def only_files(
        self, paths: Iterable[str], length: int, most_bytes: int
    ) -> Generator[tuple[str, bytes] | None, None, None]:
        """For each directory, in order: the name and content of its file, if it holds nothing else.

        The content is without trailing zeros. The result is None if the directory holds anything else, the file has
        another length or more content, or any of it cannot be determined: then ask `entries` and `content`. Directories
        are requested before their results are given; closing the iterator ends all reading.
        """
        ...

    def content(self, path: str, most_bytes: int) -> tuple[bytes, int]:
        """Read the beginning of a file without a map, and find its content's end like `MappedFile.content_end`.

        The bytes end there too, or after `most_bytes`. Raises OSError.
        """
        ...

    def read_part(self, path: str, start: int, size: int) -> bytes:
        """Read up to `size` bytes of a file from `start`, without a map; fewer if the file ends. Raises OSError."""
        ...

    def sync_file(self, path: str, start: int, end: int) -> None:
        """`MappedFile.sync` for a file that is not mapped and existed when the store was opened. Raises OSError."""
        ...

    def is_directory(self, path: str) -> bool:
        """Whether the path is an existing directory."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or directory exists."""
        ...

    def is_in_place(self, path: str) -> bool:
        """Whether a directory locked by `lock_directory` is still the one at this path; true if none is locked."""
        ...

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents; does nothing if it exists."""
        ...

    def remove(self, path: str) -> None:
        """Delete a file; does nothing if it does not exist."""
        ...

    def remove_tree(self, path: str) -> None:
        """Delete a directory and everything below it; does nothing if it does not exist."""
        ...

    def read(self, path: str) -> bytes:
        """Read all bytes of a small file. Raises FileNotFoundError."""
        ...

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Write a new small file or replace its content; with `sync`, force it to the disk."""
        ...

    def take_permissions(self, path: str, model: str) -> None:
        """Give a file the mode of another, and its owner and group if permitted, before it is written.

        The file is created if it does not exist. Nothing happens if the model does not exist. Raises OSError.
        """
        ...

    def replace(self, source: str, target: str) -> None:
        """Rename a file, replacing the target in one step, durably."""
        ...

    def usage(self, path: str) -> DiskUsage:
        """Space on the path's partition."""
        ...

    def boot_id(self) -> str:
        """An id that changes whenever unsynced file content may have been lost (the machine was restarted)."""
        ...

    def lock(self, path: str) -> Callable[[], None]:
        """Take the store lock (docs/protocol/store.md §11.3); returns its release function. Raises StoreLocked."""
        ...

    def lock_directory(self, path: str) -> Callable[[], None]:
        """Lock a directory without a file in it; returns a function that releases it. Raises StoreLocked.

        Nothing is locked if the file system does not support it.
        """
        ...


def lock_store(disk: Disk, root: str, log: str, *, new_log: bool = False) -> Callable[[], None]:
    """Take both locks of a store, of its directory and of its log's; returns a function that releases them.

    RocketMQ has only the first, which does not prevent stores with separate directories from sharing one log.

    Args:
        disk: the disk with both directories.
        root: `storePathRootDir`.
        log: `storePathCommitLog`.
        new_log: whether to create the log's directory if it does not exist; otherwise it is not locked then.

    Raises:
        StoreLocked: another broker, or a tool, holds one of them.
    """
    release_root = disk.lock(f"{root}/lock")
    try:
        if new_log:
            disk.make_directory(log)
        release_log = disk.lock_directory(log) if disk.exists(log) else None
    except BaseException:
        release_root()
        raise

    def release() -> None:
        if release_log is not None:
            release_log()
        release_root()

    return release


def find_only_files(
    disk: Disk, paths: Iterable[str], length: int, most_bytes: int
) -> Generator[tuple[str, bytes] | None, None, None]:
    """`Disk.only_files` by means of the disk's other methods, one after the other."""
    for path in paths:
        yield _find_only_file(disk, path, length, most_bytes)


def _find_only_file(disk: Disk, path: str, length: int, most_bytes: int) -> tuple[str, bytes] | None:
    try:
        found = disk.entries(path)
        if len(found) != 1 or found[0].is_directory or found[0].length != length:
            return None
        name = found[0].name
        content, end = disk.content(f"{path}/{name}", most_bytes)
    except OSError:
        return None
    return (name, content.rstrip(b"\0")) if end <= most_bytes else None
