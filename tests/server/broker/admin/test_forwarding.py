"""Requests the broker passes on to clients: 222, 223, 307, 309 (docs/protocol/broker-api.md §14)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from triomq_protocol.codes import LanguageCode, RequestCode
from triomq_protocol.message_id import offset_message_id
from triomq_protocol.requests import (
    ConsumeMessageDirectlyRequest,
    ConsumerData,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusBody,
    GetConsumerStatusRequest,
    HeartbeatData,
    MessageQueue,
    ResetOffsetBody,
    ResetOffsetRequest,
    TopicConfig,
)
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.fastjson import loads
from triomq_protocol.wire.frame import FrameDecoder
from triomq_server.broker.admin.forwarding import consumer_status
from triomq_server.config import BrokerConfig
from triomq_server.wire import WaitingBytes

ASK_INFO = GetConsumerRunningInfoRequest(consumer_group="CG_live", client_id="127.0.0.1@c1", jstack_enable=False)


async def join(desk: Any, link: Any, *, client_id: str = "127.0.0.1@c1", version: int = 407) -> None:
    data = HeartbeatData(client_id=client_id, consumer_data_set=[ConsumerData(group_name="CG_live")])
    await desk.ask(RequestCode.HEART_BEAT, body=data.encode(), link=link, version=version)
    link.notified.clear()


def replying(response: bytes) -> Any:
    """A client that answers with a recorded frame."""

    async def reply(_command: Command) -> Command:
        await trio.lowlevel.checkpoint()
        (answer,) = FrameDecoder().feed(response)
        return answer

    return reply


# -- 307, 309


async def test_running_info_is_forwarded_to_the_client_and_back_as_recorded(
    desk: Any, client_link: Any, exchanges: Any
) -> None:
    link = client_link()
    await join(desk, link)
    sent, answered = exchanges["307_client_from_master__0_0"]
    link.reply = replying(answered)
    request, response = exchanges["307_client_to_master__0_0"]
    assert await desk.frame(request) == response
    ((forwarded, timeout_s),) = link.asked
    (recorded,) = FrameDecoder().feed(sent)
    forwarded.opaque = recorded.opaque
    assert bytes(forwarded.encode()) == sent
    assert timeout_s == 10


async def test_a_client_that_is_not_there(desk: Any, client_link: Any) -> None:
    answer = await desk.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ASK_INFO)
    assert (answer.code, answer.remark) == (1, "The Consumer <CG_live> <127.0.0.1@c1> not online")
    await join(desk, client_link(), client_id="other")
    answer = await desk.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ASK_INFO)
    assert (answer.code, answer.remark) == (1, "The Consumer <CG_live> <127.0.0.1@c1> not online")


@pytest.mark.parametrize(("version", "code"), [(61, 1), (62, 207)])
async def test_a_client_too_old_is_not_asked(
    desk: Any, client_link: Any, autojump_clock: trio.testing.MockClock, version: int, code: int
) -> None:
    link = client_link()
    await join(desk, link, version=version)
    answer = await desk.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ASK_INFO)
    assert answer.code == code
    if code == 1:
        assert link.asked == []
        assert answer.remark.startswith("The Consumer <127.0.0.1@c1> Version <V3_")
        assert answer.remark.endswith("> too low to finish, please upgrade it to V3_1_8_SNAPSHOT")


async def test_a_client_that_does_not_answer(
    desk: Any, client_link: Any, autojump_clock: trio.testing.MockClock
) -> None:
    await join(desk, client_link())
    began = trio.current_time()
    answer = await desk.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ASK_INFO)
    assert answer.code == 207
    assert answer.remark.startswith("consumer <CG_live> <127.0.0.1@c1> Timeout: ")
    assert trio.current_time() - began == pytest.approx(10)


async def test_a_client_whose_link_breaks(desk: Any, client_link: Any) -> None:
    link = client_link()
    await join(desk, link)
    link.close()
    answer = await desk.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ASK_INFO)
    assert answer.code == 1
    assert answer.remark.startswith("invoke consumer <CG_live> <127.0.0.1@c1> Exception: ")


async def test_a_message_is_handed_to_one_consumer_with_its_stored_bytes(
    desk: Any, client_link: Any, exchanges: Any
) -> None:
    link = client_link()
    await join(desk, link)
    link.reply = replying(exchanges["309_client_from_master__0_0"][1])
    (offset,) = desk.store("T", 0, 1000, body=b"hello")
    message_id = offset_message_id(desk.broker.store_host, offset)
    header = ConsumeMessageDirectlyRequest(consumer_group="CG_live", client_id="127.0.0.1@c1", msg_id=message_id)
    answer = await desk.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
    assert (answer.code, answer.remark) == (0, "not set any response code")
    assert b"CR_SUCCESS" in answer.body
    ((forwarded, _),) = link.asked
    assert forwarded.body == bytes(desk.broker.store.record_at(offset))
    assert forwarded.fields == {
        "consumerGroup": "CG_live",
        "clientId": "127.0.0.1@c1",
        "msgId": message_id,
        "brokerName": "broker-a",
    }


@pytest.mark.parametrize("message_id", ["zz", "7F00000100002A9F00000000000F0000"])
async def test_a_message_that_is_not_there(desk: Any, client_link: Any, message_id: str) -> None:
    link = client_link()
    await join(desk, link)
    header = ConsumeMessageDirectlyRequest(consumer_group="CG_live", client_id="127.0.0.1@c1", msg_id=message_id)
    answer = await desk.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
    assert answer.code == 1
    assert link.asked == []


# -- 223


async def test_consumer_status_as_recorded(desk: Any, client_link: Any, exchanges: Any) -> None:
    link, other = client_link(), client_link()
    await join(desk, link)
    await join(desk, other, client_id="127.0.0.1@c2")
    sent, answered = exchanges["221_client_from_master__0_0"]
    link.reply = replying(answered)
    request, response = exchanges["223_client_to_master__0_0"]
    assert await desk.frame(request) == response
    ((asked, timeout_s),) = link.asked
    (recorded,) = FrameDecoder().feed(sent)
    asked.opaque = recorded.opaque
    assert bytes(asked.encode()) == sent
    assert timeout_s == 5
    assert other.asked == []


async def test_status_of_all_members_leaves_out_the_silent(
    desk: Any, client_link: Any, exchanges: Any, autojump_clock: trio.testing.MockClock
) -> None:
    link = client_link()
    await join(desk, link)
    link.reply = replying(exchanges["221_client_from_master__0_0"][1])
    await join(desk, client_link(), client_id="silent")
    began = trio.current_time()
    header = GetConsumerStatusRequest(topic="TopicLive", group="CG_live")
    answer = await desk.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
    assert list(GetConsumerStatusBody.decode(answer.body).consumer_table) == ["127.0.0.1@c1"]
    assert trio.current_time() - began == pytest.approx(5)


@pytest.mark.parametrize("body", [b"no table", b'{"messageQueueTable":[]}', b"[" * 20_000])
async def test_status_of_all_members_leaves_out_one_that_answers_something_else(
    desk: Any, client_link: Any, exchanges: Any, body: bytes
) -> None:
    link, other = client_link(), client_link()
    await join(desk, link)
    link.reply = replying(exchanges["221_client_from_master__0_0"][1])
    await join(desk, other, client_id="other")
    other.reply = replying(Command(0, flag=1, body=body).encode())
    header = GetConsumerStatusRequest(topic="TopicLive", group="CG_live")
    answer = await desk.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
    assert answer.code == 0
    assert list(GetConsumerStatusBody.decode(answer.body).consumer_table) == ["127.0.0.1@c1"]


def status_of_queues(queues: int) -> bytes:
    """A member's answer to 221."""
    table = {MessageQueue("TopicLive", "broker-a", queue_id): queue_id for queue_id in range(queues)}
    return Command(0, flag=1, body=GetConsumerStatusBody(message_queue_table=table).encode()).encode()


async def test_members_that_answer_with_megabytes_do_not_fill_the_memory(
    desk: Any, client_link: Any, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    answers = WaitingBytes(10_000)
    links = [client_link() for _ in range(4)]
    for number, link in enumerate(links):
        await join(desk, link, client_id=f"c{number}")
        link.reply = replying(status_of_queues(50))  # of some 3000 bytes
    command = Command.request(223, GetConsumerStatusRequest(topic="TopicLive", group="CG_live"))
    answer = await consumer_status(desk.broker, answers, links[0], command)
    assert (answer.code, answer.body) == (1, b"")
    assert answer.remark == (
        "the members of CG_live answer with more than 10000 bytes; ask one of them by its client id"
    )
    assert answers.held_bytes == 0
    links[3].closed = True
    desk.broker.clients.drop_link(links[3])
    answer = await consumer_status(desk.broker, answers, links[0], command)
    assert (answer.code, answers.held_bytes) == (0, 0)
    assert len(GetConsumerStatusBody.decode(answer.body).consumer_table) == 3
    answers.held_bytes = 9000  # of another request
    assert (await consumer_status(desk.broker, answers, links[0], command)).code == 1
    assert answers.held_bytes == 9000


async def test_status_of_a_group_that_is_offline(desk: Any) -> None:
    header = GetConsumerStatusRequest(topic="T", group="CG_live")
    assert (await desk.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)).code == 1


# -- 222


def live_topic(desk: Any, *, committed: bool = True) -> None:
    desk.broker.topics.put(TopicConfig(topic_name="TopicLive", read_queue_nums=4, write_queue_nums=4))
    for queue_id, count in enumerate((7, 10, 6, 6)):
        desk.store("TopicLive", queue_id, *[1000 * (n + 1) for n in range(count)])
        if committed:
            desk.broker.offsets.commit("CG_live", "TopicLive", queue_id, count)


async def test_a_reset_as_recorded(desk: Any, client_link: Any, exchanges: Any) -> None:
    """The recorded time lies behind the last message, for which the look-up gives the last offset."""
    live_topic(desk)
    link = client_link()
    await join(desk, link)
    request, response = exchanges["222_client_to_master__0_0"]
    assert await desk.frame(request) == response
    (notified,) = link.notified
    sent, _ = exchanges["220_client_from_master__oneway_0"]
    (recorded,) = FrameDecoder().feed(sent)
    notified.opaque = recorded.opaque
    assert bytes(notified.encode()) == sent
    assert desk.broker.offsets.query("CG_live", "TopicLive", 0) == 7  # members commit, not the broker


@pytest.mark.parametrize(
    ("timestamp", "force", "expected"),
    [(-1, True, [7, 10, 6, 6]), (-1, False, [3, 3, 3, 3]), (1000, True, [0, 0, 0, 0]), (2000, False, [1, 1, 1, 1])],
)
async def test_to_which_offset_a_reset_leads(
    desk: Any, client_link: Any, timestamp: int, force: bool, expected: list[int]
) -> None:
    live_topic(desk)
    for queue_id in range(4):
        desk.broker.offsets.commit("CG_live", "TopicLive", queue_id, 3)
    await join(desk, client_link())
    header = ResetOffsetRequest(topic="TopicLive", group="CG_live", timestamp=timestamp, is_force=force)
    answer = await desk.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    table = ResetOffsetBody.decode(answer.body).offset_table
    assert [table[MessageQueue("TopicLive", "broker-a", queue_id)] for queue_id in range(4)] == expected


@pytest.mark.parametrize(
    ("queue_id", "offset", "expected"),
    [
        (1, 5, {1: 5}),
        (1, 99, {1: 10}),
        (1, None, {1: 0}),
        (1, -1, {1: 0}),
        (4, 5, {}),
        (-1, 5, {0: 0, 1: 0, 2: 0, 3: 0}),
    ],
)
async def test_a_tool_of_rocketmq_5_may_reset_one_queue(
    desk: Any, client_link: Any, queue_id: int, offset: int | None, expected: dict[int, int]
) -> None:
    live_topic(desk, committed=False)
    link = client_link()
    await join(desk, link)
    header = ResetOffsetRequest(
        topic="TopicLive", group="CG_live", timestamp=1000, is_force=True, queue_id=queue_id, offset=offset
    )
    answer = await desk.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    table = ResetOffsetBody.decode(answer.body).offset_table
    assert {queue.queue_id: found for queue, found in table.items()} == expected
    (notified,) = link.notified
    assert set(notified.fields) == {"topic", "group", "timestamp", "isForce"}
    assert {queue: desk.broker.offsets.query("CG_live", "TopicLive", queue) for queue in expected} == expected


async def test_a_tool_of_rocketmq_5_may_reset_a_group_that_is_offline(desk: Any) -> None:
    live_topic(desk)
    desk.broker.groups.find("CG_live")
    header = ResetOffsetRequest(topic="TopicLive", group="CG_live", timestamp=2000, is_force=True, queue_id=-1)
    answer = await desk.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    assert answer.code == 0
    assert [desk.broker.offsets.query("CG_live", "TopicLive", queue) for queue in range(4)] == [1, 1, 1, 1]


async def test_a_group_that_has_read_nothing_yet_can_be_reset(desk: Any, client_link: Any) -> None:
    live_topic(desk)
    for queue_id in range(4):
        desk.broker.offsets.commit("CG_live", "TopicLive", queue_id, 0)
    await join(desk, client_link())
    header = ResetOffsetRequest(topic="TopicLive", group="CG_live", timestamp=-1, is_force=True)
    assert (await desk.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)).code == 0


@pytest.mark.parametrize(
    ("compat", "timestamp", "force", "expected"),
    [
        ("safe", -1, True, [7, 10, 6, 6]),
        ("safe", -1, False, [0, 3, 0, 3]),
        ("safe", 2000, False, [0, 1, 0, 1]),
        ("4.9", -1, True, [7, 10, 6, 6]),
        ("4.9", -1, False, [-5, 3, -2, 3]),
        ("4.9", 2000, False, [-5, 1, -2, 1]),
    ],
)
async def test_a_group_with_negative_offsets_can_be_reset(
    desk: Any, client_link: Any, config: BrokerConfig, compat: str, timestamp: int, force: bool, expected: list[int]
) -> None:
    config.store.compat = compat
    live_topic(desk)
    for queue_id, offset in enumerate((-5, 3, -2, 3)):
        desk.broker.offsets.commit("CG_live", "TopicLive", queue_id, offset)
    await join(desk, client_link())
    header = ResetOffsetRequest(topic="TopicLive", group="CG_live", timestamp=timestamp, is_force=force)
    answer = await desk.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    assert list(ResetOffsetBody.decode(answer.body).offset_table.values()) == expected


async def test_requesters_in_c_plus_plus_make_members_get_a_list(desk: Any, client_link: Any) -> None:
    live_topic(desk)
    link = client_link()
    await join(desk, link)
    header = ResetOffsetRequest(topic="TopicLive", group="CG_live", timestamp=-1, is_force=True)
    await desk.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, language=LanguageCode.CPP)
    (notified,) = link.notified
    table: Any = loads(notified.body)
    assert table["offsetTable"][0] == {"brokerName": "broker-a", "offset": 7, "queueId": 0, "topic": "TopicLive"}
    assert len(table["offsetTable"]) == 4


async def test_resets_that_cannot_be_done(desk: Any, client_link: Any) -> None:
    async def ask() -> tuple[int, str | None]:
        header = ResetOffsetRequest(topic="TopicLive", group="CG_live", timestamp=5, is_force=True)
        answer = await desk.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        return answer.code, answer.remark

    assert await ask() == (1, "[reset-offset] reset offset failed, no topic in this broker. topic=TopicLive")
    live_topic(desk, committed=False)
    assert await ask() == (1, "THe consumer group <CG_live> not exist")
    live_topic(desk)
    assert await ask() == (
        206,
        "Consumer not online, so can not reset offset, Group: CG_live Topic: TopicLive Timestamp: 5",
    )
    old = client_link()
    await join(desk, old, version=27)
    code, remark = await ask()
    assert code == 1
    header = ResetOffsetRequest(topic="TopicLive", group="Nobody", timestamp=5, is_force=True, queue_id=-1)
    answer = await desk.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    assert (answer.code, answer.remark) == (26, "Group Nobody does not exist")
    assert remark is not None
    assert remark.startswith("the client does not support this feature. version=V3_")
    assert old.notified == []
    await join(desk, old, version=28)
    assert await ask() == (0, "not set any response code")
