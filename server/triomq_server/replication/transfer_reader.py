"""Receives a slave's transfer frames: checks each, and appends it to the log with as few copies as possible.

Many small frames are received at once, through a buffer. The body of a large frame goes from the socket into the log's
file inside the kernel; then only its head is received here.
"""

from __future__ import annotations

from typing import Protocol

from triomq_protocol.replication import TransferDecoder
from triomq_server.replication import rules
from triomq_server.replication.receivers import Receiver

BUFFER_BYTES = 256 * 1024
"""What one receive takes at most: it is copied on while the processor's cache still holds it."""
TURN_BYTES = 1024 * 1024
"""Bytes received before other tasks run: half a millisecond of work."""
SPLICE_LEAST_BYTES = 65536
"""Bodies of less than this go through the buffer."""


class ExtendedLog(Protocol):
    """The part of a message store that takes a master's bytes."""

    @property
    def log_max_offset(self) -> int:
        """First byte not there yet."""

    def append_raw(self, data: bytes | memoryview, offset: int) -> None:
        """Append the master's bytes at the log's end, which is `offset`."""

    def raw_place(self, offset: int, size_bytes: int) -> tuple[int, int] | None:
        """Descriptor and position of the file where these bytes belong, None where only `append_raw` can put them."""

    def raw_written(self, size_bytes: int) -> None:
        """So many bytes have been written to the `raw_place`."""


class ReplicationError(Exception):
    """The master's bytes cannot be taken over; the link is closed and opened again."""


class TransferReader:
    """Reads the transfer frames of one link into the log.

    Args:
        log: the log to append to.
        receiver: the receiving end of the link.
        buffer: `BUFFER_BYTES` of scratch.
        file_bytes: size of a log file.
        master_end: the end of the master's log, as far as known.
        begin: where an empty log must begin; None: wherever the master starts.

    Attributes:
        master_end: the same, updated from the frames.
        taken_bytes: log bytes taken so far.
        ended: the master has closed the link.
        empty: there were no more bytes at the end of the last turn.
    """

    def __init__(
        self,
        log: ExtendedLog,
        receiver: Receiver,
        buffer: memoryview,
        file_bytes: int,
        master_end: int,
        begin: int | None = None,
    ) -> None:
        self._log = log
        self._begin = begin
        self._receiver = receiver
        self._buffer = buffer
        self._file_bytes = file_bytes
        self._decoder = TransferDecoder()
        self._large = False  # so was the last frame, and so probably is the next
        self.master_end = master_end
        self.taken_bytes = 0
        self.ended = False
        self.empty = False

    def take_turn(self) -> int:
        """Take received bytes, up to about `TURN_BYTES`; returns the number of bytes on the wire.

        Raises:
            ReplicationError: the bytes do not continue this log; none of that frame has been taken.
            OSError: the disk did not take all of them.
            trio.BrokenResourceError: the link is broken.
        """
        came = 0
        self.empty = False
        while came < TURN_BYTES:
            size = self._splice() if self._large and self._decoder.left else self._receive()
            if size is None:
                self.empty = True
                break
            if not size:
                self.ended = True
                break
            came += size
            if self.empty:
                break
        return came

    def _receive(self) -> int | None:
        """Through the buffer; of a large frame only the head."""
        decoder = self._decoder
        buffer = self._buffer[: decoder.head_left] if self._large else self._buffer
        size = self._receiver.receive_into_now(buffer)
        if not size:
            return size
        for offset, frame_left, body in decoder.feed(buffer[:size]):
            self._check(offset, frame_left)
            if body:
                self._log.append_raw(body, offset)
                self.taken_bytes += len(body)
        self._large = decoder.left >= SPLICE_LEAST_BYTES and self._receiver.can_splice and self._has_place()
        # After a read that does not fill the buffer, the next one would mostly find nothing.
        self.empty = size < len(buffer) and not self._large
        return size

    def _has_place(self) -> bool:
        return self._log.raw_place(self._decoder.offset, self._decoder.left) is not None

    def _splice(self) -> int | None:
        decoder = self._decoder
        place = self._log.raw_place(decoder.offset, decoder.left)
        assert place is not None
        size = self._receiver.splice_now(*place, decoder.left)
        if size:
            self._log.raw_written(size)
            decoder.skip(size)
            self.taken_bytes += size
        return size

    def _check(self, offset: int, frame_left: int) -> None:
        """Refuse what would not continue the log, before a byte of it is taken."""
        own, file_bytes = self._log.log_max_offset, self._file_bytes
        self.master_end = max(self.master_end, offset + frame_left)
        if not rules.follows(own, offset, file_bytes):
            raise ReplicationError(f"frame at offset {offset}, own log ends at {own}")
        if not own and self._begin is not None and offset != self._begin:
            # An empty master has filled its first file since it was asked, or has dropped one: it must be asked again.
            raise ReplicationError(f"the stream begins at offset {offset}, the master's log at {self._begin}")
        if not rules.stays_in_file(offset, frame_left, file_bytes):
            raise ReplicationError(
                f"frame of {frame_left} bytes at offset {offset} crosses a log file of {file_bytes} bytes: "
                "mappedFileSizeCommitLog differs between master and slave"
            )
