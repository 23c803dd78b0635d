"""Resets of a group whose topic is on several masters run concurrently."""

from __future__ import annotations

import pytest
import trio
from consumer_broker import until

import triomq
from triomq import errors
from triomq._consumer.push.membership import RESET_PAUSE_S
from triomq_protocol.codes import FIRST_VERSION_5, RequestCode, ResponseCode
from triomq_protocol.requests.group_admin import ResetOffsetBody, ResetOffsetRequest
from triomq_protocol.requests.pull import PullMessageRequest
from triomq_protocol.wire.command import Command

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET


def queue_of(broker):
    return triomq.MessageQueue("T", broker.name, 0)


def add_master(cluster, name="broker-b"):
    broker = cluster.add_master(name)
    broker.consumers.serves_groups = True
    broker.name_server = cluster.name_server
    return broker


async def ask_member(broker, offset, queue=None):
    """What a broker sends to every member of the group."""
    request = Command.request(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        ResetOffsetRequest(topic="T", group="G", timestamp=0, is_force=True),
        body=ResetOffsetBody(offset_table={queue or queue_of(broker): offset}).encode(),
        oneway=True,
    )
    (stream,) = [each for each in broker.consumers.members["G"].values() if each is not None]
    await broker.push_to(stream, request)


async def test_two_masters_take_no_longer_than_one(autojump_clock, group_cluster):
    brokers = [group_cluster.broker, add_master(group_cluster)]
    for broker in brokers:
        for number in range(5):
            broker.store("T", 0, b"%s %d" % (broker.name.encode(), number))
    seen, events = [], []

    async def handler(message):
        seen.append(message.body)

    callbacks = triomq.ConsumerCallbacks(on_event=events.append)
    async with (
        group_cluster.client() as client,
        client.push_consumer("G", start_from="earliest", callbacks=callbacks) as consumer,
        trio.open_nursery() as nursery,
    ):
        await consumer.subscribe("T")
        nursery.start_soon(consumer.run, handler)
        await trio.sleep(3)
        assert len(seen) == 10
        for broker in brokers:
            await ask_member(broker, 3)
        await trio.sleep(RESET_PAUSE_S - 1)
        assert len(seen) == 10
        await trio.sleep(2)
        assert sorted(seen[10:]) == [b"broker-a 3", b"broker-a 4", b"broker-b 3", b"broker-b 4"]
        # A later one counts, and the consumer is at work again afterwards.
        await ask_member(brokers[0], 1)
        await trio.sleep(RESET_PAUSE_S / 2)
        await ask_member(brokers[0], 4)
        await trio.sleep(RESET_PAUSE_S + 1)
        assert seen[14:] == [b"broker-a 4"]
        brokers[0].store("T", 0, b"new")
        await trio.sleep(1)
        assert seen[15:] == [b"new"]
        consumer.drain()
    assert [event.kind for event in events] == ["reset"] * 4
    # What was consumed is named, also when it was not committed yet.
    assert sorted(event.text for event in events[:2]) == [
        f"{queue_of(broker)} was reset from 5 to 3" for broker in brokers
    ]


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_queue_that_is_just_taken_is_reset_too(autojump_clock, group_cluster, open_consumer, events, ordered):
    """Its previous owner has given it up already, and this member waits for that to be committed."""
    broker, taken, seen = group_cluster.broker, triomq.MessageQueue("T", "broker-a", 1), []
    for number in range(5):
        broker.store("T", 1, b"%d" % number)
    broker.offsets["G", "T", 1] = 1
    members = broker.consumers.members["G"] = {"~other": None}

    async def handler(message):
        seen.append(message.body)

    async with open_consumer(ordered=ordered) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, handler)
        await until(lambda: consumer.assignment == [queue_of(broker)])
        members["!other"] = members.pop("~other")
        consumer._member.rebalance.wake()
        await until(lambda: not consumer.assignment)
        await ask_member(broker, 3, taken)
        await until(lambda: consumer.assignment == [taken])
        await trio.sleep(2 * RESET_PAUSE_S)
        assert seen == [b"3", b"4"]
        assert events.kinds() == ["reset"]
        consumer.drain()


async def test_a_lite_consumer_s_event_names_what_was_consumed(autojump_clock, group_cluster):
    for number in range(5):
        group_cluster.broker.store("T", 0, b"%d" % number)
    events = []
    callbacks = triomq.ConsumerCallbacks(on_event=events.append)
    async with (
        group_cluster.client() as client,
        client.lite_pull_consumer("G", start_from="earliest", callbacks=callbacks) as consumer,
    ):
        await consumer.subscribe("T")
        assert len(await consumer.poll()) == 5
        await consumer.poll(0)
        await ask_member(group_cluster.broker, 2)
        assert [message.body for message in await consumer.poll(60)] == [b"2", b"3", b"4"]
    (event,) = events
    assert event.text.endswith("was reset from 5 to 2")


def slow_reset(broker, *, refuses=False):
    async def reset(command):
        await trio.sleep(2)
        if refuses:
            return command.answer(ResponseCode.SYSTEM_ERROR, "no")
        return command.answer(0, body=ResetOffsetBody(offset_table={queue_of(broker): 7}).encode())

    broker.script(RESET, reset)


async def test_an_operator_s_reset_asks_all_masters_at_once(autojump_clock, group_cluster):
    brokers = [group_cluster.broker, add_master(group_cluster)]
    for broker in brokers:
        slow_reset(broker)
    async with group_cluster.client() as client:
        started = trio.current_time()
        done = await client.groups.reset("G", "T", 0)
        assert trio.current_time() - started < 3
    assert [(each.queue, each.offset, each.online) for each in done] == [(queue_of(each), 7, True) for each in brokers]


async def test_a_master_that_refuses_does_not_keep_others_from_it(autojump_clock, group_cluster):
    brokers = [group_cluster.broker, add_master(group_cluster)]
    slow_reset(brokers[0], refuses=True)
    slow_reset(brokers[1])
    async with group_cluster.client() as client:
        with pytest.raises(errors.BrokerFault, match="reset of group G in topic T"):
            await client.groups.reset("G", "T", 0)
    assert len(brokers[1].requests(RESET)) == 1


async def test_a_set_without_a_master_is_reported_as_not_reset(autojump_clock, group_cluster):
    other = add_master(group_cluster)
    slow_reset(other)
    route = group_cluster.name_server.routes["T"]
    (without,) = [broker for broker in route.broker_datas if broker.broker_name == "broker-a"]
    without.broker_addrs = {1: "broker-a-1:10911"}
    async with group_cluster.client() as client:
        with pytest.raises(errors.BrokerNotFound, match="was moved on broker-b, and not on broker-a: no master"):
            await client.groups.reset("G", "T", 0)
    assert len(other.requests(RESET)) == 1


async def test_a_reset_without_any_master_names_the_sets(autojump_clock, group_cluster):
    group_cluster.name_server.routes["T"].broker_datas[0].broker_addrs = {1: "broker-a-1:10911"}
    async with group_cluster.client() as client:
        with pytest.raises(errors.BrokerNotFound, match="no master of broker-a, which has topic T, is registered"):
            await client.groups.reset("G", "T", 0)


@pytest.mark.parametrize("policy", ["broker", "earliest", "latest", "raise"])
@pytest.mark.parametrize("kind", ["push", "lite"])
async def test_a_broker_of_5_answers_the_next_pull_with_the_reset(autojump_clock, group_cluster, kind, policy):
    """With the code of an illegal offset, for which a policy would choose another offset, or end the consumer."""
    for number in range(5):
        group_cluster.broker.store("T", 0, b"%d" % number)

    resets = []
    pull = group_cluster.broker.pull

    def moved(command):
        header = command.header(PullMessageRequest)
        if not resets or (header.topic, header.queue_id) != ("T", 0):
            return pull(command)
        fields = {"nextBeginOffset": str(resets.pop()), "minOffset": "0", "maxOffset": "5", "suggestWhichBrokerId": "0"}
        return command.answer(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", fields=fields)

    group_cluster.broker.pull = moved
    events, bodies = [], []
    callbacks = triomq.ConsumerCallbacks(on_event=events.append)
    async with group_cluster.client() as client:
        make = client.push_consumer if kind == "push" else client.lite_pull_consumer
        async with make("G", start_from="earliest", illegal_offset=policy, callbacks=callbacks) as consumer:
            await consumer.subscribe("T")
            with trio.fail_after(100):
                while len(bodies) < 8:
                    given = await anext(consumer)
                    bodies.append(getattr(given, "message", given).body)
                    if isinstance(given, triomq.Delivery):
                        await given.done()
                    if len(bodies) == 5:
                        resets.append(2)
    assert bodies == [b"0", b"1", b"2", b"3", b"4", b"2", b"3", b"4"]
    assert (events[0].kind, events[0].queue) == ("reset", queue_of(group_cluster.broker))
    assert events[0].text.endswith("was reset from 5 to 2")


async def test_a_pull_distinguishes_a_reset_from_an_illegal_offset(autojump_clock, group_cluster):
    def moved(command):
        return command.answer(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", fields={"nextBeginOffset": "2"})

    group_cluster.broker.script(RequestCode.PULL_MESSAGE, moved)
    async with group_cluster.client() as client:
        consumer = client.pull_consumer("G")
        results = [await consumer.pull(queue_of(group_cluster.broker), 5) for _ in range(2)]
    assert [(each.status.name, each.was_reset) for each in results] == [
        ("OFFSET_ILLEGAL", True),
        ("OFFSET_ILLEGAL", False),
    ]


@pytest.mark.parametrize("online", [False, True])
async def test_members_may_be_unknown_on_a_broker_of_5(autojump_clock, group_cluster, online):
    def reset(command):
        return command.answer(0, body=ResetOffsetBody(offset_table={queue_of(group_cluster.broker): 0}).encode())

    group_cluster.broker.version = FIRST_VERSION_5
    group_cluster.broker.script(RESET, reset)
    if not online:
        group_cluster.broker.script(RequestCode.GET_CONSUMER_CONNECTION_LIST, lambda command: command.answer(206, "no"))
    else:
        group_cluster.broker.script(
            RequestCode.GET_CONSUMER_CONNECTION_LIST, lambda command: command.answer(0, body=b'{"connectionSet":[{}]}')
        )
    async with group_cluster.client() as client:
        (done,) = await client.groups.reset("G", "T", 0)
    assert done.online is online
