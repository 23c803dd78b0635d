"""A stream's socket, for calls that never wait: trio's own object has none, and its calls cost a turn of the loop each."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import trio


@contextmanager
def bare_socket(stream: trio.abc.Stream) -> Iterator[socket.socket | None]:
    """A second, non-blocking object on the stream's descriptor, while the context is open; None if it has none.

    The stream stays the owner of the descriptor, and is closed by whoever opened it, after this.
    """
    if not isinstance(stream, trio.SocketStream):
        yield None
        return
    sock = socket.socket(fileno=stream.socket.fileno())
    try:
        sock.setblocking(False)
        yield sock
    finally:
        sock.detach()
