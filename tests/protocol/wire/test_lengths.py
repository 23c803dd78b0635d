"""The two lengths of a frame at their limits (docs/protocol/remoting.md §1)."""

from __future__ import annotations

import pytest

from triomq_protocol.errors import LocalProtocolError
from triomq_protocol.wire.lengths import MAX_HEADER_BYTES, MAX_LENGTH, frame_lengths


@pytest.mark.parametrize(
    ("header_bytes", "body_bytes", "serialize", "lengths"),
    [
        (0, 0, 0, "00000004 00000000"),
        (0, 0, 1, "00000004 01000000"),
        (5, 0, 0, "00000009 00000005"),
        (5, 7, 0, "00000010 00000005"),
        (5, 7, 1, "00000010 01000005"),
        (0xFFFFFF, 0, 0, "01000003 00ffffff"),
        (0xFFFFFF, 0, 1, "01000003 01ffffff"),
        (0xFFFFFF, 0x7FFFFFFF - 0xFFFFFF - 4, 1, "7fffffff 01ffffff"),
        (0, 0x7FFFFFFB, 0, "7fffffff 00000000"),
    ],
)
def test_lengths_and_mark(header_bytes: int, body_bytes: int, serialize: int, lengths: str) -> None:
    assert frame_lengths(header_bytes, body_bytes, serialize) == bytes.fromhex(lengths)


@pytest.mark.parametrize(
    ("header_bytes", "body_bytes"),
    [
        (MAX_HEADER_BYTES + 1, 0),
        (MAX_HEADER_BYTES, MAX_LENGTH - MAX_HEADER_BYTES - 3),
        (0, MAX_LENGTH - 3),
        (1, MAX_LENGTH - 4),
        (0, 1 << 40),
    ],
)
@pytest.mark.parametrize("serialize", [0, 1])
def test_one_byte_more_does_not_fit(header_bytes: int, body_bytes: int, serialize: int) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        frame_lengths(header_bytes, body_bytes, serialize)
    assert str(caught.value) == f"header of {header_bytes} bytes and body of {body_bytes} bytes do not fit a frame"
