"""``triomq demo redirect``: a consumer falls behind and catches up, and each queue shows which broker served which offsets.

A master whose readers are further behind than 40 % of its memory would have to read from disk; it sends them to a slave, and
the slave sends them back once they are near the end again. With 64 MB of memory that happens within seconds: keep up, fall
behind while a producer sends, catch up, keep up again. Every pull is noted with the broker that answered it.
"""

from __future__ import annotations

import json
import sys

import attrs
import click
import trio
from rich.console import Console
from rich.table import Table

import triomq
from triomq_benchmarks.demo_cluster import ClusterError, DemoCluster, knows_topic, open_demo_cluster

TOPIC = "redirect"
GROUP = "slow-consumer"
MASTER, SLAVE = "broker-a", "broker-a-s"
QUEUES = 2
BODY_BYTES = 16 * 1024
LAG_SHARE = 0.8
"""How much is sent while the consumer is slow, of the memory: twice the share from which on the master sends readers away."""
KEPT_UP_MESSAGES = 20
SLOW_PULL_S = 0.02
LIMIT_S = 60.0

KEEPING_UP, FALLING_BEHIND, CATCHING_UP, CAUGHT_UP = "keeps up", "falls behind", "catches up", "keeps up again"


@attrs.define
class Stretch:
    """Consecutive offsets of one queue that one broker served in one phase.

    Attributes:
      queue: queue id.
      first, last: offsets.
      served_by: ``master`` or ``slave``.
      phase: what the consumer was doing.
      behind: messages from the first offset to the end of the queue, when it was pulled.
    """

    queue: int
    first: int
    last: int
    served_by: str
    phase: str
    behind: int


class Demo:
    """One run against a running cluster.

    Args:
      cluster: a master and a slave.
      memory_bytes: what the brokers were told of their memory.
    """

    def __init__(self, cluster: DemoCluster, memory_bytes: int) -> None:
        self._roles = {node.address: node.role for node in cluster.nodes.values()}
        self._slave = cluster.nodes[SLAVE].address
        self._name_servers = cluster.name_servers
        self._lag_messages = int(memory_bytes * LAG_SHARE) // BODY_BYTES
        self._ends = [0] * QUEUES
        self._positions = [0] * QUEUES
        self.stretches: list[Stretch] = []

    async def run(self) -> list[Stretch]:
        """All four phases.

        Raises:
          ClusterError: it did not get through in time.
        """
        with trio.move_on_after(LIMIT_S):
            async with triomq.open_client(self._name_servers) as client:
                await self._create_topic(client)
                async with (
                    client.producer("redirect-producer", compressor=None) as producer,
                    client.pull_consumer(GROUP) as consumer,
                ):
                    await self._send(producer, KEPT_UP_MESSAGES)
                    await self._pull_to_end(consumer, KEEPING_UP)
                    await self._fall_behind(producer, consumer)
                    await self._pull_to_end(consumer, CATCHING_UP)
                    await self._send(producer, KEPT_UP_MESSAGES)
                    await self._pull_to_end(consumer, CAUGHT_UP)
            return sorted(self.stretches, key=lambda each: (each.queue, each.first))
        raise ClusterError(f"the consumer was not through after {LIMIT_S:g} s, it stands at {self._positions}")

    async def _create_topic(self, client: triomq.Client) -> None:
        await client.admin.create_topic(TOPIC, queues=QUEUES)
        while True:
            try:
                await client.admin.route(TOPIC)
            except triomq.RouteError:
                await trio.sleep(0.01)
                continue
            if await knows_topic(self._slave, TOPIC):
                return
            await trio.sleep(0.05)

    async def _send(self, producer: triomq.Producer, count: int) -> None:
        for _ in range(count):
            for queue in range(QUEUES):
                result = await producer.send(triomq.Message(TOPIC, bytes(BODY_BYTES)), queue=_queue(queue))
                self._ends[queue] = result.queue_offset + 1

    async def _fall_behind(self, producer: triomq.Producer, consumer: triomq.PullConsumer) -> None:
        """The producer sends as fast as it can, the consumer takes one message now and then."""

        async def send_all(done: trio.CancelScope) -> None:
            await self._send(producer, self._lag_messages // QUEUES)
            done.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all, nursery.cancel_scope)
            while True:
                for queue in range(QUEUES):
                    await self._pull(consumer, queue, FALLING_BEHIND, 1)
                await trio.sleep(SLOW_PULL_S)

    async def _pull_to_end(self, consumer: triomq.PullConsumer, phase: str) -> None:
        while self._positions != self._ends:
            for queue in range(QUEUES):
                if self._positions[queue] < self._ends[queue]:
                    await self._pull(consumer, queue, phase, 32)

    async def _pull(self, consumer: triomq.PullConsumer, queue: int, phase: str, most: int) -> None:
        position = self._positions[queue]
        result = await consumer.pull(_queue(queue), offset=position, max_messages=most)
        if not result.messages:
            # A slave may still be a moment behind its master.
            await trio.sleep(0.01)
            return
        last = result.messages[-1].queue_offset
        role = self._roles[result.broker_address]
        self._positions[queue] = last + 1
        for stretch in reversed(self.stretches):
            if stretch.queue == queue:
                if (stretch.served_by, stretch.phase) == (role, phase):
                    stretch.last = last
                    return
                break
        behind = result.max_offset - position
        self.stretches.append(Stretch(queue, position, last, role, phase, behind))


def _queue(number: int) -> triomq.MessageQueue:
    return triomq.MessageQueue(TOPIC, MASTER, number)


async def show_redirect(memory_bytes: int) -> list[Stretch]:
    """Start a cluster with so little memory, and run the demonstration on it.

    Raises:
      ClusterError: the cluster did not start, or did not get through in time.
    """
    settings = {"memoryBytes": str(memory_bytes), "slaveReadEnable": "true"}
    async with open_demo_cluster(settings=settings) as cluster:
        return await Demo(cluster, memory_bytes).run()


def order_of_brokers(stretches: list[Stretch], queue: int) -> list[str]:
    """Who served a queue, one entry per change."""
    order: list[str] = []
    for stretch in stretches:
        if stretch.queue == queue and order[-1:] != [stretch.served_by]:
            order.append(stretch.served_by)
    return order


@click.group()
def demo() -> None:
    """Show what brokers do."""


@demo.command()
@click.option(
    "--memory-bytes",
    type=click.IntRange(1 << 20),
    default=64 * 1024 * 1024,
    show_default=True,
    help="What the brokers take their memory to be; readers more than 40 % of it behind go to the slave.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def redirect(memory_bytes: int, as_json: bool) -> None:
    """A slow consumer goes from the master to the slave and back.

    Exit code 0: each queue was served by the master, then by the slave, then by the master. 1: it was not.
    """
    try:
        stretches = trio.run(show_redirect, memory_bytes)
    except (ClusterError, triomq.MQError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    orders = {queue: order_of_brokers(stretches, queue) for queue in range(QUEUES)}
    if as_json:
        object_ = {
            "memory_bytes": memory_bytes,
            "orders": orders,
            "stretches": [attrs.asdict(each) for each in stretches],
        }
        click.echo(json.dumps(object_))
    else:
        Console().print(_table(stretches, memory_bytes))
    sys.exit(0 if all(order == ["master", "slave", "master"] for order in orders.values()) else 1)


def _table(stretches: list[Stretch], memory_bytes: int) -> Table:
    table = Table(title=f"who served a slow consumer, brokers with {memory_bytes / 1e6:.0f} MB of memory")
    for column in ("queue", "the consumer", "offsets", "behind by (messages)", "served by"):
        table.add_column(column, justify="right" if column.startswith(("offsets", "behind")) else "left")
    last = None
    for each in stretches:
        if last not in (None, each.queue):
            table.add_section()
        last = each.queue
        style = "bold yellow" if each.served_by == "slave" else ""
        table.add_row(
            str(each.queue), each.phase, f"{each.first} - {each.last}", str(each.behind), each.served_by, style=style
        )
    return table


if __name__ == "__main__":
    demo()
