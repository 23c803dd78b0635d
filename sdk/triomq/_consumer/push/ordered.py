"""Ordered consumption: one handler at a time per queue, only under a lock, retried in place
(docs/protocol/consumer.md §9).

Upstream: ``ConsumeMessageOrderlyService``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from triomq._cluster.spawn import Spawn
from triomq._consumer.group.callbacks import ConsumerEvent
from triomq._consumer.group.process_queue import ENDED, STARTED, WAITING, HeldMessage
from triomq._consumer.group.pull_loop import PulledQueue
from triomq._consumer.group.queue_locks import BROKER_KEEPS_S, RENEW_EVERY_S, RETRY_S, VALID_S, QueueLocks
from triomq._consumer.push.concurrent import SHARE_MAX
from triomq._consumer.push.dispatch import Dispatch, Later, Rollback
from triomq._consumer.push.options import SUSPEND_BOUNDS_S
from triomq._consumer.push.send_back import FIRST_RETRY_LEVEL, SendBack
from triomq._message.message import MessageQueue

log = logging.getLogger("triomq.consumer")

FIRST_RENEWAL_S: Final = 1.0
"""Seconds until locks are renewed for the first time."""

GIVE_UP_WAIT_S: Final = 1.0
"""Seconds that giving up a queue waits for its handler."""

GIVEN_UP_WITHIN_S: Final = 5.0
"""Seconds that a queue whose handler has just ended waits to be given up after all, before it continues."""


class OrderedQueue:
    """The state of one assigned queue that ordering needs.

    Args:
        source: the queue.

    Attributes:
        waiting: messages that have not been given to a handler, in order.
        uncommitted: consumed messages that wait for a commit, in order.
        in_flight: whether a handler has some of its messages.
        offered: whether it is among the queues that can be taken from.
        resting: whether it rests after a failure.
        leaving: whether it is about to be given up.
        given_up_calls: how many times giving it up was requested.
        locked: whether the broker's last answer granted the lock.
        locked_s: trio's clock when the granted request was sent.
        idle: set when nothing is in flight; created when a task waits for it.
    """

    __slots__ = (
        "given_up_calls", "idle", "in_flight", "leaving", "locked", "locked_s", "offered", "resting", "source",
        "uncommitted", "waiting", "warned",
    )  # fmt: skip

    def __init__(self, source: PulledQueue, locked_s: float) -> None:
        self.source = source
        self.waiting: deque[HeldMessage] = deque()
        self.uncommitted: list[HeldMessage] = []
        self.warned = False
        self.in_flight = False
        self.offered = False
        self.resting = False
        self.leaving = False
        self.given_up_calls = 0
        self.locked = True
        self.locked_s = locked_s
        self.idle: trio.Event | None = None

    def give_up(self) -> None:
        """Drop the pulled messages: they no longer count."""
        self.waiting.clear()
        self.uncommitted.clear()


class OrderedDispatch(Dispatch[OrderedQueue]):
    """Gives queues that have messages, one after the other, to the next task that asks.

    Args:
        locks: the brokers' locks; None (broadcast): every member has all queues to itself.
        send_back: sends back messages that failed too often; None (broadcast): they are never sent back.
        spawn: starts tasks.
        report: called with events.
        on_idle: called when a queue that could not be given up now can be.
        suspend_s: how long a queue rests after a failure.
        by_hand: whether handlers decide when to commit.
    """

    def __init__(
        self,
        *,
        locks: QueueLocks | None,
        send_back: SendBack | None,
        spawn: Spawn,
        report: Callable[[ConsumerEvent], None],
        on_idle: Callable[[], object] = lambda: None,
        suspend_s: float,
        by_hand: bool = False,
    ) -> None:
        super().__init__(by_hand=by_hand)
        self.states: dict[MessageQueue, OrderedQueue] = {}
        """The assigned queues."""
        self._locks = locks
        self._send_back = send_back
        self._spawn = spawn
        self._report = report
        self._on_idle = on_idle
        self._suspend_s = suspend_s

    # --- assigned and revoked queues ----------------------------------------------------------------------------------

    def add(self, source: PulledQueue, locked_s: float) -> None:
        """Add a queue that was assigned, and locked at this time."""
        self.states[source.queue] = OrderedQueue(source, locked_s)

    def remove(self, queue: MessageQueue) -> None:
        """Remove a queue that was given up."""
        self.states.pop(queue, None)

    async def wait_idle(self, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        """Give nothing more out of queues, and wait a moment until nothing of them is in flight.

        Returns:
            Those that can be given up; when another one can, ``on_idle`` is called.
        """
        states = [self.states[queue] for queue in queues if queue in self.states]
        for state in states:
            state.leaving = True
            state.given_up_calls += 1
            state.idle = trio.Event() if state.in_flight else None
        with trio.move_on_after(GIVE_UP_WAIT_S):
            for state in states:
                if state.idle is not None:
                    await state.idle.wait()
        for state in states:
            state.idle = None
        # Giving the others up is still requested: the end of their handlers calls `on_idle`.
        busy = {state.source.queue for state in states if state.in_flight}
        return [queue for queue in queues if queue not in busy]

    def is_in_flight(self, queue: MessageQueue) -> bool:
        """Whether a handler is processing a queue's messages; a delivery that is never answered does not count."""
        state = self.states.get(queue)
        return state is not None and state.in_flight and not self.waiters.is_idle

    def held_back(self, source: PulledQueue) -> bool:
        """Whether nothing may be pulled now, as another member has the lock."""
        state = self.states.get(source.queue)
        return state is None or not state.locked

    def pulled(self, source: PulledQueue, messages: list[HeldMessage]) -> None:
        """Take new messages of a queue."""
        state = self.states.get(source.queue)
        if state is not None:
            state.waiting.extend(messages)
            self._offer(state)

    def given_up(self, source: PulledQueue, _count: int, _size_bytes: int) -> None:
        """Drop the held messages."""
        state = self.states.get(source.queue)
        if state is not None:
            state.give_up()

    # --- handlers --------------------------------------------------------------------------------------------

    def take(self, most: int, now: float) -> list[HeldMessage] | None:
        """Take the next messages of the next queue, which gives out nothing more until they are answered."""
        ready = self._ready
        if self.waiters.draining:
            return None
        while ready:
            state = ready.popleft()
            state.offered = False
            if not self._may_give(state, now):
                continue
            batch: list[HeldMessage] = []
            while len(batch) < most and state.waiting:
                message = state.waiting.popleft()
                if message.stage is WAITING:
                    message.stage = STARTED
                    message.started_s = now
                    batch.append(message)
            if not batch:
                continue
            state.in_flight = True
            state.source.consumed_s = now
            if ready and not self.waiters.waking:
                self.waiters.wake()
            return batch
        return None

    def fair_share(self, _consumers: int) -> int:
        """The number of messages one task may take at once: they are of one queue, which no other task may serve."""
        return SHARE_MAX

    def succeed(self, batch: Sequence[HeldMessage]) -> None:
        """Mark messages as consumed; the queue's next ones can be taken."""
        if self.by_hand:
            self._keep_uncommitted(batch)
        else:
            for message in batch:
                message.holder.owner.finish(message)
        self._release(batch)

    def commit(self, batch: Sequence[HeldMessage]) -> None:
        """Mark messages as consumed, and commit those of their queue that wait for it."""
        state = self._state_of(batch)
        if state is not None:
            for message in state.uncommitted:
                state.source.finish(message)
            state.uncommitted.clear()
            state.warned = False
        for message in batch:
            message.holder.owner.finish(message)
        self._release(batch)

    def _state_of(self, batch: Sequence[HeldMessage]) -> OrderedQueue | None:
        """The queue of messages that still count; None after it was given up, or restarted elsewhere."""
        state = self.states.get(batch[0].queue)
        return state if state is not None and state.source.process is batch[0].holder else None

    def _keep_uncommitted(self, batch: Sequence[HeldMessage]) -> None:
        state = self._state_of(batch)
        if state is None:
            return
        state.uncommitted.extend(message for message in batch if message.stage is STARTED)
        if state.source.is_full and not state.waiting and not state.warned:
            state.warned = True
            log.warning(
                "%s holds %d messages that were consumed and not committed, which is more than its limits allow: "
                "nothing more is pulled before the handler returns Commit() or raises Rollback()",
                state.source.queue,
                len(state.uncommitted),
            )

    async def fail(self, batch: Sequence[HeldMessage], later: Later) -> None:
        """Retry messages in place after a rest; those that failed too often become dead letters."""
        if self.by_hand and isinstance(later, Rollback):
            self._roll_back(batch, later)
            return
        for message in batch:
            if message.stage is ENDED:
                continue
            if (
                self._send_back is not None
                and message.reconsume_times >= self._send_back.max_times
                and await self._send_dead_letter(message)
            ):
                message.holder.owner.finish(message)
            else:
                message.extra_times += 1
        state = self._state_of(batch)
        if state is None:
            self._release(batch)
            return
        if any(message.stage is STARTED for message in batch):
            self._suspend(state, later)
        self.requeue(batch)

    def _roll_back(self, batch: Sequence[HeldMessage], later: Later) -> None:
        state = self._state_of(batch)
        if state is None:
            self._release(batch)
            return
        back = [*state.uncommitted, *batch]
        state.uncommitted.clear()
        self._suspend(state, later)
        self._put_first(back)
        self._release(batch)

    def _suspend(self, state: OrderedQueue, later: Later) -> None:
        low, high = SUSPEND_BOUNDS_S
        wanted = later.suspend_s if later.suspend_s is not None else self._suspend_s
        state.resting = True
        self._spawn(self._rest, state, min(max(wanted, low), high))

    def requeue(self, batch: Sequence[HeldMessage]) -> None:
        """Give messages out again, as the queue's next ones."""
        self._put_first(batch)
        self._release(batch)

    async def finish_batch(self, batch: Sequence[HeldMessage], done: int, later: Later | None) -> None:
        """End a batch: the first ``done`` are consumed, the next failed if there is ``later``, the rest is requeued."""
        for message in batch[:done]:
            message.holder.owner.finish(message)
        failed = batch[done : done + 1] if later is not None else []
        self._put_first(batch[done + len(failed) :])
        if later is None:
            self._release(batch)
        else:
            await self.fail(failed, later)

    def _put_first(self, batch: Sequence[HeldMessage]) -> None:
        state = self.states.get(batch[0].queue) if batch else None
        if state is not None:
            for message in reversed(batch):
                if message.stage is STARTED:
                    message.stage = WAITING
                    state.waiting.appendleft(message)

    def _release(self, batch: Sequence[HeldMessage]) -> None:
        state = self.states.get(batch[0].queue)
        # A queue that was given up and assigned again meanwhile is a different object.
        if state is None or state.source is not batch[0].holder.owner:
            return
        state.in_flight = False
        if state.idle is not None:
            state.idle.set()
        elif state.leaving:
            self._spawn(self._keep_after_all, state, state.given_up_calls)
            self._on_idle()
        self._offer(state)

    @trio.lowlevel.enable_ki_protection
    async def _keep_after_all(self, state: OrderedQueue, calls: int) -> None:
        """Continue a queue that was not given up: shares have changed again, and it is still ours.

        Args:
            state: the queue.
            calls: its ``given_up_calls`` when its handler ended.
        """
        await trio.sleep(GIVEN_UP_WITHIN_S)
        if state.given_up_calls != calls:
            return  # it is being given up now, and `on_revoked` may take longer than this
        state.leaving = False
        self._offer(state)

    def _offer(self, state: OrderedQueue) -> None:
        if state.waiting and not (state.offered or state.in_flight or state.resting or state.leaving):
            state.offered = True
            self._ready.append(state)
            self.waiters.wake()

    def _may_give(self, state: OrderedQueue, now: float) -> bool:
        if state.in_flight or state.resting or state.leaving or not state.waiting:
            return False
        if self.states.get(state.source.queue) is not state:
            return False
        # Without a valid lock another member may be processing this queue.
        return self._locks is None or (state.locked and now - state.locked_s <= VALID_S)

    @trio.lowlevel.enable_ki_protection
    async def _rest(self, state: OrderedQueue, seconds: float) -> None:
        await trio.sleep(seconds)
        state.resting = False
        self._offer(state)

    async def _send_dead_letter(self, message: HeldMessage) -> bool:
        assert self._send_back is not None
        # After the highest allowed number of failures the broker makes it a dead letter (docs/protocol/consumer.md §9).
        return await self._send_back.send_copy(
            message, delay_level=FIRST_RETRY_LEVEL + message.reconsume_times, times=message.reconsume_times
        )

    # --- locks -----------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def keep_locks(
        self, restart: Callable[[MessageQueue], Awaitable[bool]], forget: Callable[[MessageQueue], object]
    ) -> None:
        """Renew the locks until cancelled, in a task of its own: a slow handler must not delay it.

        Args:
            restart: restarts a queue from its committed offset, as another member had it meanwhile; False: it cannot
                now.
            forget: called with a queue that belongs to another member: its offset must no longer be committed.
        """
        assert self._locks is not None
        pause_s = FIRST_RENEWAL_S
        while True:
            await trio.sleep(pause_s)
            done = await self.renew_locks(restart, forget)
            pause_s = RENEW_EVERY_S if done else RETRY_S

    def is_locked_since(self, queue: MessageQueue, moment_s: float) -> bool:
        """Whether the broker has granted a queue's lock for a request of this time or later."""
        state = self.states.get(queue)
        return state is not None and state.locked and state.locked_s >= moment_s

    async def renew_locks(
        self, restart: Callable[[MessageQueue], Awaitable[bool]], forget: Callable[[MessageQueue], object]
    ) -> bool:
        """Renew the locks once; see :meth:`keep_locks`.

        Returns:
            Whether all queues are locked now.
        """
        assert self._locks is not None
        asked_s = trio.current_time()
        queues = list(self.states)
        granted, refused = await self._locks.lock(queues)
        for queue in refused:
            state = self.states.get(queue)
            if state is not None and state.locked:
                self._lose(state)
                forget(queue)
        locked = 0
        for queue in granted:
            state = self.states.get(queue)
            if state is None:
                continue
            # The broker dropped the lock long ago: another member may have had the queue in between.
            was_ours = state.locked and asked_s - state.locked_s <= BROKER_KEEPS_S
            if not was_ours:
                # Until it has restarted, earlier results do not count.
                self._give_up(state)
                forget(queue)
                if not await restart(queue):
                    continue
            state.locked, state.locked_s = True, asked_s
            locked += 1
            self._offer(state)
            state.source.wake()
        return locked == len(queues)

    def _give_up(self, state: OrderedQueue) -> None:
        state.locked = False
        state.give_up()
        state.source.process.drop()

    def _lose(self, state: OrderedQueue) -> None:
        self._give_up(state)
        text = f"{state.source.queue} is locked by another member; what was pulled of it is given up"
        self._report(ConsumerEvent("lock_lost", text, state.source.queue))
