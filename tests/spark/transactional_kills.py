"""A transactional stream whose driver, Python workers and master are killed; then a plain consumer counts.

    python tests/spark/transactional_kills.py --kills 30 --seed 1
    python tests/spark/transactional_kills.py --kills 40 --cluster --minutes 20

A stream copies numbered messages from one topic to another with `transactional=true`, some hundred per trigger.
Meanwhile one of its processes, or the master, is killed with SIGKILL at a random time, and started again. Half of the
kills wait for another micro-batch to be committed first: on a slow machine all kills would hit the same one. When the
stream is through, every message has to be in the second topic once. The exit status is 1 if one is lost or repeated.

With `--cluster` the stream runs on a standalone Spark cluster of two Workers, and Workers and executors are killed,
too. With `--minutes` the killing ends after that time, though there may be kills left.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
import trio
from flights_kills import Workers

import triomq
from triomq_benchmarks.clusters.cluster import OurCluster, open_cluster
from triomq_benchmarks.spark.cluster import open_spark_cluster

SOURCE, TARGET, DECISIONS = "kills-in", "kills-out", "spark-sink-decisions"
PER_TRIGGER = 100
RUN_LIMIT_S = 1800.0
PROGRESS_LIMIT_S = 60.0
"""How long a kill waits for a micro-batch to be committed, where it waits for one."""
QUERY_STARTS = 4
"""How often a driver starts its query, which ends with an error when a Python worker is killed: a JVM takes longer."""
SETTINGS = {
    "spark.executor.memory": "512m",
    # Tasks that fail because their process was killed are not to end the stream after four kills.
    "spark.task.maxFailures": "1000",
}
VICTIMS = ("driver", "driver", "worker", "master")
CLUSTER_VICTIMS = ("driver", "worker", "master", "executor", "Spark worker")


@attrs.define
class Counts:
    """What a run of this program found."""

    kills: Counter[str] = attrs.field(factory=Counter)
    starts: int = 0
    lost: int = 0
    repeated: int = 0
    rows: int = 0


@attrs.frozen
class Schedule:
    """How many are killed, and until when; `workers` are those of a Spark cluster, if the stream runs on one.

    Args:
        kills: how many.
        until_s: no kills after this time of the monotonic clock.
        workers: of the Spark cluster.
    """

    kills: int
    until_s: float = math.inf
    workers: Workers | None = None

    def left(self, counts: Counts) -> int:
        """How many kills are left."""
        return max(0, self.kills - counts.kills.total()) if time.monotonic() < self.until_s else 0

    @property
    def victims(self) -> tuple[str, ...]:
        """Who may be killed."""
        return VICTIMS if self.workers is None else CLUSTER_VICTIMS


def drive(name_servers: str, checkpoint: str, master: str) -> None:
    """The driver: copies what is there, and ends."""
    os.environ.setdefault("SPARK_AUTH_SOCKET_TIMEOUT", "120")
    from pyspark.errors import StreamingQueryException

    from triomq_benchmarks.spark.environment import open_session, ready_class_archive

    archive = ready_class_archive()
    with open_session(
        master, name="transactional-kills", settings=SETTINGS, short_lived=True, archive=archive
    ) as spark:
        rows = spark.readStream.format("rocketmq").options(namesrv=name_servers, topic=SOURCE)
        rows = rows.options(startingOffsets="earliest", maxOffsetsPerTrigger=PER_TRIGGER, consumerGroup="kills-lag")
        sink = rows.load().select("body").writeStream.format("rocketmq").option("namesrv", name_servers)
        sink = sink.options(topic=TARGET, transactional="true", checkpointLocation=checkpoint)
        print("started", flush=True)
        for left in reversed(range(QUERY_STARTS)):
            try:
                sink.trigger(availableNow=True).start().awaitTermination()
                return
            except StreamingQueryException:
                if not left:
                    raise


async def fill(name_servers: str, start: int, count: int) -> None:
    """Numbered messages in the first topic; the topics, if they are not there."""
    async with triomq.open_client(name_servers) as client:
        if not start:
            await client.admin.create_topic(SOURCE, queues=2)
            await client.admin.create_topic(TARGET, queues=2)
            await client.admin.create_topic(DECISIONS, queues=1, brokers=["broker-a"])
        async with client.producer("kills-fill", send_timeout_s=30.0) as producer:
            bodies = [b"%d" % number for number in range(start, start + count)]
            for at in range(0, count, 100):
                await producer.send_batch([triomq.Message(SOURCE, body) for body in bodies[at : at + 100]])


async def delivered(name_servers: str) -> Counter[bytes]:
    """How often a plain consumer gets each body of the second topic."""
    found: Counter[bytes] = Counter()
    async with triomq.open_client(name_servers) as client, client.pull_consumer("kills-count") as consumer:
        for queue in await consumer.fetch_queues(TARGET):
            at = await consumer.min_offset(queue)
            while (result := await consumer.pull(queue, at)).status is triomq.PullStatus.FOUND:
                found.update(message.body for message in result)
                at = result.next_offset
    return found


class Stream:
    """The driver's process, with all that it has started.

    Args:
        name_servers: of the topics.
        folder: for checkpoint and log.
        workers: those of the Spark cluster it runs on; None: on threads of its own.
    """

    def __init__(self, name_servers: str, folder: Path, workers: Workers | None) -> None:
        master = "local[2]" if workers is None else workers.spark.master
        self._checkpoint = folder / "checkpoint"
        self._argv = [sys.executable, __file__, "--drive", name_servers, "--checkpoint", str(self._checkpoint)]
        self._argv += ["--master", master]
        self._workers = workers
        self._log = folder / "driver.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until Spark runs."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._argv, stdout=subprocess.PIPE, stderr=log, start_new_session=True, env=os.environ
            )
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def kill(self) -> None:
        """End driver, JVM and workers at once."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill one of the Python processes that Spark runs tasks and commits in; returns whether there was one."""
        assert self.process is not None
        workers = _descendants(self.process.pid, b"pyspark")
        if self._workers is not None:
            workers += self._workers.processes(b"pyspark.daemon")
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)
        return bool(workers)

    def committed(self) -> int:
        """The number of the last micro-batch that Spark has noted as committed; -1 if there is none."""
        noted = self._checkpoint.glob("commits/*")
        return max((int(path.name) for path in noted if path.name.isdigit()), default=-1)

    def wait_for_commit(self, limit_s: float) -> None:
        """Wait until another micro-batch is committed, or the driver ends, or the time is over."""
        assert self.process is not None
        before, deadline = self.committed(), time.monotonic() + limit_s
        while self.committed() == before and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)

    def tail(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-20_000:]


def _descendants(session: int, word: bytes) -> list[int]:
    """Processes of a session whose command line holds a word, but for its leader."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != session:
            try:
                state = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                # Field 6 of `stat` is the session; the first two are before the bracket.
                if int(state[3]) == session and word in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except (OSError, IndexError):
                continue
    return found


def run_on_cluster(kills: int, seed: int, minutes: float, folder: Path, say: Callable[[str], None]) -> Counts:
    """The same as `run_kills`, on a Spark cluster that is started for it."""

    async def run() -> Counts:
        async with open_spark_cluster(workers=2) as spark:
            with Workers(spark) as workers:
                schedule = Schedule(kills, time.monotonic() + 60 * minutes, workers)
                return await trio.to_thread.run_sync(run_kills, schedule, seed, folder, say)

    return trio.run(run)


def run_kills(schedule: Schedule, seed: int, folder: Path, say: Callable[[str], None]) -> Counts:
    """Run until so many processes have been killed and all is copied, and count.

    Args:
        schedule: how many, and until when.
        seed: chooses whom and when.
        folder: for checkpoint and log.
        say: gets lines for people.
    """
    chance = random.Random(seed)
    counts = Counts()
    with open_cluster(slaves=0) as cluster:
        sent = 0
        stream = Stream(cluster.name_servers, folder, schedule.workers)
        try:
            while True:
                left = schedule.left(counts)
                # What is copied without a kill ends the stream, which starts again with more.
                more = PER_TRIGGER * 6 if left else PER_TRIGGER
                trio.run(fill, cluster.name_servers, sent, more)
                sent += more
                _run_stream(stream, cluster, chance, counts, schedule, say)
                if not left:
                    break
        finally:
            stream.kill()
        found = trio.run(delivered, cluster.name_servers)
    counts.rows = sent
    counts.lost = sum(1 for number in range(sent) if not found[b"%d" % number])
    counts.repeated = found.total() - len(found)
    return counts


def _run_stream(
    stream: Stream,
    cluster: OurCluster,
    chance: random.Random,
    counts: Counts,
    schedule: Schedule,
    say: Callable[[str], None],
) -> None:
    """Start the stream, again after each kill, until it ends by itself."""
    deadline = time.monotonic() + RUN_LIMIT_S
    failures = 0
    while True:
        stream.start()
        counts.starts += 1
        killed_before = counts.kills.total()
        assert stream.process is not None
        while stream.process.poll() is None and schedule.left(counts):
            if chance.random() < 0.5:
                stream.wait_for_commit(PROGRESS_LIMIT_S)
            time.sleep(chance.uniform(0.2, 4.0))
            victim = chance.choice(schedule.victims)
            if stream.process.poll() is not None:
                break
            if victim == "worker" and not stream.kill_worker(chance):
                continue
            if schedule.workers is not None and victim == "executor" and not schedule.workers.kill_executor(chance):
                continue
            if schedule.workers is not None and victim == "Spark worker":
                number = chance.randrange(len(schedule.workers))
                schedule.workers.kill(number)
                time.sleep(chance.uniform(0.0, 2.0))
                schedule.workers.start(number)
            if victim == "master":
                cluster.kill_node("broker-a")
                cluster.wait_ended("broker-a")
                time.sleep(chance.uniform(0.0, 2.0))
                cluster.start_node("broker-a")
            counts.kills[victim] += 1
            say(f"killed {victim}, number {counts.kills.total()}")
            if victim == "driver":
                stream.kill()
                break
        try:
            status = stream.process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the stream does not end: {stream.tail()}") from None
        if status == 0:
            return
        # A stream whose processes were killed may fail; three times in a row without a kill it may not.
        failures = 0 if counts.kills.total() > killed_before else failures + 1
        if failures >= 3:
            raise RuntimeError(f"the stream fails again and again: {stream.tail()}")
        deadline = time.monotonic() + RUN_LIMIT_S


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cluster", action="store_true", help="on a standalone Spark cluster")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end the killing after this time")
    parser.add_argument("--master", help=argparse.SUPPRESS)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        drive(given.drive, given.checkpoint, given.master)
        return 0
    with tempfile.TemporaryDirectory(prefix="triomq-kills-", ignore_cleanup_errors=True) as folder:
        if given.cluster:
            counts = run_on_cluster(given.kills, given.seed, given.minutes, Path(folder), _say)
        else:
            schedule = Schedule(given.kills, time.monotonic() + 60 * given.minutes)
            counts = run_kills(schedule, given.seed, Path(folder), _say)
    print(
        f"{counts.kills.total()} kills {dict(counts.kills)}, {counts.starts} starts of the driver, {counts.rows} rows: ",
        end="",
    )
    print(f"{counts.lost} lost, {counts.repeated} repeated")
    return 1 if counts.lost or counts.repeated else 0


if __name__ == "__main__":
    sys.exit(main())
