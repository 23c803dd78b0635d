"""Offsets of queues and groups: codes 14, 15, 29 to 32, and the tables of codes 43 and 45."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from request_rules import BODY_RULES, HEADER_RULES, BodyClass, HeaderCase

from triomq_protocol.errors import BodyError
from triomq_protocol.requests import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    GetEarliestMsgStoretimeRequest,
    GetEarliestMsgStoretimeResponse,
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    LocalOffsetTable,
    MessageQueue,
    QueryConsumerOffsetRequest,
    QueryConsumerOffsetResponse,
    SearchOffsetRequest,
    SearchOffsetResponse,
    UpdateConsumerOffsetRequest,
    UpdateConsumerOffsetResponse,
)
from triomq_protocol.wire.command import Command

HEADERS = [
    HeaderCase(QueryConsumerOffsetRequest, "consumerGroup* topic* queueId*:int32 bname"),
    HeaderCase(QueryConsumerOffsetResponse, "offset*:int64"),
    HeaderCase(UpdateConsumerOffsetRequest, "consumerGroup* topic* queueId*:int32 commitOffset*:int64 bname"),
    HeaderCase(UpdateConsumerOffsetResponse, ""),
    HeaderCase(SearchOffsetRequest, "topic* queueId*:int32 timestamp*:int64 bname"),
    HeaderCase(SearchOffsetResponse, "offset*:int64"),
    HeaderCase(GetMaxOffsetRequest, "topic* queueId*:int32 bname"),
    HeaderCase(GetMaxOffsetResponse, "offset*:int64"),
    HeaderCase(GetMinOffsetRequest, "topic* queueId*:int32 bname"),
    HeaderCase(GetMinOffsetResponse, "offset*:int64"),
    HeaderCase(GetEarliestMsgStoretimeRequest, "topic* queueId*:int32 bname"),
    HeaderCase(GetEarliestMsgStoretimeResponse, "timestamp*:int64"),
]
BODIES: list[BodyClass] = [ConsumerOffsetTable, DelayOffsetTable, LocalOffsetTable]


@HEADER_RULES
@pytest.mark.parametrize("case", HEADERS, ids=str)
def test_headers(case: HeaderCase, rule: Callable[[HeaderCase], None]) -> None:
    rule(case)


@BODY_RULES
@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
def test_bodies(cls: BodyClass, rule: Callable[[BodyClass], None]) -> None:
    rule(cls)


def test_a_commit_has_javas_order_of_fields() -> None:
    """`bname` and `commitOffset` share a bucket of Java's map: the one declared first is written first."""
    header = UpdateConsumerOffsetRequest(consumer_group="g", topic="t", queue_id=1, commit_offset=5, bname="b")
    assert list(Command.request(15, header).fields or {}) == [
        "queueId", "bname", "commitOffset", "topic", "consumerGroup",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        '{"offsetTable":{"T@G":{0:2,1:-1}}}', '{"offsetTable":{"T@G":{"0":"2","1":"-1"}}}', "{offsetTable:{'T@G':{0:2,1:-1,}}}",
        '{"offsetTable":{"T@G":{0:2.7,"1":-1}}}', '{ "offsetTable" : { "T@G" : { 0 : 2 , 1 : -1 } } }',
    ],
)  # fmt: skip
def test_queue_ids_as_other_clients_write_them(text: str) -> None:
    assert ConsumerOffsetTable.decode(text.encode()).offset_table == {"T@G": {0: 2, 1: -1}}


def test_queue_ids_are_written_without_quotes() -> None:
    assert ConsumerOffsetTable(offset_table={"T@G": {3: 4, 0: 2}}).encode() == b'{"offsetTable":{"T@G":{3:4,0:2}}}'
    assert DelayOffsetTable(offset_table={1: 1, 3: 2}).encode() == b'{"offsetTable":{1:1,3:2}}'
    local = LocalOffsetTable(offset_table={MessageQueue("T", "b", 2): 9})
    assert local.encode() == b'{"offsetTable":{{"brokerName":"b","queueId":2,"topic":"T"}:9}}'


@pytest.mark.parametrize("key", ["x", "[]", '"x"', "{}", "1.5", "--1", "1x"])
def test_keys_that_are_no_queue_ids_are_refused(key: str) -> None:
    for cls, text in ((ConsumerOffsetTable, f'{{"T@G":{{{key}:1}}}}'), (DelayOffsetTable, f"{{{key}:1}}")):
        with pytest.raises(BodyError):
            cls.decode(f'{{"offsetTable":{text}}}'.encode())


def test_a_group_name_that_looks_like_a_key_is_kept() -> None:
    table = {'a{1:2,3:@"\\': {0: 1}, "{5:": {-1: 2}, ",7:": {7: 7}}
    assert ConsumerOffsetTable.decode(ConsumerOffsetTable(offset_table=table).encode()).offset_table == table
