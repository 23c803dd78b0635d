"""A cancel at every await of replication: a log stays a copy, waiting sends are answered once, tables are whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from struct import pack
from typing import Any

import trio
import trio.testing
from cancellation import each_step

from triomq_protocol.wire.command import Command
from triomq_server.replication.divergence import RemoteLog
from triomq_server.replication.master import HaMaster
from triomq_server.replication.metadata import MetadataSync
from triomq_server.replication.rules import HaSettings
from triomq_server.replication.slave import HaSlave

FILE_BYTES = 4096
SETTINGS = HaSettings(file_bytes=FILE_BYTES, batch_bytes=1000)
DATA = bytes(range(256)) * 40


async def scripted_slave(stream: trio.abc.Stream, reports: list[int]) -> None:
    """Sends the given reports, reads everything, and closes after a second."""
    async with stream:
        with trio.move_on_after(1):
            for offset in reports:
                await stream.send_all(pack(">q", offset))
            while await stream.receive_some():
                pass


async def test_serving_a_slave(autojump_clock: Any, memory_log: Any) -> None:
    log = memory_log(DATA)
    master = HaMaster(log, SETTINGS)
    steps = 0
    for cancel in each_step():
        steps += 1
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scripted_slave, theirs, [1000, 2000])
            with cancel:
                await master.serve_slave(ours)
            assert master.links == ()
            assert master.acknowledged_offset == 0
            assert not master.slave_ok(len(DATA))
        # The next slave is served from where it says.
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(master.serve_slave, ours)
            await theirs.send_all(pack(">q", 5000))
            assert (await theirs.receive_some())[:8] == pack(">q", 5000)
            await theirs.aclose()
    assert steps > 1


async def test_a_master_can_be_cancelled_while_it_starts_serves_and_stops(
    autojump_clock: Any, memory_log: Any, line: Any
) -> None:
    steps = 0
    for cancel in each_step():
        steps += 1
        here = type(line)()
        log = memory_log(DATA)
        master = HaMaster(log, SETTINGS)
        answers: list[bool] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scripted_slave, await here.dial("master"), [1000, 1500])
            with cancel, trio.move_on_after(0.5):
                await trio.lowlevel.checkpoint()
                master.when_replicated(1500, trio.current_time() + 60, answers.append)
                master.when_replicated(len(DATA), trio.current_time() + 60, answers.append)
                await master.serve("", 0, listen=here.listen)
            assert log.append_listeners == []
            assert master.links == ()
            assert len(answers) in (0, 2), "a send that waits is answered once, at the latest when the service ends"
            nursery.cancel_scope.cancel()
    assert answers == [True, False]
    assert steps > 2


async def test_following(autojump_clock: Any, memory_log: Any, line: Any) -> None:
    """The slave's only task is cancelled anywhere: its log is the beginning of the master's, and can be followed on."""
    steps = 0
    copy = memory_log()
    for cancel in each_step():
        steps += 1
        here = type(line)()
        source = memory_log(DATA + bytes(100 * steps))
        master = HaMaster(source, SETTINGS)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(master.serve, "", 0, listen=here.listen))
            slave = HaSlave(copy, SETTINGS, dial=here.dial, master="master:10912", seed=1)
            with cancel, trio.move_on_after(6.5):
                await slave.run()
            assert not slave.status.connected
            assert source.data.startswith(copy.data)
            await trio.testing.wait_all_tasks_blocked()
            assert master.links == (), f"step {steps}: the connection is open"
            follower = HaSlave(copy, SETTINGS, dial=here.dial, master="master:10912", seed=1)
            with trio.move_on_after(1):
                await follower.run()
            assert copy.data == source.data
            nursery.cancel_scope.cancel()
        if steps % 2:
            copy = memory_log()
    assert steps > 10


async def test_fetching_the_whole_log(autojump_clock: Any, store_pair: Any, line: Any) -> None:
    """A new slave of a 4.9 master, cancelled while it compares, fetches the first record, or follows."""
    steps = 0
    for cancel in each_step():
        steps += 1
        here = type(line)()
        settings = HaSettings(file_bytes=3000)
        async with store_pair() as both, trio.open_nursery() as nursery:
            both.put(both.master, 25)

            @asynccontextmanager
            async def open_master(address: str, both: Any = both) -> AsyncIterator[RemoteLog]:
                await trio.lowlevel.checkpoint()
                yield RemoteLog(both.ask())

            follow = partial(
                HaSlave, both.slave, settings, dial=here.dial, master="m:1", seed=1, open_master=open_master
            )
            master = HaMaster(both.master, HaSettings(file_bytes=3000, compat_49=True))
            await nursery.start(partial(master.serve, "", 0, listen=here.listen))
            with cancel, trio.move_on_after(1):
                await follow().run()
            end = both.slave.log_max_offset
            for at in range(0, end, 3000):
                copied = both.slave.log_slice(at, 3000)
                assert copied == both.master.log_slice(at, len(copied))
            with trio.move_on_after(5):
                await follow().run()
            assert both.slave.log_max_offset == both.slave.dispatched_offset == both.master.log_max_offset
            for queue_id in range(3):
                assert both.slave.queue_bounds("T", queue_id) == both.master.queue_bounds("T", queue_id)
            nursery.cancel_scope.cancel()
    assert steps > 10


class Tables:
    """Counts how often each table was replaced."""

    def __init__(self) -> None:
        self.taken = dict.fromkeys(("topics", "offsets", "delays", "groups"), 0)

    async def replace_topics(self, body: bytes) -> None:
        self.taken["topics"] += 1

    async def merge_consumer_offsets(self, body: bytes, fields: Mapping[str, str]) -> None:
        self.taken["offsets"] += 1

    async def save_delay_offsets(self, body: bytes, fields: Mapping[str, str]) -> None:
        self.taken["delays"] += 1

    async def replace_groups(self, body: bytes) -> None:
        self.taken["groups"] += 1


class AnsweringMaster:
    """Answers every request."""

    def __init__(self) -> None:
        self.open_links = 0

    @asynccontextmanager
    async def open_link(self, address: str) -> AsyncIterator[AnsweringMaster]:
        await trio.lowlevel.checkpoint()
        self.open_links += 1
        try:
            yield self
        finally:
            self.open_links -= 1

    async def request(self, command: Command, timeout_s: float) -> Command:
        await trio.lowlevel.checkpoint()
        return command.answer(body=b"{}")


async def test_metadata(autojump_clock: Any) -> None:
    steps = 0
    for cancel in each_step():
        steps += 1
        tables, master = Tables(), AnsweringMaster()
        sync = MetadataSync(tables, master.open_link, own_address="here:1")
        sync.follow("master:1")
        with cancel, trio.move_on_after(5):
            await sync.run()
        assert master.open_links == 0
        counts = list(tables.taken.values())
        assert counts == sorted(counts, reverse=True), "the tables are fetched in order"
        assert sync.rounds == counts[-1]
        with trio.move_on_after(1):
            await sync.run()
        assert sync.rounds == counts[-1] + 1
        assert min(tables.taken.values()) == sync.rounds
    assert steps > 5
