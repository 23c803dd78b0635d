"""Message traces: `mqadmin queryMsgTraceById` finds what our SDK has sent and consumed, on the real broker and on ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import trio

import triomq
from triomq_benchmarks.clusters.cluster import SingleBroker
from triomq_benchmarks.clusters.servers import Kind

TRACING = {"traceTopicEnable": "true", "autoCreateTopicEnable": "true"}


@pytest.fixture(scope="module", params=[Kind.JAVA, Kind.OURS])
def tracing(request: pytest.FixtureRequest, servers: Any) -> Iterator[SingleBroker]:
    """A cluster whose broker has the trace topic from its start."""
    kind = request.param
    with ExitStack() as stack:
        names = stack.enter_context(servers.namesrv(kind, f"{kind}-trace-namesrv"))
        broker = stack.enter_context(servers.broker(kind, f"{kind}-trace-broker", names.address, TRACING))
        yield SingleBroker(kind, names, broker)


async def run(java_client: Any, servers: str, *arguments: str) -> str:
    """What one call of the command prints."""
    return await trio.to_thread.run_sync(java_client.admin, servers, *arguments)


async def query(java_client: Any, servers: str, message_id: str, *wanted: str, topic: str | None = None) -> str:
    """What the command prints, as soon as it has all that is wanted: the index follows the log."""
    arguments = ["queryMsgTraceById", "-i", message_id, *(["-t", topic] if topic else [])]
    return await trio.to_thread.run_sync(
        lambda: java_client.eventually(
            lambda: java_client.admin(servers, *arguments), lambda text: all(word in text for word in wanted), 60
        )
    )


async def test_the_real_command_finds_our_traces(tracing: Any, java_client: Any, topic: str) -> None:
    servers, group = tracing.namesrv.address, f"G-{topic}"
    async with triomq.open_client(servers, trace=True) as client:
        producer = client.producer(f"P-{topic}", send_timeout_s=60)
        result = await producer.send(triomq.Message(topic, b"payload", tags="A", keys=["order-1", "order-2"]))
        batch = await producer.send_batch([triomq.Message(topic, b"first"), triomq.Message(topic, b"second")])
        done = await client.producer(
            f"PT-{topic}", transactions=lambda _: triomq.TransactionState.COMMIT
        ).send_in_transaction(triomq.Message(topic, b"transaction"), lambda _: triomq.TransactionState.COMMIT)
        seen = set()
        async with client.push_consumer(group, start_from="earliest") as consumer:
            await consumer.subscribe(topic)
            async for delivery in consumer:
                async with delivery:
                    seen.add(delivery.message.message_id)
                    if delivery.message.body == b"second":
                        raise triomq.Later(-1)
                if seen >= {result.message_id, *batch.message_id.split(","), done.result.message_id}:
                    break
    text = await query(java_client, servers, result.message_id, f"P-{topic}", group)
    (sent,) = re.findall(r"^Pub .*$", text, re.MULTILINE)
    assert sent.split()[1] == f"P-{topic}"
    assert sent.rstrip().endswith("success")
    (consumed,) = re.findall(rf"^Sub +{group} .*$", text, re.MULTILINE)
    assert consumed.rstrip().endswith("success")
    # The index has the records by the message's keys, too. The command then drops those of other message ids.
    indexed = await run(java_client, servers, "queryMsgByKey", "-t", "RMQ_SYS_TRACE_TOPIC", "-k", "order-1")
    assert re.search(r"^[0-9A-F]{32} ", indexed, re.MULTILINE)
    by_key = await run(java_client, servers, "queryMsgTraceById", "-i", "order-1")
    assert not re.search(r"^(Pub|Sub)\b", by_key, re.MULTILINE)
    stored = await run(java_client, servers, "queryMsgByKey", "-t", topic, "-k", "order-1")
    assert re.findall(r"^[0-9A-F]{32}\b", stored, re.MULTILINE) == [result.message_id]
    half = await query(java_client, servers, done.result.message_id, f"PT-{topic}", group)
    assert re.search(rf"^Pub +PT-{topic}", half, re.MULTILINE)
    failed = await query(java_client, servers, batch.message_id.split(",")[1], group)
    (consumed,) = re.findall(rf"^Sub +{group} .*$", failed, re.MULTILINE)
    assert consumed.rstrip().endswith("failed")
    for message_id in batch.message_id.split(","):
        assert f"P-{topic}" in await query(java_client, servers, message_id, f"P-{topic}")


async def test_a_topic_of_ones_own(tracing: Any, java_client: Any, topic: str) -> None:
    servers = tracing.namesrv.address
    async with triomq.open_client(servers) as client:
        await client.admin.create_topic(f"Trace-{topic}")
        producer = client.producer(f"P-{topic}", trace=True, trace_topic=f"Trace-{topic}")
        result = await producer.send(triomq.Message(topic, b"payload"))
    found = await query(java_client, servers, result.message_id, f"P-{topic}", topic=f"Trace-{topic}")
    assert f"P-{topic}" in found


async def test_the_broker_has_the_topic_as_javas_has(tracing: Any, java_client: Any) -> None:
    text = await trio.to_thread.run_sync(
        java_client.admin, tracing.namesrv.address, "topicRoute", "-t", "RMQ_SYS_TRACE_TOPIC"
    )
    assert re.search(r'"perm"\s*:\s*6', text)
    assert re.search(r'"readQueueNums"\s*:\s*1\b', text)
    assert re.search(r'"writeQueueNums"\s*:\s*1\b', text)
