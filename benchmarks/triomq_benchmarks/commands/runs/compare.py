"""`triomq bench compare A B`: is B worse than A?  Two runs, or two sides that are run in turns."""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import click
import msgspec
import trio
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from triomq_benchmarks.commands.cluster_access import access_to, variables_for
from triomq_benchmarks.commands.named_path import NamedPath
from triomq_benchmarks.commands.number_range import NumberRange
from triomq_benchmarks.figures.run_files import RunUnreadableError, is_run, read_run
from triomq_benchmarks.report.html import figure
from triomq_benchmarks.report.progress import progress_on
from triomq_benchmarks.report.repeated_comparison import RepeatedComparison, Side, compare_repeats, more_rounds
from triomq_benchmarks.report.run_comparison import Change, RunComparison, compare_runs
from triomq_benchmarks.run.interrupts import on_interrupt
from triomq_benchmarks.run.repeats import RepeatError, RepeatPlan, SideChoice, paired, run_rounds, runs_below
from triomq_benchmarks.run.targets import TargetError
from triomq_benchmarks.workload.files import load_workload
from triomq_benchmarks.workload.workload import WorkloadError
from triomq_command.connection_options import connection_arguments_given, with_connection_options
from triomq_command.running import EXIT_INTERRUPTED

EXIT_FAILED, EXIT_UNUSABLE = 1, 2
ENOUGH = "enough"
_STYLES = {Change.BETTER: "green", Change.SAME: "dim", Change.WORSE: "bold red", Change.UNCLEAR: "yellow"}


# Before click 8.4, its types take no parameters.
class _Rounds(click.ParamType):  # type: ignore[type-arg]
    name = "rounds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value == ENOUGH:
            return ENOUGH
        try:
            rounds = int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor `{ENOUGH}`", param, ctx)
        if rounds < 1:
            self.fail(f"{rounds} rounds are none", param, ctx)
        return rounds


def _print(comparison: RunComparison, console: Console) -> None:
    table = Table("measure", "A", "B", "B : A", "95 % of chance", "", title=None)
    for each in comparison.measures:
        between = "" if each.low is None or each.high is None else f"{each.low:.2f} … {each.high:.2f}"
        ratio = "" if each.ratio is None else f"{each.ratio:.2f}"
        style = _STYLES[each.change]
        table.add_row(
            each.name, figure(each.before), figure(each.after), ratio, between, f"[{style}]{each.change}[/{style}]"
        )
    console.print(table)
    for text in (*comparison.differences, *comparison.circumstances):
        console.print(f"not the same: {text}", markup=False, highlight=False)
    for text in comparison.obstacles:
        console.print(f"not comparable: {text}", style="red", markup=False)
    console.print(f"result: {comparison.result}", markup=False)


def _print_repeated(comparison: RepeatedComparison, console: Console) -> None:
    table = Table(
        "measure",
        "A",
        "B",
        "B : A",
        "95 % interval",
        "chance",
        "",
        title=f"{comparison.rounds} rounds, A and B in each",
    )
    for each in comparison.measures:
        found, style = each.difference, _STYLES[each.change]
        of_ratio = ("", "", "") if found is None else (
            f"{found.ratio:.3f}", f"{found.low:.3f} … {found.high:.3f}", f"{found.p:.2g}"
        )  # fmt: skip
        table.add_row(
            each.name, figure(each.before), figure(each.after), *of_ratio, f"[{style}]{each.change}[/{style}]"
        )
    console.print(table)
    if comparison.sides:
        about = Table("", "A", "B")
        for title, *cells in _about(*comparison.sides):
            about.add_row(*map(escape, (title, *cells)))
        console.print(about)
    for text in comparison.differences:
        console.print(f"not the same: {text}", markup=False, highlight=False)
    for text in comparison.left_out:
        console.print(f"left out: {text}", markup=False, highlight=False)
    for text in comparison.obstacles:
        console.print(f"not comparable: {text}", style="red", markup=False)
    console.print(
        f"a difference of {100 * comparison.wanted:g} % of the median is found with {comparison.rounds_needed} rounds on "
        f"this machine; there are {comparison.rounds}",
        markup=False, highlight=False,
    )  # fmt: skip
    console.print(f"result: {comparison.result}", markup=False)


def _about(before: Side, after: Side) -> list[tuple[str, str, str]]:
    def number(value: float | None, scale: float = 1.0) -> str:
        return "-" if value is None else figure(value / scale)

    def row(title: str, field: str, scale: float = 1.0) -> tuple[str, str, str]:
        return title, number(getattr(before, field), scale), number(getattr(after, field), scale)

    gib, mib = float(1 << 30), float(1 << 20)
    rows = [
        ("target", before.target, after.target),
        ("machine", before.machine, after.machine),
        row("load average", "load_average"),
        row("memory available, GiB", "memory_available_bytes", gib),
        row("CPU of servers, cores", "servers_cpu_cores"),
        row("memory of servers, MiB", "servers_memory_bytes", mib),
        row("CPU of generators, cores", "generators_cpu_cores"),
    ]
    names = dict.fromkeys((*before.versions, *after.versions))
    return rows + [(name, before.versions.get(name, "-"), after.versions.get(name, "-")) for name in names]


@click.command()
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option(
    "--repeat",
    type=_Rounds(),
    metavar=f"N|{ENOUGH}",
    help="Run both sides N times in turns, A/B/B/A, and compare; A and B are then TARGET or TARGET@PYTHON. "
    f"`{ENOUGH}`: as often as --find needs.",
)
@click.option("--workload", default="quick", show_default=True, help="With --repeat: what to run.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="With --repeat: a key of the workload.")
@click.option("--out", type=NamedPath(), metavar="DIR",
              help="With --repeat: where runs go; those that are there count. Default: triomq-bench/compare-TIME.")  # fmt: skip
@click.option("--seed", type=int, help="With --repeat: of the first round. Default: drawn.")
@click.option("--audit/--no-audit", default=True, show_default=True, help="With --repeat: audit each run.")
@click.option(
    "--most", type=click.IntRange(10), default=100, show_default=True, help=f"With --repeat {ENOUGH}: rounds at most."
)
@click.option("--find", "wanted", type=NumberRange(0.001, 10), default=0.05, show_default=True,
              help="Of several runs: the relative difference of the median that must be found.")  # fmt: skip
@click.option(
    "--tolerance",
    type=NumberRange(0, 10),
    help="Relative difference that counts as none. Default: 0.1 for two runs, 0.01 for repeats.",
)
@click.option(
    "--force", is_flag=True, help="Compare different workloads, partial runs and runs with a late generator too."
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@with_connection_options
def compare(
    before: str,
    after: str,
    repeat: int | str | None,
    workload: str,
    changes: tuple[str, ...],
    out: Path | None,
    seed: int | None,
    audit: bool,
    most: int,
    wanted: float,
    tolerance: float | None,
    force: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Is B worse than A?  Folders that `triomq bench run --out` wrote, or folders of such folders: repeats of both
    sides, which `--repeat` makes.

    Exit code 0: nothing became worse; 1: something did; 2: they cannot be compared, or wrong usage; 130: interrupted.
    """
    console = Console(width=None if sys.stdout.isatty() else 160)
    if not before or not after:
        _fail("A or B is empty; for the current folder write `.`", EXIT_UNUSABLE)
    if repeat is None and (arguments := connection_arguments_given()):
        raise click.UsageError(f"{arguments[0]} has no effect without --repeat")
    try:
        if repeat is None and is_run(Path(before)) | is_run(Path(after)):
            _compare_two(Path(before), Path(after), 0.1 if tolerance is None else tolerance, force, as_json, console)
        folders = Path(before), Path(after)
        if repeat is not None:
            load_workload(workload, changes)
            sides = SideChoice.parse(before), SideChoice.parse(after)
            plan = RepeatPlan(
                sides=sides,
                workload=workload,
                changes=changes,
                folder=out or Path("triomq-bench") / f"compare-{time.strftime('%Y%m%d-%H%M%S')}",
                seed=secrets.randbits(31) if seed is None else seed,
                audit=audit,
                environment=variables_for(access_to([side.target for side in sides])),
            )
            folders = plan.folder / "a", plan.folder / "b"
            with progress_on(sys.stderr, shown=not as_json) as (_show, news):
                if trio.run(_repeat, plan, repeat, most, wanted, news):
                    click.echo(
                        f"interrupted: what was run is in {plan.folder}; --out {plan.folder} goes on with it", err=True
                    )
                    sys.exit(EXIT_INTERRUPTED)
        runs = paired(runs_below(folders[0]), runs_below(folders[1]))
    except (RunUnreadableError, WorkloadError, TargetError) as error:
        _fail(str(error), EXIT_UNUSABLE)
    except RepeatError as error:
        _fail(str(error), EXIT_FAILED)
    found = compare_repeats(*runs, tolerance=0.01 if tolerance is None else tolerance, wanted=wanted, force=force)
    if as_json:
        plain = {"result": found.result, "exit_code": found.exit_code, **attrs.asdict(found)}
        # Names of folders may not be UTF-8.
        names = [str(folder).encode("utf-8", "backslashreplace").decode() for folder in folders]
        click.echo(msgspec.json.encode({**plain, "folders": names}))
    else:
        for name, folder in zip("AB", folders, strict=True):
            click.echo(f"{name}: {folder}")
        _print_repeated(found, console)
    sys.exit(found.exit_code)


def _compare_two(before: Path, after: Path, tolerance: float, force: bool, as_json: bool, console: Console) -> None:
    comparison = compare_runs(read_run(before), read_run(after), tolerance=tolerance, force=force)
    if as_json:
        plain = {"result": comparison.result, "exit_code": comparison.exit_code, **attrs.asdict(comparison)}
        click.echo(msgspec.json.encode(plain))
    else:
        for name, folder in (("A", before), ("B", after)):
            click.echo(f"{name}: {folder}")
        _print(comparison, console)
    sys.exit(comparison.exit_code)


async def _repeat(plan: RepeatPlan, repeat: int | str, most: int, wanted: float, news: Any) -> bool:
    """Make the rounds; whether that was interrupted. With `enough`, nobody looks at a difference before there are."""
    with trio.CancelScope() as everything:
        async with on_interrupt(everything.cancel):
            rounds = repeat if isinstance(repeat, int) else 10
            await run_rounds(plan, rounds, news)
            while repeat == ENOUGH and rounds < most:
                runs = paired(runs_below(plan.folder / "a"), runs_below(plan.folder / "b"))
                needed = more_rounds(*runs, wanted)
                news(f"{rounds} rounds are there, {needed} are needed to find {100 * wanted:g} %")
                if needed <= rounds:
                    break
                rounds = min(needed, 2 * rounds, most)
                await run_rounds(plan, rounds, news)
    return everything.cancelled_caught


def _fail(text: str, code: int) -> None:
    click.echo(f"Error: {text}", err=True)
    sys.exit(code)
