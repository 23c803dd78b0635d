"""Streams that are not sockets: data taken at once, and data left to the link's drain task."""

from __future__ import annotations

import pytest
from trio.testing import MemorySendStream

from triomq_server.wire.transport import StreamTransport

PIECES = [b"abc", memoryview(b"defg"), bytearray(b"hi")]


class CountedStream:
    """Takes so many bytes without waiting."""

    def __init__(self, fits: int) -> None:
        self.fits = fits
        self.taken = b""

    def send_nowait(self, data: bytes) -> int:
        self.taken += data[: self.fits]
        return min(self.fits, len(data))


@pytest.mark.parametrize("fits", [0, 1, 3, 8, 9, 100])
def test_what_does_not_fit_is_left(fits: int) -> None:
    stream = CountedStream(fits)
    left = StreamTransport(stream).send_now(PIECES)
    assert (stream.taken, b"".join(left)) == (b"abcdefghi"[:fits], b"abcdefghi"[fits:])


def test_a_stream_that_must_wait_is_left_everything() -> None:
    left = StreamTransport(MemorySendStream()).send_now(PIECES)
    assert b"".join(left) == b"abcdefghi"
