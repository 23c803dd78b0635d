"""Link: one connection to a peer, accepted or dialled, as handlers see it.

Frames go out through ``send``, which never waits; requests of ours are paired with their answers by opaque. The reading
is done by the hub (``hub.py``).
"""

from __future__ import annotations

import itertools
from typing import Protocol

import trio

from triomq_protocol.command import Command
from triomq_server.wire.transport import Buffer, Transport

_PENDING_MOST = 65_535


class Outlet(Protocol):
    """What a link needs of the hub that writes for it.

    Attributes:
        in_batch: true while the handlers of a receive batch run, and no other task does.
    """

    in_batch: bool

    def mark(self, link: Link) -> None:
        """The link has frames to write."""

    def shut(self, link: Link) -> None:
        """End the link."""


class LinkError(Exception):
    """A request of ours got no answer over a link."""


class LinkClosedError(LinkError):
    """The link was closed, by either side, before the answer came: dial again or forget the peer."""


class AnswerTimeoutError(LinkError):
    """The peer did not answer in time; the link itself may be well. A late answer will be dropped."""


class LinkBusyError(LinkError):
    """Too many requests of ours wait for answers on this link already."""


class _Waiter:
    """Someone who waits for an answer: the answer, or none when the link ended first."""

    __slots__ = ("answer", "done")

    def __init__(self) -> None:
        self.answer: Command | None = None
        self.done = trio.Event()


class Link:
    """One connection.

    Attributes:
        peer: ``ip:port`` of the other end.
        peer_host: the same, packed as records hold it (8 or 20 bytes).
        closed: nothing is sent or received any more.
        unsent_bytes: what waits to be written; above the server's limit nothing more is read from this link.
        active_at: trio's time of the last byte received or written, for the idle limit.
    """

    __slots__ = (
        "_hub",
        "_opaques",
        "_waiters",
        "active_at",
        "closed",
        "dirty",
        "drained",
        "draining",
        "peer",
        "peer_host",
        "scope",
        "transport",
        "unsent",
        "unsent_bytes",
    )

    def __init__(self, transport: Transport, hub: Outlet) -> None:
        self.peer = transport.peer
        self.peer_host = transport.peer_host
        self.closed = False
        self.unsent: list[Buffer] = []
        self.unsent_bytes = 0
        self.active_at = trio.current_time()
        # The hub's side: whether it knows of unsent frames, whether a task waits for the socket to take more of them,
        # and whom to wake when it has.
        self.dirty = False
        self.draining = False
        self.drained: trio.Event | None = None
        self.scope = trio.CancelScope()
        self.transport = transport
        self._hub = hub
        self._opaques = itertools.count()
        self._waiters: dict[int, _Waiter] = {}

    def __repr__(self) -> str:
        return f"<Link {self.peer}{' closed' if self.closed else ''}>"

    def send(self, data: Buffer) -> None:
        """Queue one or more whole frames, or the pieces of one in consecutive calls; never waits.

        Everything sent within one turn of the loop leaves in one write, in order. On a closed link the data is dropped.
        A memoryview must stay valid until the caller next waits; it is copied when it cannot be written by then.
        """
        if self.closed:
            return
        if type(data) is not bytes and (self.draining or not self._hub.in_batch):
            data = bytes(data)
        self.unsent.append(data)
        self.unsent_bytes += len(data)
        if not self.dirty:
            self._hub.mark(self)

    async def request(self, command: Command, timeout_s: float) -> Command:
        """Send a request to the peer and wait for its answer.

        Args:
            command: gets an opaque of this link's own.
            timeout_s: seconds; part of RocketMQ's calls, so an argument here too.

        Raises:
            AnswerTimeoutError: no answer in time.
            LinkClosedError: the link is or was closed.
            LinkBusyError: 65535 requests wait already.
        """
        if self.closed:
            raise LinkClosedError(f"link to {self.peer} is closed")
        if len(self._waiters) >= _PENDING_MOST:
            raise LinkBusyError(f"{_PENDING_MOST} requests wait for answers of {self.peer}")
        opaque = self._next_opaque()
        command.opaque = opaque
        waiter = self._waiters[opaque] = _Waiter()
        try:
            self.send(command.encode())
            with trio.move_on_after(timeout_s):
                await waiter.done.wait()
        finally:
            self._waiters.pop(opaque, None)
        if waiter.answer is not None:
            return waiter.answer
        if waiter.done.is_set():
            raise LinkClosedError(f"link to {self.peer} was closed before it answered request code {command.code}")
        raise AnswerTimeoutError(f"{self.peer} did not answer request code {command.code} within {timeout_s} s")

    def notify(self, command: Command) -> None:
        """Send a one-way request to the peer."""
        command.flag |= 2
        command.opaque = self._next_opaque()
        self.send(command.encode())

    def close(self) -> None:
        """Close now: requests of ours that wait fail at once, unsent frames get one last try, handlers hear of it."""
        if not self.closed:
            self._hub.shut(self)

    def answered(self, command: Command) -> bool:
        """An answer arrived; returns whether anybody waited for it."""
        waiter = self._waiters.pop(command.opaque, None)
        if waiter is None:
            return False
        waiter.answer = command
        waiter.done.set()
        return True

    def fail_waiters(self) -> None:
        """The link has ended: nobody needs to wait any longer."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            waiter.done.set()

    def _next_opaque(self) -> int:
        while True:
            opaque = next(self._opaques) & 0x7FFFFFFF
            if opaque not in self._waiters:
                return opaque
