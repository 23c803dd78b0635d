"""The checksum of bodies."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq_protocol.checksum import crc32, raw_crc32


@given(st.binary(max_size=5000))
def test_the_fast_checksum_is_the_standard_one(data: bytes) -> None:
    assert raw_crc32(data) == zlib.crc32(data)
    assert crc32(data) == crc32(memoryview(data)) == zlib.crc32(data) & 0x7FFFFFFF


@pytest.mark.parametrize(("data", "checksum"), [(b"", 0), (b"123456789", 0x4BF43926), (b"a", 0x68B7BE43)])
def test_known_values(data: bytes, checksum: int) -> None:
    """The check value of CRC-32 is CBF43926; records keep it without its top bit."""
    assert crc32(data) == checksum
