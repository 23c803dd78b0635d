"""The dispatcher's own decisions: how properties are found, how long a level delays, which records get a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from memory_disk import MemoryDisk
from trio.testing import wait_all_tasks_blocked

from triomq_protocol.names import SCHEDULE_TOPIC
from triomq_protocol.record.view import RecordView
from triomq_server.config import StoreConfig
from triomq_server.store import Arrival, NewRecord, open_store
from triomq_server.store.dispatch.dispatcher import property_of
from triomq_server.store.dispatch.key_hashes import index_hashes
from triomq_server.store.dispatch.replay import KEYS_MARK, TAGS_MARK
from triomq_server.store.message_store import MessageStore
from triomq_server.wire import to_the_end


@pytest.mark.parametrize(
    ("text", "mark", "value"),
    [
        ("", TAGS_MARK, None),
        ("TAGS\x01a", TAGS_MARK, "a"),
        ("TAGS\x01a\x02KEYS\x01b", TAGS_MARK, "a"),
        ("MYTAGS\x01a", TAGS_MARK, None),
        ("MYTAGS\x01a\x02TAGS\x01b", TAGS_MARK, "b"),
        ("TAGS\x01b\x02MYTAGS\x01a", TAGS_MARK, "b"),
        ("UNIQ_KEYS\x01a\x02KEYS\x01b c", KEYS_MARK, "b c"),
    ],
)
def test_a_property_is_found_by_its_complete_name(text: str, mark: str, value: str | None) -> None:
    assert property_of(text, mark) == value


async def test_a_level_beyond_the_last_delays_as_long_as_the_last(
    memory_disk: MemoryDisk, make_config: Callable[..., StoreConfig]
) -> None:
    config = make_config("/s")
    levels = config.delay_levels_ms
    async with open_store(config, disk=memory_disk) as store:
        delay_ms = store.dispatcher.delay_ms
        assert [delay_ms(SCHEDULE_TOPIC, n) for n in (-1, 0, 1, len(levels), len(levels) + 1)] == [
            -1, -1, levels[0], levels[-1], levels[-1],
        ]  # fmt: skip
        assert delay_ms("T", 1) == -1


async def test_only_watched_queues_announce_arrivals(
    memory_disk: MemoryDisk, make_config: Callable[..., StoreConfig], make_record: Callable[..., NewRecord]
) -> None:
    async with open_store(make_config("/s"), disk=memory_disk) as store:
        seen: list[Any] = []
        store.arrival_listeners.append(seen.append)
        store.watch_only({("T", 1)})
        for n in range(4):
            store.append(make_record(n, queue_id=n % 2))
        store.notify_arrivals()
        assert [(one.queue_id, one.next_offset) for one in seen] == [(1, 1), (1, 2)]
        store.watch_only(None)
        store.append(make_record(4))
        store.notify_arrivals()
        assert (seen[-1].queue_id, seen[-1].next_offset) == (0, 3)


@pytest.mark.parametrize(("tags", "wanted"), [(3, [0, 1, 2]), (33, [None])])
async def test_many_tags_of_one_queue_are_announced_as_any(
    tags: int, wanted: list[int | None], memory_disk: MemoryDisk, make_config: Any
) -> None:
    async with open_store(make_config("/store"), disk=memory_disk) as store:
        news: list[Arrival] = []
        store.arrival_listeners.append(news.append)
        for n in range(99):
            store.append(NewRecord("T", 0, b"x", b"", tags=chr(n % tags)))
        store.notify_arrivals()
    assert [arrival.tags_code for arrival in news] == wanted
    assert max(arrival.next_offset for arrival in news) == 99


async def test_a_turn_indexes_no_more_when_very_many_keys_wait(memory_disk: MemoryDisk, make_config: Any) -> None:
    """32,768 keys of 45 letters took 77 ms to hash."""
    config = make_config("/store", max_index_num=1 << 18, max_hash_slot_num=1 << 10)
    async with open_store(config, disk=memory_disk) as store:
        assert store.index is not None
        for n in range(4000):
            store.append(NewRecord("T", 0, b"%d" % n, b"", keys=f"{n} " * 40))
        before = 0
        for _ in range(3):
            store.notify_arrivals()
            entries = store.index.files[-1].count
            assert 0 < entries - before <= (1 << 12) + 1  # the first place of a file is none
            before = entries


async def test_keys_are_indexed_in_turns(memory_disk: MemoryDisk, make_config: Any) -> None:
    config = make_config("/store", max_index_num=1 << 17, max_hash_slot_num=1 << 10)
    async with open_store(config, disk=memory_disk) as store:
        for n in range(8):
            store.append(NewRecord("T", 0, b"%d" % n, b"", keys="k " * 4000))
        store.notify_arrivals()
        waits = store.dispatcher.index_is_behind
        while store.dispatcher.index_is_behind:
            await trio.lowlevel.checkpoint()
        assert waits
        assert store.index is not None
        assert store.index.files[-1].count > 8 * 4000


def append_hashed(store: MessageStore, key: str) -> int:
    """Store a record whose key is hashed, as those are that compiled sends write; returns its log offset."""
    result = store.append(NewRecord("T", 0, key.encode(), b"KEYS\x01" + key.encode()))
    store.dispatcher.collect()
    hashes = bytearray(index_hashes([("T", key, result.physical_offset, result.store_timestamp)]))
    store.dispatcher.run_appended(result.store_timestamp, hashes, [])
    return result.physical_offset


def found(store: MessageStore, key: str) -> list[bytes]:
    return [RecordView(record).body for record in to_the_end(store.query("T", key, 99, 0, 1 << 62)).records]


def entries(store: MessageStore) -> int:
    """How many are in the index."""
    assert store.index is not None
    return store.index.files[-1].count - 1 if store.index.files else 0  # the first place of a file is none


async def test_a_few_keys_wait_for_others_and_not_for_long(
    autojump_clock: Any, memory_disk: MemoryDisk, make_config: Any
) -> None:
    async with open_store(make_config("/store"), disk=memory_disk) as store:
        await wait_all_tasks_blocked()
        for n in range(3):
            append_hashed(store, f"k{n}")
            store.notify_batch()
            assert store.dispatcher.index_is_behind
        await trio.sleep(0.005)
        assert not entries(store)
        await trio.sleep(0.006)
        assert entries(store) == 3
        # The next ones are not lost.
        append_hashed(store, "k3")
        store.notify_batch()
        await trio.sleep(0.02)
        assert entries(store) == 4


async def test_a_query_finds_keys_that_wait(memory_disk: MemoryDisk, make_config: Any) -> None:
    async with open_store(make_config("/store"), disk=memory_disk) as store:
        append_hashed(store, "k")
        store.notify_batch()
        assert store.dispatcher.index_is_behind
        assert found(store, "k") == [b"k"]


async def test_many_keys_wait_no_longer(memory_disk: MemoryDisk, make_config: Any) -> None:
    config = make_config("/store", max_index_num=1 << 10, max_hash_slot_num=1 << 8)
    async with open_store(config, disk=memory_disk) as store:
        for n in range(64):
            assert not entries(store)
            append_hashed(store, f"k{n}")
            store.notify_batch()
        assert entries(store) == 64
        assert not store.dispatcher.index_is_behind


async def test_keys_that_are_not_hashed_do_not_wait(memory_disk: MemoryDisk, make_config: Any) -> None:
    async with open_store(make_config("/store"), disk=memory_disk) as store:
        append_hashed(store, "k0")
        store.notify_batch()
        store.append(NewRecord("T", 0, b"x", b"", keys="k1"))
        store.notify_batch()
        assert not store.dispatcher.index_is_behind
        assert entries(store) == 2


async def test_keys_that_waited_when_the_process_was_killed_are_found(
    memory_disk: MemoryDisk, make_config: Any
) -> None:
    config = make_config("/store")
    async with open_store(config, disk=memory_disk) as store:
        append_hashed(store, "before")
        store.notify_arrivals()
        await store.flusher.flush_queues(0, checkpoint=True)
        append_hashed(store, "waits")
        store.notify_batch()
        await store.flusher.flush_queues(0, checkpoint=True)
        killed = memory_disk.after_kill()
        assert store.dispatcher.index_is_behind
    async with open_store(config, disk=killed) as store:
        assert [found(store, key) for key in ("before", "waits")] == [[b"before"], [b"waits"]]
