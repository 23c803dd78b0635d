"""Listens, accepts connections and serves each, so that a failure on one link ends only that link: ``serve``."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable
from typing import NoReturn, Self

import msgspec
import trio

from triomq_server.repeats import Repeats
from triomq_server.wire.connections import Connections
from triomq_server.wire.handlers import Handlers
from triomq_server.wire.hub import Hub
from triomq_server.wire.limits.limits import Limits
from triomq_server.wire.limits.places import Place, Places
from triomq_server.wire.link import Link
from triomq_server.wire.poller import HAS_EPOLL, Poller
from triomq_server.wire.silent import SilentConnections
from triomq_server.wire.tls.handshakes import TlsSettings, serve_accepted
from triomq_server.wire.transport import Listen, accept_some, address_of, listen_tcp, peer_host_name
from triomq_server.wire.write_batch import WriteBatch

_log = logging.getLogger(__name__)

_REFUSED_AT_ONCE = 100
"""Connections that are closed with the reserve descriptor before the next pause."""

# After a failed accept: mostly no descriptor is left, and one of those in use will be closed.
_PAUSE_S = 0.1


async def serve(
    handlers: Handlers,
    *,
    host: str = "0.0.0.0",
    port: int,
    listen: Listen = listen_tcp,
    on_closed: Callable[[Link], None] | None = None,
    on_batch_end: Callable[[], None] | None = None,
    idle_s: float = 120.0,
    limits: Limits | None = None,
    tls: TlsSettings | None = None,
    write_batch: WriteBatch | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Accept connections and answer their requests until cancelled.

    A cancel stops accepting and reading at once, gives waiting handlers and unsent answers ``limits.grace_s`` seconds,
    and closes every link.

    Args:
        handlers: by request code.
        host: address to listen on; ``::`` for IPv6.
        port: 0 for any free one.
        listen: opens the listeners; tests pass their own network.
        on_closed: called once for each link that has ended, for whatever reason.
        on_batch_end: called after the handlers of each receive batch, when its answers have been written.
        idle_s: seconds without a byte in either direction after which a link is closed; overrides ``limits``.
        limits: all other limits.
        tls: allows TLS; the first byte of a connection decides.
        write_batch: lets the owner send answers at once, outside of a receive.
        task_status: receives the real addresses, ``ip:port`` each.

    Raises:
        OSError: listening on the address failed.
    """
    bounds = msgspec.structs.replace(limits or Limits(), idle_s=idle_s)
    listeners = await listen(host, port)
    try:
        async with trio.open_nursery() as outer:
            entrance, links_scope = await outer.start(
                _run_links, handlers, bounds, tls, on_closed, on_batch_end, write_batch or WriteBatch()
            )
            try:
                async with trio.open_nursery() as accepting:
                    for listener in listeners:
                        accepting.start_soon(_accept, listener, entrance)
                    task_status.started([address_of(listener) for listener in listeners])
            finally:
                with trio.CancelScope(shield=True):
                    for listener in listeners:
                        await listener.aclose()
                    with trio.move_on_after(bounds.grace_s):
                        await entrance.hub.drain()
                links_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            for listener in listeners:
                await listener.aclose()
    raise AssertionError("a listener ended by itself")


async def _run_links(
    handlers: Handlers,
    limits: Limits,
    tls: TlsSettings | None,
    on_closed: Callable[[Link], None] | None,
    on_batch_end: Callable[[], None] | None,
    write_batch: WriteBatch,
    *,
    task_status: trio.TaskStatus[tuple[_Entrance, trio.CancelScope]],
) -> None:
    """Task: owns links and handlers, out of reach of the server's cancel, until the grace period is over."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            hub = Hub(handlers, nursery, limits, on_closed=on_closed, on_batch_end=on_batch_end)
            nursery.start_soon(hub.writer.flush_marked)
            nursery.start_soon(hub.close_idle)
            poller = Poller(hub) if HAS_EPOLL else None
            if poller is not None:
                nursery.start_soon(poller.run)
            entrance = _Entrance(Connections(hub, poller), tls)
            if entrance.silent is not None:
                nursery.start_soon(entrance.silent.run)
            write_batch.add(hub.writer)
            limits.traffic.hubs.append(hub)
            try:
                task_status.started((entrance, scope))
                # If the start is cancelled in the meantime, nothing is returned by which this task could be ended later.
                await trio.lowlevel.checkpoint_if_cancelled()
                scope.shield = True
                await trio.sleep_forever()
            finally:
                limits.traffic.hubs.remove(hub)
                write_batch.remove(hub.writer)


class _Entrance:
    """Assigns places to accepted connections, and serves those that get one.

    Args:
        connections: the connections of the listener's hub.
        tls: see `serve`.

    Attributes:
        hub: the hub of the connections.
        silent: waits for the first byte; None if every connection has its own task for that.
    """

    def __init__(self, connections: Connections, tls: TlsSettings | None) -> None:
        self.hub = connections.hub
        self.silent: SilentConnections | None = None
        self._connections = connections
        self._tls = tls
        self._limits = connections.hub.limits
        self._places = Places(self._limits.connections)
        self._places.closed = self._note_closed
        if HAS_EPOLL and tls is not None:
            self.silent = SilentConnections(self.hub, self._start, self._places.give)
        self._closings = Repeats()

    def admit(self, stream: trio.abc.Stream) -> None:
        """Serve a connection that has been accepted, or close it."""
        host = peer_host_name(stream)
        place = self._places.take(host, lambda: None)
        if place is None:
            message = "refusing connections: %d are open (maxConnections)"
            self.hub.peer_log.write(logging.WARNING, f"{host}:0", message, self._limits.connections)
            self._limits.traffic.refused += 1
            self.hub.start_soon(trio.aclose_forcefully, stream)
            return
        if self.silent is not None and isinstance(stream, trio.SocketStream):
            self.silent.add(stream, place)
        else:
            self._start(stream, place)

    def _start(self, stream: trio.abc.Stream, place: Place) -> None:
        scope = trio.CancelScope()
        place.end = scope.cancel
        self.hub.start_soon(self._serve, stream, place, scope)

    async def _serve(self, stream: trio.abc.Stream, place: Place, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await serve_accepted(stream, self._connections, self._tls, place)
        finally:
            self._places.give(place)

    def _note_closed(self, host: str) -> None:
        self._limits.traffic.refused += 1
        if due := self._closings.add(host):
            _log.warning(
                "closing %d idle connections of %s, which has most, for other hosts: %d are open (maxConnections)",
                *due, self._limits.connections,
            )  # fmt: skip


async def _accept(listener: trio.abc.Listener[trio.abc.Stream], entrance: _Entrance) -> None:
    with _Reserve() as reserve:
        await _accept_forever(listener, entrance, reserve)


class _Reserve:
    """A descriptor kept back, so that a connection for which there is none can be accepted, and closed: else its peer
    waits for its own timeout, and the loop turns without an end."""

    def __init__(self) -> None:
        self._descriptor = -1
        self.take()

    def take(self) -> None:
        """Keep one back, if there is one."""
        if self._descriptor < 0:
            with contextlib.suppress(OSError):
                self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def give(self) -> None:
        """Free it for a connection."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.give()


async def _refuse_waiting(listener: trio.abc.Listener[trio.abc.Stream], reserve: _Reserve) -> None:
    """Close connections that wait to be accepted, with the reserve descriptor."""
    with trio.move_on_after(_PAUSE_S):
        for _ in range(_REFUSED_AT_ONCE):
            reserve.give()
            try:
                stream = await listener.accept()
                await trio.aclose_forcefully(stream)
            except OSError:
                break
            finally:
                reserve.take()
    reserve.take()


async def _accept_forever(listener: trio.abc.Listener[trio.abc.Stream], entrance: _Entrance, reserve: _Reserve) -> None:
    failing = False
    while True:
        try:
            streams = await accept_some(listener)
        except OSError as error:
            if not failing:
                _log.warning("cannot accept connections for the time being: %s", error)
            elif error.errno in (errno.EMFILE, errno.ENFILE):  # for longer than a pause
                await _refuse_waiting(listener, reserve)
            failing = True
            await trio.sleep(_PAUSE_S)
            continue
        reserve.take()
        failing = False
        for stream in streams:
            entrance.admit(stream)
