"""Sends a master's transfer frames to one slave: at once as far as the socket takes them, the rest when it takes more.

Small frames are views of the log's maps, many per call, and can be sent without a task. Large ones go from the page
cache straight to the socket (`sendfile`), if there are a real file and a real socket; that costs two system calls per
frame, and so is worthwhile only for large frames. `master` decides which bytes are sent when.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from triomq_protocol.replication import encode_transfer_head
from triomq_server.wire.sockets import Buffer, NonBlockingSocket

SENDFILE_LEAST_BYTES = 65536
"""Smaller frames are sent as views."""

Views = list[Buffer]


class LogFiles(Protocol):
    """A log whose files can be opened in addition to their maps."""

    def open_log_file(self, offset: int) -> int | None:
        """A new descriptor for reading the file that holds this offset, None if there is no such file."""


class TransferWriter:
    """Sends to one slave. Use `open_transfer_writer`.

    Args:
        stream: to the slave.
        sock: its socket, if it has one.
        log: where large amounts come from.
        file_bytes: size of a log file.

    Attributes:
        left: what `send_now` could not send; nothing else may be sent before `finish` has.
    """

    def __init__(self, stream: trio.abc.Stream, sock: NonBlockingSocket | None, log: LogFiles, file_bytes: int) -> None:
        self._stream = stream
        self._sock = sock
        self._log = log
        self._file_bytes = file_bytes
        self._base = -1
        self._descriptor = -1
        self.left: Views = []

    @property
    def is_socket(self) -> bool:
        """Whether `send_now` and `send_file` work here."""
        return self._sock is not None

    def send_now(self, views: Views) -> None:
        """Send as much as possible without waiting, and keep the rest in `left`. trio.BrokenResourceError: the link is broken."""
        assert self._sock is not None
        assert not self.left
        self.left = self._sock.send_now(views)

    async def send(self, views: Views) -> None:
        """Send all views in order. A cancel may leave half a frame on the wire.

        Raises:
            trio.BrokenResourceError: the connection has ended.
        """
        if self._sock is None:
            await self._stream.send_all(b"".join(views))
            return
        self.send_now(views)
        await self.finish()
        await trio.lowlevel.checkpoint()

    async def finish(self) -> None:
        """Send the rest. trio.BrokenResourceError: the link is broken."""
        while self.left:
            assert self._sock is not None
            await self._sock.wait_writable()
            views, self.left = self.left, []
            self.send_now(views)

    def can_send_file(self, offset: int, size_bytes: int) -> bool:
        """Whether these bytes are many, in a real file, and the stream a socket."""
        return size_bytes >= SENDFILE_LEAST_BYTES and self._sock is not None and self._open(offset)

    async def send_file(self, offset: int, size_bytes: int, batch_bytes: int) -> None:
        """Send log bytes, all in one file, as frames of at most `batch_bytes`, after `can_send_file` returned true.

        Raises:
            trio.BrokenResourceError: the connection has ended.
        """
        sock = self._sock
        assert sock is not None
        end = offset + size_bytes
        while offset < end:
            size = min(batch_bytes, end - offset)
            await sock.send_before_file(encode_transfer_head(offset, size))
            await sock.send_file(self._descriptor, offset - self._base, size)
            offset += size
        await trio.lowlevel.checkpoint()

    def _open(self, offset: int) -> bool:
        base = offset - offset % self._file_bytes
        if base != self._base:
            self.close()
            try:
                descriptor = self._log.open_log_file(offset)
            except OSError:  # expired in the meantime, or too many files are open: views serve as well
                return False
            if descriptor is None:
                return False
            self._base, self._descriptor = base, descriptor
        return True

    def close(self) -> None:
        """Close the log file that was sent from last."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._base = self._descriptor = -1


@contextmanager
def open_transfer_writer(stream: trio.abc.Stream, log: LogFiles, file_bytes: int) -> Iterator[TransferWriter]:
    """A writer for a stream, while the context is open; the stream stays the caller's."""
    sock = NonBlockingSocket(stream) if isinstance(stream, trio.SocketStream) else None
    writer = TransferWriter(stream, sock, log, file_bytes)
    try:
        yield writer
    finally:
        writer.close()
        if sock is not None:
            sock.release()
