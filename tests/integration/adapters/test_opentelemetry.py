"""Spans of a message from its send over a retry to its dead letter, of batches, pulls and failures."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import triomq
import triomq.aio
from triomq.plugins import SendContext, process_hooks
from triomq_adapters.opentelemetry import RocketMQInstrumentor
from triomq_server.cluster import Cluster, open_cluster

PROVIDERS: list[TracerProvider] = []
"""Of the tests so far."""


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    PROVIDERS.append(provider)
    instrumentor = RocketMQInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    yield exporter
    instrumentor.uninstrument()
    assert (process_hooks.send, process_hooks.pull, process_hooks.consume) == ([], [], [])


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with open_cluster(slaves=0, settings={"messageDelayLevel": "1s 1s 1s 1s"}) as cluster:
        yield cluster


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


SHOWN = {
    "messaging.destination.partition.id": "partition",
    "messaging.consumer.group.name": "group",
    "messaging.rocketmq.message.reconsume_times": "reconsume_times",
    "error.type": "error",
}
"""Attributes, and how a tree names them."""


def tree(spans: InMemorySpanExporter) -> str:
    """Spans below their parents, in the order of their beginning, with some attributes."""
    children: dict[int, list[ReadableSpan]] = {}
    for span in sorted(spans.get_finished_spans(), key=lambda span: span.start_time or 0):
        children.setdefault(span.parent.span_id if span.parent else 0, []).append(span)

    def lines(parent: int, indent: str) -> Iterator[str]:
        for span in children.get(parent, []):
            given = span.attributes or {}
            values = [f"{short}={given[name]}" for name, short in SHOWN.items() if name in given]
            yield f"{indent}{span.name}: {' '.join(values)}"
            yield from lines(span.context.span_id, indent + "  ")

    return "".join(f"{line}\n" for line in lines(0, ""))


async def test_a_message_until_its_dead_letter(cluster: Cluster, spans: InMemorySpanExporter) -> None:
    inside = []
    tried = trio.Event()

    async def fail(message: triomq.ReceivedMessage) -> None:
        inside.append(trace.get_current_span().get_span_context().trace_id)
        if message.reconsume_times == 1:
            tried.set()
        raise ValueError("no")

    async with triomq.open_client(cluster.name_servers) as client:
        await client.admin.create_topic("orders", queues=1)
        result = await client.producer("shop").send(
            triomq.Message("orders", b"one", tags="new", keys=["k1"], properties={"own": "kept"})
        )
        retries = triomq.ConsumeRetries(max_times=1)
        async with client.push_consumer("readers", start_from="earliest", retries=retries) as consumer:
            await consumer.subscribe("orders")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run, fail)
                with trio.fail_after(60):
                    await tried.wait()
                    while not await client.dead_letters.count("readers"):  # noqa: ASYNC110 - the broker says nothing
                        await trio.sleep(0.05)
                consumer.drain()
        (letter,) = await client.dead_letters.read("readers")
        async with client.push_consumer("repairs", start_from="earliest") as consumer:
            await consumer.subscribe("%DLQ%readers")
            async for delivery in consumer:
                async with delivery:
                    break
    assert (
        tree(spans)
        == (Path(__file__).parents[3] / "docs/how-to/opentelemetry.md")
        .read_text()
        .partition("```text\n")[2]
        .partition("```")[0]
    )
    (send,) = named(spans, "send orders")
    first, second = named(spans, "process orders")
    assert send.kind is SpanKind.PRODUCER
    assert send.attributes == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "broker-a:0",
        "messaging.message.id": result.message_id,
        "messaging.message.body.size": 3,
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ("k1",),
    }
    for span in (first, second):
        assert span.kind is SpanKind.CONSUMER
        assert span.parent is not None
        assert span.parent.span_id == send.context.span_id
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes is not None
        assert span.attributes["error.type"] == "ValueError"
        assert span.attributes["messaging.consumer.group.name"] == "readers"
    assert second.attributes is not None
    assert second.attributes["messaging.rocketmq.message.reconsume_times"] == 1
    assert inside == [send.context.trace_id] * 2
    assert letter.message.properties["traceparent"].split("-")[1] == f"{send.context.trace_id:032x}"
    assert letter.message.properties["own"] == "kept"


def test_batches_of_clients_in_several_threads_are_not_mixed_up(spans: InMemorySpanExporter) -> None:
    """Each client of triomq.blocking calls the hook in its own thread."""
    (hook,) = process_hooks.send
    turns = threading.Barrier(2, timeout=60)

    def announce(topic: str) -> None:
        contexts = [
            SendContext("shop", triomq.Message(topic, b"m"), f"{topic}{number}", batch_count=3, batch_number=number)
            for number in range(3)
        ]
        for context in contexts:
            turns.wait()
            hook.before_send(context)
        for context in contexts:
            hook.after_send(context, None)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(announce, ["orders", "bills"]))
    for topic in ("orders", "bills"):
        creates = [span.context.span_id for span in named(spans, f"create {topic}")]
        (send,) = named(spans, f"send {topic}")
        assert (len(creates), [link.context.span_id for link in send.links]) == (3, creates)


async def test_batches_are_linked(cluster: Cluster, spans: InMemorySpanExporter) -> None:
    async with triomq.open_client(cluster.name_servers) as client:
        await client.admin.create_topic("orders", queues=1)
        await client.producer("shop").send_batch([triomq.Message("orders", b"%d" % number) for number in range(3)])
        pull = client.pull_consumer("pullers")
        (queue,) = await pull.fetch_queues("orders")
        assert len((await pull.pull(queue, 0)).messages) == 3
        await pull.pull(queue, 3)
        seen = []

        async def handle(messages: list[triomq.ReceivedMessage]) -> None:
            seen.extend(messages)
            if len(seen) == 3:
                consumer.drain()

        async with client.push_consumer("readers", start_from="earliest", batch_max=10) as consumer:
            await consumer.subscribe("orders")
            await consumer.run(handle)
    creates = [span.context.span_id for span in named(spans, "create orders")]
    assert len(creates) == 3
    (send,) = named(spans, "send orders")
    assert send.kind is SpanKind.CLIENT
    assert [link.context.span_id for link in send.links] == creates
    assert send.attributes is not None
    assert send.attributes["messaging.batch.message_count"] == 3
    assert send.attributes["messaging.destination.partition.id"] == "broker-a:0"
    (receive,) = named(spans, "receive orders")
    assert receive.kind is SpanKind.CLIENT
    assert [link.context.span_id for link in receive.links] == creates
    assert sum(len(span.links) or 1 for span in named(spans, "process orders")) == 3


async def test_sends_that_fail_or_are_cancelled_end(cluster: Cluster, spans: InMemorySpanExporter) -> None:
    async with triomq.open_client(cluster.name_servers, route_wait_s=0) as client:
        producer = client.producer("shop")
        with pytest.raises(triomq.MQError):
            await producer.send(triomq.Message("x" * 120, b"one"), queue=triomq.MessageQueue("x" * 120, "no-broker", 0))
        with trio.CancelScope() as scope:
            scope.cancel()
            await producer.send(triomq.Message("orders", b"two"))
    failed, cancelled = spans.get_finished_spans()
    spans.clear()
    assert failed.status.status_code is StatusCode.ERROR
    assert [event.name for event in failed.events] == ["exception"]
    assert cancelled.status.description == "cancelled"
    async with triomq.open_client(cluster.name_servers) as client:
        with trio.CancelScope() as scope:
            scope.cancel()
            await client.producer("shop").send_batch(
                [triomq.Message("orders", b"one"), triomq.Message("orders", b"two")]
            )
    gc.collect()
    batch = [(span.name, span.status.description) for span in spans.get_finished_spans()]
    assert sorted(batch) == [
        ("create orders", "cancelled"),
        ("create orders", "cancelled"),
        ("send orders", "cancelled"),
    ]


async def test_sends_belong_to_the_span_of_their_caller(cluster: Cluster, spans: InMemorySpanExporter) -> None:
    tracer = TracerProvider().get_tracer("test")

    def from_a_thread() -> int:
        with triomq.blocking.open_client(cluster.name_servers) as client:
            producer = client.producer("shop")
            with tracer.start_as_current_span("caller") as span:
                producer.send(triomq.Message("orders", b"one"))
            return span.get_span_context().span_id

    async def from_asyncio() -> int:
        async with triomq.aio.open_client(cluster.name_servers) as client:
            producer = client.producer("shop")
            with tracer.start_as_current_span("caller") as span:
                await producer.send(triomq.Message("orders", b"two"))
            return span.get_span_context().span_id

    callers = [
        await trio.to_thread.run_sync(from_a_thread),
        await trio.to_thread.run_sync(lambda: asyncio.run(from_asyncio())),
    ]
    assert [span.parent and span.parent.span_id for span in named(spans, "send orders")] == callers


async def test_consumers_do_not_stay_in_the_span_of_their_start(cluster: Cluster, spans: InMemorySpanExporter) -> None:
    RocketMQInstrumentor().uninstrument()
    async with triomq.open_client(cluster.name_servers) as client:
        await client.admin.create_topic("orders", queues=1)
        await client.producer("shop").send(triomq.Message("orders", b"without a context"))
    RocketMQInstrumentor().instrument(tracer_provider=PROVIDERS[-1])
    tracer = TracerProvider().get_tracer("test")
    async with triomq.open_client(cluster.name_servers) as client:
        with tracer.start_as_current_span("start"):
            async with client.push_consumer("readers", start_from="earliest") as consumer:
                await consumer.subscribe("orders")
                async with await anext(consumer):
                    pass
    (process,) = named(spans, "process orders")
    assert process.parent is None


def test_nothing_is_imported_when_it_is_off() -> None:
    code = "import sys, triomq, triomq.plugins; print([name for name in sys.modules if 'opentelemetry' in name])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
