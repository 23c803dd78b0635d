"""Brokers that change their role, and slaves that must not follow (docs/protocol/ha.md §4.2, §7.3)."""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from memory_disk import MemoryDisk
from memory_network import MemoryNetwork

from triomq_protocol.codes import RequestCode
from triomq_protocol.record.view import iter_records
from triomq_protocol.requests.registration import RegisterBrokerBody, RegisterBrokerRequest
from triomq_protocol.requests.route import ClusterInfo
from triomq_protocol.wire.command import Command
from triomq_server.admin.asking import AdminError
from triomq_server.admin.roles import change_role
from triomq_server.broker.admin.ha import CHANGE_ROLE, CUT_LOG, HA_STATUS, HaStatus
from triomq_server.broker.lifecycle import serve_broker
from triomq_server.config import BrokerConfig, NamesrvConfig, load_properties
from triomq_server.namesrv import serve_namesrv
from triomq_server.store import HALF_CUT, MessageStore
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.wire import open_link

NAMESRV = "127.0.0.1:9876"
NAMESRV_PORT = 9876
SLAVE_PORT = 10921
SLAVE = {"brokerRole": "SLAVE", "brokerId": 1, "listenPort": SLAVE_PORT, "namesrvAddr": NAMESRV}
SECOND_PORT = 10931
SECOND = {**SLAVE, "listenPort": SECOND_PORT, "storePathRootDir": "/second"}
MASTER = {"namesrvAddr": NAMESRV}


@asynccontextmanager
async def name_server(network: MemoryNetwork) -> AsyncIterator[None]:
    config, _ = NamesrvConfig.from_properties({"kvConfigPath": "/nowhere/kvConfig.json"})
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_namesrv, config, listen=network.listen))
        yield
        nursery.cancel_scope.cancel()


async def status(peer: Any) -> HaStatus:
    answer = await peer.ask(Command.request(HA_STATUS))
    assert answer.code == 0, answer.remark
    return HaStatus.decode(answer.body)


async def change(peer: Any, role: str, **fields: str) -> str | None:
    answer = await peer.ask(Command.request(CHANGE_ROLE, fields={"role": role, **fields}))
    return None if answer.code == 0 else answer.remark


async def registered(peer: Any) -> dict[int, str]:
    answer = await peer.ask(Command.request(RequestCode.GET_BROKER_CLUSTER_INFO))
    table = ClusterInfo.decode(answer.body).broker_addr_table or {}
    return dict(table["broker-a"].broker_addrs or {}) if "broker-a" in table else {}


async def caught_up(at_master: Any, at_slave: Any) -> None:
    for _ in range(100):
        there, here = await status(at_master), await status(at_slave)
        if here.following is not None and here.following.connected and here.log_end == there.log_end:
            return
        await trio.sleep(0.2)
    raise AssertionError(f"{here} does not catch up with {there}")


async def bodies(peer: Any) -> list[bytes]:
    answer = await peer.pull()
    return [record.body for record in iter_records(answer.body)] if answer.code == 0 else []


async def viewed(peer: Any, log_offset: int) -> bytes:
    """The body of the record at a log offset."""
    answer = await peer.ask(Command.request(RequestCode.VIEW_MESSAGE_BY_ID, fields={"offset": str(log_offset)}))
    return next(record.body for record in iter_records(answer.body))


async def test_two_brokers_change_places(open_broker: Any) -> None:
    network = MemoryNetwork()
    async with (
        name_server(network),
        open_broker(network=network, brokerRole="SYNC_MASTER", **MASTER) as one,
        open_broker(network=network, **SLAVE) as two,
    ):
        names = await one.peer(NAMESRV_PORT)
        at_one, at_two = await one.peer(), await two.peer(SLAVE_PORT)
        await at_one.put(body=b"first")
        await caught_up(at_one, at_two)
        assert (await status(at_one)).slaves[0].behind_bytes == 0
        assert (await status(at_two)).following.relation == "CLEAN"

        remark = await change(at_two, "ASYNC_MASTER")
        assert "127.0.0.1:10911 is registered as the master" in remark
        assert (await at_two.put(body=b"refused")).code == 14

        assert await change(at_one, "SLAVE") is None
        assert await registered(names) == {1: "127.0.0.1:10921", 2: "127.0.0.1:10911"}
        assert (await at_one.put(body=b"refused")).code == 14
        assert await change(at_two, "SYNC_MASTER") is None
        assert await registered(names) == {0: "127.0.0.1:10921", 2: "127.0.0.1:10911"}
        await caught_up(at_two, at_one)

        second = await at_two.put(body=b"second")
        assert (second.code, second.fields["queueOffset"]) == (0, "1")
        assert await bodies(at_one) == await bodies(at_two) == [b"first", b"second"]
        # A topic made by the new master reaches the old one and the name server.
        await at_two.put("Fresh")
        await trio.sleep(1)
        assert (await at_one.pull("Fresh")).code == 0
        route = await names.ask(Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "Fresh"}))
        assert b"127.0.0.1:10921" in route.body

        assert await change(at_two, "SLAVE", brokerId="1") is None
        assert await change(at_one, "ASYNC_MASTER") is None
        await caught_up(at_one, at_two)
        third = await at_one.put(body=b"third")
        assert (third.code, third.fields["queueOffset"]) == (0, "2")
        await trio.sleep(1)
        assert await bodies(at_two) == [b"first", b"second", b"third"]


async def test_a_master_that_no_name_server_lists_is_still_a_master(open_broker: Any) -> None:
    """Name servers that were just started, or are away, know no master: two masters would part the set."""
    network = MemoryNetwork()
    alone = {
        **SLAVE, "namesrvAddr": "", "haMasterAddress": "127.0.0.1:10912", "haMasterMainAddress": "127.0.0.1:10911",
    }  # fmt: skip
    async with open_broker(network=network, **alone) as two:
        at_two = await two.peer(SLAVE_PORT)
        async with open_broker(network=network) as one:
            await caught_up(await one.peer(), at_two)
            assert "127.0.0.1:10911 answers as the master" in (await change(at_two, "ASYNC_MASTER") or "")
            assert (await status(at_two)).role == "SLAVE"
        assert await change(at_two, "ASYNC_MASTER") is None


async def test_a_slave_takes_over_and_the_master_returns_as_slave(open_broker: Any) -> None:
    network, disk = MemoryNetwork(), MemoryDisk()
    async with name_server(network), open_broker(network=network, **SLAVE) as two:
        at_two = await two.peer(SLAVE_PORT)
        async with open_broker(network=network, disk=disk, **MASTER) as one:
            at_one = await one.peer()
            await at_one.put(body=b"first")
            await caught_up(at_one, at_two)
        assert await change(at_two, "ASYNC_MASTER") is None
        assert (await at_two.put(body=b"second")).fields["queueOffset"] == "1"
        async with open_broker(network=network, disk=disk, brokerRole="SLAVE", brokerId=2, namesrvAddr=NAMESRV) as one:
            at_one = await one.peer()
            await caught_up(at_two, at_one)
            assert await bodies(at_one) == [b"first", b"second"]


async def test_both_ways_of_being_master_change_without_a_pause(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        assert (await peer.put()).code == 0
        assert await change(peer, "SYNC_MASTER") is None
        assert (await peer.put()).code == 11
        assert await change(peer, "ASYNC_MASTER") is None
        assert (await peer.put()).code == 0


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"role": "KING"}, "no such role: KING"),
        ({"role": "SLAVE", "brokerId": "0"}, "greater than 0"),
        ({"role": "SLAVE", "brokerId": str(2**63)}, f"at most {2**63 - 1}"),
        ({"role": "SLAVE", "brokerId": "1"}, "id 1 belongs to 127.0.0.1:10921"),
    ],
)
async def test_what_cannot_be_changes_nothing(open_broker: Any, fields: dict[str, str], remark: str) -> None:
    network = MemoryNetwork()
    async with (
        name_server(network),
        open_broker(network=network, **MASTER) as one,
        open_broker(network=network, **SLAVE),
    ):
        peer = await one.peer()
        assert remark in await change(peer, **fields)
        assert (await peer.put()).code == 0
        answer = await peer.ask(Command.request(CUT_LOG))
        assert answer.remark == "only a slave's log can be cut"


async def test_a_slave_that_cannot_become_master_follows_on(open_broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the end of the log cannot be made readable."""

    def refuse(store: MessageStore) -> None:
        raise OSError(28, "No space left on device")

    network = MemoryNetwork()
    async with (
        name_server(network),
        open_broker(network=network, **MASTER) as one,
        open_broker(network=network, **SLAVE) as two,
    ):
        at_one, at_two = await one.peer(), await two.peer(SLAVE_PORT)
        await at_one.put(body=b"first")
        await caught_up(at_one, at_two)
        monkeypatch.setattr(MessageStore, "promote", refuse)
        remark = await change(at_two, "ASYNC_MASTER", force="true")
        assert "cannot be a master's: [Errno 28] No space left" in remark
        await at_one.put(body=b"second")
        await caught_up(at_one, at_two)
        assert (await status(at_two)).role == "SLAVE"


async def test_a_role_that_cannot_be_saved_is_registered_nevertheless(
    open_broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    write = disk.write

    def refuse(path: str, data: bytes, *, sync: bool = True) -> None:
        if path.startswith("/b.conf"):
            raise OSError(28, "No space left on device")
        write(path, data, sync=sync)

    disk.write = refuse  # type: ignore[method-assign]
    network = MemoryNetwork()
    values = {"brokerName": "broker-a", "brokerIP1": "127.0.0.1", "storePathRootDir": "/store", "namesrvAddr": NAMESRV}
    config, _ = BrokerConfig.from_properties(values)
    async with (
        name_server(network),
        open_broker(network=network, namesrvAddr="", listenPort=SLAVE_PORT, storePathRootDir="/x") as helper,
        trio.open_nursery() as nursery,
    ):
        run = partial(serve_broker, config, disk=disk, dial=network.dial, listen=network.listen, config_path="/b.conf")
        await nursery.start(run)
        peer = await helper.peer(10911)
        remark = await change(peer, "SLAVE", brokerId="3")
        assert "is SLAVE with id 3 until it stops" in remark
        assert "No space left" in remark
        with pytest.raises(AdminError, match="10911 has taken the role, but this broker is SLAVE with id 3"):
            await change_role(NAMESRV, "127.0.0.1:10911", "SLAVE", open_link=partial(open_link, dial=network.dial))
        assert await registered(await helper.peer(NAMESRV_PORT)) == {3: "127.0.0.1:10911"}
        nursery.cancel_scope.cancel()
    (line,) = [text for record in caplog.records if "cannot be written" in (text := record.getMessage())]
    assert line.startswith("/b.conf cannot be written: [Errno 28] No space left")
    assert line.endswith("change the role again once it can be written")


async def test_the_role_taken_is_the_role_after_a_restart() -> None:
    """Where there is a configuration file, it contains the new role afterwards."""
    network, disk = MemoryNetwork(), MemoryDisk()
    values = {
        "brokerName": "broker-a", "brokerIP1": "127.0.0.1", "brokerIP2": "127.0.0.1", "listenPort": "10911",
        "storePathRootDir": "/store", "mappedFileSizeCommitLog": "1048576", "maxHashSlotNum": "1000", "maxIndexNum": "4000",
    }  # fmt: skip
    for role, asked in (("ASYNC_MASTER", "SLAVE"), ("SLAVE", "SYNC_MASTER"), ("SYNC_MASTER", "SYNC_MASTER")):
        config, _ = BrokerConfig.from_properties(values)
        assert config.store.broker_role == role
        async with trio.open_nursery() as nursery:
            run = partial(
                serve_broker, config, disk=disk, dial=network.dial, listen=network.listen, config_path="/b.conf"
            )
            await nursery.start(run)
            async with open_link("127.0.0.1:10911", dial=network.dial) as link:
                answer = await link.request(Command.request(CHANGE_ROLE, fields={"role": asked}), 10)
                assert answer.code == 0
            nursery.cancel_scope.cancel()
        values = load_properties(disk.read("/b.conf"))


async def test_the_configuration_shows_the_role_taken(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        assert await change(peer, "SLAVE", brokerId="3") is None
        shown = await peer.ask(Command.request(RequestCode.GET_BROKER_CONFIG))
        assert b"brokerRole=SLAVE" in shown.body
        assert b"brokerId=3" in shown.body


@asynccontextmanager
async def parted(open_broker: Any, *, on_old: int, on_new: int, **settings: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A slave that was master for a while: it comes back with messages that the other has not, and the other with some
    too."""
    network, disk = MemoryNetwork(), MemoryDisk()
    async with name_server(network), open_broker(network=network, **SLAVE, **settings) as two:
        at_two = await two.peer(SLAVE_PORT)
        async with open_broker(network=network, disk=disk, **MASTER, **settings) as one:
            at_one = await one.peer()
            await at_one.put(body=b"common")
            await caught_up(at_one, at_two)
            assert await change(at_two, "SLAVE", brokerId="1") is None  # says nothing new
            # The old master takes messages that its slave never sees.
            assert await change(at_two, "ASYNC_MASTER", force="true") is None
            for n in range(on_old):
                assert (await at_one.put(body=b"old%d" % n)).code == 0
        for n in range(on_new):
            assert (await at_two.put(body=b"new%d" % n)).code == 0
        role = {"brokerRole": "SLAVE", "brokerId": 2, "namesrvAddr": NAMESRV, **settings}
        async with open_broker(network=network, disk=disk, **role) as one:
            await trio.sleep(5)  # until the two logs have been compared
            yield at_two, await one.peer()


async def test_a_slave_that_is_ahead_waits_for_an_operator(open_broker: Any) -> None:
    async with parted(open_broker, on_old=2, on_new=0) as (at_master, at_slave):
        there, here = await status(at_master), await status(at_slave)
        assert here.following.relation == "AHEAD"
        assert here.following.common_end == there.log_end < here.log_end
        assert not here.following.connected
        assert await viewed(at_slave, here.following.common_end) == b"old0", "nothing is dropped"
        assert there.slaves == []

        cut = await at_slave.ask(Command.request(CUT_LOG))
        assert cut.fields == {"droppedBytes": str(here.log_end - there.log_end)}
        await caught_up(at_master, at_slave)
        assert (await at_master.put(body=b"after")).fields["queueOffset"] == "1"
        await trio.sleep(1)
        assert await bodies(at_slave) == [b"common", b"after"]
        assert "nothing to cut" in (await at_slave.ask(Command.request(CUT_LOG))).remark


async def test_a_cut_that_the_disk_refuses_is_ordered_again(
    open_broker: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def full(_store: MessageStore, _offset: int) -> int:
        await trio.lowlevel.checkpoint()
        raise OSError(errno.ENOSPC, "No space left on device")

    async with parted(open_broker, on_old=2, on_new=0) as (at_master, at_slave):
        with monkeypatch.context() as patch:
            patch.setattr(MessageStore, "cut", full)
            answer = await at_slave.ask(Command.request(CUT_LOG))
        assert (answer.code, answer.remark) == (
            1,
            "the disk refuses the cut: [Errno 28] No space left on device; give the order again when that is mended",
        )
        assert "Traceback" not in caplog.text
        await trio.sleep(10)
        assert (await at_slave.ask(Command.request(CUT_LOG))).code == 0
        await caught_up(at_master, at_slave)


async def test_a_slave_whose_queues_could_not_be_cut_takes_nothing(
    open_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_queue: ConsumeQueue, _offset: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    async with parted(open_broker, on_old=2, on_new=0) as (at_master, at_slave):
        with monkeypatch.context() as patch:
            patch.setattr(ConsumeQueue, "truncate", refused)
            answer = await at_slave.ask(Command.request(CUT_LOG))
        assert (answer.code, answer.remark) == (
            1,
            f"the disk refuses the cut: [Errno 12] Cannot allocate memory; {HALF_CUT}",
        )
        end = (await status(at_slave)).log_end
        await at_master.put(body=b"longer than what was cut")
        await trio.sleep(30)
        after = await status(at_slave)
        assert after.log_end == end
        assert after.following.last_error == HALF_CUT
        assert HALF_CUT in (await change(at_slave, "ASYNC_MASTER", force="true"))


@pytest.mark.parametrize(("on_old", "on_new"), [(2, 2), (1, 3), (3, 1)])
async def test_another_history_is_never_followed(open_broker: Any, on_old: int, on_new: int) -> None:
    async with parted(open_broker, on_old=on_old, on_new=on_new) as (at_master, at_slave):
        before = await status(at_slave)
        assert before.following.relation == "DIVERGED"
        assert not before.following.connected
        await trio.sleep(30)
        assert (await status(at_slave)).log_end == before.log_end
        assert await viewed(at_slave, before.following.common_end) == b"old0"
        assert (await at_slave.ask(Command.request(CUT_LOG))).code == 0
        await caught_up(at_master, at_slave)
        assert await bodies(at_slave) == await bodies(at_master) == [b"common", *(b"new%d" % n for n in range(on_new))]
        assert (await status(at_slave)).following.relation == "CLEAN"


async def test_49_follows_another_history_and_ends_with_a_log_of_both(open_broker: Any) -> None:
    async with parted(open_broker, on_old=1, on_new=3, compat="4.9") as (_, at_slave):
        here = (await status(at_slave)).following
        assert here.connected
        assert b"old0" in await bodies(at_slave)
        assert b"new2" in await bodies(at_slave)


async def test_a_master_that_was_presumed_dead_logs_the_new_master(
    open_broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    network = MemoryNetwork()
    async with (
        name_server(network),
        open_broker(network=network, **MASTER) as one,
        open_broker(network=network, registerNameServerPeriod=20000, **SLAVE) as two,
    ):
        await caught_up(await one.peer(), await two.peer(SLAVE_PORT))
        assert await change(await two.peer(SLAVE_PORT), "ASYNC_MASTER", force="true") is None
        await trio.sleep(300)
        for address in ("127.0.0.1:10911", "127.0.0.1:10921"):
            notified = [
                text for text in caplog.messages if f"{address} is registered as the master of broker-a too" in text
            ]
            assert 1 <= len(notified) <= 2, "each logs the other, and not every ten seconds"


async def test_an_ahead_slave_may_be_made_master_instead(open_broker: Any) -> None:
    async with parted(open_broker, on_old=2, on_new=0) as (at_master, at_slave):
        assert await change(at_master, "SLAVE", brokerId="1") is None
        assert await change(at_slave, "ASYNC_MASTER") is None
        await caught_up(at_slave, at_master)
        assert await bodies(at_master) == [b"common", b"old0", b"old1"]


async def test_a_master_that_comes_back_beside_another_one_steps_down(
    open_broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The slave was made master meanwhile: a second master would take messages that the first one's readers never
    see."""
    network, disk = MemoryNetwork(), MemoryDisk()
    async with name_server(network):
        async with open_broker(network=network, disk=disk, **MASTER) as old:
            at_old = await old.peer()
            assert (await at_old.put(body=b"before")).code == 0
        async with open_broker(network=network, storePathRootDir="/heir", listenPort=SLAVE_PORT, **MASTER) as heir:
            at_heir = await heir.peer(SLAVE_PORT)
            async with open_broker(network=network, disk=disk, **MASTER) as old:
                at_old = await old.peer()
                assert (await at_old.put(body=b"second")).code == 14
                stands = await status(at_old)
                assert (stands.role, stands.broker_id) == ("SLAVE", 1)
                names = await heir.peer(NAMESRV_PORT)
                assert await registered(names) == {0: "127.0.0.1:10921", 1: "127.0.0.1:10911"}
                # Histories differ, so it follows nothing, and loses nothing.
                await trio.sleep(20)
                stands = await status(at_old)
                assert stands.following is not None
                assert stands.following.relation in ("AHEAD", "DIVERGED")
                assert (await at_heir.put(body=b"first")).code == 0
                assert "so this broker runs as its slave" in caplog.text
                # An operator may think otherwise.
                assert await change(at_old, "ASYNC_MASTER", force="true") is None
                assert (await at_old.put(body=b"ordered")).code == 0


@pytest.mark.parametrize("more", [{"followOtherMaster": "false"}, {"compat": "4.9"}])
async def test_a_master_serves_beside_another_one_if_configured(open_broker: Any, more: dict[str, str]) -> None:
    """4.9 never looks."""
    network = MemoryNetwork()
    async with (
        name_server(network),
        open_broker(network=network, listenPort=SLAVE_PORT, **MASTER),
        open_broker(network=network, storePathRootDir="/other", **MASTER, **more) as second,
    ):
        assert (await (await second.peer()).put()).code == 0


async def test_a_registration_without_a_broker_behind_it_is_no_master(open_broker: Any) -> None:
    """A name server keeps it for two minutes, and the broker may have had another address itself before."""
    network = MemoryNetwork()
    async with name_server(network), open_broker(network=network, namesrvAddr="", storePathRootDir="/x") as helper:
        names = await helper.peer(NAMESRV_PORT)
        ghost = RegisterBrokerRequest(
            broker_name="broker-a", broker_addr="127.0.0.1:19999", cluster_name="DefaultCluster",
            ha_server_addr="127.0.0.1:20000", broker_id=0,
        )  # fmt: skip
        answer = await names.ask(
            Command.request(RequestCode.REGISTER_BROKER, ghost, body=RegisterBrokerBody().encode())
        )
        assert answer.code == 0
        assert await registered(names) == {0: "127.0.0.1:19999"}
        async with open_broker(network=network, listenPort=SLAVE_PORT, **MASTER) as master:
            assert (await (await master.peer(SLAVE_PORT)).put()).code == 0


# -- ids


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_stopped_slave_keeps_its_id(open_broker: Any, restarted: bool) -> None:
    network, disk, slave_disk = MemoryNetwork(), MemoryDisk(), MemoryDisk()
    async with name_server(network):
        async with open_broker(network=network, disk=disk, **MASTER) as one:
            async with open_broker(network=network, disk=slave_disk, **SLAVE) as two:
                await caught_up(await one.peer(), await two.peer(SLAVE_PORT))
                await trio.sleep(25)  # until the master has looked at its set
            if not restarted:
                await check_demotion(await one.peer())
        if restarted:
            async with open_broker(network=network, disk=disk, **MASTER) as one:
                await check_demotion(await one.peer())


async def check_demotion(at_master: Any) -> None:
    remark = await change(at_master, "SLAVE", brokerId="1")
    assert "id 1 was that of 127.0.0.1:10921, which is not registered now" in remark
    assert "another id, such as 2" in remark
    assert (await at_master.put()).code == 0, "nothing has changed"
    assert await change(at_master, "SLAVE") is None
    assert (await status(at_master)).broker_id == 2
    assert await change(at_master, "SLAVE", brokerId="1", force="true") is None
    assert (await status(at_master)).broker_id == 1


async def test_without_name_servers_an_id_has_to_be_given(open_broker: Any) -> None:
    async with open_broker(**MASTER) as broker:
        peer = await broker.peer()
        assert "the id has to be given" in await change(peer, "SLAVE")
        assert (await peer.put()).code == 0
        assert await change(peer, "SLAVE", brokerId="3") is None


async def contested_by(peer: Any) -> tuple[str | None, str | None]:
    """As in the answers to HA_STATUS and to code 28."""
    answer = await peer.ask(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
    return (await status(peer)).id_contested_by, json.loads(answer.body)["table"].get("triomqIdContestedBy")


async def test_two_slaves_with_one_id_find_each_other(open_broker: Any, caplog: pytest.LogCaptureFixture) -> None:
    network = MemoryNetwork()
    async with (
        name_server(network),
        open_broker(network=network, **MASTER) as master,
        open_broker(network=network, **SLAVE) as first,
    ):
        at_first = await first.peer(SLAVE_PORT)
        await caught_up(await master.peer(), at_first)
        async with open_broker(network=network, **SECOND) as second:
            at_second = await second.peer(SECOND_PORT)
            first_address, second_address = "127.0.0.1:10921", "127.0.0.1:10931"
            assert await contested_by(at_second) == (first_address, first_address), "found before it registers"
            await trio.sleep(20)
            assert await contested_by(at_first) == (second_address, second_address)
            assert await contested_by(await master.peer()) == (None, None)
            for peer in (at_first, at_second):
                remark = await change(peer, "ASYNC_MASTER", force="true")
                assert "id 1 of broker-a is contested" in remark
                assert (await status(peer)).role == "SLAVE"
            await trio.sleep(300)
            lines = [text for text in caplog.messages if f"contested: {second_address} has it too" in text]
            assert 2 <= len(lines) <= 7, "loud, and not at every look"
            assert f"`triomq admin role {first_address} slave --id 2`" in lines[0]

            # Links that are silent for so long have been closed.
            at_first, at_second = await first.peer(SLAVE_PORT), await second.peer(SECOND_PORT)
            assert await change(at_second, "SLAVE", brokerId="2") is None
            await trio.sleep(20)
            names = await master.peer(NAMESRV_PORT)
            assert await contested_by(at_first) == await contested_by(at_second) == (None, None)
            await trio.sleep(60)
            assert await registered(names) == {0: "127.0.0.1:10911", 1: first_address, 2: second_address}
        assert await change(at_first, "ASYNC_MASTER", force="true") is None


async def test_a_contested_slave_becomes_master_if_the_operator_insists(open_broker: Any) -> None:
    network = MemoryNetwork()
    async with (
        name_server(network),
        open_broker(network=network, **SLAVE),
        open_broker(network=network, **SECOND) as second,
    ):
        at_second = await second.peer(SECOND_PORT)
        assert "is contested" in await change(at_second, "ASYNC_MASTER")
        assert await change(at_second, "ASYNC_MASTER", despiteContest="true") is None
        assert (await status(at_second)).id_contested_by is None


async def test_a_registration_without_a_broker_behind_it_contests_no_id(open_broker: Any) -> None:
    network = MemoryNetwork()
    async with name_server(network), open_broker(network=network, **MASTER) as master:
        ghost = RegisterBrokerRequest(
            broker_name="broker-a", broker_addr="127.0.0.1:19999", cluster_name="DefaultCluster",
            ha_server_addr="127.0.0.1:20000", broker_id=1,
        )  # fmt: skip
        names = await master.peer(NAMESRV_PORT)
        request = Command.request(RequestCode.REGISTER_BROKER, ghost, body=RegisterBrokerBody().encode())
        assert (await names.ask(request)).code == 0
        async with open_broker(network=network, **SLAVE) as slave:
            assert await contested_by(await slave.peer(SLAVE_PORT)) == (None, None)


async def test_a_slave_without_a_master_logs_why_nothing_is_cut(open_broker: Any) -> None:
    async with open_broker(brokerRole="SLAVE", brokerId=1) as slave:
        answer = await (await slave.peer()).ask(Command.request(CUT_LOG))
        assert answer.remark.startswith("there is nothing to cut: this slave has not compared its log with a master's")


async def test_the_answer_names_the_broker_in_its_new_role(open_broker: Any) -> None:
    async with open_broker() as broker:
        answer = await (await broker.peer()).ask(
            Command.request(CHANGE_ROLE, fields={"role": "SLAVE", "brokerId": "3"})
        )
        assert answer.fields == {"brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "brokerId": "3"}
