"""Random queries under a real Spark session against a plain list, while masters are killed and started again.

The same idea as `tests/pyspark_rocketmq/read/test_query_oracle.py`, which has neither Spark nor real brokers and many more
cases. `TRIOMQ_SPARK_SESSION_QUERIES` is the number of queries; `TRIOMQ_SPARK_FIRST` is the seed.
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from source_topics import Topics, open_topics

import triomq
from triomq_benchmarks.clusters.cluster import OurCluster, open_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERIES = int(os.environ.get("TRIOMQ_SPARK_SESSION_QUERIES", "8"))
SEED = int(os.environ.get("TRIOMQ_SPARK_FIRST", "1"))
BROKERS = ("broker-a", "broker-b")
TAGS = (None, "a", "b", "Aa", "BB")
"""The hashes of the last two are equal, and brokers compare hashes."""

Place = tuple[str, int, int]


@attrs.define
class Query:
    """A DataFrame, and the rows that it has to have."""

    frame: DataFrame
    rows: dict[Place, tuple[str | None, bytes]]


@attrs.define
class Counts:
    """What came out."""

    right: int = 0
    refused: int = 0
    lost: int = 0
    repeated: int = 0
    wrong: int = 0
    kills: int = 0


class Oracle:
    """The topic as a list, and what happens to its brokers.

    Args:
        spark: runs the queries.
        cluster: two masters with a slave each.
        topics: fills the topic.
        chance: chooses everything.
    """

    def __init__(self, spark: SparkSession, cluster: OurCluster, topics: Topics, chance: random.Random) -> None:
        self.counts = Counts()
        self._spark = spark
        self._cluster = cluster
        self._topics = topics
        self._chance = chance
        self._topic = topics.new(queues=2)
        self._rows: dict[Place, tuple[str | None, bytes]] = {}
        self._ends = {(broker, number): 0 for broker in BROKERS for number in range(2)}
        self._dead: set[str] = set()
        for broker, number in self._ends:
            self._append(broker, number, 300)
        topics.wait_for_slaves(self._topic)

    def _append(self, broker: str, number: int, count: int) -> None:
        queue = triomq.MessageQueue(self._topic, broker, number)
        begin = self._ends[broker, number]
        some = [
            (self._chance.choice(TAGS), f"{broker} {number} {offset}".encode())
            for offset in range(begin, begin + count)
        ]
        messages = [triomq.Message(self._topic, body, tags=tag) for tag, body in some]
        assert self._topics.producer.send_batch(messages, queue=queue).queue_offset == begin
        for offset, row in enumerate(some, begin):
            self._rows[broker, number, offset] = row
        self._ends[broker, number] += count

    def between(self) -> None:
        """What may happen before a query."""
        what = self._chance.choice(("nothing", "append", "kill", "start"))
        broker = self._chance.choice(BROKERS)
        if what == "append" and not self._dead:
            self._append(broker, self._chance.randint(0, 1), self._chance.choice((1, 40)))
            self._topics.wait_for_slaves(self._topic)
        elif what == "kill" and not self._dead:
            self._kill(broker)
        elif what == "start":
            self.start_all()

    def _kill(self, broker: str) -> None:
        self._dead.add(broker)
        self._cluster.kill_node(broker)
        self.counts.kills += 1

    def start_all(self) -> None:
        """Have every master again."""
        for broker in sorted(self._dead):
            self._cluster.start_node(broker)
        self._dead.clear()

    def query(self) -> Query:
        """A new query; where a master is away, it says where to end, as only that master knows."""
        chance = self._chance
        options: dict[str, object] = {}
        ends = dict(self._ends)
        if self._dead or chance.random() < 0.5:
            ends = {queue: chance.randint(0, end) for queue, end in ends.items()} if chance.random() < 0.5 else ends
            options["endingOffsets"] = json.dumps({self._topic: _tree(ends)})
        starts = dict.fromkeys(ends, 0)
        if chance.random() < 0.3:
            starts = {queue: chance.randint(0, end) for queue, end in ends.items()}
            options["startingOffsets"] = json.dumps({self._topic: _tree(starts)})
        if chance.random() < 0.5:
            options[chance.choice(("minPartitions", "maxRecordsPerPartition"))] = chance.choice((7, 90))
        rows = {place: row for place, row in self._rows.items() if starts[place[:2]] <= place[2] < ends[place[:2]]}
        if chance.random() < 0.4:
            wanted = chance.choice(({"a"}, {"Aa"}, {"a", "b"}))
            options["tags"] = " || ".join(sorted(wanted))
            rows = {place: row for place, row in rows.items() if row[0] in wanted}
        frame = self._topics.read(self._spark, self._topic, **options)
        if chance.random() < 0.3:
            frame = frame.filter("queue_offset >= 100 and (tags is null or tags <> 'b')")
            rows = {place: row for place, row in rows.items() if place[2] >= 100 and row[0] != "b"}
        return Query(frame, rows)

    def run(self, query: Query) -> None:
        """Run a query, perhaps with a master killed meanwhile; what fails has to succeed once all masters are back."""
        with self._killed_meanwhile():
            found = _found(query.frame, is_last=False)
        if found is None:
            assert self._dead, "nothing explains the error"
            self.counts.refused += 1
            self.start_all()
            found = _found(query.frame, is_last=True)
        assert found is not None
        expected = Counter((*place, *row) for place, row in query.rows.items())
        places, wanted = Counter(row[:3] for row in found), set(query.rows)
        self.counts.lost += len(wanted - set(places))
        self.counts.repeated += sum(count - 1 for count in places.values())
        self.counts.wrong += sum((Counter(found) - expected).values())
        self.counts.right += Counter(found) == expected

    @contextmanager
    def _killed_meanwhile(self) -> Iterator[None]:
        if self._dead or self._chance.random() > 0.3:
            yield
            return
        timer = threading.Timer(self._chance.uniform(0.0, 1.0), self._kill, (self._chance.choice(BROKERS),))
        timer.start()
        try:
            yield
        finally:
            timer.join()


def _tree(offsets: dict[tuple[str, int], int]) -> dict[str, dict[str, int]]:
    tree: dict[str, dict[str, int]] = {}
    for (broker, number), offset in offsets.items():
        tree.setdefault(broker, {})[str(number)] = offset
    return tree


def _found(frame: DataFrame, *, is_last: bool) -> list[tuple[Any, ...]] | None:
    try:
        rows = frame.select("broker_name", "queue_id", "queue_offset", "tags", "body").collect()
    except Exception:
        if is_last:
            raise
        return None
    return [(row.broker_name, row.queue_id, row.queue_offset, row.tags, bytes(row.body)) for row in rows]


@pytest.mark.slow
def test_every_query_gives_the_rows_of_the_list(spark: SparkSession) -> None:
    chance = random.Random(SEED)
    with open_cluster(masters=2) as cluster, open_topics(cluster) as topics:
        oracle = Oracle(spark, cluster, topics, chance)
        asked: list[Query] = []
        for _ in range(QUERIES):
            oracle.between()
            # A DataFrame keeps the offsets of its first action.
            query = chance.choice(asked) if asked and chance.random() < 0.3 else oracle.query()
            oracle.run(query)
            asked.append(query)
        counts = oracle.counts
        print(f"seed {SEED}: {QUERIES} queries, {counts}")
        assert (counts.lost, counts.repeated, counts.wrong, counts.right) == (0, 0, 0, QUERIES), (
            f"seed {SEED}: {counts}"
        )
