"""Connected TCP sockets whose calls are tried at once, and which wait only when a call would block.

trio's own socket objects have no calls that never wait, and a wait costs a turn of the event loop. Links (`transport`,
`tls.transport`) and both ends of replication use this class. Elsewhere a socket is only peeked at (its first byte, which
distinguishes TLS from plain TCP) or belongs to another protocol (metrics, commands to a cluster).
This module does not interpret the bytes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket

import trio

Buffer = bytes | bytearray | memoryview

BULK_BYTES = 8192
"""A read of at least this size is taken as a sign that more bytes are already available."""
_RECEIVE_BYTES_LEAST = 65_536
_RECEIVE_BYTES_MOST = 1_048_576
# Up to this total, in pieces that are smaller than the second figure on average, copying the pieces together is cheaper
# than handing the kernel a list of them.
_JOIN_BYTES_MOST = 65_536
_PIECE_BYTES_LEAST = 8192
_PIECES_MOST = 1024
"""IOV_MAX of Linux."""
HAS_SPLICE = hasattr(os, "splice")
_PIPE_BYTES = 1024 * 1024
"""What one splice moves, and what Linux lets any user have. With a quarter of it a third to a half less is moved per
second: nothing is copied into a pipe, so a small one does not spare the processor's cache."""
_COPY_BYTES = 65_536


class NonBlockingSocket:
    """A second, non-blocking object on the descriptor of a trio stream, which stays the descriptor's owner.

    A broken connection raises trio.BrokenResourceError from every method; a wait also ends with
    trio.ClosedResourceError when the stream is closed during it.

    Args:
        stream: the connection; the caller closes it, after `release`.

    Attributes:
        can_splice: whether `splice_now` works here.
    """

    is_socket = True

    def __init__(self, stream: trio.SocketStream) -> None:
        owner = stream.socket
        with contextlib.suppress(OSError):  # some systems refuse options once the peer has disconnected
            owner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                # trio keeps interactive streams short of unsent bytes, which starves large pull answers and log
                # transfers.
                owner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 0)
        self._socket = socket.socket(fileno=owner.fileno())
        self._socket.setblocking(False)
        self._receive_bytes = _RECEIVE_BYTES_LEAST
        self._receive_most = _RECEIVE_BYTES_MOST
        self._expect_more = False
        self._pipe: tuple[int, int] | None = None
        self.can_splice = HAS_SPLICE

    def fileno(self) -> int:
        """The descriptor, to wait for many sockets at once."""
        return self._socket.fileno()

    def release(self) -> None:
        """Let go of the descriptor without closing it. Nothing else may be called afterwards; safe to repeat."""
        self._socket.detach()
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            os.close(pipe[0])
            os.close(pipe[1])

    # Receiving

    async def receive(self) -> bytes:
        """Wait for bytes and return those available, ``b""`` at the end; exactly one checkpoint.

        The buffer grows while reads fill it and shrinks again afterwards. Reading before waiting is worthwhile while
        requests stream in; after a short read it mostly finds nothing, and the failed call would cost a tenth of a
        small request.
        """
        data = None
        if self._expect_more:
            data = self.receive_now()
            if data is not None:
                await trio.lowlevel.checkpoint()
        while data is None:
            await self.wait_readable()
            data = self.receive_now()
        self._expect_more = len(data) >= BULK_BYTES
        return data

    def receive_now(self) -> bytes | None:
        """The available bytes, ``b""`` at the end of the stream, None if there are none yet."""
        asked = self._receive_bytes
        try:
            data = self._socket.recv(asked)
        except BlockingIOError:
            return None
        except OSError as error:
            raise trio.BrokenResourceError from error
        if len(data) == asked:
            self._receive_bytes = min(asked * 2, self._receive_most)
        elif asked > _RECEIVE_BYTES_LEAST:
            self._receive_bytes = _RECEIVE_BYTES_LEAST
        return data

    def receive_into_now(self, buffer: memoryview) -> int | None:
        """Read available bytes into `buffer`; returns their number, 0 at the end of the stream, None if there are none yet."""
        try:
            return self._socket.recv_into(buffer)
        except BlockingIOError:
            return None
        except OSError as error:
            raise trio.BrokenResourceError from error

    def splice_now(self, descriptor: int, position: int, size_bytes: int) -> int | None:
        """Move up to `size_bytes` available bytes into a file inside the kernel; returns as `receive_into_now` does.

        Raises:
            OSError: the file took only a part. The rest is lost, so the connection must be closed.
        """
        pipe_out, pipe_in = self._pipe or self._open_pipe()
        try:
            came = os.splice(self._socket.fileno(), pipe_in, min(size_bytes, _PIPE_BYTES), flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            return None
        except OSError as error:
            raise trio.BrokenResourceError from error
        left = came
        while left:
            try:
                moved = os.splice(pipe_out, descriptor, left, offset_dst=position, flags=os.SPLICE_F_MOVE)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.can_splice = False  # not on this file system
                moved = os.pwrite(descriptor, os.read(pipe_out, min(left, _COPY_BYTES)), position)
            position += moved
            left -= moved
        return came

    def _open_pipe(self) -> tuple[int, int]:
        self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with contextlib.suppress(OSError):  # the user's limit is reached; the usual 64 KiB work as well
            fcntl.fcntl(self._pipe[1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        return self._pipe

    async def wait_readable(self) -> None:
        """Wait until there may be something to receive; also ends at the end of the stream."""
        try:
            await trio.lowlevel.wait_readable(self._socket)
        except OSError as error:
            raise trio.BrokenResourceError from error

    # Sending

    def send_now(self, pieces: list[Buffer]) -> list[Buffer]:
        """Send as much as possible without waiting, in one call; returns the rest, as views of the pieces."""
        if len(pieces) == 1:
            data = pieces[0]
        else:
            total = sum(map(len, pieces))
            if total > _JOIN_BYTES_MOST or total > len(pieces) * _PIECE_BYTES_LEAST:
                return self._send_vector(pieces)
            data = b"".join(pieces)
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise trio.BrokenResourceError from error
        return [] if sent == len(data) else [memoryview(data)[sent:]]

    def _send_vector(self, pieces: list[Buffer]) -> list[Buffer]:
        """Send large pieces uncopied, as far as the kernel takes them."""
        first = pieces if len(pieces) <= _PIECES_MOST else pieces[:_PIECES_MOST]
        try:
            sent = self._socket.sendmsg(first)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise trio.BrokenResourceError from error
        for index, piece in enumerate(first):
            if sent < len(piece):
                return [memoryview(piece)[sent:], *pieces[index + 1 :]]
            sent -= len(piece)
        return self._send_vector(pieces[_PIECES_MOST:]) if len(pieces) > _PIECES_MOST else []

    async def send_some(self, data: memoryview) -> int:
        """Wait until some bytes could be sent; returns how many."""
        while True:
            await self.wait_writable()
            try:
                return self._socket.send(data)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error

    async def send_before_file(self, head: bytes) -> None:
        """Send bytes that `send_file` follows at once: both may share a packet. Waits only when the socket is full."""
        while head:
            try:
                head = head[self._socket.send(head, socket.MSG_MORE) :]
            except BlockingIOError:
                await self.wait_writable()
            except OSError as error:
                raise trio.BrokenResourceError from error

    async def send_file(self, descriptor: int, position: int, size_bytes: int) -> None:
        """Send a part of a file from the page cache (`sendfile`). Waits only when the socket is full.

        Raises:
            trio.BrokenResourceError: the connection is broken, or the file ends early.
        """
        while size_bytes:
            try:
                sent = os.sendfile(self._socket.fileno(), descriptor, position, size_bytes)
            except BlockingIOError:
                await self.wait_writable()
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error
            if not sent:
                raise trio.BrokenResourceError from OSError(f"the file ends at {position}")
            position += sent
            size_bytes -= sent

    async def wait_writable(self) -> None:
        """Wait until the socket may take more bytes."""
        try:
            await trio.lowlevel.wait_writable(self._socket)
        except OSError as error:
            raise trio.BrokenResourceError from error
