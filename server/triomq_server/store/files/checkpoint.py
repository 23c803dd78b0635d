"""The `checkpoint` file: up to which store times log, queues and index are on disk (`StoreCheckpoint`;
docs/protocol/store.md §11.1)."""

from __future__ import annotations

import logging
import struct

from triomq_server.store.files.disk import Disk

_log = logging.getLogger(__name__)

_TIMES = struct.Struct(">qqq")
_COPY_AT = 64
"""Where the times are repeated: RocketMQ neither reads nor writes there."""
_FILE_BYTES = 4096
_MARGIN_MS = 3000


class Checkpoint:
    """Three store times in ms; all records up to each are on disk in the respective files."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self.physic_timestamp = 0
        self.logics_timestamp = 0
        self.index_timestamp = 0

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
        if any(copies) and times != copies:
            _log.warning("%s: the times and their copies differ (%s, %s); the earlier count", self._path, times, copies)
            times = tuple(map(min, times, copies))
        if min(times) < 0:
            _log.error("%s is damaged: it has negative times; not used", self._path)
            return
        self.physic_timestamp, self.logics_timestamp, self.index_timestamp = times

    def encode(self, logics_timestamp: int) -> bytes:
        """The file's bytes, with the queues known to be on disk up to the given time."""
        times = _TIMES.pack(self.physic_timestamp, logics_timestamp, self.index_timestamp)
        return (times.ljust(_COPY_AT, b"\0") + times).ljust(_FILE_BYTES, b"\0")

    def write(self, data: bytes) -> None:
        """Replace the file, whole or not at all, and force it to the disk; blocks. OSError."""
        self._disk.write(self._path + ".tmp", data)
        self._disk.replace(self._path + ".tmp", self._path)

    @property
    def min_timestamp(self) -> int:
        """Records up to this store time are both in the log and in their queues, on disk."""
        return max(0, min(self.physic_timestamp, self.logics_timestamp) - _MARGIN_MS)

    @property
    def min_timestamp_index(self) -> int:
        """The same, with the index included."""
        return min(self.min_timestamp, self.index_timestamp)
