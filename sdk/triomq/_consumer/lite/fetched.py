"""Messages between fetching and polling: ready, given out, done (docs/protocol/consumer.md §5).

Messages given out count as done when the caller polls again.  Upstream: the request cache of
``DefaultLitePullConsumerImpl``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from triomq._consumer.group.process_queue import HeldMessage, Stage
from triomq._message.received import ReceivedMessage

QUICK_TURNS: Final = 4
"""After this many answers without a pause a caller lets others run: pulls, heartbeats, its own other tasks."""


class PolledMessages:
    """The messages of one lite pull consumer.

    Args:
        check_open: raises when the consumer is closed.
    """

    def __init__(self, check_open: Callable[[], None]) -> None:
        self._check_open = check_open
        self._ready: deque[list[HeldMessage]] = deque()
        """The messages that can be given out, answer by answer."""
        self._arrived = trio.Event()
        self._given_out: list[list[HeldMessage]] = []
        """What was given out since the last poll: more than one part if several tasks were waiting for it."""
        self._iterated: deque[HeldMessage] = deque()
        self._failure: Exception | None = None
        self._quick_turns = 0

    def add(self, messages: list[HeldMessage]) -> None:
        """Add new messages: the answer to one pull."""
        self._ready.append(messages)
        self._arrived.set()

    def drop_given_up(self) -> None:
        """Drop answers whose queue was given up: they hold their bytes, and the next poll may come late."""
        self._ready = deque([messages for messages in self._ready if not messages[0].page.holder.dropped])

    def fail(self, error: Exception) -> None:
        """Make the next poll raise this error."""
        self._failure = error
        self._arrived.set()

    def wake(self) -> None:
        """Make waiting polls check again whether the consumer is open."""
        self._arrived.set()

    def finish(self) -> tuple[list[list[HeldMessage]], int]:
        """Mark the messages that were given out as done.

        Returns:
            The messages, in parts of one queue each, and how many of them were held until now: not those that were given
            up with their queue.
        """
        done, ended = self._given_out, 0
        if done:
            self._given_out = []
            for part in done:
                holder = part[0].page.holder
                ended += holder.count
                holder.owner.finish_page(part)
                ended -= holder.count
        return done, ended

    async def batch(self, wait_s: float) -> list[ReceivedMessage]:
        """Give out the rest of an answer; an empty list if there is none in time."""
        await self._pause()
        found = self._take()
        if not found:
            with trio.move_on_after(wait_s):
                found = await self._wait()
        if found:
            self._given_out.append(found)
        return [*found]

    async def message(self) -> HeldMessage:
        """Give out one message."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            while self._iterated:
                message = self._iterated.popleft()
                # Its queue may have been given up since it was fetched.
                if message.stage is not Stage.ENDED:
                    self._given_out.append([message])
                    return message
            await self._pause()
            self._iterated.extend(self._take() or await self._wait())

    async def _pause(self) -> None:
        """Let others run, but not before each answer: a trip through the scheduler costs as much as ten messages."""
        self._quick_turns += 1
        if self._quick_turns < QUICK_TURNS:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            self._quick_turns = 0
            await trio.lowlevel.checkpoint()

    async def _wait(self) -> list[HeldMessage]:
        while True:
            await self._arrived.wait()
            self._quick_turns = 0
            found = self._take()
            if found:
                return found

    def _take(self) -> list[HeldMessage]:
        """The messages of one answer whose queue is still ours; an empty list if there are none.

        Raises:
            MQError: the consumer is closed, or cannot continue.
        """
        if self._failure is not None:
            raise self._failure
        self._check_open()
        if self._iterated:
            rest = [message for message in self._iterated if message.stage is not Stage.ENDED]
            self._iterated.clear()
            if rest:
                return rest
        ready = self._ready
        found: list[HeldMessage] = []
        while ready and not found:
            messages = ready.popleft()
            if not messages[0].page.holder.dropped:
                found = messages
        if not ready and self._arrived.is_set():
            self._arrived = trio.Event()
        return found
