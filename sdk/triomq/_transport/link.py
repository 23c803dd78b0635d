"""One connection to one peer: frames to write, requests that wait for their answers, and the end of the link.

Callers append whole frames; one writer task sends all waiting frames together; one
reader task resolves all answers of a receive.  A cancelled caller cannot tear a frame, and no request costs
a task, a channel or a cancel scope (docs/explanation/hot-path.md).  When the link ends, all waiters
fail at once (docs/protocol/client.md §3.4).  Upstream: ``NettyRemotingClient``, ``NettyRemotingAbstract``.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Final

import trio

from triomq._error_text import error_text, named_error
from triomq._transport.dialing import TLS_FAILED, NowaitStream
from triomq._transport.own_loop import OwnLoop
from triomq._transport.peer_log import PeerLog
from triomq.errors import (
    ConnectFailed,
    LinkLost,
    MQError,
    OtherProtocol,
    Overloaded,
    ProtocolViolation,
    RequestTimeout,
)
from triomq_protocol.codes import ResponseCode
from triomq_protocol.errors import BodyError, HeaderError, ProtocolError
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder, begins_tls

log = logging.getLogger("triomq.links")

SILENT_TIMEOUTS_MAX: Final = 2
"""After this many requests in a row timed out without a byte received, the link may be considered dead."""

SILENT_TIMEOUTS_S: Final = 1.0
"""And so long after the first of them: requests that were sent together time out together, and a broker that pauses for
two seconds still answers those that have more time."""

SHARED_SILENCE_S: Final = 35.0
"""How long, besides, nothing must have arrived from an address of several broker sets, a proxy's: it does not answer for
a broker that is down, but for itself. A heartbeat every 30 s has 3 s for its answer."""

HEADER_BYTES_MAX: Final = 512 * 1024
"""The longest header of a peer's frame, remark included. The largest ones that brokers send contain the properties of a
message, 32767 bytes at most, which may be 200 kB in JSON."""

WRITE_EVERY: Final = 32
"""When this many requests wait to be written, they are written: the peer works on them while the callers of the same
turn still encode theirs. With half of it, the additional system calls cost more than that gains."""

_RECEIVE_BYTES: Final = 64 * 1024
_RECEIVE_BYTES_MAX: Final = 1024 * 1024
_NEVER: Final = float("inf")

Handler = Callable[["Link", Command], Command | None]
"""Answers a request of the peer; a plain function that returns soon, since the reader calls it. None: no answer."""


class Waiter(abc.ABC):
    """Waits for the answer to one request.

    Exactly one of the two methods is called, once, by the link's own tasks; both must return soon and
    must not raise.

    Attributes:
        deadline: on trio's clock; past it the link calls :meth:`failed` with :class:`RequestTimeout`.
    """

    __slots__ = ("deadline",)

    deadline: float

    @abc.abstractmethod
    def answered(self, answer: Command) -> None:
        """The peer's answer, whatever its code."""

    @abc.abstractmethod
    def failed(self, error: MQError) -> None:
        """There will be no answer."""


class TaskWaiter(Waiter):
    """Lets a task wait for its answer."""

    __slots__ = ("_answer", "_error", "_task")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._answer: Command | None = None
        self._error: MQError | None = None
        self._task: trio.lowlevel.Task | None = None

    def answered(self, answer: Command) -> None:
        self._answer = answer
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)

    def failed(self, error: MQError) -> None:
        self._error = error
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)

    async def wait(self, link: Link, opaque: int) -> Command:
        """Wait for the answer; a cancel forgets the request, and its late answer is dropped."""
        if self._answer is None and self._error is None:

            def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
                link.forget(opaque)
                return trio.lowlevel.Abort.SUCCEEDED

            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)
        if self._answer is None:
            assert self._error is not None
            raise self._error
        return self._answer


def _ignore_code(_code: int) -> None:
    """Count nothing."""


class Link:
    """An open connection.

    Args:
        address: the peer, as it was dialled.
        stream: carries bytes in both directions; the link closes it.
        handlers: answer the peer's own requests, by code; others are answered with REQUEST_CODE_NOT_SUPPORTED.
        on_lost: called once when the link can no longer be used.
        max_pending: the most requests that wait for an answer.
        max_unsent_bytes: the most bytes that wait for the kernel.
        max_header_bytes: a peer's frame with a longer header ends the link.
        peer_log: logs lines that the peer causes; the links of a client share one.
        on_code: called with the code of every answer other than success.
        is_shared: whether the brokers of several sets are behind an address.
    """

    def __init__(
        self,
        address: str,
        stream: trio.abc.Stream,
        *,
        handlers: Mapping[int, Handler] | None = None,
        on_lost: Callable[[Link], None] | None = None,
        max_pending: int = 65535,
        max_unsent_bytes: int = 64 * 1024 * 1024,
        max_header_bytes: int = HEADER_BYTES_MAX,
        peer_log: PeerLog | None = None,
        on_code: Callable[[int], None] | None = None,
        is_shared: Callable[[str], bool] = lambda _address: False,
    ) -> None:
        self.address = address
        self._is_shared = is_shared
        self._own_loop = OwnLoop()
        self.pending: dict[int, Waiter] = {}
        self.peer_version = 0
        """The version in the peer's last heartbeat answer; 0 before it (docs/protocol/consumer.md §2.2)."""
        self.received_s: float = 0.0
        """Trio's clock when bytes last arrived; a time for each answer would cost a considerable part of its work."""
        self.has_received: bool = False
        """Whether any byte has arrived from the peer."""
        self._stream = stream
        self._send_nowait = stream.send_nowait if isinstance(stream, NowaitStream) else None
        self._handlers = handlers if handlers is not None else {}
        self._on_lost = on_lost
        self._max_pending = max_pending
        self._max_unsent_bytes = max_unsent_bytes
        self._max_header_bytes = max_header_bytes
        self._peer_log = peer_log if peer_log is not None else PeerLog(log)
        self._on_code = on_code if on_code is not None else _ignore_code
        self._opaque = 0
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._idle_writer: trio.lowlevel.Task | None = None
        self._writing = False
        """Whether the writer waits, or must wait, for the kernel; nothing else may be written then."""
        self._alarm_at = _NEVER
        self._alarm: trio.CancelScope | None = None
        self._lost: MQError | None = None
        self._scope = trio.CancelScope()
        self._capacity: trio.Event | None = None
        self._heard = False
        """Whether bytes have arrived since the last requests that timed out; a long answer may take long to arrive."""
        self._silent_timeouts = 0
        self._silent_from_s = _NEVER

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the kernel."""
        return self._unsent_bytes

    @property
    def is_open(self) -> bool:
        """Whether requests may still be submitted."""
        return self._lost is None

    @property
    def has_capacity(self) -> bool:
        """Whether another request fits the limits."""
        return len(self.pending) < self._max_pending and self._unsent_bytes < self._max_unsent_bytes

    async def wait_capacity(self) -> None:
        """Wait until :attr:`has_capacity`; returns at once if the link is lost, and submitting then raises."""
        while not self.has_capacity and self._lost is None:
            if self._capacity is None:
                self._capacity = trio.Event()
            await self._capacity.wait()

    def next_opaque(self) -> int:
        """A number that no waiting request of this link has."""
        opaque = (self._opaque + 1) & 0x7FFFFFFF
        while opaque in self.pending:
            opaque = (opaque + 1) & 0x7FFFFFFF
        self._opaque = opaque
        return opaque

    def submit(self, frame: bytes, opaque: int, waiter: Waiter, *, now: bool = False) -> None:
        """Queue a whole request frame; its waiter gets the answer, the loss, or the deadline.

        Args:
            frame: the request.
            opaque: its number.
            waiter: called once.
            now: write the frame before this returns, unless other frames are being written: the peer works on it
                while the caller still has much to do. Otherwise frames that are queued together are sent together.

        Raises:
            LinkLost: the link is no longer open; the waiter is not called.
        """
        if self._lost is not None:
            raise self._lost_error()
        pending = self.pending
        was_idle = not pending
        pending[opaque] = waiter
        if waiter.deadline < self._alarm_at:
            self._set_alarm(waiter.deadline)
        if (was_idle or now) and self._idle_writer is not None and self._send_nowait is not None:
            # If no other frame can share the send, the system call now is cheaper than waking the writer.
            self._write_now(frame)
        else:
            self._queue(frame)
            if len(self._unsent) >= WRITE_EVERY and not self._writing and self._send_nowait is not None:
                self._write_unsent_now()

    def forget(self, opaque: int) -> None:
        """Forget a request whose caller no longer waits: its waiter is not called, and its late answer is dropped."""
        self.pending.pop(opaque, None)
        self._wake_waiting_senders()

    def write(self, frame: bytes) -> None:
        """Queue a frame that has no waiter: a one-way request, or an answer to the peer."""
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)
        if self._idle_writer is not None:
            writer, self._idle_writer = self._idle_writer, None
            trio.lowlevel.reschedule(writer)

    # The same function under a name that subclasses do not override: for bytes that are ready to be sent.
    _queue = write

    async def request(self, command: Command, timeout_s: float) -> Command:
        """Send a request and wait for its answer.

        Args:
            command: the request; its opaque is set here.
            timeout_s: how long to wait for the answer.

        Returns:
            The answer, whatever its code.

        Raises:
            RequestTimeout: no answer in time; the link stays open unless it is completely silent.
            LinkLost: the connection ended first.
            InvalidCall: called from another event loop than the link's own.
        """
        self._check_loop()
        if not self.has_capacity:
            with trio.move_on_after(timeout_s):
                await self.wait_capacity()
            if self._lost is None and not self.has_capacity:
                raise Overloaded(f"the link has {len(self.pending)} requests waiting", address=self.address)
        command.opaque = opaque = self.next_opaque()
        waiter = TaskWaiter(trio.current_time() + timeout_s)
        self.submit(command.encode(), opaque, waiter)
        return await waiter.wait(self, opaque)

    def _check_loop(self) -> None:
        # Not in `next_opaque`, which sends and pulls use: producers and `Links.get` have already checked.
        if get_ident() != self._own_loop.thread:
            self._own_loop.refuse()

    def notify(self, command: Command) -> None:
        """Send a one-way request: it is queued here, and written when the kernel accepts it.

        Raises:
            LinkLost: the link is no longer open.
            InvalidCall: called from another event loop than the link's own.
        """
        self._check_loop()
        if self._lost is not None:
            raise self._lost_error()
        command.opaque = self.next_opaque()
        self.write(command.encode())

    def answer(self, answer: Command) -> None:
        """Answer a request of the peer. Nothing is sent if the link is lost, or as many bytes as may wait for the kernel
        do: a peer that sends requests and reads no answers must not fill the memory."""
        if self._lost is not None:
            return
        if self._unsent_bytes >= self._max_unsent_bytes:
            text = "reads too little: the answer to its request is dropped"
            self._peer_log.write(logging.WARNING, self.address, text)
            return
        self.write(answer.encode())

    def close(self, error: MQError | None = None) -> None:
        """End the link: all waiters fail with ``error`` at once, then the stream closes."""
        if self._lost is None:
            self._lost = error if error is not None else LinkLost("the link was closed here", address=self.address)
            if self._on_lost is not None:
                # First, so that a waiter that tries again does not find this link.
                self._on_lost(self)
            waiters = list(self.pending.values())
            self.pending.clear()
            for waiter in waiters:
                waiter.failed(self._lost_error())
            self._scope.cancel()
            self._wake_waiting_senders()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the link until it is lost or closed; never raises for the peer's faults."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch_deadlines)
                    await nursery.start(self._write_frames)
                    task_status.started()
                    await self._read_frames()
        except Exception as error:
            if not self._scope.cancel_called:
                raise
            # The error of a cancelled stream with tasks of its own is an Exception only out here.
            self._stream_failed(error)
        finally:
            self.close()
            with trio.CancelScope(shield=True):
                await self._close_stream()

    async def _close_stream(self) -> None:
        try:
            await trio.aclose_forcefully(self._stream)
        except Exception:
            # A dialer may create streams of its own.
            log.exception("the %s to %s cannot be closed", type(self._stream).__name__, self.address)

    def _lost_error(self) -> MQError:
        # A fresh one for each waiter: a shared exception would collect all their tracebacks.
        lost = self._lost
        assert lost is not None
        return type(lost)(lost.what, address=lost.address, remark=lost.remark)

    async def _read_frames(self) -> None:
        try:
            await self._read_until_lost()
        except Exception as error:  # noqa: BLE001 - written with its traceback
            self._stream_failed(error)

    async def _read_until_lost(self) -> None:
        decoder = FrameDecoder(max_header_bytes=self._max_header_bytes)
        receive_some = self._stream.receive_some
        max_bytes = _RECEIVE_BYTES
        first = b""
        framed = False
        try:
            while data := await receive_some(max_bytes):
                self.received_s = trio.current_time()
                self._heard = True
                if not first:
                    self.has_received, first = True, bytes(data[:8])
                for command in decoder.feed(bytes(data)):
                    framed = True
                    self._take(command)
                if decoder.fault is not None:
                    raise decoder.fault
                if self._capacity is not None:
                    self._wake_waiting_senders()
                if len(data) == max_bytes and max_bytes < _RECEIVE_BYTES_MAX:
                    max_bytes *= 2
            if not framed and (other := http_2(first)):
                self.close(OtherProtocol("the peer closed the connection", address=self.address, remark=other))
            else:
                remark = "" if first else NEVER_ANSWERED
                self.close(LinkLost("the peer closed the connection", address=self.address, remark=remark))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            text = error_text(error)
            remark = text if first or tells_cause(text) else f"{text}; {NEVER_ANSWERED}"
            self.close(LinkLost("the connection broke", address=self.address, remark=remark))
        except ProtocolError as error:
            other = None if framed else other_protocol(first)
            remark = other or error_text(error)
            log.warning("closing the link to %s: %s", self.address, remark, extra={"address": self.address})
            kind = ProtocolViolation if other is None else OtherProtocol
            self.close(kind("the peer's bytes are not RocketMQ frames", address=self.address, remark=remark))

    def _stream_failed(self, error: Exception) -> None:
        """End the link for a stream's other errors than trio's, which must not end the client."""
        if not isinstance(error, OSError):
            what = "the %s to %s failed; a stream that is broken raises trio.BrokenResourceError"
            log.error(what, type(self._stream).__name__, self.address, exc_info=error, extra={"address": self.address})
        self.close(LinkLost("the connection broke", address=self.address, remark=named_error(error)))

    def _take(self, command: Command) -> None:
        if command.is_response:
            if command.code:
                self._on_code(command.code)
            # An answer without a waiter is late: the waiter gave up or was cancelled.
            waiter = self.pending.pop(command.opaque, None)
            if waiter is not None:
                waiter.answered(command)
            return
        answer = self._handle(command)
        if answer is not None and not command.is_oneway:
            self.answer(answer)

    def _handle(self, command: Command) -> Command | None:
        handler = self._handlers.get(command.code)
        if handler is None:
            answer = command.answer(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported"
            )
        else:
            try:
                taken = handler(self, command)
            except (HeaderError, BodyError) as error:
                text = "sent a request %d that cannot be used: %s"
                self._peer_log.write(logging.WARNING, self.address, text, command.code, error, kind=command.code)
                taken = command.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
            except Exception as error:  # noqa: BLE001 - written with its traceback
                text, kind = "sent a request %d that failed here", (command.code, type(error))
                self._peer_log.write(logging.ERROR, self.address, text, command.code, kind=kind, failure=error)
                taken = command.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
            if taken is None:
                return None
            answer = taken
        return answer

    @trio.lowlevel.enable_ki_protection
    async def _write_frames(self, task_status: trio.TaskStatus[None]) -> None:
        task = trio.lowlevel.current_task()
        send_all = self._stream.send_all
        started = False
        try:
            while True:
                while self._unsent:
                    frames, self._unsent = self._unsent, []
                    data = frames[0] if len(frames) == 1 else b"".join(frames)
                    self._writing = True
                    await send_all(data)
                    self._writing = False
                    self._unsent_bytes -= len(data)
                    if self._capacity is not None:
                        self._wake_waiting_senders()
                self._idle_writer = task
                if not started:
                    started = True
                    task_status.started()
                await trio.lowlevel.wait_task_rescheduled(self._stop_writer)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.close(LinkLost("the connection broke", address=self.address, remark=error_text(error)))
            if not started:
                # The task that started the writer waits for this, even if the peer was dead at the first frames.
                task_status.started()
        except Exception as error:  # noqa: BLE001 - written with its traceback
            self._stream_failed(error)
            if not started:
                task_status.started()

    def _stop_writer(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._idle_writer = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _write_now(self, frame: bytes) -> None:
        assert self._send_nowait is not None
        try:
            sent = self._send_nowait(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.close(LinkLost("the connection broke", address=self.address, remark=error_text(error)))
            return
        except Exception as error:  # noqa: BLE001 - written with its traceback
            self._stream_failed(error)
            return
        if sent < len(frame):
            self._queue(frame[sent:])

    def _write_unsent_now(self) -> None:
        """Write the frames that wait for the writer, which was woken for the first of them and has not run yet."""
        data = b"".join(self._unsent)
        self._unsent.clear()
        self._unsent_bytes = 0
        self._write_now(data)
        # The writer sends the bytes that the kernel has not accepted, and all that follow.
        self._writing = bool(self._unsent)

    def _set_alarm(self, deadline: float) -> None:
        self._alarm_at = deadline
        if self._alarm is not None:
            self._alarm.deadline = deadline

    @trio.lowlevel.enable_ki_protection
    async def _watch_deadlines(self) -> None:
        while True:
            with trio.CancelScope(deadline=self._alarm_at) as self._alarm:
                await trio.sleep_forever()
            self._alarm = None
            self._fail_expired(trio.current_time())

    def _fail_expired(self, now: float) -> None:
        pending = self.pending
        expired = [opaque for opaque, waiter in pending.items() if waiter.deadline <= now]
        for opaque in expired:
            waiter = pending.pop(opaque, None)
            if waiter is not None:
                waiter.failed(RequestTimeout("no answer in time", address=self.address))
        self._alarm_at = min([waiter.deadline for waiter in pending.values()], default=_NEVER)
        if expired:
            self._count_silence(now)
            self._wake_waiting_senders()
        self._check_silence(now)

    def _count_silence(self, now: float) -> None:
        if self._heard:
            self._heard, self._silent_timeouts = False, 0
            return
        if not self._silent_timeouts:
            self._silent_from_s = now
        self._silent_timeouts += 1

    def _check_silence(self, now: float) -> None:
        if self._heard or self._silent_timeouts < SILENT_TIMEOUTS_MAX:
            return
        dead_s = self._silent_from_s + SILENT_TIMEOUTS_S
        if now < dead_s:
            # Perhaps no other request times out soon, and the next one must not find a dead link.
            self._alarm_at = min(self._alarm_at, dead_s)
            return
        if now - self.received_s < SHARED_SILENCE_S and self._is_shared(self.address):
            return
        log.warning(
            "closing the link to %s: requests time out and nothing comes in",
            self.address,
            extra={"address": self.address},
        )
        self.close(LinkLost("the peer does not answer at all", address=self.address))

    def _wake_waiting_senders(self) -> None:
        if self._capacity is not None and (self.has_capacity or self._lost is not None):
            capacity, self._capacity = self._capacity, None
            capacity.set()


NEVER_ANSWERED: Final = "nothing has come on this connection: the peer has ended or is starting, or its port expects TLS, or forwards to nobody"


def other_protocol(first: bytes) -> str | None:
    """The protocol that a peer speaks, by the first bytes it sent; None if it cannot be recognised."""
    if first.startswith(b"HTTP/"):
        return "the peer speaks HTTP: this is a web server's port"
    if begins_tls(first):
        return "the peer speaks TLS: give open_client(tls=True), or --tls"
    # As a frame's length, four letters are more than half a gigabyte.
    if len(first) >= 4 and first.isascii() and first.decode("ascii").replace("\r", "").replace("\n", "").isprintable():
        return f"the peer's first bytes are the text {first.decode('ascii')!r}, and no frame"
    return None


def http_2(first: bytes) -> str | None:
    """A note if a peer's first bytes are a SETTINGS frame of HTTP/2, by the start of which it might be one of RocketMQ's
    whose rest is to come."""
    if len(first) >= 8 and first[3] == 4 and not any(first[4:8]):
        return (
            "the peer speaks HTTP/2: this is a gRPC port, as that of a RocketMQ 5 proxy; its remoting port is another one, "
            "and of a proxy in LOCAL mode use the cluster's name servers: its routes name the gRPC port"
        )
    return None


def tells_cause(remark: str | None) -> bool:
    """Whether a remark names a cause from TLS for a connection's end, so that the cause need not be guessed."""
    return (remark or "").startswith(TLS_FAILED)


def connect_failed(address: str, why: str) -> ConnectFailed:
    """The error for an address that cannot be dialled."""
    return ConnectFailed("no connection", address=address, remark=why)
