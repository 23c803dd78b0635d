"""Watching and steering consumers and producers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from request_rules import BODY_RULES, HEADER_RULES, BodyClass, HeaderCase

from triomq_protocol.errors import BodyError
from triomq_protocol.requests import (
    ClientConnection,
    CloneGroupOffsetRequest,
    ConsumeMessageDirectlyRequest,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeStatus,
    GetConsumerConnectionListRequest,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusBody,
    GetConsumerStatusRequest,
    GetConsumeStatsInBrokerRequest,
    GetConsumeStatsRequest,
    GetProducerConnectionListRequest,
    GroupList,
    MessageQueue,
    MessageQueueForC,
    OffsetWrapper,
    ProcessQueueInfo,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    QueryConsumeTimeSpanBody,
    QueryConsumeTimeSpanRequest,
    QueryCorrectionOffsetBody,
    QueryCorrectionOffsetRequest,
    QueryTopicConsumeByWhoRequest,
    ResetOffsetBody,
    ResetOffsetBodyForC,
    ResetOffsetRequest,
)

HEADERS = [
    HeaderCase(GetConsumerConnectionListRequest, "consumerGroup*"),
    HeaderCase(GetProducerConnectionListRequest, "producerGroup*"),
    HeaderCase(GetConsumeStatsRequest, "consumerGroup* topic"),
    HeaderCase(GetConsumeStatsInBrokerRequest, "isOrder:bool=False"),
    HeaderCase(QueryTopicConsumeByWhoRequest, "topic*"),
    HeaderCase(QueryConsumeTimeSpanRequest, "topic* group*"),
    HeaderCase(QueryCorrectionOffsetRequest, "filterGroups compareGroup* topic*"),
    HeaderCase(CloneGroupOffsetRequest, "srcGroup* destGroup* topic offline:bool=False"),
    HeaderCase(GetConsumerRunningInfoRequest, "consumerGroup* clientId* jstackEnable:bool=False"),
    HeaderCase(ConsumeMessageDirectlyRequest, "consumerGroup* clientId msgId brokerName"),
    HeaderCase(ResetOffsetRequest, "topic* group* timestamp*:int64 isForce:bool=False"),
    HeaderCase(GetConsumerStatusRequest, "topic* group* clientAddr"),
]
BODIES: list[BodyClass] = [
    ConsumerConnection,
    ProducerConnection,
    ProducerTableInfo,
    ConsumeStats,
    ConsumeStatsList,
    GroupList,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    ConsumerRunningInfo,
    ConsumeMessageDirectlyResult,
    ResetOffsetBody,
    ResetOffsetBodyForC,
    GetConsumerStatusBody,
]


@HEADER_RULES
@pytest.mark.parametrize("case", HEADERS, ids=str)
def test_headers(case: HeaderCase, rule: Callable[[HeaderCase], None]) -> None:
    rule(case)


@BODY_RULES
@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
def test_bodies(cls: BodyClass, rule: Callable[[BodyClass], None]) -> None:
    rule(cls)


QUEUE = MessageQueue("T", "b", 1)
KEYS = [
    '{"brokerName":"b","queueId":1,"topic":"T"}', '{"topic":"T","queueId":1,"brokerName":"b"}', "{topic:'T',brokerName:'b',queueId:1}",
    '"{\\"brokerName\\":\\"b\\",\\"queueId\\":1,\\"topic\\":\\"T\\"}"', "'{topic:\"T\",queueId:\"1\",brokerName:\"b\"}'",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_queues_as_keys_in_every_form(key: str) -> None:
    assert ResetOffsetBody.decode(f'{{"offsetTable":{{{key}:5}}}}'.encode()).offset_table == {QUEUE: 5}
    stats = ConsumeStats.decode(f'{{"offsetTable":{{{key}:{{"brokerOffset":4,"consumerOffset":"2"}}}}}}'.encode())
    assert stats.offset_table == {QUEUE: OffsetWrapper(broker_offset=4, consumer_offset=2)}
    info = ConsumerRunningInfo.decode(f'{{"mqTable":{{{key}:{{"droped":true,"cachedMsgSizeInMiB":3}}}}}}'.encode())
    assert info.mq_table == {QUEUE: ProcessQueueInfo(droped=True, cached_msg_size_in_mib=3)}
    status = GetConsumerStatusBody.decode(
        f'{{"consumerTable":{{"c":{{{key}:4}}}},"messageQueueTable":{{{key}:5}}}}'.encode()
    )
    assert status == GetConsumerStatusBody(consumer_table={"c": {QUEUE: 4}}, message_queue_table={QUEUE: 5})


@pytest.mark.parametrize("key", ["1", '"T"', "T", '""', '"[]"', '"{"', '{"queueId":"x"}', '{"queueId":[1]}', '"null"'])
def test_keys_that_are_no_queues_are_refused(key: str) -> None:
    for cls, member in ((ResetOffsetBody, "offsetTable"), (GetConsumerStatusBody, "messageQueueTable")):
        with pytest.raises(BodyError):
            cls.decode(f'{{"{member}":{{{key}:5}}}}'.encode())


def test_names_that_do_not_follow_the_rule() -> None:
    assert ConsumeStatus(
        consume_failed_tps=0.5, consume_ok_tps=1.0, consume_rt=2.0, pull_rt=3.0, pull_tps=1e7
    ).encode() == (
        b'{"consumeFailedMsgs":0,"consumeFailedTPS":0.5,"consumeOKTPS":1.0,"consumeRT":2.0,"pullRT":3.0,"pullTPS":1.0E7}'
    )
    assert b'"cachedMsgSizeInMiB":7' in ProcessQueueInfo(cached_msg_size_in_mib=7).encode()
    assert ProducerInfo(remote_ip="/127.0.0.1:5").encode() == (
        b'{"lastUpdateTimestamp":0,"remoteIP":"/127.0.0.1:5","version":0}'
    )


def test_offsets_for_the_c_client_are_a_list() -> None:
    body = ResetOffsetBodyForC(offset_table=[MessageQueueForC(broker_name="b", offset=5, queue_id=1, topic="T")])
    assert body.encode() == b'{"offsetTable":[{"brokerName":"b","offset":5,"queueId":1,"topic":"T"}]}'
    with pytest.raises(BodyError):
        ResetOffsetBodyForC.decode(ResetOffsetBody(offset_table={QUEUE: 5}).encode())
    with pytest.raises(BodyError):
        ResetOffsetBody.decode(body.encode())


def test_a_consumers_own_result_defaults_to_auto_commit() -> None:
    result = ConsumeMessageDirectlyResult.decode(b'{"consumeResult":"CR_LATER","spentTimeMills":2}')
    assert result == ConsumeMessageDirectlyResult(auto_commit=True, consume_result="CR_LATER", spent_time_mills=2)
    assert result.encode() == b'{"autoCommit":true,"consumeResult":"CR_LATER","order":false,"spentTimeMills":2}'


def test_rates_that_are_no_numbers() -> None:
    """Java writes NaN and infinite rates as null, which reads as the default."""
    for rate in (float("nan"), float("inf")):
        data = ConsumeStats(consume_tps=rate).encode()
        assert data == b'{"consumeTps":null,"offsetTable":{}}'
        assert ConsumeStats.decode(data).consume_tps == 0.0


def test_correction_offsets_have_numbers_as_keys() -> None:
    assert QueryCorrectionOffsetBody(correction_offsets={0: 2, 1: -1}).encode() == b'{"correctionOffsets":{0:2,1:-1}}'
    for text in (b'{"correctionOffsets":{0:2,1:-1}}', b'{"correctionOffsets":{"0":"2","1":-1}}'):
        assert QueryCorrectionOffsetBody.decode(text).correction_offsets == {0: 2, 1: -1}


@pytest.mark.parametrize("numbers", [[], [0], [1], [0, 2, 3]])
def test_a_list_of_encoded_groups_is_the_encoded_list(numbers: list[int]) -> None:
    stats = ConsumeStats(consume_tps=1.5, offset_table={MessageQueue("T", "b", 0): OffsetWrapper(broker_offset=7)})
    listed = [{f'G"\u00e9\n{number}': [stats] * number} for number in numbers]
    body = ConsumeStatsList(broker_addr="127.0.0.1:1", consume_stats_list=listed, total_diff=-3)
    groups = [
        ConsumeStatsList.encode_group(group, [each.encode() for each in entries])
        for entry in listed
        for group, entries in entry.items()
    ]
    assert ConsumeStatsList.encode_groups("127.0.0.1:1", groups, -3) == body.encode()


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_table_of_encoded_producers_is_the_encoded_table(number: int) -> None:
    producers = [ProducerInfo(client_id="a@b", language="JAVA", remote_ip="/127.0.0.1:1", version=401)] * 2
    table = {f'G"\u00e9\n{n}': producers for n in range(number)}
    encoded = [each.encode() for each in producers]
    groups = [ProducerTableInfo.encode_group(group, encoded) for group in table]
    assert ProducerTableInfo.encode_groups(groups) == ProducerTableInfo(data=table).encode()


def test_a_member_with_two_connections_is_one_member() -> None:
    connections = [ClientConnection(client_id=each) for each in ("a", "b", "a")]
    assert ConsumerConnection(connection_set=connections).members == {"a", "b"}
