"""A master, its slave and a name server together: what a reader finds at the slave (docs/protocol/ha.md §7-8)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from memory_disk import MemoryDisk
from memory_network import MemoryNetwork

from triomq_protocol.codes import RequestCode
from triomq_protocol.record.view import iter_records
from triomq_protocol.requests.admin import SubscriptionGroupConfig
from triomq_protocol.requests.registration import RegisterBrokerRequest, TopicConfigTableForSlaves
from triomq_protocol.requests.transaction import EndTransactionRequest
from triomq_protocol.wire.command import Command
from triomq_server.broker import lifecycle
from triomq_server.broker.admin.ha import HA_STATUS, HaStatus
from triomq_server.broker.roles import returning
from triomq_server.broker.tables.offsets.committed import OffsetTable
from triomq_server.config import BrokerConfig, NamesrvConfig
from triomq_server.namesrv import serve_namesrv
from triomq_server.replication.master import HaMaster, SourceLog
from triomq_server.replication.rules import HaSettings
from triomq_server.replication.slave import HaSlave

NAMESRV = "127.0.0.1:9876"
SLAVE_PORT = 10921
HA_MASTER = "127.0.0.1:10912"
SLAVE = {"brokerRole": "SLAVE", "brokerId": 1, "listenPort": SLAVE_PORT, "storePathRootDir": "/slave"}


@asynccontextmanager
async def name_server(network: MemoryNetwork, port: int = 9876) -> AsyncIterator[None]:
    """A real name server on the memory network."""
    config, _ = NamesrvConfig.from_properties({"kvConfigPath": "/nowhere/kvConfig.json", "listenPort": str(port)})
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_namesrv, config, listen=network.listen))
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def master_and_slave(open_broker: Any, **of_master: str) -> AsyncIterator[tuple[Any, Any]]:
    """A client at a master and one at its slave; both brokers know one name server."""
    network = MemoryNetwork()
    async with (
        name_server(network),
        open_broker(network=network, namesrvAddr=NAMESRV, **of_master) as master,
        open_broker(network=network, namesrvAddr=NAMESRV, **SLAVE) as slave,
    ):
        yield await master.peer(), await slave.peer(SLAVE_PORT)


async def test_a_message_of_an_unknown_topic_makes_the_slave_ask_at_once(open_broker: Any) -> None:
    """Without a pull the arrival alone fetches the topic, long before the next period of ten seconds."""
    async with master_and_slave(open_broker) as (at_master, at_slave):
        await trio.sleep(15)
        await at_master.put("Fresh")
        await trio.sleep(1)
        assert (await at_slave.pull("Fresh")).code == 0


async def test_a_fault_while_the_log_is_copied_does_not_end_the_broker(
    open_broker: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    take_turn, failed = HaSlave._take_turn, []

    async def fail_once(slave: HaSlave, *rest: Any) -> bool:
        if not failed:
            failed.append(True)
            raise OverflowError("a value nobody thought of")
        return await take_turn(slave, *rest)

    async with master_and_slave(open_broker) as (at_master, at_slave):
        await trio.sleep(5)
        monkeypatch.setattr(HaSlave, "_take_turn", fail_once)
        await at_master.put("Fresh")
        await trio.sleep(10)
        assert failed
        assert "HaSlave.run has failed" in caplog.text
        assert (await at_slave.pull("Fresh")).code == 0


@pytest.mark.parametrize("force", ["true", "false"])
async def test_a_slave_that_starts_before_its_master_finds_it(open_broker: Any, force: str) -> None:
    network = MemoryNetwork()
    settings = {"network": network, "namesrvAddr": NAMESRV, "forceRegister": force}
    async with name_server(network), open_broker(**settings, **SLAVE) as slave:
        at_slave = await slave.peer(SLAVE_PORT)
        await trio.sleep(5)
        async with open_broker(**settings) as master:
            await trio.sleep(5)
            status = slave_status(await at_slave.ask(Command.request(HA_STATUS)))
            assert status.connected
            assert status.metadata_master == master.config.address


async def test_transactions_do_not_make_the_slave_ask_again_and_again(open_broker: Any) -> None:
    """The topic of their ends has no configuration, so no table would bring it."""
    async with master_and_slave(open_broker) as (at_master, at_slave):
        await trio.sleep(15)
        status = slave_status(await at_slave.ask(Command.request(HA_STATUS)))
        for number in range(30):
            text = f"TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01ID{number}"
            half = await at_master.put(properties=text, sys_flag=4)
            end = EndTransactionRequest(
                producer_group="PG",
                tran_state_table_offset=int(half.fields["queueOffset"]),
                commit_log_offset=int(half.fields["msgId"][16:], 16),
                commit_or_rollback=8,
                msg_id="x",
            )
            assert (await at_master.ask(Command.request(RequestCode.END_TRANSACTION, end))).code == 0
            await trio.sleep(1)
        after = slave_status(await at_slave.ask(Command.request(HA_STATUS)))
        assert after.received_bytes > status.received_bytes
        assert after.metadata_rounds - status.metadata_rounds <= 3 + 1 + 1  # the period's, and one for the new topic


@pytest.mark.parametrize("order", ["127.0.0.1:9876;127.0.0.1:9877", "127.0.0.1:9877;127.0.0.1:9876"])
async def test_a_name_server_that_knows_no_master_does_not_take_it_away(open_broker: Any, order: str) -> None:
    """The master does not reach it; the other one knows the master."""
    network = MemoryNetwork()
    async with (
        name_server(network),
        name_server(network, 9877),
        open_broker(network=network, namesrvAddr=NAMESRV) as master,
        open_broker(network=network, namesrvAddr=order, **SLAVE) as slave,
    ):
        at_slave = await slave.peer(SLAVE_PORT)
        await trio.sleep(5)
        for n in range(1, 7):
            answer = await at_slave.ask(Command.request(HA_STATUS))
            following = HaStatus.decode(answer.body).following
            assert following is not None
            assert following.metadata_master == master.config.address
            assert following.metadata_rounds in (n, n + 1)
            await trio.sleep(10)


async def test_a_pull_of_an_unknown_topic_makes_the_slave_ask_at_once(open_broker: Any) -> None:
    create = {
        "topic": "Empty", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    async with master_and_slave(open_broker) as (at_master, at_slave):
        await trio.sleep(15)
        await at_master.ask(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=create))
        assert (await at_slave.pull("Empty")).code == 17
        await trio.sleep(1)
        assert (await at_slave.pull("Empty")).code == 19


async def test_topics_of_a_later_version_are_taken_over(open_broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their data version has a member that 4.9.7 does not know."""
    decode = TopicConfigTableForSlaves.decode_in_slices

    def decode_later(body: bytes) -> Generator[None, None, TopicConfigTableForSlaves]:
        return decode(body.replace(b'"timestamp"', b'"stateVersion":0,"timestamp"'))

    monkeypatch.setattr(TopicConfigTableForSlaves, "decode_in_slices", decode_later)
    async with master_and_slave(open_broker) as (at_master, at_slave):
        await trio.sleep(15)
        await at_master.put("Fresh")
        await trio.sleep(15)
        assert (await at_slave.pull("Fresh")).code == 0


async def test_a_master_knows_the_hosts_of_its_set(open_broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep their places at its HA port."""
    made: list[HaMaster] = []

    class NotedMaster(HaMaster):
        def __init__(self, log: SourceLog, settings: HaSettings) -> None:
            super().__init__(log, settings)
            made.append(self)

    monkeypatch.setattr(lifecycle, "HaMaster", NotedMaster)
    network = MemoryNetwork()
    async with name_server(network), open_broker(network=network, namesrvAddr=NAMESRV):
        assert not made[0].members()
        async with open_broker(network=network, namesrvAddr=NAMESRV, **SLAVE) as slave:
            await trio.sleep(60)
            assert made[0].members() == {slave.config.address.rpartition(":")[0]}


async def test_a_reader_finds_everything_at_the_slave(open_broker: Any) -> None:
    async with master_and_slave(open_broker, brokerRole="SYNC_MASTER") as (at_master, at_slave):
        group = SubscriptionGroupConfig(group_name="CG", which_broker_when_consume_slowly=7)
        await at_master.ask(Command.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group.encode()))
        for _ in range(60):  # until the slave has found the master
            if (await at_master.put(body=b"probe")).code == 0:
                break
            await trio.sleep(0.5)
        update = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "1"}
        await at_master.ask(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields=update))
        for _ in range(10):
            answer = await at_slave.pull()
            if answer.code != 17:
                break
            await trio.sleep(0.1)
        assert answer.code == 0, "an unknown topic makes the slave ask its master at once"
        assert {record.body for record in iter_records(answer.body)} == {b"probe"}
        query = {"consumerGroup": "CG", "topic": "T1", "queueId": "0"}
        for _ in range(11):  # the next of the regular rounds may have to bring it
            found = await at_slave.ask(Command.request(RequestCode.QUERY_CONSUMER_OFFSET, fields=query))
            if found.fields == {"offset": "1"}:
                break
            await trio.sleep(1)
        assert found.fields == {"offset": "1"}
        groups = await at_slave.ask(Command.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        assert b'"whichBrokerWhenConsumeSlowly":7' in groups.body
        # A pull that waits at the slave is woken by what the master takes.
        end = int(answer.fields["maxOffset"])
        await at_slave.send(at_slave.pull_request(offset=end, sys_flag=6))
        await trio.sleep(1)
        assert (await at_master.put(body=b"news")).code == 0
        start = trio.current_time()
        woken = await at_slave.receive()
        assert [record.body for record in iter_records(woken.body)] == [b"news"]
        assert trio.current_time() - start < 0.1


async def test_messages_of_a_topic_created_again_are_read_at_both_brokers(open_broker: Any) -> None:
    """New messages are read at both brokers, by a group that had read the old ones too, also after the master's end."""
    network = MemoryNetwork()
    async with (
        name_server(network),
        open_broker(network=network, namesrvAddr=NAMESRV, **SLAVE) as slave,
    ):
        at_slave = await slave.peer(SLAVE_PORT)
        async with open_broker(network=network, namesrvAddr=NAMESRV, disk=MemoryDisk()) as master:
            at_master = await master.peer()
            for n in range(5):
                await at_master.put(body=b"old %d" % n)
            await trio.sleep(15)
            assert await committed(at_master, 5) == "5"
            gone = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": "T1"})
            assert (await at_master.ask(gone)).code == 0
            await trio.sleep(15)
            assert (await at_slave.pull()).code == 17
            for n in range(3):
                answer = await at_master.put(body=b"new %d" % n)
                assert answer.fields["queueOffset"] == str(5 + n)
            assert await committed(at_master) == "5"
            await trio.sleep(15)
            for peer in (at_master, at_slave):
                answer = await peer.pull(offset=5)
                assert [record.body for record in iter_records(answer.body)] == [b"new 0", b"new 1", b"new 2"]
                assert (answer.fields["minOffset"], answer.fields["maxOffset"]) == ("5", "8")
        answer = await at_slave.pull(offset=5)
        assert [record.body for record in iter_records(answer.body)] == [b"new 0", b"new 1", b"new 2"]


async def fill(peer: Any, count: int, body: bytes = b"hello") -> None:
    """Store messages: offsets mean something only where there are some."""
    for _ in range(count):
        await peer.put(body=body)


async def committed(peer: Any, offset: int | None = None) -> str:
    """The group's offset of the queue; set before, if one is given."""
    fields = {"consumerGroup": "CG", "topic": "T1", "queueId": "0"}
    if offset is not None:
        update = {**fields, "commitOffset": str(offset)}
        await peer.ask(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields=update))
    answer = await peer.ask(Command.request(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields))
    return answer.fields["offset"]


@pytest.mark.parametrize(("compat", "expected"), [("safe", "200"), ("4.9", "100")])
async def test_a_returning_master_does_not_roll_consumers_back(open_broker: Any, compat: str, expected: str) -> None:
    network, disk = MemoryNetwork(), MemoryDisk()
    ours = {"namesrvAddr": NAMESRV, "compat": compat}
    async with name_server(network), open_broker(network=network, **ours, **SLAVE) as slave:
        at_slave = await slave.peer(SLAVE_PORT)
        async with open_broker(network=network, disk=disk, **ours) as master:
            await fill(await master.peer(), 200)
            await committed(await master.peer(), 100)
            await trio.sleep(30)
            assert await committed(at_slave) == "100"
        assert await committed(at_slave, 200) == "200"
        async with open_broker(network=network, disk=disk, **ours) as master:
            at_master = await master.peer()
            assert await committed(at_master) == expected, "asked before the first client was served"
            await trio.sleep(30)
            assert await committed(at_slave) == expected
            await committed(at_master, 7)
            await trio.sleep(30)
            assert await committed(at_slave) == "7", "an order to go back is followed all the same"


@pytest.mark.parametrize("stranger", ["another log", "no log", "an address that is not listed"])
async def test_offsets_of_an_unconfirmed_slave_are_not_taken(
    stranger: str, open_broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Any client can register at a name server as a slave of this set, and report that everything has been consumed."""
    network, disk, strangers = MemoryNetwork(), MemoryDisk(), MemoryDisk()
    ours = {"namesrvAddr": NAMESRV}
    known = {"haSlaveAddresses": "192.0.2.1"} if stranger == "an address that is not listed" else {}
    if stranger == "another log":
        async with open_broker(network=MemoryNetwork(), disk=strangers, storePathRootDir="/slave") as other:
            await fill(await other.peer(), 20, b"another")
    async with open_broker(network=MemoryNetwork(), disk=disk) as master:
        await fill(await master.peer(), 10)
        await committed(await master.peer(), 3)
    async with name_server(network), open_broker(network=network, disk=strangers, **ours, **SLAVE) as false:
        await committed(await false.peer(SLAVE_PORT), 10)
        await trio.sleep(1)
        async with open_broker(network=network, disk=disk, **ours, **known) as master:
            assert await committed(await master.peer()) == "3"
            if stranger != "no log":  # such a one follows, and then it has a copy
                await trio.sleep(40)
                assert await committed(await master.peer()) == "3"
    named = "is registered as a slave, but is not known to have a copy of this log" in caplog.text
    assert named == (stranger != "an address that is not listed")


async def test_offsets_of_a_slave_that_is_registered_by_name_are_taken(
    open_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """haSlaveAddresses has IP addresses only."""

    async def look_up(_address: str) -> frozenset[str]:
        return frozenset({"127.0.0.1"})

    # The real one asks in a thread, over which the virtual clock jumps.
    monkeypatch.setattr(returning, "ips_of", look_up)
    network, disk = MemoryNetwork(), MemoryDisk()
    real_dial = network.dial
    network.dial = lambda address: real_dial(address.replace("localhost", "127.0.0.1"))  # type: ignore[method-assign]
    ours = {"namesrvAddr": NAMESRV}
    async with name_server(network), open_broker(network=network, brokerIP1="localhost", **ours, **SLAVE) as slave:
        async with open_broker(network=network, disk=disk, **ours) as master:
            await fill(await master.peer(), 10)
            await committed(await master.peer(), 3)
            await trio.sleep(30)
        await committed(await slave.peer(SLAVE_PORT), 5)
        async with open_broker(network=network, disk=disk, haSlaveAddresses="127.0.0.1", **ours) as master:
            assert await committed(await master.peer()) == "5"


@pytest.mark.parametrize("named_ha", ["127.0.0.1:10932", "127.0.0.1:10912"])
@pytest.mark.parametrize(
    "named",
    [{}, {"haMasterAddress": HA_MASTER}, {"haMasterAddress": HA_MASTER, "haMasterMainAddress": "127.0.0.1:10911"}],
)
async def test_tables_come_from_where_the_log_comes_from(
    open_broker: Any, named: dict[str, str], named_ha: str
) -> None:
    """Another cluster's broker of the same name registers as the master, again and again, as anyone can, with its own
    HA address or that of the right master."""
    network, ours = MemoryNetwork(), {"namesrvAddr": NAMESRV}
    other = {"listenPort": 10931, "storePathRootDir": "/other"}
    stays = bool(named) or named_ha == HA_MASTER
    async with (
        name_server(network),
        open_broker(network=network, **ours) as master,
        open_broker(network=network, **ours, **SLAVE, **named) as slave,
        open_broker(network=network, **other) as stranger,
    ):
        at_master, at_slave, at_other = await master.peer(), await slave.peer(SLAVE_PORT), await stranger.peer(10931)
        await fill(at_master, 10)
        await committed(at_master, 3)
        await fill(at_other, 20)
        await at_other.put("Elsewhere")
        await committed(at_other, 20)
        await trio.sleep(15)
        registration = RegisterBrokerRequest(
            broker_name="broker-a", broker_addr="127.0.0.1:10931", cluster_name="C1", ha_server_addr=named_ha,
            broker_id=0, compressed=False, body_crc32=0,
        )  # fmt: skip
        at_names = await master.peer(9876)
        for second in range(200):
            assert (await at_names.ask(Command.request(RequestCode.REGISTER_BROKER, registration))).code == 0
            await trio.sleep(0.5)
            if not second % 10:
                assert [await committed(at_slave), await committed(at_master)] == ["3", "3"]
                # Without fixed addresses the slave leaves its master when all name servers agree for some time.
                leaving = not stays and second >= 40
                assert (await at_slave.pull("T1", 9)).code in ((0, 20) if leaving else (0,))
                assert leaving or (await at_slave.pull("Elsewhere")).code == 17
        following = HaStatus.decode((await at_slave.ask(Command.request(HA_STATUS))).body).following
        assert following is not None
        assert following.connected or not stays


async def test_another_ha_address_of_the_same_master_takes_no_slave_away(open_broker: Any) -> None:
    """Any client can register the right master with another HA address, and what is received from there is not
    compared."""
    network, ours = MemoryNetwork(), {"namesrvAddr": NAMESRV}
    (listener,) = await network.listen("127.0.0.1", 10999)
    dialled: list[trio.abc.Stream] = []

    async def accept() -> None:
        while True:
            dialled.append(await listener.accept())

    async with (
        name_server(network),
        open_broker(network=network, **ours) as master,
        open_broker(network=network, **ours, **SLAVE) as slave,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(accept)
        at_master, at_slave, at_names = await master.peer(), await slave.peer(SLAVE_PORT), await master.peer(9876)
        await fill(at_master, 3)
        await trio.sleep(15)
        registration = RegisterBrokerRequest(
            broker_name="broker-a", broker_addr="127.0.0.1:10911", cluster_name="C1", ha_server_addr="127.0.0.1:10999",
            broker_id=0, compressed=False, body_crc32=0,
        )  # fmt: skip
        for _ in range(200):
            assert (await at_names.ask(Command.request(RequestCode.REGISTER_BROKER, registration))).code == 0
            await trio.sleep(0.5)
        following = HaStatus.decode((await at_slave.ask(Command.request(HA_STATUS))).body).following
        assert following is not None
        assert following.connected
        assert not dialled
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("names", [False, True])
async def test_tables_come_from_a_fixed_master_that_no_name_server_knows(open_broker: Any, names: bool) -> None:
    network, known = MemoryNetwork(), {"namesrvAddr": NAMESRV} if names else {}
    fixed = {"haMasterAddress": "127.0.0.1:10912", "haMasterMainAddress": "127.0.0.1:10911"}
    async with name_server(network), open_broker(network=network) as master:
        at_master = await master.peer()
        await fill(at_master, 10)
        async with open_broker(network=network, **SLAVE, **fixed, **known) as slave:
            at_slave = await slave.peer(SLAVE_PORT)
            await committed(at_master, 3)
            await trio.sleep(25)
            assert (await at_slave.pull("T1", 9)).code == 0
            assert await committed(at_slave) == "3"
            # A registration and its answer do not change that.
            await trio.sleep(31)
            await committed(at_master, 4)
            await trio.sleep(25)
            assert await committed(at_slave) == "4"


async def test_very_many_listed_slaves_are_not_dialled_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """A RocketMQ name server lists as many as anyone registers."""
    open_now = most_open = 0
    dialled = []

    @asynccontextmanager
    async def open_link(address: str) -> AsyncIterator[Any]:
        nonlocal open_now, most_open
        open_now += 1
        most_open = max(most_open, open_now)
        try:
            await trio.sleep(0.01)
            dialled.append(address)
            raise ConnectionRefusedError
            yield
        finally:
            open_now -= 1

    members = {number: f"127.0.0.1:{10_000 + number}" for number in range(1, 1001)}
    answered = await returning.merge_offsets_of_slaves(
        BrokerConfig(),
        OffsetTable(None),
        None,
        lambda _: True,
        "127.0.0.1:1",
        open_link,
        again=True,
        members=members,  # type: ignore[arg-type]
    )
    assert answered == 0
    assert set(dialled) == set(members.values())
    assert most_open == returning.SLAVES_AT_ONCE


async def test_a_slave_that_does_not_answer_delays_the_master_only_a_little(open_broker: Any) -> None:
    network, disk = MemoryNetwork(), MemoryDisk()
    async with name_server(network), open_broker(network=network, namesrvAddr=NAMESRV, **SLAVE) as slave:
        real_dial = network.dial

        async def dial(address: str) -> trio.abc.Stream:
            if address == f"127.0.0.1:{SLAVE_PORT}":
                await trio.sleep_forever()
            return await real_dial(address)

        await trio.sleep(1)
        network.dial = dial  # type: ignore[method-assign]
        begin = trio.current_time()
        async with open_broker(network=network, disk=disk, namesrvAddr=NAMESRV):
            assert 2.9 < trio.current_time() - begin < 4
        assert slave.config.broker_id == 1


async def test_a_second_master_logs_that_it_is_one(open_broker: Any, caplog: Any) -> None:
    network = MemoryNetwork()
    async with (
        name_server(network),
        open_broker(network=network, namesrvAddr=NAMESRV),
        open_broker(
            network=network,
            followOtherMaster="false",
            namesrvAddr=NAMESRV,
            listenPort=SLAVE_PORT,
            storePathRootDir="/slave",
        ),
    ):
        assert "127.0.0.1:10911 is registered as the master of broker-a too" in caplog.text


@pytest.mark.parametrize(("compat", "expected"), [("safe", "200"), ("4.9", "100")])
async def test_a_master_finds_what_was_committed_at_its_slave_unnoticed(
    open_broker: Any, compat: str, expected: str
) -> None:
    """It was disconnected from the name servers but still ran: consumers used the slave, and it is never started
    again."""
    network = MemoryNetwork()
    ours = {"namesrvAddr": NAMESRV, "compat": compat}
    async with (
        name_server(network),
        open_broker(network=network, **ours) as master,
        open_broker(network=network, **ours, **SLAVE) as slave,
    ):
        at_master, at_slave = await master.peer(), await slave.peer(SLAVE_PORT)
        await fill(at_master, 200)
        await committed(at_master, 100)
        await trio.sleep(30)
        await committed(at_slave, 200)
        await trio.sleep(25)
        assert await committed(at_master) == expected
        await committed(at_master, 7)
        await trio.sleep(25)
        assert [await committed(at_master), await committed(at_slave)] == ["7", "7"]


@pytest.mark.parametrize(("compat", "code"), [("safe", 0), ("4.9", 17)])
async def test_a_master_without_its_disk_does_not_take_the_topics_of_its_slave(
    open_broker: Any, compat: str, code: int
) -> None:
    network, disk = MemoryNetwork(), MemoryDisk()
    ours = {"namesrvAddr": NAMESRV, "compat": compat}
    async with name_server(network), open_broker(network=network, disk=disk, **ours, **SLAVE) as slave:
        at_slave = await slave.peer(SLAVE_PORT)
        async with open_broker(network=network, disk=MemoryDisk(), **ours) as master:
            at_master = await master.peer()
            await trio.sleep(15)
            await at_master.put("Precious")
            await trio.sleep(15)
            assert (await at_slave.pull("Precious")).code == 0
        async with open_broker(network=network, disk=MemoryDisk(), **ours) as master:
            at_master = await master.peer()
            assert (await at_master.put("Other")).code == 0
            await trio.sleep(60)
            assert (await at_slave.pull("Precious")).code == code
            assert (await at_slave.pull("Other")).code != 17, "what is new is taken"


def through_a_proxy(network: MemoryNetwork) -> None:
    """Port 5001 leads to the master's HA service; no port beside it is open."""
    dial = network.dial

    async def redirected(address: str) -> trio.abc.Stream:
        return await dial("127.0.0.1:10912" if address == "127.0.0.1:5001" else address)

    network.dial = redirected  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("names", "main_address", "follows"), [(True, None, True), (False, "127.0.0.1:10911", True), (False, None, False)]
)
async def test_a_fixed_ha_address_does_not_name_the_master_to_ask(
    open_broker: Any, caplog: Any, names: bool, main_address: str | None, follows: bool
) -> None:
    """The logs are compared where the name server, or the configuration, names the master."""
    network, disk = MemoryNetwork(), MemoryDisk()
    through_a_proxy(network)
    known = {"namesrvAddr": NAMESRV} if names else {}
    fixed = {**SLAVE, **known, "haMasterAddress": "127.0.0.1:5001"}
    if main_address:
        fixed["haMasterMainAddress"] = main_address
    async with name_server(network), open_broker(network=network, **known) as master:
        at_master = await master.peer()
        assert (await at_master.put(body=b"first")).code == 0
        async with open_broker(network=network, disk=disk, **fixed) as slave:
            # An empty log can follow any master's.
            await trio.sleep(15)
            assert (await (await slave.peer(SLAVE_PORT)).pull()).code in (0, 17)
        assert (await at_master.put(body=b"second")).code == 0
        async with open_broker(network=network, disk=disk, **fixed) as slave:
            await trio.sleep(25)
            status = slave_status(await (await slave.peer(SLAVE_PORT)).ask(Command.request(HA_STATUS)))
            assert status.connected == follows
            assert status.relation == ("CLEAN" if follows else "UNKNOWN")
        assert ("set haMasterMainAddress" in caplog.text) != follows


def slave_status(answer: Command) -> Any:
    return HaStatus.decode(answer.body).following


async def test_a_slave_of_a_slave_gets_a_torn_record_again_too(open_broker: Any) -> None:
    """The slave in the middle was killed before the last bytes of a record had come, and its own slave copies the
    zeros in their place while the master is away."""
    network, disks = MemoryNetwork(), [MemoryDisk() for _ in range(3)]
    middle = {**SLAVE, "haMasterAddress": HA_MASTER, "haMasterMainAddress": "127.0.0.1:10911"}
    last = {
        **SLAVE, "brokerId": 2, "listenPort": 10931, "haMasterAddress": "127.0.0.1:10922",
        "haMasterMainAddress": f"127.0.0.1:{SLAVE_PORT}",
    }  # fmt: skip
    async with (
        open_broker(network=network, disk=disks[0]) as master,
        open_broker(network=network, disk=disks[1], **middle),
    ):
        await (await master.peer()).put(properties="NAME\x01value")
        await trio.sleep(5)
    (log,) = (path for path in disks[1].list("/slave/commitlog"))
    logs = [f"{root}/commitlog/{log}" for root in ("/store", "/slave", "/slave")]
    file = disks[1].open(logs[1])
    end = len(bytes(file.buffer).rstrip(b"\0"))
    file.buffer[end - 2 : end] = bytes(2)
    async with (
        open_broker(network=network, disk=disks[1], **middle),
        open_broker(network=network, disk=disks[2], **last),
    ):
        await trio.sleep(5)
        async with open_broker(network=network, disk=disks[0]) as master:
            await (await master.peer()).put(body=b"next")
            await trio.sleep(30)
    contents = [bytes(disk.open(path).buffer) for disk, path in zip(disks, logs, strict=True)]
    assert contents[0].count(b"NAME\x01value") == 1
    assert contents[1] == contents[0]
    assert contents[2] == contents[0]
