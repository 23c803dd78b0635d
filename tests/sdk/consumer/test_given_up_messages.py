"""Messages whose queue was given up leave memory at once, though handlers are stuck, or the consumer is not polled."""

from __future__ import annotations

import gc

import pytest
import trio
from consumer_broker import until

import triomq
from triomq._consumer.group.process_queue import HeldPage
from triomq._consumer.push import concurrent

Q0 = triomq.MessageQueue("T", "broker-a", 0)
Q1 = triomq.MessageQueue("T", "broker-a", 1)
ANSWERS = 10
KINDS = [("push", {}), ("push", {"ordered": True}), ("lite", {})]


def answers_kept():
    """The pulled answers that are in memory."""
    gc.collect()  # those of clients that were closed
    return sum(type(each) is HeldPage for each in gc.get_objects())


@pytest.fixture
def filled(group_cluster):
    for number in range(32 * ANSWERS):
        group_cluster.broker.store("T", 1, b"%d" % number)
    return group_cluster


async def never_ends(_message):
    await trio.sleep_forever()


@pytest.mark.parametrize(("kind", "options"), KINDS)
async def test_after_seeks(autojump_clock, filled, open_consumer, kind, options):
    async with open_consumer(kind, **options) as consumer, trio.open_nursery() as nursery:
        if kind == "push":
            nursery.start_soon(consumer.run, never_ends)
        await until(lambda: consumer.assignment == [Q0, Q1])
        for _ in range(5):
            await trio.sleep(5)
            await consumer.seek(Q1, 0)
        await trio.sleep(5)
        # Those that handlers have, and the ones of the last seek.
        assert ANSWERS <= answers_kept() <= 3 * ANSWERS
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("kind", "options"), KINDS)
async def test_after_moves_to_another_member(autojump_clock, filled, open_consumer, kind, options):
    async with open_consumer(kind, **options) as consumer, trio.open_nursery() as nursery:
        if kind == "push":
            for queue_id in (0, 1):
                filled.broker.store("T", queue_id, b"taken by the only handler")
            nursery.start_soon(lambda: consumer.run(never_ends, concurrency=1))
        for _ in range(5):
            await until(lambda: consumer.assignment == [Q0, Q1])
            await trio.sleep(5)
            async with filled.client(instance_name="two") as client, client.lite_pull_consumer("G") as two:
                await two.subscribe("T")
                await until(lambda: consumer.assignment == [Q0])
        await until(lambda: consumer.assignment == [Q0, Q1])
        await trio.sleep(5)
        assert ANSWERS <= answers_kept() <= 3 * ANSWERS
        nursery.cancel_scope.cancel()


async def test_few_large_ones_among_many(autojump_clock, filled, open_consumer, monkeypatch):
    """To look through all messages for a few that were given up costs more than they hold, unless they are large."""
    filled.broker.store("T", 0, b"x" * 1000)
    async with open_consumer() as consumer:
        dispatch = consumer._member.dispatch
        await until(lambda: len(dispatch) == 32 * ANSWERS + 1)
        await consumer.seek(Q0, 1)
        await trio.sleep(5)
        assert len(dispatch) == 32 * ANSWERS + 1
        monkeypatch.setattr(concurrent, "GIVEN_UP_BYTES", 1000)
        await consumer.seek(Q0, 1)
        assert len(dispatch) == 32 * ANSWERS
