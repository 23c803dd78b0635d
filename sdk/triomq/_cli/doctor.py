"""``triomq doctor``: what is wrong with a cluster."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import click

from triomq import Client
from triomq._cli.options import json_option, name_servers_option, positive, say, with_client
from triomq.admin import Finding, FindingLimits, LookedAt
from triomq.errors import ConnectFailed, NoNameServer
from triomq_command.running import printable

COULD_NOT_LOOK = 2
WIDTH = 110
WIDTH_MIN = 30


@click.command()
@name_servers_option
@click.option("--timeout", "timeout_s", type=float, callback=positive, default=30.0, show_default=True,
              help="Seconds that the examination may take.")  # fmt: skip
@click.option("--lag", type=click.IntRange(1), default=FindingLimits().lag, show_default=True,
              help="Messages that a group may lag by.")  # fmt: skip
@click.option("--problems", "only_problems", is_flag=True, help="Leave out notices, which may be intended.")
@json_option
def doctor(name_servers: str, timeout_s: float, lag: int, only_problems: bool, as_json: bool) -> None:
    """Examine a whole cluster: report what is wrong, and what to do.

    Nothing is changed. Exit status: 0 there is no problem, 1 there are problems, 2 no name server answers.
    """
    found: list[Finding] = []

    async def work(client: Client) -> None:
        with progress_on(sys.stderr, shown=not as_json) as show:
            limits = FindingLimits(lag=lag)
            findings = await client.doctor.findings(timeout_s=timeout_s, limits=limits, progress=show)
        found.extend(each for each in findings if each.level == "problem" or not only_problems)

    try:
        with_client(name_servers, work, route_wait_s=0)
    except (NoNameServer, ConnectFailed) as error:
        click.echo(f"Error: {error}", err=True)
        click.get_current_context().exit(COULD_NOT_LOOK)
    for each in found:
        if not as_json:
            click.echo(printable(_paragraph(each)))
            continue
        row = {"level": each.level, "kind": each.kind, "about": each.about, "what": each.what, "cure": each.cure}
        say(row, "", as_json=True)
    problems = sum(each.level == "problem" for each in found)
    if not as_json:
        click.echo(_summary(problems, len(found) - problems))
    if problems:
        click.get_current_context().exit(1)


@contextmanager
def progress_on(stream: TextIO, *, shown: bool) -> Iterator[Callable[[LookedAt], None] | None]:
    """Progress bars on a terminal, one for each kind of object; they are removed at the end. Nothing elsewhere."""
    if not (shown and stream.isatty()):
        yield None
        return
    # Only here, since importing it takes longer than most commands run; the extra `server` does not include it.
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:
        yield None
        return

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    latest = TextColumn("{task.fields[latest]}")
    with Progress(*columns, latest, console=Console(file=stream), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def show(seen: LookedAt) -> None:
            if seen.kind not in tasks:
                tasks[seen.kind] = progress.add_task(seen.kind, total=seen.total, latest="")
            name = escape(printable(seen.name))
            progress.update(tasks[seen.kind], completed=seen.done, total=seen.total, latest=name)

        yield show


def _paragraph(finding: Finding) -> str:
    head = f"{finding.level.upper():<8}"
    width = min(WIDTH, max(shutil.get_terminal_size((WIDTH + len(head), 0)).columns - len(head), WIDTH_MIN))
    body = textwrap.fill(f"{finding.what} {finding.cure}", width, break_long_words=False, break_on_hyphens=False)
    return textwrap.indent(body, " " * len(head)).replace(" " * len(head), head, 1) + "\n"


def _summary(problems: int, notices: int) -> str:
    if not problems and not notices:
        return "The cluster is healthy."
    parts = [f"{problems or 'no'} problem{'s'[: problems != 1]}", f"{notices or 'no'} notice{'s'[: notices != 1]}"]
    return ", ".join(parts)
