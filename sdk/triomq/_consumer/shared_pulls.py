"""Pulls this member's share of a topic's queues, one after the other, in a loop (docs/protocol/consumer.md §4).

The group's members divide the queues among themselves; the loop pulls its own queues, without a task for each.
Upstream: ``MQPullConsumerScheduleService``, ``RebalancePullImpl``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from types import TracebackType
from typing import Final, Self

import trio

from triomq._cluster.spawn import Spawn
from triomq._constructors import NoPublicConstructor
from triomq._consumer.group.callbacks import ConsumerCallbacks, call_at_end, call_with_queues
from triomq._consumer.group.failed_pulls import FailedPulls
from triomq._consumer.group.positions import END_TIMEOUT_S
from triomq._consumer.group.rebalance import Rebalance
from triomq._message.message import MessageQueue
from triomq._message.pull_result import PullResult
from triomq._tasks.exception_groups import without_groups
from triomq._tasks.own_callbacks import OwnCallbacks
from triomq._transport.links import NO_ANSWER
from triomq.errors import ClientClosed, InvalidCall, MQError

log = logging.getLogger("triomq.consumer")

ERROR_PAUSE_S: Final = 1.0
"""Seconds that a queue rests after a failed pull (``pullTimeDelayMillsWhenException``)."""


class SharedPulls(metaclass=NoPublicConstructor):
    """A member's share of a group's queues, pulled in turn; created by :meth:`triomq.PullConsumer.share`.

    It is an async context manager; inside its block, an async iterator of results that have messages.
    """

    def __init__(self, share: Share) -> None:
        self._share = share

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are assigned to this member now."""
        return self._share.assignment()

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        self._share.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the queues up; callbacks that still run are cancelled, and get 3 s to end.

        Raises:
            InvalidCall: a callback of this share has called it, and would wait for itself.
        """
        await self._share.end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PullResult:
        """The next result that has messages; its queue's position is then after them, and nothing is committed.

        A pull that fails is logged, and retried after a second. If it took longer than that, since its broker does not
        answer, and there are queues of other brokers, only these are pulled until the broker answers again.

        Raises:
            ClientClosed: the consumer is closed.
        """
        return await self._share.next_result()


class Share:
    """The implementation of :class:`SharedPulls`: the queues, when each is due, and the task that rebalances.

    Args:
        pull: pulls one queue from the consumer's position.
        ask: raises unless the broker of a queue answers a pull.
        forget: called with an assigned queue: its position is the committed one again.
        lose: called with a queue that was given up to another member.
        left_to_others: called in each round with queues of a topic that are other members'.
        share_out: creates the rebalance; it is given this object.
        spawn: starts the task that rebalances.
        interval_s: seconds that a queue without a new message rests.
        callbacks: called with queues that are assigned or revoked.
        begun: called when the block begins; raises if the consumer is closed.
        ended: called at the end.
    """

    def __init__(
        self,
        *,
        pull: Callable[[MessageQueue], Awaitable[PullResult]],
        ask: Callable[[MessageQueue], Awaitable[object]],
        forget: Callable[[MessageQueue], object],
        lose: Callable[[MessageQueue], object],
        left_to_others: Callable[[Collection[MessageQueue]], object],
        share_out: Callable[[Share], Rebalance],
        spawn: Spawn,
        interval_s: float,
        callbacks: ConsumerCallbacks,
        begun: Callable[[], object],
        ended: Callable[[], object],
    ) -> None:
        self._pull = pull
        self._ask = ask
        self._forget = forget
        self._lose = lose
        self._left_to_others = left_to_others
        self._rebalance = share_out(self)
        self._spawn = spawn
        self._interval_s = interval_s
        self._callbacks = callbacks
        self._begun = begun
        self._ended = ended
        self._due: dict[MessageQueue, float] = {}
        """Queue -> when it is pulled next, on trio's clock."""
        self._pulls: dict[MessageQueue, object] = {}
        """Queue -> the pull that is under way, unless the queue was given up since it began."""
        self._asking: dict[str, trio.CancelScope] = {}
        """Broker that has not answered a pull -> the scope of the task that waits until it answers."""
        self._failures = FailedPulls()
        self._changed = trio.Event()
        self._scope = trio.CancelScope()
        self._stopped = trio.Event()
        self._entered = False
        self._left = False
        self._calling_assigned = trio.Lock()
        self._own_callbacks = OwnCallbacks()
        self._failure: Exception | None = None

    def __contains__(self, queue: MessageQueue) -> bool:
        """Whether a queue is assigned to this member now."""
        return queue in self._due

    def assignment(self) -> list[MessageQueue]:
        """The queues that are assigned to this member now."""
        return sorted(self._due)

    def begin(self) -> None:
        """Start the task that rebalances.

        Raises:
            InvalidCall: it was started before.
        """
        if self._entered:
            raise InvalidCall("the share was entered before; call share(...) again")
        self._begun()
        self._entered = True
        self._spawn(self._keep_sharing)

    async def end(self) -> None:
        """End that task, and give up all queues; does nothing if it was not started, or has ended.

        Raises:
            InvalidCall: a callback has called it.
        """
        self._own_callbacks.refuse("__aexit__() of a share")
        if not self._entered or self._left:
            await trio.lowlevel.checkpoint()
            return
        self._left = True
        self._cancel()
        self._ended()
        # Not without a limit: a user's callback may wait for this, or be shielded.
        with trio.move_on_after(END_TIMEOUT_S, shield=True) as scope:
            await self._stopped.wait()
        if scope.cancelled_caught:
            log.warning("a callback of a share still runs, after the share has ended")
        queues = list(self._due)
        self._due.clear()
        self._pulls.clear()
        await call_at_end(lambda: call_with_queues(self._callbacks.on_revoked, queues))

    async def next_result(self) -> PullResult:
        """The next result that has messages; see :meth:`SharedPulls.__anext__`."""
        if self._failure is None and (not self._entered or self._scope.cancel_called):
            raise InvalidCall(
                "a share is used inside its block: `async with consumer.share(topic) as pulls:`, or `with` in triomq.blocking"
            )
        await trio.lowlevel.checkpoint()
        while True:
            if self._failure is not None:
                raise self._failure
            queue = min(self._due, key=self._due.__getitem__, default=None)
            if queue is None or self._due[queue] > trio.current_time():
                await self._wait(queue)
                continue
            begun_s, pause_s = trio.current_time(), 0.0  # if it is cancelled, it may have a message: no pause then
            self._due[queue] = math.inf  # another task that pulled it meanwhile would get the same messages
            this = self._pulls[queue] = object()
            try:
                result = await self._pull(queue)
                if not result:
                    pause_s = begun_s + self._interval_s - trio.current_time()
            except ClientClosed:
                raise
            except MQError as error:
                pause_s = self._failed(queue, error, trio.current_time() - begun_s)
                continue
            else:
                self._failures.end(queue)
            finally:
                is_ours = self._put_last(queue, this, pause_s)
            if is_ours and result:
                return result

    def _failed(self, queue: MessageQueue, error: MQError, took_s: float) -> float:
        """Log a failed pull, and return how long its queue rests.

        A broker that does not answer keeps the other brokers' queues waiting meanwhile: if that took long, all its queues
        rest until it answers. Without others, that would only be longer without messages.
        """
        self._failures.note(queue, error)
        if queue not in self._due:
            self._failures.end(queue)  # it has been given up
        broker = queue.broker_name
        has_ended = self._scope.cancel_called  # nothing would cancel the task that asks
        if took_s <= ERROR_PAUSE_S or has_ended or all(each.broker_name == broker for each in self._due):
            return ERROR_PAUSE_S
        for each in self._due:
            if each.broker_name == broker:
                self._due[each] = math.inf
        if broker not in self._asking:
            self._asking[broker] = trio.CancelScope()
            self._spawn(self._keep_asking, broker)
        return math.inf

    @trio.lowlevel.enable_ki_protection
    async def _keep_asking(self, broker: str) -> None:
        """Wait until a broker answers; then its queues are pulled again."""
        try:
            with self._asking[broker]:
                while True:
                    queue = next((each for each in self._due if each.broker_name == broker), None)
                    if queue is None or await self._answers(queue):
                        break
                    await trio.sleep(ERROR_PAUSE_S)
        finally:
            del self._asking[broker]
            for each, due_s in self._due.items():
                if each.broker_name == broker and due_s == math.inf and each not in self._pulls:
                    self._due[each] = trio.current_time()
            self._note_change()

    async def _answers(self, queue: MessageQueue) -> bool:
        try:
            await self._ask(queue)
        except MQError as error:
            log.debug("%s is not pulled yet: %s", queue, error)
            return not isinstance(error, NO_ANSWER)
        return True

    def _put_last(self, queue: MessageQueue, pull: object, pause_s: float) -> bool:
        """Make a queue that was pulled due after a pause, after the others that are due then.

        Returns:
            False if it was given up meanwhile, also if it came back: nothing changes then.
        """
        if self._pulls.get(queue) is not pull:
            return False
        del self._pulls[queue], self._due[queue]
        self._due[queue] = trio.current_time() + max(pause_s, 0.0)
        self._note_change()
        return True

    async def _wait(self, queue: MessageQueue | None) -> None:
        changed = self._changed  # shared: several tasks may take results
        with trio.move_on_at(self._due[queue] if queue is not None else float("inf")):
            await changed.wait()

    def _cancel(self) -> None:
        self._scope.cancel()
        for scope in self._asking.values():
            scope.cancel()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    @trio.lowlevel.enable_ki_protection
    async def _keep_sharing(self) -> None:
        try:
            with self._scope:
                await self._rebalance.run()
        except Exception as error:
            # The outermost handler of the task: the loop raises it.
            self._failure = without_groups(error) if isinstance(error, BaseExceptionGroup) else error  # type: ignore[assignment]
            log.exception("sharing out the queues failed")
        finally:
            self._stopped.set()
            self._note_change()

    # --- called by the rebalance -------------------------------------------------------------------------------

    def expect(self, _topic: str, _queues: int, /) -> None:
        """Does nothing: there are no limits to divide among queues."""

    async def assigned(self, queue: MessageQueue, /) -> bool:
        """Take a queue."""
        self._forget(queue)
        async with self._calling_assigned:  # queues of several brokers are taken together
            with self._own_callbacks.running():
                await call_with_queues(self._callbacks.on_assigned, [queue])
        if self._left:
            return False  # the callback has outlasted the share
        self._due[queue] = trio.current_time() if queue.broker_name not in self._asking else math.inf
        self._note_change()
        return True

    async def revoked(self, queues: Sequence[MessageQueue], /) -> Collection[MessageQueue]:
        """Give queues up."""
        for queue in queues:
            self._due.pop(queue, None)
            self._pulls.pop(queue, None)
        try:
            with self._own_callbacks.running():
                await call_with_queues(self._callbacks.on_revoked, queues)
        finally:
            for queue in queues:
                self._failures.end(queue)
                self._lose(queue)
        return queues

    async def kept(self, _queue: MessageQueue, /) -> bool:
        """Does nothing: only the caller commits offsets."""
        await trio.lowlevel.checkpoint()
        return True

    async def topic_changed(self, _topic: str, /) -> None:
        """Does nothing: pulls carry their expression."""

    def left_to_others(self, queues: Collection[MessageQueue], /) -> None:
        """These queues are other members', or an operator has moved the group in them."""
        self._left_to_others(queues)

    def is_stuck(self, _queue: MessageQueue, /) -> bool:
        """Always false: no queue has a task that could end."""
        return False

    def close(self, error: MQError) -> None:
        """Make the loop raise this error: the consumer is closed."""
        self._failure = error
        self._cancel()
        self._note_change()

    def wake(self) -> None:
        """The group's members have changed."""
        self._rebalance.members_changed()
