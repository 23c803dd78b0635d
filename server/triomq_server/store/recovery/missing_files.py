"""Files that are missing in the middle of the log: a start says so, and puts files without records in their places."""

from __future__ import annotations

import logging

from triomq_protocol.record.encode import write_blank
from triomq_protocol.record.layout import BLANK_MAGIC, MARK
from triomq_server.disk import Disk
from triomq_server.store.files.segments import Segment, Segments, missing_text, segment_name
from triomq_server.store.repair.damage import write_copy, written_bytes

_log = logging.getLogger(__name__)

_MOST_BRIDGED = 1000
"""Missing files of the log that a start puts others in place of: more are no loss but a stray file."""


def bridge_missing(log: Segments, disk: Disk, folder: str, *, is_allowed: bool) -> list[tuple[int, int]]:
    """Say which files the log lacks, and put files without records in their place, so that all readers can walk on.

    An empty file of the same name in `triomq/damaged` shows a later start, and a repair, that it is not a file of the
    log's own.
    """
    size = log.size
    gaps = [
        (before.end, after.base)
        for before, after in zip(log.items, log.items[1:], strict=False)
        if before.end < after.base
    ]
    for begin, end in gaps:
        bridged = is_allowed and (end - begin) % size == 0 and (end - begin) // size <= _MOST_BRIDGED
        try:
            for base in range(begin, end, size) if bridged else ():
                disk.make_directory(folder)
                write_copy(disk, f"{folder}/{segment_name(base)}", b"")
                segment = log.build(base, MARK.size)
                write_blank(segment.buffer, 0, size)
                segment.position = size
                log.insert(segment)
        except OSError as error:
            _log.error("no file can be put in place of a missing one: %s", error)
        _tell_missing(log, begin, end)
    reported = {base for begin, end in gaps for base in range(begin, end, size)}
    for name in disk.list(folder) if disk.exists(folder) else ():
        base = int(name) if name.isascii() and name.isdigit() else -1
        there = log.find(base) if base >= 0 and not base % size and base not in reported else None
        if there is None:
            continue
        if there is not log.items[-1] and not disk.size(f"{folder}/{name}"):
            _finish_bridge(there)
        if MARK.unpack_from(there.buffer, 0) == (size, BLANK_MAGIC):
            _tell_missing(log, base, there.end)
    return gaps


def _finish_bridge(segment: Segment) -> None:
    """Write the mark of a file that an earlier start has put in place of a missing one, if a kill or a loss of power came
    before it: no walk gets across zeros. OSError.

    A file with content is the log's own, with a damaged beginning: an empty file of its name is also what a kill or a
    full disk leaves of a copy of its first bytes.
    """
    if any(segment.buffer[: MARK.size]):
        return
    content = memoryview(segment.buffer)[: segment.file.content_end(0, segment.size)]
    is_empty = not written_bytes(content)
    content.release()
    if is_empty:
        segment.file.reserve(0, MARK.size)
        write_blank(segment.buffer, 0, segment.size)
        segment.changed_from(0)


def _tell_missing(log: Segments, begin: int, end: int) -> None:
    _log.critical(
        "%s in %s: %d bytes from log offset %d to %d, and all messages in them, are lost to readers. What lies before "
        "and behind stays readable, and nothing has been deleted. To get them back, stop the broker and put the files "
        "there again from a copy, or have `triomq admin repair-store` fetch them from another broker of the set",
        missing_text(begin, end, log.size), log.directory, end - begin, begin,
        end,
    )  # fmt: skip
