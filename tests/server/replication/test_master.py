"""The master's end over memory streams and the virtual clock: what it sends, when, and which reports it accepts."""

import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from struct import pack, unpack

import pytest
import trio
import trio.testing

from triomq_server.config import BrokerConfig, ConfigError, StoreConfig
from triomq_server.replication import master as master_module
from triomq_server.replication.master import HaMaster
from triomq_server.replication.rules import HaSettings

FILE_BYTES = 4096
SETTINGS = HaSettings(file_bytes=FILE_BYTES, batch_bytes=1000)
SETTINGS_49 = HaSettings(file_bytes=FILE_BYTES, batch_bytes=1000, compat_49=True)


class ScriptedSlave:
    """A slave that sends the test's bytes."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._received = bytearray()

    async def report(self, *offsets: int) -> None:
        await self.stream.send_all(b"".join(pack(">q", offset) for offset in offsets))

    async def frame(self) -> tuple[int, bytes]:
        offset, size = unpack(">qi", await self._exactly(12))
        return offset, await self._exactly(size)

    async def frames(self, count: int) -> list[tuple[int, int]]:
        return [(offset, len(body)) for offset, body in [await self.frame() for _ in range(count)]]

    async def closed(self) -> bool:
        return await self.stream.receive_some() == b""

    async def _exactly(self, count: int) -> bytes:
        while len(self._received) < count:
            data = await self.stream.receive_some()
            if not data:
                raise EOFError
            self._received += data
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken


@pytest.fixture
def serving(line) -> Callable[..., object]:
    """`async with serving(master) as connect:`, where `await connect()` is another slave."""

    @asynccontextmanager
    async def serve(master: HaMaster) -> AsyncIterator[Callable[..., object]]:
        async def connect() -> ScriptedSlave:
            return ScriptedSlave(await line.dial("master"))

        async with trio.open_nursery() as nursery:
            await nursery.start(partial(master.serve, "", 0, listen=line.listen))
            yield connect
            nursery.cancel_scope.cancel()

    return serve


async def test_nothing_before_the_first_report(serving, memory_log, autojump_clock) -> None:
    async with serving(HaMaster(memory_log(b"abc"), SETTINGS)) as connect:
        slave = await connect()
        with trio.move_on_after(15) as scope:
            await slave.frame()
        assert scope.cancelled_caught
        await slave.report(0)
        assert await slave.frame() == (0, b"abc")


async def test_batches_end_at_the_limit_and_at_the_file(serving, memory_log, autojump_clock) -> None:
    log = memory_log(bytes(range(256)) * 20)
    async with serving(HaMaster(log, SETTINGS)) as connect:
        slave = await connect()
        await slave.report(0)
        frames = [await slave.frame() for _ in range(7)]
        assert [(offset, len(body)) for offset, body in frames] == [
            (0, 1000), (1000, 1000), (2000, 1000), (3000, 1000), (4000, 96), (4096, 1000), (5096, 24),
        ]  # fmt: skip
        assert b"".join(body for _, body in frames) == log.data


async def test_growth_is_sent_at_once_and_heartbeats_fill_the_silence(serving, memory_log, autojump_clock) -> None:
    log = memory_log(b"a")
    async with serving(HaMaster(log, SETTINGS)) as connect:
        slave = await connect()
        begin = trio.current_time()
        await slave.report(1)
        assert await slave.frame() == (1, b"")
        assert trio.current_time() - begin == pytest.approx(5.0)
        await trio.sleep(1)
        log.append(b"bcd")
        assert await slave.frame() == (1, b"bcd")
        assert trio.current_time() - begin == pytest.approx(6.0)
        assert await slave.frame() == (4, b"")
        assert trio.current_time() - begin == pytest.approx(11.0)


@pytest.mark.parametrize(("settings", "first"), [(SETTINGS, 4096), (SETTINGS_49, 8192)])
async def test_an_empty_slave_gets_everything_or_as_in_49_the_last_file(
    serving, memory_log, autojump_clock, settings: HaSettings, first: int
) -> None:
    log = memory_log(b"x" * 4196, begin=4096)
    async with serving(HaMaster(log, settings)) as connect:
        slave = await connect()
        await slave.report(0)
        assert (await slave.frame())[0] == first


async def test_only_the_last_of_several_reports_counts(serving, memory_log, autojump_clock) -> None:
    master = HaMaster(memory_log(b"x" * 50), SETTINGS)
    async with serving(master) as connect:
        slave = await connect()
        await slave.report(10, 20, 30)
        assert await slave.frame() == (30, b"x" * 20)
        assert master.acknowledged_offset == 30


async def test_reports_in_pieces(serving, memory_log, autojump_clock) -> None:
    master = HaMaster(memory_log(b"x" * 50), SETTINGS)
    async with serving(master) as connect:
        slave = await connect()
        for byte in pack(">qq", 10, 50):
            await slave.stream.send_all(bytes([byte]))
            await trio.sleep(0.01)
        assert master.acknowledged_offset == 50


async def test_a_silent_slave_is_closed_after_the_housekeeping_time(serving, memory_log, autojump_clock) -> None:
    master = HaMaster(memory_log(b""), SETTINGS)
    async with serving(master) as connect:
        slave = await connect()
        await slave.report(0)
        begin = trio.current_time()
        while not await slave.closed():
            pass
        assert trio.current_time() - begin == pytest.approx(20.0)
        await trio.testing.wait_all_tasks_blocked()
        assert master.links == ()


async def test_a_slave_that_reports_now_and_then_is_kept(serving, memory_log, autojump_clock) -> None:
    master = HaMaster(memory_log(b""), SETTINGS)
    async with serving(master) as connect:
        slave = await connect()
        for _ in range(5):
            await slave.report(0)
            await trio.sleep(15)
        assert len(master.links) == 1


async def test_49_counts_connections_that_have_sent_nothing(serving, memory_log, autojump_clock) -> None:
    master = HaMaster(memory_log(b"abc"), SETTINGS_49)
    async with serving(master) as connect:
        assert not master.slave_ok(3)
        await connect()
        await trio.testing.wait_all_tasks_blocked()
        assert master.slave_ok(3)


@pytest.mark.parametrize("settings", [SETTINGS, SETTINGS_49])
async def test_what_slaves_held_of_another_log_counts_no_more(
    serving, memory_log, autojump_clock, settings: HaSettings
) -> None:
    """The log is cut, and others are appended in place of what the slaves have. 4.9 never lowers what is acknowledged,
    but changes its role with a restart only."""
    log = memory_log(b"x" * 100)
    master = HaMaster(log, settings)
    answers: list[bool] = []
    async with serving(master) as connect:
        slaves = [await connect() for _ in range(2)]
        for slave in slaves:
            await slave.report(0)
            await slave.frame()
            await slave.report(100)
        await trio.testing.wait_all_tasks_blocked()
        assert master.acknowledged_offset == 100
        del log.data[10:]
        master.close_links()
        log.append(b"y" * 20)
        master.when_replicated(30, trio.current_time() + 5, answers.append)
        assert all([await slave.closed() for slave in slaves])
        assert (answers, master.acknowledged_offset) == ([], 0)
        again = await connect()
        await again.report(10)
        assert await again.frame() == (10, b"y" * 20)
        await again.report(30)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == [True]


async def test_a_slave_that_is_ahead_is_closed_at_its_first_report(serving, memory_log, autojump_clock) -> None:
    master = HaMaster(memory_log(b"abc"), SETTINGS)
    async with serving(master) as connect:
        slave = await connect()
        await slave.report(4)
        assert await slave.closed()
        assert master.acknowledged_offset == 0


async def test_49_accepts_a_first_report_and_closes_at_the_second(serving, memory_log, autojump_clock) -> None:
    master = HaMaster(memory_log(b"abc"), SETTINGS_49)
    async with serving(master) as connect:
        slave = await connect()
        await slave.report(4)
        assert await slave.frame() == (4, b"")
        assert master.acknowledged_offset == 4
        await slave.report(4)
        assert await slave.closed()
        assert master.acknowledged_offset == 4


async def test_a_negative_report_closes(serving, memory_log, autojump_clock) -> None:
    async with serving(HaMaster(memory_log(b"abc"), SETTINGS)) as connect:
        slave = await connect()
        await slave.report(-2)
        assert await slave.closed()


async def test_below_the_log_there_are_only_heartbeats(serving, memory_log, autojump_clock, caplog) -> None:
    async with serving(HaMaster(memory_log(b"x" * 10, begin=4096), SETTINGS)) as connect:
        slave = await connect()
        await slave.report(77)
        assert await slave.frame() == (77, b"")
        await slave.report(77)
        assert await slave.frame() == (77, b"")
    assert [record.message for record in caplog.records if "never catch up" in record.message] != []


async def test_one_report_releases_all_waiting_sends_that_it_covers(serving, memory_log, autojump_clock) -> None:
    log = memory_log(b"x" * 30)
    master = HaMaster(log, SETTINGS)
    answers: list[tuple[int, bool, float]] = []
    async with serving(master) as connect:
        assert not master.slave_ok(30)
        slave = await connect()
        await trio.testing.wait_all_tasks_blocked()
        assert len(master.links) == 1
        assert not master.slave_ok(30), "a connection that has said nothing is not a slave"
        await slave.report(10)
        await slave.frame()
        assert master.slave_ok(30)
        begin = trio.current_time()
        for end in (30, 20, 10, 40):
            master.when_replicated(
                end, begin + 3, lambda ok, end=end: answers.append((end, ok, trio.current_time() - begin))
            )
        assert answers == [(10, True, 0)]
        await trio.sleep(1)
        await slave.report(30)
        await trio.sleep(1)
        assert answers[1:] == [(20, True, 1), (30, True, 1)]
        await trio.sleep(2)
        assert answers[3:] == [(40, False, 3)]
        master.when_replicated(50, begin + 100, lambda ok: answers.append((50, ok, 0)))
    assert answers[4:] == [(50, False, 0)], "the end of the service calls back all waiters"


async def test_a_later_deadline_does_not_delay_an_earlier_one(serving, memory_log, autojump_clock) -> None:
    master = HaMaster(memory_log(b""), SETTINGS)
    answers: list[tuple[str, float]] = []
    async with serving(master):
        begin = trio.current_time()
        master.when_replicated(9, begin + 50, lambda ok: answers.append(("late", trio.current_time() - begin)))
        await trio.sleep(1)
        master.when_replicated(9, begin + 2, lambda ok: answers.append(("early", trio.current_time() - begin)))
        await trio.sleep(60)
    assert answers == [("early", 2), ("late", 50)]


async def test_the_watermark_falls_when_its_slave_leaves(serving, memory_log, autojump_clock) -> None:
    master = HaMaster(memory_log(b"x" * 30), SETTINGS)
    async with serving(master) as connect:
        near, far = await connect(), await connect()
        await near.report(30)
        await far.report(5)
        await trio.sleep(0.1)
        assert master.acknowledged_offset == 30
        await near.stream.aclose()
        await trio.sleep(0.1)
        assert master.acknowledged_offset == 5


async def test_a_slave_that_does_not_read_delays_no_other(serving, memory_log, autojump_clock, line) -> None:
    log = memory_log(b"x" * 100)
    master = HaMaster(log, SETTINGS)
    async with serving(master) as connect:
        stuck, lively = await connect(), await connect()

        async def never() -> None:
            await trio.sleep_forever()

        line.accepted(0).send_stream.send_all_hook = never
        await stuck.report(0)
        await lively.report(0)
        assert await lively.frame() == (0, b"x" * 100)
        log.append(b"y")
        assert await lively.frame() == (100, b"y")


@pytest.mark.parametrize(("addresses", "known"), [("10.0.0.0/8", False), ("10.0.0.0/8;127.0.0.1", True)])
async def test_an_unlisted_slave_gets_nothing_and_does_not_count(
    memory_log, addresses: str, known: bool, caplog
) -> None:
    config = StoreConfig(ha_slave_addresses=addresses)
    master = HaMaster(memory_log(b"abc"), HaSettings.from_config(config, compat_49=False))
    async with trio.open_nursery() as nursery:
        port = await nursery.start(master.serve, "127.0.0.1", 0)
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            slave = ScriptedSlave(stream)
            try:
                await slave.report(3, 3)
                if known:
                    assert await slave.frame() == (3, b"")
                else:
                    assert await slave.closed()
            except trio.BrokenResourceError:
                assert not known
            assert master.slave_ok(3) == known
            assert len(master.links) == known
        nursery.cancel_scope.cancel()
    assert ("is not among haSlaveAddresses" in caplog.text) != known


def test_addresses_of_slaves_that_are_none_stop_the_start() -> None:
    with pytest.raises(ConfigError, match="haSlaveAddresses"):
        BrokerConfig.from_properties({"haSlaveAddresses": "10.0.0.0/33"})


async def test_the_ha_port_takes_a_limited_number_of_connections(
    serving, memory_log, autojump_clock, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(master_module, "MOST_OF_HOST", 2)
    master = HaMaster(memory_log(b""), SETTINGS)
    async with serving(master) as connect:
        slaves = [await connect() for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        assert len(master.links) == 2
        assert await slaves[2].closed()
        assert await (await connect()).closed()
    assert caplog.text.count("refusing") == 1


async def test_a_connection_without_reports_makes_room_for_a_slave(
    serving, memory_log, autojump_clock, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(master_module, "MOST_SLAVES", 3)
    master = HaMaster(memory_log(b"abc"), SETTINGS)
    async with serving(master) as connect:
        first = await connect()
        await first.report(0)
        silent = [await connect() for _ in range(2)]
        await trio.testing.wait_all_tasks_blocked()
        second = await connect()
        await second.report(0)
        await trio.testing.wait_all_tasks_blocked()
        assert await silent[0].closed()
        third = await connect()
        await third.report(0)
        await trio.testing.wait_all_tasks_blocked()
        assert await silent[1].closed()
        assert await (await connect()).closed(), "all others are slaves"
        assert len(master.links) == 3
        assert all(link.acknowledged_offset == 0 for link in master.links)
    assert caplog.text.count("which has reported nothing") == 1
    assert caplog.text.count("refusing") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="one address of the loopback elsewhere")
async def test_hosts_that_report_do_not_keep_a_slave_of_another_host_out(memory_log, monkeypatch, caplog) -> None:
    monkeypatch.setattr(master_module, "MOST_SLAVES", 4)
    master = HaMaster(memory_log(b"abc"), SETTINGS)

    async def connect(host: str, offset: int) -> trio.SocketStream:
        slave = await dial(host)
        await slave.send_all(offset.to_bytes(8, "big"))
        with trio.fail_after(30):
            while not any(link.peer == peer_of(slave) and link.acknowledged_offset == offset for link in master.links):
                await trio.lowlevel.checkpoint()
        return slave

    async def dial(host: str) -> trio.SocketStream:
        return await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port, local_address=host))

    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        port = await nursery.start(partial(master.serve, "127.0.0.1", 0))
        strangers = [await connect("127.0.0.2", offset) for offset in (3, 2, 1, 3)]
        slave = await connect("127.0.0.3", 3)
        await trio.testing.wait_all_tasks_blocked()
        assert peer_of(strangers[2]) not in {link.peer for link in master.links}, "it has least of the log"
        with trio.fail_after(30):
            assert await (await dial("127.0.0.2")).receive_some() == b""
        assert peer_of(slave) in {link.peer for link in master.links}
        assert len(master.links) == 4
        nursery.cancel_scope.cancel()
    assert "one of most from its host, for 127.0.0.3: 4 slaves are connected" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="one address of the loopback elsewhere")
async def test_a_broker_of_the_set_finds_a_place_among_many_hosts(memory_log, monkeypatch) -> None:
    monkeypatch.setattr(master_module, "MOST_SLAVES", 4)
    master = HaMaster(memory_log(b"abc"), SETTINGS)
    master.members = lambda: {"127.0.0.9"}

    async def connect(host: str) -> trio.SocketStream:
        stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port, local_address=host))
        await stream.send_all(bytes(7) + b"\3")
        return stream

    async def in_use(stream: trio.SocketStream) -> None:
        with trio.fail_after(30):
            while not any(link.peer == peer_of(stream) and link.acknowledged_offset == 3 for link in master.links):
                await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        port = await nursery.start(partial(master.serve, "127.0.0.1", 0))
        for host in range(1, 5):
            await in_use(await connect(f"127.0.0.{host}"))
        slave = await connect("127.0.0.9")
        await in_use(slave)
        for host in range(5, 8):
            with trio.fail_after(30):
                assert await (await connect(f"127.0.0.{host}")).receive_some() == b""
        await in_use(slave)
        nursery.cancel_scope.cancel()


def peer_of(stream: trio.SocketStream) -> str:
    host, port = stream.socket.getsockname()
    return f"{host}:{port}"


async def test_a_burst_of_connections_is_accepted_in_few_turns_of_the_loop(memory_log) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        port = await nursery.start(partial(HaMaster(memory_log(b"abc"), SETTINGS).serve, "127.0.0.1", 0))
        with ExitStack() as stack:
            # Without a wait in between: the master has not seen any of them when the last one has connected.
            strangers = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(200)]
            last = strangers[-1]
            nursery.start_soon(count_turns)
            with trio.fail_after(30):
                await trio.lowlevel.wait_readable(last)
            assert last.recv(1) == b"", "there are too many of this host"
        assert turns < 50
        nursery.cancel_scope.cancel()
