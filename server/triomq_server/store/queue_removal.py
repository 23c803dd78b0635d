"""Removal of consume queues by an operator's order; the records stay in the log until they expire.

Answers to `destroyLogics`, `cleanUnusedTopic` and `cleanExpiredConsumerQueue` of `DefaultMessageStore`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from triomq_protocol.names import LMQ_PREFIX, OP_HALF_TOPIC, SCHEDULE_TOPIC
from triomq_server.store.commitlog import CommitLog
from triomq_server.store.consume_queue import ConsumeQueue, ConsumeQueues
from triomq_server.store.dispatch.dispatcher import Dispatcher

_log = logging.getLogger(__name__)


class QueueRemoval:
    """Removes queues of one store; each method returns how many."""

    def __init__(self, log: CommitLog, queues: ConsumeQueues, dispatcher: Dispatcher) -> None:
        self._commitlog = log
        self._queues = queues
        self._dispatcher = dispatcher

    def remove_topic(self, topic: str) -> int:
        """Remove all queues of a topic."""
        return self._remove([q for q in self._queues if q.topic == topic])

    def remove_unused(self, used: Collection[str]) -> int:
        """Remove the queues of every topic not in `used`; internal topics stay."""
        used = {*used, SCHEDULE_TOPIC, OP_HALF_TOPIC}
        return self._remove([q for q in self._queues if q.topic not in used and not q.topic.startswith(LMQ_PREFIX)])

    def remove_expired(self) -> int:
        """Remove queues that lie wholly below the log's minimum."""
        low = self._commitlog.min_offset
        return self._remove([q for q in self._queues if q.topic != SCHEDULE_TOPIC and -1 != q.last_unit_end() < low])

    def _remove(self, queues: list[ConsumeQueue]) -> int:
        self._dispatcher.notify()
        for queue in queues:
            _log.info("%s removed", queue)
            self._queues.destroy(queue)
        return len(queues)
