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


async def test_a_share_that_is_not_entered_is_dropped(autojump_clock, group_cluster):
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


# --- leaving -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["push_consumer", "lite_pull_consumer"])
async def test_a_consumer_that_is_cancelled_while_it_leaves_gives_up_every_queue(
    autojump_clock, make_group_cluster, kind
):
    for cancel in each_step():
        owned = []

        async def revoked(queues, owned=owned):
            await trio.sleep(0.5)
            for queue in queues:
                owned.remove(queue)

        async with make_group_cluster() as cluster, cluster.client() as client:
            callbacks = triomq.ConsumerCallbacks(on_assigned=owned.extend, on_revoked=revoked)
            consumer = getattr(client, kind)("G", callbacks=callbacks)
            await consumer.__aenter__()
            await consumer.subscribe("T")
            await trio.sleep(5)
            assert set(owned) >= set(QUEUES)
            with cancel:
                await consumer.aclose()
            assert not owned


@pytest.mark.parametrize("kind", ["push_consumer", "lite_pull_consumer"])
async def test_a_cancel_while_a_queue_is_being_taken_is_no_failure(autojump_clock, group_cluster, caplog, kind):
    called = []
    with trio.CancelScope() as scope:

        async def assigned(queues):
            called.append(("assigned", *queues))
            scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.sleep(0.1)  # the other tasks of the consumer end

        callbacks = triomq.ConsumerCallbacks(
            on_assigned=assigned, on_revoked=lambda queues: called.append(("revoked", *queues))
        )
        async with group_cluster.client() as client, getattr(client, kind)("G", callbacks=callbacks) as consumer:
            with trio.CancelScope(shield=True):
                await consumer.subscribe("T")
                await trio.sleep(5)
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    taken = called[0][1]
    assert called == [("assigned", taken), ("revoked", taken)]
    assert "failed" not in caplog.text


async def test_a_handler_that_fails_while_its_consumer_is_cancelled_is_no_failure(autojump_clock, make_group_cluster):
    """Whatever the steps of the consumer's tasks, after which no more can be started, and of the handler's."""
    for steps in range(30):
        async with make_group_cluster() as cluster:
            fill(cluster)
            with trio.CancelScope() as scope:

                async def handler(_message, scope=scope, steps=steps):
                    scope.cancel()
                    with trio.CancelScope(shield=True):
                        for _ in range(steps % 5):
                            await trio.lowlevel.checkpoint()
                    raise triomq.Later  # of an ordered consumer: its queue is to rest, which takes a task

                async with (
                    trio.open_nursery() as nursery,
                    cluster.client() as client,
                    client.push_consumer("G", ordered=True, start_from="earliest") as consumer,
                ):
                    await consumer.subscribe("T")
                    nursery.start_soon(consumer.run, handler)
                    await trio.sleep_forever()
            assert scope.cancelled_caught


async def test_a_cancelled_share_may_commit_in_on_revoked(autojump_clock, group_cluster):
    fill(group_cluster)
    async with group_cluster.client() as client:
        consumer = client.pull_consumer("G")

        async def commit(queues):
            for queue in queues:
                await consumer.commit(queue)

        with trio.CancelScope() as scope:
            async with consumer.share("T", callbacks=triomq.ConsumerCallbacks(on_revoked=commit)) as pulls:
                await anext(pulls)
                await anext(pulls)
                scope.cancel()
                await anext(pulls)
    assert [group_cluster.broker.offsets["G", "T", queue.queue_id] for queue in QUEUES] == [3, 3]


# --- what was handed out -------------------------------------------------------------------------------------


async def send_some(client, bodies):
    producer = client.producer("P", max_in_flight=2)
    outcomes = []
    try:
        await producer.send(triomq.Message("T", b"awaited"))
        for body in bodies:
            await producer.send(triomq.Message("T", body), lambda result, error: outcomes.append(result or error))
            bodies[body] = True
        await producer.flush()
    finally:
        await producer.aclose()
        assert len(outcomes) == sum(bodies.values()), "each accepted send has its callback once, no other has one"
        assert producer.in_flight == 0


async def test_cancelled_sends_leave_nothing_behind(autojump_clock, make_group_cluster):
    for cancel in each_step_of_all_tasks(stride=2):
        async with make_group_cluster() as cluster, cluster.client() as client:
            with cancel:
                await send_some(client, dict.fromkeys(BODIES, False))
            await send_some(client, dict.fromkeys(BODIES, False))
            await trio.sleep(5)
            assert not any(link.pending or link.unsent_bytes for link in client._links.open_links())


async def push(client, bodies):
    async with client.push_consumer("G", start_from="earliest") as consumer:
        await consumer.subscribe("T")
        async for delivery in consumer:
            async with delivery:
                bodies.append(delivery.message.body)
            if len(set(bodies)) == len(BODIES):
                break


async def poll(client, bodies):
    async with client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.subscribe("T")
        while len(set(bodies)) < len(BODIES):
            bodies += [message.body for message in await consumer.poll()]


async def share(client, bodies):
    async with client.pull_consumer("G") as consumer, consumer.share("T", max_messages=2) as pulls:
        async for result in pulls:
            bodies += [message.body for message in result]
            await consumer.commit(result.queue)
            if len(set(bodies)) == len(BODIES):
                break


@pytest.mark.parametrize("consume", [push, poll, share])
async def test_a_cancelled_consumer_leaves_everything_to_the_next(autojump_clock, make_group_cluster, consume):
    for cancel in each_step_of_all_tasks(stride=9):
        async with make_group_cluster() as cluster, cluster.client() as client:
            fill(cluster)
            bodies = []
            with cancel:
                await consume(client, bodies)
            assert not cluster.broker.consumers.members.get("G")
            await trio.sleep(5)  # a heartbeat may be under way
            assert not any(link.pending for link in client._links.open_links())
            with trio.move_on_after(20):
                await consume(client, bodies)
            assert set(bodies) == set(BODIES)
