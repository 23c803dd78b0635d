"""One message and its answer, for ``async for`` over a push consumer.

Upstream: ``ConsumeConcurrentlyContext``, with the status that Java's listeners return.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

import trio

from triomq._consumer.group.process_queue import HeldMessage
from triomq._consumer.push.dispatch import Dispatch, Later, Rollback, later_in
from triomq._message.hooks import ConsumeHooks
from triomq._message.received import ReceivedMessage
from triomq._producer.request_reply import send_reply
from triomq._producer.sender import Sender
from triomq.errors import InvalidCall


class Delivery:
    """One message and its answer; ``async for`` over a push consumer yields these.

    Leaving ``async with delivery:`` means success; an exception in the block is logged, is not propagated, and
    means failure; :class:`Later` also sets when the message is retried.  A block that is cancelled means neither, and
    the message is delivered again.  Without the block, call :meth:`done` or :meth:`later`; a delivery without an answer
    is not consumed.

    Args:
        message: the message.
        dispatch: takes the answer.
        sender: sends replies.
        hooks: called now, as the delivery is given out; None: no hooks.
    """

    __slots__ = ("_answered", "_context", "_dispatch", "_held", "_hooks", "_sender", "_wrapped", "message")

    def __init__(
        self, message: HeldMessage, dispatch: Dispatch[Any], sender: Sender, hooks: ConsumeHooks | None = None
    ) -> None:
        self.message: ReceivedMessage = message
        self._held = message
        self._dispatch = dispatch
        self._sender = sender
        self._answered = False
        self._hooks = hooks
        self._context = hooks.begin((message,)) if hooks is not None else None
        self._wrapped: AbstractContextManager[None] | None = None

    async def done(self) -> None:
        """Acknowledge the message: it is consumed. If this call is cancelled, it is delivered again at once.

        Raises:
            InvalidCall: the message was already answered.
        """
        await self._not_cancelled()
        self._answer()
        self._succeed()
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def commit(self) -> None:
        """Acknowledge the message; with ``auto_commit=False``, commit its queue up to it. Cancel: see :meth:`done`.

        Raises:
            InvalidCall: the message was already answered.
        """
        await self._not_cancelled()
        self._answer()
        self._dispatch.commit((self._held,))
        self._report_success()
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def rollback(self, *, suspend_s: float | None = None) -> None:
        """With ``auto_commit=False``: deliver everything since the last commit again; see :class:`Rollback`.

        Raises:
            InvalidCall: the message was already answered.
        """
        await self._fail(Rollback(suspend_s=suspend_s))

    @property
    def answered(self) -> bool:
        """Whether the message was answered: consumed, failed, or returned."""
        return self._answered

    async def later(self, delay_level: int = 0, *, suspend_s: float | None = None) -> None:
        """Report a failure, for a later delivery; see :class:`Later`. On a cancel, it is delivered again at once.

        Raises:
            InvalidCall: the message was already answered.
        """
        await self._fail(Later(delay_level, suspend_s=suspend_s))

    async def reply(self, body: bytes, *, properties: Mapping[str, str] | None = None) -> bool:
        """Reply to the client that called :meth:`triomq.Producer.request`; this does not acknowledge the message.

        Returns:
            Whether that client has received the reply; False if it is no longer connected, which is no error.

        Raises:
            InvalidCall: the message asks for no reply.
            MQError: the reply could not be sent.
        """
        return await send_reply(self._sender, self.message, body, properties)

    async def __aenter__(self) -> Self:
        await self._not_cancelled()
        self._begin_block()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            self._unwrap_block(kind, error, trace)
            return await self._answer_block(error)
        finally:
            self._end_block()

    # --- the steps of a block, for interfaces whose blocks do not run in trio ---------------------------------------

    def _begin_block(self) -> None:
        """Begin the block, inside the hooks' wrappers.

        Raises:
            InvalidCall: the message was already answered.
        """
        if self._answered:
            raise InvalidCall("this delivery was answered already")
        self._dispatch.waiters.busy(1)
        if self._hooks is not None and self._context is not None:
            self._wrapped = self._hooks.around(self._context)
            self._wrapped.__enter__()

    def _unwrap_block(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the hooks' wrappers."""
        if self._wrapped is not None:
            self._wrapped.__exit__(kind, error, trace)

    def _end_block(self) -> None:
        """End the block, after its answer."""
        self._dispatch.waiters.busy(-1)

    async def _answer_block(self, error: BaseException | None) -> bool:
        """Answer according to the end of the block.

        Args:
            error: the exception that it raised.

        Returns:
            Whether the error is handled.
        """
        if self._answered:
            # By the block itself; an exception that it raised afterwards is not ours to handle.
            return False
        if error is None:
            self._answer()
            self._succeed()
            return False
        if not isinstance(error, Exception):
            # Cancelled, or the program ends: neither consumed nor failed.
            self._answer()
            self._dispatch.requeue((self._held,))
            return False
        later = later_in(error)
        if later is None:
            self._dispatch.failures.write("the handling of", self._held, " failed", error)
        await self._fail(later or Later(), error)
        return True

    def _succeed(self) -> None:
        self._dispatch.succeed((self._held,))
        self._report_success()

    def _report_success(self) -> None:
        calls = self._held.page.holder.owner.counters
        calls.ok += 1
        calls.took(trio.current_time() - self._held.started_s)
        if self._hooks is not None and self._context is not None:
            self._hooks.end(self._context, None)

    async def _fail(self, later: Later, error: Exception | None = None) -> None:
        self._answer()
        calls = self._held.page.holder.owner.counters
        calls.failed += 1
        calls.took(trio.current_time() - self._held.started_s)
        if self._hooks is not None and self._context is not None:
            self._hooks.end(self._context, error if error is not None else later)
        try:
            await self._dispatch.fail((self._held,), later)
        except BaseException:
            self._dispatch.requeue((self._held,))
            raise

    async def _not_cancelled(self) -> None:
        """A checkpoint; a caller that is cancelled here has given no answer, and the message must not wait for one."""
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            if not self._answered:
                self._answer()
                self._dispatch.requeue((self._held,))
            raise

    def _answer(self) -> None:
        if self._answered:
            raise InvalidCall("this delivery was answered already")
        self._answered = True

    def __repr__(self) -> str:
        return f"<Delivery {self.message!r}>"
