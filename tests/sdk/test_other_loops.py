"""Calls from an event loop that is not the client's: refused at once, and nothing of the client is disturbed."""

from __future__ import annotations

import pytest
import trio

import triomq
from triomq import errors


async def in_another_loop(call):
    """What a call raises in a thread with a trio run of its own."""
    found = []

    async def run():
        with trio.fail_after(20):
            try:
                found.append(await call())
            except errors.MQError as error:
                found.append(error)

    await trio.to_thread.run_sync(trio.run, run)
    return found[0]


def message():
    return triomq.Message("T", b"from elsewhere")


CALLS = {
    "send": lambda client, producer, consumer: producer.send(message()),
    "callback": lambda client, producer, consumer: producer.send(message(), lambda result, error: None),
    "oneway": lambda client, producer, consumer: producer.send_oneway(message()),
    "batch": lambda client, producer, consumer: producer.send_batch([message()]),
    "pull": lambda client, producer, consumer: consumer.pull(triomq.MessageQueue("T", "broker-a", 0)),
    "admin": lambda client, producer, consumer: client.admin.topics(),
}


@pytest.mark.parametrize("warm", [True, False], ids=["open-links", "no-link"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_another_loops_calls_are_refused(cluster, call, warm):
    async with cluster.client() as client:
        producer, consumer = client.producer("P"), client.pull_consumer("C")
        if warm:
            await producer.send(triomq.Message("T", b"first"))
        error = await in_another_loop(lambda: call(client, producer, consumer))
        assert isinstance(error, errors.InvalidCall)
        assert "another thread's event loop" in str(error)
        assert "triomq.blocking" in str(error)
        assert await producer.send(triomq.Message("T", b"last"))
    assert b"from elsewhere" not in cluster.broker.bodies("T")
