"""A whole pipeline as an example: flights into a topic, a streaming query over it, its results in a second topic, a
batch read of those.

The query counts the flights of each carrier and hour and sums their delays, in windows of an hour. It is stopped in the
middle and goes on from its checkpoint; then the master of one half of the topic is killed, and the rest is read from
its slave. What the batch read finds at the end is what pandas computes from the file.

The query's output mode is `complete`, since Spark lets no sink in Python take `update`: each trigger writes all windows
so far. A window's later result follows the earlier ones in the same queue, since the carrier is the sharding key, so
the last one counts, and a repeat changes nothing.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

import triomq
from pyspark_rocketmq.write.sending import wait_replicated
from triomq_benchmarks.clusters.cluster import OurCluster, open_cluster
from triomq_benchmarks.clusters.scratch import scratch_folder
from triomq_benchmarks.spark.environment import check_reachable, check_spark, open_session
from triomq_benchmarks.workload.flights import Row, flights, flights_archive

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

FLIGHTS: Final = "flights"
DELAYS: Final = "delays"
CARRIER, DELAY, AT = 9, 5, 18
"""The columns of the file that are used."""
COLUMNS: Final = ["carrier", "hour", "flights", "delayed", "minutes"]
STEP_LIMIT_S: Final = 300


class PipelineError(Exception):
    """The query failed, or made no progress in time."""


@attrs.frozen
class PipelineResult:
    """The result of a run.

    Attributes:
        expected: the table computed from the file by pandas.
        found: the table from the second topic.
        rows: number of flights sent.
        results: number of messages in the second topic; more than there are windows, as each trigger writes all of
            them.
        triggers: of the query, before and after it was stopped.
        from_slave: number of flights read after their master was killed.
        elapsed_s: from the first flight sent to the last row read.
    """

    expected: pd.DataFrame
    found: pd.DataFrame
    rows: int
    results: int
    triggers: tuple[int, int]
    from_slave: int
    elapsed_s: float

    @property
    def equal(self) -> bool:
        """Whether both tables are the same."""
        return bool(self.expected.equals(self.found))


def run_pipeline(
    session: SparkSession,
    cluster: OurCluster,
    rows: int,
    per_trigger: int,
    scratch: Path,
    say: Callable[[str], None],
) -> PipelineResult:
    """Run everything once.

    Args:
        session: the Spark session.
        cluster: two masters with slaves that replicate synchronously, so that acknowledged messages can be read from
            either.
        rows: number of flights.
        per_trigger: number of flights per trigger.
        scratch: folder for the checkpoint.
        say: takes lines for people.

    Raises:
        PipelineError: the query failed.
    """
    sent = list(islice(flights(flights_archive()), rows))
    started = time.perf_counter()
    say(f"sending {len(sent):,} flights")
    trio.run(send_flights, cluster.name_servers, sent)
    query = start_query(session, cluster.name_servers, per_trigger, scratch)
    before = _after_triggers(query, 2)
    query.stop()
    say(f"stopped after {before} triggers; starting again from the checkpoint")
    query = start_query(session, cluster.name_servers, per_trigger, scratch)
    _after_triggers(query, 2)
    cluster.kill_node("broker-a")
    cluster.wait_ended("broker-a")
    killed_at = len(query.recentProgress)
    say(f"killed the master broker-a after {killed_at} more triggers; its slave is read now")
    _end(query)
    progress = query.recentProgress
    found, results = read_results(session, cluster.name_servers)
    return PipelineResult(
        expected(sent),
        found,
        rows=len(sent),
        results=results,
        triggers=(before, len(progress)),
        from_slave=_rows_of_broker(progress[killed_at:], "broker-a"),
        elapsed_s=time.perf_counter() - started,
    )


async def send_flights(name_servers: str, rows: list[Row]) -> None:
    """Send the flights, after making the topics; returns when slaves have them."""
    async with triomq.open_client(name_servers) as client:
        await client.admin.create_topic(FLIGHTS, queues=2)
        # The result topic must have a master all the time: slaves take no messages.
        await client.admin.create_topic(DELAYS, queues=2, brokers=["broker-b"])
        producer = client.producer("flights", send_timeout_s=30.0)
        messages = (triomq.Message(FLIGHTS, row.body, tags=row.tag, keys=row.key) for row in rows)
        last: dict[triomq.MessageQueue, int] = {}
        for batch in triomq.split_batch(messages, max_count=100):
            result = await producer.send_batch(batch)
            last[result.queue] = result.queue_offset + len(batch) - 1
        # When the master is killed, its slave must be known and hold everything.
        await wait_replicated(client.pull_consumer("flights-check", read_preference="slave"), last)


def start_query(session: SparkSession, name_servers: str, per_trigger: int, scratch: Path) -> StreamingQuery:
    """Start the streaming query: flights in, delays per carrier and hour out."""
    from pyspark.sql import functions as f

    lines = (
        session.readStream.format("rocketmq")
        .option("namesrv", name_servers)
        .option("topic", FLIGHTS)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_trigger)
        .option("consumerGroup", "flights-pipeline")
        .schema("body binary")
        .load()
    )
    fields = f.split(f.col("body").cast("string"), ",")
    delays = lines.select(
        fields[CARRIER].alias("carrier"),
        fields[AT].cast("timestamp").alias("at"),
        fields[DELAY].try_cast("double").try_cast("int").alias("delay"),
    )
    windows = delays.groupBy(f.window("at", "1 hour"), "carrier").agg(
        f.count("*").alias("flights"), f.count("delay").alias("delayed"), f.sum("delay").alias("minutes")
    )
    results = windows.select(
        f.to_json(
            f.struct("carrier", f.unix_timestamp("window.start").alias("hour"), "flights", "delayed", "minutes")
        ).alias("body"),
        f.col("carrier").alias("tags"),
        f.col("carrier").alias("sharding_key"),
    )
    return (
        results.writeStream.format("rocketmq")
        .option("namesrv", name_servers)
        .option("topic", DELAYS)
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )


def read_results(session: SparkSession, name_servers: str) -> tuple[pd.DataFrame, int]:
    """The last result of each window, from a batch read; and the number of results."""
    from pyspark.sql import functions as f

    rows = session.read.format("rocketmq").option("namesrv", name_servers).option("topic", DELAYS).load()
    schema = "carrier string, hour long, flights long, delayed long, minutes long"
    parsed = rows.select("queue_id", "queue_offset", f.from_json(f.col("body").cast("string"), schema).alias("row"))
    last = parsed.groupBy("row.carrier", "row.hour").agg(f.max_by("row", "queue_offset").alias("row")).select("row.*")
    return _sorted(last), rows.count()


def _sorted(rows: DataFrame) -> pd.DataFrame:
    table: pd.DataFrame = rows.select(*COLUMNS).toPandas()
    table["minutes"] = table["minutes"].fillna(0).astype("int64")
    return table.sort_values(["carrier", "hour"]).reset_index(drop=True).astype(dict.fromkeys(COLUMNS[1:], "int64"))


def expected(rows: list[Row]) -> pd.DataFrame:
    """The same table, computed by pandas from the lines of the file."""
    import pandas as pd

    text = b"\n".join(row.body for row in rows)
    table = pd.read_csv(io.BytesIO(text), header=None, usecols=[DELAY, CARRIER, AT])
    table.columns = pd.Index(["delay", "carrier", "at"])
    table["hour"] = pd.to_datetime(table["at"], utc=True).astype("int64") // 10**9 // 3600 * 3600
    grouped = table.groupby(["carrier", "hour"])["delay"].agg(flights="size", delayed="count", minutes="sum")
    result = grouped.reset_index()[COLUMNS].astype({"carrier": "object", **dict.fromkeys(COLUMNS[1:], "int64")})
    return result.sort_values(["carrier", "hour"]).reset_index(drop=True)


def _after_triggers(query: StreamingQuery, count: int) -> int:
    """Wait until a query has ended that many triggers, or all of its own."""
    deadline = time.perf_counter() + STEP_LIMIT_S
    while query.isActive and len(query.recentProgress) < count:
        if time.perf_counter() > deadline:
            query.stop()
            raise PipelineError(f"the query did not end {count} triggers within {STEP_LIMIT_S} s")
        time.sleep(0.1)
    _check(query)
    return len(query.recentProgress)


def _end(query: StreamingQuery) -> None:
    if not query.awaitTermination(STEP_LIMIT_S):
        query.stop()
        raise PipelineError(f"the query did not end within {STEP_LIMIT_S} s")
    _check(query)


def _check(query: StreamingQuery) -> None:
    failure = query.exception()
    if failure is not None:
        raise PipelineError(f"the query failed: {failure}")


def _rows_of_broker(progress: list[StreamingQueryProgress], broker: str) -> int:
    """Number of messages of a broker's queues in these triggers."""
    count = 0
    for each in progress:
        source = json.loads(each.json)["sources"][0]
        start, end = source["startOffset"] or {}, source["endOffset"]
        before = start.get(FLIGHTS, {}).get(broker, {})
        count += sum(offset - before.get(queue, 0) for queue, offset in end.get(FLIGHTS, {}).get(broker, {}).items())
    return count


def measure(rows: int, per_trigger: int, master: str, say: Callable[[str], None]) -> PipelineResult:
    """Start a cluster and a session, and run the pipeline once.

    Raises:
        ToolUnavailableError: Spark or Java is missing, or no master answers.
        NoDataError: the flights are not installed.
        PipelineError: the query failed.
    """
    check_spark()
    check_reachable(master)
    flights_archive()
    settings = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
    with (
        open_cluster(masters=2, sync_replication=True) as cluster,
        scratch_folder("triomq-flights-") as scratch,
        open_session(master, name="triomq-flights", settings=settings, short_lived=True) as session,
    ):
        return run_pipeline(session, cluster, rows, per_trigger, Path(scratch), say)
