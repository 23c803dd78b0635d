"""Request-reply between Java's client and ours, through Java's broker and ours, also after the requester has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import triomq
from triomq import errors
from triomq_benchmarks.clusters.processes import DriverError
from triomq_benchmarks.clusters.servers import Kind

LIMIT_S = 60.0
pytestmark = pytest.mark.parametrize("either", [Kind.OURS, Kind.JAVA, "java5"], indirect=True)


@asynccontextmanager
async def python_replies(servers: str, topic: str) -> AsyncIterator[list[bool]]:
    """One of our consumers that replies to every request; what its replies came to."""
    came_to: list[bool] = []

    async with (
        triomq.open_client(servers) as client,
        client.push_consumer(f"G-{topic}"[:100], start_from="earliest") as consumer,
    ):
        await consumer.subscribe(topic)

        async def work() -> None:
            async for delivery in consumer:
                async with delivery:
                    came_to.append(await delivery.reply(b"re: " + delivery.message.body, properties={"by": "python"}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            yield came_to
            nursery.cancel_scope.cancel()


@pytest.fixture
async def servers(either: Any, topic: str) -> str:
    """The name servers; the topic is there, so that no consumer waits for it."""
    address: str = either.namesrv.address
    async with triomq.open_client(address) as client:
        await client.admin.create_topic(topic)
    return address


async def until_so_many(came_to: list[bool], count: int) -> None:
    """Wait for the answers to replies: the one that asked may have its reply earlier."""
    with trio.fail_after(LIMIT_S):
        while len(came_to) < count:  # noqa: ASYNC110 - the servers are other processes
            await trio.sleep(0.05)


async def test_python_asks_python(servers: str, topic: str) -> None:
    async with python_replies(servers, topic) as came_to, triomq.open_client(servers) as client:
        producer = client.producer("asker")
        for number in range(20):
            reply = await producer.request(triomq.Message(topic, b"%d" % number), LIMIT_S)
            assert (reply.body, reply.properties["by"]) == (b"re: %d" % number, "python")
        reply = await producer.request(triomq.Message(topic, b"x" * 100_000), LIMIT_S)
        assert reply.body == b"re: " + b"x" * 100_000
        await until_so_many(came_to, 21)
    assert came_to == [True] * 21


async def test_java_asks_python(java_client: Any, servers: str, topic: str) -> None:
    lost = 0
    async with python_replies(servers, topic) as came_to:
        for body in (b"one", b"two", b"x" * 100_000):
            while True:
                try:
                    reply = await trio.to_thread.run_sync(java_client.request, servers, topic, body)
                except DriverError as error:
                    # Java's client does not wait until the broker knows it: a reply to its first request may be lost.
                    lost += 1
                    if lost > 2 or "wait reply message timeout" not in str(error):
                        raise
                else:
                    break
            assert (reply.body, reply.properties["by"]) == (b"re: " + body, "python")
        await until_so_many(came_to, 3 + lost)
    assert came_to.count(True) == 3


async def test_python_asks_java(java_push: Any, servers: str, topic: str) -> None:
    with java_push(servers, f"G-{topic}"[:100], topic, reply="true") as member:
        async with triomq.open_client(servers) as client:
            producer = client.producer("asker")
            for body in (b"one", b"two", b"x" * 100_000):
                reply = await producer.request(triomq.Message(topic, body), LIMIT_S)
                assert reply.body == b"re: " + body
        await trio.to_thread.run_sync(member.wait_for_messages, 3)
        assert [event["reply"] for event in member.messages()] == ["SEND_OK"] * 3


async def test_no_member_replies(servers: str, topic: str) -> None:
    async with triomq.open_client(servers) as client:
        with pytest.raises(errors.ReplyTimeout, match="no reply"):
            await client.producer("asker").request(triomq.Message(topic, b"anybody?"), 2.0)


async def test_the_requester_is_gone(java_push: Any, servers: str, topic: str) -> None:
    """Both brokers refuse such a reply alike: Java's client raises the error, and ours reports that no client has
    it."""
    async with triomq.open_client(servers) as client:
        client_id = client.client_id
        with pytest.raises(errors.ReplyTimeout):
            await client.producer("asker").request(triomq.Message(topic, b"and away"), 1.0)
    async with python_replies(servers, topic) as came_to:
        await until_so_many(came_to, 1)
    assert came_to == [False]
    with java_push(servers, f"J-{topic}"[:100], topic, reply="true") as member:
        (event,) = await trio.to_thread.run_sync(member.wait_for_messages, 1)
    assert f"push reply message fail, channel of <{client_id}> not found." in event["reply"]
