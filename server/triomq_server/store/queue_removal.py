"""Removes consume queues by an operator's order; the records stay in the log until they expire.

A removed queue that is made again continues its numbering: see `removed_queues`.

Answers to `destroyLogics`, `cleanUnusedTopic` and `cleanExpiredConsumerQueue` of `DefaultMessageStore`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable

import trio

from triomq_protocol.names import LMQ_PREFIX, OP_HALF_TOPIC, SCHEDULE_TOPIC
from triomq_server.store.commitlog import CommitLog
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.store.dispatch.dispatcher import Dispatcher
from triomq_server.store.placement import put_last_skipped
from triomq_server.store.queue_table import ConsumeQueues
from triomq_server.store.removed_queues import RemovedQueue

_log = logging.getLogger(__name__)


QUEUES_PER_TURN = 4096
REMOVED_PER_TURN = 32
"""Queues that are examined, and queues whose files are removed, before other tasks get their turn."""
COMPARED_PER_TURN = 8192
"""Removed queues of a master that are compared with those here before others have their turn."""


class QueueRemoval:
    """Removes queues of one store; each method returns their number.

    The next offset of a removed queue is on the disk before its files are deleted, so that no kill in between lets the
    queue begin at 0 again. Messages stored in it in the meantime stay.
    """

    def __init__(self, log: CommitLog, queues: ConsumeQueues, dispatcher: Dispatcher) -> None:
        self._commitlog = log
        self._queues = queues
        self._dispatcher = dispatcher

    async def remove_topic(self, topic: str, *, unless: Container[str] = ()) -> int:
        """Remove all queues of a topic, as long as it is not in `unless`, the topics that have been made again."""
        return await self._remove(lambda q: q.topic == topic and topic not in unless)

    async def remove_unused(self, used: Container[str]) -> int:
        """Remove the queues of every topic not in `used`; internal topics stay."""
        kept = (SCHEDULE_TOPIC, OP_HALF_TOPIC)
        return await self._remove(
            lambda q: q.topic not in used and q.topic not in kept and not q.topic.startswith(LMQ_PREFIX)
        )

    async def remove_expired(self) -> int:
        """Remove queues whose records are all before the log's minimum."""
        return await self._remove(
            lambda q: q.topic != SCHEDULE_TOPIC and -1 != q.last_entry_end() < self._commitlog.min_offset
        )

    def removed(self) -> list[tuple[str, int, int, int]]:
        """All removed queues as slaves fetch them: topic, queue id, next offset and log offset."""
        return list(self._queues.removed.table.values())

    def take_forgotten(self) -> set[str]:
        """The topics of removed queues that have been forgotten since the last call."""
        forgotten = set(self._queues.removed.forgotten)
        self._queues.removed.forgotten.clear()
        return forgotten

    def without_numbers(self, topics: Iterable[str]) -> set[str]:
        """Those of some topics that have neither queues, nor removed ones that are still remembered."""
        found = set(topics)
        for known in (self._queues.removed.table, self._queues.table):
            found.difference_update(topic for topic, _ in known)
        return found

    def begins_at_zero(self, topic: str, queue_id: int) -> bool:
        """Whether the next message of a queue gets the number 0."""
        place = topic, queue_id
        return place not in self._queues.table and place not in self._queues.removed.table

    async def follow(self, removed: Iterable[tuple[str, int, int, int]]) -> int:
        """Remove what the master has removed, as far as its log has been copied."""
        known = self._queues.removed
        new = []
        for number, there in enumerate(map(RemovedQueue._make, removed), 1):
            here = known.get(there.topic, there.queue_id)
            if (here.log_offset if here else -1) < there.log_offset <= self._dispatcher.dispatched_offset:
                new.append(there)
            if not number % COMPARED_PER_TURN:
                await trio.lowlevel.checkpoint()
        if not new:
            return 0
        await known.note_in_background(new)
        known.forgotten.clear()  # the master forgets the offsets of its groups in those topics
        count = 0
        for one in new:
            queue = self._queues.get(one.topic, one.queue_id)
            if queue is not None:
                count += 1
                _log.info("%s removed, as by the master", queue, extra=queue.log_fields)
                self._remove_older(queue, one)
        return count

    async def _remove(self, unwanted: Callable[[ConsumeQueue], bool]) -> int:
        found = []
        for number, queue in enumerate(list(self._queues), 1):
            if unwanted(queue):
                found.append(queue)
            if not number % QUEUES_PER_TURN:
                await trio.lowlevel.checkpoint()
        count = 0
        for begin in range(0, len(found), REMOVED_PER_TURN):
            # What has happened since it was found counts: another request may have removed it, or its topic been made
            # again.
            some = found[begin : begin + REMOVED_PER_TURN]
            some = [q for q in some if self._queues.get(q.topic, q.queue_id) is q and unwanted(q)]
            count += len(some)
            await self._remove_all(some)
        await trio.lowlevel.checkpoint()
        return count

    async def _remove_all(self, queues: list[ConsumeQueue]) -> None:
        if not queues:
            return
        self._dispatcher.notify()
        end = self._commitlog.max_offset
        removed = [RemovedQueue(q.topic, q.queue_id, q.max_offset, end) for q in queues]
        if numbered := [one for one in removed if one.next_offset]:
            await self._queues.removed.note_in_background(numbered)
        for queue, one in zip(queues, removed, strict=True):
            if self._queues.get(queue.topic, queue.queue_id) is queue:
                self._remove_older(queue, one)
        more = f" and {len(queues) - 1} more" if len(queues) > 1 else ""
        _log.info("%s%s removed", queues[0], more, extra=queues[0].log_fields)

    def _remove_older(self, queue: ConsumeQueue, removed: RemovedQueue) -> None:
        """Remove a queue, or the part that it had when its removal was noted."""
        if queue.last_entry_end() <= removed.log_offset:
            self._queues.destroy(queue)
            one = queue.skipped
            if one is not None and one.physical_offset >= removed.log_offset:  # the first one of the queue's next life
                following = self._queues.obtain(queue.topic, queue.queue_id)
                following.skipped = one
                put_last_skipped(following)
        else:
            queue.start_offset, queue.removed_before = removed.next_offset, removed.log_offset
            queue.delete_expired(removed.log_offset)
            queue.correct_min_offset(removed.log_offset)
