"""Random queries against a plain list of the messages: filters, push-down, columns, cuts, DataFrames that are used again,
killed tasks and drivers, dead masters, slaves that are behind, deleted offsets.

The source runs as Spark runs it, pickled for every step and with Spark's reuse of plans, but without Spark; brokers are
lists. `TRIOMQ_SPARK_QUERIES` is the number of cases, of four queries or eight triggers each, and `TRIOMQ_SPARK_FIRST` the
first seed; a seed gives the same case again.
"""

from __future__ import annotations

import os
import pickle
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

import trio
from fake_cluster import T0_MS, FakeCluster, Row
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In, LessThan
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from pyspark_rocketmq import DefaultSource
from pyspark_rocketmq.clients import ClientKey, Session
from pyspark_rocketmq.errors import SourceError
from pyspark_rocketmq.offsets import QueueId, tree_of
from pyspark_rocketmq.read import batch_reader, pulling, stream_reader, task
from pyspark_rocketmq.rows.schema import READ_SCHEMA
from triomq import MQError
from triomq._blocking.loop_thread import LoopThread

CASES = int(os.environ.get("TRIOMQ_SPARK_QUERIES", "300"))
FIRST = int(os.environ.get("TRIOMQ_SPARK_FIRST", "0"))
ACTIONS = 4
STRIDE, FILTERED_STRIDE = 16, 64
PLACE = ("broker_name", "queue_id", "queue_offset")


def random_cluster(chance: random.Random) -> FakeCluster:
    """One or two brokers, one or two queues on each, none to 300 messages in each."""
    cluster = FakeCluster(chance)
    queues = [
        QueueId("T", broker, number)
        for broker in ("broker-a", "broker-b")[: chance.randint(1, 2)]
        for number in range(chance.randint(1, 2))
    ]
    for queue in queues:
        cluster.add_queue(queue, chance.choice((0, 3, 100, 300)))
    return cluster


class FakeClient:
    """A client in a loop thread, for one cluster at a time."""

    def __init__(self) -> None:
        self.cluster: FakeCluster
        self._thread = LoopThread(self._open, name="oracle")

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[trio.Nursery]:
        async with trio.open_nursery() as nursery:
            yield nursery
            nursery.cancel_scope.cancel()

    @property
    def session(self) -> Session:
        client: Any = SimpleNamespace(admin=self.cluster, name_servers=["n:1"])
        pulling_: Any = self.cluster
        return Session(client, self._thread.session, pulling_)

    def call(self, run: Callable[[Session], Any]) -> Any:
        return self._thread.call(lambda: run(self.session))

    def call_soon(self, run: Callable[[], object]) -> None:
        self._thread.call_soon(run)

    def close(self) -> None:
        self._thread.close()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClient]:
    fake = FakeClient()

    @contextmanager
    def borrowed(key: ClientKey) -> Iterator[FakeClient]:
        fake.cluster.prefers_slaves = key.preference == "slave"
        yield fake

    for module in (batch_reader, stream_reader, task):
        monkeypatch.setattr(module, "borrowed", borrowed)
    monkeypatch.setattr(pulling, "STRIDE", STRIDE)
    monkeypatch.setattr(pulling, "FILTERED_STRIDE", FILTERED_STRIDE)
    monkeypatch.setattr(pulling, "BUNDLE_BYTES", 500)
    monkeypatch.setattr(pulling, "BEHIND_LIMIT_S", 0.002)
    monkeypatch.setattr(pulling, "BEHIND_PAUSE_S", 0.001)
    yield fake
    fake.close()


# --- the part of Spark -------------------------------------------------------------------------------------------


class DataFrame:
    """A load: keeps its plan as Spark 4.3 does, which makes a new one only for queries with filters to be pushed."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.source = DefaultSource(options)
        self.schema = schema
        self.plan: tuple[bytes, list[bytes]] | None = None

    def collect(self, filters: list[Filter], *, pushdown: bool, kills: random.Random) -> list[Row]:
        """The rows of an action; Spark evaluates the filters that the reader gives back."""
        left = filters
        if self.plan is None or (pushdown and filters):
            self.plan = None
            reader = pickle.loads(pickle.dumps(self.source)).reader(self.schema)
            if pushdown and filters:
                left = list(reader.pushFilters(list(filters)))
            partitions = [pickle.dumps(each) for each in reader.partitions()]
            self.plan = pickle.dumps(reader), partitions
        rows = []
        for partition in self.plan[1]:
            rows += run_task(self.plan[0], partition, kills)
        return [row for row in rows if all(holds(each, row) for each in left)]


def run_task(reader: bytes, partition: bytes, kills: random.Random) -> list[Row]:
    """The rows of a task, which may be killed in its middle and run again."""
    while True:
        batches = pickle.loads(reader).read(pickle.loads(partition))
        rows: list[Row] = []
        is_killed = kills.random() < 0.1
        for batch in batches:
            rows += batch.to_pylist()
            if is_killed:
                batches.close()
                break
        else:
            return rows


def holds(filter_: Filter, row: Row) -> bool:
    value, wanted = row[filter_.attribute[0]], filter_.value  # type: ignore[attr-defined]
    if value is None:
        return False
    if isinstance(filter_, EqualTo):
        return bool(value == wanted)
    if isinstance(filter_, In):
        return value in wanted
    return bool(value >= wanted if isinstance(filter_, GreaterThanOrEqual) else value < wanted)


# --- a case ------------------------------------------------------------------------------------------------------


def some_filters(chance: random.Random, columns: list[str]) -> list[Filter]:
    when = datetime.fromtimestamp((T0_MS + chance.randint(0, 100)) / 1000, UTC)
    known: dict[str, list[Filter]] = {
        "tags": [EqualTo(("tags",), "a"), In(("tags",), ("a", "BB"))],
        "queue_id": [EqualTo(("queue_id",), chance.randint(0, 2))],
        "broker_name": [EqualTo(("broker_name",), "broker-a")],
        "topic": [EqualTo(("topic",), chance.choice("TU"))],
        "queue_offset": [
            GreaterThanOrEqual(("queue_offset",), chance.randint(0, 300)),
            LessThan(("queue_offset",), chance.randint(0, 300)),
        ],
        "store_timestamp": [GreaterThanOrEqual(("store_timestamp",), when), LessThan(("store_timestamp",), when)],
        "body": [EqualTo(("body",), b"0 7")],
    }
    all_ = [each for column in columns for each in known[column]]
    return chance.sample(all_, chance.choice((0, 0, 1, 1, 2)))


def change(cluster: FakeCluster, chance: random.Random) -> None:
    """What may happen between two actions."""
    queue = chance.choice(list(cluster.parts))
    part = cluster.parts[queue]
    what = chance.choice(("nothing", "append", "append", "delete", "kill", "restart", "lag", "slave"))
    if what == "append" and queue.broker_name not in cluster.dead:
        cluster.append(queue, chance.choice((1, 70, 200)))
    elif what == "delete":
        part.start = chance.randint(part.start, len(part.rows))
    elif what == "kill":
        cluster.dead.add(queue.broker_name)
    elif what == "restart":
        cluster.dead.clear()
    elif what == "lag":
        part.slave_end = chance.randint(part.start, len(part.rows))
    elif what == "slave":
        cluster.reads_slaves = not cluster.reads_slaves
    cluster.is_noticed = chance.random() < 0.5


def plan_of(
    cluster: FakeCluster, starts: dict[QueueId, int], ends: dict[QueueId, int], *, fails: bool
) -> dict[QueueId, range] | None:
    """What a new plan has to cover; None if it has to fail."""
    plan = {}
    for queue, part in cluster.parts.items():
        here = cluster.sure_end(queue)
        if queue.broker_name in cluster.dead and queue not in ends and fails:
            return None
        end = ends.get(queue, here)
        start = starts.get(queue, part.start)
        if start < part.start and start < end:
            if fails:
                return None
            start = part.start
        plan[queue] = range(start, max(start, end))
    return plan


def check(rows: list[Row], least: list[Row], most: list[Row]) -> None:
    def places(some: list[Row]) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row[name] for name in PLACE) for row in some)

    found, at_least, at_most = places(rows), places(least), places(most)
    assert not found - at_most, "rows that are wrong or repeated"
    assert not at_least - found, "rows that are missing"
    full = {tuple(row[name] for name in PLACE): row for row in most}
    for row in rows:
        whole = full[tuple(row[name] for name in PLACE)]
        assert row == {name: whole[name] for name in row}


def run_batches(client: FakeClient, chance: random.Random) -> None:
    """Some actions of one DataFrame."""
    cluster = client.cluster = random_cluster(chance)
    names = ["tags", "topic", "body", "store_timestamp"]
    columns = [*PLACE, *chance.sample(names, chance.randint(0, len(names)))]
    options = {"namesrv": "n:1", "topic": "T"}
    selected = chance.choice((None, None, {"a"}, {"a", "b"}, {"Aa"}))
    if selected is not None:
        options["tags"] = " || ".join(sorted(selected))
        if len(selected) == 1 and chance.random() < 0.3:
            options["sql"] = f"TAGS = '{options.pop('tags')}'"
    fails = chance.random() < 0.5
    options["failOnDataLoss"] = str(fails).lower()
    if chance.random() < 0.5:
        options["minPartitions"] = str(chance.randint(2, 9))
    if chance.random() < 0.3:
        options["maxRecordsPerPartition"] = str(chance.choice((7, 64, 500)))
    if chance.random() < 0.2:
        options["readPreference"] = "slave"
    starts: dict[QueueId, int] = {}
    ends: dict[QueueId, int] = {}
    for queue, part in cluster.parts.items():
        if chance.random() < 0.2:
            starts[queue] = chance.randint(0, len(part.rows))
        if chance.random() < 0.2:
            ends[queue] = chance.randint(starts.get(queue, 0), len(part.rows))
    for name, offsets in (("startingOffsets", starts), ("endingOffsets", ends)):
        if offsets:
            options[name] = str(tree_of(offsets)).replace("'", '"')
    frame = DataFrame(options, StructType([READ_SCHEMA[name] for name in columns]))
    plan: dict[QueueId, range] | None = None
    for number in range(ACTIONS):
        if number:
            change(cluster, chance)
        filters = some_filters(chance, columns)
        pushdown = chance.random() < 0.5
        if plan is None or (pushdown and filters):
            plan = plan_of(cluster, starts, ends, fails=fails)
        least: list[Row] = []
        most: list[Row] = []
        is_complete = True
        for queue, span in (plan or {}).items():
            part = cluster.parts[queue]
            only_slave = queue.broker_name in cluster.dead or "readPreference" in options
            kept = range(max(span.start, part.start), min(span.stop, part.slave_end if only_slave else span.stop))
            is_complete = is_complete and (not span or kept == span)
            for offset in span:
                row = part.rows[offset]
                if selected is not None and row["tags"] not in selected:
                    continue
                if all(holds(each, row) for each in filters):
                    most.append(row)
                    if offset in kept:
                        least.append(row)
        try:
            rows = frame.collect(filters, pushdown=pushdown, kills=chance)
        except (SourceError, MQError):
            assert plan is None or (fails and not is_complete), "no fault explains the error"
            continue
        assert plan is not None, "the plan had to fail"
        check(rows, most if fails else least, most)


def run_stream(client: FakeClient, chance: random.Random) -> None:
    """A stream from its start to its end, with a driver that is killed now and then."""
    cluster = client.cluster = random_cluster(chance)
    selected = chance.choice((None, {"a"}))
    options = {"namesrv": "n:1", "topic": "T", "startingOffsets": "earliest", "minPartitions": "3"}
    if selected is not None:
        options["tags"] = "a"
    schema = StructType([READ_SCHEMA[name] for name in (*PLACE, "body")])

    def driver() -> Any:
        return DefaultSource(options).streamReader(schema)

    reader = driver()
    reached = reader.initialOffset()
    written: list[Row] = []
    for _ in range(8):
        end = reader.latestOffset(reached, ReadMaxRows(chance.choice((5, 60, 400))))
        while True:
            if chance.random() < 0.3:
                reader = driver()  # killed: it runs the trigger again, from the checkpoint
            partitions = [pickle.dumps(each) for each in reader.partitions(reached, end)]
            rows = [row for each in partitions for row in run_task(pickle.dumps(reader), each, chance)]
            if chance.random() < 0.8:
                break
        written += rows
        reached = end
        queue = chance.choice(list(cluster.parts))
        cluster.append(queue, chance.choice((0, 0, 50)))
    tree = reached["T"]
    expected = [
        row
        for queue, part in cluster.parts.items()
        for row in part.rows[: tree[queue.broker_name][str(queue.queue_id)]]
        if selected is None or row["tags"] in selected
    ]
    check(written, expected, expected)


@pytest.mark.slow
def test_every_query_gives_the_rows_of_the_list(client: FakeClient) -> None:
    failures: Counter[str] = Counter()
    first: tuple[int, Exception] | None = None
    for seed in range(FIRST, FIRST + CASES):
        case = run_stream if seed % 4 == 3 else run_batches
        try:
            case(client, random.Random(seed))
        except Exception as error:  # noqa: BLE001 - counted, and the first one is raised
            first = first or (seed, error)
            failures[str(error).split("\n")[0]] += 1
    if first is not None:
        raise AssertionError(
            f"{sum(failures.values())} of {CASES} cases, first seed {first[0]}: {failures}"
        ) from first[1]
