"""TLS by the first byte: one port for both kinds of client (docs/protocol/remoting.md §12).

A TLS record of type handshake begins with 0x16. A plain frame begins with 0x00, since its length is limited to 16 MiB.
"""

from __future__ import annotations

import enum
import logging
import socket
import ssl

import attrs
import trio

from triomq_server.wire.connections import Connections
from triomq_server.wire.transport import StreamTransport, peer_name, transport_over

_log = logging.getLogger(__name__)
_HANDSHAKE = b"\x16"
_HANDSHAKE_TIMEOUT_S = 10.0


class TlsMode(enum.StrEnum):
    """``tls.server.mode``: TLS never, for clients that begin with it, or for all."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@attrs.frozen
class TlsSettings:
    """How a server uses TLS.

    Attributes:
        context: made by the operator, with the server's certificate loaded; None can only refuse.
        mode: what to do with each kind of client.
    """

    context: ssl.SSLContext | None = None
    mode: TlsMode = TlsMode.PERMISSIVE


async def serve_accepted(stream: trio.abc.Stream, connections: Connections, tls: TlsSettings | None) -> None:
    """Find out whether an accepted connection speaks TLS, then serve it. Never raises for the peer's faults."""
    try:
        if tls is not None and isinstance(stream, trio.SocketStream):
            await _serve_socket(stream, connections, tls)
        else:
            await connections.serve(transport_over(stream))
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


async def _serve_socket(stream: trio.SocketStream, connections: Connections, tls: TlsSettings) -> None:
    with trio.fail_after(connections.hub.limits.idle_s):
        first = await stream.socket.recv(1, socket.MSG_PEEK)
    if first != _HANDSHAKE:
        if tls.mode is TlsMode.ENFORCING:
            peer = peer_name(stream)
            message = "closing %s: it does not speak TLS, and only TLS is allowed"
            connections.hub.peer_log.write(logging.INFO, peer, message, peer)
        else:
            await connections.serve(transport_over(stream))
        return
    if tls.mode is TlsMode.DISABLED or tls.context is None:
        peer = peer_name(stream)
        connections.hub.peer_log.write(logging.INFO, peer, "closing %s: it speaks TLS, which is off", peer)
        return
    name = stream.socket.getpeername()
    secured = trio.SSLStream(stream, tls.context, server_side=True, https_compatible=True)
    with trio.fail_after(_HANDSHAKE_TIMEOUT_S):
        await secured.do_handshake()
    await connections.serve(StreamTransport(secured, (name[0], name[1])))
