"""Producers that are made while their client closes: what they have sent is stored, or its callback called."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest
import trio

import triomq
from triomq import errors
from triomq_protocol.codes import RequestCode


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_handler_that_makes_a_producer_while_the_client_closes(autojump_clock, group_cluster, cancelled):
    broker, outcomes = group_cluster.broker, []
    broker.store("T", 0, b"first")
    handling, sent = trio.Event(), trio.Event()

    async def slow(command):
        await trio.sleep(0.5)
        return broker.serve(command)

    broker.script(RequestCode.SEND_MESSAGE_V2, None if cancelled else slow)

    async def handle(_message):
        handling.set()
        with trio.CancelScope(shield=True):
            await trio.sleep(2)
            producer = client.producer("late")
            await producer.send(triomq.Message("T", b"late"), callback=lambda *outcome: outcomes.append(outcome))
        sent.set()

    async with group_cluster.client() as client, trio.open_nursery() as nursery:
        consumer = client.push_consumer("G", start_from="earliest", drain_s=10)
        await consumer.__aenter__()
        await consumer.subscribe("T")
        nursery.start_soon(consumer.run, handle)
        await handling.wait()
        with trio.CancelScope() as closing:
            nursery.start_soon(_cancel_after, sent, closing if cancelled else trio.CancelScope())
            await client.aclose()
        ((result, error),) = outcomes
        if cancelled:
            assert isinstance(error, errors.MQError)
        else:
            assert result.queue.topic == "T"
            assert sorted(broker.bodies("T")) == [b"first", b"late"]
        with pytest.raises(errors.ClientClosed):
            client.producer("later still")


async def test_tasks_that_make_producers_all_the_time(autojump_clock, group_cluster):
    """As those that serve requests, while their program ends: the client closes nevertheless."""
    broker = group_cluster.broker
    broker.store("T", 0, b"first")

    async def slow(command):
        await trio.sleep(0.05)
        return broker.serve(command)

    for code in (RequestCode.UNREGISTER_CLIENT, RequestCode.SEND_MESSAGE_V2):
        broker.script(code, *[slow] * 5000)
    closed, numbers = [], itertools.count()

    async def serve():
        while not closed:
            with suppress(errors.MQError):
                async with client.producer(f"G-{next(numbers)}") as producer:
                    await producer.send(triomq.Message("T", b"request"))
            await trio.sleep(0.01)

    async with group_cluster.client() as client, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(serve)
            await trio.sleep(0.013)  # so that some have a producer at any time
        await trio.sleep(1)
        with trio.move_on_after(10) as too_long:
            await client.aclose()
        closed.append(True)
        assert not too_long.cancelled_caught
        with pytest.raises(errors.ClientClosed):
            client.producer("later")


async def _cancel_after(event, scope):
    await event.wait()
    scope.cancel()
