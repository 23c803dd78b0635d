"""Random queries under a real Spark session against a plain list, while masters are killed and started again.

The same idea as `tests/pyspark_rocketmq/read/test_query_oracle.py`, which has neither Spark nor real brokers and many more
cases. `TRIOMQ_SPARK_SESSION_QUERIES` is the number of queries; `TRIOMQ_SPARK_FIRST` is the seed.

Brokers delete the oldest messages meanwhile, all at their own time. A query must have each row that is there when it has
ended, and may have the rows that were there before.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
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
LOG_FILE_BYTES = 64 * 1024
"""So small that messages can be deleted: a log's last file never is."""
PROGRESS_EVERY = 20
TAGS = (None, "a", "b", "Aa", "BB")
"""The hashes of the last two are equal, and brokers compare hashes."""

Place = tuple[str, int, int]


Rows = dict[Place, tuple[str | None, bytes]]


@attrs.define
class Query:
    """A DataFrame with some of the columns, and the rows that it has to have.

    Attributes:
        rows_now: the rows of an action that begins now, where Spark plans each action of its own; else None.
    """

    frame: DataFrame
    what: str
    columns: tuple[str, ...]
    rows: Rows
    rows_now: Callable[[], Rows] | None = None


@attrs.define
class Counts:
    """What came out."""

    right: int = 0
    refused: int = 0
    lost: int = 0
    repeated: int = 0
    wrong: int = 0
    kills: int = 0
    expiries: int = 0


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
        # All of them: while a master is away, routes leave out its queues.
        self._queues = topics.queues(self._topic)
        self._rows: Rows = {}
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
        what = self._chance.choice(("nothing", "append", "kill", "start", "expire"))
        broker = self._chance.choice(BROKERS)
        if what == "append" and not self._dead:
            self._append(broker, self._chance.randint(0, 1), self._chance.choice((1, 40)))
            self._topics.wait_for_slaves(self._topic, self._queues)
        elif what == "kill" and not self._dead:
            self._kill(broker)
        elif what == "start":
            self.start_all()
        elif what == "expire" and not self._dead:
            self._topics.client.servers.clean(self._chance.choice((broker, f"{broker}:1")), "log")
            self.counts.expiries += 1

    def _kill(self, broker: str) -> None:
        self._dead.add(broker)
        self._cluster.kill_node(broker)
        self.counts.kills += 1

    def start_all(self) -> None:
        """Have every master again, and each of its slaves behind it: another master may be killed next."""
        dead = sorted(self._dead)
        for broker in dead:
            self._cluster.start_node(broker)
        if dead:
            self._topics.wait_for_masters(self._queues)
            self._topics.wait_for_slaves(self._topic, self._queues)
        self._dead.clear()

    def query(self) -> Query:
        """A new query; where a master is away, it says where to end, as only that master knows."""
        chance = self._chance
        # What has been deleted is not an error: it is deleted at any time.
        options: dict[str, object] = {"failOnDataLoss": "false"}
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
        tags: set[str | None] = set(TAGS)
        if chance.random() < 0.4:
            wanted = chance.choice(({"a"}, {"Aa"}, {"a", "b"}))
            options["tags"] = " || ".join(sorted(wanted))
            tags = {*wanted}
        columns = tuple(sorted({name for name in ("tags", "body") if chance.random() < 0.7}))
        frame = self._read(columns, options)
        if is_filtered := chance.random() < 0.3:
            frame = frame.filter("queue_offset >= 100 and (tags is null or tags <> 'b')")
            tags.discard("b")
            starts = {queue: max(100, start) for queue, start in starts.items()}

        def rows(ends: dict[tuple[str, int], int]) -> Rows:
            return {
                place: row
                for place, row in self._rows.items()
                if starts[place[:2]] <= place[2] < ends[place[:2]] and row[0] in tags
            }

        # Spark pushes filters into the source, and plans such a query again at each action.
        follows = is_filtered and "endingOffsets" not in options
        return Query(
            frame,
            f"{options}, {columns}, {is_filtered}",
            columns,
            rows(ends),
            (lambda: rows(self._ends)) if follows else None,
        )

    def _read(self, columns: tuple[str, ...], options: dict[str, object]) -> DataFrame:
        """A batch read, of all columns or of those alone that a query may use."""
        reader = self._spark.read.format("rocketmq").options(**self._topics.options(self._topic, **options))
        if self._chance.random() < 0.5:
            # The filters use the tags.
            types = {"tags": "string", **{name: {"tags": "string", "body": "binary"}[name] for name in columns}}
            places = "broker_name string, queue_id int, queue_offset long"
            reader = reader.schema(", ".join([places, *(f"{name} {kind}" for name, kind in types.items())]))
        return reader.load()

    def run(self, query: Query) -> None:
        """Run a query, perhaps with a master killed meanwhile; what fails has to succeed once all masters are back."""
        if query.rows_now is not None:
            query.rows = query.rows_now()
        with self._killed_meanwhile():
            found = _found(query, is_last=False)
        if found is None:
            assert self._dead, "nothing explains the error"
            self.counts.refused += 1
            self.start_all()
            found = _found(query, is_last=True)
        assert found is not None
        wrong = [row for row in found if row[:3] not in query.rows or row[3:] != _row(query, row[:3])]
        places = Counter(row[:3] for row in found)
        lost = self._lost(query, places)
        if lost and self._dead:
            # A master that is away may have deleted what its slave still has, before it was killed.
            self.start_all()
            lost = self._lost(query, places)
        if wrong or lost:
            print(f"seed {SEED}: wrong {wrong[:3]}, lost {lost[:3]} to {lost[-1:]}; {query.what}", flush=True)
        repeated = places.total() - len(places)
        self.counts.lost += len(lost)
        self.counts.repeated += repeated
        self.counts.wrong += len(wrong)
        self.counts.right += not (wrong or lost or repeated)

    def _lost(self, query: Query, places: Container[Place]) -> list[Place]:
        """The rows that a query lacks, though they are there."""
        starts = self._topics.first_offsets(self._queues, self._dead)
        return [place for place in query.rows if place[2] >= starts[place[:2]] and place not in places]

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


def _row(query: Query, place: Place) -> tuple[object, ...]:
    """What the columns of a query must have there."""
    tag, body = query.rows[place]
    return tuple({"tags": tag, "body": body}[name] for name in query.columns)


def _found(query: Query, *, is_last: bool) -> list[tuple[Any, ...]] | None:
    try:
        rows = query.frame.select("broker_name", "queue_id", "queue_offset", *query.columns).collect()
    except Exception:
        if is_last:
            raise
        return None
    return [tuple(bytes(value) if isinstance(value, bytearray) else value for value in row) for row in rows]


@pytest.mark.slow
def test_every_query_gives_the_rows_of_the_list(spark: SparkSession) -> None:
    chance = random.Random(SEED)
    # Expired at once, but deleted only when asked for: not at an hour that comes meanwhile.
    hour = (time.localtime().tm_hour + 12) % 24
    expiry = {"mappedFileSizeCommitLog": LOG_FILE_BYTES, "fileReservedTime": 0, "deleteWhen": hour}
    settings = {name: str(value) for name, value in expiry.items()}
    with open_cluster(masters=2, settings=settings) as cluster, open_topics(cluster) as topics:
        oracle = Oracle(spark, cluster, topics, chance)
        asked: list[Query] = []
        for number in range(QUERIES):
            if number % PROGRESS_EVERY == 0:
                # Otherwise a long run looks like one that hangs.
                print(f"seed {SEED}: {number} of {QUERIES} queries, {oracle.counts}", flush=True)
            oracle.between()
            query = chance.choice(asked) if asked and chance.random() < 0.3 else oracle.query()
            oracle.run(query)
            asked.append(query)
        counts = oracle.counts
        print(f"seed {SEED}: {QUERIES} queries, {counts}")
        assert (counts.lost, counts.repeated, counts.wrong, counts.right) == (0, 0, 0, QUERIES), (
            f"seed {SEED}: {counts}"
        )
