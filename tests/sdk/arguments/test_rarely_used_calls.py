"""Wrong values given to calls that are rarely made: the error names the argument, and the consumer goes on."""

from __future__ import annotations

import pickle

import pytest
import trio
from consumer_broker import until

import triomq
from triomq.errors import InvalidCall

HUGE = 10**400


@pytest.mark.parametrize("model", [{}, ["clustering"], None])
@pytest.mark.parametrize("kind", ["push_consumer", "lite_pull_consumer"])
async def test_a_model_of_another_type(autojump_clock, group_cluster, kind, model):
    async with group_cluster.client() as client:
        with pytest.raises(InvalidCall, match="no message model"):
            getattr(client, kind)("G", model=model)


@pytest.mark.parametrize("topic", [triomq.MessageQueue("T", "broker-a", 0), 1, None, "", "a b", "x" * 128])
@pytest.mark.parametrize("kind", ["push_consumer", "lite_pull_consumer"])
async def test_a_wrong_topic_does_not_end_the_consumer(autojump_clock, group_cluster, kind, topic):
    async with group_cluster.client() as client, getattr(client, kind)("G") as consumer:
        await consumer.subscribe("T")
        with pytest.raises(InvalidCall, match="the topic "):
            await consumer.subscribe(topic)
        with trio.fail_after(60):
            await until(lambda: consumer.assignment)
        await trio.sleep(60)
        await consumer.unsubscribe("T")


@pytest.mark.parametrize("kind", ["push_consumer", "lite_pull_consumer"])
async def test_topics_that_are_no_text(autojump_clock, group_cluster, kind):
    async with group_cluster.client() as client, getattr(client, kind)("G") as consumer:
        with pytest.raises(InvalidCall, match="topic is list, not text"):
            await consumer.unsubscribe(["T"])
        with pytest.raises(InvalidCall, match="topic is list, not text"):
            await client.producer("P").queues(["T"])


@pytest.mark.parametrize("request_", [None, b"x", triomq.Message("T", b"x")])
async def test_a_reply_to_what_was_not_received(autojump_clock, group_cluster, request_):
    async with group_cluster.client() as client, client.push_consumer("G") as consumer:
        for member in (consumer, client.producer("P")):
            with pytest.raises(
                InvalidCall, match=rf"request is {type(request_).__name__}, not triomq\.ReceivedMessage"
            ):
                await member.reply(request_, b"x")


@pytest.mark.parametrize("concurrency", [0, 1.5, "2", None, True])
async def test_the_number_of_handlers(autojump_clock, group_cluster, concurrency):
    async with group_cluster.client() as client, client.push_consumer("G") as consumer:
        with (
            pytest.raises(InvalidCall, match=r"concurrency is .*, not a whole number of at least 1"),
            trio.fail_after(60),
        ):
            await consumer.run(print, concurrency=concurrency)


async def test_seconds_that_no_float_can_have(autojump_clock, group_cluster):
    async with group_cluster.client() as client, client.push_consumer("G") as consumer:
        with pytest.raises(InvalidCall, match="wait_s is "):
            await consumer.poll(HUGE)
        with pytest.raises(InvalidCall, match="timeout_s is "):
            await client.producer("P").request(triomq.Message("T", b"x"), timeout_s=HUGE)


@pytest.mark.parametrize("answer", [triomq.Later(3, suspend_s=2), triomq.Rollback(suspend_s=2), triomq.Rollback()])
def test_answers_that_another_process_raises(answer):
    copy = pickle.loads(pickle.dumps(answer))
    assert type(copy) is type(answer)
    assert vars(copy) == vars(answer)


@pytest.mark.parametrize("count", [0, 2**31, 10**5_000], ids=["none", "33 bits", "without text"])
async def test_the_number_of_messages_of_a_pull(autojump_clock, group_cluster, count):
    async with group_cluster.client() as client:
        consumer = client.pull_consumer("G")
        queue = (await consumer.fetch_queues("T"))[0]
        with pytest.raises(InvalidCall, match=r"max_messages is .*, not a whole number from 1 to 2147483647"):
            await consumer.pull(queue, max_messages=count)
