"""TLS records: where they end in received bytes, and how many without data a peer may send.

A record without data (an update of keys) costs a hundred times as much as its bytes, and a peer that sends many would
hold up the loop. OpenSSL does not say how many it has read. So it gets only whole records, which are counted before.
"""

from __future__ import annotations

from typing import Final

import trio

_HEADER_BYTES: Final = 5
_ENCRYPTED_BYTES: Final = 18_432
"""The largest encrypted record of TLS 1.2; smaller with TLS 1.3."""
_SILENT_RECORDS: Final = 64
"""Records without data that a peer may send, and one more for each 1,024 with data. Keys are updated after gigabytes."""
_RECORDS_PER_SILENT: Final = 1024


def whole_records(data: bytes, start: int, most: int) -> tuple[int, int]:
    """Where the whole records end that begin at `start`, and their number, which is at most `most`.

    The end is that of the data if what follows cannot be a record: OpenSSL then reports the fault.
    """
    at, size, count = start, len(data), 0
    while count < most and size - at >= _HEADER_BYTES:
        length = data[at + 3] << 8 | data[at + 4]
        if length > _ENCRYPTED_BYTES:
            return size, count
        if at + _HEADER_BYTES + length > size:
            break
        at += _HEADER_BYTES + length
        count += 1
    return at, count


class SilentRecords:
    """Counts the records of one peer that have no data."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0.0

    def add(self, silent: int, with_data: int) -> None:
        """Records without data have come, and some with data. BrokenResourceError when too many had none."""
        self._count = max(0.0, self._count + silent - with_data / _RECORDS_PER_SILENT)
        if self._count > _SILENT_RECORDS:
            raise trio.BrokenResourceError("the peer sends TLS records without data")
