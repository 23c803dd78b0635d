"""`triomq bench compare A B`: is run B worse than run A?"""

from __future__ import annotations

import sys
from pathlib import Path

import attrs
import click
import msgspec
from rich.console import Console
from rich.table import Table

from triomq_benchmarks.figures.run_files import RunUnreadableError, read_run
from triomq_benchmarks.report.html import figure
from triomq_benchmarks.report.run_comparison import Change, RunComparison, compare_runs

_STYLES = {Change.BETTER: "green", Change.SAME: "dim", Change.WORSE: "bold red", Change.UNCLEAR: "yellow"}


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


@click.command()
@click.argument("before", metavar="A", type=click.Path(path_type=Path))
@click.argument("after", metavar="B", type=click.Path(path_type=Path))
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 10),
    default=0.1,
    show_default=True,
    help="Relative difference that counts as none.",
)
@click.option(
    "--force", is_flag=True, help="Compare different workloads, partial runs and runs with a late generator too."
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def compare(before: Path, after: Path, tolerance: float, force: bool, as_json: bool) -> None:
    """Is run B worse than run A?  Folders that `triomq bench run --out` wrote.

    Exit code 0: nothing became worse; 1: something did; 2: they cannot be compared.
    """
    try:
        comparison = compare_runs(read_run(before), read_run(after), tolerance=tolerance, force=force)
    except RunUnreadableError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    if as_json:
        plain = {"result": comparison.result, "exit_code": comparison.exit_code, **attrs.asdict(comparison)}
        click.echo(msgspec.json.encode(plain))
    else:
        for name, folder in (("A", before), ("B", after)):
            click.echo(f"{name}: {folder}")
        _print(comparison, Console(width=None if sys.stdout.isatty() else 160))
    sys.exit(comparison.exit_code)
