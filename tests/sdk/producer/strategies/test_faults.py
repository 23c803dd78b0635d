"""The broker of the next attempt (docs/protocol/client.md §6.7)."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
import trio

import triomq
from triomq import errors
from triomq._producer.strategies.faults import LatencyFaults, choose_plain, not_available_for_s


@pytest.mark.parametrize(
    ("latency", "pause"),
    [(0.01, 0), (0.05, 0), (0.1, 0), (0.55, 30), (1, 60), (2, 120), (3, 180), (14.9, 180), (15, 600), (30, 600)],
)
def test_latency_table(latency, pause):
    assert not_available_for_s(latency) == pause


def queues(*names):
    return [triomq.MessageQueue("T", name, number) for name in names for number in (0, 1)]


def counter(start=-1):
    numbers = iter(range(start + 1, 10_000))
    return lambda: next(numbers)


def test_plain_choice_passes_over_the_last_broker():
    assert choose_plain(queues("a", "b"), None, counter()) == triomq.MessageQueue("T", "a", 0)
    assert choose_plain(queues("a", "b"), "a", counter()) == triomq.MessageQueue("T", "b", 0)
    assert choose_plain(queues("a"), "a", counter()) == triomq.MessageQueue("T", "a", 0)


def test_fault_choice():
    faults = LatencyFaults()
    faults.update("a", 0.6, 0, isolate=False)
    assert faults.choose(queues("a", "b"), "b", counter(), 1).broker_name == "b"  # the last broker does not count
    faults.update("b", 0.01, 0, isolate=True)
    # None is available: the half with the smaller latency, one broker here.
    assert faults.choose(queues("a", "b"), None, counter(), 1).broker_name == "b"
    assert faults.is_available("a", 30)
    assert not faults.is_available("b", 599)
    assert faults.choose(queues("a", "b"), None, counter(), 31).broker_name == "a"
    alone = LatencyFaults()
    alone.update("gone", 0.6, 0, isolate=True)
    alone.update("a", 0.6, 0, isolate=True)
    assert alone.choose(queues("a"), None, counter(), 1).broker_name == "a"


class Stubborn:
    """Names one broker each time; after 1,000 calls any of them, so that no test waits without end."""

    def __init__(self, broker_name):
        self.broker_name = broker_name
        self.calls = 0

    def choose(self, queues, _last_broker, count, _now):
        self.calls += 1
        queue = queues[count() % len(queues)]
        if self.calls > 1000:
            return queue
        return next((each for each in queues if each.broker_name == self.broker_name), queue)

    def update(self, *_args, **_options):
        pass


async def test_a_strategy_that_names_only_a_broker_that_is_down(cluster, autojump_clock):
    cluster.add_master("broker-b")
    await cluster.broker.stop()
    faults = Stubborn("broker-a")
    async with cluster.client() as client:
        producer = client.producer("G", faults=faults)
        for _ in range(3):
            assert (await producer.send(triomq.Message("T", b"x"))).queue.broker_name == "broker-b"
    assert faults.calls < 50


async def test_the_broker_that_was_slow_is_the_only_one_left(cluster):
    cluster.add_master("broker-b")
    faults = LatencyFaults()
    async with cluster.client() as client:
        producer = client.producer("G", faults=faults)
        for _ in range(4):
            await producer.send(triomq.Message("T", b"x"))
        faults.update("broker-b", 0.6, trio.current_time(), isolate=False)
        await cluster.broker.stop()
        results = [await producer.send(triomq.Message("T", b"x")) for _ in range(4)]
    assert {result.queue.broker_name for result in results} == {"broker-b"}


class Counting(Stubborn):
    """Counts how many queues it is given."""

    given = 0

    def choose(self, queues, last_broker, count, now):
        self.given += len(queues)
        return super().choose(queues, last_broker, count, now)


@pytest.mark.parametrize("up", [True, False])
async def test_a_strategy_is_not_asked_for_each_of_many_queues(cluster, autojump_clock, up):
    """It may look at all of them each time."""
    other = cluster.add_master("broker-b")
    for each in cluster.name_server.routes["T"].queue_datas:
        each.read_queue_nums = each.write_queue_nums = 500
    faults = Counting("broker-a")
    async with cluster.client() as client:
        producer = client.producer("G", faults=faults)
        assert (await producer.send(triomq.Message("T", b"x"))).queue.broker_name == "broker-a"
        await cluster.broker.stop()
        if not up:
            await other.stop()
        with suppress(errors.MQError):
            assert (await producer.send(triomq.Message("T", b"x"))).queue.broker_name == "broker-b"
    assert faults.given < 50 * 1000


@pytest.mark.parametrize("last_broker", [None, "broker-a", "broker-b"])
async def test_queues_of_brokers_that_can_be_reached_are_used_evenly(cluster, autojump_clock, last_broker):
    cluster.add_master("broker-b")
    cluster.add_master("broker-c")
    async with cluster.client() as client:
        producer = client.producer("G")
        await cluster.broker.stop()
        await producer.send(triomq.Message("T", b"x"))
        targets = producer._targets
        topic = await targets.of("T")
        for address in topic.masters:
            with suppress(errors.MQError):
                await client._links.get(address)
        chosen = Counter(targets._choose(topic, last_broker) for _ in range(120))
    wanted = {"broker-b", "broker-c"} - {last_broker}
    queues = [queue for queue in topic.queues if queue.broker_name in wanted]
    assert chosen == dict.fromkeys(queues, 120 // len(queues))


async def test_the_only_broker_is_down_and_has_many_queues(cluster, autojump_clock):
    (each,) = cluster.name_server.routes["T"].queue_datas
    each.read_queue_nums = each.write_queue_nums = 500
    async with cluster.client() as client:
        producer = client.producer("G", send_timeout_s=0.1)
        await cluster.broker.stop()
        with pytest.raises(errors.MQError):
            await producer.send(triomq.Message("T", b"x"))
        topic = await producer._targets.of("T")
        before = topic.count()
        assert producer._targets._choose(topic, "broker-a").broker_name == "broker-a"
        assert topic.count() - before <= 2 * len(topic.queues)
