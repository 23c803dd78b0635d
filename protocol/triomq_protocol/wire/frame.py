"""Frames: length, header length and encoding, header, body (docs/protocol/remoting.md §1; upstream `NettyDecoder`)."""

from struct import Struct

from triomq_protocol.errors import RemoteProtocolError
from triomq_protocol.wire.command import (
    NOT_USUAL,
    Command,
    decode_binary_command,
    decode_unusual_command,
    decode_usual_command,
)
from triomq_protocol.wire.lengths import MAX_HEADER_BYTES

MAX_FRAME_BYTES = 16777216
"""Java's limit for a whole frame, its length field included."""

_UNUSUAL_BYTES_AT_ONCE = 4096
"""Of headers in an unusual form, which take a hundred times as long as usual ones: a microsecond for each byte."""

_USUAL_FIELDS = 64
"""Of a binary header; no command has more than thirty."""
_BYTES_OF_FIELD = 2
"""Reading a further one takes as long as this many bytes of an unusual header."""

_unpack_lengths = Struct(">iI").unpack_from
_JSON_LIMIT = 1 << 24  # marks below this say "JSON header"
_BINARY_LIMIT = 2 << 24


class FrameDecoder:
    """Turns received bytes into commands, however they are split.

    At most one incomplete frame is buffered; a large body that arrives in pieces is copied twice, not once for each
    piece.

    Args:
        max_frame_bytes: a longer frame is rejected before it is buffered.
        max_header_bytes: a frame with a longer header is rejected, too.
        frames_at_once: the most frames that one call decodes; see `more`. A megabyte may hold 50,000. With a limit, a
            call also ends after unusual headers, or binary ones of very many fields, that take milliseconds to decode.

    Attributes:
        fault: the error that ended decoding, after bytes that are not a frame. Valid frames before them have been
            returned: the caller handles these, checks `fault`, and closes the link.
        incomplete: the bytes of an incomplete frame, and of frames that are not decoded yet.
        more: the last call has left whole frames; `feed(b"")` continues.
    """

    __slots__ = ("_max_header", "_max_total", "_most", "_need", "fault", "incomplete", "more")

    def __init__(
        self,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_header_bytes: int = MAX_HEADER_BYTES,
        *,
        frames_at_once: int | None = None,
    ) -> None:
        self._max_total = max_frame_bytes - 4
        self._max_header = max_header_bytes
        self._most = -1 if frames_at_once is None else frames_at_once
        self.more: bool = False
        self.incomplete: bytearray = bytearray()
        self._need = 0  # with fewer bytes than these in the buffer no frame can be complete
        self.fault: RemoteProtocolError | None = None

    def feed(self, data: bytes) -> list[Command]:  # noqa: C901 - one loop: a call less for each frame
        """All frames completed by `data`. Raises RemoteProtocolError if the first frame is invalid; see `fault`."""
        if self.fault is not None:
            raise self.fault
        buffer = self.incomplete
        self.more = False
        if buffer:
            if len(buffer) + len(data) < self._need:
                buffer += data
                return []
            data = b"".join((buffer, data))
            buffer.clear()
        out: list[Command] = []
        at, size = 0, len(data)
        most = self._most
        unusual_left = _UNUSUAL_BYTES_AT_ONCE if most > 0 else 1 << 62
        try:
            while size - at >= 8:
                total, mark = _unpack_lengths(data, at)
                header_at = at + 8
                header_bytes = mark & 0xFFFFFF
                body_at = header_at + header_bytes
                end = at + 4 + total
                if (
                    not 4 <= total <= self._max_total
                    or body_at > end
                    or mark >= _BINARY_LIMIT
                    or header_bytes > self._max_header
                ):
                    raise self._reject(total, mark)
                if end > size:
                    self._need = end - at
                    break
                if len(out) == most:
                    self.more = True
                    self._need = 0
                    break
                if mark < _JSON_LIMIT:
                    header = data[header_at:body_at]
                    try:
                        command = decode_usual_command(header)
                    except NOT_USUAL:
                        command = decode_unusual_command(header)
                        unusual_left -= header_bytes
                        if unusual_left < 0:
                            most = len(out) + 1
                    if body_at < end:
                        command.body = data[body_at:end]
                else:
                    command, fields = decode_binary_command(data[header_at:end], end - body_at)
                    if fields > _USUAL_FIELDS:
                        unusual_left -= fields * _BYTES_OF_FIELD
                        if unusual_left < 0:
                            most = len(out) + 1
                out.append(command)
                at = end
            else:
                self._need = 8
                if size - at >= 4:
                    self._check_length(data[at : at + 4])
        except RemoteProtocolError as error:
            self.fault = error
            if not out:
                raise
            return out
        if at < size:
            buffer += data[at:] if at else data
        return out

    def join(self, data: bytes) -> bytes:
        """The incomplete bytes and `data`, for a reader that runs before `feed`, which must get the bytes that it leaves.

        Empty if there cannot be a whole frame yet: then nothing is left to be fed.
        """
        buffer = self.incomplete
        if not buffer or self.fault is not None:
            return data
        if len(buffer) + len(data) < self._need:
            buffer += data
            return b""
        data = b"".join((buffer, data))
        buffer.clear()
        self.more = False
        return data

    def keep(self, data: bytes) -> bool:
        """Keep what `join` gave, or the rest of it, for another time, as `more`; false, and nothing is kept, if it does not
        begin with a whole frame."""
        if self.fault is not None or len(data) < 8 or len(data) < 4 + _unpack_lengths(data)[0]:
            return False
        self.incomplete += data
        self._need = 0
        self.more = True
        return True

    def _check_length(self, word: bytes) -> None:
        total = int.from_bytes(word, "big", signed=True)
        if not 4 <= total <= self._max_total:
            raise self._reject(total, 0)

    def _reject(self, total: int, mark: int) -> RemoteProtocolError:
        if total < 4:
            return RemoteProtocolError(f"frame length {total}")
        if total > self._max_total:
            text = f"frame of {total + 4} bytes, the limit is {self._max_total + 4}"
            return RemoteProtocolError(text + _other_protocol(total.to_bytes(4, "big")))
        if mark >= _BINARY_LIMIT:
            return RemoteProtocolError(f"unknown header encoding {mark >> 24}")
        if mark & 0xFFFFFF > self._max_header:
            return RemoteProtocolError(f"header of {mark & 0xFFFFFF} bytes, the limit is {self._max_header}")
        return RemoteProtocolError(f"header of {mark & 0xFFFFFF} bytes in a frame of {total} bytes")


def _other_protocol(word: bytes) -> str:
    """A guess about the peer from the bytes in place of a frame's length; empty if there is none."""
    if word == b"HTTP":
        return ": the peer speaks HTTP, this is a web server's port"
    return ": the peer speaks TLS" if begins_tls(word) else ""


_TLS_ALERT, _TLS_HANDSHAKE = 0x15, 0x16
_TLS_MAJOR = 0x03
"""The first two bytes of a TLS record: its type and the protocol's major version."""


def begins_tls(first: bytes) -> bool:
    """Whether the first bytes of a peer begin a TLS record."""
    return len(first) > 1 and first[0] in (_TLS_ALERT, _TLS_HANDSHAKE) and first[1] == _TLS_MAJOR
