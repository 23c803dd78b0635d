"""Log bytes from the page cache straight to a slave's socket: `sendfile`, where there are a real file and a real socket.

Worth its two system calls per frame for large frames only; small ones go as views of the maps, many in one call.
"""

import os
import socket
from typing import Protocol, Self

import trio

from triomq_protocol.replication import encode_transfer_head

LEAST_BYTES = 65536
"""What is less than this is sent as views."""


class LogFiles(Protocol):
    """A log whose files can be opened beside their maps."""

    def open_log_file(self, offset: int) -> int | None:
        """A new descriptor for reading the file that holds this offset, None where there is no such file."""


class FileSender:
    """Sends frames of one link from the log's files; keeps the file open that was sent from last.

    Use as a context manager, so that the file is closed.

    Args:
      log: the log.
      file_bytes: size of its files.
    """

    def __init__(self, log: LogFiles, file_bytes: int) -> None:
        self._log = log
        self._file_bytes = file_bytes
        self._base = -1
        self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def can_send(self, stream: trio.abc.Stream, offset: int, size_bytes: int) -> bool:
        """Whether these bytes are many, in a real file, and the stream a socket."""
        return size_bytes >= LEAST_BYTES and isinstance(stream, trio.SocketStream) and self._open(offset)

    async def send(self, stream: trio.abc.Stream, offset: int, size_bytes: int, batch_bytes: int) -> None:
        """Send log bytes, all in one file, as frames of at most `batch_bytes`, after `can_send` said yes.

        Raises:
          trio.BrokenResourceError: the connection is gone.
        """
        assert isinstance(stream, trio.SocketStream)
        sock = stream.socket
        end = offset + size_bytes
        try:
            while offset < end:
                size = min(batch_bytes, end - offset)
                await _send_more(sock, encode_transfer_head(offset, size))
                await self._send_body(sock, offset - self._base, size)
                offset += size
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def _send_body(self, sock: trio.socket.SocketType, position: int, size_bytes: int) -> None:
        while size_bytes:
            try:
                sent = os.sendfile(sock.fileno(), self._descriptor, position, size_bytes)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(sock)
                continue
            if not sent:
                raise OSError(f"the log file ends at {position}")
            position += sent
            size_bytes -= sent

    def _open(self, offset: int) -> bool:
        base = offset - offset % self._file_bytes
        if base != self._base:
            self._close()
            try:
                descriptor = self._log.open_log_file(offset)
            except OSError:  # expired meanwhile, or too many files are open: views do as well
                return False
            if descriptor is None:
                return False
            self._base, self._descriptor = base, descriptor
        return True

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._base = self._descriptor = -1


async def _send_more(sock: trio.socket.SocketType, head: bytes) -> None:
    """Send a head whose body follows at once: both may share a packet."""
    while head:
        head = head[await sock.send(head, socket.MSG_MORE) :]
