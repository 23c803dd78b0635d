"""Checks and rewrites the part of the log that a failed flush has left in doubt, and forces it to the disk.

After a failed `fdatasync` the kernel marks the pages as clean: the next call may succeed although the disk never got
them, and a page may be evicted and read from the disk again in its old state. So a successful flush proves something
only for bytes that have been read back, found to be the appended records, and written once more. All of this goes
through descriptors, since an unreadable page kills a process that touches it in the map.

Restarting the process does not help while the machine keeps running. So the offset at which the doubt begins is noted in
`triomq/refused`, and the next start writes that part again.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Final

from triomq_protocol.record.check import Finding, LogRecord, read_record
from triomq_server.disk import Disk
from triomq_server.store.files.segments import Segment, Unflushed
from triomq_server.store.notes.noted_offset import forget_offset, note_offset, noted_offset

_log = logging.getLogger(__name__)

_NAME: Final = "refused"
_PIECE_BYTES: Final = 4 << 20


def note_refusal(disk: Disk, root: str, log_offset: int) -> bool:
    """Note that the disk has refused something, and that the log is known to be on it up to this offset only.

    Returns:
        Whether it is noted; the disk may refuse that, too.
    """
    try:
        # Useless after a reboot, since the memory's content is lost.
        note_offset(disk, root, _NAME, log_offset, sync=False)
    except OSError as error:
        _log.error(
            "%s/triomq/%s cannot be written: %s; a broker that is restarted before the machine is will not know that the "
            "disk has refused a part of the store", root, _NAME, error,
        )  # fmt: skip
        return False
    return True


def noted_refusal(disk: Disk, root: str) -> int | None:
    """The log offset after which an earlier run has left the log in doubt; None if it has not."""
    return noted_offset(disk, root, _NAME)


def forget_refusal(disk: Disk, root: str) -> None:
    """The disk has taken everything."""
    forget_offset(disk, root, _NAME)


def write_again(doubtful: list[Unflushed]) -> str | None:
    """Check and write each segment from its flushed position up to the given one, and force it to the disk; blocks.

    A file deleted meanwhile is not an error.

    Returns:
        A description of what the log holds instead of a record, if memory no longer has the appended bytes; then nothing
        is written. None if all of it is on the disk now.

    Raises:
        OSError: the disk still fails.
    """
    for segment, position, _ in doubtful:
        with contextlib.suppress(FileNotFoundError):
            found = _unsound(segment, segment.flushed, position)
            # A slave's flush may end in the middle of a record; each file begins with one.
            if found is not None and segment.flushed:
                found = _unsound(segment, 0, position)
            if found is not None:
                return f"{segment.path} holds {found.value}"
    for segment, position, _ in doubtful:
        with contextlib.suppress(FileNotFoundError):
            for at in range(segment.flushed, position, _PIECE_BYTES):
                end = min(at + _PIECE_BYTES, position)
                segment.file.write_back(at, segment.file.read_back(at, end))
            segment.file.sync(segment.flushed, position)
    return None


def _unsound(segment: Segment, start: int, end: int) -> Finding | None:
    """The first finding in a part of a file that is not a record; None if all are. Starts at a record. OSError."""
    data, data_at, at = b"", start, start
    while at < end:
        record = read_record(data, at - data_at, len(data), segment.base + at, check_crc=True)
        if isinstance(record, LogRecord):
            at += record.size
        elif record in (Finding.INCOMPLETE, Finding.NOTHING) and data_at + len(data) < end:
            more = max(_PIECE_BYTES, 2 * (len(data) - (at - data_at)))
            data, data_at = segment.file.read_back(at, min(at + more, end)), at
            if len(data) >= 8 and not any(data[:8]):
                return Finding.NOTHING
        elif record is Finding.BLANK:
            return None  # up to the end of the file
        elif record is Finding.INCOMPLETE:
            return None  # the part of the last record that a slave has received
        else:
            return record
    return None
