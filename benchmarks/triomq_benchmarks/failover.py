"""From the master's SIGKILL to the first message from its slave: how long a reader of our SDK stands still.

One cluster of processes; for every kill a fresh client with one link, the master's, pulls without pause. The clock starts in
front of the kill and stops when a pull returns messages that the slave served; then the master comes back for the next kill.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import trio

import triomq

from .demo_cluster import ClusterError, DemoCluster, knows_topic, max_offset, open_demo_cluster

TOPIC = "failover"
MASTER, SLAVE = "broker-a", "broker-a-s"
QUEUE = triomq.MessageQueue(TOPIC, MASTER, 0)
MESSAGES = 200
PULLED_BEFORE_S = (0.05, 0.2)
"""The kill comes at a random moment of the traffic."""
LIMIT_S = 30.0


async def measure(kills: int, *, seed: int = 0, progress: Callable[[str], None] = lambda _text: None) -> list[float]:
    """Kill the master so many times under a reader; returns how many seconds each kill cost it.

    Raises:
      ClusterError: the cluster did not start, or nobody served the reader in time.
    """
    chance = random.Random(seed)
    taken_s: list[float] = []
    async with open_demo_cluster() as cluster:
        await fill(cluster)
        for kill in range(kills):
            progress(f"kill {kill + 1} of {kills}")
            taken_s.append(await _one_kill(cluster, chance.uniform(*PULLED_BEFORE_S)))
            await cluster.start(MASTER)
    return taken_s


async def fill(cluster: DemoCluster) -> None:
    """Some messages, on both brokers."""
    with trio.move_on_after(LIMIT_S):
        async with triomq.open_client(cluster.name_servers) as client, client.producer("failover-producer") as producer:
            await client.admin.create_topic(TOPIC, queues=1)
            for number in range(MESSAGES):
                await producer.send(triomq.Message(TOPIC, b"%d" % number))
        slave = cluster.nodes[SLAVE].address
        while await max_offset(slave, TOPIC, 0) < MESSAGES or not await knows_topic(slave, TOPIC):  # noqa: ASYNC110
            await trio.sleep(0.02)
        return
    raise ClusterError(f"the slave did not get {MESSAGES} messages within {LIMIT_S:g} s")


async def _one_kill(cluster: DemoCluster, before_s: float) -> float:
    """A fresh client reads from the master; from the kill to its first message from the slave, in seconds."""
    master, slave = cluster.nodes[MASTER].address, cluster.nodes[SLAVE].address
    async with (
        triomq.open_client(cluster.name_servers) as client,
        client.pull_consumer("failover-consumer") as consumer,
    ):
        with trio.move_on_after(LIMIT_S):
            while await served_by(consumer) != master:  # noqa: ASYNC110 -- the name server has to hear of the master first
                await trio.sleep(0.1)
            kill_at = trio.current_time() + before_s
            while trio.current_time() < kill_at:
                await served_by(consumer)
            killed = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, cluster.kill, MASTER)
                while await served_by(consumer) != slave:
                    pass
                return trio.current_time() - killed
    raise ClusterError(f"nobody served the reader within {LIMIT_S:g} s")


async def served_by(consumer: triomq.PullConsumer) -> str | None:
    """Pull once; the broker that gave messages."""
    try:
        result = await consumer.pull(QUEUE, 0)
    except triomq.MQError:
        return None
    return result.broker_address if result.messages else None
