"""A pull consumer's share of its group's queues."""

from __future__ import annotations

import logging

import pytest
import trio
from consumer_broker import until

import triomq
from triomq import errors
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests.pull import PullMessageRequest

Q = [triomq.MessageQueue("T", "broker-a", number) for number in range(4)]


@pytest.fixture
async def group_cluster(group_cluster):
    group_cluster.name_server.add_route("T", group_cluster.broker, queues=4)
    return group_cluster


def add_second(cluster, *, queues=4):
    """A second master that serves groups, and has topic T with so many queues, as the first one then."""
    second = cluster.add_master("broker-b")
    second.consumers.serves_groups = True
    second.name_server = cluster.name_server
    cluster.name_server.add_route("T", cluster.broker, second, queues=queues)
    return second


def fill(cluster, *bodies, queue_id=0):
    for body in bodies:
        cluster.broker.store("T", queue_id, body)


async def test_every_queue_is_pulled_in_turn(autojump_clock, group_cluster):
    fill(group_cluster, b"a0", b"a1", b"a2")
    fill(group_cluster, b"b0", b"b1", queue_id=3)
    seen = []
    async with group_cluster.client() as client:
        consumer = client.pull_consumer("G")
        async with consumer.share("T", max_messages=1) as pulls:
            async for result in pulls:
                seen += [message.body for message in result]
                await consumer.commit(result.queue)
                if len(seen) == 5:
                    break
            assert pulls.assignment == Q
    assert sorted(seen) == [b"a0", b"a1", b"a2", b"b0", b"b1"]
    assert seen.index(b"b1") < seen.index(b"a2"), "no queue waits for the end of another"
    assert group_cluster.broker.offsets["G", "T", 0] == 3


async def test_several_tasks_may_take_results(autojump_clock, group_cluster):
    seen = []
    async with (
        group_cluster.client() as client,
        client.pull_consumer("G").share("T") as pulls,
        trio.open_nursery() as nursery,
    ):

        async def take():
            seen.append(await anext(pulls))

        for _ in range(3):
            nursery.start_soon(take)  # before a queue is assigned
        await trio.sleep(5)
        for number in range(3):
            fill(group_cluster, b"m", queue_id=number)
        with trio.move_on_after(60):
            await until(lambda: len(seen) == 3)
        nursery.cancel_scope.cancel()
    assert {result.queue for result in seen} == set(Q[:3])


async def test_tasks_get_no_message_twice(autojump_clock, group_cluster):
    """Also if a pull takes longer than a queue rests."""
    broker, seen = group_cluster.broker, []
    fill(group_cluster, *(b"%d" % number for number in range(10)))

    async def late(command):
        await trio.sleep(1)
        return broker.serve(command)

    broker.script(RequestCode.PULL_MESSAGE, *[late] * 20)
    async with (
        group_cluster.client() as client,
        client.pull_consumer("G").share("T", max_messages=2) as pulls,
        trio.open_nursery() as nursery,
    ):

        async def take():
            async for result in pulls:
                seen.extend(message.queue_offset for message in result)

        for _ in range(3):
            nursery.start_soon(take)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert seen == [*range(10)]


@pytest.mark.parametrize("pulled_again", [False, True])
async def test_a_result_of_before_a_queue_was_lost_does_not_count(autojump_clock, group_cluster, pulled_again):
    """It comes when the queue is back, perhaps while another task pulls it: the group is further by then."""
    broker = group_cluster.broker
    fill(group_cluster, *(b"%d" % number for number in range(10)), queue_id=3)
    events, lost, again, came, results = [], trio.Event(), trio.Event(), trio.Event(), []
    callbacks = triomq.ConsumerCallbacks(on_assigned=events.extend, on_revoked=events.extend)

    async def late(command):
        await until(lambda: events.count(Q[3]) == 3)
        if pulled_again:
            await again.wait()
        came.set()
        return broker.serve(command)

    async def later(command):
        await came.wait()
        await trio.sleep(1)
        return broker.serve(command)

    def first_of_last_queue(command):
        header = command.header(PullMessageRequest)
        if header.queue_id == 3 and not lost.is_set():
            lost.set()
            return late(command)
        if header.queue_id == 3 and header.queue_offset == 6 and pulled_again and not again.is_set():
            again.set()
            return later(command)
        return pull(command)

    pull, broker.pull = broker.pull, first_of_last_queue
    async with (
        group_cluster.client() as client,
        client.pull_consumer("G") as consumer,
        consumer.share("T", max_messages=2, callbacks=callbacks) as pulls,
        trio.open_nursery() as nursery,
    ):

        async def take():
            async for result in pulls:
                offsets = [message.queue_offset for message in result]
                results.append(offsets)

        for _ in range(1 + pulled_again):
            nursery.start_soon(take)
        await lost.wait()
        async with (
            group_cluster.client(instance_name="two") as second,
            second.pull_consumer("G") as other,
            other.share("T") as theirs,
        ):
            await until(lambda: Q[3] in theirs.assignment and events.count(Q[3]) == 2)
            await other.commit(Q[3], 6)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert results == [[6, 7], [8, 9]]


async def test_a_queue_without_a_message_is_not_pulled_for_a_while(autojump_clock, group_cluster):
    async with group_cluster.client() as client, client.pull_consumer("G").share("T", interval_s=2) as pulls:
        with trio.move_on_after(20):
            await anext(pulls)
    pulled = len(group_cluster.broker.requests(RequestCode.PULL_MESSAGE))
    assert 4 * 8 <= pulled <= 4 * 11


async def test_members_share_and_one_that_leaves_gives_its_queues_up(autojump_clock, group_cluster):
    came, went = [], []
    callbacks = triomq.ConsumerCallbacks(on_assigned=came.extend, on_revoked=went.extend)
    async with group_cluster.client() as first, group_cluster.client(instance_name="second") as second:
        consumer, other = first.pull_consumer("G"), second.pull_consumer("G")
        async with consumer.share("T", callbacks=callbacks) as pulls:
            async with other.share("T") as others:
                await until(lambda: len(pulls.assignment) == len(others.assignment) == 2)
                assert sorted(pulls.assignment + others.assignment) == Q
                taken = others.assignment[0]
                group_cluster.broker.offsets["G", "T", taken.queue_id] = 1
                fill(group_cluster, b"committed before", b"new", queue_id=taken.queue_id)
            await other.aclose()
            await until(lambda: pulls.assignment == Q)
            result = await anext(pulls)
            assert [message.body for message in result] == [b"new"], "it begins at the committed offset"
    assert set(came) == set(Q)
    assert set(went) == set(Q)


@pytest.mark.parametrize("offset", [None, 1])
async def test_a_commit_of_a_queue_that_was_lost_is_refused(autojump_clock, group_cluster, offset):
    """The caller still has its messages, and the next member has consumed more."""
    for queue in Q:
        fill(group_cluster, b"one", b"two", b"three", queue_id=queue.queue_id)
    events, held = [], {}

    async def revoked(queues):
        for queue in queues:
            await consumer.commit(queue, 1)  # it is this member's still

    callbacks = triomq.ConsumerCallbacks(on_revoked=revoked)
    async with group_cluster.client() as first, group_cluster.client(instance_name="second") as second:
        consumer = first.pull_consumer("G", on_event=events.append)
        other = second.pull_consumer("G")
        async with consumer.share("T", max_messages=1, callbacks=callbacks) as pulls:
            while len(held) < 4:
                result = await anext(pulls)
                held[result.queue] = result
            async with other.share("T") as others:
                await until(lambda: len(pulls.assignment) == len(others.assignment) == 2)
                lost = others.assignment[0]
                assert group_cluster.broker.offsets["G", "T", lost.queue_id] == 1
                await other.commit(lost, 3)
                await consumer.commit(lost, offset)
                assert group_cluster.broker.offsets["G", "T", lost.queue_id] == 3
                assert [(event.kind, event.queue) for event in events] == [("offset_refused", lost)]
                assert lost not in consumer.positions()
                await consumer.commit(pulls.assignment[0], offset)
            await other.aclose()
            await until(lambda: pulls.assignment == Q)
            await consumer.commit(lost, 2)
            assert group_cluster.broker.offsets["G", "T", lost.queue_id] == 2
            assert len(events) == 1


async def test_a_pull_that_fails_is_repeated(autojump_clock, group_cluster, caplog):
    caplog.set_level(logging.WARNING)
    fill(group_cluster, b"one")
    group_cluster.broker.script(RequestCode.PULL_MESSAGE, *[lambda command: command.answer(16, "no")] * 4)
    async with group_cluster.client() as client, client.pull_consumer("G").share("T") as pulls:
        assert [message.body for message in await anext(pulls)] == [b"one"]
    assert "a pull failed and will be repeated" in caplog.text


async def test_a_silent_broker_keeps_the_queues_of_others_waiting_for_one_pull_at_a_time(autojump_clock, group_cluster):
    """And not for the pulls of all its queues, one after the other."""
    second = add_second(group_cluster)
    group_cluster.broker.script(RequestCode.PULL_MESSAGE, *[None] * 1000)
    waits = []
    async with group_cluster.client() as client, client.pull_consumer("G").share("T", interval_s=0.1) as pulls:
        await until(lambda: len(pulls.assignment) == 8)
        for _ in range(100):
            second.store("T", 0, b"one")
            began = trio.current_time()
            await anext(pulls)
            waits.append(trio.current_time() - began)
            await trio.sleep(1)
    assert max(waits) < 25
    assert len(group_cluster.broker.requests(RequestCode.PULL_MESSAGE)) > 5, "it may be back at any time"


@pytest.mark.parametrize("fault", ["silent", "stopped"])
async def test_a_broker_that_does_not_answer_is_waited_for_once(autojump_clock, group_cluster, fault):
    """And its queues are pulled soon after it answers again."""
    broker, second, waits = group_cluster.broker, add_second(group_cluster), []
    async with group_cluster.client() as client, client.pull_consumer("G").share("T", interval_s=0.1) as pulls:
        await until(lambda: len(pulls.assignment) == 8)
        if fault == "stopped":
            await broker.stop()
        else:
            broker.script(RequestCode.PULL_MESSAGE, *[None] * 1000)
        for _ in range(100):
            second.store("T", 0, b"one")
            began = trio.current_time()
            assert [message.body for message in await anext(pulls)] == [b"one"]
            waits.append(trio.current_time() - began)
            await trio.sleep(1)
        assert sum(wait > 1 for wait in waits) == 1
        fill(group_cluster, b"two")
        broker.scripts.clear()
        broker.up = True
        began = trio.current_time()
        assert [message.body for message in await anext(pulls)] == [b"two"]
        assert trio.current_time() - began < 12


async def test_a_share_that_ends_while_a_broker_does_not_answer(autojump_clock, group_cluster):
    second = add_second(group_cluster)
    group_cluster.broker.script(RequestCode.PULL_MESSAGE, *[None] * 1000)
    async with group_cluster.client() as client, client.pull_consumer("G") as consumer:
        async with consumer.share("T", interval_s=0.1) as pulls:
            await until(lambda: len(pulls.assignment) == 8)
            second.store("T", 0, b"one")
            await anext(pulls)
            with trio.move_on_after(20):
                await anext(pulls)
            asked = len(group_cluster.broker.requests(RequestCode.PULL_MESSAGE))
            assert asked > 1
        await trio.sleep(60)
        assert len(group_cluster.broker.requests(RequestCode.PULL_MESSAGE)) <= asked


async def test_a_reset_that_answers_the_question_whether_a_broker_answers(autojump_clock, group_cluster):
    """Brokers of RocketMQ 5 answer one pull with it."""
    broker, resets = group_cluster.broker, []
    add_second(group_cluster, queues=1)
    fill(group_cluster, *(b"%d" % number for number in range(5)))

    def moved(command):
        if not resets:
            return pull(command)
        fields = {"nextBeginOffset": str(resets.pop()), "minOffset": "0", "maxOffset": "5", "suggestWhichBrokerId": "0"}
        return command.answer(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", fields=fields)

    pull, broker.pull = broker.pull, moved
    async with group_cluster.client() as client, client.pull_consumer("G").share("T", interval_s=0.1) as pulls:
        await until(lambda: len(pulls.assignment) == 2)
        assert len(await anext(pulls)) == 5
        broker.script(RequestCode.PULL_MESSAGE, None)
        resets.append(2)
        with trio.fail_after(20):
            assert [message.body for message in await anext(pulls)] == [b"2", b"3", b"4"]


async def test_a_consumer_that_is_closed_during_a_pull_that_is_not_answered(autojump_clock, group_cluster):
    """It asks nothing after its end."""
    broker = group_cluster.broker
    add_second(group_cluster)
    broker.script(RequestCode.PULL_MESSAGE, *[None] * 1000)
    async with group_cluster.client() as client:
        consumer = client.pull_consumer("G")
        async with consumer.share("T", interval_s=0.1) as pulls, trio.open_nursery() as nursery:
            await until(lambda: len(pulls.assignment) == 8)

            @nursery.start_soon
            async def take():
                with pytest.raises(errors.ClientClosed):
                    await anext(pulls)

            await until(lambda: broker.requests(RequestCode.PULL_MESSAGE))
            await consumer.aclose()
            await trio.sleep(60)
            assert len(broker.requests(RequestCode.PULL_MESSAGE)) == 1


async def test_a_broker_whose_answer_cannot_be_read_answers(autojump_clock, group_cluster):
    """Its other queues are pulled again after an outage, although the one that is asked cannot be."""
    broker, is_slow = group_cluster.broker, []
    add_second(group_cluster)

    async def late(answer):
        await trio.sleep(15)
        return answer

    def damaged(command):
        answer, queue_id = pull(command), command.header(PullMessageRequest).queue_id
        if queue_id == 0 and answer.body:
            answer.body = answer.body[:-3]
        return late(answer) if queue_id == 3 and is_slow else answer

    pull, broker.pull = broker.pull, damaged
    async with group_cluster.client() as client, client.pull_consumer("G").share("T", interval_s=0.1) as pulls:
        await until(lambda: len(pulls.assignment) == 8)
        fill(group_cluster, b"damaged")
        is_slow.append(True)
        with trio.move_on_after(15):
            await anext(pulls)
        is_slow.clear()
        fill(group_cluster, b"good", queue_id=1)
        with trio.fail_after(20):
            assert [message.body for message in await anext(pulls)] == [b"good"]


async def test_the_queues_of_a_broker_that_answers_again_do_not_rest_if_no_other_has_any(autojump_clock, group_cluster):
    async with group_cluster.client() as client, client.pull_consumer("G").share("T", interval_s=0.1) as pulls:
        await until(lambda: pulls.assignment == Q)
        group_cluster.broker.script(RequestCode.PULL_MESSAGE, lambda _: fill(group_cluster, b"one"))
        began = trio.current_time()
        await anext(pulls)
        assert trio.current_time() - began < 12, "the pull without an answer takes 10 s to fail"


@pytest.mark.parametrize("stopped", [True, False])
async def test_an_unreachable_broker_is_one_warning(autojump_clock, group_cluster, caplog, stopped):
    """Not one a second for each of its queues."""
    caplog.set_level(logging.INFO)
    async with group_cluster.client(route_wait_s=0) as client, client.pull_consumer("G").share("T") as pulls:
        await until(lambda: pulls.assignment == Q)
        if stopped:
            await group_cluster.broker.stop()
        else:
            answers = [lambda command: command.answer(16, "no")] * 1000
            group_cluster.broker.script(RequestCode.PULL_MESSAGE, *answers)
        with trio.move_on_after(60):
            await anext(pulls)
    levels = [record.levelno for record in caplog.records if "a pull failed" in record.getMessage()]
    assert levels[0] == logging.WARNING
    assert 4 < len(levels) < 10
    assert set(levels[1:]) == {logging.INFO}


async def test_what_cannot_be_shared(autojump_clock, group_cluster):
    async with group_cluster.client() as client:
        consumer = client.pull_consumer("G")
        for call, text in (
            (lambda: consumer.share(), "needs a topic"),
            (lambda: consumer.share("T", interval_s=0), "interval_s"),
            (
                lambda: consumer.share("T", callbacks=triomq.ConsumerCallbacks(on_event=print)),
                r"give on_event there",
            ),
            (lambda: consumer.share("T", tags="a", sql="b = 1"), "either tags= or sql="),
        ):
            with pytest.raises(errors.InvalidCall, match=text):
                call()
        pulls = consumer.share("T")
        with pytest.raises(errors.InvalidCall, match="inside its block"):
            await anext(pulls)
        async with pulls:
            await consumer.aclose()
            with pytest.raises(errors.ClientClosed):
                await anext(pulls)
        with pytest.raises(errors.InvalidCall, match="entered before"):
            async with pulls:
                pass


async def test_a_queue_whose_pull_was_cancelled_is_pulled_at_once(autojump_clock, group_cluster):
    group_cluster.name_server.add_route("T", group_cluster.broker, queues=1)
    fill(group_cluster, b"a")

    async def late(command):
        await trio.sleep(0.1)
        return group_cluster.broker.consumers.pull(command)

    group_cluster.broker.script(RequestCode.PULL_MESSAGE, late)
    async with group_cluster.client() as client, client.pull_consumer("G").share("T", interval_s=60) as pulls:
        with trio.move_on_after(5) as scope:
            while not group_cluster.broker.requests(RequestCode.PULL_MESSAGE):
                with trio.move_on_after(0.05):
                    await anext(pulls)
        assert not scope.cancelled_caught
        started = trio.current_time()
        assert [message.body for message in await anext(pulls)] == [b"a"]
        assert trio.current_time() - started < 1


@pytest.mark.parametrize("kind", ["pull_consumer", "lite_pull_consumer", "push_consumer"])
async def test_a_consumer_of_a_client_that_is_connected_already_begins_at_once(autojump_clock, group_cluster, kind):
    """The links are open before a route names their brokers as those of the consumer's topics."""
    fill(group_cluster, b"a")
    async with group_cluster.client() as client:
        await client.admin.without_master()
        assert client._links.ready(group_cluster.broker.address) is not None
        started = trio.current_time()
        if kind == "pull_consumer":
            async with client.pull_consumer("G").share("T") as pulls:
                assert [message.body for message in await anext(pulls)] == [b"a"]
        else:
            async with getattr(client, kind)("G", start_from="earliest") as consumer:
                await consumer.subscribe("T")
                await anext(consumer)
        assert trio.current_time() - started < 2


@pytest.mark.parametrize("name", ["on_assigned", "on_revoked"])
async def test_a_callback_that_leaves_its_share_is_refused(autojump_clock, group_cluster, name):
    refused = []

    async def leave(_queues):
        try:
            await pulls.__aexit__(None, None, None)
        except errors.InvalidCall as error:
            refused.append(str(error))

    async with group_cluster.client() as client, group_cluster.client(instance_name="second") as second:
        pulls = client.pull_consumer("G").share("T", callbacks=triomq.ConsumerCallbacks(**{name: leave}))
        with trio.fail_after(120):
            async with pulls:
                await until(lambda: pulls.assignment == Q)
                async with second.pull_consumer("G").share("T") as others:
                    await until(lambda: len(pulls.assignment) == len(others.assignment) == 2)
    assert "waits for all callbacks, so a callback cannot wait for it: call it in another task" in refused[0]


async def test_a_share_ends_before_a_callback_that_does_not(autojump_clock, group_cluster, caplog):
    begun, may_end = trio.Event(), trio.Event()
    went = []

    async def shielded(_queues):
        begun.set()
        with trio.CancelScope(shield=True):
            await may_end.wait()

    callbacks = triomq.ConsumerCallbacks(on_assigned=shielded, on_revoked=went.extend)
    async with group_cluster.client() as client:
        async with client.pull_consumer("G").share("T", callbacks=callbacks) as pulls:
            await begun.wait()
            left_s = trio.current_time()
        assert trio.current_time() - left_s < 5
        assert "a callback of a share still runs" in caplog.text
        may_end.set()
        await trio.sleep(1)
        assert pulls.assignment == went == []


async def test_a_share_is_left_twice_or_without_having_been_entered(autojump_clock, group_cluster):
    async with group_cluster.client() as client:
        consumer = client.pull_consumer("G")
        with trio.fail_after(60):
            async with consumer.share("T") as pulls:
                await pulls.__aexit__(None, None, None)
            await consumer.share("T").__aexit__(None, None, None)


async def restart_broker(cluster, pulls, offset):
    """The broker is killed, is not in the route for a while, and comes back with an older offset of the group."""
    other = cluster.network.nodes["broker-b-0:10911"]
    await cluster.broker.stop()
    cluster.name_server.add_route("T", other, queues=1)
    await until(lambda: Q[0] not in pulls.assignment)
    cluster.broker.offsets["G", "T", 0] = offset
    cluster.broker.up = True


@pytest.mark.parametrize("had_by", ["nobody", "another member", "a reset", "a new store"])
async def test_commits_that_a_killed_broker_has_lost(autojump_clock, group_cluster, had_by):
    broker, seen = group_cluster.broker, []
    other = group_cluster.add_master("broker-b")
    other.consumers.serves_groups = True
    fill(group_cluster, *(b"%d" % number for number in range(10)))

    def join(members):
        for each in (broker, other):
            each.consumers.members["G"] = {**members, **each.consumers.members["G"]}

    async with (
        group_cluster.client() as client,
        client.pull_consumer("G") as consumer,
        consumer.share("T") as pulls,
        trio.open_nursery() as nursery,
    ):

        async def take():
            async for result in pulls:
                seen.extend(message.queue_offset for message in result)
                await consumer.commit(result.queue, min(result.next_offset, 6))

        nursery.start_soon(take)
        await until(lambda: len(seen) == 10 and broker.offsets.get(("G", "T", 0)) == 6)
        seen.clear()
        await restart_broker(group_cluster, pulls, 2)
        if had_by == "another member":
            join({"!other": object()})
        group_cluster.name_server.add_route("T", broker, other, queues=1)
        if had_by == "another member":
            await trio.sleep(60)
            assert Q[0] not in pulls.assignment
            for each in (broker, other):
                del each.consumers.members["G"]["!other"]
            pulls._share.wake()
        elif had_by == "a reset":
            await client._requests.consumers["G"].reset("T", {Q[0]: 2})
        elif had_by == "a new store":
            del broker.queues["T", 0][4:]
        await until(lambda: seen)
        nursery.cancel_scope.cancel()
    first = {"nobody": 6, "another member": 2, "a reset": 2, "a new store": 2}[had_by]
    assert seen == [*range(first, 4 if had_by == "a new store" else 10)]
