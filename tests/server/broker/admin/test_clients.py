"""Connected clients, as operators see them: 203, 204, 328 (docs/protocol/broker-api.md §14)."""

from __future__ import annotations

from typing import Any

import pytest

from triomq_protocol.codes import LanguageCode, RequestCode
from triomq_protocol.requests import (
    ConsumerConnection,
    GetConsumerConnectionListRequest,
    GetProducerConnectionListRequest,
    HeartbeatData,
    ProducerConnection,
    ProducerData,
    ProducerTableInfo,
    QuerySubscriptionBody,
    TopicList,
)
from triomq_protocol.wire.frame import FrameDecoder


def producing(client_id: str, *groups: str) -> bytes:
    return HeartbeatData(
        client_id=client_id, producer_data_set=[ProducerData(group_name=group) for group in groups]
    ).encode()


@pytest.mark.parametrize(
    ("beat", "name", "peer"),
    [
        ("34_client_to_slave__0_0", "203_client_to_master__0_0", "127.0.0.1:48108"),
        ("34_client_to_master_bin__0_0", "203_client_to_master_bin__0_0", "127.0.0.1:47854"),
    ],
)
async def test_an_online_group_as_recorded(
    desk: Any, client_link: Any, exchanges: Any, beat: str, name: str, peer: str
) -> None:
    """The recorded answer, but for the versions of the subscriptions, which later heartbeats had raised."""
    await desk.frame(exchanges[beat][0], client_link(peer))
    request, response = exchanges[name]
    (recorded,) = FrameDecoder().feed(response)
    body = ConsumerConnection.decode(recorded.body)
    (group,) = desk.broker.clients.consumers.values()
    for topic, data in body.subscription_table.items():
        group.subscriptions[topic].sub_version = data.sub_version
    assert await desk.frame(request) == response


async def test_a_group_that_is_offline(desk: Any) -> None:
    header = GetConsumerConnectionListRequest(consumer_group="G")
    answer = await desk.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
    assert (answer.code, answer.remark) == (206, "the consumer group[G] not online")


async def test_a_producer_group_as_recorded(desk: Any, client_link: Any, exchanges: Any) -> None:
    beat = producing("127.0.0.1@p1", "PG_live", "CLIENT_INNER_PRODUCER")
    await desk.ask(RequestCode.HEART_BEAT, body=beat, link=client_link("127.0.0.1:48130"), language=LanguageCode.JAVA)
    request, response = exchanges["204_client_to_master__0_0"]
    assert await desk.frame(request) == response


async def test_an_unknown_producer_group(desk: Any) -> None:
    header = GetProducerConnectionListRequest(producer_group="G")
    answer = await desk.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
    assert (answer.code, answer.remark) == (1, "the producer group[G] not exist")


async def test_members_show_the_language_and_version_they_sent(desk: Any, client_link: Any) -> None:
    link = client_link("10.0.0.1:5")
    await desk.ask(RequestCode.HEART_BEAT, body=producing("p", "PG"), link=link, version=433)
    header = GetProducerConnectionListRequest(producer_group="PG")
    answer = await desk.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
    (member,) = ProducerConnection.decode(answer.body).connection_set
    assert (member.client_addr, member.client_id, member.language, member.version) == (
        "10.0.0.1:5",
        "p",
        "PYTHON",
        433,
    )


async def test_all_producers_as_recorded(desk: Any, client_link: Any, exchanges: Any) -> None:
    request, response = exchanges["328_client_to_master__0_0"]
    (recorded,) = FrameDecoder().feed(response)
    for group, members in ProducerTableInfo.decode(recorded.body).data.items():
        for member in members:
            desk.clock.now_ms = member.last_update_timestamp
            link = desk.links.setdefault(member.remote_ip, client_link(member.remote_ip.removeprefix("/")))
            await desk.ask(
                RequestCode.HEART_BEAT,
                body=producing(member.client_id, group),
                link=link,
                language=LanguageCode.JAVA,
            )
    assert await desk.frame(request) == response


async def test_what_a_group_reads_for_tools_of_rocketmq_5(desk: Any, client_link: Any, exchanges: Any) -> None:
    await desk.frame(exchanges["34_client_to_slave__0_0"][0], client_link())
    (name,) = desk.broker.clients.consumers
    group = desk.broker.clients.consumers[name]
    for topic, subscription in group.subscriptions.items():
        answer = await desk.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, fields={"group": name, "topic": topic})
        assert QuerySubscriptionBody.decode(answer.body).subscription_data == subscription
    answer = await desk.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, fields={"group": "Nobody", "topic": "T"})
    assert answer.body == b'{"group":"Nobody","topic":"T"}'
    desk.broker.offsets.commit("G", "T1", 0, 1)
    desk.broker.offsets.commit("G", "T2", 0, 1)
    desk.broker.offsets.commit("H", "T3", 0, 1)
    answer = await desk.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, fields={"group": "G"})
    assert set(TopicList.decode(answer.body).topic_list) == {"T1", "T2"}
    assert TopicList.decode(answer.body).broker_addr == desk.broker.address
