"""The `checkpoint` file: the store times up to which log, queues and index are on disk (`StoreCheckpoint`;
docs/protocol/store.md §11.1), and, unlike RocketMQ's, the log offsets and the number of queue entries."""

from __future__ import annotations

import logging
import struct

from triomq_server.disk import Disk

_log = logging.getLogger(__name__)

_TIMES = struct.Struct(">qqq")
_COPY_AT = 64
"""Position of a second copy of the times, where RocketMQ neither reads nor writes. The offsets follow."""
_OFFSETS = struct.Struct(">qq")
_OFFSETS_AT = _COPY_AT + _TIMES.size
_ENTRIES = struct.Struct(">q")
_ENTRIES_AT = _OFFSETS_AT + _OFFSETS.size
_FILE_BYTES = 4096
_MARGIN_MS = 3000


class Checkpoint:
    """Three store times in ms: all records up to each are on disk in the respective files. Two log offsets state the same
    of log and queues exactly.

    After a crash, a start assumes that everything before a log file is on disk if the file's first record is not newer
    than the checkpoint. So when the log's times go back, the checkpoint has to go back first. A power failure may come
    before that, and leave a checkpoint that is too new although it was not forced to the disk. Therefore the offsets
    decide, unless RocketMQ has written the file since.

    Attributes:
        log_offset: the log before this offset is on the disk; 0 if that is not known.
        logics_offset: records before this offset have their queue entries, on the disk or not.
        queues_offset: as `logics_offset`, with the entries on the disk; 0 if that is not known.
        physic_timestamp: of the log.
        logics_timestamp: records up to this time have their queue entries, on the disk or not.
        queues_timestamp: as `logics_timestamp`, with the entries on the disk; this is the value in the file.
        index_timestamp: of the index files that are full.
        queue_entries: the sum of the numbers at which the queues ended when the store was closed; 0 if that is not known,
            as while it is open.
        steps_back: how often the log's times have gone back.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self.physic_timestamp = 0
        self.logics_timestamp = 0
        self.queues_timestamp = 0
        self.index_timestamp = 0
        self.queue_entries = 0
        self.steps_back = 0
        self.log_offset = 0
        self.logics_offset = 0
        self.queues_offset = 0
        self._in_file = (0, 0, 0)
        self._offsets_in_file = (0, 0)

    def load(self) -> None:
        """Read the file; a missing or damaged one counts as all zero, which makes recovery start at the first file.

        Of each time and its copy the earlier one counts: a flipped bit must not make recovery begin too late. They also
        differ when RocketMQ has written the file last, which does not know of the copy.
        """
        try:
            data = self._disk.read(self._path)
        except FileNotFoundError:
            return
        if len(data) < _FILE_BYTES:
            _log.error("%s is damaged: %d bytes instead of %d; not used", self._path, len(data), _FILE_BYTES)
            return
        times, copies = _TIMES.unpack_from(data), _TIMES.unpack_from(data, _COPY_AT)
        offsets = _OFFSETS.unpack_from(data, _OFFSETS_AT) if times == copies else (0, 0)
        if any(copies) and times != copies:
            _log.warning("%s: the times and their copies differ (%s, %s); the earlier count", self._path, times, copies)
            times = tuple(map(min, times, copies))
        if min(times) < 0:
            _log.error("%s is damaged: it has negative times; not used", self._path)
            return
        self._in_file = times[0], times[1], times[2]
        self.physic_timestamp, self.logics_timestamp, self.index_timestamp = self._in_file
        self.queues_timestamp = self.logics_timestamp
        self._offsets_in_file = max(0, offsets[0]), max(0, offsets[1])
        self.log_offset, self.queues_offset = self._offsets_in_file
        self.logics_offset = self.queues_offset
        self.queue_entries = _ENTRIES.unpack_from(data, _ENTRIES_AT)[0] if times == copies else 0

    def log_cut(self, end: int) -> None:
        """The log ends at this offset now: the checkpoint covers nothing behind it."""
        self.log_offset = min(self.log_offset, end)
        self.logics_offset = min(self.logics_offset, end)
        self.queues_offset = min(self.queues_offset, end)

    def went_back(self, timestamp: int) -> None:
        """A record with this store time, in ms, follows records with later times: the clock was set back, or a new master's
        clock is behind.

        Until the queues have been flushed once more, the times prove nothing, since an earlier record may have any of them.
        """
        self.steps_back += 1
        self.physic_timestamp = min(self.physic_timestamp, timestamp)
        self.logics_timestamp = min(self.logics_timestamp, timestamp)
        self.queues_timestamp = min(self.queues_timestamp, timestamp)
        self.index_timestamp = min(self.index_timestamp, timestamp)

    def index_cut(self, end_timestamp: int | None) -> None:
        """Entries are about to be removed from index files whose earliest end time, in ms, is given; None: from none.

        After a power failure such a file may be back in its old, full state. It must not count as known to be on the
        disk, because it would hide the entries that were made in place of the removed ones.
        """
        if end_timestamp is not None:
            self.index_timestamp = min(self.index_timestamp, max(0, end_timestamp - 1))

    @property
    def is_too_high(self) -> bool:
        """Whether the file covers more than is known now: everything before a log file that begins with the lower
        times might then count as being on disk."""
        physic, queues, index = self._in_file
        log_offset, queues_offset = self._offsets_in_file
        return (
            min(physic, queues) > min(self.physic_timestamp, self.queues_timestamp)
            or index > self.index_timestamp
            or log_offset > self.log_offset
            or queues_offset > self.queues_offset
        )

    def encode(self) -> bytes:
        """The file's bytes."""
        offsets = self.log_offset, self.queues_offset
        times = self.physic_timestamp, self.queues_timestamp, self.index_timestamp
        return _encode(times, offsets, self.queue_entries)

    def encode_lower(self) -> bytes:
        """The file's bytes, with none of the times later than in the file as it is."""
        physic, queues, index = self._in_file
        log_offset, queues_offset = self._offsets_in_file
        times = (
            min(physic, self.physic_timestamp),
            min(queues, self.queues_timestamp),
            min(index, self.index_timestamp),
        )
        return _encode(times, (min(log_offset, self.log_offset), min(queues_offset, self.queues_offset)), 0)

    def write(self, data: bytes) -> None:
        """Replace the file, whole or not at all, and force it to the disk; blocks. OSError."""
        self._disk.write(self._path + ".tmp", data)
        self._disk.replace(self._path + ".tmp", self._path)
        self._in_file = _TIMES.unpack_from(data)
        self._offsets_in_file = _OFFSETS.unpack_from(data, _OFFSETS_AT)

    @property
    def min_timestamp(self) -> int:
        """Records up to this store time are both in the log and in their queues, on disk."""
        return max(0, min(self.physic_timestamp, self.logics_timestamp) - _MARGIN_MS)

    @property
    def min_timestamp_index(self) -> int:
        """The same, with the index included."""
        return min(self.min_timestamp, self.index_timestamp)


def _encode(times: tuple[int, int, int], offsets: tuple[int, int], queue_entries: int) -> bytes:
    packed = _TIMES.pack(*times)
    added = packed + _OFFSETS.pack(*offsets) + _ENTRIES.pack(queue_entries)
    return (packed.ljust(_COPY_AT, b"\0") + added).ljust(_FILE_BYTES, b"\0")
