"""The slave's end of the wire: what has come is taken at once, and waited for only when there is nothing.

A socket is tried before the loop is asked, which saves a turn of the loop per frame; and the large bodies of a catch-up go
from it into the log's file inside the kernel (`splice`), so that they cost one copy instead of two. Any other stream, as
used by tests, works too, only slower.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from triomq_server.replication.sockets import bare_socket

HAS_SPLICE = hasattr(os, "splice")
_PIPE_BYTES = 1024 * 1024
"""What one splice moves, and what Linux lets any user have. A quarter of it moves a third to a half less in a second: nothing
is copied into a pipe, so that no cache is spared by a small one."""
_CHUNK_BYTES = 65536


class Inlet(Protocol):
    """What has come over one link. A broken link raises trio.BrokenResourceError."""

    def receive_now(self, buffer: memoryview) -> int | None:
        """Put what is there into `buffer`; its length, 0 at the end of the stream, None if nothing is there yet."""

    def splice_now(self, descriptor: int, position: int, size_bytes: int) -> int | None:
        """Put what is there, at most so many bytes, into a file; as `receive_now`. OSError: the file does not take it."""

    @property
    def is_socket(self) -> bool:
        """Whether it costs next to nothing to look whether something has come."""

    @property
    def can_splice(self) -> bool:
        """Whether `splice_now` works here."""

    async def wait(self) -> None:
        """Wait until there may be something; also at the end of the stream."""

    def send_now(self, data: bytes) -> bytes:
        """Send what goes without waiting; what is left."""


class SocketInlet:
    """A connected socket. Use `open_inlet`."""

    is_socket = True

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._pipe: tuple[int, int] | None = None
        self.can_splice = HAS_SPLICE

    def receive_now(self, buffer: memoryview) -> int | None:
        """See Inlet."""
        try:
            return self._socket.recv_into(buffer)
        except BlockingIOError:
            return None
        except OSError as error:
            raise trio.BrokenResourceError from error

    def splice_now(self, descriptor: int, position: int, size_bytes: int) -> int | None:
        """See Inlet. A file that takes less than has come leaves the link useless: it must be closed."""
        outlet, entry = self._pipe or self._open_pipe()
        try:
            came = os.splice(self._socket.fileno(), entry, min(size_bytes, _PIPE_BYTES), flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            return None
        except OSError as error:
            raise trio.BrokenResourceError from error
        left = came
        while left:
            try:
                moved = os.splice(outlet, descriptor, left, offset_dst=position, flags=os.SPLICE_F_MOVE)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.can_splice = False  # not on this file system
                moved = os.pwrite(descriptor, os.read(outlet, min(left, _CHUNK_BYTES)), position)
            position += moved
            left -= moved
        return came

    def _open_pipe(self) -> tuple[int, int]:
        self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with contextlib.suppress(OSError):  # a limit of the user's; the usual 64 KiB do as well
            fcntl.fcntl(self._pipe[1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        return self._pipe

    async def wait(self) -> None:
        """See Inlet."""
        try:
            await trio.lowlevel.wait_readable(self._socket)
        except OSError as error:
            raise trio.BrokenResourceError from error

    def send_now(self, data: bytes) -> bytes:
        """See Inlet."""
        try:
            return data[self._socket.send(data) :]
        except BlockingIOError:
            return data
        except OSError as error:
            raise trio.BrokenResourceError from error

    def close(self) -> None:
        """Let go of everything but the socket itself."""
        if self._pipe is not None:
            os.close(self._pipe[0])
            os.close(self._pipe[1])


class StreamInlet:
    """Any other stream: bytes are fetched by `wait`, and nothing is sent at once."""

    is_socket = False
    can_splice = False

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._here: bytes | bytearray | None = None

    def receive_now(self, buffer: memoryview) -> int | None:
        """See Inlet."""
        here = self._here
        if here is None:
            return None
        size = min(len(here), len(buffer))
        buffer[:size] = here[:size]
        self._here = here[size:] or None if here else here
        return size

    def splice_now(self, descriptor: int, position: int, size_bytes: int) -> int | None:  # noqa: ARG002
        """Never called: `can_splice` says no."""
        raise AssertionError("a stream has no descriptor to splice from")

    async def wait(self) -> None:
        """See Inlet."""
        if self._here is None:
            self._here = await self._stream.receive_some(_CHUNK_BYTES)

    def send_now(self, data: bytes) -> bytes:
        """See Inlet."""
        return data


@contextmanager
def open_inlet(stream: trio.abc.Stream) -> Iterator[Inlet]:
    """The fastest inlet for a stream, while the context is open; the stream stays the caller's."""
    with bare_socket(stream) as sock:
        if sock is None:
            yield StreamInlet(stream)
            return
        inlet = SocketInlet(sock)
        try:
            yield inlet
        finally:
            inlet.close()
