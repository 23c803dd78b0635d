"""Lets calls wait, until their deadline, for a missing name server, route or broker, for instance during a restart.

Only calls that have sent nothing wait, so they can be repeated safely.  Sends wait in ``_producer``, which tries another
broker first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, TypeVar

import trio

from triomq._arguments.numbers import is_number
from triomq._cluster.routes import Routes
from triomq._error_text import shown
from triomq._message.message import MessageQueue
from triomq._tasks.exception_groups import open_plain_nursery
from triomq._transport.links import Backoff, Links
from triomq.errors import BrokerNotFound, ConnectFailed, InvalidCall, MQError, NoNameServer, NotANameServer

T = TypeVar("T")

WAITED_FOR: Final = (ConnectFailed, BrokerNotFound, NoNameServer)
"""Errors of a request that was not written, as a server or a route is missing, perhaps only for a moment."""

PAUSES: Final = Backoff(first_s=0.05, max_s=1.0)
"""The pauses between two attempts."""


def checked_wait_s(wait_s: float | None) -> float | None:
    """The option ``route_wait_s``.

    Raises:
        InvalidCall: it is negative or not a number.
    """
    if wait_s is not None and not (is_number(wait_s) and wait_s >= 0):  # and not nan
        raise InvalidCall(f"route_wait_s is {shown(wait_s)}, not None and not a number of seconds from 0 on")
    return wait_s


async def dial_again(links: Links, addresses: Iterable[str]) -> None:
    """Dial unreachable addresses again, without waiting for their pauses; returns when one can be reached."""
    async with open_plain_nursery() as nursery:

        @trio.lowlevel.enable_ki_protection
        async def dial(address: str) -> None:
            with suppress(MQError):
                await links.get(address, patient=False)
                # The other dials continue in the client's tasks.
                nursery.cancel_scope.cancel()

        for address in addresses:
            if links.is_down(address):
                nursery.start_soon(dial, address)


class RouteWait:
    """Repeats calls that could send nothing.

    Args:
        routes: refreshed between two attempts.
        links: dial unreachable addresses again between two attempts.
        wait_s: how long to wait; None: as long as the call itself may take, 0: not at all.
    """

    def __init__(self, routes: Routes, links: Links, wait_s: float | None) -> None:
        self._routes = routes
        self._links = links
        self.wait_s = wait_s

    async def until_there(
        self,
        call: Callable[[], Awaitable[T]],
        timeout_s: float,
        *,
        queue: MessageQueue | None = None,
    ) -> T:
        """Repeat a call until the required servers can be reached.

        Args:
            call: the call; raises one of :data:`WAITED_FOR` if it could send nothing.
            timeout_s: how long the call may take.
            queue: the queue whose broker is needed.

        Raises:
            MQError: the last error of the call.
        """
        limit = trio.current_time() + (timeout_s if self.wait_s is None else self.wait_s)
        attempts = 0
        while True:
            attempts += 1
            try:
                return await call()
            except NotANameServer:
                raise  # and stays what it is
            except WAITED_FOR:
                left_s = limit - trio.current_time()
                if left_s <= 0:
                    raise
            await trio.sleep(min(PAUSES.pause_s(attempts, 0.0), left_s))
            if queue is not None:
                with trio.move_on_at(limit):
                    await self._look_again(queue)

    async def _look_again(self, queue: MessageQueue) -> None:
        with suppress(MQError):
            await self._routes.refresh(queue.topic)
        route = self._routes.known(queue.topic)
        if route is not None:
            await dial_again(self._links, route.addresses.get(queue.broker_name, {}).values())
