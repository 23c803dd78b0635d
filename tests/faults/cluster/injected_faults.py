"""Faults injected into our servers: a ledger that does not detect them proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from triomq_server.broker.roles import roles
from triomq_server.broker.schedule import Schedule
from triomq_server.broker.tables.offsets.committed import OffsetTable
from triomq_server.broker.transactions.check_back import CheckBack, _Handled
from triomq_server.broker.transactions.open_transactions import OpenTransactions
from triomq_server.replication.divergence import LogRelation
from triomq_server.replication.master import HaMaster
from triomq_server.store.dispatch.dispatcher import Dispatcher
from triomq_server.store.flush.flusher import Flusher
from triomq_server.store.recovery.recovery import Recovery

Put = Callable[[Any, str, object], None]
"""`setattr`, or one that can be undone."""


def _acknowledges_early(put: Put) -> None:
    """Senders are answered SEND_OK before a slave has the message."""
    put(HaMaster, "slave_ok", lambda self, end: True)
    put(HaMaster, "when_replicated", lambda self, end, deadline, done: done(True))


def _skips_records(put: Put) -> None:
    """A slave omits every fortieth record from its consume queue."""
    number = count(1)
    dispatch = Dispatcher.dispatch

    def skipping(self: Dispatcher, record: Any, *, fill: bool, announce: bool = False) -> None:
        if not announce or next(number) % 40:
            dispatch(self, record, fill=fill, announce=announce)

    put(Dispatcher, "dispatch", skipping)
    put(Dispatcher, "_follow_run", lambda self, segment, at, end, until: False)


def _rolls_back(put: Put) -> None:
    """A slave replaces its offsets by its master's, as 4.9 does."""

    def replace(self: OffsetTable, received: Any, times: Any = None, before: Any = None) -> None:
        for key, queues in received.items():
            self.table[key] = dict(queues)

    put(OffsetTable, "merge", replace)


def _skips_offset_query(put: Put) -> None:
    """A restarted master does not query its slaves for newer offsets."""

    async def no_offsets(*_: Any, **__: Any) -> int:
        return 0

    put(roles, "merge_offsets_of_slaves", no_offsets)


def _skips_divergence_check(put: Put) -> None:
    """A slave follows a master without checking for divergence."""
    put(LogRelation, "may_follow", property(lambda self: True))


def _acknowledges_unflushed(put: Put) -> None:
    """Senders are answered SEND_OK before the disk has the message."""
    put(Flusher, "when_flushed", lambda self, end, deadline, done: done(True))


def _confirms_later_bytes(put: Put) -> None:
    """A flush counts for bytes that were appended while it ran."""
    confirm = Flusher._confirm

    def all_of_it(self: Flusher, dirty: Any, target: int, timestamp: int) -> None:
        confirm(self, dirty, self._commitlog.max_offset, timestamp)

    put(Flusher, "_confirm", all_of_it)


def _dispatches_nothing(put: Put) -> None:
    """A start gives the records behind the checkpoint no queue entries."""
    put(Recovery, "_dispatch", lambda self, begin, end, damaged: iter(()))


def _skips_delayed(put: Put) -> None:
    """The progress with delayed messages is one too far."""
    deliver = Schedule._deliver_batch

    def one_more(self: Schedule, queue_id: int, offset: int) -> tuple[bool, int, int]:
        stored, following, log_end = deliver(self, queue_id, offset)
        return stored, following + 1, log_end

    put(Schedule, "_deliver_batch", one_more)


def _forgets_transactions(put: Put) -> None:
    """The check passes half messages that are too young to be checked."""
    handle = CheckBack._handle

    def passing(self: CheckBack, current: Any, half: Any) -> _Handled:
        handled = handle(self, current, half)
        return _Handled.PASSED if handled is _Handled.STOP else handled

    put(CheckBack, "_handle", passing)


def _commits_twice(put: Put) -> None:
    """A transaction that has ended can be ended again."""
    put(OpenTransactions, "has_ended", lambda self, half_offset: False)


FAULTS: dict[str, Callable[[Put], None]] = {
    "acknowledges early": _acknowledges_early,
    "skips records": _skips_records,
    "rolls back": _rolls_back,
    "skips offset query": _skips_offset_query,
    "skips divergence check": _skips_divergence_check,
    "acknowledges unflushed": _acknowledges_unflushed,
    "confirms later bytes": _confirms_later_bytes,
    "dispatches nothing": _dispatches_nothing,
    "skips delayed": _skips_delayed,
    "forgets transactions": _forgets_transactions,
    "commits twice": _commits_twice,
}
