"""Byte transports under a link: a socket that is tried before it is waited for, or any other trio stream.

Bytes come and go through the two classes here. A socket's calls are made at once and waited for only when they would
block, which saves a turn of the loop per ping-pong; other streams (memory streams of tests, TLS) go through trio's own
methods. ``Dial`` and ``Listen`` are the plug points by which tests hand in a network of their own.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import trio

from triomq_protocol.record import pack_host

Dial = Callable[[str], Awaitable[trio.abc.Stream]]
"""Connects to ``host:port``; raises OSError when that fails."""

Listen = Callable[[str, int], Awaitable[Sequence[trio.abc.Listener[trio.abc.Stream]]]]
"""Listens on a host and a port, 0 for any free one."""

Buffer = bytes | bytearray | memoryview

BACKLOG = 1024
_RECEIVE_BYTES_LEAST = 65_536
_RECEIVE_BYTES_MOST = 1_048_576
# A read of at least so much is taken as a sign that the next bytes are there already.
BULK_BYTES = 8192
# Up to so much in pieces that are smaller than this on average, copying them together is cheaper than handing the kernel a
# list of them.
_JOIN_BYTES_MOST = 65_536
_PIECE_BYTES_LEAST = 8192
# IOV_MAX of Linux.
_PIECES_MOST = 1024


class Transport(Protocol):
    """What a link needs of the bytes below it. Broken ends are reported as OSError or as trio's resource errors."""

    peer: str
    peer_host: bytes

    async def receive(self) -> bytes:
        """Wait for bytes and return what is there, ``b""`` at the end; exactly one checkpoint."""

    def send_now(self, pieces: list[Buffer]) -> bytes:
        """Write what goes without waiting; returns a copy of what is left."""

    async def send_some(self, data: memoryview) -> int:
        """Wait until some bytes could be written; returns how many."""

    async def aclose(self) -> None:
        """Close without waiting for the peer. Whoever waits in the other methods wakes with an error."""


class SocketTransport:
    """A connected TCP socket.

    Args:
        stream: trio's view of the socket; it stays the owner of the file descriptor.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        owner = stream.socket
        # First what can fail, when the peer has gone already.
        self.peer, self.peer_host = _peer_of(owner.getpeername())
        owner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            # trio keeps interactive streams short of unsent bytes, which starves large pull answers.
            owner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 0)
        self._stream = stream
        self._receive_bytes = _RECEIVE_BYTES_LEAST
        self._expect_more = False
        # A second object on the same descriptor: trio's own has no calls that never wait.
        self._socket = socket.socket(fileno=owner.fileno())
        self._socket.setblocking(False)

    async def receive(self) -> bytes:
        """See Transport. The buffer grows while reads fill it and shrinks again afterwards.

        Reading without waiting first pays where requests stream in; after a short read it mostly finds nothing, and the
        failed call would cost a tenth of a small request.
        """
        asked = self._receive_bytes
        data = None
        if self._expect_more:
            try:
                data = self._socket.recv(asked)
            except BlockingIOError:
                pass
            else:
                await trio.lowlevel.checkpoint()
        while data is None:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                data = self._socket.recv(asked)
            except BlockingIOError:
                continue
        size = len(data)
        self._expect_more = size >= BULK_BYTES
        if size == asked:
            self._receive_bytes = min(asked * 2, _RECEIVE_BYTES_MOST)
        elif asked > _RECEIVE_BYTES_LEAST:
            self._receive_bytes = _RECEIVE_BYTES_LEAST
        return data

    def fileno(self) -> int:
        """The descriptor, for whoever waits for many sockets at once."""
        return self._socket.fileno()

    def receive_now(self) -> bytes | None:
        """What is there, ``b""`` at the end, None if there is nothing yet. Raises OSError."""
        asked = self._receive_bytes
        try:
            data = self._socket.recv(asked)
        except BlockingIOError:
            return None
        if len(data) == asked:
            self._receive_bytes = min(asked * 2, _RECEIVE_BYTES_MOST)
        elif asked > _RECEIVE_BYTES_LEAST:
            self._receive_bytes = _RECEIVE_BYTES_LEAST
        return data

    def send_now(self, pieces: list[Buffer]) -> bytes:
        """See Transport."""
        if len(pieces) == 1:
            data = pieces[0]
        else:
            total = sum(map(len, pieces))
            if total > _JOIN_BYTES_MOST or total > len(pieces) * _PIECE_BYTES_LEAST:
                return self._send_many(pieces)
            data = b"".join(pieces)
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        return b"" if sent == len(data) else bytes(memoryview(data)[sent:])

    def _send_many(self, pieces: list[Buffer]) -> bytes:
        """Large pieces in one call, uncopied as far as the kernel takes them."""
        first = pieces[:_PIECES_MOST]
        try:
            sent = self._socket.sendmsg(first)
        except BlockingIOError:
            sent = 0
        if sent == sum(map(len, first)):
            return self._send_many(pieces[_PIECES_MOST:]) if len(pieces) > _PIECES_MOST else b""
        left: list[Buffer] = []
        for index, piece in enumerate(pieces):
            if sent < len(piece):
                left = [memoryview(piece)[sent:], *pieces[index + 1 :]]
                break
            sent -= len(piece)
        return b"".join(left)

    async def send_some(self, data: memoryview) -> int:
        """See Transport."""
        while True:
            await trio.lowlevel.wait_writable(self._socket)
            try:
                return self._socket.send(data)
            except BlockingIOError:
                continue

    async def aclose(self) -> None:
        """See Transport. The descriptor is closed at once, by its owner."""
        self._socket.detach()
        self._stream.socket.close()
        await trio.lowlevel.cancel_shielded_checkpoint()


class StreamTransport:
    """Any other stream: nothing is sent at once, and the link's drain task does the sending.

    Args:
        stream: closed by ``aclose``.
        peer: what to call the other end, as ``ip:port`` when it has one.
    """

    def __init__(self, stream: trio.abc.Stream, peer: tuple[str, int] | None = None) -> None:
        self._stream = stream
        address = peer or getattr(stream, "peer", None) or ("127.0.0.1", 0)
        self.peer, self.peer_host = _peer_of(address)

    async def receive(self) -> bytes:
        """See Transport."""
        return bytes(await self._stream.receive_some(_RECEIVE_BYTES_LEAST))

    def send_now(self, pieces: list[Buffer]) -> bytes:
        """See Transport; these streams know no sending without waiting."""
        return b"".join(pieces)

    async def send_some(self, data: memoryview) -> int:
        """See Transport. Whole chunks, so that the idle clock sees progress."""
        chunk = data[:_RECEIVE_BYTES_LEAST]
        await self._stream.send_all(bytes(chunk))
        return len(chunk)

    async def aclose(self) -> None:
        """See Transport."""
        await trio.aclose_forcefully(self._stream)


def transport_over(stream: trio.abc.Stream, peer: tuple[str, int] | None = None) -> Transport:
    """The fastest transport for a stream. Raises OSError when a socket has been closed meanwhile."""
    if isinstance(stream, trio.SocketStream):
        return SocketTransport(stream)
    return StreamTransport(stream, peer)


async def dial_tcp(address: str) -> trio.abc.Stream:
    """Connect to ``host:port``, split at the last colon; an IPv6 host stands in brackets. Raises OSError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise OSError(f"{address!r} is no host:port")
    return await trio.open_tcp_stream(host.removeprefix("[").removesuffix("]"), int(port))


async def listen_tcp(host: str, port: int) -> Sequence[trio.abc.Listener[trio.abc.Stream]]:
    """Listen with SO_REUSEADDR and a backlog of 1024; raises OSError."""
    return await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)


def address_of(listener: trio.abc.Listener[trio.abc.Stream]) -> str:
    """``ip:port`` a listener really has, IPv6 in brackets."""
    if isinstance(listener, trio.SocketListener):
        name = listener.socket.getsockname()
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
    return str(getattr(listener, "address", type(listener).__name__))


def _peer_of(name: tuple[str, int] | tuple[str, int, int, int]) -> tuple[str, bytes]:
    """Text and packed form of a socket address; an IPv4 address in IPv6 clothes is taken out of them."""
    host = name[0].partition("%")[0]
    parsed = ipaddress.ip_address(host)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        host = str(parsed.ipv4_mapped)
    text = f"[{host}]:{name[1]}" if ":" in host else f"{host}:{name[1]}"
    return text, pack_host(host, name[1])
