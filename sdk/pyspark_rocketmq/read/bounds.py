"""The start and end of a read in every queue: resolves named offsets and times by querying the cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from pyspark_rocketmq.clients import Session
from pyspark_rocketmq.errors import BadOption, BrokerBehind, BrokersAway, DataLoss
from pyspark_rocketmq.offsets import COMMITTED, EARLIEST, LATEST, Offsets, QueueId
from pyspark_rocketmq.options import Place, ReadOptions
from pyspark_rocketmq.read.cluster_view import bounds_of, committed_of, find_queues, first_held, offsets_at
from pyspark_rocketmq.read.planning import Bounds, QueueRange, ranges, resolved, split
from pyspark_rocketmq.times import time_text

_log = logging.getLogger(__name__)


async def plan_batch(session: Session, options: ReadOptions) -> list[QueueRange]:
    """The tasks of a batch read.

    Raises:
        BadOption: a topic or queue does not exist.
        BrokersAway: a required broker has no queues of a topic.
        DataLoss: rows between start and end have been deleted.
        BrokerBehind: the end of a queue is unknown, since its master cannot be reached.
        MQError: brokers do not answer.
    """
    queues = await find_queues(session, options.topics)
    warn_if_nothing(options, queues)
    check_brokers(options.required_brokers, options.topics.names, queues)
    bounds = await bounds_of(session, queues)
    starts = await place_offsets(session, options.start, "startingOffsets", queues, bounds)
    ends = await place_offsets(session, options.end, "endingOffsets", queues, bounds)
    _check_ends(options, ends, bounds)
    starts = existing_starts(starts, bounds, fail=options.fail_on_data_loss)
    _warn_if_reversed(starts, ends)
    starts = kept_starts(starts, bounds, ends, fail=options.fail_on_data_loss)
    return split(ranges(starts, ends), options.min_partitions, options.max_partition_rows)


async def place_offsets(
    session: Session, place: Place, option: str, queues: Mapping[QueueId, bool], bounds: Mapping[QueueId, Bounds]
) -> Offsets:
    """Resolve a place to an offset for each queue of `bounds`.

    Raises:
        BadOption: an offset or a time is given for a queue that is not read, or no message is as recent as required.
    """
    given, times = place.by_queue, dict(place.times)
    unknown = sorted((given.keys() | times.keys()) - queues.keys())
    if unknown:
        what = f"{option}ByTimestamp gives a time" if times else f"{option} gives an offset"
        raise BadOption(f"{what} for {unknown[0]}, which does not exist, is not read, or whose brokers are away")
    if place.time_ms is not None:
        times = dict.fromkeys(bounds, place.time_ms)
    found = await offsets_at(session, bounds, times)
    late = sorted(queue for queue, offset in found.items() if offset is None)
    if late and place.must_exist:
        raise BadOption(
            f"{late[0]} has no message stored at {time_text(times[late[0]])} or later"
            f"{f', and {len(late) - 1} more queues have none' if len(late) > 1 else ''}; start earlier, "
            "or set startingOffsetsByTimestampStrategy=latest to start at the end there"
        )
    committed = await committed_of(session, bounds) if place.word == COMMITTED else {}
    offsets = {
        queue: resolved(given.get(queue, place.word), held, committed.get(queue)) for queue, held in bounds.items()
    }
    for queue, offset in found.items():
        offsets[queue] = offset if offset is not None else bounds[queue].end
    return {**offsets, **await first_held(session, _at_start(offsets, given, committed, place, bounds), bounds)}


def _at_start(
    offsets: Offsets,
    given: Offsets,
    committed: Mapping[QueueId, int | None],
    place: Place,
    bounds: Mapping[QueueId, Bounds],
) -> Offsets:
    """The offsets that mean the first message of a queue, for queues that have one."""
    return {
        queue: offset
        for queue, offset in offsets.items()
        if offset == bounds[queue].start < bounds[queue].end
        and (word := given.get(queue, place.word)) in (EARLIEST, COMMITTED)
        and place.time_of(queue) is None
        and (word == EARLIEST or committed.get(queue) is None)
    }


def warn_if_nothing(options: ReadOptions, queues: Mapping[QueueId, bool]) -> None:
    """Log that a pattern matches no topic: it may match one later, so this is not an error."""
    if options.topics.pattern is not None and not queues:
        _log.warning(
            "subscribePattern %r matches no topic of %s, so no rows are read; it has to match the whole name",
            options.topics.pattern, options.client.name_servers,
        )  # fmt: skip


def check_brokers(required: frozenset[str], topics: Iterable[str], queues: Iterable[QueueId]) -> None:
    """Check that each topic has queues at each required broker: a topic's route lacks those of a broker that is down.

    Args:
        required: names of broker sets.
        topics: the topics that the read names; with a pattern, none.
        queues: the queues that were found.

    Raises:
        BrokersAway: a topic has none at a required broker; the error names both.
    """
    if not required:
        return
    brokers: dict[str, set[str]] = {topic: set() for topic in topics}
    for queue in queues:
        brokers.setdefault(queue.topic, set()).add(queue.broker_name)
    if not brokers:
        raise BrokersAway(f"requiredBrokers names {min(required)}, and no topic was found; are its brokers away?")
    for topic, present in sorted(brokers.items()):
        for missing in sorted(required - present):
            raise BrokersAway(
                f"requiredBrokers names {missing}, and the name servers know no queue of topic {topic} there: it is "
                f"away, or it does not have the topic. Queues are at {', '.join(sorted(present)) or 'no broker'}; wait "
                "for the broker, or leave it out to read without it"
            )


def existing_starts(starts: Mapping[QueueId, int], bounds: Mapping[QueueId, Bounds], *, fail: bool) -> Offsets:
    """Starts that are not after the end of their queue, as far as the end is known.

    Raises:
        DataLoss: `fail` is true, and a start is after the end: it is wrong, or the messages before it have been lost.
    """
    existing = dict(starts)
    for queue, start in starts.items():
        held = bounds[queue]
        if start <= held.end or not held.is_sure:
            continue
        what = f"startingOffsets asks for {queue} from {start}, and it ends at {held.end}"
        if fail:
            raise DataLoss(f"{what}; start earlier, or set failOnDataLoss=false to start at its end")
        _log.warning("%s; starting at its end, because failOnDataLoss=false", what)
        existing[queue] = held.end
    return existing


def _warn_if_reversed(starts: Offsets, ends: Offsets) -> None:
    reversed_ = sorted(queue for queue, start in starts.items() if start > ends[queue])
    if reversed_:
        first = reversed_[0]
        _log.warning(
            "no rows are read of %d queues, because they start after their end: %s from %d to %d",
            len(reversed_), first, starts[first], ends[first],
        )  # fmt: skip


def kept_starts(
    starts: Mapping[QueueId, int], bounds: Mapping[QueueId, Bounds], ends: Mapping[QueueId, int], *, fail: bool
) -> Offsets:
    """Starts that are not before the messages that brokers still have.

    Args:
        starts: where reading should start.
        bounds: the bounds of the queues.
        ends: where reading should end; later offsets are not needed.
        fail: whether deleted rows are an error.

    Raises:
        DataLoss: `fail` is true, and rows have been deleted.
    """
    kept = dict(starts)
    for queue, start in starts.items():
        held = bounds.get(queue)
        if held is None or start >= ends.get(queue, start) or start >= held.start:
            continue
        what = f"offsets {start} to {held.start} of {queue} are gone: it starts at {held.start} now"
        if fail:
            raise DataLoss(
                f"{what}; start later, keep messages longer, or set failOnDataLoss=false to go on without them"
            )
        _log.warning("%s; going on without them, because failOnDataLoss=false", what)
        kept[queue] = held.start
    return kept


def _check_ends(options: ReadOptions, ends: Offsets, bounds: Mapping[QueueId, Bounds]) -> None:
    """Check that the ends exist, and that the end of a queue that is read to its end comes from the master."""
    given = options.end.by_queue
    for queue, held in bounds.items():
        if ends[queue] > held.end and held.is_sure:
            what = f"endingOffsets asks for {queue} up to {ends[queue]}, and it ends at {held.end}"
            if options.fail_on_data_loss:
                raise DataLoss(f"{what}; end earlier, or set failOnDataLoss=false to read what there is")
            _log.warning("%s; reading what there is, because failOnDataLoss=false", what)
            ends[queue] = held.end
        if held.is_sure or given.get(queue, LATEST) != LATEST:
            continue
        what = f"the master of {queue} cannot be reached, and its slave, which may be behind, ends at {held.end}"
        if options.fail_on_data_loss:
            raise BrokerBehind(
                f"{what}; wait for the master, give the end in endingOffsets, "
                "or set failOnDataLoss=false to read up to there"
            )
        _log.warning("%s; reading up to there, because failOnDataLoss=false", what)
