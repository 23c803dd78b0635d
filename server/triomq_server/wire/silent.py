"""Connections that have not sent a byte yet, on ports where the first byte distinguishes TLS from plain TCP.

On systems with epoll, one task waits for all of them. With a task for each, thousands that sent their first byte at
once, or were closed for having sent none, would all continue in one turn of the loop.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from triomq_server.wire.hub import Hub
from triomq_server.wire.limits.places import Place

STARTED_PER_TURN: Final = 64
"""Connections that are started or closed in one turn of the loop."""

Start = Callable[[trio.SocketStream, Place], None]
"""Goes on with a connection that has sent something, or has ended."""


class SilentConnections:
    """The silent connections of one hub. A peer that sends nothing for the hub's idle time is disconnected.

    Args:
        hub: the owner of the connections.
        start: called with the connections that have sent a byte, in that order.
        give: gives back the place of a closed connection.
    """

    def __init__(self, hub: Hub, start: Start, give: Callable[[Place], None]) -> None:
        self._hub = hub
        self._start = start
        self._give = give
        self._epoll = select.epoll()
        self._waiting: dict[int, tuple[trio.SocketStream, Place]] = {}
        """By descriptor, the oldest first."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, stream: trio.SocketStream, place: Place) -> None:
        """Wait for the first byte of a connection, from now on."""
        fileno = stream.socket.fileno()
        if self._epoll.closed:  # the hub is being taken down
            stream.socket.close()
            self._give(place)
            return
        self._waiting[fileno] = stream, place
        place.end = partial(self._close, fileno)
        self._epoll.register(fileno, select.EPOLLIN)

    async def run(self) -> None:
        """Task: wait, until cancelled; then close all."""
        idle_s = self._hub.limits.idle_s
        try:
            while True:
                # Connections added in the meantime cannot be due earlier than in `idle_s`.
                with trio.move_on_at(min(self._oldest_since(), trio.current_time()) + idle_s):
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                if self._hub.stopping:
                    await trio.sleep_forever()
                for fileno, _ in self._epoll.poll(0, STARTED_PER_TURN):
                    self._start(*self._take(fileno))
                self._close_due(trio.current_time() - idle_s)
        finally:
            for fileno in tuple(self._waiting):
                self._close(fileno)
            self._epoll.close()

    def _oldest_since(self) -> float:
        return next((place.since for _, place in self._waiting.values()), float("inf"))

    def _close_due(self, before: float) -> None:
        for _ in range(STARTED_PER_TURN):
            fileno = next(iter(self._waiting), -1)
            if fileno < 0 or self._waiting[fileno][1].since > before:
                break
            peer = f"{self._waiting[fileno][1].host}:0"
            message = "a connection of %s ended before its first frame: idle for %g s"
            self._hub.peer_log.write(logging.INFO, peer, message, peer[:-2], self._hub.limits.idle_s)
            self._close(fileno)

    def _close(self, fileno: int) -> None:
        stream, place = self._take(fileno)
        stream.socket.close()
        self._give(place)

    def _take(self, fileno: int) -> tuple[trio.SocketStream, Place]:
        self._epoll.unregister(fileno)
        return self._waiting.pop(fileno)
