"""Plans tasks from offsets: ranges between two sets of offsets, limits per trigger, the part of each task. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import attrs

from pyspark_rocketmq.offsets import COMMITTED, EARLIEST, LATEST, Offsets, QueueId


@attrs.frozen
class Bounds:
    """The bounds of a queue.

    Args:
        start: its first offset.
        end: the offset after its last message.
        is_sure: whether its master answered; a slave may not have all messages yet.
    """

    start: int
    end: int
    is_sure: bool = True


@attrs.frozen
class QueueRange:
    """Some offsets of one queue.

    Args:
        queue: the queue.
        start: the first offset.
        end: the offset after the last one.
    """

    queue: QueueId
    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.end} of {self.queue}"


def resolved(offset: int, bounds: Bounds, committed: int | None = None) -> int:
    """Resolve the special offsets -2, -1 and committed in a queue; others are returned unchanged."""
    if offset == COMMITTED:
        return committed if committed is not None else bounds.start
    if offset == EARLIEST:
        return bounds.start
    if offset == LATEST:
        return bounds.end
    return offset


def ranges(starts: Mapping[QueueId, int], ends: Mapping[QueueId, int]) -> list[QueueRange]:
    """The ranges between starts and ends, of each queue that has both; empty ones are left out."""
    return [
        QueueRange(queue, starts[queue], ends[queue])
        for queue in sorted(ends)
        if queue in starts and starts[queue] < ends[queue]
    ]


def split(parts: Sequence[QueueRange], wanted: int | None, most: int | None = None) -> list[QueueRange]:
    """Cut long ranges so that there are at least `wanted`, all of about the same length.

    Args:
        parts: the ranges to be read.
        wanted: the least number of tasks; None leaves one per queue. There are fewer only if there are fewer offsets.
        most: the most offsets of a task; None is no limit.
    """
    counts = [1 if most is None else max(1, math.ceil(len(part) / most)) for part in parts]
    total = sum(map(len, parts))
    if wanted is not None and sum(counts) < wanted and total:
        counts = [max(count, len(part) * wanted // total) for part, count in zip(parts, counts, strict=True)]
        while sum(counts) < wanted:
            # Cut the range with the longest pieces into one more.
            at = max(range(len(parts)), key=lambda index: len(parts[index]) / counts[index])
            if counts[at] >= len(parts[at]):
                break
            counts[at] += 1
    return [piece for part, count in zip(parts, counts, strict=True) for piece in _pieces(part, count)]


def _pieces(part: QueueRange, count: int) -> Iterable[QueueRange]:
    count = max(1, min(count, len(part)))
    edges = [part.start + len(part) * number // count for number in range(count + 1)]
    return [QueueRange(part.queue, start, end) for start, end in itertools.pairwise(edges)]


def is_due(backlog: int, least: int, since_s: float | None, delay_s: float) -> bool:
    """Whether a trigger reads the available messages; otherwise it waits for more.

    Args:
        backlog: the number of unread offsets.
        least: the number of unread offsets with which a trigger is due.
        since_s: how long ago one was last due; None if none was since the query started. The first one is due at once,
            so that a query that is restarted again and again makes progress.
        delay_s: the time after which one is due with fewer offsets.
    """
    return backlog >= least or since_s is None or since_s >= delay_s


def limit_rows(starts: Mapping[QueueId, int], ends: Mapping[QueueId, int], most: int) -> Offsets:
    """Ends that leave at most `most` offsets to be read, shared in proportion to the backlogs; at least one queue
    advances.

    Args:
        starts: the current offset of each queue.
        ends: the end of each queue.
        most: the most offsets of all queues together.
    """
    backlog = {queue: max(0, end - starts.get(queue, end)) for queue, end in ends.items()}
    total = sum(backlog.values())
    if total <= most:
        return dict(ends)
    shares = {queue: behind * most // total for queue, behind in backlog.items()}
    # Rounding leaves a remainder; unless it is used, many short queues would never advance. The longest backlog is
    # first.
    rest = max(most, 1) - sum(shares.values())
    for queue in sorted(backlog, key=lambda each: (shares[each] - backlog[each], each)):
        if rest <= 0:
            break
        if shares[queue] < backlog[queue]:
            shares[queue] += 1
            rest -= 1
    return {queue: ends[queue] - backlog[queue] + shares[queue] for queue in ends}


def limit_bytes(
    starts: Mapping[QueueId, int], ends: Mapping[QueueId, int], most: int, row_bytes: Mapping[QueueId, float]
) -> Offsets:
    """Ends that leave about `most` bytes to be read, and at least one row.

    Args:
        starts: the current offset of each queue.
        ends: the end of each queue.
        most: the bytes of all queues together.
        row_bytes: the size of a row of each queue, for queues that were sampled.
    """
    backlog = {queue: max(0, end - starts.get(queue, end)) for queue, end in ends.items()}
    total = sum(behind * row_bytes.get(queue, 0.0) for queue, behind in backlog.items())
    if total <= most:
        return dict(ends)
    # The queues' shares of the rows do not change their shares of the bytes.
    rows = int(sum(backlog.values()) * most / total)
    return limit_rows(starts, ends, rows)
