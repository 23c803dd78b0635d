"""Tracks which half messages have ended, and which part of the op queue is no longer needed.

Pure: numbers in, numbers out. One bit is kept for each half message after the progress of the check, and eight bytes for
each op message. 4.9.7 reads the op queue again in each round instead (`fillOpRemoveMap`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_KEPT_BELOW = 1 << 20
"""Half messages in front of the progress whose end is still known, so that ends that are repeated are recognised."""
_TRIMMED_BYTES = 1 << 16


class EndedHalves:
    """The half messages that have ended, by their queue offsets.

    Attributes:
        op_offset: the first op message that may be about a half message which the check has not passed yet.
    """

    def __init__(self, half_offset: int = 0, op_offset: int = 0) -> None:
        self._begin = half_offset
        self._bits = bytearray()
        self._halves = array("q")  # the last one of each op message from op_offset on
        self._head = 0
        self.op_offset = op_offset

    @property
    def next_op(self) -> int:
        """The next op message to be read."""
        return self.op_offset + len(self._halves) - self._head

    def __contains__(self, half_offset: int) -> bool:
        at = half_offset - self._begin
        return 0 <= at < 8 * len(self._bits) and bool(self._bits[at >> 3] & 1 << (at & 7))

    def mark(self, half_offset: int) -> None:
        """A half message has ended. The caller bounds the offset: memory grows with it."""
        at = half_offset - self._begin
        if at < 0:
            return
        missing = (at >> 3) + 1 - len(self._bits)
        if missing > 0:
            self._bits += bytes(missing)
        self._bits[at >> 3] |= 1 << (at & 7)

    def read_op(self, half_offsets: Sequence[int]) -> None:
        """Add the op message `next_op`, which ends the half messages at these offsets."""
        self._halves.append(max(half_offsets, default=-1))
        for half_offset in half_offsets:
            self.mark(half_offset)

    def pass_to(self, half_offset: int) -> int:
        """The check has passed all half messages in front of this one.

        Returns:
            `op_offset`, which has passed the op messages of those.
        """
        halves, head = self._halves, self._head
        while head < len(halves) and halves[head] < half_offset:
            head += 1
        self.op_offset += head - self._head
        self._head = head
        if head * 8 >= _TRIMMED_BYTES:
            del halves[:head]
            self._head = 0
        spare = (half_offset - _KEPT_BELOW - self._begin) >> 3
        if spare >= _TRIMMED_BYTES:
            del self._bits[:spare]
            self._begin += spare << 3
        return self.op_offset
