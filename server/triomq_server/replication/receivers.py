"""The receiving end of a replication link: a TCP socket (`wire.sockets`), or any other stream, as in tests.

Available bytes are read at once, without a wait. That saves a turn of the event loop per frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from triomq_server.wire.sockets import Buffer, NonBlockingSocket

_CHUNK_BYTES = 65536


class Receiver(Protocol):
    """The bytes received over one link. A broken link raises trio.BrokenResourceError."""

    def receive_into_now(self, buffer: memoryview) -> int | None:
        """Read available bytes into `buffer`; returns their number, 0 at the end of the stream, None if there are none yet."""

    def splice_now(self, descriptor: int, position: int, size_bytes: int) -> int | None:
        """Move available bytes, up to a number, into a file; returns as `receive_into_now` does.

        OSError: the file does not take them.
        """

    @property
    def is_socket(self) -> bool:
        """Whether it costs next to nothing to check if something has come."""

    @property
    def can_splice(self) -> bool:
        """Whether `splice_now` works here."""

    async def wait_readable(self) -> None:
        """Wait until there may be something; also ends at the end of the stream."""

    def send_now(self, pieces: list[Buffer]) -> list[Buffer]:
        """Send as much as possible without waiting; returns the rest."""


class StreamReceiver:
    """Any other stream: `wait_readable` fetches the bytes, and nothing is sent at once."""

    is_socket = False
    can_splice = False

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._received: bytes | bytearray | None = None

    def receive_into_now(self, buffer: memoryview) -> int | None:
        """See Receiver."""
        received = self._received
        if received is None:
            return None
        size = min(len(received), len(buffer))
        buffer[:size] = received[:size]
        self._received = received[size:] or None if received else received
        return size

    def splice_now(self, descriptor: int, position: int, size_bytes: int) -> int | None:  # noqa: ARG002
        """Never called, since `can_splice` is false."""
        raise AssertionError("a stream has no descriptor to splice from")

    async def wait_readable(self) -> None:
        """See Receiver."""
        if self._received is None:
            self._received = await self._stream.receive_some(_CHUNK_BYTES)

    def send_now(self, pieces: list[Buffer]) -> list[Buffer]:
        """See Receiver."""
        return list(pieces)


@contextmanager
def open_receiver(stream: trio.abc.Stream) -> Iterator[Receiver]:
    """The fastest receiver for a stream, while the context is open; the stream stays the caller's."""
    if not isinstance(stream, trio.SocketStream):
        yield StreamReceiver(stream)
        return
    sock = NonBlockingSocket(stream)
    try:
        yield sock
    finally:
        sock.release()
