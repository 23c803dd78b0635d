"""The bounded cost of a request: entries scanned, groups in a heartbeat, bytes written for a new topic."""

from __future__ import annotations

import time
from typing import Any

import pytest
import trio
from memory_disk import MemoryDisk

from triomq_protocol.codes import RequestCode
from triomq_protocol.errors import BodyError
from triomq_protocol.java_text import java_hash
from triomq_protocol.requests import HeartbeatData, LockBatchRequestBody, MessageQueue, SubscriptionGroupConfig
from triomq_protocol.requests.admin import DeleteSubscriptionGroupRequest
from triomq_protocol.requests.heartbeat import ConsumerData, ProducerData, SubscriptionData
from triomq_protocol.requests.offset import UpdateConsumerOffsetRequest
from triomq_protocol.requests.registration import TopicConfig
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.fastjson import SLICE_WEIGHT
from triomq_server.broker import lifecycle
from triomq_server.broker.requests import offsets as offset_requests
from triomq_server.broker.requests.clients import CHARACTERS_PER_FILTER, MOST_FILTER_CHARACTERS, MOST_LINK_BYTES
from triomq_server.broker.tables.versioned_table import SMALL_TABLE
from triomq_server.store.reading.queue_reads import _MOST_SCANNED
from triomq_server.wire import to_the_end


async def test_a_pull_looks_at_a_limited_number_of_entries(open_broker: Any) -> None:
    async with open_broker(mappedFileSizeConsumeQueue=200_000) as broker:
        peer = await broker.peer()
        for _ in range(_MOST_SCANNED + 10):
            await peer.send(peer.put_request(oneway=True))
        answer = await peer.pull(max_msg_nums=(1 << 31) - 1, subscription="none_has_this")
        assert answer.code == 20
        assert answer.fields["nextBeginOffset"] == str(_MOST_SCANNED)
        answer = await peer.pull(offset=_MOST_SCANNED, max_msg_nums=(1 << 31) - 1, subscription="none_has_this")
        assert answer.fields["nextBeginOffset"] == str(_MOST_SCANNED + 10)


@pytest.mark.parametrize(
    "data",
    [
        HeartbeatData(client_id="c", consumer_data_set=[ConsumerData(group_name=f"g{n}") for n in range(501)]),
        HeartbeatData(client_id="c", producer_data_set=[ProducerData(group_name=f"g{n}") for n in range(501)]),
        HeartbeatData(
            client_id="c",
            consumer_data_set=[
                ConsumerData(
                    group_name="g", subscription_data_set=[SubscriptionData(topic=f"t{n}") for n in range(2001)]
                )
            ],
        ),
        HeartbeatData(client_id="c", consumer_data_set=[ConsumerData(group_name="g" * 256)]),
        HeartbeatData(client_id="c" * 256),
    ],
)
async def test_a_heartbeat_that_would_take_long_is_refused(desk: Any, client_link: Any, data: HeartbeatData) -> None:
    before = set(desk.broker.topics.table)
    with pytest.raises(BodyError, match="HeartbeatData"):
        desk.handlers.plain[RequestCode.HEART_BEAT](client_link(), Command.request(34, body=data.encode()))
    assert set(desk.broker.topics.table) == before
    assert not desk.broker.clients.consumers


@pytest.mark.parametrize("group", ["../x", "a b", "g" * 256, "a\nb", "\ud800"])
async def test_no_group_is_made_with_a_name_that_clients_may_not_use(desk: Any, group: str) -> None:
    assert desk.broker.groups.find(group) is None
    body = SubscriptionGroupConfig(group_name=group).encode()
    answer = await desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == 1
    assert "group" in answer.remark
    assert group not in desk.broker.groups.table


async def test_offsets_of_what_is_not_known_are_limited(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_requests, "MOST_UNEXPECTED", 3)
    code = RequestCode.UPDATE_CONSUMER_OFFSET

    async def commit(group: str, topic: str, queue_id: int) -> int:
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": "7"}
        return int((await desk.ask(code, fields=fields)).code)

    desk.broker.topics.ensure("T", 4)
    desk.broker.groups.find("CG")
    assert [await commit("CG", "Nope", n) for n in range(4)] == [0, 0, 0, 1]
    assert await commit("CG", "Nope", 0) == 0
    assert [await commit("CG", "T", 0), await commit("CG", "T", 4), await commit("Other", "T", 0)] == [0, 1, 1]


async def test_a_start_takes_no_further_offsets_of_what_is_not_known(desk: Any) -> None:
    broker = desk.broker
    broker.topics.ensure("T", 4)
    broker.groups.find("CG")
    desk.store("Deleted", 0, 1000)
    await broker.store.queue_removal.remove_topic("Deleted")
    for group, topic, queue_id in (
        ("CG", "T", 0), ("CG", "T", 3), ("CG", "Deleted", 0),
        ("CG", "T", 4), ("CG", "Nope", 0), ("CG", "Nope", 1), ("Other", "T", 0), ("Other", "Deleted", 0),
    ):  # fmt: skip
        broker.offsets.commit(group, topic, queue_id, 1)
    to_the_end(offset_requests.count_unexpected(broker))
    assert broker.offsets.unexpected == 5


async def test_a_restart_takes_no_further_offsets_of_what_is_not_known(
    open_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_requests, "MOST_UNEXPECTED", 3)
    answers: list[int] = []
    disk = MemoryDisk()
    for _ in range(2):
        async with open_broker(disk=disk) as running:
            peer = await running.peer()
            for number in range(5):
                header = UpdateConsumerOffsetRequest(
                    consumer_group=f"G{number}", topic="Nope", queue_id=0, commit_offset=7
                )
                answers.append((await peer.ask(Command.request(15, header))).code)
    assert answers == [0, 0, 0, 1, 1] * 2


async def test_removed_offsets_of_what_is_not_known_make_room(
    open_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (offset_requests, lifecycle):
        monkeypatch.setattr(module, "MOST_UNEXPECTED", 3)
    async with open_broker() as running:
        peer = await running.peer()

        async def commit(group: str) -> int:
            header = UpdateConsumerOffsetRequest(consumer_group=group, topic="Nope", queue_id=0, commit_offset=7)
            return int((await peer.ask(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header))).code)

        assert [await commit(f"G{number}") for number in range(4)] == [0, 0, 0, 1]
        for number in range(2):
            header = DeleteSubscriptionGroupRequest(group_name=f"G{number}", remove_offset=True)
            assert (await peer.ask(Command.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header))).code == 0
        await trio.sleep(6)
        assert [await commit(f"H{number}") for number in range(3)] == [0, 0, 1]


async def test_offsets_of_what_is_known_are_limited_by_their_memory(desk: Any) -> None:
    desk.broker.topics.ensure("T", 4)
    desk.broker.groups.find("CG")
    desk.broker.offsets.limit_bytes = desk.broker.offsets.held_bytes + 500
    fields = {"consumerGroup": "CG", "topic": "T", "commitOffset": "7"}
    answers = [
        await desk.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields={**fields, "queueId": str(queue_id)})
        for queue_id in (0, 1, 2, 3, 0)
    ]
    assert [answer.code for answer in answers] == [0, 0, 0, 1, 0]
    assert "consumerOffsetsLimitBytes" in answers[3].remark
    assert desk.broker.offsets.queues("CG", "T") == {0: 7, 1: 7, 2: 7}


@pytest.mark.parametrize(("group", "topic"), [("g" * 256, "T"), ("CG", "t" * 256)])
async def test_offsets_of_impossible_names_are_refused(desk: Any, group: str, topic: str) -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "7"}
    assert (await desk.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields)).code == 1
    assert not desk.broker.offsets.table


@pytest.mark.parametrize(
    "changed",
    [
        {"client_id": "c" * 256},
        {"consumer_group": "g" * 256},
        {"mq_set": [MessageQueue("t" * 256, "broker-a", 0)]},
        {"mq_set": [MessageQueue("T", "b" * 256, 0)]},
    ],
)
async def test_locks_do_not_keep_long_names(desk: Any, changed: dict[str, Any]) -> None:
    fields = {"client_id": "c", "consumer_group": "g", "mq_set": [MessageQueue("T", "broker-a", 0)], **changed}
    body = LockBatchRequestBody(**fields).encode()
    with pytest.raises(BodyError, match="256 characters"):
        desk.handlers.sliced[RequestCode.LOCK_BATCH_MQ](None, Command.request(41, body=body)).send(None)


class SlowDisk(MemoryDisk):
    """Counts how often a file is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self.writes += path.endswith("topics.json.tmp")
        super().write(path, data, sync=sync)


async def test_a_large_table_is_not_written_once_for_each_new_topic(open_broker: Any) -> None:
    disk = SlowDisk()
    async with open_broker(disk=disk) as broker:
        peer = await broker.peer()
        for number in range(SMALL_TABLE):
            await peer.send(peer.put_request(f"T{number}", oneway=True))
        await peer.put("Last")
        await trio.sleep(1)
        disk.writes = 0
        begin = trio.current_time()
        for number in range(300):
            await peer.put(f"U{number}")
        await trio.sleep(1)
        assert disk.writes <= 3 + (trio.current_time() - begin) / 0.1
        assert disk.writes < 100
        assert b'"U299":{' in disk.read("/store/config/topics.json")


async def test_a_large_heartbeat_takes_little_time(desk: Any) -> None:
    groups = [ConsumerData(group_name=f"group_{n}") for n in range(500)]
    body = HeartbeatData(client_id="c", consumer_data_set=groups).encode()
    command = Command.request(RequestCode.HEART_BEAT, body=body)
    begin = time.perf_counter()
    assert (await desk.ask(RequestCode.HEART_BEAT, body=command.body)).code == 0
    assert time.perf_counter() - begin < 2  # 11 s for the 100,000 groups of 5 MB that were taken


def slices(desk: Any, code: int, **fields: str) -> int:
    """Into how many slices a request is cut, beyond the first."""
    return sum(1 for _ in desk.handlers.sliced[code](None, Command.request(code, fields=fields)))


async def test_requests_about_many_queues_are_answered_in_slices(desk: Any) -> None:
    desk.broker.topics.ensure("T", 5000)
    desk.broker.groups.find("CG")
    desk.broker.offsets.commit("CG", "T", 0, 1)
    code = RequestCode
    assert slices(desk, code.GET_TOPIC_STATS_INFO, topic="T") >= 5000 // 256 + 5000 * 16 // SLICE_WEIGHT
    assert slices(desk, code.GET_CONSUME_STATS, consumerGroup="CG", topic="T") >= 5000 // 256
    assert slices(desk, code.QUERY_CONSUME_TIME_SPAN, group="CG", topic="T") >= 5000 // 256
    assert slices(desk, code.GET_BROKER_CONSUME_STATS, isOrder="false") >= 5000 // 256


async def test_long_lists_of_topics_and_groups_are_written_in_slices(desk: Any) -> None:
    for number in range(1000):
        desk.broker.topics.table[f"T{number}"] = TopicConfig(topic_name=f"T{number}")
        desk.broker.groups.table[f"G{number}"] = SubscriptionGroupConfig(group_name=f"G{number}")
    least = 1000 * 16 // SLICE_WEIGHT
    assert slices(desk, RequestCode.GET_ALL_TOPIC_CONFIG) >= least
    assert slices(desk, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG) >= least


async def test_long_lock_requests_are_answered_in_slices(desk: Any) -> None:
    code = RequestCode.LOCK_BATCH_MQ
    queues = [MessageQueue("T", "broker-a", number) for number in range(10_000)]
    body = LockBatchRequestBody(client_id="c", consumer_group="g", mq_set=queues).encode()
    assert sum(1 for _ in desk.handlers.sliced[code](None, Command.request(code, body=body))) >= 30


@pytest.mark.parametrize("code", [RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG])
async def test_a_long_list_is_written_once_for_all_who_ask(desk: Any, code: int) -> None:
    def ask() -> Any:
        return desk.handlers.sliced[code](None, Command.request(code))

    def change(number: int) -> None:
        desk.broker.topics.ensure(f"T{number}", 1)
        desk.broker.groups.find(f"G{number}")

    def body_of(slices: Any) -> bytes:
        while True:
            try:
                next(slices)
            except StopIteration as end:
                return end.value.body

    for number in range(1000):
        change(number)
    left, first, second = ask(), ask(), ask()
    next(left)
    left.close()  # its link has gone
    for slices in (first, second):
        next(slices)
    body = body_of(first)
    assert body_of(second) is body_of(ask()) is body
    last = list(desk.broker.topics.table)[-1], list(desk.broker.groups.table)[-1]
    change(1000)
    assert any(name.encode() in body for name in last)
    assert b"1000" in body_of(ask()) != body


async def test_a_heartbeat_with_long_property_filters_is_refused(desk: Any, client_link: Any) -> None:
    subscriptions = [
        SubscriptionData(topic=f"t{number}", sub_string="a = 1 or " * 1000 + "b = 2", expression_type="SQL92")
        for number in range(4)
    ]
    data = HeartbeatData(
        client_id="c", consumer_data_set=[ConsumerData(group_name="g", subscription_data_set=subscriptions)]
    )
    with pytest.raises(BodyError, match="property filters of 36084 characters"):
        desk.handlers.plain[RequestCode.HEART_BEAT](client_link(), Command.request(34, body=data.encode()))
    assert desk.broker.filters.find("t0", "g") is None


async def test_a_heartbeat_with_very_many_short_property_filters_is_refused(desk: Any, client_link: Any) -> None:
    def beat(count: int) -> Command:
        subscriptions = [SubscriptionData(topic=f"t{n}", sub_string="a", expression_type="SQL92") for n in range(count)]
        data = HeartbeatData(
            client_id="c", consumer_data_set=[ConsumerData(group_name="g", subscription_data_set=subscriptions)]
        )
        return Command.request(34, body=data.encode())

    most = MOST_FILTER_CHARACTERS // (1 + CHARACTERS_PER_FILTER)
    desk.handlers.plain[RequestCode.HEART_BEAT](client_link(), beat(most))
    with pytest.raises(BodyError, match="property filters of"):
        desk.handlers.plain[RequestCode.HEART_BEAT](client_link(), beat(most + 1))


async def test_a_heartbeat_with_very_many_tags_is_refused(desk: Any, client_link: Any) -> None:
    def beat(count: int, topics: int) -> Command:
        subscriptions = [
            SubscriptionData(topic=f"t{number}", sub_string="a", code_set=list(range(count)))
            for number in range(topics)
        ]
        data = HeartbeatData(
            client_id="c", consumer_data_set=[ConsumerData(group_name="g", subscription_data_set=subscriptions)]
        )
        return Command.request(34, body=data.encode())

    desk.handlers.plain[RequestCode.HEART_BEAT](client_link(), beat(2500, 4))
    with pytest.raises(BodyError, match="10004 tags"):
        desk.handlers.plain[RequestCode.HEART_BEAT](client_link(), beat(2501, 4))


def consumer(group: str = "g", **subscription: Any) -> ConsumerData:
    return ConsumerData(group_name=group, subscription_data_set=[SubscriptionData(**{"topic": "T", **subscription})])


def beat(*consumers: ConsumerData) -> Command:
    return Command.request(34, body=HeartbeatData(client_id="c", consumer_data_set=list(consumers)).encode())


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        (consumer(sub_string="x" * 1_050_000), "a subscription of 10"),
        (consumer(sub_string="\U0001f600" + "x" * 300_000), "a subscription of 12"),
        (consumer(tags_set=["x" * 1_050_000]), "a subscription of 10"),
        (consumer(expression_type="x" * 65), "'subscriptionDataSet.expressionType' has 65 characters"),
        (ConsumerData(group_name="g", consume_type="x" * 65), "'consumerDataSet.consumeType' has 65 characters"),
        (ConsumerData(group_name="g", message_model="x" * 65), "'consumerDataSet.messageModel' has 65 characters"),
        (ConsumerData(group_name="g", consume_from_where="x" * 65), "'consumerDataSet.consumeFromWhere' has 65"),
    ],
)
async def test_a_heartbeat_with_a_long_text_is_refused(
    desk: Any, client_link: Any, changed: ConsumerData, match: str
) -> None:
    with pytest.raises(BodyError, match=match):
        desk.handlers.plain[RequestCode.HEART_BEAT](client_link(), beat(changed))
    assert not desk.broker.clients.consumers


async def test_the_subscriptions_of_one_connection_are_limited_over_all_its_heartbeats(
    desk: Any, client_link: Any
) -> None:
    heartbeat, link = desk.handlers.plain[RequestCode.HEART_BEAT], client_link()
    for number in range(4):
        for _ in range(3):
            heartbeat(link, beat(consumer(f"g{number}", sub_string="x" * 1_040_000, sub_version=1)))
    with pytest.raises(BodyError, match="over one connection; at most 4194304 are possible"):
        heartbeat(link, beat(consumer("g4", sub_string="x" * 100_000)))
    heartbeat(link, beat(consumer("g3", sub_string="*", sub_version=2), consumer("g4", sub_string="x" * 100_000)))
    heartbeat(client_link(), beat(consumer("g5", sub_string="x" * 1_040_000)))
    assert desk.broker.clients.kept_bytes < MOST_LINK_BYTES + 1_100_000


async def test_heartbeats_with_many_tags_and_of_kinds_to_come_are_taken(desk: Any, client_link: Any) -> None:
    tags = [f"a_rather_long_tag_{number}" for number in range(500)]
    codes = [java_hash(tag) for tag in tags]
    consumers = [
        consumer(f"g{number}", sub_string=" || ".join(tags), tags_set=tags, code_set=codes) for number in range(20)
    ]
    consumers[0].consume_type, consumers[0].message_model = "CONSUME_POP", "LITE_SELECTIVE"
    assert desk.handlers.plain[RequestCode.HEART_BEAT](client_link(), beat(*consumers)).code == 0
    group = desk.broker.clients.consumers["g0"]
    assert (group.consume_type, group.message_model) == ("CONSUME_POP", "LITE_SELECTIVE")
    assert len(group.tag_codes["T"]) == 500


async def test_topics_made_by_sends_end_at_the_limit_and_an_administrators_do_not(
    open_broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_broker(maxAutoCreatedTopics=20) as broker:
        peer = await broker.peer()
        answers = [await peer.put(f"T{number}") for number in range(40)]
        made = [number for number, answer in enumerate(answers) if answer.code == 0]
        assert made == list(range(len(made)))
        assert 0 < len(made) < 20, "the broker has topics of its own"
        assert (answers[-1].code, "20 topics (maxAutoCreatedTopics)" in answers[-1].remark) == (17, True)
        assert (await peer.put("T0")).code == 0
        assert (await peer.put("%RETRY%unknown")).code == 17
        await peer.ask(peer.heartbeat("known"))
        assert (await peer.put("%RETRY%known")).code == 0
        fields = {
            "topic": "T39", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        assert (await peer.ask(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields))).code == 0
        assert (await peer.put("T39")).code == 0
    lines = [message for message in caplog.messages if "maxAutoCreatedTopics" in message]
    assert len(lines) == 1
