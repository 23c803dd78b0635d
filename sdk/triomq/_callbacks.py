"""Sends whose end a callback hears: bounded, each ended exactly once, also when the producer closes.

A send is in the set of those in flight from the moment it is accepted until its callback has been
called; leaving the set is what makes it happen once, whoever comes first: an answer, a deadline, a lost
link, a retry that gives up, or the producer's end.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import trio

from triomq._hooks import SendContext, SendHook, call_after_send, call_before_send
from triomq._link import Link, Waiter
from triomq._message import Message, MessageQueue
from triomq._outgoing import Outgoing, Target, result_of
from triomq._results import SendCallback, SendResult
from triomq._sending import Sender
from triomq.errors import ClientClosed, MQError
from triomq_protocol.command import Command

log = logging.getLogger("triomq.producer")

CALLBACK_GRACE_S: Final = 5.0
"""How long async callbacks may run on when their producer closes by force."""


class Spawn(Protocol):
    """Starts a task in the client's nursery."""

    def __call__(self, async_fn: Callable[..., Awaitable[object]], /, *args: object) -> None:
        """Start it soon."""


class CallbackSend(Waiter):
    """One send, waiting for its answer on behalf of a callback.

    Args:
        in_flight: where it is accepted.
        out: the message.
        callback: who hears.
        started: when ``send`` was called, on trio's clock.
    """

    __slots__ = ("callback", "context", "in_flight", "link", "out", "queue", "size_bytes", "started")

    def __init__(self, in_flight: InFlight, out: Outgoing, callback: SendCallback, started: float) -> None:
        self.in_flight = in_flight
        self.out = out
        self.callback = callback
        self.started = started
        self.size_bytes = len(out.body)
        self.context: SendContext | None = None
        self.queue: MessageQueue | None = None
        self.link: Link | None = None
        self.deadline = 0.0

    def answered(self, answer: Command) -> None:
        """Called by the link's reader."""
        assert self.queue is not None
        assert self.link is not None
        try:
            result = result_of(answer, self.queue, self.out.unique_key, self.link.address)
        except MQError as error:
            self.in_flight.fail(self, error)
        else:
            self.in_flight.succeed(self, result)

    def failed(self, error: MQError) -> None:
        """Called by the link's tasks."""
        self.in_flight.fail(self, error)


class InFlight:
    """The sends with a callback of one producer that have not ended.

    Args:
        sender: does the sending.
        spawn: starts tasks for retries and async callbacks.
        hooks: see :class:`SendHook`.
        max_count: how many there may be.
        max_bytes: how large their bodies may be together; a single larger one is let through alone.
    """

    def __init__(
        self, sender: Sender, spawn: Spawn, hooks: Sequence[SendHook], *, max_count: int, max_bytes: int
    ) -> None:
        self.closing = False
        self.aborted = False
        self._sender = sender
        self._spawn = spawn
        self._hooks = hooks
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._sends: set[CallbackSend] = set()
        self._bytes = 0
        self._running: set[trio.CancelScope] = set()
        self._room = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._sends) + len(self._running)

    def has_room(self, size_bytes: int) -> bool:
        """Whether a body of this size may join."""
        count = len(self._sends) + len(self._running)
        return count < self._max_count and (self._bytes + size_bytes <= self._max_bytes or not count)

    async def wait_room(self, size_bytes: int) -> None:
        """Wait until a body of this size may join.

        Raises:
            ClientClosed: the producer closed meanwhile.
        """
        while not self.has_room(size_bytes):
            await self._room.park()
            self.check_open()

    def check_open(self) -> None:
        """Raise :class:`ClientClosed` when the producer closes."""
        if self.closing:
            raise self._closed_error()

    async def wait_empty(self) -> None:
        """Wait until every send and every callback has ended."""
        while self._sends or self._running:
            await self._room.park()
        await trio.lowlevel.checkpoint()

    def accept(self, message: Message, send: CallbackSend) -> None:
        """From now on the callback will hear; nothing may wait between here and the send's first request."""
        self._sends.add(send)
        self._bytes += send.size_bytes
        if self._hooks:
            send.context = SendContext(self._sender.group, message, send.out.unique_key)
            call_before_send(self._hooks, send.context)

    def submit(self, send: CallbackSend, target: Target, link: Link, deadline: float) -> None:
        """Write an accepted send's first request; its answer must be there at the deadline."""
        send.queue = target.queue
        send.link = link
        send.deadline = deadline
        send.out.last_broker = target.queue.broker_name
        try:
            self._sender.submit(send.out, target, link, send)
        except MQError as error:
            self.fail(send, error)

    def succeed(self, send: CallbackSend, result: SendResult) -> None:
        """A broker took the message."""
        if send not in self._sends:
            return
        assert send.queue is not None
        self._sender.note_success(send.queue, send.started)
        if self._sender.may_retry_result(send.out, result):
            send.out.result = result
            self._spawn(self._deliver, send)
        else:
            self._finish(send, result)

    def fail(self, send: CallbackSend, error: MQError) -> None:
        """An attempt failed; a task makes the others, if there may be any."""
        if send not in self._sends:
            return
        self._sender.note_failure(send.out, error.address, error, send.started)
        if self._sender.may_retry(send.out, error):
            self._spawn(self._deliver, send)
        else:
            self._finish(send, self._sender.final_error(send.out, error))

    def abort(self) -> None:
        """Fail everything now, each callback once."""
        self.closing = self.aborted = True
        for send in list(self._sends):
            self._finish(send, self._closed_error())
        self._room.unpark_all()

    async def end_callbacks(self) -> None:
        """Wait for async callbacks that still run, but not for ever."""
        with trio.move_on_after(CALLBACK_GRACE_S):
            while self._running:
                await self._room.park()
        for scope in self._running:
            scope.cancel()

    async def _deliver(self, send: CallbackSend) -> None:
        try:
            outcome: SendResult | MQError = await self._sender.deliver(send.out)
        except MQError as error:
            outcome = error
        except trio.Cancelled:
            self._finish(send, self._closed_error())
            raise
        self._finish(send, outcome)

    def _finish(self, send: CallbackSend, outcome: SendResult | MQError) -> None:
        if send not in self._sends:
            return
        self._sends.discard(send)
        self._bytes -= send.size_bytes
        if self._room:
            self._room.unpark_all()
        if send.context is not None:
            call_after_send(self._hooks, send.context, outcome)
        try:
            if isinstance(outcome, SendResult):
                later = send.callback.on_success(outcome)
            else:
                later = send.callback.on_exception(outcome)
        except Exception:
            log.exception("the callback of message %s failed", send.out.unique_key)
            return
        if later is not None and inspect.isawaitable(later):
            # Shielded: an async callback that was started is not cut off by its client's cancel.
            scope = trio.CancelScope(shield=True)
            self._running.add(scope)
            self._spawn(self._run, later, scope, send.out.unique_key)

    async def _run(self, later: Awaitable[None], scope: trio.CancelScope, unique_key: str) -> None:
        try:
            with scope:
                await later
        except Exception:
            log.exception("the callback of message %s failed", unique_key)
        finally:
            self._running.discard(scope)
            self._room.unpark_all()

    def _closed_error(self) -> ClientClosed:
        return ClientClosed(f"the producer of group {self._sender.group} is closed")
