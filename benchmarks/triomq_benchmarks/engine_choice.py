"""Which engine a name on the command line stands for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs

from .engines import Engine, EngineError
from .local_engines import LocalEngine, ProcessEngine

ENGINES = ("local", "processes", "spark")
PROCESSES = 2


@attrs.frozen(kw_only=True)
class EngineChoice:
    """What the command line asks for.

    Attributes:
        name: `local`, `processes` or `spark`.
        workers: how many generators; None: the engine's own choice.
        most: how many find something to do; the engine's own choice is no more.
        master: Spark's.
        spark_settings: Spark's too.
        py_files: archives for the Python path of Spark's workers.
    """

    name: str
    workers: int | None = None
    most: int | None = None
    master: str = "local[2]"
    spark_settings: Mapping[str, str] = attrs.field(factory=dict)
    py_files: Sequence[str] = ()


@asynccontextmanager
async def open_engine(choice: EngineChoice, say: Callable[[str], None]) -> AsyncIterator[Engine]:
    """The engine for as long as the block lasts.

    Args:
        choice: which.
        say: gets lines for people.

    Raises:
        EngineError: it cannot be had; the message says why and what to do.
    """
    if choice.name == "spark":
        # Only Spark needs Spark.
        from .spark_engine import open_spark_engine

        async with open_spark_engine(
            choice.master,
            workers=choice.workers,
            most=choice.most,
            settings=choice.spark_settings,
            py_files=choice.py_files,
            say=say,
        ) as engine:
            yield engine
    elif choice.name == "processes":
        yield ProcessEngine(choice.workers or min(PROCESSES, choice.most or PROCESSES))
    elif choice.workers in {None, 1}:
        yield LocalEngine()
    else:
        raise EngineError("the engine local is one load generator; for several take --engine processes")
