"""Repairs a stopped broker's store from its own content: queues and index are built again from the whole log.

A start checks only the newest files, and trusts older queue entries and index files. Here everything is compared with
the log first. Damaged parts are copied or moved to a separate folder below `triomq/damaged`, and then recovery reads the
whole log. While `triomq/repairing` exists, each start does the same, so that a repair may be killed at any time.
"""

from __future__ import annotations

import mmap
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

import attrs

from triomq_protocol.filters.tags import index_key_hash, tags_code
from triomq_protocol.names import SCHEDULE_TOPIC
from triomq_protocol.record.check import LogRecord
from triomq_protocol.record.layout import TRANSACTION_ROLLBACK
from triomq_server.config import StoreConfig
from triomq_server.disk import RealDisk
from triomq_server.disk.config_files import ConfigFile, ConfigFileDamaged
from triomq_server.store.commitlog import enters_queue
from triomq_server.store.dispatch.dispatcher import property_of
from triomq_server.store.dispatch.replay import KEYS_MARK, TAGS_MARK, UNIQUE_KEY_MARK
from triomq_server.store.entry_layout import ENTRY, ENTRY_BYTES
from triomq_server.store.files.segments import Segment, segment_name
from triomq_server.store.index import HEADER, INDEX_ENTRY, SLOT
from triomq_server.store.opening import is_repair_unfinished, note_repair, recover_whole
from triomq_server.store.queue_table import can_have_directory
from triomq_server.store.removed_queues import RemovedQueue, RemovedQueues
from triomq_server.store.repair.damage import FILLER_TOPIC
from triomq_server.store.stopped.checking import log_files, walk

_CHECKPOINT_BYTES = 4096
_RECORDS_PER_REPORT = 20_000
_FILES_OPEN = 256
_LISTED = 1000
"""Damaged places of the log that are listed."""

Progress = Callable[[int, int], None]
"""Called now and then with the bytes read and the bytes there are."""


@attrs.frozen
class Problem:
    """A problem of a store.

    Attributes:
        kind: "record" or "missing" for places of the log, "lost" for places that an earlier start or repair has moved
            aside, "queue", "index", "checkpoint", "table", or "repair" for an unfinished repair.
        where: the file, queue, or log offset.
        what: the problem, in words.
        remedy: the action of a repair; empty if it can do nothing.
    """

    kind: str
    where: str
    what: str
    remedy: str = ""


@attrs.define
class Findings:
    """The findings of reading a whole store.

    Attributes:
        records: number of sound records.
        log_begin, log_end: log offsets of the log's start and end.
        problems: all problems, those of the log first.
        queues: number of the first wrong entry of each damaged queue.
        odd_files: queue files with a wrong length, and directories in their place.
        tail: start of the bytes at the log's end that are not a record; None if there are none.
        deleted: the queues of deleted topics, with their next offsets.
    """

    records: int = 0
    log_begin: int = 0
    log_end: int = 0
    problems: list[Problem] = attrs.field(factory=list)
    queues: dict[tuple[str, int], int] = attrs.field(factory=dict)
    odd_files: list[Path] = attrs.field(factory=list)
    tail: int | None = None
    deleted: dict[tuple[str, int], int] = attrs.field(factory=dict)

    def add_place(self, kind: str, offset: int, size_bytes: int, what: str) -> None:
        """A damaged place of the log, up to the next sound record or the end."""
        self.tail = offset
        if len(self.problems) < _LISTED:
            text = f"{size_bytes} bytes: {what}"
            self.problems.append(Problem(kind, f"log offset {offset}", text, "copied aside, and passed over"))

    def add_record(self, record: LogRecord) -> None:
        """A sound record, which may stand in the place of damaged ones."""
        self.records += record.topic != FILLER_TOPIC
        self.tail = None
        self.log_end = record.offset + record.size
        if record.topic == FILLER_TOPIC and len(self.problems) < _LISTED:
            what = f"{record.size} bytes: records that were damaged and have been put aside"
            self.problems.append(Problem("lost", f"log offset {record.offset}", what))

    @property
    def index_is_damaged(self) -> bool:
        """Whether the index has to be built again."""
        return any(one.kind == "index" for one in self.problems)


class _Queues:
    """Compares the entries on the disk with the records that they should have."""

    def __init__(self, config: StoreConfig, topics: Collection[str] | None, findings: Findings) -> None:
        root = Path(config.store_path_root_dir)
        self._directory = root / "consumequeue"
        self._size = config.consume_queue_file_bytes
        self._topics = topics
        self._findings = findings
        self._wrong: Counter[tuple[str, int]] = Counter()
        self._files: dict[tuple[str, int, int], bytes] = {}
        self._kept: dict[str, bool] = {}
        removed = RemovedQueues(ConfigFile(f"{root}/triomq/removedQueues.json", RealDisk()))
        with suppress(ConfigFileDamaged):  # a table that cannot be read is found elsewhere
            removed.load()
        self._removed = removed.table
        for file in sorted(self._directory.glob("*/*/*")):
            if file.name.isdecimal() and (file.is_dir() or file.stat().st_size not in (0, self._size)):
                findings.odd_files.append(file)

    def check(self, record: LogRecord) -> None:
        """Look at the entry of a record."""
        queue = record.topic, record.queue_id
        removed = self._removed.get(queue)
        if removed is not None and record.offset < removed.log_offset:
            return
        if not self._is_kept(record.topic):
            self._findings.deleted[queue] = record.queue_offset + 1
            return
        at = record.queue_offset * ENTRY_BYTES
        data = self._read(*queue, at - at % self._size)
        at %= self._size
        if len(data) >= at + ENTRY_BYTES:
            offset, size, code = ENTRY.unpack_from(data, at)
            if (offset, size) == (record.offset, record.size) and self._has_code(record, code):
                return
        self._wrong[queue] += 1
        first = self._findings.queues.get(queue, record.queue_offset)
        self._findings.queues[queue] = min(first, record.queue_offset)

    def conclude(self) -> None:
        """Add what was found to the problems."""
        problems = self._findings.problems
        for queue, number in self._findings.queues.items():
            what = f"{self._wrong[queue]} entries are missing or wrong, the first is {number}"
            problems.append(Problem("queue", f"{queue[0]}-{queue[1]}", what, "built again from the log"))
        for file in self._findings.odd_files:
            where = file.relative_to(self._directory.parent)
            what = "it is a directory"
            if not file.is_dir():
                what = f"it has {file.stat().st_size} bytes instead of {self._size}"
            problems.append(Problem("queue", str(where), what, "moved aside, and built again from the log"))

    @staticmethod
    def _has_code(record: LogRecord, code: int) -> bool:
        if record.topic == SCHEDULE_TOPIC:
            return True  # the time of delivery, which depends on the settings of that time
        tags = property_of(str(record.properties, "utf-8", "replace"), TAGS_MARK)
        return code == (tags_code(tags) if tags else 0)

    def _is_kept(self, topic: str) -> bool:
        """Whether a topic should have queues: not if it was deleted."""
        if topic not in self._kept:
            self._kept[topic] = can_have_directory(topic) and (
                self._topics is None or topic in self._topics or (self._directory / topic).is_dir()
            )
        return self._kept[topic]

    def _read(self, topic: str, queue_id: int, base: int) -> bytes:
        key = topic, queue_id, base
        if key not in self._files:
            if len(self._files) >= _FILES_OPEN:
                self._files.clear()
            try:
                data = (self._directory / topic / str(queue_id) / segment_name(base)).read_bytes()
            except OSError:
                data = b""
            self._files[key] = data if len(data) == self._size else b""
        return self._files[key]


def index_file_bytes(config: StoreConfig) -> int:
    """How long index files are by these settings."""
    return HEADER.size + SLOT.size * config.max_hash_slot_num + INDEX_ENTRY.size * config.max_index_num


class _Index:
    """Compares the entries of all index files with the keys of the records, both in log order."""

    def __init__(self, config: StoreConfig) -> None:
        self._directory = Path(config.store_path_root_dir) / "index"
        self._slots, self._capacity = config.max_hash_slot_num, config.max_index_num
        self._size = index_file_bytes(config)
        self._entries = self._walk()
        self._ahead: tuple[int, int] | None = None
        self._flaw = ""
        self._flawed_file = ""
        self._advance()

    def check(self, record: LogRecord) -> None:
        """Look for the keys of a record."""
        if self._flaw or record.sys_flag & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK:
            return
        text = str(record.properties, "utf-8", "replace")
        unique_key, keys = property_of(text, UNIQUE_KEY_MARK), property_of(text, KEYS_MARK)
        wanted = {key for key in (unique_key, *(keys or "").split(" ")) if key}
        if not wanted:
            return
        while self._ahead is not None and self._ahead[1] < record.offset:
            self._advance()
        found = set()
        while self._ahead is not None and self._ahead[1] == record.offset:
            found.add(self._ahead[0])
            self._advance()
        if self._flawed_file:
            self._flaw = self._flawed_file
        elif not found.issuperset(index_key_hash(f"{record.topic}#{key}") for key in wanted):
            self._flaw = f"it lacks keys of the message at log offset {record.offset}"

    def conclude(self) -> str:
        """Read the rest of the files; returns their problem, empty if there is none."""
        while self._ahead is not None and not self._flaw:
            self._advance()
        return self._flaw or self._flawed_file

    def _advance(self) -> None:
        self._ahead = next(self._entries, None)

    def _walk(self) -> Iterator[tuple[int, int]]:
        """Hash and log offset of all entries; ends at the first file that is damaged."""
        size = self._size
        names = (
            [file for file in self._directory.iterdir() if file.name.isdecimal() and file.is_file()]
            if self._directory.is_dir()
            else []
        )
        for file in sorted(names, key=lambda one: int(one.name)):
            length = file.stat().st_size
            if not length:
                continue
            if length != size:
                self._flawed_file = (
                    f"{file.name} has {length} bytes instead of {size}: it is damaged, or maxHashSlotNum or maxIndexNum "
                    "are not those that it was made with (-c reads the broker's settings)"
                )
                return
            with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                count = max(1, HEADER.unpack_from(data)[5])
                if count > self._capacity or not self._chains_are_whole(data, count):
                    self._flawed_file = f"{file.name} contradicts itself"
                    return
                for key_hash, offset, _, _ in self._entries_of(data, count):
                    yield key_hash, offset

    def _entries_of(self, data: mmap.mmap, count: int) -> Iterator[tuple[int, int, int, int]]:
        at = HEADER.size + SLOT.size * self._slots
        for number in range(1, count):
            yield INDEX_ENTRY.unpack_from(data, at + INDEX_ENTRY.size * number)

    def _chains_are_whole(self, data: mmap.mmap, count: int) -> bool:
        """Whether each slot leads to all its entries."""
        heads = array("i", bytes(4 * self._slots))
        for number, (key_hash, _, _, previous) in enumerate(self._entries_of(data, count), 1):
            if key_hash < 0 or previous != heads[key_hash % self._slots]:
                return False
            heads[key_hash % self._slots] = number
        slots = SLOT.iter_unpack(data[HEADER.size : HEADER.size + SLOT.size * self._slots])
        return all(
            slot == head or (head == 0 and slot <= 0) or (slot >= count and self._is_of_slot(data, slot, n))
            for n, ((slot,), head) in enumerate(zip(slots, heads, strict=True))
        )

    def _is_of_slot(self, data: mmap.mmap, number: int, slot: int) -> bool:
        """Whether there is an entry of this number: a killed process may have written more than the header counts."""
        if number >= self._capacity:
            return False
        at = HEADER.size + SLOT.size * self._slots + INDEX_ENTRY.size * number
        key_hash, offset, _, _ = INDEX_ENTRY.unpack_from(data, at)
        return bool(key_hash or offset) and key_hash % self._slots == slot


def look(config: StoreConfig, topics: Collection[str] | None = None, progress: Progress | None = None) -> Findings:
    """Read a whole store; changes nothing, and blocks for as long as that takes.

    Args:
        config: the store's location and the sizes of its files.
        topics: the existing topics; None if the table cannot be read. Messages of other topics, without queues, are
            taken as deleted.
        progress: called with the progress.

    Raises:
        StoreDamaged: there is no log, or its files have different lengths.
        OSError: a file cannot be read.
    """
    segments = list(log_files(Path(config.store_path_commit_log)))
    findings = Findings(log_begin=segments[0].base, log_end=segments[0].base)
    last = segments[-1]
    total = last.base + last.file.content_end(0, last.size) - segments[0].base
    queues = _Queues(config, topics, findings)
    index = _Index(config) if config.message_index_enable else None
    for record in walk(segments, findings.add_place, running=False):
        findings.add_record(record)
        if enters_queue(record.sys_flag):
            queues.check(record)
        if index is not None:
            index.check(record)
        if progress is not None and findings.records % _RECORDS_PER_REPORT == 0:
            progress(findings.log_end - findings.log_begin, total)
    queues.conclude()
    if index is not None and (flaw := index.conclude()):
        findings.problems.append(Problem("index", "index", flaw, "moved aside, and built again from the log"))
    findings.problems += _checkpoint_problems(Path(config.store_path_root_dir))
    if is_repair_unfinished(RealDisk(), config.store_path_root_dir):
        what = "an earlier repair was stopped before its end"
        findings.problems.append(Problem("repair", "triomq/repairing", what, "done to its end"))
    for segment in segments:
        segment.close()
    return findings


def _checkpoint_problems(root: Path) -> Iterator[Problem]:
    file = root / "checkpoint"
    if not file.exists():
        yield Problem("checkpoint", "checkpoint", "it is missing", "written again")
    elif (size := file.stat().st_size) < _CHECKPOINT_BYTES:
        what = f"it has {size} bytes instead of {_CHECKPOINT_BYTES}"
        yield Problem("checkpoint", "checkpoint", what, "moved aside, and written again")


async def repair(
    config: StoreConfig, findings: Findings, unreadable: Collection[str] = (), outdated: Collection[str] = ()
) -> Path | None:
    """Repair what `look` has found; the store must be locked. May be killed at any time, and done again.

    Args:
        config: as given to `look`.
        findings: the result of `look`.
        unreadable: unreadable tables below the store's directory without a readable backup: they are moved aside.
        outdated: unreadable tables with a readable backup: the backup takes their place.

    Returns:
        The folder to which something was copied or moved; None if there was nothing.

    Raises:
        StoreDamaged: as when a broker starts.
        OSError: a file cannot be written.
    """
    root, disk = Path(config.store_path_root_dir), RealDisk()
    aside = _Aside(root)
    note_repair(disk, str(root))
    await disk.run(lambda: _put_tables_aside(root, unreadable, outdated, aside))
    await disk.run(lambda: _put_aside(config, findings, aside))
    await recover_whole(config, disk)
    return aside.folder if aside.folder.exists() else None


class _Aside:
    """A new folder below `triomq/damaged`, with files at the same places as in the store."""

    def __init__(self, root: Path) -> None:
        self._root = root
        folder = root / "triomq" / "damaged"
        number = 1
        while (folder / f"repair-{number}").exists():
            number += 1
        self.folder = folder / f"repair-{number}"

    def move(self, path: Path) -> None:
        """Move a file or directory there."""
        path.rename(self._place(path))

    def copy(self, path: Path) -> None:
        """Copy a file there, on the disk when this returns."""
        RealDisk().write(str(self._place(path)), path.read_bytes())

    def write(self, path: Path, data: bytes) -> None:
        """Write bytes of a file there."""
        RealDisk().write(str(self._place(path)), data)

    def _place(self, path: Path) -> Path:
        place = self.folder / path.relative_to(self._root)
        place.parent.mkdir(parents=True, exist_ok=True)
        return place


def _put_tables_aside(root: Path, unreadable: Collection[str], outdated: Collection[str], aside: _Aside) -> None:
    for name in outdated:
        if (root / name).exists():
            aside.copy(root / name)
        ConfigFile(f"{root}/{name}", RealDisk()).save((root / f"{name}.bak").read_bytes())
    for name in unreadable:
        for file in (root / name, root / f"{name}.bak"):
            if file.exists():
                aside.move(file)


def _put_aside(config: StoreConfig, findings: Findings, aside: _Aside) -> None:
    root = Path(config.store_path_root_dir)
    if findings.tail is not None:
        _keep_tail(list(log_files(Path(config.store_path_commit_log))), findings.tail, root, aside)
    for file in findings.odd_files:
        if file.is_dir():
            aside.move(file)
        else:
            aside.copy(file)  # recovery removes it, and reads the next offset from it
    for (topic, queue_id), number in findings.queues.items():
        _cut_queue(root / "consumequeue" / topic / str(queue_id), number, config.consume_queue_file_bytes, aside)
    if findings.index_is_damaged and (root / "index").is_dir():
        aside.move(root / "index")
    if any(one.kind == "checkpoint" for one in findings.problems) and (root / "checkpoint").exists():
        aside.move(root / "checkpoint")
    if findings.deleted:
        removed = RemovedQueues(ConfigFile(f"{root}/triomq/removedQueues.json", RealDisk()))
        removed.load()
        removed.note(RemovedQueue(*queue, end, findings.log_end) for queue, end in findings.deleted.items())


def _keep_tail(segments: list[Segment], offset: int, root: Path, aside: _Aside) -> None:
    """Copy the bytes after the last record, unless they are all zeros: recovery cuts them off."""
    for segment in segments:
        start = max(offset, segment.base) - segment.base
        if start < segment.size and (data := segment.buffer[start:].rstrip(b"\0")):
            aside.write(root / "commitlog" / segment_name(segment.base + start), data)
        segment.close()


def _cut_queue(folder: Path, number: int, size: int, aside: _Aside) -> None:
    """End a queue before an entry; the entries to be cut off are copied aside first. The newest file is cut first."""
    at = number * ENTRY_BYTES
    files = sorted(folder.iterdir(), reverse=True) if folder.is_dir() else []
    for file in files:
        if not file.name.isdecimal() or int(file.name) + size <= at or file.stat().st_size != size:
            continue
        aside.copy(file)
        if int(file.name) >= at:
            file.unlink()
            continue
        with file.open("r+b") as opened:
            opened.truncate(at - int(file.name))
            opened.truncate(size)
