"""No request to a name server takes the loop for long, however much is registered.

Work is counted in lines of Python, so the bounds hold on any machine: 150,000 lines take some ten milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from loop_lines import lines_of, lines_of_slices

from triomq_protocol.codes import RequestCode as Code
from triomq_protocol.requests import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from triomq_protocol.wire.command import Command
from triomq_server.namesrv import kv_config
from triomq_server.namesrv.routes import TooManyBrokersError
from triomq_server.wire import to_the_end

MOST_LINES = 150_000
"""Of one slice."""

TOPICS = 20_000
SETS = 500
KEYS = 6000


def body(topics: int) -> bytes:
    table = TopicConfigTable(
        data_version=DataVersion(counter=1, timestamp=1),
        topic_config_table={f"T{number}": TopicConfig(topic_name=f"T{number}") for number in range(topics)},
    )
    return RegisterBrokerBody(filter_server_list=[], topic_config_serialize_wrapper=table).encode()


OF_BROKER = {"brokerName": "a", "brokerAddr": "a-0:1", "clusterName": "C", "haServerAddr": "h:1", "brokerId": "0"}

REQUESTS: dict[int, tuple[dict[str, str], Callable[[], bytes]]] = {
    Code.REGISTER_BROKER: ({**OF_BROKER, "brokerName": "new", "brokerAddr": "new:1"}, lambda: body(TOPICS)),
    Code.UNREGISTER_BROKER: (OF_BROKER, bytes),
    Code.GET_KV_CONFIG: ({"namespace": "N", "key": "5"}, bytes),
    Code.GET_KVLIST_BY_NAMESPACE: ({"namespace": "N"}, bytes),
    Code.GET_ROUTEINFO_BY_TOPIC: ({"topic": "T1"}, bytes),
    Code.WIPE_WRITE_PERM_OF_BROKER: ({"brokerName": "a"}, bytes),
    Code.ADD_WRITE_PERM_OF_BROKER: ({"brokerName": "a"}, bytes),
    Code.DELETE_TOPIC_IN_NAMESRV: ({"topic": "T1"}, bytes),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: ({}, bytes),
    Code.GET_NAMESRV_CONFIG: ({}, bytes),
    Code.QUERY_DATA_VERSION: (OF_BROKER, bytes),
    Code.GET_BROKER_CLUSTER_INFO: ({}, bytes),
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: ({}, bytes),
    Code.GET_TOPICS_BY_CLUSTER: ({"cluster": "C"}, bytes),
    Code.GET_UNIT_TOPIC_LIST: ({}, bytes),
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: ({}, bytes),
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: ({}, bytes),
}
"""A request that finds much of what is registered, for every code that is answered without waiting."""

WAITING = {
    Code.PUT_KV_CONFIG: "changes one value; the file is written by a worker thread, and the table is bounded",
    Code.DELETE_KV_CONFIG: "as PUT_KV_CONFIG",
    Code.UPDATE_NAMESRV_CONFIG: "reads MOST_SETTINGS_BYTES at most",
}
"""Codes of coroutine functions, and why they take little time between their waits."""


async def fill(desk: Any, topics: int, sets: int, keys: int) -> None:
    """A set `a` with many topics, and others with one each."""
    await desk.ask(Code.REGISTER_BROKER, OF_BROKER, body(topics))
    for number in range(sets):
        await desk.register(f"s{number}", topics=(f"S{number}",), cluster=f"C{number}", peer=object())
    table = desk.server.kv._table
    for namespace in ("N", "ORDER_TOPIC_CONFIG"):
        table[namespace] = {str(number): "a:4" for number in range(keys)}


def command(code: int) -> Command:
    fields, made = REQUESTS[code]
    return Command.request(code, fields=fields, body=made())


async def test_every_code_is_in_the_tables_of_this_file(desk: Any) -> None:
    assert {*desk.handlers.plain, *desk.handlers.sliced} == set(REQUESTS)
    assert set(desk.handlers.waiting) == set(WAITING)
    assert all(WAITING.values())


@pytest.mark.parametrize("code", REQUESTS, ids=lambda code: code.name)
async def test_a_request_takes_little_time_however_much_is_registered(
    desk: Any, new_desk: Callable[..., Any], code: Code
) -> None:
    await fill(desk, TOPICS, SETS, KEYS)
    if code in desk.handlers.sliced:
        counts = lines_of_slices(desk.handlers.sliced[code](_Peer(), command(code)))
        assert max(counts) < MOST_LINES
        return
    small = new_desk()
    await fill(small, 10, 3, 10)
    lines = [lines_of(lambda d=each: d.handlers.plain[code](_Peer(), command(code))) for each in (small, desk)]
    assert lines[1] < lines[0] + 50, "it walks a table: serve the code in slices"


class _Peer:
    peer = "10.0.0.1:5000"


@pytest.mark.parametrize("version", [400, 407])
async def test_the_route_of_a_topic_on_many_brokers_is_encoded_in_slices(desk: Any, version: int) -> None:
    for number in range(900):
        await desk.register(f"s{number}", topics=("T",), peer=object())
    for code, fields in (
        (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}),
        (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T", "acceptStandardJsonOnly": "true"}),
    ):
        request = Command.request(code, fields=fields, version=version)
        slices = desk.handlers.plain[code](_Peer(), request)
        counts = lines_of_slices(slices)
        assert len(counts) > 3
        assert max(counts) < MOST_LINES
    answer = to_the_end(desk.handlers.plain[code](_Peer(), request))
    route = desk.server.routes.route("T")
    assert answer.body == route.encode_standard()
    assert route.names == 1800


async def test_a_connection_that_ends_takes_its_topics_along_in_slices(desk: Any) -> None:
    peer = _Peer()
    await desk.ask(Code.REGISTER_BROKER, OF_BROKER, body(TOPICS), peer=peer)
    await desk.register("b", topics=("T1", "U"))
    routes = desk.server.routes
    assert lines_of(lambda: desk.server.link_closed(peer)) < 200
    assert [one.broker_name for one in routes.route("T1").queue_datas] == ["b"]
    assert routes.route("T2") is None, "gone at once, though its entry is still there"
    counts = lines_of_slices(routes.remove_in_slices())
    assert len(counts) >= TOPICS // 2048
    assert max(counts) < MOST_LINES
    assert not routes.has_gone
    assert sorted(to_the_end(routes.all_topics())) == ["T1", "U"]


async def test_what_has_gone_is_in_no_list_while_it_is_removed(desk: Any) -> None:
    await desk.ask(Code.REGISTER_BROKER, OF_BROKER, body(TOPICS))
    await desk.register("b", topics=("T1", "U"))
    await desk.ask(Code.UNREGISTER_BROKER, OF_BROKER)
    routes = desk.server.routes
    removal = routes.remove_in_slices()
    next(removal)
    assert sorted(to_the_end(routes.all_topics())) == ["T1", "U"]
    assert to_the_end(removal) is None


async def test_a_set_that_registers_again_has_only_the_topics_that_it_registers(desk: Any) -> None:
    await desk.ask(Code.REGISTER_BROKER, OF_BROKER, body(TOPICS))
    await desk.ask(Code.UNREGISTER_BROKER, OF_BROKER)
    removal = desk.server.routes.remove_in_slices()
    next(removal)
    await desk.ask(Code.REGISTER_BROKER, OF_BROKER, body(3))
    to_the_end(removal)
    assert sorted(to_the_end(desk.server.routes.all_topics())) == ["T0", "T1", "T2"]
    assert desk.server.routes.route("T1").queue_datas[0].broker_name == "a"


async def test_a_link_of_no_broker_closes_without_examining_all_sets(desk: Any) -> None:
    await fill(desk, 10, SETS, 0)
    assert lines_of(lambda: desk.server.link_closed(_Peer())) < 100


async def test_registrations_of_other_peers_are_bounded(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq_server.namesrv.routes.MOST_BROKERS", 5)
    monkeypatch.setattr("triomq_server.namesrv.routes.MOST_BROKERS_OF_CONNECTION", 3)
    monkeypatch.setattr("triomq_server.namesrv.routes.MOST_CLUSTERS_OF_SET", 2)
    peer = _Peer()
    for number in range(3):
        assert (await desk.register(f"b{number}", peer=peer)).code == 0
    answer = await desk.register("b3", peer=peer)
    assert answer.code == 1
    assert "over this connection" in answer.remark
    assert (await desk.register("b2", peer=peer)).code == 0, "a known one may come again"
    assert (await desk.register("b2", 1, cluster="C2")).code == 0
    assert "clusters are named" in (await desk.register("b2", 2, cluster="C3")).remark
    # One address under many names of sets is one broker, of the last of them.
    codes = [(await desk.register(f"n{number}", address="x:1")).code for number in range(4)]
    assert codes == [0, 0, 0, 0]
    assert desk.server.routes.sizes()[:2] == (5, 4)
    codes = [(await desk.register(f"n{number}", address=f"x:{number}")).code for number in range(4)]
    assert codes == [1, 0, 1, 1]
    assert TooManyBrokersError.__name__ not in answer.remark


async def test_topics_and_names_are_bounded(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq_server.namesrv.routes.MOST_TOPICS", 6)
    monkeypatch.setattr("triomq_server.namesrv.routes.MOST_SETS_OF_TOPIC", 2)
    assert (await desk.register("a", topics=("T", "U"))).code == 0
    assert (await desk.register("b", topics=("T", "U"))).code == 0
    answer = await desk.register("c", topics=("V", "T"))
    assert (answer.code, "2 broker sets have the topic T" in answer.remark) == (1, True)
    answer = await desk.register("a", topics=("T", "U", "W", "X"), counter=2)
    assert (answer.code, "6 topics of all broker sets" in answer.remark) == (1, True)
    assert (await desk.register("a", topics=("T", "U", "W"), counter=3)).code == 0
    for long in ({"name": "n" * 256}, {"name": "d", "cluster": "c" * 256}, {"name": "a", "topics": ("t" * 256,)}):
        answer = await desk.register(**long, counter=4)
        assert (answer.code, "characters; at most 255" in answer.remark) == (1, True)
    assert desk.server.routes.route("t" * 256) is None


async def test_key_value_pairs_are_bounded(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_config, "MOST_PAIRS", 3)
    monkeypatch.setattr(kv_config, "MOST_CHARACTERS", 60)

    async def put(namespace: str, key: str, value: str) -> int:
        fields = {"namespace": namespace, "key": key, "value": value}
        return int((await desk.ask(Code.PUT_KV_CONFIG, fields)).code)

    assert [await put("N", str(number), "v") for number in range(5)] == [0, 0, 0, 1, 1]
    assert await put("N", "1", "w" * 50) == 0
    assert await put("N", "2", "w" * 50) == 1
    assert (await desk.ask(Code.DELETE_KV_CONFIG, {"namespace": "N", "key": "1"})).code == 0
    assert await put("N", "3", "w" * 40) == 0
    assert (await desk.ask(Code.GET_KV_CONFIG, {"namespace": "N", "key": "2"})).fields["value"] == "v"


async def test_namespaces_count_after_their_pairs_have_gone(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_config, "MOST_CHARACTERS", 1000)
    codes = []
    for number in range(5):
        fields = {"namespace": f"{number}" * 300, "key": "k", "value": "v"}
        codes.append((await desk.ask(Code.PUT_KV_CONFIG, fields)).code)
        await desk.ask(Code.DELETE_KV_CONFIG, fields)
    assert codes == [0, 0, 0, 1, 1]
    desk.restart()
    assert (await desk.ask(Code.PUT_KV_CONFIG, fields)).code == 1, "they are in the file"
    assert (await desk.ask(Code.PUT_KV_CONFIG, {"namespace": "0" * 300, "key": "k", "value": "v" * 50})).code == 0
