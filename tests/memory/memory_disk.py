"""A disk in memory, for tests and simulations.

It records which pages have been synced. `after_power_loss` returns what a machine finds when it starts again: the
synced pages, and each of the others either old or new. A sync that is under way has taken the bytes of its start and
has nothing on the disk yet (`taking_time`). `after_kill` returns what the next process finds when this one
is killed: everything. Space can be limited. `unreserved_writes` finds writes to space that was never reserved: on a
real disk that is full they end in a SIGBUS.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import posixpath
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import trio

from triomq_server.disk.access import PAGE_BYTES, DiskUsage, Entry, MappedFile, StoreLocked, find_only_files

T = TypeVar("T")

_NO_PAGE = bytes(PAGE_BYTES)


class MemoryFile:
    """A file of fixed size: its bytes, which pages are backed by space, and what of them is durable."""

    def __init__(self, disk: MemoryDisk, size: int) -> None:
        self._disk = disk
        self.size = size
        self.buffer = mmap.mmap(-1, max(size, 1))
        self.backed: set[int] = set()
        self.durable: dict[int, bytes] = {}
        self.changes: dict[int, int] = {}
        """When `durable` was changed last, by page, counted by the disk."""
        self.refused: dict[int, bytes] = {}
        """Pages that a failed sync has left counted as written, as they were then: they reach the disk when they have
        been written again."""
        self.modified_ms = disk.now_ms()
        self.on_unmap: Callable[[], None] | None = None

    def reserve(self, start: int, end: int, *, blank: bool = False, populate: bool = True) -> None:
        """Back the pages of a range. OSError: ENOSPC when the disk's capacity is used up, EINVAL for an empty range."""
        if start >= end:  # as `posix_fallocate` does
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        wanted = set(range(start // PAGE_BYTES, -(-min(end, self.size) // PAGE_BYTES))) - self.backed
        self._disk.take(len(wanted) * PAGE_BYTES)
        self.backed |= wanted

    def zero(self, start: int, end: int) -> None:
        """Blank a range and give back its whole pages, on the disk too, as punching a hole does."""
        self.buffer[start:end] = bytes(end - start)
        for page in [p for p in self.backed if p * PAGE_BYTES >= start]:
            self.backed.discard(page)
            self.durable.pop(page, None)
            self.changes[page] = self._disk.count_change()
            self._disk.give_back(PAGE_BYTES)
        self._make_durable(start - start % PAGE_BYTES, start)

    def sync(self, start: int, end: int) -> None:
        """Make a range durable; OSError(EIO) when the disk has been set to fail."""
        try:
            self._disk.check_sync()
        except OSError:
            for page in range(start // PAGE_BYTES, -(-min(end, self.size) // PAGE_BYTES)):
                self.refused[page] = self.page(page)
            raise
        self._make_durable(start, end)
        self.modified_ms = self._disk.now_ms()

    def _make_durable(self, start: int, end: int) -> None:
        at = self._disk.count_change()
        for page in range(start // PAGE_BYTES, -(-min(end, self.size) // PAGE_BYTES)):
            if self.refused.get(page) == self.page(page):
                continue
            self.refused.pop(page, None)
            if self._disk.under_way is None:
                self.put_on_disk(page, self.page(page), at)
            else:
                self._disk.under_way.append(partial(self.put_on_disk, page, self.page(page), at))

    def put_on_disk(self, page: int, data: bytes, at: int) -> None:
        """Make bytes of a page durable, unless it was changed there after `at`."""
        if self.changes.get(page, 0) <= at:
            self.changes[page] = at
            self.durable[page] = data

    def read_back(self, start: int, end: int) -> bytes:
        """The bytes; OSError(EIO) while the disk fails."""
        if self._disk.failing_syncs:
            raise OSError(errno.EIO, "the memory disk was set to fail")
        return self.buffer[start:end]

    def write_back(self, start: int, data: bytes) -> None:
        """Write bytes, and count their pages as not yet on the disk."""
        self.buffer[start : start + len(data)] = data
        for page in range(start // PAGE_BYTES, -(-(start + len(data)) // PAGE_BYTES)):
            self.refused.pop(page, None)

    def page(self, number: int) -> bytes:
        """The bytes of one page."""
        return self.buffer[number * PAGE_BYTES : min((number + 1) * PAGE_BYTES, self.size)]

    def durable_part(self, start: int, end: int) -> bytes:
        """The bytes of a range that a loss of power certainly leaves; zeros where nothing was forced to the disk."""
        first = start // PAGE_BYTES
        pages = range(first, -(-min(end, self.size) // PAGE_BYTES))
        data = b"".join(self.durable.get(page, _NO_PAGE).ljust(PAGE_BYTES, b"\0") for page in pages)
        return data[start - first * PAGE_BYTES :][: end - start]

    def pages_written(self) -> list[int]:
        """Numbers of the pages that are not all zero."""
        blank = bytes(1 << 20)
        found = []
        for start in range(0, self.size, len(blank)):
            part = self.buffer[start : min(start + len(blank), self.size)]
            if part == blank[: len(part)]:
                continue
            first = start // PAGE_BYTES
            pages = range(first, first + -(-len(part) // PAGE_BYTES))
            found += [page for page in pages if self.page(page) != _NO_PAGE[: len(self.page(page))]]
        return found

    def content_end(self, start: int, end: int) -> int:
        """Behind the last page that is backed."""
        last = max((page for page in self.backed if page * PAGE_BYTES < end), default=-1)
        return max(start, min((last + 1) * PAGE_BYTES, end))

    def open_descriptor(self, *, writable: bool = False) -> int | None:
        """None: the operating system has no such file."""
        return None

    def close(self) -> None:
        """Nothing: the disk keeps the file."""


class NothingUnforced(random.Random):
    """For `MemoryDisk.after_power_loss`: of each page that was not forced to the disk, the old bytes are found."""

    def random(self) -> float:
        """Never below a probability."""
        return 1.0


class MemoryDisk:
    """A `Disk` in memory.

    Args:
        capacity_bytes: how much space files may take; None for no limit.
        now_ms: the clock of modification times.
    """

    def __init__(self, *, capacity_bytes: int | None = None, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.capacity_bytes = capacity_bytes
        self.now_ms = now_ms
        self.files: dict[str, MemoryFile | bytes] = {}
        self.directories: set[str] = set()
        self.used_bytes = 0
        self.failing_syncs = False
        self.syncs = 0
        self.under_way: list[Callable[[], None]] | None = None
        """While syncs are `taking_time`: what reaches the disk at their end."""
        self._changes = 0
        self._unforced: set[str] = set()
        """Small files that were written without a sync."""
        self._locked: set[str] = set()
        self._boots = 1

    # ---- what tests do with it

    def take(self, size: int) -> None:
        """Use up space; OSError(ENOSPC)."""
        if self.capacity_bytes is not None and self.used_bytes + size > self.capacity_bytes:
            raise OSError(errno.ENOSPC, "no space left on the memory disk")
        self.used_bytes += size

    def give_back(self, size: int) -> None:
        """Free space."""
        self.used_bytes -= size

    def count_change(self) -> int:
        """The number of a change of what is durable."""
        self._changes += 1
        return self._changes

    @contextlib.contextmanager
    def taking_time(self) -> Iterator[list[Callable[[], None]]]:
        """Let syncs only take the bytes that are there now. They are durable when the results have been called."""
        self.under_way, before = [], self.under_way
        try:
            yield self.under_way
        finally:
            self.under_way = before

    def unforced(self, start: str) -> bool:
        """Whether a mapped file whose path begins so has bytes that a loss of power may take."""
        return any(
            file.durable.get(page) != file.page(page)
            for path, file in self.files.items()
            if isinstance(file, MemoryFile) and path.startswith(start)
            for page in file.pages_written()
        )

    def check_sync(self) -> None:
        """Count a sync; OSError(EIO) if they are to fail."""
        self.syncs += 1
        if self.failing_syncs:
            raise OSError(errno.EIO, "the memory disk was set to fail")

    def unreserved_writes(self) -> list[tuple[str, int]]:
        """(path, page) of everything written without having been reserved."""
        return [
            (path, page)
            for path, file in self.files.items()
            if isinstance(file, MemoryFile)
            for page in file.pages_written()
            if page not in file.backed
        ]

    def after_kill(self) -> MemoryDisk:
        """What the next process finds when this one is killed now: all that was written, and no lock."""
        disk = self._copy(lambda file, copy: copy.update({p: file.page(p) for p in file.pages_written()}), self._boots)
        for path, file in self.files.items():
            copy = disk.files[path]
            if isinstance(file, MemoryFile) and isinstance(copy, MemoryFile):
                copy.durable = dict(file.durable)  # a kill forces nothing to the disk
                copy.refused = dict(file.refused)
        disk._unforced = set(self._unforced)
        return disk

    def after_power_loss(self, chance: random.Random, *, written: float = 0.5) -> MemoryDisk:
        """What is found when the machine goes down now: of each page not forced to disk, the old or the new bytes.

        The existence of files is taken to be durable. Of a small file that was written without a sync, nothing but its
        name may be found.

        Args:
            chance: decides for each page and file.
            written: the probability that the new bytes are found.
        """

        def choose(file: MemoryFile, copy: dict[int, bytes]) -> None:
            copy.update(file.durable)
            for page in file.pages_written():
                if file.durable.get(page) != file.page(page) and chance.random() < written:
                    copy[page] = file.page(page)

        disk = self._copy(choose, self._boots + 1)
        for path in sorted(self._unforced):
            if chance.random() >= written:
                disk.files[path] = b""
        return disk

    def _copy(self, choose: Callable[[MemoryFile, dict[int, bytes]], None], boots: int) -> MemoryDisk:
        disk = MemoryDisk(capacity_bytes=self.capacity_bytes, now_ms=self.now_ms)
        disk.directories = set(self.directories)
        disk.used_bytes = self.used_bytes
        disk._boots = boots
        for path, file in self.files.items():
            if isinstance(file, bytes):
                disk.files[path] = file
                continue
            copy = disk.files[path] = MemoryFile(disk, file.size)
            pages: dict[int, bytes] = {}
            choose(file, pages)
            for page, data in pages.items():
                copy.buffer[page * PAGE_BYTES : page * PAGE_BYTES + len(data)] = data
            copy.durable = dict(pages)
            copy.backed = set(file.backed)
            copy.modified_ms = file.modified_ms
        return disk

    def load(self, path: str, data: bytes) -> None:
        """Put a file there as if it had always been (a recorded store, a damaged one)."""
        self._make_parents(path)
        self.files[path] = data

    # ---- Disk

    async def run(self, chore: Callable[[], T]) -> T:
        """Do it here and now: no hardware to wait for, and tests' clocks do not see worker threads."""
        await trio.lowlevel.checkpoint()
        return chore()

    def create(self, path: str, size: int, reserve: int, *, populate: bool = True) -> MappedFile:
        """A new file."""
        file = MemoryFile(self, size)
        if reserve:
            file.reserve(0, reserve)
        self._make_parents(path)
        self.files[path] = file
        return file

    def open(self, path: str) -> MappedFile:
        """An existing file; one that was written as a small file becomes a mapped one."""
        file = self._file(path)
        if isinstance(file, bytes):
            mapped = MemoryFile(self, len(file))
            mapped.buffer[: len(file)] = file
            pages = mapped.pages_written()
            mapped.durable = {page: mapped.page(page) for page in pages}
            mapped.backed = set(pages)
            file = self.files[path] = mapped
        return file

    def _file(self, path: str) -> MemoryFile | bytes:
        try:
            return self.files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file on the memory disk", path) from None

    def size(self, path: str) -> int:
        """Length of a file."""
        file = self._file(path)
        return len(file) if isinstance(file, bytes) else file.size

    def modified_ms(self, path: str) -> int:
        """When the file was last forced to disk, or made."""
        file = self._file(path)
        return 0 if isinstance(file, bytes) else file.modified_ms

    def list(self, path: str) -> list[str]:
        """Names in a directory."""
        start = path.rstrip("/") + "/"
        found = {
            name[len(start) :].partition("/")[0] for name in (*self.files, *self.directories) if name.startswith(start)
        }
        return sorted(found - {""})

    def entries(self, path: str) -> Sequence[Entry]:
        """What is in a directory."""
        found = []
        for name in self.list(path):
            at = f"{path.rstrip('/')}/{name}"
            is_directory = self.is_directory(at)
            found.append(Entry(name, is_directory, 0 if is_directory else self.size(at)))
        return found

    def only_files(
        self, paths: Iterable[str], length: int, most_bytes: int
    ) -> Generator[tuple[str, bytes] | None, None, None]:
        """The files of directories that hold nothing else."""
        return find_only_files(self, paths, length, most_bytes)

    def content(self, path: str, most_bytes: int) -> tuple[bytes, int]:
        """The beginning of a file, to the last page that is backed."""
        file = self.open(path)
        end = file.content_end(0, self.size(path))
        return file.buffer[: min(end, most_bytes)], end

    def read_part(self, path: str, start: int, size: int) -> bytes:
        """Some bytes of a file."""
        return self.open(path).buffer[start : min(start + size, self.size(path))]

    def sync_file(self, path: str, start: int, end: int) -> None:
        """Make a range of a file durable."""
        self.open(path).sync(start, end)

    def is_directory(self, path: str) -> bool:
        """Whether a directory is there."""
        return path in self.directories

    def exists(self, path: str) -> bool:
        """Whether a file or directory is there."""
        return path in self.files or path in self.directories

    def is_in_place(self, path: str) -> bool:
        """No directory is ever moved."""
        return True

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents."""
        self._make_parents(path + "/")

    def _make_parents(self, path: str) -> None:
        parent = posixpath.dirname(path)
        while parent not in ("", "/"):
            self.directories.add(parent)
            parent = posixpath.dirname(parent)

    def remove(self, path: str) -> None:
        """Delete a file and free its space."""
        file = self.files.pop(path, None)
        self._unforced.discard(path)
        if isinstance(file, MemoryFile):
            self.give_back(len(file.backed) * PAGE_BYTES)

    def remove_tree(self, path: str) -> None:
        """Delete a directory and all below it."""
        for name in [n for n in self.files if n.startswith(path + "/")]:
            self.remove(name)
        self.directories = {d for d in self.directories if d != path and not d.startswith(path + "/")}

    def read(self, path: str) -> bytes:
        """All bytes of a file."""
        file = self._file(path)
        return file if isinstance(file, bytes) else file.buffer[: file.size]

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Write a small file; OSError(ENOSPC) when the disk is full."""
        if sync:
            self.check_sync()
        if self.capacity_bytes is not None and self.used_bytes + len(data) > self.capacity_bytes:
            raise OSError(errno.ENOSPC, "no space left on the memory disk")
        self._make_parents(path)
        self.files[path] = bytes(data)
        (self._unforced.discard if sync else self._unforced.add)(path)

    def take_permissions(self, path: str, model: str) -> None:
        """Files in memory have no owner."""

    def replace(self, source: str, target: str) -> None:
        """Rename."""
        self.files[target] = self._file(source)
        del self.files[source]
        (self._unforced.add if source in self._unforced else self._unforced.discard)(target)
        self._unforced.discard(source)

    def usage(self, path: str) -> DiskUsage:
        """Space taken by mapped files, of the capacity (or of a terabyte)."""
        total = self.capacity_bytes if self.capacity_bytes is not None else 1 << 40
        return DiskUsage(total, total - self.used_bytes, total - self.used_bytes)

    def boot_id(self) -> str:
        """Changes with every loss of power."""
        return f"memory-{self._boots}"

    def lock(self, path: str) -> Callable[[], None]:
        """Take the store lock."""
        if path in self._locked:
            raise StoreLocked(f"{path} is locked: the store directory is already open")
        self._locked.add(path)
        self.load(path, b"lock")
        return self._releasing(path)

    def lock_directory(self, path: str) -> Callable[[], None]:
        """Note the directory as locked."""
        if path in self._locked:
            raise StoreLocked(f"the directory {path} is locked: another store has its log there")
        self._locked.add(path)
        return self._releasing(path)

    def _releasing(self, path: str) -> Callable[[], None]:

        def release() -> None:
            with contextlib.suppress(KeyError):
                self._locked.remove(path)

        return release
