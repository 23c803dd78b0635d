"""A new slave and a master with a long log: what arrives, from an unmodified 4.9 master and from ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from memory_disk import MemoryDisk

from triomq_server.config import StoreConfig
from triomq_server.replication.divergence import LogRelation, RemoteLog
from triomq_server.replication.master import HaMaster
from triomq_server.replication.rules import HaSettings
from triomq_server.replication.slave import HaSlave
from triomq_server.store import NewRecord, open_store
from triomq_server.store.opening import wall_ms

FILE_BYTES = 3000


@asynccontextmanager
async def followed(
    line: Any, both: Any, *, compat_of_master: bool, compares: bool = True, dial: Any = None
) -> AsyncIterator[HaSlave]:
    """The slave's store follows the master's over memory streams."""

    @asynccontextmanager
    async def open_master(address: str) -> AsyncIterator[RemoteLog]:
        assert address == "master:10912"
        yield RemoteLog(both.ask())

    master = HaMaster(both.master, HaSettings(file_bytes=FILE_BYTES, compat_49=compat_of_master))
    slave = HaSlave(
        both.slave, HaSettings(file_bytes=FILE_BYTES), dial=dial or line.dial, master="master:10912", seed=1,
        open_master=open_master if compares else None,
    )  # fmt: skip
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(master.serve, "", 0, listen=line.listen))
        nursery.start_soon(slave.run)
        yield slave
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("compat_of_master", [True, False])
@pytest.mark.parametrize("expired_files", [0, 2])
async def test_a_new_slave_gets_the_whole_log(
    store_pair: Any, line: Any, autojump_clock: Any, compat_of_master: bool, expired_files: int
) -> None:
    async with store_pair() as both:
        both.put(both.master, 60)
        assert both.master.log_max_offset > 4 * FILE_BYTES
        for _ in range(expired_files):
            both.master.commitlog.delete_first()
        async with followed(line, both, compat_of_master=compat_of_master) as slave:
            await trio.sleep(2)
            begin, end = both.master.log_min_offset, both.master.log_max_offset
            assert begin == expired_files * FILE_BYTES
            assert (both.slave.log_min_offset, both.slave.log_max_offset) == (begin, end)
            for offset in range(begin, end, FILE_BYTES):
                assert both.slave.log_slice(offset, FILE_BYTES) == both.master.log_slice(offset, FILE_BYTES)
            for queue_id in range(3):
                assert both.slave.queue_bounds("T", queue_id)[1] == both.master.queue_bounds("T", queue_id)[1]
            assert slave.relation is LogRelation.CLEAN
            both.put(both.master, 5)
            await trio.sleep(0.1)
            assert both.slave.log_max_offset == both.master.log_max_offset


@pytest.mark.parametrize("before", [0, 1, 5])
@pytest.mark.parametrize("compat_of_master", [True, False])
async def test_a_master_may_fill_files_while_it_is_being_asked(
    store_pair: Any, line: Any, autojump_clock: Any, compat_of_master: bool, before: int
) -> None:
    """A 4.9 master sends its newest file to a slave that reports nothing, and that may be the second one by then."""
    async with store_pair() as both:
        both.put(both.master, before)
        assert both.master.log_max_offset < FILE_BYTES

        async def dial(address: str) -> trio.abc.Stream:
            if not line.dialled:
                both.put(both.master, 60)
            return await line.dial(address)

        async with followed(line, both, compat_of_master=compat_of_master, dial=dial) as slave:
            await trio.sleep(10)
            assert (both.slave.log_min_offset, both.slave.log_max_offset) == (0, both.master.log_max_offset)
            assert slave.relation is LogRelation.CLEAN


async def test_a_master_without_any_file_yet(store_pair: Any, line: Any, autojump_clock: Any) -> None:
    """A 4.9 master then reports a log from -1 to 0."""
    async with store_pair() as both:
        both.table = {"commitLogMinOffset": "-1", "commitLogMaxOffset": "0"}
        async with followed(line, both, compat_of_master=True) as slave:
            await trio.sleep(5)
            assert slave.status.connected
            both.put(both.master, 5)
            await trio.sleep(5)
            assert both.slave.log_max_offset == both.master.log_max_offset > 0


async def test_as_in_49_it_gets_the_last_file_only(store_pair: Any, line: Any, autojump_clock: Any) -> None:
    async with store_pair() as both:
        both.put(both.master, 60)
        async with followed(line, both, compat_of_master=True, compares=False):
            await trio.sleep(10)
            end = both.master.log_max_offset
            assert both.slave.log_min_offset == end - end % FILE_BYTES > 0
            assert both.slave.log_max_offset == end


async def test_a_start_that_expires_meanwhile_is_looked_up_again(
    store_pair: Any, line: Any, autojump_clock: Any
) -> None:
    async with store_pair() as both:
        both.put(both.master, 60)
        both.master.commitlog.delete_first()

        async def dial(address: str) -> trio.abc.Stream:
            if not line.dialled:
                both.master.commitlog.delete_first()
            return await line.dial(address)

        async with followed(line, both, compat_of_master=True, dial=dial):
            await trio.sleep(20)
            assert both.slave.log_min_offset == 2 * FILE_BYTES
            assert both.slave.log_max_offset == both.master.log_max_offset


async def test_a_master_that_cannot_be_asked_is_not_followed_blindly(
    store_pair: Any, line: Any, autojump_clock: Any
) -> None:
    async with store_pair() as both:
        both.put(both.master, 10)
        both.copy(both.master, both.slave)
        both.put(both.master, 10)
        both.away = True
        async with followed(line, both, compat_of_master=True) as slave:
            await trio.sleep(10)
            assert 8 <= len(both.asked) <= 13
            assert line.dialled == []
            assert "could not be compared: " in slave.status.last_error
            both.away = False
            await trio.sleep(5)
            assert both.slave.log_max_offset == both.master.log_max_offset


async def test_a_master_whose_answers_cannot_be_read_is_followed_as_before(
    store_pair: Any, line: Any, autojump_clock: Any, caplog: Any
) -> None:
    async with store_pair() as both:
        both.put(both.master, 10)
        both.code = 16
        async with followed(line, both, compat_of_master=True):
            await trio.sleep(5)
        assert both.slave.log_max_offset == both.master.log_max_offset
        assert "followed without comparing" in caplog.text


@pytest.mark.parametrize("answers_later", [True, False])
async def test_a_new_slave_waits_a_while_for_a_master_that_answers(
    store_pair: Any, line: Any, autojump_clock: Any, answers_later: bool
) -> None:
    async with store_pair() as both:
        both.put(both.master, 60)
        usual, both.code = both.code, 16
        async with followed(line, both, compat_of_master=True) as slave:
            await trio.sleep(30)
            assert both.slave.log_max_offset == 0
            assert "the stream begins at offset 12000, the master's log at 0" in slave.status.last_error
            if answers_later:
                both.code = usual
            await trio.sleep(30)
            assert both.slave.log_min_offset == (0 if answers_later else 12000)
            assert both.slave.log_max_offset == both.master.log_max_offset


async def test_a_link_is_given_up_when_all_answers_name_another_master(
    store_pair: Any, line: Any, autojump_clock: Any
) -> None:
    async with store_pair() as both:

        @asynccontextmanager
        async def open_master(address: str) -> AsyncIterator[RemoteLog]:
            asked.append(address)
            yield RemoteLog(both.ask())

        asked: list[str] = []
        master = HaMaster(both.master, HaSettings(file_bytes=FILE_BYTES))
        slave = HaSlave(
            both.slave, HaSettings(file_bytes=FILE_BYTES), dial=line.dial, master="one:1", open_master=open_master
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(master.serve, "", 0, listen=line.listen))
            nursery.start_soon(slave.run)
            for answer in ("two:1", "one:1", "two:1", "one:1"):  # name servers that disagree
                await trio.sleep(15)
                slave.follow(answer)
            assert slave.status.links == 1
            for _ in range(2):
                slave.follow("two:1")
                await trio.sleep(15)
            assert slave.status.links == 1
            slave.follow("two:1")
            await trio.sleep(1)
            assert asked == ["one:1", "two:1"]
            assert slave.status.links == 2
            assert slave.status.connected
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("records", [0, 1, 12])
@pytest.mark.parametrize("missing", [1, 3])
async def test_a_record_whose_last_bytes_had_not_come_when_the_slave_was_killed_is_fetched_again(
    store_pair: Any, line: Any, autojump_clock: Any, records: int, missing: int
) -> None:
    """The file has zeros there, and the checksum does not cover the properties: it passes for a whole record."""
    async with store_pair() as both:
        both.put(both.master, records)
        end = both.master.append(NewRecord("T", 0, b"body", b"NAME\x01value")).end_offset
        both.copy(both.master, both.slave, end - missing)
        both.slave.append_raw(bytes(missing), end - missing)
        both.slave.dispatch()
        both.put(both.master, 5)
        async with followed(line, both, compat_of_master=False) as slave:
            await trio.sleep(10)
            assert slave.status.compared.relation is LogRelation.BEHIND
        assert both.slave.log_max_offset == both.master.log_max_offset
        assert (await both.compared()).relation is LogRelation.CLEAN
        for offset in range(0, end, 500):
            assert both.slave.log_slice(offset, 500) == both.master.log_slice(offset, 500)


@pytest.mark.parametrize("expired", [0, 1])
async def test_a_torn_record_at_the_beginning_of_the_masters_log(
    store_pair: Any, line: Any, autojump_clock: Any, expired: int
) -> None:
    """A filler is in front of it, and the file with the filler has expired at the master."""
    async with store_pair() as both:
        while both.master.log_max_offset <= FILE_BYTES:
            both.master.append(NewRecord("T", 0, b"body", b"NAME\x01value"))
        end = both.master.log_max_offset
        both.copy(both.master, both.slave, end - 2)
        both.slave.append_raw(bytes(2), end - 2)
        both.slave.dispatch()
        assert both.slave.last_record_by(end) == (FILE_BYTES, end - FILE_BYTES)
        both.put(both.master, 30)
        for _ in range(expired):
            both.master.commitlog.delete_first()
        async with followed(line, both, compat_of_master=False) as slave:
            await trio.sleep(10)
            assert slave.relation is LogRelation.CLEAN
        assert both.slave.log_slice(FILE_BYTES, FILE_BYTES) == both.master.log_slice(FILE_BYTES, FILE_BYTES)


async def test_a_last_record_that_only_looks_torn_is_kept(store_pair: Any, line: Any, autojump_clock: Any) -> None:
    """The master has another record there, not the same with more bytes."""
    async with store_pair() as both:
        both.put(both.master, 3)
        both.copy(both.master, both.slave)
        parted = both.master.log_max_offset
        both.master.append(NewRecord("T", 0, b"body", b"NAME\x01value"))
        await both.slave.promote()
        both.slave.append(NewRecord("T", 0, b"cody", b"NAME\x01val\x00\x00"))
        await both.slave.demote()
        async with followed(line, both, compat_of_master=False) as slave:
            await trio.sleep(10)
            assert slave.status.compared.relation is LogRelation.DIVERGED
        assert both.slave.log_max_offset > parted


async def test_an_empty_first_file_is_no_beginning(store_pair: Any, line: Any, autojump_clock: Any) -> None:
    """All of the slave's log was cut off, and then the master's first files expired."""
    async with store_pair() as both:
        both.put(both.master, 5)
        both.copy(both.master, both.slave)
        await both.slave.cut(0)
        both.put(both.master, 60)
        for _ in range(2):
            both.master.commitlog.delete_first()
        async with followed(line, both, compat_of_master=False) as slave:
            await trio.sleep(5)
            begin, end = 2 * FILE_BYTES, both.master.log_max_offset
            assert slave.relation is LogRelation.CLEAN
            assert (both.slave.log_min_offset, both.slave.log_max_offset) == (begin, end)
            assert both.slave.dispatched_offset == end
            for queue_id in range(3):
                assert both.slave.queue_bounds("T", queue_id)[1] == both.master.queue_bounds("T", queue_id)[1]


async def test_an_empty_log_begins_where_the_masters_does(store_pair: Any, line: Any, autojump_clock: Any) -> None:
    """All of the slave's log was cut off, down to where it began, and then the master dropped the files behind that."""
    async with store_pair() as both:
        both.put(both.master, 60)
        both.slave.append_raw(both.master.log_slice(FILE_BYTES, FILE_BYTES), FILE_BYTES)
        both.slave.dispatch()
        await both.slave.cut(FILE_BYTES)
        assert both.slave.log_min_offset == both.slave.log_max_offset == FILE_BYTES
        for _ in range(2):
            both.master.commitlog.delete_first()
        async with followed(line, both, compat_of_master=False) as slave:
            await trio.sleep(5)
            assert slave.relation is LogRelation.CLEAN
            assert (both.slave.log_min_offset, both.slave.log_max_offset) == (
                2 * FILE_BYTES,
                both.master.log_max_offset,
            )


async def test_an_empty_slave_of_an_empty_slave(store_pair: Any, line: Any, autojump_clock: Any) -> None:
    """It follows before anything has come from the master, whose first files have expired."""
    async with store_pair() as both, store_pair() as further:
        further.master = both.slave
        async with followed(type(line)(), further, compat_of_master=False) as last:
            await trio.sleep(5)
            assert last.status.connected
            both.put(both.master, 60)
            for _ in range(2):
                both.master.commitlog.delete_first()
            async with followed(line, both, compat_of_master=False):
                await trio.sleep(10)
            assert last.relation is LogRelation.CLEAN
            assert further.slave.log_min_offset == 2 * FILE_BYTES
            assert further.slave.log_max_offset == both.master.log_max_offset


async def test_a_first_record_that_does_not_fit_in_a_log_file_here(
    store_pair: Any, line: Any, autojump_clock: Any
) -> None:
    async with store_pair() as both:
        both.master.append(NewRecord("T", 0, bytes(2500), b""))

        @asynccontextmanager
        async def open_master(address: str) -> AsyncIterator[RemoteLog]:
            yield RemoteLog(both.ask())

        small = HaSettings(file_bytes=1000)
        master = HaMaster(both.master, HaSettings(file_bytes=FILE_BYTES))
        config = StoreConfig(store_path_root_dir="/small", mapped_file_size_commit_log=1000)
        async with open_store(config, disk=MemoryDisk(now_ms=wall_ms), is_slave=True) as store:
            slave = HaSlave(store, small, dial=line.dial, master="master:1", seed=1, open_master=open_master)
            async with trio.open_nursery() as nursery:
                await nursery.start(partial(master.serve, "", 0, listen=line.listen))
                nursery.start_soon(slave.run)
                await trio.sleep(10)
                assert slave.status.last_error is not None
                assert "mappedFileSizeCommitLog differs between master and slave" in slave.status.last_error
                assert store.log_max_offset == 0
                nursery.cancel_scope.cancel()


async def test_the_beginning_of_another_masters_log_is_forgotten(
    store_pair: Any, line: Any, autojump_clock: Any
) -> None:
    """The first master went away after it was asked, and the next one cannot be asked for its bounds."""
    async with store_pair() as former, store_pair() as both:
        former.put(former.master, 60)
        for _ in range(2):
            former.master.commitlog.delete_first()
        both.put(both.master, 10)
        both.code = 16

        @asynccontextmanager
        async def open_master(address: str) -> AsyncIterator[RemoteLog]:
            yield RemoteLog((former if address == "former:1" else both).ask())

        async def dial(address: str) -> trio.abc.Stream:
            if address == "former:1":
                raise ConnectionRefusedError(111, "no listener")
            return await line.dial(address)

        master = HaMaster(both.master, HaSettings(file_bytes=FILE_BYTES))
        settings = HaSettings(file_bytes=FILE_BYTES)
        slave = HaSlave(both.slave, settings, dial=dial, master="former:1", seed=1, open_master=open_master)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(master.serve, "", 0, listen=line.listen))
            nursery.start_soon(slave.run)
            await trio.sleep(5)
            slave.follow("next:1")
            await trio.sleep(10)
            assert both.slave.log_max_offset == both.master.log_max_offset
            assert both.slave.log_min_offset == 0
            nursery.cancel_scope.cancel()


async def test_a_link_soon_after_the_last_one_is_logged(
    store_pair: Any, line: Any, autojump_clock: Any, caplog: Any
) -> None:
    """The log has the end of the first one: without the line it would seem that the master is still away."""
    caplog.set_level("INFO")
    async with store_pair() as both:
        both.put(both.master, 3)
        async with followed(line, both, compat_of_master=False):
            await trio.sleep(2)
            await line.cut()
            await trio.sleep(3)
        lines = [record.message for record in caplog.records if record.name.endswith("replication.slave")]
        assert len(lines) == 3
        assert lines[1] == "master master:10912: the master closed the connection"
        assert lines[2].startswith("following master master:10912 from offset ")
