"""Removal of consume queues by an operator's order; the records stay in the log until they expire.

The numbering of a removed queue goes on: see `removed_queues`.

Answers to `destroyLogics`, `cleanUnusedTopic` and `cleanExpiredConsumerQueue` of `DefaultMessageStore`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Generator, Iterable

from triomq_protocol.names import LMQ_PREFIX, OP_HALF_TOPIC, SCHEDULE_TOPIC
from triomq_server.store.commitlog import CommitLog
from triomq_server.store.consume_queue import ConsumeQueue, ConsumeQueues
from triomq_server.store.dispatch.dispatcher import Dispatcher
from triomq_server.store.removed_queues import RemovedQueue

_log = logging.getLogger(__name__)


QUEUES_PER_SLICE = 4096
REMOVED_PER_SLICE = 32
"""Queues that are looked at, and queues whose files are removed, before others have their turn."""

Slices = Generator[None, None, int]


class QueueRemoval:
    """Removes queues of one store; each method returns how many, those on an operator's order in slices."""

    def __init__(self, log: CommitLog, queues: ConsumeQueues, dispatcher: Dispatcher) -> None:
        self._commitlog = log
        self._queues = queues
        self._dispatcher = dispatcher

    def remove_topic(self, topic: str, *, unless: Container[str] = ()) -> Slices:
        """Remove all queues of a topic, as long as it is not in `unless`, the topics that have been made again."""
        return (yield from self._remove(lambda q: q.topic == topic and topic not in unless))

    def remove_unused(self, used: Container[str]) -> Slices:
        """Remove the queues of every topic not in `used`; internal topics stay."""
        kept = (SCHEDULE_TOPIC, OP_HALF_TOPIC)
        return (
            yield from self._remove(
                lambda q: q.topic not in used and q.topic not in kept and not q.topic.startswith(LMQ_PREFIX)
            )
        )

    def remove_expired(self) -> Slices:
        """Remove queues that lie wholly below the log's minimum."""
        return (
            yield from self._remove(
                lambda q: q.topic != SCHEDULE_TOPIC and -1 != q.last_unit_end() < self._commitlog.min_offset
            )
        )

    def removed(self) -> list[tuple[str, int, int, int]]:
        """All removed queues as slaves fetch them: topic, queue id, next offset and log offset."""
        return list(self._queues.removed.table.values())

    def follow(self, removed: Iterable[tuple[str, int, int, int]]) -> int:
        """Remove what the master has removed, as far as its log has been copied; returns how many queues.

        What has been stored in a queue of the same name since then stays.
        """
        known = self._queues.removed
        new = [
            there
            for there in map(RemovedQueue._make, removed)
            if there.log_offset <= self._dispatcher.dispatched_offset
            and there.log_offset > (here.log_offset if (here := known.get(there.topic, there.queue_id)) else -1)
        ]
        if not new:
            return 0
        known.note(new)
        count = 0
        for topic, queue_id, next_offset, log_offset in new:
            queue = self._queues.get(topic, queue_id)
            if queue is None:
                continue
            count += 1
            _log.info("%s removed, as by the master", queue)
            if queue.last_unit_end() <= log_offset:
                self._queues.destroy(queue)
            else:
                queue.start_offset, queue.removed_before = next_offset, log_offset
                queue.delete_expired(log_offset)
                queue.correct_min_offset(log_offset)
        return count

    def _remove(self, unwanted: Callable[[ConsumeQueue], bool]) -> Slices:
        found = []
        for number, queue in enumerate(list(self._queues), 1):
            if unwanted(queue):
                found.append(queue)
            if not number % QUEUES_PER_SLICE:
                yield
        count = 0
        for begin in range(0, len(found), REMOVED_PER_SLICE):
            # What has happened since it was found counts: another request may have removed it, or its topic been made
            # again.
            some = found[begin : begin + REMOVED_PER_SLICE]
            some = [q for q in some if self._queues.get(q.topic, q.queue_id) is q and unwanted(q)]
            self._remove_now(some)
            count += len(some)
            if begin + REMOVED_PER_SLICE < len(found):
                yield
        return count

    def _remove_now(self, queues: list[ConsumeQueue]) -> None:
        if not queues:
            return
        self._dispatcher.notify()
        end = self._commitlog.max_offset
        # First, so that no kill in between lets a queue begin at 0 again.
        numbered = [RemovedQueue(q.topic, q.queue_id, q.max_offset, end) for q in queues if q.max_offset]
        if numbered:
            self._queues.removed.note(numbered)
        for queue in queues:
            self._queues.destroy(queue)
        more = f" and {len(queues) - 1} more" if len(queues) > 1 else ""
        _log.info("%s%s removed", queues[0], more)
