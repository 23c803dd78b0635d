"""Sends with a callback: bounded in number and bytes, each ended exactly once, also when the producer closes.

A send is in flight from the moment it is accepted until its callback has been called.  Leaving the set of sends in
flight is what makes the call happen once, whatever ends the send first: an answer, a deadline, a lost link, the last
retry, or the producer's end.  Upstream: ``MQClientAPIImpl.sendMessageAsync``.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from threading import get_ident
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from triomq._cluster.spawn import Spawn
from triomq._message.hooks import SendContext, SendHook, call_after_send, call_before_send
from triomq._message.message import Message
from triomq._message.repeated_failures import RepeatedFailures
from triomq._message.send_result import SendCallback, SendFunction, SendResult
from triomq._producer import compiled
from triomq._producer.attempts.attempt import Attempt, Attempts
from triomq._producer.attempts.outgoing import Outgoing, use_properties
from triomq._producer.sender import Sender
from triomq._tasks.own_callbacks import OwnCallbacks
from triomq._transport.own_loop import OwnLoop
from triomq.errors import MAY_BE_STORED, ClientClosed, InvalidCall, MQError
from triomq_protocol.names import TRAN_MSG

if TYPE_CHECKING or not compiled.USED:
    from triomq._producer import plain_sends
else:
    from triomq._producer.compiled import sends as plain_sends

log = logging.getLogger("triomq.producer")

CALLBACK_GRACE_S: Final = 5.0
"""How long async callbacks may continue when their producer is closed by force."""


class _Function:
    """A callback that is a plain function, as an object with methods."""

    __slots__ = ("_function",)

    def __init__(self, function: SendFunction) -> None:
        self._function = function

    def on_success(self, result: SendResult, /) -> Awaitable[None] | None:
        return self._function(result, None)

    def on_exception(self, error: MQError, /) -> Awaitable[None] | None:
        return self._function(None, error)


def with_methods(callback: SendCallback | SendFunction) -> SendCallback:
    """A callback as an object with methods.

    Raises:
        InvalidCall: it is neither a function of ``(result, error)`` nor such an object, or is a class.
    """
    if type(callback) is FunctionType and not callback.__dict__ and _takes(callback, 2):
        # Many programs create a function for each message: examining it must be quick.
        return _Function(callback)
    if isinstance(callback, type):
        raise InvalidCall(f"the callback {callback.__qualname__} is a class; give an object of it, or a function")
    if hasattr(callback, "on_success") and hasattr(callback, "on_exception"):
        return cast("SendCallback", callback)
    if callable(callback):
        if not _takes(callback, 2):
            name = getattr(callback, "__qualname__", type(callback).__name__)
            raise InvalidCall(
                f"the callback {name} cannot be called with (result, error), which it needs to take; one of them is None"
            )
        return _Function(callback)
    raise InvalidCall(
        "the callback is neither a function of (result, error) nor an object with the methods "
        "on_success(result) and on_exception(error)"
    )


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function accepts this number of positional arguments; true if its parameters are unknown.

    It reads the function's own attributes, as this runs with every send: ``inspect.signature`` takes some 20 µs.
    """
    if isinstance(function, functools.partial):
        # A keyword may fill one of the parameters; inspect knows which.
        return _binds(function, count) if function.keywords else _takes(function.func, count + len(function.args))
    if isinstance(function, MethodType):
        return _takes(function.__func__, count + 1)
    if isinstance(function, FunctionType):
        code = function.__code__
        if code.co_kwonlyargcount:
            return _binds(function, count)
        required = code.co_argcount - len(function.__defaults__ or ())
        return required <= count and (count <= code.co_argcount or bool(code.co_flags & inspect.CO_VARARGS))
    call = type(function).__call__
    return not isinstance(call, FunctionType) or _takes(call, count + 1)


def _binds(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    return True


class AwaitedSend:
    """The callback of a send that a task waits for."""

    __slots__ = ("_outcome", "_task", "given_up")

    def __init__(self) -> None:
        self.given_up = False
        """Whether no task waits any more: the send has been cancelled."""
        self._outcome: SendResult | MQError | None = None
        self._task: trio.lowlevel.Task | None = None

    def on_success(self, result: SendResult, /) -> None:
        self._end(result)

    def on_exception(self, error: MQError, /) -> None:
        self._end(error)

    def _end(self, outcome: SendResult | MQError) -> None:
        self._outcome = outcome
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    async def result(self) -> SendResult:
        """Wait for the end of the send.

        Raises:
            MQError: it has failed.
        """
        if self._outcome is None:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._give_up)
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, SendResult):
            return outcome
        assert outcome is not None
        try:
            raise outcome
        finally:
            del outcome  # its traceback refers to this frame

    def _give_up(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        self.given_up = True
        return trio.lowlevel.Abort.SUCCEEDED


class CallbackSend(Attempt):
    """A send with a callback, and its first attempt; further attempts are made by a task.

    Args:
        in_flight: the sends in flight, which it joins.
        out: the message.
        callback: called at the end.
        started: when ``send`` was called, on trio's clock.

    Raises:
        InvalidCall: the callback is of neither kind, or a function with other parameters.
    """

    __slots__ = ("callback", "context", "in_flight", "merged", "size_bytes")

    def __init__(
        self, in_flight: InFlight, out: Outgoing, callback: SendCallback | SendFunction, started: float
    ) -> None:
        super().__init__(out, started)
        self.in_flight = in_flight
        self.callback = in_flight.callback_of(callback)
        self.size_bytes = len(out.body)
        self.context: SendContext | None = None
        self.merged = False
        """Whether this send is part of a batch that was written."""

    @property
    def is_unanswered(self) -> bool:
        """Whether its request was written and the answer is unknown."""
        return self.merged or (bool(self.address) and self.link.pending.get(self.opaque) is self)

    def ended(self) -> None:
        """Called by the link's tasks: the send needs no task of its own."""
        self.in_flight.attempt_ended(self)


def is_given_up(send: CallbackSend) -> bool:
    """Whether the task that waited for a send has been cancelled: no further attempt is made."""
    return isinstance(send.callback, AwaitedSend) and send.callback.given_up


def context_of(group: str, message: Message, out: Outgoing, *, oneway: bool = False) -> SendContext:
    """A send as hooks see it."""
    return SendContext(
        group,
        message,
        out.unique_key,
        oneway,
        transactional=out.own_properties is not None and TRAN_MSG in out.own_properties,
        born_ms=out.born_ms,
        body_bytes=len(out.body),
    )


class InFlight:
    """The sends with a callback of one producer that have not ended.

    Args:
        sender: prepares messages and makes attempts.
        spawn: starts tasks for retries and async callbacks.
        hooks: see :class:`SendHook`.
        max_count: the most sends in flight.
        max_bytes: the most bytes of their bodies together; a larger body is accepted if it is the only one.

    Attributes:
        closing: whether no more sends are accepted.
        aborted: whether the accepted sends are given up.
        own_callbacks: the tasks of async callbacks.
        window: counts them, including plain ones that have joined a batch.
    """

    def __init__(
        self, sender: Sender, spawn: Spawn, hooks: Sequence[SendHook], *, max_count: int, max_bytes: int
    ) -> None:
        self.closing = False
        self.aborted = False
        self._own_loop = OwnLoop()
        self._group = sender.group
        self._attempts: Attempts = sender.attempts
        self._spawn = spawn
        self._hooks = hooks
        self.window = plain_sends.Window(max_count, max_bytes)
        self._sends: set[CallbackSend] = set()
        self._latest_callback: tuple[object, SendCallback | None] = None, None
        self._running: set[trio.CancelScope] = set()
        self.own_callbacks = OwnCallbacks()
        self._failures = RepeatedFailures(log, trio.current_time)
        self._waiting = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return self.window.count

    async def wait_capacity(self, size_bytes: int) -> None:
        """Wait until a body of this size can be accepted.

        Raises:
            ClientClosed: the producer closed meanwhile.
        """
        while not self.window.has(size_bytes):
            await self._waiting.park()
            self.check_open()

    def callback_of(self, callback: SendCallback | SendFunction) -> SendCallback:
        """A callback as an object with methods; most sends have the callback of the send before.

        Raises:
            InvalidCall: it is of neither kind, or a function with other parameters.
        """
        given, found = self._latest_callback
        if callback is not given or found is None:
            found = with_methods(callback)
            self._latest_callback = callback, found
        return found

    def check_open(self) -> None:
        """Raise unless a message can be sent now.

        Raises:
            ClientClosed: the producer closes.
            InvalidCall: called from another event loop than the producer's own.
        """
        if get_ident() != self._own_loop.thread:
            self._own_loop.refuse()
        if self.closing:
            raise self._closed_error()

    async def wait_empty(self) -> None:
        """Wait until every send and every callback has ended; but not for the callback that has started this task."""
        while self.window.count > self.own_callbacks.one_started_this:
            await self._waiting.park()
        await trio.lowlevel.checkpoint()

    def accept(self, message: Message, send: CallbackSend) -> None:
        """Accept a send: its callback will be called; nothing may wait between here and the send's first request."""
        self._sends.add(send)
        self.window.take(send.size_bytes)
        if self._hooks:
            send.context = context_of(self._group, message, send.out)
            sent = call_before_send(self._hooks, send.context)
            if sent is not message:
                use_properties(send.out, sent)

    def adopt(self, send: CallbackSend) -> None:
        """Take over a plain send, which the window already counts."""
        self._sends.add(send)

    def attempt_ended(self, send: CallbackSend) -> None:
        """End a send after its first attempt, or start a task for further attempts, if any may follow."""
        if send not in self._sends:
            return
        outcome = send.outcome
        assert outcome is not None
        pause_s = self._attempts.pause_after(send)
        if pause_s is not None and not is_given_up(send):
            self._spawn(self._retry, send, pause_s)
        elif isinstance(outcome, SendResult):
            self._finish(send, outcome)
        else:
            self._finish(send, send.out.result or self._attempts.final_error(send.out, outcome))

    def abort(self) -> None:
        """Fail everything now, each callback once."""
        self.closing = self.aborted = True
        for send in list(self._sends):
            self._finish(send, self._closed_error(send))
        self._waiting.unpark_all()

    async def end_callbacks(self) -> None:
        """Wait for async callbacks that still run, for at most :data:`CALLBACK_GRACE_S`."""
        with trio.move_on_after(CALLBACK_GRACE_S):
            while self._running:
                await self._waiting.park()
        for scope in self._running:
            scope.cancel()

    @trio.lowlevel.enable_ki_protection
    async def _retry(self, send: CallbackSend, pause_s: float) -> None:
        try:
            await trio.sleep(pause_s)
            assert send.outcome is not None
            outcome = send.outcome if is_given_up(send) else await self._attempts.deliver(send.out)
        except MQError as error:
            outcome = error
        except trio.Cancelled:
            self._finish(send, self._closed_error(send))
            raise
        self._finish(send, outcome)

    def _finish(self, send: CallbackSend, outcome: SendResult | MQError) -> None:
        if send not in self._sends:
            return
        self._sends.discard(send)
        self.window.give(send.size_bytes)
        self.left()
        if send.context is not None:
            call_after_send(self._hooks, send.context, outcome)
        try:
            if isinstance(outcome, SendResult):
                later = send.callback.on_success(outcome)
            else:
                later = send.callback.on_exception(outcome)
        except Exception as error:  # noqa: BLE001 - a user's; it is logged with its traceback
            self.callback_failed(send.out.topic, send.out.unique_key, error)
            return
        if later is not None:
            self.finish_later(later, send.out.unique_key)

    def left(self) -> None:
        """Wake tasks that wait for capacity: sends have ended."""
        if self._waiting:
            self._waiting.unpark_all()

    def callback_failed(self, topic: str, unique_key: str, error: Exception) -> None:
        """Log an exception of a callback; if it fails for each message, with few lines."""
        fields = {"topic": topic, "group": self._group, "message_id": unique_key}
        self._failures.note(error, "the callback of message %s failed", unique_key, fields=fields)

    def finish_later(self, later: object, unique_key: str) -> None:
        """Run an async callback, if a callback has returned an awaitable."""
        if inspect.isawaitable(later):
            # Shielded: a running async callback is not interrupted by its client's cancel.
            scope = trio.CancelScope(shield=True)
            self._running.add(scope)
            self.window.take(0)
            self._spawn(self._run, later, scope, unique_key)

    async def _run(self, later: Awaitable[None], scope: trio.CancelScope, unique_key: str) -> None:
        try:
            with self.own_callbacks.running(), scope:
                await later
        except Exception as error:  # noqa: BLE001 - a user's; it is logged
            fields = {"group": self._group, "message_id": unique_key}
            self._failures.note(error, "the callback of message %s failed", unique_key, fields=fields)
        finally:
            self._running.discard(scope)
            self.window.give(0)
            self._waiting.unpark_all()

    def _closed_error(self, send: CallbackSend | None = None) -> ClientClosed:
        error = ClientClosed(f"the producer of group {self._group} is closed")
        # After a first attempt a task makes others, one of which may be in flight now.
        if send is not None and (send.out.attempts or send.is_unanswered):
            error.advice = MAY_BE_STORED
        return error
