"""The HA dialogue: 8-byte offset reports, 12-byte transfer heads (ha.md section 2; upstream `HAConnection`)."""

from struct import Struct

import attrs

from triomq_protocol.errors import LocalProtocolError, RemoteProtocolError

REPORT_BYTES = 8
TRANSFER_HEAD_BYTES = 12
MAX_TRANSFER_BYTES = 4194304 - TRANSFER_HEAD_BYTES
"""A Java slave handles head and body only up to 4 MiB together."""

_REPORT = Struct(">q")
_HEAD = Struct(">qi")


def encode_report(max_offset: int) -> bytes:
    """The slave's word: the end of its log, which is also its acknowledgement and heartbeat."""
    if not 0 <= max_offset < 1 << 63:
        raise LocalProtocolError(f"offset {max_offset}")
    return _REPORT.pack(max_offset)


def encode_transfer_head(offset: int, size_bytes: int) -> bytes:
    """The head before `size_bytes` of log at `offset`; size 0 is the master's heartbeat."""
    if not (0 <= offset < 1 << 63 and 0 <= size_bytes < 1 << 31):
        raise LocalProtocolError(f"transfer of {size_bytes} bytes at {offset}")
    return _HEAD.pack(offset, size_bytes)


class ReportDecoder:
    """Reads a slave's reports from any split of the stream."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[int]:
        """The offsets completed by `data`. Raises RemoteProtocolError for a negative one."""
        data = self._buffer + data
        whole = len(data) - len(data) % REPORT_BYTES
        self._buffer = data[whole:]
        offsets = [offset for (offset,) in _REPORT.iter_unpack(data[:whole])]
        if offsets and min(offsets) < 0:
            raise RemoteProtocolError(f"slave reports offset {min(offsets)}")
        return offsets


@attrs.frozen(slots=True)
class Transfer:
    """One piece of the master's log; `data` is b"" for a heartbeat."""

    offset: int
    data: bytes


class TransferDecoder:
    """Reads a master's transfers from any split of the stream, in O(n).

    Args:
        max_transfer_bytes: a longer body is an error before it is collected.
    """

    __slots__ = ("_buffer", "_head", "_max_transfer_bytes")

    def __init__(self, max_transfer_bytes: int = MAX_TRANSFER_BYTES) -> None:
        self._max_transfer_bytes = max_transfer_bytes
        self._buffer = bytearray()
        self._head: tuple[int, int] | None = None

    @property
    def next_offset(self) -> int | None:
        """Offset of a transfer whose head has arrived but whose body has not; checked before the body is complete."""
        return None if self._head is None else self._head[0]

    def feed(self, data: bytes) -> list[Transfer]:
        """The transfers completed by `data`. Raises RemoteProtocolError."""
        buffer = self._buffer
        buffer += data
        out: list[Transfer] = []
        at, size = 0, len(buffer)
        while True:
            if self._head is None:
                if size - at < TRANSFER_HEAD_BYTES:
                    break
                self._head = self._checked(*_HEAD.unpack_from(buffer, at))
                at += TRANSFER_HEAD_BYTES
            offset, count = self._head
            if size - at < count:
                break
            out.append(Transfer(offset, bytes(memoryview(buffer)[at : at + count])))
            at += count
            self._head = None
        if at:
            del buffer[:at]
        return out

    def _checked(self, offset: int, count: int) -> tuple[int, int]:
        if offset < 0 or not 0 <= count <= self._max_transfer_bytes:
            raise RemoteProtocolError(f"transfer of {count} bytes at {offset}")
        return offset, count
