"""Operators' requests on topics and subscription groups (docs/protocol/broker-api.md §12, §13)."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from triomq_protocol.codes import RequestCode
from triomq_protocol.errors import BodyError
from triomq_protocol.requests import (
    CreateTopicListBody,
    CreateTopicRequest,
    DeleteSubscriptionGroupRequest,
    DeleteTopicRequest,
    GetTopicStatsInfoRequest,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigInList,
    TopicConfigTable,
    TopicStatsTable,
)
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder
from triomq_server.broker.admin.topics import attributes_refusal
from triomq_server.config import BrokerConfig, BrokerRole
from triomq_server.store import removed_queues

NOW_MS = 1_795_238_180_000
SLAVE_REMARK = "Can't modify topic or subscription group from slave broker, please execute it from master broker."


def topic(name: str = "T", queues: int = 4, **more: Any) -> CreateTopicRequest:
    values = {
        "topic": name,
        "default_topic": "TBW102",
        "read_queue_nums": queues,
        "write_queue_nums": queues,
        "perm": 6,
        "topic_filter_type": "SINGLE_TAG",
        **more,
    }
    return CreateTopicRequest(**values)


@pytest.mark.parametrize(
    "name",
    [
        "17_client_to_master__0_0",
        "17_client_to_master__0_1",
        "17_client_to_master__1_0",
        "raw_create_topic",
        "raw_create_topic_bad_name",
        "raw_create_topic_system",
        "raw_create_topic_readonly",
        "raw_delete_topic_system",
        "200_client_to_master__0_0",
        "207_client_to_master__0_0",
        "215_client_to_master__0_0",
        "305_client_to_master__0_0",
        "306_client_to_master__0_0",
        "316_client_to_master__0_0",
    ],
)
async def test_answers_are_those_of_the_real_broker(desk: Any, exchanges: Any, name: str) -> None:
    request, response = exchanges[name]
    assert await desk.frame(request) == response


async def test_a_change_that_the_disk_refuses_is_answered_with_an_error(
    open_broker: Callable[..., AbstractAsyncContextManager[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    group = SubscriptionGroupConfig(group_name="g").encode()
    listed = CreateTopicListBody(topic_config_list=[TopicConfigInList(topic_name="U")]).encode()
    async with open_broker() as running:
        peer = await running.peer()
        with monkeypatch.context() as full:
            full.setattr(running.disk, "write", refuse)
            for code, header, body, table in (
                (RequestCode.UPDATE_AND_CREATE_TOPIC, topic("T"), b"", "topics"),
                (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, listed, "topics"),
                (RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic="U"), b"", "topics"),
                (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group, "subscriptionGroup"),
                (RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupRequest(group_name="g"), b"",
                 "subscriptionGroup"),
            ):  # fmt: skip
                answer = await peer.ask(Command.request(code, header, body=body))
                assert answer.code == 1
                refused = f"/store/config/{table}.json cannot be written: [Errno 28] No space left on device"
                assert answer.remark == f"the change is in force until the broker stops, but {refused}"
        assert (await peer.ask(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, topic("V")))).code == 0
        names = json.loads(running.disk.read("/store/config/topics.json"))["topicConfigTable"].keys()
        assert {"T", "V"} <= names


async def test_a_created_topic_replaces_the_old_one_and_counts_a_change(desk: Any) -> None:
    before = desk.broker.topics.version.counter
    notified: list[TopicConfig | None] = []
    desk.broker.topics.on_change = notified.append
    await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic(queues=4))
    await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic(queues=2, perm=4, topic_sys_flag=1, topic_filter_type="MULTI_TAG"))  # fmt: skip
    found = desk.broker.topics.get("T")
    assert found == TopicConfig(
        topic_name="T",
        read_queue_nums=2,
        write_queue_nums=2,
        perm=4,
        topic_sys_flag=1,
        topic_filter_type="MULTI_TAG",
    )
    assert desk.broker.topics.version.counter == before + 2
    assert notified[-1] == found


async def test_the_order_flag_comes_from_name_servers_only(desk: Any) -> None:
    await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic(order=True))
    assert desk.broker.topics.get("T").order is False
    desk.broker.topics.set_order_topics(["T"])
    await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic(order=False))
    assert desk.broker.topics.get("T").order is True


@pytest.mark.parametrize(
    ("header", "named"),
    [
        (topic(read_queue_nums=-1), "readQueueNums"),
        (topic(write_queue_nums=65537), "writeQueueNums"),
        (topic(topic_filter_type="NO_TAG"), "topicFilterType"),
    ],
)
async def test_impossible_numbers_and_types_are_refused_by_name(
    desk: Any, header: CreateTopicRequest, named: str
) -> None:
    answer = await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert answer.code == 1
    assert named in answer.remark
    assert desk.broker.topics.get("T") is None


async def test_a_topic_may_have_no_queues(desk: Any) -> None:
    assert (await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic(queues=0))).code == 0
    assert desk.broker.topics.get("T").write_queue_nums == 0


async def test_a_deleted_topic_is_gone_with_its_queues(desk: Any) -> None:
    await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic())
    desk.store("T", 0, 1000, 2000)
    assert desk.broker.store.queue_bounds("T", 0) == (0, 2)
    assert (await desk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic="T"))).code == 0
    assert desk.broker.topics.get("T") is None
    assert desk.broker.store.queue_bounds("T", 0) == (2, 2)


@pytest.mark.parametrize("compat", ["safe", "4.9"])
async def test_offsets_in_a_deleted_topic_are_kept_as_long_as_its_numbering_is_remembered(
    new_desk: Any, monkeypatch: pytest.MonkeyPatch, compat: str
) -> None:
    monkeypatch.setattr(removed_queues, "QUEUES_REMEMBERED", 3)
    async with new_desk(compat=compat) as desk:
        offsets, store = desk.broker.offsets, desk.broker.store
        for number in range(8):
            await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic(f"T{number}"))
            desk.store(f"T{number}", 0, 1000)
            offsets.commit("G", f"T{number}", 0, 1)
            offsets.commit("H", f"T{number}", 1, 0)
            await desk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic=f"T{number}"))
        kept = range(8) if compat == "4.9" else (5, 6, 7)
        assert set(offsets.table) == {f"T{number}@{group}" for number in kept for group in "GH"}
        if compat == "4.9":
            return
        assert [store.queue_bounds(f"T{number}", 0)[1] for number in (4, 5)] == [0, 1]


async def test_offsets_in_a_topic_made_again_follow_the_numbering_of_its_queues(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a group would not see the first messages of a queue whose numbering is forgotten before it has one again."""
    monkeypatch.setattr(removed_queues, "QUEUES_REMEMBERED", 2)
    offsets, store = desk.broker.offsets, desk.broker.store

    async def deleted(name: str) -> None:
        await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic(name))
        for queue_id in range(2):
            desk.store(name, queue_id, 1000)
            offsets.commit("G", name, queue_id, 1)
        await desk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic=name))

    await deleted("T")
    await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic("T"))
    desk.store("T", 0, 1000)
    offsets.commit("H", "T", 0, 7)  # beyond its end, as a client has set it
    offsets.commit("H", "T", 1, 0)
    assert offsets.queues("G", "T") == {0: 1, 1: 1}
    await deleted("Other")
    assert [store.queue_bounds("T", queue_id)[1] for queue_id in range(2)] == [2, 0]
    assert offsets.queues("G", "T") == {0: 1, 1: 0}
    assert offsets.queues("H", "T") == {0: 7, 1: 0}


async def test_offsets_in_a_deleted_topic_without_messages_are_not_kept(desk: Any) -> None:
    for name in ("Used", "Empty", "Other"):
        await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic(name))
        desk.broker.offsets.commit("G", name, 0, 0)
    desk.store("Used", 0, 1000)
    for name in ("Used", "Empty", "Unknown"):
        assert (await desk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic=name))).code == 0
    assert set(desk.broker.offsets.table) == {"Used@G", "Other@G"}


async def test_a_slave_leaves_offsets_in_forgotten_topics_to_its_master(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removed_queues, "QUEUES_REMEMBERED", 1)
    broker = desk.broker
    for name in ("A", "B"):
        broker.offsets.commit("G", name, 0, 1)
    broker.config.store.broker_role = BrokerRole.SLAVE
    end = broker.store.dispatcher.dispatched_offset
    await broker.store.queue_removal.follow([("A", 0, 1, end), ("B", 0, 1, end)])
    assert broker.store.queue_removal.removed() == [("B", 0, 1, end)]
    broker.config.store.broker_role = BrokerRole.ASYNC_MASTER
    await desk.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    assert set(broker.offsets.table) == {"A@G", "B@G"}


async def test_a_slave_refuses_changes(desk: Any, config: BrokerConfig) -> None:
    config.store.broker_role = BrokerRole.SLAVE
    for code, header, body in (
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic(), b""),
        (RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic="T"), b""),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, SubscriptionGroupConfig(group_name="G").encode()),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupRequest(group_name="G"), b""),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, group_list("G")),
    ):
        answer = await desk.ask(code, header, body=body)
        assert (answer.code, answer.remark) == (1, SLAVE_REMARK)
    answer = await desk.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=topic_list(TopicConfigInList(topic_name="T"))
    )
    assert (answer.code, answer.remark) == (1, f"T: {SLAVE_REMARK}; none of the topics is changed")


async def test_all_topics_are_sent_with_their_version(desk: Any, exchanges: Any) -> None:
    """The tables of 21 and 201 as the real broker writes them, put into ours and asked for again."""
    request, response = exchanges["21_client_to_master__0_1"]
    (recorded,) = FrameDecoder().feed(response)
    desk.broker.topics.replace_all(TopicConfigTable.decode(recorded.body))
    assert await desk.frame(request) == response


async def test_all_groups_are_sent_with_their_version(desk: Any, exchanges: Any) -> None:
    for name in ("201_slave_to_master__0_0", "201_slave_to_master__0_1"):
        request, response = exchanges[name]
        (recorded,) = FrameDecoder().feed(response)
        desk.broker.groups.replace_all(SubscriptionGroupTable.decode(recorded.body))
        assert await desk.frame(request) == response


async def test_topic_statistics_are_the_recorded_ones(desk: Any, exchanges: Any) -> None:
    await desk.frame(exchanges["17_client_to_master__0_0"][0])
    ends = {0: (7, 1795238155663), 1: (10, 1795238155762), 2: (6, 1795238155774), 3: (6, 1795238154945)}
    desk.fill("TopicLive", {queue: range(end - count + 1, end + 1) for queue, (count, end) in ends.items()})
    request, response = exchanges["202_client_to_master__0_0"]
    assert await desk.frame(request) == response


async def test_statistics_of_an_empty_and_of_an_unknown_topic(desk: Any) -> None:
    await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic(queues=1))
    answer = await desk.ask(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequest(topic="T"))
    (offset,) = TopicStatsTable.decode(answer.body).offset_table.values()
    assert (offset.min_offset, offset.max_offset, offset.last_update_timestamp) == (0, 0, 0)
    answer = await desk.ask(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequest(topic="Nope"))
    assert (answer.code, answer.remark) == (17, "topic[Nope] not exist")


async def test_unused_topics_lose_their_queues(desk: Any) -> None:
    await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic("Kept"))
    desk.store("Kept", 0, 1000)
    desk.store("Gone", 0, 1000)
    await desk.ask(RequestCode.CLEAN_UNUSED_TOPIC)
    assert desk.broker.store.queue_bounds("Kept", 0) == (0, 1)
    assert desk.broker.store.queue_bounds("Gone", 0) == (1, 1)


@pytest.mark.parametrize(("compat", "bounds"), [("safe", (0, 1)), ("4.9", (1, 1))])
async def test_a_slave_keeps_the_queues_of_topics_that_it_does_not_know(
    new_desk: Any, compat: str, bounds: Any
) -> None:
    """Its master may have died before it told of a topic."""
    async with new_desk(compat=compat) as desk:
        desk.store("New", 0, 1000)
        desk.broker.config.store.broker_role = BrokerRole.SLAVE
        assert (await desk.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
        assert desk.broker.store.queue_bounds("New", 0) == bounds


async def test_operators_expire_files_and_then_the_queues_that_lay_in_them(desk: Any) -> None:
    store = desk.broker.store
    desk.store("Old", 0, NOW_MS)
    desk.store("New", 0, *[NOW_MS] * 20, body=bytes(8000))
    desk.clock.now_ms = hour_without_deletion(NOW_MS + 80 * 3_600_000)
    await store.cleaner.clean()
    assert store.log_min_offset == 0
    await desk.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
    await store.cleaner.clean()
    assert store.log_min_offset > 0
    await desk.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    assert ("Old", 0) not in store.queues()
    assert ("New", 0) in store.queues()


def hour_without_deletion(now_ms: int) -> int:
    """Files expire by themselves at four in the morning, local time."""
    return now_ms + 3_600_000 if time.localtime(now_ms // 1000).tm_hour == 4 else now_ms


async def test_a_group_is_replaced_as_a_whole(desk: Any) -> None:
    body = SubscriptionGroupConfig(group_name="G", retry_max_times=3, which_broker_when_consume_slowly=2).encode()
    assert (await desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
    assert desk.broker.groups.get("G").retry_max_times == 3
    await desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"G"}')
    assert desk.broker.groups.get("G") == SubscriptionGroupConfig(group_name="G")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("retryQueueNums", 65537),
        ("retryQueueNums", 2**31 - 1),
        ("retryQueueNums", -1),
        ("retryMaxTimes", 2**31),
        ("retryMaxTimes", -2),
        ("brokerId", 2**63),
        ("whichBrokerWhenConsumeSlowly", -1),
    ],
)
async def test_impossible_numbers_of_a_group_are_refused_by_name(desk: Any, field: str, value: int) -> None:
    group = json.dumps({"groupName": "G", field: value})
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    for answer in (
        await desk.ask(code, body=group.encode()),
        await desk.ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=f'{{"groupConfigList":[{group}]}}'.encode()
        ),
    ):
        assert answer.code == 1
        assert f"{field} {value} is out of range" in answer.remark
    assert "G" not in desk.broker.groups.table


async def test_a_group_without_body_or_name(desk: Any) -> None:
    before = dict(desk.broker.groups.table)
    for body in (b"", b"{}"):
        answer = await desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        assert answer.code == 1
        assert "groupName" in answer.remark
    assert desk.broker.groups.table == before


@pytest.mark.parametrize(("remove_offset", "left"), [(False, 5), (True, -1)])
async def test_a_deleted_group_keeps_its_offsets_unless_asked_otherwise(
    desk: Any, remove_offset: bool, left: int
) -> None:
    desk.broker.groups.find("G")
    desk.broker.offsets.commit("G", "T", 0, 5)
    header = DeleteSubscriptionGroupRequest(group_name="G", remove_offset=remove_offset)
    assert (await desk.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).code == 0
    assert desk.broker.groups.get("G") is None
    assert desk.broker.offsets.query("G", "T", 0) == left


# -- requests of RocketMQ 5


def topic_list(*topics: TopicConfigInList) -> bytes:
    return CreateTopicListBody(topic_config_list=list(topics)).encode()


def group_list(*names: str) -> bytes:
    return SubscriptionGroupList(
        group_config_list=[SubscriptionGroupConfig(group_name=name) for name in names]
    ).encode()


async def test_the_configuration_of_one_topic(desk: Any) -> None:
    await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic(queues=4))
    answer = await desk.ask(RequestCode.GET_TOPIC_CONFIG, fields={"topic": "T"})
    assert TopicConfig.decode(answer.body) == desk.broker.topics.get("T")
    answer = await desk.ask(RequestCode.GET_TOPIC_CONFIG, fields={"topic": "Nope"})
    assert (answer.code, answer.remark) == (17, "No topic in this broker. topic: Nope")


async def test_a_list_of_topics_is_made(desk: Any) -> None:
    desk.broker.topics.put(TopicConfig(topic_name="Known", read_queue_nums=1, write_queue_nums=1, order=True))
    named = TopicConfigInList(topic_name="New", read_queue_nums=3, attributes={"+message.type": "FIFO"})
    answer = await desk.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=topic_list(named, TopicConfigInList(topic_name="Known"))
    )
    assert answer.code == 0
    assert desk.broker.topics.get("New") == TopicConfig(topic_name="New", read_queue_nums=3)
    assert desk.broker.topics.get("Known") == TopicConfig(topic_name="Known", order=True)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (TopicConfigInList(topic_name="b@d"), "b@d"),
        (TopicConfigInList(), "blank"),
        (TopicConfigInList(topic_name="TBW102"), "system topic"),
        (TopicConfigInList(topic_name="Many", read_queue_nums=65537), "readQueueNums"),
        (TopicConfigInList(topic_name="Perm", perm=2**31), "perm 2147483648 is out of range"),
        (TopicConfigInList(topic_name="Flag", topic_sys_flag=-(2**31) - 1), "topicSysFlag -2147483649 is out of range"),
        (TopicConfigInList(topic_name="Lite", attributes={"+message.type": "LITE"}), "RocketMQ 5"),
    ],
)
async def test_of_a_list_with_a_topic_that_cannot_be_made_none_is(
    desk: Any, bad: TopicConfigInList, named: str
) -> None:
    answer = await desk.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=topic_list(TopicConfigInList(topic_name="Good"), bad)
    )
    assert answer.code == 1
    assert named in answer.remark
    assert desk.broker.topics.get("Good") is None


async def test_lists_are_bounded(desk: Any) -> None:
    body = topic_list(*[TopicConfigInList(topic_name=f"T{number}") for number in range(1001)])
    with pytest.raises(BodyError, match="2003 objects; at most 2001"):
        await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)


@pytest.mark.parametrize(
    ("attributes", "refused"),
    [
        ([], False),
        ([""], False),
        (["+message.type=FIFO", "+queue.type=SimpleCQ", "+cleanup.policy=DELETE"], False),
        (["-cleanup.policy"], False),
        (["+message.type=LITE"], True),
        (["+queue.type=BatchCQ"], True),
        (["+message.type=NORMAL", "+cleanup.policy=COMPACTION"], True),
        (["+unknown=1"], True),
        (["+message.type"], True),
    ],
)
async def test_attributes_that_change_what_is_stored_are_refused(
    desk: Any, attributes: list[str], refused: bool
) -> None:
    assert (attributes_refusal(attributes) is not None) is refused
    answer = await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic(attributes=",".join(attributes)))
    assert answer.code == (1 if refused else 0)
    assert (desk.broker.topics.get("T") is None) is refused


async def test_the_configuration_of_one_group_which_its_first_use_makes(desk: Any, config: BrokerConfig) -> None:
    answer = await desk.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, fields={"group": "G"})
    assert SubscriptionGroupConfig.decode(answer.body) == SubscriptionGroupConfig(group_name="G")
    assert "G" in desk.broker.groups.table
    config.auto_create_subscription_group = False
    answer = await desk.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, fields={"group": "H"})
    assert (answer.code, answer.remark) == (26, "No group in this broker. group: H")


async def test_a_list_of_groups_is_made_or_none_of_it(desk: Any) -> None:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    assert (await desk.ask(code, body=group_list("G", "H"))).code == 0
    assert {"G", "H"} <= set(desk.broker.groups.table)
    answer = await desk.ask(code, body=group_list("I", "b@d"))
    assert answer.code == 1
    assert "none of the groups is changed" in answer.remark
    assert "I" not in desk.broker.groups.table


async def test_groups_pull_and_do_not_pop(desk: Any) -> None:
    code = RequestCode.SET_MESSAGE_REQUEST_MODE
    assert (await desk.ask(code, body=b'{"mode":"PULL","topic":"T","consumerGroup":"G"}')).code == 0
    answer = await desk.ask(code, body=b'{"mode":"POP"}')
    assert answer.code == 1
    assert "pop consumption needs a broker of RocketMQ 5" in answer.remark


@pytest.mark.parametrize(
    ("code", "why"),
    [(200_050, "pop consumption"), (3001, "plain_acl.yml"), (1005, "no controller"), (370, "timer"), (4711, "")],
)
async def test_what_is_not_served_is_refused_with_the_reason(desk: Any, code: int, why: str) -> None:
    answer = await desk.ask(code)
    assert answer.code == 3
    assert answer.remark.startswith(f" request type {code} not supported")
    assert why in answer.remark
