"""Operators' requests about the broker's state: 28, 315, 321 (docs/protocol/broker-api.md §15).

Upstream: AdminBrokerProcessor, StoreStatsService. Queue sizes and thread pools in 28 are specific to Java; this broker
has no thread pools and reports them as empty.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import NoReturn

import trio

from triomq_protocol.codes import NOT_SET_REMARK, VERSION, RequestCode, ResponseCode, version_description
from triomq_protocol.names import SCHEDULE_TOPIC
from triomq_protocol.requests import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeQueueEntry,
    KVTable,
    QueryConsumeQueueBody,
    QueryConsumeQueueRequest,
    ViewBrokerStatsDataRequest,
)
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.fastjson import java_map_order
from triomq_server.broker.broker import Broker
from triomq_server.broker.tables.stats import Figures, RateLog
from triomq_server.compiled import STATE
from triomq_server.store.retention import used_ratio
from triomq_server.wire import Handlers, Link

SAMPLE_INTERVAL_S = 1.0

ENTRIES_PER_SLICE = 1024
"""After how many of them other requests have their turns."""

ENTRIES_LIMIT = 10_000
"""Consume queue entries in one answer of 321, which 4.9 does not limit."""


def register(handlers: Handlers, broker: Broker) -> None:
    """Put the functions of this module into the table of request codes."""
    handlers.plain[RequestCode.GET_BROKER_RUNTIME_INFO] = partial(runtime_info, broker)
    handlers.plain[RequestCode.VIEW_BROKER_STATS_DATA] = partial(view_stats, broker)
    handlers.sliced[RequestCode.QUERY_CONSUME_QUEUE] = partial(view_consume_queue, broker)


async def sample_stats(broker: Broker) -> NoReturn:
    """Let the statistics take their samples, once a second; if the wall clock is set, as often as before."""
    while True:
        await trio.sleep(SAMPLE_INTERVAL_S)
        now_ms = broker.stats.boot_ms + round((trio.current_time() - broker.started_s) * 1000)
        broker.store.times.sample(now_ms, lambda: broker.stats.puts_made)
        for _ in broker.stats.sample_in_slices(now_ms, broker.clock()):
            await trio.lowlevel.checkpoint()


# -- 28


def runtime_info(broker: Broker, _link: Link, command: Command) -> Command:
    """28: a table of texts about version, traffic and disk."""
    now_ms = broker.clock()
    table = {
        "brokerVersionDesc": version_description(VERSION),
        "brokerVersion": str(VERSION),
        "bootTimestamp": str(broker.stats.boot_ms),
        "runtime": _duration_text(now_ms - broker.stats.boot_ms),
        "startAcceptSendRequestTimeStamp": str(broker.config.start_accept_send_request_time_stamp),
        "pageCacheLockTimeMills": "0",
        "brokerActive": str(not broker.is_slave).lower(),  # a tool of RocketMQ 5 prints it
        **_traffic(broker),
        **_thread_pools(broker),
        **_store(broker),
        **_memory(broker),
        **_contest(broker),
        "triomqCompiled": STATE,  # RocketMQ has no such entry
    }
    return command.answer(body=KVTable(table={key: table[key] for key in java_map_order(table)}).encode())


def _contest(broker: Broker) -> dict[str, str]:
    """The address of another live broker with this broker's id, if there is one; RocketMQ has no such entry."""
    other = broker.set_members.contested_by
    return {} if other is None else {"triomqIdContestedBy": other}


def _memory(broker: Broker) -> dict[str, str]:
    """What connections hold in memory, and their limits; RocketMQ has no such figures."""
    return {
        "triomqUnsentBytes": str(broker.unsent.held_bytes),
        "triomqUnsentLimitBytes": str(broker.unsent.limit_bytes),
        "triomqUnsentClosedLinks": str(broker.unsent.closed),
        "triomqIncompleteFrameBytes": str(broker.incomplete_frames.held_bytes),
        "triomqIncompleteFrameLimitBytes": str(broker.incomplete_frames.limit_bytes),
        "triomqIncompleteFrameClosedLinks": str(broker.incomplete_frames.closed),
    }


def _duration_text(duration_ms: int) -> str:
    minutes, seconds = divmod(max(duration_ms, 0) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _traffic(broker: Broker) -> dict[str, str]:
    stats = broker.stats
    put, size = stats.messages_put, stats.bytes_put
    found, missed = stats.found_rate.rates(), stats.missed_rate.rates()
    return {
        "msgPutTotalYesterdayMorning": str(stats.put_marks.yesterday_morning),
        "msgPutTotalTodayMorning": str(stats.put_marks.today_morning),
        "msgPutTotalTodayNow": str(put),
        "msgGetTotalYesterdayMorning": str(stats.get_marks.yesterday_morning),
        "msgGetTotalTodayMorning": str(stats.get_marks.today_morning),
        "msgGetTotalTodayNow": str(stats.messages_got),
        "putTps": _rates_text(stats.put_rate),
        "getFoundTps": _rates_text(stats.found_rate),
        "getMissTps": _rates_text(stats.missed_rate),
        "getTransferedTps": _rates_text(stats.transferred_rate),
        "getTransferredTps": _rates_text(stats.transferred_rate),  # how RocketMQ 5 spells it
        "getTotalTps": " ".join(str((one or 0.0) + (other or 0.0)) for one, other in zip(found, missed, strict=True)),
        "putMessageTimesTotal": str(put),
        "putMessageFailedTimes": str(stats.put_failures),
        "putMessageSizeTotal": str(size),
        "putMessageAverageSize": str(size / put if put else 0.0),
        **_times(broker),
    }


def _times(broker: Broker) -> dict[str, str]:
    times = broker.store.times
    return {
        "putMessageDistributeTime": "".join(f"[{span}]:{puts} " for span, puts in times.distribution().items()),
        "putMessageEntireTimeMax": str(times.longest_put_ms),
        "getMessageEntireTimeMax": str(times.longest_get_ms),
        "putLatency99": f"{times.latency_ms(0.99):.2f}",
        "putLatency999": f"{times.latency_ms(0.999):.2f}",
    }


def _rates_text(log: RateLog) -> str:
    """Three numbers separated by blanks; a number that is not known yet is an empty text."""
    return " ".join("" if rate is None else str(rate) for rate in log.rates())


def _thread_pools(broker: Broker) -> dict[str, str]:
    config = broker.config
    table = {
        "sendThreadPoolQueueCapacity": str(config.send_thread_pool_queue_capacity),
        "pullThreadPoolQueueCapacity": str(config.pull_thread_pool_queue_capacity),
        "queryThreadPoolQueueCapacity": str(config.query_thread_pool_queue_capacity),
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": str(config.end_transaction_pool_queue_capacity),
    }
    for pool in ("send", "pull", "query"):
        table[f"{pool}ThreadPoolQueueSize"] = "0"
        table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    return table


def _store(broker: Broker) -> dict[str, str]:
    store, paths = broker.store, broker.config.store
    usage = store.disk.usage(paths.store_path_commit_log)
    log_ratio = f"{used_ratio(usage):.2f}"
    return {
        "commitLogMinOffset": str(store.log_min_offset),
        "commitLogMaxOffset": str(store.log_max_offset),
        "commitLogDiskRatio": log_ratio,
        f"commitLogDiskRatio_{paths.store_path_commit_log}": log_ratio,
        "consumeQueueDiskRatio": f"{used_ratio(store.disk.usage(paths.store_path_root_dir)):.2f}",
        "commitLogDirCapacity": f"Total : {_bytes_text(usage.total_bytes)}, Free : {_bytes_text(usage.usable_bytes)}.",
        "remainHowManyDataToFlush": _bytes_text(store.log_max_offset - store.flushed_offset),
        "earliestMessageTimeStamp": str(store.earliest_time()),
        "dispatchBehindBytes": "0",
        "dispatchMaxBuffer": "0",
        "remainTransientStoreBufferNumbs": str((1 << 31) - 1),
        **_schedule(broker),
        **_damage(broker),
    }


def _schedule(broker: Broker) -> dict[str, str]:
    """How far each delay level is: the next message to deliver, and the end of its queue."""
    return {
        f"scheduleMessageOffset_{level}": f"{offset},{broker.store.queue_bounds(SCHEDULE_TOPIC, level - 1)[1]}"
        for level, offset in broker.delay_offsets.table.items()
    }


def _damage(broker: Broker) -> dict[str, str]:
    """What damage has been met since the start; RocketMQ has no such figures."""
    return {
        "triomqEntriesRebuilt": str(broker.store.entry_repair.rebuilt),
        "triomqEntriesBlanked": str(broker.store.entry_repair.blanked),
        "triomqDelayedUndelivered": str(len(broker.undelivered.places)),
    }


def _bytes_text(size_bytes: int) -> str:
    """`512 B`, `1.5 KiB`, `252.0 GiB`."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    power = (size_bytes.bit_length() - 1) // 10
    return f"{size_bytes / 1024**power:.1f} {'KMGTPE'[power - 1]}iB"


# -- 315


def view_stats(broker: Broker, _link: Link, command: Command) -> Command:
    """315: what the last minute, hour and day brought to one topic, group, queue or the broker."""
    header = command.header(ViewBrokerStatsDataRequest)
    statistic = broker.stats.statistic(header.stats_name, header.stats_key)
    if statistic is None:
        remark = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark)
    body = BrokerStatsData(
        stats_minute=_item(statistic.minute), stats_hour=_item(statistic.hour), stats_day=_item(statistic.day)
    )
    return command.answer(body=body.encode())


def _item(figures: Figures) -> BrokerStatsItem:
    return BrokerStatsItem(sum=figures.sum, tps=figures.tps, avgpt=figures.avgpt)


# -- 321


def view_consume_queue(broker: Broker, _link: Link, command: Command) -> Generator[None, None, Command]:
    """321: raw entries of one consume queue, with a group's subscription to the topic."""
    header = command.header(QueryConsumeQueueRequest)
    topic, queue_id = header.topic, header.queue_id
    if (topic, queue_id) not in broker.store.queues():
        return command.answer(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
    low, high = broker.store.queue_bounds(topic, queue_id)
    if not low <= header.index < high:
        return command.answer(remark=f"Index {header.index} of {queue_id}@{topic} is not exist!")
    entries: list[ConsumeQueueEntry] = []
    body = QueryConsumeQueueBody(min_queue_index=low, max_queue_index=high, queue_data=entries)
    if header.consumer_group is not None:
        body.subscription_data = broker.clients.subscription(header.consumer_group, topic)
        offline = f"{header.consumer_group}@{topic} is not online!"
        body.filter_data = offline if body.subscription_data is None else "null"
    for index in range(header.index, min(header.index + min(header.count, ENTRIES_LIMIT), high)):
        found = broker.store.queue_entry(topic, queue_id, index)
        if found is None:
            break
        physical_offset, size_bytes, tags_code = found
        entry = ConsumeQueueEntry(physic_offset=physical_offset, physic_size=size_bytes, tags_code=tags_code)
        entries.append(entry)
        if not len(entries) % ENTRIES_PER_SLICE:
            yield
    return command.answer(remark=NOT_SET_REMARK, body=(yield from body.encode_in_slices()))
