"""The SDK against our own servers, over real sockets."""

from __future__ import annotations

import random

import pytest
import trio

import triomq
from triomq import errors
from triomq._companions import is_on_broker
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import DeleteTopicFromNamesrvRequest
from triomq_protocol.wire.command import Command
from triomq_server.wire import open_link


class Counter:
    """A callback that counts, and keeps the offsets it was called with."""

    def __init__(self):
        self.results = []
        self.errors = []

    def on_success(self, result):
        self.results.append(result)

    def on_exception(self, error):
        self.errors.append(error)


async def pull_all(consumer, topic, **options):
    found = []
    for queue in await consumer.fetch_queues(topic):
        consumer.seek(queue, 0)
        while (result := await consumer.pull(queue, **options)).status is not triomq.PullStatus.NO_NEW_MESSAGE:
            found += result.messages
    return found


async def until(true, limit_s=120):
    with trio.fail_after(limit_s):
        while not await true():  # noqa: ASYNC110 - other tasks' sockets have no event for this
            await trio.sleep(0.02)


async def test_every_form_of_sending_arrives_once(cluster, client):
    chance = random.Random(5)
    bodies = [chance.randbytes(chance.choice([1, 100, 5000, 70_000])) for _ in range(60)]
    counter = Counter()
    async with client.producer("P") as producer:
        for body in bodies[:20]:
            await producer.send(triomq.Message("every", body, tags="awaited", properties={"ü": "a\u2028b"}))
        for body in bodies[20:40]:
            await producer.send(triomq.Message("every", body, tags="callback"), counter)
        for batch in triomq.split_batch([triomq.Message("every", b, tags="batch") for b in bodies[40:]], max_count=7):
            await producer.send_batch(batch)
    assert (len(counter.results), counter.errors) == (20, [])
    consumer = client.pull_consumer("G")
    found = await pull_all(consumer, "every")
    assert sorted(message.body for message in found) == sorted(bodies)
    assert {message.tags for message in found} == {"awaited", "callback", "batch"}
    assert len({message.message_id for message in found}) == 60
    assert {m.properties["ü"] for m in found if m.tags == "awaited"} == {"a\u2028b"}
    assert len(await pull_all(consumer, "every", tags="batch || awaited")) == 40


async def test_compressed_bodies_are_restored_completely(client):
    body = b"over and over " * 20_000
    result = await client.producer("P").send(triomq.Message("large", body))
    pulled = await client.pull_consumer("G").pull(result.queue, 0)
    (message,) = pulled.messages
    assert message.body == body
    assert len(message.record.body) < 10_000


async def test_a_waiting_pull_is_answered_when_a_message_comes(client):
    producer, consumer = client.producer("P"), client.pull_consumer("G")
    first = await producer.send(triomq.Message("wait", b"first"))
    queue = first.queue
    got = []
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def wait():
            with trio.fail_after(60):
                got.append(await consumer.pull(queue, 1, block=True))

        await trio.sleep(0.2)
        assert not got
        started = trio.current_time()
        await producer.send(triomq.Message("wait", b"second"), queue=queue)
    assert trio.current_time() - started < 4  # not when the pull's time is over
    assert [message.body for message in got[0]] == [b"second"]


async def test_offsets(client):
    producer, consumer = client.producer("P"), client.pull_consumer("G")
    queue = (await producer.send(triomq.Message("offsets", b"0"))).queue
    for number in range(1, 10):
        await producer.send(triomq.Message("offsets", b"%d" % number), queue=queue)

    async def all_there():
        return await consumer.max_offset(queue) == 10

    await until(all_there)
    assert await consumer.min_offset(queue) == 0
    third = (await consumer.pull(queue, 3, max_messages=1)).messages[0]
    found = await consumer.offset_by_time(queue, third.stored_ms)
    # Several messages of one millisecond are equally near.
    assert (await consumer.pull(queue, found, max_messages=1)).messages[0].stored_ms == third.stored_ms
    assert await consumer.earliest_stored_ms(queue) is not None
    await consumer.commit(queue, 4)
    assert await consumer.committed(queue) == 4
    async with triomq.open_client(client.name_servers) as other:
        resumed = await other.pull_consumer("G").pull(queue)
    assert [message.body for message in resumed] == [b"%d" % number for number in range(4, 10)]


async def test_administration(cluster, client):
    await client.admin.create_topic("made", queues=3)
    assert "made" in await client.admin.topics()
    assert len(await client.pull_consumer("G").fetch_queues("made")) == 3
    assert len((await client.admin.topic_stats("made")).offset_table) == 3
    info = await client.admin.cluster_info()
    assert info.broker_addr_table["broker-a"].broker_addrs[0] == cluster["broker-a"].address
    await client.admin.delete_topic("made")
    assert "made" not in await client.admin.topics()
    with pytest.raises(errors.InvalidCall):
        await client.admin.create_topic("TBW102")


async def test_a_broker_says_whether_it_has_a_topic_without_a_route(cluster, client):
    """Name servers may lack a topic of a registered master, which deletes no message."""
    await client.admin.create_topic("hidden", queues=1)
    delete = Command.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNamesrvRequest(topic="hidden"))
    async with open_link(cluster["namesrv-0"].address) as link:
        assert (await link.request(delete, 5)).code == 0
    with pytest.raises(errors.RouteNotFound):
        await client.admin.route("hidden")
    master = cluster["broker-a"].address
    assert await is_on_broker(client.admin, master, "hidden")
    await client.admin.delete_topic("hidden")
    assert not await is_on_broker(client.admin, master, "hidden")


async def test_refusals_name_the_cause(client):
    await client.admin.create_topic("small", queues=1)
    with pytest.raises(errors.MQError) as caught:
        await client.producer("P").send(
            triomq.Message("small", b"x"), queue=triomq.MessageQueue("small", "broker-a", 99)
        )
    assert "queueId[99]" in str(caught.value)
    assert caught.value.attempts[0].address


async def test_a_killed_master_is_read_from_its_slave(cluster, client):
    bodies = [b"%d" % number for number in range(200)]
    producer, consumer = client.producer("P"), client.pull_consumer("G")
    counter = Counter()
    for body in bodies:
        await producer.send(triomq.Message("kept", body), counter)
    await producer.flush()
    assert len(counter.results) == 200
    queues = await consumer.fetch_queues("kept")

    async def slave_has_all():
        async with triomq.open_client(client.name_servers) as other:
            reader = other.pull_consumer("R", read_preference=triomq.ReadPreference.SLAVE)
            try:
                results = [await reader.pull(queue, 0) for queue in queues]
            except errors.MQError:
                return False
            return sum(result.max_offset for result in results) == 200

    await until(slave_has_all)
    await cluster["broker-a"].stop()
    started = trio.current_time()
    first = await consumer.pull(queues[0], 0)
    assert trio.current_time() - started < 2.5  # it does not wait for a timeout
    assert first.broker_address == cluster["broker-a-s"].address
    assert sorted(message.body for message in await pull_all(consumer, "kept")) == sorted(bodies)
    with pytest.raises(errors.MQError):
        await producer.send(triomq.Message("kept", b"never consumed"))
    await cluster["broker-a"].start()

    async def sends_again():
        try:
            await producer.send(triomq.Message("kept", b"again"))
        except errors.TransientError:
            return False
        return True

    await until(sends_again)
