"""Message traces: what producers write down, how it is sent, and that nothing waits for it."""

from __future__ import annotations

import gc
import logging
import zlib
from typing import Any

import pytest
import trio

import triomq
from triomq import errors
from triomq._message.namespace import Namespace
from triomq._producer.trace import BODY_BYTES, KEYS_BYTES, WAITING_BYTES_MAX, WAITING_MAX, Tracer
from triomq_protocol.codes import RequestCode
from triomq_protocol.names import MAX_PROPERTIES_BYTES, TRACE_TOPIC
from triomq_protocol.record.layout import COMPRESSED
from triomq_protocol.requests.send import SendMessageRequestV2, SendMessageResponse
from triomq_protocol.wire.command import Command

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.fixture
async def cluster(cluster: Any) -> Any:
    """A cluster that has the trace topic."""
    cluster.name_server.add_route(TRACE_TOPIC, cluster.broker, queues=1)
    return cluster


def traces(broker: Any, topic: str = TRACE_TOPIC) -> list[Command]:
    return [command for command in broker.requests(SEND) if command.header(SendMessageRequestV2).topic == topic]


def text_of(command: Command) -> str:
    body = command.body
    if command.header(SendMessageRequestV2).sys_flag & COMPRESSED:
        body = zlib.decompress(body)
    return bytes(body).decode()


def records(broker: Any, topic: str = TRACE_TOPIC) -> list[list[str]]:
    text = "".join(text_of(command) for command in traces(broker, topic))
    return [record.split("\x01") for record in text.split("\x02")[:-1]]


async def test_a_message_is_traced_as_java_does(autojump_clock, cluster, properties_of):
    async with cluster.client(clock=lambda: 1_700_000_000_123) as client:
        producer = client.producer("PG", trace=True)
        result = await producer.send(triomq.Message("T", b"12345", tags="A", keys=["k1", "k2"]))
    (record,) = records(cluster.broker)
    assert record == [
        "Pub", "1700000000123", "DefaultRegion", "PG", "T", result.message_id, "A", "k1 k2", cluster.broker.address, "5",
        "0", "0", result.offset_message_id, "true",
    ]  # fmt: skip
    (trace,) = traces(cluster.broker)
    assert set(properties_of(trace)["KEYS"].split()) == {result.message_id, "k1", "k2"}


@pytest.mark.parametrize("options", [{}, {"trace": False, "trace_topic": TRACE_TOPIC}])
async def test_nothing_is_traced_unless_it_is_asked_for(autojump_clock, cluster, options):
    async with cluster.client() as client:
        await client.producer("PG", **options).send(triomq.Message("T", b"x"))
        await trio.sleep(10)
    assert traces(cluster.broker) == []


async def test_the_clients_choice_is_its_producers_default(autojump_clock, cluster):
    cluster.name_server.add_route("Mine", cluster.broker, queues=1)
    async with cluster.client(trace=True, trace_topic="Mine") as client:
        first = await client.producer("G1").send(triomq.Message("T", b"x"))
        second = await client.producer("G2", trace_topic=TRACE_TOPIC).send(triomq.Message("T", b"x"))
        await client.producer("G3", trace=False).send(triomq.Message("T", b"x"))
    assert [record[5] for record in records(cluster.broker, "Mine")] == [first.message_id]
    assert [record[5] for record in records(cluster.broker)] == [second.message_id]


async def test_what_is_recorded_of_each_kind_of_send(autojump_clock, cluster, make_callback):
    callback = make_callback()
    async with cluster.client(trace=True) as client:
        producer = client.producer("PG")
        batch = await producer.send_batch([triomq.Message("T", b"b1"), triomq.Message("T", b"b22", keys="k")])
        await producer.send(triomq.Message("T", b"callback"), callback)
        await producer.flush()
        delayed = await producer.send(triomq.Message("T", b"delayed", delay_level=3))
        large = await producer.send(triomq.Message("T", b"x" * 10_000))
        await producer.send_oneway(triomq.Message("T", b"oneway"))
        await producer.send(triomq.Message(TRACE_TOPIC, b"Own\x02"))
        cluster.broker.script(SEND, lambda command: command.answer(13, "no"))
        with pytest.raises(errors.MessageIllegal):
            await producer.send(triomq.Message("T", b"refused"))
        cluster.broker.script(SEND, untraced)
        await producer.send(triomq.Message("T", b"the broker wants no traces"))
    found = {record[5]: record for record in records(cluster.broker) if record[0] != "Own"}
    ids = batch.message_id.split(",")
    assert list(found) == [*ids, callback.results[0].message_id, delayed.message_id, large.message_id]
    assert [found[each][9] for each in ids] == ["2", "3"]
    assert [found[each][11] for each in (ids[0], delayed.message_id)] == ["0", "3"]
    assert int(found[large.message_id][9]) < 10_000, "its size as it travels"


def untraced(command: Command) -> Command:
    header = SendMessageResponse(msg_id="0" * 32, queue_id=0, queue_offset=0)
    return command.answer(0, header=header, fields={"TRACE_ON": "false"})


async def test_transactions(autojump_clock, cluster):
    async with cluster.client(trace=True) as client:
        producer = client.producer("PG", transactions=lambda _: triomq.TransactionState.COMMIT)
        done = await producer.send_in_transaction(
            triomq.Message("T", b"x", tags="A", keys="k"), lambda _: _.rollback() or triomq.TransactionState.COMMIT
        )
    half, end = records(cluster.broker)
    assert (half[0], half[11]) == ("Pub", "1")
    key = done.result.message_id
    assert end[0] == "EndTransaction"
    assert end[2:] == [
        "DefaultRegion", "PG", "T", key, "A", "k", cluster.broker.address, "2", key, "ROLLBACK_MESSAGE", "false"
    ]  # fmt: skip


async def test_records_go_many_at_a_time_and_soon(autojump_clock, cluster):
    async with cluster.client(trace=True) as client:
        producer = client.producer("PG")
        for _ in range(50):
            await producer.send(triomq.Message("T", b"x"))
        await trio.sleep(0.6)
        assert len(traces(cluster.broker)) == 1
        assert len(records(cluster.broker)) == 50


async def test_a_send_does_not_wait_for_a_broker_that_takes_no_traces(autojump_clock, cluster, caplog):
    async with cluster.client(trace=True) as client:
        producer = client.producer("PG")
        started = trio.current_time()
        for _ in range(20):
            await producer.send(triomq.Message("T", b"x"))
        assert trio.current_time() == started
        cluster.broker.script(SEND, *[lambda command: command.answer(16, "no permission")] * 3)
        await trio.sleep(1)
        assert caplog.text.count("trace records are lost") == 1
        await producer.send(triomq.Message("T", b"after"))
        await trio.sleep(1)
        assert records(cluster.broker)


async def test_the_end_of_a_client_does_not_hang_on_traces(autojump_clock, cluster, caplog):
    caplog.set_level(logging.WARNING, "triomq.trace")
    async with cluster.client(trace=True) as client:
        await client.producer("PG").send(triomq.Message("T", b"x"))
        cluster.broker.script(SEND, *[None] * 50)
        started = trio.current_time()
    assert trio.current_time() - started <= 7


# --- bounds ----------------------------------------------------------------------------------------------------------


def make_tracer() -> Tracer:
    unused: Any = None
    return Tracer(TRACE_TOPIC, unused, lambda: 0, Namespace(), lambda *_: None)


@pytest.mark.parametrize(("size", "most"), [(10, WAITING_MAX), (10_000, WAITING_BYTES_MAX // 10_000)])
async def test_records_that_wait_are_bounded(caplog, size, most):
    tracer = make_tracer()
    for number in range(most + 100):
        tracer.add("r" * size, f"id{number}", None)
    assert len(tracer) == most
    assert caplog.text.count("further ones are dropped") == 1


async def test_a_message_of_records_stays_within_the_limits():
    tracer = make_tracer()
    for number in range(3000):
        tracer.add("r" * 150, f"{number:032}", f"key-{number} shared")
    tracer.add("r", "long", " ".join(f"{number:0200}" for number in range(300)))
    total = 0
    while len(tracer):
        body, keys = tracer._take()
        total += len(body)
        assert len(body) <= BODY_BYTES
        assert len(set(keys)) == len(keys)
        assert len(" ".join(keys)) <= KEYS_BYTES < MAX_PROPERTIES_BYTES
    assert total == 3000 * 150 + 1
    assert keys[-1] == "long", "keys that could not be sent are left out, the id is not"


@pytest.mark.parametrize("message_id", ["two words", " ", "bell\x07", "a\x01b"])
async def test_an_id_that_cannot_be_a_key_does_not_lose_the_records_of_others(
    autojump_clock, cluster, caplog, properties_of, message_id
):
    """A consumer traces messages of any sender, whose ids and keys nobody has checked."""
    async with cluster.client(trace=True) as client:
        sent = await client.producer("PG").send(triomq.Message("T", b"x", keys="own"))
        (tracer,) = client._tracers.values()
        tracer.add("Consumed\x02", message_id, "k1 k\x07 k2")
    assert [kind for kind, *_ in records(cluster.broker)] == ["Pub", "Consumed"]
    (trace,) = traces(cluster.broker)
    assert properties_of(trace)["KEYS"] == f"{sent.message_id} own k1 k2"
    assert "lost" not in caplog.text


async def test_members_that_have_closed_leave_no_tracer(autojump_clock, cluster):
    """A producer for each tenant, with a trace topic of its own."""
    async with cluster.client(trace=True) as client:
        await client.producer("PG").send(triomq.Message("T", b"x"))
        await trio.sleep(5)
        tasks, followers = trio.lowlevel.current_statistics().tasks_living, len(client._routes.changed)
        for number in range(50):
            topic = f"Trace-{number}"
            cluster.name_server.add_route(topic, cluster.broker, queues=1)
            async with client.producer("G", trace_topic=topic) as producer:
                await producer.send(triomq.Message("T", b"x"))
            with pytest.raises(errors.InvalidCall, match="PG"):
                client.producer("PG", trace_topic=f"{topic}-refused")
        del producer
        await trio.sleep(5)
        gc.collect()
        assert list(client._tracers) == [TRACE_TOPIC]
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        assert len(client._routes.changed) == followers
    assert all(len(records(cluster.broker, f"Trace-{number}")) == 1 for number in range(50)), "they were sent"


async def test_what_is_traced_after_the_end_of_a_client_is_no_failure(autojump_clock, cluster):
    """A handler may run longer in the user's nursery."""
    async with cluster.client(trace=True) as client:
        producer = client.producer("PG")
        await producer.send(triomq.Message("T", b"x"))
        [tracer] = client._tracers.values()
    await trio.sleep(10)
    tracer.add("late", "id", None)
    assert len(tracer) == 1
