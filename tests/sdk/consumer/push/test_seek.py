"""Pausing, resuming and seeking on push consumers."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from consumer_broker import until

import triomq
from triomq import errors

Q0 = triomq.MessageQueue("T", "broker-a", 0)
Q1 = triomq.MessageQueue("T", "broker-a", 1)
ORDERED = pytest.mark.parametrize("ordered", [False, True])


def fill(cluster: Any, *numbers: int, queue_id: int = 0) -> None:
    for number in numbers:
        cluster.broker.store("T", queue_id, b"m%d-%d" % (queue_id, number))


class Consumed:
    """A handler that remembers."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.holds: trio.Event | None = None
        self.waits = trio.Event()

    async def __call__(self, message: Any) -> None:
        self.bodies.append(message.body)
        if self.holds is not None:
            self.waits.set()
            await self.holds.wait()


@ORDERED
async def test_a_paused_queue_is_not_pulled_and_the_others_are(autojump_clock, group_cluster, open_consumer, ordered):
    seen = Consumed()
    async with open_consumer(ordered=ordered) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, seen)
        await until(lambda: consumer.assignment == [Q0, Q1])
        await trio.sleep(1)
        consumer.pause(Q0)
        await trio.sleep(20)  # a pull that is held by the broker may still bring messages
        fill(group_cluster, 1)
        fill(group_cluster, 1, queue_id=1)
        await trio.sleep(30)
        assert seen.bodies == [b"m1-1"]
        consumer.resume(Q0)
        await until(lambda: seen.bodies == [b"m1-1", b"m0-1"])
        consumer.drain()


async def test_a_paused_consumer_takes_nothing_of_queues_that_come_later(autojump_clock, group_cluster, open_consumer):
    seen = Consumed()
    async with open_consumer() as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, seen)
        consumer.pause()
        group_cluster.name_server.add_route("T2", group_cluster.broker)
        await consumer.subscribe("T2")
        group_cluster.broker.store("T2", 0, b"later")
        await until(lambda: len(consumer.assignment) == 4)
        await trio.sleep(60)
        assert seen.bodies == []
        consumer.resume()
        await until(lambda: seen.bodies == [b"later"])
        consumer.drain()


async def test_the_pause_of_a_queue_ends_when_it_is_given_up(autojump_clock, group_cluster, open_consumer):
    seen = Consumed()
    async with open_consumer() as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, seen)
        await until(lambda: consumer.assignment == [Q0, Q1])
        consumer.pause(Q1)
        async with group_cluster.client(instance_name="two") as client, client.lite_pull_consumer("G") as two:
            await two.subscribe("T")
            await until(lambda: consumer.assignment == [Q0])
        await until(lambda: consumer.assignment == [Q0, Q1])
        fill(group_cluster, 1, queue_id=1)
        await until(lambda: seen.bodies == [b"m1-1"])
        consumer.drain()


@ORDERED
async def test_seeking_back_and_forth(autojump_clock, group_cluster, open_consumer, ordered):
    fill(group_cluster, *range(5))
    seen = Consumed()
    async with open_consumer(ordered=ordered) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, seen)
        await until(lambda: len(seen.bodies) == 5)
        await consumer.seek(Q0, 3)
        await until(lambda: len(seen.bodies) == 7)
        await consumer.seek_to_begin(Q0)
        await until(lambda: len(seen.bodies) == 12)
        await consumer.seek_to_time(1_700_000_000_004, Q0)
        await until(lambda: len(seen.bodies) == 13)
        await consumer.seek_to_end()
        await trio.sleep(60)
        consumer.drain()
    every = [b"m0-%d" % number for number in range(5)]
    assert seen.bodies == [*every, *every[3:], *every, *every[4:]]
    assert group_cluster.broker.offsets["G", "T", 0] == 5


@ORDERED
async def test_a_handler_at_work_does_not_move_the_offset_after_a_seek(
    autojump_clock, group_cluster, open_consumer, ordered
):
    fill(group_cluster, *range(5))
    seen = Consumed()
    async with open_consumer(ordered=ordered) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, seen)
        await until(lambda: len(seen.bodies) == 5)
        seen.holds = trio.Event()
        await consumer.seek(Q0, 4)
        await seen.waits.wait()
        await consumer.seek(Q0, 0)
        held, seen.holds = seen.holds, None
        if ordered:
            await trio.sleep(1)
            assert len(seen.bodies) == 6, "one of a queue at a time"
        held.set()
        await until(lambda: len(seen.bodies) == 11)
        consumer.drain()
    assert seen.bodies[6:] == [b"m0-%d" % number for number in range(5)]
    assert group_cluster.broker.offsets["G", "T", 0] == 5


async def test_offsets_and_queues_that_cannot_be_sought(autojump_clock, group_cluster, open_consumer):
    other = triomq.MessageQueue("T", "broker-a", 9)
    async with open_consumer() as consumer:
        await until(lambda: consumer.assignment == [Q0, Q1])
        with pytest.raises(errors.InvalidCall, match="has no offset 7, only 0 to 0"):
            await consumer.seek(Q0, 7)
        for call in (consumer.pause, consumer.resume):
            with pytest.raises(errors.InvalidCall, match="not assigned"):
                call(other)
        with pytest.raises(errors.InvalidCall, match="not assigned"):
            await consumer.seek_to_end(other)
    with pytest.raises(errors.ClientClosed):
        consumer.pause()
