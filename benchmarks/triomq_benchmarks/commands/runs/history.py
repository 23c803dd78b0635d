"""`triomq bench history DIR...`: one page over all runs below some folders, in order of time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from triomq_benchmarks.commands.named_path import NamedPath
from triomq_benchmarks.figures.ledger import ACKNOWLEDGED, CONSUMED
from triomq_benchmarks.figures.run_files import RESULT, RunUnreadableError, read_run
from triomq_benchmarks.figures.run_result import RunResult
from triomq_benchmarks.report.history import HISTORY, write_history
from triomq_benchmarks.report.html import ReportUnavailableError


@click.command("history")
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=NamedPath(file_okay=False, exists=True))
@click.option("--out", type=NamedPath(dir_okay=False), metavar="FILE",
              help="Where the page goes. Default: history.html in the first DIR.")  # fmt: skip
def history(folders: tuple[Path, ...], out: Path | None) -> None:
    """Write a page over all runs at any depth below DIR: latency, rates, what servers used, status and commit of each.

    Exit code 0: written; a run that is damaged, or of another version's format, and a folder that cannot be read are
    left out and named. 1: there is no run.
    """
    path = out or folders[0] / HISTORY
    runs: dict[str, RunResult] = {}
    for folder in folders:
        for found in sorted(_run_folders(folder)):
            try:
                runs[_name(found, folder, many=len(folders) > 1)] = read_run(found)
            except RunUnreadableError as error:
                click.echo(f"left out: {error}", err=True)
    if not runs:
        click.echo(f"Error: no run is below {', '.join(map(str, folders))}", err=True)
        sys.exit(1)
    try:
        write_history(runs, path)
    except ReportUnavailableError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        click.echo(f"Error: {path} cannot be written: {error.strerror or error}", err=True)
        sys.exit(1)
    click.echo(str(path))


def _run_folders(folder: Path) -> Iterator[Path]:
    """The folders with a run, at any depth; what cannot be read is named."""
    for name, below, files in os.walk(folder, onerror=_leave_out):
        if RESULT in files:
            below[:] = (each for each in below if each not in (ACKNOWLEDGED, CONSUMED))
            yield Path(name)


def _leave_out(error: OSError) -> None:
    click.echo(f"left out: {error.filename} cannot be read: {error.strerror or error}", err=True)


def _name(run: Path, below: Path, *, many: bool) -> str:
    """The shortest name that distinguishes a run from the others."""
    short = run.relative_to(below).as_posix()
    return f"{below}/{short}" if many else below.resolve().name if short == "." else short
