"""The streaming read: offsets for every trigger on the driver, and tasks for the ranges between two of them.

One object of this class runs in a separate process next to the driver, and is called several times per trigger; copies
without its state read in the tasks. Only the checkpoint determines what has been read; offsets committed to a group
are for monitoring.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_rocketmq.clients import Session, borrowed, close_all
from pyspark_rocketmq.errors import DataLoss, ShortStack, SourceError
from pyspark_rocketmq.offsets import NEW_FROM, Offsets, QueueId, offsets_of, tree_of, with_new_from
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.read.bounds import existing_starts, kept_starts, place_offsets, warn_if_nothing
from pyspark_rocketmq.read.cluster_view import bounds_of, commit_offsets, find_queues, first_held, row_bytes
from pyspark_rocketmq.read.planning import Bounds, is_due, limit_bytes, limit_rows, ranges, split
from pyspark_rocketmq.read.task import RangePartition, key_of, read_range
from triomq import MQError
from triomq._companions import OFFSET_MAX

COMMIT_LIMIT_S: Final = 5.0
"""How long committing offsets may delay a trigger; nothing depends on them."""

COMMIT_AGAIN_S: Final = 60.0
"""The time after which offsets that could not be committed are committed again, although no message has been read since."""

_log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new messages continuously.

    Args:
        options: the options of the read.
        schema: the columns wanted.
        clock: a monotonic clock in seconds, for `maxTriggerDelay` and repeated commits.
    """

    def __init__(self, options: ReadOptions, schema: StructType, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._schema = schema
        self._clock = clock
        self._last_due_s: float | None = None
        self._target: Offsets | None = None
        self._commit_tried: Offsets = {}
        self._not_committed: set[QueueId] = set()
        self._commit_again_s = 0.0
        self._is_first = True

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint starts."""
        return tree_of(self._ask(self._initial))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The options' limit per trigger."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next trigger's ranges."""
        starts = _from_checkpoint(start)
        ends, new_from = self._ask(lambda session: self._next_end(session, starts, limit))
        # Spark compares them as text: without new offsets there is no trigger, even after one that had new queues.
        return start if ends == starts else with_new_from(tree_of(ends), new_from)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The queues' ends, for the query's progress: the difference from its own offsets is its lag."""
        return tree_of(self._ask(self._ends_now))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the current ends: the query reads nothing after them."""
        self._target = self._ask(self._ends_now)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of one trigger."""
        starts, ends = _from_checkpoint(start), _from_checkpoint(end)
        starts = {**dict.fromkeys(ends, 0), **_from_checkpoint(end.get(NEW_FROM, {})), **starts}
        starts = self._ask(lambda session: self._kept(session, starts, ends))
        parts = split(ranges(starts, ends), self._options.min_partitions, self._options.max_partition_rows)
        return [RangePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as record batches."""
        return read_range(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the offsets that have been read to the brokers, if there is a group for it; nothing depends on it."""
        offsets = offsets_of(end)
        self._ask(lambda session: self._commit(session, offsets))

    def stop(self) -> None:
        """Close this process's clients."""
        close_all()

    # --- in the client's loop --------------------------------------------------------------------------------

    def _ask(self, serve: Any) -> Any:
        with ShortStack(), borrowed(key_of(self._options)) as client:
            return client.call(serve)

    async def _initial(self, session: Session) -> Offsets:
        queues = await find_queues(session, self._options.topics)
        warn_if_nothing(self._options, queues)
        bounds = await bounds_of(session, queues)
        starts = await place_offsets(session, self._options.start, "startingOffsets", queues, bounds)
        starts = existing_starts(starts, bounds, fail=self._options.fail_on_data_loss)
        return kept_starts(
            starts, bounds, {queue: held.end for queue, held in bounds.items()}, fail=self._options.fail_on_data_loss
        )

    async def _ends_now(self, session: Session) -> Offsets:
        bounds = await bounds_of(session, await find_queues(session, self._options.topics, was_there=True))
        return {queue: held.end for queue, held in bounds.items()}

    async def _commit(self, session: Session, offsets: Offsets) -> None:
        if not self._options.commits:
            return
        is_due = self._clock() >= self._commit_again_s
        moved = {
            queue: offset
            for queue, offset in offsets.items()
            if self._commit_tried.get(queue) != offset or (is_due and queue in self._not_committed)
        }
        if not moved:
            return
        self._commit_tried = offsets
        failures = await commit_offsets(session, moved, COMMIT_LIMIT_S)
        self._not_committed = (self._not_committed - moved.keys()) | failures.keys()
        if failures and is_due:  # or failures of each trigger, as of a master whose slave is read, would put it off
            self._commit_again_s = self._clock() + COMMIT_AGAIN_S
        for failure in dict.fromkeys(failures.values()):
            _log.warning("offsets of group %s are not committed: %s", self._options.group, failure)

    async def _next_end(self, session: Session, starts: Offsets, limit: ReadLimit) -> tuple[Offsets, Offsets]:
        """The ends of the next trigger, and the starts of queues that are new in it."""
        if self._is_first:
            self._is_first = False
            self._warn_of_others(starts)
        # The previous trigger has read up to this one's start. Spark reports that only when another trigger follows.
        await self._commit(session, starts)
        bounds = await bounds_of(session, await find_queues(session, self._options.topics, was_there=True))
        ends = reachable(starts, bounds, self._target, fail=self._options.fail_on_data_loss)
        # A new queue starts at its first message. That is recorded, since brokers may have deleted the message when the
        # trigger is run, which may be after a restart.
        fresh = {queue: held.start for queue, held in bounds.items() if queue not in starts}
        not_empty = {queue: at for queue, at in fresh.items() if at < bounds[queue].end}
        fresh.update(await first_held(session, not_empty, bounds))
        ends = {queue: max(end, fresh.get(queue, end)) for queue, end in ends.items()}
        known = {queue: starts.get(queue, fresh.get(queue, end)) for queue, end in ends.items()}
        if self._waits(known, ends, limit):
            return starts, {}
        limited = await self._limited(session, known, ends, limit, bounds)
        # A queue that has disappeared keeps its offset: it may be needed when its broker returns.
        return {**starts, **limited}, fresh

    def _warn_of_others(self, starts: Offsets) -> None:
        """Log that the checkpoint belongs to a query with other topics: Spark does not compare options with it."""
        others = [queue for queue in sorted(starts) if not self._options.topics.include(queue)]
        if others:
            _log.warning(
                "the checkpoint holds the place of %d queues that the options do not name, the first is %s: they are not "
                "read, and keep their place. Queues that it does not hold are read from their first message, whatever "
                "startingOffsets says. If it is the checkpoint of another query, give this one its own",
                len(others), others[0],
            )  # fmt: skip

    async def _limited(
        self, session: Session, starts: Offsets, ends: Offsets, limit: ReadLimit, bounds: Mapping[QueueId, Bounds]
    ) -> Offsets:
        if isinstance(limit, ReadMaxRows):
            ends = limit_rows(starts, ends, limit.max_rows)
        # Spark passes on one limit only.
        both = self._options.max_bytes if limit == self.getDefaultReadLimit() else None
        most_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else both
        if most_bytes is not None:
            behind = {queue: starts[queue] for queue in ends if starts[queue] < ends[queue]}
            return limit_bytes(starts, ends, most_bytes, await row_bytes(session, behind, bounds))
        return ends

    def _waits(self, starts: Offsets, ends: Offsets, limit: ReadLimit) -> bool:
        """Whether this trigger is left empty, to wait for more messages."""
        if isinstance(limit, ReadMinRows):
            least: int | None = limit.min_rows
        else:
            # Spark passes on one limit only; its own, such as that of a single trigger, does not wait.
            least = self._options.min_offsets if limit == self.getDefaultReadLimit() else None
        if least is None or self._target is not None:
            return False
        backlog = sum(max(0, end - starts[queue]) for queue, end in ends.items())
        # If a queue has lost messages, that is logged at each check until the query has advanced.
        went_back = any(end < starts[queue] for queue, end in ends.items())
        now_s = self._clock()
        since_s = None if self._last_due_s is None else now_s - self._last_due_s
        if not went_back and not is_due(backlog, least, since_s, self._options.max_trigger_delay_s):
            return True
        self._last_due_s = now_s
        return False

    async def _kept(self, session: Session, starts: Offsets, ends: Offsets) -> Offsets:
        """A trigger's starts, moved to messages that brokers still have."""
        queues = {queue: True for queue, end in ends.items() if starts[queue] < end}
        try:
            bounds = await bounds_of(session, queues)
        except MQError:
            # The tasks query the brokers themselves, and may succeed.
            return starts
        return kept_starts(starts, bounds, ends, fail=self._options.fail_on_data_loss)


def _from_checkpoint(tree: dict[str, Any]) -> Offsets:
    """The offsets in a checkpoint, which other sources may have written, and people may have edited.

    Raises:
        SourceError: they are not this source's, or a value is no offset.
    """
    try:
        offsets = offsets_of(tree)
    except (AttributeError, TypeError, ValueError):
        raise SourceError(
            f"the checkpoint holds {json.dumps(tree)[:200]}, and no offsets of this source; start with a new checkpoint"
        ) from None
    for queue, offset in offsets.items():
        if type(offset) is not int or not 0 <= offset <= OFFSET_MAX or queue.queue_id < 0:
            raise SourceError(
                f"the checkpoint holds the offset {json.dumps(offset)[:200]} of {queue}, and offsets and queue ids are "
                "whole numbers from 0 on; was it edited? Restore it, or start with a new checkpoint"
            )
    return offsets


def reachable(starts: Offsets, bounds: Mapping[Any, Bounds], target: Offsets | None, *, fail: bool) -> Offsets:
    """Ends of the existing queues: never before the query's offset, nor after a fixed target.

    Raises:
        DataLoss: a master's queue ends before the query's offset, so messages that were read have been deleted, and
            perhaps others.
    """
    ends: Offsets = {}
    for queue, held in bounds.items():
        start, end = starts.get(queue, held.start), held.end
        if target is not None:
            end = min(end, target.get(queue, start))
        if held.end < start and held.is_sure:
            what = f"{queue} ends at {held.end}, before offset {start}, where the query is: recreated, or truncated"
            if fail:
                raise DataLoss(f"{what}; start with a new checkpoint, or set failOnDataLoss=false to go on at its end")
            _log.warning("%s; going on at its end, because failOnDataLoss=false", what)
            ends[queue] = held.end
            continue
        ends[queue] = max(start, end)
    return ends
