"""Consume queues: a 20-byte entry per message that points into the log (docs/protocol/store.md §8).

An entry's number is its queue offset; `entry_layout` has its bytes. All entries are written through `push` and
`push_all`, except by the hot loops that `entry_layout` lists. The commit log and `dispatch` decide which record gets an
entry. `queue_table` has all queues of a store. Answers to `ConsumeQueue`.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Generator
from typing import NamedTuple

from triomq_server.disk import Disk
from triomq_server.store.entry_layout import (
    BLANK_ENTRY,
    BLANK_SIZE,
    ENTRY,
    ENTRY_BYTES,
    NOT_VALID,
    PAGE_BYTES,
    PHYSICAL_OFFSET,
    WRONG,
    entries_struct,
    packed_at_once,
    pass_entries,
)
from triomq_server.store.files.segments import Segment, Segments, Unflushed
from triomq_server.store.removed_queues import RemovedQueue

_log = logging.getLogger(__name__)

_RESERVE_BYTES = 1 << 16
_FIRST_RESERVE_BYTES = 1 << 12
"""For a queue's first entries. In a store with many queues most are short, and a start reads all reserved space."""
_FILES_CHECKED = 3
_PROBED = 2
_SCANNED_PER_STEP = 50 * PAGE_BYTES
READ_BYTES = 1 << 17
"""A file with no more content than this is read at startup and mapped only when it is used: a map costs more than
everything else that a start does for a queue. The space reserved for a queue with few entries is less than this."""
_DOUBTED_BYTES = PAGE_BYTES
"""In front of the first entry that is certainly damaged: about a page. Some of its entries are asked where they point."""
_DOUBTED_STEP_BYTES = 12 * ENTRY_BYTES
_NOTHING = mmap.mmap(-1, ENTRY_BYTES)


def ignore_damage(_: int) -> None:
    """The default of `ConsumeQueue.damage_found`."""


class SkippedRecord(NamedTuple):
    """A record without an entry; its fields are those of the entry."""

    physical_offset: int
    size_bytes: int
    tags_code: int
    queue_offset: int


class ConsumeQueue:
    """The entries of one queue.

    Attributes:
        max_offset: number of the next entry.
        min_offset: number of the first entry whose record may still be in the log.
        max_physical_offset: end of the last record that has an entry, -1 before the first.
        start_offset: number of the first entry of a queue without files; not 0 if a queue of this name was removed.
        removed_before: records in front of this log offset belong to a removed queue of this name; they get no entry.
        damaged: whether its files have been found to be damaged: what is missing has to be built again from the log.
        damage_found: called before its files are cut or deleted, with a log offset in front of all records whose entries
            that may concern.
        known_end: the number up to which a queue that a start has found without usable files, or has emptied, may have had
            entries, whether or not their records are still there.
        last_dropped: number, log offset and size of the last entry that was dropped because of damage in front of it; the
            number is -1 without any.
        flushed_until: a queue that still ends here has nothing left to flush; -1 if that is not known.
        skipped: the last record that got no entry because its number is too far behind the last entry's.
        numbered: whether its records carry the numbers of their entries; false once RocketMQ is found to have given them
            other numbers.
        buffer, position, limit: the file being written, the position of the next entry, and the position at which
            `make_space` is needed.
    """

    __slots__ = (
        "_current",
        "_is_recovered",
        "buffer",
        "damage_found",
        "damaged",
        "flushed_until",
        "known_end",
        "last_dropped",
        "limit",
        "max_offset",
        "max_physical_offset",
        "min_offset",
        "numbered",
        "position",
        "queue_id",
        "removed_before",
        "segments",
        "skipped",
        "start_offset",
        "topic",
    )

    def __init__(
        self, topic: str, queue_id: int, segments: Segments, *, start_offset: int = 0, removed_before: int = 0
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.segments = segments
        self.start_offset = start_offset
        self.removed_before = removed_before
        self.max_offset = start_offset
        self.min_offset = start_offset
        self.max_physical_offset = -1
        self.damaged = False
        self.damage_found: Callable[[int], None] = ignore_damage
        self.known_end = 0
        self.last_dropped = (-1, 0, 0)
        self.flushed_until = -1
        self.skipped: SkippedRecord | None = None
        self.numbered = True
        self._current: Segment | None = None
        self._is_recovered = False
        self.buffer: mmap.mmap = _NOTHING
        self.position = 0
        self.limit = 0

    def __str__(self) -> str:
        return f"queue {self.topic}-{self.queue_id}"

    @property
    def log_fields(self) -> dict[str, object]:
        """The fields of a log line about the queue, in addition to its text."""
        return {"topic": self.topic, "queue": self.queue_id}

    # ---- writing

    def make_space(self) -> None:
        """Reserve space for the next entry, in this file or the next. OSError when the disk is full."""
        self.publish_position()
        current = self._current
        if current is None and self.max_offset:
            self.start_at(self.max_offset)
        elif current is None or self.position == current.size:
            base = self.max_offset * ENTRY_BYTES
            base -= base % self.segments.size
            current = self.segments.build(base, _RESERVE_BYTES if base else _FIRST_RESERVE_BYTES)
            self.segments.add(current)
            self._enter(current)
        else:
            current.reserve(self.position + _RESERVE_BYTES)
            self._take_map(current)

    def provide_space(self, entries: int) -> bool:
        """Make room for this many entries before `limit`; false if this file is too full for them. OSError."""
        current, end = self._current, self.position + entries * ENTRY_BYTES
        if current is None or end > current.size:
            return False
        if end > self.limit:
            self.publish_position()
            current.reserve(max(end, self.position + _RESERVE_BYTES))
            self._take_map(current)
        return True

    def _leave_map(self) -> None:
        """The map of the file being written is given up; the next entry makes space, which maps it again."""
        self.buffer, self.limit = _NOTHING, 0

    def _enter(self, segment: Segment | None) -> None:
        if self._current is not None:
            self._current.forget_writer()
        self._current = segment
        self.flushed_until = -1
        self.position = 0 if segment is None else segment.position
        if segment is not None and segment.reserved:
            self._take_map(segment)
        else:  # the next entry makes space, which maps the file
            self.buffer, self.limit = _NOTHING, 0

    def _take_map(self, segment: Segment) -> None:
        self.buffer = segment.buffer
        segment.file.on_unmap = self._leave_map
        self.limit = segment.reserved - segment.reserved % ENTRY_BYTES

    def push(self, physical_offset: int, size_bytes: int, tags_code: int) -> None:
        """Write the next entry. OSError when the disk is full; then nothing has changed.

        The commit log's hot path does the same in line (`CommitLog.append`), after `make_space` if need be.
        """
        if self.position >= self.limit:
            self.make_space()
        ENTRY.pack_into(self.buffer, self.position, physical_offset, size_bytes, tags_code)
        self.position += ENTRY_BYTES
        self.max_offset += 1
        self.max_physical_offset = physical_offset + size_bytes

    def push_all(self, entries: list[int], end: int) -> None:
        """Write these entries, all or (OSError) none; `end` is the end of the last one's record in the log.

        `entries` holds log offset, size and tags code of each entry in turn.
        """
        before = self.max_physical_offset
        done = 0
        try:
            while done < len(entries):
                if self.position >= self.limit:
                    self.make_space()
                count = packed_at_once(min((len(entries) - done) // 3, (self.limit - self.position) // ENTRY_BYTES))
                behind = done + 3 * count
                entries_struct(count).pack_into(self.buffer, self.position, *entries[done:behind])
                self.position += count * ENTRY_BYTES
                self.max_offset += count
                self.max_physical_offset = entries[behind - 3] + entries[behind - 2]
                done = behind
        except OSError:
            if done:
                self.truncate(entries[0])
                self.max_physical_offset = before
            raise
        self.max_physical_offset = end

    def fill_to(self, number: int) -> None:
        """Write blanks, so that the next entry has at least this number. OSError when the disk is full."""
        # They get a log offset that expires together with the last entry's record, so that offsets never decrease.
        before, end = max(0, self.max_physical_offset - 1), self.max_physical_offset
        try:
            while self.max_offset < number:
                self.push(before, BLANK_SIZE, 0)
        finally:
            self.max_physical_offset = end

    def rewrite(self, number: int, physical_offset: int, size_bytes: int, tags_code: int) -> None:
        """Write an entry again that was damaged or blank."""
        place, segment = self.locate(number), self.segments.find(number * ENTRY_BYTES)
        assert place is not None
        assert segment is not None
        ENTRY.pack_into(place[0], place[1], physical_offset, size_bytes, tags_code)
        segment.changed_from(place[1])
        self.flushed_until = -1

    def start_at(self, queue_offset: int) -> None:
        """Begin an empty queue at `queue_offset` (a slave that joined late), with blanks from the file's start on."""
        blanks = queue_offset * ENTRY_BYTES % self.segments.size // ENTRY_BYTES
        base = (queue_offset - blanks) * ENTRY_BYTES
        segment = self.segments.build(base, blanks * ENTRY_BYTES + _RESERVE_BYTES)
        segment.buffer[: blanks * ENTRY_BYTES] = BLANK_ENTRY * blanks
        segment.position = blanks * ENTRY_BYTES
        self.segments.add(segment)
        self._enter(segment)
        self.max_offset = self.min_offset = queue_offset

    def begin_again_at(self, queue_offset: int) -> None:
        """Drop all entries; the next one gets this number. OSError when the disk is full."""
        self.segments.destroy()
        self._enter(None)
        self.start_at(queue_offset)

    def publish_position(self) -> None:
        """Update the last segment's position, which the hot path keeps in `position`."""
        if self._current is not None:
            self._current.position = self.position

    # ---- reading

    def locate(self, queue_offset: int) -> tuple[mmap.mmap, int, int] | None:
        """Buffer, byte position and number of entries from this one to the end of its file's written part."""
        at = queue_offset * ENTRY_BYTES
        segment = self.segments.find(at)
        if segment is None or queue_offset < self.min_offset:
            return None
        at -= segment.base
        end = self.position if segment is self._current else segment.position
        if at >= end:
            return None
        return segment.buffer, at, (end - at) // ENTRY_BYTES

    def entry(self, queue_offset: int) -> tuple[int, int, int] | None:
        """(physical offset, size, tags code) of one entry, None if there is none."""
        place = self.locate(queue_offset)
        return None if place is None else ENTRY.unpack_from(place[0], place[1])

    def last_entry(self) -> tuple[int, int, int] | None:
        """`entry` of the last entry; the file is not mapped for it."""
        segment = self.segments.find(self.max_offset * ENTRY_BYTES - ENTRY_BYTES)
        if segment is None or self.max_offset <= self.min_offset:
            return None
        return ENTRY.unpack(segment.peek(self.max_offset * ENTRY_BYTES - ENTRY_BYTES - segment.base, ENTRY_BYTES))

    def last_entry_end(self) -> int:
        """End of the last entry's record in the log, -1 for an empty queue."""
        if self.max_offset == 0 or not self.segments.items:
            return -1
        at = self.max_offset * ENTRY_BYTES - ENTRY_BYTES
        segment = self.segments.find(at)
        if segment is None:
            return -1
        offset, size, _ = ENTRY.unpack_from(segment.buffer, at - segment.base)
        end: int = offset + size
        return end

    # ---- recovery and expiry

    def load(self, disk: Disk, only_file: tuple[str, bytes] | None) -> list[str]:
        """Load the files; the first damaged or missing one and all after it are left out, and `damaged` is set.

        Their entries are built again from the log. Raises StoreDamaged for a file with a foreign name.

        Args:
            disk: where the files are.
            only_file: the result of `Disk.only_files` for the queue's directory.

        Returns:
            The paths of the files that have been left out, which are to be deleted, the last one first.
        """
        if only_file is not None and self._load_only(*only_file):
            return []
        segments = self.segments
        unusable = segments.load_usable()
        end = min((file.base for file in unusable), default=None)
        following = None
        for segment in segments.items:
            if segment.base % segments.size or following not in (None, segment.base):
                end = segment.base if end is None else min(end, segment.base)
                break
            following = segment.end
        if end is None:
            return []
        self.found_damaged(end)
        for file in unusable:
            data = disk.read(file.path) if file.length <= 2 * segments.size else b""
            self.known_end = max(self.known_end, self._numbers_in(data, file.base))
            self._remember_last(data[: segments.size], file.base)
        self.remember_dropped(end)
        paths = []
        while segments.items and segments.items[-1].base >= end:
            last = segments.items[-1]
            self.known_end = max(self.known_end, self._numbers_in(last.buffer[:], last.base))
            paths.append(segments.leave_out_last().path)
        _log.error(
            "%s: files are damaged or missing from entry %d on (%s); they are built again from the log",
            self, end // ENTRY_BYTES, ", ".join(f"{f.path} has {f.length} bytes" for f in unusable[:3]) or "a gap",
            extra=self.log_fields,
        )  # fmt: skip
        return paths + [file.path for file in unusable]

    def _load_only(self, name: str, content: bytes) -> bool:
        """Take up a queue's only file if it holds valid entries and nothing else, and do what `recover` would do with it.

        So a start looks once at each of very many queues, and does nothing else for most.
        """
        segments = self.segments
        if not (name.isascii() and name.isdigit()) or int(name) % segments.size:
            return False
        data = _padded(content, segments.size)
        valid, before, _, why = pass_entries(data, 0, len(data), -1, 0, 0)
        if why != NOT_VALID or valid < len(content):
            return False
        segment = segments.take_up(f"{segments.directory}/{name}", int(name))
        if valid:
            # The rest of the start asks for these two.
            last = valid - ENTRY_BYTES
            segment.remember({0: data[:ENTRY_BYTES], last: data[last:valid]})
        segment.cut(valid, is_blank=True)
        self.max_physical_offset = before or -1
        self.min_offset = 0  # its entries decide, see `correct_min_offset`
        self._reset_to_segments()
        self._is_recovered = True
        return True

    def _numbers_in(self, data: bytes, base: int) -> int:
        """The number behind the last entry of a file that may be cut off: then that behind the whole file."""
        count = 0
        for offset, size, _ in ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY_BYTES]):
            if offset < 0 or size <= 0:
                return base // ENTRY_BYTES + count
            count += 1
        return max(base // ENTRY_BYTES + count, (base + self.segments.size) // ENTRY_BYTES)

    def remember_dropped(self, at: int) -> None:
        """The entries from this position on are about to be dropped because of damage: keep `last_dropped`."""
        for segment in reversed(self.segments.items):
            if segment.end <= at or segment.base <= self.last_dropped[0] * ENTRY_BYTES:
                break
            start = max(at - segment.base, 0)
            content_end = segment.file.content_end(start, segment.size)
            self._remember_last(segment.buffer[start:content_end], segment.base + start)

    def _remember_last(self, data: bytes, at: int) -> None:
        count = min(-(-len(data.rstrip(b"\0")) // ENTRY_BYTES), len(data) // ENTRY_BYTES)
        number = at // ENTRY_BYTES + count - 1
        if count and number > self.last_dropped[0]:
            offset, size, _ = ENTRY.unpack_from(data, (count - 1) * ENTRY_BYTES)
            self.last_dropped = number, offset, size

    def recover(self, unsafe_from: int | None) -> Generator[None, None, None]:
        """Find the end: the first entry that is not valid (docs/protocol/store.md §14.3). Yields between pieces of work.

        After a clean stop (`unsafe_from` is None) the last three files are read. After a crash so are all files that
        may hold entries of records from log offset `unsafe_from` on; these files count as not flushed.
        """
        items = self.segments.items
        if self._is_recovered:
            if unsafe_from is not None:
                items[0].flushed = 0
            return
        first = self._first_to_check(unsafe_from)
        end = items[0].base if items else 0
        is_blank = False
        for segment in items[first:]:
            if unsafe_from is not None:
                segment.flushed = 0
            content, content_end = segment.content(READ_BYTES) or (b"", segment.size)
            is_read = content_end <= READ_BYTES
            valid = yield from self._scan(segment, None, data=_padded(content, segment.size) if is_read else None)
            end = segment.base + valid
            if is_read and ENTRY_BYTES <= valid <= len(content):
                # The rest of the start asks for these two.
                last = valid - ENTRY_BYTES
                segment.remember({0: content[:ENTRY_BYTES], last: content[last:valid]})
            if valid < segment.size:
                if not is_read:
                    content = segment.buffer[: segment.file.content_end(valid, segment.size)]
                behind = max(len(content) - valid, 0)
                is_zero = content[valid:] == bytes(behind)  # counting zeros takes a hundred times as long
                is_blank = is_read and is_zero
                if not is_zero or segment is not items[-1]:  # as if the queue had continued
                    self._found_damaged(segment.base + valid)
                break
        if self.damaged:
            self.remember_dropped(end)
        self.segments.truncate(end, is_blank=is_blank)
        self.min_offset = 0  # its entries decide, see `correct_min_offset`
        self._reset_to_segments()

    def _first_to_check(self, unsafe_from: int | None) -> int:
        """Which of the files is the first that `recover` reads."""
        items = self.segments.items
        first = max(0, len(items) - _FILES_CHECKED)
        while unsafe_from is not None and first > 0:
            offset, size, _ = ENTRY.unpack(items[first].peek(0, ENTRY_BYTES))
            if size > 0 and offset < unsafe_from:
                break
            first -= 1
        return first

    def forget_read(self) -> None:
        """Drop what `recover` has kept for the rest of a start."""
        for segment in self.segments.items[-_FILES_CHECKED:]:
            segment.remember(None)

    def found_damaged(self, at: int) -> None:
        """Its entries are missing or wrong from this position on; those in front of it stay."""
        self.damaged = True
        # The nearest ones may be as damaged. So may all be, if there are few.
        offsets = []
        for before in range(at - ENTRY_BYTES, at - _DOUBTED_BYTES, -_DOUBTED_STEP_BYTES):
            segment = self.segments.find(before)
            if segment is None:
                offsets.append(0)
                break
            offsets += PHYSICAL_OFFSET.unpack(segment.peek(before - segment.base, PHYSICAL_OFFSET.size))
        self.damage_found(min(offsets))

    def _found_damaged(self, at: int) -> None:
        if not self.damaged:
            _log.error(
                "%s: damaged from entry %d on; built again from the log", self, at // ENTRY_BYTES, extra=self.log_fields
            )
        self.found_damaged(at)

    def cut_at_first_wrong(self, fits: Callable[[ConsumeQueue, int, int, int], bool]) -> None:
        """Find the first entry of the last files for which `fits` is false; drop it and all after it.

        Args:
            fits: whether an entry points to its record: queue, number, log offset and size.
        """
        self.publish_position()
        for segment in self.segments.items[-_FILES_CHECKED:]:
            number = segment.base // ENTRY_BYTES
            for at in range(0, segment.position, ENTRY_BYTES):
                offset, size, _ = ENTRY.unpack_from(segment.buffer, at)
                if size != BLANK_SIZE and not fits(self, number + at // ENTRY_BYTES, offset, size):
                    self._found_damaged(segment.base + at)
                    self.remember_dropped(segment.base + at)
                    self.segments.truncate(segment.base + at)
                    self._reset_to_segments()
                    return

    def built_until(self) -> int:
        """The end of the last record that has an entry; -1 without any."""
        number = self.max_offset
        while number > 0 and (segment := self.segments.find((number - 1) * ENTRY_BYTES)) is not None:
            number -= 1
            offset, size, _ = ENTRY.unpack_from(segment.buffer, number * ENTRY_BYTES - segment.base)
            if size != BLANK_SIZE:
                end: int = offset + size
                return end
        return -1

    def truncate(self, physical_offset: int) -> None:
        """Drop the entries of records at or behind this log offset (docs/protocol/store.md §14.7)."""
        self.publish_position()
        items = self.segments.items
        while items:
            offset, size, _ = ENTRY.unpack_from(items[-1].buffer, 0)
            # If the last file is empty, the entries to be dropped may be at the end of the one before.
            empty = size <= 0 and len(items) > 1
            if not empty and not (size > 0 and offset >= physical_offset):
                break
            self.segments.delete_last()
        if items:
            steps = self._scan(items[-1], physical_offset, self._sound_before(items[-1], physical_offset))
            try:
                while True:
                    next(steps)
            except StopIteration as found:
                self.segments.truncate(items[-1].base + found.value)
        else:
            self.segments.destroy()  # a start takes an empty directory for a queue that has lost its files
            self.max_physical_offset = -1  # a damaged entry may have pointed behind all records
        self._reset_to_segments()
        self.max_physical_offset = min(self.max_physical_offset, physical_offset)

    def emptied_by(self, log_offset: int) -> RemovedQueue | None:
        """What a restart has to know if a cut of the log at this offset will delete all entries, and those in front of them
        have expired: no number that one of these had may be given again. None otherwise."""
        first = self.segments.items[0] if self.segments.items else None
        if first is None or not first.base:
            return None
        offset, size, _ = ENTRY.unpack(first.peek(0, ENTRY_BYTES))
        if size <= 0 or offset < log_offset:
            return None
        return RemovedQueue(self.topic, self.queue_id, first.base // ENTRY_BYTES, self.removed_before)

    def drop_files(self) -> None:
        """Delete all files; the next entry gets the number `start_offset`."""
        self.segments.destroy()
        self._reset_to_segments()

    def continue_as(self, emptied: RemovedQueue) -> None:
        """A cut has left no entries: continue as the result of `emptied_by` says."""
        self.start_offset = self.max_offset = self.min_offset = emptied.next_offset
        self.removed_before = emptied.log_offset

    def _sound_before(self, segment: Segment, physical_offset: int) -> int:
        """A position before which all entries are of records before this log offset, close to the first that is not.

        Reads one entry of each page: a full file has 300,000, which would take 45 ms.
        """
        at = 0
        for following in range(PAGE_BYTES, segment.size, PAGE_BYTES):
            offset, size, _ = ENTRY.unpack_from(segment.buffer, following)
            if offset < 0 or size <= 0 or offset >= physical_offset:
                break
            if size != BLANK_SIZE:  # `_scan` has to find an entry that has a record
                at = following
        return at

    def _scan(
        self, segment: Segment, physical_offset: int | None, at: int = 0, *, data: bytes | None = None
    ) -> Generator[None, None, int]:
        """Bytes of valid entries at the start of a segment; sets `max_physical_offset` to the last one's end.

        Yields between pieces of work. Reads little further than it must, because most of a file is a hole. On tmpfs,
        reading a hole through the map takes a page of memory, and kills the process when there is none.

        Args:
            segment: one of the queue's files.
            physical_offset: entries of records at or behind this log offset count as invalid; None for none.
            at: all entries before this position are known to be valid.
            data: the file's bytes, to an entry that is not valid or to the end; None to read them through the map.
        """
        before = last = 0
        limit = -1 if physical_offset is None else physical_offset
        while at < segment.size:
            buffer = segment.buffer if data is None else data
            at, before, last, why = pass_entries(
                buffer, at, min(at + _SCANNED_PER_STEP, segment.size), limit, before, last
            )
            if before:
                self.max_physical_offset = before
            if why == WRONG:
                self._found_damaged(segment.base + last)
                return last
            if why == NOT_VALID:
                break
            yield
        return at

    def _reset_to_segments(self) -> None:
        items = self.segments.items
        self._enter(items[-1] if items else None)
        if not items:
            self.max_offset = self.min_offset = self.start_offset
            return
        self.max_offset = self.segments.max_offset // ENTRY_BYTES
        self.min_offset = min(max(self.min_offset, items[0].base // ENTRY_BYTES), self.max_offset)

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Move `min_offset` to the first entry whose record is still in the log (docs/protocol/store.md §8.4).

        Entries of a removed queue of this name count as if their records had expired.
        If no record is left, the minimum becomes `max_offset`. Java leaves it unchanged, so that pulls skip every
        expired entry one by one.
        """
        self.publish_position()
        log_min_offset = max(log_min_offset, self.removed_before)
        low = max(self.min_offset, self.segments.min_offset // ENTRY_BYTES)
        high = self.max_offset
        if low >= high:
            return
        first, end = low, high
        if not self._is_gone(first, log_min_offset):
            self.min_offset = first
            return
        # Physical offsets grow with the queue offset; the blanks in front count as 0. A single damaged entry must not
        # hide all that are in front of it, so each probe takes a look at its neighbours.
        while low < high:
            middle = (low + high) // 2
            around = range(max(first, middle - _PROBED), min(end, middle + _PROBED + 1))
            if 2 * sum(self._is_gone(number, log_min_offset) for number in around) > len(around):
                low = middle + 1
            else:
                high = middle
        nearest = range(max(first, low - _PROBED - 1), min(end, low + _PROBED + 2))
        low = next((number for number in nearest if not self._is_gone(number, log_min_offset)), low)
        self.min_offset = low

    def _is_gone(self, number: int, log_min_offset: int) -> bool:
        """Whether an entry's record has expired. If the entry cannot be right, the next one that can be decides."""
        segment = self.segments.find(number * ENTRY_BYTES)
        if segment is None:
            return True
        offset, size, _ = ENTRY.unpack(segment.peek(number * ENTRY_BYTES - segment.base, ENTRY_BYTES))
        if size <= 0:
            offset, size = self._next_sized(number * ENTRY_BYTES)
        return size > 0 and (0 <= offset < log_min_offset or (size == BLANK_SIZE and not offset))

    def _next_sized(self, at: int) -> tuple[int, int]:
        """Log offset and size of the first entry with a size from this position on; (0, 0) without one."""
        while (segment := self.segments.find(at)) is not None and at < segment.base + segment.position:
            start = at - segment.base
            part = segment.buffer[start : min(start + PAGE_BYTES, segment.position)]
            if part.strip(b"\0"):
                for offset, size, _ in ENTRY.iter_unpack(part):
                    if size > 0:
                        return offset, size
            at += len(part)
        return 0, 0

    def blank(self, start: int, stop: int) -> None:
        """Blank the entries of records between these log offsets, which are damaged."""
        self.publish_position()
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is None or entry[0] < start:
                low = middle + 1
            else:
                high = middle
        count = 0
        while (place := self.locate(low + count)) is not None:
            buffer, at, _ = place
            (offset,) = PHYSICAL_OFFSET.unpack_from(buffer, at)
            if offset >= stop:
                break
            if offset >= start:  # not so if a damaged entry has led the search astray
                ENTRY.pack_into(buffer, at, offset, BLANK_SIZE, 0)
                segment = self.segments.find((low + count) * ENTRY_BYTES)
                if segment is not None:
                    segment.changed_from(at)
                    self.flushed_until = -1
            count += 1

    def delete_expired(self, log_min_offset: int) -> int:
        """Delete leading files whose records have all expired, never the last file; returns their number."""
        self.publish_position()
        log_min_offset = max(log_min_offset, self.removed_before)
        count = 0
        while len(self.segments.items) > 1:
            first = self.segments.items[0]
            offset, size = self._next_sized(first.end - ENTRY_BYTES)
            if size <= 0 or offset >= log_min_offset:
                break
            self.segments.delete_first()
            count += 1
        return count

    def dirty(self, least_pages: int) -> list[Unflushed]:
        """Segments to flush, each with the position to flush up to (docs/protocol/store.md §2.4)."""
        self.publish_position()
        found = []
        is_flushed = True
        for segment in reversed(self.segments.items):
            if segment.flushed >= segment.position:
                # Only the last file may be empty. Those in front of a flushed one are flushed, unless an entry was rewritten.
                if segment.position and self.flushed_until >= 0:
                    break
                continue
            is_flushed = False
            pages = segment.position // 4096 - segment.flushed // 4096
            if least_pages == 0 or segment.position == segment.size or pages >= least_pages:
                found.append(segment.unflushed())
        if is_flushed:
            self.flushed_until = self.max_offset
        return found


def _padded(content: bytes, size: int) -> bytes:
    """The beginning of a queue's file with at least one blank entry behind it, if it is not the whole file."""
    return (content + bytes(ENTRY_BYTES + -len(content) % ENTRY_BYTES))[:size]
