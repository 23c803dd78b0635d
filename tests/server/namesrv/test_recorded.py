"""Requests recorded at a real 4.9.7 name server get the same bytes for an answer here.

The recordings are not one history, so each test first brings the server into the state that its answers show.
"""

from __future__ import annotations

import json

import pytest

from triomq_protocol.codes import RequestCode
from triomq_protocol.wire.frame import FrameDecoder
from triomq_server.wire import to_the_end


@pytest.fixture
def replay(vectors, desk):
    cases = {case["name"]: case for case in json.loads((vectors / "exchanges.json").read_text())["cases"]}

    async def replay(name: str, *, compare: bool = True) -> None:
        case = cases[name]
        (command,) = FrameDecoder().feed(bytes.fromhex(case["requestHex"]))
        answer = await desk.put(command)
        if not compare:
            return
        if case["responseHex"] is None:
            assert answer is None
        else:
            assert answer.encode().hex() == case["responseHex"]

    return replay


async def put_kv(desk, namespace: str, key: str, value: str) -> None:
    await desk.ask(RequestCode.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value})


async def test_first_registrations(desk, replay) -> None:
    await replay("103_master_to_namesrv__0_0")
    await replay("103_slave_to_namesrv__0_2")
    for name in ("0_0", "0_1", "17_1", "17_2"):
        await replay(f"105_client_to_namesrv__{name}")
    await replay("106_client_to_namesrv__0_0")
    await replay("105_client_to_namesrv_bin__17_0")
    await replay("105_client_to_namesrv_bin__0_0")


async def test_with_order_configuration_and_many_topics(desk, replay) -> None:
    await put_kv(desk, "ORDER_TOPIC_CONFIG", "TopicOrder", "broker-a:3")
    await replay("103_master_to_namesrv__0_1")
    await replay("103_slave_to_namesrv__0_1")
    for name in ("__0_0", "__0_1", "__0_3", "_bin__0_0", "_bin__0_1", "_bin__0_2", "_bin__0_3"):
        await replay(f"105_client_to_namesrv{name}")
    await replay("106_client_to_namesrv__0_0")
    await replay("106_client_to_namesrv_bin__0_0")
    await replay("205_client_to_namesrv__0_0")
    await replay("327_client_to_namesrv__0_0")
    await replay("216_client_to_namesrv__0_0")
    await replay("104_slave_to_namesrv__0_0")


async def test_compressed_registrations(desk, replay) -> None:
    await replay("103_master_to_namesrv_compressed_0_0")
    await replay("103_master_to_namesrv_compressed_0_1")
    await replay("103_slave_to_namesrv_compressed_0_0")
    assert "RMQ_SYS_TRANS_HALF_TOPIC" in to_the_end(desk.server.routes.all_topics())


async def test_key_values(desk, replay) -> None:
    await put_kv(desk, "NS_vec", "k2", "v2")
    await put_kv(desk, "NS_vec", "kéy", "v:1;2")
    for name in ("101_client_to_namesrv__0_0", "219_client_to_namesrv__0_0"):
        await replay(name)
    await replay("101_client_to_namesrv__22_0")
    await replay("101_client_to_namesrv__22_1")
    await replay("102_client_to_namesrv__0_0")
    await replay("raw_kv_put")


async def test_handmade_requests(desk, replay) -> None:
    topics = (
        "SELF_TEST_TOPIC", "TBW102", "BenchmarkTest", "VecCluster", "broker-raw", "OFFSET_MOVED_EVENT",
        "SCHEDULE_TOPIC_XXXX", "VecCluster_REPLY_TOPIC", "RawT", "RawRO", "RawAuto", "%RETRY%CGraw", "%RETRY%CGnogroup",
    )  # fmt: skip
    await desk.register(
        "broker-raw", 0, topics, address="127.0.0.1:21810", cluster="VecCluster", read_queue_nums=2, write_queue_nums=2
    )
    await replay("raw_route_version_0")
    await replay("raw_route_missing_topic")
    await replay("raw_route_none")
    await replay("raw_topics")
    await replay("raw_topics_cluster_none")
    await replay("raw_register_bad_crc")
    await replay("raw_register_no_body")


async def test_data_version_check(desk, replay) -> None:
    await desk.ask(
        RequestCode.REGISTER_BROKER,
        {"brokerName": "broker-raw", "brokerAddr": "127.0.0.1:21810", "clusterName": "VecCluster",
         "haServerAddr": "127.0.0.1:21811", "brokerId": "0"},
        b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":5,"timestamp":1795240442303}}}',
    )  # fmt: skip
    await replay("raw_data_version_same")
