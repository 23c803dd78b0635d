"""``triomq admin repair-store``: repairs a stopped broker's store from another broker of its set, or from its own log."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click
import trio

from triomq_command.connection_options import with_connection_options
from triomq_server.commands.account import signed_opener_given
from triomq_server.commands.options import EXIT_FAILED, config_file, failing_with_store
from triomq_server.commands.whole_repair import repair_from_log

if TYPE_CHECKING:
    from triomq_server.admin.store_repair import Outcome


@click.command("repair-store")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--from", "sources", multiple=True, metavar="HOST:PORT",
    help="A broker of the same set, its main port; may be repeated, the first one with a sound copy is taken. "
    "Without it, the store is repaired from its own log.",
)  # fmt: skip
@click.option(
    "--log", type=click.Path(exists=True, file_okay=False, path_type=Path), help="storePathCommitLog, if set."
)
@click.option(
    "--trust-peer", is_flag=True, help="Take tables also where the logs have no record in common to be compared."
)
@config_file
@with_connection_options
@click.option("-y", "--yes", is_flag=True, help="Repair without a question.")
@click.option("--dry-run", is_flag=True, help="Report what is wrong; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def repair_store(
    directory: Path,
    sources: tuple[str, ...],
    log: Path | None,
    trust_peer: bool,
    config_file: str | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Repair the store in DIRECTORY (storePathRootDir), whose broker must be stopped.

    With --from, damaged records, missing log files and tables are taken from another broker of the set. Without it,
    the whole log is read, and queues, index and checkpoint are built again where they do not agree with it; what is
    damaged is moved to triomq/damaged. Exit status 1: something is damaged still.
    """
    if yes and dry_run:
        raise click.UsageError("--yes and --dry-run contradict each other")
    if not sources:
        repair_from_log(directory, log, config_file, yes=yes, dry_run=dry_run, as_json=as_json)
        return
    from triomq_server.admin.store_repair import repair

    with failing_with_store(directory):
        outcomes = trio.run(
            partial(repair, trust=trust_peer, open_link=signed_opener_given()), directory, sources, log, yes
        )
    if as_json:
        click.echo(json.dumps([attrs.asdict(one) for one in outcomes]))
    else:
        _print(outcomes, yes=yes)
    if any(not one.repaired for one in outcomes):
        raise SystemExit(EXIT_FAILED)


def _print(outcomes: list[Outcome], *, yes: bool) -> None:
    for one in outcomes:
        click.echo(one.what)
        for reason in one.reasons:
            click.echo(f"    {reason}")
        if one.found:
            click.echo(f"    {'repaired' if one.repaired else 'can be repaired'} from {one.source}: {one.found}")
    repairable, repaired = sum(bool(one.found) for one in outcomes), sum(one.repaired for one in outcomes)
    if not outcomes:
        click.echo("nothing is damaged")
    elif yes:
        click.echo(f"{repaired} of {len(outcomes)} repaired; queue entries are written again by the next start")
    else:
        click.echo(f"{repairable} of {len(outcomes)} can be repaired; nothing has been changed (--yes writes)")
