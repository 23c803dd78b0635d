"""Checks open transactions: asks producers for the outcome of transactions that they have not reported.

One task works in rounds while the broker is a master. A round goes through the half messages in queue order; each one
whose transaction is still open is stored again at the end of the queue, so that the progress is a single offset. It
answers to `TransactionalMessageCheckService` and `TransactionalMessageServiceImpl.check`; rules:
docs/protocol/store.md §20.4.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import NoReturn

import msgspec
import trio

from triomq_protocol.flags import READ_WRITE_PERM
from triomq_protocol.names import (
    CHECK_MAX_TIME_TOPIC,
    CHECK_TIMES,
    HALF_TOPIC,
    PGROUP,
    PREPARED_QUEUE_OFFSET,
    REAL_TOPIC,
    WAIT,
)
from triomq_protocol.record.view import RecordView
from triomq_server.broker.broker import Broker
from triomq_server.broker.transactions.decisions import (
    Action,
    HalfState,
    Limits,
    check_times,
    checked_out,
    counts_unasked,
    decide,
    immunity_ms,
    naming_first,
    number,
)
from triomq_server.broker.transactions.half_records import HALF_QUEUE, check_request, copy_of, discarded, for_log
from triomq_server.broker.transactions.open_transactions import OpenTransactions
from triomq_server.config import BrokerRole
from triomq_server.repeats import Repeats
from triomq_server.store import AppendResult, AppendStatus, NewRecord
from triomq_server.wire import Link

_log = logging.getLogger(__name__)

ROUND_S = 60.0
"""How long a round may take; the next one continues where it ended."""
PASSED_AT_ONCE = 2000
"""Ended half messages that are skipped before other tasks run."""
HANDLED_AT_ONCE = 32
HANDLED_AT_ONCE_BYTES = 1 << 20
"""Half messages that are handled before other tasks run: their number, or their bytes."""
SAVED_EVERY = 5000
"""Half messages after which a long round notes its progress."""
UNSENT_MOST_BYTES = 1 << 20
"""A producer with this many unsent bytes is not sent more."""
PATIENCE_S = 1.0
PAUSE_S = 0.05
"""How long a round waits for a producer group in which no member reads, before it stops asking the group."""
MUTE_GROUPS_REMEMBERED = 10_000
"""The most producer groups for which the number of rounds without a reading member is counted."""


class _Handled(Enum):
    """The result for one half message."""

    PASSED = 1
    STORED = 2
    STOP = 3
    BUSY = 4


class _Round(msgspec.Struct):
    """One round.

    Attributes:
        end: the end of the half queue when the round began: copies made in this round are left to the next one.
        offset: the next half message.
        stored: number stored again since the progress was noted.
        log_end: end of the last record stored.
        busy: producer groups in which no member takes more, and until when the round waits for them.
    """

    end: int
    offset: int
    stored: int = 0
    log_end: int = 0
    busy: dict[str, float] = msgspec.field(default_factory=dict)


class CheckBack:
    """Checks the transactions of a broker while it is a master.

    Args:
        broker: the broker that stores them.
        transactions: their state.
    """

    def __init__(self, broker: Broker, transactions: OpenTransactions) -> None:
        self._broker = broker
        self._store = broker.store
        self._transactions = transactions
        self._role_changed = trio.Event()
        self._scope = trio.CancelScope()
        self._was_slave = broker.is_slave
        self._turn = 0
        self._without_producer = Repeats()
        self._mute_rounds: dict[str, int] = {}
        self._mute = Repeats()
        self._renewals = Repeats()
        self._discards = Repeats()
        self._refusals = Repeats()
        self._too_large = Repeats()
        broker.on_config_change.append(self.read_config)

    def read_config(self) -> None:
        """Read the role again: a slave checks nothing, a new master continues where its master was."""
        self._role_changed.set()
        if self._broker.is_slave:
            self._scope.cancel()
        elif self._was_slave:
            self._transactions.reset()
        self._was_slave = self._broker.is_slave

    async def run(self) -> NoReturn:
        """Check until cancelled."""
        while True:
            self._role_changed = trio.Event()
            if not self._broker.is_slave:
                with trio.CancelScope() as self._scope:
                    await self._check_as_master()
            await self._role_changed.wait()

    async def _check_as_master(self) -> NoReturn:
        await self._transactions.load()
        with self._broker.clock_waits.task() as waits:
            while True:
                await waits.pause(max(self._broker.config.transaction_check_interval, 1) / 1000)
                await self._check_once()

    async def _check_once(self) -> None:
        """One round."""
        end = self._store.queue_bounds(HALF_TOPIC, HALF_QUEUE)[1]
        current = _Round(end, self._transactions.position())
        ends = trio.current_time() + ROUND_S
        try:
            while trio.current_time() < ends:
                handled = self._slice(current)
                self._store.notify_arrivals()
                if handled is _Handled.STOP:
                    break
                await trio.sleep(PAUSE_S if handled is _Handled.BUSY else 0)
                if current.stored >= SAVED_EVERY and not await self._save(current):
                    return
        finally:
            self._store.notify_arrivals()
        await self._save(current)

    async def _save(self, current: _Round) -> bool:
        """Note the progress, once the copies are as safe as the half messages were; False if the disk refuses."""
        if current.stored:
            try:
                await self._store.flush()
            except OSError as error:
                _log.error("the check of transactions begins again at its last progress: %s", error)
                return False
            await self._wait_for_slave(current.log_end)
        current.stored = 0
        self._transactions.save_position(current.offset)
        return True

    async def _wait_for_slave(self, log_end: int) -> None:
        config, replication = self._broker.config.store, self._broker.replication
        if config.broker_role is BrokerRole.SYNC_MASTER and replication.slave_ok(log_end):
            called = trio.Event()
            deadline = trio.current_time() + config.slave_timeout / 1000
            replication.when_replicated(log_end, deadline, lambda _: called.set())
            await called.wait()

    # -- half messages

    def _slice(self, current: _Round) -> _Handled:
        """Handle some half messages; the last one's result determines how to continue."""
        ended = self._transactions.ended
        handled_bytes = handled = passed = 0
        while handled < HANDLED_AT_ONCE and handled_bytes < HANDLED_AT_ONCE_BYTES and passed < PASSED_AT_ONCE:
            if current.offset >= current.end:
                return _Handled.STOP
            result = _Handled.PASSED
            is_over = current.offset in ended or self._transactions.is_replaced(current.offset)
            half = None if is_over else self._transactions.record(HALF_TOPIC, current.offset)
            if half is not None:
                result = self._handle(current, half)
                handled += 1
                handled_bytes += half.size_bytes
            passed += 1
            if result in (_Handled.STOP, _Handled.BUSY):
                return result
            current.offset += 1
        return _Handled.PASSED

    def _handle(self, current: _Round, half: RecordView) -> _Handled:
        """Take the action that one half message needs now."""
        config, now_ms = self._broker.config, self._broker.clock()
        properties = half.properties
        limits = Limits(
            config.transaction_time_out,
            config.transaction_check_max,
            config.store.file_reserved_time,
            config.transaction_check_interval,
        )
        original = properties.get(PREPARED_QUEUE_OFFSET)
        state = HalfState(
            half.born_timestamp,
            check_times(properties),
            immunity_ms(properties, limits.time_out_ms),
            ended=original is not None and number(original) in self._transactions.ended,
        )
        action = decide(state, now_ms=now_ms, limits=limits)
        if action is Action.PASS:
            return _Handled.PASSED
        if action is Action.WAIT:
            return _Handled.STOP
        times = max(state.check_times or 0, 0) + 1
        if action is Action.DISCARD:
            # As in Java, only a half message that is too old counts the round in which it is given up.
            given_up = properties if checked_out(state, limits) else {**properties, CHECK_TIMES: str(times)}
            return self._discard(current, half, given_up, limits)
        if action is Action.RENEW:
            renewed = naming_first({**properties, WAIT: "false"}, half.queue_offset)
            if due := self._renewals.add(for_log(properties.get(PGROUP, ""))):
                _log.info(
                    "%d half messages are stored again and not checked yet: CHECK_IMMUNITY_TIME_IN_SECONDS asks for "
                    "more time, of groups %s",
                    *due,
                )
            return self._store_again(current, half, copy_of(half, renewed))[0]
        return self._check(current, half, properties, times)

    def _check(self, current: _Round, half: RecordView, properties: dict[str, str], times: int) -> _Handled:
        """Store a half message again and ask a producer of its group about it.

        A group whose members take nothing is not asked, and the check is not counted in the first such rounds.
        """
        group = properties.get(PGROUP, "")
        checked = {**properties, CHECK_TIMES: str(times)}
        link = self._choose(group)
        if link is not None and link.unsent_bytes > UNSENT_MOST_BYTES:
            mute_rounds = self._mute_in(current, group)
            counted = counts_unasked(mute_rounds)
            if not counted and trio.current_time() < current.busy[group]:
                return _Handled.BUSY
            if due := self._mute.add(for_log(group)):
                _log.warning(
                    "%d checks of transactions were not sent: no producer accepts them, of groups %s "
                    "(%s for %d rounds)",
                    *due, for_log(group), mute_rounds, extra={"group": group},
                )  # fmt: skip
            copied = checked if counted else naming_first(properties, half.queue_offset)
            return self._store_again(current, half, copy_of(half, copied))[0]
        if link is not None:
            current.busy.pop(group, None)
            self._mute_rounds.pop(group, None)
        handled, copy = self._store_again(current, half, copy_of(half, checked))
        if handled is not _Handled.STORED:
            return handled
        if link is None:
            if due := self._without_producer.add(for_log(group)):
                _log.warning("%d checks of transactions were not sent: no producer is connected of groups %s", *due)
        elif (request := check_request(half, checked, copy)) is not None:
            link.notify(request)
        return handled

    def _mute_in(self, current: _Round, group: str) -> int:
        """In how many rounds in a row a group has taken nothing, this one included."""
        if group not in current.busy:
            current.busy[group] = trio.current_time() + PATIENCE_S
            self._mute_rounds[group] = self._mute_rounds.pop(group, 0) + 1
            if len(self._mute_rounds) > MUTE_GROUPS_REMEMBERED:
                del self._mute_rounds[next(iter(self._mute_rounds))]
        return self._mute_rounds.get(group, 1)

    def _store_again(self, current: _Round, half: RecordView, record: NewRecord) -> tuple[_Handled, AppendResult]:
        """Store a half message at the end of its queue."""
        result = self._append(current, record)
        if result.status is AppendStatus.PUT_OK:
            self._transactions.copied(half.queue_offset, result.queue_offset)
            return _Handled.STORED, result
        if result.status is AppendStatus.SERVICE_NOT_AVAILABLE:
            return _Handled.STOP, result
        return self._give_up(current, half), result

    def _give_up(self, current: _Round, half: RecordView) -> _Handled:
        """Store a half message unchanged in the topic that is not checked: it cannot take one more property, or exceeds the
        present settings, and must not block the others."""
        if due := self._too_large.add(for_log(half.properties.get(PGROUP, ""))):
            _log.error(
                "%d transactions are not checked, of groups %s; the half message of the last one is at offset %d: with "
                "the number of checks they are too large to be stored",
                *due, half.queue_offset,
            )  # fmt: skip
        self._broker.topics.ensure(CHECK_MAX_TIME_TOPIC, 1, READ_WRITE_PERM)
        result = self._append(current, discarded(half, half.properties))
        return _Handled.STOP if result.status is AppendStatus.SERVICE_NOT_AVAILABLE else _Handled.PASSED

    def _discard(self, current: _Round, half: RecordView, properties: dict[str, str], limits: Limits) -> _Handled:
        """Store a half message in the topic that is not checked."""
        self._broker.topics.ensure(CHECK_MAX_TIME_TOPIC, 1, READ_WRITE_PERM)
        result = self._append(current, discarded(half, properties))
        if result.status is AppendStatus.SERVICE_NOT_AVAILABLE:
            return _Handled.STOP
        if result.status is not AppendStatus.PUT_OK:
            return self._give_up(current, half)
        if due := self._discards.add(for_log(properties.get(REAL_TOPIC, "?"))):
            _log.error(
                "%d half messages, of topics %s, are given up and kept in %s: %d checks (transactionCheckMax) did not end "
                "their transactions, or they are older than %d h (fileReservedTime)",
                *due, CHECK_MAX_TIME_TOPIC, limits.check_max, limits.reserved_hours,
            )  # fmt: skip
        return _Handled.STORED

    def _append(self, current: _Round, record: NewRecord) -> AppendResult:
        result = self._store.append(record)
        if result.status is AppendStatus.PUT_OK:
            current.stored += 1
            current.log_end = result.end_offset
            self._broker.stats.count_put(record.topic, 1, result.size_bytes)
        elif result.status is AppendStatus.SERVICE_NOT_AVAILABLE and (due := self._refusals.add(record.topic)):
            _log.error("the check of transactions waits: the store did not take %d messages, of topics %s", *due)
        return result

    def _choose(self, group: str) -> Link | None:
        """A producer of the group, in rotation; one that reads its messages, if possible."""
        links = [link for link in self._broker.clients.producer_channels(group) if not link.closed]
        if not links:
            return None
        self._turn += 1
        first = self._turn % len(links)
        for link in (*links[first:], *links[:first]):
            if link.unsent_bytes <= UNSENT_MOST_BYTES:
                return link
        return links[first]
