"""Passes messages to many handlers at once, in no particular order (docs/protocol/consumer.md §8).

Failed messages leave their queue only when a broker has taken them back.  Upstream:
``ConsumeMessageConcurrentlyService``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import trio

from triomq._cluster.spawn import Spawn
from triomq._consumer.group.callbacks import ConsumerEvent
from triomq._consumer.group.process_queue import ENDED, STARTED, WAITING, HeldMessage
from triomq._consumer.group.pull_loop import PulledQueue
from triomq._consumer.push.dispatch import Dispatch, Later
from triomq._consumer.push.send_back import SendBack
from triomq._message.log_fields import message_fields
from triomq._message.message import MessageQueue

log = logging.getLogger("triomq.consumer")

RESUBMIT_S: Final = 5.0
"""The pause before a message that no broker accepted back is tried here again (docs/protocol/consumer.md §8)."""

EXPIRED_LEVEL: Final = 3
"""Delay level of messages that were in flight for too long."""

GIVEN_UP_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of messages that were given up and wait for their turn, to be skipped."""

EXPIRED_PER_SWEEP: Final = 16
"""The most messages of a queue that one sweep sends back."""

SHARE_MAX: Final = 32
"""The most messages that one thread takes at once."""


class ConcurrentDispatch(Dispatch[HeldMessage]):
    """Gives messages of all queues, in order of arrival, to the next task that asks.

    Args:
        send_back: sends failed messages back; None (broadcast): they are logged and lost.
        spawn: starts tasks.
        report: called with events.
    """

    def __init__(self, *, send_back: SendBack | None, spawn: Spawn, report: Callable[[ConsumerEvent], None]) -> None:
        super().__init__()
        self._send_back = send_back
        self._spawn = spawn
        self._report = report
        self._given_up = 0
        """The most messages that may be among those to give out although their queue was given up."""
        self._given_up_bytes = 0

    def pulled(self, _source: PulledQueue, messages: list[HeldMessage]) -> None:
        """Take new messages."""
        self._ready.extend(messages)
        self.waiters.wake()

    def given_up(self, _source: PulledQueue, count: int, size_bytes: int) -> None:
        """Drop messages that were given up, unless that costs more than they do: :meth:`take` skips them as well."""
        self._given_up += count
        self._given_up_bytes += size_bytes
        if self._given_up * 2 > len(self._ready) or self._given_up_bytes > GIVEN_UP_BYTES:
            self._ready = deque([message for message in self._ready if message.stage is WAITING])
            self._given_up = self._given_up_bytes = 0

    def take(self, most: int, now: float) -> list[HeldMessage] | None:
        """Take the next messages of one queue, ``most`` at most."""
        ready = self._ready
        if self.waiters.draining:
            return None
        while ready:
            message = ready.popleft()
            if message.stage is not WAITING:
                continue
            message.stage = STARTED
            message.started_s = now
            batch = [message]
            holder = message.page.holder
            while most > len(batch) and ready and ready[0].page.holder is holder:
                message = ready.popleft()
                if message.stage is WAITING:
                    message.stage = STARTED
                    message.started_s = now
                    batch.append(message)
            holder.owner.consumed_s = now
            if ready and not self.waiters.waking:
                self.waiters.wake()
            return batch
        return None

    def fair_share(self, waiters: int) -> int:
        """The number of messages that one of ``waiters`` may fairly take at once."""
        return min(SHARE_MAX, max(1, len(self._ready) // waiters))

    def succeed(self, batch: Sequence[HeldMessage]) -> None:
        """Mark messages as consumed."""
        for message in batch:
            holder = message.page.holder
            holder.finish(message)
            owner = holder.owner
            if owner.awaited is not None:
                owner.wake_unless_full()

    async def fail(self, batch: Sequence[HeldMessage], later: Later) -> None:
        """Send messages back to the broker; those it does not accept are tried here again after 5 s."""
        for message in batch:
            if message.stage is ENDED:
                continue  # its queue, and so the message, belongs to another member now
            if self._send_back is None:
                log.error(
                    "a broadcast message was not consumed and is lost: %r", message, extra=message_fields(message)
                )
            elif not await self._send_back.send_back(message, later.delay_level):
                self._try_again_here(message)
                continue
            message.holder.owner.finish(message)

    def requeue(self, batch: Sequence[HeldMessage]) -> None:
        """Give messages out again, as the next ones."""
        for message in reversed(batch):
            if message.stage is STARTED:
                message.stage = WAITING
                self._ready.appendleft(message)
        self.waiters.wake()

    async def finish_batch(self, batch: Sequence[HeldMessage], done: int, later: Later | None) -> None:
        """End a batch: the first ``done`` are consumed, the next failed if there is ``later``, the rest is requeued."""
        self.succeed(batch[:done])
        failed = batch[done : done + 1] if later is not None else []
        self.requeue(batch[done + len(failed) :])
        if later is not None:
            await self.fail(failed, later)

    @trio.lowlevel.enable_ki_protection
    async def keep_expiring(self, queues: Mapping[MessageQueue, PulledQueue], limit_s: float) -> None:
        """Keep sending back messages that hold a queue's commit point for too long; their handlers continue."""
        while True:
            await trio.sleep(limit_s)
            await self._expire(list(queues.values()), limit_s)

    async def _expire(self, sources: Sequence[PulledQueue], limit_s: float) -> None:
        assert self._send_back is not None
        for source in sources:
            for _ in range(EXPIRED_PER_SWEEP):
                first = source.process.first
                if first is None or first.stage is not STARTED:
                    break
                if trio.current_time() - first.started_s < limit_s:
                    break
                text = f"{first!r} has been in flight for {limit_s:g} s: it is given out again"
                self._report(ConsumerEvent("expired", text, source.queue))
                if not await self._send_back.send_back(first, EXPIRED_LEVEL):
                    break
                source.finish(first)

    def _try_again_here(self, message: HeldMessage) -> None:
        message.extra_times += 1
        text = f"no broker took {message!r} back; it is tried here again in {RESUBMIT_S:g} s"
        self._report(ConsumerEvent("send_back_failed", text, message.queue))
        self._spawn(self._resubmit, message, message.started_s)

    @trio.lowlevel.enable_ki_protection
    async def _resubmit(self, message: HeldMessage, started_s: float) -> None:
        await trio.sleep(RESUBMIT_S)
        # A cancel while the others of its batch went back has given it out again meanwhile: another handler has it.
        if message.started_s == started_s:
            self.requeue((message,))
