"""Lite pull consumers: polled messages, consumed ones, seeking and pausing."""

# ruff: noqa: ASYNC110 - conditions live in the fake broker

from __future__ import annotations

import pytest
import trio
from consumer_broker import until

import triomq
from triomq import errors
from triomq_protocol import flags
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import (
    ConsumerRunningInfo,
    GetConsumerRunningInfoRequest,
    HeartbeatData,
    ResetOffsetBody,
    ResetOffsetRequest,
)
from triomq_protocol.requests.pull import PullMessageRequest
from triomq_protocol.wire.command import Command

Q0 = triomq.MessageQueue("T", "broker-a", 0)
Q1 = triomq.MessageQueue("T", "broker-a", 1)


def fill(cluster, count, *, queue_id=0, first=0, tags=None):
    for number in range(first, first + count):
        properties = f"TAGS\x01{tags[number % len(tags)]}\x02" if tags else ""
        cluster.broker.store("T", queue_id, b"m%d-%d" % (queue_id, number), properties.encode())


def committed(cluster, queue_id=0):
    return cluster.broker.offsets.get(("G", "T", queue_id))


async def drain(consumer, wait_s=3.0):
    bodies = []
    while batch := await consumer.poll(wait_s):
        bodies += [message.body for message in batch]
    return bodies


async def test_a_subscription_is_shared_and_committed(autojump_clock, group_cluster):
    fill(group_cluster, 100)
    fill(group_cluster, 50, queue_id=1)
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.subscribe("T")
        bodies = await drain(consumer)
        assert sorted(bodies) == sorted([b"m0-%d" % n for n in range(100)] + [b"m1-%d" % n for n in range(50)])
        assert consumer.assignment == [Q0, Q1]
        assert (consumer.position(Q0), consumer.position(Q1)) == (100, 50)
    assert (committed(group_cluster), committed(group_cluster, 1)) == (100, 50)
    beat = HeartbeatData.decode(group_cluster.broker.requests(RequestCode.HEART_BEAT)[-1].body)
    (data,) = beat.consumer_data_set
    assert (data.consume_type, data.consume_from_where) == ("CONSUME_ACTIVELY", "CONSUME_FROM_FIRST_OFFSET")
    pull = group_cluster.broker.requests(RequestCode.PULL_MESSAGE)[-1].header(PullMessageRequest)
    assert pull.sys_flag == flags.PULL_SUSPEND | flags.PULL_SUBSCRIPTION | flags.PULL_LITE == 22


async def test_polled_counts_as_consumed_when_the_next_poll_comes(autojump_clock, group_cluster):
    fill(group_cluster, 10)
    async with group_cluster.client() as client:
        consumer = client.lite_pull_consumer("G", start_from="earliest", batch_max=4)
        await consumer.subscribe("T")
        first = await consumer.poll()
        assert [message.body for message in first] == [b"m0-%d" % n for n in range(4)]
        await trio.sleep(30)
        # It may have been polled, but it has not been reported as done.
        assert committed(group_cluster) == 0
        await consumer.poll()
        await trio.sleep(6)
        assert committed(group_cluster) == 4
        await consumer.aclose()
    # What was polled last comes again.
    assert committed(group_cluster) == 4


async def test_messages_of_a_block_left_by_an_error_are_not_committed(autojump_clock, group_cluster):
    fill(group_cluster, 3)

    async def fail():
        async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
            await consumer.subscribe("T")
            assert len(await consumer.poll()) == 3
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert committed(group_cluster) == 0


async def test_committing_by_hand(autojump_clock, group_cluster):
    fill(group_cluster, 10)
    async with (
        group_cluster.client() as client,
        client.lite_pull_consumer("G", start_from="earliest", auto_commit=False, batch_max=5) as consumer,
    ):
        await consumer.subscribe("T")
        await consumer.poll()
        await consumer.poll()
        await trio.sleep(30)
        assert committed(group_cluster) == 0
        await consumer.commit({Q0: 3})
        assert await consumer.committed(Q0) == committed(group_cluster) == 3
        await consumer.commit()
        assert committed(group_cluster) == 10
        with pytest.raises(errors.InvalidCall, match="not at least 0"):
            await consumer.commit({Q0: -1})


async def test_committing_by_hand_does_not_leave_out_the_start(autojump_clock, group_cluster):
    """A broker that takes no commits for a while gets the starts of a new group later, but nothing that was polled."""
    fill(group_cluster, 10)
    fill(group_cluster, 10, queue_id=1)
    group_cluster.broker.script(RequestCode.UPDATE_CONSUMER_OFFSET, None)
    async with (
        group_cluster.client() as client,
        client.lite_pull_consumer("G", start_from="latest", auto_commit=False, batch_max=5) as consumer,
    ):
        await consumer.subscribe("T")
        while len(consumer.assignment) < 2:
            await trio.sleep(0.1)
        fill(group_cluster, 5, first=10)
        await consumer.poll()
        await consumer.poll(0.0)
        assert (committed(group_cluster), committed(group_cluster, 1)) == (None, None)
        await trio.sleep(10)
        assert (committed(group_cluster), committed(group_cluster, 1)) == (10, 10)
        await trio.sleep(60)
        assert (committed(group_cluster), committed(group_cluster, 1)) == (10, 10)
        await consumer.commit()
        assert committed(group_cluster) == 15


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_a_commit_before_the_next_poll_is_no_step_back(autojump_clock, group_cluster, auto_commit):
    """The messages count as consumed only at the next poll: until then the consumer's own position is behind."""
    fill(group_cluster, 20)
    events = []
    callbacks = triomq.ConsumerCallbacks(on_event=events.append)
    async with (
        group_cluster.client() as client,
        client.lite_pull_consumer(
            "G", start_from="earliest", auto_commit=auto_commit, batch_max=5, callbacks=callbacks
        ) as consumer,
    ):
        await consumer.subscribe("T")
        for first in (0, 5):
            assert [message.queue_offset for message in await consumer.poll()] == [*range(first, first + 5)]
            await consumer.commit({Q0: first + 5})
            await trio.sleep(30)
            assert committed(group_cluster) == first + 5
        assert not events
        await consumer.poll()
    assert not events
    assert committed(group_cluster) == (15 if auto_commit else 10)


async def test_a_commit_of_a_queue_that_was_given_up_is_refused(autojump_clock, group_cluster):
    """The caller still has what was polled of it, and the next member has consumed more."""
    fill(group_cluster, 20)
    fill(group_cluster, 20, queue_id=1)
    events = []
    options = {"start_from": "earliest", "auto_commit": False}
    async with (
        group_cluster.client(instance_name="a") as a,
        group_cluster.client(instance_name="b") as b,
        a.lite_pull_consumer("G", callbacks=triomq.ConsumerCallbacks(on_event=events.append), **options) as one,
    ):
        await one.subscribe("T")
        await until(lambda: one.assignment == [Q0, Q1])
        polled = 0
        while polled < 40:
            polled += len(await one.poll())
        async with b.lite_pull_consumer("G", **options) as two:
            await two.subscribe("T")
            await until(lambda: two.assignment == [Q1])
            await until(lambda: one.assignment == [Q0])
            await two.commit({Q1: 20})
            events.clear()
            await one.commit({Q1: 5, Q0: 7})
            assert (committed(group_cluster), committed(group_cluster, 1)) == (7, 20)
            assert [(each.kind, each.queue) for each in events] == [("offset_refused", Q1)]
        await until(lambda: one.assignment == [Q0, Q1])
        assert one.position(Q1) == 20
        assert not await one.poll(), "it goes on where the other member was"


async def test_a_commit_in_on_revoked_counts(autojump_clock, group_cluster):
    fill(group_cluster, 20, queue_id=1)

    async def give_up(queues):
        await one.commit(dict.fromkeys(queues, 5))

    async with group_cluster.client(instance_name="a") as a, group_cluster.client(instance_name="b") as b:
        callbacks = triomq.ConsumerCallbacks(on_revoked=give_up)
        one = a.lite_pull_consumer("G", start_from="earliest", auto_commit=False, callbacks=callbacks)
        async with one, b.lite_pull_consumer("G", auto_commit=False) as two:
            await one.subscribe("T")
            await until(lambda: one.assignment == [Q0, Q1])
            await two.subscribe("T")
            await until(lambda: two.assignment == [Q1])
            assert committed(group_cluster, 1) == 5
            assert (await two.poll())[0].body == b"m1-5"


@pytest.mark.parametrize("auto_commit", [False, True])
@pytest.mark.parametrize("one_by_one", [False, True])
async def test_a_commit_in_on_revoked_covers_what_was_polled(autojump_clock, group_cluster, auto_commit, one_by_one):
    fill(group_cluster, 20, queue_id=1)

    async def give_up(_queues):
        await one.commit()

    async with group_cluster.client(instance_name="a") as a, group_cluster.client(instance_name="b") as b:
        callbacks = triomq.ConsumerCallbacks(on_revoked=give_up)
        one = a.lite_pull_consumer("G", start_from="earliest", auto_commit=auto_commit, callbacks=callbacks)
        async with one, b.lite_pull_consumer("G", auto_commit=False) as two:
            await one.subscribe("T")
            await until(lambda: one.assignment == [Q0, Q1])
            if one_by_one:
                polled = [await anext(one) for _ in range(7)]
            else:
                polled = await one.poll()
            await two.subscribe("T")
            await until(lambda: two.assignment == [Q1])
            assert committed(group_cluster, 1) == len(polled) > 0
            await until(lambda: one.assignment == [Q0])
            assert not one._member._revoking


@pytest.mark.parametrize("by_name", [False, True])
async def test_a_commit_in_on_revoked_counts_at_the_end(autojump_clock, group_cluster, caplog, by_name):
    fill(group_cluster, 20)

    async def give_up(queues):
        assert Q0 in queues
        await consumer.commit({Q0: 5} if by_name else None)

    async with group_cluster.client() as client:
        callbacks = triomq.ConsumerCallbacks(on_revoked=give_up)
        consumer = client.lite_pull_consumer("G", start_from="earliest", auto_commit=False, callbacks=callbacks)
        async with consumer:
            await consumer.subscribe("T")
            polled = len(await consumer.poll())
        assert committed(group_cluster) == (5 if by_name else polled)
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
        with pytest.raises(errors.ClientClosed):
            await consumer.commit()


async def test_messages_one_by_one(autojump_clock, group_cluster):
    fill(group_cluster, 5)
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.subscribe("T")
        seen = []
        async for message in consumer:
            seen.append(message.queue_offset)
            if len(seen) == 3:
                break
        await trio.sleep(11)
        # The third is in hand still.
        assert committed(group_cluster) == 2
        rest = await consumer.poll()
        assert [message.queue_offset for message in rest] == [3, 4]
    assert seen == [0, 1, 2]
    assert committed(group_cluster) == 5


async def test_tags_are_compared_exactly_and_filtered_messages_are_passed(autojump_clock, group_cluster):
    # "AaAa" and "BBBB" share a hash.
    fill(group_cluster, 9, tags=["AaAa", "BBBB", "other"])
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.subscribe("T", "AaAa")
        assert await drain(consumer) == [b"m0-0", b"m0-3", b"m0-6"]
        await trio.sleep(11)
        assert committed(group_cluster) == 9


async def test_a_new_expression_counts_for_what_was_fetched_ahead(autojump_clock, group_cluster):
    fill(group_cluster, 6, tags=["a", "b"])
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.subscribe("T", "a")
        while not consumer.assignment:
            await trio.sleep(0.1)
        await trio.sleep(1)
        await consumer.subscribe("T", "b")
        assert await drain(consumer) == [b"m0-1", b"m0-3", b"m0-5"]
        await consumer.unsubscribe("T")
        await trio.sleep(1)
        assert consumer.assignment == []


async def unsubscribed_between(consumer):
    await consumer.subscribe("T", "a")
    await until(lambda: consumer.assignment)
    await trio.sleep(1)
    await consumer.unsubscribe("T")
    await consumer.subscribe("T", "b")


async def assigned_again(consumer):
    await consumer.assign([Q0], "a")
    await trio.sleep(1)
    await consumer.assign([Q0], "b")


async def another_kind(consumer):
    await consumer.subscribe("T", "b")
    await until(lambda: consumer.assignment)
    await trio.sleep(1)
    await consumer.subscribe("T", triomq.Sql("b"))


@pytest.mark.parametrize("change", [unsubscribed_between, assigned_again, another_kind])
async def test_a_new_expression_counts_however_it_comes(autojump_clock, group_cluster, change):
    fill(group_cluster, 6, tags=["a", "b"])
    group_cluster.broker.consumers.sql = lambda _text, record: record.tags == "a"
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await change(consumer)
        # The message before the first one that was chosen counts as consumed.
        chosen = (2, 4) if change is another_kind else (1, 3, 5)
        assert await drain(consumer) == [b"m0-%d" % number for number in chosen]


@pytest.mark.parametrize("auto_commit", [True, False])
@pytest.mark.parametrize("assigns", [True, False])
async def test_a_new_expression_keeps_the_position(autojump_clock, group_cluster, assigns, auto_commit):
    """Also before the first answer by that expression, which may take 20 s."""

    async def choose(tags):
        await (consumer.assign([Q0], tags) if assigns else consumer.subscribe("T", tags))

    fill(group_cluster, 5, tags=["a"])
    options = {"start_from": "earliest", "auto_commit": auto_commit, "commit_every_s": 3600.0}
    async with group_cluster.client() as client, client.lite_pull_consumer("G", **options) as consumer:
        await choose("a")
        assert len(await drain(consumer)) == 5
        for tags in ("b", "a"):
            await choose(tags)
            assert consumer.position(Q0) == 5
        assert await drain(consumer) == []
        await choose("b")
        if not auto_commit:
            await consumer.commit()
    assert committed(group_cluster) == 5


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_a_new_expression_after_a_commit_before_the_next_poll(autojump_clock, group_cluster, auto_commit):
    """What the caller has committed by offset is not polled again."""
    fill(group_cluster, 6, tags=["a", "b"])
    options = {"start_from": "earliest", "auto_commit": auto_commit}
    async with group_cluster.client() as client, client.lite_pull_consumer("G", **options) as consumer:
        await consumer.subscribe("T")
        assert len(await consumer.poll()) == 6
        await consumer.commit({Q0: 3})
        await consumer.subscribe("T", "b")
        assert await drain(consumer) == [b"m0-3", b"m0-5"]


async def test_the_same_expression_fetches_nothing_again(autojump_clock, group_cluster):
    fill(group_cluster, 6, tags=["a", "b"])
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.assign([Q0], "a")
        await trio.sleep(1)
        pulls = len(group_cluster.broker.requests(RequestCode.PULL_MESSAGE))
        await consumer.assign([Q0], "a")
        await trio.sleep(1)
        assert len(group_cluster.broker.requests(RequestCode.PULL_MESSAGE)) == pulls
        assert await drain(consumer) == [b"m0-0", b"m0-2", b"m0-4"]


async def test_assigned_queues(autojump_clock, group_cluster):
    fill(group_cluster, 5)
    fill(group_cluster, 5, queue_id=1)
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.assign([Q1])
        assert await drain(consumer) == [b"m1-%d" % n for n in range(5)]
        await consumer.assign([Q0])
        # What was consumed is committed before a queue is given up.
        assert committed(group_cluster, 1) == 5
        assert await drain(consumer) == [b"m0-%d" % n for n in range(5)]
        assert consumer.assignment == [Q0]
        with pytest.raises(errors.InvalidCall, match="exclude each other"):
            await consumer.subscribe("T")
        with pytest.raises(errors.InvalidCall, match="not MessageQueue"):
            await consumer.assign(["T"])
        # Who assigns queues is not a member that others would share with.
        beat = HeartbeatData.decode(group_cluster.broker.requests(RequestCode.HEART_BEAT)[-1].body)
        assert beat.consumer_data_set[0].subscription_data_set == []


@pytest.mark.parametrize("one_by_one", [False, True])
async def test_several_tasks_wait_for_messages(autojump_clock, group_cluster, one_by_one):
    polled = []
    async with (
        group_cluster.client() as client,
        client.lite_pull_consumer("G", start_from="earliest", batch_max=4) as consumer,
        trio.open_nursery() as nursery,
    ):

        async def poll():
            while True:
                polled.extend([await anext(consumer)] if one_by_one else await consumer.poll(1000.0))
                await trio.sleep(0.01)

        await consumer.subscribe("T")
        await until(lambda: consumer.assignment == [Q0, Q1])
        for _ in range(3):
            nursery.start_soon(poll)
        await trio.sleep(1)
        fill(group_cluster, 20)
        await until(lambda: len(polled) == 20)
        await trio.sleep(1)
        await consumer.commit()
        assert (consumer.position(Q0), committed(group_cluster)) == (20, 20)
        nursery.cancel_scope.cancel()


async def test_limits_of_a_topic_are_divided_among_assigned_queues_at_once(autojump_clock, group_cluster):
    """They are taken one after the other, which takes long if a callback or a broker is slow."""
    fill(group_cluster, 400)
    fill(group_cluster, 400, queue_id=1)

    async def slow(_queues):
        await trio.sleep(10)

    def held(consumer):
        return {each.queue_id: source.process.count for each, source in consumer._member.engine.queues.items()}

    queues = [triomq.MessageQueue("T", "broker-a", number) for number in range(2)]
    async with (
        group_cluster.client() as client,
        client.lite_pull_consumer(
            "G",
            start_from="earliest",
            batch_max=32,
            limits=triomq.FlowLimits(topic_count=100),
            callbacks=triomq.ConsumerCallbacks(on_assigned=slow),
        ) as consumer,
    ):
        await consumer.assign(queues)
        await trio.sleep(5)
        # 64 is the first that is more than 50, half of the limit.
        assert held(consumer) == {0: 64, 1: 64}
        await consumer.assign(queues[:1])
        await trio.sleep(5)
        assert held(consumer) == {0: 128}  # one queue has the whole limit


async def test_assigning_while_the_consumer_is_closed(autojump_clock, group_cluster):
    """Neither the call under way nor the one that waits for it takes a queue, or gives one up."""
    called = []
    callbacks = triomq.ConsumerCallbacks(on_assigned=called.append, on_revoked=called.append)

    async def late(command):
        await trio.sleep(2)
        return group_cluster.broker.serve(command)

    async def assign(queue):
        with pytest.raises(errors.ClientClosed, match="the consumer of group G is closed"):
            await consumer.assign([queue])

    group_cluster.broker.script(RequestCode.QUERY_CONSUMER_OFFSET, late, late)
    async with group_cluster.client() as client, trio.open_nursery() as nursery:
        consumer = client.lite_pull_consumer("G", start_from="earliest", callbacks=callbacks)
        for queue in (Q0, Q1):
            nursery.start_soon(assign, queue)
            await trio.sleep(0.5)
        await consumer.aclose()
    assert not called


async def test_assigning_at_several_brokers_while_the_consumer_is_closed(autojump_clock, group_cluster):
    """A queue that waits for the callback of another broker's is not assigned any more."""
    second = group_cluster.add_master("broker-b")
    second.consumers.serves_groups = True
    called = []

    async def assigned(queues):
        called.extend(queues)
        await trio.sleep(2)

    callbacks = triomq.ConsumerCallbacks(on_assigned=assigned)
    async with group_cluster.client() as client, trio.open_nursery() as nursery:
        consumer = client.lite_pull_consumer("G", start_from="earliest", callbacks=callbacks)

        @nursery.start_soon
        async def assign():
            with pytest.raises(errors.ClientClosed, match="the consumer of group G is closed"):
                await consumer.assign([Q0, triomq.MessageQueue("T", "broker-b", 0)])

        await trio.sleep(1)
        await consumer.aclose()
    assert len(called) == 1


@pytest.mark.parametrize(("second", "polled"), [([Q0], 5), ([Q0, Q1], 10), ([Q1], 5), ([], 0)])
async def test_assigning_twice_at_once(autojump_clock, group_cluster, second, polled):
    """The second call comes while the first one asks for the group's offset."""
    fill(group_cluster, 5)
    fill(group_cluster, 5, queue_id=1)

    async def late(command):
        await trio.sleep(1)
        return group_cluster.broker.serve(command)

    group_cluster.broker.script(RequestCode.QUERY_CONSUMER_OFFSET, late)
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.assign, [Q0])
            await trio.sleep(0.5)
            nursery.start_soon(consumer.assign, second)
        assert consumer.assignment == second
        bodies = await drain(consumer)
        assert len(bodies) == len(set(bodies)) == polled


async def test_assigning_in_a_callback(autojump_clock, group_cluster):
    refused = []

    async def revoked(_queues):
        with pytest.raises(errors.InvalidCall, match=r"assign\(\) waits for all callbacks") as caught:
            await consumer.assign([Q0])
        refused.append(caught.value)

    async with group_cluster.client() as client:
        callbacks = triomq.ConsumerCallbacks(on_revoked=revoked)
        async with client.lite_pull_consumer("G", callbacks=callbacks) as consumer:
            await consumer.assign([Q0])
            await consumer.assign([Q1])
            assert len(refused) == 1
            assert consumer.assignment == [Q1]
            await consumer.assign([])


async def test_seeking(autojump_clock, group_cluster):
    fill(group_cluster, 10)
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.assign([Q0])
        assert len(await drain(consumer)) == 10
        await consumer.seek(Q0, 7)
        assert await drain(consumer) == [b"m0-7", b"m0-8", b"m0-9"]
        await consumer.seek_to_begin()
        assert len(await drain(consumer)) == 10
        await consumer.seek_to_begin(Q0)
        await consumer.seek_to_end(Q0)
        assert await drain(consumer) == []
        fill(group_cluster, 1, first=10)
        assert await drain(consumer) == [b"m0-10"]
        # The fake broker stores one message per millisecond.
        await consumer.seek_to_time(1_700_000_000_009, Q0)
        assert await drain(consumer) == [b"m0-9", b"m0-10"]
        for offset in (-1, 12):
            with pytest.raises(errors.InvalidCall, match="only 0 to 11"):
                await consumer.seek(Q0, offset)
        with pytest.raises(errors.InvalidCall, match="not assigned"):
            await consumer.seek(Q1, 0)
        # A seek back is committed, too.
        await consumer.seek(Q0, 2)
        await trio.sleep(6)
    assert committed(group_cluster) == 2


async def test_a_seek_discards_fetched_messages(autojump_clock, group_cluster):
    fill(group_cluster, 10)
    async with (
        group_cluster.client() as client,
        client.lite_pull_consumer("G", start_from="earliest", batch_max=2) as consumer,
    ):
        await consumer.assign([Q0])
        assert [message.queue_offset for message in await consumer.poll()] == [0, 1]
        await trio.sleep(1)
        await consumer.seek(Q0, 8)
        assert [message.queue_offset for message in await consumer.poll()] == [8, 9]
        assert consumer.position(Q0) == 8


async def test_pausing(autojump_clock, group_cluster):
    fill(group_cluster, 4)
    fill(group_cluster, 4, queue_id=1)
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.assign([Q0, Q1])
        assert len(await drain(consumer)) == 8
        consumer.pause(Q0)
        await trio.sleep(30)
        fill(group_cluster, 1, first=4)
        fill(group_cluster, 1, first=4, queue_id=1)
        # No pull is held any more that was sent before the pause.
        assert await drain(consumer) == [b"m1-4"]
        consumer.resume(Q0)
        assert await drain(consumer) == [b"m0-4"]


async def test_fetching_ahead_has_limits(autojump_clock, group_cluster):
    fill(group_cluster, 500)
    fill(group_cluster, 500, queue_id=1)
    async with (
        group_cluster.client() as client,
        client.lite_pull_consumer("G", start_from="earliest", batch_max=10, held_max=50) as consumer,
    ):
        await consumer.subscribe("T")
        await trio.sleep(30)
        pulled = sum(
            command.header(PullMessageRequest).max_msg_nums
            for command in group_cluster.broker.requests(RequestCode.PULL_MESSAGE)
        )
        # Beyond the limit by one pull of each queue at most.
        assert pulled <= 50 + 3 * 10
        assert len(await drain(consumer)) == 1000


async def test_messages_given_up_are_held_no_longer(autojump_clock, group_cluster):
    fill(group_cluster, 500)
    fill(group_cluster, 500, queue_id=1)
    async with (
        group_cluster.client() as client,
        client.lite_pull_consumer("G", start_from="earliest", batch_max=10, held_max=50) as consumer,
    ):
        member = consumer._member

        def held():
            return sum(source.process.count for source in member.engine.queues.values())

        await consumer.assign([Q0, Q1])
        for _ in range(20):
            await trio.sleep(1)
            (message, *_) = await consumer.poll()
            await consumer.seek(message.queue, 0)  # what was polled and what was fetched ahead are given up
            assert member._held == held()
        await consumer.assign([Q0])
        await trio.sleep(1)
        assert 50 < member._held == held() <= 60
        await consumer.seek(Q0, 0)
        assert len(await drain(consumer)) == 500
        assert member._held == held() == 0


async def test_a_pull_looks_at_no_other_queue(autojump_clock, group_cluster):
    """With tens of thousands of queues pulls would otherwise use the whole loop."""

    class Queues(dict):
        looks = 0

        def values(self):
            self.looks += 1
            return super().values()

    queues = [triomq.MessageQueue("T", "broker-a", number) for number in range(40)]
    async with (
        group_cluster.client() as client,
        client.lite_pull_consumer("G", auto_commit=False, start_from="earliest") as consumer,
    ):
        consumer._member.engine.queues = Queues()
        await consumer.assign(queues)
        await until(lambda: len(group_cluster.broker.requests(RequestCode.PULL_MESSAGE)) == len(queues))
        assert consumer._member.engine.queues.looks < 5


async def test_waiting_for_a_message(autojump_clock, group_cluster):
    async with group_cluster.client() as client, client.lite_pull_consumer("G") as consumer:
        await consumer.subscribe("T")
        start = trio.current_time()
        assert await consumer.poll(7.0) == []
        assert trio.current_time() - start == pytest.approx(7.0, abs=0.1)
        async with trio.open_nursery() as nursery:

            async def later():
                await trio.sleep(40)
                fill(group_cluster, 1)
                group_cluster.broker.consumers.arrival.set()

            nursery.start_soon(later)
            (message,) = await consumer.poll(100)
        assert message.body == b"m0-0"
        with pytest.raises(errors.InvalidCall):
            await consumer.poll(-1)


async def test_queues_change_their_member_without_a_gap(autojump_clock, group_cluster):
    fill(group_cluster, 60)
    fill(group_cluster, 60, queue_id=1)
    calls = []

    async def assigned(queues):
        await trio.lowlevel.checkpoint()
        calls.append(("one", "assigned", *queues))

    async with group_cluster.client(instance_name="1") as one, one.lite_pull_consumer(
        "G", start_from="earliest", batch_max=10, callbacks=triomq.ConsumerCallbacks(
            on_assigned=assigned, on_revoked=lambda queues: calls.append(("one", "revoked", *queues))),
    ) as first:  # fmt: skip
        await first.subscribe("T")
        seen = [message.body for _ in range(4) for message in await first.poll()]
        assert calls == [("one", "assigned", Q0), ("one", "assigned", Q1)]
        async with group_cluster.client(instance_name="2") as two, two.lite_pull_consumer("G") as second:
            await second.subscribe("T")
            while not second.assignment:
                seen += [message.body for message in await first.poll(1)]
            assert calls[2:] == [("one", "revoked", Q1)]
            assert (first.assignment, second.assignment) == ([Q0], [Q1])
            seen += await drain(second) + await drain(first)
        await trio.sleep(2)
        # The others learn of a member that leaves at once.
        assert first.assignment == [Q0, Q1]
    assert set(seen) == {b"m%d-%d" % (queue, n) for queue in (0, 1) for n in range(60)}


async def test_an_illegal_offset_may_end_it(autojump_clock, group_cluster):
    fill(group_cluster, 3)
    group_cluster.broker.offsets["G", "T", 0] = 1000
    events = []
    async with (
        group_cluster.client() as client,
        client.lite_pull_consumer(
            "G", illegal_offset="raise", callbacks=triomq.ConsumerCallbacks(on_event=events.append)
        ) as consumer,
    ):
        await consumer.assign([Q0])
        with pytest.raises(errors.OffsetIllegal, match="has no offset 1000"):
            await consumer.poll()
        assert [event.kind for event in events] == ["offset_illegal"]


async def test_what_operators_ask(autojump_clock, group_cluster):
    fill(group_cluster, 10)
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.subscribe("T", "*")
        assert len(await drain(consumer)) == 10
        info = consumer._member.running_info()
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
        assert [each.topic for each in info.subscription_set] == ["T"]
        assert consumer._member.positions_of("T") == {Q0: 10, Q1: 0}
        # A reset by time, which Java's lite consumers overlook, is followed.
        await consumer._member.reset("T", {Q0: 8, triomq.MessageQueue("T", "broker-x", 0): 5})
        assert committed(group_cluster) == 8
        assert await drain(consumer) == [b"m0-8", b"m0-9"]
        result = await consumer._member.consume_directly(b"", "broker-a")
        assert result.consume_result == "CR_RETURN_NULL"


async def test_a_reset_of_queues_that_are_given_up_meanwhile(autojump_clock, group_cluster):
    """The broker takes its time to keep the first queue's offset; another member takes the second one over."""
    fill(group_cluster, 10)
    broker = group_cluster.broker

    async def slow(command):
        await trio.sleep(1)
        return broker.update_offset(command)

    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.assign([Q0, Q1])
        assert len(await drain(consumer)) == 10
        broker.script(RequestCode.UPDATE_CONSUMER_OFFSET, slow, slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer._member.reset, "T", {Q0: 8, Q1: 0})
            await trio.sleep(0.5)
            await consumer.assign([Q0])
        assert consumer.assignment == [Q0]
        assert committed(group_cluster) == 8
        assert await drain(consumer) == [b"m0-8", b"m0-9"]


async def test_wrong_arguments(autojump_clock, group_cluster):
    async with group_cluster.client() as client:
        for wrong in ({"batch_max": 0}, {"held_max": 0}, {"model": "both"}, {"start_from": "middle"},
                      {"illegal_offset": "never"}, {"read_preference": "none"}):  # fmt: skip
            with pytest.raises(errors.InvalidCall):
                client.lite_pull_consumer("G", **wrong)
        with pytest.raises(errors.InvalidCall):
            client.lite_pull_consumer("a b")
        # None of the failures has left the group taken.
        consumer = client.lite_pull_consumer("G")
        with pytest.raises(errors.InvalidCall, match="has a consumer of group G already"):
            client.lite_pull_consumer("G")
        await consumer.aclose()
        await consumer.aclose()
        with pytest.raises(errors.ClientClosed):
            await consumer.poll()
        async for _ in consumer:
            raise AssertionError("a closed consumer has no messages")


class Kept:
    """An offset store of one's own."""

    def __init__(self):
        self.offsets = {}

    async def read(self, queue, /):
        await trio.lowlevel.checkpoint()
        return self.offsets.get(queue)

    async def commit(self, offsets, /):
        await trio.lowlevel.checkpoint()
        self.offsets.update(offsets)


async def test_broadcast_gives_every_member_all(autojump_clock, group_cluster):
    fill(group_cluster, 5)
    fill(group_cluster, 5, queue_id=1)
    stores = [Kept(), Kept()]
    options = {"model": "broadcasting", "start_from": "earliest"}
    async with (
        group_cluster.client(instance_name="1") as one,
        group_cluster.client(instance_name="2") as two,
        one.lite_pull_consumer("G", offset_store=stores[0], **options) as first,
        two.lite_pull_consumer("G", offset_store=stores[1], **options) as second,
    ):
        await first.subscribe("T")
        await second.subscribe("T")
        assert len(await drain(first)) == len(await drain(second)) == 10
    assert [store.offsets for store in stores] == [{Q0: 5, Q1: 5}] * 2
    assert committed(group_cluster) is None


async def test_cancelled_polls_lose_nothing(autojump_clock, group_cluster, cancel_at_step):
    fill(group_cluster, 3)
    for step in range(1, 12):
        async with (
            group_cluster.client() as client,
            client.lite_pull_consumer(f"G{step}", start_from="earliest") as consumer,
        ):
            await consumer.assign([Q0])
            await trio.sleep(1)
            batch = []
            with cancel_at_step(step):
                batch = await consumer.poll()
            if not batch:
                batch = await consumer.poll()
            assert [message.queue_offset for message in batch] == [0, 1, 2]


async def asked_by_broker(cluster, request, *, seconds=1.0):
    """The broker's request over the link that carried the heartbeat; what came back, if anything did."""
    (stream,) = cluster.broker.consumers.members["G"].values()
    before = len(cluster.broker.seen)
    await cluster.broker.push_to(stream, request)
    await trio.sleep(seconds)
    return [command for command in cluster.broker.seen[before:] if command.is_response]


async def test_a_brokers_reset_reaches_the_consumer(autojump_clock, group_cluster):
    fill(group_cluster, 10)
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.subscribe("T")
        assert len(await drain(consumer)) == 10
        header = ResetOffsetRequest(topic="T", group="G", timestamp=0, is_force=False)
        body = ResetOffsetBody(offset_table={Q0: 6}).encode()
        assert not await asked_by_broker(
            group_cluster, Command.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body=body, oneway=True)
        )
        assert await drain(consumer) == [b"m0-6", b"m0-7", b"m0-8", b"m0-9"]
        header = GetConsumerRunningInfoRequest(consumer_group="G", client_id="c", jstack_enable=True)
        (answer,) = await asked_by_broker(group_cluster, Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header))
        info = ConsumerRunningInfo.decode(answer.body)
        assert "MainThread" in (info.jstack or "")
        assert info.properties["PROP_NAMESERVER_ADDR"].endswith(";")


@pytest.mark.parametrize("cancelled", [False, True])
async def test_leaving_gives_up_the_queues(autojump_clock, group_cluster, cancelled):
    """`on_revoked` may take its time, but cannot keep a cancelled consumer from ending."""
    group_cluster.broker.store("T", 0, b"x")
    calls = []

    async def revoked(queues):
        calls.extend(queues)
        await trio.sleep(40)
        calls.append("done")

    async with group_cluster.client() as client:
        with trio.CancelScope() as scope:
            async with client.lite_pull_consumer(
                "G", start_from="earliest", callbacks=triomq.ConsumerCallbacks(on_revoked=revoked)
            ) as consumer:
                await consumer.subscribe("T")
                assert len(await consumer.poll()) == 1
                await consumer.commit()
                queues = consumer.assignment
                left = trio.current_time()
                if cancelled:
                    scope.cancel()
        assert trio.current_time() - left == pytest.approx(2 if cancelled else 40, abs=1)
        assert not group_cluster.broker.consumers.members["G"]
    assert calls == (queues if cancelled else [*queues, "done"])
    assert group_cluster.broker.offsets["G", "T", 0] == 1


async def test_a_name_server_that_starts_late_is_noticed_soon(autojump_clock, group_cluster):
    """A program that starts before its cluster does: what is missing longer is not looked for less often."""
    fill(group_cluster, 1)
    await group_cluster.name_server.stop()
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.subscribe("T")
        await trio.sleep(17)
        group_cluster.name_server.up = True
        ready = trio.current_time()
        await anext(consumer)
        assert trio.current_time() - ready < 3
