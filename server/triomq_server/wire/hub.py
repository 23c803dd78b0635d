"""Hub: the links of one server (or the one link of a dialler), their reading, dispatching and writing.

The hot path, per receive: all frames of what arrived, a plain function call for each, one non-blocking write of all
answers, one call of ``on_batch_end`` (for all links that the poller found ready at once). A write that does not fit is finished by a drain task; a link with too much unsent
is not read from until the peer takes its answers.

Frames sent outside a receive batch (long polls that end, notifications) are collected by link and written in the next
turn of the loop, so that a burst is one write. ``in_batch`` is only ever true while no other task can run.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from triomq_protocol.codes import ResponseCode
from triomq_protocol.command import Command
from triomq_protocol.errors import BodyError, HeaderError, RemoteProtocolError
from triomq_protocol.frame import FrameDecoder
from triomq_server.wire.handlers import Answer, Handlers, WaitingHandler
from triomq_server.wire.limits import Limits
from triomq_server.wire.link import Link
from triomq_server.wire.poller import HAS_EPOLL, PolledLink, Poller
from triomq_server.wire.transport import SocketTransport, Transport

_log = logging.getLogger(__name__)

# How an ending connection shows itself; nothing to worry about.
_ENDINGS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)

_OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"


class Hub:
    """State and tasks of a set of links.

    Args:
        handlers: who answers.
        nursery: where drain tasks and waiting handlers run.
        limits: of connections, bytes, waiting requests, idle time.
        on_closed: called once for each link that has ended.
        on_batch_end: called after the handlers of one receive batch, when its answers have been written.
    """

    def __init__(
        self,
        handlers: Handlers,
        nursery: trio.Nursery,
        limits: Limits,
        *,
        on_closed: Callable[[Link], None] | None = None,
        on_batch_end: Callable[[], None] | None = None,
    ) -> None:
        self.links: set[Link] = set()
        self.in_batch = False
        self.stopping = False
        self.waiting_requests = 0
        self._handlers = handlers
        self._nursery = nursery
        self.limits = limits
        self._on_closed = on_closed
        self._on_batch_end = on_batch_end
        self._dirty: list[Link] = []
        self._flusher_awake = False
        self._flusher_lot = trio.lowlevel.ParkingLot()
        self._drains = 0
        self._poller: Poller | None = None
        self._quiet = trio.Event()

    def start(self, welcome: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task among the links, for a connection that is not one yet."""
        self._nursery.start_soon(welcome, *args)

    # Reading

    async def attend(
        self, transport: Transport, *, task_status: trio.TaskStatus[Link] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve one connection to its end; whatever happens on it ends only it."""
        link = Link(transport, self)
        self.links.add(link)
        task_status.started(link)
        try:
            with link.scope:
                await self._read(link)
        except RemoteProtocolError as error:
            _log.warning("closing %s: %s", link.peer, error)
        except _ENDINGS as error:
            _log.debug("%s ended: %r", link.peer, error)
        except Exception:  # noqa: BLE001 (the task's outermost edge)
            _log.exception("closing %s after a fault of our own", link.peer)
        finally:
            link.close()
            self.links.discard(link)
            await transport.aclose()

    async def _read(self, link: Link) -> None:
        decoder = FrameDecoder(self.limits.frame_bytes)
        if self._poller is not None and isinstance(link.transport, SocketTransport):
            await self._read_polled(PolledLink(link, link.transport, decoder), self._poller)
            return
        receive = link.transport.receive
        feed = decoder.feed
        while data := await receive():
            if self.stopping:
                # Answers of earlier requests may still be on their way; the server's end closes the link.
                await trio.sleep_forever()
            link.active_at = trio.current_time()
            await self._take_all(link, feed(data), 0)
            if decoder.fault is not None:
                raise decoder.fault

    async def _read_polled(self, polled: PolledLink, poller: Poller) -> None:
        """Leave the reading to the poller, and do what it cannot do without waiting."""
        link = polled.link
        poller.resume(polled)
        try:
            while True:
                await polled.attention.wait()
                polled.attention = trio.Event()
                if polled.error is not None:
                    raise polled.error
                await self._take_all(link, polled.commands, polled.taken)
                polled.commands = []
                if polled.decoder.fault is not None:
                    raise polled.decoder.fault
                if polled.ended or link.closed:
                    return
                poller.resume(polled)
        finally:
            poller.pause(polled)

    async def _take_all(self, link: Link, commands: list[Command], taken: int) -> None:
        """Handle the commands from index ``taken`` on, whenever the peer has taken enough of its answers."""
        while not link.closed:
            if link.unsent_bytes > self.limits.output_bytes:
                link.drained = trio.Event()
                await link.drained.wait()
            if taken >= len(commands):
                return
            self.begin_batch()
            try:
                taken = self.dispatch(link, commands, taken)
            finally:
                self.end_batch([link])

    async def poll_sockets(self) -> None:
        """Task: read the sockets of all links from here on, where the system can (else each link's task reads)."""
        if HAS_EPOLL:
            self._poller = Poller(self, self.limits.output_bytes)
            await self._poller.run()

    def begin_batch(self) -> None:
        """Handlers are about to be called; no other task runs until ``end_batch``."""
        self.in_batch = True

    def end_batch(self, links: list[Link]) -> None:
        """Write the answers of these links, then let the owner do what follows from the batch."""
        try:
            for link in links:
                if link.unsent:
                    self._flush(link)
            if self._on_batch_end is not None:
                self._on_batch_end()
        finally:
            self.in_batch = False
            if self._dirty:
                self._flush_dirty()

    def end_burst(self) -> None:
        """Write what has been sent since ``begin_batch`` outside of any receive."""
        self.in_batch = False
        if self._dirty:
            self._flush_dirty()

    def dispatch(self, link: Link, commands: list[Command], taken: int) -> int:
        """Call the handlers of the commands from index ``taken`` on; returns how many are done.

        Stops early when the link's unsent answers exceed its limit: one receive may hold hundreds of pull requests.
        """
        plain = self._handlers.plain.get
        unsent = link.unsent
        output_most = self.limits.output_bytes
        while taken < len(commands):
            command = commands[taken]
            taken += 1
            handler = plain(command.code)
            if handler is None or command.flag & 1:
                self._take_other(link, command)
            else:
                try:
                    answer = handler(link, command)
                except Exception as error:  # noqa: BLE001 (becomes the answer, and is logged)
                    answer = _failure(link, command, error)
                if answer is None or command.flag & 2:
                    pass
                elif type(answer) is bytes:
                    unsent.append(answer)
                    link.unsent_bytes += len(answer)
                elif type(answer) is list:
                    unsent += answer
                    link.unsent_bytes += sum(map(len, answer))
                else:
                    self._answer(link, command, answer)
            if link.unsent_bytes > output_most or link.closed:
                break
        return taken

    def _take_other(self, link: Link, command: Command) -> None:
        """What is no request for a plain handler: an answer, a request for a waiting handler, an unknown code."""
        if command.flag & 1:
            if not link.answered(command):
                _log.debug("%s sent an answer nobody waits for, opaque %d", link.peer, command.opaque)
            return
        waiting = self._handlers.waiting.get(command.code)
        if waiting is not None:
            if self.waiting_requests < self.limits.waiting_requests:
                self.waiting_requests += 1
                self._nursery.start_soon(self._wait_for, waiting, link, command)
            elif not command.flag & 2:
                self._answer(link, command, command.answer(ResponseCode.SYSTEM_BUSY, _OVERLOAD, serialize=0))
            return
        try:
            answer = self._handlers.default(link, command)
        except Exception as error:  # noqa: BLE001 (becomes the answer, and is logged)
            answer = _failure(link, command, error)
        if answer is not None and not command.flag & 2:
            self._answer(link, command, answer)

    async def _wait_for(self, handler: WaitingHandler, link: Link, command: Command) -> None:
        try:
            try:
                answer = await handler(link, command)
            except Exception as error:  # noqa: BLE001 (becomes the answer, and is logged)
                answer = _failure(link, command, error)
            if answer is not None and not command.flag & 2:
                self._answer(link, command, answer)
        finally:
            self.waiting_requests -= 1
            self._became_quieter()

    def _answer(self, link: Link, command: Command, answer: Answer) -> None:
        if isinstance(answer, Command):
            try:
                answer = answer.encode()
            except Exception as error:  # noqa: BLE001 (becomes the answer, and is logged)
                answer = _failure(link, command, error).encode()
        if isinstance(answer, list):
            answer = b"".join(answer)
        if answer is not None:
            link.send(answer)

    # Writing

    def mark(self, link: Link) -> None:
        """A link has frames to write: at the end of the batch, else in the next turn of the loop."""
        link.dirty = True
        self._dirty.append(link)
        if not self.in_batch and not self._flusher_awake:
            self._flusher_awake = True
            self._flusher_lot.unpark()

    async def flush_marked(self) -> None:
        """Task: write what was sent outside of receive batches."""
        while True:
            if not self._flusher_awake:
                await self._flusher_lot.park()
            self._flusher_awake = False
            self._flush_dirty()

    def _flush_dirty(self) -> None:
        dirty, self._dirty = self._dirty, []
        for link in dirty:
            self._flush(link)

    def _flush(self, link: Link) -> None:
        """Write what goes without waiting, and start a drain task for the rest."""
        link.dirty = False
        if not link.unsent or link.draining or link.closed:
            return
        try:
            left = link.transport.send_now(link.unsent)
        except Exception as error:  # noqa: BLE001 (one link's frames must not end the task that writes for all)
            link.unsent.clear()
            self._writing_failed(link, error)
            return
        link.unsent.clear()
        link.unsent_bytes = len(left)
        if left:
            link.unsent.append(left)
            link.draining = True
            self._drains += 1
            self._nursery.start_soon(self._drain, link)

    async def _drain(self, link: Link) -> None:
        """Write all that a link has, waiting for its socket; wakes the reader once below the limit."""
        try:
            while link.unsent and not link.closed:
                data = memoryview(b"".join(link.unsent))
                link.unsent.clear()
                while data and not link.closed:
                    sent = await link.transport.send_some(data)
                    data = data[sent:]
                    link.unsent_bytes -= sent
                    link.active_at = trio.current_time()
                    if link.drained is not None and link.unsent_bytes <= self.limits.output_bytes:
                        link.drained.set()
                        link.drained = None
        except Exception as error:  # noqa: BLE001 (the task's outermost edge)
            self._writing_failed(link, error)
        finally:
            link.draining = False
            self._drains -= 1
            self._became_quieter()

    def _writing_failed(self, link: Link, error: Exception) -> None:
        if isinstance(error, _ENDINGS):
            _log.debug("%s ended while being written to: %r", link.peer, error)
        else:
            _log.error("closing %s after a fault of our own", link.peer, exc_info=error)
        link.close()

    # Endings

    def shut(self, link: Link) -> None:
        """End a link: see ``Link.close``."""
        self._flush(link)
        if link.closed:
            return
        link.closed = True
        link.unsent.clear()
        link.scope.cancel()
        link.fail_waiters()
        if self._on_closed is not None:
            try:
                self._on_closed(link)
            except Exception:  # noqa: BLE001 (the owner's fault must not keep the link open)
                _log.exception("clean-up after %s failed", link.peer)

    async def close_idle(self) -> None:
        """Task: close links on which nothing moved for the idle time."""
        idle_s = self.limits.idle_s
        while True:
            now = trio.current_time()
            oldest = now
            for link in list(self.links):
                if now - link.active_at >= idle_s:
                    _log.info("closing %s: idle for %g s", link.peer, idle_s)
                    link.close()
                else:
                    oldest = min(oldest, link.active_at)
            # A link that appears meanwhile cannot be due earlier.
            await trio.sleep_until(max(oldest + idle_s, now + idle_s / 100))

    async def settle(self) -> None:
        """Wait until no handler waits and nothing is unsent; nothing new is read meanwhile."""
        self.stopping = True
        while self.waiting_requests or self._drains or self._dirty:
            self._quiet = trio.Event()
            if self._dirty:
                self._flush_dirty()
            elif self.waiting_requests or self._drains:
                await self._quiet.wait()

    def _became_quieter(self) -> None:
        if self.stopping:
            self._quiet.set()


def _failure(link: Link, command: Command, error: Exception) -> Command:
    """The answer to a request whose handler failed. JSON whatever the request's encoding, as RocketMQ does."""
    if isinstance(error, HeaderError | BodyError):
        _log.info("request code %d of %s cannot be used: %s", command.code, link.peer, error)
        remark = str(error)
    else:
        _log.error("request code %d of %s failed", command.code, link.peer, exc_info=error)
        remark = f"{type(error).__name__}: {error}"
    return command.answer(ResponseCode.SYSTEM_ERROR, remark, serialize=0)
