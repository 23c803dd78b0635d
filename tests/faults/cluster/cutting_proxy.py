"""A TCP proxy on the loopback address that can cut or mute its connections: the network partition between a slave and
its master.

It listens on two ports like a broker: the ordinary one, and the next one for replication.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import trio


class CuttingProxy:
    """Forwards to one target, which may be down for a time.

    Attributes:
        port: where it listens, here and one above.
        target: host and port of the broker; None refuses every connection.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.target: tuple[str, int] | None = None
        self._flowing = trio.Event()
        self._flowing.set()
        self._cut = False
        self._links: set[trio.CancelScope] = set()

    def lead_to(self, address: str) -> None:
        """Forward new connections to this broker."""
        host, _, port = address.rpartition(":")
        self.target = (host, int(port))

    async def serve(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept until cancelled."""
        async with trio.open_nursery() as nursery:
            for distance in (0, 1):
                listeners = await trio.open_tcp_listeners(self.port + distance, host="127.0.0.1")
                nursery.start_soon(trio.serve_listeners, partial(self._forward, distance), listeners)
            task_status.started(self.port)

    def cut(self) -> None:
        """Break every connection, and refuse new ones."""
        self._cut = True
        for scope in list(self._links):
            scope.cancel()

    def mute(self) -> None:
        """Keep the connections, pass nothing on."""
        self._flowing = trio.Event()

    def heal(self) -> None:
        """End all faults: accept connections and forward again."""
        self._cut = False
        self._flowing.set()

    async def _forward(self, distance: int, near: trio.SocketStream) -> None:
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            async with near:
                if self._cut or self.target is None:
                    return
                host, port = self.target
                async with await trio.open_tcp_stream(host, port + distance) as far:
                    with trio.CancelScope() as scope:
                        self._links.add(scope)
                        try:
                            async with trio.open_nursery() as nursery:
                                nursery.start_soon(self._copy, near, far, scope)
                                nursery.start_soon(self._copy, far, near, scope)
                        finally:
                            self._links.discard(scope)

    async def _copy(self, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some(65536):
                await self._flowing.wait()
                await sink.send_all(data)
        scope.cancel()
