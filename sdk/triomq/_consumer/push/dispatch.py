"""Common parts of concurrent and ordered dispatch: their base class, a handler's answers, and waiting tasks.

Upstream: ``ConsumeMessageService``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import trio

from triomq._consumer.group.process_queue import HeldMessage
from triomq._consumer.push.failure_log import FailureLog
from triomq._message.message import check_delay_level
from triomq._tasks.exception_groups import without_groups
from triomq.errors import MQError

Ready = TypeVar("Ready")
"""The things that are ready to be given out: messages, or queues that have messages."""


class Later(Exception):  # noqa: N818 - an answer, not an error
    """A handler's answer: the message failed, deliver it again later.

    Args:
        delay_level: 1-18 of the broker's table (1 s to 2 h); 0 lets the broker choose, longer at every failure;
            negative: no more retries, to the dead letters. Not for ordered consumers.
        suspend_s: ordered consumers: seconds until the message is retried in place, 0.01-30,
            and a value outside counts as the nearer of the two; default: the consumer's ``retries.suspend_s``.

    Raises:
        InvalidCall: there is no such level. A handler that raises it has failed, as with any other error.
    """

    def __init__(self, delay_level: int = 0, *, suspend_s: float | None = None) -> None:
        if delay_level > 0:
            check_delay_level(delay_level)
        super().__init__(delay_level)
        self.delay_level: int = delay_level
        self.suspend_s: float | None = suspend_s


class Rollback(Later):
    """An ordered handler's answer with ``auto_commit=False``: deliver everything since the last commit again.

    With ``auto_commit``, and for concurrent consumers, it is the same as :class:`Later`.

    Args:
        suspend_s: seconds for which the queue is suspended before that; as for :class:`Later`.
    """

    def __init__(self, *, suspend_s: float | None = None) -> None:
        super().__init__(suspend_s=suspend_s)
        # Those of the constructor, so that it can be pickled, as when a process raises it.
        self.args: tuple[Any, ...] = ()


class Commit:
    """Returned by an ordered handler with ``auto_commit=False`` to commit its queue up to this message."""

    __slots__ = ()


def later_in(error: BaseException) -> Later | None:
    """The :class:`Later` that an exception is, or that a nursery of the handler has wrapped; None if it is neither."""
    inner = without_groups(error)
    return inner if isinstance(inner, Later) else None


class Dispatch(ABC, Generic[Ready]):
    """Gives out held messages and takes the handlers' answers; concurrent and ordered consumers have one each.

    Args:
        by_hand: whether consumed messages wait for :meth:`commit`.

    Attributes:
        waiters: the tasks that wait for messages.
        failures: logs the exceptions of handlers.
    """

    def __init__(self, *, by_hand: bool = False) -> None:
        self.waiters: Waiters = Waiters()
        self.failures: FailureLog = FailureLog()
        self.by_hand = by_hand
        self._ready: deque[Ready] = deque()

    def failed(self, error: MQError) -> None:
        """Make tasks that wait for messages raise this error: the consumer cannot continue."""
        self.waiters.drain(error)

    def __len__(self) -> int:
        """How many messages or queues may be ready to take."""
        return len(self._ready)

    @abstractmethod
    def take(self, most: int, now: float) -> list[HeldMessage] | None:
        """Take the next messages of one queue, ``most`` at most; None if there are none to give out."""

    @abstractmethod
    def fair_share(self, waiters: int) -> int:
        """The number of messages that one of ``waiters`` may fairly take at once."""

    @abstractmethod
    def succeed(self, batch: Sequence[HeldMessage]) -> None:
        """Mark messages as consumed."""

    def commit(self, batch: Sequence[HeldMessage]) -> None:
        """Mark messages as consumed, and commit those of their queue that wait for it."""
        self.succeed(batch)

    @abstractmethod
    async def fail(self, batch: Sequence[HeldMessage], later: Later) -> None:
        """Mark messages as failed; if this is cancelled, they are as if they had never been taken."""

    @abstractmethod
    def requeue(self, batch: Sequence[HeldMessage]) -> None:
        """Give messages without an outcome out again, as the next ones."""

    @abstractmethod
    async def finish_batch(self, batch: Sequence[HeldMessage], done: int, later: Later | None) -> None:
        """End a batch: the first ``done`` are consumed, the next failed if there is ``later``, the rest is requeued."""


class Waiters:
    """The tasks that wait for messages.

    Each wakes the next only if something is left, so that quick handlers cause no task switches.
    """

    def __init__(self) -> None:
        self.draining: bool = False
        self.failure: Exception | None = None
        self._lot = trio.lowlevel.ParkingLot()
        self.waking: bool = False
        """Whether a woken task has not run yet."""
        self._busy = 0
        self._idle: trio.Event | None = None

    def wake(self) -> None:
        """Wake a task: something can be taken."""
        if not self.waking and self._lot:
            self.waking = True
            self._lot.unpark()

    def drain(self, failure: Exception | None = None) -> None:
        """Give nothing more out; waiters end, with an error if there is one."""
        self.draining = True
        self.failure = self.failure or failure
        self._lot.unpark_all()

    async def wait(self) -> None:
        """Wait until there may be something to take, or the consumer drains."""
        if self.draining:
            await trio.lowlevel.checkpoint()
            return
        try:
            await self._lot.park()
        finally:
            self.waking = False

    def busy(self, change: int) -> None:
        """Change the number of running handlers."""
        self._busy += change
        if not self._busy and self._idle is not None:
            self._idle.set()

    @property
    def is_idle(self) -> bool:
        """Whether no handler is running."""
        return not self._busy

    async def wait_idle(self) -> None:
        """Wait until no handler is running."""
        if self._busy:
            self._idle = trio.Event()
            await self._idle.wait()
