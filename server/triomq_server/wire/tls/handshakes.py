"""TLS by the first byte: one port for both kinds of client (docs/protocol/remoting.md §12).

A TLS record of type handshake begins with 0x16. A plain frame begins with 0x00, since its length is limited to 16 MiB.
Until a handshake has ended, a connection costs a slot of `Handshakes`, and before its first byte not even that. From
then on it is a link like others, see ``transport``.
"""

from __future__ import annotations

import enum
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import msgspec
import trio

from triomq_server.wire.connections import Connections
from triomq_server.wire.limits.places import Place
from triomq_server.wire.tls.stream import TlsStream
from triomq_server.wire.tls.transport import TlsTransport
from triomq_server.wire.tls_failures import accepting_failure, dialling_failure
from triomq_server.wire.transport import Dial, peer_name, transport_over

_log = logging.getLogger(__name__)
_HANDSHAKE = b"\x16"
_ONLY_TLS: Final = b"\x15\x03\x03\x00\x02\x02\x0a"
"""TLS's alert "unexpected message": it shows a client that uses plain TCP that TLS is expected."""
_PARTING_S: Final = 1.0
_PARTING_BYTES: Final = 65_536


class TlsMode(enum.StrEnum):
    """``tls.server.mode``: TLS never, for clients that begin with it, or for all."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class Handshakes:
    """The handshakes that have begun and not ended; beyond their limit the oldest is ended.

    Args:
        most: how many at one time.
        timeout_s: how long one may take.

    Attributes:
        turns: whose holder does a step; in one turn of the loop there is one.
        timeout_s: as given.
    """

    def __init__(self, most: int = 1000, timeout_s: float = 10.0) -> None:
        self.turns = trio.Lock()
        self.timeout_s = timeout_s
        self._most = most
        self._open: dict[trio.CancelScope, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def one(self) -> Iterator[trio.CancelScope]:
        """A slot for one handshake; the scope is cancelled when its time is over, or when the slot is needed."""
        if len(self._open) >= self._most:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.cancel()
        with trio.move_on_after(self.timeout_s) as scope:
            self._open[scope] = None
            try:
                yield scope
            finally:
                self._open.pop(scope, None)

    def end_of(self, scope: trio.CancelScope) -> str:
        """Why a handshake's scope was cancelled."""
        if trio.current_time() < scope.deadline:
            return f"it was the oldest of {self._most} that had not ended (maxTlsHandshakes)"
        return f"not within {self.timeout_s:g} s (tlsHandshakeTimeoutMillis)"


class TlsSettings(msgspec.Struct, eq=False):
    """How a server uses TLS.

    Attributes:
        context: with the server's certificate; None while there is none. A new one counts for new connections.
        mode: what to do with each kind of client.
        make_context: makes the context for the first client that needs it, in a worker thread.
        handshakes: the unfinished ones of the server's ports.
    """

    context: ssl.SSLContext | None = None
    mode: TlsMode = TlsMode.PERMISSIVE
    make_context: Callable[[], ssl.SSLContext] | None = None
    handshakes: Handshakes = msgspec.field(default_factory=Handshakes)

    async def find_context(self) -> ssl.SSLContext | None:
        """The context, made now if it is the first time. OSError if it cannot be made."""
        if self.context is None and self.make_context is not None:
            async with self.handshakes.turns:
                if self.context is None:
                    self.context = await trio.to_thread.run_sync(self.make_context)
        return self.context


async def serve_accepted(
    stream: trio.abc.Stream, connections: Connections, tls: TlsSettings | None, place: Place | None = None
) -> None:
    """Find out whether an accepted connection speaks TLS, then serve it. Never raises for the peer's faults."""
    try:
        if tls is not None and isinstance(stream, trio.SocketStream):
            await _serve_socket(stream, connections, tls, place)
        else:
            await connections.serve(transport_over(stream), place)
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as error:
        message = "a connection ended before its first frame: %r"
        connections.hub.peer_log.write(logging.INFO, peer_name(stream), message, error)
    except Exception as error:  # noqa: BLE001 (the task's outermost edge)
        message = "closing a connection after a fault of our own"
        log = connections.hub.peer_log
        log.write(logging.ERROR, peer_name(stream), message, kind=type(error), exc_info=error)
    finally:
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(stream)


async def _serve_socket(
    stream: trio.SocketStream, connections: Connections, tls: TlsSettings, place: Place | None
) -> None:
    log = connections.hub.peer_log
    with trio.fail_after(connections.hub.limits.idle_s):
        first = await stream.socket.recv(1, socket.MSG_PEEK)
    peer = peer_name(stream)
    if first != _HANDSHAKE:
        if tls.mode is not TlsMode.ENFORCING:
            await connections.serve(transport_over(stream), place)
        elif first:
            message = (
                "closing %s: it does not speak TLS, and tls.server.mode=enforcing admits nothing else (clients: "
                "tls.enable=true, open_client(tls=True), --tls)"
            )
            log.write(logging.INFO, peer, message, peer)
            await _part(stream, _ONLY_TLS)
        return
    if tls.mode is TlsMode.DISABLED:
        log.write(logging.INFO, peer, "closing %s: it speaks TLS, and tls.server.mode is disabled", peer)
        return
    transport = await _shake_hands(stream, connections, tls, peer)
    if transport is not None:
        await connections.serve(transport, place)


async def _shake_hands(
    stream: trio.SocketStream, connections: Connections, tls: TlsSettings, peer: str
) -> TlsTransport | None:
    """The link's transport after the handshake; None when it has failed."""
    log = connections.hub.peer_log
    why = ""
    with tls.handshakes.one() as scope:
        try:
            context = await tls.find_context()
        except (OSError, ImportError) as error:
            context = None
            why = str(error)
        if context is None:
            message = "closing %s: it speaks TLS, and this server has no certificate: %s"
            log.write(logging.WARNING, peer, message, peer, why or "see tls.server.certPath")
            return None
        transport = TlsTransport(stream, context)
        try:
            await transport.handshake(tls.handshakes.turns)
        except (OSError, trio.BrokenResourceError) as error:
            why = accepting_failure(error.__cause__ or error)
            transport.release()
            if isinstance(error, ssl.SSLError):
                await _part(stream, b"")
        except BaseException:
            transport.release()
            raise
        else:
            return transport
    why = why or tls.handshakes.end_of(scope)
    message = "closing %s: no TLS handshake: %s"
    log.write(logging.INFO, peer, message, peer, why, kind=why[:80])
    return None


async def _part(stream: trio.SocketStream, last: bytes) -> None:
    """Let a peer read the last bytes: a connection closed with something unread would be reset, and they be lost."""
    with trio.move_on_after(_PARTING_S), suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
        if last:
            await stream.send_all(last)
        await stream.send_eof()
        left_bytes = _PARTING_BYTES
        while left_bytes > 0 and (data := await stream.receive_some(left_bytes)):
            left_bytes -= len(data)


async def accept_tls(stream: trio.abc.Stream, tls: TlsSettings) -> trio.abc.Stream:
    """TLS on a connection from which nothing has been read, for ports that accept nothing else.

    Raises:
        OSError: the handshake has failed; the text states why. The caller still owns the stream.
    """
    with tls.handshakes.one() as scope:
        context = await tls.find_context()
        if context is None:
            raise OSError("this server has no certificate (tls.server.certPath)")
        async with tls.handshakes.turns:
            await trio.lowlevel.checkpoint()
        secured = TlsStream(stream, context, server_side=True)
        try:
            await secured.do_handshake()
        except trio.BrokenResourceError as error:
            secured.release()
            raise OSError(f"no TLS handshake: {accepting_failure(error.__cause__ or error)}") from None
        except BaseException:
            secured.release()
            raise
        return secured
    raise OSError(f"no TLS handshake: {tls.handshakes.end_of(scope)}")


def tls_dial(dial: Dial, find_context: Callable[[], ssl.SSLContext], timeout_s: float = 10.0) -> Dial:
    """A `Dial` that speaks TLS on what another one connects.

    Args:
        dial: connects.
        find_context: what to trust and to show, for each new connection.
        timeout_s: how long a handshake may take.
    """

    async def dial_tls(address: str) -> trio.abc.Stream:
        stream = await dial(address)
        host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
        secured = TlsStream(stream, find_context(), server_hostname=host)
        try:
            with trio.fail_after(timeout_s):
                await secured.do_handshake()
        except trio.BrokenResourceError as error:
            await trio.aclose_forcefully(secured)
            # Without a cause, of which the log would take the text: it has no cure, or is empty.
            raise OSError(dialling_failure(error.__cause__ or error)) from None
        except trio.TooSlowError:
            await trio.aclose_forcefully(secured)
            raise OSError(f"no TLS handshake within {timeout_s:g} s") from None
        except BaseException:
            await trio.aclose_forcefully(secured)
            raise
        return secured

    return dial_tls
