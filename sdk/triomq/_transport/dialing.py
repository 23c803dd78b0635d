"""Opens byte streams: TCP, TLS, or a dialer of the caller's.

A dialer is an async function from ``"host:port"`` to a ``trio.abc.Stream``.  Streams that can send
and receive without waiting (:class:`NowaitStream`) save a turn of the scheduler; others work as well.
"""

from __future__ import annotations

import os
import socket
import ssl
import weakref
from typing import Final, Protocol, runtime_checkable

import trio

from triomq._arguments.numbers import whole_number
from triomq._error_text import error_text, shown
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
    """A stream whose next bytes can be read, or written, without waiting."""

    def send_nowait(self, data: bytes | bytearray | memoryview, /) -> int:
        """Write as much as fits now; returns the number of bytes accepted, 0 if it would block."""

    def receive_nowait(self, max_bytes: int, /) -> bytes:
        """Bytes that have already arrived, b"" at the end of the stream; raises ``trio.WouldBlock``."""


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``, split at the last colon; brackets around an IPv6 host are dropped.

    Raises:
        ValueError: there is no port, or it is not a number from 1 to 65535.
    """
    host, _, digits = address.strip().rpartition(":")
    port = whole_number(digits) or 0
    if not host or "," in host or "/" in host or not 0 < port < 65536:
        hint = "; addresses are separated by ';'" if "," in address else ""
        raise ValueError(f"{shown(address)} is not host:port, such as 127.0.0.1:9876{hint}")
    return host.removeprefix("[").removesuffix("]"), port


_open_streams: weakref.WeakSet[SocketStream] = weakref.WeakSet()


class SocketStream(trio.abc.HalfCloseableStream):
    """A TCP connection on a non-blocking socket: each call is tried first, and waits only if it would block."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        _open_streams.add(self)

    def send_nowait(self, data: bytes | bytearray | memoryview, /) -> int:
        """Pass bytes to the kernel; returns how many it accepted."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._broken(error) from error

    def receive_nowait(self, max_bytes: int, /) -> bytes:
        """Bytes that the kernel has received; b"" at the end of the stream; raises ``trio.WouldBlock``."""
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
        """Wait until the kernel accepts bytes again."""
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
        """Close only this process's copy of the descriptor, as a forked child does."""
        self._socket.close()

    def _broken(self, error: OSError) -> trio.BrokenResourceError | trio.ClosedResourceError:
        if self._socket.fileno() < 0:
            return trio.ClosedResourceError("this stream was closed")
        return trio.BrokenResourceError(f"the connection broke: {error_text(error)}")


async def dial_tcp(address: str, /) -> trio.abc.HalfCloseableStream:
    """The default dialer: plain TCP without Nagle's delay (docs/protocol/remoting.md §9 and §10)."""
    host, port = split_address(address)
    stream = await trio.open_tcp_stream(host, port)
    # The descriptor is moved to a socket of the standard library: its non-blocking calls need no await.
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return SocketStream(sock)


def tls_dialer(
    context: ssl.SSLContext | None = None,
    *,
    ca: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    key_password: str | None = None,
    check_host_name: bool = True,
    insecure: bool = False,
) -> Dialer:
    """A dialer for name servers and brokers that speak TLS (docs/protocol/remoting.md §12).

    By default the server's certificate must be signed by one of the system's authorities, and have the name or address
    that is dialled. Files are read now. For renewed ones give a context, and call its ``load_cert_chain`` again.

    Args:
        context: an ``ssl.SSLContext`` instead of all other arguments; used as it is, and never changed.
        ca: PEM file with the authorities to trust, instead of the system's.
        certificate: PEM file with the certificate for servers that ask for one.
        key: PEM file with its private key; by default it is in the same file.
        key_password: the key's password.
        check_host_name: False trusts every certificate of the authorities, whatever its names: certificates of
            RocketMQ servers often have none.
        insecure: True encrypts without verifying the server, as Java's test mode does: any process that answers at the address
            can read and change everything.

    Raises:
        InvalidCall: a file cannot be used, or arguments contradict each other.
    """
    others = ca, certificate, key, key_password
    if context is None:
        context = _tls_context(ca, certificate, key, key_password, check_host_name, insecure)
    elif insecure or not check_host_name or any(each is not None for each in others):
        raise InvalidCall("tls_dialer takes a context or other arguments, not both: the context says what it verifies")
    secure = context

    async def dial(address: str, /) -> trio.abc.Stream:
        stream = trio.SSLStream(
            await dial_tcp(address), secure, server_hostname=split_address(address)[0], https_compatible=True
        )
        try:
            await stream.do_handshake()
        except trio.BrokenResourceError as error:
            await trio.aclose_forcefully(stream)
            raise OSError(tls_failure(error.__cause__ or error)) from error
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return TlsStream(stream)

    return dial


class TlsStream(trio.abc.Stream):
    """A TLS connection whose errors name the cure: with TLS 1.3 a server refuses a client after the handshake.

    Args:
        secured: the connection, after the handshake.
    """

    def __init__(self, secured: trio.SSLStream[trio.abc.HalfCloseableStream]) -> None:
        self._secured = secured

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything."""
        await self._secured.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the kernel accepts bytes again."""
        await self._secured.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Wait for bytes; b"" at the end of the stream."""
        try:
            return await self._secured.receive_some(max_bytes)
        except trio.BrokenResourceError as error:
            if isinstance(error.__cause__, ssl.SSLError):
                raise trio.BrokenResourceError(tls_failure(error.__cause__)) from error
            raise

    async def aclose(self) -> None:
        """Close without waiting for the peer."""
        await self._secured.aclose()


def _tls_context(
    ca: str | os.PathLike[str] | None,
    certificate: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
    key_password: str | None,
    check_host_name: bool,
    insecure: bool,
) -> ssl.SSLContext:
    if insecure and (ca is not None or not check_host_name):
        raise InvalidCall("insecure=True verifies nothing, so it takes neither ca nor check_host_name")
    if certificate is None and (key is not None or key_password is not None):
        raise InvalidCall("a key belongs to a certificate: give certificate, too")
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidCall(
            f"ca={os.fspath(ca or '')!r} cannot be used as PEM file of authorities: {_why(error)}"
        ) from None
    if insecure or not check_host_name:
        context.check_hostname = False
    if insecure:
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        try:
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(certificate, key, password=key_password or "")
        except (OSError, ssl.SSLError, ValueError) as error:
            if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
                raise InvalidCall(f"the key is not that of certificate={os.fspath(certificate)!r}") from None
            raise InvalidCall(
                f"certificate={os.fspath(certificate)!r} and its key cannot be used: {_why(error)} (both are PEM files; a "
                "key may need key_password)"
            ) from None
    return context


def tls_failure(error: BaseException) -> str:
    """Explain why a TLS connection could not be made, or has ended, and what to do.

    Args:
        error: an error of `ssl`, or the one that ended the connection.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{TLS_FAILED}{error.verify_message or error}: {_VERIFY_CURES.get(error.verify_code, _UNFIT)}"
    reason = getattr(error, "reason", None) or ""
    words = reason.replace("_", " ").lower()
    if any(part in reason for part in _CLIENT_REFUSED):
        return (
            f"{TLS_FAILED}the server asks for a client certificate, or refuses this one ({words}): give certificate and key "
            "(--tls-cert, --tls-key), or renew them"
        )
    if "PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason or "NO_SHARED" in reason:
        return f"{TLS_FAILED}client and server have no version or cipher in common ({words})"
    if reason.startswith(_ALERTS):
        return f"{TLS_FAILED}the server refuses the connection ({words}): its log may say why; it may serve only names of its own"
    return f"no TLS handshake, as with a port that speaks plain TCP: {words or error}"


TLS_FAILED: Final = "TLS: "
"""The beginning of the texts whose cause `tls_failure` knows."""
_UNTRUSTED: Final = "it is signed by no authority that is trusted here: give that as ca (--tls-ca)"
_WRONG_NAME: Final = "dial the server by a name in its certificate, or give check_host_name=False (--tls-any-host-name)"
_UNFIT: Final = "the server, or its authority, needs another certificate"
_MALFORMED: Final = (
    "since Python 3.13 the certificates of servers and authorities must follow RFC 5280: make a new one; an authority's may "
    "keep its key and name, so that those signed by it stay valid"
)
_VERIFY_CURES: Final = {
    **dict.fromkeys((2, 7, 18, 19, 20, 21), _UNTRUSTED),
    9: "check the clocks of both machines",
    10: "the server needs a new certificate",
    62: _WRONG_NAME,
    64: _WRONG_NAME,
    # Those of `ssl.VERIFY_X509_STRICT`.
    **dict.fromkeys(range(80, 95), _MALFORMED),
}
"""Causes by the numbers of OpenSSL's `X509_V_ERR_*`."""
_ALERTS: Final = ("SSLV3_", "TLSV1")
"""How OpenSSL's names of a peer's alerts begin. A peer that sends one speaks TLS."""
_CLIENT_REFUSED: Final = (
    "CERTIFICATE_REQUIRED", "ALERT_BAD_CERTIFICATE", "ALERT_UNKNOWN_CA", "HANDSHAKE_FAILURE", "ALERT_CERTIFICATE",
    "ALERT_ACCESS_DENIED", "ALERT_DECRYPT_ERROR",
)  # fmt: skip


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return reason.replace("_", " ").lower() if reason else getattr(error, "strerror", None) or error_text(error)


def _forget_parents_streams() -> None:
    for stream in list(_open_streams):
        stream.forget()
    _open_streams.clear()


# A forked child would keep the parent's connections open, and their ends would never be seen.
os.register_at_fork(after_in_child=_forget_parents_streams)
