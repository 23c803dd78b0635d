"""The bytes of entries in consume queues, and the walk over those that are valid (docs/protocol/store.md §8).

Two hot loops, `CommitLog.append` and `Replay.run`, and their compiled twins pack entries inline, which saves a call per
message.
"""

from __future__ import annotations

import mmap
import struct
from functools import lru_cache

from triomq_server.compiled import USED as COMPILED

if COMPILED:
    from triomq_server.compiled import recovery as compiled_recovery

ENTRY = struct.Struct(">qiq")
"""One entry: physical offset, size and tags code of a record."""
ENTRY_BYTES = ENTRY.size
PHYSICAL_OFFSET = struct.Struct(">q")
"""The first field of an entry."""
BLANK_SIZE = 0x7FFFFFFF
"""The size field of entries without a record: in front of a queue that does not start at entry 0, with log offset 0;
and those of damaged or missing records, with a log offset not less than that of the entry before."""
BLANK_ENTRY = ENTRY.pack(0, BLANK_SIZE, 0)
"""An entry in front of a queue that does not start at entry 0."""
PAGE_BYTES = 204 * ENTRY_BYTES
"""About a page of entries: what is read at once where a file may continue with a hole."""

_ENTRIES_AT_ONCE = 1024
"""Entries that one call packs: the struct of more would be large."""


def packed_at_once(count: int) -> int:
    """How many of so many entries the next call packs: a power of two. Clients choose the size of batches, and structs
    for all sizes would take 50 MB."""
    return 1 << (min(count, _ENTRIES_AT_ONCE).bit_length() - 1)


@lru_cache(_ENTRIES_AT_ONCE.bit_length())
def entries_struct(count: int) -> struct.Struct:
    """The struct of `count` entries."""
    return struct.Struct(">" + "qiq" * count)


@lru_cache(64)
def places_struct(count: int) -> struct.Struct:
    """The struct of `count` entries that reads their physical offsets and sizes and skips their tags codes."""
    return struct.Struct(">" + "qi8x" * count)


NOT_VALID, WRONG = 1, 2


def pass_entries_one_by_one(
    buffer: mmap.mmap | bytes, start: int, stop: int, limit: int, before: int, last: int
) -> tuple[int, int, int, int]:
    """Skip valid entries; returns the position where it stopped, `before` and `last` at that point, and the reason.

    The reason is 0 for `stop` or the buffer's end, NOT_VALID for an entry that is not valid, WRONG if this entry or the one
    at `last` is wrong.

    Args:
        buffer: a file of the queue, or its beginning.
        start: where the first entry is.
        stop: where to end.
        limit: entries of records at or after this log offset are not valid. Negative: no limit, and a record that begins
            before the end of the previous one is wrong.
        before: the end, in the log, of the record of the last entry that has one.
        last: the position of that entry.
    """
    at = start
    stop = min(stop, len(buffer))
    while at < stop:
        for offset, size, _ in ENTRY.iter_unpack(buffer[at : min(at + PAGE_BYTES, stop)]):
            if offset < 0 or size <= 0 or 0 <= limit <= offset:
                return at, before, last, NOT_VALID
            if size != BLANK_SIZE:
                if limit < 0 and offset < before:
                    return at, before, last, WRONG
                before = offset + size
                last = at
            at += ENTRY_BYTES
    return at, before, last, 0


pass_entries = compiled_recovery.pass_entries if COMPILED else pass_entries_one_by_one
