"""The pipeline of flights on a standalone Spark cluster whose Workers and executors are killed; then pandas compares.

    python tests/spark/flights_kills.py --kills 15 --seed 1

The query of `triomq bench flights-pipeline` runs on two Workers. Meanwhile a Worker or an executor is killed with
SIGKILL at a random time, and Workers are started again. Where Spark gives the query up, it is started again from its
checkpoint. The exit status is 1 unless the results are what pandas computes from the same flights.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Self

import attrs
import trio

from triomq_benchmarks.clusters.cluster import OurCluster, open_cluster
from triomq_benchmarks.clusters.processes import Child
from triomq_benchmarks.spark.cluster import SparkCluster, _spark_class, open_spark_cluster
from triomq_benchmarks.spark.environment import LOOPBACK, open_session, ready_class_archive
from triomq_benchmarks.spark.flights_pipeline import expected, read_results, send_flights, start_query
from triomq_benchmarks.workload.flights import Row, flights, flights_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
ROWS_OF_A_ROUND, TRIGGERS_OF_A_ROUND = 2000, 5
ROUND_LIMIT_S = 900
PAUSE_S = (0.5, 6.0)
DEAD_S = (0.0, 3.0)
"""How long a killed Worker is away."""
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.executor.memory": "512m",
    # As many losses as may come: what Spark gives up after four is to be the kills' number, not a limit of its own.
    "spark.task.maxFailures": "1000",
    "spark.stage.maxConsecutiveAttempts": "1000",
}


@attrs.define
class Counts:
    """What a run of this program found."""

    kills: Counter[str] = attrs.field(factory=Counter)
    starts: int = 0
    triggers: int = 0
    rows: int = 0
    windows: int = 0
    equal: bool = False


class Workers:
    """The Workers of a cluster, of which some are killed and started again.

    Args:
        spark: whose.
    """

    def __init__(self, spark: SparkCluster) -> None:
        self.spark = spark
        self._pids = list(spark.workers)
        self._started = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._started.close()

    def kill(self, number: int) -> None:
        """Kill a Worker as a crash would; its executors end when they notice."""
        os.kill(self._pids[number], signal.SIGKILL)

    def start(self, number: int) -> None:
        """Start it again; the Master lists it soon after."""
        spark, name = self.spark, f"worker-{number}"
        command, environment = _spark_class(spark.directory, spark.mark)
        argv = [*command, WORKER, "--host", LOOPBACK, "--cores", "1", "--memory", "1g", "--webui-port", "0"]
        argv += ["--work-dir", str(spark.directory / name), spark.master]
        child = Child(f"Spark {name}", argv, spark.directory / f"{name}.log", env=environment)
        self._pids[number] = self._started.enter_context(child).pid

    def processes(self, word: bytes) -> list[int]:
        """The cluster's running processes with a word in their command line."""
        return [pid for pid in self.spark.processes() if word in _command_line(pid)]

    def kill_executor(self, chance: random.Random) -> bool:
        """Kill one of the executors; returns whether there was one."""
        executors = self.processes(EXECUTOR)
        if executors:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(executors), signal.SIGKILL)
        return bool(executors)

    def __len__(self) -> int:
        return len(self._pids)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


class Killer:
    """Kills Workers and executors in a thread of its own, while a query runs.

    Args:
        workers: those that are killed, with their executors.
        chance: chooses whom and when.
        counts: where kills are counted.
        most: how many in total.
        say: gets lines for people.
    """

    def __init__(
        self, workers: Workers, chance: random.Random, counts: Counts, most: int, say: Callable[[str], None]
    ) -> None:
        self._workers = workers
        self._chance = chance
        self._counts = counts
        self._most = most
        self._say = say
        self._over = threading.Event()
        self._failure: BaseException | None = None

    @property
    def left(self) -> int:
        """How many kills are left."""
        return self._most - self._counts.kills.total()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Kill for as long as the block lasts; afterwards every Worker runs."""
        self._over.clear()
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while self.left and not self._over.wait(self._chance.uniform(*PAUSE_S)):
                victim = self._chance.choice(("worker", "executor"))
                if victim == "worker":
                    self._kill_worker(self._chance.randrange(len(self._workers)))
                elif not self._workers.kill_executor(self._chance):
                    continue
                self._counts.kills[victim] += 1
                self._say(f"killed {victim}, number {self._counts.kills.total()}")
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self._failure = error

    def _kill_worker(self, number: int) -> None:
        self._workers.kill(number)
        self._over.wait(self._chance.uniform(*DEAD_S))
        self._workers.start(number)


def run_kills(kills: int, seed: int, say: Callable[[str], None]) -> Counts:
    """Run until so many processes have been killed and all flights are counted, and compare.

    Args:
        kills: how many.
        seed: chooses whom and when.
        say: gets lines for people.
    """
    counts = Counts()

    async def run() -> None:
        async with open_spark_cluster(workers=2) as spark:
            with Workers(spark) as workers:
                killer = Killer(workers, random.Random(seed), counts, kills, say)
                await trio.to_thread.run_sync(_run_rounds, spark.master, killer, counts, say)

    trio.run(run)
    return counts


def _run_rounds(master: str, killer: Killer, counts: Counts, say: Callable[[str], None]) -> None:
    sent: list[Row] = []
    rows = flights(flights_archive())
    with (
        tempfile.TemporaryDirectory(prefix="triomq-flights-kills-", ignore_cleanup_errors=True) as scratch,
        open_cluster(masters=2, sync_replication=True) as cluster,
        open_session(
            master, name="flights-kills", settings=SETTINGS, short_lived=True, archive=ready_class_archive()
        ) as session,
    ):
        # What is counted without a kill ends a round; the next one brings more flights.
        while not sent or killer.left:
            more = list(islice(rows, ROWS_OF_A_ROUND))
            if not more:
                raise RuntimeError(f"all flights are counted, and {killer.left} kills are left")
            trio.run(send_flights, cluster.name_servers, more)
            sent += more
            with killer.at_work():
                _run_query(session, cluster, Path(scratch), counts, say)
        found, _ = read_results(session, cluster.name_servers)
    wanted = expected(sent)
    counts.rows, counts.windows, counts.equal = len(sent), len(wanted), bool(wanted.equals(found))


def _run_query(
    session: SparkSession, cluster: OurCluster, scratch: Path, counts: Counts, say: Callable[[str], None]
) -> None:
    """Start the query, again after each failure, until it has counted all flights that are there."""
    deadline = time.monotonic() + ROUND_LIMIT_S
    while True:
        query = start_query(session, cluster.name_servers, ROWS_OF_A_ROUND // TRIGGERS_OF_A_ROUND, scratch)
        counts.starts += 1
        failure: BaseException | None = None
        try:
            if not query.awaitTermination(max(1, int(deadline - time.monotonic()))):
                query.stop()
                raise RuntimeError(f"the query does not end: {query.status}")
        except Exception as error:
            if time.monotonic() > deadline:
                raise
            failure = error
        counts.triggers += len(query.recentProgress)
        if failure is None:
            return
        say(f"the query failed, and starts again: {str(failure)[:300]}")


def main() -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    os.environ.setdefault("SPARK_AUTH_SOCKET_TIMEOUT", "120")
    counts = run_kills(given.kills, given.seed, lambda text: print(text, flush=True))
    print(
        f"{counts.kills.total()} kills {dict(counts.kills)}, {counts.starts} starts of the query, {counts.triggers} "
        f"triggers, {counts.rows} flights, {counts.windows} windows: "
        f"{'equal to' if counts.equal else 'not'} what pandas computes"
    )
    return 0 if counts.equal else 1


if __name__ == "__main__":
    sys.exit(main())
