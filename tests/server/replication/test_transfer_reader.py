"""A slave over real sockets and files: the times of its reports, and large frames written to the log."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from struct import pack
from typing import Any

import pytest
import trio
import trio.lowlevel

from triomq_protocol.replication import encode_report
from triomq_server.config import StoreConfig
from triomq_server.replication.master import HaMaster
from triomq_server.replication.rules import HaSettings
from triomq_server.replication.slave import HaSlave
from triomq_server.store import AppendStatus, MessageStore, NewRecord, open_store

FILE_BYTES = 3 << 20
SETTINGS = HaSettings(file_bytes=FILE_BYTES, batch_bytes=256 * 1024)


def config(path: Path) -> StoreConfig:
    return StoreConfig(store_path_root_dir=str(path), mapped_file_size_commit_log=FILE_BYTES, max_hash_slot_num=100)


def put(store: MessageStore, count: int, size: int = 4000) -> None:
    chance = random.Random(store.log_max_offset)
    for n in range(count):
        body = chance.randbytes(chance.randrange(size))
        key = f"{store.log_max_offset:032d}"
        record = NewRecord("T", n % 3, body, b"UNIQ_KEY\x01%s\x02TAGS\x01t" % key.encode(), uniq_key=key, tags="t")
        assert store.append(record).status is AppendStatus.PUT_OK
    store.notify_arrivals()


def log_of(store: MessageStore) -> bytes:
    return b"".join(bytes(store.log_slice(at, FILE_BYTES)) for at in range(0, store.log_max_offset, FILE_BYTES))


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110 -- stores have no event for it
            await trio.sleep(0.005)


async def follow(master: MessageStore, slave: MessageStore, nursery: trio.Nursery) -> HaSlave:
    port = await nursery.start(HaMaster(master, SETTINGS).serve, "127.0.0.1", 0)
    follower = HaSlave(slave, SETTINGS, master=f"127.0.0.1:{port}")
    nursery.start_soon(follower.run)
    return follower


@pytest.fixture
def splices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that went from pipes into files; `fail_next` errors come first."""
    moved: list[int] = []
    real = os.splice

    def counted(source: int, target: int, count: int, **more: Any) -> int:
        size = real(source, target, count, **more)
        if "offset_dst" in more:
            moved.append(size)
        return size

    monkeypatch.setattr(os, "splice", counted)
    return moved


async def test_large_frames_go_into_the_file_inside_the_kernel(tmp_path: Path, splices: list[int]) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    async with open_store(config(tmp_path / "m")) as master, open_store(config(tmp_path / "s"), is_slave=True) as slave:
        put(master, 4000)
        assert master.log_max_offset > 2 * FILE_BYTES
        async with trio.open_nursery() as nursery:
            await follow(master, slave, nursery)
            await until(lambda: slave.log_max_offset == slave.dispatched_offset == master.log_max_offset)
            assert sum(splices) > 0.9 * master.log_max_offset
            put(master, 5, size=500)
            await until(lambda: slave.dispatched_offset == master.log_max_offset)
            nursery.cancel_scope.cancel()
        assert log_of(slave) == log_of(master)
        for queue in range(3):
            assert slave.queue_bounds("T", queue) == master.queue_bounds("T", queue)
        # The roles change: own appends go into the map of a file that was written through a descriptor.
        end = slave.log_max_offset
        await slave.promote()
        put(slave, 3000)
        assert log_of(slave)[:end] == log_of(master)
        reached = log_of(slave)
        await slave.demote()
    async with open_store(config(tmp_path / "s")) as again:
        assert log_of(again) == reached
        assert again.recovery_report is not None
        assert again.recovery_report.clean
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 3


async def test_a_file_system_without_splice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.splice
    refused = 0

    def refusing(source: int, target: int, count: int, **more: Any) -> int:
        nonlocal refused
        if "offset_dst" in more:
            refused += 1
            raise OSError(errno.EINVAL, "no splice here")
        return real(source, target, count, **more)

    monkeypatch.setattr(os, "splice", refusing)
    async with open_store(config(tmp_path / "m")) as master, open_store(config(tmp_path / "s"), is_slave=True) as slave:
        put(master, 1500)
        async with trio.open_nursery() as nursery:
            await follow(master, slave, nursery)
            await until(lambda: slave.dispatched_offset == master.log_max_offset)
            nursery.cancel_scope.cancel()
        assert 0 < refused < 10, "it is tried no more"
        assert log_of(slave) == log_of(master)


async def test_a_disk_that_fills_up_in_the_middle_of_a_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the file did not take is lost with the link, and sent again on the next."""
    real = os.splice
    calls = 0

    def full(source: int, target: int, count: int, **more: Any) -> int:
        nonlocal calls
        if "offset_dst" in more:
            calls += 1
            if calls in (3, 4):
                raise OSError(errno.ENOSPC, "no space left")
            if calls % 3 == 0:
                count = min(count, 1000)
        return real(source, target, count, **more)

    monkeypatch.setattr(os, "splice", full)
    async with open_store(config(tmp_path / "m")) as master, open_store(config(tmp_path / "s"), is_slave=True) as slave:
        put(master, 1500)
        async with trio.open_nursery() as nursery:
            follower = await follow(master, slave, nursery)
            await until(lambda: slave.dispatched_offset == master.log_max_offset)
            assert follower.status.links > 1
            nursery.cancel_scope.cancel()
        assert log_of(slave) == log_of(master)


async def test_bytes_that_the_disk_took_only_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    answers: list[int] = [700, -1]

    def partly(descriptor: int, data: Any, position: int) -> int:
        most = answers.pop(0) if answers else len(data)
        if most < 0:
            raise OSError(errno.ENOSPC, "no space left")
        return real(descriptor, data[:most], position)

    async with open_store(config(tmp_path / "m")) as master, open_store(config(tmp_path / "s"), is_slave=True) as slave:
        put(master, 1)
        data = log_of(master)
        assert len(data) > 700
        monkeypatch.setattr(os, "pwrite", partly)
        with pytest.raises(OSError, match="no space"):
            slave.append_raw(data, 0)
        assert slave.log_max_offset == 700
        slave.append_raw(data[700:], 700)
        assert not slave.dispatch()
        assert slave.dispatched_offset == len(data)
        assert log_of(slave) == data


async def test_room_prepared_for_own_appends_never_wipes_a_masters_bytes(tmp_path: Path) -> None:
    """A worker thread fills the space ahead of own appends with zeros, whatever the role is."""
    long = StoreConfig(store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=16 << 20, max_hash_slot_num=100)
    async with open_store(long) as store:
        put(store, 1)
        await store.demote()
        data = random.Random(0).randbytes(6 << 20)
        begin = store.log_max_offset
        store.append_raw(data, begin)
        store.commitlog.prepare()
        assert bytes(store.log_slice(begin, len(data))) == data


async def test_senders_are_answered_before_readers(memory_log: Any, line: Any, autojump_clock: Any) -> None:
    """The report is on its way when the work for readers begins."""

    class Refusing(memory_log):  # type: ignore[misc]
        def dispatch(self, most_bytes: int) -> bool:
            raise OSError(errno.ENOSPC, "no space for queues")

    async with trio.open_nursery() as nursery:
        slave = HaSlave(Refusing(b"abc"), SETTINGS, dial=line.dial, master="master:1", seed=1)
        nursery.start_soon(slave.run)
        master = await line.accept()
        assert await master.receive_some() == encode_report(3)
        await master.send_all(pack(">qi", 3, 2) + b"de")
        assert await master.receive_some() == encode_report(5)
        assert await master.receive_some() == b""
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("behind", "waits"), [(1 << 20, True), (100_000, False)])
async def test_readers_wait_while_a_master_streams_but_not_too_long(
    memory_log: Any, line: Any, autojump_clock: Any, behind: int, waits: bool
) -> None:
    """As long as bytes stream in they are taken first; further behind than `haSlaveFallbehindMax` readers never are."""
    log = memory_log(file_bytes=1 << 30)
    log.dispatched = 0
    dispatched: list[int] = []

    def dispatch(most_bytes: int) -> bool:
        log.dispatched = min(log.dispatched + most_bytes, log.log_max_offset)
        dispatched.append(log.log_max_offset)
        return bool(log.dispatched < log.log_max_offset)

    log.dispatch = dispatch
    settings = HaSettings(file_bytes=1 << 30, fall_behind_max_bytes=behind)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HaSlave(log, settings, dial=line.dial, master="master:1", seed=1).run)
        master = await line.accept()
        await master.receive_some()
        for n in range(5):
            await master.send_all(pack(">qi", n * 80_000, 80_000) + bytes(80_000))
            await trio.sleep(0.0001)
        assert log.log_max_offset == 400_000
        assert bool(dispatched) != waits
        await trio.sleep(0.1)
        assert log.dispatched == 400_000
        nursery.cancel_scope.cancel()


async def test_what_is_appended_is_on_its_way_before_any_task_runs(tmp_path: Path) -> None:
    async with open_store(config(tmp_path)) as store, trio.open_nursery() as nursery:
        port = await nursery.start(partial(HaMaster(store, SETTINGS).serve, "127.0.0.1", 0))
        async with await trio.open_tcp_stream("127.0.0.1", port) as slave:
            await slave.send_all(encode_report(0))
            await trio.sleep(0.1)
            put(store, 1, size=300)
            end = store.log_max_offset
            # Looked for with a call that never waits, so that no other task has run.
            data = os.read(slave.socket.fileno(), 10_000)
            assert data == pack(">qi", 0, end) + bytes(store.log_slice(0, end))
            # A slave that takes nothing is no reason to wait, and misses nothing.
            for _ in range(3000):
                put(store, 1)
            received = b""
            while len(received) < store.log_max_offset - end:
                data = await slave.receive_some()
                assert data
                received += data
            assert received.startswith(pack(">q", end))
        nursery.cancel_scope.cancel()
