"""Push consumers: handled, committed and redelivered messages."""

# ruff: noqa: SIM117, ASYNC110 - the order of blocks is what is tested; conditions live in the fake broker

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext

import pytest
import trio
from consumer_broker import MemoryOffsets, until

import triomq
from triomq import errors
from triomq_protocol.codes import RequestCode

Q0 = triomq.MessageQueue("T", "broker-a", 0)
Q1 = triomq.MessageQueue("T", "broker-a", 1)


def fill(cluster, count, *, queue_id=0, tags=None, first=0):
    for number in range(first, first + count):
        properties = (
            f"TAGS\x01{tags[number % len(tags)]}\x02UNIQ_KEY\x01K{queue_id}-{number}"
            if tags
            else f"UNIQ_KEY\x01K{queue_id}-{number}"
        )
        cluster.broker.store("T", queue_id, b"m%d-%d" % (queue_id, number), properties.encode())


def committed(cluster, topic="T", queue_id=0):
    return cluster.broker.offsets.get(("G", topic, queue_id))


async def test_every_message_is_handled_and_committed(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, 100)
    fill(group_cluster, 50, queue_id=1)
    seen = []

    async def handler(message):
        seen.append(message.body)

    async with open_consumer() as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, handler)
        await until(lambda: len(seen) == 150)
        assert consumer.assignment == [Q0, Q1]
        consumer.drain()
    assert sorted(seen) == sorted([b"m0-%d" % n for n in range(100)] + [b"m1-%d" % n for n in range(50)])
    assert (committed(group_cluster), committed(group_cluster, queue_id=1)) == (100, 50)
    # The group has left: others need not wait until its heartbeat runs out.
    assert not group_cluster.broker.consumers.members["G"]


async def test_deliveries_are_answered_by_their_block(autojump_clock, group_cluster, open_consumer, caplog):
    fill(group_cluster, 4)
    seen = []
    async with open_consumer() as consumer:
        async for delivery in consumer:
            seen.append((delivery.message.body, delivery.message.reconsume_times))
            async with delivery:
                if seen[-1] == (b"m0-1", 0):
                    raise ValueError("the second one fails once")
                if seen[-1] == (b"m0-2", 0):
                    raise triomq.Later(2)
            if len(seen) == 6:
                break
        with pytest.raises(errors.InvalidCall, match="answered already"):
            await delivery.done()
    assert seen[:4] == [(b"m0-%d" % n, 0) for n in range(4)]
    # Later(2) is 5 s, the broker's own choice for a first failure is level 3, 10 s.
    assert seen[4:] == [(b"m0-2", 1), (b"m0-1", 1)]
    assert committed(group_cluster) == 4
    assert committed(group_cluster, "%RETRY%G") == 2
    assert "the second one fails once" in caplog.text


async def test_polls_take_what_is_there_and_wait_no_longer_than_asked(autojump_clock, group_cluster, open_consumer):
    async with open_consumer() as consumer:
        for wait_s in (0, 2.5):
            started = trio.current_time()
            assert await consumer.poll(wait_s) is None
            assert trio.current_time() - started == wait_s
        fill(group_cluster, 2)
        with trio.fail_after(60):
            first = await consumer.poll(60)
        assert first is not None
        await first.done()
        second = None
        while second is None:  # fetched with the first one
            second = await consumer.poll()
        assert {first.message.body, second.message.body} == {b"m0-0", b"m0-1"}
        assert await consumer.poll() is None
        await second.done()
        with pytest.raises(errors.InvalidCall, match="not at least 0"):
            await consumer.poll(-1)
        consumer.drain()
        assert await consumer.poll(60) is None
    with pytest.raises(errors.ClientClosed):
        await consumer.poll()
    assert committed(group_cluster) == 2


async def test_an_unanswered_delivery_is_not_consumed(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, 3)
    async with open_consumer() as consumer:
        first = await anext(consumer)
        second = await anext(consumer)
        await second.done()
        assert (first.message.body, second.message.body) == (b"m0-0", b"m0-1")
    assert committed(group_cluster) == 0
    async with open_consumer() as consumer:
        assert (await anext(consumer)).message.body == b"m0-0"


async def test_retries_end_in_the_dead_letters(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, 1)
    seen = []

    async def handler(message):
        seen.append((message.topic, message.reconsume_times, message.queue.topic, round(trio.current_time())))
        raise ValueError("never")

    async with open_consumer(retries=triomq.ConsumeRetries(max_times=2)) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, handler)
        await until(lambda: group_cluster.broker.queues["%DLQ%G", 0])
        consumer.drain()
    # The handler sees the topic the message was sent to; levels 3 and 4 are 10 and 30 s.
    assert [each[:3] for each in seen] == [("T", 0, "T"), ("T", 1, "%RETRY%G"), ("T", 2, "%RETRY%G")]
    assert seen[1][3] - seen[0][3] >= 10
    assert seen[2][3] - seen[1][3] >= 30
    assert (committed(group_cluster), committed(group_cluster, "%RETRY%G")) == (1, 2)


async def test_a_copy_is_sent_when_the_broker_does_not_take_a_message_back(
    autojump_clock, group_cluster, open_consumer
):
    fill(group_cluster, 1, tags=["a"])
    seen = []
    broker = group_cluster.broker
    broker.script(RequestCode.CONSUMER_SEND_MSG_BACK, lambda command: command.answer(1, "no"))

    async def handler(message):
        seen.append(message)
        if len(seen) == 1:
            raise triomq.Later

    async with open_consumer() as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, handler)
        await until(lambda: len(seen) == 2)
        consumer.drain()
    assert len(broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1
    again = seen[1]
    assert (again.topic, again.body, again.reconsume_times, again.tags) == ("T", b"m0-0", 1, "a")
    assert again.properties["RETRY_TOPIC"] == "T"
    assert again.properties["ORIGIN_MESSAGE_ID"] == seen[0].message_id == again.message_id
    assert committed(group_cluster) == 1


async def test_a_message_no_broker_takes_back_is_tried_here_again(autojump_clock, group_cluster, open_consumer, events):
    fill(group_cluster, 2)
    seen = []
    broker = group_cluster.broker

    def refuse(command):
        return command.answer(16, "no")

    broker.script(RequestCode.CONSUMER_SEND_MSG_BACK, refuse)
    broker.script(RequestCode.SEND_MESSAGE_V2, *[refuse] * 9)

    async def handler(message):
        seen.append((message.body, message.reconsume_times, trio.current_time()))
        if len(seen) == 1:
            raise ValueError("once")

    async with open_consumer() as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, handler)
        await until(lambda: len(seen) == 2)
        await trio.sleep(1)
        # It has not left its queue: nothing is committed past it.
        assert consumer._member.positions_of("T")[Q0] == 0
        await until(lambda: len(seen) == 3)
        consumer.drain()
    assert [each[:2] for each in seen] == [(b"m0-0", 0), (b"m0-1", 0), (b"m0-0", 1)]
    assert seen[2][2] - seen[0][2] >= 5
    assert [each.kind for each in events] == ["send_back_failed"]
    assert committed(group_cluster) == 2


async def test_the_commit_point_is_the_smallest_unfinished_offset(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, 40)
    stuck = trio.Event()
    seen = []

    async def handler(message):
        if message.body == b"m0-7":
            await stuck.wait()
        seen.append(message.body)

    async with open_consumer() as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, handler)
        await until(lambda: len(seen) == 39)
        await trio.sleep(20)
        assert committed(group_cluster) == 7
        stuck.set()
        await trio.sleep(20)
        assert committed(group_cluster) == 40
        consumer.drain()


async def test_pulling_pauses_when_enough_is_held(autojump_clock, group_cluster):
    fill(group_cluster, 400)
    gate = trio.Event()
    done = []

    async def handler(message):
        await gate.wait()
        done.append(message.body)

    async with group_cluster.client() as client:
        limits = triomq.FlowLimits(count=100)
        async with client.push_consumer("G", start_from="earliest", limits=limits) as consumer:
            async with trio.open_nursery() as nursery:
                await consumer.subscribe("T")
                nursery.start_soon(consumer.run, handler)
                await trio.sleep(60)
                process = consumer._member.engine.queues[Q0].process
                # 96 is not more than 100, so one more page comes: Java's `>`.
                assert process.count == 128
                assert process.exceeds(limits) == "count"
                gate.set()
                await until(lambda: len(done) == 400)
                consumer.drain()
    assert committed(group_cluster) == 400


async def test_span_and_bytes_are_limits_too(autojump_clock, group_cluster):
    fill(group_cluster, 400)
    stuck = trio.Event()
    done = []

    async def handler(message):
        if message.body == b"m0-0":
            await stuck.wait()
        done.append(message.body)

    async with group_cluster.client() as client:
        for group, limits, held in (
            ("G", triomq.FlowLimits(span=64), 1),
            ("G2", triomq.FlowLimits(size_bytes=1), 1),
        ):
            done.clear()
            stuck = trio.Event()
            async with client.push_consumer(group, start_from="earliest", limits=limits) as consumer:
                async with trio.open_nursery() as nursery:
                    await consumer.subscribe("T")
                    nursery.start_soon(consumer.run, handler)
                    await trio.sleep(60)
                    process = consumer._member.engine.queues[Q0].process
                    assert process.count == held
                    # One page of 32 pins its bytes as long as one of its messages is held; the span covers three.
                    assert len(done) == (95 if group == "G" else 31)
                    stuck.set()
                    await until(lambda: len(done) == 400)
                    assert process.size_bytes == 0
                    consumer.drain()


async def test_pulls_that_carry_their_expression(autojump_clock, group_cluster):
    """Members of a group that subscribe differently overwrite each other in heartbeats, not here."""
    fill(group_cluster, 8, tags=["A", "B"])
    seen = []

    async def handler(message):
        seen.append(message.tags)

    async with group_cluster.client() as client:
        async with client.push_consumer(
            "G", start_from="earliest", pulling=triomq.PullOptions(expression_in_pulls=True)
        ) as consumer:
            async with trio.open_nursery() as nursery:
                await consumer.subscribe("T", "A")
                for known in group_cluster.broker.consumers.subscriptions.values():
                    known.sub_string = "B"
                nursery.start_soon(consumer.run, handler)
                await until(lambda: len(seen) == 4)
                consumer.drain()
    assert seen == ["A"] * 4


async def test_a_pause_between_pulls(autojump_clock, group_cluster):
    fill(group_cluster, 96)
    async with group_cluster.client() as client:
        async with client.push_consumer(
            "G", start_from="earliest", pulling=triomq.PullOptions(interval_s=7)
        ) as consumer:
            await consumer.subscribe("T")
            await until(lambda: consumer._member.engine.queues)
            held = []
            for _ in range(3):
                held.append(consumer._member.engine.queues[Q0].process.count)
                await trio.sleep(7)
            assert held == [32, 64, 96]
        with pytest.raises(errors.InvalidCall, match="interval_s"):
            client.push_consumer("G3", pulling=triomq.PullOptions(interval_s=-1))
        with pytest.raises(errors.InvalidCall, match="suspend_s"):
            client.push_consumer("G3", retries=triomq.ConsumeRetries(suspend_s=31))


async def test_limits_of_a_whole_topic_are_shared_by_its_queues(autojump_clock, group_cluster):
    fill(group_cluster, 400)
    fill(group_cluster, 400, queue_id=1)
    limits = triomq.FlowLimits(topic_count=100)

    def held(consumer):
        return {queue.queue_id: consumer._member.engine.queues[queue].process.count for queue in consumer.assignment}

    async with group_cluster.client() as client, group_cluster.client(client_ip="10.0.0.2") as other:
        async with client.push_consumer("G", start_from="earliest", limits=limits) as consumer:
            await consumer.subscribe("T")
            await trio.sleep(60)
            # 32 is not more than 50, and 64 is; the other limits are those of queues still.
            assert held(consumer) == {0: 64, 1: 64}
            assert consumer._member.running_info().properties["pullThresholdForTopic"] == "100"
            assert consumer._member.running_info().properties["pullThresholdSizeForTopic"] == "-1"
            async with other.push_consumer("G", start_from="earliest", limits=limits) as second:
                await second.subscribe("T")
                await trio.sleep(60)
                # Each has one queue now, and it has the topic's limit to itself: pulling goes on by itself.
                assert (held(consumer), held(second)) == ({0: 128}, {1: 128})


async def test_the_first_queue_does_not_take_the_limits_of_a_topic_for_itself(autojump_clock, group_cluster):
    """Queues are taken one after the other, which takes long if a callback, a lock or a broker is slow."""
    fill(group_cluster, 400)
    fill(group_cluster, 400, queue_id=1)

    async def slow(_queues):
        await trio.sleep(10)

    async with group_cluster.client() as client:
        async with client.push_consumer(
            "G",
            start_from="earliest",
            limits=triomq.FlowLimits(topic_count=100),
            callbacks=triomq.ConsumerCallbacks(on_assigned=slow),
        ) as consumer:
            await consumer.subscribe("T")
            await trio.sleep(60)
            held = {each.queue_id: source.process.count for each, source in consumer._member.engine.queues.items()}
            # 64 is the first that is more than 50, half of the limit.
            assert held == {0: 64, 1: 64}


async def test_tags_that_share_a_hash_never_reach_the_handler(autojump_clock, group_cluster):
    fill(group_cluster, 90, tags=["Aa", "BB", "c"])  # Java's hash of Aa and BB is 2112
    seen = []

    async def handler(message):
        seen.append(message.tags)

    async with group_cluster.client() as client:
        async with client.push_consumer("G", start_from="earliest") as consumer, trio.open_nursery() as nursery:
            await consumer.subscribe("T", "Aa")
            nursery.start_soon(consumer.run, handler)
            await until(lambda: len(seen) == 30)
            await trio.sleep(15)
            consumer.drain()
    assert set(seen) == {"Aa"}
    assert committed(group_cluster) == 90


async def test_a_filter_that_matches_nothing_advances(autojump_clock, group_cluster):
    fill(group_cluster, 90, tags=["BB", "c"])
    async with group_cluster.client() as client:
        async with client.push_consumer("G", start_from="earliest") as consumer:
            # The broker lets BB through, the exact test here does not.
            await consumer.subscribe("T", "Aa")
            await trio.sleep(30)
            assert committed(group_cluster) == 90
        async with client.push_consumer("G2", start_from="earliest") as consumer:
            await consumer.subscribe("T", "none")
            await trio.sleep(30)
    assert group_cluster.broker.offsets["G2", "T", 0] == 90


async def test_sql_is_checked_before_it_is_subscribed(autojump_clock, group_cluster):
    fill(group_cluster, 6, tags=["a", "b"])
    broker = group_cluster.broker
    broker.consumers.sql = lambda text, record: text == "TAGS = 'a'" and record.tags == "a"
    seen = []

    async def handler(message):
        seen.append(message.body)

    async with group_cluster.client() as client:
        async with client.push_consumer("G", start_from="earliest") as consumer, trio.open_nursery() as nursery:
            broker.script(RequestCode.CHECK_CLIENT_CONFIG, lambda command: command.answer(23, "bad expression"))
            with pytest.raises(errors.SubscriptionRefused, match="bad expression"):
                await consumer.subscribe("T", triomq.Sql("a >"))
            assert "T" not in consumer._member.subscriptions
            await consumer.subscribe("T", triomq.Sql("TAGS = 'a'"))
            nursery.start_soon(consumer.run, handler)
            await until(lambda: len(seen) == 3)
            await trio.sleep(15)
            consumer.drain()
        assert committed(group_cluster) == 6
        broker.version = 231
        async with client.push_consumer("G2") as consumer:
            with pytest.raises(errors.UnsupportedRequest, match="SQL92"):
                await consumer.subscribe("T", triomq.Sql("a = 1"))
    assert len(broker.requests(RequestCode.CHECK_CLIENT_CONFIG)) == 2
    with pytest.raises(errors.InvalidCall, match="empty"):
        triomq_subscription(triomq.Sql(" "))


def triomq_subscription(expression):
    from triomq._message.subscription import make_subscription

    return make_subscription("T", expression, 0)


async def test_a_class_is_no_handler_and_consumes_nothing(group_cluster, open_consumer):
    class Handler:
        def __init__(self, settings):
            pytest.fail(f"made of {settings}")

        def __call__(self, message):
            """Not called."""

    fill(group_cluster, 1)
    with trio.fail_after(20):
        async with open_consumer() as consumer:
            with pytest.raises(errors.InvalidCall, match=r"the handler .*Handler is a class; give an object of it"):
                await consumer.run(Handler)


@pytest.mark.parametrize("plain", [False, True])
async def test_a_handler_that_ends_the_program(group_cluster, open_consumer, plain):
    """Each message is handled once, none is consumed, and the program ends with the status of the first."""
    fill(group_cluster, 3)
    seen = []
    all_taken = threading.Barrier(3)

    async def end(message):
        seen.append(message.body)
        sys.exit(4)

    def end_in_thread(message):
        all_taken.wait(20)
        seen.append(message.body)
        sys.exit(4)

    with trio.fail_after(60), pytest.raises(SystemExit) as raised:
        async with open_consumer() as consumer:
            await consumer.run(end_in_thread if plain else end)
    assert raised.value.code == 4
    assert sorted(seen) == ([b"m0-0", b"m0-1", b"m0-2"] if plain else [b"m0-0"])
    assert not committed(group_cluster)


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_handler_that_ends_the_program_while_another_returns(
    autojump_clock, group_cluster, open_consumer, ordered
):
    """The other one's task, which is not cancelled before it runs, takes no further message."""
    for queue_id in (0, 1):
        fill(group_cluster, 1, queue_id=queue_id)
    seen = []
    ends = trio.Event()

    async def handler(message):
        seen.append(message.body)
        if message.body == b"m0-0":
            await until(lambda: len(seen) == 2)
            ends.set()
            sys.exit(4)
        await ends.wait()

    with pytest.raises(SystemExit):
        async with open_consumer(ordered=ordered) as consumer:
            await consumer.run(handler)
    assert sorted(seen) == [b"m0-0", b"m1-0"]
    assert not committed(group_cluster)
    assert committed(group_cluster, queue_id=1) == 1


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("how", ["exits", "cancelled"])
async def test_messages_that_a_plain_handler_has_consumed_before_it_ended(group_cluster, open_consumer, ordered, how):
    """One trip to the thread has handled them all: those that returned are consumed."""
    fill(group_cluster, 5)
    scope = trio.CancelScope()

    def end(message):
        if message.body == b"m0-3":
            if how == "exits":
                sys.exit(4)
            trio.from_thread.run_sync(scope.cancel)
            trio.from_thread.run(trio.sleep, 0)

    with pytest.raises(SystemExit) if how == "exits" else nullcontext():
        async with open_consumer(ordered=ordered) as consumer:
            with scope:
                await consumer.run(end, concurrency=1)
    assert committed(group_cluster) == 3


async def test_plain_handlers_run_in_threads(group_cluster, open_consumer):
    fill(group_cluster, 300)
    seen, failed = [], []

    def handler(message):
        if message.body == b"m0-100" and not failed:
            failed.append(message.body)
            raise triomq.Later(-1)
        seen.append(message.body)

    with trio.fail_after(20):
        async with open_consumer() as consumer, trio.open_nursery() as nursery:

            async def run():
                await consumer.run(handler, concurrency=3)

            nursery.start_soon(run)
            while len(seen) < 299:
                await trio.sleep(0.01)
            while not group_cluster.broker.queues["%DLQ%G", 0]:
                await trio.sleep(0.01)
            consumer.drain()
    assert len(seen) == len(set(seen)) == 299
    assert committed(group_cluster) == 300


async def test_batches(autojump_clock, group_cluster):
    fill(group_cluster, 40)
    fill(group_cluster, 40, queue_id=1)
    sizes = []

    async def handler(messages):
        assert len({message.queue for message in messages}) == 1
        sizes.append(len(messages))

    async with (
        group_cluster.client() as client,
        client.push_consumer("G", start_from="earliest", batch_max=16) as consumer,
        trio.open_nursery() as nursery,
    ):
        await consumer.subscribe("T")
        nursery.start_soon(consumer.run, handler)
        await until(lambda: sum(sizes) == 80)
        consumer.drain()
    assert max(sizes) == 16
    assert (committed(group_cluster), committed(group_cluster, queue_id=1)) == (40, 40)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("step", range(1, 6))
async def test_a_cancelled_handler_sends_no_outcome(autojump_clock, group_cluster, open_consumer, step, ordered):
    """Cancelled at each of its awaits: nothing is committed, nothing sent back, and the message is delivered again."""
    fill(group_cluster, 1)
    awaits, handled = [], []

    async def handler(message):
        for number in range(1, 6):
            awaits.append(number)
            if number == step and not handled:
                handled.append("cancelled here")
                scope.cancel()
            await trio.lowlevel.checkpoint()
        handled.append(message.body)

    async with open_consumer(ordered=ordered) as consumer:
        with trio.CancelScope() as scope:
            await consumer.run(handler)
        assert scope.cancelled_caught
        assert awaits == list(range(1, step + 1))
        await trio.sleep(30)
        assert committed(group_cluster) in (0, None)
        assert not group_cluster.broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK)
        # The same member, and no retry topic: it is the next one that is given out.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handler)
            await until(lambda: len(handled) == 2)
            consumer.drain()
    assert handled == ["cancelled here", b"m0-0"]
    assert committed(group_cluster) == 1


@pytest.mark.parametrize("step", range(1, 8))
async def test_a_cancelled_delivery_has_no_outcome(autojump_clock, group_cluster, open_consumer, step):
    fill(group_cluster, 1)
    async with open_consumer() as consumer:
        await trio.sleep(5)
        with trio.CancelScope() as scope:
            async for delivery in consumer:
                async with delivery:
                    for number in range(1, 8):
                        if number == step:
                            scope.cancel()
                        await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        again = await anext(consumer)
        assert again.message.body == b"m0-0"
    assert committed(group_cluster) in (0, None)
    assert not group_cluster.broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("answer", ["block", "done"])
async def test_a_delivery_cancelled_before_its_answer_is_redelivered(
    autojump_clock, group_cluster, open_consumer, ordered, answer
):
    """Taken in the very moment of the cancel: it would never be answered, and an ordered queue would stop."""
    fill(group_cluster, 2)
    async with open_consumer(ordered=ordered) as consumer:
        delivery = await anext(consumer)
        with trio.CancelScope() as scope:
            scope.cancel()
            if answer == "done":
                await delivery.done()
            else:
                async with delivery:
                    raise AssertionError("it is cancelled before")
        with pytest.raises(errors.InvalidCall, match="answered"):
            await delivery.later()
        again = await anext(consumer)
        assert again.message.body == b"m0-0"
        assert consumer._member.positions_of("T")[Q0] == 0
        await again.done()
        await (await anext(consumer)).done()
    assert committed(group_cluster) == 2


@pytest.mark.parametrize("iterated", [False, True])
async def test_later_out_of_a_handlers_own_nursery(autojump_clock, group_cluster, open_consumer, caplog, iterated):
    """Nurseries wrap what is raised in them."""
    fill(group_cluster, 1)

    async def child():
        raise triomq.Later(-1)

    async def handler(message):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)

    async with open_consumer() as consumer, trio.open_nursery() as nursery:
        if iterated:
            async with await anext(consumer) as delivery:
                await handler(delivery.message)
        else:
            nursery.start_soon(consumer.run, handler)
        await until(lambda: group_cluster.broker.queues["%DLQ%G", 0])
        consumer.drain()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_cancelled_while_it_is_sent_back(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, 1)
    broker = group_cluster.broker
    broker.script(RequestCode.CONSUMER_SEND_MSG_BACK, None)

    async def handler(message):
        raise triomq.Later

    async with open_consumer() as consumer:
        with trio.move_on_after(5):
            await consumer.run(handler)
        assert consumer._member.positions_of("T")[Q0] == 0
        assert (await anext(consumer)).message.body == b"m0-0"
    assert committed(group_cluster) == 0


async def test_a_message_given_out_by_a_cancel_is_not_given_out_again(
    autojump_clock, group_cluster, open_consumer, events
):
    """No broker takes the first of two back; while the second is sent back, a cancel gives both out again."""
    fill(group_cluster, 2)
    broker = group_cluster.broker

    def refuse(command):
        return command.answer(13, "no")

    broker.script(RequestCode.CONSUMER_SEND_MSG_BACK, refuse, None)
    broker.script(RequestCode.SEND_MESSAGE_V2, *[refuse] * 3)
    given = []

    async def fails(messages):
        raise ValueError

    async def slow(messages):
        given.append([message.body for message in messages])
        await trio.sleep(30)

    async with open_consumer(batch_max=2) as consumer:
        with trio.move_on_after(2):
            await consumer.run(fails, concurrency=1)
        assert events.kinds() == ["send_back_failed"]
        with trio.move_on_after(20):
            await consumer.run(slow, concurrency=2)
    assert given == [[b"m0-0", b"m0-1"]]


async def test_the_end_waits_for_handlers_but_not_for_ever(autojump_clock, group_cluster):
    fill(group_cluster, 3)
    ended = []

    async def handler(message):
        await trio.sleep({b"m0-0": 1, b"m0-1": 5, b"m0-2": 100}[message.body])
        ended.append(message.body)

    async with group_cluster.client() as client, trio.open_nursery() as nursery:
        async with client.push_consumer("G", start_from="earliest", drain_s=7) as consumer:
            await consumer.subscribe("T")
            nursery.start_soon(consumer.run, handler)
            await until(
                lambda: (
                    consumer._member.engine.queues[Q0].process.count == 3 if consumer._member.engine.queues else False
                )
            )
            started = trio.current_time()
        assert trio.current_time() - started == pytest.approx(7, abs=0.2)
    assert ended == [b"m0-0", b"m0-1"]
    # The third was cancelled: it comes again.
    assert committed(group_cluster) == 2


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("cancelled", "drain_s"), [(False, 4), (True, 60)])
async def test_leaving_gives_up_the_queues(autojump_clock, group_cluster, ordered, cancelled, drain_s):
    """`on_revoked` gets what is owned to the end, before its offsets are committed, and cannot hold up the rest."""
    fill(group_cluster, 1)
    gone = []

    async def revoked(queues):
        gone.extend(each for each in queues if each.topic == "T")
        assert committed(group_cluster) in (0, None)
        await trio.sleep(0.1)
        if len(gone) == 2:
            await trio.sleep_forever()

    async with group_cluster.client() as client:
        consumer = client.push_consumer(
            "G",
            start_from="earliest",
            ordered=ordered,
            callbacks=triomq.ConsumerCallbacks(on_revoked=revoked),
            drain_s=drain_s,
        )
        with trio.CancelScope() as scope:
            async with consumer:
                await consumer.subscribe("T")
                async with await anext(consumer):
                    pass
                await until(lambda: consumer.assignment == [Q0, Q1])
                assert not gone
                left = trio.current_time()
                if cancelled:
                    scope.cancel()
        took_s = trio.current_time() - left
        assert took_s == pytest.approx(2 if cancelled else drain_s, abs=0.5)
    assert gone == [Q0, Q1]
    assert committed(group_cluster) == 1


async def test_a_cancelled_consumer_still_commits_its_offsets_and_leaves(autojump_clock, group_cluster):
    fill(group_cluster, 10)
    seen = []

    async def handler(message):
        seen.append(message.body)

    async with group_cluster.client() as client:
        with trio.move_on_after(8) as scope:
            async with client.push_consumer("G", start_from="earliest") as consumer:
                await consumer.subscribe("T")
                await consumer.run(handler)
    assert scope.cancelled_caught
    assert len(seen) == 10
    assert committed(group_cluster) == 10
    assert not group_cluster.broker.consumers.members["G"]


async def test_errors_of_the_block_are_raised_unchanged(autojump_clock, group_cluster):
    async with group_cluster.client() as client:
        with pytest.raises(KeyError):  # noqa: PT012
            async with client.push_consumer("G") as consumer:
                await consumer.subscribe("T")
                raise KeyError("mine")
        with pytest.raises(errors.ClientClosed):
            await consumer.subscribe("T")


async def test_an_expired_message_is_redelivered(autojump_clock, group_cluster):
    fill(group_cluster, 2)
    seen, events = [], []

    async def handler(message):
        seen.append((message.body, message.reconsume_times))
        if len(seen) == 1:
            await trio.sleep_forever()

    async with (
        group_cluster.client() as client,
        client.push_consumer(
            "G",
            start_from="earliest",
            retries=triomq.ConsumeRetries(timeout_s=60),
            drain_s=0,
            callbacks=triomq.ConsumerCallbacks(on_event=events.append),
        ) as consumer,
        trio.open_nursery() as nursery,
    ):
        await consumer.subscribe("T")
        nursery.start_soon(consumer.run, handler)
        await until(lambda: len(seen) == 3)
        nursery.cancel_scope.cancel()
    assert seen == [(b"m0-0", 0), (b"m0-1", 0), (b"m0-0", 1)]
    assert [each.kind for each in events] == ["expired"]
    assert committed(group_cluster) == 2


async def test_a_message_that_follows_a_slow_failure_does_not_expire_early(
    autojump_clock, group_cluster, open_consumer, events
):
    fill(group_cluster, 2)
    seen = []

    async def handler(message):
        seen.append((message.body, message.reconsume_times))
        if seen == [(b"m0-0", 0)]:
            await trio.sleep(50)
            raise ValueError
        # Over the sweep of 60 s.
        await trio.sleep(30)

    async with (
        open_consumer(retries=triomq.ConsumeRetries(timeout_s=60.0)) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(lambda: consumer.run(handler, concurrency=1))
        await until(lambda: committed(group_cluster, "%RETRY%G") == 1)
        consumer.drain()
    assert seen == [(b"m0-0", 0), (b"m0-1", 0), (b"m0-0", 1)]
    assert "expired" not in events.kinds()


@pytest.mark.parametrize(
    ("policy", "first"), [("broker", b"m0-5"), ("earliest", b"m0-5"), ("latest", None), ("raise", None)]
)
async def test_an_offset_that_is_gone(autojump_clock, group_cluster, policy, first):
    fill(group_cluster, 10)
    broker = group_cluster.broker
    broker.offsets["G", "T", 0] = 2
    broker.min_offsets["T", 0] = 5
    events, seen = [], []

    async def handler(message):
        seen.append(message.body)

    async with group_cluster.client() as client:
        async with (
            client.push_consumer(
                "G", illegal_offset=policy, callbacks=triomq.ConsumerCallbacks(on_event=events.append)
            ) as consumer,
            trio.open_nursery() as nursery,
        ):
            await consumer.subscribe("T")
            if policy == "raise":
                with pytest.raises(errors.OffsetIllegal, match="2"):
                    await consumer.run(handler)
                with pytest.raises(errors.OffsetIllegal, match="2"):
                    await anext(consumer)
            else:
                nursery.start_soon(consumer.run, handler)
                await trio.sleep(9)
                assert not seen  # in quarantine
                await trio.sleep(25)
                assert (seen[0] if seen else None) == first
                consumer.drain()
    assert events[0].kind == "offset_illegal"
    assert committed(group_cluster) == (2 if policy == "raise" else 10)


async def test_broadcast_takes_every_queue_and_loses_what_fails(autojump_clock, group_cluster, caplog):
    fill(group_cluster, 5)
    fill(group_cluster, 5, queue_id=1)
    seen: dict[int, list[bytes]] = {0: [], 1: []}

    def take(number):
        async def handler(message):
            seen[number].append(message.body)
            if message.body == b"m0-3":
                raise ValueError("lost")

        return handler

    stores = [MemoryOffsets(), MemoryOffsets()]
    async with group_cluster.client() as one, group_cluster.client() as two, trio.open_nursery() as nursery:
        consumers = []
        for number, client in enumerate((one, two)):
            consumer = client.push_consumer(
                "G", model="broadcasting", start_from="earliest", offset_store=stores[number]
            )
            consumers.append(await nursery.start(serve, consumer, take(number)))
        await until(lambda: len(seen[0]) == len(seen[1]) == 10)
        for consumer in consumers:
            consumer.drain()
    assert sorted(seen[0]) == sorted(seen[1])
    assert "is lost" in caplog.text
    assert not group_cluster.broker.offsets
    assert not group_cluster.broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert stores[0].offsets == stores[1].offsets == {Q0: 5, Q1: 5}
    broadcast = list(group_cluster.broker.consumers.subscriptions)
    assert broadcast == [("G", "T")]


async def serve(consumer, handler, task_status=trio.TASK_STATUS_IGNORED):
    async with consumer:
        await consumer.subscribe("T")
        task_status.started(consumer)
        await consumer.run(handler)


async def test_results_of_a_queue_that_moved_are_dropped(autojump_clock, group_cluster):
    fill(group_cluster, 1)
    fill(group_cluster, 1, queue_id=1)
    gate, started, revoked = trio.Event(), [], []

    async def slow(message):
        started.append(message.queue)
        await gate.wait()
        raise ValueError("too late to count")

    async def quick(message):
        started.append(message.queue)

    async with group_cluster.client() as one, group_cluster.client() as two, trio.open_nursery() as nursery:
        first = client_consumer(one, callbacks=triomq.ConsumerCallbacks(on_revoked=revoked.extend))
        await nursery.start(serve, first, slow)
        await until(lambda: len(started) == 2)
        second = client_consumer(two)
        await nursery.start(serve, second, quick)
        await until(lambda: len(second.assignment) == 1 and len(first.assignment) == 1)
        moved = second.assignment
        await until(lambda: started[2:] == moved)
        assert revoked == moved
        gate.set()
        await trio.sleep(8)
        # Of the message that moved away the slow handler's failure says nothing any more.
        assert len(group_cluster.broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1
        first.drain()
        second.drain()


def client_consumer(client, **options):
    return client.push_consumer("G", start_from="earliest", drain_s=1, **options)


async def test_pulls_carry_the_commit(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, 64)

    async def handler(message):
        pass

    async with open_consumer() as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, handler)
        # By the pull that follows, long before the timer that persists offsets runs for the first time.
        await until(lambda: committed(group_cluster) == 32, seconds=5)
        consumer.drain()


async def test_a_reset_by_an_operator_is_followed(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, 5)
    seen = []

    async def handler(message):
        seen.append(message.body)

    async with open_consumer() as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, handler)
        await until(lambda: len(seen) == 5)
        await consumer._member.reset("T", {Q0: 3})
        await until(lambda: len(seen) == 7)
        assert seen[5:] == [b"m0-3", b"m0-4"]
        consumer.drain()
    assert committed(group_cluster) == 5


async def test_hooks_see_every_call(autojump_clock, group_cluster):
    fill(group_cluster, 2)
    calls = []

    class Hook:
        def before_consume(self, context):
            calls.append(("before", context.group, context.messages[0].body))

        def after_consume(self, context, error):
            calls.append(("after", context.messages[0].body, str(error)))
            raise RuntimeError("hooks change nothing")

    async def handler(message):
        if message.body == b"m0-1":
            raise ValueError("no")

    async with (
        group_cluster.client() as client,
        client.push_consumer("G", start_from="earliest", consume_hooks=[Hook()]) as consumer,
        trio.open_nursery() as nursery,
    ):
        await consumer.subscribe("T")
        nursery.start_soon(consumer.run, handler)
        await until(lambda: len(calls) >= 4)
        consumer.drain()
    assert calls[:4] == [
        ("before", "G", b"m0-0"),
        ("after", b"m0-0", "None"),
        ("before", "G", b"m0-1"),
        ("after", b"m0-1", "no"),
    ]


async def test_calls_that_cannot_be_right(autojump_clock, group_cluster):
    async with group_cluster.client() as client:
        consumer = client.push_consumer("G")
        with pytest.raises(errors.InvalidCall, match="enter the consumer first"):
            await consumer.subscribe("T")
        async with consumer:
            with pytest.raises(errors.InvalidCall, match="give an async or a plain function"):
                await consumer.run("handler")
            with pytest.raises(errors.InvalidCall, match="concurrency"):
                await consumer.run(print, concurrency=0)
            with pytest.raises(errors.InvalidCall, match="neither text"):
                await consumer.subscribe("T", 5)
            with pytest.raises(errors.InvalidCall, match="already"):
                client.push_consumer("G")


async def test_a_topic_may_come_later(autojump_clock, group_cluster):
    async with group_cluster.client() as client, client.push_consumer("G", start_from="earliest") as consumer:
        await consumer.subscribe("Late")
        await trio.sleep(5)
        group_cluster.name_server.add_route("Late", group_cluster.broker)
        group_cluster.broker.store("Late", 0, b"x")
        with trio.fail_after(60):
            delivery = await anext(consumer)
        assert delivery.message.topic == "Late"


@pytest.mark.parametrize("step", range(1, 30, 3))
async def test_entering_can_be_cancelled_anywhere(autojump_clock, group_cluster, cancel_at_step, step):
    async with group_cluster.client() as client:
        consumer = client.push_consumer("G", start_from="earliest")
        with cancel_at_step(step):
            async with consumer:
                await consumer.subscribe("T")
                await trio.sleep(1)
        # The client is whole: the group can be joined again.
        async with client.push_consumer("G", start_from="earliest") as another:
            await another.subscribe("T")
            await until(lambda: another.assignment == [Q0, Q1], seconds=30)


async def test_an_answer_during_a_reset_is_dropped(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, 5)
    seen = []

    async def handler(message):
        seen.append(message.body)

    async with open_consumer() as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, handler)
        await until(lambda: len(seen) == 5)
        nursery.start_soon(consumer._member.reset, "T", {Q0: 4})
        await trio.sleep(1)
        fill(group_cluster, 1, first=5)  # a pull is held at the broker, and answered now
        await trio.sleep(5)
        assert len(seen) == 5
        await until(lambda: len(seen) == 7)
        assert seen[5:] == [b"m0-4", b"m0-5"]
        consumer.drain()


async def test_leaving_while_a_queue_is_given_up(autojump_clock, group_cluster):
    """A member that ends in the middle of a move still commits the offset of the queue that moves."""
    fill(group_cluster, 40)
    fill(group_cluster, 40, queue_id=1)
    seen = []

    async def handler(message):
        seen.append(message.body)

    async def linger(_queues):
        first.drain()
        await trio.sleep(0.5)

    async with group_cluster.client() as one, group_cluster.client() as two, trio.open_nursery() as nursery:
        first = client_consumer(
            one, callbacks=triomq.ConsumerCallbacks(on_revoked=linger), ordered=True
        )  # so that no handler takes it before
        await nursery.start(serve, first, handler)
        await until(lambda: len(seen) == 80)
        second = client_consumer(two, ordered=True)
        await nursery.start(serve, second, handler)
        await until(lambda: second.assignment == [Q0, Q1])
        await trio.sleep(5)
        second.drain()
    assert len(seen) == 80
    assert (committed(group_cluster), committed(group_cluster, queue_id=1)) == (40, 40)


async def test_an_unsubscribed_topic_is_given_up(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, 3)
    async with open_consumer() as consumer:
        for _ in range(2):
            async with await anext(consumer):
                pass
        await consumer.unsubscribe("T")
        await until(lambda: not consumer.assignment, seconds=5)
        await trio.testing.wait_all_tasks_blocked()
        assert committed(group_cluster) == 2
        assert ("G", "T") not in group_cluster.broker.consumers.subscriptions


@pytest.mark.parametrize("batch_max", [1, 8])
async def test_plain_handlers_that_are_cancelled_end_and_count(group_cluster, open_consumer, batch_max):
    """A function cannot be stopped: what it has done counts, what it had not begun is delivered again."""
    fill(group_cluster, 64)
    seen = []

    def handler(messages):
        seen.extend(each.body for each in (messages if batch_max > 1 else [messages]))
        if len(seen) == 24:
            trio.from_thread.run_sync(scope.cancel)

    with trio.fail_after(20):
        async with open_consumer(batch_max=batch_max) as consumer:
            with trio.CancelScope() as scope:
                await consumer.run(handler, concurrency=1)
            assert 24 <= len(seen) < 64
            handled = len(seen)
            assert consumer._member.positions_of("T")[Q0] == handled
            delivery = await anext(consumer)
            assert delivery.message.body == b"m0-%d" % handled


async def test_plain_batches_fail_as_a_whole(group_cluster):
    fill(group_cluster, 4)
    seen = []

    def handler(messages):
        seen.append([each.body for each in messages])
        raise triomq.Later(-1)

    with trio.fail_after(20):
        async with group_cluster.client() as client, trio.open_nursery() as nursery:
            async with client.push_consumer("G", start_from="earliest", batch_max=4) as consumer:
                await consumer.subscribe("T")
                nursery.start_soon(consumer.run, handler)
                while len(group_cluster.broker.queues["%DLQ%G", 0]) < 4:
                    await trio.sleep(0.01)
    assert seen == [[b"m0-0", b"m0-1", b"m0-2", b"m0-3"]]
    assert committed(group_cluster) == 4


async def test_a_plain_function_that_returns_a_coroutine_is_reported(group_cluster, caplog):
    fill(group_cluster, 1)

    async def forgotten(message):
        raise AssertionError("never runs")

    with trio.fail_after(20):
        async with group_cluster.client() as client, trio.open_nursery() as nursery:
            async with client.push_consumer("G", start_from="earliest") as consumer:
                await consumer.subscribe("T")
                nursery.start_soon(consumer.run, lambda message: forgotten(message))
                while "declare it `async def`" not in caplog.text:
                    await trio.sleep(0.01)
    assert committed(group_cluster) in (0, 1)


async def test_an_async_object_is_awaited(autojump_clock, group_cluster):
    fill(group_cluster, 1)

    class Handler:
        def __init__(self):
            self.seen = []

        async def __call__(self, message):
            self.seen.append(message.body)

    handler = Handler()
    async with group_cluster.client() as client, trio.open_nursery() as nursery:
        async with client.push_consumer("G", start_from="earliest") as consumer:
            await consumer.subscribe("T")
            nursery.start_soon(consumer.run, handler)
            await until(lambda: handler.seen)
    assert committed(group_cluster) == 1


@pytest.mark.parametrize("level", [19, 60, 1.5])
def test_a_level_of_later_that_does_not_exist_is_refused(level):
    with pytest.raises(errors.InvalidCall, match=f"delay_level is {level}, neither 0"):
        triomq.Later(level)
    assert triomq.Later(-1).delay_level == -1


async def test_a_handler_without_a_subscription_is_warned_of_and_served_later(autojump_clock, group_cluster, caplog):
    fill(group_cluster, 1)
    seen = []

    async def handler(message):
        seen.append(message.body)

    async with group_cluster.client() as client:
        async with client.push_consumer("G", start_from="earliest") as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handler)
            await trio.sleep(60)
            (line,) = [text for text in caplog.messages if "has subscribed to nothing" in text]
            assert "consumer group G " in line
            caplog.clear()
            await consumer.subscribe("T")
            await until(lambda: seen == [b"m0-0"])
            consumer.drain()
        async with client.push_consumer("G") as consumer, trio.open_nursery() as nursery:
            await consumer.subscribe("T")
            nursery.start_soon(consumer.run, handler)
            await trio.sleep(1)
            consumer.drain()
        assert "has subscribed to nothing" not in caplog.text
