"""The HA protocol: 8-byte offset reports, 12-byte transfer heads (docs/protocol/ha.md §2; upstream `HAConnection`)."""

from collections.abc import Iterator
from struct import Struct

from triomq_protocol.errors import LocalProtocolError, RemoteProtocolError

_REPORT = Struct(">q")
_HEAD = Struct(">qi")


def encode_report(max_offset: int) -> bytes:
    """A slave's report: the end of its log, which acknowledges all bytes before it and serves as heartbeat."""
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
        whole = len(data) - len(data) % _REPORT.size
        self._buffer = data[whole:]
        offsets = [offset for (offset,) in _REPORT.iter_unpack(data[:whole])]
        if offsets and min(offsets) < 0:
            raise RemoteProtocolError(f"slave reports offset {min(offsets)}")
        return offsets


class TransferDecoder:
    """Reads a master's transfers from any split of the stream: heads, and whatever has arrived of the bodies.

    No body is collected: a slave appends its bytes to the log as they come, with as few copies as possible.

    Attributes:
        offset: log offset of the next byte of the body that is being read.
        left: how much of that body is still to come; 0 between transfers.
    """

    __slots__ = ("_head", "left", "offset")

    def __init__(self) -> None:
        self._head = b""
        self.offset: int = 0
        self.left: int = 0

    @property
    def head_left(self) -> int:
        """How much of the next head is still to come."""
        return _HEAD.size - len(self._head)

    def skip(self, size: int) -> None:
        """Continue after bytes of the body that were received without this decoder."""
        self.offset += size
        self.left -= size

    def feed(self, data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
        """Yield (log offset, bytes left of the transfer, the part of them received so far), in order.

        A head alone yields an empty part, and so does a heartbeat: its offset can be checked before any byte of the
            body has arrived. The size is as the master wrote it, even if it is negative. The views are of `data`.
        """
        at = 0
        end = len(data)
        while at < end:
            if not self.left:
                need = self.head_left
                self._head += data[at : at + need]
                at += need
                if len(self._head) < _HEAD.size:
                    return
                self.offset, self.left = _HEAD.unpack(self._head)
                self._head = b""
                if at >= end or self.left <= 0:
                    yield self.offset, self.left, data[end:]
                    self.left = max(self.left, 0)
                    continue
            part = data[at : at + self.left]
            yield self.offset, self.left, part
            at += len(part)
            self.offset += len(part)
            self.left -= len(part)
