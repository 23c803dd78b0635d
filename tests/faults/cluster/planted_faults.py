"""Faults put into our servers on purpose: what the ledger must find, or it finds nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from triomq_server.broker.roles import roles
from triomq_server.broker.tables.consumer_offsets import OffsetTable
from triomq_server.replication.divergence import LogRelation
from triomq_server.replication.master import HaMaster
from triomq_server.store.dispatch.dispatcher import Dispatcher

Put = Callable[[Any, str, object], None]
"""`setattr`, or one that can be undone."""


def _promises_early(put: Put) -> None:
    """Senders are told SEND_OK before a slave has anything."""
    put(HaMaster, "slave_ok", lambda self, end: True)
    put(HaMaster, "when_replicated", lambda self, end, deadline, done: done(True))


def _leaves_out(put: Put) -> None:
    """A slave forgets to put one record in forty into its queue."""
    number = count(1)
    dispatch = Dispatcher.dispatch

    def forgetful(self: Dispatcher, record: Any, *, fill: bool, announce: bool = False) -> None:
        if not announce or next(number) % 40:
            dispatch(self, record, fill=fill, announce=announce)

    put(Dispatcher, "dispatch", forgetful)
    put(Dispatcher, "_follow_run", lambda self, segment, at, end, until: False)


def _rolls_back(put: Put) -> None:
    """Offsets are taken over as 4.9 does: whatever the master has counts."""

    def replace(self: OffsetTable, received: Any, times: Any = None, before: Any = None) -> None:
        for key, queues in received.items():
            self.table[key] = dict(queues)

    put(OffsetTable, "merge", replace)


def _does_not_ask(put: Put) -> None:
    """A master that comes back takes its own offsets for the newest."""

    async def nobody(*_: Any, **__: Any) -> int:
        return 0

    put(roles, "merge_offsets_of_slaves", nobody)


def _follows_anybody(put: Put) -> None:
    """A slave does not care whose log it continues."""
    put(LogRelation, "may_follow", property(lambda self: True))


PLANTED: dict[str, Callable[[Put], None]] = {
    "promises early": _promises_early,
    "leaves out": _leaves_out,
    "rolls back": _rolls_back,
    "does not ask": _does_not_ask,
    "follows anybody": _follows_anybody,
}
