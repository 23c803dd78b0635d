"""``triomq demo redirect``: a consumer falls behind and catches up, and each queue shows which broker served which
offsets.

A master whose readers are further behind than 40 % of its memory would have to read from disk; it sends them to a
slave, and the slave sends them back once they are near the end again. With 64 MB of memory that happens within seconds:
keep up, fall behind while a producer sends, catch up, keep up again. Every pull is noted with the broker that answered
it.
"""

from __future__ import annotations

import attrs
import trio

import triomq
from triomq_benchmarks.clusters.cluster import ClusterError, OurCluster, in_thread, open_cluster
from triomq_benchmarks.clusters.server_state import knows_topic, max_offset

TOPIC = "redirect"
GROUP = "slow-consumer"
MASTER, SLAVE = "broker-a", "broker-a-s"
QUEUES = 2
BODY_BYTES = 16 * 1024
LAG_SHARE = 0.8
"""Amount sent while the consumer is slow, as a share of the memory: twice the share at which the master starts to send
readers away."""
KEPT_UP_MESSAGES = 20
SENT_BETWEEN_PULLS = 16
"""Messages sent to each queue per message of the slow consumer: from pull to pull it is further behind."""
LIMIT_S = 300.0

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
    """One run on a running cluster.

    Args:
        cluster: a master and a slave.
        memory_bytes: the brokers' configured memory.
    """

    def __init__(self, cluster: OurCluster, memory_bytes: int) -> None:
        self._roles = {node.address: node.role for node in cluster.nodes.values()}
        self._slave = cluster.nodes[SLAVE].address
        self._name_servers = cluster.name_servers
        self._lag_messages = int(memory_bytes * LAG_SHARE) // BODY_BYTES
        self._ends = [0] * QUEUES
        self._positions = [0] * QUEUES
        self.stretches: list[Stretch] = []

    async def run(self) -> list[Stretch]:
        """Run all four phases.

        Raises:
            ClusterError: it was not finished in time.
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
                    await self._wait_copied()
                    await self._pull_to_end(consumer, CAUGHT_UP)
            return sorted(self.stretches, key=lambda each: (each.queue, each.first))
        raise ClusterError(f"the consumer was not through after {LIMIT_S:g} s, its positions are {self._positions}")

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
        """Let the consumer take one message of each queue now and then, while the producer sends many.

        Both brokers compute a reader's distance from the end of their own copy. They agree because a pull waits until
        the slave has everything; otherwise a slave whose copy lags would send the reader back too early.
        """
        for _ in range(self._lag_messages // QUEUES // SENT_BETWEEN_PULLS):
            await self._send(producer, SENT_BETWEEN_PULLS)
            await self._wait_copied()
            for queue in range(QUEUES):
                await self._pull(consumer, queue, FALLING_BEHIND, 1)

    async def _wait_copied(self) -> None:
        for queue in range(QUEUES):
            while True:
                if await max_offset(self._slave, TOPIC, queue) >= self._ends[queue]:
                    break
                await trio.sleep(0.005)

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
    """Start a cluster with this little memory, and run the demonstration on it.

    Raises:
        ClusterError: the cluster did not start, or the run was not finished in time.
    """
    settings = {"memoryBytes": str(memory_bytes), "slaveReadEnable": "true"}
    async with in_thread(open_cluster(settings=settings)) as cluster:
        return await Demo(cluster, memory_bytes).run()


def order_of_brokers(stretches: list[Stretch], queue: int) -> list[str]:
    """The brokers that served a queue, one entry per change."""
    order: list[str] = []
    for stretch in stretches:
        if stretch.queue == queue and order[-1:] != [stretch.served_by]:
            order.append(stretch.served_by)
    return order
