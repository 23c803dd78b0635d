"""Checks a whole store on demand: every record with its checksum, and every queue entry of a record.

Recovery reads only the newest files, and pulls do not compare the checksums of bodies. A check only reads, so the broker
may be running.
"""

from __future__ import annotations

import json
import mmap
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import attrs

from triomq_protocol.record.check import Finding, LogRecord, read_record
from triomq_server.disk.real_disk import RealDisk
from triomq_server.disk.real_files import RealMappedFile
from triomq_server.plain_files import open_plain
from triomq_server.store.commitlog import enters_queue
from triomq_server.store.entry_layout import BLANK_SIZE, ENTRY, ENTRY_BYTES
from triomq_server.store.files.segments import Segment, StoreDamaged, misnamed_text, missing_text, segment_name
from triomq_server.store.queue_table import can_have_directory
from triomq_server.store.repair.damage import FILLER_TOPIC, next_sound

MISSING = "missing"
"""The kind of damage if the log lacks a file, or its end."""

DAMAGE_LISTED = 1000
"""Of more damage only the number is kept."""
_RECORDS_PER_REPORT = 20_000
_QUEUE_FILES_OPEN = 256


@attrs.frozen
class Damage:
    """One damaged place.

    Attributes:
        kind: "record", or "entry" of a queue, or "replaced" for records that a start has moved to `triomq/damaged`, or
            "missing" for a whole file of the log, or its end.
        offset: the log offset.
        size_bytes: up to the next sound record.
        what: in words.
    """

    kind: str
    offset: int
    size_bytes: int
    what: str


@attrs.define
class CheckReport:
    """The findings of a check.

    Attributes:
        log_begin, log_end: the range that was read.
        records: number of sound records.
        count: number of damaged places.
        damage: the first `DAMAGE_LISTED` of them.
    """

    log_begin: int = 0
    log_end: int = 0
    records: int = 0
    count: int = 0
    damage: list[Damage] = attrs.field(factory=list)

    def add(self, kind: str, offset: int, size_bytes: int, what: str) -> None:
        """Note one damaged place."""
        self.count += 1
        if len(self.damage) < DAMAGE_LISTED:
            self.damage.append(Damage(kind, offset, size_bytes, what))

    def compare_end(self, reached: int, end_by_queues: int) -> None:
        """Note that the log has lost its end, if its queues know of messages behind all that was met in it."""
        if end_by_queues > reached:
            self.add(MISSING, reached, end_by_queues - reached, missing_end_text(end_by_queues))


class _Entries:
    """The queue entries on the disk."""

    def __init__(self, root: Path) -> None:
        self._directory = root / "consumequeue"
        self._files: dict[tuple[str, int, int], mmap.mmap | None] = {}
        self._sizes: dict[tuple[str, int], int] = {}
        self._topics: dict[str, bool] = {}
        self._removed: dict[tuple[str, int], int] = {}
        with suppress(OSError, ValueError, TypeError):
            for topic, queue_id, _, log_offset in json.loads((root / "triomq/removedQueues.json").read_bytes()):
                self._removed[topic, queue_id] = log_offset

    def find(self, record: LogRecord) -> tuple[int, int] | None:
        """Log offset and size in the entry of a record; None if there is no entry, the record's own if its queue no longer
        exists."""
        queue = record.topic, record.queue_id
        own = record.offset, record.size
        if record.offset < self._removed.get(queue, 0):
            return own
        size = self._sizes.get(queue)
        if size is None:
            size = self._sizes[queue] = self._file_size(*queue)
        if not size:
            return None if self._has_queues(record.topic) else own  # without queues, the topic has been deleted
        at = record.queue_offset * ENTRY_BYTES
        buffer = self._buffer(*queue, at - at % size)
        if buffer is None or at % size + ENTRY_BYTES > len(buffer):
            return None
        offset, length, _ = ENTRY.unpack_from(buffer, at % size)
        return (offset, length) if length else None

    def _has_queues(self, topic: str) -> bool:
        if topic not in self._topics:
            self._topics[topic] = can_have_directory(topic) and any((self._directory / topic).glob("*/*"))
        return self._topics[topic]

    def _file_size(self, topic: str, queue_id: int) -> int:
        if not can_have_directory(topic):
            return 0
        folder = self._directory / topic / str(queue_id)
        with suppress(OSError):
            return max((file.stat().st_size for file in folder.iterdir()), default=0)
        return 0

    def _buffer(self, topic: str, queue_id: int, base: int) -> mmap.mmap | None:
        key = topic, queue_id, base
        if key not in self._files:
            if len(self._files) >= _QUEUE_FILES_OPEN:
                self._files.clear()
            self._files[key] = None
            with suppress(OSError, ValueError):
                self._files[key] = _mapped(self._directory / topic / str(queue_id) / segment_name(base))
        return self._files[key]


class _EntryCheck:
    """Compares queue entries with records.

    Args:
        root: the store's directory.
        directory: the log's.
        file_bytes: the size of a log file.
        report: takes the damage.
        running: whether the broker may be running.
    """

    def __init__(self, root: Path, directory: Path, file_bytes: int, report: CheckReport, *, running: bool) -> None:
        self._root = root
        self._directory = directory
        self._file_bytes = file_bytes
        self._report = report
        self._running = running
        self._entries = _Entries(root)
        self._unsure: list[LogRecord] = []

    def check(self, record: LogRecord) -> None:
        """Look at the entry of a record that enters a queue."""
        entry = self._entries.find(record)
        if entry == (record.offset, record.size) or (entry is not None and entry[1] == BLANK_SIZE):
            return
        if entry is None and self._running and len(self._unsure) < DAMAGE_LISTED:
            if not self._has_expired(record):
                self._unsure.append(record)
        else:
            self._add(record)

    def check_again(self) -> None:
        """Look again where an entry was missing: a slave writes entries a while after the records."""
        self._entries = _Entries(self._root)
        for record in self._unsure:
            if self._entries.find(record) is None:
                self._add(record)

    def _add(self, record: LogRecord) -> None:
        if not (self._running and self._has_expired(record)):
            self._report.add("entry", record.offset, record.size, _entry_of(record))

    def _has_expired(self, record: LogRecord) -> bool:
        """Whether the broker has deleted the record's file since the check began, as it does before it deletes entries."""
        return not (self._directory / segment_name(record.offset - record.offset % self._file_bytes)).exists()


def _mapped(path: Path) -> mmap.mmap:
    with open(open_plain(str(path), os.O_RDONLY), "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def check_store(root: Path, log: Path | None = None, progress: Callable[[int, int], None] | None = None) -> CheckReport:
    """Read the whole log of a store; blocks for as long as that takes.

    Args:
        root: the store's directory (`storePathRootDir`).
        log: the log's directory, if it is another than `commitlog` below (`storePathCommitLog`).
        progress: called now and then with the bytes read and the bytes there are.

    Raises:
        StoreDamaged: there is no log, or its files have different lengths.
        OSError: a file cannot be read.
    """
    directory = log or root / "commitlog"
    segments = list(log_files(directory))
    report = CheckReport(segments[0].base, segments[0].base)
    running = (root / "abort").exists()
    total = segments[-1].end - segments[0].base
    # Before the log is read: a running broker writes to the log before it writes to a queue.
    end_by_queues = log_end_by_queues(root)
    entries = _EntryCheck(root, directory, segments[0].size, report, running=running)
    damaged_end = 0

    def damaged(kind: str, offset: int, size_bytes: int, what: str) -> None:
        nonlocal damaged_end
        damaged_end = offset + size_bytes
        report.add(kind, offset, size_bytes, what)

    for record in walk(segments, damaged, running=running):
        report.records += 1
        report.log_end = record.offset + record.size
        if record.topic == FILLER_TOPIC:
            report.add("replaced", record.offset, record.size, "records that were damaged and have been moved aside")
        elif enters_queue(record.sys_flag):
            entries.check(record)
        if progress is not None and report.records % _RECORDS_PER_REPORT == 0:
            progress(report.log_end - report.log_begin, total)
    entries.check_again()
    report.compare_end(max(report.log_end, damaged_end), end_by_queues)
    return report


def missing_end_text(end_by_queues: int) -> str:
    """The damage of a log that ends before the records its queues point to."""
    return f"the log ends here, but its queues know of messages up to log offset {end_by_queues}"


def log_end_by_queues(root: Path) -> int:
    """The end of the last record to which any queue has an entry; 0 if there is none. OSError."""
    folders = (folder for folder in (root / "consumequeue").glob("*/*") if folder.is_dir())
    return max(map(_end_by_queue, folders), default=0)


def _end_by_queue(folder: Path) -> int:
    files = sorted(file for file in folder.iterdir() if file.name.isdecimal() and file.stat().st_size >= ENTRY_BYTES)
    for file in reversed(files):
        with _mapped(file) as data:
            # Entries follow each other from the begin on; behind the last one there are zeros.
            number = bisect_left(
                range(len(data) // ENTRY_BYTES), True, key=lambda n: ENTRY.unpack_from(data, n * ENTRY_BYTES)[1] <= 0
            )
            while number:
                number -= 1
                offset, size, _ = ENTRY.unpack_from(data, number * ENTRY_BYTES)
                if size != BLANK_SIZE:
                    return int(offset) + int(size)
    return 0


def _entry_of(record: LogRecord) -> str:
    return f"entry {record.queue_offset} of queue {record.topic}-{record.queue_id} is missing or points elsewhere"


def log_files(directory: Path) -> Iterator[Segment]:
    """The files of a log, oldest first, mapped for reading only. Raises StoreDamaged, OSError."""
    names = sorted(name for name in (os.listdir(directory) if directory.is_dir() else ()) if name.isdecimal())
    if folder := next((name for name in names if (directory / name).is_dir()), None):
        raise StoreDamaged(f"{directory / folder}: it is a directory, not a file; move it away")
    sizes = {name: size for name in names if (size := (directory / name).stat().st_size)}
    if not sizes:
        raise StoreDamaged(f"{directory} has no log files: give the store's directory, storePathRootDir")
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{name} has {size}" for name, size in list(sizes.items())[:4])
        raise StoreDamaged(f"the log files in {directory} have different lengths: {found} bytes")
    disk = RealDisk()
    for name, size in sizes.items():
        path = str(directory / name)
        if text := misnamed_text(path, size):
            raise StoreDamaged(f"{text}; move it away")
        yield Segment(disk, path, int(name), size, RealMappedFile(path, _mapped(Path(path)), new=False))


def walk(
    segments: list[Segment], report: Callable[[str, int, int, str], None], *, running: bool
) -> Iterator[LogRecord]:
    """All sound records; before each, `report` is called with any damage before it, as `CheckReport.add`."""
    n = at = reached = 0
    while n < len(segments):
        segment = segments[n]
        if n > reached and segments[n - 1].end < segment.base and not at:
            gap = segments[n - 1].end, segment.base
            report(MISSING, gap[0], gap[1] - gap[0], missing_text(*gap, segment.size))
        reached = max(reached, n)
        found = read_record(segment.buffer, at, segment.size, segment.base + at, check_crc=True)
        if isinstance(found, LogRecord):
            yield found
            at += found.size
        elif found is Finding.BLANK:
            at = segment.size
        else:
            search = next_sound(segments, n, at, 0)
            while True:
                try:
                    next(search)
                except StopIteration as end:
                    sound = end.value
                    break
            offset = segment.base + at
            if sound is None:
                # The end of the log; while the broker runs, its last record may be half written.
                if found is not Finding.NOTHING and not running:
                    report("record", offset, segment.size - at, found.value)
                return
            report("record", offset, segments[sound.index].base + sound.at - offset, found.value)
            reached = n = sound.index
            at = sound.at
        if at >= segments[n].size:
            n, at = n + 1, 0
