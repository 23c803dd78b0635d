"""Access to the disk: a `Disk` provides fixed-size mapped files, and reads, writes and lists small ones.

The store works on offsets and buffers, except that a master's bytes are written through a descriptor of a
log file (`raw_file`, `CommitLog.append_raw`) and replication sends from and splices into such descriptors. Tests use
a disk in memory instead.
A mapped file must be reserved before it is written: a store into an unbacked page of a full disk would kill the
process with SIGBUS, while a failed reservation is an ordinary ENOSPC that can be answered.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import math
import mmap
import os
import resource
import shutil
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import trio

from triomq_server.compiled import USED as COMPILED
from triomq_server.disk.maps import Maps
from triomq_server.plain_files import not_a_file, open_plain, read_plain, replace_plain

if COMPILED:
    from triomq_server.compiled import directories

T = TypeVar("T")

_log = logging.getLogger(__name__)

NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that are not about the disk: the process or the system lacks descriptors or memory for now."""

THREADS_CURE = "raise the limit of processes (ulimit -u, TasksMax of systemd, the container's limit of pids)"
_THREADS_LOGGED_S = 60.0
"""Interval between log lines about threads that cannot be started."""

PAGE_BYTES = 4096
_MADV_POPULATE_WRITE = 23  # Linux 5.14; not defined in Python's mmap
_MAP_FIXED = 0x10  # this one and the next are the same on all machines except Alpha, MIPS, PA-RISC, PowerPC and SPARC
_MAP_NORESERVE = 0x4000
_PUNCH_HOLE_KEEP_SIZE = 0x03
_LOOKING_AHEAD = 3  # calls
_LOOKED_AT_ONCE = 64  # directories per call
_ZEROS = bytes(1 << 22)  # never written to, so it takes almost no memory

# ctypes releases the interpreter meanwhile; mmap.madvise would hold it.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mmap.restype = ctypes.c_void_p
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


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


class RealMappedFile:
    """A `MappedFile` on the operating system's files."""

    __slots__ = ("_buffer", "_closed", "_maps", "_path", "_unlisted", "on_unmap")

    def __init__(self, path: str, buffer: mmap.mmap, *, new: bool, maps: Maps | None = None) -> None:
        self._path = path
        self._unlisted = new  # the directory that lists the file has not been forced to the disk yet
        self._buffer: mmap.mmap | None = buffer
        self._maps = maps
        self._closed = False
        self.on_unmap: Callable[[], None] | None = None
        if maps is not None:
            maps.add(self)

    @property
    def buffer(self) -> mmap.mmap:
        """The bytes, mapped again if the map was released. Raises ValueError once the file is closed, and OSError."""
        buffer = self._buffer
        return buffer if buffer is not None else self._map_again()

    def _map_again(self) -> mmap.mmap:
        if self._closed:
            raise ValueError(f"{self._path} is closed")
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            buffer = _map(fd, os.fstat(fd).st_size, self._maps)
        finally:
            os.close(fd)
        self._buffer = buffer
        if self._maps is not None:
            self._maps.add(self)
        return buffer

    def unmap(self) -> None:
        """Release the map. It ends when the last slice and the last reference are dropped, so readers are safe."""
        if self.on_unmap is not None:
            self.on_unmap()
        self._buffer = None

    def reserve(self, start: int, end: int, *, blank: bool = False, populate: bool = True) -> None:
        """Allocate blocks for a range, and map their pages."""
        # The descriptor is opened per chore: chores are rare, descriptors are scarce, and closing cannot race with a
        # sync in a worker thread.
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(fd, start, end - start)
            if blank:
                _write_zeros(fd, start, end)
        finally:
            os.close(fd)
        if populate:
            self.populate(start, end)

    def populate(self, start: int, end: int) -> None:
        """Fault in the pages now, in one step: this takes a quarter of the time of one fault per page during appends.

        It is only advice: kernels that do not support it, or cannot do it, fault in the pages later.
        """
        start -= start % PAGE_BYTES
        try:
            anchor = ctypes.c_char.from_buffer(self.buffer)
        except ValueError:  # closed in the meantime
            return
        _libc.madvise(ctypes.addressof(anchor) + start, end - start, _MADV_POPULATE_WRITE)

    def zero(self, start: int, end: int) -> None:
        """Punch a hole; the file keeps its length."""
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if _libc.fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, start, end - start) == 0:
                return
        finally:
            os.close(fd)
        # This file system has no holes. Only bytes that differ are written, so that no unbacked page is touched.
        blank = bytes(1 << 16)
        for at in range(start, end, len(blank)):
            part = min(len(blank), end - at)
            if self.buffer[at : at + part] != blank[:part]:
                self.buffer[at : at + part] = blank[:part]

    def sync(self, start: int, end: int) -> None:  # noqa: ARG002 - the system syncs files, not ranges
        """Call `fdatasync` on the file, and once for a new file on its directory."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # expired in the meantime: nothing left to force
            return
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                raise
            # The map needs no descriptor. The directory of a new file is synced next time.
            if self._buffer is None:
                raise
            self._buffer.flush()
            return
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)
        if self._unlisted:
            _sync_directory(os.path.dirname(self._path))
            self._unlisted = False

    def read_back(self, start: int, end: int) -> bytes:
        """Read through a descriptor."""
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        pieces = []
        try:
            while start < end and (piece := os.pread(fd, end - start, start)):
                pieces.append(piece)
                start += len(piece)
            if start < end:
                raise OSError(errno.EIO, f"{self._path} ends at {start}")
        finally:
            os.close(fd)
        return b"".join(pieces)

    def write_back(self, start: int, data: bytes) -> None:
        """Write through a descriptor. A new file's directory becomes dirty too."""
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(fd, view, start)
                start += written
                view = view[written:]
        finally:
            os.close(fd)
        if self._unlisted:
            os.utime(os.path.dirname(self._path))

    def content_end(self, start: int, end: int) -> int:
        """Ask the file system for holes; without support for them, content is everywhere."""
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _content_end(fd, start, end)
        finally:
            os.close(fd)

    def open_descriptor(self, *, writable: bool = False) -> int | None:
        """A new descriptor."""
        return os.open(self._path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)

    def close(self) -> None:
        """Unmap now, or when the last slice is dropped."""
        self._closed = True
        self.on_unmap = None
        if self._maps is not None:
            self._maps.remove(self)
        # BufferError: slices are in use; the map ends when the last of them is dropped.
        with contextlib.suppress(BufferError):
            if self._buffer is not None:
                self._buffer.close()


def _content_end(fd: int, start: int, end: int) -> int:
    found = at = start
    try:
        while at < end and (data := os.lseek(fd, at, os.SEEK_DATA)) < end:
            found = at = min(os.lseek(fd, data, os.SEEK_HOLE), end)
    except OSError as error:
        if error.errno != errno.ENXIO:  # no content from here to the end
            return end
    return found


def _map(fd: int, size: int, maps: Maps | None) -> mmap.mmap:
    """Map a file; if the system allows no more maps, release others first."""
    try:
        return _map_once(fd, size)
    except OSError as error:
        if error.errno != errno.ENOMEM or maps is None or not maps.give_up():
            raise
    return _map_once(fd, size)


def _map_once(fd: int, size: int) -> mmap.mmap:
    """Map a file without keeping a descriptor: each queue has a file, and there may be more files than descriptors."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, trackfd=False)
    # Before 3.13, Python's maps of files keep a copy of the descriptor, but those of memory have none. The file
    # replaces such a map: munmap, msync and madvise work on addresses, whatever is mapped at them.
    if not size:
        raise ValueError("an empty file cannot be mapped")
    try:
        buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    except OSError:  # a system that never promises more memory than it has (vm.overcommit_memory=2)
        return mmap.mmap(fd, size)
    anchor = ctypes.c_char.from_buffer(buffer)
    start = ctypes.addressof(anchor)
    del anchor
    flags = mmap.MAP_SHARED | _MAP_FIXED
    if _libc.mmap(start, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0) != start:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return buffer


def _write_zeros(fd: int, start: int, end: int) -> None:
    """Bring a range into memory by writing it.

    A write uses the file system's large folios and one journal step for many pages; faulting in the same pages through
    the map handles each separately and takes three to ten times as long. The interpreter is released meanwhile.
    """
    while start < end:
        start += os.pwrite(fd, _ZEROS[: end - start] if end - start < len(_ZEROS) else _ZEROS, start)


_locked_paths: set[str] = set()  # POSIX locks do not see a second open in the same process
_locked_paths_guard = threading.Lock()


class RealDisk:
    """The operating system's files.

    Args:
        threads: maximum number of simultaneous chores.
        maps: bounds the number of mapped files.
    """

    def __init__(self, *, threads: int = 4, maps: Maps | None = None) -> None:
        self.maps = maps if maps is not None else Maps()
        self._locked_directories: dict[str, int] = {}
        self._folders: dict[str, set[str]] = {}
        """The locked directories of stores, and the directories below each that are known to exist."""
        self._limiter = trio.CapacityLimiter(threads)
        self._threads_logged = -math.inf
        # Connections and the log's files soon exceed the customary 1024.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def run(self, chore: Callable[[], T]) -> T:
        """Run the chore in a worker thread of our own limiter, or in the loop while the system starts no thread."""
        begun = False

        def in_thread() -> T:
            nonlocal begun
            begun = True
            return chore()

        try:
            return await trio.to_thread.run_sync(in_thread, limiter=self._limiter)
        except RuntimeError as error:
            if begun:
                raise
            if trio.current_time() >= self._threads_logged + _THREADS_LOGGED_S:
                self._threads_logged = trio.current_time()
                _log.warning("%s: all requests wait for the disk meanwhile; %s", error, THREADS_CURE)
            return chore()

    def create(self, path: str, size: int, reserve: int, *, populate: bool = True) -> MappedFile:
        """Create a file, or set an existing one to this size."""
        self.make_directory(os.path.dirname(path))
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            blank = os.fstat(fd).st_size == 0
            os.ftruncate(fd, size)
            if reserve:
                os.posix_fallocate(fd, 0, reserve)
                if blank and populate:
                    _write_zeros(fd, 0, reserve)
            buffer = _map(fd, size, self.maps)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(fd)
        file = RealMappedFile(path, buffer, new=True, maps=self.maps)
        if reserve and populate:
            file.populate(0, reserve)
        return file

    def open(self, path: str) -> MappedFile:
        """Map the full length of a file."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return RealMappedFile(path, _map(fd, os.fstat(fd).st_size, self.maps), new=False, maps=self.maps)
        finally:
            os.close(fd)

    def size(self, path: str) -> int:
        """The length in bytes."""
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        """The modification time."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def list(self, path: str) -> list[str]:
        """Sorted names."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def entries(self, path: str) -> Sequence[Entry]:
        """Read the directory once, and each file's status once: a start reads tens of thousands of directories."""
        try:
            names = os.scandir(path)
        except FileNotFoundError:
            return []
        found = []
        with names:
            for one in names:
                is_directory = one.is_dir()
                status = None if is_directory else one.stat()
                if status is not None and not stat.S_ISREG(status.st_mode):
                    raise not_a_file(one.path, status.st_mode)
                found.append(Entry(one.name, is_directory, 0 if status is None else status.st_size))
        return sorted(found)

    def only_files(
        self, paths: Iterable[str], length: int, most_bytes: int
    ) -> Generator[tuple[str, bytes] | None, None, None]:
        """Read ahead of the caller in a thread, with compiled code if available: a start has tens of thousands of
        queues to find, and processes each meanwhile."""
        if not COMPILED:
            yield from find_only_files(self, paths, length, most_bytes)
            return
        remaining = iter(paths)
        with ThreadPoolExecutor(1, "triomq looks for files") as pool:
            ahead: deque[Future[list[tuple[str, bytes] | None]]] = deque()
            while True:
                while len(ahead) < _LOOKING_AHEAD and (some := list(islice(remaining, _LOOKED_AT_ONCE))):
                    ahead.append(pool.submit(directories.only_files, some, length, most_bytes))
                if not ahead:
                    return
                yield from ahead.popleft().result()

    def content(self, path: str, most_bytes: int) -> tuple[bytes, int]:
        """Read only content: reading a hole through a descriptor takes no memory, but time."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            end = _content_end(fd, 0, os.fstat(fd).st_size)
            return os.pread(fd, min(end, most_bytes), 0), end
        finally:
            os.close(fd)

    def read_part(self, path: str, start: int, size: int) -> bytes:
        """Read through a descriptor."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, size, start)
        finally:
            os.close(fd)

    def sync_file(self, path: str, start: int, end: int) -> None:  # noqa: ARG002 - the system syncs files, not ranges
        """Call `fdatasync`."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def is_directory(self, path: str) -> bool:
        """Whether the path is a directory."""
        return os.path.isdir(path)

    def exists(self, path: str) -> bool:
        """Whether the path exists."""
        return os.path.exists(path)

    def is_in_place(self, path: str) -> bool:
        """Compare with the open descriptor: some file systems change the number of an inode that is not open
        anywhere."""
        descriptor = self._locked_directories.get(path)
        try:
            return descriptor is None or os.path.samestat(os.fstat(descriptor), os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def make_directory(self, path: str) -> None:
        """Like `mkdir -p`, but OSError (ESTALE) if a directory of a locked store, or the store, existed before: an
        operator who has moved it could not put it back in place of a new one."""
        found = []
        for root, folders in list(self._folders.items()):
            if path != root and not path.startswith(f"{root}/"):
                continue
            below = f"{root}/{path[len(root) + 1 :].partition('/')[0]}".rstrip("/")
            for known in (root, below):
                if (known == root or known in folders) and not os.path.isdir(known):
                    raise OSError(errno.ESTALE, "the directory was moved or removed, put it back", known)
            found.append((folders, below))
        os.makedirs(path, exist_ok=True)
        for folders, below in found:  # only once it exists: the disk may be full
            folders.add(below)

    def remove(self, path: str) -> None:
        """Like `rm -f`."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        """Like `rm -rf`."""
        for folders in list(self._folders.values()):
            folders.discard(path)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def read(self, path: str) -> bytes:
        """Read the whole file."""
        return read_plain(path)

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Write the whole file, and call `fsync`."""
        self.make_directory(os.path.dirname(path))
        with open(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as f:
            f.write(data)
            f.flush()
            if sync:
                os.fsync(f.fileno())

    def take_permissions(self, path: str, model: str) -> None:
        """Work on a descriptor; the file is never more readable than its model."""
        try:
            wanted = os.stat(model)
        except FileNotFoundError:
            return
        mode = wanted.st_mode & 0o777 | 0o200  # a file that its owner must not write was replaced nevertheless
        fd = open_plain(path, os.O_WRONLY | os.O_CREAT, mode & 0o700)
        try:
            now = os.fstat(fd)
            if now.st_gid != wanted.st_gid:
                try:
                    os.fchown(fd, -1, wanted.st_gid)
                except OSError:
                    mode &= ~0o070 | (mode & 0o007) << 3  # another group gets at most the rights of all others
            if now.st_uid != wanted.st_uid:
                with contextlib.suppress(OSError):  # only root may do it
                    os.fchown(fd, wanted.st_uid, -1)
            if now.st_mode & 0o777 != mode:
                os.fchmod(fd, mode)
        finally:
            os.close(fd)

    def replace(self, source: str, target: str) -> None:
        """Rename the file, and force the directory to the disk."""
        replace_plain(source, target)
        _sync_directory(os.path.dirname(target))

    def usage(self, path: str) -> DiskUsage:
        """Call `statvfs` on the path, or on its nearest existing parent."""
        path = os.path.abspath(path)  # the parent of a relative path's first part is ""
        while not os.path.exists(path) and path != os.path.dirname(path):
            path = os.path.dirname(path)
        s = os.statvfs(path)
        return DiskUsage(s.f_blocks * s.f_frsize, s.f_bfree * s.f_frsize, s.f_bavail * s.f_frsize)

    def boot_id(self) -> str:
        """The kernel's boot id; empty if there is none."""
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
                return f.read().strip()
        except OSError:
            return ""

    def lock(self, path: str) -> Callable[[], None]:
        """Take an exclusive POSIX lock on the first byte, and make an entry in this process's own list."""
        folder = os.path.dirname(path)
        path = os.path.realpath(path)
        # By its own name: a link to a file system that is not mounted must not be filled.
        os.makedirs(folder, exist_ok=True)
        with _locked_paths_guard:
            if path in _locked_paths:
                raise StoreLocked(f"{path} is locked by this process: the store directory is already open")
            fd = open_plain(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except OSError as e:
                os.close(fd)
                if e.errno in (errno.EACCES, errno.EAGAIN):
                    raise StoreLocked(
                        f"{path} is locked: another broker process uses this store directory; stop it, or set another "
                        "storePathRootDir (--store)"
                    ) from None
                raise
            try:
                os.pwrite(fd, b"lock", 0)
                with os.scandir(folder) as found:
                    self._folders[folder] = {one.path for one in found if one.is_dir()}
            except BaseException:
                os.close(fd)
                raise
            _locked_paths.add(path)

        def release() -> None:
            self._folders.pop(folder, None)
            with _locked_paths_guard:
                _locked_paths.discard(path)
                os.close(fd)

        return release

    def lock_directory(self, path: str) -> Callable[[], None]:
        """Call `flock` on the directory itself: RocketMQ takes every name in a log's directory for a log file."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            if e.errno == errno.EWOULDBLOCK:
                os.close(fd)
                raise StoreLocked(
                    f"the directory {os.path.realpath(path)} is locked: another broker process has its log there; stop "
                    "it, or set another storePathCommitLog"
                ) from None
            # NFS only has locks for files that are open for writing, which a directory never is.
            if e.errno not in (errno.EBADF, errno.ENOLCK, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                os.close(fd)
                raise
        self._locked_directories[path] = fd
        self._folders[path] = set()

        def release() -> None:
            self._locked_directories.pop(path, None)
            self._folders.pop(path, None)
            # A child process before its exec has this descriptor too: closing is not enough.
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

        return release


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
