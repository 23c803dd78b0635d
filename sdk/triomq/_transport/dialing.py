"""Opening byte streams: TCP, TLS, or what a caller hands in.

A dialer is an async function from ``"host:port"`` to a ``trio.abc.Stream``.  Streams that can send
and receive without waiting (:class:`NowaitStream`) save a turn of the scheduler; others work as well.
"""

from __future__ import annotations

import os
import socket
import ssl
import weakref
from typing import Protocol, runtime_checkable

import trio

from triomq.errors import InvalidCall


class Dialer(Protocol):
    """Opens a stream to an address; the caller sets the deadline."""

    async def __call__(self, address: str, /) -> trio.abc.Stream:
        """Open a stream.

        Args:
            address: ``host:port``, IPv6 hosts in brackets.

        Raises:
            OSError: no connection can be opened.
        """


@runtime_checkable
class NowaitStream(Protocol):
    """A stream whose next bytes can be had, or given, without waiting."""

    def send_nowait(self, data: bytes | bytearray | memoryview, /) -> int:
        """Hand over what fits now; returns the number of bytes taken, 0 when it would block."""

    def receive_nowait(self, max_bytes: int, /) -> bytes:
        """Bytes that have already arrived, b"" at the end of the stream; raises ``trio.WouldBlock``."""


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``, split at the last colon; brackets around an IPv6 host are dropped.

    Raises:
        ValueError: there is no port, or it is no number from 1 to 65535.
    """
    host, _, port = address.strip().rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


_open_streams: weakref.WeakSet[SocketStream] = weakref.WeakSet()


class SocketStream(trio.abc.HalfCloseableStream):
    """A TCP connection on a non-blocking socket: the call is tried first, and waited for only if it would block."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        _open_streams.add(self)

    def send_nowait(self, data: bytes | bytearray | memoryview, /) -> int:
        """Hand bytes to the kernel; returns how many it took."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._broken(error) from error

    def receive_nowait(self, max_bytes: int, /) -> bytes:
        """Bytes the kernel has; b"" at the end of the stream; raises ``trio.WouldBlock``."""
        try:
            return self._socket.recv(max_bytes)
        except (BlockingIOError, InterruptedError):
            raise trio.WouldBlock from None
        except OSError as error:
            raise self._broken(error) from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything; a cancel may leave part of it sent, so only the link's writer calls this."""
        rest = memoryview(data)
        while rest:
            sent = self.send_nowait(rest)
            rest = rest[sent:]
            if rest:
                await self.wait_send_all_might_not_block()
        await trio.lowlevel.checkpoint_if_cancelled()

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the kernel takes bytes again."""
        if self._socket.fileno() < 0:
            raise trio.ClosedResourceError
        await trio.lowlevel.wait_writable(self._socket)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for bytes; b"" at the end of the stream."""
        while True:
            if self._socket.fileno() < 0:
                raise trio.ClosedResourceError
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self.receive_nowait(max_bytes or 65536)
            except trio.WouldBlock:
                continue

    async def send_eof(self) -> None:
        """Shut down the sending side."""
        await trio.lowlevel.checkpoint()
        self._socket.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        """Close at once; tasks that wait on the stream get ``trio.ClosedResourceError``."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        await trio.lowlevel.checkpoint()

    def forget(self) -> None:
        """Close this process's copy of the descriptor and nothing else: what a forked child does."""
        self._socket.close()

    def _broken(self, error: OSError) -> trio.BrokenResourceError | trio.ClosedResourceError:
        if self._socket.fileno() < 0:
            return trio.ClosedResourceError("this stream was closed")
        return trio.BrokenResourceError(f"the connection broke: {error}")


async def dial_tcp(address: str, /) -> trio.abc.HalfCloseableStream:
    """The default dialer: plain TCP without Nagle's delay (docs/protocol/remoting.md §9 and §10)."""
    host, port = split_address(address)
    stream = await trio.open_tcp_stream(host, port)
    # The descriptor moves to a socket of the standard library: its non-blocking calls need no await.
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return SocketStream(sock)


def tls_dialer(context: ssl.SSLContext | None = None, *, verify: bool = True) -> Dialer:
    """A dialer for name servers and brokers that speak TLS (docs/protocol/remoting.md §12).

    Args:
        context: what to trust and to show; used as it is. It checks host names if its ``check_hostname`` is set, as
            ``ssl.create_default_context(cafile=...)`` sets it; the certificates of RocketMQ servers often bear none.
            By default the system's authorities are trusted and names are checked.
        verify: False encrypts without verifying the server, as Java's test mode does: whoever answers at the address
            can read and change everything.

    Raises:
        InvalidCall: ``verify=False`` with a context, which says itself what it verifies.
    """
    if context is None:
        context = ssl.create_default_context()
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
    elif not verify:
        raise InvalidCall("tls_dialer takes a context or verify=False, not both: the context says what it verifies")

    async def dial(address: str, /) -> trio.abc.Stream:
        stream = trio.SSLStream(
            await dial_tcp(address), context, server_hostname=split_address(address)[0], https_compatible=True
        )
        try:
            await stream.do_handshake()
        except trio.BrokenResourceError as error:
            await trio.aclose_forcefully(stream)
            reason = error.__cause__
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise OSError(f"TLS: {reason.verify_message or reason}") from error
            raise OSError(f"no TLS handshake, as with a port that speaks plain TCP: {reason or error}") from error
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream

    return dial


def _forget_parents_streams() -> None:
    for stream in list(_open_streams):
        stream.forget()
    _open_streams.clear()


# A forked child would keep the parent's connections open, and their ends would never be seen.
os.register_at_fork(after_in_child=_forget_parents_streams)
