"""The number of messages that a lite pull consumer holds, against a count of all queues, through random calls."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import trio

import triomq
from triomq import errors

QUEUES = [triomq.MessageQueue("T", "broker-a", number) for number in range(2)]
MESSAGES = 300
HELD_MAX = 40
CALLS = 80


def recount(consumer):
    return sum(source.process.count for source in consumer._member.engine.queues.values())


async def drained(consumer):
    """Everything from the first message on can be polled: fetching has not stopped for good."""
    consumer.resume(*consumer.assignment)
    seen = set()
    for queue in consumer.assignment:
        await consumer.seek(queue, 0)
    while batch := await consumer.poll(60.0):
        assert consumer._member._held == recount(consumer)
        seen |= {(message.queue.queue_id, message.queue_offset) for message in batch}
    assert consumer._member._held == recount(consumer) == 0
    return seen


@pytest.mark.parametrize("seed", range(6))
async def test_what_is_held_is_counted_through_random_calls(autojump_clock, group_cluster, open_consumer, seed):
    chance = random.Random(seed)
    for queue in QUEUES:
        for number in range(MESSAGES):
            group_cluster.broker.store(
                "T", queue.queue_id, b"%d" % number, b"TAGS\x01%s\x02" % chance.choice([b"a", b"b"])
            )
    members = group_cluster.broker.consumers.members

    async def seek(consumer):
        if not consumer.assignment:
            return
        with suppress(errors.InvalidCall):  # it may be given up meanwhile
            await consumer.seek(chance.choice(consumer.assignment), chance.choice([0, 100, MESSAGES]))

    async def reset(consumer):
        if consumer.assignment:
            # The broker has no such offset: the consumer moves to one that it has.
            await consumer._member.reset("T", {chance.choice(consumer.assignment): 2 * MESSAGES})

    async def iterate(consumer):
        with trio.move_on_after(2):
            async for _ in consumer:
                if chance.random() < 0.2:
                    break

    async def other_member(consumer):
        there = members.setdefault("G", {})
        if there.pop("~other", None) is None:
            there["~other"] = object()
        consumer._member.rebalance.wake()

    async def subscription(consumer):
        if chance.random() < 0.3:
            await consumer.unsubscribe("T")
            await trio.sleep(chance.choice([0, 1]))
        await consumer.subscribe("T", chance.choice(["*", "a", "b"]))

    async def poll(consumer):
        await consumer.poll(chance.choice([0.0, 1.0]))

    async def pause(consumer):
        if consumer.assignment:
            consumer.pause(chance.choice(consumer.assignment))

    async def resume(consumer):
        consumer.resume(*consumer.assignment)

    async def commit(consumer):
        with suppress(errors.MQError):  # the connection was just cut
            await consumer.commit()

    async def cut(_):
        await group_cluster.broker.cut()

    async def wait(_):
        await trio.sleep(chance.choice([0.01, 0.5, 3, 40]))

    calls = [seek, reset, iterate, other_member, subscription, poll, poll, pause, resume, commit, cut, wait, wait]
    async with open_consumer(
        "lite", auto_commit=chance.random() < 0.5, batch_max=chance.choice([1, 7, 32]), held_max=HELD_MAX
    ) as consumer:
        for _ in range(CALLS):
            await chance.choice(calls)(consumer)
            assert consumer._member._held == recount(consumer)
        members["G"].pop("~other", None)
        await consumer.subscribe("T")
        await trio.sleep(60)
        assert consumer.assignment == QUEUES
        assert len(await drained(consumer)) == MESSAGES * len(QUEUES)
