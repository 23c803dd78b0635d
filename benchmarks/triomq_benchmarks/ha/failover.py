"""Measures how long a reader gets nothing: from the master's SIGKILL to the first message from its slave.

One cluster of ours; before every kill a fresh client of our SDK, with one link, the master's, pulls without pause.  The
clock starts just before the kill and stops when a pull returns messages that the slave served; then the master is
started again for the next kill. With Java, the Java client reads the same queue at the same time, so what differs is
the client.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import attrs
import trio

import triomq
from triomq_benchmarks.clusters.builds import DRIVERS
from triomq_benchmarks.clusters.cluster import ClusterError, OurCluster, in_thread, open_cluster
from triomq_benchmarks.clusters.java import Java, prepare_home
from triomq_benchmarks.clusters.processes import Driver
from triomq_benchmarks.clusters.server_state import knows_topic, max_offset

TOPIC = "failover"
MASTER, SLAVE = "broker-a", "broker-a-s"
QUEUE = triomq.MessageQueue(TOPIC, MASTER, 0)
MESSAGES = 200
PULLED_BEFORE_S = (0.05, 0.2)
"""The kill is at a random moment of the traffic."""
LIMIT_S = 30.0
GOAL_S = 0.1
JAVA_LOOKS_S = 30.0
"""Interval of the Java client's route refreshes; the age at the master's death is spread evenly over it."""
JAVA_LIMIT_S = 75.0
"""The second refresh must have found the slave."""
CALL_GRACE_S = 10.0


@attrs.frozen
class Kill:
    """The seconds from one kill of the master to the first message from the slave.

    Attributes:
        ours_s: our SDK.
        java_s: the Java client.
    """

    ours_s: float
    java_s: float


async def measure_ours(
    kills: int, *, seed: int = 0, progress: Callable[[str], None] = lambda _text: None
) -> list[float]:
    """Kill the master `kills` times under a reader; returns the seconds that each kill cost it.

    Raises:
        ClusterError: the cluster did not start, or the reader was not served in time.
    """
    chance = random.Random(seed)
    taken_s: list[float] = []
    async with in_thread(open_cluster()) as cluster:
        await fill(cluster)
        for kill in range(kills):
            progress(f"kill {kill + 1} of {kills}")
            taken_s.append(await _one_kill(cluster, chance.uniform(*PULLED_BEFORE_S)))
            await trio.to_thread.run_sync(cluster.start_node, MASTER)
    return taken_s


async def fill(cluster: OurCluster) -> None:
    """Send some messages, and wait until both brokers have them."""
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


async def _one_kill(cluster: OurCluster, before_s: float) -> float:
    """Measure seconds from the kill to a fresh client's first message from the slave."""
    master, slave = cluster.nodes[MASTER].address, cluster.nodes[SLAVE].address
    async with (
        triomq.open_client(cluster.name_servers) as client,
        client.pull_consumer("failover-consumer") as consumer,
    ):
        with trio.move_on_after(LIMIT_S):
            while await served_by(consumer) != master:  # noqa: ASYNC110 -- the name server must know the master first
                await trio.sleep(0.1)
            kill_at = trio.current_time() + before_s
            while trio.current_time() < kill_at:
                await served_by(consumer)
            killed = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, cluster.kill_node, MASTER)
                while await served_by(consumer) != slave:
                    pass
                return trio.current_time() - killed
    raise ClusterError(f"the reader was not served within {LIMIT_S:g} s")


async def served_by(consumer: triomq.PullConsumer) -> str | None:
    """Pull once; returns the broker that gave messages, if any."""
    try:
        result = await consumer.pull(QUEUE, 0)
    except triomq.MQError:
        return None
    return result.broker_address if result.messages else None


# -- compared with the Java client
# ---------------------------------------------------------------------------------------------


async def measure_beside_java(kills: int, java: Java, home: Path, progress: Callable[[str], None]) -> list[Kill]:
    """Kill the master `kills` times under both readers.

    Raises:
        ClusterError: the cluster did not start, or a reader was not served in time.
    """
    chance = random.Random(0)
    ages_s = [JAVA_LOOKS_S * (number + 0.5) / kills for number in range(kills)]
    chance.shuffle(ages_s)
    argv = java.command(
        "FailoverReader",
        home=prepare_home(home / "reader"),
        classes=java.compile(sorted((DRIVERS / "java").glob("*.java"))),
    )
    found: list[Kill] = []
    async with in_thread(open_cluster()) as cluster:
        await fill(cluster)
        with Driver("Java reader", argv, home / "reader" / "reader.out") as reader:
            for number, age_s in enumerate(ages_s):
                progress(f"kill {number + 1} of {kills}")
                await _wait_for_master(cluster)
                await _start_reader(reader, cluster.name_servers)
                await trio.sleep(age_s)
                found.append(await _one_kill_of_both(cluster, reader, chance.uniform(*PULLED_BEFORE_S)))
                await trio.to_thread.run_sync(cluster.start_node, MASTER)
    return found


async def _wait_for_master(cluster: OurCluster) -> None:
    """Wait until the name server knows the master and it serves."""
    master = cluster.nodes[MASTER].address
    with trio.fail_after(LIMIT_S):
        async with (
            triomq.open_client(cluster.name_servers) as client,
            client.pull_consumer("failover-consumer") as consumer,
        ):
            while await served_by(consumer) != master:  # noqa: ASYNC110 -- a node that has just been started
                await trio.sleep(0.1)


async def _one_kill_of_both(cluster: OurCluster, reader: Driver, before_s: float) -> Kill:
    slave = cluster.nodes[SLAVE].address
    async with (
        triomq.open_client(cluster.name_servers) as client,
        client.pull_consumer("failover-consumer") as consumer,
    ):
        kill_at = trio.current_time() + before_s
        while trio.current_time() < kill_at:
            await served_by(consumer)
        killed_ns = time.monotonic_ns()
        ours_s = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, cluster.kill_node, MASTER)
            with trio.move_on_after(LIMIT_S):
                while await served_by(consumer) != slave:
                    pass
                ours_s = (time.monotonic_ns() - killed_ns) / 1e9
    java_s = await _await_message(reader, killed_ns)
    if ours_s is None:
        raise ClusterError(f"our reader was not served within {LIMIT_S:g} s")
    return Kill(ours_s, java_s)


async def _start_reader(reader: Driver, name_servers: str) -> None:
    command = {
        "op": "start",
        "nameServers": name_servers,
        "topic": TOPIC,
        "brokerName": QUEUE.broker_name,
        "queue": QUEUE.queue_id,
    }
    answer = await trio.to_thread.run_sync(partial(reader.call, command, LIMIT_S + CALL_GRACE_S))
    if not answer["served"]:
        raise ClusterError("the Java reader was not served before the kill")


async def _await_message(reader: Driver, killed_ns: int) -> float:
    command = {"op": "await", "limitSeconds": JAVA_LIMIT_S}
    answer = await trio.to_thread.run_sync(partial(reader.call, command, JAVA_LIMIT_S + CALL_GRACE_S))
    java_s = (cast("int", answer["nanos"]) - killed_ns) / 1e9
    if java_s <= 0:
        raise ClusterError(f"the Java reader was not served within {JAVA_LIMIT_S:g} s")
    return java_s
