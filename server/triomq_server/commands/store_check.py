"""``triomq admin check-store``: reads a whole store and names what is damaged."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import attrs
import click

from triomq_server.commands.options import EXIT_FAILED, failing_with_store

_SHOWN = 20


@click.command("check-store")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--log", type=click.Path(exists=True, file_okay=False, path_type=Path), help="storePathCommitLog, if set."
)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def check_store(directory: Path, log: Path | None, as_json: bool) -> None:
    """Read every record, queue entry and table of the store in DIRECTORY (storePathRootDir).

    The broker may run meanwhile; nothing is changed. Exit status 1: there is damage.
    """
    from triomq_server.broker.tables.table_files import refused_files
    from triomq_server.store.stopped.checking import check_store as check

    shown = -1

    def progress(done: int, total: int) -> None:
        nonlocal shown
        percent = done * 100 // total
        if percent > shown and sys.stderr.isatty():
            shown = percent
            click.echo(f"\r{percent} % read", nl=False, err=True)

    with failing_with_store(directory):
        report = check(directory, log, progress)
        refused = list(refused_files(directory))
    if shown >= 0:
        click.echo("\r", nl=False, err=True)
    if as_json:
        found = {_camel(key): value for key, value in attrs.asdict(report).items()}
        found["refusedFiles"] = [{"file": name, "what": why} for name, why in refused]
        click.echo(json.dumps(found))
    else:
        for damage in report.damage[:_SHOWN]:
            click.echo(f"{damage.kind} at log offset {damage.offset}, {damage.size_bytes} bytes: {damage.what}")
        if report.count > _SHOWN:
            click.echo(f"and {report.count - _SHOWN} more (--json lists up to {len(report.damage)})")
        for name, why in refused:
            click.echo(f"a start would refuse {name}: {why}")
        click.echo(
            f"{report.records} sound records from log offset {report.log_begin} to {report.log_end}, "
            f"{report.count} damaged places"
        )
    if report.count or refused:
        sys.exit(EXIT_FAILED)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.title() for part in others)
