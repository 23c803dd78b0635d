"""Bytes from a master: the same log and queues, whatever the sizes of the pieces (docs/protocol/ha.md §4)."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from memory_disk import MemoryDisk
from stored_records import encode_record

from triomq_protocol.properties import decode_properties
from triomq_server.config import StoreConfig
from triomq_server.disk import RealDisk
from triomq_server.store import AppendStatus, Arrival, MessageStore, NewRecord, ReadStatus, open_store
from triomq_server.wire import to_the_end

FOREVER = 1 << 60
MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]


def copy_log(
    source: MessageStore, target: MessageStore, chance: random.Random, until: int | None = None, most: int = 700
) -> None:
    end = source.log_max_offset if until is None else until
    while target.log_max_offset < end:
        part = source.log_slice(target.log_max_offset, min(chance.randrange(1, most), end - target.log_max_offset))
        target.append_raw(part, target.log_max_offset)
        target.dispatch()
        assert target.dispatched_offset <= target.log_max_offset


def numbers(store: MessageStore, record_number: Any, low: int, high: int) -> list[int]:
    """The numbers of the records that a queue serves from `low` to `high`, which are its bounds."""
    assert store.queue_bounds("T", 0) == (low, high)
    found = [store.read("T", 0, offset, 1, None) for offset in range(low, high)]
    return [record_number(result.slices[0]) for result in found if result is not None]


async def test_a_queue_that_is_removed_and_used_again_continues_its_offsets(
    clock: Any, make_config: MakeConfig, make_record: MakeRecord, record_number: Any
) -> None:
    """At the master, at its slave, after the slave's restart, when the slave becomes master, after everyone's kill."""
    chance = random.Random(0)
    master_disk, slave_disk = MemoryDisk(now_ms=clock), MemoryDisk(now_ms=clock)
    config = make_config("/store")
    async with (
        open_store(config, disk=master_disk, clock=clock) as master,
        open_store(config, disk=slave_disk, clock=clock, is_slave=True) as slave,
    ):
        for n in range(5):
            master.append(make_record(n))
        copy_log(master, slave, chance)
        await master.queue_removal.remove_topic("T")
        assert numbers(master, record_number, 5, 5) == []
        assert master.read("T", 0, 0, 1, None).next_offset == 5
        for n in range(100, 103):
            master.append(make_record(n))
        copy_log(master, slave, chance)
        assert numbers(master, record_number, 5, 8) == [100, 101, 102]
        assert numbers(slave, record_number, 0, 8) == [0, 1, 2, 3, 4, 100, 101, 102]
        assert await slave.queue_removal.follow(master.queue_removal.removed()) == 1
        assert await slave.queue_removal.follow(master.queue_removal.removed()) == 0
        assert numbers(slave, record_number, 5, 8) == [100, 101, 102]
        killed = [disk.after_kill() for disk in (master_disk, slave_disk)]
    for disk in (master_disk, slave_disk, *killed):
        async with open_store(config, disk=disk, clock=clock) as store:
            assert numbers(store, record_number, 5, 8) == [100, 101, 102]
    async with open_store(config, disk=slave_disk, clock=clock, is_slave=True) as slave:
        await slave.promote()
        await slave.queue_removal.remove_topic("T")
        assert slave.append(make_record(200)).queue_offset == 8
        assert numbers(slave, record_number, 8, 9) == [200]


async def remove_uncopied(old: MessageStore, new: MessageStore, make_record: MakeRecord) -> int:
    """Give a master 7 records, of which a slave copies 3, and remove their topic; the end of what both have."""
    for n in range(3):
        old.append(make_record(n))
    copy_log(old, new, random.Random(0))
    for n in range(3, 7):
        old.append(make_record(n))
    await old.queue_removal.remove_topic("T")
    return new.log_max_offset


async def test_a_removal_that_was_cut_off_with_the_log_hides_no_new_message(
    clock: Any, make_config: MakeConfig, make_record: MakeRecord, record_number: Any
) -> None:
    """The queue has been used again before the cut, so that blanks are left in front of an entry that is not."""
    old_disk, new_disk, config = MemoryDisk(now_ms=clock), MemoryDisk(now_ms=clock), make_config("/store")
    async with (
        open_store(config, disk=old_disk, clock=clock) as old,
        open_store(config, disk=new_disk, clock=clock, is_slave=True) as new,
    ):
        common = await remove_uncopied(old, new, make_record)
        assert old.append(make_record(7)).queue_offset == 7
    async with (
        open_store(config, disk=old_disk, clock=clock, is_slave=True) as old,
        open_store(config, disk=new_disk, clock=clock) as new,
    ):
        await old.cut(common)
        for n in range(100, 102):
            assert new.append(make_record(n)).queue_offset == n - 97
        copy_log(new, old, random.Random(1))
        assert numbers(old, record_number, 3, 5) == [100, 101]
        killed = old_disk.after_kill()
    for disk in (old_disk, killed):
        async with open_store(config, disk=disk, clock=clock, is_slave=True) as old:
            assert numbers(old, record_number, 3, 5) == [100, 101]


@pytest.fixture
async def jumped(clock: Any, make_config: MakeConfig, make_record: MakeRecord) -> tuple[MemoryDisk, MemoryDisk]:
    """The disks of a master whose queue continues with number 7, and of a slave whose queue has the numbers 0 to 2.

    The master has removed the topic, has lost its role before the slave had copied that, and has got it again.
    """
    old_disk, new_disk, config = MemoryDisk(now_ms=clock), MemoryDisk(now_ms=clock), make_config("/store")
    async with (
        open_store(config, disk=old_disk, clock=clock) as old,
        open_store(config, disk=new_disk, clock=clock, is_slave=True) as new,
    ):
        await remove_uncopied(old, new, make_record)
    async with (
        open_store(config, disk=old_disk, clock=clock, is_slave=True) as old,
        open_store(config, disk=new_disk, clock=clock) as new,
    ):
        await old.cut(new.log_max_offset)
    return old_disk, new_disk


@pytest.mark.parametrize("sent", [1, 3])
@pytest.mark.parametrize("then", ["follow", "promote", "kill", "restart", "start as master"])
async def test_numbers_behind_a_removal_that_a_slave_has_not_seen_cost_no_message(
    then: str,
    sent: int,
    jumped: tuple[MemoryDisk, MemoryDisk],
    clock: Any,
    make_config: MakeConfig,
    make_record: MakeRecord,
    record_number: Any,
) -> None:
    chance, config = random.Random(0), make_config("/store")
    master_disk, slave_disk = jumped
    async with open_store(config, disk=master_disk, clock=clock) as master:
        async with open_store(config, disk=slave_disk, clock=clock, is_slave=True) as slave:
            for n in range(7, 7 + sent):
                assert master.append(make_record(n)).queue_offset == n
            copy_log(master, slave, chance)
            if then == "follow":
                await slave.queue_removal.follow(master.queue_removal.removed())
                assert numbers(slave, record_number, 7, 7 + sent) == [*range(7, 7 + sent)]
            if then == "promote":
                await slave.promote()
                assert slave.append(make_record(7 + sent)).queue_offset == 7 + sent
            killed = slave_disk.after_kill()
        if then == "kill":
            slave_disk = killed
        is_slave = then not in ("promote", "start as master")
        async with open_store(config, disk=slave_disk, clock=clock, is_slave=is_slave) as slave:
            if is_slave:
                assert master.append(make_record(7 + sent)).queue_offset == 7 + sent
                copy_log(master, slave, chance)
            elif then == "start as master":
                assert slave.append(make_record(7 + sent)).queue_offset == 7 + sent
            found = numbers(slave, record_number, 7 if then == "follow" else 0, 8 + sent)
            assert found[-1 - sent :] == [*range(7, 8 + sent)]


async def test_a_record_without_an_entry_that_is_cut_off_gets_none_later(
    jumped: tuple[MemoryDisk, MemoryDisk],
    clock: Any,
    make_config: MakeConfig,
    make_record: MakeRecord,
    record_number: Any,
) -> None:
    config, (master_disk, slave_disk) = make_config("/store"), jumped
    async with (
        open_store(config, disk=master_disk, clock=clock) as master,
        open_store(config, disk=slave_disk, clock=clock, is_slave=True) as slave,
    ):
        common = slave.log_max_offset
        master.append(make_record(7))
        copy_log(master, slave, random.Random(0))
        await slave.cut(common)
        await slave.promote()
        assert slave.append(make_record(100)).queue_offset == 3
        assert numbers(slave, record_number, 0, 4) == [0, 1, 2, 100]


@pytest.mark.parametrize("part", [3, 20, 60, 150])
@pytest.mark.parametrize("is_lost", [False, True])
async def test_the_beginning_of_a_record_is_not_missed_after_a_kill(
    is_lost: bool,
    part: int,
    clock: Any,
    make_config: MakeConfig,
    make_record: MakeRecord,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The master has gone before it sent the rest of the record. A whole record that is lost is reported."""
    master_disk, slave_disk, config = MemoryDisk(now_ms=clock), MemoryDisk(now_ms=clock), make_config("/store")
    async with (
        open_store(config, disk=master_disk, clock=clock) as master,
        open_store(config, disk=slave_disk, clock=clock, is_slave=True) as slave,
    ):
        whole = []
        for n in range(4):
            whole.append(master.log_max_offset)
            master.append(make_record(n))
        end = whole[-1] + part
        copy_log(master, slave, random.Random(0), until=end)
        await slave.flush()
        await slave.flusher.flush_queues(0, checkpoint=True)
        killed = slave_disk.after_kill()
    if is_lost:
        killed.files[f"/store/commitlog/{0:020d}"].buffer[whole[-2] : end] = bytes(end - whole[-2])
    async with open_store(config, disk=killed, clock=clock, is_slave=True) as slave:
        assert slave.log_max_offset == (whole[-2] if is_lost else whole[-1])
    critical = [record.message for record in caplog.records if record.levelno == logging.CRITICAL]
    assert len(critical) == is_lost
    assert all("had been forced to the disk" in line for line in critical)


class WritingDisk(MemoryDisk):
    """Once `waits` is set, writes beside the loop wait for an event, as in a worker thread."""

    def __init__(self, now_ms: Any) -> None:
        super().__init__(now_ms=now_ms)
        self.begun, self.goes_on = trio.Event(), trio.Event()
        self.waits = self.beside = False
        self.in_loop: list[str] = []

    async def run(self, chore: Callable[[], Any]) -> Any:
        if self.waits:
            self.begun.set()
            await self.goes_on.wait()

        def marked() -> Any:
            self.beside = True
            try:
                return chore()
            finally:
                self.beside = False

        return await super().run(marked)

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        if not self.beside and "removedQueues" in path:
            self.in_loop.append(path)
        super().write(path, data, sync=sync)


@pytest.mark.parametrize("is_slave", [False, True])
async def test_removals_are_written_beside_the_loop_before_the_files_go(
    is_slave: bool, clock: Any, make_config: MakeConfig, make_record: MakeRecord, record_number: Any
) -> None:
    chance = random.Random(0)
    config = make_config("/store")
    disk = WritingDisk(clock)
    async with open_store(config, disk=MemoryDisk(now_ms=clock), clock=clock) as master:
        for n in range(5):
            master.append(make_record(n))
        async with open_store(config, disk=disk, clock=clock, is_slave=True) as store:
            copy_log(master, store, chance)
            await master.queue_removal.remove_topic("T")
            if not is_slave:
                await store.promote()
            disk.waits = True
            removal = store.queue_removal
            async with trio.open_nursery() as nursery:
                if is_slave:
                    nursery.start_soon(removal.follow, master.queue_removal.removed())
                else:
                    nursery.start_soon(removal.remove_topic, "T")
                await disk.begun.wait()
                await trio.testing.wait_all_tasks_blocked()
                assert numbers(store, record_number, 0, 5) == [0, 1, 2, 3, 4], (
                    "no file goes before the table is written"
                )
                for n in range(100, 103):  # these stay
                    master.append(make_record(n))
                    if not is_slave:
                        assert store.append(make_record(n)).queue_offset == n - 95
                if is_slave:
                    copy_log(master, store, chance)
                disk.goes_on.set()
            assert numbers(store, record_number, 5, 8) == [100, 101, 102]
            assert disk.in_loop == []
            killed = disk.after_kill()
    async with open_store(config, disk=killed, clock=clock) as store:
        assert numbers(store, record_number, 5, 8) == [100, 101, 102]


async def test_a_slave_removes_a_queue_only_when_it_has_what_was_in_it(
    clock: Any, make_config: MakeConfig, make_record: MakeRecord, record_number: Any
) -> None:
    chance = random.Random(0)
    config = make_config("/store")
    async with (
        open_store(config, disk=MemoryDisk(now_ms=clock), clock=clock) as master,
        open_store(config, disk=MemoryDisk(now_ms=clock), clock=clock, is_slave=True) as slave,
    ):
        for n in range(4):
            until = master.append(make_record(n)).end_offset
        copy_log(master, slave, chance, until)
        master.append(make_record(4))
        await master.queue_removal.remove_topic("T")
        master.append(make_record(100))
        assert await slave.queue_removal.follow(master.queue_removal.removed()) == 0
        assert numbers(slave, record_number, 0, 4) == [0, 1, 2, 3]
        copy_log(master, slave, chance)
        assert await slave.queue_removal.follow(master.queue_removal.removed()) == 1
        assert numbers(slave, record_number, 5, 6) == [100]
        assert len(slave.consume_queues.get("T", 0).segments.items) == 1


async def test_a_queue_whose_master_numbers_from_0_again_serves_what_is_new(
    clock: Any, make_config: MakeConfig, make_record: MakeRecord, record_number: Any
) -> None:
    """A master without the file of removed queues, or RocketMQ after a restart."""
    chance = random.Random(0)
    config = make_config("/store", mapped_file_size_commit_log=2000)
    disk = MemoryDisk(now_ms=clock)
    slave_disk = MemoryDisk(now_ms=clock)
    async with open_store(config, disk=slave_disk, clock=clock, is_slave=True) as slave:
        async with open_store(config, disk=disk, clock=clock) as master:
            for n in range(5):
                master.append(make_record(n))
            for n in range(10):  # a start looks at the last file
                master.append(make_record(n, topic="Other"))
            copy_log(master, slave, chance)
            await master.queue_removal.remove_topic("T")
        disk.remove("/store/triomq/removedQueues.json")
        disk.remove("/store/triomq/removedQueues.json.bak")
        async with open_store(config, disk=disk, clock=clock) as master:
            for n in range(100, 103):
                master.append(make_record(n))
            copy_log(master, slave, chance)
            assert numbers(slave, record_number, 0, 3) == numbers(master, record_number, 0, 3) == [100, 101, 102]
        killed = slave_disk.after_kill()
    async with open_store(config, disk=killed, clock=clock, is_slave=True) as slave:
        assert numbers(slave, record_number, 0, 3) == [100, 101, 102]


async def test_a_cut_forgets_a_length_that_a_damaged_file_seemed_to_have(
    clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """The start had built the queue again; after the cut the master's records come with their own numbers."""
    chance, config = random.Random(0), make_config("/store")
    disk = MemoryDisk(now_ms=clock)
    async with open_store(config, disk=MemoryDisk(now_ms=clock), clock=clock) as master:
        master.append(make_record(0, queue_id=1))
        first = master.append(make_record(1))
        for n in range(2, 6):
            master.append(make_record(n))
        async with open_store(config, disk=disk, clock=clock, is_slave=True) as slave:
            copy_log(master, slave, chance)
        path = f"/store/consumequeue/T/0/{0:020d}"
        disk.write(path, disk.read(path)[:60])  # it might have had ten entries
        async with open_store(config, disk=disk, clock=clock, is_slave=True) as slave:
            assert slave.queue_bounds("T", 0) == (0, 5)
            await slave.cut(first.physical_offset)
            assert slave.queue_bounds("T", 0) == (0, 0)
            copy_log(master, slave, chance)
            assert slave.queue_bounds("T", 0) == (0, 5)


async def test_a_queue_without_entries_takes_a_number_below_the_length_of_its_damaged_file(
    clock: Any, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """All its records have expired, so the start cannot know how many entries the file had."""
    chance, config = random.Random(0), make_config("/store", mapped_file_size_commit_log=8192)
    disk = MemoryDisk(now_ms=clock)
    async with open_store(config, disk=MemoryDisk(now_ms=clock), clock=clock) as master:
        for n in range(5):
            master.append(make_record(n))
        for n in range(60):
            master.append(make_record(n, queue_id=1))
        async with open_store(config, disk=disk, clock=clock, is_slave=True) as slave:
            copy_log(master, slave, chance)
        disk.remove(f"/store/commitlog/{0:020d}")
        path = f"/store/consumequeue/T/0/{0:020d}"
        disk.write(path, disk.read(path)[:60])
        async with open_store(config, disk=disk, clock=clock, is_slave=True) as slave:
            assert slave.queue_bounds("T", 0) == (10, 10)
            last = [master.append(make_record(n)) for n in range(5, 8)][-1]
            copy_log(master, slave, chance)
            assert slave.queue_bounds("T", 0) == (5, 8)
            assert slave.record_offset_at("T", 0, 7) == last.physical_offset
        async with open_store(config, disk=disk, clock=clock, is_slave=True) as slave:
            assert slave.queue_bounds("T", 0) == (5, 8)


@pytest.mark.parametrize("seed", range(8))
async def test_the_copy_is_identical(seed: int, clock: Any, make_config: MakeConfig, make_record: MakeRecord) -> None:
    chance = random.Random(seed)
    master_disk, slave_disk = MemoryDisk(now_ms=clock), MemoryDisk(now_ms=clock)
    config = make_config("/store", mapped_file_size_commit_log=5000)
    async with (
        open_store(config, disk=master_disk, clock=clock) as master,
        open_store(config, disk=slave_disk, clock=clock, is_slave=True) as slave,
    ):
        news: list[Arrival] = []
        slave.arrival_listeners.append(news.append)
        announced: list[Arrival] = []
        master.arrival_listeners.append(announced.append)
        for n in range(150):
            clock.now += chance.randrange(50)
            master.append(
                make_record(
                    n, queue_id=chance.randrange(3), size=chance.randrange(8, 600), keys=f"k{n % 7} x", tags="t"
                )
            )
            if n % 9 == 0:
                master.notify_arrivals()
                copy_log(master, slave, chance)
        master.append(NewRecord("SCHEDULE_TOPIC_XXXX", 1, b"b", b"DELAY\x012", delay_level=2))
        # Java's masters may have stored any text as the level: to `isdigit` these are digits, to `int` they are none.
        for text in ("\u00b2", "9" * 5000):
            master.append(NewRecord("SCHEDULE_TOPIC_XXXX", 1, b"b", f"DELAY\x01{text}".encode()))
        master.append(make_record(200, sys_flag=4))
        master.notify_arrivals()
        copy_log(master, slave, chance)
        assert slave.log_max_offset == slave.dispatched_offset == master.log_max_offset
        assert news == announced
        assert slave.checkpoint.physic_timestamp < clock.now, "nothing vouches for what no flush has forced to the disk"
        await slave.flush()
        assert slave.checkpoint.physic_timestamp == clock.now
        for key in ("k1", "x"):
            assert [*map(bytes, to_the_end(slave.query("T", key, 64, 0, FOREVER)).records)] == [
                *map(bytes, to_the_end(master.query("T", key, 64, 0, FOREVER)).records)
            ]
    for path in master_disk.files:
        if "/commitlog/" in path or "/consumequeue/" in path:
            assert slave_disk.read(path) == master_disk.read(path), path
        elif "/index/" in path:
            pass  # named by the time of creation, which the clock makes the same only by chance
    assert slave_disk.unreserved_writes() == []


async def test_a_slave_that_joins_late(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    config = make_config("/store", mapped_file_size_commit_log=3000)
    slave_disk = MemoryDisk()
    async with (
        open_store(config, disk=memory_disk) as master,
        open_store(config, disk=slave_disk, is_slave=True) as slave,
    ):
        for n in range(40):
            master.append(make_record(n, queue_id=n % 2))
        start = master.log_max_offset // 3000 * 3000
        with pytest.raises(ValueError, match="not the start of a file"):
            slave.append_raw(b"x", start + 1)
        slave.append_raw(b"", start)
        assert (slave.log_min_offset, slave.log_max_offset) == (start, start)
        copy_log(master, slave, random.Random(0))
        for queue_id in range(2):
            low, high = slave.queue_bounds("T", queue_id)
            assert high == 20
            assert low > 10
            queue = slave.consume_queues.get("T", queue_id)
            data = slave_disk.read(f"{queue.segments.directory}/{low // 10 * 200:020d}")
            assert data[: low % 10 * 20] == bytes.fromhex("0000000000000000 7fffffff 0000000000000000") * (low % 10)
            assert slave.read("T", queue_id, low - 1, 32, None).status is ReadStatus.OFFSET_TOO_SMALL
            for n in range(low, high):
                assert slave.read("T", queue_id, n, 1, None).slices == master.read("T", queue_id, n, 1, None).slices
        bounds = [slave.queue_bounds("T", q) for q in range(2)]
    async with open_store(config, disk=slave_disk, is_slave=True) as slave:
        assert [slave.queue_bounds("T", q) for q in range(2)] == bounds
        assert (slave.log_min_offset, slave.log_max_offset) == (start, master.log_max_offset)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("on", ["memory", "disk"])
async def test_a_log_that_ends_with_a_file_continues(
    on: str, restarted: bool, tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """The next record belongs into the next file; nothing is left to be reserved in this one."""
    disk = MemoryDisk() if on == "memory" else RealDisk()
    config = make_config("/store" if on == "memory" else str(tmp_path), mapped_file_size_commit_log=8192)
    async with open_store(config, disk=MemoryDisk()) as master, open_store(config, disk=disk, is_slave=True) as slave:
        for n in range(200):
            master.append(make_record(n))
        copy_log(master, slave, random.Random(0), until=16384)
        if not restarted:
            await slave.promote()
            assert slave.append(make_record(0)).status is AppendStatus.PUT_OK
    if restarted:
        async with open_store(config, disk=disk) as slave:
            assert slave.log_max_offset == 16384
            assert slave.append(make_record(0)).status is AppendStatus.PUT_OK


async def test_what_a_full_disk_has_taken_beyond_the_end_is_no_message(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """Half of a large frame was in the file when the disk was full.

    Records are often equally long: behind the first record of the new master is the old master's second one, whole and
    at the right offset.
    """
    slave_disk = MemoryDisk()
    config = make_config("/store")
    async with (
        open_store(config, disk=memory_disk) as master,
        open_store(config, disk=slave_disk, is_slave=True) as slave,
    ):
        for _ in range(3):
            master.append(make_record(0))
        third = master.append(make_record(0)).physical_offset
        end = third // 3
        copy_log(master, slave, random.Random(0), until=end)
        slave.commitlog.segments.items[0].buffer[end : master.log_max_offset] = master.log_slice(end, 1 << 20)
        await slave.promote()
        assert slave.append(make_record(0)).end_offset == 2 * end
        killed = slave_disk.after_kill()
    async with open_store(config, disk=killed) as heir:
        assert heir.log_max_offset == 2 * end


async def test_bytes_that_do_not_fit(memory_disk: MemoryDisk, make_config: MakeConfig) -> None:
    async with open_store(
        make_config("/store", mapped_file_size_commit_log=1000), disk=memory_disk, is_slave=True
    ) as slave:
        slave.append_raw(bytes(10), 0)
        with pytest.raises(ValueError, match="log's end 10"):
            slave.append_raw(b"x", 11)
        with pytest.raises(ValueError, match="cross the end of a file"):
            slave.append_raw(bytes(991), 10)
        assert slave.log_max_offset == 10


async def test_an_incomplete_record_is_dropped_at_restart_and_at_promotion(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    slave_disk = MemoryDisk()
    config = make_config("/store")
    async with open_store(config, disk=memory_disk) as master:
        for n in range(10):
            master.append(make_record(n))
        whole = master.append(make_record(10)).physical_offset
        async with open_store(config, disk=slave_disk, is_slave=True) as slave:
            copy_log(master, slave, random.Random(0), until=whole + 150)
            assert (slave.log_max_offset, slave.dispatched_offset) == (whole + 150, whole)
            killed = slave_disk.after_kill()
        for disk in (slave_disk, killed):
            async with open_store(config, disk=disk, is_slave=True) as slave:
                assert slave.log_max_offset == whole
                assert slave.recovery_report.clean == (disk is slave_disk)
                copy_log(master, slave, random.Random(1), until=whole + 200)
                await slave.promote()
                assert slave.log_max_offset == whole
                result = slave.append(make_record(11))
                assert (result.status, result.physical_offset, result.queue_offset) == (AppendStatus.PUT_OK, whole, 10)
                await slave.demote()
                assert slave.append(make_record(12)).status is AppendStatus.SERVICE_NOT_AVAILABLE
                with pytest.raises(ValueError, match="log's end"):
                    slave.append_raw(b"x", whole)


async def test_foreign_bytes_stop_dispatch_with_one_log_line(
    memory_disk: MemoryDisk, caplog: Any, make_config: MakeConfig
) -> None:
    async with open_store(make_config("/store"), disk=memory_disk, is_slave=True) as slave:
        for n in range(3):
            slave.append_raw(b"garbage!" * 20, n * 160)
            slave.dispatch()
        assert slave.dispatched_offset == 0
    assert caplog.text.count("neither a record nor an end-of-file mark at offset 0") == 1


@pytest.mark.parametrize("compat", ["safe", "4.9"])
async def test_the_checkpoint_of_a_slave_covers_what_is_on_disk(
    compat: str, clock: Any, make_config: MakeConfig, make_record: MakeRecord, autojump_clock: Any
) -> None:
    """A killed slave checks only what is past its checkpoint; with 4.9 that covers bytes that were not flushed."""
    master_disk, slave_disk = MemoryDisk(now_ms=clock), MemoryDisk(now_ms=clock)
    config = make_config(
        "/store", mapped_file_size_commit_log=3000, flush_interval_commit_log=1 << 40, compat=compat,
        flush_consume_queue_thorough_interval=10_000,
    )  # fmt: skip
    async with open_store(config, disk=master_disk, clock=clock) as master:
        for n in range(100):
            clock.now += 1000
            master.append(make_record(n))
        async with open_store(config, disk=slave_disk, clock=clock, is_slave=True) as slave:
            # Opened once before, so that recovery has left a store time of its own behind.
            copy_log(master, slave, random.Random(0), until=9000)
        async with open_store(config, disk=slave_disk, clock=clock, is_slave=True) as slave:
            copy_log(master, slave, random.Random(0))
            assert (slave.checkpoint.physic_timestamp == clock.now) == (compat == "4.9")
            await slave.flush()
            await trio.sleep(11)
            killed = slave_disk.after_kill()
        async with open_store(config, disk=killed, clock=clock, is_slave=True) as slave:
            assert not slave.recovery_report.clean
            assert slave.log_max_offset == master.log_max_offset
            if compat == "safe":
                assert slave.recovery_report.checked_from >= master.log_max_offset - 3 * 3000


@pytest.mark.parametrize(
    "odd",
    [
        {"sys_flag": 8, "queue_id": 1},
        {"born_host": bytes(16) + bytes(4)},
        {"properties": b"", "uniq_key": None, "tags": None},
        {"properties": b"TAGS\x01", "uniq_key": None, "tags": None},
        {
            "properties": b"XTAGS\x01a\x02KEYS\x01a b  c\x02UNIQ_KEY\x01u\x02",
            "uniq_key": "u",
            "keys": "a b  c",
            "tags": None,
        },
        {"topic": "SCHEDULE_TOPIC_XXXX", "properties": b"DELAY\x013\x02TAGS\x01t", "delay_level": 3, "tags": "t"},
    ],
)
async def test_odd_records_between_ordinary_ones(
    odd: dict[str, Any], memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """The fast way of dispatch stops at each of these, or agrees with the master about it."""
    slave_disk = MemoryDisk()
    config = make_config("/store")
    async with (
        open_store(config, disk=memory_disk) as master,
        open_store(config, disk=slave_disk, is_slave=True) as slave,
    ):
        for n in range(9):
            record = make_record(n, tags="t")
            if n % 3 == 1:
                for name, value in odd.items():
                    setattr(record, name, value)
            assert master.append(record).status is AppendStatus.PUT_OK
        master.notify_arrivals()
        copy_log(master, slave, random.Random(1), most=4000)
        assert slave.dispatched_offset == master.log_max_offset
        for topic, queue_id in master.queues():
            assert slave.queue_bounds(topic, queue_id) == master.queue_bounds(topic, queue_id)
            for n in range(master.queue_bounds(topic, queue_id)[1]):
                assert slave.queue_entry(topic, queue_id, n) == master.queue_entry(topic, queue_id, n)
        for key in ("a", "b", "c", "u"):
            assert [*map(bytes, to_the_end(slave.query("T", key, 64, 0, FOREVER)).records)] == [
                *map(bytes, to_the_end(master.query("T", key, 64, 0, FOREVER)).records)
            ]


@pytest.mark.parametrize("seed", range(4))
async def test_records_that_look_alike(
    seed: int, memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """Dispatch keeps the shape of the record before; a record that differs in what matters must not match it."""
    chance = random.Random(seed)
    unique = [
        "0123456789abcdef",
        "fedcba9876543210",
        "ab\x02KEYS\x01cdefghi",
        "0123456789abcd\x02\x02",
        "é123456789abcde",
        "",
    ]
    before, behind = (
        ["", "a\x01b\x02", "a\x01c\x02", "é\x01ü\x02", "é" * 30 + "\x01" + "a" * 60 + "\x02"],
        ["", "\x02TAGS\x01t", "\x02TAGS\x01u", "\x02KEYS\x01u k", "xx"],
    )
    config = make_config("/store")
    async with (
        open_store(config, disk=memory_disk) as master,
        open_store(config, disk=MemoryDisk(), is_slave=True) as slave,
    ):
        queried, last = {"u", "k", "cdefghi"}, ""
        for n in range(200):
            text = f"{chance.choice(before)}UNIQ_KEY\x01{chance.choice(unique)}{chance.choice(behind)}"
            if chance.random() < 0.7:
                text = last or text
            last = text
            record = make_record(n, queue_id=chance.randrange(2))
            known = decode_properties(text)
            record.topic = chance.choice(["T", "U"])
            record.properties = text.encode()
            record.tags, record.uniq_key, record.keys = known.get("TAGS"), known.get("UNIQ_KEY"), known.get("KEYS")
            queried |= {record.uniq_key} if record.uniq_key else set()
            assert master.append(record).status is AppendStatus.PUT_OK
        master.notify_arrivals()
        copy_log(master, slave, chance, most=3000)
        for topic, queue_id in master.queues():
            bounds = master.queue_bounds(topic, queue_id)
            assert slave.queue_bounds(topic, queue_id) == bounds
            for n in range(bounds[1]):
                assert slave.queue_entry(topic, queue_id, n) == master.queue_entry(topic, queue_id, n)
        for key in queried:
            for topic in ("T", "U"):
                found, wanted = (
                    to_the_end(store.query(topic, key, 200, 0, FOREVER)).records for store in (slave, master)
                )
                assert [*map(bytes, found)] == [*map(bytes, wanted)], key


async def test_a_masters_topic_that_cannot_have_a_directory_gets_no_queue(
    memory_disk: MemoryDisk, caplog: Any, make_config: MakeConfig
) -> None:
    def record(topic: bytes, at: int) -> bytes:
        return bytes(
            encode_record(
                topic, 0, b"body", b"", flag=0, sys_flag=0, born_timestamp=1, born_host=bytes(8), store_host=bytes(8),
                store_timestamp=1, physical_offset=at,
            )
        )  # fmt: skip

    first = record(b"%RETRY%../../x", 0)
    async with open_store(make_config("/store"), disk=memory_disk, is_slave=True) as slave:
        slave.append_raw(first + record(b"T", len(first)), 0)
        slave.dispatch()
        assert slave.queue_bounds("T", 0) == (0, 1)
        assert slave.dispatched_offset == slave.log_max_offset
        killed = memory_disk.after_kill()
    assert "the record at log offset 0 gets no queue" in caplog.text
    async with open_store(make_config("/store"), disk=killed, is_slave=True) as slave:
        assert slave.queue_bounds("T", 0) == (0, 1)
    assert not [path for path in killed.files if "x" in path.rpartition("/")[2]]


async def test_a_slave_dispatches_records_with_many_keys_in_turns(clock: Any, make_config: MakeConfig) -> None:
    """A MiB of records may have half a million keys."""
    sizes = {"mapped_file_size_commit_log": 1 << 21, "max_index_num": 1 << 18, "max_hash_slot_num": 1 << 10}
    config = make_config("/store", **sizes)
    properties = b"KEYS\x01" + b"k " * 16_000
    async with (
        open_store(config, disk=MemoryDisk(now_ms=clock), clock=clock) as master,
        open_store(config, disk=MemoryDisk(now_ms=clock), clock=clock, is_slave=True) as slave,
    ):
        for _ in range(10):
            master.append(NewRecord("T", 0, b"x", properties))
        slave.append_raw(bytes(master.log_slice(0, master.log_max_offset)), 0)
        turns = 1
        while slave.dispatch(1 << 20):
            turns += 1
        assert turns >= 4
        assert slave.dispatched_offset == master.log_max_offset
        assert slave.queue_bounds("T", 0) == (0, 10)
        while slave.dispatcher.index_is_behind:
            await trio.lowlevel.checkpoint()
        assert slave.index.files[-1].count > 10 * 16_000
        for _ in range(10):
            master.append(NewRecord("T", 0, b"x", properties))
        slave.append_raw(bytes(master.log_slice(slave.log_max_offset, 1 << 20)), slave.log_max_offset)
        await slave.promote()
        assert slave.queue_bounds("T", 0) == (0, 20), "a promotion wants all of them"
