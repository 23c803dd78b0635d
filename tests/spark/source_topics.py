"""Topics with known messages, for the tests of the data source."""

from __future__ import annotations

import itertools
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import triomq
import triomq.blocking
from triomq_benchmarks.clusters.cluster import OurCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

WAIT_LIMIT_S = 240
_numbers = itertools.count()


class Topics:
    """Makes topics in a running cluster, fills and reads them with the SDK."""

    def __init__(self, cluster: OurCluster, client: triomq.blocking.Client) -> None:
        self.name_servers = cluster.name_servers
        self.client = client
        self._reader = client.pull_consumer("source-tests")
        self._masters = client.pull_consumer("source-tests-masters", read_preference="master")
        self._slaves = client.pull_consumer("source-tests-slaves", read_preference="slave")
        self.producer = client.producer("source-tests", send_timeout_s=30.0)

    def new(self, *, queues: int = 2, name: str | None = None) -> str:
        """A topic that is not used yet."""
        topic = name or f"source-{next(_numbers)}"
        self.client.admin.create_topic(topic, queues=queues)
        return topic

    def queues(self, topic: str) -> list[triomq.MessageQueue]:
        """Its queues."""
        return self.producer.queues(topic)

    def first_offsets(
        self, queues: Sequence[triomq.MessageQueue], without: Container[str]
    ) -> dict[tuple[str, int], int]:
        """The first message of every queue, by broker and number, that neither slave nor master has deleted, but for
        masters that are away."""
        starts: dict[tuple[str, int], int] = {}
        for queue in queues:
            readers = (self._slaves,) if queue.broker_name in without else (self._slaves, self._masters)
            # That of the broker that answers; `min_offset` would ask the master.
            starts[queue.broker_name, queue.queue_id] = max(reader.pull(queue, 0).min_offset for reader in readers)
        return starts

    def wait_for_masters(self, queues: Sequence[triomq.MessageQueue]) -> None:
        """Until the master of every queue answers."""
        deadline = time.monotonic() + WAIT_LIMIT_S
        for queue in queues:
            while True:
                try:
                    self._masters.pull(queue, 0)
                    break
                except triomq.MQError:
                    assert time.monotonic() < deadline, queue
                    time.sleep(0.05)

    def wait_for_slaves(self, topic: str, queues: Sequence[triomq.MessageQueue] = ()) -> None:
        """Until slaves deliver the last message of every queue, or of these; a slave that the name server does not
        know is no help."""
        last = {queue: self._reader.max_offset(queue) - 1 for queue in queues or self.queues(topic)}
        deadline = time.monotonic() + WAIT_LIMIT_S
        for queue, offset in last.items():
            while offset >= 0:
                try:
                    result = self._slaves.pull(queue, offset)
                    # A message that has been deleted was there.
                    if result.status is triomq.PullStatus.FOUND or result.min_offset > offset:
                        break
                except triomq.MQError:
                    pass
                assert time.monotonic() < deadline, queue
                time.sleep(0.05)

    def send(self, topic: str, bodies: Sequence[bytes], queue: int = 0, **fields: Any) -> None:
        """Send to one of its queues, by its place in the list of all."""
        messages = [triomq.Message(topic, body, **fields) for body in bodies]
        for some in triomq.split_batch(messages, max_count=500):
            self.producer.send_batch(some, queue=self.queues(topic)[queue])

    def fill(self, topic: str, per_queue: int, start: int = 0) -> list[bytes]:
        """So many messages in every queue; their bodies, all different."""
        sent = []
        for index, _ in enumerate(self.queues(topic)):
            bodies = [b"%s %d %d" % (topic.encode(), index, number) for number in range(start, start + per_queue)]
            self.send(topic, bodies, index)
            sent += bodies
        return sent

    def options(self, topic: str | None = None, **more: object) -> dict[str, str]:
        """The options of a read or a write."""
        options = {"namesrv": self.name_servers, **{name: str(value) for name, value in more.items()}}
        if topic is not None:
            options["topic"] = topic
        return options

    def read(self, spark: SparkSession, topic: str | None = None, **more: object) -> DataFrame:
        """A batch read."""
        return spark.read.format("rocketmq").options(**self.options(topic, **more)).load()

    def stream(self, spark: SparkSession, topic: str | None = None, **more: object) -> DataFrame:
        """A streaming read from the start, unless the options say otherwise."""
        reader: DataStreamReader = spark.readStream.format("rocketmq")
        return reader.options(**self.options(topic, **{"startingOffsets": "earliest", **more})).load()


@contextmanager
def open_topics(cluster: OurCluster) -> Iterator[Topics]:
    """Topics of a cluster, for as long as the block lasts."""
    with triomq.blocking.open_client(cluster.name_servers) as client:
        yield Topics(cluster, client)


def bodies(rows: DataFrame) -> list[bytes]:
    """The bodies of a read, sorted."""
    return sorted(bytes(row.body) for row in rows.select("body").collect())
