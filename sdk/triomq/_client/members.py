"""The producers and consumers of a client: its end closes them, and waits for their callbacks."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Final, TypeAlias

import trio

from triomq._consumer.lite.lite_pull_consumer import LitePullConsumer
from triomq._consumer.pull_consumer import PullConsumer
from triomq._consumer.push.push_consumer import PushConsumer
from triomq._producer.producer import Producer
from triomq._tasks.own_callbacks import OwnCallbacks, RunningCallback, callback_that_started_this

CLOSING_ROUNDS: Final = 3
"""How often the end of a client closes members: those there are, and those that their handlers and callbacks have made."""

Member: TypeAlias = Producer | PullConsumer | LitePullConsumer | PushConsumer


class Members:
    """What a client has made, and what has not left it yet."""

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._waited_for: weakref.WeakSet[OwnCallbacks] = weakref.WeakSet()
        """The callbacks that the ends of members wait for, also of those that have closed and whose callbacks still run."""
        self._leavers = trio.lowlevel.ParkingLot()
        """Waits for members to leave."""

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members)

    def add(self, member: Member) -> None:
        """Register a member, to be closed at the end, until it has left."""
        self._members.append(member)
        if not isinstance(member, PullConsumer):  # its end waits for no callback
            self._waited_for.update(member._waited_for())  # noqa: SLF001

    def remove(self, member: Member) -> None:
        """A member has left."""
        self._members.remove(member)
        self._leavers.unpark_all()

    async def close(self, *, at_once: bool) -> None:
        """Close all members, and those that they make until they end; wait for those that other tasks close.

        Args:
            at_once: producers fail what is in flight instead of waiting for it.
        """
        members: list[Member] = []
        # Again for those that handlers and callbacks make until they end, and may have sent with. Not without
        # a limit: other tasks may make some all the time.
        for _ in range(CLOSING_ROUNDS):
            late = [member for member in self._members if member not in members]
            members += late
            for member in late if at_once else ():
                if isinstance(member, Producer):
                    member.abort()
            # Concurrently: each may wait for a broker that does not answer.
            async with trio.open_nursery() as nursery:
                for member in late:
                    nursery.start_soon(member.aclose)
            # One that another task closes may still wait for handlers, and commit then; or for the callback that waits
            # for this.
            while not self.callback_that_started_this() and any(member in self._members for member in members):
                await self._leavers.park()

    def refuse_callbacks(self, what: str, task: trio.lowlevel.Task | None = None) -> None:
        """Refuse a wait of a user's function for its own end.

        Args:
            what: the call.
            task: where it was made; default: the current task.

        Raises:
            InvalidCall: a callback, a handler or a check has made the call.
        """
        for callbacks in self._waited_for:
            callbacks.refuse(what, task)

    def callback_that_started_this(self) -> RunningCallback | None:
        """The callback of a member, still running, that has started the current task and may wait for it."""
        callback = callback_that_started_this()
        return callback if callback is not None and callback.of in self._waited_for else None
