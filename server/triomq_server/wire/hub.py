"""Hub: the links of one server (or the one link of a dialler), and the calls of their handlers.

A handler that need not wait is called in the middle of a receive batch; one that waits gets a task. ``connections`` and
``poller`` read, ``link.LinkWriter`` writes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Generator

import trio

from triomq_protocol.codes import ResponseCode
from triomq_protocol.errors import BodyError, HeaderError
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder
from triomq_server.repeats import PeerLog
from triomq_server.wire.handlers import Answer, Handlers, Slices, WaitingHandler
from triomq_server.wire.limits.limits import Limits
from triomq_server.wire.limits.loop_turns import turns_of_loop
from triomq_server.wire.link import Link, LinkWriter

_log = logging.getLogger(__name__)

WRITE_BYTES = 32_768
"""This many bytes of answers are written at once, not at the end of the batch: the peer reads the first pulled messages
while the messages for its next requests are looked up."""

IDLE_CLOSED_PER_TURN = 64
"""Idle links that are closed in a turn of the loop: ten thousand clients may fall silent at once, when a network fails."""

_OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"


class Hub:
    """State and tasks of a set of links.

    Args:
        handlers: by request code.
        nursery: where drain tasks and waiting handlers run.
        limits: of connections, bytes, waiting requests, idle time.
        on_closed: called once for each link that has ended.
        on_batch_end: called after the handlers of one receive batch, when its answers have been written.
        now: a clock in seconds, for `TURN_S`. Trio's own would take three times as long to read.

    Attributes:
        writer: writes for all links.
        turns: of the loop, shared with its other hubs.
        stopping: nothing is read any more.
        waiting_requests: how many handlers wait now.
        peer_log: for lines that peers can cause.
    """

    def __init__(
        self,
        handlers: Handlers,
        nursery: trio.Nursery,
        limits: Limits,
        *,
        on_closed: Callable[[Link], None] | None = None,
        on_batch_end: Callable[[], None] | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.links: set[Link] = set()
        self.writer = LinkWriter(nursery, limits.output_bytes, on_closed, limits.unsent)
        self.writer.on_drained = self._note_progress
        self.stopping = False
        self.waiting_requests = 0
        self._handlers = handlers
        self._nursery = nursery
        self.limits = limits
        self._on_batch_end = on_batch_end
        self.peer_log = PeerLog(_log)
        self._now = now
        self.turns = turns_of_loop()
        self._turn_begun = self._turn_ends = 0.0
        self._observe = limits.traffic.receive_times.observe
        self._progress = trio.Event()
        self._sliced = False
        """Whether a slice has been done in this batch."""

    def start_soon(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task among the links, for a connection that is not one yet."""
        self._nursery.start_soon(task, *args)

    def begin_batch(self) -> None:
        """Handlers are about to be called; no other task runs until ``end_batch``."""
        self.writer.in_batch = True
        self._sliced = False
        self._turn_begun = now = self._now()
        self._turn_ends = now + self.turns.left_s

    def turn_is_over(self) -> bool:
        """Whether other tasks should run before more handlers are called."""
        return self._now() > self._turn_ends

    def end_batch(self, links: list[Link]) -> None:
        """Write the answers of these links, then let the owner do its work at the end of a batch."""
        writer = self.writer
        try:
            for link in links:
                if link.unsent:
                    writer.flush(link)
            if self._on_batch_end is not None:
                self._on_batch_end()
        finally:
            writer.in_batch = False
            if writer.dirty:
                writer.flush_dirty()
            spent_s = self._now() - self._turn_begun
            self.turns.spent_s += spent_s
            self._observe(spent_s)

    def receive(self, link: Link, decoder: FrameDecoder, data: bytes) -> list[Command]:
        """Decode a link's received bytes, or continue with those left before; returns the requests whose handlers are still
        to be called.

        When the turn is over, or the peer does not take its answers, requests that can be handled together may be left
        to a later turn (``FrameDecoder.more``), since one by one they take ten times as long. Raises RemoteProtocolError
        if the first frame is invalid.
        """
        output_most = self.limits.output_bytes
        if self._handlers.bursts and link.unsent_bytes <= output_most:
            data = decoder.join(data)
            while data and not link.closed and (taken := self._burst(link, data)):
                data = data[taken:]
                if link.unsent_bytes >= WRITE_BYTES and not link.draining:
                    self.writer.flush(link)
                if data and (link.unsent_bytes > output_most or self.turn_is_over()):
                    if decoder.keep(data):
                        data = b""
                    break
            commands = decoder.feed(data) if data else []
        else:
            commands = decoder.feed(data)
        if decoder.incomplete or link.incomplete_bytes:
            self.count_incomplete(link, len(decoder.incomplete))
        return commands

    def _burst(self, link: Link, data: bytes) -> int:
        """Handle requests at the front of the received bytes, many at once; returns their size in bytes."""
        for burst in self._handlers.bursts:
            if taken := burst.take(link, data):
                return taken
        return 0

    def dispatch(self, link: Link, commands: list[Command], taken: int) -> int:
        """Call the handlers of the commands from index ``taken`` on; returns how many are done.

        Stops early when the link's unsent answers exceed its limit, since one receive may hold hundreds of pull requests,
        and when the turn is over. Stops too at a request that is done in slices (``Link.slices``), which is for
        ``finish_slices``.
        """
        plain = self._handlers.plain.get
        requests = self.limits.traffic.requests
        unsent = link.unsent
        output_most = self.limits.output_bytes
        now, turn_ends = self._now, self._turn_ends
        while taken < len(commands):
            command = commands[taken]
            taken += 1
            handler = plain(command.code)
            if handler is None or command.flag & 1:
                self._dispatch_other(link, command)
            else:
                requests[command.code] += 1
                try:
                    answer = handler(link, command)
                except Exception as error:  # noqa: BLE001 (becomes the answer, and is logged)
                    answer = self._failure(link, command, error)
                if answer is None or (command.flag & 2 and not isinstance(answer, Generator)):
                    pass
                elif type(answer) is bytes:
                    unsent.append(answer)
                    link.unsent_bytes += len(answer)
                elif type(answer) is list:
                    unsent += answer
                    link.unsent_bytes += sum(map(len, answer))
                else:
                    self._answer(link, command, answer)
            if link.unsent_bytes >= WRITE_BYTES and not link.draining:
                self.writer.flush(link)
            if link.unsent_bytes > output_most or link.closed or link.slices is not None or now() > turn_ends:
                break
        return taken

    def _dispatch_other(self, link: Link, command: Command) -> None:
        """Handle all but requests for plain handlers: answers, requests for waiting or sliced handlers, unknown codes."""
        if command.flag & 1:
            if not link.answered(command):
                _log.debug("%s sent an answer that no request waits for, opaque %d", link.peer, command.opaque)
            return
        self.limits.traffic.requests[command.code if self._handlers.knows(command.code) else -1] += 1
        sliced = self._handlers.sliced.get(command.code)
        if sliced is not None:
            if not self.limits.waiting.admits(command.received_bytes):
                self._refuse(link, command)
                return
            slices = sliced(link, command)
            if self._sliced or self.turns.is_spent:
                link.slices = slices, command  # another link's slice is the one of this turn
            else:
                self._sliced = True
                self._next_slice(link, slices, command)
            return
        waiting = self._handlers.waiting.get(command.code)
        if waiting is not None:
            size_bytes = command.received_bytes
            if self.waiting_requests < self.limits.waiting_requests and self.limits.waiting.admits(size_bytes):
                self.waiting_requests += 1
                self.limits.waiting.held_bytes += size_bytes
                self._nursery.start_soon(self._wait_for, waiting, link, command, size_bytes)
            else:
                self._refuse(link, command)
            return
        try:
            answer = self._handlers.default(link, command)
        except Exception as error:  # noqa: BLE001 (becomes the answer, and is logged)
            answer = self._failure(link, command, error)
        if answer is not None and not command.flag & 2:
            self._answer(link, command, answer)

    def _refuse(self, link: Link, command: Command) -> None:
        """Too much waits already."""
        if not command.flag & 2:
            self._answer(link, command, command.answer(ResponseCode.SYSTEM_BUSY, _OVERLOAD, serialize=0))

    async def _wait_for(self, handler: WaitingHandler, link: Link, command: Command, size_bytes: int) -> None:
        try:
            try:
                answer = await handler(link, command)
            except Exception as error:  # noqa: BLE001 (becomes the answer, and is logged)
                answer = self._failure(link, command, error)
            if answer is not None and not command.flag & 2:
                self._answer(link, command, answer)
        finally:
            self.waiting_requests -= 1
            self.limits.waiting.held_bytes -= size_bytes
            self._note_progress()

    def _next_slice(self, link: Link, slices: Generator[None, None, Answer], command: Command) -> None:
        """Do one slice of a request's work; ``Link.slices`` is the rest."""
        link.slices = None
        try:
            next(slices)
        except StopIteration as end:
            answer: Answer = end.value
        except Exception as error:  # noqa: BLE001 (becomes the answer, and is logged)
            answer = self._failure(link, command, error)
        else:
            link.slices = slices, command
            return
        if answer is not None and not command.flag & 2:
            self._answer(link, command, answer)

    async def finish_slices(self, link: Link) -> None:
        """Do the rest of a request's work. All links together do one slice per turn of the loop."""
        size_bytes = 0 if link.slices is None else link.slices[1].received_bytes
        self.waiting_requests += 1
        self.limits.waiting.held_bytes += size_bytes
        try:
            while link.slices is not None and not link.closed:
                await self.turns.wait_for_next(link.slices[1].code)  # links take turns
                if link.closed:
                    break
                begun = self._now()
                slices, command = link.slices
                self._next_slice(link, slices, command)
                self.turns.spent_s += self._now() - begun
        finally:
            if link.slices is not None:
                link.slices[0].close()
                link.slices = None
            self.waiting_requests -= 1
            self.limits.waiting.held_bytes -= size_bytes
            self._note_progress()

    def _answer(self, link: Link, command: Command, answer: Answer | Slices) -> None:
        if isinstance(answer, Command):
            if answer.code:
                self.limits.traffic.count_error(command.code, answer.code, known=self._handlers.knows(command.code))
            try:
                answer = answer.encode()
            except Exception as error:  # noqa: BLE001 (becomes the answer, and is logged)
                answer = self._failure(link, command, error).encode()
        if isinstance(answer, list):
            answer = b"".join(answer)
        if isinstance(answer, Generator):
            if self.limits.waiting.admits(command.received_bytes):
                link.slices = answer, command  # for `finish_slices`
            else:
                answer.close()
                self._refuse(link, command)
            return
        if answer is not None:
            link.send(answer)

    def _failure(self, link: Link, command: Command, error: Exception) -> Command:
        """The answer to a request whose handler failed. JSON whatever the request's encoding, as RocketMQ does."""
        if isinstance(error, HeaderError | BodyError):
            message = "request code %d of %s cannot be used: %s"
            self.peer_log.write(logging.INFO, link.peer, message, command.code, link.peer, error)
            remark = str(error)
        else:
            kind = command.code, type(error)
            message = "request code %d of %s failed"
            self.peer_log.write(logging.ERROR, link.peer, message, command.code, link.peer, kind=kind, exc_info=error)
            remark = f"{type(error).__name__}: {error}"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark, serialize=0)

    def count_incomplete(self, link: Link, size_bytes: int) -> None:
        """Note how many bytes of an incomplete frame a link has; may close links."""
        link.incomplete_bytes = size_bytes
        self.limits.incomplete.count(link, size_bytes)

    # Endings

    async def close_idle(self) -> None:
        """Task: close links on which nothing moved for the idle time."""
        idle_s = self.limits.idle_s
        while True:
            now = trio.current_time()
            oldest = now
            closed = 0
            for link in list(self.links):
                if link.closed:
                    continue
                if now - link.active_at >= idle_s:
                    self.peer_log.write(logging.INFO, link.peer, "closing %s: idle for %g s", link.peer, idle_s)
                    link.close()
                    closed += 1
                    if not closed % IDLE_CLOSED_PER_TURN:
                        await trio.lowlevel.checkpoint()
                else:
                    oldest = min(oldest, link.active_at)
            # A link that is added in the meantime cannot be due earlier.
            await trio.sleep_until(max(oldest + idle_s, now + idle_s / 100))

    async def drain(self) -> None:
        """Wait until no handler waits and nothing is unsent; nothing new is read from now on."""
        self.stopping = True
        writer = self.writer
        while self.waiting_requests or writer.drains or writer.dirty:
            self._progress = trio.Event()
            if writer.dirty:
                writer.flush_dirty()
            elif self.waiting_requests or writer.drains:
                await self._progress.wait()

    def _note_progress(self) -> None:
        if self.stopping:
            self._progress.set()
