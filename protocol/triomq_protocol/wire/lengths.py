"""The two lengths at the front of a frame, and their limits (docs/protocol/remoting.md §1).

Encoders that run for every message compare with the limits inline and call `does_not_fit` only to fail.
"""

from struct import Struct
from typing import Final

from triomq_protocol.errors import LocalProtocolError

MAX_HEADER_BYTES = 0xFFFFFF
"""The header's length has 24 bits."""

MAX_LENGTH = 0x7FFFFFFF
"""The frame's length, without its own four bytes, is an int32."""

pack_lengths: Final = Struct(">II").pack
"""From the frame's length and the mark: the header's length and, in the high byte, its encoding."""


def frame_lengths(header_bytes: int, body_bytes: int, serialize: int) -> bytes:
    """The lengths of a frame with such a header and body. Raises LocalProtocolError if it does not fit."""
    length = 4 + header_bytes + body_bytes
    if header_bytes > MAX_HEADER_BYTES or length > MAX_LENGTH:
        raise does_not_fit(header_bytes, body_bytes)
    return pack_lengths(length, header_bytes | (1 << 24 if serialize else 0))


def does_not_fit(header_bytes: int, body_bytes: int) -> LocalProtocolError:
    """The error for a frame that is too long."""
    return LocalProtocolError(f"header of {header_bytes} bytes and body of {body_bytes} bytes do not fit a frame")
