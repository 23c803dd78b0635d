"""Cuts the master's stream into pieces that can be appended as they arrive, frames finished or not.

The protocol's `TransferDecoder` collects whole frames, which is right for whoever wants frames. A slave wants bytes in its
log with as few copies as possible, and holds no frame back until its end has come.
"""

import struct
from collections.abc import Iterator

from triomq_protocol.replication import TRANSFER_HEAD_BYTES

_HEAD = struct.Struct(">qi")


class PieceDecoder:
    """Reads 12-byte heads and whatever of the bodies has arrived."""

    __slots__ = ("_head", "left", "offset")

    def __init__(self) -> None:
        self._head = b""
        self.offset = 0
        """Log offset of the next byte of the body that is being read."""
        self.left = 0
        """How much of that body is still to come; 0 between frames."""

    @property
    def head_left(self) -> int:
        """How much of the next head is still to come."""
        return TRANSFER_HEAD_BYTES - len(self._head)

    def skip(self, size: int) -> None:
        """So many bytes of the body have been taken by other means."""
        self.offset += size
        self.left -= size

    def feed(self, data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
        """Yield (log offset, bytes left of the frame, the part of them that is here), in order.

        A head alone yields an empty part, and so does a heartbeat: its offset can be checked before any byte of the
        body is there. The size is as the master wrote it, which may be nonsense. The views are of `data`.
        """
        at = 0
        end = len(data)
        while at < end:
            if not self.left:
                need = self.head_left
                self._head += data[at : at + need]
                at += need
                if len(self._head) < TRANSFER_HEAD_BYTES:
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
