"""Heartbeats, unregistration, member lists and queue locks as clients send them
(docs/protocol/broker-api.md §8, §11)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio

from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import (
    CheckClientConfigBody,
    ConsumerData,
    ConsumerIdList,
    ConsumerSendMsgBackRequest,
    GetConsumerListByGroupRequest,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    NotifyConsumerIdsChangedRequest,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    UnlockBatchRequestBody,
    UnregisterClientRequest,
)
from triomq_protocol.wire.frame import FrameDecoder
from triomq_server.broker.requests.clients import link_closed, watch_clients
from triomq_server.config import BrokerConfig


def beat(client_id: str, *topics: str, group: str = "CG", unit: bool = False) -> bytes:
    data = ConsumerData(
        group_name=group,
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        subscription_data_set=[SubscriptionData(topic=topic, sub_string="*", sub_version=1) for topic in topics],
        unit_mode=unit,
    )
    return HeartbeatData(client_id=client_id, consumer_data_set=[data], producer_data_set=[]).encode()


def news(link: Any) -> list[str]:
    """The groups of whose changed members a link was notified."""
    assert all(command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for command in link.notified)
    return [command.header(NotifyConsumerIdsChangedRequest).consumer_group for command in link.notified]


@pytest.mark.parametrize(
    "name",
    [
        "34_client_to_master__0_1",
        "34_client_to_slave__0_0",
        "34_client_to_slave__0_2",
        "34_client_to_master_bin__0_0",
        "35_client_to_slave__0_0",
        "35_client_to_master_bin__0_1",
        "35_client_to_slave_bin__0_0",
        "42_client_to_master__0_0",
        "raw_heartbeat",
        "raw_lock_empty",
    ],
)
async def test_answers_are_those_of_the_real_broker(desk: Any, exchanges: Any, name: str) -> None:
    request, response = exchanges[name]
    assert await desk.frame(request) == response


@pytest.mark.parametrize(
    ("beat_name", "list_name"),
    [
        ("34_client_to_master__0_1", "38_client_to_master__0_0"),
        ("34_client_to_master_bin__0_0", "38_client_to_master_bin__0_0"),
    ],
)
async def test_a_recorded_heartbeat_shows_in_the_recorded_list(
    desk: Any, exchanges: Any, beat_name: str, list_name: str
) -> None:
    await desk.frame(exchanges[beat_name][0])
    request, response = exchanges[list_name]
    assert await desk.frame(request) == response


async def test_a_heartbeat_that_is_no_json_is_refused(desk: Any) -> None:
    from triomq_protocol.errors import BodyError

    with pytest.raises(BodyError, match="JSON"):
        await desk.ask(RequestCode.HEART_BEAT, body=b"nonsense")


@pytest.mark.parametrize(
    "data",
    [
        HeartbeatData(client_id=None, producer_data_set=[ProducerData(group_name="PG")]),
        HeartbeatData(client_id="c", producer_data_set=[ProducerData(group_name=None)]),
        HeartbeatData(client_id="c", consumer_data_set=[ConsumerData(group_name=None)]),
        HeartbeatData(
            client_id="c",
            consumer_data_set=[ConsumerData(group_name="CG", subscription_data_set=[SubscriptionData(topic=None)])],
        ),
    ],
)
async def test_a_heartbeat_without_a_name_is_refused_before_it_changes_anything(desk: Any, data: HeartbeatData) -> None:
    from triomq_protocol.errors import BodyError

    with pytest.raises(BodyError, match="is missing"):
        await desk.ask(RequestCode.HEART_BEAT, body=data.encode())
    assert desk.broker.clients.consumers == {}
    assert desk.broker.clients.producers == {}


async def test_a_new_group_gets_its_configuration_and_its_retry_topic(desk: Any, client_link: Any) -> None:
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c1", "T", unit=True), link=client_link())
    assert desk.broker.groups.get("CG") is not None
    retry = desk.broker.topics.get("%RETRY%CG")
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm, retry.topic_sys_flag) == (1, 1, 6, 2)


@pytest.mark.parametrize(("said", "made"), [(2_000_000_000, 65536), (-1, 0)])
async def test_settings_from_elsewhere_make_no_endless_retry_topic(
    desk: Any, client_link: Any, said: int, made: int
) -> None:
    desk.broker.groups.put(SubscriptionGroupConfig(group_name="CG", retry_queue_nums=said))
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c1", "T"), link=client_link())
    retry = desk.broker.topics.get("%RETRY%CG")
    assert (retry.read_queue_nums, retry.write_queue_nums) == (made, made)


async def test_without_auto_creation_an_unknown_group_gets_nothing_but_is_online(
    desk: Any, client_link: Any, config: BrokerConfig
) -> None:
    config.auto_create_subscription_group = False
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c1", "T"), link=client_link())
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c1", "T", group="CID_RMQ_SYS_X"), link=client_link())
    assert desk.broker.groups.get("CG") is None
    assert desk.broker.topics.get("%RETRY%CG") is None
    assert desk.broker.topics.get("%RETRY%CID_RMQ_SYS_X") is not None
    assert set(desk.broker.clients.consumers) == {"CG", "CID_RMQ_SYS_X"}


async def test_members_are_notified_of_members_and_topics_but_not_of_mere_heartbeats(
    desk: Any, client_link: Any
) -> None:
    first, second = client_link(), client_link()
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c1", "T"), link=first)
    assert news(first) == ["CG"]
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c2", "T"), link=second)
    assert (news(first), news(second)) == (["CG"] * 2, ["CG"])
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c2", "T"), link=second)
    assert news(second) == ["CG"]
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c2", "T", "U"), link=second)
    assert (news(first), news(second)) == (["CG"] * 3, ["CG"] * 2)


async def test_the_notification_is_the_recorded_one(desk: Any, client_link: Any, exchanges: Any) -> None:
    link = client_link()
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c1", "T", group="CG_order"), link=link)
    (recorded,) = FrameDecoder().feed(exchanges["40_client_from_slave__oneway_1"][0])
    (notified,) = link.notified
    notified.opaque = recorded.opaque
    assert bytes(notified.encode()) == exchanges["40_client_from_slave__oneway_1"][0]


@pytest.mark.parametrize("who", ["broker", "group"])
async def test_notifications_can_be_switched_off(desk: Any, client_link: Any, config: BrokerConfig, who: str) -> None:
    link = client_link()
    if who == "broker":
        config.notify_consumer_ids_changed_enable = False
    else:
        desk.broker.groups.put(SubscriptionGroupConfig(group_name="CG", notify_consumer_ids_changed_enable=False))
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c1", "T"), link=link)
    assert news(link) == []


async def test_unregistering_removes_the_link_from_the_named_groups_and_notifies_the_rest(
    desk: Any, client_link: Any
) -> None:
    first, second = client_link(), client_link()
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c1", "T"), link=first)
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c2", "T"), link=second)
    await desk.ask(RequestCode.HEART_BEAT, body=HeartbeatData(client_id="c2", producer_data_set=[ProducerData(group_name="PG")]).encode(), link=second)  # fmt: skip
    first.notified.clear()
    goodbye = UnregisterClientRequest(client_id="c2", consumer_group="CG", producer_group="PG")
    assert (await desk.ask(RequestCode.UNREGISTER_CLIENT, goodbye, link=second)).fields == {}
    assert news(first) == ["CG"]
    assert desk.broker.clients.producers == {}
    listed = await desk.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequest(consumer_group="CG"))
    assert ConsumerIdList.decode(listed.body).consumer_id_list == ["c1"]


async def test_a_group_without_members(desk: Any) -> None:
    answer = await desk.ask(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequest(consumer_group="none")
    )
    assert (answer.code, answer.remark) == (1, "no consumer for this group, none")


async def test_a_closed_link_notifies_the_remaining_members(desk: Any, client_link: Any) -> None:
    first, second = client_link(), client_link()
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c1", "T"), link=first)
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c2", "T"), link=second)
    first.notified.clear()
    link_closed(desk.broker, second)
    assert news(first) == ["CG"]
    link_closed(desk.broker, second)
    assert news(first) == ["CG"]


async def test_silent_clients_are_removed_and_their_links_closed(
    desk: Any, client_link: Any, autojump_clock: trio.testing.MockClock
) -> None:
    silent, lively = client_link(), client_link()
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c1", "T"), link=silent)
    await trio.sleep(60)
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c2", "T"), link=lively)
    lively.notified.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_clients, desk.broker)
        await trio.sleep(59.9)
        assert not silent.closed
        await trio.sleep(10.2)
        nursery.cancel_scope.cancel()
    assert silent.closed
    assert not lively.closed
    assert news(lively) == []
    assert desk.broker.clients.consumers["CG"].client_ids() == ["c2"]


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (b"", None),
        (CheckClientConfigBody(client_id="c", group="g").encode(), None),
        (CheckClientConfigBody(subscription_data=SubscriptionData(topic="T", sub_string="a")).encode(), None),
        (
            CheckClientConfigBody(
                subscription_data=SubscriptionData(topic="T", sub_string="a > 1", expression_type="SQL92")
            ).encode(),
            "The broker does not support consumer to filter message by SQL92",
        ),
    ],
)
async def test_subscriptions_are_checked_for_their_kind(desk: Any, body: bytes, remark: str | None) -> None:
    answer = await desk.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body)
    assert (answer.code, answer.remark) == (0 if remark is None else 1, remark)


async def test_locks_as_recorded(desk: Any, exchanges: Any, bodies: Any) -> None:
    request, response = exchanges["41_client_to_master__0_1"]
    (answer,) = FrameDecoder().feed(await desk.frame(request))
    (recorded,) = FrameDecoder().feed(response)
    ours, theirs = (LockBatchResponseBody.decode(body).lock_ok_mq_set for body in (answer.body, recorded.body))
    assert sorted(ours) == sorted(theirs)  # a Java set has no order
    request, response = exchanges["raw_lock_taken"]
    queue = MessageQueue("RawT", "broker-raw", 0)
    await desk.ask(
        RequestCode.LOCK_BATCH_MQ,
        body=LockBatchRequestBody(client_id="c", consumer_group="CG", mq_set=[queue]).encode(),
    )
    assert await desk.frame(request) == response


async def test_a_released_queue_can_be_locked_by_another_client(desk: Any, autojump_clock: Any) -> None:
    queue = MessageQueue("T", "b", 0)

    async def lock(client_id: str) -> list[MessageQueue]:
        body = LockBatchRequestBody(client_id=client_id, consumer_group="G", mq_set=[queue])
        answer = await desk.ask(RequestCode.LOCK_BATCH_MQ, body=body.encode())
        return LockBatchResponseBody.decode(answer.body).lock_ok_mq_set

    assert await lock("c1") == [queue]
    assert await lock("c2") == []
    release = UnlockBatchRequestBody(client_id="c1", consumer_group="G", mq_set=[queue])
    await desk.ask(RequestCode.UNLOCK_BATCH_MQ, body=release.encode())
    assert await lock("c2") == [queue]
    await trio.sleep(60.001)
    assert await lock("c1") == [queue]


@pytest.fixture
def short_locks(config: BrokerConfig) -> None:
    config.rebalance_lock_max_live_time = 500


async def test_a_wall_clock_that_is_set_closes_no_link_and_frees_no_lock(
    desk: Any, client_link: Any, autojump_clock: trio.testing.MockClock
) -> None:
    link = client_link()
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c1", "T"), link=link)
    queue = MessageQueue("T", "b", 0)

    async def lock(client_id: str) -> list[MessageQueue]:
        body = LockBatchRequestBody(client_id=client_id, consumer_group="G", mq_set=[queue])
        answer = await desk.ask(RequestCode.LOCK_BATCH_MQ, body=body.encode())
        return LockBatchResponseBody.decode(answer.body).lock_ok_mq_set

    assert await lock("c1") == [queue]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_clients, desk.broker)
        for step_ms in (125_000, -250_000):
            desk.clock.now_ms += step_ms
            await trio.sleep(15)
            assert not link.closed
            assert await lock("c2") == []
        nursery.cancel_scope.cancel()


async def test_how_long_locks_live_can_be_set(short_locks: None, desk: Any, autojump_clock: Any) -> None:
    queue = MessageQueue("T", "b", 0)

    async def lock(client_id: str) -> list[MessageQueue]:
        body = LockBatchRequestBody(client_id=client_id, consumer_group="G", mq_set=[queue])
        answer = await desk.ask(RequestCode.LOCK_BATCH_MQ, body=body.encode())
        return LockBatchResponseBody.decode(answer.body).lock_ok_mq_set

    assert await lock("c1") == [queue]
    await trio.sleep(0.5)
    assert await lock("c2") == []
    await trio.sleep(0.001)
    assert await lock("c2") == [queue]


async def test_a_heartbeat_with_many_new_groups_writes_each_table_once(
    desk: Any, client_link: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[str] = []
    for table in (desk.broker.topics, desk.broker.groups):
        monkeypatch.setattr(table, "persist", partial(writes.append, type(table).__name__))
        table.unsaved = False
    data = [ConsumerData(group_name=f"CG{number}", subscription_data_set=[]) for number in range(50)]
    await desk.ask(
        RequestCode.HEART_BEAT, body=HeartbeatData(client_id="c1", consumer_data_set=data).encode(), link=client_link()
    )
    assert sorted(writes) == ["GroupTable", "TopicTable"]
    assert desk.broker.topics.get("%RETRY%CG49") is not None


@pytest.mark.parametrize("group", ["../../x", "a/b", "x\0y", "g" * 200])
async def test_a_group_whose_name_cannot_be_a_topics_gets_no_retry_topic(
    desk: Any, client_link: Any, group: str
) -> None:
    before = set(desk.broker.topics.table)
    await desk.ask(RequestCode.HEART_BEAT, body=beat("c1", "T", group=group), link=client_link())
    header = ConsumerSendMsgBackRequest(offset=0, group=group, delay_level=-1)
    answer = await desk.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    # A group may have 255 characters, a topic 127.
    assert (answer.code, group in desk.broker.groups.table) == ((1, True) if len(group) > 100 else (26, False))
    assert set(desk.broker.topics.table) == before
