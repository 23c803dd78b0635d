"""Queue locks of orderly consumers (docs/protocol/broker-api.md §11)."""

from __future__ import annotations

import pytest

from triomq_protocol.requests import MessageQueue
from triomq_server.broker.tables.queue_locks import LOCK_LIVE_MS, SCANS_PER_LIFE, LockTable

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


def test_expired_locks_are_removed(locks: LockTable) -> None:
    locks.lock("G", "c1", [Q0], 0)
    locks.lock("H", "c1", [Q1], LOCK_LIVE_MS)
    locks.drop_expired(LOCK_LIVE_MS + 1)
    assert set(locks._groups) == {"H"}


def test_locks_have_a_bound() -> None:
    locks = LockTable(most=3)
    queues = [MessageQueue("T", "b", number) for number in range(5)]
    assert locks.lock("G", "c1", queues, 0) == queues[:3]
    assert locks.lock("H", "c2", queues, 0) == []
    assert locks.lock("G", "c1", queues, 1) == queues[:3], "those that are held are refreshed"
    locks.unlock("G", "c1", queues[:2])
    assert len(locks) == 1
    assert locks.lock("H", "c2", queues, 2) == queues[:2]
    locks.drop_expired(LOCK_LIVE_MS + 10)
    assert len(locks) == 0
    assert locks.lock("H", "c2", queues, LOCK_LIVE_MS + 10) == queues[:3]


def test_expired_locks_are_not_looked_for_at_each_request(locks: LockTable) -> None:
    locks.drop_expired(0)
    locks.lock("G", "c1", [Q0], 0)
    looks = CountedLooks(locks._groups)
    locks._groups = looks
    for now_ms in range(LOCK_LIVE_MS):
        locks.drop_expired(now_ms)
    assert looks.count == SCANS_PER_LIFE - 1


class CountedLooks(dict[str, dict[MessageQueue, tuple[str, int]]]):
    count = 0

    def items(self):  # type: ignore[no-untyped-def]
        self.count += 1
        return super().items()


def test_the_names_of_locks_are_limited_by_bytes() -> None:
    locks = LockTable(most_bytes=4 * 1000)
    long = [MessageQueue("t" * 198, "b", number) for number in range(6)]
    assert locks.lock("G", "c", long, 0) == long[:5]
    assert locks.lock("G", "c", long, 1) == long[:5], "a lock is refreshed though there is no space"
    assert locks.lock("H", "c", [Q0], 1) == []
    locks.unlock("G", "c", long[:1])
    assert locks.lock("H", "c" * 100, [Q0], 1) == [Q0]
    assert locks.lock("H", "c" * 200, [Q0], LOCK_LIVE_MS + 2) == [], "a longer name has no space"
    locks.drop_expired(2 * LOCK_LIVE_MS)
    assert (len(locks), locks.kept_bytes) == (0, 0)


def test_a_lock_that_another_client_takes_over_counts_with_its_name() -> None:
    locks = LockTable()
    locks.lock("G", "c" * 100, [Q0], 0)
    locks.lock("G", "c", [Q0], LOCK_LIVE_MS + 1)
    assert locks.kept_bytes == 4 * 3
    locks.unlock("G", "c", [Q0])
    assert locks.kept_bytes == 0
