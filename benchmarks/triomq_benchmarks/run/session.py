"""The session of `triomq bench run`: the targets one after the other, each with one run or a search for the highest rate."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import attrs
import trio

from triomq_benchmarks.clusters.access import Access
from triomq_benchmarks.figures.run_files import finite, write_run
from triomq_benchmarks.figures.run_result import RunResult, RunStatus
from triomq_benchmarks.figures.whole_files import whole_file
from triomq_benchmarks.generator.engine import Engine
from triomq_benchmarks.report.progress import ProgressLine, Say
from triomq_benchmarks.run.decisions.max_rate import LATE_ALLOWED_MAX, MaxRate, Search, examine
from triomq_benchmarks.run.decisions.pass_fail import Figures
from triomq_benchmarks.run.engine_choice import EngineChoice, open_engine
from triomq_benchmarks.run.interrupts import on_interrupt
from triomq_benchmarks.run.one_run import LedgerAudit, run_workload, versions
from triomq_benchmarks.run.targets import STARTED, RunTarget, TargetError, open_run_target
from triomq_benchmarks.workload.workload import Workload

MAX_RATE = "max_rate.json"


@attrs.frozen(kw_only=True)
class Options:
    """The options of the command line.

    Attributes:
        workload: the workload to run.
        payload: its payload file's content.
        targets: the targets, one after the other.
        access: the account and TLS for those that existed before.
        engine: runs the load generators.
        folder: folder for results.
        seed: seed of all random choices.
        audit: whether to write a ledger and audit it.
        find_max_rate: whether to search for the highest rate instead of running once.
        p99_limit_ms: the limit for that search.
    """

    workload: Workload
    payload: bytes
    targets: tuple[str, ...]
    access: Access
    engine: EngineChoice
    folder: Path
    seed: int
    audit: bool
    find_max_rate: bool
    p99_limit_ms: float


class Session:
    """Runs the targets one after the other."""

    def __init__(self, options: Options, show: Say, news: Say) -> None:
        self._options = options
        self._show = show
        self._news = news
        self._stop: trio.CancelScope | None = None
        self._audit: LedgerAudit | None = None
        self.interrupted = False
        self.results: list[RunResult] = []
        self.folders: list[Path] = []
        self.searches: dict[str, MaxRate] = {}
        self.failures: list[str] = []
        """Reasons why a target was not measured, or why results are not in their folder."""

    @property
    def passed(self) -> bool:
        """Whether everything requested was done and passed."""
        if self.failures:
            return False
        if self.searches:
            return all(search.rate_per_s for search in self.searches.values())
        return bool(self.results) and all(result.decision.passed for result in self.results)

    async def run(self) -> None:
        """Run all targets."""
        with trio.CancelScope() as everything:
            action = functools.partial(self._on_interrupt, everything)
            async with on_interrupt(action), AsyncExitStack() as stack:
                engine, self._audit = await stack.enter_async_context(open_engine(self._options.engine, self._news))
                folders = run_folders(self._options.folder, self._options.targets)
                for choice, folder in zip(self._options.targets, folders, strict=True):
                    if not self.interrupted:
                        await self._measure(choice, engine, folder)

    async def _measure(self, choice: str, engine: Engine, folder: Path) -> None:
        options = self._options
        self._news(f"starting {choice}" if choice in STARTED else f"looking for {choice}")
        async with open_run_target(choice, options.workload, options.access) as target:
            if options.find_max_rate:
                await self._search(choice, target, engine)
                return
            result = await self._once(options.workload, target, engine, folder, audit=options.audit)
            self.results.append(result)
            self.folders.append(self._write(result, choice, folder))

    def _write(self, result: RunResult, choice: str, folder: Path) -> Path:
        """Write a result; returns where it is, a temporary folder if it cannot be written where it should be."""
        try:
            write_run(result, folder)
        except OSError as error:
            reason = f"the results of {choice} are not all in {folder}: {error}"
            with suppress(OSError):
                place = Path(tempfile.mkdtemp(prefix="triomq-bench-"))
                try:
                    write_run(result, place)
                except OSError:
                    shutil.rmtree(place, ignore_errors=True)
                else:
                    folder, reason = place, f"{reason}; they are in {place}, without the ledger"
            self.failures.append(reason)
        return folder

    async def _once(
        self, workload: Workload, target: RunTarget, engine: Engine, folder: Path, *, audit: bool
    ) -> RunResult:
        options = self._options
        line = ProgressLine(self._show, workload.duration_s, workers=engine.workers)
        self._news(f"{workload.name} on {target.label}, engine {engine.label}")
        self._stop = trio.CancelScope()
        try:
            return await run_workload(
                workload,
                target,
                engine,
                seed=options.seed,
                payload=options.payload,
                folder=folder,
                audit=self._audit if audit else None,
                on_row=line.add,
                stop=self._stop,
            )
        finally:
            self._stop = None

    async def _search(self, choice: str, target: RunTarget, engine: Engine) -> None:
        """Look for the highest rate; the trials are kept also if one ends with an error."""
        search = Search(self._options.workload.rate_per_s)
        failed = True
        try:
            await self._try_rates(search, target, engine)
            failed = False
        finally:
            if search.result.trials or not failed:
                self.searches[choice] = search.result
                self._keep_searches(partial=failed or self.interrupted)

    async def _try_rates(self, search: Search, target: RunTarget, engine: Engine) -> None:
        while (rate := search.next_rate) is not None and not self.interrupted:
            late_allowed = min(self._options.workload.late_allowed, LATE_ALLOWED_MAX)
            workload = attrs.evolve(self._options.workload, rate_per_s=rate, thresholds=(), late_allowed=late_allowed)
            self._news(f"trying {rate:,.0f}/s")
            result = await self._once(workload, target, engine, self._options.folder, audit=False)
            if result.partial and self.interrupted:
                break
            if result.decision.status is RunStatus.INCOMPLETE and not result.partial:
                # A fault could not be done: that says nothing about this rate, nor would it be different at the next.
                raise TargetError(result.decision.explanation)
            figures = Figures(workload, result.rows, result.workers)
            trial = examine(workload, figures, result.rows, result.decision.status, self._options.p99_limit_ms)
            self._news(f"  {trial.answer}: {trial.reason}")
            search.add(trial)

    def _keep_searches(self, *, partial: bool) -> None:
        found = finite({target: attrs.asdict(each) for target, each in self.searches.items()})
        about = {"partial": partial, "p99_limit_ms": self._options.p99_limit_ms, "searches": found}
        about |= {"workload": self._options.workload.settings(), "seed": self._options.seed, "versions": versions()}
        folder = self._options.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with whole_file(folder / MAX_RATE) as unfinished:
                unfinished.write_text(json.dumps(about, indent=1) + "\n")
        except OSError as error:
            self.failures.append(f"{MAX_RATE} cannot be written to {folder}: {error}")

    def _on_interrupt(self, everything: trio.CancelScope) -> None:
        """The first interrupt ends the current run in order; the second, or one between runs, ends everything."""
        stop = self._stop
        (everything if stop is None or self.interrupted else stop).cancel()
        self.interrupted = True


def run_folders(folder: Path, targets: Sequence[str]) -> list[Path]:
    """The folder for each target's results: several targets have separate folders."""
    if len(targets) == 1:
        return [folder]
    return [folder / choice.replace(":", "-").replace(";", "_") for choice in targets]
