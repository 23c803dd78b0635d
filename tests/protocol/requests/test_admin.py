"""Topics, groups, configuration and statistics of one broker, and its access control."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from request_rules import BODY_RULES, HEADER_RULES, BodyClass, HeaderCase

from triomq_protocol.errors import BodyError
from triomq_protocol.requests import (
    BrokerStatsData,
    BrokerStatsItem,
    ClusterAclConfig,
    ConsumeQueueEntry,
    CreateAccessConfigRequest,
    CreateTopicRequest,
    DataVersion,
    DeleteAccessConfigRequest,
    DeleteSubscriptionGroupRequest,
    DeleteTopicRequest,
    GetAllTopicConfigResponse,
    GetBrokerAclConfigResponse,
    GetBrokerClusterAclConfigResponse,
    GetBrokerConfigResponse,
    GetTopicStatsInfoRequest,
    MessageQueue,
    PlainAccessConfig,
    QueryConsumeQueueBody,
    QueryConsumeQueueRequest,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicOffset,
    TopicStatsTable,
    UpdateGlobalWhiteAddrsConfigRequest,
    ViewBrokerStatsDataRequest,
)

HEADERS = [
    HeaderCase(
        CreateTopicRequest,
        "topic* defaultTopic readQueueNums*:int32 writeQueueNums*:int32 perm*:int32 topicFilterType* topicSysFlag:int32 order:bool=False",
    ),
    HeaderCase(DeleteTopicRequest, "topic*"),
    HeaderCase(GetAllTopicConfigResponse, ""),
    HeaderCase(GetTopicStatsInfoRequest, "topic*"),
    HeaderCase(DeleteSubscriptionGroupRequest, "groupName* removeOffset:bool=False"),
    HeaderCase(GetBrokerConfigResponse, "version"),
    HeaderCase(ViewBrokerStatsDataRequest, "statsName* statsKey*"),
    HeaderCase(QueryConsumeQueueRequest, "topic* queueId*:int32 index*:int64 count*:int32 consumerGroup"),
    HeaderCase(
        CreateAccessConfigRequest,
        "accessKey secretKey whiteRemoteAddress admin:bool=False defaultTopicPerm defaultGroupPerm topicPerms groupPerms",
    ),
    HeaderCase(DeleteAccessConfigRequest, "accessKey"),
    HeaderCase(UpdateGlobalWhiteAddrsConfigRequest, "globalWhiteAddrs aclFileFullPath"),
    HeaderCase(GetBrokerAclConfigResponse, "version allAclFileVersion brokerName brokerAddr clusterName"),
    HeaderCase(GetBrokerClusterAclConfigResponse, ""),
]
BODIES: list[BodyClass] = [
    TopicStatsTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    BrokerStatsData,
    QueryConsumeQueueBody,
    ClusterAclConfig,
]


@HEADER_RULES
@pytest.mark.parametrize("case", HEADERS, ids=str)
def test_headers(case: HeaderCase, rule: Callable[[HeaderCase], None]) -> None:
    rule(case)


@BODY_RULES
@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
def test_bodies(cls: BodyClass, rule: Callable[[BodyClass], None]) -> None:
    rule(cls)


def test_a_group_takes_javas_defaults() -> None:
    assert SubscriptionGroupConfig.decode(b'{"groupName":"g"}').encode() == (
        b'{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,"groupName":"g",'
        b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
    )


@pytest.mark.parametrize(
    "text", [b'{"retryMaxTimes":"3"}', b'{"RETRYMAXTIMES":3}', b'{"retryMaxTimes":3.9,"attributes":{}}']
)
def test_groups_of_other_tools(text: bytes) -> None:
    assert SubscriptionGroupConfig.decode(text) == SubscriptionGroupConfig(retry_max_times=3)


def test_tables_do_not_share_their_entries() -> None:
    SubscriptionGroupTable().subscription_group_table["g"] = SubscriptionGroupConfig()
    TopicStatsTable.decode(b"{}").offset_table[MessageQueue()] = TopicOffset()
    assert SubscriptionGroupTable() == SubscriptionGroupTable(data_version=DataVersion(), subscription_group_table={})
    assert TopicStatsTable.decode(b"{}").offset_table == {}


def test_bounds_of_queues_are_keyed_by_queues() -> None:
    table = TopicStatsTable(offset_table={MessageQueue("T", "b", 3): TopicOffset(max_offset=4)})
    assert table.encode() == (
        b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:{"lastUpdateTimestamp":0,"maxOffset":4,"minOffset":0}}}'
    )
    quoted = b'{"offsetTable":{"{\\"topic\\":\\"T\\",\\"brokerName\\":\\"b\\",\\"queueId\\":3}":{"maxOffset":"4"}}}'
    assert TopicStatsTable.decode(quoted) == table


def test_statistics_of_windows() -> None:
    data = BrokerStatsData(stats_minute=BrokerStatsItem(avgpt=1.0, sum=1 << 40, tps=1e-5))
    assert data.encode() == b'{"statsMinute":{"avgpt":1.0,"sum":1099511627776,"tps":1.0E-5}}'
    assert BrokerStatsData.decode(data.encode()) == data
    with pytest.raises(BodyError, match=r"statsMinute\.sum"):
        BrokerStatsData.decode(b'{"statsMinute":{"sum":[]}}')


def test_entries_of_a_consume_queue() -> None:
    body = QueryConsumeQueueBody(
        filter_data="null", max_queue_index=2, queue_data=[ConsumeQueueEntry(physic_size=215, tags_code=-2598919)]
    )
    assert body.encode() == (
        b'{"filterData":"null","maxQueueIndex":2,"minQueueIndex":0,"queueData":[{"eval":false,"physicOffset":0,'
        b'"physicSize":215,"tagsCode":-2598919}]}'
    )
    assert QueryConsumeQueueBody.decode(body.encode()) == body
    assert QueryConsumeQueueBody.decode(b'{"queueData":[]}').queue_data == []


def test_accounts_of_access_control() -> None:
    config = ClusterAclConfig(
        global_white_addrs=["10.10.103.*"],
        plain_access_configs=[PlainAccessConfig(access_key="RocketMQ", topic_perms=["a=PUB"])],
    )
    assert config.encode() == (
        b'{"globalWhiteAddrs":["10.10.103.*"],"plainAccessConfigs":[{"accessKey":"RocketMQ","admin":false,"topicPerms":["a=PUB"]}]}'
    )
    assert ClusterAclConfig.decode(config.encode()) == config
