"""Clients at the broker: codes 34, 35, 38, 40 and 46."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from request_rules import BODY_RULES, HEADER_RULES, BodyClass, HeaderCase

from triomq_protocol.errors import BodyError
from triomq_protocol.requests import (
    CheckClientConfigBody,
    ConsumerData,
    ConsumerIdList,
    GetConsumerListByGroupRequest,
    GetConsumerListByGroupResponse,
    HeartbeatData,
    NotifyConsumerIdsChangedRequest,
    ProducerData,
    SubscriptionData,
    UnregisterClientRequest,
    UnregisterClientResponse,
)

HEADERS = [
    HeaderCase(UnregisterClientRequest, "clientID>client_id* producerGroup consumerGroup"),
    HeaderCase(UnregisterClientResponse, ""),
    HeaderCase(GetConsumerListByGroupRequest, "consumerGroup*"),
    HeaderCase(GetConsumerListByGroupResponse, ""),
    HeaderCase(NotifyConsumerIdsChangedRequest, "consumerGroup*"),
]
BODIES: list[BodyClass] = [HeartbeatData, ConsumerIdList, CheckClientConfigBody]


@HEADER_RULES
@pytest.mark.parametrize("case", HEADERS, ids=str)
def test_headers(case: HeaderCase, rule: Callable[[HeaderCase], None]) -> None:
    rule(case)


@BODY_RULES
@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
def test_bodies(cls: BodyClass, rule: Callable[[BodyClass], None]) -> None:
    rule(cls)


BEAT = HeartbeatData(
    client_id="192.0.2.2@c1",
    consumer_data_set=[
        ConsumerData(
            consume_from_where="CONSUME_FROM_FIRST_OFFSET", consume_type="CONSUME_PASSIVELY", group_name="CG1",
            message_model="CLUSTERING",
            subscription_data_set=[
                SubscriptionData(
                    code_set=[2598919, -5], sub_string="TagA || TagB", sub_version=1795236504069, tags_set=["TagA", "TagB"],
                    topic="TopicA",
                )
            ],
        )
    ],
    producer_data_set=[ProducerData(group_name="CLIENT_INNER_PRODUCER")],
)  # fmt: skip
JAVA = (
    b'{"clientID":"192.0.2.2@c1","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"CG1","messageModel":"CLUSTERING","subscriptionDataSet":'
    b'[{"classFilterMode":false,"codeSet":[2598919,-5],"expressionType":"TAG","subString":"TagA || TagB",'
    b'"subVersion":1795236504069,"tagsSet":["TagA","TagB"],"topic":"TopicA"}],"unitMode":false}],'
    b'"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}]}'
)


def test_a_heartbeat_as_java_writes_it() -> None:
    assert BEAT.encode() == JAVA
    assert HeartbeatData.decode(JAVA) == BEAT


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"clientID"', b'"clientId"'),
        (b'"subVersion":1795236504069', b'"subVersion":"1795236504069"'),
        (b"[2598919,-5]", b'["2598919","-5"]'),
        (b'"unitMode":false', b'"unitMode":"false"'),
        (b'"unitMode":false', b'"unitMode":null,"messageQueueListener":{"a":{0:1}}'),
        (b'"classFilterMode":false,', b""),
        (b'"producerDataSet":[', b'"heartbeatFingerprint":0,"isWithoutSub":false,"producerDataSet":['),
        (b'"topic":"TopicA"', b'"filterClassSource":null,"topic":"TopicA",'),
        (b'{"clientID"', b"/* of another client */ { 'clientID'"),
    ],
)
def test_heartbeats_of_other_clients(old: bytes, new: bytes) -> None:
    assert old in JAVA
    if new.endswith(b"'clientID'"):
        new = new.replace(b"'", b'"')
    assert HeartbeatData.decode(JAVA.replace(old, new)) == BEAT


@pytest.mark.parametrize(
    "text",
    [
        b'{"consumerDataSet":[null]}', b'{"consumerDataSet":[[]]}', b'{"consumerDataSet":{"0":{}}}',
        b'{"consumerDataSet":[{"subscriptionDataSet":[{"codeSet":["TagA"]}]}]}',
        b'{"consumerDataSet":[{"subscriptionDataSet":[{"subVersion":{}}]}]}', b'{"producerDataSet":[7]}',
        b'{"consumerDataSet":[{"subscriptionDataSet":"*"}]}',
    ],
)  # fmt: skip
def test_heartbeats_of_another_shape_are_refused(text: bytes) -> None:
    with pytest.raises(BodyError):
        HeartbeatData.decode(text)


def test_a_heartbeat_without_groups() -> None:
    assert HeartbeatData(client_id="c").encode() == b'{"clientID":"c","consumerDataSet":[],"producerDataSet":[]}'
    assert HeartbeatData.decode(b'{"consumerDataSet":null,"producerDataSet":null}') == HeartbeatData()


def test_a_subscription_takes_javas_defaults() -> None:
    (group,) = HeartbeatData.decode(b'{"consumerDataSet":[{"subscriptionDataSet":[{}]}]}').consumer_data_set
    assert group.subscription_data_set == [
        SubscriptionData(expression_type="TAG", sub_version=0, tags_set=[], code_set=[])
    ]
    assert CheckClientConfigBody.decode(b'{"subscriptionData":null,"group":"g"}').subscription_data is None
