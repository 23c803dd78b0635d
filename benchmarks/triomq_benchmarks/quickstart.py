"""``triomq quickstart``: a real cluster takes in a real data set, loses its master, and gives everything back.

Start name server, master and slave as processes; send every row through ``producer.send(message, callback)``; wait until the
slave has them; SIGKILL the master; pull everything from the slave; compare each body with what was acknowledged for its place.
Whoever reads this to learn the SDK finds the sending in `_send_all` and the pulling in `_pull_queue`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
import trio

import triomq
from triomq_benchmarks.demo_cluster import (
    ClusterError,
    DemoCluster,
    knows_topic,
    log_bytes,
    max_offset,
    open_demo_cluster,
)
from triomq_benchmarks.flights import Batch, DataSet, NoDataError, data_set
from triomq_benchmarks.interrupts import interrupts_heard
from triomq_benchmarks.ledger import Ledger, digest
from triomq_benchmarks.outcome import Outcome, Progress

MASTER, SLAVE = "broker-a", "broker-a-s"
QUEUES = 8
IN_FLIGHT = 256
"""Sends under way at once: enough to keep the broker busy, few enough that latencies mean something."""
ROUTE_LIMIT_S = 10.0
CATCH_UP_LIMIT_S = 60.0
FIRST_MESSAGE_LIMIT_S = 30.0
MESSAGES_PER_PULL = 32
INTERRUPTED = 130


class QuickstartError(Exception):
    """The run could not be finished; the text says where it stopped."""


class _Sent:
    """Hears how one send ended. The producer calls exactly one of the two."""

    __slots__ = ("begin", "digest", "run")

    def __init__(self, run: _Run, body_digest: int) -> None:
        self.run = run
        self.digest = body_digest
        self.begin = trio.current_time()

    def on_success(self, result: triomq.SendResult) -> None:
        run = self.run
        run.outcome.send_latency_ns.append(int((trio.current_time() - self.begin) * 1e9))
        run.ledger.acknowledge(result.queue.queue_id, result.queue_offset, self.digest)

    def on_exception(self, error: triomq.MQError) -> None:
        self.run.outcome.send_failures += 1
        self.run.last_failure = error


class _Run:
    """One run of the quickstart."""

    def __init__(self, data: DataSet, progress: Progress) -> None:
        self.data = data
        self.progress = progress
        self.outcome = Outcome(data.name)
        self.ledger = Ledger()
        self.last_failure: Exception | None = None

    async def run(self) -> Outcome:
        begin = trio.current_time()
        outcome = self.outcome
        self.progress("starting the cluster", 0, None)
        async with open_demo_cluster() as cluster:
            outcome.cluster_ready_s = cluster.ready_s
            async with triomq.open_client(cluster.name_servers) as client:
                await self._create_topic(client)
                await self._send_all(client)
                await self._wait_for_slave(cluster)
                await self._lose_master_and_pull(client, cluster)
        outcome.verdict = self.ledger.verdict()
        outcome.total_s = trio.current_time() - begin
        return outcome

    async def _create_topic(self, client: triomq.Client) -> None:
        """Create the topic, and wait until the name server tells of it: a broker's news may take a moment."""
        await client.admin.create_topic(self.data.topic, queues=QUEUES)
        with trio.move_on_after(ROUTE_LIMIT_S):
            while True:
                try:
                    await client.admin.route(self.data.topic)
                except triomq.RouteError:
                    await trio.sleep(0.005)
                else:
                    return
        raise QuickstartError(f"no name server tells of the new topic {self.data.topic} after {ROUTE_LIMIT_S:g} s")

    async def _send_all(self, client: triomq.Client) -> None:
        topic, total, outcome = self.data.topic, self.data.total, self.outcome
        begin = trio.current_time()
        async with client.producer("quickstart-producer", max_in_flight=IN_FLIGHT) as producer:
            batches = self.data.open()
            while rows := await self._next_of(batches):
                for row in rows:
                    message = triomq.Message(topic, row.body, tags=row.tag, keys=row.key)
                    await producer.send(message, _Sent(self, digest(row.body)))
                    outcome.body_bytes += len(row.body)
                outcome.rows += len(rows)
                self.progress("sending", outcome.rows, total)
            # Leaving the block waits for the last answers.
        outcome.send_s = trio.current_time() - begin
        self.progress("sending", outcome.rows, outcome.rows)
        if not outcome.rows:
            raise QuickstartError("there was nothing to send")

    async def _next_of(self, batches: Iterator[Batch]) -> Batch:
        """The next rows, none at the end. A source that may take its time is read in a thread."""
        if self.data.live:
            return await trio.to_thread.run_sync(next, batches, [], abandon_on_cancel=True)
        return next(batches, [])

    async def _wait_for_slave(self, cluster: DemoCluster) -> None:
        """Until all queues end where the master's end, and the slave knows the topic."""
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
        self.outcome.catch_up_s = trio.current_time() - begin
        self.outcome.replicated_bytes = await log_bytes(slave)

    async def _lose_master_and_pull(self, client: triomq.Client, cluster: DemoCluster) -> None:
        outcome = self.outcome
        consumer = client.pull_consumer("quickstart-consumer")
        queues = await consumer.fetch_queues(self.data.topic)
        self.progress("killing the master", 0, None)
        cluster.kill(MASTER)
        killed = trio.current_time()
        ends = self.ledger.ends()
        with trio.move_on_after(FIRST_MESSAGE_LIMIT_S) as limit:
            async with trio.open_nursery() as nursery:
                for queue in queues:
                    nursery.start_soon(self._pull_queue, consumer, queue, ends.get(queue.queue_id, 0), killed, limit)
        if limit.cancelled_caught:
            raise QuickstartError(f"pulling from the slave stood still for {FIRST_MESSAGE_LIMIT_S:g} s")
        outcome.pull_s = trio.current_time() - killed
        self.progress("pulling from the slave", outcome.pulled, outcome.pulled)

    async def _pull_queue(
        self,
        consumer: triomq.PullConsumer,
        queue: triomq.MessageQueue,
        end: int,
        killed: float,
        limit: trio.CancelScope,
    ) -> None:
        """Pull one queue to its end; every message that comes moves the deadline of all."""
        outcome, ledger = self.outcome, self.ledger
        offset = 0
        while offset < end:
            result = await consumer.pull(queue, offset=offset, max_messages=MESSAGES_PER_PULL, block=False)
            outcome.pulls += 1
            offset = result.next_offset
            if not result.messages:
                # Nothing yet, perhaps because the route is being changed: not in a busy loop.
                await trio.sleep(0.01)
                continue
            now = trio.current_time()
            limit.deadline = now + FIRST_MESSAGE_LIMIT_S
            if not outcome.pulled:
                outcome.first_message_s = now - killed
            outcome.served_by.add(result.broker_address)
            for message in result.messages:
                ledger.receive(queue.queue_id, message.queue_offset, digest(message.body))
            outcome.pulled += len(result.messages)
            self.progress("pulling from the slave", outcome.pulled, outcome.rows)


@click.command()
@click.option(
    "--input", "source", metavar="FILE|-", help="Lines of a text, or of standard input, instead of the flights."
)
@click.option("--count", type=click.IntRange(1), help="At most this many rows.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
def quickstart(source: str | None, count: int | None, as_json: bool) -> None:
    """Start a cluster, send a data set, kill the master, and read everything back from the slave.

    Exit code 0: nothing lost, nothing changed. 1: something was, or the run could not be finished.
    """
    # Only a run needs to draw.
    try:
        from triomq_benchmarks.quickstart_report import as_object, progress_on, table_of
    except ModuleNotFoundError as error:
        click.echo(f"error: quickstart needs the package {error.name}: pip install 'triomq[demo]'", err=True)
        sys.exit(1)

    try:
        data = data_set(source, count)
        with progress_on(sys.stderr, shown=not as_json) as progress:
            outcome = trio.run(_until_signal, data, progress)
    except (NoDataError, ClusterError, QuickstartError, triomq.MQError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    if outcome is None:
        click.echo("interrupted; the cluster is stopped and its files are removed", err=True)
        sys.exit(INTERRUPTED)
    if as_json:
        click.echo(as_object(outcome))
    else:
        table_of(outcome)
    sys.exit(0 if outcome.clean else 1)


async def _until_signal(data: DataSet, progress: Progress) -> Outcome | None:
    """The run, or None after SIGINT or SIGTERM; both end the cluster in order."""
    outcome = None
    with trio.CancelScope() as scope:
        async with interrupts_heard(scope.cancel):
            outcome = await _Run(data, progress).run()
    return outcome
