"""Counts messages that a broker skips because it has deleted them, and reports them as an event.

Brokers delete a file of their log first, and the entries of its messages in the queues later; 4.9.7 may take minutes if
it has many queues.  In between, an answer that finds no message at an entry continues after it, as after a message that
a filter excludes (``MESSAGE_WAS_REMOVING``, docs/protocol/broker-api.md §5.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import trio

from triomq._cluster.counters import Counters
from triomq._consumer.group.callbacks import ConsumerEvent
from triomq._message.message import MessageQueue
from triomq._message.pull_result import PullResult, PullStatus

REPORTED_EVERY_S: Final = 60.0
"""The shortest time between two reports about one queue."""


@attrs.define
class _Stretch:
    """The missing messages of one queue that were not reported yet; ``end`` is after the last one."""

    begin: int
    end: int
    count: int
    address: str


class MissingMessages:
    """Counts and reports the messages that are missing in a consumer's queues.

    A stretch of deleted messages takes many answers: it is reported when an answer leads out of it.

    Args:
        group: the consumer group.
        counters: the client's.
        report: called with events ``messages_missing``.
    """

    def __init__(self, group: str, counters: Counters, report: Callable[[ConsumerEvent], None]) -> None:
        self._group = group
        self._counters = counters
        self._report = report
        self._open: dict[MessageQueue, _Stretch] = {}
        self._reported_s: dict[MessageQueue, float] = {}

    def __bool__(self) -> bool:
        """Whether there is something to report."""
        return bool(self._open)

    def note(self, result: PullResult, offset: int) -> None:
        """Examine an answer; called if messages are missing in it, or if there is something to report.

        Args:
            result: the result of a pull.
            offset: the offset that was pulled.
        """
        queue, missing = result.queue, result.missing
        found = self._open.get(queue)
        if missing:
            self._counters.of_pulls(self._group, queue.topic).missing += missing
            if found is None:
                found = self._open[queue] = _Stretch(offset, result.next_offset, 0, result.broker_address)
            found.begin = min(found.begin, offset)
            found.end = max(found.end, result.next_offset)
            found.count += missing
            found.address = result.broker_address
            if result.status is PullStatus.NO_MATCHED_MESSAGE:
                return
        last = self._reported_s.get(queue)
        if found is not None and (last is None or trio.current_time() - last >= REPORTED_EVERY_S):
            self.end(queue)
            self._reported_s[queue] = trio.current_time()

    def end(self, queue: MessageQueue) -> None:
        """Report the rest: the queue is no longer pulled."""
        self._reported_s.pop(queue, None)
        found = self._open.pop(queue, None)
        if found is not None:
            text = (
                f"{found.count} of the messages of {queue} between offsets {found.begin} and {found.end - 1} were not delivered: "
                f"{found.address} still lists them in the queue, and has deleted them from its log (or another member of "
                f"group {self._group} subscribes to other tags: all must subscribe to the same)"
            )
            self._report(ConsumerEvent("messages_missing", text, queue))
