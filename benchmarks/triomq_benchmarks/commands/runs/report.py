"""`triomq bench report RUN_DIR...`: draw the page of a run once more, or one page of several runs side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import click

from triomq_benchmarks.commands.named_path import NamedPath
from triomq_benchmarks.figures.run_files import AUDIT, RunUnreadableError, is_run, read_audit, read_run, run_folders
from triomq_benchmarks.figures.run_result import RunResult
from triomq_benchmarks.report.html import REPORT, ReportUnavailableError, write_report

EXIT_FAILED: Final = 1


@click.command("report")
@click.argument("run_dirs", metavar="RUN_DIR...", nargs=-1, required=True, type=NamedPath(file_okay=False))
@click.option(
    "--out",
    type=NamedPath(dir_okay=False),
    metavar="FILE",
    help="Where the page goes. Default: report.html, in RUN_DIR, or here if there are several.",
)
def report(run_dirs: tuple[Path, ...], out: Path | None) -> None:
    """Write the HTML report of RUN_DIR, which `triomq bench run --out` wrote; of several runs, side by side.

    A folder with the runs of several targets counts as all of them.

    Exit code 0: written. 1: there is no such run, it is damaged, or what draws reports is not installed.
    """
    path = out or (run_dirs[0] / REPORT if len(run_dirs) == 1 else Path(REPORT))
    try:
        folders = _folders(run_dirs)
        results = [_run_with_its_audit(folder) for folder in folders]
        write_report(results, path, _names(folders))
    except (RunUnreadableError, ReportUnavailableError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{path} cannot be written: {error.strerror or error}")
    click.echo(str(path))


def _fail(text: str) -> None:
    click.echo(f"Error: {text}", err=True)
    sys.exit(EXIT_FAILED)


def _folders(given: Sequence[Path]) -> list[Path]:
    """Those of single runs."""
    found: list[Path] = []
    for folder in given:
        found += ([] if is_run(folder) else run_folders(folder)) or [folder]
    return found


def _names(folders: Sequence[Path]) -> list[str]:
    """The names of the folders; their paths where two names are equal."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def _run_with_its_audit(folder: Path) -> RunResult:
    """The run; `audit.json` is newer than what the run itself found, if it was audited once more."""
    run = read_run(folder)
    try:
        return attrs.evolve(run, audit=read_audit(folder / AUDIT))
    except FileNotFoundError:
        return run
