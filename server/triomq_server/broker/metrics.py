"""The metrics of a broker, as served on `metricsPort`.

All values are read from the tables when a scraper asks. A group's offset and the end of its queue are read at one
instant, so that the lag between them is exact.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import islice
from typing import Final

from triomq_protocol.names import SCHEDULE_TOPIC
from triomq_server.broker.broker import Broker
from triomq_server.metrics.server_metrics import write_server
from triomq_server.metrics.text import Family, Row, TextWriter
from triomq_server.store.consume_queue import ConsumeQueue

MOST_LAG_ROWS: Final = 200_000
"""The most queues whose lag is shown one by one: a broker with more shows only the lag of each group. A text with this
many lines has 20 MB."""

KEYS_PER_SLICE: Final = 4096
"""Keys examined before other tasks get their turn."""
KEYS_PER_STEP: Final = 512
"""As above, if the lag of each is calculated."""
QUEUES_PER_STEP: Final = 4096
"""The same for the queues whose lag is worked out one by one."""
_SUMMED_PER_LOOK: Final = 16
"""So many offsets are added up in the time that the lag of one queue takes."""
_NONE: Final[dict[int, int]] = {}

INFO: Final = Family("triomq_broker_info", "gauge", "Always 1.", ("cluster", "broker", "broker_id", "role"))
START: Final = Family("triomq_broker_start_time_seconds", "gauge", "When the broker started.")
TOPICS: Final = Family("triomq_topics", "gauge", "Topics of the broker.")
MESSAGES_IN: Final = Family("triomq_messages_in_total", "counter", "Messages stored, all topics.")
MESSAGES_OUT: Final = Family("triomq_messages_out_total", "counter", "Messages given to groups.")
TOPIC_MESSAGES: Final = Family("triomq_topic_messages_in_total", "counter", "Messages stored.", ("topic",))
TOPIC_BYTES: Final = Family("triomq_topic_bytes_in_total", "counter", "Bytes of records stored.", ("topic",))
GROUP_MESSAGES: Final = Family("triomq_group_messages_out_total", "counter", "Messages given.", ("topic", "group"))
GROUP_BYTES: Final = Family("triomq_group_bytes_out_total", "counter", "Bytes of records given.", ("topic", "group"))
TOPIC_WAITS: Final = Family(
    "triomq_topic_send_wait_seconds", "summary", "How long sends waited for disk or slave.", ("topic",)
)
PULL_AGE: Final = Family(
    "triomq_group_pull_age_seconds",
    "summary",
    "At each pull that found messages, how long ago the first was stored.",
    ("topic", "group"),
)
RETRIES: Final = Family("triomq_group_retries_total", "counter", "Messages given back for a retry.", ("topic", "group"))
LAG: Final = Family(
    "triomq_group_lag_messages", "gauge", "Messages behind the committed offset.", ("topic", "group", "queue")
)
GROUP_LAG: Final = Family("triomq_group_lag_sum_messages", "gauge", "The same over all queues.", ("group",))
MEMBERS: Final = Family("triomq_group_members", "gauge", "Connected consumers.", ("group",))
REBALANCES: Final = Family("triomq_rebalances_total", "counter", "Changes of groups that members were notified of.")
PULLS: Final = Family("triomq_pulls_total", "counter", "Pulls, with and without messages.", ("found",))
HELD_PULLS: Final = Family("triomq_held_pulls", "gauge", "Pulls that wait for messages.")
PUT_FAILURES: Final = Family("triomq_put_failures_total", "counter", "Messages that the store refused.")
SEND_WAITS: Final = Family("triomq_send_wait_seconds", "histogram", "How long sends waited for disk or slave.")
FLUSHES: Final = Family("triomq_flush_duration_seconds", "histogram", "Time of each flush of the commit log.")
LOG_END: Final = Family("triomq_log_end_bytes", "gauge", "Physical offset of the log's end.")
LOG_START: Final = Family("triomq_log_start_bytes", "gauge", "Physical offset of the log's start.")
UNFLUSHED: Final = Family("triomq_log_unflushed_bytes", "gauge", "Bytes of the log that are not on disk yet.")
DELAYED: Final = Family("triomq_delayed_messages", "gauge", "Delayed messages to be delivered.", ("level",))
SLAVES: Final = Family("triomq_slaves", "gauge", "Connected slaves.")
SLAVE_BEHIND: Final = Family("triomq_slave_behind_bytes", "gauge", "Bytes that a slave has not reported.", ("slave",))
MASTER_CONNECTED: Final = Family("triomq_master_connected", "gauge", "Whether a slave has its master; 1 on a master.")


def write_metrics(broker: Broker, writer: TextWriter) -> Iterator[None]:
    """Write all metrics; at each step other tasks may have their turn."""
    write_server(
        writer, broker.traffic, {"unsent_answers": broker.unsent, "incomplete_frames": broker.incomplete_frames}
    )
    _write_broker(writer, broker)
    _write_store(writer, broker)
    _write_replication(writer, broker)
    yield
    yield from _write_topics(writer, broker)
    yield from _write_groups(writer, broker)
    yield from _write_lag(writer, broker)


def _write_broker(writer: TextWriter, broker: Broker) -> None:
    config, stats = broker.config, broker.stats
    identity = (config.broker_cluster_name, config.broker_name, str(config.broker_id), config.store.broker_role.name)
    writer.few(INFO, [(identity, 1)])
    writer.value(START, stats.boot_ms / 1000)
    writer.value(TOPICS, len(broker.topics.table))
    writer.value(MESSAGES_IN, stats.messages_put)
    writer.value(MESSAGES_OUT, stats.messages_got)
    writer.few(PULLS, [(("true",), stats.gets_found), (("false",), stats.gets_missed)])
    writer.value(HELD_PULLS, broker.held_pulls.waiting)
    writer.value(REBALANCES, broker.notifications.added)
    writer.value(PUT_FAILURES, stats.put_failures)
    writer.histogram(SEND_WAITS, stats.send_waits)


def _write_store(writer: TextWriter, broker: Broker) -> None:
    store = broker.store
    writer.histogram(FLUSHES, store.flusher.times)
    writer.value(LOG_END, store.log_max_offset)
    writer.value(LOG_START, store.log_min_offset)
    writer.value(UNFLUSHED, max(store.log_max_offset - store.flushed_offset, 0))
    levels = sorted(broker.delay_offsets.table.items())
    writer.few(
        DELAYED,
        [((str(level),), max(store.queue_bounds(SCHEDULE_TOPIC, level - 1)[1] - at, 0)) for level, at in levels],
    )


def _write_replication(writer: TextWriter, broker: Broker) -> None:
    links, end = broker.replication.links, broker.store.log_max_offset
    writer.value(SLAVES, len(links))
    writer.few(SLAVE_BEHIND, [((link.peer,), max(end - (link.acknowledged_offset or 0), 0)) for link in links])
    writer.value(MASTER_CONNECTED, int(broker.following is None or broker.following.log.status.connected))


def _write_topics(writer: TextWriter, broker: Broker) -> Iterator[None]:
    puts = broker.stats.puts()
    yield from writer.columns(
        (TOPIC_MESSAGES, TOPIC_BYTES), (((topic,), (of.messages, of.size_bytes)) for topic, of in puts)
    )
    waits = (((topic,), (of.waited_us / 1_000_000, of.waits)) for topic, of in puts if of.waits)
    yield from writer.columns((TOPIC_WAITS,), waits)


def _write_groups(writer: TextWriter, broker: Broker) -> Iterator[None]:
    stats = broker.stats
    yield from writer.columns(
        (GROUP_MESSAGES, GROUP_BYTES, PULL_AGE),
        (
            ((topic, group), (of.messages, of.size_bytes, of.age_ms / 1000, of.calls))
            for topic, group, of in stats.gets()
        ),
    )
    yield from writer.rows(RETRIES, ((key, counter.messages) for key, counter in stats.send_backs()))
    groups = broker.clients.consumers
    # The garbage collector skips tuples of texts, but visits each pair of a list.
    members = (
        ((name,), len(group.channels)) if (group := groups.get(name)) is not None else None for name in tuple(groups)
    )
    yield from writer.rows(MEMBERS, members)


def _write_lag(writer: TextWriter, broker: Broker) -> Iterator[None]:
    table = broker.offsets.table
    sums: dict[str, int] = {}
    by_queue = len(table) <= MOST_LAG_ROWS
    if by_queue:  # a scrape has either all queues or none
        keys = yield from _keys(table)
        rows_left = MOST_LAG_ROWS
        for number, key in enumerate(keys, 1):
            rows_left -= len(table.get(key, ()))
            if not number % KEYS_PER_SLICE:
                yield
        by_queue = rows_left >= 0
    if by_queue:
        yield from writer.rows(LAG, _lags_of_queues(broker, keys, sums))
    else:
        for pairs in _pairs(table):
            if pairs is None:
                sums.clear()
                continue
            yield from _add_lags(broker, pairs, sums)
            yield
    yield from writer.rows(GROUP_LAG, (((group,), lag) for group, lag in sums.items()))


def _keys(table: dict[str, dict[int, int]]) -> Generator[None, None, list[str]]:
    """The keys, in steps; all at once only if some are added or removed in the meantime."""
    keys: list[str] = []
    left = iter(table)
    try:
        while part := list(islice(left, KEYS_PER_SLICE)):
            keys += part
            yield
    except RuntimeError:  # the table has changed
        return list(table)
    return keys


Pair = tuple[str, dict[int, int]]
"""A key of the offsets' table, and its value."""


def _pairs(table: dict[str, dict[int, int]]) -> Iterator[list[Pair] | None]:
    """The items in steps; None: discard all earlier items, since the walk starts again.

    With very many items, looking up each key takes longer than adding its lag, so this iterates over the table itself.
    """
    last = ""
    left = iter(table.items())
    try:
        while part := list(islice(left, KEYS_PER_STEP)):
            last = part[-1][0]
            yield part
    except RuntimeError:  # items were added or removed
        keys = list(table)
    else:
        return
    # The table keeps its order: the remaining items follow the last one given.
    begin = 0
    if last in table:
        begin = keys.index(last) + 1
    else:
        yield None
    for at in range(begin, len(keys), KEYS_PER_STEP):
        yield [(key, table.get(key, _NONE)) for key in keys[at : at + KEYS_PER_STEP]]


def _lags_of_queues(broker: Broker, keys: list[str], sums: dict[str, int]) -> Iterator[Row | None]:
    for key in keys:
        topic, _, group = key.partition("@")
        total = sums.get(group, 0)
        for queue_id, lag in _lags(broker, topic, broker.offsets.table.get(key, _NONE)):
            total += lag
            yield (topic, group, str(queue_id)), lag
        sums[group] = total
        yield None


def _add_lags(broker: Broker, pairs: list[Pair], sums: dict[str, int]) -> Iterator[None]:
    """Add the lags of groups, each at one instant. In slices.

    Groups of a topic are mostly next to each other and have offsets for the same queues, so the ends of these queues are
    summed once. The lag of a group whose offsets are between starts and ends is the difference of two sums.
    """
    queues = broker.store.consume_queues.table
    last: str | None = None
    queue_ids: tuple[int, ...] = ()
    highest_start = lowest_end = ends = 0
    found: list[ConsumeQueue] = []
    looked_at = 0
    for key, offsets in pairs:
        if looked_at >= QUEUES_PER_STEP:
            looked_at = 0
            last = None  # the queues may grow in the meantime
            yield
        topic, _, group = key.partition("@")
        if not offsets:
            sums.setdefault(group, 0)
            continue
        if topic != last or tuple(offsets) != queue_ids:
            last, queue_ids = topic, tuple(offsets)
            found = [queue for queue_id in queue_ids if (queue := queues.get((topic, queue_id))) is not None]
            ends = sum(queue.max_offset for queue in found)
            # A queue without files has no lag: the sum of all would be wrong.
            is_whole = len(found) == len(queue_ids)
            lowest_end = min(queue.max_offset for queue in found) if is_whole else -1
            highest_start = max(queue.min_offset for queue in found) if is_whole else 0
            looked_at += len(queue_ids) // 2
        if not found:
            sums.setdefault(group, 0)
            continue
        values = sorted(offsets.values())
        if values[-1] <= lowest_end and values[0] >= highest_start:
            lag = ends - sum(values)
        else:
            lag = sum(lag for _, lag in _lags(broker, topic, offsets))
            looked_at += len(offsets)
        looked_at += len(offsets) // _SUMMED_PER_LOOK
        sums[group] = sums.get(group, 0) + lag


def _lags(broker: Broker, topic: str, offsets: dict[int, int]) -> list[tuple[int, int]]:
    """How far a group is behind in each queue of a topic, all at one instant."""
    queues = broker.store.consume_queues.table
    found = []
    for queue_id, offset in offsets.items():
        queue = queues.get((topic, queue_id))
        found.append((queue_id, 0 if queue is None else max(queue.max_offset - max(offset, queue.min_offset), 0)))
    return found
