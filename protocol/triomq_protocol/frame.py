"""Frames: length, header length and encoding, header, body (remoting.md section 1)."""

from triomq_protocol.command import Command

MAX_FRAME_BYTES = 16777216
"""Java's limit for a whole frame, its length field included."""


class FrameDecoder:
    """Turns received bytes into commands, however they are split.

    Args:
        max_frame_bytes: a longer frame is an error before its bytes are collected.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes

    @property
    def buffered_bytes(self) -> int:
        """How many bytes of an incomplete frame are held."""
        raise LookupError

    def feed(self, data: bytes) -> list[Command]:
        """All frames completed by `data`. Raises RemoteProtocolError, after which the decoder is of no more use."""
        raise LookupError
