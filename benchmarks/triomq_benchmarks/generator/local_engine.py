"""The engine `local`: one load generator, in the driver's own loop."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import attrs
import trio

from triomq_benchmarks.figures.ledger import LedgerError
from triomq_benchmarks.figures.run_result import WorkerResult
from triomq_benchmarks.generator.engine import STOPPED, Ended, OnRow, RowSums, RunPlan
from triomq_benchmarks.generator.worker import run_share, share_ledger


@attrs.frozen
class LocalEngine:
    """One load generator, in the driver's own loop."""

    label: str = "local"
    workers: int = 1

    async def run(self, plan: RunPlan, on_row: OnRow, started: Callable[[float], None], ended: Ended) -> None:
        """Run the whole plan as one share; see `Engine.run`."""
        share, sums = plan.share(0, 1), RowSums(on_row)
        result = WorkerResult(worker=0, host=socket.gethostname(), pid=os.getpid(), failure=STOPPED)

        async def agree(earliest: float) -> float:
            await trio.lowlevel.checkpoint()
            started(earliest)
            return earliest

        try:
            with share_ledger(share) as ledger:
                result = await run_share(share, sums.add, ledger, agree_start=agree)
        except LedgerError as error:
            # As in the other engines: what was measured is kept, and the result says why it is partial.
            result = attrs.evolve(result, failure=str(error))
        finally:
            ended(sums.result(result) if result.failure else result)
