"""Delivers delayed messages: copies them from the schedule topic into their own topic when they are due.

A level with messages has one task, which sleeps until the first of them is due; an idle level has none, and a slave's
levels are all idle. If an entry is damaged, the level waits until it has been built again; a damaged record is skipped
and remembered. It answers to `ScheduleMessageService`; rules: docs/protocol/store.md §19,
docs/protocol/messages.md §11.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NoReturn

import trio

from triomq_protocol.java_text import natural_number
from triomq_protocol.names import HALF_TOPIC, KEYS, REAL_QID, REAL_TOPIC, SCHEDULE_TOPIC, TAGS, UNIQ_KEY
from triomq_protocol.record.check import LogRecord, read_record
from triomq_protocol.record.view import RecordView
from triomq_server.broker.broker import Broker
from triomq_server.clock_waits import ClockTask
from triomq_server.config import BrokerRole, FlushDiskType
from triomq_server.repeats import Repeats
from triomq_server.store import CLOCK_STEP_BACK_MS, AppendStatus, NewRecord

_log = logging.getLogger(__name__)
WaitUntilStored = Callable[[int, float, Callable[[bool], None]], None]

FIRST_RUN_49_S = 1.0
"""How long 4.9 waits after its start; otherwise overdue messages are delivered at once."""
RETRY_S = 0.1
"""A message that the store did not take is tried again after this time."""
BATCH_MAX = 64
"""Messages delivered before other tasks run and the progress is noted."""
BATCH_BYTES = 1_048_576
"""And how many bytes, with the message that reaches the limit: 64 may have 4 MiB each."""


class Schedule:
    """Delivers due messages while the broker is a master.

    Args:
        broker: the owner of the schedule topic.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self._offsets = broker.delay_offsets
        self._undelivered = broker.undelivered
        self._skipped = Repeats()
        self._dropped = Repeats()
        self._delays_ms = broker.config.store.delay_levels_ms
        self._as_in_49 = broker.compat_49
        self._busy: set[int] = set()
        self._turn = trio.Lock()
        """Held by the level that delivers: one in a turn of the loop, whose limits would count once for each level."""
        self._nursery: trio.Nursery | None = None
        self._role_changed = trio.Event()
        self._refused = False
        self.read_config()
        broker.on_config_change.append(self.read_config)
        self._store.delay_listener = self.delayed

    def read_config(self) -> None:
        """Read role and flush type again: a slave delivers nothing, a new master all due messages."""
        self._role_changed.set()
        config = self._broker.config.store
        synchronous = config.flush_disk_type is FlushDiskType.SYNC_FLUSH or config.broker_role is BrokerRole.SYNC_MASTER
        self._waits = synchronous and not self._as_in_49
        if self._nursery is not None and self._broker.is_slave:
            self._nursery.cancel_scope.cancel()

    def delayed(self, queue_id: int) -> None:
        """The store has a new message in this queue of the schedule topic."""
        if self._nursery is not None and queue_id not in self._busy and queue_id < len(self._delays_ms):
            self._busy.add(queue_id)
            self._nursery.start_soon(self._deliver_level, queue_id)

    async def run(self) -> NoReturn:
        """Deliver until cancelled."""
        if self._as_in_49:
            await trio.sleep(FIRST_RUN_49_S)
        while True:
            self._role_changed = trio.Event()
            if not self._broker.is_slave:
                await self._deliver_as_master()
            await self._role_changed.wait()

    async def _deliver_as_master(self) -> None:
        """Deliver until the broker becomes a slave."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    for queue_id in range(len(self._delays_ms)):
                        self.delayed(queue_id)
                    nursery.start_soon(self._deliver_repaired)
                    await trio.sleep_forever()
                finally:
                    self._nursery = None  # a message that arrives while the nursery closes must not start a task in it
        finally:
            self._busy.clear()

    # -- one level

    async def _deliver_level(self, queue_id: int) -> None:
        """Deliver a level's messages, each at its time, until there are none."""
        with self._broker.clock_waits.task() as waits:
            await self._deliver_until_empty(queue_id, waits)

    async def _deliver_until_empty(self, queue_id: int, waits: ClockTask) -> None:
        while True:
            offset = self._position(queue_id)
            first = self._store.queue_entry(SCHEDULE_TOPIC, queue_id, offset)
            if first is None:
                # There is no await between this check and the end of the task, so a later message starts another task.
                self._busy.discard(queue_id)
                return
            now_ms = self._broker.clock()
            due_ms = self._due_ms(queue_id, first[2], now_ms)
            if not self._store.check_entry(SCHEDULE_TOPIC, queue_id, offset):
                await waits.pause(RETRY_S)  # until the entry has been built again
            elif due_ms > now_ms:
                await waits.until(due_ms, now_ms)
            elif not await self._deliver_due(queue_id, offset):
                await waits.pause(RETRY_S)

    def _position(self, queue_id: int) -> int:
        """The next queue offset to deliver; corrected permanently if the queue begins later or ends earlier."""
        low, high = self._store.queue_bounds(SCHEDULE_TOPIC, queue_id)
        noted = self._offsets.table.get(queue_id + 1, 0)
        offset = min(max(noted, low), high)
        if offset != noted:
            self._offsets.advance(queue_id + 1, offset, self._store.log_max_offset)
        return offset

    def _due_ms(self, queue_id: int, tags_code: int, now_ms: int) -> int:
        """The time at which a message is due. If it is more than the level's delay from now, the clock was set back and the
        message is due at once, unless the store still uses the time from before a small step of the clock."""
        return tags_code if tags_code <= now_ms + self._delays_ms[queue_id] + CLOCK_STEP_BACK_MS else now_ms

    async def _deliver_due(self, queue_id: int, offset: int) -> bool:
        """Deliver some of the messages that are due, from a queue offset on; False if the store refused one."""
        async with self._turn:
            if self._broker.is_slave:
                return True  # it has become one, and this task is cancelled
            stored, offset, log_end = self._deliver_batch(queue_id, offset)
        self._store.notify_arrivals()
        try:
            if log_end and self._waits:
                await self._wait_until_safe(log_end)
        finally:
            if self._offsets.table.get(queue_id + 1) != offset:
                self._offsets.advance(queue_id + 1, offset, log_end or self._store.log_max_offset)
        await trio.lowlevel.checkpoint()
        return stored

    def _deliver_batch(self, queue_id: int, offset: int) -> tuple[bool, int, int]:
        """Store copies of the messages to deliver in one turn of the loop.

        Returns:
            Whether the store took all; the queue offset after the last one, and the log offset after its copy, 0 if none
            was stored.
        """
        store, broker = self._store, self._broker
        stored, log_end, left_bytes = True, 0, BATCH_BYTES
        for following in range(offset, offset + BATCH_MAX):
            entry = store.queue_entry(SCHEDULE_TOPIC, queue_id, following)
            now_ms = broker.clock()
            if entry is None or not store.check_entry(SCHEDULE_TOPIC, queue_id, following):
                break
            if self._due_ms(queue_id, entry[2], now_ms) > now_ms:
                break
            delayed = self._record(entry[0], entry[1])
            if delayed is None:
                self._note_damage(queue_id, following, entry[0])
            elif (record := self._copy(delayed)) is not None:
                if (end := self._append(record)) is None:
                    stored = False
                    break
                log_end = end
            offset = following + 1
            left_bytes -= entry[1]
            if left_bytes <= 0:
                break
        return stored, offset, log_end

    def _append(self, record: NewRecord) -> int | None:
        """Store a message at its time; the log offset behind it, None if the store refused it."""
        result = self._store.append(record)
        if result.status is not AppendStatus.PUT_OK:
            self._note_refusal(record.topic, result.status)
            return None
        self._refused = False
        self._broker.stats.count_put(record.topic, 1, result.size_bytes)
        return result.end_offset

    async def _append_until_taken(self, record: NewRecord) -> int:
        while True:
            end = self._append(record)
            if end is not None:
                return end
            await trio.sleep(RETRY_S)

    async def _deliver_repaired(self) -> None:
        """Deliver messages that were damaged when they were due, and have been repaired since."""
        log_end = 0
        for queue_id, number in list(self._undelivered.places):
            entry = self._store.queue_entry(SCHEDULE_TOPIC, queue_id, number)
            if entry is None or entry[0] < self._store.log_min_offset:
                self._undelivered.remove(queue_id, number)
                continue
            delayed = self._record(entry[0], entry[1])
            if delayed is None:
                continue
            if (record := self._copy(delayed)) is not None:
                log_end = await self._append_until_taken(record)
                _log.info(
                    "a delayed message for %s, repaired at log offset %d, is delivered",
                    record.topic, entry[0], extra={"topic": record.topic},
                )  # fmt: skip
            self._undelivered.remove(queue_id, number)
            await trio.lowlevel.checkpoint()
        if log_end:
            self._store.notify_arrivals()
            if self._waits:
                await self._wait_until_safe(log_end)
            await self._undelivered.persist_in_background()

    def _note_damage(self, queue_id: int, number: int, physical_offset: int) -> None:
        """Remember a message that cannot be delivered at its time; not if its log file has expired."""
        if physical_offset < self._store.log_min_offset:
            return
        self._undelivered.note(queue_id, number)
        if due := self._skipped.add(str(queue_id)):
            _log.error(
                "a delayed message of level %d is damaged and cannot be delivered: queue offset %d of %s, log offset %d; "
                "it will be at the first start after a repair%s",
                queue_id + 1, number, SCHEDULE_TOPIC, physical_offset,
                f" ({due[0] - 1} more since the last such line)" if due[0] > 1 else "",
                extra={"topic": SCHEDULE_TOPIC, "queue": queue_id, "offset": number},
            )  # fmt: skip

    def _note_refusal(self, topic: str, status: AppendStatus) -> None:
        if not self._refused:
            _log.error(
                "delayed messages wait: the store answered %s to a message for %s; it is tried again",
                status.name,
                topic,
                extra={"topic": topic},
            )
        self._refused = True

    def _record(self, physical_offset: int, size_bytes: int) -> RecordView | None:
        """The delayed message that an entry points to; None if there is no sound one."""
        data = self._store.record_at(physical_offset, size_bytes)
        if data is None:
            return None
        # The copy gets a new checksum, which would hide the damage of the body.
        found = read_record(bytes(data), 0, len(data), physical_offset, check_crc=True)
        return RecordView(data) if isinstance(found, LogRecord) else None

    def _copy(self, delayed: RecordView) -> NewRecord | None:
        """The message as it is stored at its time, all properties kept; None if it must not be delivered."""
        properties = delayed.properties
        topic, queue_id = properties.get(REAL_TOPIC), natural_number(properties.get(REAL_QID, ""), 32)
        if topic is None or topic == HALF_TOPIC or queue_id is None:
            # With compat=4.9 any producer of half messages can cause it.
            if due := self._dropped.add(str(topic)):
                _log.error(
                    "%d delayed messages are dropped, for %s; the last one is at log offset %d and for %s, queue %r",
                    *due, delayed.physical_offset, topic, properties.get(REAL_QID, "")[:20], extra={"topic": topic},
                )  # fmt: skip
            return None
        return NewRecord(
            topic,
            queue_id,
            delayed.body,
            delayed.properties_bytes,
            delayed.flag,
            delayed.sys_flag,
            delayed.born_timestamp,
            delayed.born_host_bytes,
            delayed.store_host_bytes,
            delayed.reconsume_times,
            tags=properties.get(TAGS),
            keys=properties.get(KEYS),
            uniq_key=properties.get(UNIQ_KEY),
        )

    async def _wait_until_safe(self, log_end: int) -> None:
        """Wait until disk and slave have the copies, as senders have to.

        Only then is the progress noted: otherwise a delivered message could be less safe than it was while it waited.
        After a timeout the copies are still in the log, so they are not made again. RocketMQ does not wait.
        """
        config, now = self._broker.config.store, trio.current_time()
        if config.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            await _wait_for_callback(self._store.flusher.when_flushed, log_end, now + config.sync_flush_timeout / 1000)
        replication = self._broker.replication
        if config.broker_role is BrokerRole.SYNC_MASTER and replication.slave_ok(log_end):
            await _wait_for_callback(replication.when_replicated, log_end, now + config.slave_timeout / 1000)


async def _wait_for_callback(wait: WaitUntilStored, log_end: int, deadline: float) -> None:
    """Wait until the callback is called, at the latest at the deadline."""
    called = trio.Event()
    wait(log_end, deadline, lambda _: called.set())
    await called.wait()


async def persist_delay_offsets(broker: Broker) -> NoReturn:
    """Write the progress to disk every flushDelayOffsetInterval if it has changed; a slave's file is its master's."""
    while True:
        await trio.sleep(max(broker.config.store.flush_delay_offset_interval, 1) / 1000)
        if not broker.is_slave:
            # Before the progress, which counts these messages as delivered.
            await broker.undelivered.persist_in_background()
            await broker.delay_offsets.persist_in_background(broker.store.flush)
