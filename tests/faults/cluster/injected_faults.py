"""Faults injected into our servers: a ledger that does not detect them proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from triomq_server.broker.roles import roles
from triomq_server.broker.tables.offsets.committed import OffsetTable
from triomq_server.replication.divergence import LogRelation
from triomq_server.replication.master import HaMaster
from triomq_server.store.dispatch.dispatcher import Dispatcher

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


FAULTS: dict[str, Callable[[Put], None]] = {
    "acknowledges early": _acknowledges_early,
    "skips records": _skips_records,
    "rolls back": _rolls_back,
    "skips offset query": _skips_offset_query,
    "skips divergence check": _skips_divergence_check,
}
