"""The engine for a name on the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs

from triomq_benchmarks.generator.engine import Engine, EngineError, check_workers
from triomq_benchmarks.generator.local_engine import LocalEngine
from triomq_benchmarks.generator.process_engine import ProcessEngine
from triomq_benchmarks.run.one_run import LedgerAudit, audit_here
from triomq_benchmarks.workload.workload import Workload

ENGINES = ("local", "processes", "spark")
PROCESSES = 2


@attrs.frozen(kw_only=True)
class EngineChoice:
    """The engine options of the command line.

    Attributes:
        name: `local`, `processes` or `spark`.
        workers: number of generators; None: the engine's own choice.
        most: number of generators that have work; an upper bound for the engine's own choice.
        master: Spark's master.
        spark_settings: Spark's settings.
        py_files: archives for the Python path of Spark's workers.
        keep_classes: whether Spark's JVM writes its classes for later runs.
    """

    name: str
    workers: int | None = None
    most: int | None = None
    master: str = "local[2]"
    spark_settings: Mapping[str, str] = attrs.field(factory=dict)
    py_files: Sequence[str] = ()
    keep_classes: bool = False


def check_engine(choice: EngineChoice, workload: Workload) -> None:
    """Check a choice as far as possible before anything is started.

    Raises:
        EngineError: it cannot run this many workers, or they would have nothing to do, or Spark has no such master.
    """
    workers = choice.workers
    if choice.name == "local" and workers not in {None, 1}:
        raise EngineError("the engine local is one load generator; for several take --engine processes")
    if choice.name == "spark":
        from triomq_benchmarks.spark.environment import check_slots

        try:
            check_slots(choice.master, workers)
        except ValueError as error:
            raise EngineError(str(error)) from error
    if workers is not None:
        check_workers(workload, workers)


@asynccontextmanager
async def open_engine(choice: EngineChoice, say: Callable[[str], None]) -> AsyncIterator[tuple[Engine, LedgerAudit]]:
    """Open the engine, and the function that audits its ledgers, while the block lasts.

    Args:
        choice: the engine; :func:`check_engine` has checked it.
        say: takes lines for people.

    Raises:
        EngineError: it is not available; the message names the cause and the remedy.
    """
    if choice.name == "spark":
        # Spark is needed only by this engine.
        from triomq_benchmarks.spark.engine import open_spark_engine

        async with open_spark_engine(
            choice.master,
            workers=choice.workers,
            most=choice.most,
            settings=choice.spark_settings,
            py_files=choice.py_files,
            keep_classes=choice.keep_classes,
            say=say,
        ) as engine:
            yield engine, engine.audit
    elif choice.name == "processes":
        yield ProcessEngine(choice.workers or min(PROCESSES, choice.most or PROCESSES)), audit_here
    else:
        yield LocalEngine(), audit_here
