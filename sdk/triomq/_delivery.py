"""What handlers say: nothing for success, :class:`Later` to try again; and one message at a time for ``async for``.

Upstream: ``ConsumeConcurrentlyStatus``, ``ConsumeOrderlyStatus``, ``ConsumeConcurrentlyContext``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

import trio

from triomq._process_queue import HeldMessage
from triomq.errors import InvalidCall, MQError

log = logging.getLogger("triomq.consumer")


class Later(Exception):  # noqa: N818 - an answer, not an error
    """A handler's answer: not now, bring it again.

    Args:
        delay_level: 1-18 of the broker's table (1 s to 2 h); 0 lets the broker choose, later at every failure;
            negative: no more tries, to the dead letters. Not for ordered consumers.
        suspend_s: ordered consumers: how long the queue rests before the message is tried again in place, 0.01-30;
            default 1.
    """

    def __init__(self, delay_level: int = 0, *, suspend_s: float | None = None) -> None:
        super().__init__(delay_level)
        self.delay_level = delay_level
        self.suspend_s = suspend_s


def later_in(error: BaseException) -> Later | None:
    """The :class:`Later` that an exception is, or that a nursery of the handler's own has wrapped; None: it is none."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, Later) else None


class Dispatch(Protocol):
    """Gives out held messages and hears what became of them; concurrent and ordered consumers have one each."""

    takers: Takers
    """Those who wait for messages."""

    def __len__(self) -> int:
        """Whether something may be there to take."""

    def take(self, most: int, now: float) -> list[HeldMessage] | None:
        """The next messages of one queue; None when there is none to give out."""

    def portion(self, takers: int) -> int:
        """How many messages one of so many takers may fairly take at once."""

    def succeed(self, batch: Sequence[HeldMessage]) -> None:
        """They are consumed."""

    async def fail(self, batch: Sequence[HeldMessage], later: Later) -> None:
        """They failed; may be cancelled, and then they are as if they had never been taken."""

    def put_back(self, batch: Sequence[HeldMessage]) -> None:
        """Nothing is known of them: give them out again, as the next ones."""

    async def settle(self, batch: Sequence[HeldMessage], done: int, later: Later | None) -> None:
        """The first ``done`` are consumed, the next one failed if there is ``later``, the rest goes back."""


class Takers:
    """Those who wait for messages.

    Each wakes the next only when something is left, so that quick handlers cost no switches between tasks.
    """

    def __init__(self) -> None:
        self.draining = False
        self.failure: MQError | None = None
        self._lot = trio.lowlevel.ParkingLot()
        self.waking = False
        """Whether somebody was woken who has not run yet."""
        self._busy = 0
        self._idle: trio.Event | None = None

    def wake(self) -> None:
        """Something can be taken."""
        if not self.waking and self._lot:
            self.waking = True
            self._lot.unpark()

    def drain(self, failure: MQError | None = None) -> None:
        """Nothing is given out any more; takers end, by an error if there is one."""
        self.draining = True
        self.failure = self.failure or failure
        self._lot.unpark_all()

    async def wait(self) -> None:
        """Sleep until there may be something to take, or the consumer drains."""
        if self.draining:
            await trio.lowlevel.checkpoint()
            return
        try:
            await self._lot.park()
        finally:
            self.waking = False

    def busy(self, change: int) -> None:
        """So many more handlers, or fewer, are at work."""
        self._busy += change
        if not self._busy and self._idle is not None:
            self._idle.set()

    @property
    def is_idle(self) -> bool:
        """Whether no handler is at work."""
        return not self._busy

    async def wait_idle(self) -> None:
        """Sleep until no handler is at work."""
        if self._busy:
            self._idle = trio.Event()
            await self._idle.wait()


class Delivery:
    """One message and its answer; what ``async for`` over a push consumer yields.

    Leaving ``async with delivery:`` means success; an exception in the block is logged, does not leave it, and
    means failure; :class:`Later` in the block means what it says.  A block that is cancelled says neither, and
    the message comes again.  Without the block, call :meth:`done` or :meth:`later`; a delivery nobody answers
    is not consumed.

    Args:
        message: the message.
        dispatch: hears the answer.
    """

    __slots__ = ("_answered", "_dispatch", "message")

    def __init__(self, message: HeldMessage, dispatch: Dispatch) -> None:
        self.message = message
        self._dispatch = dispatch
        self._answered = False

    async def done(self) -> None:
        """It is consumed. When cancelled, it comes again at once.

        Raises:
            InvalidCall: it was answered before.
        """
        await self._not_cancelled()
        self._answer()
        self._dispatch.succeed((self.message,))
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def later(self, delay_level: int = 0, *, suspend_s: float | None = None) -> None:
        """It failed, and shall come again; see :class:`Later`. When cancelled, it comes again at once.

        Raises:
            InvalidCall: it was answered before.
        """
        await self._fail(Later(delay_level, suspend_s=suspend_s))

    async def __aenter__(self) -> Self:
        await self._not_cancelled()
        if self._answered:
            raise InvalidCall("this delivery was answered already")
        self._dispatch.takers.busy(1)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            return await self._leave(error)
        finally:
            self._dispatch.takers.busy(-1)

    async def _leave(self, error: BaseException | None) -> bool:
        if self._answered:
            # By the block itself; what it raised afterwards is its own affair.
            return False
        if error is None:
            self._answer()
            self._dispatch.succeed((self.message,))
            return False
        if not isinstance(error, Exception):
            # Cancelled, or the program ends: neither consumed nor failed.
            self._answer()
            self._dispatch.put_back((self.message,))
            return False
        later = later_in(error)
        if later is None:
            log.error("the handling of %r failed", self.message, exc_info=error)
        await self._fail(later or Later())
        return True

    async def _fail(self, later: Later) -> None:
        self._answer()
        try:
            await self._dispatch.fail((self.message,), later)
        except BaseException:
            self._dispatch.put_back((self.message,))
            raise

    async def _not_cancelled(self) -> None:
        """A checkpoint; whoever is cancelled right here has said nothing, and the message must not wait for an answer."""
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            if not self._answered:
                self._answer()
                self._dispatch.put_back((self.message,))
            raise

    def _answer(self) -> None:
        if self._answered:
            raise InvalidCall("this delivery was answered already")
        self._answered = True

    def __repr__(self) -> str:
        return f"<Delivery {self.message!r}>"
