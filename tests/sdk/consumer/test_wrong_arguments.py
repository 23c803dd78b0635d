"""Arguments of a wrong type are refused by name, at once, and leave nothing behind that fails later."""

from __future__ import annotations

import math
from datetime import datetime

import pytest
import trio

import triomq
from triomq import errors

Q0 = triomq.MessageQueue("T", "broker-a", 0)
HALF = triomq.HalfMessage(Q0, "0" * 32, 1, 1)
COMMIT = triomq.TransactionState.COMMIT
MESSAGE = triomq.Message("T", b"x")


async def call(function, *arguments, **named):
    answer = function(*arguments, **named)
    if hasattr(answer, "__await__"):
        await answer


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda consumer: consumer.pause([Q0]), "the queue is list, not MessageQueue; give each queue as an argument"),
        (lambda consumer: consumer.resume("T"), "the queue is str, not MessageQueue"),
        (lambda consumer: consumer.seek(0, Q0), "the queue is int, not MessageQueue"),
        (lambda consumer: consumer.seek(Q0, "0"), "the offset is '0', not a whole number"),
        (lambda consumer: consumer.seek(Q0, -1), "has no offset -1, only 0 to 0"),
        (lambda consumer: consumer.seek_to_begin([Q0]), "the queue is list"),
        (lambda consumer: consumer.seek_to_end(0), "the queue is int"),
        (lambda consumer: consumer.seek_to_time("yesterday"), "the time is 'yesterday', neither a datetime nor ms"),
        (lambda consumer: consumer.seek_to_time("earliest"), "the time is 'earliest', neither"),
        (lambda consumer: consumer.seek_to_time(datetime(2026, 1, 1)), "the time has no time zone"),  # noqa: DTZ001
        (lambda consumer: consumer.seek_to_time(Q0, "yesterday"), "the time is MessageQueue"),
        (lambda consumer: consumer.seek_to_time(0, "yesterday"), "the queue is str"),
        (lambda consumer: consumer.poll("1"), "wait_s is '1', not at least 0"),
        (lambda consumer: consumer.poll(math.nan), "wait_s is nan, not at least 0"),
    ],
)
@pytest.mark.parametrize("kind", ["lite", "push"])
async def test_of_assigned_queues(autojump_clock, group_cluster, kind, use, text):
    async with group_cluster.client() as client:
        make = client.lite_pull_consumer if kind == "lite" else client.push_consumer
        async with make("G") as consumer:
            await consumer.subscribe("T")
            await trio.sleep(5)
            with pytest.raises(errors.InvalidCall) as failure:
                await call(use, consumer)
            assert text in str(failure.value)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda consumer: consumer.assign(5), "the queues are int, not a list of MessageQueue"),
        (lambda consumer: consumer.assign([[Q0]]), "the queue is list, not MessageQueue"),
        (lambda consumer: consumer.commit([Q0]), "the offsets are list, not a mapping"),
        (lambda consumer: consumer.commit({"T": 5}), "the queue is str, not MessageQueue"),
        (lambda consumer: consumer.commit({Q0: "5"}), "the offset is '5', not a whole number"),
        (lambda consumer: consumer.commit({Q0: 1.5}), "the offset is 1.5, not a whole number"),
        (lambda consumer: consumer.commit({Q0: 2**63}), "at most 9223372036854775807"),
        (lambda consumer: consumer.committed("T"), "the queue is str, not MessageQueue"),
        (lambda consumer: consumer.position([Q0]), "the queue is list, not MessageQueue"),
    ],
)
async def test_of_a_lite_pull_consumer(autojump_clock, group_cluster, use, text):
    async with group_cluster.client() as client, client.lite_pull_consumer("G") as consumer:
        await consumer.assign([Q0])
        with pytest.raises(errors.InvalidCall) as failure:
            await call(use, consumer)
        assert text in str(failure.value)
        await trio.sleep(60)  # what was refused is not written by the timer either
        assert not await consumer.poll(1)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda consumer: consumer.pull("T"), "the queue is str, not MessageQueue; fetch_queues(topic) lists them"),
        (lambda consumer: consumer.pull(Q0, "5"), "the offset is '5', not a whole number"),
        (lambda consumer: consumer.pull(Q0, 0, max_messages="5"), "max_messages is '5', not a whole number"),
        (
            lambda consumer: consumer.pull(Q0, 0, max_messages=0),
            "max_messages is 0, not a whole number from 1 to 2147483647",
        ),
        (
            lambda consumer: consumer.share("T", max_messages=0),
            "max_messages is 0, not a whole number from 1 to 2147483647",
        ),
        (lambda consumer: consumer.share("T", callbacks=print), "callbacks is builtin_function_or_method, not triomq."),
        (lambda consumer: consumer.pull(Q0, 0, suspend_s="5"), "suspend_s is '5', not a number of seconds"),
        (lambda consumer: consumer.pull(Q0, 0, sql=b"a > 5"), "the SQL92 expression is bytes, not text"),
        (lambda consumer: consumer.seek(Q0, 1.5), "the offset is 1.5, not a whole number"),
        (lambda consumer: consumer.seek([Q0], 1), "the queue is list"),
        (lambda consumer: consumer.position("T"), "the queue is str"),
        (lambda consumer: consumer.committed(0), "the queue is int"),
        (lambda consumer: consumer.commit(Q0, "5"), "the offset is '5', not a whole number"),
        (lambda consumer: consumer.commit([Q0], 5), "the queue is list"),
        (lambda consumer: consumer.min_offset("T"), "the queue is str"),
        (lambda consumer: consumer.max_offset("T"), "the queue is str"),
        (lambda consumer: consumer.earliest_stored_ms("T"), "the queue is str"),
        (lambda consumer: consumer.offset_by_time("T", 0), "the queue is str"),
        (lambda consumer: consumer.offset_by_time(Q0, "now"), "time_ms is 'now', not ms since 1970"),
    ],
)
async def test_of_a_pull_consumer(autojump_clock, group_cluster, use, text):
    async with group_cluster.client() as client, client.pull_consumer("G") as consumer:
        with pytest.raises(errors.InvalidCall) as failure:
            await call(use, consumer)
        assert text in str(failure.value)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda producer: producer.send(Q0), "the message is MessageQueue, not triomq.Message"),
        (lambda producer: producer.send(MESSAGE, queue="broker-a:0"), "the queue is str, not MessageQueue"),
        (lambda producer: producer.send_batch([MESSAGE], queue=0), "the queue is int, not MessageQueue"),
        (lambda producer: producer.send_oneway(Q0), "the message is MessageQueue, not triomq.Message"),
        (lambda producer: producer.end_half("0", COMMIT), "the half message is str, not what send_half returns"),
        (lambda producer: producer.end_half(HALF, "COMMIT"), "the state is 'COMMIT', neither COMMIT nor ROLLBACK"),
        (lambda producer: producer.request(MESSAGE, math.inf), "timeout_s is inf"),
    ],
)
async def test_of_a_producer(autojump_clock, cluster, use, text):
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=lambda message: COMMIT)
        with pytest.raises(errors.InvalidCall) as failure:
            await call(use, producer)
        assert text in str(failure.value)
        assert await producer.send(MESSAGE)


async def test_a_received_message_is_not_sent_as_it_is(autojump_clock, group_cluster):
    group_cluster.broker.store("T", 0, b"x")
    async with group_cluster.client() as client, client.pull_consumer("G") as consumer:
        (message,) = await consumer.pull(Q0, 0)
        with pytest.raises(errors.InvalidCall, match="the message is ReceivedMessage"):
            await client.producer("PG").send(message)
