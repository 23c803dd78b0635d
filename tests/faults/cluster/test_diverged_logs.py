"""After a loss of power a master may lack messages that its slave has: readers must read one log, not two."""

from __future__ import annotations

import random

import trio
from cluster_setting import Setting
from cluster_world import MASTER, TOPIC, World, begin
from seeded_run import seeded_run

import triomq

SLAVE = "broker-a-s"
QUEUE = triomq.MessageQueue(TOPIC, "broker-a", 0)
FORCED_S = 11.0
"""Longer than the maximum delay before bytes are forced to the disk."""
SETTING = Setting(synchronous=False, flush=False, slaves=1, disk_lost=False, power=True, succession=False)


class NothingUnforced(random.Random):
    """Pages that were not forced to the disk are all lost with the power."""

    def random(self) -> float:
        return 0.99


async def send(world: World, bodies: list[bytes]) -> None:
    async with world.client("sender") as client, client.producer("load") as producer:
        for body in bodies:
            await producer.send(triomq.Message(TOPIC, body), queue=QUEUE)


async def pulled(world: World, preference: str, offset: int) -> tuple[list[bytes], int]:
    async with world.client(f"{preference} reader") as client:
        consumer = client.pull_consumer("readers", read_preference=preference)
        result = await consumer.pull(QUEUE, offset)
        return [message.body for message in result.messages], result.suggested_broker_id


def test_a_slave_serves_nothing_that_its_master_has_lost() -> None:
    seeded_run(0, _lose_power)


async def _lose_power() -> None:
    async with trio.open_nursery() as nursery:
        world = World(0, nursery, SETTING)
        await begin(world)
        await send(world, [b"kept-0", b"kept-1"])
        await trio.sleep(FORCED_S)
        await send(world, [b"lost-2", b"lost-3"])
        await trio.sleep(0.1)
        assert await pulled(world, "slave", 2) == ([b"lost-2", b"lost-3"], 0)
        world.chance = NothingUnforced()
        world.nodes[MASTER].kill(power=True)
        await trio.sleep(0.5)
        # It is not known yet that the master will restart without them.
        assert await pulled(world, "slave", 2) == ([b"lost-2", b"lost-3"], 0)
        world.nodes[MASTER].start()
        await trio.sleep(10)
        await send(world, [b"new-2"])
        await trio.sleep(10)
        # A batch ends where the logs diverge; a filtered pull does not go past that point either.
        assert await pulled(world, "slave", 0) == ([b"kept-0", b"kept-1"], 0)
        assert await pulled(world, "slave", 1) == ([b"kept-1"], 0)
        assert await pulled(world, "slave", 2) == ([], 0)
        async with world.client("filtering reader") as client:
            consumer = client.pull_consumer("readers", read_preference="slave")
            found = await consumer.pull(QUEUE, 0, tags="none")
            assert (found.messages, found.next_offset) == ([], 2)
            found = await consumer.pull(QUEUE, 2, tags="none")
            assert (found.messages, found.next_offset) == ([], 2)
        assert await pulled(world, "suggested", 0) == ([b"kept-0", b"kept-1", b"new-2"], 0)
        nursery.cancel_scope.cancel()
