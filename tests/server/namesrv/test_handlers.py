"""Answers of the name server beyond the recorded ones."""

from __future__ import annotations

import zlib
from functools import partial

import pytest
import trio
import trio.testing

from triomq_protocol.codes import RequestCode as Code
from triomq_protocol.errors import BodyError, HeaderError
from triomq_protocol.requests import (
    DataVersion,
    RegisterBrokerBody,
    RegisterBrokerRequest,
    TopicConfig,
    TopicConfigTable,
    registration_crc,
)
from triomq_protocol.wire.command import Command
from triomq_server.config import load_properties
from triomq_server.disk.config_files import ConfigFile
from triomq_server.namesrv.handlers import most_bytes_of_registrations
from triomq_server.wire import to_the_end


def fields(name="a", broker_id="0", **rest) -> dict[str, str]:
    return {
        "brokerName": name, "brokerAddr": f"{name}:1", "clusterName": "C", "haServerAddr": f"{name}:2",
        "brokerId": broker_id, **rest,
    }  # fmt: skip


def topics(*names, **settings) -> TopicConfigTable:
    return TopicConfigTable(
        data_version=DataVersion(counter=1, timestamp=1),
        topic_config_table={name: TopicConfig(topic_name=name, **settings) for name in names},
    )


class _FirstWaits:
    """A disk whose first chore waits for an event."""

    def __init__(self, disk) -> None:
        self._disk = disk
        self._chores = 0
        self.go_on = trio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._disk, name)

    async def run(self, chore):
        self._chores += 1
        if self._chores == 1:
            await self.go_on.wait()
        return chore()


async def test_the_file_has_the_last_of_two_concurrent_changes(desk) -> None:
    disk = _FirstWaits(desk.disk)
    desk.server.config_file = ConfigFile(desk.config.config_store_path, disk)
    async with trio.open_nursery() as nursery:
        for name in (b"one", b"two"):
            nursery.start_soon(partial(desk.ask, Code.UPDATE_NAMESRV_CONFIG, body=b"productEnvName=" + name))
            await trio.testing.wait_all_tasks_blocked()
        disk.go_on.set()
    kept = load_properties(desk.disk.read(desk.config.config_store_path))
    assert kept["productEnvName"] == desk.server.config.product_env_name == "two"


async def test_old_brokers_send_the_bare_table(desk) -> None:
    await desk.ask(Code.REGISTER_BROKER, fields(), topics("T").encode(), version=36)
    assert to_the_end(desk.server.routes.all_topics()) == ["T"]
    body = RegisterBrokerBody(topic_config_serialize_wrapper=topics("U"))
    await desk.ask(Code.REGISTER_BROKER, fields("b"), body.encode(), version=37)
    assert sorted(to_the_end(desk.server.routes.all_topics())) == ["T", "U"]


async def test_compressed_registration_carries_no_flags(desk) -> None:
    body = RegisterBrokerBody(topic_config_serialize_wrapper=topics("T", order=True, topic_sys_flag=3, perm=4))
    data = body.encode_compressed()
    await desk.ask(Code.REGISTER_BROKER, fields(compressed="true", bodyCrc32=str(registration_crc(data))), data)
    (queue,) = desk.server.routes.route("T").queue_datas
    assert (queue.perm, queue.topic_sys_flag) == (4, 0)


@pytest.mark.parametrize("body", [b"not zlib", zlib.compress(b"\x00\x00\x00\xff"), zlib.compress(b"")])
async def test_damaged_compressed_registration_is_refused(desk, body) -> None:
    with pytest.raises(BodyError):
        await desk.ask(Code.REGISTER_BROKER, fields(compressed="true"), body)
    assert to_the_end(desk.server.routes.cluster_info()).broker_addr_table == {}


@pytest.mark.parametrize(
    ("begin", "long", "why"),
    [
        ("", b" " * (4 << 20), "bytes of a version"),
        ("VN", b"x" * (4 << 20), "bytes of a topic"),
        ("VO", b"[" + b"1," * 10_000 + b"1]", "bytes of filter servers"),
    ],
)
async def test_a_part_of_a_compressed_registration_is_short(desk, begin, long, why) -> None:
    prefixed = {"V": b"\0\0\0\2{}", "N": b"\0\0\0\1", "O": bytes(4)}
    inflated = b"".join(prefixed[one] for one in begin) + len(long).to_bytes(4, "big") + long
    with pytest.raises(BodyError, match=why):
        await desk.ask(Code.REGISTER_BROKER, fields(compressed="true"), zlib.compress(inflated))
    assert to_the_end(desk.server.routes.cluster_info()).broker_addr_table == {}


@pytest.mark.parametrize("compressed", [True, False])
async def test_registrations_being_read_take_a_bounded_memory_together(desk, compressed) -> None:
    class Connection:
        peer = "10.0.0.1:5"
        peer_host = b"host-and-port"
        closed = False

        def close(self) -> None:
            self.closed = True

    def registering(link, count):
        body = RegisterBrokerBody(topic_config_serialize_wrapper=topics(*map(str, range(count))))
        data = body.encode_compressed() if compressed else body.encode()
        command = Command.request(Code.REGISTER_BROKER, fields=fields(compressed=str(compressed).lower()), body=data)
        return desk.handlers.sliced[Code.REGISTER_BROKER](link, command)

    budget = desk.server._registrations
    budget.limit_bytes = 10 << 20
    large, small, later = Connection(), Connection(), Connection()
    one = registering(large, 8000)
    for _ in range(4):
        next(one)
    held = budget.held_bytes
    assert 2_000_000 < held < 10 << 20
    two = registering(small, 3000)
    next(two)
    next(two)
    assert budget.held_bytes > held
    budget.limit_bytes = budget.held_bytes
    three = registering(later, 3000)
    next(three)
    next(three)
    assert (large.closed, small.closed, later.closed) == (True, False, False)
    one.close()
    assert to_the_end(two).code == 0
    assert to_the_end(three).code == 0
    assert budget.held_bytes == 0


@pytest.mark.parametrize(
    ("memory", "limit"), [(128, 64), (256, 64), (512, 128), (1024, 256), (2048, 512), (1 << 20, 512)]
)
def test_the_memory_of_registrations_is_a_part_of_the_process_s(monkeypatch, memory, limit) -> None:
    monkeypatch.setattr("triomq_server.config.memory.usable_memory_bytes", lambda: memory << 20)
    assert most_bytes_of_registrations() == limit << 20


async def test_a_long_data_version_is_refused(desk) -> None:
    await desk.register("a")
    long = b'{"counter":1,"timestamp":7' + b" " * 5000 + b"}"
    with pytest.raises(BodyError, match="at most 4096 are read"):
        await desk.ask(Code.QUERY_DATA_VERSION, fields(brokerAddr="a-0:1"), long)


async def test_registration_that_is_no_json_is_refused(desk) -> None:
    with pytest.raises(BodyError):
        await desk.ask(Code.REGISTER_BROKER, fields(), b"{{{")
    assert to_the_end(desk.server.routes.cluster_info()).broker_addr_table == {}


@pytest.mark.parametrize("broker_id", ["x", ""])
async def test_broker_id_that_is_no_number_is_refused(desk, broker_id) -> None:
    with pytest.raises(HeaderError, match="brokerId"):
        await desk.ask(Code.UNREGISTER_BROKER, fields(broker_id=broker_id))


async def test_route_json_depends_on_the_callers_version(desk) -> None:
    await desk.register("a", 0, ("T",))
    assert b'{"0":' in (await desk.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}, version=401)).body
    assert b"{0:" in (await desk.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}, version=400)).body
    answer = await desk.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T", "acceptStandardJsonOnly": "true"}, version=0)
    assert b'{"0":' in answer.body


async def test_order_configuration_is_in_routes_only_when_enabled(desk) -> None:
    await desk.register("a", 0, ("T",))
    await desk.ask(Code.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "a:4"})
    assert b"orderTopicConf" not in (await desk.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).body
    await desk.ask(Code.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true")
    assert b'"orderTopicConf":"a:4"' in (await desk.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).body


async def test_version_query(desk) -> None:
    await desk.register("a", 0, counter=3, address="a:1")
    same = DataVersion(counter=3, timestamp=7).encode()
    answer = await desk.ask(Code.QUERY_DATA_VERSION, fields(), same)
    assert (answer.fields, answer.body) == ({"changed": "false"}, same)
    answer = await desk.ask(Code.QUERY_DATA_VERSION, fields("b"), same)
    assert (answer.fields, answer.body) == ({"changed": "true"}, b"")


async def test_empty_tables(desk) -> None:
    assert (await desk.ask(Code.GET_BROKER_CLUSTER_INFO)).body == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
    for code in (
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, Code.GET_UNIT_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_TOPIC_LIST, Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    ):  # fmt: skip
        assert (await desk.ask(code)).body == b'{"topicList":[]}'


async def test_system_topics_name_a_broker_to_ask(desk) -> None:
    await desk.register("broker-a", 0, ("T",), address="127.0.0.1:20111")
    answer = await desk.ask(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert answer.body == b'{"brokerAddr":"127.0.0.1:20111","topicList":["C","broker-a"]}'


async def test_expiry_closes_the_connection(desk) -> None:
    from triomq_server.wire import Link

    class Connection(Link):
        __slots__ = ()

        def __init__(self):
            self.peer = "10.0.0.1:5"
            self.closed = False

        def close(self):
            self.closed = True

    link = Connection()
    await desk.register("a", 0, ("T",), peer=link)
    desk.now_ms += 120_000
    await desk.server.expire()
    assert not link.closed
    desk.now_ms += 1
    await desk.server.expire()
    assert link.closed
    assert to_the_end(desk.server.routes.all_topics()) == []


async def test_key_values_survive_a_restart(desk) -> None:
    for key in ("k1", "k2"):
        await desk.ask(Code.PUT_KV_CONFIG, {"namespace": "N", "key": key, "value": f"v{key}"})
    await desk.ask(Code.PUT_KV_CONFIG, {"namespace": "M", "key": "x", "value": "y"})
    await desk.ask(Code.DELETE_KV_CONFIG, {"namespace": "M", "key": "x"})
    assert desk.disk.read("/namesrv/kvConfig.json") == b'{"configTable":{"M":{},"N":{"k1":"vk1","k2":"vk2"}}}'
    assert desk.disk.read("/namesrv/kvConfig.json.bak") == desk.disk.read("/namesrv/kvConfig.json")
    desk.restart()
    assert (await desk.ask(Code.GET_KV_CONFIG, {"namespace": "N", "key": "k2"})).fields == {"value": "vk2"}
    assert (await desk.ask(Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "M"})).body == b'{"table":{}}'
    assert (await desk.ask(Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "X"})).code == 22


async def test_damaged_key_value_file_falls_back_to_its_copy(desk) -> None:
    for value in ("1", "2"):
        await desk.ask(Code.PUT_KV_CONFIG, {"namespace": "N", "key": "k", "value": value})
    desk.disk.write("/namesrv/kvConfig.json", b'{"configTable":{"N":{"k"')
    desk.restart()
    assert (await desk.ask(Code.GET_KV_CONFIG, {"namespace": "N", "key": "k"})).fields == {"value": "2"}


@pytest.mark.parametrize("missing", ["namespace", "key"])
async def test_put_needs_namespace_and_key(desk, missing) -> None:
    given = {"namespace": "N", "key": "k", "value": "v"}
    del given[missing]
    answer = await desk.ask(Code.PUT_KV_CONFIG, given)
    assert (answer.code, answer.remark) == (1, "namespace or key is null")


async def test_deleting_what_does_not_exist_is_no_error(desk) -> None:
    assert (await desk.ask(Code.DELETE_KV_CONFIG, {"namespace": "N", "key": "k"})).code == 0
    assert (await desk.ask(Code.DELETE_KV_CONFIG)).code == 0


async def test_own_configuration_is_shown_changed_and_written(desk) -> None:
    lines = (await desk.ask(Code.GET_NAMESRV_CONFIG)).body.decode().splitlines()
    assert {"listenPort=9876", "orderMessageEnable=false", "serverSocketBacklog=1024"} <= set(lines)
    answer = await desk.ask(Code.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\nnobodyKnows=1\n")
    assert answer.code == 0
    lines = (await desk.ask(Code.GET_NAMESRV_CONFIG)).body.decode().splitlines()
    assert "orderMessageEnable=true" in lines
    assert not [line for line in lines if "nobodyKnows" in line]
    written = load_properties(desk.disk.read("/namesrv/namesrv.properties"))
    assert written["orderMessageEnable"] == "true"
    assert written["kvConfigPath"] == "/namesrv/kvConfig.json"


async def test_what_cannot_be_written_is_in_force_and_logged(desk, caplog) -> None:
    desk.disk.failing_syncs = True
    pair = {"namespace": "N", "key": "k"}
    put = await desk.ask(Code.PUT_KV_CONFIG, {**pair, "value": "v"})
    assert (await desk.ask(Code.GET_KV_CONFIG, pair)).fields == {"value": "v"}
    deleted = await desk.ask(Code.DELETE_KV_CONFIG, pair)
    assert (await desk.ask(Code.GET_KV_CONFIG, pair)).code == 22
    changed = await desk.ask(Code.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\n")
    assert desk.config.order_message_enable
    for answer in (put, deleted, changed):
        assert answer.code == 1
        assert "in force until the name server stops, but its file cannot be written: " in answer.remark
    logged = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert logged == [f"/namesrv/{name} cannot be written" for name in ("kvConfig.json", "namesrv.properties")]


@pytest.mark.parametrize(
    ("body", "code", "remark"),
    [
        (b"", 0, None),
        (b"kvConfigPath=/x", 16, "Can not update config path"),
        (b"a=1\nconfigStorePath=/x", 16, "Can not update config path"),
        (b"a=\\uXYZ", 1, "string2Properties error"),
    ],
)
async def test_own_configuration_refuses(desk, body, code, remark) -> None:
    answer = await desk.ask(Code.UPDATE_NAMESRV_CONFIG, body=body)
    assert (answer.code, answer.remark) == (code, remark)
    assert not desk.disk.exists("/namesrv/namesrv.properties")


@pytest.mark.parametrize(("code", "why"), [(4711, ""), (1005, ": there is no controller")])
async def test_an_unknown_code_is_refused_at_once(desk, code, why) -> None:
    answer = await desk.ask(code)
    assert answer.code == 3
    assert answer.remark.startswith(f" request type {code} not supported{why}")


async def test_all_codes_of_a_name_server_are_answered(desk) -> None:
    known = {100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 219, 224, 304, 311, 312, 313, 318, 319, 322, 327}
    assert set(desk.handlers.plain) | set(desk.handlers.waiting) | set(desk.handlers.sliced) == known


def test_header_of_registration_names_what_is_missing() -> None:
    from triomq_protocol.wire.command import Command

    with pytest.raises(HeaderError, match="brokerName"):
        Command.request(103, fields={"brokerAddr": "a"}).header(RegisterBrokerRequest)
