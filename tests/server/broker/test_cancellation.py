"""Cancelling the broker's awaits before each of their steps: afterwards its files, links, roles and queues are
whole."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from any_step import each_step_of_all_tasks
from cancellation import each_step
from memory_disk import MemoryDisk
from memory_network import MemoryNetwork

from triomq_protocol.codes import RequestCode
from triomq_protocol.requests.offset import ConsumerOffsetTable
from triomq_protocol.requests.registration import RegisterBrokerResponse
from triomq_protocol.requests.route import BrokerData, ClusterInfo
from triomq_protocol.wire.command import Command
from triomq_server.broker.registration import Identity, Registration
from triomq_server.broker.roles import returning
from triomq_server.broker.roles.returning import merge_offsets_of_slaves
from triomq_server.broker.schedule import Schedule
from triomq_server.broker.tables.held_pulls import HeldPull, HeldPulls
from triomq_server.broker.tables.offsets.committed import OffsetTable
from triomq_server.broker.tables.topics import TopicTable
from triomq_server.config import BrokerConfig, BrokerRole
from triomq_server.replication.divergence import Comparison, LogRelation
from triomq_server.wire import Handlers, Link, open_link, serve

NAMESRV = "127.0.0.1:9876"
SLAVE = "127.0.0.1:10921"


class Server:
    """A name server and a slave in one: answers what a broker asks at its start, and counts links and registrations."""

    def __init__(self) -> None:
        self.registrations = 0
        self.links: set[Link] = set()

    def handle(self, link: Link, command: Command) -> Command:
        self.links.add(link)
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            data = BrokerData(cluster="C1", broker_name="broker-a", broker_addrs={1: SLAVE})
            return command.answer(
                body=ClusterInfo(broker_addr_table={"broker-a": data}, cluster_addr_table={}).encode()
            )
        if command.code == RequestCode.GET_ALL_CONSUMER_OFFSET:
            return command.answer(body=ConsumerOffsetTable(offset_table={"T@G": {0: 7, 1: 8}}).encode())
        if command.code == RequestCode.REGISTER_BROKER:
            self.registrations += 1
            return command.answer(header=RegisterBrokerResponse())
        return command.answer()

    def link_closed(self, link: Link) -> None:
        self.links.discard(link)


@asynccontextmanager
async def serving(network: MemoryNetwork) -> AsyncIterator[Server]:
    server = Server()
    async with trio.open_nursery() as nursery:
        for address in (NAMESRV, SLAVE):
            host, port = address.split(":")
            handlers = Handlers(default=server.handle)
            await nursery.start(
                partial(serve, handlers, host=host, port=int(port), listen=network.listen, on_closed=server.link_closed)
            )
        yield server
        nursery.cancel_scope.cancel()


async def test_a_start_or_stop_that_is_cancelled_leaves_files_and_ports_free(open_broker: Any) -> None:
    """Each attempt uses the directory and the ports of the one before."""
    network, disk = MemoryNetwork(), MemoryDisk()
    async with serving(network) as server:
        tasks = trio.lowlevel.current_statistics().tasks_living
        for cancel in each_step_of_all_tasks(stride=3):
            with cancel:
                async with open_broker(network=network, disk=disk, namesrvAddr=NAMESRV):
                    pass
            await trio.sleep(1)
            assert trio.lowlevel.current_statistics().tasks_living == tasks
            assert not server.links
        async with open_broker(network=network, disk=disk) as broker:
            assert (await (await broker.peer()).put()).code == 0


def registration(network: MemoryNetwork) -> Registration:
    config = BrokerConfig(namesrv_addr=NAMESRV, broker_name="broker-a")
    identity = Identity(
        cluster_name="C1", broker_name="broker-a", broker_id=0, address="127.0.0.1:1", ha_address="127.0.0.1:2"
    )
    topics = TopicTable(config, None, lambda: 1)
    opener = partial(open_link, dial=network.dial)
    return Registration(config, identity, topics.snapshot, opener, chance=random.Random(1))


async def test_a_cancelled_registration_closes_its_links() -> None:
    network = MemoryNetwork()
    async with serving(network) as server:
        for cancel in each_step_of_all_tasks():
            with cancel:
                async with trio.open_nursery() as nursery:
                    await nursery.start(registration(network).run)
                    nursery.cancel_scope.cancel()
            await trio.sleep(1)
            assert not server.links
        assert server.registrations


async def test_a_cancelled_wait_for_a_registration_does_not_end_the_next_one() -> None:
    network = MemoryNetwork()
    async with serving(network) as server, trio.open_nursery() as nursery:
        registers = registration(network)
        await nursery.start(registers.run)
        for cancel in each_step():
            with cancel:
                await registers.register_now()
            before = server.registrations
            await registers.register_now()
            assert server.registrations > before
        nursery.cancel_scope.cancel()


async def test_offsets_of_slaves_are_merged_completely_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def compare(_own: Any, _remote: Any) -> Comparison:
        await trio.lowlevel.checkpoint()
        return Comparison(relation=LogRelation.CLEAN, common_end=1000)

    monkeypatch.setattr(returning, "compare", compare)
    store: Any = SimpleNamespace(log_min_offset=0, log_max_offset=1000)
    network = MemoryNetwork()
    config = BrokerConfig(namesrv_addr=NAMESRV, broker_name="broker-a")
    opener = partial(open_link, dial=network.dial)
    seen = []
    async with serving(network) as server:
        for cancel in each_step_of_all_tasks():
            offsets = OffsetTable(None)
            with cancel:
                await merge_offsets_of_slaves(config, offsets, store, lambda _: True, "127.0.0.1:10911", opener)
            assert offsets.table in ({}, {"T@G": {0: 7, 1: 8}})
            seen.append(bool(offsets.table))
            await trio.sleep(1)
            assert not server.links
    assert not seen[0]
    assert seen[-1]


async def test_a_cancelled_change_of_the_role_leaves_the_broker_in_one_role(desk: Any) -> None:
    """A slave follows, a master does not, whichever step is cancelled."""
    broker, roles = desk.broker, desk.roles
    masters_tasks = len(broker.nursery.child_tasks)

    async def check() -> None:
        await trio.testing.wait_all_tasks_blocked()
        assert (broker.following is not None) is broker.is_slave
        assert len(broker.nursery.child_tasks) == masters_tasks + broker.is_slave
        assert broker.topics.follows is broker.is_slave
        assert broker.registration.identity.broker_id == broker.config.broker_id
        refused = (await desk.ask(310, fields=send_fields(), body=b"x")).code != 0
        assert refused is broker.is_slave

    for cancel in each_step():
        with cancel:
            await roles.become_slave()
        await check()
        await roles.become_master(BrokerRole.ASYNC_MASTER)
    for cancel in each_step():
        await roles.become_slave()
        with cancel:
            await roles.become_master(BrokerRole.ASYNC_MASTER)
        await check()


def send_fields(properties: str = "") -> dict[str, str]:
    return {
        "a": "PG", "b": "T1", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0", "i": properties, "j": "0"
    }  # fmt: skip


async def test_a_delayed_message_is_delivered_once_whenever_the_delivery_is_cancelled(desk: Any) -> None:
    broker = desk.broker
    broker.store.arrival_listeners.append(broker.held_pulls.arrived)
    for expected, cancel in enumerate(each_step_of_all_tasks(), 1):
        assert (await desk.ask(310, fields=send_fields("DELAY\x011\x02"), body=b"later")).code == 0
        desk.clock.now_ms += 1000
        with cancel, trio.move_on_after(0.5):
            await Schedule(broker).run()
        with trio.move_on_after(0.5):
            await Schedule(broker).run()
        assert broker.store.queue_bounds("T1", 0)[1] == expected
        assert broker.delay_offsets.table[1] == expected


async def test_held_pulls_are_answered_after_a_cancelled_run() -> None:
    class Party:
        closed = False

    answered: list[int] = []
    pulls = HeldPulls(limit=100)
    pulls.resume = lambda held: answered.append(held.offset)
    for offset, cancel in enumerate(each_step_of_all_tasks()):
        deadline = trio.current_time() + 1
        assert pulls.hold(HeldPull(Party(), Command(), "T", 0, offset, None, deadline))  # type: ignore[arg-type]
        with cancel, trio.move_on_after(0.5):
            await pulls.run()
        with trio.move_on_after(2):
            await pulls.run()
        assert answered == list(range(offset + 1))
    assert not pulls.waiting


async def test_a_broker_stops_while_it_waits_for_clients(open_broker: Any) -> None:
    """Forwarded requests wait ten seconds for a consumer that does not answer; the stop does not."""
    async with open_broker() as broker:
        consumer, operator = await broker.peer(), await broker.peer()
        await consumer.ask(consumer.heartbeat())
        for code, fields in (
            (RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "CG", "clientId": "127.0.0.1@c1"}),
            (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T1", "group": "CG"}),
        ):
            await operator.send(Command.request(code, fields=fields))
        assert {(await consumer.receive()).code for _ in range(2)} == {
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        }
        start = trio.current_time()
    assert trio.current_time() - start < 2
