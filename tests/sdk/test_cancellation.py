"""Cancelled calls, and consumers that are closed while they are used: nothing is left behind, and calling again works."""

from __future__ import annotations

import pytest
import trio
from any_step import each_step_of_all_tasks
from cancellation import each_step

import triomq
from triomq import errors

QUEUES = [triomq.MessageQueue("T", "broker-a", number) for number in range(2)]
BODIES = [b"m0", b"m1", b"m2", b"m3", b"m4", b"m5"]


def fill(cluster):
    for number, body in enumerate(BODIES):
        cluster.broker.store("T", number % 2, body)


async def poll_all(consumer):
    bodies = []
    with trio.fail_after(60):
        while len(bodies) < len(BODIES):
            bodies += [message.body for message in await consumer.poll()]
    return bodies


# --- starting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choose", [lambda each: each.subscribe("T"), lambda each: each.assign(QUEUES)])
async def test_a_cancelled_first_call_of_a_lite_consumer_is_repeated(autojump_clock, make_group_cluster, choose):
    for cancel in each_step_of_all_tasks():
        async with make_group_cluster() as cluster, cluster.client() as client:
            fill(cluster)
            consumer = client.lite_pull_consumer("G", start_from="earliest")
            with cancel:
                await choose(consumer)
            await choose(consumer)
            assert sorted(await poll_all(consumer)) == BODIES


async def test_a_lite_consumer_is_closed_while_another_task_starts_it(autojump_clock, make_group_cluster):
    for cancel in each_step_of_all_tasks():
        async with make_group_cluster() as cluster, cluster.client() as client, trio.open_nursery() as nursery:
            consumer = client.lite_pull_consumer("G")
            subscribed = trio.Event()

            async def subscribe(consumer=consumer, subscribed=subscribed):
                try:
                    await consumer.subscribe("T")
                except errors.ClientClosed:
                    pass
                finally:
                    subscribed.set()

            nursery.start_soon(subscribe)
            with cancel:
                await subscribed.wait()
            await consumer.aclose()
            await subscribed.wait()
            assert not cluster.broker.consumers.members.get("G")
            client.lite_pull_consumer("G")


# --- entering ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["producer", "pull_consumer", "push_consumer", "lite_pull_consumer"])
async def test_a_cancelled_block_leaves_its_group(autojump_clock, cluster, kind):
    async with cluster.client() as client:
        make = getattr(client, kind)
        for cancel in each_step():
            with cancel:
                async with make("G"):
                    await trio.lowlevel.checkpoint()
        async with make("G"):
            pass


async def test_a_share_that_is_not_entered_is_forgotten(autojump_clock, group_cluster):
    async with group_cluster.client() as client:
        consumer = client.pull_consumer("G")
        with trio.CancelScope() as scope:
            scope.cancel()
            async with consumer.share("T"):
                raise AssertionError("cancelled before")
        late = consumer.share("T")
        assert not consumer._shares
        await consumer.aclose()
        with pytest.raises(errors.ClientClosed):
            await late.__aenter__()
