"""``triomq quickstart``: a cluster of processes takes a data set, loses its master, and returns every message.

Start name server, master and slave as processes; send every row through ``producer.send(message, callback)``; wait
until the slave has them; SIGKILL the master; pull everything from the slave; compare each body with what was
acknowledged for its place. To learn the SDK, read the sending in `_send_all` and the pulling in `_pull_queue`.
"""

from __future__ import annotations

from collections.abc import Iterator

import trio

import triomq
from triomq_benchmarks.clusters.cluster import OurCluster, in_thread, open_cluster
from triomq_benchmarks.clusters.server_state import knows_topic, log_bytes, max_offset
from triomq_benchmarks.demo.body_check import BodyCheck, digest
from triomq_benchmarks.demo.quickstart_figures import Progress, QuickstartFigures
from triomq_benchmarks.workload.flights import Batch, DataSet

MASTER, SLAVE = "broker-a", "broker-a-s"
QUEUES = 8
IN_FLIGHT = 256
"""Maximum number of sends in flight: enough to keep the broker busy, few enough for meaningful latencies."""
ROUTE_LIMIT_S = 10.0
CATCH_UP_LIMIT_S = 60.0
FIRST_MESSAGE_LIMIT_S = 30.0
MESSAGES_PER_PULL = 32


class QuickstartError(Exception):
    """The run could not be finished; the text states where it stopped."""


class _Sent:
    """The callback of one send; the producer calls exactly one of its two methods."""

    __slots__ = ("begin", "digest", "run")

    def __init__(self, run: Quickstart, body_digest: int) -> None:
        self.run = run
        self.digest = body_digest
        self.begin = trio.current_time()

    def on_success(self, result: triomq.SendResult) -> None:
        run = self.run
        run.figures.send_latency_ns.append(int((trio.current_time() - self.begin) * 1e9))
        run.body_check.acknowledge(result.queue.queue_id, result.queue_offset, self.digest)

    def on_exception(self, error: triomq.MQError) -> None:
        figures = self.run.figures
        figures.send_failures += 1
        figures.first_send_failure = figures.first_send_failure or str(error)


class Quickstart:
    """One run of the quickstart."""

    def __init__(self, data: DataSet, progress: Progress) -> None:
        self.data = data
        self.progress = progress
        self.figures = QuickstartFigures(data.name)
        self.body_check = BodyCheck()

    async def run(self) -> QuickstartFigures:
        """Start the cluster, send, replicate, kill the master, pull, and compare."""
        begin = trio.current_time()
        figures = self.figures
        self.progress("starting the cluster", 0, None)
        async with in_thread(open_cluster()) as cluster:
            figures.cluster_ready_s = cluster.ready_s
            async with triomq.open_client(cluster.name_servers) as client:
                await self._create_topic(client)
                await self._send_all(client)
                await self._wait_for_slave(cluster)
                await self._lose_master_and_pull(client, cluster)
        figures.comparison = self.body_check.compare()
        figures.total_s = trio.current_time() - begin
        return figures

    async def _create_topic(self, client: triomq.Client) -> None:
        """Create the topic, and wait until the name server knows it: a broker's registration may take a moment."""
        await client.admin.create_topic(self.data.topic, queues=QUEUES)
        with trio.move_on_after(ROUTE_LIMIT_S):
            while True:
                try:
                    await client.admin.route(self.data.topic)
                except triomq.RouteError:
                    await trio.sleep(0.005)
                else:
                    return
        raise QuickstartError(f"no name server knows the new topic {self.data.topic} after {ROUTE_LIMIT_S:g} s")

    async def _send_all(self, client: triomq.Client) -> None:
        topic, total, figures = self.data.topic, self.data.total, self.figures
        begin = trio.current_time()
        async with client.producer("quickstart-producer", max_in_flight=IN_FLIGHT) as producer:
            batches = self.data.open()
            while rows := await self._next_of(batches):
                for row in rows:
                    message = triomq.Message(topic, row.body, tags=row.tag, keys=row.key)
                    await producer.send(message, _Sent(self, digest(row.body)))
                    figures.body_bytes += len(row.body)
                figures.rows += len(rows)
                self.progress("sending", figures.rows, total)
            # Leaving the block waits for the last answers.
        figures.send_s = trio.current_time() - begin
        self.progress("sending", figures.rows, figures.rows)
        if not figures.rows:
            raise QuickstartError("there was nothing to send")

    async def _next_of(self, batches: Iterator[Batch]) -> Batch:
        """The next rows, empty at the end. A source that may be slow is read in a thread."""
        if self.data.live:
            return await trio.to_thread.run_sync(next, batches, [], abandon_on_cancel=True)
        return next(batches, [])

    async def _wait_for_slave(self, cluster: OurCluster) -> None:
        """Wait until all queues end where the master's end, and the slave knows the topic."""
        topic = self.data.topic
        master, slave = cluster.nodes[MASTER].address, cluster.nodes[SLAVE].address
        ends = {queue_id: await max_offset(master, topic, queue_id) for queue_id in range(QUEUES)}
        total = sum(ends.values())
        begin = trio.current_time()
        while True:
            copied = sum([await max_offset(slave, topic, queue_id) for queue_id in ends])
            self.progress("replicating", copied, total)
            if copied == total and await knows_topic(slave, topic):
                break
            if trio.current_time() - begin > CATCH_UP_LIMIT_S:
                raise QuickstartError(f"the slave has {copied} of {total} messages after {CATCH_UP_LIMIT_S:g} s")
            await trio.sleep(0.02)
        self.figures.catch_up_s = trio.current_time() - begin
        self.figures.replicated_bytes = await log_bytes(slave)

    async def _lose_master_and_pull(self, client: triomq.Client, cluster: OurCluster) -> None:
        figures = self.figures
        consumer = client.pull_consumer("quickstart-consumer")
        queues = await consumer.fetch_queues(self.data.topic)
        self.progress("killing the master", 0, None)
        cluster.kill_node(MASTER)
        killed = trio.current_time()
        ends = self.body_check.ends()
        failures: list[triomq.MQError] = []
        with trio.move_on_after(FIRST_MESSAGE_LIMIT_S) as limit:
            try:
                async with trio.open_nursery() as nursery:
                    for queue in queues:
                        end = ends.get(queue.queue_id, 0)
                        nursery.start_soon(self._pull_queue, consumer, queue, end, killed, limit)
            except* triomq.MQError as errors:
                failures.extend(error for error in errors.exceptions if isinstance(error, triomq.MQError))
        if failures:
            # Here and not within `except*`, which would make a group of it.
            raise QuickstartError(f"pulling from the slave failed: {failures[0]}")
        if limit.cancelled_caught:
            raise QuickstartError(f"pulling from the slave made no progress for {FIRST_MESSAGE_LIMIT_S:g} s")
        figures.pull_s = trio.current_time() - killed
        self.progress("pulling from the slave", figures.pulled, figures.pulled)

    async def _pull_queue(
        self,
        consumer: triomq.PullConsumer,
        queue: triomq.MessageQueue,
        end: int,
        killed: float,
        limit: trio.CancelScope,
    ) -> None:
        """Pull one queue to its end; every received message extends the deadline of all queues."""
        figures, body_check = self.figures, self.body_check
        offset = 0
        while offset < end:
            result = await consumer.pull(queue, offset=offset, max_messages=MESSAGES_PER_PULL, block=False)
            figures.pulls += 1
            offset = result.next_offset
            if not result.messages:
                # Nothing yet, perhaps because the route is changing: do not loop without a pause.
                await trio.sleep(0.01)
                continue
            now = trio.current_time()
            limit.deadline = now + FIRST_MESSAGE_LIMIT_S
            if not figures.pulled:
                figures.first_message_s = now - killed
            figures.served_by.add(result.broker_address)
            for message in result.messages:
                body_check.receive(queue.queue_id, message.queue_offset, digest(message.body))
            figures.pulled += len(result.messages)
            self.progress("pulling from the slave", figures.pulled, figures.rows)
