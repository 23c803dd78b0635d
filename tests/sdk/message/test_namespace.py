"""Namespaces: which names get the prefix, and that brokers see it where users do not."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from consumer_broker import until

import triomq
from triomq import errors
from triomq._message.namespace import Namespace
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import (
    ConsumerSendMsgBackRequest,
    EndTransactionRequest,
    HeartbeatData,
    LockBatchRequestBody,
)
from triomq_protocol.requests.send import SendMessageRequestV2

SEND = RequestCode.SEND_MESSAGE_V2
QUEUE = triomq.MessageQueue("T", "broker-a", 0)

# As NamespaceUtil of RocketMQ 4.9.7 wraps them.
NAMES = [
    ("TopicA", "NS%TopicA"),
    ("%RETRY%G", "%RETRY%NS%G"),
    ("%DLQ%G", "%DLQ%NS%G"),
    ("NS%TopicA", "NS%TopicA"),
    ("%RETRY%NS%G", "%RETRY%NS%G"),
    ("other%TopicA", "NS%other%TopicA"),
    ("TBW102", "TBW102"),
    ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
    ("rmq_sys_x", "rmq_sys_x"),
    ("CID_RMQ_SYS_x", "CID_RMQ_SYS_x"),
    ("DefaultCluster_REPLY_TOPIC", "DefaultCluster_REPLY_TOPIC"),
    ("", ""),
]


@pytest.mark.parametrize(("name", "wrapped"), NAMES)
def test_names(name: str, wrapped: str) -> None:
    namespace = Namespace("NS")
    assert namespace.wrap(name) == wrapped
    assert namespace.wrap(wrapped) == wrapped
    assert Namespace().wrap(name) == Namespace().unwrap(name) == name


@pytest.mark.parametrize(
    ("name", "unwrapped"),
    [
        ("NS%TopicA", "TopicA"),
        ("%RETRY%NS%G", "%RETRY%G"),
        ("%DLQ%NS%G", "%DLQ%G"),
        ("other%TopicA", "other%TopicA"),
        ("TopicA", "TopicA"),
        ("NSX%TopicA", "NSX%TopicA"),
    ],
)
def test_names_of_the_namespace_alone_are_unwrapped(name: str, unwrapped: str) -> None:
    assert Namespace("NS").unwrap(name) == unwrapped


async def test_a_namespace_that_cannot_be(autojump_clock, cluster):
    with pytest.raises(errors.InvalidCall, match="the namespace 'a%b' has other characters"):
        async with cluster.client(namespace="a%b"):
            pass


# --- on the wire -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def cluster(cluster: Any) -> Any:
    """A cluster that knows the topic T of namespace NS, and not T."""
    del cluster.name_server.routes["T"]
    cluster.name_server.add_route("NS%T", cluster.broker)
    return cluster


def topics_of(cluster: Any) -> set[str]:
    return {command.header(SendMessageRequestV2).topic for command in cluster.broker.requests(SEND)}


async def test_sends(autojump_clock, cluster, properties_of):
    async with cluster.client(namespace="NS") as client:
        producer = client.producer("PG")
        assert producer.group == "NS%PG"
        assert {queue.topic for queue in await producer.queues("T")} == {"T"}
        plain = await producer.send(triomq.Message("T", b"x"))
        pinned = await producer.send(triomq.Message("T", b"x"), queue=QUEUE)
        selected = await producer.send(triomq.Message("T", b"x"), selector=triomq.plugins.select_by_hash, arg=1)
        batch = await producer.send_batch([triomq.Message("T", b"x")])
        await producer.send_oneway(triomq.Message("T", b"x"))
        await trio.sleep(1)
        beat = HeartbeatData.decode(cluster.broker.requests(RequestCode.HEART_BEAT)[-1].body)
    assert {each.queue.topic for each in (plain, pinned, selected, batch)} == {"T"}
    assert topics_of(cluster) == {"NS%T"}
    (first, *_) = cluster.broker.requests(SEND)
    assert first.header(SendMessageRequestV2).producer_group == "NS%PG"
    assert properties_of(first)["INSTANCE_ID"] == "NS"
    assert [each.group_name for each in beat.producer_data_set] == ["NS%PG"]


async def test_transactions(autojump_clock, cluster, properties_of):
    async with cluster.client(namespace="NS") as client:
        producer = client.producer("PG", transactions=lambda _: triomq.TransactionState.COMMIT)
        await producer.send_in_transaction(triomq.Message("T", b"x"), lambda _: triomq.TransactionState.COMMIT)
        await until(lambda: cluster.broker.requests(RequestCode.END_TRANSACTION))
    (half,) = cluster.broker.requests(SEND)
    assert properties_of(half)["PGROUP"] == "NS%PG"
    (end,) = cluster.broker.requests(RequestCode.END_TRANSACTION)
    assert end.header(EndTransactionRequest).producer_group == "NS%PG"


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_push_consumer(autojump_clock, group_cluster, ordered):
    broker = group_cluster.broker
    broker.store("NS%T", 0, b"one", b"UNIQ_KEY\x01K")
    seen: list[tuple[str, str, int]] = []

    async def handler(message: Any) -> None:
        seen.append((message.topic, message.queue.topic, message.reconsume_times))
        if message.reconsume_times == 0:
            raise ValueError("once")

    async with (
        group_cluster.client(namespace="NS") as client,
        client.push_consumer("G", start_from="earliest", ordered=ordered) as consumer,
        trio.open_nursery() as nursery,
    ):
        await consumer.subscribe("T")
        nursery.start_soon(consumer.run, handler)
        await until(lambda: len(seen) == 2)
        assert consumer.assignment == [QUEUE, triomq.MessageQueue("T", "broker-a", 1)]
        await consumer.seek(QUEUE, 1)
        consumer.drain()
    assert broker.offsets["NS%G", "NS%T", 0] == 1
    beats = [HeartbeatData.decode(command.body) for command in broker.requests(RequestCode.HEART_BEAT)]
    (group,) = beats[-1].consumer_data_set
    assert group.group_name == "NS%G"
    assert "NS%T" in {each.topic for each in group.subscription_data_set}
    if ordered:
        assert seen == [("T", "T", 0), ("T", "T", 1)]
        (lock, *_) = broker.requests(RequestCode.LOCK_BATCH_MQ)
        assert {queue.topic for queue in LockBatchRequestBody.decode(lock.body).mq_set} <= {"NS%T", "%RETRY%NS%G"}
    else:
        assert seen == [("T", "T", 0), ("T", "%RETRY%NS%G", 1)]
        (back,) = broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK)
        header = back.header(ConsumerSendMsgBackRequest)
        assert (header.group, header.origin_topic) == ("NS%G", "NS%T")


async def test_pull_and_lite_pull_consumers(autojump_clock, group_cluster):
    broker = group_cluster.broker
    broker.store("NS%T", 0, b"one")
    async with group_cluster.client(namespace="NS") as client:
        puller = client.pull_consumer("G1")
        assert QUEUE in await puller.fetch_queues("T")
        result = await puller.pull(QUEUE, 0)
        assert [(message.topic, message.body) for message in result] == [("T", b"one")]
        await puller.commit(QUEUE, 1)
        assert (await puller.committed(QUEUE), await client.bounds.max_offset(QUEUE)) == (1, 1)
        async with client.lite_pull_consumer("G2", start_from="earliest") as consumer:
            await consumer.subscribe("T")
            (message,) = await consumer.poll()
            assert message.topic == message.queue.topic == "T"
    assert broker.offsets["NS%G1", "NS%T", 0] == 1


async def test_a_trace_has_no_namespace(autojump_clock, cluster):
    cluster.name_server.add_route("Mine", cluster.broker, queues=1)
    async with cluster.client(namespace="NS", trace=True, trace_topic="Mine") as client:
        await client.producer("PG").send(triomq.Message("T", b"x"))
    (body,) = cluster.broker.bodies("Mine")
    assert body.decode().split("\x01")[3:5] == ["PG", "T"]


async def test_unit_mode(autojump_clock, group_cluster):
    broker = group_cluster.broker
    broker.store("NS%T", 0, b"one")
    async with group_cluster.client(namespace="NS", unit_mode=True, unit_name="u") as client:
        assert client.client_id.endswith("@u")
        await client.producer("PG").send(triomq.Message("T", b"x"))
        async with client.push_consumer("G", start_from="earliest") as consumer:
            await consumer.subscribe("T")
            async for delivery in consumer:
                await delivery.later()
                break
        client.pull_consumer("G2")
        await trio.sleep(1)
    assert [each.header(SendMessageRequestV2).unit_mode for each in broker.requests(SEND)] == [True]
    assert broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK)[0].header(ConsumerSendMsgBackRequest).unit_mode
    for command in broker.requests(RequestCode.HEART_BEAT):
        assert all(group.unit_mode for group in HeartbeatData.decode(command.body).consumer_data_set)
