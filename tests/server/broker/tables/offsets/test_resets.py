"""The choice of the newer of two brokers' offsets (docs/protocol/ha.md §7, §9)."""

from __future__ import annotations

import errno
import itertools
import random
from typing import Any

import pytest
import trio
from memory_disk import MemoryDisk

from triomq_protocol.errors import BodyError
from triomq_protocol.wire import fastjson
from triomq_server.broker.tables.offsets.committed import OffsetTable, decode_received
from triomq_server.broker.tables.offsets.resets import REMEMBERED_MS, Resets, decode_times
from triomq_server.disk.config_files import ConfigFile
from triomq_server.wire import to_the_end


class Clock:
    """Counts up at every look."""

    def __init__(self, now: int = 1000) -> None:
        self.now = now

    def __call__(self) -> int:
        self.now += 1
        return self.now


def table(clock: Clock | None = None) -> OffsetTable:
    return OffsetTable(None, resets=Resets(None, clock or Clock()))


def copy_offsets(source: OffsetTable, target: OffsetTable, *, like_java: bool = False) -> None:
    """What one broker answers to code 43, taken over by another."""
    text = fastjson.loads(source.encode())
    received = {key: {int(q): o for q, o in queues.items()} for key, queues in text["offsetTable"].items()}
    to_the_end(target.merge(received, None if like_java else decode_times(source.resets.encode())))


@pytest.mark.parametrize("like_java", [False, True])
def test_a_master_that_was_away_does_not_roll_back(like_java: bool) -> None:
    slave, master = table(), table()
    slave.commit("g", "t", 0, 200)
    slave.commit("g", "t", 1, 5)
    master.commit("g", "t", 0, 100)
    master.commit("g", "t", 2, 7)
    copy_offsets(master, slave, like_java=like_java)
    assert slave.queues("g", "t") == {0: 200, 1: 5, 2: 7}
    copy_offsets(slave, master, like_java=like_java)
    assert master.queues("g", "t") == {0: 200, 1: 5, 2: 7}


async def test_many_resets_reach_the_slave() -> None:
    """Their text is longer than what is read of other JSON with numbers as keys."""
    slave, master = table(), table()
    for offset in (200, 50):
        for n in range(2000):
            master.commit("g", f"topic{n}", 0, offset)
    body, times = to_the_end(master.for_slaves())
    assert times is not None
    assert len(times) > 2 * fastjson.MAX_TOLERANT_BYTES
    to_the_end(slave.merge(*await decode_received(body, times)))
    assert slave.query("g", "topic1999", 0) == 50
    assert slave.resets is not None
    assert slave.resets.table == master.resets.table


async def test_many_offsets_reach_the_slave() -> None:
    slave, master = table(), table()
    for n in range(8000):
        for queue in range(50):
            master.commit("g", f"topic{n}", queue, 10_000_000 + n)
    body, times = to_the_end(master.for_slaves())
    assert len(body) > 4 << 20
    to_the_end(slave.merge(*await decode_received(body, times)))
    assert slave.table == master.table


def test_as_in_49_the_master_rolls_back() -> None:
    slave = OffsetTable(None)
    slave.commit("g", "t", 0, 200)
    to_the_end(slave.merge({"t@g": {0: 100}}))
    assert slave.query("g", "t", 0) == 100


def test_a_reset_on_the_master_reaches_the_slave_once() -> None:
    slave, master = table(), table()
    master.commit("g", "t", 0, 200)
    copy_offsets(master, slave)
    master.commit("g", "t", 0, 50)
    copy_offsets(master, slave)
    assert slave.query("g", "t", 0) == 50
    slave.commit("g", "t", 0, 80)
    copy_offsets(master, slave)
    assert slave.query("g", "t", 0) == 80, "an order is obeyed once"
    copy_offsets(slave, master)
    assert master.query("g", "t", 0) == 80


def test_a_reset_on_the_slave_is_kept_when_the_master_returns() -> None:
    slave, master = table(Clock(5)), table(Clock(10_000))
    for offset in (200, 100, 200):
        master.commit("g", "t", 0, offset)
    copy_offsets(master, slave)
    slave.commit("g", "t", 0, 10)
    copy_offsets(slave, master)
    assert master.query("g", "t", 0) == 10, "later by order, although the slave's clock is behind"
    copy_offsets(master, slave)
    assert slave.query("g", "t", 0) == 10


def test_what_was_removed_stays_removed() -> None:
    slave, master = table(), table()
    for topic in ("t", "u"):
        master.commit("g", topic, 0, 200)
    copy_offsets(master, slave)
    to_the_end(master.remove_group("g"))
    copy_offsets(slave, master)
    assert master.table == {}
    copy_offsets(master, slave)
    assert slave.table == {}
    master.commit("g", "t", 0, 3)
    copy_offsets(master, slave)
    assert slave.table == {"t@g": {0: 3}}


def test_a_java_master_that_was_never_away_and_fell_was_reset() -> None:
    slave = table()
    to_the_end(slave.merge({"t@g": {0: 200, 1: 9}}))
    slave.commit("g", "t", 1, 11)
    to_the_end(slave.merge({"t@g": {0: 50, 1: 9}}, None, {"t@g": {0: 200, 1: 9}}))
    assert slave.queues("g", "t") == {0: 50, 1: 11}
    to_the_end(slave.merge({"t@g": {0: 40, 1: 9}}, None, None))
    assert slave.query("g", "t", 0) == 50


def test_cloned_offsets_are_an_order() -> None:
    slave, master = table(), table()
    master.commit("to", "t", 0, 90)
    master.commit("to", "t", 3, 90)
    master.commit("from", "t", 0, 20)
    copy_offsets(master, slave)
    to_the_end(master.clone("from", "to", "t"))
    copy_offsets(master, slave)
    assert slave.queues("to", "t") == {0: 20}


@pytest.mark.parametrize("seed", range(50))
def test_tables_agree_in_whatever_order_they_are_merged(seed: int) -> None:
    chance = random.Random(seed)
    tables = [table(Clock(chance.randrange(5))) for _ in range(3)]
    for _ in range(40):
        one = chance.choice(tables)
        match chance.randrange(6):
            case 0:
                to_the_end(one.remove_group(chance.choice("gh")))
            case 1:
                copy_offsets(one, chance.choice(tables))
            case _:
                one.commit(chance.choice("gh"), "t", chance.randrange(2), chance.randrange(100))
    for source, target in itertools.permutations(tables, 2):
        copy_offsets(source, target)
    for source, target in itertools.permutations(tables, 2):
        copy_offsets(source, target)
    assert tables[0].table == tables[1].table == tables[2].table


@pytest.mark.parametrize("times", ["", "[]", '{"t@g":3}', '{"t@g":{"0":"x"}}'])
async def test_unreadable_times_change_nothing(times: str) -> None:
    offsets = table()
    offsets.commit("g", "t", 0, 1)
    with pytest.raises(BodyError):
        to_the_end(offsets.merge(*await decode_received(b'{"offsetTable":{"t@g":{0:4}}}', times)))
    assert offsets.table == {"t@g": {0: 1}}


def test_resets_survive_a_restart() -> None:
    disk = MemoryDisk()

    def opened() -> OffsetTable:
        resets = Resets(ConfigFile("/s/triomq/offsetResets.json", disk), Clock())
        offsets = OffsetTable(ConfigFile("/s/config/consumerOffset.json", disk), resets=resets)
        offsets.load()
        return offsets

    master: Any = opened()
    slave = table()
    master.commit("g", "t", 0, 200)
    copy_offsets(master, slave)
    master.commit("g", "t", 0, 50)
    master.persist()
    copy_offsets(opened(), slave)
    assert slave.query("g", "t", 0) == 50


class Killed(BaseException):
    """Ends the process between two files."""


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("at_the_end", [False, True])
async def test_a_reset_survives_a_kill_between_the_two_files(
    at_the_end: bool, removed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = MemoryDisk()

    def opened() -> OffsetTable:
        resets = Resets(ConfigFile("/s/triomq/offsetResets.json", disk), Clock())
        offsets = OffsetTable(ConfigFile("/s/config/consumerOffset.json", disk), resets=resets)
        offsets.load()
        return offsets

    slave, master = table(), opened()
    master.commit("g", "t", 0, 200)
    await master.persist_in_background()
    copy_offsets(master, slave)
    if removed:
        to_the_end(master.remove_group("g"))
    else:
        master.commit("g", "t", 0, 50)
    copy_offsets(master, slave)
    saved, save = [], ConfigFile.save

    def save_one(file: ConfigFile, data: bytes) -> None:
        if saved:
            raise Killed
        save(file, data)
        saved.append(file.path)

    monkeypatch.setattr(ConfigFile, "save", save_one)
    with pytest.raises(Killed):
        master.persist() if at_the_end else await master.persist_in_background()
    master = opened()
    copy_offsets(slave, master)
    copy_offsets(master, slave)
    assert master.queues("g", "t") == slave.queues("g", "t") == ({} if removed else {0: 50})


async def test_times_whose_write_is_cancelled_are_written_at_the_end(autojump_clock: Any) -> None:
    disk = MemoryDisk()
    resets = Resets(ConfigFile("/s/triomq/offsetResets.json", disk), Clock())
    with trio.CancelScope() as scope:
        scope.cancel()
        await resets.save(b"{}")
    assert resets.changed


async def test_times_that_the_disk_refused_are_written_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    path = "/s/triomq/offsetResets.json"
    offsets = OffsetTable(
        ConfigFile("/s/config/consumerOffset.json", disk), resets=Resets(ConfigFile(path, disk), Clock())
    )
    offsets.commit("g", "t", 0, 200)
    offsets.commit("g", "t", 0, 50)
    save = ConfigFile.save

    def save_others(file: ConfigFile, data: bytes) -> None:
        if file.path == path:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(file, data)

    with monkeypatch.context() as patch:
        patch.setattr(ConfigFile, "save", save_others)
        assert not await offsets.persist_in_background()
    assert await offsets.persist_in_background()
    read = Resets(ConfigFile(path, disk), Clock())
    read.load()
    assert read.time_of("t@g", 0)


def test_resets_of_groups_removed_long_ago_are_dropped() -> None:
    clock = Clock()
    offsets = table(clock)
    for group in "ghi":
        offsets.commit(group, "t", 0, 9)
        offsets.commit(group, "t", 1, 9)
    to_the_end(offsets.remove_group("g"))
    offsets.commit("h", "t", 0, 1)
    clock.now += REMEMBERED_MS
    to_the_end(offsets.remove_group("i"))
    offsets.persist()
    assert {key: set(queues) for key, queues in offsets.resets.table.items()} == {"t@h": {0}, "t@i": {0, 1}}


@pytest.mark.parametrize("merged", [False, True])
def test_times_of_removed_groups_are_limited_the_oldest_go_first(merged: bool) -> None:
    clock = Clock()
    limit_bytes = 4 * 10 * (300 + len("t@g00") + 64)
    resets = Resets(None, clock, limit_bytes=limit_bytes)
    offsets = OffsetTable(None, resets=resets)
    offsets.commit("kept", "t", 0, 5)
    offsets.commit("kept", "t", 0, 4)
    for number in range(30):
        offsets.commit(f"g{number:02}", "t", 0, 1)
        to_the_end(offsets.remove_group(f"g{number:02}"))
    if merged:
        offsets.commit("g05", "t", 0, 1)
    to_the_end(resets.forget_long_gone(offsets.table))
    last = [f"t@g{number:02}" for number in range(20, 30)]
    assert list(resets.table) == ["t@kept", *(["t@g05"] if merged else []), *last]
