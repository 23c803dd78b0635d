"""Routes, cluster and key-value configuration of a name server."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator

import pytest
from hypothesis import given, settings
from request_rules import BODY_RULES, HEADER_RULES, BodyClass, HeaderCase, bodies

from triomq_protocol.errors import BodyError
from triomq_protocol.requests import (
    AddWritePermOfBrokerRequest,
    AddWritePermOfBrokerResponse,
    BrokerData,
    ClusterInfo,
    DeleteKVConfigRequest,
    DeleteTopicFromNamesrvRequest,
    GetKVConfigRequest,
    GetKVConfigResponse,
    GetKVListByNamespaceRequest,
    GetRouteInfoRequest,
    GetTopicsByClusterRequest,
    KVTable,
    PutKVConfigRequest,
    QueueData,
    TopicList,
    TopicRouteData,
    WipeWritePermOfBrokerRequest,
    WipeWritePermOfBrokerResponse,
)

HEADERS = [
    HeaderCase(GetRouteInfoRequest, "topic acceptStandardJsonOnly:bool"),
    HeaderCase(PutKVConfigRequest, "namespace key value"),
    HeaderCase(GetKVConfigRequest, "namespace key"),
    HeaderCase(GetKVConfigResponse, "value"),
    HeaderCase(DeleteKVConfigRequest, "namespace key"),
    HeaderCase(GetKVListByNamespaceRequest, "namespace"),
    HeaderCase(WipeWritePermOfBrokerRequest, "brokerName*"),
    HeaderCase(WipeWritePermOfBrokerResponse, "wipeTopicCount*:int32"),
    HeaderCase(AddWritePermOfBrokerRequest, "brokerName*"),
    HeaderCase(AddWritePermOfBrokerResponse, "addTopicCount*:int32"),
    HeaderCase(DeleteTopicFromNamesrvRequest, "topic* clusterName"),
    HeaderCase(GetTopicsByClusterRequest, "cluster*"),
]
BODIES: list[BodyClass] = [TopicRouteData, ClusterInfo, TopicList, KVTable]


@HEADER_RULES
@pytest.mark.parametrize("case", HEADERS, ids=str)
def test_headers(case: HeaderCase, rule: Callable[[HeaderCase], None]) -> None:
    rule(case)


@BODY_RULES
@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
def test_bodies(cls: BodyClass, rule: Callable[[BodyClass], None]) -> None:
    rule(cls)


ROUTE = TopicRouteData(
    broker_datas=[
        BrokerData(broker_addrs={10: "h:3", 0: "h:1", 2: "h:2"}, broker_name="中/a", cluster="C"),
        BrokerData(broker_addrs={}, broker_name="b", cluster="C"),
    ],
    filter_server_table={"z:1": [], "a:1": ["f"]},
    queue_datas=[QueueData(broker_name="b", perm=6, read_queue_nums=4, write_queue_nums=4)],
)


def test_the_raw_form_keeps_the_order_and_the_numbers() -> None:
    assert ROUTE.encode().startswith(
        '{"brokerDatas":[{"brokerAddrs":{10:"h:3",0:"h:1",2:"h:2"},"brokerName":"中/a","cluster":"C"}'.encode()
    )


def test_the_standard_form_sorts_and_escapes() -> None:
    assert ROUTE.encode_standard() == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"h:1","2":"h:2","10":"h:3"},"brokerName":"\\u4E2D\\/a","cluster":"C"},'
        b'{"brokerAddrs":{},"brokerName":"b","cluster":"C"}],"filterServerTable":{"a:1":["f"],"z:1":[]},'
        b'"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )


def returned(slices: Generator[None, None, bytes]) -> bytes:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            found: bytes = end.value
            return found


@settings(max_examples=30)
@given(bodies(TopicRouteData))
def test_both_forms_of_a_route_are_read(route: TopicRouteData) -> None:
    assert TopicRouteData.decode(route.encode()) == route
    standard = route.encode_standard()
    assert TopicRouteData.decode(standard) == route
    assert standard.isascii()
    slices = route.encode_standard_in_slices()
    assert returned(slices) == standard
    json.loads(standard)


@pytest.mark.parametrize("key", ['"0"', "0", "-0", '"+0"', "0.0"])
def test_broker_ids_in_every_form(key: str) -> None:
    data = BrokerData.decode(f'{{"brokerAddrs":{{{key}:"h:1"}}}}'.encode())
    assert data.broker_addrs == {0: "h:1"}


@pytest.mark.parametrize(
    "text", ['{"brokerDatas":[{"brokerAddrs":{"master":"h:1"}}]}', '{"brokerDatas":[{"brokerAddrs":["h:1"]}]}',
             '{"queueDatas":{}}', '{"queueDatas":[{"perm":"rw"}]}', '{"filterServerTable":{"a":"b"}}', '{"brokerDatas":[null]}'],
)  # fmt: skip
def test_routes_of_another_shape_are_refused(text: str) -> None:
    with pytest.raises(BodyError):
        TopicRouteData.decode(text.encode())


def test_what_is_absent_stays_absent() -> None:
    assert TopicRouteData().encode() == TopicRouteData().encode_standard() == b"{}"
    assert TopicList().encode() == b'{"topicList":[]}'
    assert KVTable.decode(b'{"table":{"T":5,"U":null,"V":{"a":1}}}').table == {"T": "5", "U": "null", "V": '{"a":1}'}
    assert ClusterInfo.decode(b"{}").cluster_addr_table is None
