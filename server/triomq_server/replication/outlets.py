"""The master's end of the wire: frames go out at once as far as the socket takes them, and the rest when it takes more.

Small frames are views of the log's maps, many in one call, and need no task of their own to be sent. Many bytes go from
the page cache straight to the socket: `sendfile`, where there are a real file and a real socket; it is worth its two system
calls per frame for large frames only.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from triomq_protocol.replication import encode_transfer_head
from triomq_server.replication.sockets import bare_socket

SENDFILE_LEAST_BYTES = 65536
"""What is less than this is sent as views."""

_VIEWS_MOST = 1024
"""IOV_MAX of Linux."""

Views = list[bytes | memoryview]


class LogFiles(Protocol):
    """A log whose files can be opened beside their maps."""

    def open_log_file(self, offset: int) -> int | None:
        """A new descriptor for reading the file that holds this offset, None where there is no such file."""


class Outlet:
    """Sends to one slave. Use `open_outlet`.

    Args:
      stream: to the slave.
      sock: its socket, if it has one.
      log: where large amounts come from.
      file_bytes: size of a log file.

    Attributes:
      left: what `send_now` could not send; nothing else may be sent before `finish` has.
    """

    def __init__(self, stream: trio.abc.Stream, sock: socket.socket | None, log: LogFiles, file_bytes: int) -> None:
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
        """Send what goes without waiting, and keep the rest in `left`. OSError: the link is broken."""
        assert self._sock is not None
        assert not self.left
        try:
            sent = self._sock.sendmsg(views if len(views) <= _VIEWS_MOST else views[:_VIEWS_MOST])
        except BlockingIOError:
            sent = 0
        self.left = views_after(views, sent)

    async def send(self, views: Views) -> None:
        """Send all views in order. A cancel may leave half a frame on the wire.

        Raises:
          trio.BrokenResourceError: the connection is gone.
        """
        if self._sock is None:
            await self._stream.send_all(b"".join(views))
            return
        try:
            self.send_now(views)
            await self.finish()
        except OSError as error:
            raise trio.BrokenResourceError from error
        await trio.lowlevel.checkpoint()

    async def finish(self) -> None:
        """Send what is left. OSError: the link is broken."""
        while self.left:
            assert self._sock is not None
            await trio.lowlevel.wait_writable(self._sock)
            views, self.left = self.left, []
            self.send_now(views)

    def can_send_file(self, offset: int, size_bytes: int) -> bool:
        """Whether these bytes are many, in a real file, and the stream a socket."""
        return size_bytes >= SENDFILE_LEAST_BYTES and self._sock is not None and self._open(offset)

    async def send_file(self, offset: int, size_bytes: int, batch_bytes: int) -> None:
        """Send log bytes, all in one file, as frames of at most `batch_bytes`, after `can_send_file` said yes.

        Raises:
          trio.BrokenResourceError: the connection is gone.
        """
        end = offset + size_bytes
        try:
            while offset < end:
                size = min(batch_bytes, end - offset)
                await self._send_more(encode_transfer_head(offset, size))
                await self._send_body(offset - self._base, size)
                offset += size
        except OSError as error:
            raise trio.BrokenResourceError from error
        await trio.lowlevel.checkpoint()

    async def _send_more(self, head: bytes) -> None:
        """Send a head whose body follows at once: both may share a packet."""
        assert self._sock is not None
        while head:
            try:
                head = head[self._sock.send(head, socket.MSG_MORE) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._sock)

    async def _send_body(self, position: int, size_bytes: int) -> None:
        assert self._sock is not None
        while size_bytes:
            try:
                sent = os.sendfile(self._sock.fileno(), self._descriptor, position, size_bytes)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._sock)
                continue
            if not sent:
                raise OSError(f"the log file ends at {position}")
            position += sent
            size_bytes -= sent

    def _open(self, offset: int) -> bool:
        base = offset - offset % self._file_bytes
        if base != self._base:
            self.close()
            try:
                descriptor = self._log.open_log_file(offset)
            except OSError:  # expired meanwhile, or too many files are open: views do as well
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


def views_after(views: Views, sent_bytes: int) -> Views:
    """What is left of `views` when their first `sent_bytes` are gone; nothing is copied."""
    for index, view in enumerate(views):
        if sent_bytes < len(view):
            return [memoryview(view)[sent_bytes:], *views[index + 1 :]]
        sent_bytes -= len(view)
    return []


@contextmanager
def open_outlet(stream: trio.abc.Stream, log: LogFiles, file_bytes: int) -> Iterator[Outlet]:
    """An outlet for a stream, while the context is open; the stream stays the caller's."""
    with bare_socket(stream) as sock:
        if sock is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            # trio's low-water mark keeps interactive streams short of unsent bytes, and starves a bulk one.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 0)
        outlet = Outlet(stream, sock, log, file_bytes)
        try:
            yield outlet
        finally:
            outlet.close()
