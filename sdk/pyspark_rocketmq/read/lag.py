"""The lag of streaming queries, read from their progress, since Spark has no hook for it.

::

    spark.streams.addListener(LagListener(lambda lag: print(lag.query, lag.messages)))
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import attrs
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pyspark_rocketmq.offsets import Offsets, OffsetTree, offsets_of, tree_of

_log = logging.getLogger(__name__)


@attrs.frozen
class SourceLag:
    """The lag of one source of a query at the end of a trigger.

    Args:
        query: the query's name, or its id if it has none.
        batch_id: the number of the trigger.
        input_rows: the number of rows it read.
        rows_per_s: the number it processed per second.
        queues: unread messages, by topic, broker name and queue id; queues without any are left out.
    """

    query: str
    batch_id: int
    input_rows: int
    rows_per_s: float
    queues: OffsetTree

    @property
    def messages(self) -> int:
        """The number of unread messages."""
        return sum(offsets_of(self.queues).values())


class LagListener(StreamingQueryListener):
    """Reports the lag of every `rocketmq` source after every trigger.

    Args:
        on_lag: called with the lag; by default it is logged. Exceptions of the callback are logged too.
    """

    def __init__(self, on_lag: Callable[[SourceLag], object] | None = None) -> None:
        self._on_lag = on_lag if on_lag is not None else _report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Ignored: there is no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Report the lag at the end of a trigger."""
        progress = event.progress
        for source in progress.sources:
            waiting = lag_of(source.endOffset, source.latestOffset)
            if waiting is None:
                continue
            name = progress.name or str(progress.id)
            lag = SourceLag(
                name, progress.batchId, source.numInputRows, source.processedRowsPerSecond, tree_of(waiting)
            )
            try:
                self._on_lag(lag)
            except Exception:  # noqa: BLE001 - Spark would drop it silently
                _log.exception("the listener of query %s failed", name)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Ignored: there are no new messages."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Ignored: there is no more progress."""


def lag_of(reached: str | None, latest: str | None) -> Offsets | None:
    """The number of unread messages of each queue; None if these are not this source's offsets.

    Args:
        reached: the offsets up to which the query has read, as JSON.
        latest: the ends of the queues, as JSON.
    """
    here, there = _offsets(reached), _offsets(latest)
    if here is None or there is None:
        return None
    # A queue that is new since then is unread from its start, assumed to be 0: the real start is not known here.
    waiting = {queue: end - here.get(queue, 0) for queue, end in there.items()}
    return {queue: count for queue, count in waiting.items() if count > 0}


def _offsets(text: str | None) -> Offsets | None:
    if not text:
        return None
    try:
        tree: Any = json.loads(text)
        found = offsets_of(tree)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
    # Another source's offsets may have the same form, with other values.
    return found if all(type(offset) is int for offset in found.values()) else None


def _report(lag: SourceLag) -> None:
    _log.info(
        "query %s, trigger %d: %d rows, %.0f rows/s, %d messages unread",
        lag.query, lag.batch_id, lag.input_rows, lag.rows_per_s, lag.messages,
    )  # fmt: skip
