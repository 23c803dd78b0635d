"""`triomq bench run`: run a workload and measure."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import shlex
import sys
import time
from pathlib import Path
from typing import NoReturn

import attrs
import click
import trio
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table

import triomq
from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.commands.cluster_access import access_to
from triomq_benchmarks.commands.named_path import NamedPath
from triomq_benchmarks.commands.number_range import NumberRange
from triomq_benchmarks.figures.ledger import LedgerError
from triomq_benchmarks.figures.run_files import FolderInUseError, claimed, finite, why_taken
from triomq_benchmarks.figures.run_result import RUN_S_MAX
from triomq_benchmarks.generator.engine import EngineError, most_workers
from triomq_benchmarks.report.progress import progress_on
from triomq_benchmarks.report.terminal import as_object, print_summary
from triomq_benchmarks.run.decisions.max_rate import MaxRate
from triomq_benchmarks.run.engine_choice import ENGINES, EngineChoice, check_engine
from triomq_benchmarks.run.session import Options, Session, run_folders
from triomq_benchmarks.run.targets import OURS, STARTED, TargetError, check_choice
from triomq_benchmarks.workload.bodies import read_payload
from triomq_benchmarks.workload.files import load_workload
from triomq_benchmarks.workload.workload import Arrivals, Loop, WorkloadError
from triomq_command.connection_options import with_connection_options
from triomq_command.running import EXIT_INTERRUPTED

EXIT_FAILED, EXIT_USAGE = 1, 2
_NAME_MOST = 80
"""Bytes; file systems take 255, and a time is added."""
_OF_SPARK = {
    "master": "--master",
    "spark_settings": "--spark-conf",
    "py_files": "--py-files",
    "keep_classes": "--keep-classes",
}


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
    twice = [choice for choice in given if given.count(choice) > 1]
    if twice:
        raise click.BadParameter(
            f"{twice[0]} is given twice; `triomq bench compare --repeat` runs a target again and again"
        )
    return given


@click.command("run")
@click.argument("workload_name", metavar="WORKLOAD")
@click.option(
    "--target",
    "targets",
    multiple=True,
    callback=_targets,
    metavar=f"{'|'.join(STARTED)}|HOST:PORT",
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
    "--keep-classes",
    is_flag=True,
    help="Have Spark's JVM write its classes to the temporary directory at the end, 200 MB, once: later runs start sooner.",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="A key of the workload, which overrides the file's; repeatable.",
)
@click.option("--out", type=NamedPath(), metavar="DIR", help="Where results go. Default: triomq-bench/NAME-TIME.")
@click.option("--seed", type=int, help="Of arrivals, tags, keys and payloads; default: drawn, and kept in the result.")
@click.option(
    "--audit/--no-audit",
    default=True,
    show_default=True,
    help="Record each message, and look for lost, repeated, reordered and altered ones.",
)
@click.option(
    "--find-max-rate", is_flag=True, help="Look for the highest rate that is sustained, instead of running once."
)
@click.option(
    "--max-p99",
    type=NumberRange(0.001),
    default=100.0,
    show_default=True,
    metavar="MS",
    help="With --find-max-rate: the highest p99 that counts as sustained.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines: one JSON object, no progress.")
@with_connection_options
def run(
    workload_name: str,
    targets: tuple[str, ...],
    engine: str,
    workers: int | None,
    master: str,
    spark_settings: dict[str, str],
    py_files: tuple[str, ...],
    keep_classes: bool,
    changes: tuple[str, ...],
    out: Path | None,
    seed: int | None,
    audit: bool,
    find_max_rate: bool,
    max_p99: float,
    as_json: bool,
) -> None:  # fmt: skip
    """Run WORKLOAD, a ready one (`triomq bench workloads`) or a file (.toml, .yaml), and measure.

    Exit code 0: measured, and all thresholds kept. 1: the audit found something, a node ended, sends failed, a fault
    could not be done, a threshold was missed, the load generator was late, a worker died, or it could not be done at
    all. 2: wrong usage, a workload with mistakes. 130: interrupted; what was measured until then is written, and marked
    as partial.
    """
    _check_options_apply(engine, find_max_rate=find_max_rate)
    access = access_to(targets or (OURS,))
    try:
        workload, folder = load_workload(workload_name, changes)
        payload = read_payload(workload, folder)
    except WorkloadError as error:
        _fail(str(error), EXIT_USAGE)
    if workload.warm_up_s + workload.duration_s + workload.drain_s > RUN_S_MAX:
        _fail(f"a run takes at most {RUN_S_MAX:,} s, its warm-up and drain included", EXIT_USAGE)
    if workload.loop is Loop.CLOSED and find_max_rate:
        _fail('--find-max-rate needs an open loop (loop = "open"): a closed one has no rate to look for', EXIT_USAGE)
    if workload.arrivals in {Arrivals.RAMP, Arrivals.STEP} and find_max_rate:
        _fail(
            f"--find-max-rate needs a rate that stays the same, and arrivals are a {workload.arrivals}: --set arrivals=constant, "
            "without rate_to and steps",
            EXIT_USAGE,
        )
    if importlib.util.find_spec("pyarrow") is None:
        _fail("results are written as Parquet, and pyarrow is not installed: pip install 'triomq[bench]'", EXIT_FAILED)
    place = out or Path("triomq-bench") / f"{_file_name(workload.name)}-{time.strftime('%Y%m%d-%H%M%S')}"
    if reason := _why_unusable(place):
        _fail_for(place, reason)
    choice = EngineChoice(
        name=engine,
        workers=workers,
        most=most_workers(workload),
        master=master,
        spark_settings=spark_settings,
        py_files=py_files,
        keep_classes=keep_classes,
    )
    try:
        check_engine(choice, workload)
    except EngineError as error:
        _fail(str(error), EXIT_USAGE)
    options = Options(
        workload=workload,
        payload=payload,
        targets=targets or (OURS,),
        access=access,
        engine=choice,
        folder=place,
        seed=secrets.randbits(32) if seed is None else seed,
        audit=audit,
        find_max_rate=find_max_rate,
        p99_limit_ms=max_p99,
    )
    try:
        with claimed(place):
            if reason := why_taken(run_folders(place, options.targets)):
                _fail_for(place, reason)
            with progress_on(sys.stderr, shown=not as_json) as (show, news):
                code, found = _until_done(Session(options, show, news))
            _write_report(found, options.folder)
    except FolderInUseError as error:
        _fail_for(place, str(error))
    _print(found, as_json)
    sys.exit(code)


def _check_options_apply(engine: str, *, find_max_rate: bool) -> None:
    """Refuse options that would have no effect."""
    given = click.get_current_context()
    for name, option in _OF_SPARK.items():
        if engine != "spark" and given.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option} has no effect without --engine spark")
    if not find_max_rate and given.get_parameter_source("max_p99") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--max-p99 has no effect without --find-max-rate")


def _file_name(name: str) -> str:
    """A workload's name as part of a folder's: OpenMessaging's are like ``1 topic / 16 partitions``."""
    short = re.sub(r"[^\w.+-]+", "-", name).encode()[:_NAME_MOST].decode(errors="ignore")
    return short.strip(".-") or "run"


def _why_unusable(folder: Path) -> str | None:
    """Why no files can be made in a folder, or the folder itself cannot be made; None if they can.

    Looked at before the start: what was measured would be lost.
    """
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        return f"{there} is not a directory"
    return None if os.access(there, os.W_OK | os.X_OK) else f"{there} is not writable"


def _fail_for(place: Path, reason: str) -> NoReturn:
    _fail(f"results cannot be written to {place}: {reason}; give another --out", EXIT_USAGE)


def _fail(text: str, code: int) -> NoReturn:
    click.echo(f"Error: {text}", err=True)
    sys.exit(code)


def _until_done(session: Session) -> tuple[int, Session]:
    try:
        trio.run(session.run)
    except (
        WorkloadError, EngineError, TargetError, ToolUnavailableError, LedgerError, triomq.MQError, OSError
    ) as error:  # fmt: skip
        if not session.results and not session.searches:
            _fail(str(error), EXIT_USAGE if isinstance(error, WorkloadError) else EXIT_FAILED)
        # What was measured before is shown.
        session.failures.append(str(error))
    if session.interrupted:
        return EXIT_INTERRUPTED, session
    return (0 if session.passed else EXIT_FAILED), session


def _write_report(session: Session, folder: Path) -> None:
    """The page, beside the files it is made of."""
    if not session.results:
        return
    from triomq_benchmarks.report.html import REPORT, ReportUnavailableError, write_report

    try:
        write_report(session.results, folder / REPORT)
    except ReportUnavailableError as error:
        click.echo(str(error), err=True)
    except OSError as error:
        again = shlex.join(["triomq", "bench", "report", *map(str, session.folders), "--out", "report.html"])
        click.echo(f"no report, {error}: `{again}` writes it elsewhere", err=True)


def _print(session: Session, as_json: bool) -> None:
    if as_json:
        found = as_object(session.results, session.folders, passed=session.passed)
        if session.searches:
            found["max_rate"] = finite({target: attrs.asdict(each) for target, each in session.searches.items()})
        click.echo(json.dumps(found))
    else:
        console = Console()
        for target, search in session.searches.items():
            _print_search(target, search, console)
        if session.results and not session.searches:
            print_summary(session.results, session.folders, console)
    for text in session.failures:
        click.echo(f"Error: {text}", err=True)
    if session.interrupted:
        click.echo(f"interrupted{_kept_of(session)}; no process is left", err=True)


def _kept_of(session: Session) -> str:
    """What is kept of an interrupted session."""
    if session.searches or any(result.partial for result in session.results):
        return ": what was measured until then is written as partial"
    return " when the run was over: its results are whole" if session.results else " before anything was measured"


def _print_search(target: str, search: MaxRate, console: Console) -> None:
    table = Table(
        "rate", "acknowledged", "p99", "answer", title=f"highest sustainable rate, {target}", title_justify="left"
    )
    for trial in search.trials:
        answer = f"{trial.answer}: {trial.reason}"
        table.add_row(f"{trial.rate_per_s:,.0f}/s", f"{trial.acked_per_s:,.0f}/s", f"{trial.p99_ms:,.2f} ms", answer)
    console.print(table)
    known = f"{search.rate_per_s:,.0f} messages per second are sustained"
    if search.limited_by == "unfinished":
        known = f"at least {known}" if search.rate_per_s else "no sustained rate was found"
        known += ", and the search was not finished"
    console.print(f"{target}: {known}")
    if search.limited_by == "generator":
        console.print("The search ended at the generator's limit, not at the broker's: add workers or a machine")
    if search.limited_by == "trials":
        near = max(search.rate_per_s, min(trial.rate_per_s for trial in search.trials))
        console.print(
            f"The search ended after {len(search.trials)} trials, and the limit may be elsewhere: begin nearer to it, with "
            f"--set rate={near:.0f}/s"
        )
