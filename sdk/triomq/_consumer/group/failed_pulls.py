"""Logs pulls that fail: one warning for a topic's queues at a broker, then a line now and then."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from triomq._message.message import MessageQueue
from triomq._transport.peer_log import PeerLog
from triomq.errors import MQError

log = logging.getLogger("triomq.consumer")

_LINE: Final = "a pull failed and will be repeated: %s"


class FailedPulls:
    """The queues whose last pull failed.

    Only the first of a topic's queues at a broker that fails in one way is a warning; the others, and what follows, have
    the same cause.
    """

    def __init__(self) -> None:
        self._lines = PeerLog(log)
        self._kinds: dict[MessageQueue, type[MQError]] = {}
        """Queue -> the kind of the first failure that was worth a warning, since a pull succeeded."""
        self._queues: Counter[tuple[str, str, type[MQError]]] = Counter()
        """Topic, broker and kind -> how many of these queues there are."""

    def note(self, queue: MessageQueue, error: MQError, *, may_warn: bool = True) -> None:
        """Log a failure of a queue.

        Args:
            queue: the queue.
            error: the failure.
            may_warn: whether it is worth a warning.
        """
        kind = type(error)
        if may_warn and queue not in self._kinds:
            self._kinds[queue] = kind
            place = queue.topic, queue.broker_name, kind
            self._queues[place] += 1
            if self._queues[place] == 1:
                log.warning(_LINE, error)
                return
        self._lines.write(logging.INFO, queue.broker_name, _LINE, error, kind=kind)

    def end(self, queue: MessageQueue) -> None:
        """A pull of a queue has succeeded, or the queue was given up: its next failure is the first one."""
        kind = self._kinds.pop(queue, None)
        if kind is not None:
            place = queue.topic, queue.broker_name, kind
            self._queues[place] -= 1
            if not self._queues[place]:
                del self._queues[place]
