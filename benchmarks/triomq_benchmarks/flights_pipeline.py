"""A whole pipeline as an example: flights into a topic, a streaming query over it, its results in a second topic, a batch read of those.

The query counts the flights of each carrier and hour and sums their delays, in windows of an hour. It is stopped in the
middle and goes on from its checkpoint; then the master of one half of the topic is killed, and the rest is read from its
slave. What the batch read finds at the end is what pandas computes from the file.

The query's output mode is `complete`, since Spark lets no sink in Python take `update`: each trigger writes all windows so far. A
window's later result follows the earlier ones in the same queue, since the carrier is the sharding key, so the last one
counts, and a repeat changes nothing.
"""

from __future__ import annotations

import io
import json
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import click
import trio
from rich.console import Console
from rich.table import Table

import triomq
from pyspark_rocketmq.sending import wait_replicated

from .builds import ToolUnavailableError
from .child_cluster import ChildCluster, open_child_cluster
from .flights import NoDataError, Row, flights, flights_archive
from .spark_environment import check_spark, open_session

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

FLIGHTS: Final = "flights"
DELAYS: Final = "delays"
CARRIER, DELAY, AT = 9, 5, 18
"""Columns of the file that are used."""
COLUMNS: Final = ["carrier", "hour", "flights", "delayed", "minutes"]
STEP_LIMIT_S: Final = 300


class PipelineError(Exception):
    """The query failed, or did not come forward in time."""


@attrs.frozen
class Outcome:
    """What a run gave.

    Attributes:
        expected: what pandas computes from the file.
        found: what came out of the second topic.
        rows: flights sent.
        results: messages in the second topic; more than there are windows, as each trigger writes all of them.
        triggers: of the query, before and after it was stopped.
        from_slave: flights that were read after their master had been killed.
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
    cluster: ChildCluster,
    rows: int,
    per_trigger: int,
    scratch: Path,
    tell: Callable[[str], None],
) -> Outcome:
    """Run everything once.

    Args:
        session: Spark's.
        cluster: two masters with slaves that replicate synchronously, so that what is acknowledged can be read from either.
        rows: how many flights.
        per_trigger: how many of them a trigger takes.
        scratch: for the checkpoint.
        tell: hears what happens.

    Raises:
        PipelineError: the query failed.
    """
    sent = list(islice(flights(flights_archive()), rows))
    started = time.perf_counter()
    tell(f"sending {len(sent):,} flights")
    trio.run(_send, cluster.name_servers, sent)
    query = start_query(session, cluster.name_servers, per_trigger, scratch)
    before = _after_triggers(query, 2)
    query.stop()
    tell(f"stopped after {before} triggers; starting again from the checkpoint")
    query = start_query(session, cluster.name_servers, per_trigger, scratch)
    _after_triggers(query, 2)
    cluster.kill_node("broker-a")
    killed_at = len(query.recentProgress)
    tell(f"killed the master broker-a after {killed_at} more triggers; its slave is read now")
    _end(query)
    progress = query.recentProgress
    found, results = read_results(session, cluster.name_servers)
    return Outcome(
        expected(sent),
        found,
        rows=len(sent),
        results=results,
        triggers=(before, len(progress)),
        from_slave=_rows_of_broker(progress[killed_at:], "broker-a"),
        elapsed_s=time.perf_counter() - started,
    )


async def _send(name_servers: str, rows: list[Row]) -> None:
    async with triomq.open_client(name_servers) as client:
        await client.admin.create_topic(FLIGHTS, queues=2)
        # Results must have a master all the time: nobody can write to a slave.
        await client.admin.create_topic(DELAYS, queues=2, brokers=["broker-b"])
        producer = client.producer("flights", send_timeout_s=30.0)
        messages = (triomq.Message(FLIGHTS, row.body, tags=row.tag, keys=row.key) for row in rows)
        last: dict[triomq.MessageQueue, int] = {}
        for batch in triomq.split_batch(messages, max_count=100):
            result = await producer.send_batch(batch)
            last[result.queue] = result.queue_offset + len(batch) - 1
        # A slave that is known and holds everything is what the master's death will find.
        await wait_replicated(client.pull_consumer("flights-check", read_preference="slave"), last)


def start_query(session: SparkSession, name_servers: str, per_trigger: int, scratch: Path) -> StreamingQuery:
    """The streaming query: flights in, delays per carrier and hour out."""
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
    """The last result of each window, by a batch read; and how many results there are."""
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
    """The same table, by pandas, from the lines of the file."""
    import pandas as pd

    text = b"\n".join(row.body for row in rows)
    table = pd.read_csv(io.BytesIO(text), header=None, usecols=[DELAY, CARRIER, AT])
    table.columns = pd.Index(["delay", "carrier", "at"])
    table["hour"] = pd.to_datetime(table["at"], utc=True).astype("int64") // 10**9 // 3600 * 3600
    grouped = table.groupby(["carrier", "hour"])["delay"].agg(flights="size", delayed="count", minutes="sum")
    result = grouped.reset_index()[COLUMNS].astype({"carrier": "object", **dict.fromkeys(COLUMNS[1:], "int64")})
    return result.sort_values(["carrier", "hour"]).reset_index(drop=True)


def _after_triggers(query: StreamingQuery, count: int) -> int:
    """Wait until a query has ended so many triggers, or all of its own."""
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
    """Offsets of a broker's queues that these triggers took."""
    count = 0
    for each in progress:
        source = json.loads(each.json)["sources"][0]
        start, end = source["startOffset"] or {}, source["endOffset"]
        before = start.get(FLIGHTS, {}).get(broker, {})
        count += sum(offset - before.get(queue, 0) for queue, offset in end.get(FLIGHTS, {}).get(broker, {}).items())
    return count


@click.command("flights-pipeline")
@click.option("--rows", type=click.IntRange(100, 336_776), default=50_000, show_default=True, help="Flights.")
@click.option("--per-trigger", type=click.IntRange(10, 336_776), help="Flights per trigger. Default: an eighth.")
@click.option("--master", default="local[2]", show_default=True, help="Where Spark runs.")
def flights_pipeline(rows: int, per_trigger: int | None, master: str) -> None:
    """Flights through a topic, a streaming query and a second topic; stopped and half bereft of its master on the way."""
    console = Console()
    try:
        outcome = _run(rows, per_trigger or max(10, rows // 8), master, lambda text: console.print(f"[dim]{text}"))
    except (NoDataError, PipelineError, ToolUnavailableError) as error:
        raise click.ClickException(str(error)) from None
    table = Table(title=f"{outcome.rows:,} flights, {len(outcome.found):,} windows; the worst ten")
    for name in ("carrier", "hour", "flights", "mean delay"):
        table.add_column(name, justify="left" if name == "carrier" else "right")
    worst = outcome.found.assign(mean=outcome.found.minutes / outcome.found.delayed).nlargest(10, "mean")
    for row in worst.itertuples():
        hour = time.strftime("%Y-%m-%d %H:00", time.gmtime(row.hour))
        table.add_row(row.carrier, hour, str(row.flights), f"{row.mean:.1f} min")
    console.print(table)
    console.print(
        f"{outcome.triggers[0]} triggers before the restart and {outcome.triggers[1]} after, {outcome.results:,} results; "
        f"{outcome.from_slave:,} flights read from the slave; {outcome.elapsed_s:.1f} s"
    )
    if not outcome.equal:
        raise click.ClickException("the result is not what pandas computes from the file")
    console.print("[green]equal to what pandas computes from the file")


def _run(rows: int, per_trigger: int, master: str, tell: Callable[[str], None]) -> Outcome:
    check_spark()
    flights_archive()
    settings = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
    with (
        open_child_cluster("--masters=2", "--slaves=1", "--sync-replication") as cluster,
        tempfile.TemporaryDirectory(prefix="triomq-flights-", ignore_cleanup_errors=True) as scratch,
        open_session(master, name="triomq-flights", settings=settings) as session,
    ):
        return run_pipeline(session, cluster, rows, per_trigger, Path(scratch), tell)
