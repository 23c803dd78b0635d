"""Queue locks of orderly consumers (docs/protocol/broker-api.md §11)."""

from __future__ import annotations

import pytest

from triomq_protocol.requests import MessageQueue
from triomq_server.broker.tables.queue_locks import LOCK_LIVE_MS, LockTable

Q0, Q1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


@pytest.fixture
def locks() -> LockTable:
    return LockTable()


def test_a_free_queue_is_locked_and_refused_to_others(locks: LockTable) -> None:
    assert locks.lock("G", "c1", [Q0, Q1], 0) == [Q0, Q1]
    assert locks.lock("G", "c2", [Q0, Q1], 1) == []


def test_groups_do_not_see_each_others_locks(locks: LockTable) -> None:
    locks.lock("G", "c1", [Q0], 0)
    assert locks.lock("H", "c2", [Q0], 0) == [Q0]


def test_queues_of_other_brokers_are_other_queues(locks: LockTable) -> None:
    locks.lock("G", "c1", [Q0], 0)
    other = MessageQueue("T", "b2", 0)
    assert locks.lock("G", "c2", [other], 0) == [other]


def test_a_lock_expires_only_after_a_whole_minute(locks: LockTable) -> None:
    locks.lock("G", "c1", [Q0], 0)
    assert locks.lock("G", "c2", [Q0], LOCK_LIVE_MS) == []
    assert locks.lock("G", "c2", [Q0], LOCK_LIVE_MS + 1) == [Q0]


def test_locking_again_refreshes(locks: LockTable) -> None:
    locks.lock("G", "c1", [Q0], 0)
    assert locks.lock("G", "c1", [Q0], LOCK_LIVE_MS) == [Q0]
    assert locks.lock("G", "c2", [Q0], LOCK_LIVE_MS + 1) == []


def test_only_the_owner_unlocks(locks: LockTable) -> None:
    locks.lock("G", "c1", [Q0], 0)
    locks.unlock("G", "c2", [Q0])
    assert locks.lock("G", "c2", [Q0], 1) == []
    locks.unlock("G", "c1", [Q0, Q1])
    assert locks.lock("G", "c2", [Q0], 1) == [Q0]
    locks.unlock("unknown group", "c1", [Q0])


def test_expired_locks_leave_no_trace(locks: LockTable) -> None:
    locks.lock("G", "c1", [Q0], 0)
    locks.lock("H", "c1", [Q1], LOCK_LIVE_MS)
    locks.drop_expired(LOCK_LIVE_MS + 1)
    assert set(locks._groups) == {"H"}
