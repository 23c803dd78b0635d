"""Methods of push and lite pull consumers for their assigned queues: pause, resume, seek (docs/protocol/consumer.md §5).

Upstream: ``DefaultLitePullConsumer``; Java's push consumer has only ``suspend`` and ``resume``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import datetime

import trio

from triomq._constructors import NoPublicConstructor
from triomq._consumer.group.by_broker import at_each_broker
from triomq._consumer.group.positions import checked_time_ms
from triomq._consumer.membership import Membership
from triomq._error_text import shown
from triomq._message.message import MessageQueue, check_queue, check_whole_offset
from triomq._tasks.own_callbacks import OwnCallbacks
from triomq._transport.links import NO_ANSWER
from triomq.errors import ClientClosed, InvalidCall, MQError


class AssignedQueues(metaclass=NoPublicConstructor):
    """The base of push and lite pull consumers."""

    _member: Membership

    def _refuse_callbacks(self, what: str, task: trio.lowlevel.Task | None = None) -> None:
        """Raise :class:`InvalidCall` if a callback or a handler would wait for its own end."""
        self._member.own_callbacks.refuse(what, task)

    def _waited_for(self) -> list[OwnCallbacks]:
        """The callbacks that the end waits for."""
        return [self._member.own_callbacks]

    def pause(self, *queues: MessageQueue) -> None:
        """Stop pulling these queues; without queues, pull nothing, also from queues that are assigned later.

        Messages that were already pulled are still polled or handled. So are those of a pull that was already sent:
        brokers hold it for up to 15 s, or 20 s for lite pull consumers, until a message arrives. Java's consumers do
        the same. The pause of a queue ends when the queue is given up, also if it comes back.

        Raises:
            InvalidCall: a queue is not assigned.
        """
        if not queues:
            self._member.check_open()
            self._member.engine.pause_all()
        for queue in self._own(queues):
            self._member.engine.pause(queue)

    def resume(self, *queues: MessageQueue) -> None:
        """Pull these queues again; without queues, end a :meth:`pause` without queues.

        Raises:
            InvalidCall: a queue is not assigned.
        """
        if not queues:
            self._member.check_open()
            self._member.engine.resume_all()
        for queue in self._own(queues):
            self._member.engine.resume(queue)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another offset of a queue; messages of it that were pulled but not yet delivered are dropped.

        A handler that is processing one of its messages continues, but its result no longer moves the group's offset.

        Args:
            queue: an assigned queue.
            offset: the offset of the next message to deliver.

        Raises:
            InvalidCall: the queue is not assigned, is locked by another member, or has no such offset.
        """
        self._own([queue])
        check_whole_offset(offset)
        low, high = await self._member.bounds.min_offset(queue), await self._member.bounds.max_offset(queue)
        if not low <= offset <= high:
            raise InvalidCall(f"{queue} has no offset {shown(offset)}, only {low} to {high}")
        self._member.go_to(queue, offset)

    async def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Go to the queues' first messages; without queues, for all that are assigned.

        Raises:
            MQError: some queues cannot be moved now, which it names; the others are moved.
        """
        await self._go_to_each(queues, self._member.bounds.min_offset)

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Go to the end of the queues, after their last messages; without queues, for all that are assigned.

        Raises:
            MQError: some queues cannot be moved now, which it names; the others are moved.
        """
        await self._go_to_each(queues, self._member.bounds.max_offset)

    async def seek_to_time(self, moment: datetime | int, *queues: MessageQueue) -> None:
        """Go to the first message stored at a time (int: ms since 1970) or later; without queues, for all assigned.

        Raises:
            InvalidCall: the time cannot be used, or a queue is not assigned, or is locked by another member; the other
                queues are moved in the last case.
            MQError: some queues cannot be moved now, which it names; the others are moved.
        """
        checked_time_ms("the time", moment)  # even if nothing is assigned
        await self._go_to_each(queues, lambda queue: self._member.positions.offset_at(queue, moment))

    async def _go_to_each(
        self, queues: Collection[MessageQueue], find: Callable[[MessageQueue], Awaitable[int]]
    ) -> None:
        """Go to an offset of each queue, or of all that are assigned; one that cannot be moved keeps none of them back."""
        wanted = self._own(queues or self._assigned())
        failed: dict[MessageQueue, MQError] = {}

        @trio.lowlevel.enable_ki_protection
        async def go_at_one_broker(theirs: Collection[MessageQueue]) -> None:
            silence: MQError | None = None
            for queue in theirs:
                if silence is not None:
                    failed[queue] = silence  # each would take the whole time limit again
                    continue
                try:
                    self._member.go_to(queue, await find(queue))
                except MQError as error:
                    failed[queue] = error
                    silence = error if isinstance(error, (*NO_ANSWER, ClientClosed)) else None

        await at_each_broker(wanted, go_at_one_broker)
        if failed:
            raise _not_moved(failed, len(wanted))

    def _assigned(self) -> list[MessageQueue]:
        """The queues that are assigned to this member now, sorted, without the retry topic's."""
        return self._member.assignment()

    def _own(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        self._member.check_open()
        for queue in (found := list(queues)):
            check_queue(queue, "; give each queue as an argument of its own" if isinstance(queue, Collection) else "")
            if queue not in self._member.engine.queues:
                raise InvalidCall(
                    f"{queue} is not assigned to this consumer; its `assignment` lists the queues that are"
                )
        return found


def _not_moved(failed: Mapping[MessageQueue, MQError], count: int) -> MQError:
    """The error of a seek of several queues, of which some were not moved: the end of the client, or else that of an outage, if
    there is one."""
    for error in failed.values():
        if isinstance(error, ClientClosed):
            return error
    outages = [error for error in failed.values() if not isinstance(error, InvalidCall)]
    first = (outages or list(failed.values()))[0]
    if len(failed) == 1 or not outages:
        return first
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for queue in sorted(failed):
        places[queue.topic, queue.broker_name].append(str(queue.queue_id))
    names = "; ".join(f"{', '.join(ids)} of {topic} at {broker}" for (topic, broker), ids in places.items())
    what = f"{first.what}; {len(failed)} of {count} queues were not moved: {names}"
    return type(first)(what, address=first.address, code=first.code, remark=first.remark, attempts=first.attempts)
