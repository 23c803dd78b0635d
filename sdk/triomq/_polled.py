"""Messages between fetching and polling: ready, given out, done (consumer.md §5).

What was given out counts as done when the caller comes back for more.  Upstream: the request cache of
``DefaultLitePullConsumerImpl``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from triomq._process_queue import HeldMessage, Stage
from triomq.errors import MQError


class PolledMessages:
    """The messages of one lite pull consumer.

    Args:
        check_open: raises when the consumer is closed.
    """

    def __init__(self, check_open: Callable[[], None]) -> None:
        self._check_open = check_open
        self._ready: deque[HeldMessage] = deque()
        self._arrived = trio.Event()
        self._given_out: list[HeldMessage] = []
        self._iterated: deque[HeldMessage] = deque()
        self._failure: MQError | None = None

    def add(self, messages: list[HeldMessage]) -> None:
        """New messages of one queue."""
        self._ready.extend(messages)
        self._arrived.set()

    def fail(self, error: MQError) -> None:
        """Whoever asks next gets this error."""
        self._failure = error
        self._arrived.set()

    def wake(self) -> None:
        """Whoever waits looks again whether the consumer is open."""
        self._arrived.set()

    def finish(self) -> None:
        """What was given out is done."""
        done, self._given_out = self._given_out, []
        if done:
            # All are of one answer, and so of one queue.
            done[0].holder.owner.finish_all(done)

    async def batch(self) -> list[HeldMessage]:
        """Give out the rest of an answer; waits until there is one."""
        self._given_out = await self._next()
        return list(self._given_out)

    async def message(self) -> HeldMessage:
        """Give out one message."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            while self._iterated:
                message = self._iterated.popleft()
                # Its queue may have been given up since it was fetched.
                if message.stage is not Stage.ENDED:
                    self._given_out = [message]
                    return message
            self._iterated.extend(await self._next())

    async def _next(self) -> list[HeldMessage]:
        await trio.lowlevel.checkpoint()
        while True:
            if self._failure is not None:
                raise self._failure
            self._check_open()
            found = self._take()
            if found:
                return found
            await self._arrived.wait()

    def _take(self) -> list[HeldMessage]:
        """The messages of one answer, as far as their queue is still ours."""
        if self._iterated:
            rest = [message for message in self._iterated if message.stage is not Stage.ENDED]
            self._iterated.clear()
            return rest
        ready, found = self._ready, list[HeldMessage]()
        while ready and (not found or ready[0].page is found[0].page):
            message = ready.popleft()
            if message.stage is Stage.WAITING:
                message.stage = Stage.STARTED
                found.append(message)
        if not ready:
            self._arrived = trio.Event()
        return found
