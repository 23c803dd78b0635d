"""Repairs a stopped broker's log from another copy: finds damage, checks whether a copy fits, and writes it.

Only damaged places are written, and records that a start has put in place of damaged ones. A copy must consist of whole
records that belong there and match their checksums, from the first byte of a place to its last; the records around the
place must be the same in both logs. Repaired places are noted in `triomq/repairedLog.json`: the next start makes the
queue entries of these records again (`Recovery`).
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import attrs

from triomq_protocol.record.check import Finding, LogRecord, read_record
from triomq_protocol.record.layout import BLANK_MAGIC, MARK
from triomq_server.disk import Disk
from triomq_server.store.commitlog import enters_queue
from triomq_server.store.entry_layout import ENTRY_BYTES
from triomq_server.store.files.segments import Segment, segment_name
from triomq_server.store.notes.repaired import note_repaired
from triomq_server.store.repair.damage import FILLER_TOPIC, copy_aside
from triomq_server.store.stopped.checking import MISSING, walk

_COPIED_BYTES = 1 << 24
_MOVED = "records that a start has moved aside"


Where = tuple[int, int]
"""Log offset and size of a record."""

NEIGHBOURS = 8
"""Sound records remembered on each side of a place, one of which has to be the same in a copy. Damage that no checksum
covers, for instance in properties, may have made the nearest ones differ."""


@attrs.frozen
class Place:
    """A damaged place of the log, from one log offset to another.

    Attributes:
        start, stop: the range to be written.
        what: the damage, in words.
        replaced: whether no bytes need to be kept: an earlier start has moved them to `triomq/damaged`, or there is no
            file.
        before, after: the nearest sound records; none at the log's start or end.
    """

    start: int
    stop: int
    what: str
    replaced: bool
    before: tuple[Where, ...] = ()
    after: tuple[Where, ...] = ()


_SPREAD_MOST = 32


class Survey:
    """The summary of a walk through a log, used to check other brokers' tables.

    Attributes:
        spread: sound records, evenly distributed over the log.
        end: the end of the last sound record.
        queue_ends: for each topic and queue id with messages in the log, the queue offset after the last one.
    """

    def __init__(self) -> None:
        self.spread: list[Where] = []
        self.end = 0
        self.queue_ends: dict[tuple[str, int], int] = {}
        self._records = 0
        self._stride = 1

    def note(self, record: LogRecord) -> None:
        """A sound record of this log."""
        if self._records % self._stride == 0:
            self.spread.append((record.offset, record.size))
            if len(self.spread) == _SPREAD_MOST:
                del self.spread[1::2]
                self._stride *= 2
        self._records += 1
        self.end = max(self.end, record.offset + record.size)
        self.note_in_queue(record)

    def note_in_queue(self, record: LogRecord) -> None:
        """A record that this log has, or gets by a repair: its place in its queue."""
        if enters_queue(record.sys_flag):
            self._note_end((record.topic, record.queue_id), record.queue_offset + 1)

    def take_queue_ends(self, other: Survey) -> None:
        """Count the records of another survey too."""
        for queue, end in other.queue_ends.items():
            self._note_end(queue, end)

    def _note_end(self, queue: tuple[str, int], end: int) -> None:
        self.queue_ends[queue] = max(self.queue_ends.get(queue, 0), end)


class _Search:
    """Walks through a log; yields a damaged place once enough of the records after it are known."""

    def __init__(self, segments: list[Segment], marks: list[int], survey: Survey | None) -> None:
        self._segments = segments
        self._marks = marks
        self._survey = survey
        self._met: list[Place] = []
        self._open: deque[Place] = deque()
        self._recent: deque[Where] = deque(maxlen=NEIGHBOURS)

    def places(self) -> Iterator[Place]:
        for record in walk(self._segments, self._damaged, running=False):
            self._pass_marks(record.offset)
            if record.topic == FILLER_TOPIC:
                self._meet(record.offset, record.offset + record.size, _MOVED, replaced=True)
                continue
            self._keep_met()
            if self._survey is not None:
                self._survey.note(record)
            here = record.offset, record.size
            self._recent.append(here)
            if self._open:
                self._open = deque(attrs.evolve(place, after=(*place.after, here)) for place in self._open)
            while self._open and len(self._open[0].after) == NEIGHBOURS:
                yield self._open.popleft()
        self._keep_met()
        yield from self._open

    def _damaged(self, kind: str, offset: int, size: int, what: str) -> None:
        self._pass_marks(offset)
        self._meet(offset, offset + size, what, replaced=kind == MISSING)

    def _pass_marks(self, offset: int) -> None:
        while self._marks and self._marks[0] < offset:
            mark = self._marks.pop(0)
            self._meet(mark, next(s.end for s in self._segments if s.base <= mark < s.end), _MOVED, replaced=True)

    def _meet(self, start: int, stop: int, what: str, *, replaced: bool) -> None:
        self._met.append(Place(start, stop, what, replaced, tuple(self._recent)))

    def _keep_met(self) -> None:
        self._open += self._met
        self._met.clear()


def damaged_places(segments: list[Segment], folder: Path, survey: Survey | None = None) -> Iterator[Place]:
    """All damaged places of a log, in order; reads the whole log.

    Args:
        segments: its files.
        folder: `triomq/damaged` of the store. If a start has bridged the end of a file, only the name of a copy in this
            folder shows that the mark at the file's end is not the log's own.
        survey: called with all sound records.
    """
    marks = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.isdecimal():
            offset = int(path.name)
            for segment in segments:
                if segment.base <= offset <= segment.end - MARK.size:
                    size, magic = MARK.unpack_from(segment.buffer, offset - segment.base)
                    if (size, magic) == (segment.end - offset, BLANK_MAGIC):
                        marks.append(offset)
    return _Search(segments, marks, survey).places()


def last_records(segments: list[Segment], end: int) -> list[Where]:
    """The last sound records that end at or before a log offset, at most NEIGHBOURS of one file; oldest first."""
    for segment in reversed([segment for segment in segments if segment.base < end]):
        found: deque[Where] = deque(maxlen=NEIGHBOURS)
        for record in walk([segment], _ignore, running=True):
            if record.offset + record.size > end:
                break
            if record.topic != FILLER_TOPIC:
                found.append((record.offset, record.size))
        if found:
            return list(found)
    return []


def _ignore(_kind: str, _offset: int, _size: int, _what: str) -> None:
    """Damage has been reported by the walk that looked for it."""


def queue_end_on_disk(root: Path, topic: str, queue_id: int) -> int:
    """The number behind the last queue entry in a queue's files; 0 if there are none. OSError.

    For queues whose messages are no longer in the log, or never were, such as light message queues.
    """
    folder = root / "consumequeue" / topic / str(queue_id)
    files = sorted(file for file in folder.iterdir() if file.name.isdecimal()) if folder.is_dir() else []
    for file in reversed(files):
        if written := file.read_bytes().rstrip(b"\0"):
            return (int(file.name) + len(written) + ENTRY_BYTES - 1) // ENTRY_BYTES
    return 0


def flaw_of_copy(
    data: bytes | mmap.mmap, place: Place, file_bytes: int, survey: Survey | None = None
) -> tuple[int, str]:
    """Check whether bytes are a sound copy of a place; returns the number of records and the problem, empty if none.

    Args:
        data: the bytes, from the place's first to its last.
        place: the place they are to replace.
        file_bytes: the size of a log file.
        survey: called with the records, for the ends of their queues.
    """
    if len(data) != place.stop - place.start:
        return 0, f"{len(data)} bytes instead of {place.stop - place.start}"
    at, count = place.start, 0
    while at < place.stop:
        file_end = at - at % file_bytes + file_bytes
        end = min(file_end, place.stop) - place.start
        found = read_record(data, at - place.start, end, at, check_crc=True)
        if isinstance(found, LogRecord):
            if found.topic == FILLER_TOPIC:
                return count, f"the other copy has been damaged at log offset {at} as well"
            if survey is not None:
                survey.note_in_queue(found)
            at += found.size
            count += 1
        elif (
            found is Finding.BLANK
            and MARK.unpack_from(data, at - place.start)[0] == file_end - at
            and (file_end <= place.stop)
        ):
            at = file_end
        else:
            return count, f"the other copy holds {found.value} at log offset {at}"
    return count, ""


def tail_as_written(segments: list[Segment], place: Place) -> Place:
    """A place at the log's end up to its last byte that is not zero, any other place as it is."""
    segment = next((segment for segment in segments if segment.base <= place.start < segment.end), None)
    if place.after or segment is None:
        return place
    start = place.start - segment.base
    written = segment.buffer[start : segment.file.content_end(start, segment.size)].rstrip(b"\0")
    return attrs.evolve(place, stop=place.start + max(len(written), 1))


def size_of_next(data: bytes, offset: int, file_bytes: int) -> int:
    """The size that a copy's next record claims, at most the rest of its file; `flaw_of_copy` checks the record."""
    size: int = MARK.unpack_from(data)[0] if len(data) >= MARK.size else len(data)
    return max(1, min(size, file_bytes - offset % file_bytes))


def missing_files(segments: list[Segment], place: Place) -> list[int]:
    """The log offsets at which files would begin that a place needs, and that are missing."""
    size = segments[0].size
    there = {segment.base for segment in segments}
    return [base for base in range(place.start - place.start % size, place.stop, size) if base not in there]


def with_new_files(disk: Disk, directory: Path, segments: list[Segment], bases: list[int]) -> list[Segment]:
    """The files of a log, and new empty ones that begin at these log offsets. OSError."""
    size = segments[0].size
    new = []
    for base in bases:
        path = f"{directory}/{segment_name(base)}"
        new.append(Segment(disk, path, base, size, disk.create(path, size, size)))
    return sorted([*segments, *new], key=lambda segment: segment.base)


def write_place(disk: Disk, root: Path, segments: list[Segment], place: Place, data: bytes | mmap.mmap) -> None:
    """Write a sound copy over a place, durably. The old bytes are copied to `triomq/damaged` first. OSError.

    After a crash in between the place is still damaged, and can be repaired again.
    """
    first = next(n for n, segment in enumerate(segments) if segment.base <= place.start < segment.end)
    folder = root / "triomq" / "damaged"
    if not place.replaced and not (folder / segment_name(place.start)).exists():
        last = next(n for n, segment in enumerate(segments) if segment.base < place.stop <= segment.end)
        copy_aside(
            disk, str(folder), segments, first, place.start - segments[first].base,
            (last, place.stop - segments[last].base),
        )  # fmt: skip
    note_repaired(disk, str(root), place.start, place.stop)
    for segment, start, end in _pieces(segments, place):
        data_at = segment.base + start - place.start
        segment.file.write_back(start, data[data_at : data_at + end - start])
        if end == segment.size or segment.base + end == place.stop:
            segment.file.sync(0, end)


def is_same(segments: list[Segment], place: Place, data: bytes | mmap.mmap) -> bool:
    """Whether the log has these bytes at a place."""
    for segment, start, end in _pieces(segments, place):
        data_at = segment.base + start - place.start
        if segment.buffer[start:end] != data[data_at : data_at + end - start]:
            return False
    return True


def _pieces(segments: list[Segment], place: Place) -> Iterator[tuple[Segment, int, int]]:
    """A place in pieces that fit into memory: file, and from where to where in it."""
    for segment in segments:
        start, stop = max(segment.base, place.start), min(segment.end, place.stop)
        for at in range(start, stop, _COPIED_BYTES):
            yield segment, at - segment.base, min(at + _COPIED_BYTES, stop) - segment.base
