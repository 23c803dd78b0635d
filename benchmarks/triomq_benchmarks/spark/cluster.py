"""A standalone Spark cluster on the loopback interface, from the package pyspark alone.

For trying what will run on a cluster elsewhere: a Master and some Workers, each a process of its own. When the block
that opened it ends, for whatever reason, they all end, executors included, and their folder is removed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from triomq_benchmarks.clusters.processes import Child, reserved_port
from triomq_benchmarks.clusters.scratch import scratch_folder
from triomq_benchmarks.spark.environment import LOOPBACK, SHORT_LIVED, check_spark, find_java, ready_class_archive

READY_LIMIT_S: Final = 180.0
ANSWER_LIMIT_S: Final = 5.0
LEFT_OVER_LIMIT_S: Final = 10.0
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
# One variable marks all processes of a cluster, including executors, which inherit it from their Worker.
_MARK: Final = "TRIOMQ_SPARK_CLUSTER"


@attrs.frozen
class SparkCluster:
    """A running cluster.

    Attributes:
        master: the address with which sessions are opened.
        web: the Master's page.
        workers: process ids of its Workers.
        slots: number of tasks that run at once.
        directory: the directory for its processes' files.
        mark: the value of the environment variable of all its processes.
    """

    master: str
    web: str
    workers: tuple[int, ...]
    slots: int
    directory: Path
    mark: str = attrs.field(repr=False)

    def processes(self) -> list[int]:
        """The ids of all its live processes, executors included."""
        return _marked(self.mark)


@asynccontextmanager
async def open_spark_cluster(*, workers: int = 2, cores: int = 1, memory: str = "1g") -> AsyncIterator[SparkCluster]:
    """Run a Master and Workers while the block lasts.

    Args:
        workers: number of Workers.
        cores: number of tasks that each runs at once.
        memory: memory that each may give to executors, in Spark's notation.

    Raises:
        ToolUnavailableError: pyspark or Java is missing.
        ChildError: a process died or was not ready in time; the message quotes its output.
    """
    check_spark()
    with scratch_folder("triomq-spark-cluster-") as folder:
        starting = _Starting(Path(folder), workers, cores, memory)
        try:
            starting.start_master()
            await starting.wait(0)
            starting.start_workers()
            await starting.wait(workers)
            yield starting.cluster()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(starting.stop)


class _Starting:
    """The processes, from their start to their end."""

    def __init__(self, folder: Path, workers: int, cores: int, memory: str) -> None:
        self._folder = folder
        self._count = workers
        self._options = ("--cores", str(cores), "--memory", memory)
        self._slots = workers * cores
        self._started: list[Child] = []
        self._mark = folder.name
        self._command, self._environment = _spark_class(folder, self._mark)
        self._children = ExitStack()
        self._port = self._children.enter_context(reserved_port())
        self._web_port = self._children.enter_context(reserved_port())

    @property
    def _master(self) -> str:
        return f"spark://{LOOPBACK}:{self._port}"

    def start_master(self) -> None:
        self._start("Spark master", _MASTER, "--port", str(self._port), "--webui-port", str(self._web_port))

    def start_workers(self) -> None:
        for number in range(self._count):
            work = str(self._folder / f"worker-{number}")
            self._start(
                f"Spark worker {number}", _WORKER, *self._options, "--webui-port", "0", "--work-dir", work, self._master
            )

    def _start(self, name: str, main: str, *arguments: str) -> None:
        argv = [*self._command, main, "--host", LOOPBACK, *arguments]
        log = self._folder / f"{name.replace(' ', '-')}.log"
        self._started.append(self._children.enter_context(Child(name, argv, log, env=self._environment)))

    async def wait(self, workers: int) -> None:
        """Wait until the Master answers and lists that many Workers. Raises ChildError."""
        with trio.move_on_after(READY_LIMIT_S):
            while True:
                for child in self._started:
                    if not child.alive:
                        raise child.failure("ended before it was ready")
                state = await trio.to_thread.run_sync(self._state, abandon_on_cancel=True)
                if state is not None and state["aliveworkers"] >= workers:
                    return
                await trio.sleep(0.1)
        raise self._started[-1].failure(f"was not ready within {READY_LIMIT_S:g} s")

    def _state(self) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self._web_port}/json/", timeout=ANSWER_LIMIT_S) as page:
                state: dict[str, Any] = json.load(page)
        except (OSError, urllib.error.URLError, ValueError):
            return None
        return state

    def cluster(self) -> SparkCluster:
        web = f"http://{LOOPBACK}:{self._web_port}"
        pids = tuple(child.pid for child in self._started[1:])
        return SparkCluster(self._master, web, pids, self._slots, self._folder, self._mark)

    def stop(self) -> None:
        """End the Workers, which end their executors, then the Master; remaining processes are killed."""
        self._children.close()
        deadline = time.monotonic() + LEFT_OVER_LIMIT_S
        while (left := _marked(self._mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _spark_class(folder: Path, mark: str) -> tuple[list[str], dict[str, str]]:
    """The command that starts one of Spark's own servers, and its environment."""
    import pyspark

    home = Path(pyspark.__file__).parent
    archive = ready_class_archive()
    environment = {
        _MARK: mark,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        # Each server is small: the load is in the executors' Python processes.
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED if archive is None else f"{SHORT_LIVED} {archive.option}",
    }
    if "JAVA_HOME" not in os.environ:
        environment["JAVA_HOME"] = str(Path(find_java()).resolve().parents[1])
    return [str(home / "bin" / "spark-class")], environment


def _marked(mark: str) -> list[int]:
    """The processes with a cluster's mark in their environment."""
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
