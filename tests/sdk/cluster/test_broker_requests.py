"""Requests of brokers and operators to a client, over the link that carried its heartbeat."""

# ruff: noqa: ASYNC110 - conditions live in the fake broker

from __future__ import annotations

import pytest
import trio

import triomq
from triomq._cluster import broker_requests
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import (
    ConsumeMessageDirectlyRequest,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerListByGroupRequest,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusBody,
    GetConsumerStatusRequest,
    NotifyConsumerIdsChangedRequest,
    ResetOffsetBody,
    ResetOffsetRequest,
)
from triomq_protocol.wire.command import Command

Q0 = triomq.MessageQueue("T", "broker-a", 0)
Q1 = triomq.MessageQueue("T", "broker-a", 1)


def fill(cluster, count, queue_id=0):
    for number in range(count):
        cluster.broker.store("T", queue_id, b"m%d" % number, b"")


async def ask(cluster, request, *, group="G", seconds=1.0):
    """The answers to a broker's request."""
    (stream,) = cluster.broker.consumers.members[group].values()
    before = len(cluster.broker.seen)
    await cluster.broker.push_to(stream, request)
    await trio.sleep(seconds)
    return [command for command in cluster.broker.seen[before:] if command.is_response]


class Member:
    """A push consumer whose handler writes down what it gets."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.seen = []
        self.raises = None

    async def handle(self, message):
        await trio.lowlevel.checkpoint()
        self.seen.append(message.body)
        if self.raises is not None:
            raise self.raises

    async def run(self, task_status=trio.TASK_STATUS_IGNORED):
        async with (
            self.cluster.client() as client,
            client.push_consumer("G", start_from="earliest", drain_s=1) as self.consumer,
        ):
            await self.consumer.subscribe("T")
            task_status.started()
            await self.consumer.run(self.handle)


@pytest.fixture
async def member(autojump_clock, group_cluster, nursery):
    fill(group_cluster, 5)
    made = Member(group_cluster)
    await nursery.start(made.run)
    while len(made.seen) < 5:
        await trio.sleep(0.1)
    return made


async def test_a_notice_wakes_the_rebalance(autojump_clock, member, group_cluster):
    def asked():
        return len(group_cluster.broker.requests(RequestCode.GET_CONSUMER_LIST_BY_GROUP))

    await trio.sleep(3)
    before = asked()
    notice = Command.request(
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, NotifyConsumerIdsChangedRequest(consumer_group="G"), oneway=True
    )
    assert not await ask(group_cluster, notice)
    assert asked() > before
    last = group_cluster.broker.requests(RequestCode.GET_CONSUMER_LIST_BY_GROUP)[-1]
    assert last.header(GetConsumerListByGroupRequest).consumer_group == "G"


async def test_status_reports_the_offsets(autojump_clock, member, group_cluster):
    header = GetConsumerStatusRequest(topic="T", group="G")
    (answer,) = await ask(group_cluster, Command.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header))
    assert GetConsumerStatusBody.decode(answer.body).message_queue_table == {Q0: 5, Q1: 0}


async def test_running_info_has_what_mqadmin_needs(autojump_clock, member, group_cluster):
    header = GetConsumerRunningInfoRequest(consumer_group="G", client_id="c")
    (answer,) = await ask(group_cluster, Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header))
    info = ConsumerRunningInfo.decode(answer.body)
    needed = {
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CONSUMEORDERLY": "false",
        "PROP_NAMESERVER_ADDR": "ns:9876;",
        "PROP_CLIENT_VERSION": "V4_9_7",
    }
    assert needed.items() <= info.properties.items()
    assert info.properties.keys() >= {"PROP_CONSUMER_START_TIMESTAMP", "PROP_THREADPOOL_CORE_SIZE"}
    assert info.mq_table[Q0].commit_offset == 5
    assert {each.topic for each in info.subscription_set} == {"T", "%RETRY%G"}
    assert info.jstack is None


@pytest.mark.parametrize(
    ("raises", "result"),
    [(None, "CR_SUCCESS"), (triomq.Later(3), "CR_LATER"), (ZeroDivisionError("no"), "CR_THROW_EXCEPTION")],
)
async def test_one_message_on_demand(autojump_clock, member, group_cluster, raises, result):
    member.raises = raises
    record = group_cluster.broker.queues["T", 0][2]
    header = ConsumeMessageDirectlyRequest(consumer_group="G", client_id="c", msg_id="x", broker_name="broker-a")
    request = Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, body=record)
    (answer,) = await ask(group_cluster, request)
    assert answer.code == 0
    assert ConsumeMessageDirectlyResult.decode(answer.body).consume_result == result
    assert member.seen[5:] == [b"m2"]
    # Nothing else came of it: no offset moved, nothing was sent back.
    assert not group_cluster.broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK)


@pytest.mark.parametrize("code", [RequestCode.CONSUME_MESSAGE_DIRECTLY, RequestCode.GET_CONSUMER_RUNNING_INFO])
async def test_a_group_that_is_not_ours(autojump_clock, member, group_cluster, code):
    header = GetConsumerRunningInfoRequest(consumer_group="H", client_id="c")
    (answer,) = await ask(group_cluster, Command.request(code, header))
    assert (answer.code, answer.remark) == (1, "The Consumer Group <H> not exist in this consumer")


def reset(group="G", **offsets):
    """A broker's order to go to these offsets."""
    table = {triomq.MessageQueue("T", "broker-a", int(name[1:])): offset for name, offset in offsets.items()}
    header = ResetOffsetRequest(topic="T", group=group, timestamp=0, is_force=False)
    body = ResetOffsetBody(offset_table=table).encode()
    return Command.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body=body, oneway=True)


async def test_a_reset_takes_effect_after_ten_seconds(autojump_clock, member, group_cluster):
    assert not await ask(group_cluster, reset(q0=3), seconds=9)
    assert len(member.seen) == 5
    await trio.sleep(3)
    assert member.seen[5:] == [b"m3", b"m4"]


async def test_resets_go_side_by_side(autojump_clock, member, group_cluster):
    fill(group_cluster, 5, queue_id=1)
    while len(member.seen) < 10:
        await trio.sleep(0.1)
    # Each master sends its own.
    await ask(group_cluster, reset(q0=3), seconds=0.1)
    await ask(group_cluster, reset(q1=4), seconds=0.1)
    await trio.sleep(11)
    assert sorted(member.seen[10:]) == [b"m3", b"m4", b"m4"]


async def test_a_reset_of_another_group_is_ignored(autojump_clock, member, group_cluster):
    await ask(group_cluster, reset(group="H", q0=0), seconds=15)
    assert len(member.seen) == 5


async def test_many_resets_are_bounded(autojump_clock, member, group_cluster, monkeypatch, caplog):
    monkeypatch.setattr(broker_requests, "WAITING_MAX", 20)
    (stream,) = group_cluster.broker.consumers.members["G"].values()
    before = trio.lowlevel.current_statistics().tasks_living
    for number in range(500):
        await group_cluster.broker.push_to(stream, reset(q0=number))
    await trio.sleep(1)
    assert trio.lowlevel.current_statistics().tasks_living - before <= 20
    assert caplog.text.count("asks for more resets than can wait; this one is ignored") == 1
    record = group_cluster.broker.queues["T", 0][2]
    header = ConsumeMessageDirectlyRequest(consumer_group="G", client_id="c", msg_id="x", broker_name="broker-a")
    request = Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, body=record)
    (refused,) = await ask(group_cluster, request)
    assert (refused.code, refused.remark) == (2, "too many requests wait in this client")
    await trio.sleep(60)  # those that were taken have been done
    (answer,) = await ask(group_cluster, request)
    assert answer.code == 0


async def test_the_bodies_of_waiting_requests_are_bounded(autojump_clock, member, group_cluster, monkeypatch):
    monkeypatch.setattr(broker_requests, "WAITING_BYTES_MAX", 10)
    await ask(group_cluster, reset(q0=0), seconds=15)
    assert len(member.seen) == 5


async def test_two_members_of_one_name_are_named(autojump_clock, group_cluster):
    events = []
    async with (
        group_cluster.client(instance_name="same") as one,
        one.push_consumer("G", callbacks=triomq.ConsumerCallbacks(on_event=events.append), drain_s=1) as consumer,
    ):
        await consumer.subscribe("T")
        list_members = group_cluster.broker.consumers.list_members

        def twice(command):
            answer = list_members(command)
            name = one.client_id.encode()
            answer.body = answer.body.replace(b'"%b"' % name, b'"%b","%b"' % (name, name))
            return answer

        group_cluster.broker.consumers.list_members = twice
        await trio.sleep(130)
        assert events == []
        await trio.sleep(60)
        assert [event.kind for event in events] == ["duplicate_client_id"]
        assert one.client_id in events[0].text
