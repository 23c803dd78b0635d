"""``triomq bench run`` and ``triomq bench workloads``."""

from __future__ import annotations

import functools
import importlib.util
import json
import secrets
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import click
import trio
from rich.console import Console
from rich.table import Table

import triomq

from .bodies import read_payload
from .builds import ToolUnavailableError
from .engine_choice import ENGINES, EngineChoice, open_engine
from .engines import Engine, EngineError, most_workers
from .interrupts import interrupts_heard
from .max_rate import LATE_ALLOWED_MAX, MaxRate, Search, examine
from .progress import ProgressLine, Say, progress_on
from .run_driver import run_workload, versions
from .run_ledger import LedgerError
from .run_result import RunResult
from .run_results import write_run
from .run_summary import as_object, print_summary
from .run_targets import JAVA, OURS, RunTarget, TargetError, check_choice, open_run_target
from .verdict import Figures
from .workload import Loop, Workload, WorkloadError
from .workload_files import load_workload, ready_workloads

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
AUDIT, MAX_RATE = "audit.json", "max_rate.json"


@attrs.frozen(kw_only=True)
class Options:
    """What the command line asks for.

    Attributes:
        workload: what to run.
        payload: its payload file's content.
        targets: on what, one after the other.
        engine: by whom.
        folder: where results go.
        seed: of everything drawn by chance.
        audit: whether to write a ledger and audit it.
        find_max_rate: whether to look for the highest rate instead of running once.
        p99_limit_ms: for that.
    """

    workload: Workload
    payload: bytes
    targets: tuple[str, ...]
    engine: EngineChoice
    folder: Path
    seed: int
    audit: bool
    find_max_rate: bool
    p99_limit_ms: float


def _settings(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """`KEY=VALUE` each."""
    wrong = [each for each in given if "=" not in each]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is not KEY=VALUE")
    return {key: value for key, _, value in (each.partition("=") for each in given)}


def _targets(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    try:
        for choice in given:
            check_choice(choice)
    except TargetError as error:
        raise click.BadParameter(str(error)) from None
    return given


@click.command("workloads")
@click.option("--json", "as_json", is_flag=True, help="For machines: all settings, defaults included.")
def workloads(as_json: bool) -> None:
    """List the ready workloads."""
    ready = ready_workloads()
    if as_json:
        click.echo(json.dumps({name: each.settings() for name, each in ready.items()}))
        return
    table = Table("name", "load", "what it shows", title_justify="left")
    for name, each in ready.items():
        load = "closed loop" if each.loop is Loop.CLOSED else f"{each.intended_rate_per_s:,.0f}/s"
        table.add_row(name, f"{load}, {each.warm_up_s:g} + {each.duration_s:g} s", each.description)
    Console().print(table)


@click.command("run")
@click.argument("workload_name", metavar="WORKLOAD")
@click.option(
    "--target",
    "targets",
    multiple=True,
    callback=_targets,
    metavar=f"{OURS}|{JAVA}|HOST:PORT",
    help="What is measured; several run one after the other. Default: ours.",
)
@click.option(
    "--engine", type=click.Choice(ENGINES), default="local", show_default=True, help="Where load generators run."
)
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    help="Load generators; default: 1 local, 2 processes, Spark's slots; no more than find something to do.",
)
@click.option(
    "--master", default="local[2]", show_default=True, help="Of the engine spark: local[N] or spark://HOST:PORT."
)
@click.option(
    "--spark-conf",
    "spark_settings",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_settings,
    help="A setting of Spark, for example spark.executor.memory=512m; repeatable.",
)
@click.option("--py-files", multiple=True, metavar="PATH", help="An archive for the Python path of Spark's workers.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="A key of the workload, over what its file says; repeatable.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Where results go. Default: triomq-bench/NAME-TIME."
)
@click.option("--seed", type=int, help="Of arrivals, tags, keys and payloads; default: drawn, and kept in the result.")
@click.option(
    "--audit/--no-audit",
    default=True,
    show_default=True,
    help="Write down each message, and look for lost, doubled, reordered, changed ones.",
)
@click.option(
    "--find-max-rate", is_flag=True, help="Look for the highest rate that is sustained, instead of running once."
)
@click.option(
    "--max-p99",
    type=click.FloatRange(0.001),
    default=100.0,
    show_default=True,
    metavar="MS",
    help="With --find-max-rate: the highest p99 that counts as sustained.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines: one JSON object, no progress.")
def run(
    workload_name: str,
    targets: tuple[str, ...],
    engine: str,
    workers: int | None,
    master: str,
    spark_settings: dict[str, str],
    py_files: tuple[str, ...],
    changes: tuple[str, ...],
    out: Path | None,
    seed: int | None,
    audit: bool,
    find_max_rate: bool,
    max_p99: float,
    as_json: bool,
) -> None:  # fmt: skip
    """Run WORKLOAD, a ready one (`triomq bench workloads`) or a file (.toml, .yaml), and measure.

    Exit code 0: measured, and all thresholds kept. 1: a threshold was missed, sends failed, the audit found something, the
    load generator was late, a worker died, or it could not be done at all. 2: wrong usage, a workload with mistakes.
    130: interrupted; what was measured until then is written, and marked as partial.
    """
    try:
        workload, folder = load_workload(workload_name, changes)
        payload = read_payload(workload, folder)
    except WorkloadError as error:
        _fail(str(error), EXIT_USAGE)
    if workload.loop is Loop.CLOSED and find_max_rate:
        _fail('--find-max-rate needs an open loop (loop = "open"): a closed one has no rate to look for', EXIT_USAGE)
    if importlib.util.find_spec("pyarrow") is None:
        _fail("results are written as Parquet, and pyarrow is not installed: pip install 'triomq[bench]'", EXIT_FAILED)
    options = Options(
        workload=workload,
        payload=payload,
        targets=targets or (OURS,),
        engine=EngineChoice(
            name=engine,
            workers=workers,
            most=most_workers(workload),
            master=master,
            spark_settings=spark_settings,
            py_files=py_files,
        ),
        folder=out or Path("triomq-bench") / f"{workload.name}-{time.strftime('%Y%m%d-%H%M%S')}",
        seed=secrets.randbits(32) if seed is None else seed,
        audit=audit,
        find_max_rate=find_max_rate,
        p99_limit_ms=max_p99,
    )
    with progress_on(sys.stderr, shown=not as_json) as (show, news):
        code, found = _until_done(_Session(options, show, news))
    _write_report(found, options.folder)
    _print(found, as_json)
    sys.exit(code)


def _fail(text: str, code: int) -> None:
    click.echo(f"error: {text}", err=True)
    sys.exit(code)


def _until_done(session: _Session) -> tuple[int, _Session]:
    try:
        trio.run(session.run)
    except (WorkloadError, EngineError) as error:
        _fail(str(error), EXIT_USAGE if isinstance(error, WorkloadError) else EXIT_FAILED)
    except (TargetError, ToolUnavailableError, LedgerError, triomq.MQError) as error:
        _fail(str(error), EXIT_FAILED)
    if session.interrupted:
        return EXIT_INTERRUPTED, session
    return (0 if session.passed else EXIT_FAILED), session


def _write_report(session: _Session, folder: Path) -> None:
    """The page, beside the files it is made of."""
    if not session.results:
        return
    from .run_html import REPORT, ReportUnavailableError, write_report

    try:
        write_report(session.results, folder / REPORT)
    except ReportUnavailableError as error:
        click.echo(str(error), err=True)


def _print(session: _Session, as_json: bool) -> None:
    if as_json:
        found = as_object(session.results, session.folders)
        if session.searches:
            found["max_rate"] = {target: attrs.asdict(each) for target, each in session.searches.items()}
        click.echo(json.dumps(found))
        return
    console = Console()
    for target, search in session.searches.items():
        _print_search(target, search, console)
    if session.results and not session.searches:
        print_summary(session.results, session.folders, console)
    if session.interrupted:
        click.echo("interrupted: what was measured until then is written as partial; no process is left", err=True)


def _print_search(target: str, search: MaxRate, console: Console) -> None:
    table = Table(
        "rate", "acknowledged", "p99", "answer", title=f"highest sustainable rate, {target}", title_justify="left"
    )
    for trial in search.trials:
        answer = f"{trial.answer}: {trial.reason}"
        table.add_row(f"{trial.rate_per_s:,.0f}/s", f"{trial.acked_per_s:,.0f}/s", f"{trial.p99_ms:,.2f} ms", answer)
    console.print(table)
    console.print(f"{target}: {search.rate_per_s:,.0f} messages per second are sustained")
    if search.limited_by == "generator":
        console.print("The search ended at the generator's limit, not at the broker's: add workers or a machine")


class _Session:
    """The targets, one after the other."""

    def __init__(self, options: Options, show: Say, news: Say) -> None:
        self._options = options
        self._show = show
        self._news = news
        self._stop: trio.CancelScope | None = None
        self.interrupted = False
        self.results: list[RunResult] = []
        self.folders: list[Path] = []
        self.searches: dict[str, MaxRate] = {}

    @property
    def passed(self) -> bool:
        """Whether all that was asked for was done and passed."""
        if self.searches:
            return all(search.rate_per_s for search in self.searches.values())
        return bool(self.results) and all(result.verdict.passed for result in self.results)

    async def run(self) -> None:
        """Do it."""
        with trio.CancelScope() as everything:
            heard = functools.partial(self._hear_interrupt, everything)
            async with interrupts_heard(heard), AsyncExitStack() as stack:
                engine = await stack.enter_async_context(open_engine(self._options.engine, self._news))
                for choice in self._options.targets:
                    if not self.interrupted:
                        await self._measure(choice, engine)

    async def _measure(self, choice: str, engine: Engine) -> None:
        options = self._options
        self._news(f"starting {choice}" if choice in {OURS, JAVA} else f"looking for {choice}")
        async with open_run_target(choice, options.workload) as target:
            if options.find_max_rate:
                self.searches[choice] = await self._search(target, engine)
                self._keep_searches()
                return
            folder = options.folder if len(options.targets) == 1 else options.folder / _folder_name(choice)
            result = await self._once(options.workload, target, engine, folder, audit=options.audit)
            for text in engine.clock_lines() if hasattr(engine, "clock_lines") else ():
                self._news(text)
            self.results.append(result)
            self.folders.append(folder)
            write_run(result, folder)
            if result.audit is not None:
                (folder / AUDIT).write_text(json.dumps(result.audit, indent=2) + "\n")

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
                audit=audit,
                hear=line.hear,
                stop=self._stop,
            )
        finally:
            self._stop = None

    async def _search(self, target: RunTarget, engine: Engine) -> MaxRate:
        search = Search(self._options.workload.rate_per_s)
        while (rate := search.next_rate) is not None and not self.interrupted:
            late_allowed = min(self._options.workload.late_allowed, LATE_ALLOWED_MAX)
            workload = attrs.evolve(self._options.workload, rate_per_s=rate, thresholds=(), late_allowed=late_allowed)
            self._news(f"trying {rate:,.0f}/s")
            result = await self._once(workload, target, engine, self._options.folder, audit=False)
            if result.partial and self.interrupted:
                break
            figures = Figures(workload, result.rows, result.workers)
            trial = examine(workload, figures, result.rows, result.verdict.outcome, self._options.p99_limit_ms)
            self._news(f"  {trial.answer}: {trial.reason}")
            search.hear(trial)
        return search.result

    def _keep_searches(self) -> None:
        found = {target: attrs.asdict(each) for target, each in self.searches.items()}
        about = {"partial": self.interrupted, "p99_limit_ms": self._options.p99_limit_ms, "searches": found}
        about |= {"workload": self._options.workload.settings(), "seed": self._options.seed, "versions": versions()}
        self._options.folder.mkdir(parents=True, exist_ok=True)
        (self._options.folder / MAX_RATE).write_text(json.dumps(about, indent=1) + "\n")

    def _hear_interrupt(self, everything: trio.CancelScope) -> None:
        """The first ends the run that is under way, in order; the second, or one between runs, ends everything."""
        stop = self._stop
        (everything if stop is None or self.interrupted else stop).cancel()
        self.interrupted = True


def _folder_name(choice: str) -> str:
    return choice.replace(":", "-").replace(";", "_")
