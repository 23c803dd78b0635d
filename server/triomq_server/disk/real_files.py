"""Mapped files of the operating system: reserved, brought into memory, forced to the disk, mapped again when used."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Callable

from triomq_server.disk.access import NO_DESCRIPTOR, PAGE_BYTES
from triomq_server.disk.maps import Maps

_MADV_POPULATE_WRITE = 23  # Linux 5.14; not defined in Python's mmap
_MAP_FIXED = 0x10  # this one and the next are the same on all machines except Alpha, MIPS, PA-RISC, PowerPC and SPARC
_MAP_NORESERVE = 0x4000
_PUNCH_HOLE_KEEP_SIZE = 0x03
_ZEROS = bytes(1 << 22)  # never written to, so it takes almost no memory

# ctypes releases the interpreter meanwhile; mmap.madvise would hold it.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mmap.restype = ctypes.c_void_p
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


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
            buffer = map_file(fd, os.fstat(fd).st_size, self._maps)
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
                write_zeros(fd, start, end)
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
            sync_directory(os.path.dirname(self._path))
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
            return content_end(fd, start, end)
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


def content_end(fd: int, start: int, end: int) -> int:
    """Where the last content in a range of a file ends; `start` if there is none, `end` if the system cannot tell."""
    found = at = start
    try:
        while at < end and (data := os.lseek(fd, at, os.SEEK_DATA)) < end:
            found = at = min(os.lseek(fd, data, os.SEEK_HOLE), end)
    except OSError as error:
        if error.errno != errno.ENXIO:  # no content from here to the end
            return end
    return found


def map_file(fd: int, size: int, maps: Maps | None) -> mmap.mmap:
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


def write_zeros(fd: int, start: int, end: int) -> None:
    """Bring a range into memory by writing it.

    A write uses the file system's large folios and one journal step for many pages; faulting in the same pages through
    the map handles each separately and takes three to ten times as long. The interpreter is released meanwhile.
    """
    while start < end:
        start += os.pwrite(fd, _ZEROS[: end - start] if end - start < len(_ZEROS) else _ZEROS, start)


def sync_directory(path: str) -> None:
    """Force a directory's list of files to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
