"""open_link: a link that we dial, for instance from a broker to a name server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from triomq_server.wire.handlers import Handlers
from triomq_server.wire.hub import Hub
from triomq_server.wire.limits import Limits
from triomq_server.wire.link import Link
from triomq_server.wire.transport import Dial, dial_tcp, transport_over


@asynccontextmanager
async def open_link(
    address: str, *, dial: Dial = dial_tcp, handlers: Handlers | None = None, limits: Limits | None = None
) -> AsyncIterator[Link]:
    """Dial ``host:port`` and hold the link while the body runs; it is closed on the way out.

    A link that breaks meanwhile raises nothing here: ``link.closed`` turns true and its requests fail.

    Args:
        address: whom to dial; bound the time with a deadline of your own.
        dial: how; tests hand in a network of their own.
        handlers: who answers requests of the peer; without, each is answered code 3.
        limits: bytes, waiting requests, idle time.

    Raises:
        OSError: nobody listens there, or whoever did is gone at once.
    """
    stream = await dial(address)
    try:
        transport = transport_over(stream)  # before the nursery, which would wrap an error into a group
    except OSError:
        await trio.aclose_forcefully(stream)
        raise
    caught: BaseException | None = None
    async with trio.open_nursery() as nursery:
        hub = Hub(handlers or Handlers(), nursery, limits or Limits())
        nursery.start_soon(hub.flush_marked)
        nursery.start_soon(hub.close_idle)
        link = await nursery.start(hub.attend, transport)
        try:
            yield link
        except BaseException as error:  # noqa: BLE001 (kept aside, so that the caller meets it plain and not in a group)
            caught = error
        link.close()
        nursery.cancel_scope.cancel()
    if caught is not None:
        raise caught
