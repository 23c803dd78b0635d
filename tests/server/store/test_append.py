"""Appends: written bytes, refusals and announcements (docs/protocol/store.md §3, §5-8)."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from typing import Any

import pytest
from memory_disk import MemoryDisk
from stored_records import encode_record

from triomq_protocol.errors import BodyError
from triomq_protocol.filters.tags import java_hash
from triomq_protocol.record.batch import encode_batch_element
from triomq_protocol.record.encode import write_blank
from triomq_protocol.record.view import RecordView
from triomq_server.config import StoreConfig
from triomq_server.store import (
    AppendResult,
    AppendStatus,
    Arrival,
    NewBatch,
    NewRecord,
    ReadStatus,
    commitlog,
    consume_queue,
    open_store,
)
from triomq_server.wire import to_the_end

ROOT = "/store"
FOREVER = 1 << 60
HOST_V4 = bytes((10, 0, 0, 1)) + (40000).to_bytes(4, "big")
HOST_V6 = bytes(15) + b"\x01" + (40001).to_bytes(4, "big")
MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]


@pytest.mark.parametrize("born_host", [HOST_V4, HOST_V6])
@pytest.mark.parametrize("store_host", [HOST_V4, HOST_V6])
async def test_record_bytes_are_the_protocols(
    born_host: bytes, store_host: bytes, memory_disk: MemoryDisk, clock: Any, make_config: MakeConfig
) -> None:
    record = NewRecord(
        "Topic-1", 3, b"a body", b"KEYS\x01k", flag=7, sys_flag=1, born_timestamp=123456789012, born_host=born_host,
        store_host=store_host, reconsume_times=2, prepared_transaction_offset=99,
    )  # fmt: skip
    async with open_store(make_config(ROOT), disk=memory_disk, clock=clock) as store:
        for n in range(2):
            result = store.append(record)
            assert result.status is AppendStatus.PUT_OK
            assert (result.queue_offset, result.store_timestamp) == (n, clock.now)
            expected = encode_record(
                b"Topic-1", 3, b"a body", b"KEYS\x01k", flag=7, sys_flag=1, born_timestamp=123456789012, born_host=born_host,
                store_host=store_host, queue_offset=n, physical_offset=result.physical_offset, store_timestamp=clock.now,
                reconsume_times=2, prepared_transaction_offset=99,
            )  # fmt: skip
            assert store.record_at(result.physical_offset) == expected
            assert result.end_offset == result.physical_offset + len(expected) == store.log_max_offset
            assert result.message_ids == (result.physical_offset,)


async def test_file_is_closed_by_a_mark_and_the_record_moves_on(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(ROOT, mapped_file_size_commit_log=1000), disk=memory_disk) as store:
        first = store.append(make_record(0, size=500))
        overhead = first.size_bytes - 500
        # Exactly eight bytes stay free: it fits. One byte more would not.
        second = store.append(make_record(1, size=1000 - first.size_bytes - overhead - 8))
        assert second.end_offset == 992
        third = store.append(make_record(2))
        assert third.physical_offset == 1000
        data = memory_disk.read(f"{ROOT}/commitlog/{0:020d}")
        assert struct.unpack_from(">ii", data, 992) == (8, -875286124)
        fourth = store.append(make_record(3, size=1000 - third.size_bytes - overhead - 7))
        assert fourth.physical_offset == 2000
        data = memory_disk.read(f"{ROOT}/commitlog/{1000:020d}")
        rest = 2000 - third.end_offset
        assert struct.unpack_from(">ii", data, 1000 - rest) == (rest, -875286124)
        assert [store.read("T", 0, n, 1, None).status for n in range(4)] == [ReadStatus.FOUND] * 4


async def test_a_preparation_while_the_next_file_is_begun_does_not_delete_it(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in a thread, and may begin at any moment; what is prepared and not used is deleted at the end."""
    config = make_config(ROOT, mapped_file_size_commit_log=1000)
    async with open_store(config, disk=memory_disk) as store:

        def prepare_first(buffer: mmap.mmap, at: int, size: int) -> None:
            store.commitlog.prepare()
            write_blank(buffer, at, size)

        monkeypatch.setattr(commitlog, "write_blank", prepare_first)
        ends = [store.append(make_record(n, size=500)).end_offset for n in range(2)]
        assert ends[1] > 1000
    async with open_store(config, disk=memory_disk) as store:
        assert store.queue_bounds("T", 0) == (0, 2)
        assert store.log_max_offset == ends[1]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"body": bytes(1001)}, AppendStatus.MESSAGE_ILLEGAL),
        ({"topic": "x" * 128}, AppendStatus.MESSAGE_ILLEGAL),
        ({"topic": ""}, AppendStatus.MESSAGE_ILLEGAL),
        ({"properties": bytes(32768)}, AppendStatus.PROPERTIES_SIZE_EXCEEDED),
        ({"body": bytes(1000), "topic": "x" * 127}, AppendStatus.PUT_OK),
        ({"properties": b"a" * 32767}, AppendStatus.PUT_OK),
        ({"body": b""}, AppendStatus.PUT_OK),
    ],
)
async def test_limits(
    changes: dict[str, Any], status: AppendStatus, memory_disk: MemoryDisk, make_config: MakeConfig
) -> None:
    values = {"topic": "T", "queue_id": 0, "body": b"b", "properties": b"", **changes}
    async with open_store(make_config(ROOT, max_message_size=1000), disk=memory_disk) as store:
        assert store.append(NewRecord(**values)).status is status
        assert (store.log_max_offset > 0) == (status is AppendStatus.PUT_OK)


async def test_record_larger_than_a_file_is_refused(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """Java fills a whole file with filler, answers success and loses the message."""
    async with open_store(make_config(ROOT, mapped_file_size_commit_log=1000), disk=memory_disk) as store:
        assert store.append(make_record(0, size=1000)).status is AppendStatus.MESSAGE_ILLEGAL
        assert store.log_max_offset == 0


@pytest.mark.parametrize(("sys_flag", "entries"), [(0, 1), (0x4, 0), (0x8, 1), (0xC, 0), (0x301, 1)])
async def test_transaction_types(
    sys_flag: int, entries: int, memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        store.append(make_record(0))
        result = store.append(make_record(1, sys_flag=sys_flag))
        assert RecordView(store.record_at(result.physical_offset)).queue_offset == (1 if entries else 0)
        assert store.queue_bounds("T", 0) == (0, 1 + entries)
        found = to_the_end(store.query("T", f"{1:032X}", 10, 0, FOREVER)).records
        assert len(found) == (0 if sys_flag == 0xC else 1)


@pytest.mark.parametrize(("level", "delay_ms"), [(1, 1000), (5, 60_000), (18, 7_200_000), (99, 7_200_000)])
async def test_schedule_entries_carry_the_time_of_delivery(
    level: int, delay_ms: int, memory_disk: MemoryDisk, clock: Any, make_config: MakeConfig
) -> None:
    record = NewRecord(
        "SCHEDULE_TOPIC_XXXX", 4, b"b", f"DELAY\x01{level}\x02TAGS\x01a".encode(), tags="a", delay_level=level
    )
    async with open_store(make_config(ROOT), disk=memory_disk, clock=clock) as store:
        store.append(record)
    entry = struct.unpack_from(">qiq", memory_disk.read(f"{ROOT}/consumequeue/SCHEDULE_TOPIC_XXXX/4/{0:020d}"))
    assert entry[2] == clock.now + delay_ms
    # Dispatch from the log alone comes to the same.
    memory_disk.remove_tree(f"{ROOT}/consumequeue")
    async with open_store(make_config(ROOT), disk=memory_disk, clock=clock):
        pass
    assert struct.unpack_from(">qiq", memory_disk.read(f"{ROOT}/consumequeue/SCHEDULE_TOPIC_XXXX/4/{0:020d}")) == entry


async def test_tags_code(memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord) -> None:
    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        for n, tags in enumerate(["TagA", None, "polygenelubricants"]):
            store.append(make_record(n, tags=tags))
    entries = struct.unpack_from(">" + "qiq" * 3, memory_disk.read(f"{ROOT}/consumequeue/T/0/{0:020d}"))
    assert entries[2::3] == (2598919, 0, -(1 << 31)) == (java_hash("TagA"), 0, java_hash("polygenelubricants"))


def batch_of(*elements: tuple[bytes, bytes, int], **more: Any) -> NewBatch:
    body = b"".join(encode_batch_element(b, p, f) for b, p, f in elements)
    return NewBatch("T", 0, body, more.pop("properties", b"WAIT\x01true\x02CLUSTER\x01C"), store_host=HOST_V4, **more)


async def test_batch(memory_disk: MemoryDisk, clock: Any, make_config: MakeConfig, make_record: MakeRecord) -> None:
    elements = [(b"one", b"KEYS\x01k1\x02TAGS\x01a", 1), (b"", b"", 2), (b"three", b"KEYS\x01k3\x02", 3)]
    async with open_store(make_config(ROOT), disk=memory_disk, clock=clock) as store:
        store.append(make_record(0))
        news: list[Arrival] = []
        store.arrival_listeners.append(news.append)
        store.notify_arrivals()
        news.clear()
        result = store.append_batch(batch_of(*elements, born_timestamp=5, reconsume_times=1))
        store.notify_arrivals()
        assert result.status is AppendStatus.PUT_OK
        assert result.queue_offset == 1
        assert len(result.message_ids) == 3
        records = [RecordView(store.record_at(offset)) for offset in result.message_ids]
        assert [r.queue_offset for r in records] == [1, 2, 3]
        assert [r.body for r in records] == [b"one", b"", b"three"]
        assert [r.flag for r in records] == [1, 2, 3]
        assert [r.properties_bytes for r in records] == [
            b"KEYS\x01k1\x02TAGS\x01a\x02WAIT\x01true\x02CLUSTER\x01C",
            b"WAIT\x01true\x02CLUSTER\x01C",
            b"KEYS\x01k3\x02WAIT\x01true\x02CLUSTER\x01C",
        ]
        assert {r.store_timestamp for r in records} == {clock.now}
        assert sum(r.size_bytes for r in records) == result.size_bytes == result.end_offset - result.physical_offset
        assert news == [Arrival("T", 0, 2 + n, java_hash("a") if n == 0 else 0, clock.now) for n in range(3)]
        assert [RecordView(r).body for r in to_the_end(store.query("T", "k3", 10, 0, FOREVER)).records] == [b"three"]
        read = store.read("T", 0, 1, 32, None)
        assert read.message_count == 3
        assert len(read.slices) == 1


async def test_batches_of_all_sizes_share_a_few_structs(memory_disk: MemoryDisk, make_config: MakeConfig) -> None:
    consume_queue.entries_struct.cache_clear()
    places = []
    async with open_store(make_config(ROOT, mapped_file_size_consume_queue=20 * 300), disk=memory_disk) as store:
        for size in range(1, 100):
            result = store.append_batch(batch_of(*[(b"x", b"", 0)] * size))
            places += result.physical_offsets
        assert store.queue_bounds("T", 0) == (0, len(places))
        assert [store.record_offset_at("T", 0, number) for number in range(len(places))] == places
    assert consume_queue.entries_struct.cache_info().currsize <= 7  # of 1, 2, 4 ... 64 entries


def large_batch(store: Any, batch: NewBatch, between: Callable[[int], None]) -> AppendResult:
    """Append it, with a call after each slice of the work."""
    slices = store.append_large_batch(batch)
    for number in range(10**6):
        try:
            next(slices)
        except StopIteration as end:
            return end.value
        between(number)
    raise AssertionError("it never ends")


@pytest.mark.parametrize("file_bytes", [1 << 20, 1 << 22])
async def test_a_large_batch_is_stored_as_a_small_one(
    file_bytes: int, clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    parts = [
        (bytes(50), b"UNIQ_KEY\x01u%d\x02KEYS\x01a%d b%d\x02TAGS\x01t%d" % (n, n, n, n % 3), n) for n in range(4000)
    ]
    batch = batch_of(*parts, born_timestamp=5, reconsume_times=1)
    found = []
    for large in (False, True):
        config = make_config(ROOT, mapped_file_size_commit_log=file_bytes, mapped_file_size_consume_queue=2000)
        async with open_store(config, disk=MemoryDisk(), clock=clock) as store:
            for n in range(30):
                store.append(make_record(n, queue_id=0, topic="T", size=20_000))
            result = large_batch(store, batch, lambda _: None) if large else store.append_batch(batch)
            store.append(make_record(99, queue_id=0, topic="T"))
            store.notify_arrivals()
            records = [bytes(store.record_at(offset)) for offset in result.message_ids]
            entries = [store.queue_entry("T", 0, n) for n in range(30, 4031)]
            asked = [to_the_end(store.query("T", key, 10, 0, FOREVER)).records for key in ("u0", "b3999", "a77")]
            found.append((result, records, entries, [[bytes(r) for r in one] for one in asked]))
    assert found[0] == found[1]
    assert [len(one) for one in found[0][3]] == [1, 1, 1]


async def test_other_appends_do_not_split_a_large_batch(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    batch = batch_of(*[(b"%d" % n, b"KEYS\x01k", 0) for n in range(5000)])
    async with open_store(make_config(ROOT, mapped_file_size_commit_log=1 << 21), disk=memory_disk) as store:
        others: list[int] = []
        result = large_batch(
            store, batch, lambda n: others.append(store.append(make_record(n, topic="T", queue_id=0)).queue_offset)
        )
        store.append(make_record(0, topic="T", queue_id=0))
        assert others == list(range(len(others)))
        assert result.queue_offset == len(others) > 3
        places = [store.queue_entry("T", 0, result.queue_offset + n)[0] for n in range(5000)]
        assert tuple(places) == result.message_ids
        assert [RecordView(store.record_at(place)).body for place in places] == [b"%d" % n for n in range(5000)]
        times = [RecordView(store.record_at(store.queue_entry("T", 0, n)[0])).store_timestamp for n in range(5001)]
        assert times == sorted(times)


async def test_a_large_batch_that_is_given_up_leaves_nothing(memory_disk: MemoryDisk, make_config: MakeConfig) -> None:
    batch = batch_of(*[(b"x", b"", 0)] * 5000)
    async with open_store(make_config(ROOT, mapped_file_size_commit_log=1 << 21), disk=memory_disk) as store:
        slices = store.append_large_batch(batch)
        next(slices)
        next(slices)
        slices.close()
        assert (store.log_max_offset, store.queue_bounds("T", 0)) == (0, (0, 0))


async def test_batch_stays_in_one_file(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(ROOT, mapped_file_size_commit_log=1000), disk=memory_disk) as store:
        store.append(make_record(0, size=500))
        result = store.append_batch(batch_of((bytes(100), b"", 0), (bytes(100), b"", 0)))
        assert result.physical_offset == 1000
        assert store.append_batch(batch_of(*[(bytes(100), b"", 0)] * 5)).status is AppendStatus.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("batch", "status"),
    [
        (batch_of((b"x", b"", 0), sys_flag=0x4), AppendStatus.MESSAGE_ILLEGAL),
        (batch_of((bytes(1001), b"", 0)), AppendStatus.MESSAGE_ILLEGAL),
        (batch_of(), AppendStatus.MESSAGE_ILLEGAL),
        (batch_of((b"x", b"a" * 700, 0), properties=b"a" * 32100), AppendStatus.PROPERTIES_SIZE_EXCEEDED),
    ],
)
async def test_batch_limits(
    batch: NewBatch, status: AppendStatus, memory_disk: MemoryDisk, make_config: MakeConfig
) -> None:
    async with open_store(make_config(ROOT, max_message_size=1000), disk=memory_disk) as store:
        bad = NewBatch("T", 0, batch_of((b"good", b"", 0)).body + b"\0\0\0\x30bad", b"")
        assert store.append_batch(batch).status is status
        assert large_batch(store, batch, lambda _: None).status is status
        assert store.queue_bounds("T", 0) == (0, 0)
        with pytest.raises(BodyError):
            store.append_batch(bad)
        with pytest.raises(BodyError):
            large_batch(store, bad, lambda _: None)
        assert store.log_max_offset == 0


async def test_arrivals_and_growth_are_reported_at_the_end_of_a_batch(
    memory_disk: MemoryDisk, clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(ROOT), disk=memory_disk, clock=clock) as store:
        news: list[Arrival] = []
        ends: list[int] = []
        store.arrival_listeners.append(news.append)
        store.append_listeners.append(ends.append)
        store.append(make_record(0, tags="TagA"))
        store.append(make_record(1, queue_id=1))
        store.append(make_record(2, sys_flag=0x4))
        assert (news, ends) == ([], [])
        store.notify_arrivals()
        assert news == [Arrival("T", 0, 1, 2598919, clock.now), Arrival("T", 1, 1, 0, clock.now)]
        assert ends == [store.log_max_offset]
        store.notify_arrivals()
        assert (len(news), len(ends)) == (2, 1)
        assert store.append(make_record(3, size=1 << 20)).status is AppendStatus.MESSAGE_ILLEGAL
        store.notify_arrivals()
        assert (len(news), len(ends)) == (2, 1)


async def test_unannounced_appends_are_bounded(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(ROOT, mapped_file_size_commit_log=1 << 20), disk=memory_disk) as store:
        ends: list[int] = []
        store.append_listeners.append(ends.append)
        for n in range(4096):
            store.append(make_record(n, size=8))
        assert ends == [store.log_max_offset]


async def test_small_steps_back_of_the_clock_keep_the_times_of_the_log_in_order(
    memory_disk: MemoryDisk, clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(ROOT), disk=memory_disk, clock=clock) as store:
        start = clock.now
        times = []
        for step in (0, -400, -900, 5, -5000):
            clock.now = start + step
            times.append(store.append(make_record(step)).store_timestamp - start)
        assert times == [0, 0, 0, 5, -5000]  # a large one is accepted: the clock had been wrong before


async def test_a_slave_or_a_closed_store_takes_nothing(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(ROOT), disk=memory_disk, is_slave=True) as store:
        assert not store.writable
        assert store.append(make_record(0)).status is AppendStatus.SERVICE_NOT_AVAILABLE
        assert store.append_batch(batch_of((b"x", b"", 0))).status is AppendStatus.SERVICE_NOT_AVAILABLE
        await store.promote()
        assert store.append(make_record(0)).status is AppendStatus.PUT_OK
    assert store.append(make_record(0)).status is AppendStatus.SERVICE_NOT_AVAILABLE
    assert store.read("T", 0, 0, 1, None) is None


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "%RETRY%../../../etc", "/etc", "a\0b"])
async def test_no_topic_creates_files_outside_of_the_store(
    topic: str, memory_disk: MemoryDisk, make_config: MakeConfig
) -> None:
    async with open_store(make_config(ROOT), disk=memory_disk) as store:
        assert store.append(NewRecord(topic, 0, b"x", b"")).status is AppendStatus.MESSAGE_ILLEGAL
        batch = NewBatch(topic, 0, encode_batch_element(b"x", b""), b"")
        assert store.append_batch(batch).status is AppendStatus.MESSAGE_ILLEGAL
        assert await store.queue_removal.remove_topic(topic) == 0
        assert store.log_max_offset == 0
    assert not [path for path in memory_disk.files if "consumequeue" in path]
