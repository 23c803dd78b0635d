"""Transports: a link's connection, a TCP socket (``sockets``) or any other trio stream.

Other streams (memory streams of tests, TLS) are used by trio's own methods. ``Dial`` and ``Listen`` are the plug points
for the networks of tests; the defaults for TCP are here too.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import trio

from triomq_protocol.hosts import pack_host
from triomq_server.wire.sockets import Buffer, NonBlockingSocket

ACCEPTED_AT_ONCE: Final = 64
"""Connections that are accepted in one turn of the loop: a burst of new ones before others would take a turn each."""

Dial = Callable[[str], Awaitable[trio.abc.Stream]]
"""Connects to ``host:port``; raises OSError when that fails."""

Listen = Callable[[str, int], Awaitable[Sequence[trio.abc.Listener[trio.abc.Stream]]]]
"""Listens on a host and a port, 0 for any free one."""

BACKLOG = 1024
_RECEIVE_BYTES = 65_536


class Transport(Protocol):
    """A link's connection. A broken connection raises OSError or one of trio's resource errors."""

    peer: str
    peer_host: bytes

    async def receive(self) -> bytes:
        """Wait for bytes and return those available, ``b""`` at the end; exactly one checkpoint."""

    def send_now(self, pieces: list[Buffer]) -> list[Buffer]:
        """Send as much as possible without waiting; returns the rest, as views of the pieces."""

    async def send_some(self, data: memoryview) -> int:
        """Wait until some bytes could be written; returns how many."""

    async def aclose(self) -> None:
        """Close without waiting for the peer. A wait in one of the other methods ends with an error."""


class SocketTransport(NonBlockingSocket):
    """A connected TCP socket.

    Args:
        stream: trio's view of the socket; closed by ``aclose``.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        # First the calls that fail if the peer has already disconnected.
        self.peer, self.peer_host = _peer_of(stream.socket.getpeername())
        super().__init__(stream)
        self._stream = stream

    def early(self) -> bytes:
        """Bytes received before the first `receive_now`, which no readable socket reports: none, except with TLS."""
        return b""

    async def aclose(self) -> None:
        """See Transport. The descriptor is closed at once, by its owner."""
        self.release()
        self._stream.socket.close()
        await trio.lowlevel.cancel_shielded_checkpoint()


class StreamTransport:
    """Any other stream. The link's drain task sends the bytes that the stream does not take at once.

    Args:
        stream: closed by ``aclose``. If it has ``send_nowait``, as the SDK's `NowaitStream`, it can take bytes at once.
        peer: name of the other end, as ``ip:port`` if it has one.
    """

    def __init__(self, stream: trio.abc.Stream, peer: tuple[str, int] | None = None) -> None:
        self._stream = stream
        self._send_nowait: Callable[[bytes], int] | None = getattr(stream, "send_nowait", None)
        address = peer or getattr(stream, "peer", None) or ("127.0.0.1", 0)
        self.peer, self.peer_host = _peer_of(address)

    async def receive(self) -> bytes:
        """See Transport."""
        return bytes(await self._stream.receive_some(_RECEIVE_BYTES))

    def send_now(self, pieces: list[Buffer]) -> list[Buffer]:
        """See Transport."""
        if self._send_nowait is None:
            return list(pieces)
        data = b"".join(pieces)
        return [memoryview(data)[self._send_nowait(data) :]]

    async def send_some(self, data: memoryview) -> int:
        """See Transport. Whole chunks, so that the idle clock sees progress."""
        chunk = data[:_RECEIVE_BYTES]
        await self._stream.send_all(bytes(chunk))
        return len(chunk)

    async def aclose(self) -> None:
        """See Transport."""
        await trio.aclose_forcefully(self._stream)


def transport_over(stream: trio.abc.Stream) -> Transport:
    """The fastest transport for a stream. Raises OSError if its socket has been closed."""
    if isinstance(stream, trio.SocketStream):
        return SocketTransport(stream)
    below = getattr(stream, "transport_stream", None)
    return StreamTransport(stream, below.socket.getpeername()[:2] if isinstance(below, trio.SocketStream) else None)


async def dial_tcp(address: str) -> trio.abc.Stream:
    """Connect to ``host:port``, split at the last colon; an IPv6 host is in brackets. Raises OSError."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        raise OSError(f"{address!r} is not host:port")
    try:
        return await trio.open_tcp_stream(host.removeprefix("[").removesuffix("]"), int(port))
    except ValueError as error:  # a name with a NUL, or a name that IDNA cannot encode
        raise OSError(f"{host!r} is not the name or address of a host: {error}") from error
    except RuntimeError as error:  # a name is looked up in a thread, and none can be started
        from triomq_server.disk import THREADS_CURE

        raise OSError(f"{host!r} cannot be looked up: {error}; {THREADS_CURE}") from error


async def listen_tcp(host: str, port: int) -> Sequence[trio.abc.Listener[trio.abc.Stream]]:
    """Listen with SO_REUSEADDR and a backlog of 1024; raises OSError."""
    try:
        return await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except UnicodeError as error:
        raise no_host_name(host) from error


def no_host_name(host: str) -> socket.gaierror:
    """The error for a text that no host can have for a name, such as one with an empty part; Python has another one."""
    return socket.gaierror(socket.EAI_NONAME, f"{host!r} is not a host name")


def address_of(listener: trio.abc.Listener[trio.abc.Stream]) -> str:
    """``ip:port`` a listener really has, IPv6 in brackets."""
    if isinstance(listener, trio.SocketListener):
        name = listener.socket.getsockname()
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
    return str(getattr(listener, "address", type(listener).__name__))


def _peer_of(name: tuple[str, int] | tuple[str, int, int, int]) -> tuple[str, bytes]:
    """Text and packed form of a socket address; an IPv4-mapped IPv6 address becomes plain IPv4."""
    host = name[0].partition("%")[0]
    parsed = ipaddress.ip_address(host)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        host = str(parsed.ipv4_mapped)
    text = f"[{host}]:{name[1]}" if ":" in host else f"{host}:{name[1]}"
    return text, pack_host(host, name[1])


def peer_name(stream: trio.abc.Stream) -> str:
    """``ip:port`` of the other end for log lines, or what kind of stream it is."""
    stream = getattr(stream, "transport_stream", stream)
    if not isinstance(stream, trio.SocketStream):
        peer = getattr(stream, "peer", None)
        return type(stream).__name__ if peer is None else f"{peer[0]}:{peer[1]}"
    try:
        name = stream.socket.getpeername()
    except OSError:
        return "a closed connection"
    return f"{name[0]}:{name[1]}"


def peer_host_name(stream: trio.abc.Stream) -> str:
    """The address of the other end without its port, of IPv6 its network of 64 bits, all of whose addresses one host may
    use; empty if it has none, or has already disconnected."""
    if not isinstance(stream, trio.SocketStream):
        return str((getattr(stream, "peer", None) or ("",))[0])
    return network_of(peer_name(stream).rpartition(":")[0])


def network_of(host: str) -> str:
    """See `peer_host_name`; an IPv4-mapped IPv6 address becomes plain IPv4."""
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(parsed, ipaddress.IPv6Address):
        return host
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))


def failure_reason(error: BaseException) -> str:
    """Why a connection ended or could not be made, in a few words: the error below the wrappers."""
    cause = error.__cause__ or error
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return error_text(cause)


def error_text(error: BaseException) -> str:
    """The text of an error, or its class if it has no text, as many of trio's errors."""
    return str(error) or type(error).__name__


async def accept_some(listener: trio.abc.Listener[trio.abc.Stream]) -> list[trio.abc.Stream]:
    """Wait for a connection, and accept all that are waiting. Raises OSError if none can be accepted."""
    streams = [await listener.accept()]
    if isinstance(listener, trio.SocketListener):
        waiting = socket.socket(fileno=listener.socket.fileno())
        waiting.setblocking(False)
        try:
            while len(streams) < ACCEPTED_AT_ONCE:
                accepted, _ = waiting.accept()
                streams.append(trio.SocketStream(trio.socket.from_stdlib_socket(accepted)))
        except OSError:
            pass  # none is waiting, or the next call reports the error
        finally:
            waiting.detach()
    return streams
