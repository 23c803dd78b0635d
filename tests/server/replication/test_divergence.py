"""The comparison of a slave's log with its master's, on real stores in memory."""

from __future__ import annotations

import pytest

from triomq_protocol.acl import REFUSAL
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.wire.command import Command
from triomq_server.replication.divergence import (
    Comparison,
    LogRelation,
    NotComparableError,
    RemoteLog,
    compare,
    cut_offset,
    drop_own_messages,
    first_own_offset,
)
from triomq_server.store import NewRecord, ReadStatus

FILE_BYTES = 3000


async def expire(store, files: int) -> None:
    """Delete the log's first files, as when they are too old."""
    for _ in range(files):
        store.commitlog.delete_first()
    await store.cleaner.follow_log_min()


async def check_all_is_copied(both) -> None:
    """An empty slave takes all of the master's log, and has the same entries for it."""
    begin = both.master.log_min_offset
    both.slave.append_raw(both.master.log_slice(begin, FILE_BYTES), begin)
    both.copy(both.master, both.slave)
    assert (await both.compared()).relation is LogRelation.CLEAN
    for queue_id in range(3):
        first, end = both.master.queue_bounds("T", queue_id)
        for number in range(first, end):
            entry = both.master.queue_entry("T", queue_id, number)
            assert entry[0] < begin or entry == both.slave.queue_entry("T", queue_id, number)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.33, 0.5, 0.77, 0.999, 1.0])
async def test_a_log_that_is_the_masters_beginning_is_behind_and_clean(store_pair, fraction: float) -> None:
    """Also where the copy ends inside a record or inside a file's filler."""
    async with store_pair() as both:
        both.put(both.master, 60)
        both.copy(both.master, both.slave, int(both.master.log_max_offset * fraction))
        found = await both.compared()
        assert found.relation is (LogRelation.CLEAN if fraction == 1 else LogRelation.BEHIND)
        assert found.master_end == both.master.log_max_offset
        assert found.own_end == both.slave.log_max_offset


async def test_every_place_to_end_at(store_pair) -> None:
    async with store_pair() as both:
        both.put(both.master, 40)
        for end in range(1, both.master.log_max_offset, 13):
            both.copy(both.master, both.slave, end)
            assert (await both.compared()).relation is LogRelation.BEHIND, end


async def test_more_than_the_master_is_ahead(store_pair) -> None:
    async with store_pair() as both:
        both.put(both.master, 30)
        both.copy(both.master, both.slave)
        end = both.master.log_max_offset
        await both.slave.promote()
        both.put(both.slave, 10, seed=1)
        found = await both.compared()
        assert (found.relation, found.common_end, found.master_end) == (LogRelation.AHEAD, end, end)
        assert not found.relation.may_follow


async def test_a_master_that_lost_everything(store_pair) -> None:
    async with store_pair() as both:
        await both.slave.promote()
        both.put(both.slave, 3)
        found = await both.compared()
        assert (found.relation, found.master_end, found.common_end) == (LogRelation.AHEAD, 0, None)


@pytest.mark.parametrize(
    ("common", "on_master", "on_slave"), [(30, 9, 9), (30, 20, 3), (30, 3, 20), (1, 30, 30), (0, 9, 9)]
)
async def test_divergence_is_found_where_two_logs_part(store_pair, common: int, on_master: int, on_slave: int) -> None:
    async with store_pair() as both:
        both.put(both.master, common)
        both.copy(both.master, both.slave)
        parted = both.master.log_max_offset
        await both.slave.promote()
        both.put(both.master, on_master, seed=1)
        both.put(both.slave, on_slave, seed=2)
        found = await both.compared()
        assert (found.relation, found.common_end) == (LogRelation.DIVERGED, parted)
        assert not found.relation.may_follow
        for queue_id in range(3):
            high = both.slave.queue_bounds("T", queue_id)[1]
            shared = sum(both.slave.queue_entry("T", queue_id, at)[0] < parted for at in range(high))
            assert first_own_offset(both.slave, found, "T", queue_id) == shared
            if shared < high:
                read = both.slave.read("T", queue_id, 0, 32, None)
                drop_own_messages(read, shared)
                assert (read.message_count, read.next_offset) == (shared, shared)
                assert sum(map(len, read.slices)) == read.bytes_total
                assert (read.status is ReadStatus.FOUND) == (shared > 0)
        await both.slave.demote()
        await both.slave.cut(parted)
        assert (await both.compared()).relation is LogRelation.BEHIND
        both.copy(both.master, both.slave)
        found = await both.compared()
        assert found.relation is LogRelation.CLEAN
        assert first_own_offset(both.slave, found, "T", 0) is None


async def test_a_master_whose_log_ends_within_the_first_record_here(store_pair) -> None:
    """It has lost its disk, and then got a message that is shorter: there is no whole record to compare."""
    async with store_pair() as both:
        await both.slave.promote()
        for store, size in ((both.slave, 300), (both.master, 10)):
            store.append(NewRecord("T", 0, bytes(size), b""))
            both.put(store, 3 if store is both.slave else 0)
        await both.slave.demote()
        found = await both.compared()
        assert (found.relation, found.common_end) == (LogRelation.AHEAD, None)
        assert cut_offset(both.slave, found) == 0
        await both.slave.cut(cut_offset(both.slave, found))
        assert (both.slave.log_max_offset, both.slave.queue_bounds("T", 0)) == (0, (0, 0))
        both.copy(both.master, both.slave)
        assert (await both.compared()).relation is LogRelation.CLEAN


@pytest.mark.parametrize(("expired", "expired_here"), [(1, 0), (0, 1), (1, 1)])
async def test_a_master_whose_log_ends_within_the_first_record_of_both(
    store_pair, expired: int, expired_here: int
) -> None:
    """It has another history with fewer messages, of which nothing can be compared."""
    async with store_pair() as both:
        await both.slave.promote()
        for store, small, large in ((both.slave, 100, 700), (both.master, 400, 550)):
            while store.log_max_offset < FILE_BYTES - small - 150:
                store.append(NewRecord("T", 0, bytes(small), b""))
            store.append(NewRecord("T", 0, bytes(large), b""))
        both.put(both.slave, 10)
        await both.slave.demote()
        await expire(both.master, expired)
        await expire(both.slave, expired_here)
        found = await both.compared()
        assert (found.relation, found.common_end) == (LogRelation.AHEAD, None)
        await both.slave.cut(cut_offset(both.slave, found))
        assert both.slave.log_max_offset == 0
        both.put(both.master, 5)
        await check_all_is_copied(both)


async def test_a_cut_is_in_front_of_a_record_in_which_the_master_ends(store_pair) -> None:
    async with store_pair() as both:
        await both.slave.promote()
        both.put(both.slave, 5)
        end = both.slave.log_max_offset
        last, _ = both.slave.last_record_by(end)
        found = Comparison(relation=LogRelation.AHEAD, own_end=end, master_end=end - 10)
        assert cut_offset(both.slave, found) == last


async def test_an_unfinished_record_of_another_history(store_pair) -> None:
    async with store_pair() as both:
        both.put(both.master, 5)
        parted = both.master.log_max_offset
        both.copy(both.master, both.slave)
        both.put(both.master, 1, seed=1)
        fragment = bytearray(both.master.log_slice(parted, 60))
        fragment[55] ^= 1
        both.slave.append_raw(bytes(fragment), parted)
        found = await both.compared()
        assert (found.relation, found.common_end) == (LogRelation.DIVERGED, parted)


async def test_a_filler_where_the_master_has_a_record(store_pair) -> None:
    """Both have been the master: a long message began the next file here, and a shorter one fitted in there."""
    async with store_pair() as both:
        while FILE_BYTES - both.master.log_max_offset > 500:
            both.put(both.master, 1)
        both.copy(both.master, both.slave)
        parted = both.master.log_max_offset
        await both.slave.promote()
        both.slave.append(NewRecord("T", 0, bytes(600), b""))
        await both.slave.cut(FILE_BYTES)
        await both.slave.demote()
        both.master.append(NewRecord("T", 0, b"acknowledged", b""))
        assert both.master.log_max_offset < FILE_BYTES
        both.put(both.master, 10)
        assert both.slave.log_max_offset == FILE_BYTES < both.master.log_max_offset
        found = await both.compared()
        assert (found.relation, found.common_end) == (LogRelation.DIVERGED, parted)
        await both.slave.cut(cut_offset(both.slave, found))
        both.copy(both.master, both.slave)
        assert (await both.compared()).relation is LogRelation.CLEAN


@pytest.mark.parametrize("size", [1, 4, 7])
async def test_the_first_bytes_of_a_record_of_another_size(store_pair, size: int) -> None:
    async with store_pair() as both:
        both.put(both.master, 5)
        parted = both.master.log_max_offset
        both.copy(both.master, both.slave)
        both.put(both.master, 1, seed=1)
        fragment = bytes(byte ^ 1 for byte in both.master.log_slice(parted, size))
        both.slave.append_raw(fragment, parted)
        found = await both.compared()
        assert (found.relation, found.common_end) == (LogRelation.DIVERGED, parted)


async def test_a_piece_of_another_first_record(store_pair) -> None:
    """The link was lost in the middle of it, and then the master its disk: there is no whole record to compare."""
    async with store_pair() as both:
        both.put(both.master, 1)
        fragment = bytearray(both.master.log_slice(0, 60))
        fragment[55] ^= 1
        both.slave.append_raw(bytes(fragment), 0)
        found = await both.compared()
        assert (found.relation, found.common_end) == (LogRelation.DIVERGED, 0)
        await both.slave.cut(0)
        both.copy(both.master, both.slave)
        assert (await both.compared()).relation is LogRelation.CLEAN


async def test_an_empty_log_that_does_not_begin_at_0(store_pair) -> None:
    """Its file was made for a frame that never came. A 4.9 master would take everything before it as replicated."""
    async with store_pair() as both:
        both.slave.append_raw(b"", 2 * FILE_BYTES)
        found = await both.compared()
        assert (found.own_end, found.relation, found.common_end) == (2 * FILE_BYTES, LogRelation.AHEAD, None)
        while both.master.log_max_offset < 2 * FILE_BYTES:
            both.put(both.master, 1)
        both.put(both.master, 1)
        assert (await both.compared()).relation is LogRelation.BEHIND
        await both.slave.cut(0)
        assert both.slave.log_max_offset == 0
        both.copy(both.master, both.slave)
        assert (await both.compared()).relation is LogRelation.CLEAN


async def test_an_empty_slave_is_behind_whatever_there_is(store_pair) -> None:
    async with store_pair() as both:
        assert (await both.compared()).relation is LogRelation.CLEAN
        both.put(both.master, 1)
        assert (await both.compared()).relation is LogRelation.BEHIND


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"commitLogMinOffset": "x", "commitLogMaxOffset": "1"},
        {"commitLogMinOffset": "1_0", "commitLogMaxOffset": "11"},
        # An empty slave reports where the log begins, in 64 bits.
        {"commitLogMinOffset": str(1 << 63), "commitLogMaxOffset": str(1 << 63)},
    ],
)
async def test_a_master_whose_answer_lacks_members(store_pair, table: dict[str, str]) -> None:
    async with store_pair() as both:
        master = both.ask()
        master.table = table
        with pytest.raises(NotComparableError, match="where its log begins"):
            await compare(both.slave, RemoteLog(master))
        master.code = ResponseCode.NO_PERMISSION
        with pytest.raises(NotComparableError, match="code 16: no"):
            await compare(both.slave, RemoteLog(master))


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY])
async def test_a_master_that_does_not_answer_yet(store_pair, code: ResponseCode) -> None:
    """As a 4.9 master in its first second: it must be asked again, not followed unseen."""
    async with store_pair() as both:
        master = both.ask()
        master.code = code
        with pytest.raises(ConnectionError, match=f"for now, with code {code}: no"):
            await compare(both.slave, RemoteLog(master))


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (ResponseCode.SYSTEM_BUSY, "no"),
        (ResponseCode.NO_PERMISSION, "no"),
        (ResponseCode.SYSTEM_ERROR, f"{REFUSAL}: No accessKey is configured"),
    ],
)
async def test_a_record_that_is_refused_is_not_another_record(store_pair, code: ResponseCode, remark: str) -> None:
    """Otherwise a busy master would seem to have another history, and an order to cut would drop the whole log."""
    async with store_pair() as both:
        both.put(both.master, 5)
        both.copy(both.master, both.slave)
        master = both.ask()
        answer = master.request

        async def refuse(command: Command, timeout_s: float) -> Command:
            if command.code == RequestCode.VIEW_MESSAGE_BY_ID:
                return command.answer(code, remark)
            return await answer(command, timeout_s)

        master.request = refuse
        with pytest.raises(ConnectionError, match=f"refused for now, with code {code}: {remark}"):
            await compare(both.slave, RemoteLog(master))


async def test_few_questions_are_enough(store_pair) -> None:
    async with store_pair() as both:
        both.put(both.master, 400)
        both.copy(both.master, both.slave)
        await both.slave.promote()
        for store, seed in ((both.master, 1), (both.slave, 2)):
            both.put(store, 400, seed=seed)
        master = both.ask()
        assert (await compare(both.slave, RemoteLog(master))).relation is LogRelation.DIVERGED
        assert len(master.asked) < 30


async def test_a_piece_behind_a_filler(store_pair) -> None:
    async with store_pair() as both:
        while both.master.log_max_offset <= FILE_BYTES:
            both.put(both.master, 1)
        both.put(both.master, 1)
        both.copy(both.master, both.slave, FILE_BYTES)
        fragment = bytearray(both.master.log_slice(FILE_BYTES, 60))
        fragment[55] ^= 1
        both.slave.append_raw(bytes(fragment), FILE_BYTES)
        found = await both.compared()
        assert found.relation is LogRelation.DIVERGED
        await both.slave.cut(cut_offset(both.slave, found))
        both.copy(both.master, both.slave)
        assert (await both.compared()).relation is LogRelation.CLEAN


@pytest.mark.parametrize(("expired", "expired_here"), [(2, 0), (2, 1), (3, 0), (3, 1), (0, 1), (0, 2), (1, 1), (2, 2)])
@pytest.mark.parametrize("common", [0, 3])
async def test_histories_that_differ_before_one_of_them_begins(
    store_pair, common: int, expired: int, expired_here: int
) -> None:
    """What both still have shows only that they differ, so nothing is known to be equal. Records that are kept before
    it, and queues that continue behind expired ones, would have the numbers of the master's: a reader would find other
    messages here, and miss some."""
    async with store_pair() as both:
        both.put(both.master, common)
        both.copy(both.master, both.slave)
        await both.slave.promote()
        both.put(both.slave, 60, seed=1)
        await both.slave.demote()
        both.put(both.master, 90)
        await expire(both.master, expired)
        await expire(both.slave, expired_here)
        found = await both.compared()
        assert (found.relation, found.common_end) == (LogRelation.DIVERGED, 0)
        await both.slave.cut(cut_offset(both.slave, found))
        assert both.slave.log_max_offset == 0
        await check_all_is_copied(both)


async def test_a_piece_of_the_masters_first_record(store_pair) -> None:
    """Of what the master still has, only this is here, and it belongs to another history."""
    async with store_pair() as both:
        for store, body in ((both.master, b"a"), (both.slave, b"b")):
            if store is both.slave:
                await store.promote()
            while store.log_max_offset <= FILE_BYTES:
                store.append(NewRecord("T", 0, body * 50, b""))
        fragment = bytes(both.slave.log_slice(FILE_BYTES, 60))
        await both.slave.demote()
        await both.slave.cut(FILE_BYTES)
        both.put(both.master, 60)
        both.master.commitlog.delete_first()
        assert (await both.compared()).relation is LogRelation.BEHIND
        both.slave.append_raw(fragment, FILE_BYTES)
        found = await both.compared()
        assert (found.relation, cut_offset(both.slave, found)) == (LogRelation.DIVERGED, 0)
        await both.slave.cut(0)
        both.slave.append_raw(both.master.log_slice(FILE_BYTES, 60), FILE_BYTES)
        assert (await both.compared()).relation is LogRelation.BEHIND
