"""A master is killed under two readers at once, one of our SDK and one of the Java client: how long each stands still.

The cluster is ours for both, so what differs is the client. A kill ends when both have got messages from the slave.
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

from .builds import DRIVERS
from .demo_cluster import ClusterError, DemoCluster, open_demo_cluster
from .failover import LIMIT_S, MASTER, PULLED_BEFORE_S, QUEUE, SLAVE, TOPIC, fill, served_by
from .java import Java, prepare_home
from .processes import Driver

JAVA_LOOKS_S = 30.0
"""How often the Java client looks at its routes; how old it is when the master dies is spread evenly over this time."""
JAVA_LIMIT_S = 75.0
"""The second look must have found the slave."""
CALL_GRACE_S = 10.0


@attrs.frozen
class Kill:
    """One kill of the master: seconds from it to the first message from the slave.

    Attributes:
      ours_s: our SDK.
      java_s: the Java client.
    """

    ours_s: float
    java_s: float


async def measure_failover(kills: int, java: Java, home: Path, progress: Callable[[str], None]) -> list[Kill]:
    """Kill the master so many times under both readers.

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
    async with open_demo_cluster() as cluster:
        await fill(cluster)
        with Driver("Java reader", argv, home / "reader" / "reader.out") as reader:
            for number, age_s in enumerate(ages_s):
                progress(f"kill {number + 1} of {kills}")
                await _wait_for_master(cluster)
                await _start(reader, cluster.name_servers)
                await trio.sleep(age_s)
                found.append(await _one_kill(cluster, reader, chance.uniform(*PULLED_BEFORE_S)))
                await cluster.start(MASTER)
    return found


async def _wait_for_master(cluster: DemoCluster) -> None:
    """The name server has to hear of it first."""
    master = cluster.nodes[MASTER].address
    with trio.fail_after(LIMIT_S):
        async with (
            triomq.open_client(cluster.name_servers) as client,
            client.pull_consumer("failover-consumer") as consumer,
        ):
            while await served_by(consumer) != master:  # noqa: ASYNC110 -- a node that has just been started
                await trio.sleep(0.1)


async def _one_kill(cluster: DemoCluster, reader: Driver, before_s: float) -> Kill:
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
            nursery.start_soon(trio.to_thread.run_sync, cluster.kill, MASTER)
            with trio.move_on_after(LIMIT_S):
                while await served_by(consumer) != slave:
                    pass
                ours_s = (time.monotonic_ns() - killed_ns) / 1e9
    java_s = await _await(reader, killed_ns)
    if ours_s is None:
        raise ClusterError(f"nobody served our reader within {LIMIT_S:g} s")
    return Kill(ours_s, java_s)


async def _start(reader: Driver, name_servers: str) -> None:
    command = {
        "op": "start",
        "nameServers": name_servers,
        "topic": TOPIC,
        "brokerName": QUEUE.broker_name,
        "queue": QUEUE.queue_id,
    }
    answer = await trio.to_thread.run_sync(partial(reader.call, command, LIMIT_S + CALL_GRACE_S))
    if not answer["served"]:
        raise ClusterError("nobody served the Java reader before the kill")


async def _await(reader: Driver, killed_ns: int) -> float:
    command = {"op": "await", "limitSeconds": JAVA_LIMIT_S}
    answer = await trio.to_thread.run_sync(partial(reader.call, command, JAVA_LIMIT_S + CALL_GRACE_S))
    java_s = (cast("int", answer["nanos"]) - killed_ns) / 1e9
    if java_s <= 0:
        raise ClusterError(f"nobody served the Java reader within {JAVA_LIMIT_S:g} s")
    return java_s
