"""A broker's registration at name servers, and its use of their answers (docs/protocol/namesrv.md §3)."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from memory_network import MemoryNetwork

from triomq_protocol.codes import RequestCode
from triomq_protocol.record.batch import encode_batch_element
from triomq_protocol.requests.registration import (
    QueryDataVersionResponse,
    RegisterBrokerBody,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    TopicConfig,
    TopicConfigTable,
    registration_crc,
)
from triomq_protocol.requests.route import BrokerData, ClusterInfo, KVTable
from triomq_protocol.wire.command import Command
from triomq_server.broker.registration import SHORT_BYTES, has_identity, masked, members_of_set
from triomq_server.config import MOST_SETTINGS_BYTES, BrokerConfig
from triomq_server.wire import Handlers, Link, OpenLink, serve

NAMESRV = "127.0.0.1:9876"
OTHER = "127.0.0.1:9877"


@attrs.define
class NameServer:
    """Takes requests, keeps them with the time, and gives the answers that the test sets."""

    received: list[tuple[float, Command]] = attrs.Factory(list)
    closed: int = 0
    answer: RegisterBrokerResponse = attrs.Factory(RegisterBrokerResponse)
    order: dict[str, str] | None = None
    code: int = 0
    version_known: bool = False
    silent: bool = False

    def of(self, code: int) -> list[Command]:
        """The requests of one code."""
        return [command for _, command in self.received if command.code == code]

    def times(self, code: int) -> list[float]:
        """When they came."""
        return [time for time, command in self.received if command.code == code]

    def take(self, _link: Link, command: Command) -> Command | None:
        """Any request."""
        self.received.append((trio.current_time(), command))
        if self.silent:
            return None
        if command.code == RequestCode.QUERY_DATA_VERSION:
            return command.answer(header=QueryDataVersionResponse(changed=not self.version_known))
        body = KVTable(table=self.order).encode() if self.order is not None else b""
        return command.answer(self.code, "no" if self.code else None, self.answer, body=body)

    def link_closed(self, _link: Link) -> None:
        """A broker's link has ended."""
        self.closed += 1


@asynccontextmanager
async def name_server(network: MemoryNetwork, address: str = NAMESRV) -> AsyncIterator[NameServer]:
    """A name server on the memory network."""
    server = NameServer()
    async with trio.open_nursery() as nursery:
        await nursery.start(
            partial(
                serve,
                Handlers(default=server.take),
                host="127.0.0.1",
                port=int(address.rpartition(":")[2]),
                listen=network.listen,
                on_closed=server.link_closed,
            )
        )
        yield server
        nursery.cancel_scope.cancel()


async def test_registration_at_start_every_period_and_at_the_end(open_broker: Any) -> None:
    network = MemoryNetwork()
    async with name_server(network) as server:
        async with open_broker(network=network, namesrvAddr=NAMESRV) as broker:
            assert len(server.of(RequestCode.REGISTER_BROKER)) == 1, "registered before it reports that it serves"
            start = trio.current_time()
            await trio.sleep(101)
            assert [time - start for time in server.times(RequestCode.REGISTER_BROKER)] == pytest.approx(
                [0, 10, 40, 70, 100], abs=0.5
            )
        assert [c.code for _, c in server.received][-1] == RequestCode.UNREGISTER_BROKER
    first = server.of(RequestCode.REGISTER_BROKER)[0]
    header = first.header(RegisterBrokerRequest)
    assert (header.broker_name, header.broker_addr, header.cluster_name) == ("broker-a", "127.0.0.1:10911", "C1")
    assert (header.ha_server_addr, header.broker_id, header.compressed) == ("127.0.0.1:10912", 0, False)
    assert header.body_crc32 == registration_crc(first.body)
    body = RegisterBrokerBody.decode(first.body)
    assert body.topic_config_serialize_wrapper.topic_config_table["TBW102"].perm == 7
    assert set(first.fields or ()) == {
        "brokerName", "brokerAddr", "clusterName", "haServerAddr", "brokerId", "compressed", "bodyCrc32"
    }  # fmt: skip
    unregistration = server.of(RequestCode.UNREGISTER_BROKER)[0]
    assert unregistration.fields == {
        "brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "clusterName": "C1", "brokerId": "0"
    }  # fmt: skip
    assert broker.config.name_servers == [NAMESRV]


async def test_a_new_topic_is_registered_at_once(open_broker: Any) -> None:
    network = MemoryNetwork()
    async with name_server(network) as server, open_broker(network=network, namesrvAddr=NAMESRV) as broker:
        await trio.sleep(1)
        start = trio.current_time()
        await (await broker.peer()).put("New")
        await trio.sleep(0.5)
        latest = server.of(RequestCode.REGISTER_BROKER)[-1]
        assert len(server.of(RequestCode.REGISTER_BROKER)) == 2
        assert server.times(RequestCode.REGISTER_BROKER)[-1] - start < 0.1
    assert b'"New":{' in latest.body


@pytest.mark.parametrize("others", ["", ";127.0.0.1:9877"])
async def test_a_created_topic_is_known_before_the_answer(open_broker: Any, others: str) -> None:
    """Code 17 waits for the name servers that are there, and for none that is not."""
    network = MemoryNetwork()
    create = {
        "topic": "New", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    async with name_server(network) as server, open_broker(network=network, namesrvAddr=NAMESRV + others) as broker:
        start = trio.current_time()
        peer = await broker.peer()
        answer = await peer.ask(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=create))
        assert answer.code == 0
        assert b'"New":{' in server.of(RequestCode.REGISTER_BROKER)[-1].body
        assert trio.current_time() - start < 0.1


async def test_a_name_server_that_has_fallen_silent_delays_a_created_topic_only_for_so_long(open_broker: Any) -> None:
    network = MemoryNetwork()
    create = {
        "topic": "New", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    async with name_server(network) as server, open_broker(network=network, namesrvAddr=NAMESRV) as broker:
        server.silent = True
        start = trio.current_time()
        peer = await broker.peer()
        answer = await peer.ask(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=create))
        assert answer.code == 0
        assert trio.current_time() - start == pytest.approx(6, abs=0.1)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_topic_made_by_a_send_is_known_before_the_answer(open_broker: Any, flush: str, batch: bool) -> None:
    """A consumer that asks for the route after the send would get none, and ask again half a minute later."""
    network = MemoryNetwork()
    async with (
        name_server(network) as server,
        open_broker(network=network, namesrvAddr=NAMESRV, flushDiskType=flush) as broker,
    ):
        peer = await broker.peer()
        before = len(server.of(RequestCode.REGISTER_BROKER))
        start = trio.current_time()
        for number in range(3):
            request = {"code": 320, "batch": True} if batch else {}
            answer = await peer.put(f"New{number}", encode_batch_element(b"one", b""), **request)
            assert answer.code == 0
            assert b'"New%d":{' % number in server.of(RequestCode.REGISTER_BROKER)[-1].body
        assert trio.current_time() - start < 0.1
        registrations = len(server.of(RequestCode.REGISTER_BROKER))
        assert registrations == before + 3, "each has the whole table; one while the disk was written to is enough"
        assert (await peer.put("New0")).code == 0
        assert len(server.of(RequestCode.REGISTER_BROKER)) == registrations, "a known topic needs none"


async def test_sends_that_make_topics_wait_together(open_broker: Any) -> None:
    network = MemoryNetwork()
    async with name_server(network) as server, open_broker(network=network, namesrvAddr=NAMESRV) as broker:
        peer = await broker.peer()
        requests = [peer.put_request(f"New{number}") for number in range(50)]
        for opaque, request in enumerate(requests):
            request.opaque = opaque
        await peer.stream.send_all(b"".join(request.encode() for request in requests))
        assert {(await peer.receive()).opaque for _ in requests} == set(range(50))
        assert len(server.of(RequestCode.REGISTER_BROKER)) <= 3


async def test_a_name_server_that_has_fallen_silent_delays_a_send_only_for_so_long(open_broker: Any) -> None:
    network = MemoryNetwork()
    async with name_server(network) as server, open_broker(network=network, namesrvAddr=NAMESRV) as broker:
        server.silent = True
        peer = await broker.peer()
        start = trio.current_time()
        assert (await peer.put("New")).code == 0
        assert trio.current_time() - start == pytest.approx(0.5, abs=0.1)
        start = trio.current_time()
        assert (await peer.put("New")).code == 0
        assert trio.current_time() - start < 0.1


async def test_compressed_registration(open_broker: Any) -> None:
    network = MemoryNetwork()
    settings = {"network": network, "namesrvAddr": NAMESRV, "compressedRegister": "true"}
    async with name_server(network) as server, open_broker(**settings):
        pass
    first = server.of(RequestCode.REGISTER_BROKER)[0]
    assert first.header(RegisterBrokerRequest).compressed
    body = RegisterBrokerBody.decode_compressed(first.body)
    assert "TBW102" in body.topic_config_serialize_wrapper.topic_config_table


async def test_without_force_only_a_changed_table_is_sent(open_broker: Any) -> None:
    network = MemoryNetwork()
    settings = {"network": network, "namesrvAddr": NAMESRV, "forceRegister": "false"}
    async with name_server(network) as server, open_broker(**settings) as broker:
        server.version_known = True
        await trio.sleep(45)
        assert len(server.of(RequestCode.REGISTER_BROKER)) == 1
        asked = server.of(RequestCode.QUERY_DATA_VERSION)
        assert len(asked) == 2
        assert set(json.loads(asked[0].body)) == {"counter", "timestamp"}
        await (await broker.peer()).put("New")
        await trio.sleep(1)
        assert len(server.of(RequestCode.REGISTER_BROKER)) == 2
        server.version_known = False
        await trio.sleep(35)
        assert len(server.of(RequestCode.REGISTER_BROKER)) == 3


@pytest.mark.parametrize(("compat", "more"), [("safe", 1), ("4.9", 0)])
async def test_after_a_removal_name_servers_take_the_whole_table_once_more(
    open_broker: Any, compat: str, more: int
) -> None:
    """A topic that was made again before a name server of RocketMQ removed it is known there afterwards."""
    network = MemoryNetwork()
    async with name_server(network) as one, name_server(network, OTHER) as two:
        settings = {"namesrvAddr": f"{NAMESRV};{OTHER}", "compat": compat}

        def tables() -> list[TopicConfigTable]:
            last = [RegisterBrokerBody.decode(server.of(RequestCode.REGISTER_BROKER)[-1].body) for server in (one, two)]
            return [body.topic_config_serialize_wrapper for body in last]

        async with open_broker(network=network, **settings) as broker:
            peer = await broker.peer()
            await peer.put("Again")
            await peer.ask(Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": "Again"}))
            await peer.put("Again")
            await trio.sleep(1)
            before, same = (table.data_version.counter for table in tables())
            assert before == same
            await trio.sleep(100)
            assert [table.data_version.counter for table in tables()] == [before + more] * 2
            assert all("Again" in table.topic_config_table for table in tables())


async def test_a_dead_name_server_does_not_delay_the_others(open_broker: Any) -> None:
    network = MemoryNetwork()
    start = trio.current_time()
    addresses = "127.0.0.1:9876;127.0.0.1:9877;127.0.0.1:9878"
    async with (
        name_server(network) as one,
        name_server(network, "127.0.0.1:9878") as three,
        open_broker(network=network, namesrvAddr=addresses),
    ):
        assert trio.current_time() - start < 1
        assert len(one.of(RequestCode.REGISTER_BROKER)) == len(three.of(RequestCode.REGISTER_BROKER)) == 1
        await trio.sleep(5)
        async with name_server(network, "127.0.0.1:9877") as two:
            await trio.sleep(11)
            assert two.of(RequestCode.REGISTER_BROKER), "tried again until it is there"


async def test_a_silent_name_server_delays_the_start_only_for_so_long(open_broker: Any) -> None:
    network = MemoryNetwork()
    await network.listen("127.0.0.1", 9876)
    start = trio.current_time()
    async with open_broker(network=network, namesrvAddr=NAMESRV):
        # A second for the question about slaves, registerBrokerTimeoutMills for the registration.
        assert trio.current_time() - start == pytest.approx(1 + 6, abs=0.1)


async def test_a_lost_link_is_opened_again(open_broker: Any) -> None:
    network = MemoryNetwork()
    async with open_broker(network=network, namesrvAddr=NAMESRV):
        for _ in range(2):
            async with name_server(network) as server:
                await trio.sleep(11)
                assert server.of(RequestCode.REGISTER_BROKER)
            await trio.sleep(3)


async def test_a_refused_registration_is_tried_again(open_broker: Any) -> None:
    network = MemoryNetwork()
    async with name_server(network) as server:
        server.code = 1
        async with open_broker(network=network, namesrvAddr=NAMESRV):
            await trio.sleep(11)
            assert len(server.of(RequestCode.REGISTER_BROKER)) == 2


async def test_order_topics_come_from_the_name_server(open_broker: Any) -> None:
    network = MemoryNetwork()
    async with name_server(network) as server, open_broker(network=network, namesrvAddr=NAMESRV) as broker:
        peer = await broker.peer()
        await peer.put("Ordered")
        server.order = {"Ordered": "broker-a:4"}
        await trio.sleep(31)
        table = await peer.ask(Command.request(RequestCode.GET_ALL_TOPIC_CONFIG))
        assert TopicConfigTable.decode(table.body).topic_config_table["Ordered"].order
        assert b'"Ordered":{\n\t\t\t"order":true' in broker.disk.read("/store/config/topics.json")


async def test_a_slave_asks_every_second_until_it_knows_a_master(open_broker: Any) -> None:
    network = MemoryNetwork()
    settings = {"brokerRole": "SLAVE", "brokerId": 1, "namesrvAddr": NAMESRV}
    async with name_server(network) as server, open_broker(network=network, **settings):
        await trio.sleep(3.5)
        assert len(server.of(RequestCode.REGISTER_BROKER)) == 4
        assert server.of(RequestCode.REGISTER_BROKER)[0].header(RegisterBrokerRequest).broker_id == 1
        server.answer = RegisterBrokerResponse(master_addr="127.0.0.1:1", ha_server_addr="127.0.0.1:2")
        await trio.sleep(6)
        # One that learns of it; then, as no broker answers there, one every heartbeat: there may be another master.
        assert len(server.of(RequestCode.REGISTER_BROKER)) <= 5 + 2


@pytest.mark.parametrize(("permission", "perm"), [(6, 7), (4, 4), (2, 2), (0, 0), (7, 7)])
def test_a_restricted_broker_registers_all_topics_with_its_permission(permission: int, perm: int) -> None:
    table = TopicConfigTable(topic_config_table={"T": TopicConfig(topic_name="T", perm=7, read_queue_nums=3)})
    registered = masked(table, permission).topic_config_table["T"]
    assert (registered.perm, registered.read_queue_nums) == (perm, 3)
    assert table.topic_config_table["T"].perm == 7


async def test_an_unreachable_name_server_is_logged_once_with_the_cure(open_broker: Any, caplog: Any) -> None:
    with caplog.at_level("INFO"):
        async with open_broker(namesrvAddr="127.0.0.1:9877"):
            await trio.sleep(120)
    (line,) = [each.getMessage() for each in caplog.records if "127.0.0.1:9877" in each.getMessage()]
    assert "take it out of namesrvAddr" in line


async def test_a_name_server_that_comes_back_with_tls_is_logged_with_another_cure(
    open_broker: Any, caplog: Any
) -> None:
    async def refuse(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await stream.send_all(b"\x15\x03\x03\x00\x02\x02\x0a")  # as a port with tls.server.mode=enforcing
        await stream.aclose()

    network = MemoryNetwork()
    async with open_broker(network=network, namesrvAddr=OTHER), trio.open_nursery() as nursery:
        await trio.sleep(60)
        (listener,) = await network.listen("127.0.0.1", 9877)
        nursery.start_soon(trio.serve_listeners, refuse, [listener])
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    away, tls = (each.getMessage() for each in caplog.records if "name server " + OTHER in each.getMessage())
    assert "start it, or take it out of namesrvAddr" in away
    assert "the peer speaks TLS; it is tried again and again: see useTLS" in tls


async def test_a_brokers_port_in_place_of_a_name_servers_is_recognised(open_broker: Any, caplog: Any) -> None:
    async with open_broker(namesrvAddr="127.0.0.1:10911"):
        await trio.sleep(120)
    (line,) = [each.getMessage() for each in caplog.records if "name server 127.0.0.1:10911" in each.getMessage()]
    assert "answered with code 3" in line
    assert line.endswith("this looks like a broker's port: check namesrvAddr (-n)")


def answering(body: bytes) -> OpenLink:
    """Links over which every request gets this answer."""

    class Answering:
        closed = False

        async def request(self, command: Command, _timeout_s: float) -> Command:
            return command.answer(body=body)

    @asynccontextmanager
    async def open_link(_address: str) -> AsyncIterator[Answering]:
        yield Answering()

    return open_link


async def test_settings_of_a_broker_that_are_too_long_are_not_read() -> None:
    settings = b"brokerName=broker-a\nbrokerId=1\n"
    rest = b"#" * (MOST_SETTINGS_BYTES - len(settings))
    for more, found in ((b"", True), (b"#", False)):
        assert await has_identity(OTHER, "broker-a", 1, answering(settings + rest + more)) is found


@pytest.mark.parametrize("others", [0, 1000])
async def test_a_long_list_of_brokers_is_read_beside_the_loop(others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone may register brokers, and each broker asks for all of them every few seconds."""
    names = ["broker-a", *(f"other-{number}" for number in range(others))]
    table = {name: BrokerData(broker_addrs={0: "10.0.0.1:1", 1: "10.0.0.2:1"}, broker_name=name) for name in names}
    body = ClusterInfo(broker_addr_table=table).encode()
    assert (len(body) > SHORT_BYTES) == bool(others)
    decode, threads = ClusterInfo.decode, []

    def noting(data: bytes) -> ClusterInfo:
        threads.append(threading.current_thread())
        return decode(data)

    monkeypatch.setattr(ClusterInfo, "decode", noting)
    config = BrokerConfig(broker_name="broker-a", namesrv_addr=NAMESRV)
    assert await members_of_set(config, answering(body)) == {0: "10.0.0.1:1", 1: "10.0.0.2:1"}
    assert [thread is not threading.main_thread() for thread in threads] == [bool(others)]
