"""``python -m triomq_benchmarks failover``: a master is killed under two readers at once, of our SDK and of the Java client.

How long does each stand still? The cluster is ours for both, so what differs is the client. A kill ends when both have
got messages from the slave.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import cast

import attrs
import click
import trio
from rich.console import Console
from rich.table import Table

import triomq

from .builds import DRIVERS, ToolUnavailableError
from .demo_cluster import ClusterError, DemoCluster, open_demo_cluster
from .failover import LIMIT_S, MASTER, PULLED_BEFORE_S, QUEUE, SLAVE, TOPIC, fill, measure, served_by
from .java import Java, find_java, prepare_home
from .processes import ChildError, Driver, DriverError

GOAL_S = 0.1
OURS, JAVA = "our SDK", "Java client"

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


def loss_table(taken_s: Mapping[str, Sequence[float]]) -> Table:
    """What each client's kills cost it, one row per client.

    Args:
      taken_s: by `OURS` and `JAVA`, seconds per kill.
    """
    table = Table(title="Master killed: ms to the first message from the slave")
    table.add_column("client")
    for column in ("kills", "p50", "max", "goal"):
        table.add_column(column, justify="right")
    for name, seconds in taken_s.items():
        goal = f"< {GOAL_S * 1e3:g}" if name == OURS else ""
        table.add_row(name, str(len(seconds)), f"{median(seconds) * 1e3:,.1f}", f"{max(seconds) * 1e3:,.1f}", goal)
    return table


@click.command()
@click.option(
    "--kills", type=click.IntRange(1, 1000), default=20, show_default=True, help="How often the master is killed."
)
@click.option(
    "--client", type=click.Choice(["both", "ours"]), default="both", show_default=True,
    help="Whose readers stand still. The Java client looks at its routes every 30 s, so that with it a kill takes half a minute.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def failover(kills: int, client: str, as_json: bool) -> None:
    """From the master's SIGKILL to the first message from the slave, our SDK and the Java client side by side."""
    console = Console(stderr=True)
    say = console.is_terminal and not as_json

    def progress(text: str) -> None:
        if say:
            console.print(f"[dim]{text}")

    try:
        taken_s = _measure(kills, client, progress)
    except (ChildError, ClusterError, DriverError, triomq.MQError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    if as_json:
        click.echo(json.dumps({"kills": kills, "clients": {name: _figures(each) for name, each in taken_s.items()}}))
    else:
        Console().print(loss_table(taken_s))


def _measure(kills: int, client: str, progress: Callable[[str], None]) -> dict[str, list[float]]:
    java = None
    if client == "both":
        try:
            java = find_java()
        except ToolUnavailableError as error:
            click.echo(f"our SDK alone, no Java client to compare with: {error}", err=True)
    if java is None:

        async def ours_alone() -> list[float]:
            return await measure(kills, progress=progress)

        return {OURS: trio.run(ours_alone)}
    with tempfile.TemporaryDirectory(prefix="triomq-failover-", ignore_cleanup_errors=True) as scratch:
        found = trio.run(measure_failover, kills, java, Path(scratch), progress)
    return {OURS: [kill.ours_s for kill in found], JAVA: [kill.java_s for kill in found]}


def _figures(seconds: Sequence[float]) -> dict[str, object]:
    return {
        "p50_ms": round(median(seconds) * 1e3, 3),
        "max_ms": round(max(seconds) * 1e3, 3),
        "ms": [round(each * 1e3, 3) for each in seconds],
    }
