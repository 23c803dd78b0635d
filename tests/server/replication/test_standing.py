"""Where a slave stands: its log against its master's, on real stores in memory."""

from __future__ import annotations

import random
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.command import Command
from triomq_protocol.requests.query import ViewMessageRequest
from triomq_protocol.requests.route import KVTable
from triomq_server.config import StoreConfig
from triomq_server.replication.standing import NotComparableError, RemoteLog, Standing, compare
from triomq_server.store import MessageStore, NewRecord, open_store
from triomq_server.store.memory_disk import MemoryDisk

FILE_BYTES = 3000


class Master:
    """Answers the two stock requests from a store, as a 4.9 broker does."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.asked: list[int] = []
        self.table: dict[str, str] | None = None
        self.code = 0

    async def request(self, command: Command, timeout_s: float) -> Command:
        await trio.lowlevel.checkpoint()
        self.asked.append(command.code)
        if self.code:
            return command.answer(self.code, "no")
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            table = {
                "commitLogMinOffset": str(self.store.log_min_offset),
                "commitLogMaxOffset": str(self.store.log_max_offset),
            }
            return command.answer(body=KVTable(table=table if self.table is None else self.table).encode())
        assert command.code == RequestCode.VIEW_MESSAGE_BY_ID
        offset = command.header(ViewMessageRequest).offset
        # The real one takes whatever stands there for a length.
        head = self.store.log_slice(offset, 4)
        size = struct.unpack(">i", head)[0] if head and len(head) == 4 else 0
        found = self.store.log_slice(offset, size) if size > 0 else None
        if found is None or len(found) < size:
            return command.answer(ResponseCode.SYSTEM_ERROR, "can not find message by the offset")
        return command.answer(body=bytes(found))


@attrs.define
class Pair:
    master: MessageStore
    slave: MessageStore

    async def compared(self) -> Any:
        return await compare(self.slave, RemoteLog(Master(self.master)))


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        stores = []
        for is_slave in (False, True):
            config = StoreConfig(
                store_path_root_dir="/store", mapped_file_size_commit_log=FILE_BYTES,
                mapped_file_size_consume_queue=200, max_hash_slot_num=20, max_index_num=60,
            )  # fmt: skip
            stores.append(await stack.enter_async_context(open_store(config, disk=MemoryDisk(), is_slave=is_slave)))
        yield Pair(*stores)


def put(store: MessageStore, count: int, seed: int = 0) -> None:
    chance = random.Random(f"{seed}.{store.log_max_offset}")
    for _ in range(count):
        body = chance.randbytes(chance.randrange(300))
        sys_flag = 4 if chance.random() < 0.2 else 0
        assert store.append(NewRecord("T", chance.randrange(3), body, b"", sys_flag=sys_flag)).end_offset > 0


def copy(source: MessageStore, target: MessageStore, until: int | None = None) -> None:
    end = source.log_max_offset if until is None else until
    while target.log_max_offset < end:
        target.append_raw(source.log_slice(target.log_max_offset, end - target.log_max_offset), target.log_max_offset)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.33, 0.5, 0.77, 0.999, 1.0])
async def test_a_true_beginning_is_behind_and_all_of_it_clean(fraction: float) -> None:
    """Also where the copy ends inside a record or inside a file's filler."""
    async with pair() as both:
        put(both.master, 60)
        copy(both.master, both.slave, int(both.master.log_max_offset * fraction))
        found = await both.compared()
        assert found.standing is (Standing.CLEAN if fraction == 1 else Standing.BEHIND)
        assert found.master_end == both.master.log_max_offset
        assert found.own_end == both.slave.log_max_offset


async def test_every_place_to_end_at() -> None:
    async with pair() as both:
        put(both.master, 40)
        for end in range(1, both.master.log_max_offset, 13):
            copy(both.master, both.slave, end)
            assert (await both.compared()).standing is Standing.BEHIND, end


async def test_more_than_the_master_is_ahead() -> None:
    async with pair() as both:
        put(both.master, 30)
        copy(both.master, both.slave)
        end = both.master.log_max_offset
        both.slave.promote()
        put(both.slave, 10, seed=1)
        found = await both.compared()
        assert (found.standing, found.common_end, found.master_end) == (Standing.AHEAD, end, end)
        assert not found.standing.may_follow


async def test_a_master_that_lost_everything() -> None:
    async with pair() as both:
        both.slave.promote()
        put(both.slave, 3)
        found = await both.compared()
        assert (found.standing, found.master_end, found.common_end) == (Standing.AHEAD, 0, None)


@pytest.mark.parametrize(
    ("common", "on_master", "on_slave"), [(30, 9, 9), (30, 20, 3), (30, 3, 20), (1, 30, 30), (0, 9, 9)]
)
async def test_two_histories_part_where_they_part(common: int, on_master: int, on_slave: int) -> None:
    async with pair() as both:
        put(both.master, common)
        copy(both.master, both.slave)
        parted = both.master.log_max_offset
        both.slave.promote()
        put(both.master, on_master, seed=1)
        put(both.slave, on_slave, seed=2)
        found = await both.compared()
        assert (found.standing, found.common_end) == (Standing.DIVERGED, parted)
        assert not found.standing.may_follow
        both.slave.demote()
        both.slave.cut(parted)
        assert (await both.compared()).standing is Standing.BEHIND
        copy(both.master, both.slave)
        assert (await both.compared()).standing is Standing.CLEAN


async def test_an_unfinished_record_of_another_history() -> None:
    async with pair() as both:
        put(both.master, 5)
        parted = both.master.log_max_offset
        copy(both.master, both.slave)
        put(both.master, 1, seed=1)
        fragment = bytearray(both.master.log_slice(parted, 60))
        fragment[55] ^= 1
        both.slave.append_raw(bytes(fragment), parted)
        found = await both.compared()
        assert (found.standing, found.common_end) == (Standing.DIVERGED, parted)


async def test_an_empty_slave_is_behind_whatever_there_is() -> None:
    async with pair() as both:
        assert (await both.compared()).standing is Standing.CLEAN
        put(both.master, 1)
        assert (await both.compared()).standing is Standing.BEHIND


@pytest.mark.parametrize("table", [{}, {"commitLogMinOffset": "x", "commitLogMaxOffset": "1"}])
async def test_a_master_that_does_not_say_enough(table: dict[str, str]) -> None:
    async with pair() as both:
        master = Master(both.master)
        master.table = table
        with pytest.raises(NotComparableError, match="where its log begins"):
            await compare(both.slave, RemoteLog(master))
        master.code = ResponseCode.NO_PERMISSION
        with pytest.raises(NotComparableError, match="code 16: no"):
            await compare(both.slave, RemoteLog(master))


async def test_few_questions_are_enough() -> None:
    async with pair() as both:
        put(both.master, 400)
        copy(both.master, both.slave)
        both.slave.promote()
        for store, seed in ((both.master, 1), (both.slave, 2)):
            put(store, 400, seed=seed)
        master = Master(both.master)
        assert (await compare(both.slave, RemoteLog(master))).standing is Standing.DIVERGED
        assert len(master.asked) < 30
