"""A SYNC_MASTER's answers and their times, with slaves that a test controls (docs/protocol/ha.md §6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from struct import pack, unpack
from typing import Any, TypeVar

import pytest
import trio
import trio.lowlevel
from memory_disk import MemoryDisk
from memory_network import MemoryNetwork

from triomq_protocol.wire.command import Command
from triomq_server.broker.admin.ha import CHANGE_ROLE

SENT, FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT = 0, 10, 11, 12
HA_PORT = 10912
T = TypeVar("T")


class HandSlave:
    """A slave controlled by the test: it reports on demand, and counts what it receives."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.end = 0
        self.closed = False

    @classmethod
    async def connect(cls, network: MemoryNetwork, nursery: trio.Nursery, report: int | None = 0) -> HandSlave:
        slave = cls(await network.dial(f"127.0.0.1:{HA_PORT}"))
        nursery.start_soon(slave._read)
        if report is not None:
            await slave.report(report)
        await trio.sleep(0.05)
        return slave

    async def report(self, offset: int | None = None) -> None:
        await self.stream.send_all(pack(">q", self.end if offset is None else offset))

    async def acknowledge(self, delay_s: float) -> None:
        """Report everything received after a delay, until the end."""
        while not self.closed:
            await trio.sleep(delay_s)
            try:
                await self.report()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    async def _read(self) -> None:
        data = b""
        while True:
            try:
                part = await self.stream.receive_some(65536)
            except trio.ClosedResourceError:  # gone by the test's order
                part = b""
            if not part:
                self.closed = True
                return
            data += part
            while len(data) >= 12:
                offset, size = unpack(">qi", data[:12])
                if len(data) < 12 + size:
                    break
                self.end = offset + size
                data = data[12 + size :]


async def timed_put(broker: Any, **fields: Any) -> tuple[int, float]:
    """Code and seconds of a send on a link of its own."""
    peer = await broker.peer()
    begin = trio.current_time()
    answer = await peer.put(**fields)
    return answer.code, round(trio.current_time() - begin, 2)


def sync_master(open_broker: Any, network: MemoryNetwork, **settings: Any) -> Any:
    return open_broker(network=network, brokerRole="SYNC_MASTER", **settings)


async def test_one_slow_slave_does_not_make_a_fast_one_late(open_broker: Any) -> None:
    network = MemoryNetwork()
    async with trio.open_nursery() as hands, sync_master(open_broker, network) as broker:
        await HandSlave.connect(network, hands)  # never says anything again
        fast = await HandSlave.connect(network, hands)
        slow = await HandSlave.connect(network, hands)
        hands.start_soon(fast.acknowledge, 0.01)
        hands.start_soon(slow.acknowledge, 2.5)
        for _ in range(50):
            code, seconds = await timed_put(broker)
            assert code == SENT
            assert seconds <= 0.02
        hands.cancel_scope.cancel()


async def test_waiting_requests_are_released_together_by_one_report(open_broker: Any) -> None:
    network = MemoryNetwork()
    async with trio.open_nursery() as hands, sync_master(open_broker, network) as broker:
        slave = await HandSlave.connect(network, hands)
        outcomes: list[tuple[int, float]] = []

        async def put() -> None:
            outcomes.append(await timed_put(broker))

        for _ in range(30):
            hands.start_soon(put)
        await trio.sleep(1)
        assert outcomes == []
        await slave.report()
        await trio.lowlevel.checkpoint()
        await trio.sleep(0.01)
        assert outcomes == [(SENT, 1.0)] * 30
        hands.cancel_scope.cancel()


async def test_statuses_of_sends_while_a_slave_comes_and_goes(open_broker: Any) -> None:
    network = MemoryNetwork()
    async with trio.open_nursery() as hands, sync_master(open_broker, network, slaveTimeout=3000) as broker:
        assert await timed_put(broker) == (SLAVE_NOT_AVAILABLE, 0)
        assert await timed_put(broker, properties="WAIT\x01false") == (SENT, 0)
        slave = await HandSlave.connect(network, hands)
        # Stopped: it neither reads nor reports.
        assert await timed_put(broker) == (FLUSH_SLAVE_TIMEOUT, 3.0)
        assert await timed_put(broker, properties="WAIT\x01false") == (SENT, 0)
        await trio.sleep(18)
        assert slave.closed
        assert await timed_put(broker) == (SLAVE_NOT_AVAILABLE, 0)
        back = await HandSlave.connect(network, hands)
        await back.report()
        hands.start_soon(back.acknowledge, 0.5)
        code, seconds = await timed_put(broker)
        assert code == SENT
        assert seconds <= 0.5
        hands.cancel_scope.cancel()


class StuckDisk(MemoryDisk):
    """Takes everything and forces nothing to the disk until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.loose = trio.Event()

    async def run(self, chore: Callable[[], T]) -> T:
        await self.loose.wait()
        return await super().run(chore)

    @asynccontextmanager
    async def let_go_at_the_end(self) -> AsyncIterator[None]:
        """A broker does not end before its disk has taken everything, whatever has failed."""
        try:
            yield
        finally:
            self.loose.set()


@pytest.mark.parametrize(
    ("flush_timeout", "slave", "expected"),
    [
        (1000, "acknowledges", (FLUSH_DISK_TIMEOUT, 1.0)),
        (5000, "acknowledges", (FLUSH_DISK_TIMEOUT, 5.0)),
        # The slave's status outweighs the disk's, whichever is known first.
        (1000, "silent", (FLUSH_SLAVE_TIMEOUT, 1.2)),
        (5000, "silent", (FLUSH_SLAVE_TIMEOUT, 5.0)),
        (1000, "away", (SLAVE_NOT_AVAILABLE, 1.0)),
    ],
)
async def test_disk_and_slave_are_waited_for_together(
    open_broker: Any, flush_timeout: int, slave: str, expected: tuple[int, float]
) -> None:
    network, disk = MemoryNetwork(), StuckDisk()
    settings = {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": flush_timeout}
    async with (
        trio.open_nursery() as hands,
        sync_master(open_broker, network, disk=disk, **settings) as broker,
        disk.let_go_at_the_end(),
    ):
        if slave != "away":
            hand = await HandSlave.connect(network, hands)
            if slave == "acknowledges":
                hands.start_soon(hand.acknowledge, 0.1)
        assert await timed_put(broker) == expected
        assert await timed_put(broker, properties="WAIT\x01false") == (SENT, 0)
        disk.loose.set()
        await trio.sleep(1)
        if slave == "acknowledges":
            assert (await timed_put(broker))[0] == SENT
        hands.cancel_scope.cancel()


async def test_a_disk_that_takes_too_long(open_broker: Any) -> None:
    disk = StuckDisk()
    settings = {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": 700}
    async with open_broker(disk=disk, **settings) as broker, disk.let_go_at_the_end():
        code, seconds = await timed_put(broker)
        assert (code, seconds) == (FLUSH_DISK_TIMEOUT, 0.7)
        disk.loose.set()
        await trio.sleep(1)
        assert (await timed_put(broker))[0] == SENT


PRODUCERS_FIRST_ATTEMPT_S = 1.5
"""What a producer with a deadline of 3 s and another broker to go to gives its first attempt."""


async def test_by_default_the_status_comes_before_a_producer_gives_up(open_broker: Any, caplog: Any) -> None:
    network, disk = MemoryNetwork(), StuckDisk()
    async with (
        trio.open_nursery() as hands,
        sync_master(open_broker, network, disk=disk, flushDiskType="SYNC_FLUSH") as broker,
        disk.let_go_at_the_end(),
    ):
        code, seconds = await timed_put(broker)
        assert (code, seconds < PRODUCERS_FIRST_ATTEMPT_S) == (SLAVE_NOT_AVAILABLE, True)
        await HandSlave.connect(network, hands)
        code, seconds = await timed_put(broker)
        assert (code, seconds < PRODUCERS_FIRST_ATTEMPT_S) == (FLUSH_SLAVE_TIMEOUT, True)
        hands.cancel_scope.cancel()


async def test_topics_that_wait_in_vain_are_logged_now_and_then(open_broker: Any, caplog: Any) -> None:
    network = MemoryNetwork()
    async with trio.open_nursery() as hands, sync_master(open_broker, network, slaveTimeout=100) as broker:
        await HandSlave.connect(network, hands)
        caplog.clear()
        for _ in range(5):
            await timed_put(broker)
        (line,) = [each.getMessage() for each in caplog.records if "no slave acknowledged" in each.getMessage()]
        assert "no slave acknowledged 1 sends in time, of topics T1 (" in line
        await trio.sleep(10)
        await timed_put(broker)
        (_, line) = [each.getMessage() for each in caplog.records if "no slave acknowledged" in each.getMessage()]
        assert "acknowledged 5 sends" in line
        hands.cancel_scope.cancel()


async def burst(broker: Any, number: int, **fields: Any) -> dict[int, int]:
    """So many sends of a kilobyte in one write, on a link of its own; returns how many got which code."""
    peer = await broker.peer()
    requests = [peer.put_request(body=bytes(1000), **fields) for _ in range(number)]
    for opaque, request in enumerate(requests):
        request.opaque = opaque
    await peer.stream.send_all(b"".join([request.encode() for request in requests]))
    answers = [await peer.receive() for _ in requests]
    assert sorted(answer.opaque for answer in answers) == list(range(number))
    for answer in answers:
        assert len(answer.fields["msgId"]) == 32
    return dict(Counter(answer.code for answer in answers))


async def report_later(slave: HandSlave, offset: int) -> None:
    await trio.sleep(0.2)
    await slave.report(offset)


async def test_sends_of_one_receive_get_a_status_each(open_broker: Any) -> None:
    """They wait together, but a slave may have got some of their messages in time."""
    network = MemoryNetwork()
    async with trio.open_nursery() as hands, sync_master(open_broker, network, slaveTimeout=500) as broker:
        slave = await HandSlave.connect(network, hands)
        hands.start_soon(slave.acknowledge, 0.1)
        assert await burst(broker, 8) == {SENT: 8}
        assert await burst(broker, 8) == {SENT: 8}
        size = slave.end // 16
        slave.closed = True
        await trio.sleep(0.2)  # now it does not report any more
        hands.start_soon(report_later, slave, slave.end + 3 * size)
        assert await burst(broker, 8) == {SENT: 3, FLUSH_SLAVE_TIMEOUT: 5}
        hands.cancel_scope.cancel()


async def test_only_those_sends_of_a_receive_wait_whose_slave_is_near(open_broker: Any) -> None:
    network = MemoryNetwork()
    settings = {"haSlaveFallbehindMax": 4000, "slaveTimeout": 100}
    async with trio.open_nursery() as hands, sync_master(open_broker, network, **settings) as broker:
        await HandSlave.connect(network, hands)
        assert await timed_put(broker) == (FLUSH_SLAVE_TIMEOUT, 0.1)
        assert await burst(broker, 8) == {FLUSH_SLAVE_TIMEOUT: 3, SLAVE_NOT_AVAILABLE: 5}
        assert await burst(broker, 8) == {SLAVE_NOT_AVAILABLE: 8}
        assert await burst(broker, 8, properties="WAIT\x01false") == {SENT: 8}
        hands.cancel_scope.cancel()


async def test_sends_of_one_receive_wait_for_the_disk_together(open_broker: Any) -> None:
    disk = StuckDisk()
    settings = {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": 300}
    async with open_broker(disk=disk, **settings) as broker, disk.let_go_at_the_end():
        assert await burst(broker, 4) == {FLUSH_DISK_TIMEOUT: 4}
        disk.loose.set()
        await trio.sleep(1)
        assert await burst(broker, 4) == {SENT: 4}


async def test_the_wait_is_as_long_as_configured(open_broker: Any) -> None:
    network = MemoryNetwork()
    async with trio.open_nursery() as hands, sync_master(open_broker, network, slaveTimeout=700) as broker:
        await HandSlave.connect(network, hands)
        assert await timed_put(broker) == (FLUSH_SLAVE_TIMEOUT, 0.7)
        hands.cancel_scope.cancel()


async def test_a_slave_that_is_too_far_behind_does_not_count(open_broker: Any) -> None:
    network = MemoryNetwork()
    settings = {"haSlaveFallbehindMax": 3000, "slaveTimeout": 100}
    async with trio.open_nursery() as hands, sync_master(open_broker, network, **settings) as broker:
        await HandSlave.connect(network, hands)
        codes = [(await timed_put(broker, body=bytes(1000)))[0] for _ in range(4)]
        assert codes == [FLUSH_SLAVE_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE, SLAVE_NOT_AVAILABLE]
        hands.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("compat", "expected"), [("safe", (SLAVE_NOT_AVAILABLE, 0.0)), ("4.9", (FLUSH_SLAVE_TIMEOUT, 3.0))]
)
async def test_a_connection_without_a_report(open_broker: Any, compat: str, expected: tuple[int, float]) -> None:
    network = MemoryNetwork()
    async with trio.open_nursery() as hands, sync_master(open_broker, network, compat=compat) as broker:
        await HandSlave.connect(network, hands, report=None)
        assert await timed_put(broker) == expected
        hands.cancel_scope.cancel()


@pytest.mark.parametrize(("compat", "code"), [("safe", SLAVE_NOT_AVAILABLE), ("4.9", SENT)])
async def test_a_claim_to_have_more_than_there_is(open_broker: Any, compat: str, code: int) -> None:
    """4.9 trusts a first report, and answers senders that a slave has what none has."""
    network = MemoryNetwork()
    async with trio.open_nursery() as hands, sync_master(open_broker, network, compat=compat) as broker:
        await HandSlave.connect(network, hands, report=1_000_000)
        assert (await timed_put(broker))[0] == code
        hands.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("compat", "expected"), [("safe", (SLAVE_NOT_AVAILABLE, 0.0)), ("4.9", (FLUSH_SLAVE_TIMEOUT, 3.0))]
)
async def test_sends_when_the_fast_slave_leaves_and_a_slow_one_stays(
    open_broker: Any, compat: str, expected: tuple[int, float]
) -> None:
    """4.9 still counts what the fast one had, takes the slow one as caught up, and lets senders wait until their
    timeout."""
    network = MemoryNetwork()
    settings = {"haSlaveFallbehindMax": 3000, "compat": compat}
    async with trio.open_nursery() as hands, sync_master(open_broker, network, **settings) as broker:
        await HandSlave.connect(network, hands)  # far behind soon: it never reports again
        fast = await HandSlave.connect(network, hands)
        hands.start_soon(fast.acknowledge, 0.01)
        for _ in range(4):
            code, seconds = await timed_put(broker, body=bytes(1000))
            assert code == SENT
            assert seconds <= 0.02
        fast.closed = True
        await fast.stream.aclose()
        await trio.sleep(0.1)
        assert await timed_put(broker) == expected
        hands.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("settings", "role"), [({"brokerRole": "SLAVE", "brokerId": 1}, "ASYNC_MASTER"), ({}, "SLAVE")]
)
async def test_slaves_compare_again_when_the_role_changes(
    open_broker: Any, settings: dict[str, Any], role: str
) -> None:
    """A slave that becomes master drops the unfinished record at its end: a broker that has copied it must not continue
    behind it."""
    network = MemoryNetwork()
    async with trio.open_nursery() as hands, open_broker(network=network, **settings) as broker:
        slave = await HandSlave.connect(network, hands)
        peer = await broker.peer()
        assert (await peer.ask(Command.request(CHANGE_ROLE, fields={"role": role}))).code == 0
        await trio.sleep(1)
        assert slave.closed
        hands.cancel_scope.cancel()
