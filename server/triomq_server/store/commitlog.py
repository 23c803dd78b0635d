"""The commit log: every message once, in order of arrival, in files of fixed size (`CommitLog`; store.md §3, §5).

A record becomes real by its first eight bytes, which are written last: whatever interrupts the process, a record is
found whole or not at all. What follows from a record (queue entry, index, news) is dispatch's business; only the queue
offset is settled here, because it stands in the record.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import threading
from collections.abc import Callable
from functools import lru_cache

from triomq_protocol.checksum import raw_crc32
from triomq_protocol.record import BLANK_MAGIC, MESSAGE_MAGIC
from triomq_server.config import StoreConfig

from .batches import Element, split_batch
from .consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from .disk import Disk
from .messages import AppendResult, AppendStatus, NewBatch, NewRecord
from .raw_file import RawFile
from .segments import Segment, Segments

_log = logging.getLogger(__name__)

BLANK_BYTES = 8
"""Every record leaves this much at the end of its file, so that the end-of-file mark always fits."""
RESERVE_BYTES = 1 << 22
"""How far ahead of the end the log's space is taken from the disk."""
MAX_TOPIC_CHARACTERS = 127
MAX_PROPERTIES_BYTES = 32767
_MAX_OTHER_BYTES = 65536
_CLOCK_STEP_BACK_MS = 1000

_MARK = struct.Struct(">ii")
_PROPERTIES_LENGTH = struct.Struct(">h")
_BORN_HOST_V6 = 0x10
_STORE_HOST_V6 = 0x20
_TRANSACTION_BITS = 0xC
_NO_ENTRY = 0x4  # set in prepared (4) and rolled back (12), clear in plain (0) and committed (8)
_HEADS = {(born, store): struct.Struct(f">iiiiiqqiq{born}sq{store}siqi") for born in (8, 20) for store in (8, 20)}
_HEAD_V4 = _HEADS[8, 8]
_COMMON = ">iq{}sq{}siq"
_TOPICS_REMEMBERED = 10_000

_NO_FILE = mmap.mmap(-1, 1)
_ILLEGAL = AppendResult(AppendStatus.MESSAGE_ILLEGAL)
_PROPERTIES_TOO_LONG = AppendResult(AppendStatus.PROPERTIES_SIZE_EXCEEDED)


def enters_queue(sys_flag: int) -> bool:
    """Whether a record gets a queue entry: plain and committed ones do, prepared and rolled back ones do not."""
    return not sys_flag & _NO_ENTRY


@lru_cache(4)
def _batch_head(common_bytes: int) -> struct.Struct:
    """A record's first part with what a batch has in common as one field of so many bytes."""
    return struct.Struct(f">iiiiiqq{common_bytes}si")


def _nobody() -> None:
    """Nobody prepares room ahead: appends fetch it themselves."""


def _head_for(born_host: bytes, store_host: bytes, sys_flag: int) -> tuple[struct.Struct, int]:
    """The layout of a record's first part and its sysFlag, from the kinds of its two addresses."""
    sys_flag &= ~(_BORN_HOST_V6 | _STORE_HOST_V6)
    if len(born_host) != 8:
        sys_flag |= _BORN_HOST_V6
    if len(store_host) != 8:
        sys_flag |= _STORE_HOST_V6
    return _HEADS[len(born_host), len(store_host)], sys_flag


class CommitLog:
    """The log's files and its end.

    Attributes:
        min_offset, max_offset: first byte kept, and first byte not written yet.
        store_timestamp: of the last record appended, ms.
        room_wanted: called (at most once per preparation) when space should be prepared ahead, see `prepare`.
    """

    def __init__(self, config: StoreConfig, disk: Disk, clock: Callable[[], int]) -> None:
        self._config = config
        self._clock = clock
        self.segments = Segments(disk, config.store_path_commit_log, config.mapped_file_size_commit_log)
        self.min_offset = 0
        self.max_offset = 0
        self.store_timestamp = 0
        self.room_wanted: Callable[[], None] = _nobody
        self._current: Segment | None = None
        self._buffer: mmap.mmap = _NO_FILE
        self._position = 0
        self._limit = 0  # up to here an append goes ahead without asking _make_room
        self._prepared: Segment | None = None
        self._preparing = threading.Lock()
        self._topics: dict[str, bytes] = {}
        self._raw = RawFile()

    # ---- appending

    def append(self, r: NewRecord, queue: ConsumeQueue, tags_code: int, delay_ms: int = -1) -> AppendResult:
        """Write one record and its entry in `queue`. OSError when the disk is full; then nothing has changed.

        The entry carries `tags_code`, or the time of delivery when there is a delay.
        """
        body = r.body
        properties = r.properties
        n = len(body)
        p = len(properties)
        topic = self._topics.get(r.topic) or self._encode_topic(r.topic)
        born_host = r.born_host
        store_host = r.store_host
        sys_flag = r.sys_flag
        if len(born_host) + len(store_host) == 16 and not sys_flag & (_BORN_HOST_V6 | _STORE_HOST_V6):
            head = _HEAD_V4
        else:
            head, sys_flag = _head_for(born_host, store_host, sys_flag)
        head_bytes = head.size
        size = head_bytes + n + len(topic) + 2 + p
        if p > MAX_PROPERTIES_BYTES:
            return _PROPERTIES_TOO_LONG
        if not topic or n > self._config.max_message_size or size + BLANK_BYTES > self.segments.size:
            return _ILLEGAL

        if self._position + size + BLANK_BYTES > self._limit:
            self._make_room(size)
        if queue.position >= queue.limit:
            queue.make_room()
        now = self._clock()
        if now < self.store_timestamp:
            now = self._now()
        buffer = self._buffer
        at = self._position
        offset = self.max_offset
        visible = not sys_flag & _NO_ENTRY
        queue_offset = queue.max_offset if visible else 0
        head.pack_into(
            buffer, at, 0, 0, raw_crc32(body) & 0x7FFFFFFF, r.queue_id, r.flag, queue_offset, offset, sys_flag, r.born_timestamp, born_host,
            now, store_host, r.reconsume_times, r.prepared_transaction_offset, n,
        )  # fmt: skip
        tail = at + head_bytes
        buffer[tail : tail + n] = body
        tail += n
        end = at + size
        buffer[tail:end] = topic + _PROPERTIES_LENGTH.pack(p) + properties
        _MARK.pack_into(buffer, at, size, MESSAGE_MAGIC)
        self._position = end
        self.max_offset = offset + size
        self.store_timestamp = now
        if visible:
            if delay_ms >= 0:
                tags_code = now + delay_ms
            UNIT.pack_into(queue.buffer, queue.position, offset, size, tags_code)
            queue.position += UNIT_BYTES
            queue.max_offset = queue_offset + 1
            queue.max_physical_offset = offset + size
        return AppendResult(AppendStatus.PUT_OK, offset, size, offset + size, queue_offset, now)

    def append_batch(self, b: NewBatch, queue: ConsumeQueue) -> tuple[AppendResult, list[Element]]:
        """Write all elements of a batch next to each other, and their queue entries (store.md §7).

        Returns the elements too, for whoever has to know their keys. Raises BodyError for a malformed batch, OSError for a
        full disk.
        """
        topic = self._topics.get(b.topic) or self._encode_topic(b.topic)
        if not topic or b.sys_flag & _TRANSACTION_BITS or len(b.body) > self._config.max_message_size:
            return _ILLEGAL, []
        head, sys_flag = _head_for(b.born_host, b.store_host, b.sys_flag)
        elements, total, longest = split_batch(b.body, b.properties)
        if longest > MAX_PROPERTIES_BYTES:
            return _PROPERTIES_TOO_LONG, []
        overhead = head.size + len(topic) + 2
        total += overhead * len(elements)
        if not elements or total + BLANK_BYTES > self.segments.size:
            return _ILLEGAL, []

        if self._position + total + BLANK_BYTES > self._limit:
            self._make_room(total)
        first = queue_offset = queue.max_offset
        start = offset = self.max_offset
        now = self._now()
        # What all elements have in common stands between the log offset and the length of the body.
        common = struct.pack(
            _COMMON.format(len(b.born_host), len(b.store_host)),
            sys_flag, b.born_timestamp, b.born_host, now, b.store_host, b.reconsume_times, 0,
        )  # fmt: skip
        pack_head, pack_length, checksum = _batch_head(len(common)).pack, _PROPERTIES_LENGTH.pack, raw_crc32
        queue_id = b.queue_id
        parts: list[bytes] = []
        units: list[int] = []
        offsets: list[int] = []
        length_before, before_properties = -1, b""
        for flag, body, properties, _, _, code in elements:
            n, p = len(body), len(properties)
            size = overhead + n + p
            if p != length_before:
                length_before, before_properties = p, topic + pack_length(p)
            parts += (
                pack_head(
                    size, MESSAGE_MAGIC, checksum(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, offset, common, n
                ),
                body,
                before_properties,
                properties,
            )
            units += (offset, size, code)
            offsets.append(offset)
            queue_offset += 1
            offset += size
        # Entries first: a disk that is too full for them is found out before there is anything in the log. Should the
        # process be killed in between, recovery drops entries of records that are not there.
        queue.push_all(units, offset)
        data = b"".join(parts)
        at, end = self._position, self._position + total
        self._buffer[at + _MARK.size : end] = data[_MARK.size :]
        self._buffer[at : at + _MARK.size] = data[: _MARK.size]
        self._position = end
        self.max_offset = offset
        self.store_timestamp = now
        return AppendResult(AppendStatus.PUT_OK, start, total, offset, first, now, tuple(offsets)), elements

    def append_raw(self, data: bytes | memoryview, offset: int) -> None:
        """Write a master's bytes at the log's end (ha.md §4.1). ValueError if they do not fit there, OSError if full.

        An empty log begins at `offset`, which then must be the start of a file. After an OSError the log ends behind what
        has been written.
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
        """Make the file of a master's bytes for `offset` current; its descriptor, -1 where it is not a system's file.

        They go to `raw_position` of it; `raw_written` then says how many have come. Errors as with `append_raw`.
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
            # Written through the descriptor, bytes need no room taken ahead, and no page of the map: that is three times
            # as fast as copying into the map of a fresh file. Own appends will reserve their room anew.
            self._current.forget_reserved()
        return descriptor

    @property
    def raw_position(self) -> int:
        """Where in the current file the next byte goes."""
        return self._position

    def raw_written(self, size: int) -> None:
        """So many bytes have been put at `raw_position`."""
        self._position += size
        self.max_offset += size

    # ---- room to write

    def _make_room(self, size: int) -> None:
        """Let `size` bytes and the end-of-file mark fit at `_position`, in this file or the next. OSError if full."""
        current = self._current
        if current is None:
            self._enter(self.segments.build(0, RESERVE_BYTES), new=True)
        elif self._position + size + BLANK_BYTES > current.size:
            following = self._next_segment()
            try:
                following.reserve(size + BLANK_BYTES)
                current.position = self._position
                current.reserve(self._position + BLANK_BYTES)
            except OSError:
                self._prepared = following
                raise
            if self._position < current.size:
                rest = current.size - self._position
                _MARK.pack_into(self._buffer, self._position, rest, BLANK_MAGIC)
                self._position += rest
                self.max_offset += rest
            self._enter(following, new=True)
        self._reserve(self._position + size + BLANK_BYTES)

    def _reserve(self, end: int) -> None:
        """Reserve the current file up to `end`, and set the limit at which to ask again."""
        current = self._current
        assert current is not None
        if end > current.reserved:
            current.position = self._position
            current.reserve(end + RESERVE_BYTES)
        # Half of what is reserved may be used up before the rest is asked for, so that it comes in good time.
        early = current.reserved - RESERVE_BYTES // 2
        if end <= early and self._limit < early:
            self._limit = early
        else:
            self._limit = current.reserved
            self.room_wanted()

    def _next_segment(self, reserve: int = RESERVE_BYTES) -> Segment:
        current = self._current
        assert current is not None
        with (
            self._preparing
        ):  # a preparation under way is awaited: it is nearly done, and must not create the file twice
            segment, self._prepared = self._prepared, None
            if segment is None or segment.base != current.end:
                segment = self.segments.build(current.end, reserve)
        return segment

    def _enter(self, segment: Segment, *, new: bool = False) -> None:
        """Make this the file that is written."""
        self.settle()
        if new:
            self.segments.add(segment)
        self._current = segment
        self._buffer = segment.buffer
        self._position = segment.position
        self._limit = 0

    def prepare(self) -> None:
        """Take room ahead of the end: space in this file, or the next file. Blocks; for a worker thread. OSError."""
        current = self._current
        if current is None:
            return
        if current.reserved < current.size:
            current.reserve_ahead(RESERVE_BYTES)
        else:
            with self._preparing:
                if self._prepared is None and current is self._current:
                    self._prepared = self.segments.build(current.end, RESERVE_BYTES)

    # ---- the end

    def settle(self) -> None:
        """Let the current segment know how much is written (the hot path keeps that in attributes)."""
        if self._current is not None:
            self._current.position = self._position
            self._current.store_timestamp = self.store_timestamp

    def truncate(self, offset: int) -> list[Segment]:
        """End the log at `offset`, zeroing what lies behind; returns the files deleted."""
        self.settle()
        gone = self.segments.truncate(offset)
        self.rest_at_end()
        return gone

    def rest_at_end(self) -> None:
        """Take the segments' word for where the log begins and ends (after loading, recovery, deletion)."""
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
        """Unmap everything; a file prepared ahead but never used is deleted."""
        self.settle()
        self._raw.close()
        self.segments.close()
        with self._preparing:
            if self._prepared is not None:
                self._prepared.close()
                self.segments.discard(self._prepared)
                self._prepared = None

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

    def dirty(self) -> list[tuple[Segment, int]]:
        """Segments not wholly on disk, oldest first, with the position up to which they are written."""
        self.settle()
        found = []
        for segment in reversed(self.segments.items):
            if segment.flushed < segment.position:
                found.append((segment, segment.position))
            elif segment.position:
                break  # only the last file may be empty
        return found[::-1]

    def _encode_topic(self, topic: str) -> bytes:
        """Length byte and name; empty when the name is too long."""
        name = topic.encode()
        if not 0 < len(name) <= MAX_TOPIC_CHARACTERS:
            return b""
        if len(self._topics) >= _TOPICS_REMEMBERED:
            self._topics.clear()
        encoded = self._topics[topic] = bytes([len(name)]) + name
        return encoded

    def _now(self) -> int:
        now = self._clock()
        if now < self.store_timestamp <= now + _CLOCK_STEP_BACK_MS:
            return self.store_timestamp  # a small step back must not unsort the times that lookups search
        return now
