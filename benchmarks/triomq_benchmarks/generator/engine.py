"""Engines run load generators.  All run the same `run_share`, and report rows to the driver while it runs.

`local_engine.py` runs one in the driver's own loop, `process_engine.py` several as child processes of this machine,
`spark/engine.py` as tasks of Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import attrs

from triomq_benchmarks.clusters.access import PLAIN, Access
from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.figures.run_result import WorkerResult
from triomq_benchmarks.workload.workload import Workload

E = TypeVar("E", bound=BaseException)

OnRow = Callable[[IntervalRow], None]
"""Takes an increment; called in the driver's own loop."""

Ended = Callable[[WorkerResult], None]
"""Takes a worker's result; called in the driver's own loop."""

STOPPED = "it was stopped before its end"
"""The failure of a worker whose run was interrupted."""


def plain_errors(group: BaseExceptionGroup[E]) -> list[E]:
    """The errors of a group of groups, which nurseries make even of a single error."""
    found: list[E] = []
    for error in group.exceptions:
        found.extend(plain_errors(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found


def most_workers(workload: Workload) -> int:
    """Maximum number of useful load generators: each needs a producer or a consumer of its own."""
    return max(workload.producer_count, workload.consumers)


class RowSums:
    """Adds up a worker's rows, for a result that a worker cannot report itself when it dies or is stopped."""

    def __init__(self, on_row: OnRow) -> None:
        self._on_row = on_row
        self._sums = dict.fromkeys(("sent", "acked", "errors", "consumed"), 0)

    def add(self, row: IntervalRow) -> None:
        """Add a row and pass it on."""
        for name in self._sums:
            self._sums[name] += getattr(row, name)
        self._on_row(row)

    def result(self, result: WorkerResult) -> WorkerResult:
        """A result with the sums of all rows so far."""
        sums: dict[str, Any] = {**self._sums}
        return attrs.evolve(result, **sums)


class EngineError(Exception):
    """The load generators could not be started; the message names the cause and the remedy."""


@attrs.frozen(kw_only=True)
class RunPlan:
    """The common part of a run's load generators; plain data that can be pickled.

    Attributes:
        workload: the whole workload.
        name_servers: `host:port;host:port`.
        access: the account and TLS for them and their brokers.
        topics: names of the topics, which already exist.
        groups: consumer groups; each consumes everything.
        run_number: 32 bits in every message of this run, which distinguish it from messages of other runs.
        seed: seed of the whole run; the generator adds its index.
        payload: the payload file's content; empty if there is none.
        ledger: folder below which acknowledged and consumed messages are written; None if they are not.
    """

    workload: Workload
    name_servers: str
    access: Access = PLAIN
    topics: tuple[str, ...]
    groups: tuple[str, ...]
    run_number: int
    seed: int
    payload: bytes = b""
    ledger: Path | None = None

    def share(self, index: int, count: int) -> Share:
        """One worker's part."""
        plan = {each.name: getattr(self, each.name) for each in attrs.fields(RunPlan)}
        return Share(index=index, count=count, **plan)


@attrs.frozen(kw_only=True)
class Share(RunPlan):
    """One load generator's part of a run.

    Attributes:
        index: number of this worker, from 0.
        count: number of workers.
    """

    index: int
    count: int


def check_workers(workload: Workload, workers: int) -> None:
    """Raise EngineError if any of this many workers would have nothing to do."""
    most = most_workers(workload)
    if workers > most:
        raise EngineError(
            f"{workers} workers for {workload.producer_count} producers and {workload.consumers} consumers: some would have "
            f"nothing to do. Take at most {most}, or raise producers in the workload (--set producers={workers})"
        )


class Engine(Protocol):
    """Runs the shares of a plan."""

    @property
    def label(self) -> str:
        """The label in results, for example `processes 2`."""

    @property
    def workers(self) -> int:
        """Number of load generators that it runs."""

    async def run(self, plan: RunPlan, on_row: OnRow, started: Callable[[float], None], ended: Ended) -> None:
        """Run all shares to their end.

        Args:
            plan: the plan to run.
            on_row: takes every increment, soon after its second is over.
            started: called once, when the common start is agreed: the wall clock, in seconds since the epoch, at which
                the measured part begins (second 0 of the rows).
            ended: takes one result per worker before this returns, however the run ends once it has started; a worker
                that died or was stopped is included, with its `failure`.

        Raises:
            EngineError: the generators could not be started.

        Cancelling ends all generators; what they have reported is kept.
        """
