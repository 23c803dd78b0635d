"""Serves an application over HTTP: hypercorn's connections, with limits that its own server does not have.

hypercorn shields its writes from cancellation: a browser that does not read, such as the live tail of a sleeping
laptop, would keep the process from ending. So the sockets are kept here, and are closed when it is time. The classes of
hypercorn's worker are internal to it.
"""

from __future__ import annotations

import logging
import resource
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, cast

import attrs
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState
from starlette.types import ASGIApp

log = logging.getLogger("triomq.dashboard")

PIECE_BYTES: Final = 16 * 1024


@attrs.frozen(kw_only=True)
class Limits:
    """Limits on connections, with times in seconds.

    Args:
        connections: the most open connections; further ones are closed at once.
        quiet_s: how long a connection may be open without a byte in either direction; longer than a page takes.
        stalled_s: how long a peer may take to receive `PIECE_BYTES`.
        grace_s: how long answers may take at the end.
    """

    connections: int = 512
    quiet_s: float = 60.0
    stalled_s: float = 30.0
    grace_s: float = 2.0


def affordable(limits: Limits) -> Limits:
    """The limits, with fewer connections if the process may open few files; the others are for the cluster."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return limits
    return attrs.evolve(limits, connections=max(1, min(limits.connections, files // 2)))


class Connection(trio.abc.HalfCloseableStream):
    """A connection that breaks when its peer neither sends nor reads for too long.

    Args:
        stream: the connection.
        limits: the limits, which define how long that is.

    Attributes:
        socket: the connection's socket, from which hypercorn gets addresses.
    """

    def __init__(self, stream: trio.SocketStream, limits: Limits) -> None:
        self.socket = stream.socket
        self._stream = stream
        self._limits = limits
        self._active = trio.current_time()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send data; raises BrokenResourceError if the peer does not receive it in time."""
        view = memoryview(data)
        for begin in range(0, len(view), PIECE_BYTES):
            with trio.move_on_after(self._limits.stalled_s) as scope:
                await self._stream.send_all(view[begin : begin + PIECE_BYTES])
            if scope.cancelled_caught:
                self.cut()
                raise trio.BrokenResourceError("the peer does not read")
            self._active = trio.current_time()

    async def wait_send_all_might_not_block(self) -> None:
        """As the connection's own."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive data; raises BrokenResourceError if none arrives in time, and none is sent meanwhile."""
        while (until := self._active + self._limits.quiet_s) > trio.current_time():
            with trio.move_on_at(until) as scope:
                data = await self._stream.receive_some(max_bytes)
            if not scope.cancelled_caught:
                self._active = trio.current_time()
                return data
        self.cut()
        raise trio.BrokenResourceError("the peer is silent")

    async def send_eof(self) -> None:
        """As the connection's own."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """As the connection's own."""
        await self._stream.aclose()

    def cut(self) -> None:
        """Close at once: tasks that send or receive get a ClosedResourceError."""
        self.socket.close()


async def serve(
    app: ASGIApp,
    listener: trio.SocketListener,
    end: Callable[[], Awaitable[object]],
    *,
    tls: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an application until `end` returns; `limits.grace_s` later all connections are closed."""
    bounds = limits if limits is not None else affordable(Limits())
    config = Config()
    config.errorlog = None
    config.include_server_header = False
    context = WorkerContext(None)
    wrapped = ASGIWrapper(cast("ASGIFramework", app))
    connections: set[Connection] = set()

    async def one(stream: trio.SocketStream) -> None:
        connection = Connection(stream, bounds)
        if len(connections) >= bounds.connections:
            connection.cut()
            return
        connections.add(connection)
        above = connection if tls is None else trio.SSLStream(connection, tls, server_side=True, https_compatible=True)
        try:
            await TCPServer(
                wrapped,
                config,
                context,
                ConnectionState({}),
                cast("trio.SSLStream[trio.SocketStream]", above),
            )
        except Exception:
            log.exception("a connection of the dashboard failed")  # the others continue
        finally:
            connections.discard(connection)
            connection.cut()

    def cut_all() -> None:
        for each in list(connections):
            each.cut()

    async def cut_late(scope: trio.CancelScope) -> None:
        await trio.sleep(bounds.grace_s)
        cut_all()
        scope.cancel()

    async with trio.open_nursery() as ending:
        async with trio.open_nursery() as serving:
            try:
                async with trio.open_nursery() as accepting:
                    accepting.start_soon(partial(trio.serve_listeners, one, [listener], handler_nursery=serving))
                    task_status.started()
                    await end()
                    accepting.cancel_scope.cancel()
            except BaseException:
                cut_all()
                raise
            finally:
                listener.socket.close()
            await context.terminated.set()
            ending.start_soon(cut_late, serving.cancel_scope)
        ending.cancel_scope.cancel()
