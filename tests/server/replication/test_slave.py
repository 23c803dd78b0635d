"""The slave against scripted masters, then against ours: the copy equals the log, whatever the link does."""

import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from struct import pack, unpack

import pytest
import trio
import trio.testing

from triomq_server.replication.master import HaMaster
from triomq_server.replication.rules import HaSettings
from triomq_server.replication.slave import HaSlave

FILE_BYTES = 4096
SETTINGS = HaSettings(file_bytes=FILE_BYTES, batch_bytes=1000)


@pytest.fixture
def following(line) -> Callable[..., object]:
    """`async with following(log) as slave:` runs a slave that dials `line`."""

    @asynccontextmanager
    async def follow(log, settings: HaSettings = SETTINGS) -> AsyncIterator[HaSlave]:
        slave = HaSlave(log, settings, dial=line.dial, master="master:10912", seed=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slave.run)
            yield slave
            nursery.cancel_scope.cancel()

    return follow


def frame(offset: int, body: bytes = b"") -> bytes:
    return pack(">qi", offset, len(body)) + body


async def reports(stream: trio.abc.Stream, count: int) -> list[int]:
    data = b""
    while len(data) < 8 * count:
        more = await stream.receive_some(8 * count - len(data))
        assert more, "the slave closed the connection"
        data += more
    return list(unpack(f">{count}q", data))


async def test_reports_at_once_then_per_batch_then_as_heartbeat(following, line, memory_log, autojump_clock) -> None:
    log = memory_log(b"abc")
    async with following(log):
        begin = trio.current_time()
        master = await line.accept()
        assert await reports(master, 1) == [3]
        assert trio.current_time() == begin
        await master.send_all(frame(3, b"de") + frame(5, b"f"))
        assert await reports(master, 1) == [6]
        assert log.data == b"abcdef"
        assert log.arrivals == 1
        assert await reports(master, 1) == [6]
        assert trio.current_time() - begin == pytest.approx(5.0)


async def test_half_a_frame_is_taken_and_reported(following, line, memory_log, autojump_clock) -> None:
    log = memory_log()
    async with following(log):
        master = await line.accept()
        await reports(master, 1)
        await master.send_all(frame(0, b"abcdef")[:-2])
        assert await reports(master, 1) == [4]
        await master.send_all(b"ef" + frame(6, b"g"))
        assert await reports(master, 1) == [7]
        assert log.data == b"abcdefg"


async def test_an_empty_log_begins_at_the_offset_of_the_first_frame(
    following, line, memory_log, autojump_clock
) -> None:
    log = memory_log()
    async with following(log):
        master = await line.accept()
        await reports(master, 1)
        await master.send_all(frame(8192) + frame(8192, b"xyz"))
        assert await reports(master, 1) == [8195]
        assert log.log_min_offset == 8192


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (frame(4, b"d"), "frame at offset 4, own log ends at 3"),
        (frame(2), "frame at offset 2, own log ends at 3"),
        (pack(">qi", 3, 4094), "mappedFileSizeCommitLog differs"),
        (pack(">qi", 3, -1), "mappedFileSizeCommitLog differs"),
    ],
)
async def test_what_does_not_fit_closes_the_link_before_a_byte_is_taken(
    following, line, memory_log, autojump_clock, bad: bytes, reason: str
) -> None:
    log = memory_log(b"abc")
    async with following(log) as slave:
        master = await line.accept()
        await reports(master, 1)
        await master.send_all(bad)
        assert await master.receive_some() == b""
        assert log.data == b"abc"
        await trio.testing.wait_all_tasks_blocked()
        assert reason in slave.status.last_error
        assert not slave.status.connected


async def test_a_silent_master_is_left_after_the_housekeeping_time(following, line, memory_log, autojump_clock) -> None:
    async with following(memory_log()) as slave:
        begin = trio.current_time()
        master = await line.accept()
        assert await reports(master, 4) == [0, 0, 0, 0]
        while await master.receive_some():
            pass
        assert trio.current_time() - begin == pytest.approx(20.0)
        await trio.testing.wait_all_tasks_blocked()
        assert "silent for 20 s" in slave.status.last_error


async def test_first_return_is_quick_then_about_once_a_second(following, line, memory_log, autojump_clock) -> None:
    async with following(memory_log()):
        master = await line.accept()
        await reports(master, 1)
        await master.send_all(frame(0))
        await trio.sleep(3)
        line.down = True
        lost = trio.current_time()
        await master.aclose()
        await trio.sleep(10)
    times = [time - lost for time in line.dialled if time > lost]
    assert 0.05 <= times[0] <= 0.1
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(gaps) in range(7, 13)
    assert all(0.8 <= gap <= 1.2 for gap in gaps)


async def test_a_master_that_accepts_and_closes_is_not_dialled_in_a_busy_loop(
    following, line, memory_log, autojump_clock
) -> None:
    async with following(memory_log()):
        with trio.move_on_after(10):
            while True:
                await (await line.accept()).aclose()
    assert len(line.dialled) <= 14


async def test_an_address_can_come_late_and_change(line, memory_log, autojump_clock) -> None:
    dialled = []

    async def dial(address: str) -> trio.abc.Stream:
        dialled.append((address, trio.current_time() - begin))
        return await line.dial(address)

    begin = trio.current_time()
    slave = HaSlave(memory_log(), SETTINGS, dial=dial)
    line.down = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slave.run)
        await trio.sleep(100)
        assert dialled == []
        slave.follow("one:1")
        await trio.sleep(0.1)
        assert dialled == [("one:1", 100)]
        slave.follow("two:2")
        await trio.sleep(0.01)
        assert [address for address, _ in dialled] == ["one:1", "two:2"]
        slave.follow(None)
        await trio.sleep(100)
        assert len(dialled) == 2
        nursery.cancel_scope.cancel()


async def test_a_full_disk_does_not_fill_the_log(
    following, line, memory_log, autojump_clock, monkeypatch, caplog
) -> None:
    """It has taken the bytes, and has no space for their queue entries: each attempt to follow ends there."""
    caplog.set_level("INFO")
    log = memory_log()

    def full(most_bytes: int) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log, "dispatch", full)
    source = memory_log(b"abc")
    async with following(log) as slave, trio.open_nursery() as nursery:
        nursery.start_soon(partial(HaMaster(source, SETTINGS).serve, "", 0, listen=line.listen))
        for _ in range(100):
            source.append(b"d")
            await trio.sleep(1)
        assert slave.status.links > 50
        nursery.cancel_scope.cancel()
    lines = [record for record in caplog.records if record.name.endswith(".slave")]
    assert 3 <= len(lines) <= 25
    assert "what has come from the master cannot be read yet: [Errno 28] No space left on device" in caplog.text


async def test_a_full_disk_ends_the_link_and_is_tried_again(following, line, memory_log, autojump_clock) -> None:
    log = memory_log()
    async with following(log) as slave:
        master = await line.accept()
        await reports(master, 1)
        log.full = True
        await master.send_all(frame(0, b"abc"))
        assert await master.receive_some() == b""
        await trio.testing.wait_all_tasks_blocked()
        assert "No space left" in slave.status.last_error
        log.full = False
        master = await line.accept()
        assert await reports(master, 1) == [0]
        await master.send_all(frame(0, b"abc"))
        assert await reports(master, 1) == [3]


@pytest.mark.parametrize("seed", range(20))
async def test_both_ends_joined_survive_cuts(following, line, memory_log, autojump_clock, seed: int) -> None:
    """Random appends on the master while the line is cut at random: in the end the logs are equal, byte for byte."""
    chance = random.Random(seed)
    source, copy = memory_log(b"begin"), memory_log()
    master = HaMaster(source, SETTINGS)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(master.serve, "", 0, listen=line.listen))
        async with following(copy) as slave:
            for _ in range(40):
                await trio.sleep(chance.uniform(0, 0.3))
                space = FILE_BYTES - source.log_max_offset % FILE_BYTES
                source.append(chance.randbytes(min(space, chance.randrange(1, 3000))))
                if chance.random() < 0.2:
                    await line.cut()
            caught_up = trio.Event()
            master.when_replicated(source.log_max_offset, trio.current_time() + 5, lambda ok: caught_up.set())
            await caught_up.wait()
            assert copy.data == source.data
            assert slave.status.received_bytes == len(source.data)
            assert [link.acknowledged_offset for link in master.links] == [len(source.data)]
        nursery.cancel_scope.cancel()


async def test_a_chain_of_slaves(following, line, memory_log, autojump_clock) -> None:
    """A slave serves another slave: what it receives is passed on at once."""
    first, second = memory_log(b"abc"), memory_log()
    relay = HaMaster(first, SETTINGS)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(relay.serve, "", 0, listen=line.listen))
        async with following(second):
            await trio.sleep(0.1)
            first.append_raw(b"def", 3)
            first.announce_end()
            await trio.sleep(0.1)
            assert second.data == b"abcdef"
        nursery.cancel_scope.cancel()
