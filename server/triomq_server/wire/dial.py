"""Dials links, for instance from a broker to a name server: ``open_link``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import trio

from triomq_protocol.wire.command import Command
from triomq_protocol.wire.lengths import MAX_HEADER_BYTES
from triomq_server.wire.connections import Connections
from triomq_server.wire.handlers import Handlers
from triomq_server.wire.hub import Hub
from triomq_server.wire.limits.limits import Limits
from triomq_server.wire.link import Link
from triomq_server.wire.transport import Dial, dial_tcp, transport_over


class Asking(Protocol):
    """A dialed link as a broker uses it: it sends requests, and sees when the link has ended."""

    @property
    def closed(self) -> bool:
        """Nothing is sent or received any more."""
        ...

    async def request(self, command: Command, timeout_s: float) -> Command:
        """Send and wait for the answer. Raises LinkError."""
        ...


OpenLink = Callable[[str], AbstractAsyncContextManager[Asking]]
"""Opens a link to ``host:port``, as ``open_link`` does."""


@asynccontextmanager
async def open_link(
    address: str, *, dial: Dial = dial_tcp, handlers: Handlers | None = None, limits: Limits | None = None
) -> AsyncIterator[Link]:
    """Dial ``host:port`` and hold the link while the body runs; it is closed on the way out.

    If the link breaks in the meantime, nothing is raised here: ``link.closed`` turns true and its requests fail.

    Args:
        address: the peer's address; use a deadline to bound the time.
        dial: connects; tests pass their own network.
        handlers: for requests of the peer; without, each is answered with code 3.
        limits: bytes, waiting requests, idle time.

    Raises:
        OSError: the connection is refused, or ends at once.
    """
    stream = await dial(address)
    try:
        transport = transport_over(stream)  # before the nursery, which would wrap an error into a group
    except OSError:
        await trio.aclose_forcefully(stream)
        raise
    caught: BaseException | None = None
    async with trio.open_nursery() as nursery:
        hub = Hub(handlers or Handlers(), nursery, limits or Limits(header_bytes=MAX_HEADER_BYTES))
        nursery.start_soon(hub.writer.flush_marked)
        nursery.start_soon(hub.close_idle)
        link = await nursery.start(Connections(hub).serve, transport)
        try:
            yield link
        except BaseException as error:  # noqa: BLE001 (kept aside, so that the caller meets it plain and not in a group)
            caught = error
        link.close()
        nursery.cancel_scope.cancel()
    if caught is not None:
        raise caught
