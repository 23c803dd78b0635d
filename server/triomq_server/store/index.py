"""The key index: from hashes of `topic#key` to log offsets, in files of hash chains (`IndexService`;
docs/protocol/store.md §10).

Entries are only ever added at a file's end and at the head of their chain, so recovery can remove them in reverse order.
Readers must check that a found record really has the key.
"""

from __future__ import annotations

import logging
import mmap
import struct
import time
from collections.abc import Callable, Generator

from triomq_protocol.filters.tags import index_key_hash
from triomq_server.compiled import USED as COMPILED
from triomq_server.disk.access import Disk, MappedFile

if COMPILED:
    from triomq_server.compiled import index as compiled_index

_log = logging.getLogger(__name__)

HEADER = struct.Struct(">qqqqii")
INDEX_ENTRY = struct.Struct(">iqii")
SLOT = struct.Struct(">i")
HASHED_KEY = struct.Struct("=qqq")
"""A key on its way to the index: its hash, and the log offset and store time of its message. Tuples, two for each
message, took a fifth of the time of a batch."""
_HEADER_BYTES = 40
_ENTRY_BYTES = 20
_ENTRIES_PER_SLICE = 8192
"""Entries that a query examines before other tasks get their turn."""
_TAKEN_BACK_PER_SLICE = 2048
_RESERVE_ENTRIES = 50_000
_MAX_SECONDS = 0x7FFFFFFF


class IndexFile:
    """One file: `slots` chain heads, then up to `capacity - 1` entries, numbered from 1.

    Attributes are those of the header on disk: times in ms, offsets into the log, `count` the next entry's number.
    """

    __slots__ = (
        "_file",
        "_reserved",
        "begin_offset",
        "begin_timestamp",
        "capacity",
        "closed",
        "count",
        "end_offset",
        "end_timestamp",
        "entries_at",
        "lack",
        "path",
        "slots",
        "used_slots",
    )

    def __init__(self, file: MappedFile, path: str, slots: int, capacity: int) -> None:
        self._file = file
        self.path = path
        self.slots = slots
        self.capacity = capacity
        self.entries_at = _HEADER_BYTES + 4 * slots
        self.begin_timestamp: int
        self.end_timestamp: int
        self.begin_offset: int
        self.end_offset: int
        self.used_slots: int
        self.count: int
        (
            self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset, self.used_slots, self.count,
        ) = HEADER.unpack_from(self.buffer, 0)  # fmt: skip
        self.count = max(1, self.count)
        self.closed = False
        self.lack: OSError | None = None
        self._reserved = 0

    @property
    def buffer(self) -> mmap.mmap:
        """The bytes of the file."""
        return self._file.buffer

    def is_damaged(self, *, exact: bool) -> bool:
        """Whether the header contradicts itself or the entries.

        Args:
            exact: the file was closed cleanly. A killed process may have written one entry more than the header counts.
        """
        if not (0 < self.count <= self.capacity and 0 <= self.used_slots <= self.slots):
            return True
        if self.count == 1:
            begin = self.entries_at + _ENTRY_BYTES
            return self.begin_offset != self.end_offset or (exact and any(self.buffer[begin : begin + _ENTRY_BYTES]))
        (_, first, _, _), (_, last, last_seconds, _) = (
            INDEX_ENTRY.unpack_from(self.buffer, self.entries_at + number * _ENTRY_BYTES)
            for number in (1, self.count - 1)
        )
        ends_right = self.end_offset == last if exact else first <= self.end_offset <= last
        # A clock that was set back may end a file before it began; its last entry then has no seconds either.
        ends_early = self.end_timestamp < self.begin_timestamp and last_seconds > 0
        return first != self.begin_offset or not ends_right or ends_early

    @property
    def full(self) -> bool:
        """Whether there is no place for another entry."""
        return self.count >= self.capacity

    def insert(self, entries: bytes | bytearray, start: int) -> int:
        """Add entries, packed as `HASHED_KEY`, from number `start` on, until the file or the disk is full; returns how many.

        They do not count before `publish`. After less than all of them `lack` is why.
        """
        buffer, slots, at = self.buffer, self.slots, self.entries_at + self.count * _ENTRY_BYTES
        read_slot, write_slot, write_entry = SLOT.unpack_from, SLOT.pack_into, INDEX_ENTRY.pack_into
        first = number = self.count
        stop = min(self.capacity, number + len(entries) // HASHED_KEY.size - start)
        if number == 1 and stop > 1:
            _, self.begin_offset, self.begin_timestamp = HASHED_KEY.unpack_from(entries, start * HASHED_KEY.size)
        stamped, seconds = -1, 0
        used = 0
        while number < stop:
            if number >= self._reserved and not self._has_reserved(number):
                break
            done = start + number - first
            if COMPILED:
                behind = min(stop, self._reserved)
                used += compiled_index.write_entries(buffer, slots, number, behind, entries, done, self.begin_timestamp)
                number = behind
                continue
            behind = done + min(stop, self._reserved) - number
            some = memoryview(entries)[done * HASHED_KEY.size : behind * HASHED_KEY.size]
            for key_hash, offset, timestamp in HASHED_KEY.iter_unpack(some):
                if timestamp != stamped:
                    stamped, seconds = timestamp, self._seconds(timestamp)
                slot_at = _HEADER_BYTES + key_hash % slots * 4
                (previous,) = read_slot(buffer, slot_at)
                if not 0 < previous < number:
                    previous = 0
                    used += 1
                write_entry(buffer, at, key_hash, offset, seconds, previous)
                write_slot(buffer, slot_at, number)
                number += 1
                at += _ENTRY_BYTES
        if number > first:
            self.count = number
            self.used_slots += used
            last = start + number - first - 1
            _, self.end_offset, self.end_timestamp = HASHED_KEY.unpack_from(entries, last * HASHED_KEY.size)
        return number - first

    def _seconds(self, timestamp: int) -> int:
        """An entry's time: seconds since the file's first one, kept within what Java can have written."""
        seconds = (timestamp - self.begin_timestamp) // 1000
        if 0 <= seconds <= _MAX_SECONDS and self.begin_timestamp > 0:
            return seconds
        return _MAX_SECONDS if self.begin_timestamp > 0 and seconds > 0 else 0

    def publish(self) -> None:
        """Write the header, which makes the entries inserted so far part of the file."""
        HEADER.pack_into(
            self.buffer, 0, self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset, self.used_slots,
            self.count,
        )  # fmt: skip

    def _has_reserved(self, number: int) -> bool:
        """Reserve space for entries from this number on; false if there is none, and `lack` is why."""
        try:
            self._reserve(number)
        except OSError as error:
            self.lack = error
            return False
        return True

    def _reserve(self, number: int) -> None:
        start = self.entries_at + number * _ENTRY_BYTES
        last = min(number + _RESERVE_ENTRIES, self.capacity)
        if self._reserved == 0:
            self._file.reserve(0, self.entries_at, populate=False)  # a file made by Java may have holes here
        self._file.reserve(start, self.entries_at + last * _ENTRY_BYTES)
        self._reserved = last

    def undo_unpublished(self) -> None:
        """Remove entries that a killed process inserted but did not publish."""
        published = self.count
        limit = self.capacity
        number = published
        while number < limit:
            key_hash, offset, _, previous = INDEX_ENTRY.unpack_from(
                self.buffer, self.entries_at + number * _ENTRY_BYTES
            )
            if not (key_hash or offset or previous):
                break  # never written, whatever slot 0, which an entry of zeros seems to have, leads to
            (head,) = SLOT.unpack_from(self.buffer, _HEADER_BYTES + key_hash % self.slots * 4)
            if key_hash < 0 or previous >= number or not published <= head < limit:
                break
            number += 1
        while number > published:
            number -= 1
            self._take_back(number)

    def _take_back(self, number: int) -> bool:
        """Remove the newest entry from its chain; true if the chain is empty now."""
        at = self.entries_at + number * _ENTRY_BYTES
        key_hash, _, _, previous = INDEX_ENTRY.unpack_from(self.buffer, at)
        slot_at = _HEADER_BYTES + key_hash % self.slots * 4
        if SLOT.unpack_from(self.buffer, slot_at)[0] == number:
            SLOT.pack_into(self.buffer, slot_at, previous)
        self.buffer[at : at + _ENTRY_BYTES] = bytes(_ENTRY_BYTES)
        return bool(previous == 0)

    def truncate(self, log_end: int, store_time_of: Callable[[int], int]) -> Generator[None, None, int]:
        """Take back the entries of records at or behind `log_end`; returns how many. Yields after each slice."""
        removed = 0
        while self.count > 1:
            _, offset, _, _ = INDEX_ENTRY.unpack_from(self.buffer, self.entries_at + (self.count - 1) * _ENTRY_BYTES)
            if offset < log_end:
                break
            self.count -= 1
            self.used_slots -= self._take_back(self.count)
            removed += 1
            if not removed % _TAKEN_BACK_PER_SLICE:
                self.publish()
                yield
        if removed:
            if self.count > 1:
                self.end_offset = offset
                self.end_timestamp = max(self.begin_timestamp, store_time_of(offset))
            else:
                self.begin_offset = self.end_offset = self.begin_timestamp = self.end_timestamp = 0
            self.publish()
        return removed

    def entries_of_last_record(self) -> int:
        """How many entries at the end belong to the record at `end_offset`."""
        number = self.count
        while number > 1:
            _, offset, _, _ = INDEX_ENTRY.unpack_from(self.buffer, self.entries_at + (number - 1) * _ENTRY_BYTES)
            if offset != self.end_offset:
                break
            number -= 1
        return self.count - number

    def covers(self, begin: int, end: int) -> bool:
        """Whether the file's times overlap begin..end."""
        first, last = self.begin_timestamp, self.end_timestamp
        return (begin < first and end > last) or first <= begin <= last or first <= end <= last

    def find(self, key_hash: int, begin: int, end: int, found: list[int], most: int) -> Generator[None, None, None]:
        """Add offsets of entries with this hash stored between the two times, newest first, until there are `most`.

        Yields after each slice: all messages may have the same key.
        """
        looked_at = 0
        (number,) = SLOT.unpack_from(self.buffer, _HEADER_BYTES + key_hash % self.slots * 4)
        while 0 < number < self.count and len(found) < most:
            entry_hash, offset, seconds, previous = INDEX_ENTRY.unpack_from(
                self.buffer, self.entries_at + number * _ENTRY_BYTES
            )
            if seconds < 0:
                return
            stored = self.begin_timestamp + seconds * 1000
            if entry_hash == key_hash and begin <= stored <= end:
                found.append(offset)
            # Chains only ever lead back; anything else is damage and would run in circles.
            if stored < begin or previous >= number:
                return
            number = previous
            looked_at += 1
            if not looked_at % _ENTRIES_PER_SLICE:
                yield
                if self.closed:
                    return  # it has expired in the meantime

    def sync(self) -> None:
        """Force the file to the disk; blocks."""
        self._file.sync(0, self.entries_at + self.count * _ENTRY_BYTES)

    def close(self) -> None:
        """Unmap the file."""
        self.closed = True
        self._file.close()


class Index:
    """All index files of a store, oldest first.

    Attributes:
        filled: files that became full and are not yet known to be on disk; the flusher empties this list.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        slots: int,
        capacity: int,
        clock: Callable[[], int],
        local_time: Callable[[int], time.struct_time],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._slots = slots
        self._capacity = capacity
        self._clock = clock
        self._local_time = local_time
        self.files: list[IndexFile] = []
        self.filled: list[IndexFile] = []
        self._failure: str | None = None  # why the last entries could not be added, as logged

    # ---- life on disk

    def load(
        self,
        keep: Callable[[IndexFile], bool],
        *,
        exact: bool = True,
        rebuild: bool = True,
        noted: int | None = None,
        note: Callable[[int], bool] = lambda _: True,
    ) -> int | None:
        """Load the files on disk, and delete those that must not be kept.

        Returns the log offset from which records have to be indexed again because of that, None if nothing was deleted.
        Files of another size are damaged, or the configuration has changed. Directories are ignored.

        Args:
            keep: whether a file's content is known to be on the disk.
            exact: the files were closed cleanly.
            rebuild: delete damaged files, and those after a deleted file; otherwise, as in RocketMQ, files of another
                size are kept and not used.
            noted: the argument of `note` in an earlier start that was interrupted.
            note: called with the log offset, before files are deleted; returns whether it is noted. If the disk was full,
                it is called again when a deleted file has left space.
        """
        rebuild_from = noted
        is_noted = True
        deleting = False
        size = _HEADER_BYTES + 4 * self._slots + _ENTRY_BYTES * self._capacity
        names = [n for n in self._disk.list(self._directory) if n.isascii() and n.isdigit()]
        for name in sorted(names, key=int):
            path = f"{self._directory}/{name}"
            if self._disk.is_directory(path):
                continue
            length = self._disk.size(path)
            if length == 0:
                self._disk.remove(path)  # a kill came between making this file and giving it its size
                continue
            if length != size and not rebuild:
                _log.warning("%s: index file of another size than configured; ignored", path)
                continue
            file = None
            if length == size and not deleting:
                file = IndexFile(self._disk.open(path), path, self._slots, self._capacity)
            if rebuild and not deleting:
                deleting = self._is_to_be_built_again(file, path, length, size, exact=exact, noted=noted)
            if file is None or deleting or not keep(file):
                # The beginning that the file itself states may be as damaged as the rest of it.
                if rebuild_from is None or self.end_offset < rebuild_from:
                    rebuild_from = self.end_offset
                    is_noted = note(rebuild_from)
                if file is not None:
                    file.close()
                self._disk.remove(path)
                is_noted = is_noted or note(rebuild_from)
                deleting = rebuild  # those behind cannot stay: entries are only ever added at the end
                continue
            file.undo_unpublished()
            self.files.append(file)
        return rebuild_from

    @staticmethod
    def _is_to_be_built_again(
        file: IndexFile | None, path: str, length: int, size: int, *, exact: bool, noted: int | None
    ) -> bool:
        """Whether a file is damaged, or follows one that an earlier start has deleted."""
        if file is None:
            flaw = f"has {length} bytes instead of {size}"
        elif file.is_damaged(exact=exact):
            flaw = "has a damaged header"
        else:
            return noted is not None and file.end_offset > noted
        _log.error("%s %s; it and later index files are built again from the log", path, flaw)
        return True

    def sync_behind(self, log_offset: int) -> None:
        """Force the files with entries of records behind this log offset to the disk; blocks. OSError."""
        for file in self.files:
            if file.end_offset > log_offset:
                file.sync()

    def earliest_end_behind(self, log_end: int) -> int | None:
        """The earliest end time, ms, of files with entries of records at or behind `log_end`; None without any."""
        return min((file.end_timestamp for file in self.files if file.end_offset >= log_end), default=None)

    def truncate(self, log_end: int, store_time_of: Callable[[int], int]) -> Generator[None, None, int]:
        """Remove the entries of records at or after `log_end`; returns their number. Yields after each slice.

        Nothing may be added in the meantime. First the checkpoint must have gone back before `earliest_end_behind`: a
        file that was full may still be full on the disk.
        """
        removed = 0
        while self.files:
            removed += yield from self.files[-1].truncate(log_end, store_time_of)
            if self.files[-1].count > 1 or len(self.files) == 1:
                break
            self._delete(self.files.pop())
        if removed and self.files[-1] in self.filled:
            self.filled.remove(self.files[-1])
        return removed

    def delete_expired(self, log_min_offset: int) -> int:
        """Delete leading files, never the last, that only know records no longer in the log; returns how many.

        OSError if one cannot be deleted; then it is still one of the files.
        """
        count = 0
        while len(self.files) > 1 and self.files[0].end_offset < log_min_offset:
            self._delete(self.files[0])
            del self.files[0]
            count += 1
        return count

    def destroy(self) -> None:
        """Delete all index files."""
        while self.files:
            self._delete(self.files.pop())

    def _delete(self, file: IndexFile) -> None:
        self._disk.remove(file.path)  # first: if the disk refuses, the file is still read
        if file in self.filled:
            self.filled.remove(file)
        file.close()

    def sync_last(self) -> None:
        """Force the file that is being written to the disk; blocks. Full files are in `filled`. OSError."""
        if self.files:
            self.files[-1].sync()

    def close(self) -> None:
        """Unmap everything."""
        for file in self.files:
            file.close()

    # ---- writing

    @property
    def end_offset(self) -> int:
        """Log offset of the last record indexed, 0 without any."""
        return self.files[-1].end_offset if self.files else 0

    def entries_of_last_record(self) -> int:
        """How many of the last record's keys are in, over file borders."""
        count = 0
        for file in reversed(self.files):
            if file.end_offset != self.end_offset:
                break
            here = file.entries_of_last_record()
            count += here
            if here < file.count - 1:
                break
        return count

    def add(self, entries: bytes | bytearray) -> int:
        """Add entries, packed as `HASHED_KEY`, in log order; returns how many.

        Fewer than given means that the disk is full; offer the rest again later.
        """
        file = self.files[-1] if self.files else None
        done, given = 0, len(entries) // HASHED_KEY.size
        try:
            while done < given:
                if file is None or file.full:
                    file = self._next_file(file)
                added = file.insert(entries, done)
                if not added and file.lack is not None:
                    raise file.lack
                done += added
                self._failure = None
        except OSError as e:
            reason = e.strerror or str(e)  # each file that is tried has another path
            if reason != self._failure:
                self._failure = reason
                _log.error("the index cannot grow: %s", e)
        if file is not None:
            file.publish()
        return done

    def _next_file(self, last: IndexFile | None) -> IndexFile:
        path = self._next_path(last)
        # The slots are hit at random: space for all of them, or no file. Their pages come as they are hit; all 20 MB at
        # once would keep the loop for 60 ms.
        slots_end = _HEADER_BYTES + 4 * self._slots
        mapped = self._disk.create(path, slots_end + _ENTRY_BYTES * self._capacity, slots_end, populate=False)
        file = IndexFile(mapped, path, self._slots, self._capacity)
        if last is not None:
            last.publish()
            self.filled.append(last)
            file.begin_offset = file.end_offset = last.end_offset
            file.begin_timestamp = file.end_timestamp = last.end_timestamp
        self.files.append(file)
        return file

    def _next_path(self, last: IndexFile | None) -> str:
        """The path of the file after `last`. Its name is the local time, or one more than the name of `last` if the local
        time is not later.

        Names order the files, and local time goes back when summer time ends, or the clock is set. RocketMQ reads a name
        as a number, which need not be a time.
        """
        now = self._clock()
        number = int(time.strftime("%Y%m%d%H%M%S", self._local_time(now)) + f"{now % 1000:03d}")
        if last is not None:
            number = max(number, int(last.path.rpartition("/")[2]) + 1)
        while self._disk.exists(path := f"{self._directory}/{number:017d}"):
            number += 1
        return path

    # ---- reading

    def query(self, topic: str, key: str, most: int, begin: int, end: int) -> Generator[None, None, list[int]]:
        """Log offsets of records that may carry the key, newest first (docs/protocol/store.md §10.4); in slices."""
        wanted = index_key_hash(f"{topic}#{key}")
        found: list[int] = []
        for file in list(reversed(self.files)):
            if file not in self.files:
                continue  # it has expired in the meantime
            if file.count > 1 and file.covers(begin, end):
                yield from file.find(wanted, begin, end, found, most)
            if file.begin_timestamp < begin or len(found) >= most:
                break
        return found
