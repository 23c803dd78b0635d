"""``triomq admin repair-store`` without another broker: builds queues and index again from the store's own log."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click
import trio

from triomq_command.running import has_terminal
from triomq_server.commands.options import EXIT_FAILED, EXIT_USAGE, configured, fail, failing_with_store

if TYPE_CHECKING:
    from triomq_server.config import StoreConfig
    from triomq_server.store.stopped.whole_repair import Findings, Problem, Progress

_SHOWN = 20
_LOST = "`--from HOST:PORT` fetches what the log has lost from another broker of the set"
_LOST_KINDS = ("lost", "record", "missing")


def repair_from_log(
    directory: Path, log: Path | None, config_file: str | None, *, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Check the store, ask, repair it, check again, and report. Exits with 1 if damage remains."""
    from triomq_server.disk import RealDisk
    from triomq_server.disk.access import lock_store

    config = _settings(directory, log, config_file)
    with failing_with_store(directory):
        release = lock_store(RealDisk(), str(directory), config.store_path_commit_log)
        try:
            found = _look(directory, config, as_json=as_json)
            aside, left = None, found
            if found.problems and not dry_run and _agreed(found, yes=yes, as_json=as_json):
                aside = trio.run(_repair, directory, config, found)
                left = _look(directory, config, as_json=as_json)
        finally:
            release()
    _report(found, left, aside, repaired=left is not found, as_json=as_json)
    if left.problems:
        sys.exit(EXIT_FAILED)


async def _repair(directory: Path, config: StoreConfig, found: Findings) -> Path | None:
    from triomq_server.broker.tables.table_files import outdated_files, refused_files
    from triomq_server.store.stopped.whole_repair import repair

    unreadable, outdated = dict(refused_files(directory)), dict(outdated_files(directory))
    return await repair(config, found, unreadable, [name for name in outdated if name not in unreadable])


def _settings(directory: Path, log: Path | None, config_file: str | None) -> StoreConfig:
    """The broker's settings; without its file, the sizes of existing files, and otherwise the defaults."""
    from triomq_server.config import BrokerConfig, ConfigError, PropertiesError
    from triomq_server.store.stopped.whole_repair import index_file_bytes

    try:
        values = configured(config_file, (), {})
        values["storePathRootDir"] = str(directory)
        if log is not None:
            values["storePathCommitLog"] = str(log)
        store = BrokerConfig.from_properties(values)[0].store
    except (ConfigError, PropertiesError) as error:
        fail(str(error), EXIT_USAGE)
    index_bytes = index_file_bytes(store)
    found = {file.stat().st_size for file in (directory / "index").glob("*")} - {0}
    if found and index_bytes not in found and not config_file:
        fail(
            f"the index files have {', '.join(map(str, sorted(found)))} bytes; with the default settings they have "
            f"{index_bytes}: give the broker's settings (-c FILE; -c /dev/null if it has none)",
            EXIT_USAGE,
        )
    for key, folder in (
        ("mapped_file_size_commit_log", Path(store.store_path_commit_log)),
        ("mapped_file_size_consume_queue", directory / "consumequeue"),
    ):
        sizes = Counter(file.stat().st_size for file in folder.rglob("*") if file.is_file() and file.name.isdecimal())
        sizes.pop(0, None)
        if sizes and not (config_file and key == "mapped_file_size_consume_queue"):
            setattr(store, key, sizes.most_common(1)[0][0])
    return store


def _look(directory: Path, config: StoreConfig, *, as_json: bool) -> Findings:
    from triomq_server.broker.tables.table_files import outdated_files, refused_files, topics_of
    from triomq_server.store.stopped.whole_repair import Problem, look

    with _progress(as_json=as_json) as progress:
        found = look(config, topics_of(directory), progress)
    refused = dict(refused_files(directory))
    for name, why in refused.items():
        found.problems.append(Problem("table", name, why, "moved aside; the next start makes a new one"))
    for name, why in outdated_files(directory):
        if name not in refused:
            found.problems.append(Problem("table", name, why, "moved aside; its backup takes its place"))
    return found


@contextmanager
def _progress(*, as_json: bool) -> Iterator[Progress | None]:
    """Show a progress bar on a terminal."""
    if as_json or not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=1, label="reading the store", file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield show


def _agreed(found: Findings, *, yes: bool, as_json: bool) -> bool:
    if yes:
        return True
    _print(found.problems)
    if any(one.kind in _LOST_KINDS for one in found.problems):
        click.echo(f"{_LOST}: if there is one, do that first", err=True)
    if as_json or not has_terminal():
        raise click.UsageError("there is no terminal to ask on: --yes repairs, --dry-run changes nothing")
    return click.confirm("Repair it?", err=True)


def _print(problems: list[Problem]) -> None:
    for one in problems[:_SHOWN]:
        click.echo(f"{one.where}: {one.what}" + (f" ({one.remedy})" if one.remedy else ""), err=True)
    if len(problems) > _SHOWN:
        click.echo(f"and {len(problems) - _SHOWN} more (--json lists them)", err=True)


def _report(found: Findings, left: Findings, aside: Path | None, *, repaired: bool, as_json: bool) -> None:
    if as_json:
        result = {
            "records": left.records, "logBegin": left.log_begin, "logEnd": left.log_end,
            "problems": [attrs.asdict(one) for one in found.problems], "repaired": repaired,
            "left": [attrs.asdict(one) for one in left.problems], "aside": None if aside is None else str(aside),
        }  # fmt: skip
        click.echo(json.dumps(result))
        return
    if not found.problems:
        click.echo(f"nothing is damaged: {found.records} messages from log offset {found.log_begin} to {found.log_end}")
        return
    if repaired:
        click.echo(f"repaired; {left.records} messages from log offset {left.log_begin} to {left.log_end} can be read")
        if aside is not None:
            click.echo(f"what was damaged is in {aside}")
    _print(left.problems)
    if not repaired:
        click.echo("nothing has been changed (--yes repairs)")
    if any(one.kind in _LOST_KINDS for one in left.problems):
        click.echo(_LOST)
