"""Groups whose committed messages are lost: at a power failure, and where a slave that had not received them takes over."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from memory_disk import MemoryDisk
from memory_network import LaggingNetwork, MemoryNetwork

from triomq_protocol.codes import RequestCode
from triomq_protocol.record.view import iter_records
from triomq_protocol.wire.command import Command
from triomq_server.broker.admin.ha import CHANGE_ROLE
from triomq_server.config import NamesrvConfig
from triomq_server.namesrv import serve_namesrv

NAMESRV = "127.0.0.1:9876"
SLAVE_PORT = 10921
SLAVE = {"brokerRole": "SLAVE", "brokerId": 1, "listenPort": SLAVE_PORT, "namesrvAddr": NAMESRV}
OFFSETS_FILE = "/store/config/consumerOffset.json"


@asynccontextmanager
async def name_server(network: MemoryNetwork) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_namesrv, NamesrvConfig(), listen=network.listen, disk=MemoryDisk()))
        yield
        nursery.cancel_scope.cancel()


async def committed(peer: Any, offset: int | None = None, topic: str = "T1") -> int:
    """The group's offset; set before, if one is given."""
    fields = {"consumerGroup": "CG", "topic": topic, "queueId": "0"}
    if offset is not None:
        update = {**fields, "commitOffset": str(offset)}
        assert (await peer.ask(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields=update))).code == 0
    answer = await peer.ask(Command.request(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields))
    return int(answer.fields["offset"])


async def put(peer: Any, *bodies: bytes) -> None:
    for body in bodies:
        assert (await peer.put(body=body)).code == 0


async def unseen(peer: Any) -> list[bytes]:
    """What the group gets from its offset on."""
    answer = await peer.pull(offset=await committed(peer))
    return [record.body for record in iter_records(answer.body)] if answer.code == 0 else []


async def promote(peer: Any) -> None:
    answer = await peer.ask(Command.request(CHANGE_ROLE, fields={"role": "ASYNC_MASTER", "force": "true"}))
    assert answer.code == 0, answer.remark


@pytest.mark.parametrize("seed", range(4))
async def test_committed_messages_outlast_a_power_failure(open_broker: Any, seed: int) -> None:
    """The log waits longer for its flush, below four pages, than the offsets do for their file."""
    async with open_broker() as broker:
        peer = await broker.peer()
        await trio.sleep(10.5)
        await put(peer, *(b"old %d" % n for n in range(20)))
        await committed(peer, 20)
        await trio.sleep(6)
        left = broker.disk.after_power_loss(random.Random(seed))
    async with open_broker(disk=left) as broker:
        peer = await broker.peer()
        assert await committed(peer) == 20
        await put(peer, b"new")
        assert await unseen(peer) == [b"new"]


async def test_an_idle_broker_flushes_nothing_for_its_offsets(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await put(peer, b"old")
        await committed(peer, 1)
        await trio.sleep(70)
        await put(peer, b"waits for the next thorough flush")
        before = broker.disk.syncs
        await trio.sleep(6)
        assert broker.disk.syncs == before


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SLAVE"])
async def test_the_log_is_on_disk_before_a_stop_writes_offsets(open_broker: Any, role: str) -> None:
    states = []

    class Disk(MemoryDisk):
        def replace(self, source: str, target: str) -> None:
            super().replace(source, target)
            if target == OFFSETS_FILE:
                states.extend(self.after_power_loss(random.Random(seed)) for seed in range(4))

    async with open_broker(disk=Disk()) as broker:
        peer = await broker.peer()
        await put(peer, b"old")
        await committed(peer, 1)
        if role == "SLAVE":
            assert (await peer.ask(Command.request(CHANGE_ROLE, fields={"role": role}))).code == 0
    for left in states:
        async with open_broker(disk=left) as broker:
            peer = await broker.peer()
            assert await committed(peer) == 1
            assert (await peer.pull()).code == 0


def stopped(disk: MemoryDisk) -> MemoryDisk:
    return disk


def killed(disk: MemoryDisk) -> MemoryDisk:
    return disk.after_kill()


def powered_off(disk: MemoryDisk) -> MemoryDisk:
    """With all pages written, so that nothing else is lost."""
    for file in disk.files.values():
        if not isinstance(file, bytes):
            file.sync(0, file.size)
    return disk.after_power_loss(random.Random(0))


@pytest.mark.parametrize(
    ("end", "compat", "lowered"),
    [
        (powered_off, "safe", True),
        (killed, "safe", False),
        (stopped, "safe", False),
        (powered_off, "4.9", False),
    ],
)
async def test_offsets_beyond_their_queues_after_a_start(
    open_broker: Any, end: Callable[[MemoryDisk], MemoryDisk], compat: str, lowered: bool
) -> None:
    """As an older version, or RocketMQ, leaves them."""
    disk = MemoryDisk()
    async with open_broker(disk=disk) as broker:
        peer = await broker.peer()
        await put(peer, b"old")
        await peer.put("Empty", queue_id=1)
        for topic in ("T1", "Empty", "NotHere"):
            await committed(peer, 21, topic)
        await trio.sleep(6)
        left = end(disk)
    async with open_broker(disk=left, compat=compat) as broker:
        peer = await broker.peer()
        assert await committed(peer) == (1 if lowered else 21)
        assert await committed(peer, topic="Empty") == (0 if lowered else 21)
        assert await committed(peer, topic="NotHere") == 21
        await put(peer, *(b"new %d" % n for n in range(20)))
        left = left.after_kill()
    async with open_broker(disk=left, compat=compat) as broker:
        found = await unseen(await broker.peer())
        assert found == ([b"new %d" % n for n in range(20)] if lowered else []), "a kill brings no old offset back"


@pytest.mark.parametrize("how", ["order", "configuration"])
async def test_a_slave_that_lags_becomes_master(open_broker: Any, how: str) -> None:
    network, disk = MemoryNetwork(), MemoryDisk()
    slow = LaggingNetwork(network, 10912)
    new = [b"new %d" % n for n in range(25)]
    async with name_server(network):
        async with open_broker(network=slow, disk=disk, **SLAVE) as slave:
            async with open_broker(
                network=network, namesrvAddr=NAMESRV, storePathRootDir="/first", disk=MemoryDisk()
            ) as master:
                await trio.sleep(12)
                peer = await master.peer()
                await put(peer, b"common")
                await trio.sleep(1)
                slow.lags = True
                await put(peer, *(b"old %d" % n for n in range(20)))
                await committed(peer, 21)
                await trio.sleep(13)
            at_slave = await slave.peer(SLAVE_PORT)
            assert await committed(at_slave) == 21
            if how == "order":
                await promote(at_slave)
                assert b"{0:1\n" in disk.read(OFFSETS_FILE), "a kill brings no old offset back"
                await put(at_slave, *new)
                assert await unseen(at_slave) == new
        if how == "configuration":
            async with open_broker(network=network, disk=disk, namesrvAddr=NAMESRV) as master:
                peer = await master.peer()
                await put(peer, *new)
                assert await unseen(peer) == new


@pytest.mark.parametrize("on_new", [0, 1, 5])
async def test_what_was_consumed_of_an_old_masters_own_messages_is_not_taken(open_broker: Any, on_new: int) -> None:
    network, disk = MemoryNetwork(), MemoryDisk()
    new = [b"new %d" % n for n in range(8)]
    async with name_server(network), open_broker(network=network, storePathRootDir="/slave", **SLAVE) as slave:
        at_slave = await slave.peer(SLAVE_PORT)
        async with open_broker(network=network, disk=disk, namesrvAddr=NAMESRV) as old:
            at_old = await old.peer()
            await put(at_old, b"common")
            await committed(at_old, 1)
            await trio.sleep(12)
            await promote(at_slave)
            await put(at_old, b"old 0", b"old 1")
            await committed(at_old, 3)
        await put(at_slave, *new[:on_new])
        async with open_broker(network=network, disk=disk, **{**SLAVE, "brokerId": 2, "listenPort": 10931}):
            await trio.sleep(30)
            await put(at_slave, *new[on_new:])
            assert await committed(at_slave) == 1
            assert await unseen(at_slave) == new


class _NetworkWithoutMaster(MemoryNetwork):
    """The network of a slave that cannot reach its master, which can reach it."""

    def __init__(self, network: MemoryNetwork) -> None:
        super().__init__()
        self._listeners = network._listeners
        self._next_port = 60_000

    async def dial(self, address: str) -> trio.abc.Stream:
        if address.endswith((":10911", ":10912")):
            raise ConnectionRefusedError(address)
        return await super().dial(address)


@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize("before", [1, None])
async def test_a_slave_that_comes_later_counts_messages_lost_with_the_power(
    open_broker: Any, before: int | None, follows: bool
) -> None:
    """Its log is the beginning of the master's, but it has the offsets of messages that it had not received."""
    network, slaves = MemoryNetwork(), MemoryDisk()
    later = network if follows else _NetworkWithoutMaster(network)
    slow = LaggingNetwork(network, 10912)
    new = [b"new %d" % n for n in range(25)]
    async with name_server(network):
        async with (
            open_broker(network=slow, disk=slaves, **{**SLAVE, "storePathRootDir": "/slave"}),
            open_broker(network=network, disk=MemoryDisk(), namesrvAddr=NAMESRV) as master,
        ):
            peer = await master.peer()
            await put(peer, b"common")
            if before is not None:
                await committed(peer, before)
            await trio.sleep(12)
            left = powered_off(master.disk)
            slow.lags = True
            await put(peer, *(b"old %d" % n for n in range(20)))
            await committed(peer, 21)
            await trio.sleep(13)
        assert b"{0:21\n" in slaves.read("/slave/config/consumerOffset.json")
        async with open_broker(network=network, disk=left, namesrvAddr=NAMESRV) as master:
            peer = await master.peer()
            await put(peer, *new[:5])
            async with open_broker(network=later, disk=slaves, **{**SLAVE, "storePathRootDir": "/slave"}) as slave:
                at_slave = await slave.peer(SLAVE_PORT)
                await trio.sleep(12)
                assert await unseen(peer) == new[:5]
                await put(peer, *new[5:])
                await trio.sleep(25)
                assert await unseen(peer) == new
                assert await committed(at_slave) == (1 if follows else 21)
