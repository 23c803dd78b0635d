"""CRC-32 of bodies, by isal if it is installed, otherwise by the standard zlib; both give the same numbers."""

from collections.abc import Callable

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:  # no wheel for this machine
    from zlib import crc32 as _crc32


raw_crc32: Callable[[bytes | memoryview], int] = _crc32
"""The library's own function, all 32 bits: for loops in which an additional call matters; mask the top bit there."""


def crc32(data: bytes | memoryview) -> int:
    """The body checksum: CRC-32 (IEEE) with the top bit cleared; 0 for no data (docs/protocol/messages.md §6)."""
    return raw_crc32(data) & 0x7FFFFFFF
