"""Link: one connection to a peer, accepted or dialled, as handlers see it; and LinkWriter, which writes for many links.

Frames are sent by ``Link.send``, which never waits; our own requests are matched with their answers by opaque. Frames
sent outside a receive batch (answers to held pulls, notifications) are collected by link and written in the next turn of
the event loop, so that many need one write. A write that does not fit is finished by a task. ``connections`` reads the
received bytes.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Generator
from typing import Any, cast

import trio

from triomq_protocol.wire.command import Command
from triomq_server.repeats import PeerLog
from triomq_server.wire.limits.budget import Budget
from triomq_server.wire.sockets import BULK_BYTES, Buffer
from triomq_server.wire.transport import Transport

_log = logging.getLogger(__name__)

_PENDING_MOST = 65_535

# The errors of an ending connection; they are no defect of this server.
ENDINGS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class LinkError(Exception):
    """One of our own requests got no answer over a link."""


class LinkClosedError(LinkError):
    """The link was closed, by either side, before the answer came: dial again or forget the peer.

    Attributes:
        fault: the error in the peer's bytes; empty if there was none.
    """

    def __init__(self, text: str, *, fault: str = "") -> None:
        super().__init__(f"{text}: {fault}" if fault else text)
        self.fault = fault


class AnswerTimeoutError(LinkError):
    """The peer did not answer in time; the link itself may be well. A late answer will be dropped."""


class LinkBusyError(LinkError):
    """Too many of our own requests are already waiting for answers on this link."""


class _Waiter:
    """A waiting request of our own: its answer, or none if the link ended first."""

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
        fault: the error in the peer's bytes for which the link was closed; empty if there was none.
        has_answered: whether the peer has answered one of our own requests.
        joined: how many pieces at the beginning of `unsent` have been made of others, and are not looked at again.
        unsent_bytes: bytes that wait to be written; above the server's limit nothing more is read from this link.
        slices: the work of a request that is done in slices, with its command; None if there is none. Nothing else is
            read from the link until it ends.
        incomplete_bytes: received bytes of an incomplete frame.
        active_at: trio's time of the last byte received or written, for the idle limit.
    """

    __slots__ = (
        "_opaques",
        "_waiters",
        "_writer",
        "active_at",
        "closed",
        "dirty",
        "drained",
        "draining",
        "fault",
        "has_answered",
        "incomplete_bytes",
        "joined",
        "peer",
        "peer_host",
        "scope",
        "slices",
        "transport",
        "unsent",
        "unsent_bytes",
    )

    def __init__(self, transport: Transport, writer: LinkWriter) -> None:
        self.peer = transport.peer
        self.peer_host = transport.peer_host
        self.closed = False
        self.unsent: list[Buffer] = []
        self.unsent_bytes = 0
        self.incomplete_bytes = 0
        self.slices: tuple[Generator[None, None, Any], Command] | None = None
        self.active_at = trio.current_time()
        # The writer's side: whether it has unsent frames to write, whether a task waits for the socket to take more of
        # them, how many unsent pieces may be kept meanwhile, and the event of a reader that waits for that.
        self.dirty = False
        self.draining = False
        self.joined = 0
        self.drained: trio.Event | None = None
        self.fault = ""
        self.has_answered = False
        self.scope = trio.CancelScope()
        self.transport = transport
        self._writer = writer
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
        if type(data) is not bytes and (self.draining or not self._writer.in_batch):
            data = bytes(data)
        self.unsent.append(data)
        self.unsent_bytes += len(data)
        if not self.dirty:
            self._writer.mark(self)

    async def request(self, command: Command, timeout_s: float) -> Command:
        """Send a request to the peer and wait for its answer.

        Args:
            command: the request; this link assigns its opaque.
            timeout_s: seconds; part of RocketMQ's calls, so an argument here too.

        Raises:
            AnswerTimeoutError: no answer in time.
            LinkClosedError: the link is or was closed.
            LinkBusyError: 65535 requests are already waiting, or the peer does not read the bytes sent.
        """
        if self.closed:
            raise LinkClosedError(f"link to {self.peer} is closed", fault=self.fault)
        if len(self._waiters) >= _PENDING_MOST:
            raise LinkBusyError(f"{_PENDING_MOST} requests wait for answers of {self.peer}")
        if self.unsent_bytes > self._writer.output_bytes:
            raise LinkBusyError(f"{self.peer} does not take what has been sent to it")
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
            text = f"link to {self.peer} was closed before it answered request code {command.code}"
            if not self.has_answered and not self.fault:
                text += " or any other; it may expect TLS (useTLS)"
            raise LinkClosedError(text, fault=self.fault)
        raise AnswerTimeoutError(f"{self.peer} did not answer request code {command.code} within {timeout_s} s")

    def notify(self, command: Command) -> None:
        """Send a one-way request to the peer."""
        command.flag |= 2
        command.opaque = self._next_opaque()
        self.send(command.encode())

    def close(self) -> None:
        """Close now: unsent frames get one last try, our own waiting requests fail, and the owner is called
        (``on_closed``)."""
        if not self.closed:
            self._writer.close(self)

    def answered(self, command: Command) -> bool:
        """Take an answer that arrived; returns whether a request waited for it."""
        waiter = self._waiters.pop(command.opaque, None)
        if waiter is None:
            return False
        self.has_answered = True
        waiter.answer = command
        waiter.done.set()
        return True

    def fail_waiters(self) -> None:
        """The link has ended: end the waits of our requests."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            waiter.done.set()

    def _next_opaque(self) -> int:
        while True:
            opaque = next(self._opaques) & 0x7FFFFFFF
            if opaque not in self._waiters:
                return opaque


class LinkWriter:
    """Writes the frames of a set of links, at the end of a receive batch or in the next turn of the event loop.

    Args:
        nursery: the nursery of drain tasks.
        output_bytes: a link with more unsent bytes is not read from; below it, its reader is woken.
        on_closed: called once for each link that has ended.
        budget: counts the unsent bytes of all links together.

    Attributes:
        in_batch: frames sent now are written before any other task runs; true only while no other task can run.
        dirty: links with frames to write.
        wrote_bulk: whether much was written at once since this was set to False.
        drains: number of tasks that wait for a socket to take more.
        on_drained: called when such a task has ended.
    """

    def __init__(
        self, nursery: trio.Nursery, output_bytes: int, on_closed: Callable[[Link], None] | None, budget: Budget
    ) -> None:
        self.in_batch = False
        self.dirty: list[Link] = []
        self.wrote_bulk = False
        self.drains = 0
        self.on_drained: Callable[[], None] = lambda: None
        self._nursery = nursery
        self.output_bytes = output_bytes
        self._on_closed = on_closed
        self._budget = budget
        self._peer_log = PeerLog(_log)
        self._flusher_awake = False
        self._flusher_lot = trio.lowlevel.ParkingLot()

    def mark(self, link: Link) -> None:
        """A link has frames to write: at the end of the batch, else in the next turn of the loop."""
        link.dirty = True
        self.dirty.append(link)
        if not self.in_batch and not self._flusher_awake:
            self._flusher_awake = True
            self._flusher_lot.unpark()

    async def flush_marked(self) -> None:
        """Task: write frames that were sent outside of receive batches."""
        while True:
            if not self._flusher_awake:
                await self._flusher_lot.park()
            self._flusher_awake = False
            self.flush_dirty()

    def flush_dirty(self) -> None:
        """Write what all marked links have to send."""
        dirty, self.dirty = self.dirty, []
        for link in dirty:
            self.flush(link)

    def flush(self, link: Link) -> None:
        """Write as much as possible without waiting, and start a drain task for the rest."""
        link.dirty = False
        if not link.unsent or link.closed:
            return
        if link.draining:
            # Views of a map must not be kept during a wait. Only the new pieces are looked at: a peer that sends small
            # requests and reads nothing would make each write take longer than the one before.
            if new := link.unsent[link.joined :]:
                link.unsent[link.joined :] = [b"".join(new)]
                link.joined += 1
            self._budget.count(link, link.unsent_bytes)
            return
        if link.unsent_bytes >= BULK_BYTES:
            self.wrote_bulk = True
        try:
            left = b"".join(link.transport.send_now(link.unsent))
        except Exception as error:  # noqa: BLE001 (one link's frames must not end the task that writes for all)
            link.unsent.clear()
            self._writing_failed(link, error)
            return
        link.unsent.clear()
        link.unsent_bytes = len(left)
        if left:
            link.unsent.append(left)
            link.draining = True
            self.drains += 1
            self._nursery.start_soon(self._drain, link)
            self._budget.count(link, link.unsent_bytes)

    async def _drain(self, link: Link) -> None:
        """Write all that a link has, waiting for its socket; wakes the reader once below the limit."""
        try:
            while link.unsent and not link.closed:
                data = memoryview(b"".join(link.unsent))
                link.unsent.clear()
                link.joined = 0
                while data and not link.closed:
                    sent = await link.transport.send_some(data)
                    data = _rest(data, sent)
                    link.unsent_bytes -= sent
                    link.active_at = trio.current_time()
                    if link.closed:
                        break
                    self._budget.count(link, link.unsent_bytes)
                    if link.drained is not None and link.unsent_bytes <= self.output_bytes:
                        link.drained.set()
                        link.drained = None
        except Exception as error:  # noqa: BLE001 (the task's outermost edge)
            self._writing_failed(link, error)
        finally:
            link.draining = False
            self.drains -= 1
            self.on_drained()

    def _writing_failed(self, link: Link, error: Exception) -> None:
        if isinstance(error, ENDINGS):
            _log.debug("%s ended while being written to: %r", link.peer, error)
        else:
            message = "closing %s after a fault of our own"
            self._peer_log.write(logging.ERROR, link.peer, message, link.peer, kind=type(error), exc_info=error)
        link.close()

    def close(self, link: Link) -> None:
        """End a link: see ``Link.close``."""
        self.flush(link)
        if link.closed:
            return
        link.closed = True
        link.unsent.clear()
        self._budget.count(link, 0)
        link.scope.cancel()
        link.fail_waiters()
        if self._on_closed is not None:
            try:
                self._on_closed(link)
            except Exception as error:  # noqa: BLE001 (the owner's fault must not keep the link open)
                message = "clean-up after %s failed"
                self._peer_log.write(logging.ERROR, link.peer, message, link.peer, kind=type(error), exc_info=error)

    def end_batch(self) -> None:
        """Write frames sent since ``in_batch`` was set, for a batch that was not begun by a receive."""
        self.in_batch = False
        if self.dirty:
            self.flush_dirty()


def _rest(data: memoryview, sent: int) -> memoryview:
    """What is left of the bytes after a write. It is copied when half of them have been sent: a peer that takes all but the
    end of a long answer must not keep what no limit counts any more."""
    left = data[sent:]
    return memoryview(bytes(left)) if 2 * len(left) <= len(cast("bytes", data.obj)) else left
