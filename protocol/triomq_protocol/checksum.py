"""CRC-32 of bodies, by the fastest library at hand: isal, zlib-ng, or the standard zlib; all give the same numbers."""

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:  # no wheel for this machine
    try:
        from zlib_ng.zlib_ng import crc32 as _crc32
    except ImportError:
        from zlib import crc32 as _crc32


def crc32(data: bytes | memoryview) -> int:
    """The body checksum: CRC-32 (IEEE) with the top bit cleared; 0 for no data (messages.md section 6)."""
    return int(_crc32(data)) & 0x7FFFFFFF
