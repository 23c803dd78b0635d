"""Plug points of consumers that raise, or return invalid values: they are named, and the consumer continues."""

from __future__ import annotations

import pytest
import trio
from consumer_broker import until

import triomq
from triomq import errors, plugins

Q0, Q1 = (triomq.MessageQueue("T", "broker-a", number) for number in (0, 1))


class Store:
    """Offsets in memory; fails a given number of times."""

    def __init__(self) -> None:
        self.offsets = {}
        self.read_answers = []
        self.commit_errors = []

    async def read(self, queue):
        await trio.lowlevel.checkpoint()
        answer = self.read_answers.pop(0) if self.read_answers else self.offsets.get(queue)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def commit(self, offsets):
        await trio.lowlevel.checkpoint()
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        self.offsets.update(offsets)


def consumer_of(client, kind, **options):
    if kind == "pull":
        return client.pull_consumer("G", **options)
    make = client.push_consumer if kind == "push" else client.lite_pull_consumer
    return make("G", **{"start_from": "earliest", **options})


async def consume(consumer, kind, count):
    """The bodies of so many messages."""
    bodies = []
    with trio.fail_after(120):
        if kind == "lite":
            while len(bodies) < count:
                bodies += [message.body for message in await consumer.poll(10.0)]
            return bodies
        async for delivery in consumer:
            async with delivery:
                bodies.append(delivery.message.body)
            if len(bodies) == count:
                return bodies
    raise AssertionError


KINDS = pytest.mark.parametrize("kind", ["push", "lite"])


@KINDS
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (OSError("away"), "read of the offset store Store failed; OSError: away"),
        ("3", "read of the offset store Store returned '3'"),
        (5.5, "read of the offset store Store returned 5.5"),
        (True, "read of the offset store Store returned True"),
        (1 << 63, "read of the offset store Store returned 9223372036854775808"),
        (-2, "read of the offset store Store returned -2"),
    ],
    ids=repr,
)
async def test_an_offset_store_that_cannot_be_read_for_a_while(
    autojump_clock, group_cluster, caplog, kind, answer, says
):
    """As a database that restarts; by an answer of another type every pull would be refused, again and again."""
    for number in range(4):
        group_cluster.broker.store("T", number % 2, b"m%d" % number)
    store = Store()
    store.read_answers = [answer] * 6
    async with group_cluster.client() as client, consumer_of(client, kind, offset_store=store) as consumer:
        await consumer.subscribe("T")
        assert sorted(await consume(consumer, kind, 4)) == [b"m0", b"m1", b"m2", b"m3"]
    assert says in caplog.text
    assert store.offsets[Q0] == store.offsets[Q1] == 2


@KINDS
async def test_an_offset_store_that_cannot_keep_offsets_for_a_while(autojump_clock, group_cluster, caplog, kind):
    group_cluster.broker.store("T", 0, b"m0")
    store = Store()
    store.commit_errors = [OSError("away")] * 3
    async with group_cluster.client() as client, consumer_of(client, kind, offset_store=store) as consumer:
        await consumer.subscribe("T")
        assert await consume(consumer, kind, 1) == [b"m0"]
        if kind == "lite":
            await consumer.poll(0.0)
        await trio.sleep(25)
        group_cluster.broker.store("T", 0, b"m1")
        assert await consume(consumer, kind, 1) == [b"m1"]
    assert "commit of the offset store Store failed; OSError: away" in caplog.text
    assert store.offsets[Q0] == 2


@KINDS
async def test_an_offset_store_that_returns_minus_1_for_none(autojump_clock, group_cluster, kind):
    """As Java's stores do."""
    group_cluster.broker.store("T", 0, b"old")
    store = Store()
    store.read_answers = [-1] * 3
    options = {"offset_store": store, "start_from": "latest"}
    async with group_cluster.client() as client, consumer_of(client, kind, **options) as consumer:
        await consumer.subscribe("T")
        await until(lambda: consumer.assignment == [Q0, Q1])
        group_cluster.broker.store("T", 0, b"new")
        assert await consume(consumer, kind, 1) == [b"new"]


async def test_an_offset_store_of_a_pull_consumer_that_fails_for_a_while(autojump_clock, group_cluster, caplog):
    group_cluster.broker.store("T", 0, b"m0")
    store = Store()
    store.read_answers = [OSError("away")] * 6
    async with group_cluster.client() as client:
        consumer = client.pull_consumer("G", offset_store=store)
        async with consumer.share("T") as pulls:
            result = await anext(pulls)
            assert [message.body for message in result] == [b"m0"]
            store.commit_errors = [OSError("away")]
            with pytest.raises(errors.MQError, match="commit of the offset store Store failed; OSError: away"):
                await consumer.commit(result.queue)
            await consumer.commit(result.queue)
        store.read_answers = ["3"]
        with pytest.raises(errors.MQError, match="read of the offset store Store returned '3'"):
            await consumer.committed(Q0)
    assert "a pull failed and will be repeated: read of the offset store Store failed; OSError: away" in caplog.text
    assert store.offsets == {Q0: 1}


@pytest.mark.parametrize("kind", ["push", "lite", "pull"])
@pytest.mark.parametrize("store", [5, Store, object()], ids=["int", "class", "object"])
async def test_what_is_no_offset_store(group_cluster, kind, store):
    async with group_cluster.client() as client:
        with pytest.raises(
            errors.InvalidCall, match="offset_store is no object with the async methods read and commit"
        ):
            consumer_of(client, kind, offset_store=store)
        async with consumer_of(client, kind):
            pass


async def asynchronous(_client_id, queues, _members):
    return queues


@KINDS
@pytest.mark.parametrize(
    ("allocate", "says"),
    [
        (5, "allocate is int; give a function"),
        (plugins.Average, "allocate is the class Average; give an object of it, or a function"),
        (asynchronous, "allocate is an async function"),
    ],
    ids=["int", "class", "async"],
)
async def test_what_is_no_allocate_strategy(group_cluster, kind, allocate, says):
    async with group_cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match=says):
            consumer_of(client, kind, allocate=allocate)
        with pytest.raises(errors.InvalidCall, match=says):
            client.pull_consumer("P").share("T", allocate=allocate)
        async with consumer_of(client, kind):
            pass


async def test_an_allocate_strategy_that_takes_queues_of_another_topic(autojump_clock, group_cluster, caplog):
    group_cluster.name_server.add_route("U", group_cluster.broker)
    group_cluster.broker.store("U", 0, b"not subscribed to")
    group_cluster.broker.store("T", 0, b"m0")
    answers = iter([[triomq.MessageQueue("U", "broker-a", 0)]])

    def others(_client_id, queues, _members):
        return next(answers, queues)

    async with group_cluster.client() as client, consumer_of(client, "push", allocate=others) as consumer:
        await consumer.subscribe("T")
        assert await consume(consumer, "push", 1) == [b"m0"]
        await until(lambda: set(consumer.assignment) == {Q0, Q1})
    assert "the allocation strategy test_an_allocate_strategy_that_takes" in caplog.text
    assert "[topic=U, brokerName=broker-a, queueId=0], which was not among the queues" in caplog.text


@pytest.mark.parametrize("kind", ["push", "lite", "pull"])
async def test_a_filter_hook_without_return_keeps_messages(autojump_clock, group_cluster, caplog, kind):
    """They would count as consumed, all of them."""

    class Forgetful:
        def wants(self, _group, message):
            message.body.startswith(b"m")

    group_cluster.broker.store("T", 0, b"m0")
    async with group_cluster.client() as client:
        if kind == "pull":
            result = await client.pull_consumer("G", filter_hooks=[Forgetful()]).pull(Q0, offset=0)
            assert [message.body for message in result.messages] == [b"m0"]
        else:
            async with consumer_of(client, kind, filter_hooks=[Forgetful()]) as consumer:
                await consumer.subscribe("T")
                assert await consume(consumer, kind, 1) == [b"m0"]
    assert "returned None, neither True nor False" in caplog.text


class Hook:
    def before_pull(self, context):
        """Sees a pull."""

    after_pull = before_consume = after_consume = before_send = after_send = before_pull

    def wants(self, _group, _message):
        return True


@pytest.mark.parametrize(
    ("method", "argument", "one_of"),
    [
        ("producer", "hooks", "before_send or after_send"),
        ("pull_consumer", "pull_hooks", "before_pull or after_pull"),
        ("pull_consumer", "filter_hooks", "wants"),
        ("lite_pull_consumer", "pull_hooks", "before_pull or after_pull"),
        ("lite_pull_consumer", "filter_hooks", "wants"),
        ("push_consumer", "pull_hooks", "before_pull or after_pull"),
        ("push_consumer", "filter_hooks", "wants"),
        ("push_consumer", "consume_hooks", "before_consume or around_consume"),
    ],
)
async def test_what_are_no_hooks(group_cluster, method, argument, one_of):
    async with group_cluster.client() as client:
        make = getattr(client, method)
        for no_list in (Hook(), "hooks", (each for each in [Hook()])):
            with pytest.raises(
                errors.InvalidCall, match=f"{argument} is {type(no_list).__name__}, not a list of hooks"
            ):
                make("G", **{argument: no_list})
        for no_hook in (object(), Hook, print):
            with pytest.raises(
                errors.InvalidCall, match=f"{argument} has .*, which is no object with the method {one_of}"
            ):
                make("G", **{argument: [Hook(), no_hook]})
        make("G", **{argument: (Hook(),)})


@pytest.mark.parametrize("kind", ["push", "lite", "pull"])
async def test_a_filter_hook_whose_answer_has_no_truth_keeps_messages(autojump_clock, group_cluster, caplog, kind):
    class Array:
        def __bool__(self):
            raise ValueError("the truth value of an array is ambiguous")

    class Comparing:
        def wants(self, _group, _message):
            return Array()

    group_cluster.broker.store("T", 0, b"m0")
    async with group_cluster.client() as client:
        if kind == "pull":
            result = await client.pull_consumer("G", filter_hooks=[Comparing()]).pull(Q0, offset=0)
            assert [message.body for message in result.messages] == [b"m0"]
        else:
            async with consumer_of(client, kind, filter_hooks=[Comparing()]) as consumer:
                await consumer.subscribe("T")
                assert await consume(consumer, kind, 1) == [b"m0"]
    assert "the truth value of an array is ambiguous" in caplog.text
