"""A broker that is silent keeps nothing back at the others: offsets are committed, and locks released."""

from __future__ import annotations

import itertools
import logging
from contextlib import asynccontextmanager

import pytest
import trio
from consumer_broker import MemoryOffsets, until

import triomq
from triomq import errors
from triomq_protocol.codes import RequestCode

SECOND = ("G", "T", 0)
"""A queue in the offsets of the second broker."""


@pytest.fixture
def brokers(group_cluster):
    """Two masters of topic T, with five messages in a queue of the second one."""
    second = group_cluster.add_master("broker-b")
    second.consumers.serves_groups = True
    second.name_server = group_cluster.name_server
    return group_cluster.broker, second


def silence(broker, *codes):
    for code in codes or (RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.UNLOCK_BATCH_MQ):
        broker.script(code, *[None] * 100)


def fill(broker):
    for number in range(5):
        broker.store("T", 0, b"%d" % number)


async def poll_all(consumer):
    """Poll what was filled in, and once more: then it counts as consumed."""
    polled = 0
    while polled < 5:
        polled += len(await consumer.poll())
    await consumer.poll(0.0)


async def test_at_the_end_of_a_consumer(autojump_clock, brokers, open_consumer):
    first, second = brokers
    async with open_consumer("lite") as consumer:
        await until(lambda: len(consumer.assignment) == 4)
        await trio.sleep(60)
        silence(first)
        fill(second)
        await poll_all(consumer)
        assert second.offsets[SECOND] == 0
    assert second.offsets[SECOND] == 5


async def test_at_the_end_of_a_consumer_that_was_cut_off(autojump_clock, brokers, open_consumer):
    """The first broker's connection was lost, and it does not say how far the group is: its queues are in doubt."""
    first, second = brokers
    async with open_consumer("lite") as consumer:
        await until(lambda: len(consumer.assignment) == 4)
        await trio.sleep(60)
        silence(first, RequestCode.QUERY_CONSUMER_OFFSET)
        await first.cut()
        await trio.sleep(60)
        fill(second)
        await poll_all(consumer)
        assert second.offsets[SECOND] == 0
    assert second.offsets[SECOND] == 5


async def test_locks_at_the_end_of_a_consumer(autojump_clock, brokers, open_consumer):
    first, second = brokers
    async with open_consumer(ordered=True) as consumer:
        await until(lambda: len(consumer.assignment) == 4)
        assert second.consumers.locks
        silence(first)
        await trio.sleep(60)
    assert not second.consumers.locks, "the next member does not have to wait until they expire"


async def test_a_queue_that_is_given_up(autojump_clock, group_cluster, brokers, open_consumer):
    """The second broker's queue moves while a commit at the first one waits for an answer."""
    first, second = brokers
    handled = []

    async def handle(message):
        handled.append((message.queue, message.queue_offset))

    async with open_consumer() as one, trio.open_nursery() as nursery:
        nursery.start_soon(one.run, handle)
        await until(lambda: len(one.assignment) == 4)
        await trio.sleep(60)
        silence(first, RequestCode.UPDATE_CONSUMER_OFFSET)
        fill(first)
        await until(lambda: len(first.scripts[RequestCode.UPDATE_CONSUMER_OFFSET]) < 100)
        for queue_id in (0, 1):
            second.store("T", queue_id, b"moved")
        await trio.sleep(0.1)
        assert len(handled) == 7
        async with group_cluster.client(instance_name="two") as client, client.push_consumer("G") as two:
            await two.subscribe("T")
            nursery.start_soon(two.run, handle)
            await until(lambda: any(queue.broker_name == "broker-b" for queue in two.assignment))
            await trio.sleep(5)
            two.drain()
        one.drain()
    assert len(handled) == len(set(handled)) == 7, "nothing is handled twice"


@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
@pytest.mark.parametrize("is_silent", [True, False])
async def test_a_seek_in_all_queues(autojump_clock, group_cluster, brokers, open_consumer, options, is_silent):
    """The second broker's queues are moved; the error names those of the first one, for which it waits once."""
    first, second = brokers
    group_cluster.name_server.add_route("T", first, second, queues=8)
    fill(second)
    async with open_consumer(**options) as consumer:
        await until(lambda: len(consumer.assignment) == 16)
        await consumer.seek_to_end()
        await until(lambda: second.offsets[SECOND] == 5)
        if is_silent:
            silence(first, RequestCode.GET_MIN_OFFSET)
        else:
            await first.stop()
        began = trio.current_time()
        with pytest.raises(errors.TransientError) as caught:
            await consumer.seek_to_begin()
        assert trio.current_time() - began < 10
        assert "8 of 16 queues were not moved: 0, 1, 2, 3, 4, 5, 6, 7 of T at broker-a" in str(caught.value)
        assert "broker-b" not in str(caught.value)
        if options.get("kind"):
            await poll_all(consumer)
        else:
            for _ in range(5):
                async with await anext(consumer):
                    pass


@pytest.mark.parametrize("at_once", [False, True])
async def test_the_client_closes_during_a_seek(autojump_clock, group_cluster, brokers, at_once):
    """Both brokers are waited for: the error is a plain one, not a group of two."""
    async with (
        group_cluster.client() as client,
        client.lite_pull_consumer("G") as consumer,
        trio.open_nursery() as nursery,
    ):
        await consumer.subscribe("T")
        await until(lambda: len(consumer.assignment) == 4)
        for broker in brokers:
            silence(broker, RequestCode.GET_MIN_OFFSET)

        async def close():
            await trio.sleep(1)
            await client.aclose(at_once=at_once)

        nursery.start_soon(close)
        with pytest.raises(errors.ClientClosed):
            await consumer.seek_to_begin()


@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
async def test_queues_are_given_up_together(autojump_clock, group_cluster, brokers, open_consumer, options):
    """The first broker stores no offset: this is waited for once, and not at each of its queues."""
    first, second = brokers
    group_cluster.name_server.add_route("T", first, second, queues=16)
    async with open_consumer(**options) as one:
        await until(lambda: len(one.assignment) == 32)
        await trio.sleep(60)
        silence(first, RequestCode.UPDATE_CONSUMER_OFFSET)
        # It comes before the other member in the list, and gets the first broker's queues.
        async with group_cluster.client(instance_name="0") as client, client.lite_pull_consumer("G") as two:
            await two.subscribe("T")
            await until(lambda: len(one.assignment) == 16, seconds=4)
            assert {queue.broker_name for queue in one.assignment} == {"broker-b"}


@asynccontextmanager
async def joined_beside_silence(group_cluster, brokers, consumer, topic_count, code):
    """Two consumers of some topics; the second one has joined after the first broker has stopped answering requests
    of a code."""
    topics = ["T", *(f"T{number}" for number in range(topic_count - 1))]
    for topic in topics:
        group_cluster.name_server.add_route(topic, *brokers)
    async with consumer as one:
        for topic in topics[1:]:
            await one.subscribe(topic)
        await until(lambda: len(one.assignment) == 4 * topic_count)
        await trio.sleep(60)
        silence(brokers[0], code)
        brokers[0].seen.clear()
        async with group_cluster.client(instance_name="0") as client, client.lite_pull_consumer("G") as two:
            for topic in topics:
                await two.subscribe(topic)
            yield one


@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
async def test_queues_of_several_topics_are_given_up_together(
    autojump_clock, group_cluster, brokers, open_consumer, options
):
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    async with joined_beside_silence(group_cluster, brokers, open_consumer(**options), 8, code) as one:
        await until(lambda: len(one.assignment) == 16, seconds=4)
        assert {queue.broker_name for queue in one.assignment} == {"broker-b"}


@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
async def test_a_silent_broker_is_asked_for_the_members_once(
    autojump_clock, group_cluster, brokers, open_consumer, options
):
    """And not for each topic, wherever it comes in the random order."""
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    async with joined_beside_silence(group_cluster, brokers, open_consumer(**options), 16, code) as one:
        await until(lambda: len(one.assignment) == 32, seconds=10)
        # By each of the two members once in 20 s.
        assert len(brokers[0].requests(code)) <= 4


@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
@pytest.mark.parametrize("is_silent", [False, True])
async def test_brokers_that_list_no_members(autojump_clock, group_cluster, brokers, open_consumer, options, is_silent):
    """They are asked less and less often, each silent one once in a round; but a change is noticed in a few seconds."""
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    topics = ["T", *(f"T{number}" for number in range(9))]
    for topic in topics:
        group_cluster.name_server.add_route(topic, *brokers)
    async with open_consumer(**options) as consumer:
        for topic in topics[1:]:
            await consumer.subscribe(topic)
        await until(lambda: len(consumer.assignment) == 40)
        await trio.sleep(60)
        for broker in brokers:
            broker.seen.clear()
            broker.script(code, *[None if is_silent else lambda command: command.answer(1, "no")] * 10_000)
        rounds = consumer._member.rebalance.rounds
        await trio.sleep(600)
        assert consumer._member.rebalance.rounds - rounds > 40, "what else it has to do does not wait for long"
        asked = sum(len(broker.requests(code)) for broker in brokers)
        # Two for each topic in a round, or one for each broker.
        assert asked < 130 * (2 if is_silent else 2 * (len(topics) + 1))
        for broker in brokers:
            broker.scripts.clear()
            broker.consumers.members["G"]["~other"] = object()
        await until(lambda: len(consumer.assignment) == 20, seconds=7)


class SlowOffsets(MemoryOffsets):
    """A user's store that needs some time for each read and commit, and may refuse the queues of a broker."""

    def __init__(self):
        super().__init__()
        self.needs_s = self.read_s = 0.0
        self.refuses = None

    async def read(self, queue):
        await trio.sleep(self.read_s)
        return await super().read(queue)

    async def commit(self, offsets):
        await trio.sleep(self.needs_s)
        if any(queue.broker_name == self.refuses for queue in offsets):
            raise KeyError(self.refuses)
        await super().commit(offsets)


@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
async def test_queues_that_are_given_up_with_a_slow_store(autojump_clock, brokers, open_consumer, options):
    """It takes the offsets of all brokers' queues at once: there is no time for one commit after the other."""
    store, handled = SlowOffsets(), []
    for broker in brokers:
        broker.store("T", 0, b"message")

    async def take_all(consumer):
        if "kind" in options:
            while True:
                handled.extend(await consumer.poll())
        async for delivery in consumer:
            async with delivery as message:
                handled.append(message)

    async with (
        open_consumer(**options, offset_store=store, commit_every_s=30) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(take_all, consumer)
        await until(lambda: len(handled) == 2)
        await until(lambda: len(consumer.assignment) == 4)
        store.needs_s = 2.0
        await consumer.unsubscribe("T")
        await until(lambda: not consumer.assignment)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert sorted(offset for queue, offset in store.offsets.items() if queue.topic == "T") == [0, 0, 1, 1]


@asynccontextmanager
async def consumed(brokers, open_consumer, options, store):
    """A consumer that has handled a message of each broker's first queue, and commits its offsets at the end only."""
    handled = []
    for broker in brokers:
        broker.store("T", 0, b"message")

    async def take_all(consumer):
        if "kind" in options:
            while True:
                handled.extend(await consumer.poll())
        async for delivery in consumer:
            async with delivery as message:
                handled.append(message)

    async with open_consumer(**options, offset_store=store, commit_every_s=3600) as consumer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_all, consumer)
            await until(lambda: len(handled) == 2 and len(consumer.assignment) == 4)
            await trio.sleep(6)  # a poll that ends counts its messages as consumed
            nursery.cancel_scope.cancel()
        yield consumer


@pytest.mark.parametrize("cut_off", [False, True])
@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
async def test_the_end_of_a_consumer_with_a_slow_store(autojump_clock, brokers, open_consumer, options, cut_off):
    """It takes the last offsets of all brokers' queues at once."""
    store = SlowOffsets()
    async with consumed(brokers, open_consumer, options, store):
        store.needs_s = 2.0
        if cut_off:
            await brokers[0].cut()
    assert sorted(offset for queue, offset in store.offsets.items() if queue.topic == "T") == [0, 0, 1, 1]


@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
async def test_the_end_of_a_consumer_in_doubt_with_a_store_that_is_slow_to_read(
    autojump_clock, brokers, open_consumer, options
):
    """The offsets of different brokers' queues are read at the same time."""
    store = SlowOffsets()
    async with consumed(brokers, open_consumer, options, store):
        store.read_s, store.needs_s = 0.7, 0.6
        await brokers[0].cut()
    assert sorted(offset for queue, offset in store.offsets.items() if queue.topic == "T") == [0, 0, 1, 1]
    assert not any(broker.consumers.locks for broker in brokers)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("cut_off", [False, True])
@pytest.mark.parametrize("is_stored_elsewhere", [False, True])
async def test_locks_are_released_although_commits_are_not_answered(
    autojump_clock, brokers, open_consumer, ends, cut_off, is_stored_elsewhere
):
    """A broker that only pauses handles that when it goes on; it would keep the locks for a minute."""
    first, second = brokers
    store = SlowOffsets()
    async with open_consumer(ordered=True, **({"offset_store": store} if is_stored_elsewhere else {})) as consumer:
        await until(lambda: len(consumer.assignment) == 4)
        store.read_s = store.needs_s = 3600.0
        silence(first, RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET)
        if cut_off:
            await second.cut()
            await until(lambda: consumer._member.positions.in_doubt(consumer.assignment[0]))
        if not ends:
            await consumer.unsubscribe("T")
            await until(lambda: not any(queue.topic == "T" for _, queue in first.consumers.locks), 5)
    assert not first.consumers.locks


@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
async def test_the_end_of_a_consumer_that_just_gives_queues_up_in_doubt(
    autojump_clock, brokers, open_consumer, options
):
    """It waits for a silent broker there, and again at its end."""
    first, second = brokers
    async with open_consumer(**options) as consumer:
        await until(lambda: len(consumer.assignment) == 4)
        silence(first, *map(int, RequestCode))
        await second.cut()
        await until(lambda: consumer._member.positions.in_doubt(consumer.assignment[0]))
        members = second.consumers.members
        members["G"] = {"~1": object(), "~2": object(), "~3": object(), **members["G"]}
        consumer._member.rebalance.wake()
        await until(lambda: len(consumer.assignment) < 4)
        began = trio.current_time()
    assert trio.current_time() - began < 6.0


@pytest.mark.parametrize("gives_up", [False, True])
@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
async def test_a_store_that_refuses_queues_of_a_broker(autojump_clock, brokers, open_consumer, options, gives_up):
    """It gets the last offsets of the other broker's queues."""
    store = SlowOffsets()
    async with consumed(brokers, open_consumer, options, store) as consumer:
        store.refuses = "broker-a"
        if gives_up:
            await consumer.unsubscribe("T")
            await until(lambda: not consumer.assignment)
    assert store.offsets[triomq.MessageQueue("T", "broker-b", 0)] == 1
    assert not any(broker.consumers.locks for broker in brokers)


@pytest.mark.parametrize("kind", ["lite", "push"])
async def test_on_revoked_has_all_queues_that_are_given_up(autojump_clock, group_cluster, brokers, open_consumer, kind):
    revoked = []

    def give_up(queues):
        if any(queue.topic == "T" for queue in queues):  # and not the retry topic
            revoked.append({queue for queue in queues if queue.topic == "T"})

    callbacks = triomq.ConsumerCallbacks(on_revoked=give_up)
    async with open_consumer(kind, callbacks=callbacks) as one:
        await until(lambda: len(one.assignment) == 4)
        async with group_cluster.client(instance_name="0") as client, client.lite_pull_consumer("G") as two:
            await two.subscribe("T")
            await until(lambda: len(two.assignment) == 2)
            gone = set(two.assignment)
            assert revoked == [gone]
            await until(lambda: len(one.assignment) == 2)
        await until(lambda: len(one.assignment) == 4)
        every = set(one.assignment)
    assert revoked == [gone, every]


@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
async def test_queues_of_other_brokers_are_taken(autojump_clock, group_cluster, brokers, open_consumer, options):
    """The first broker is waited for once in a round, and not at each of its queues, which come first."""
    first, second = brokers
    group_cluster.name_server.add_route("T", first, second, queues=16)
    silence(first, RequestCode.QUERY_CONSUMER_OFFSET)
    async with open_consumer(**options) as consumer:
        await until(lambda: len(consumer.assignment) == 16, seconds=30)
        assert {queue.broker_name for queue in consumer.assignment} == {"broker-b"}
        first.scripts.clear()
        await until(lambda: len(consumer.assignment) == 32)


@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
async def test_queues_are_taken_at_all_brokers_together(autojump_clock, group_cluster, brokers, open_consumer, options):
    """Those of several silent ones come first, in all topics; callbacks are called one after the other."""
    answering = [group_cluster.add_master(f"broker-{name}") for name in "cd"]
    for broker in answering:
        broker.consumers.serves_groups = True
        broker.name_server = group_cluster.name_server
    for topic in ("T", "U", "V"):
        group_cluster.name_server.add_route(topic, *brokers, *answering, queues=4)
    for broker in brokers:
        silence(broker, RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.LOCK_BATCH_MQ)
    running, most = [], []

    async def assigned(queues):
        running.extend(queues)
        most.append(len(running))
        await trio.sleep(0.001)
        running.clear()

    callbacks = triomq.ConsumerCallbacks(on_assigned=assigned)
    async with open_consumer(**options, callbacks=callbacks) as consumer:
        for topic in ("U", "V"):
            await consumer.subscribe(topic)
        # The first round may have known one topic only, and takes five seconds.
        await until(lambda: len(consumer.assignment) == 24, seconds=5.5)
        assert {queue.broker_name for queue in consumer.assignment} == {"broker-c", "broker-d"}
        assert set(most) == {1}
        for broker in brokers:
            broker.scripts.clear()
        await until(lambda: len(consumer.assignment) == 48, seconds=15)


async def test_locks_are_renewed_at_all_brokers_together(autojump_clock, group_cluster, open_consumer):
    """A lock counts for 30 s, and more brokers than that are silent for a second each."""
    answering = group_cluster.add_master("broker-z")
    silent = [group_cluster.add_master(f"broker-{number}") for number in range(40)]
    for broker in (answering, *silent):
        broker.consumers.serves_groups = True
        broker.name_server = group_cluster.name_server
    group_cluster.name_server.add_route("T", *silent, answering, queues=1)
    async with open_consumer(ordered=True) as consumer:
        await until(lambda: len(consumer.assignment) == 41)
        await trio.sleep(30)
        for broker in silent:
            broker.script(RequestCode.LOCK_BATCH_MQ, *[None] * 1000)
        answering.consumers.lock_requests.clear()
        await trio.sleep(100)
        times = [at for at, *_ in answering.consumers.lock_requests]
        assert len(times) > 4
        assert max(after - before for before, after in itertools.pairwise(times)) < 25


@pytest.mark.parametrize("is_silent", [True, False])
async def test_queues_that_a_caller_assigns(autojump_clock, group_cluster, brokers, is_silent):
    """The second broker's are pulled although those of the first one come first; it is waited for once."""
    first, second = brokers
    group_cluster.name_server.add_route("T", first, second, queues=8)
    fill(second)
    if is_silent:
        silence(first, RequestCode.QUERY_CONSUMER_OFFSET)
    else:
        first.script(RequestCode.QUERY_CONSUMER_OFFSET, *[lambda command: command.answer(1, "no")] * 8)
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        queues = sorted(await client.pull_consumer("reader").fetch_queues("T"))
        began = trio.current_time()
        with pytest.raises(errors.MQError):
            await consumer.assign(queues)
        assert trio.current_time() - began < 6
        assert consumer.assignment == queues[8:]
        await poll_all(consumer)
        first.scripts.clear()
        await consumer.assign(queues)
        assert consumer.assignment == queues


async def test_ordered_queues_of_other_brokers_are_locked(
    autojump_clock, group_cluster, brokers, open_consumer, caplog
):
    first, second = brokers
    group_cluster.name_server.add_route("T", first, second, queues=16)
    silence(first, RequestCode.LOCK_BATCH_MQ)
    caplog.set_level(logging.INFO)
    async with open_consumer(ordered=True) as consumer:
        await until(lambda: len(consumer.assignment) == 16, seconds=3)
        assert {queue.broker_name for queue in consumer.assignment} == {"broker-b"}
        first.scripts.clear()
        await until(lambda: len(consumer.assignment) == 32, seconds=5)
    assert "locked by another member" not in caplog.text


@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
async def test_offsets_of_a_consumer_that_was_cut_off(autojump_clock, group_cluster, brokers, open_consumer, options):
    """Whether other members have taken its queues is asked of each broker, without waiting for a silent one each time."""
    first, second = brokers
    group_cluster.name_server.add_route("T", first, second, queues=16)

    async def consume():
        async for item in consumer:
            if not options.get("kind"):
                async with item:
                    pass

    async with open_consumer(**options) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        await until(lambda: len(consumer.assignment) == 32)
        await trio.sleep(60)
        silence(first, RequestCode.QUERY_CONSUMER_OFFSET)
        await first.cut()
        fill(second)
        await until(lambda: second.offsets[SECOND] == 5, seconds=30)
        nursery.cancel_scope.cancel()


async def test_a_broker_that_refuses_to_list_the_members_is_a_line_now_and_then(
    autojump_clock, group_cluster, open_consumer, caplog
):
    """And not some for each round, which are seconds apart: its access control may stay as it is for hours."""
    caplog.set_level(logging.INFO)
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    group_cluster.broker.script(code, *[lambda command: command.answer(1, "AclException: no")] * 1000)
    async with open_consumer("lite") as consumer:
        for number in range(6):
            group_cluster.name_server.add_route(f"T{number}", group_cluster.broker)
            await consumer.subscribe(f"T{number}")
        await trio.sleep(60)
    lines = [record.getMessage() for record in caplog.records if "did not list the members of G" in record.getMessage()]
    assert len(group_cluster.broker.requests(code)) > 50
    assert 1 < len(lines) <= 7
    assert "AclException: no" in lines[0]
    assert "more like it" in lines[1]


@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
async def test_queues_that_are_kept_after_a_lost_connection(
    autojump_clock, group_cluster, brokers, open_consumer, options
):
    """The first broker does not say how far the group is; the second one's queues do not wait for it."""
    first, second = brokers
    group_cluster.name_server.add_route("U", second, queues=1)
    other_topic = triomq.MessageQueue("U", "broker-b", 0)
    async with open_consumer(**options) as consumer, trio.open_nursery() as nursery:
        await consumer.subscribe("U")
        if options.get("kind") != "lite":
            nursery.start_soon(consumer.run, trio.lowlevel.checkpoint)
        await until(lambda: len(consumer.assignment) == 5)
        await trio.sleep(60)
        positions = consumer._member.positions
        silence(first, RequestCode.QUERY_CONSUMER_OFFSET)
        await second.cut()
        await until(lambda: positions.in_doubt(other_topic), 1)
        mine = [queue for queue in consumer.assignment if queue.broker_name == "broker-b"]
        assert len(mine) == 3
        await until(lambda: not any(map(positions.in_doubt, mine)), 2)
        consumer._member.stop()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("auto_commit", [True, False])
@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("polls", [True, False])
async def test_the_start_of_a_new_group_that_was_not_committed_at_once(
    autojump_clock, group_cluster, open_consumer, auto_commit, moves, polls
):
    """Messages that arrive meanwhile must not be skipped by the next owner of the queue, which begins at the end."""
    broker = group_cluster.broker
    for queue_id in (0, 1):
        broker.store("T", queue_id, b"old")
    silence(broker, RequestCode.UPDATE_CONSUMER_OFFSET)
    async with open_consumer("lite", start_from="latest", auto_commit=auto_commit) as consumer:
        await until(lambda: len(consumer.assignment) == 2)
        broker.scripts.clear()
        assert ("G", "T", 1) not in broker.offsets
        broker.store("T", 1, b"new")
        if polls:
            assert await consumer.poll()
            assert not await consumer.poll(1.0)
        if moves:
            broker.consumers.members["G"]["~other"] = object()
            consumer._member.rebalance.wake()
            await until(lambda: len(consumer.assignment) == 1)
            await trio.sleep(1)
    assert broker.offsets["G", "T", 1] == (2 if polls and auto_commit else 1)
