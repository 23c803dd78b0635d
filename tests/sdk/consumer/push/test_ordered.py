"""Ordered consumers: one message of a queue after the other, only under a lock."""

# ruff: noqa: ASYNC110 - the order of blocks is what is tested; conditions live in the fake broker

from __future__ import annotations

import itertools

import pytest
import trio
from consumer_broker import MemoryOffsets, until

import triomq
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests.group_admin import ResetOffsetBody, ResetOffsetRequest
from triomq_protocol.requests.pull import PullMessageRequest, PullMessageResponse
from triomq_protocol.wire.command import Command

Q0 = triomq.MessageQueue("T", "broker-a", 0)
Q1 = triomq.MessageQueue("T", "broker-a", 1)


def fill(cluster, count, *, queue_id=0):
    for number in range(count):
        cluster.broker.store("T", queue_id, b"%d" % number, b"UNIQ_KEY\x01K%d-%d" % (queue_id, number))


def committed(cluster, queue_id=0):
    return cluster.broker.offsets.get(("G", "T", queue_id))


def locks(cluster, kind="lock"):
    """(time, client, queues of T) of every lock or unlock request that names one of them."""
    found = [
        (at, client, tuple(queue.queue_id for queue in queues if queue.topic == "T"))
        for at, what, client, queues in cluster.broker.consumers.lock_requests
        if what == kind
    ]
    return [each for each in found if each[2]]


async def serve(consumer, handler, task_status=trio.TASK_STATUS_IGNORED):
    async with consumer:
        await consumer.subscribe("T")
        task_status.started(consumer)
        await consumer.run(handler)


async def test_queues_side_by_side_messages_one_after_the_other(autojump_clock, group_cluster):
    fill(group_cluster, 20)
    fill(group_cluster, 20, queue_id=1)
    seen, at_work, most = [], set(), []

    async def handler(message):
        assert message.queue_id not in at_work
        at_work.add(message.queue_id)
        most.append(len(at_work))
        await trio.sleep(0.1)
        at_work.discard(message.queue_id)
        seen.append((message.queue_id, int(message.body)))

    async with group_cluster.client() as client, trio.open_nursery() as nursery:
        consumer = await nursery.start(serve, client.push_consumer("G", ordered=True, start_from="earliest"), handler)
        await until(lambda: len(seen) == 40)
        consumer.drain()
    for queue_id in (0, 1):
        assert [number for where, number in seen if where == queue_id] == list(range(20))
    assert max(most) == 2
    assert (committed(group_cluster), committed(group_cluster, 1)) == (20, 20)
    # Locked before anything was pulled, given back at the end.
    assert locks(group_cluster)[0][2] == (0,)
    assert set(locks(group_cluster, "unlock")[-1][2]) == {0, 1}
    assert not any(queue.topic == "T" for _, queue in group_cluster.broker.consumers.locks)


async def test_a_failure_is_retried_in_place(autojump_clock, group_cluster):
    fill(group_cluster, 3)
    seen = []

    async def handler(message):
        seen.append((int(message.body), message.reconsume_times, trio.current_time()))
        if message.body == b"1" and message.reconsume_times == 0:
            raise ValueError("once")
        if message.body == b"1" and message.reconsume_times == 1:
            raise triomq.Later(suspend_s=5)

    async with group_cluster.client() as client, trio.open_nursery() as nursery:
        consumer = await nursery.start(serve, client.push_consumer("G", ordered=True, start_from="earliest"), handler)
        await until(lambda: len(seen) == 5)
        consumer.drain()
    assert [each[:2] for each in seen] == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert 1 <= seen[2][2] - seen[1][2] < 1.5
    assert 5 <= seen[3][2] - seen[2][2] < 5.5
    assert committed(group_cluster) == 3
    assert not group_cluster.broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK)


async def test_how_long_a_queue_rests_can_be_set(autojump_clock, group_cluster):
    fill(group_cluster, 1)
    seen = []

    async def handler(message):
        seen.append(trio.current_time())
        if len(seen) < 3:
            raise ValueError("not yet")

    async with group_cluster.client() as client, trio.open_nursery() as nursery:
        consumer = client.push_consumer(
            "G", ordered=True, start_from="earliest", retries=triomq.ConsumeRetries(suspend_s=4)
        )
        await nursery.start(serve, consumer, handler)
        await until(lambda: len(seen) == 3)
        assert consumer._member.running_info().properties["suspendCurrentQueueTimeMillis"] == "4000"
        consumer.drain()
    rests_s = [later - before for before, later in itertools.pairwise(seen)]
    assert rests_s == pytest.approx([4, 4], abs=0.3)


async def test_too_many_failures_make_a_dead_letter(autojump_clock, group_cluster):
    fill(group_cluster, 2)
    seen = []

    async def handler(message):
        seen.append((int(message.body), message.reconsume_times))
        if message.body == b"0":
            raise ValueError("always")

    async with group_cluster.client() as client, trio.open_nursery() as nursery:
        consumer = client.push_consumer(
            "G", ordered=True, start_from="earliest", retries=triomq.ConsumeRetries(max_times=2)
        )
        await nursery.start(serve, consumer, handler)
        await until(lambda: group_cluster.broker.queues["%DLQ%G", 0])
        await until(lambda: len(seen) == 4)
        consumer.drain()
    assert seen == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert committed(group_cluster) == 2


async def test_locks_are_renewed_however_long_a_handler_takes(autojump_clock, group_cluster):
    fill(group_cluster, 2)
    seen = []

    async def handler(message):
        await trio.sleep(100)
        seen.append(trio.current_time())

    async with group_cluster.client() as client, trio.open_nursery() as nursery:
        consumer = client.push_consumer("G", ordered=True, start_from="earliest")
        await nursery.start(serve, consumer, handler)
        await until(lambda: len(seen) == 2)
        consumer.drain()
    times = [at for at, _, _ in locks(group_cluster)]
    assert all(later - earlier <= 20.5 for earlier, later in itertools.pairwise(times))
    assert committed(group_cluster) == 2


async def test_without_a_valid_lock_nothing_is_handled(autojump_clock, group_cluster):
    fill(group_cluster, 100)
    broker = group_cluster.broker
    seen = []

    async def handler(message):
        seen.append(trio.current_time())
        await trio.sleep(2)

    async with group_cluster.client() as client, trio.open_nursery() as nursery:
        consumer = client.push_consumer("G", ordered=True, start_from="earliest", drain_s=3)
        await nursery.start(serve, consumer, handler)
        await until(lambda: len(seen) == 5)
        renewed = locks(group_cluster)[-1][0]
        broker.script(RequestCode.LOCK_BATCH_MQ, *[None] * 12)  # silence
        await trio.sleep(45)
        # The client relies on a lock for 30 s; the broker would keep it for 60.
        assert renewed + 27 < seen[-1] <= renewed + 30.1
        count = len(seen)
        await until(lambda: len(seen) > count)
        consumer.drain()


async def test_a_lock_that_ran_out_while_a_handler_failed(autojump_clock, group_cluster):
    """The task whose handler has failed must not compare the next queue's lock with an earlier time."""
    for queue_id in (0, 1):
        fill(group_cluster, 1, queue_id=queue_id)
    seen = []

    async def handler(message):
        seen.append(message.queue_id)
        await trio.sleep(100)
        raise ValueError

    async with (
        group_cluster.client() as client,
        client.push_consumer("G", ordered=True, start_from="earliest", drain_s=0) as consumer,
        trio.open_nursery() as nursery,
    ):
        await consumer.subscribe("T")
        await until(lambda: consumer.assignment == [Q0, Q1])
        group_cluster.broker.script(RequestCode.LOCK_BATCH_MQ, *[None] * 200)  # silence
        nursery.start_soon(lambda: consumer.run(handler, concurrency=1))
        await trio.sleep(110)
        assert seen == [0]
        nursery.cancel_scope.cancel()


async def test_a_lock_that_another_member_took(autojump_clock, group_cluster):
    fill(group_cluster, 10)
    broker = group_cluster.broker
    seen, events = [], []

    async def handler(message):
        seen.append(int(message.body))
        await trio.sleep(3)

    async with group_cluster.client() as client, trio.open_nursery() as nursery:
        consumer = client.push_consumer(
            "G",
            ordered=True,
            start_from="earliest",
            callbacks=triomq.ConsumerCallbacks(on_event=events.append),
            drain_s=5,
        )
        await nursery.start(serve, consumer, handler)
        await until(lambda: len(seen) == 3)
        # An operator, or a broker that lost its memory: it is another member's now, who gets on to offset 8.
        broker.consumers.locks["G", Q0] = ("another", trio.current_time() + 30)
        await until(lambda: events)
        count = len(seen)
        broker.offsets["G", "T", 0] = 8
        await trio.sleep(8)
        assert len(seen) == count
        assert broker.offsets["G", "T", 0] == 8
        await until(lambda: len(seen) == count + 2)
        await trio.sleep(4)
        consumer.drain()
    assert [each.kind for each in events] == ["lock_lost"]
    assert seen[count:] == [8, 9]
    assert committed(group_cluster) == 10


async def test_an_illegal_offset_in_a_queue_that_another_member_took(
    autojump_clock, group_cluster, open_consumer, events
):
    """The answer comes after the lock was lost: the offset is the other member's by then."""
    broker = group_cluster.broker
    fill(group_cluster, 10)
    seen = []

    async def handle(message):
        seen.append(message.queue_offset)

    async def late(command):
        await until(lambda: "lock_lost" in events.kinds())
        broker.offsets["G", "T", 0] = 8
        header = command.header(PullMessageRequest)
        answer = PullMessageResponse(
            suggest_which_broker_id=0, next_begin_offset=5, min_offset=5, max_offset=header.queue_offset
        )
        return command.answer(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", answer)

    def pull(command):
        header = command.header(PullMessageRequest)
        if header.topic == "T" and header.queue_id == 0 and header.queue_offset == 10 and not events:
            broker.consumers.locks["G", Q0] = ("other", trio.current_time() + 60)
            return late(command)
        return served(command)

    served, broker.pull = broker.pull, pull
    async with open_consumer(ordered=True) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, handle)
        await until(lambda: len(seen) == 10)
        await trio.sleep(40)
        assert events.kinds() == ["lock_lost"]
        assert broker.offsets["G", "T", 0] == 8
        await until(lambda: seen[10:] == [8, 9])
        consumer.drain()


async def test_a_seek_in_a_queue_that_another_member_has_locked(autojump_clock, group_cluster, open_consumer, events):
    """That member has committed 77, which must stay; later this one can seek again."""
    fill(group_cluster, 5)
    seen = []

    async def handle(message):
        seen.append(message.queue_offset)

    async with open_consumer(ordered=True) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, handle)
        await until(lambda: len(seen) == 5)
        held = group_cluster.broker.consumers.locks
        held.update(dict.fromkeys(held, ("other", trio.current_time() + 100)))
        await until(lambda: "lock_lost" in events.kinds())
        group_cluster.broker.offsets["G", "T", 0] = 77
        with pytest.raises(triomq.errors.InvalidCall, match="is locked by another member; seek again when"):
            await consumer.seek(Q0, 2)
        await trio.sleep(40)
        assert committed(group_cluster) == 77
        group_cluster.broker.offsets["G", "T", 0] = 5
        await trio.sleep(100)
        await consumer.seek(Q0, 3)
        await until(lambda: seen[5:] == [3, 4])
        consumer.drain()


async def test_a_seek_in_all_queues_of_which_another_member_has_locked_one(
    autojump_clock, group_cluster, open_consumer, events
):
    fill(group_cluster, 3, queue_id=1)
    seen = []

    async def handle(message):
        seen.append(message.queue_offset)

    async with open_consumer(ordered=True) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, handle)
        await until(lambda: len(seen) == 3)
        group_cluster.broker.consumers.locks["G", Q0] = ("other", trio.current_time() + 100)
        await until(lambda: "lock_lost" in events.kinds())
        with pytest.raises(triomq.errors.InvalidCall, match=r"queueId=0\] is locked by another member"):
            await consumer.seek_to_begin()
        await until(lambda: seen[3:] == [0, 1, 2])
        consumer.drain()


async def test_a_reset_of_a_queue_that_another_member_has_locked(autojump_clock, group_cluster, open_consumer, events):
    """That member carries it out, too, and has committed more since."""
    fill(group_cluster, 5)
    broker, seen = group_cluster.broker, []

    async def handle(message):
        seen.append(message.queue_offset)

    async with open_consumer(ordered=True) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, handle)
        await until(lambda: len(seen) == 5)
        held = broker.consumers.locks
        held.update(dict.fromkeys(held, ("other", trio.current_time() + 100)))
        await until(lambda: "lock_lost" in events.kinds())
        reset = Command.request(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            ResetOffsetRequest(topic="T", group="G", timestamp=0, is_force=True),
            body=ResetOffsetBody(offset_table={Q0: 2}).encode(),
            oneway=True,
        )
        (stream,) = broker.consumers.members["G"].values()
        await broker.push_to(stream, reset)
        broker.offsets["G", "T", 0] = 4
        await trio.sleep(40)
        assert committed(group_cluster) == 4
        await until(lambda: seen[5:] == [4])
        consumer.drain()
    assert "reset" not in events.kinds()


async def test_a_queue_is_given_up_only_between_two_messages(autojump_clock, group_cluster):
    fill(group_cluster, 30)
    fill(group_cluster, 30, queue_id=1)
    seen, at_work = [], set()

    def handler_of(name):
        async def handler(message):
            assert message.queue_id not in at_work
            at_work.add(message.queue_id)
            await trio.sleep(4)
            at_work.discard(message.queue_id)
            seen.append((message.queue_id, int(message.body), name))

        return handler

    async with group_cluster.client() as one, group_cluster.client() as two, trio.open_nursery() as nursery:
        first = client_consumer(one)
        await nursery.start(serve, first, handler_of("one"))
        await until(lambda: len(seen) == 4)
        second = client_consumer(two)
        await nursery.start(serve, second, handler_of("two"))
        await until(lambda: len(seen) == 60)
        first.drain()
        second.drain()
    for queue_id in (0, 1):
        assert [number for where, number, _ in seen if where == queue_id] == list(range(30))
    assert {name for _, _, name in seen} == {"one", "two"}


def client_consumer(client):
    return client.push_consumer("G", ordered=True, start_from="earliest", drain_s=10)


async def test_a_queue_is_not_pulled_while_on_revoked_runs(autojump_clock, group_cluster):
    """It had waited for its handler before; 5 s after that ended it would go on, were it not given up meanwhile."""
    for queue_id in (0, 1):
        fill(group_cluster, 5, queue_id=queue_id)
    begun, revoking = [], set()

    async def give_up(queues):
        revoking.update(queue.queue_id for queue in queues if queue.topic == "T")
        await trio.sleep(8)
        revoking.clear()

    async def slow(message):
        begun.append(message.queue_id)
        await trio.sleep(10 if len(begun) <= 2 else 40)

    async def quick(message):
        pass

    async with (
        group_cluster.client(instance_name="a") as a,
        group_cluster.client(instance_name="b") as b,
        trio.open_nursery() as nursery,
    ):
        callbacks = triomq.ConsumerCallbacks(on_revoked=give_up)
        one = a.push_consumer("G", ordered=True, start_from="earliest", drain_s=0, callbacks=callbacks)
        await nursery.start(serve, one, slow)
        await until(lambda: sorted(begun) == [0, 1])
        two = b.push_consumer("G", ordered=True, start_from="earliest", drain_s=0)
        await nursery.start(serve, two, quick)
        await until(lambda: revoking == {1})
        await until(lambda: two.assignment == [Q1])
        assert begun.count(1) == 1
        nursery.cancel_scope.cancel()


async def test_an_ordered_broadcast_locks_nothing(autojump_clock, group_cluster):
    fill(group_cluster, 10)
    seen = []

    async def handler(message):
        seen.append(int(message.body))
        if len(seen) == 3:
            raise ValueError("once")

    async with group_cluster.client() as client, trio.open_nursery() as nursery:
        store = MemoryOffsets()
        consumer = client.push_consumer(
            "G", ordered=True, model="broadcasting", start_from="earliest", offset_store=store
        )
        await nursery.start(serve, consumer, handler)
        await until(lambda: len(seen) == 11)
        consumer.drain()
    assert seen == [0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9]
    assert not group_cluster.broker.consumers.lock_requests


async def test_plain_handlers_keep_the_order(group_cluster):
    fill(group_cluster, 200)
    fill(group_cluster, 200, queue_id=1)
    seen, failed = [], []

    def handler(message):
        if message.body == b"77" and not failed:
            failed.append(message)
            raise triomq.Later(suspend_s=0.05)
        seen.append((message.queue_id, int(message.body)))

    with trio.fail_after(30):
        async with group_cluster.client() as client, trio.open_nursery() as nursery:
            consumer = client.push_consumer("G", ordered=True, start_from="earliest")
            await nursery.start(serve, consumer, handler)
            while len(seen) < 400:
                await trio.sleep(0.01)
            consumer.drain()
    for queue_id in (0, 1):
        assert [number for where, number in seen if where == queue_id] == list(range(200))
    assert committed(group_cluster) == 200


async def test_a_queue_stays_locked_while_a_handler_runs_longer_than_its_consumer(autojump_clock, group_cluster):
    """A function cannot be stopped: until it ends, or the lock runs out, no other member may begin."""
    fill(group_cluster, 2)
    fill(group_cluster, 1, queue_id=1)
    seen, went_on = [], []

    async def handler(message):
        seen.append(message.queue_id)
        if message.queue_id == 0:
            with trio.CancelScope(shield=True):
                await trio.sleep(30)
            went_on.append(trio.current_time())

    async with group_cluster.client() as client, trio.open_nursery() as nursery:
        consumer = client.push_consumer("G", ordered=True, start_from="earliest", drain_s=2)
        async with consumer:
            await consumer.subscribe("T")
            nursery.start_soon(consumer.run, handler)
            await until(lambda: sorted(seen) == [0, 1])
        assert not went_on
        assert [queues for _, _, queues in locks(group_cluster, "unlock")] == [(1,)]
        assert [queue for _, queue in group_cluster.broker.consumers.locks if queue.topic == "T"] == [Q0]
    assert committed(group_cluster) in (0, None)


async def test_an_unanswered_delivery_keeps_no_lock(autojump_clock, group_cluster):
    fill(group_cluster, 2)
    async with (
        group_cluster.client() as client,
        client.push_consumer("G", ordered=True, start_from="earliest") as consumer,
    ):
        await consumer.subscribe("T")
        await anext(consumer)
    assert not group_cluster.broker.consumers.locks


async def test_a_queue_that_cannot_be_begun_is_unlocked(autojump_clock, group_cluster):
    """Its share may be another member's in the next round."""
    fill(group_cluster, 2)
    broker = group_cluster.broker
    # Of the retry topic, and of the first queue.
    broker.script(RequestCode.QUERY_CONSUMER_OFFSET, *[lambda command: command.answer(1, "busy")] * 2)
    async with (
        group_cluster.client() as client,
        client.push_consumer("G", ordered=True, start_from="earliest") as consumer,
    ):
        await consumer.subscribe("T")
        assert (await anext(consumer)).message.body == b"0"
        assert [queues for _, _, queues in locks(group_cluster, "unlock")] == [(0,)]
        assert consumer.assignment == [Q0, Q1]


async def test_a_lock_does_not_expire_while_callbacks_of_other_queues_run(autojump_clock, group_cluster):
    """The locks of all brokers are taken at once, the callbacks are called one after the other."""
    brokers = [group_cluster.broker, *(group_cluster.add_master(f"broker-{name}") for name in "bcdefg")]
    group_cluster.name_server.add_route("T", *brokers, queues=1)
    for broker in brokers:
        broker.consumers.serves_groups = True
        broker.store("T", 0, b"x")
    assigned, handled = {}, {}

    async def on_assigned(queues):
        await trio.sleep(7)
        assigned.update((queue, trio.current_time()) for queue in queues if queue.topic == "T")

    async def handle(message):
        await trio.lowlevel.checkpoint()
        handled[message.queue] = trio.current_time()
        if len(handled) == len(brokers):
            consumer.drain()

    callbacks = triomq.ConsumerCallbacks(on_assigned=on_assigned)
    async with group_cluster.client() as client:
        consumer = client.push_consumer("G", ordered=True, start_from="earliest", callbacks=callbacks)
        async with consumer:
            await consumer.subscribe("T")
            await consumer.run(handle)
    assert handled == pytest.approx(assigned, abs=0.5)


async def test_a_queue_with_pulled_messages_is_the_next_member_s_at_once(autojump_clock, group_cluster):
    fill(group_cluster, 300)
    fill(group_cluster, 300, queue_id=1)
    seen = []

    async def slowly(message):
        await trio.sleep(0.5)

    async def quickly(message):
        seen.append((message.queue_id, trio.current_time()))

    async with group_cluster.client() as one, group_cluster.client() as two, trio.open_nursery() as nursery:
        first = client_consumer(one)
        await nursery.start(serve, first, slowly)
        await until(lambda: len(first.assignment) == 2)
        await trio.sleep(3)
        second = client_consumer(two)
        await nursery.start(serve, second, quickly)
        await until(lambda: len(first.assignment) == 1)
        given_up_s = trio.current_time()
        await until(lambda: seen)
        assert trio.current_time() - given_up_s < 5
        first.drain()
        second.drain()
