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

import attrs
import trio

from triomq_server.compiled import USED as COMPILED
from triomq_server.disk.maps import Maps
from triomq_server.plain_files import not_a_file, open_plain, read_plain

if COMPILED:
    from triomq_server.compiled import directories

T = TypeVar("T")

NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that say nothing about the disk: the process or the system lacks descriptors or memory for now."""

PAGE_BYTES = 4096
_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python's mmap does not name it
_MAP_FIXED = 0x10  # these two have the same values on all machines but Alpha, MIPS, PA-RISC, PowerPC and SPARC
_MAP_NORESERVE = 0x4000
_PUNCH_HOLE_KEEP_SIZE = 0x03
_LOOKING_AHEAD = 3  # calls
_LOOKED_AT_ONCE = 64  # directories by a call
_ZEROS = bytes(1 << 22)  # never written to, so it takes next to no memory

# ctypes lets the interpreter run meanwhile; mmap.madvise would hold it.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mmap.restype = ctypes.c_void_p
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class StoreLocked(Exception):  # noqa: N818 - named after the state one is in
    """Another process (or another store in this process) has this store directory open. Stop that one first."""


class Entry(NamedTuple):
    """A file or directory in a directory; a directory's length means nothing."""

    name: str
    is_directory: bool
    length: int


@attrs.frozen
class DiskUsage:
    """Bytes of the partition that holds a path: `free` counts root's reserve, `usable` what we may still use."""

    total_bytes: int
    free_bytes: int
    usable_bytes: int


class MappedFile(Protocol):
    """A file of fixed size as a writable buffer. Bytes read as zero until written."""

    on_unmap: Callable[[], None] | None
    """Called in the disk's thread before the file's map is given up: a keeper of `buffer` must drop it."""

    @property
    def buffer(self) -> mmap.mmap:
        """The bytes; write only what has been reserved. Kept no longer than one step, unless `on_unmap` is set."""
        ...

    def reserve(self, start: int, end: int, *, blank: bool = False, populate: bool = True) -> None:
        """Make sure that bytes start..end can be written; OSError(ENOSPC) if not. Safe to repeat, keeps content.

        `blank` promises that nothing was ever written there: then zeros may be written, which is cheaper. `populate` is
        that of `Disk.create`.
        """
        ...

    def zero(self, start: int, end: int) -> None:
        """Make bytes start..end read as zero again and give their space back; they are no longer reserved."""
        ...

    def sync(self, start: int, end: int) -> None:
        """Force bytes start..end (perhaps more) to the disk. Blocks: call it through `Disk.run`."""
        ...

    def read_back(self, start: int, end: int) -> bytes:
        """Bytes start..end; OSError if they cannot be read, where touching them in the buffer would kill the process.
        Blocks."""
        ...

    def write_back(self, start: int, data: bytes) -> None:
        """Write bytes that are there already, so that the next `sync` writes them to the disk again. Blocks. OSError."""
        ...

    def content_end(self, start: int, end: int) -> int:
        """Where the last part of a range ends that the disk keeps anything of; behind it all bytes are zero.

        Finding the end of a file's content by reading would be slow, and where files live in memory (tmpfs) reading a
        hole takes a page, or kills the process when there is none.
        """
        ...

    def open_descriptor(self, *, writable: bool = False) -> int | None:
        """A new descriptor, which the caller closes; None if this is not a file of the system. OSError.

        What is written through one is seen in the buffer, and the other way round. Such a write needs no reservation: a
        full disk is an ordinary ENOSPC there.
        """
        ...

    def close(self) -> None:
        """Let go of the file. Slices handed out stay valid until they are dropped."""
        ...


class Disk(Protocol):
    """Files by path. Plain methods take little time; what may wait for the hardware goes through `run`."""

    async def run(self, chore: Callable[[], T]) -> T:
        """Run a blocking chore off the event loop (in a worker thread, where there is hardware to wait for)."""
        ...

    def create(self, path: str, size: int, reserve: int, *, populate: bool = True) -> MappedFile:
        """A new zero-filled file, its first `reserve` bytes reserved; parent directories are made. OSError if not.

        `populate` maps their pages now, in one go: right for a file that is filled from its begin on. One that is written
        here and there gets them one by one, so that nobody waits for all.
        """
        ...

    def open(self, path: str) -> MappedFile:
        """Map an existing file."""
        ...

    def size(self, path: str) -> int:
        """Length of a file; FileNotFoundError."""
        ...

    def modified_ms(self, path: str) -> int:
        """When the file was last modified, ms since the epoch."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory."""
        ...

    def entries(self, path: str) -> Sequence[Entry]:
        """What is in a directory, by name; empty when there is no such directory. OSError for a FIFO and the like."""
        ...

    def only_files(
        self, paths: Iterable[str], length: int, most_bytes: int
    ) -> Generator[tuple[str, bytes] | None, None, None]:
        """For each directory, in order, the file that it holds if it holds nothing else: its name and its content.

        The content is without the zeros at its end. None if the directory holds anything else, the file is not of this
        length or has more content, or any of it cannot be found out: `entries` and `content` say what. Directories are
        asked for before they are answered for; closing the iterator ends all looking.
        """
        ...

    def content(self, path: str, most_bytes: int) -> tuple[bytes, int]:
        """The beginning of a file, without a map, and where its content ends as `MappedFile.content_end` finds it.

        The bytes end there too, or after `most_bytes`. OSError.
        """
        ...

    def read_part(self, path: str, start: int, size: int) -> bytes:
        """So many bytes of a file from `start` on, without a map; fewer where the file ends. OSError."""
        ...

    def sync_file(self, path: str, start: int, end: int) -> None:
        """`MappedFile.sync` of a file that is not mapped and has been there when the store was opened. OSError."""
        ...

    def is_directory(self, path: str) -> bool:
        """Whether a directory is there."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or directory is there."""
        ...

    def is_in_place(self, path: str) -> bool:
        """Whether a directory that `lock_directory` has locked is the one at this path still; true if none is locked."""
        ...

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents; fine if it is there."""
        ...

    def remove(self, path: str) -> None:
        """Delete a file; fine if it is gone already."""
        ...

    def remove_tree(self, path: str) -> None:
        """Delete a directory and all below it; fine if it is gone already."""
        ...

    def read(self, path: str) -> bytes:
        """All bytes of a small file; FileNotFoundError."""
        ...

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Write a small file from scratch and, with `sync`, force it to the disk."""
        ...

    def take_permissions(self, path: str, model: str) -> None:
        """Give a file the mode of another one, and its owner and group where that is allowed, before it is written.

        It is made if it is not there. Nothing happens where there is no model. OSError.
        """
        ...

    def replace(self, source: str, target: str) -> None:
        """Rename, replacing the target in one step, durably."""
        ...

    def usage(self, path: str) -> DiskUsage:
        """Space on the partition that holds the path."""
        ...

    def boot_id(self) -> str:
        """Changes whenever unsynced file content may have been lost (the machine was restarted)."""
        ...

    def lock(self, path: str) -> Callable[[], None]:
        """Take the store lock (docs/protocol/store.md §11.3); returns what releases it. Raises StoreLocked."""
        ...

    def lock_directory(self, path: str) -> Callable[[], None]:
        """Lock a directory without a file in it; returns what releases it. Raises StoreLocked.

        Where the file system cannot do that, nothing is locked.
        """
        ...


def lock_store(disk: Disk, root: str, log: str, *, new_log: bool = False) -> Callable[[], None]:
    """Take both locks of a store, of its directory and of its log's; returns what releases them.

    RocketMQ knows only the first, which does not keep stores with directories of their own from sharing one log.

    Args:
        disk: where they are.
        root: `storePathRootDir`.
        log: `storePathCommitLog`.
        new_log: whether to make the log's directory if there is none; else it is not locked then.

    Raises:
        StoreLocked: another broker, or a tool, has one of them.
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
    """`Disk.only_files` by the disk's other methods, one after the other."""
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
        """The bytes, mapped again if the map was given up. ValueError once it is closed, OSError."""
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
        """Give up the map. It goes when the last slice and the last reference are dropped, so readers are safe."""
        if self.on_unmap is not None:
            self.on_unmap()
        self._buffer = None

    def reserve(self, start: int, end: int, *, blank: bool = False, populate: bool = True) -> None:
        """Allocate blocks for a range and map their pages."""
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
        """Fault the pages in now, in one go: four times as cheap as one fault at a time while appending.

        Only advice: kernels that do not know it, or cannot, leave the pages to be faulted in later.
        """
        start -= start % PAGE_BYTES
        try:
            anchor = ctypes.c_char.from_buffer(self.buffer)
        except ValueError:  # closed meanwhile
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
        # No holes on this file system. Only bytes that differ are written, so no unbacked page is touched.
        blank = bytes(1 << 16)
        for at in range(start, end, len(blank)):
            part = min(len(blank), end - at)
            if self.buffer[at : at + part] != blank[:part]:
                self.buffer[at : at + part] = blank[:part]

    def sync(self, start: int, end: int) -> None:  # noqa: ARG002 - the system syncs files, not ranges
        """`fdatasync`, and once for a new file that of its directory."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # expired meanwhile: nothing left to force
            return
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                raise
            # The map needs no descriptor. A new file's directory waits for the next time.
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
        """Through a descriptor."""
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
        """Through a descriptor. A new file's directory becomes dirty too."""
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
        """Ask the file system for its holes; one that does not know of any has content everywhere."""
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
        # BufferError: slices are out; the map goes when the last of them is dropped.
        with contextlib.suppress(BufferError):
            if self._buffer is not None:
                self._buffer.close()


def _content_end(fd: int, start: int, end: int) -> int:
    found = at = start
    try:
        while at < end and (data := os.lseek(fd, at, os.SEEK_DATA)) < end:
            found = at = min(os.lseek(fd, data, os.SEEK_HOLE), end)
    except OSError as error:
        if error.errno != errno.ENXIO:  # no content from here on
            return end
    return found


def _map(fd: int, size: int, maps: Maps | None) -> mmap.mmap:
    """Map a file; when the system allows no more maps, give up others first."""
    try:
        return _map_once(fd, size)
    except OSError as error:
        if error.errno != errno.ENOMEM or maps is None or not maps.give_up():
            raise
    return _map_once(fd, size)


def _map_once(fd: int, size: int) -> mmap.mmap:
    """Map a file without keeping a descriptor: queues have a file each, and there may be more of them than descriptors."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, trackfd=False)
    # Before, Python's maps of files keep a copy of the descriptor, and those of memory have none. The file takes the
    # place of such a map: munmap, msync and madvise work on addresses, whatever is there.
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

    A write takes the file system's large folios and one journal step for many pages; faulting the same pages in through
    the map handles each by itself and costs three to ten times as much. The interpreter runs meanwhile.
    """
    while start < end:
        start += os.pwrite(fd, _ZEROS[: end - start] if end - start < len(_ZEROS) else _ZEROS, start)


_locked_paths: set[str] = set()  # POSIX locks do not see a second open in the same process
_locked_paths_guard = threading.Lock()


class RealDisk:
    """The operating system's files.

    Args:
      threads: how many chores run at once.
      maps: bounds how many files are mapped at once.
    """

    def __init__(self, *, threads: int = 4, maps: Maps | None = None) -> None:
        self.maps = maps if maps is not None else Maps()
        self._locked_directories: dict[str, int] = {}
        self._folders: dict[str, set[str]] = {}
        """The locked directories of stores, and those below each that are known to be there."""
        self._limiter = trio.CapacityLimiter(threads)
        # Connections and the log's files are soon more than the customary 1024.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def run(self, chore: Callable[[], T]) -> T:
        """In a worker thread of our own limiter."""
        return await trio.to_thread.run_sync(chore, limiter=self._limiter)

    def create(self, path: str, size: int, reserve: int, *, populate: bool = True) -> MappedFile:
        """A new file, or an existing one of that name set to this size."""
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
        """Map a file in its full length."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return RealMappedFile(path, _map(fd, os.fstat(fd).st_size, self.maps), new=False, maps=self.maps)
        finally:
            os.close(fd)

    def size(self, path: str) -> int:
        """Length in bytes."""
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
        """One look at the directory, and one at each file: a start has tens of thousands of directories to look into."""
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
        """Ahead of the caller, in a thread, by compiled code where there is any: a start has tens of thousands of queues to
        look for, and does something with each meanwhile."""
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
        """Reads content only: a hole read through a descriptor takes no memory, but time."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            end = _content_end(fd, 0, os.fstat(fd).st_size)
            return os.pread(fd, min(end, most_bytes), 0), end
        finally:
            os.close(fd)

    def read_part(self, path: str, start: int, size: int) -> bytes:
        """Through a descriptor."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, size, start)
        finally:
            os.close(fd)

    def sync_file(self, path: str, start: int, end: int) -> None:  # noqa: ARG002 - the system syncs files, not ranges
        """`fdatasync`."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def is_directory(self, path: str) -> bool:
        """Whether it is a directory."""
        return os.path.isdir(path)

    def exists(self, path: str) -> bool:
        """Whether it is there."""
        return os.path.exists(path)

    def is_in_place(self, path: str) -> bool:
        """Compares with the open descriptor: some file systems change the number of an inode that no process has open."""
        descriptor = self._locked_directories.get(path)
        try:
            return descriptor is None or os.path.samestat(os.fstat(descriptor), os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def make_directory(self, path: str) -> None:
        """Like `mkdir -p`, but OSError (ESTALE) where a directory of a locked store, or the store, was there before: who has
        moved it could not put it back in place of a new one."""
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
        for folders, below in found:  # not before it is there: the disk may be full
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
        """The whole file."""
        return read_plain(path)

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """The whole file, with `fsync`."""
        self.make_directory(os.path.dirname(path))
        with open(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as f:
            f.write(data)
            f.flush()
            if sync:
                os.fsync(f.fileno())

    def take_permissions(self, path: str, model: str) -> None:
        """Through a descriptor; the file is never more readable than its model."""
        try:
            wanted = os.stat(model)
        except FileNotFoundError:
            return
        mode = wanted.st_mode & 0o777 | 0o200  # a file that its owner must not write was replaced all the same
        fd = open_plain(path, os.O_WRONLY | os.O_CREAT, mode & 0o700)
        try:
            now = os.fstat(fd)
            if now.st_gid != wanted.st_gid:
                try:
                    os.fchown(fd, -1, wanted.st_gid)
                except OSError:
                    mode &= ~0o070 | (mode & 0o007) << 3  # another group has the rights of all others at most
            if now.st_uid != wanted.st_uid:
                with contextlib.suppress(OSError):  # for root only
                    os.fchown(fd, wanted.st_uid, -1)
            if now.st_mode & 0o777 != mode:
                os.fchmod(fd, mode)
        finally:
            os.close(fd)

    def replace(self, source: str, target: str) -> None:
        """Rename, and force the directory to the disk."""
        os.replace(source, target)
        _sync_directory(os.path.dirname(target))

    def usage(self, path: str) -> DiskUsage:
        """`statvfs` of the path, or of the nearest parent there is."""
        path = os.path.abspath(path)  # the parent of a relative path's first part is ""
        while not os.path.exists(path) and path != os.path.dirname(path):
            path = os.path.dirname(path)
        s = os.statvfs(path)
        return DiskUsage(s.f_blocks * s.f_frsize, s.f_bfree * s.f_frsize, s.f_bavail * s.f_frsize)

    def boot_id(self) -> str:
        """The kernel's boot id; empty where there is none."""
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
                return f.read().strip()
        except OSError:
            return ""

    def lock(self, path: str) -> Callable[[], None]:
        """An exclusive POSIX lock on the first byte, and an entry in this process's own list."""
        folder = os.path.dirname(path)
        path = os.path.realpath(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
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
            os.pwrite(fd, b"lock", 0)
            _locked_paths.add(path)
        with os.scandir(folder) as found:
            self._folders[folder] = {one.path for one in found if one.is_dir()}

        def release() -> None:
            self._folders.pop(folder, None)
            with _locked_paths_guard:
                _locked_paths.discard(path)
                os.close(fd)

        return release

    def lock_directory(self, path: str) -> Callable[[], None]:
        """`flock` on the directory itself: RocketMQ takes every name in a log's directory for a log file."""
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
            # NFS has only locks of files that are open for writing, which a directory never is.
            if e.errno not in (errno.EBADF, errno.ENOLCK, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                os.close(fd)
                raise
        self._locked_directories[path] = fd
        self._folders[path] = set()

        def release() -> None:
            self._locked_directories.pop(path, None)
            self._folders.pop(path, None)
            # A child process that has not reached its exec has this descriptor too: closing is not enough.
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
