"""Fixed-size files as one address space (`MappedFileQueue`, `MappedFile`; docs/protocol/store.md §2).

A segment's name is the offset of its first byte. This module knows which bytes are written, reserved and on disk, but
not what they mean. Files are mapped when first touched.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from bisect import bisect_right
from typing import NamedTuple

from triomq_server.disk.access import PAGE_BYTES, Disk, MappedFile

_NAME_DIGITS = 20
_END_MOST = 1 << 63
"""Offsets are signed numbers of 64 bits in records and entries."""


class StoreDamaged(Exception):  # noqa: N818 - named after the state one is in
    """The directory cannot be opened as it is: a file has a wrong length or name, or is missing. Nothing has been changed."""


class UnusableFile(NamedTuple):
    """A file that cannot be a segment: its length or the offset in its name is wrong."""

    path: str
    base: int
    length: int


def segment_name(base: int) -> str:
    """The file name for the segment that starts at this offset."""
    return f"{base:0{_NAME_DIGITS}d}"


def misnamed_text(path: str, size: int) -> str:
    """Why a file of a log, which are all of this size, cannot have its name; empty if it can.

    Its records would hide those of the file that it overlaps.
    """
    name = path.rpartition("/")[2]
    base = int(name)
    if name == segment_name(base) and not base % size and base + size <= _END_MOST:
        return ""
    return f"{path}: a log file of {size} bytes cannot have this name, which is no multiple of that in {_NAME_DIGITS} digits"


def missing_text(begin: int, end: int, size: int) -> str:
    """Which files of a log are missing between two log offsets."""
    names = [segment_name(begin), *([segment_name(end - size)] if end - begin > size else [])]
    return f"no log file {' to '.join(names)}"


class Segment:
    """One file: bytes base .. base+size of the address space.

    `position` is the end of the written part, `flushed` the end of the part that is on disk, `reserved` the end of the
    space that the disk has promised; all counted from the start of the file. `changes` counts how often written bytes
    were cut off or changed.
    """

    __slots__ = (
        "_disk",
        "_file",
        "_read",
        "_reserving",
        "base",
        "changes",
        "flushed",
        "path",
        "position",
        "reserved",
        "size",
        "store_timestamp",
    )

    def __init__(self, disk: Disk, path: str, base: int, size: int, file: MappedFile | None = None) -> None:
        self._disk = disk
        self._file = file
        self.path = path
        self.base = base
        self.size = size
        self.position = 0
        self.flushed = 0
        self.reserved = 0
        self.changes = 0
        self.store_timestamp = 0
        self._reserving = threading.Lock()
        self._read: dict[int, bytes] | None = None

    @property
    def file(self) -> MappedFile:
        """The mapped file, mapped now if it was not yet."""
        if self._file is None:
            self._file = self._disk.open(self.path)
            self._read = None  # its user may write to the map
        return self._file

    @property
    def buffer(self) -> mmap.mmap:
        """All bytes of the file."""
        return self.file.buffer

    def content(self, most_bytes: int) -> tuple[bytes, int] | None:
        """The result of `Disk.content` for the file; None if the file is in use, so that its map must be read."""
        return None if self._file is not None else self._disk.content(self.path, most_bytes)

    def peek(self, at: int, size: int) -> bytes:
        """So many bytes of the file, which is not mapped for them if it is not yet. OSError."""
        if self._file is not None:
            return self._file.buffer[at : at + size]
        data = self._read.get(at) if self._read is not None else None
        return data if data is not None and len(data) == size else self._disk.read_part(self.path, at, size)

    def remember(self, parts: dict[int, bytes] | None) -> None:
        """Let `peek` answer with these parts of the file, by where they begin, until it is mapped; None forgets them."""
        self._read = parts

    @property
    def end(self) -> int:
        """Offset of the first byte behind this file."""
        return self.base + self.size

    def reserve(self, end: int) -> None:
        """Make bytes up to `end` writable. OSError (ENOSPC) when the disk is full; then nothing has changed."""
        end = min(end + -end % PAGE_BYTES, self.size)
        # One at a time: blank space is filled with zeros, which must not hit what the other thread has written since.
        with self._reserving:
            if self.reserved:
                if end > self.reserved:
                    self.file.reserve(self.reserved, end, blank=True)
                    self.reserved = end
            elif end:
                # The space before the written position is allocated, but a file made by Java may have holes anywhere
                # else.
                start = self.position - self.position % PAGE_BYTES
                if (
                    start < end
                ):  # not if the file is full: a slave's log may end with a file when the slave becomes a master
                    self.file.reserve(start, end)
                self.reserved = end

    def reserve_ahead(self, size: int) -> None:
        """Reserve this many more bytes, if anything is reserved at all. For a worker thread. OSError."""
        with self._reserving:
            end = min(self.reserved + size, self.size)
            if 0 < self.reserved < end:
                self.file.reserve(self.reserved, end, blank=True)
                self.reserved = end

    def forget_reserved(self) -> None:
        """Bytes come through a descriptor from now on, so nothing behind the end may be filled with zeros any more."""
        if self.reserved:
            with self._reserving:
                self.reserved = 0

    def cut(self, position: int, *, is_blank: bool = False) -> None:
        """Forget and zero everything from `position` on, so that no stale record can be taken for a new one.

        Args:
            position: the new end of the written part.
            is_blank: whether everything after it is known to be zero; then the file is not touched.
        """
        with self._reserving:
            if not is_blank:
                self.file.zero(position, self.size)
            self.position = position
            self.changed_from(position)
            self.reserved = 0

    def changed_from(self, position: int) -> None:
        """Written bytes from `position` on have been cut off or changed: count them as not flushed, even when a flush that
        is already under way ends."""
        self.flushed = min(self.flushed, position)
        self.changes += 1

    def unflushed(self) -> Unflushed:
        """The part that a flush starting now has to force to the disk."""
        return Unflushed(self, self.position, self.changes)

    def sync(self, position: int) -> None:
        """Force the bytes up to `position` to the disk; blocks. An unmapped file is not mapped for this, since only the
        disk's own thread could release the map again. OSError."""
        if self._file is not None:
            self._file.sync(self.flushed, position)
        else:
            self._disk.sync_file(self.path, self.flushed, position)

    def forget_writer(self) -> None:
        """Nobody keeps the file's buffer any more."""
        if self._file is not None:
            self._file.on_unmap = None

    def close(self) -> None:
        """Unmap as soon as no slice is held."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Unflushed(NamedTuple):
    """A segment to be forced to the disk up to a position; `changes` are those of the segment when it was read."""

    segment: Segment
    position: int
    changes: int

    def confirm(self) -> None:
        """Record that it has been forced to the disk. Bytes cut off or changed in the meantime remain to be flushed."""
        if self.segment.changes == self.changes:
            self.segment.flushed = max(self.segment.flushed, self.position)


class Segments:
    """The files of one directory, oldest first."""

    def __init__(self, disk: Disk, directory: str, size: int) -> None:
        self._disk = disk
        self.directory = directory
        self.size = size
        self.items: list[Segment] = []

    def load(self, size_key: str) -> None:
        """Take up the files on disk, all counted as full (recovery lowers that). Raises StoreDamaged.

        Args:
            size_key: the setting that gives their size.
        """
        for path, _, length in self.load_usable():
            raise StoreDamaged(
                f"{path} is {length} bytes long, and {size_key} is {self.size}: the setting has changed, or the file is "
                f"damaged; set {size_key}={length} if all files there have this length, or else move it away"
            )
        for segment in self.items:
            if text := misnamed_text(segment.path, self.size):
                raise StoreDamaged(f"{text}; move it away and start again")

    def load_usable(self) -> list[UnusableFile]:
        """Load the files on disk; returns those with a wrong length, which are skipped.

        Raises StoreDamaged for a name that no segment can have, or for a directory with the name of a segment.
        """
        unusable = []
        for name, is_directory, length in self._disk.entries(self.directory):
            path = f"{self.directory}/{name}"
            if is_directory:
                if len(name) == _NAME_DIGITS and name.isascii() and name.isdigit():
                    raise StoreDamaged(f"{path}: it is a directory, not a file; move it away and start again")
                continue
            if not (name.isascii() and name.isdigit()):
                raise StoreDamaged(f"{path}: not the name of a store file; move it away and start again")
            if length == 0:
                self._disk.remove(path)  # a kill came between making this file and giving it its size: nothing is in it
                continue
            if length != self.size:
                unusable.append(UnusableFile(path, int(name), length))
                continue
            self.take_up(path, int(name))
        self.items.sort(key=lambda s: s.base)
        return unusable

    def take_up(self, path: str, base: int) -> Segment:
        """Add a file of the right length that is on the disk, counted as full."""
        segment = Segment(self._disk, path, base, self.size)
        segment.position = segment.flushed = segment.size
        self.items.append(segment)
        return segment

    @property
    def min_offset(self) -> int:
        """Offset of the first byte kept, -1 without files."""
        return self.items[0].base if self.items else -1

    @property
    def max_offset(self) -> int:
        """Offset behind the last byte written, 0 without files."""
        if not self.items:
            return 0
        last = self.items[-1]
        return last.base + last.position

    def find(self, offset: int) -> Segment | None:
        """The segment that holds this offset, or None."""
        items = self.items
        if not items:
            return None
        n = (offset - items[0].base) // self.size
        if 0 <= n < len(items) and items[n].base <= offset < items[n].base + self.size:
            return items[n]
        # A gap between files (removed by hand) shifts the numbers.
        n = bisect_right(items, offset, key=lambda s: s.base) - 1
        if n >= 0 and offset < items[n].end:
            return items[n]
        return None

    def following(self, segment: Segment) -> Segment | None:
        """The next segment, also where files in between are missing; None behind the last one."""
        n = bisect_right(self.items, segment.base, key=lambda s: s.base)
        return self.items[n] if n < len(self.items) else None

    def insert(self, segment: Segment) -> None:
        """Add a segment at its place among the others."""
        self.items.append(segment)
        self.items.sort(key=lambda s: s.base)

    def build(self, base: int, reserve: int) -> Segment:
        """Create the file for a segment without taking it up yet (may run in a worker thread). OSError."""
        reserve = min(reserve, self.size)
        path = f"{self.directory}/{segment_name(base)}"
        segment = Segment(self._disk, path, base, self.size, self._disk.create(path, self.size, reserve))
        segment.reserved = reserve
        return segment

    def add(self, segment: Segment) -> None:
        """Add a segment behind the others."""
        self.items.append(segment)

    def truncate(self, offset: int, *, is_blank: bool = False) -> list[Segment]:
        """End the address space at `offset`: cut the file that holds it, delete those after it; returns the deleted.

        `is_blank` as in `Segment.cut`. OSError if one cannot be deleted; then it and those before it are still there.
        """
        gone = []
        # The newest first: whatever is left after a crash in between is still one contiguous log.
        while self.items and self.items[-1].base > offset:
            gone.append(self.delete_last())
        if self.items and offset < self.items[-1].end:
            self.items[-1].cut(offset - self.items[-1].base, is_blank=is_blank)
        return gone[::-1]

    def delete_first(self) -> Segment:
        """Delete the oldest file. OSError if it cannot be deleted; then it is still one of the files."""
        self._delete(self.items[0])
        return self.items.pop(0)

    def delete_last(self) -> Segment:
        """Delete the newest file. OSError as in `delete_first`."""
        self._delete(self.items[-1])
        return self.items.pop()

    def leave_out_last(self) -> Segment:
        """Close the newest file, which is no longer one of the files, and stays on the disk."""
        segment = self.items.pop()
        segment.close()
        return segment

    def destroy(self) -> None:
        """Delete all files and the directory. OSError if one cannot be deleted; then it and those after it are still there."""
        while self.items:
            self.delete_first()
        self._disk.remove_tree(self.directory)

    def close(self) -> None:
        """Unmap everything; slices still held stay readable."""
        for segment in self.items:
            segment.close()

    def discard(self, segment: Segment) -> None:
        """Delete a file that was built but never taken up."""
        self._delete(segment)

    def _delete(self, segment: Segment) -> None:
        segment.close()
        self._disk.remove(segment.path)


def sync_segments(segments: list[Unflushed]) -> None:
    """Force each segment up to the given position; blocks. A file deleted meanwhile is not an error."""
    for segment, position, _ in segments:
        with contextlib.suppress(FileNotFoundError):
            segment.sync(position)
