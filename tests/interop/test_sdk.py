"""Our SDK on the real name server and broker, and beside the Java client: what one sends the other reads.

Every test runs on our own servers too, so that a difference shows which side it is on.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import attrs
import pytest
import trio

import triomq
from triomq_benchmarks.clusters.servers import Kind

ATTEMPTS, WOKEN_S = 5, 3.0
pytestmark = pytest.mark.parametrize("either", [Kind.OURS, Kind.JAVA, "java5"], indirect=True)


@pytest.fixture
def wanted(make_samples: Any) -> Any:
    return make_samples(40)


@pytest.fixture
async def client(either: Any) -> AsyncIterator[triomq.Client]:
    async with triomq.open_client(either.namesrv.address) as client:
        yield client


def message(topic: str, sample: Any) -> triomq.Message:
    return triomq.Message(
        topic, sample.body, tags=sample.tags, keys=sample.keys, properties=sample.properties, flag=sample.flag
    )


@attrs.define
class RecordingCallback:
    results: list[triomq.SendResult] = attrs.field(factory=list)
    errors: list[BaseException] = attrs.field(factory=list)

    def on_success(self, result: triomq.SendResult) -> None:
        self.results.append(result)

    def on_exception(self, error: BaseException) -> None:
        self.errors.append(error)


async def send(client: triomq.Client, topic: str, samples: Any, mode: str = "awaited") -> list[triomq.SendResult]:
    messages = [message(topic, one) for one in samples]
    # A machine that does much else may need more than the usual three seconds for a connection to a Java broker.
    linger_s = {"merged": 0.2, "callback": None}.get(mode, 0.0)
    async with client.producer(f"sdk-{mode}-{topic}"[:100], send_timeout_s=60, linger_s=linger_s) as producer:
        if mode == "awaited":
            return [await producer.send(one) for one in messages]
        if mode == "batch":
            return [await producer.send_batch(messages)]
        if mode == "oneway":
            for one in messages:
                await producer.send_oneway(one)
            return []
        callback = RecordingCallback()
        for one in messages:
            await producer.send(one, callback)
        await producer.flush()
    assert callback.errors == []
    return callback.results


async def pull(client: triomq.Client, topic: str, count: int, tags: str | None = None) -> list[triomq.ReceivedMessage]:
    """Pull every queue from its beginning until `count` messages have arrived."""
    consumer = client.pull_consumer(f"sdk-{tags or 'all'}".replace(" || ", "-or-"))
    found: list[triomq.ReceivedMessage] = []
    async with consumer:
        with trio.move_on_after(60):
            while len(found) < count:
                found = []
                try:
                    queues = await consumer.fetch_queues(topic)
                except triomq.MQError:
                    # A topic that one-way sends create gets its route with a delay.
                    queues = []
                for queue in queues:
                    offset = await consumer.min_offset(queue)
                    while True:
                        pulled = await consumer.pull(queue, offset, tags=tags)
                        if pulled.status == triomq.PullStatus.NO_NEW_MESSAGE:
                            break
                        found += pulled.messages
                        offset = pulled.next_offset
                await trio.sleep(0.05)
    return found


def facts(samples: Any) -> set[tuple[object, ...]]:
    return {
        (one.body, one.tags, one.keys, one.flag, frozenset((name, text) for name, text in one.properties.items()))
        for one in samples
    }


def received_facts(messages: list[triomq.ReceivedMessage]) -> set[tuple[object, ...]]:
    own = {"colour", "number"}
    return {
        (one.body, one.tags, one.keys[0], one.flag, frozenset((k, v) for k, v in one.properties.items() if k in own))
        for one in messages
    }


@pytest.mark.parametrize("mode", ["awaited", "callback", "shared", "merged", "oneway", "batch"])
async def test_sends_and_both_pull(
    client: triomq.Client, either: Any, java_client: Any, topic: str, wanted: Any, mode: str
) -> None:
    results = await send(client, topic, wanted, mode)
    found = await pull(client, topic, len(wanted))
    assert received_facts(found) == facts(wanted)
    assert len(found) == len(wanted)
    seen = await trio.to_thread.run_sync(java_client.pull_all, either.namesrv.address, topic, len(wanted))
    assert [(one.queue_id, one.queue_offset, one.body) for one in seen] == [
        (one.queue_id, one.queue_offset, one.body) for one in found
    ]
    if mode in {"awaited", "callback", "shared", "merged"}:
        assert {result.status for result in results} == {triomq.SendStatus.SEND_OK}
        assert {(result.message_id, result.offset_message_id) for result in results} == {
            (one.message_id, one.offset_message_id) for one in found
        }
        assert {(result.message_id, result.queue.queue_id, result.queue_offset) for result in results} == {
            (one.message_id, one.queue_id, one.queue_offset) for one in found
        }


async def test_what_shares_requests_in_a_queue_and_what_does_not(
    client: triomq.Client, either: Any, java_client: Any, topic: str
) -> None:
    callbacks = []
    async with client.producer(f"order-{topic}"[:100], send_timeout_s=60) as producer:
        await producer.send(triomq.Message(topic, b"warm"))
        queue = next(iter(await producer.queues(topic)))
        sent = []
        for number in range(400):
            kind = number % 40
            # Large ones are compressed; `unsafe` ones do not wait for flush and replication.
            body = b"%d " % number + b"x" * (6000 if kind == 7 else kind * 3)
            one = triomq.Message(
                topic,
                body,
                tags=f"t{number % 3}",
                keys=f"k-{number}" if number % 2 else [f"k-{number}", "all"],
                properties={"number": f"{number} \u00e9"} if kind % 5 == 0 else None,
                flag=number if kind % 7 == 0 else 0,
                wait_store_ok=kind != 23,
            )
            sent.append(one)
            callback = RecordingCallback()
            callbacks.append(callback)
            await producer.send(one, callback, queue=queue)
        await producer.flush()
    assert [len(callback.results) for callback in callbacks] == [1] * len(sent)
    results = [callback.results[0] for callback in callbacks]
    assert all(one.queue == queue for one in results)
    in_queue = sorted(zip(results, sent, strict=True), key=lambda pair: pair[0].queue_offset)
    # A Java broker has several threads for sends, which may overtake each other.
    if either.kind is Kind.OURS:
        assert [one for _, one in in_queue] == sent
    results, sent = [result for result, _ in in_queue], [one for _, one in in_queue]
    found = [one for one in await pull(client, topic, len(sent) + 1) if one.body != b"warm"]
    assert [one.body for one in found] == [one.body for one in sent]
    for one, wanted, result in zip(found, sent, results, strict=True):
        assert (one.message_id, one.queue_offset, one.offset_message_id) == (
            result.message_id, result.queue_offset, result.offset_message_id
        )  # fmt: skip
        keys = wanted.keys if isinstance(wanted.keys, list) else [wanted.keys]
        assert (one.tags, list(one.keys), one.flag) == (wanted.tags, keys, wanted.flag)
        assert one.properties.get("number") == (wanted.properties or {}).get("number")
    seen = await trio.to_thread.run_sync(java_client.pull_all, either.namesrv.address, topic, len(sent) + 1)
    assert [one.body for one in seen if one.body != b"warm"] == [one.body for one in sent]


@pytest.mark.parametrize("mode", ["sync", "batch"])
async def test_pulls_what_java_sent(
    client: triomq.Client, either: Any, java_client: Any, topic: str, wanted: Any, mode: str
) -> None:
    await trio.to_thread.run_sync(java_client.send, either.namesrv.address, topic, wanted, mode)
    found = await pull(client, topic, len(wanted))
    assert received_facts(found) == facts(wanted)
    assert len(found) == len(wanted)


async def test_large_bodies_compressed_by_either(
    client: triomq.Client, either: Any, java_client: Any, topic: str, make_sample: Any
) -> None:
    line = b"to be or not to be, that is repeated\n"
    from_java, from_us = (
        make_sample(line * 30_000, tags="A", keys="java"),
        make_sample(line * 20_000, tags="B", keys="us"),
    )
    await trio.to_thread.run_sync(java_client.send, either.namesrv.address, topic, [from_java])
    await send(client, topic, [from_us])
    found = await pull(client, topic, 2)
    assert received_facts(found) == facts([from_java, from_us])
    assert all(one.sys_flag & 1 for one in found)
    seen = await trio.to_thread.run_sync(java_client.pull_all, either.namesrv.address, topic, 2)
    assert {one.sample() for one in seen} == {from_java, from_us}


async def test_the_java_client_reads_every_compression(
    client: triomq.Client, either: Any, java_client: Any, topic: str
) -> None:
    body = b"to be or not to be, that is repeated\n" * 20_000
    compressors = (triomq.plugins.Lz4Compressor(), triomq.plugins.ZstdCompressor(), triomq.plugins.ZlibCompressor())
    for number, compressor in enumerate(compressors):
        async with client.producer(f"sdk-{number}", compressor=compressor, send_timeout_s=60) as producer:
            await producer.send(triomq.Message(topic, body, keys=str(number)))
    seen = await trio.to_thread.run_sync(java_client.pull_all, either.namesrv.address, topic, len(compressors))
    assert {one.keys: one.body == body for one in seen} == {"0": True, "1": True, "2": True}


async def test_tag_filter(client: triomq.Client, topic: str, wanted: Any) -> None:
    await send(client, topic, wanted)
    await pull(client, topic, len(wanted))
    for expression, tags in [("A", "A"), ("B || C", "B"), ("A || B", "AB")]:
        expected = [one for one in wanted if one.tags in tags]
        found = await pull(client, topic, len(expected), expression)
        assert received_facts(found) == facts(expected)
        assert len(found) == len(expected)


async def test_offsets(client: triomq.Client, request: pytest.FixtureRequest, topic: str, wanted: Any) -> None:
    # For a time after the last message 4.9 answers with that message, 5 with the queue's end.
    behind_end = 0 if request.node.callspec.params["either"] == "java5" else 1
    begin_ms = int(time.time() * 1000)
    await send(client, topic, wanted)
    await pull(client, topic, len(wanted))
    async with client.pull_consumer(f"G-{topic}"[:100]) as consumer:
        queues = await consumer.fetch_queues(topic)
        maxima = [await consumer.max_offset(queue) for queue in queues]
        assert sum(maxima) == len(wanted)
        for queue, maximum in zip(queues, maxima, strict=True):
            assert await consumer.min_offset(queue) == 0
            assert await consumer.offset_by_time(queue, begin_ms - 60_000) == 0
            assert await consumer.offset_by_time(queue, begin_ms + 600_000) == maximum - behind_end
            earliest = await consumer.earliest_stored_ms(queue)
            assert earliest is not None
            assert abs(earliest - begin_ms) < 60_000
            await consumer.commit(queue, 2)
            with trio.fail_after(60):
                while await consumer.committed(queue) != 2:  # noqa: ASYNC110 -- another process has it
                    await trio.sleep(0.05)  # a commit is one-way


async def test_long_polling_returns_a_new_message(client: triomq.Client, topic: str, wanted: Any) -> None:
    await send(client, topic, wanted[:8])
    await pull(client, topic, 8)
    async with (
        client.pull_consumer("sdk-waiting") as consumer,
        client.producer("sdk-late", send_timeout_s=60) as producer,
    ):
        queue = (await consumer.fetch_queues(topic))[0]
        took_s = []
        for _ in range(ATTEMPTS):
            end = await consumer.max_offset(queue)
            pulled: list[triomq.PullResult] = []

            async def wait(end: int = end, pulled: list[triomq.PullResult] = pulled) -> None:
                pulled.append(await consumer.pull(queue, end, block=True, suspend_s=15))

            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait)
                    await trio.sleep(0.3)
                    sent_at = time.monotonic()
                    await producer.send(message(topic, wanted[9]), queue=queue)
            took_s.append(time.monotonic() - sent_at)
            assert [one.body for one in pulled[0].messages] == [wanted[9].body]
            if took_s[-1] < WOKEN_S:
                break
        # Java wakes held pulls at once; its five-second check is only the safety net. A loaded machine may be late.
        assert min(took_s) < WOKEN_S


async def test_a_time_of_delivery(client: triomq.Client, request: pytest.FixtureRequest, topic: str) -> None:
    kind = request.node.callspec.params["either"]
    due_ms = time.time_ns() // 1_000_000 + 2500
    late = triomq.Message(topic, b"late", properties={"TIMER_DELIVER_MS": str(due_ms)})
    async with client.producer(f"late-{topic}"[:100], send_timeout_s=60) as producer:
        if kind == Kind.OURS:
            with pytest.raises(triomq.MQError, match="time of delivery needs a broker of RocketMQ 5"):
                await producer.send(late)
            return
        await producer.send(late)
    (found,) = await pull(client, topic, 1)
    assert found.body == b"late"
    if kind == "java5":
        assert due_ms - 1000 <= found.stored_ms, "5.5.0 delivers it then, to the second"
    else:
        assert found.stored_ms < due_ms - 1000, "4.9.7 knows no such property, and delivers at once"


async def test_admin(client: triomq.Client, either: Any, java_client: Any, topic: str) -> None:
    await client.admin.create_topic(topic, read_queues=3, write_queues=2)
    route = await client.admin.route(topic)
    assert [(one.read_queue_nums, one.write_queue_nums, one.perm) for one in route.queue_datas] == [(3, 2, 6)]
    listed = await trio.to_thread.run_sync(java_client.admin, either.namesrv.address, "topicList")
    assert topic in listed.split()
    assert topic in await client.admin.topics()
    info = await client.admin.cluster_info()
    assert [dict(data.broker_addrs) for data in info.broker_addr_table.values()] == [{0: either.broker.address}]
    await client.admin.delete_topic(topic)
    listed = await trio.to_thread.run_sync(partial(java_client.admin, either.namesrv.address, "topicList"))
    assert topic not in listed.split()
