"""Pulls over the wire: every check with its code and remark, offsets, filters, holding
(docs/protocol/broker-api.md §5)."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest
import trio

from triomq_protocol.codes import RequestCode
from triomq_protocol.filters.tags import tags_code
from triomq_protocol.record.view import iter_records
from triomq_protocol.requests.admin import SubscriptionGroupConfig
from triomq_protocol.wire.command import Command
from triomq_server.broker.requests.pull import MOST_INLINE_CHARACTERS
from triomq_server.store import MessageStore

FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
SUSPEND, INLINE, COMMIT = 2, 4, 1


async def put_group(peer: Any, **fields: Any) -> None:
    group = SubscriptionGroupConfig(**{"group_name": "CG", **fields})
    answer = await peer.ask(Command.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group.encode()))
    assert answer.code == 0


async def committed(peer: Any, topic: str = "T1", group: str = "CG") -> str | None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    answer = await peer.ask(Command.request(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields))
    return None if answer.fields is None else answer.fields.get("offset")


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in iter_records(answer.body)]


def offsets(answer: Command) -> dict[str, int]:
    assert answer.fields is not None
    return {name: int(value) for name, value in answer.fields.items()}


async def test_lite_consumers_of_rocketmq_5_pull_with_a_code_of_their_own(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put(body=b"one")
        request = peer.pull_request()
        request.code = RequestCode.LITE_PULL_MESSAGE
        assert bodies(await peer.ask(request)) == [b"one"]


# -- refusals


@pytest.mark.parametrize(
    ("settings", "fields", "code", "remark"),
    [
        ({"brokerPermission": 2}, {}, 16, "the broker[127.0.0.1] pulling message is forbidden"),
        ({"autoCreateSubscriptionGroup": "false"}, {}, 26, f"subscription group [CG] does not exist, {FAQ}"),
        ({}, {"topic": "Nope"}, 17, f"topic[Nope] not exist, apply first please! {FAQ}"),
        (
            {},
            {"queue_id": 4},
            1,
            "queueId[4] is illegal, topic:[T1] topicConfig.readQueueNums:[4] consumer:[/127.0.0.1:40001]",
        ),
        (
            {},
            {"queue_id": -1},
            1,
            "queueId[-1] is illegal, topic:[T1] topicConfig.readQueueNums:[4] consumer:[/127.0.0.1:40001]",
        ),
        ({}, {"subscription": "||"}, 23, "parse the consumer's subscription failed"),
        ({}, {"sys_flag": 0}, 24, f"the consumer's group info not exist{FAQ}"),
        (
            {},
            {"expression_type": "SQL92", "subscription": "a > 1"},
            1,
            "The broker does not support consumer to filter message by SQL92",
        ),
    ],
)
@pytest.mark.parametrize("flags", [0, SUSPEND])
async def test_refusals(
    open_broker: Any, settings: dict[str, Any], fields: dict[str, Any], code: int, remark: str, flags: int
) -> None:
    """A refused pull is answered at once, also when it may wait, and commits nothing."""
    async with open_broker(**settings) as broker:
        peer = await broker.peer()
        await peer.put()
        sys_flag = fields.get("sys_flag", INLINE) | flags | COMMIT
        answer = await peer.pull(**{**fields, "sys_flag": sys_flag, "commit_offset": 9})
        assert (answer.code, answer.remark, answer.fields) == (code, remark, {})
        assert await committed(peer) != "9"


async def test_a_disabled_group(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put()
        await put_group(peer, consume_enable=False)
        answer = await peer.pull()
    assert (answer.code, answer.remark) == (16, "subscription group no permission, CG")


async def test_a_topic_that_may_not_be_read(open_broker: Any) -> None:
    async with open_broker(clusterTopicEnable="false") as broker:
        answer = await (await broker.peer()).pull("C1")
    assert (answer.code, answer.remark) == (16, "the topic[C1] pulling message is forbidden")


@pytest.mark.parametrize(
    ("beat", "pull", "code", "remark"),
    [
        ({}, {"sub_version": 5}, 0, "FOUND"),
        ({"group": "Other"}, {}, 24, f"the consumer's group info not exist{FAQ}"),
        ({"topic": "Other"}, {}, 24, f"the consumer's subscription not exist{FAQ}"),
        ({}, {"sub_version": 6}, 25, "the consumer's subscription not latest"),
        ({"model": "BROADCASTING"}, {}, 16, "the consumer group[CG] can not consume by broadcast way"),
        (
            {"expression_type": "SQL92", "sub_string": "a > 1"},
            {},
            1,
            "The broker does not support consumer to filter message by SQL92",
        ),
    ],
)
async def test_registered_subscriptions(
    open_broker: Any, beat: dict[str, Any], pull: dict[str, Any], code: int, remark: str
) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put()
        await put_group(peer, consume_broadcast_enable=False)
        assert (await peer.ask(peer.heartbeat(**beat))).code == 0
        answer = await peer.pull(**{"sys_flag": 0, "subscription": None, **pull})
    assert (answer.code, answer.remark) == (code, remark)


# -- filters


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("*", [b"0", b"1", b"2"]),
        ("A", [b"0", b"2"]),
        ("A || B", [b"0", b"1", b"2"]),
        ("C", []),
        (None, [b"0", b"1", b"2"]),
    ],
)
@pytest.mark.parametrize("inline", [True, False])
async def test_tags(open_broker: Any, expression: str | None, found: list[bytes], inline: bool) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        for n, tag in enumerate("ABA"):
            await peer.put(body=b"%d" % n, properties=f"TAGS\x01{tag}")
        if inline:
            answer = await peer.pull(subscription=expression)
        else:
            tags = [] if expression in ("*", None) else [tag.strip() for tag in expression.split("||")]
            beat = peer.heartbeat(
                sub_string=expression or "*", tags_set=tags, code_set=[tags_code(tag) for tag in tags]
            )
            assert (await peer.ask(beat)).code == 0
            answer = await peer.pull(sys_flag=0, subscription=None)
    assert answer.code == (0 if found else 20)
    assert bodies(answer) == found
    assert offsets(answer) == {"nextBeginOffset": 3, "minOffset": 0, "maxOffset": 3, "suggestWhichBrokerId": 0}


async def test_tags_that_come_with_a_pull_are_limited(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put(properties="TAGS\x01A")
        most = "A||" + "b" * (MOST_INLINE_CHARACTERS - 3)
        assert (await peer.pull(subscription=most)).code == 0
        assert (await peer.pull(subscription=most + "b")).code == 23


# -- offsets


@pytest.mark.parametrize(
    ("messages", "offset", "code", "remark", "next_offset"),
    [
        (3, 0, 0, "FOUND", 3),
        (3, 2, 0, "FOUND", 3),
        (3, 3, 19, "OFFSET_OVERFLOW_ONE", 3),
        (3, 4, 21, "OFFSET_OVERFLOW_BADLY", 3),
        (3, -1, 21, "OFFSET_TOO_SMALL", 0),
        (0, 0, 19, "NO_MESSAGE_IN_QUEUE", 0),
        (0, 5, 21, "NO_MESSAGE_IN_QUEUE", 0),
    ],
)
async def test_offsets_on_a_master(
    open_broker: Any, messages: int, offset: int, code: int, remark: str, next_offset: int
) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put(queue_id=1)
        for _ in range(messages):
            await peer.put()
        answer = await peer.pull(offset=offset)
        event = await peer.pull("OFFSET_MOVED_EVENT")
    assert (answer.code, answer.remark) == (code, remark)
    assert offsets(answer) == {
        "nextBeginOffset": next_offset, "minOffset": 0, "maxOffset": messages, "suggestWhichBrokerId": 0
    }  # fmt: skip
    if code == 21:
        (body,) = bodies(event)
        assert json.loads(body) == {
            "consumerGroup": "CG",
            "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": "T1"},
            "offsetNew": next_offset,
            "offsetRequest": offset,
        }
    else:
        assert event.code == 19


@pytest.mark.parametrize(("limit", "count"), [(2, 2), (32, 32), (100, 32)])
async def test_batch_limits(open_broker: Any, limit: int, count: int) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        for _ in range(40):
            await peer.put()
        answer = await peer.pull(max_msg_nums=limit)
    assert len(bodies(answer)) == count
    assert offsets(answer)["nextBeginOffset"] == count


@pytest.mark.parametrize(
    ("settings", "broker_id"), [({}, 7), ({"slaveReadEnable": "false"}, 0), ({"compat": "4.9"}, 0)]
)
async def test_lagging_readers_are_sent_to_the_slave(
    open_broker: Any, settings: dict[str, Any], broker_id: int
) -> None:
    async with open_broker(memoryBytes=1000, **settings) as broker:
        peer = await broker.peer()
        await put_group(peer, broker_id=0, which_broker_when_consume_slowly=7)
        for _ in range(20):
            await peer.put(body=bytes(100))
        behind, caught_up = await peer.pull(max_msg_nums=1), await peer.pull(offset=19)
    assert offsets(behind)["suggestWhichBrokerId"] == broker_id
    assert offsets(caught_up)["suggestWhichBrokerId"] == 0


# -- commits


@pytest.mark.parametrize(("sys_flag", "after"), [(INLINE | COMMIT, "5"), (INLINE, "0")])
async def test_commit_with_a_pull(open_broker: Any, sys_flag: int, after: str) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put()
        await peer.pull(sys_flag=sys_flag, commit_offset=5)
        assert await committed(peer) == after


async def test_a_held_pull_commits_when_it_arrives_and_not_when_it_is_woken(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer, other = await broker.peer(), await broker.peer()
        await peer.put()
        await peer.send(peer.pull_request(offset=1, sys_flag=INLINE | COMMIT | SUSPEND, commit_offset=5))
        await trio.sleep(1)
        assert await committed(other) == "5"
        update = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "6"}
        await other.ask(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields=update))
        await other.put()
        assert (await peer.receive()).code == 0
        assert await committed(other) == "6"


# -- holding


async def test_a_message_wakes_a_held_pull_at_once(open_broker: Any) -> None:
    async with open_broker() as broker:
        reader, writer = await broker.peer(), await broker.peer()
        await writer.put()
        await reader.send(reader.pull_request(offset=1, sys_flag=INLINE | SUSPEND, serialize=1))
        await trio.sleep(3)
        start = trio.current_time()
        await writer.send(writer.put_request(body=b"news"))
        answer = await reader.receive()
        assert trio.current_time() == start
        assert bodies(answer) == [b"news"]
        assert answer.serialize == 0, "like 4.9, a woken pull is answered in the broker's own serialization"


async def test_a_held_pull_that_fails_is_answered_and_concerns_no_other_client(
    open_broker: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The sender of the message that wakes it may be on any other connection."""

    def failing(*_: object) -> None:
        raise OSError(errno.EMFILE, "no descriptor")

    async with open_broker() as broker:
        reader, sender = await broker.peer(), await broker.peer()
        await sender.put()
        await reader.send(reader.pull_request(offset=1, sys_flag=INLINE | SUSPEND))
        await trio.sleep(3)
        with monkeypatch.context() as patch:
            patch.setattr(MessageStore, "read", failing)
            assert (await sender.put(body=b"two")).code == 0
            with trio.fail_after(1):
                answer = await reader.receive()
        assert (answer.code, answer.remark) == (1, "OSError: [Errno 24] no descriptor")
        assert bodies(await reader.pull(offset=1)) == [b"two"]
    lines = [record.getMessage() for record in caplog.records if record.exc_info]
    assert lines == ["a held pull of 127.0.0.1:40001 failed"]


async def test_a_message_of_another_tag_wakes_no_pull(open_broker: Any) -> None:
    async with open_broker() as broker:
        reader, writer = await broker.peer(), await broker.peer()
        await writer.put()
        start = trio.current_time()
        await reader.send(reader.pull_request(offset=1, sys_flag=INLINE | SUSPEND, subscription="TagB"))
        await trio.sleep(2)
        await writer.put()
        answer = await reader.receive()
        assert trio.current_time() - start == pytest.approx(15)
        assert (answer.code, offsets(answer)["nextBeginOffset"]) == (20, 2)


def subscribing(peer: Any, tag: str, version: int) -> Command:
    """A heartbeat whose group wants this tag."""
    return peer.heartbeat(sub_string=tag, tags_set=[tag], code_set=[tags_code(tag)], sub_version=version)


async def test_another_subscription_runs_the_held_pulls_of_its_link_again(open_broker: Any) -> None:
    """A message that only the new one wants arrived before it and woke no pull."""

    async with open_broker() as broker:
        reader, writer = await broker.peer(), await broker.peer()
        await writer.put()
        assert (await reader.ask(subscribing(reader, "A", 5))).code == 0
        await reader.send(reader.pull_request(offset=1, sys_flag=SUSPEND, subscription=None, sub_version=5))
        await trio.sleep(1)
        await writer.put(body=b"wanted later", properties="TAGS\x01B")
        await reader.send(subscribing(reader, "A", 5))
        assert (await reader.receive()).body == b"", "the same subscription changes nothing"
        start = trio.current_time()
        await reader.send(subscribing(reader, "B", 6))
        answers = [await reader.receive() for _ in range(2)]
        assert trio.current_time() == start
    assert [found for answer in answers if (found := bodies(answer))] == [[b"wanted later"]]


async def test_a_newer_version_of_the_same_subscription_leaves_held_pulls_alone(open_broker: Any) -> None:
    """Clients send one whenever the queues of a topic change, for each of their groups."""
    async with open_broker() as broker:
        reader, writer = await broker.peer(), await broker.peer()
        await writer.put()
        assert (await reader.ask(subscribing(reader, "A", 5))).code == 0
        start = trio.current_time()
        await reader.send(reader.pull_request(offset=1, sys_flag=SUSPEND, subscription=None, sub_version=5))
        await trio.sleep(1)
        await reader.send(subscribing(reader, "A", 6))
        assert (await reader.receive()).body == b"", "of the heartbeat"
        assert trio.current_time() == start + 1
        assert (await reader.receive()).code == 19
        assert trio.current_time() - start == pytest.approx(15)


@pytest.mark.parametrize("woken", [True, False])
async def test_a_held_pull_answers_by_the_subscription_that_the_group_has_then(open_broker: Any, woken: bool) -> None:
    async with open_broker() as broker:
        reader, peer = await broker.peer(), await broker.peer()
        await peer.put()
        assert (await peer.ask(subscribing(peer, "A", 5))).code == 0
        await reader.send(reader.pull_request(offset=1, sys_flag=SUSPEND, subscription=None, sub_version=5))
        await trio.sleep(1)
        assert (await peer.ask(subscribing(peer, "B", 6))).code == 0
        await peer.put(body=b"wanted now", properties="TAGS\x01B")
        if woken:
            await peer.put(body=b"wanted before", properties="TAGS\x01A")
        answer = await reader.receive()
    assert bodies(answer) == [b"wanted now"]


@pytest.mark.parametrize(
    ("settings", "suspend_ms", "waited"),
    [
        ({}, 2000, 2.0),
        ({"longPollingEnable": "false"}, 20_000, 1.0),
        ({"compat": "4.9"}, 6000, 10.0),
        ({"compat": "4.9", "longPollingEnable": "false"}, 20_000, 1.0),
    ],
)
async def test_how_long_a_pull_is_held(
    open_broker: Any, settings: dict[str, Any], suspend_ms: int, waited: float
) -> None:
    async with open_broker(**settings) as broker:
        peer = await broker.peer()
        await peer.put()
        start = trio.current_time()
        answer = await peer.pull(offset=1, sys_flag=INLINE | SUSPEND, suspend_timeout_millis=suspend_ms)
        assert trio.current_time() - start == pytest.approx(waited, abs=0.3)
    assert (answer.code, answer.remark) == (19, "OFFSET_OVERFLOW_ONE")


async def test_an_empty_queue_can_be_waited_for(open_broker: Any) -> None:
    async with open_broker() as broker:
        reader, writer = await broker.peer(), await broker.peer()
        await writer.put(queue_id=1)
        await reader.send(reader.pull_request(sys_flag=INLINE | SUSPEND))
        await trio.sleep(1)
        await writer.put(body=b"first")
        assert bodies(await reader.receive()) == [b"first"]


async def test_too_many_held_pulls_are_answered_at_once(open_broker: Any) -> None:
    async with open_broker(pullThreadPoolQueueCapacity=1) as broker:
        first, second = await broker.peer(), await broker.peer()
        await first.put()
        await first.send(first.pull_request(offset=1, sys_flag=INLINE | SUSPEND))
        await trio.sleep(0.1)
        start = trio.current_time()
        assert (await second.pull(offset=1, sys_flag=INLINE | SUSPEND)).code == 19
        assert trio.current_time() == start


async def test_a_topic_deleted_meanwhile_is_answered(open_broker: Any) -> None:
    async with open_broker() as broker:
        reader, admin = await broker.peer(), await broker.peer()
        await admin.put()
        await reader.send(reader.pull_request(offset=1, sys_flag=INLINE | SUSPEND))
        await trio.sleep(1)
        await admin.ask(Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": "T1"}))
        assert (await reader.receive()).code == 17
