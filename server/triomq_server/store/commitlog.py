"""The commit log: every message once, in order of arrival, in files of fixed size (docs/protocol/store.md §3, §5).

A record's first eight bytes are written last, so that a killed process leaves either a whole record or none. An append
also writes the record's consume queue entry, because it has just assigned the queue offset. `dispatch` does the rest:
index and arrivals. The layout and encoding of records are in `triomq_protocol.record`. Answers to `CommitLog`.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import threading
from collections.abc import Callable, Generator
from typing import NamedTuple

from triomq_protocol.errors import BodyError
from triomq_protocol.names import MAX_PROPERTIES_BYTES
from triomq_protocol.record.batch import Batch, Element, split_batch, split_in_slices
from triomq_protocol.record.encode import (
    EncodedBatch,
    UnplacedBatch,
    encode_batch,
    encode_topic,
    head_for,
    write_batch,
    write_blank,
    write_record,
)
from triomq_protocol.record.layout import (
    ANY_HOST_V6,
    HEAD_V4,
    IPV4_HOST_BYTES,
    MARK,
    PROPERTIES_LENGTH,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
)
from triomq_server.config import StoreConfig
from triomq_server.disk import Disk
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.store.entry_layout import ENTRY, ENTRY_BYTES
from triomq_server.store.files.raw_file import RawFile
from triomq_server.store.files.segments import Segment, Segments, Unflushed
from triomq_server.store.values import AppendResult, AppendStatus, NewBatch, NewRecord

_log = logging.getLogger(__name__)

BLANK_BYTES = MARK.size
"""Bytes that every record leaves free at the end of its file, so that the end-of-file mark always fits."""
RESERVE_BYTES = 1 << 22
"""How far ahead of the log's end space is reserved on the disk."""
RESERVE_STEP_BYTES = RESERVE_BYTES // 8
"""As much is reserved at a time. An append that needs space waits for the step that is under way: all at once would be
what the slowest sends of a full load wait for."""
CLOCK_STEP_BACK_MS = 1000
"""After a smaller step back of the wall clock, records have the time of the last one before it, until that has come."""

_NO_ENTRY = TRANSACTION_PREPARED
"""The bit is set in prepared and rolled back records, and clear in plain and committed ones."""
_TOPICS_REMEMBERED = 10_000

_NO_FILE = mmap.mmap(-1, 1)
_PUT_OK = AppendStatus.PUT_OK
_LENGTH_BYTES = PROPERTIES_LENGTH.size
_ILLEGAL = AppendResult(AppendStatus.MESSAGE_ILLEGAL)
_PROPERTIES_TOO_LONG = AppendResult(AppendStatus.PROPERTIES_SIZE_EXCEEDED)

_SLICE_BYTES = 1 << 15
"""Of a large batch's body, or of its records, that are done at a time."""
_SLICE_ELEMENTS = 1 << 11
MOST_BATCH_MESSAGES = 1 << 16
"""A batch is written in one go, since readers must not see a part of it; one of this size takes 20 ms."""


def enters_queue(sys_flag: int) -> bool:
    """Whether a record gets a queue entry: plain and committed ones do, prepared and rolled back ones do not."""
    return not sys_flag & _NO_ENTRY


def _ignore(*_: int) -> None:
    """The default of `CommitLog.space_wanted`: appends reserve the space they need. And of `time_went_back`."""


class PreparedBatch(NamedTuple):
    """A large batch whose records lack only their place in queue and log.

    Attributes:
        records: as they will be in the log.
        total_bytes: of all records.
        elements: for the index of their keys.
        last_of_code: the last element with each tags code, counted from 0.
    """

    records: UnplacedBatch
    total_bytes: int
    elements: list[Element]
    last_of_code: dict[int, int]


class CommitLog:
    """The log's files and its end.

    Attributes:
        min_offset, max_offset: first byte kept, and first byte not written yet.
        store_timestamp: of the last record appended, ms.
        time_went_back: called with the store time, ms, of a record that is about to be appended behind later ones.
        space_wanted: called (at most once per preparation) when space should be prepared ahead, see `prepare`.
    """

    def __init__(self, config: StoreConfig, disk: Disk, clock: Callable[[], int]) -> None:
        self._config = config
        self._clock = clock
        self.segments = Segments(disk, config.store_path_commit_log, config.mapped_file_size_commit_log)
        self._max_append_bytes = self.segments.size - BLANK_BYTES
        self.min_offset = 0
        self.max_offset = 0
        self.store_timestamp = 0
        self.time_went_back: Callable[[int], None] = _ignore
        self.space_wanted: Callable[[], None] = _ignore
        self._current: Segment | None = None
        self._buffer: mmap.mmap = _NO_FILE
        self._position = 0
        self._limit = 0  # an append that ends beyond this calls _make_space first
        self._prepared: Segment | None = None
        self._preparing = threading.Lock()
        self._topics: dict[str, bytes] = {}
        self._raw = RawFile()

    # ---- appending

    def append(self, r: NewRecord, queue: ConsumeQueue, tags_code: int, delay_ms: int = -1) -> AppendResult:
        """Write one record and its entry in `queue`. OSError when the disk is full; then nothing has changed.

        The entry carries `tags_code`, or the time of delivery when there is a delay.
        """
        body_bytes = len(r.body)
        properties_bytes = len(r.properties)
        topic = self._topics.get(r.topic) or self._encode_topic(r.topic)
        sys_flag = r.sys_flag
        if sys_flag & ANY_HOST_V6 or len(r.born_host) != IPV4_HOST_BYTES or len(r.store_host) != IPV4_HOST_BYTES:
            head, sys_flag = head_for(r.born_host, r.store_host, sys_flag)
        else:
            head = HEAD_V4
        size = head.size + body_bytes + len(topic) + _LENGTH_BYTES + properties_bytes
        if properties_bytes > MAX_PROPERTIES_BYTES:
            return _PROPERTIES_TOO_LONG
        if not topic or body_bytes > self._config.max_message_size or size > self._max_append_bytes:
            return _ILLEGAL

        if self._position + size + BLANK_BYTES > self._limit:
            self._make_space(size)
        if queue.position >= queue.limit:
            queue.make_space()
        now = self._clock()
        if now < self.store_timestamp:
            now = self._now()
        offset = self.max_offset
        end_offset = offset + size
        visible = not sys_flag & _NO_ENTRY
        queue_offset = queue.max_offset if visible else 0
        at = self._position
        end = at + size
        write_record(self._buffer, at, end, head, sys_flag, topic, queue_offset, offset, now, r)
        self._position = end
        self.max_offset = end_offset
        self.store_timestamp = now
        if visible:
            if delay_ms >= 0:
                tags_code = now + delay_ms
            ENTRY.pack_into(queue.buffer, queue.position, offset, size, tags_code)
            queue.position += ENTRY_BYTES
            queue.max_offset = queue_offset + 1
            queue.max_physical_offset = end_offset
        return AppendResult(_PUT_OK, offset, size, end_offset, queue_offset, now)

    def append_batch(self, b: NewBatch, queue: ConsumeQueue) -> tuple[AppendResult, list[Element]]:
        """Write all elements of a batch next to each other, and their queue entries (docs/protocol/store.md §7).

        Returns the elements too, for the index of their keys. Raises BodyError for a malformed batch, OSError for a
        full disk.
        """
        topic = self._topics.get(b.topic) or self._encode_topic(b.topic)
        if self._is_refused(b, topic):
            return _ILLEGAL, []
        head, sys_flag = head_for(b.born_host, b.store_host, b.sys_flag)
        batch = split_batch(b.body, b.properties)
        elements = batch.elements
        total = self._records_bytes(batch, head.size + len(topic))
        if isinstance(total, AppendResult):
            return total, []
        self._make_batch_space(total)
        now = self._now()
        encoded = encode_batch(elements, b, sys_flag, topic, queue.max_offset, self.max_offset, now)
        return self._write_batch(encoded, total, queue, now), elements

    def prepare_batch(self, b: NewBatch) -> Generator[None, None, PreparedBatch | AppendResult]:
        """Do for a large batch, in slices, all that does not depend on its place; `append_prepared` does the rest.

        Returns an AppendResult if the batch is refused. Raises BodyError for a malformed batch.
        """
        topic = self._topics.get(b.topic) or self._encode_topic(b.topic)
        if self._is_refused(b, topic):
            return _ILLEGAL
        head, sys_flag = head_for(b.born_host, b.store_host, b.sys_flag)
        batch = yield from split_in_slices(b.body, b.properties, _SLICE_BYTES)
        if len(batch.elements) > MOST_BATCH_MESSAGES:
            text = f"{len(batch.elements)} messages; at most {MOST_BATCH_MESSAGES} can be stored at once"
            raise BodyError("batch", text)
        total = self._records_bytes(batch, head.size + len(topic))
        if isinstance(total, AppendResult):
            return total
        records = UnplacedBatch(b, sys_flag, topic)
        yield from records.add(batch.elements, _SLICE_ELEMENTS, 8 * _SLICE_BYTES)
        last_of_code: dict[int, int] = {}
        for first in range(0, len(records.codes), 8 * _SLICE_ELEMENTS):
            last_of_code |= {
                code: number for number, code in enumerate(records.codes[first : first + 8 * _SLICE_ELEMENTS], first)
            }
            yield
        yield from self._reserve_in_slices(total + BLANK_BYTES)
        return PreparedBatch(records, total, batch.elements, last_of_code)

    def _reserve_in_slices(self, size: int) -> Generator[None, None, None]:
        """Reserve space for this many bytes where they are likely to go, in steps. OSError if the disk is full."""
        if self._current is None:
            self._make_space(0)
        segment = self._current
        assert segment is not None
        end = self._position + size
        if end > segment.size:
            segment = self._next_segment()
            end = size
        while 0 < segment.reserved < min(end, segment.size):
            segment.reserve_ahead(RESERVE_STEP_BYTES)
            yield

    def append_prepared(self, prepared: PreparedBatch, queue: ConsumeQueue) -> AppendResult:
        """Write what `prepare_batch` has made, as `append_batch` does. OSError for a full disk."""
        self._make_batch_space(prepared.total_bytes)
        now = self._now()
        encoded = prepared.records.place(queue.max_offset, self.max_offset, now)
        return self._write_batch(encoded, prepared.total_bytes, queue, now)

    def _is_refused(self, b: NewBatch, topic: bytes) -> bool:
        return not topic or bool(b.sys_flag & TRANSACTION_MASK) or len(b.body) > self._config.max_message_size

    def _records_bytes(self, batch: Batch, fixed_bytes: int) -> int | AppendResult:
        """The size of a batch's records, or why it is refused."""
        if batch.longest_properties_bytes > MAX_PROPERTIES_BYTES:
            return _PROPERTIES_TOO_LONG
        total = batch.total_bytes + (fixed_bytes + PROPERTIES_LENGTH.size) * len(batch.elements)
        return total if batch.elements and total <= self._max_append_bytes else _ILLEGAL

    def _make_batch_space(self, size: int) -> None:
        if self._position + size + BLANK_BYTES > self._limit:
            self._make_space(size)

    def _write_batch(self, encoded: EncodedBatch, total: int, queue: ConsumeQueue, now: int) -> AppendResult:
        _, entries, offsets = encoded
        first, start = queue.max_offset, self.max_offset
        # Entries first: if the disk is too full for them, nothing is in the log yet. If the process is killed in
        # between, recovery drops entries of records that are not there.
        queue.push_all(entries, start + total)
        write_batch(self._buffer, self._position, encoded)
        self._position += total
        self.max_offset = start + total
        self.store_timestamp = now
        return AppendResult(_PUT_OK, start, total, start + total, first, now, tuple(offsets))

    def begin_run(self) -> tuple[mmap.mmap, int, int, int, int]:
        """For records that are encoded elsewhere: file, position, limit, log offset and store time of the next one."""
        return self._buffer, self._position, self._limit, self.max_offset, self._now()

    def end_run(self, size_bytes: int, timestamp: int) -> None:
        """So many bytes of records with this store time have been written at the place that `begin_run` named."""
        self._position += size_bytes
        self.max_offset += size_bytes
        self.store_timestamp = timestamp

    def append_raw(self, data: bytes | memoryview, offset: int) -> None:
        """Write a master's bytes at the log's end (docs/protocol/ha.md §4.1).

        An empty log begins at `offset`, which must then be the start of a file. After an OSError the log ends after the
        bytes that were written.

        Raises:
            ValueError: the bytes do not continue the log.
            OSError: the disk is full.
        """
        descriptor = self.raw_place(offset, len(data))
        if descriptor < 0:
            end = self._position + len(data)
            if end > self._limit:
                self._reserve(end)
            self._buffer[self._position : end] = data
            self.raw_written(len(data))
            return
        size = len(data)
        while size:
            written = os.pwrite(descriptor, data, self._position)
            self.raw_written(written)
            size -= written
            data = data[written:] if size else data

    def raw_place(self, offset: int, size: int) -> int:
        """Make the file for a master's bytes at `offset` current; returns its descriptor, -1 if it has none.

        The bytes go to `raw_position` of the file; call `raw_written` afterwards. Raises as `append_raw`.
        """
        if self._current is None:
            if offset % self.segments.size:
                raise ValueError(
                    f"an empty log cannot begin at {offset}: not the start of a file of {self.segments.size} bytes"
                )
            self._enter(self.segments.build(offset, 0), new=True)
            self.min_offset = self.max_offset = offset
        if offset != self.max_offset:
            raise ValueError(f"bytes for offset {offset} cannot be put at the log's end {self.max_offset}")
        if self._position == self.segments.size and size:
            self._enter(self._next_segment(0), new=True)
        if self._position + size > self.segments.size:
            raise ValueError(f"{size} bytes at {offset} would cross the end of a file of {self.segments.size} bytes")
        assert self._current is not None
        descriptor = self._raw.of(self._current)
        if descriptor >= 0:
            # Bytes written through the descriptor need no reserved space and touch no page of the map. That is three
            # times as fast as copying into the map of a new file. Own appends will reserve their space again.
            self._current.forget_reserved()
        return descriptor

    @property
    def raw_position(self) -> int:
        """The position in the current file at which the next byte is written."""
        return self._position

    def raw_written(self, size: int) -> None:
        """Advance the log's end by the number of bytes that were written at `raw_position`."""
        self._position += size
        self.max_offset += size

    # ---- space to write

    def _make_space(self, size: int) -> None:
        """Make `size` bytes and the end-of-file mark fit at `_position`, in this file or the next. OSError if full."""
        current = self._current
        if current is None:
            self._enter(self.segments.build(0, RESERVE_BYTES), new=True)
        elif self._position + size + BLANK_BYTES > current.size:
            following = self._next_segment()
            following.reserve(size + BLANK_BYTES)
            current.position = self._position
            current.reserve(self._position + BLANK_BYTES)
            if self._position < current.size:
                rest = current.size - self._position
                write_blank(self._buffer, self._position, rest)
                self._position += rest
                self.max_offset += rest
            self._enter(following, new=True)
        self._reserve(self._position + size + BLANK_BYTES)

    def provide_space(self, size: int) -> bool:
        """Let `size` bytes and the end-of-file mark fit between `begin_run` and `end_run`; false if this file is too full
        for them. OSError."""
        end = self._position + size + BLANK_BYTES
        if self._current is None or end > self._current.size:
            return False
        if end > self._limit:
            self._reserve(end)
        return True

    def _reserve(self, end: int) -> None:
        """Reserve the current file up to `end`, and set the limit of the next call."""
        current = self._current
        assert current is not None
        if end > current.reserved:
            current.position = self._position
            current.reserve(end + RESERVE_STEP_BYTES)
        # More space is requested as soon as less than half of RESERVE_BYTES is left, so that appends need not wait for it.
        early = current.reserved - RESERVE_BYTES // 2
        if end <= early and self._limit < early:
            self._limit = early
        else:
            self._limit = current.reserved
            self.space_wanted()

    def _next_segment(self, reserve: int = RESERVE_BYTES) -> Segment:
        """The file behind the current one. It stays prepared until it is entered: a preparation that begins in the meantime
        must not make it again, since what is prepared and never used is deleted."""
        current = self._current
        assert current is not None
        with self._preparing:  # waits for a preparation under way, so that the file is not created twice
            segment = self._prepared
            if segment is None or segment.base != current.end:
                segment = self._prepared = self.segments.build(current.end, reserve)
        return segment

    def _enter(self, segment: Segment, *, new: bool = False) -> None:
        """Make this the file that appends write to."""
        self.publish_position()
        if new:
            self.segments.add(segment)
        self._current = segment
        if segment is self._prepared:
            self._prepared = None
        self._buffer = (
            segment.buffer
        )  # kept: should its file give up the map, this one stays, and another is the same bytes
        self._position = segment.position
        self._limit = 0

    def prepare(self) -> None:
        """Reserve space ahead of the end, in this file or the next. Blocks: for a worker thread. OSError if full."""
        current = self._current
        if current is None:
            return
        if current.reserved < current.size:
            for _ in range(RESERVE_BYTES // RESERVE_STEP_BYTES):
                current.reserve_ahead(RESERVE_STEP_BYTES)
        else:
            with self._preparing:
                if self._prepared is None and current is self._current:
                    self._prepared = self.segments.build(current.end, RESERVE_BYTES)

    # ---- the end

    def publish_position(self) -> None:
        """Update the current segment's position and time, which the hot path keeps in attributes of this object."""
        if self._current is not None:
            self._current.position = self._position
            self._current.store_timestamp = self.store_timestamp

    def truncate(self, offset: int) -> list[Segment]:
        """End the log at `offset` and zero everything after it; returns the deleted files. OSError; then the log ends
        where the disk has refused."""
        with self._preparing:  # a preparation already under way continues from the old end of the log
            self.publish_position()
            # The newest file first: a start that finds a later file would report the deleted ones before it as missing.
            self._discard_prepared()
            try:
                gone = self.segments.truncate(offset)
            finally:  # or the next append would go to a file that has been deleted
                self.reset_to_segments()
        return gone

    def reset_to_segments(self) -> None:
        """Derive the log's start and end from the segments (after loading, recovery, deletion)."""
        items = self.segments.items
        self._current = None
        self._buffer, self._position, self._limit = _NO_FILE, 0, 0
        if items:
            self._enter(items[-1])
        self.min_offset = max(self.segments.min_offset, 0)
        self.max_offset = self.segments.max_offset

    def delete_first(self) -> Segment:
        """Delete the oldest file; never the last one."""
        assert len(self.segments.items) > 1
        segment = self.segments.delete_first()
        self.min_offset = self.segments.min_offset
        return segment

    def close(self) -> None:
        """Unmap everything; a file prepared ahead but never used is deleted, by the next start if the disk refuses."""
        self.publish_position()
        self._raw.close()
        self.segments.close()
        with self._preparing, contextlib.suppress(OSError):
            self._discard_prepared()

    def _discard_prepared(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            self.segments.discard(prepared)

    # ---- reading

    def select(self, offset: int, size: int) -> memoryview | None:
        """A view of these bytes if all of them are written and in one file."""
        if offset < self.min_offset or offset + size > self.max_offset or size <= 0:
            return None
        segment = self.segments.find(offset)
        if segment is None or offset + size > segment.end:
            return None
        at = offset - segment.base
        return memoryview(segment.buffer)[at : at + size]

    def rest_of_file(self, offset: int, max_bytes: int) -> memoryview | None:
        """A view from `offset` on, up to the end of its file's written part; None at or outside of the log's ends."""
        if not self.min_offset <= offset < self.max_offset:
            return None
        segment = self.segments.find(offset)
        if segment is None:
            return None
        return self.select(offset, min(max_bytes, segment.end - offset, self.max_offset - offset))

    def open_file(self, offset: int) -> int | None:
        """A new descriptor for reading the file that holds this offset; None if there is none. OSError."""
        segment = self.segments.find(offset)
        return None if segment is None else segment.file.open_descriptor()

    def dirty(self) -> list[Unflushed]:
        """Segments that are not wholly on disk, oldest first, each with its written position."""
        self.publish_position()
        found = []
        for segment in reversed(self.segments.items):
            if segment.flushed < segment.position:
                found.append(segment.unflushed())
            elif segment.position:
                break  # only the last file may be empty
        return found[::-1]

    def _encode_topic(self, topic: str) -> bytes:
        """`encode_topic`, remembered."""
        encoded = encode_topic(topic)
        if encoded:
            if len(self._topics) >= _TOPICS_REMEMBERED:
                self._topics.clear()
            self._topics[topic] = encoded
        return encoded

    def _now(self) -> int:
        now = self._clock()
        if now < self.store_timestamp:
            if self.store_timestamp <= now + CLOCK_STEP_BACK_MS:
                return self.store_timestamp  # a small step back must not unsort the times that lookups search
            self.time_went_back(now)
        return now
