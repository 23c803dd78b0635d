"""How fast Spark reads a topic: the data source beside one plain pull loop, and beside Parquet files with the same
rows.

All three run in turn, several rounds in one process, against one broker of ours; the median counts. Spark's two reads
end in its `noop` sink, so that every row is made and none is kept. In a last read every task runs under a profiler, and
its time is split into: waiting for pulls, making Arrow batches, and all the rest.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

import triomq
from triomq_benchmarks.clusters.cluster import open_cluster
from triomq_benchmarks.clusters.scratch import scratch_folder
from triomq_benchmarks.spark.environment import check_reachable, check_spark, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC: Final = "spark-read"
GOAL: Final = 1.5
_BATCH: Final = 200
_POOL_BYTES: Final = 1 << 20
_LONG_BODY_BYTES: Final = 16 << 10
_SMALL_BLOCK_BYTES: Final = 16 << 20


@attrs.frozen
class Share:
    """The time of the tasks' main threads in seconds, under the profiler.

    Attributes:
        total_s: all of it.
        waiting_s: waiting for pulled pages; another thread continues to pull.
        arrow_s: making record batches of the pages.
        other_s: the rest: Spark's own part, and writing the batches to it.
    """

    total_s: float
    waiting_s: float
    arrow_s: float
    other_s: float


@attrs.frozen
class SparkReadRates:
    """The measured rates, in rows per second.

    Attributes:
        rows: number of rows in the topic.
        body_bytes: size of each body.
        master: the session's master.
        pull_loop: one plain `consumer.pull` loop, each round.
        source: Spark's read of the topic.
        body_only: the same read, with a schema of one column.
        parquet: Spark's read of Parquet files.
        share: see :class:`Share`.
    """

    rows: int
    body_bytes: int
    master: str
    pull_loop: list[float]
    source: list[float]
    body_only: list[float]
    parquet: list[float]
    share: Share

    @property
    def ratio(self) -> float:
        """The data source's median over the pull loop's."""
        return statistics.median(self.source) / statistics.median(self.pull_loop)


def measure(
    rows: int, body_bytes: int, queues: int, rounds: int, master: str, say: Callable[[str], None]
) -> SparkReadRates:
    """Measure everything.

    Raises:
        ToolUnavailableError: Spark or Java is missing, or no master answers.
        ChildError: the broker did not start.
    """
    check_spark()
    check_reachable(master)
    with open_cluster(slaves=0) as cluster, scratch_folder("triomq-read-") as scratch:
        say(f"sending {rows:,} messages of {body_bytes} bytes")
        trio.run(_fill, cluster.name_servers, rows, body_bytes, queues)
        with open_session(master, name="triomq-spark-read") as session:
            source = _source(session, cluster.name_servers)
            bodies = _source(session, cluster.name_servers, "body binary")
            files = str(Path(scratch) / "rows")
            say("writing the same rows to Parquet")
            _write_parquet(source, body_bytes, files)
            parquet = session.read.parquet(files)
            # The first run starts workers and compiles code; its rate is not comparable.
            _consume(parquet)
            rates: dict[str, list[float]] = {"pull": [], "source": [], "bodies": [], "parquet": []}
            for number in range(rounds):
                say(f"round {number + 1} of {rounds}")
                rates["pull"].append(_rate(rows, lambda: _pull_all(cluster.name_servers, rows)))
                rates["source"].append(_rate(rows, lambda: _consume(source)))
                rates["bodies"].append(_rate(rows, lambda: _consume(bodies)))
                rates["parquet"].append(_rate(rows, lambda: _consume(parquet)))
                say(", ".join(f"{name} {series[-1]:,.0f} rows/s" for name, series in rates.items()))
            say("once more, under the profiler")
            share = _profiled(session, cluster.name_servers, Path(scratch) / "profile")
    return SparkReadRates(
        rows, body_bytes, master, rates["pull"], rates["source"], rates["bodies"], rates["parquet"], share
    )


def _write_parquet(rows: DataFrame, body_bytes: int, folder: str) -> None:
    """Write the rows, so that the memory that Spark has by default is enough.

    For long rows Parquet would look at the size of its buffers too late, after 100 rows; and Spark reads all rows of a
    block at once, twice 128 MiB in two tasks.
    """
    writer = rows.write
    if body_bytes > _LONG_BODY_BYTES:
        writer = writer.option("parquet.block.size", _SMALL_BLOCK_BYTES)
        for part in ("page", "block"):
            writer = writer.option(f"parquet.{part}.size.row.check.min", 1)
    writer.parquet(folder)


def _rate(rows: int, work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return rows / (time.perf_counter() - started)


def _source(session: SparkSession, name_servers: str, schema: str | None = None) -> DataFrame:
    reader = session.read.format("rocketmq").option("namesrv", name_servers).option("topic", TOPIC)
    return (reader.schema(schema) if schema else reader).load()


def _consume(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


async def _fill(name_servers: str, rows: int, body_bytes: int, queues: int) -> None:
    """Send the rows, evenly over the queues, each with a tag, a key and a body that cannot be compressed."""
    pool = memoryview(random.Random(5).randbytes(_POOL_BYTES + body_bytes))
    async with triomq.open_client(name_servers) as client:
        await client.admin.create_topic(TOPIC, queues=queues)
        producer = client.producer("spark-read-load")

        async def fill(queue: triomq.MessageQueue, start: int, end: int) -> None:
            messages = (
                triomq.Message(
                    TOPIC,
                    bytes(pool[number * 997 % _POOL_BYTES :][:body_bytes]),
                    tags="abc"[number % 3],
                    keys=f"key-{number}",
                )
                for number in range(start, end)
            )
            for batch in triomq.split_batch(messages, max_count=_BATCH):
                await producer.send_batch(batch, queue=queue)

        async with trio.open_nursery() as nursery:
            places = await producer.queues(TOPIC)
            for index, queue in enumerate(places):
                nursery.start_soon(fill, queue, rows * index // len(places), rows * (index + 1) // len(places))


def _pull_all(name_servers: str, rows: int) -> None:
    """Pull all queues in one plain loop that accesses every body."""

    async def pull_all() -> int:
        count = 0
        async with triomq.open_client(name_servers) as client:
            consumer = client.pull_consumer("spark-read-plain")
            for queue in await consumer.fetch_queues(TOPIC):
                offset = 0
                while True:
                    result = await consumer.pull(queue, offset)
                    if result.status is not triomq.PullStatus.FOUND:
                        break
                    count += sum(1 for message in result if message.body)
                    offset = result.next_offset
        return count

    found = trio.run(pull_all)
    if found != rows:
        raise RuntimeError(f"the pull loop found {found} messages of {rows}")


def _profiled(session: SparkSession, name_servers: str, folder: Path) -> Share:
    """Read once under the profiler."""
    from triomq_benchmarks.spark.read_profile import FOLDER, ProfiledSource, times

    folder.mkdir()
    session.dataSource.register(ProfiledSource)
    reader = session.read.format(ProfiledSource.name()).option("namesrv", name_servers).option("topic", TOPIC)
    _consume(reader.option(FOLDER, str(folder)).load())
    total, waiting, arrow = times(folder)
    return Share(total, waiting, arrow, total - waiting - arrow)
