"""``triomq admin``: the state of replication, changes of the role, truncating a slave's log, nodes of a cluster.

Works through the name servers, on our brokers and, as far as they answer, on RocketMQ's. Exit codes as in ``__main__``.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import trio

from triomq_command.connection_options import with_connection_options
from triomq_command.running import has_terminal, printable_line
from triomq_server.admin.asking import AdminError
from triomq_server.admin.outages import outage_text
from triomq_server.admin.replication import Row, replication, slave_state
from triomq_server.admin.roles import change_role, cut, slave_to_cut
from triomq_server.cluster.control import VERBS, ControlError, give_command
from triomq_server.commands.account import signed_opener_given
from triomq_server.commands.store_check import check_store
from triomq_server.commands.store_repair import repair_store
from triomq_server.config.network import unusable_address
from triomq_server.wire import error_text

T = TypeVar("T")
Options = TypeVar("Options", bound=Callable[..., Any])


def _checked_servers(_ctx: click.Context, _param: click.Parameter, text: str) -> str:
    """The name servers' addresses, in the forms that the client's commands take."""
    addresses = text.rsplit("/", 1)[-1] if text.startswith("http://") else text
    reason = unusable_address(addresses) if addresses.strip("; ") else "no name server is given"
    if reason is not None:
        raise click.BadParameter(reason)
    return addresses


_name_servers = click.option(
    "-n", "--name-servers", "--namesrv-addr", "name_servers", metavar="HOST:PORT;...", envvar="NAMESRV_ADDR",
    callback=_checked_servers,
    default="127.0.0.1:9876", show_default=True, help="Name servers; also from the environment's NAMESRV_ADDR.",
)  # fmt: skip


def _servers_and_account(command: Options) -> Options:
    """Add the options that are common to all commands that ask brokers."""
    return _name_servers(with_connection_options(command))


@click.group()
def admin() -> None:
    """Show and change replication and roles of triomq's brokers; check and repair their stores."""


@admin.command()
@_servers_and_account
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def ha(name_servers: str, as_json: bool) -> None:
    """Show the state of replication, broker by broker.

    Exit code 1 if a broker does not answer or a set has no master.
    """
    rows = _run(functools.partial(replication, name_servers, signed_opener_given()))
    if as_json:
        click.echo(json.dumps([_as_json(row, rows) for row in rows], indent=2))
    else:
        _print_replication(rows)
    if outage := outage_text(rows):
        raise click.ClickException(outage)


def _print_replication(rows: list[Row]) -> None:
    lines = [
        ("BROKER", "ID", "ADDRESS", "ROLE", "LOG BEGIN", "LOG END", "STATE", "LINK"),
        *(tuple(map(printable_line, _line(row, rows))) for row in rows),  # any client may register any name
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for row in rows:
        for text in _notes(row):
            click.echo(printable_line(f"{row.member.address}: {text}"))


@admin.command()
@click.argument("broker")
@click.argument("role", type=click.Choice(["master", "sync-master", "slave"]))
@_servers_and_account
@click.option(
    "--id",
    "broker_id",
    type=click.IntRange(1, 2**63 - 1),
    help="A slave's id; default: the smallest one that no broker of the set has or had.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Make it master although another one is registered, or give it the --id of a broker that is gone for good.",
)
@click.option(
    "--despite-contest", is_flag=True, help="Make it master although another broker that runs has the same id."
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Its role now, as JSON.")
def role(
    broker: str,
    role: str,
    name_servers: str,
    broker_id: int | None,
    force: bool,
    despite_contest: bool,
    as_json: bool,
) -> None:
    """Make BROKER (NAME:ID or HOST:PORT) master or slave of its set while it runs."""
    wanted = {"master": "ASYNC_MASTER", "sync-master": "SYNC_MASTER", "slave": "SLAVE"}[role]
    now = _run(
        functools.partial(
            change_role, name_servers, broker, wanted,
            broker_id=broker_id, force=force, despite_contest=despite_contest, open_link=signed_opener_given(),
        )
    )  # fmt: skip
    if as_json:
        click.echo(
            json.dumps(
                {
                    "name": now.broker_name,
                    "id": now.broker_id,
                    "address": now.broker_addr,
                    "role": role,
                    "keptIn": now.kept_in,
                }
            )
        )
        return
    click.echo(printable_line(f"{now.broker_addr} is {role} now, as {now.broker_name}:{now.broker_id}"))
    if now.kept_in is None:
        click.echo(
            "Started again, it takes the role of its command line: there is no configuration file (-c) to keep this one."
        )
    else:
        click.echo(printable_line(f"Started again, it takes this role from {now.kept_in}."))


@admin.command(name="cut")
@click.argument("broker")
@_servers_and_account
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="What was dropped, as JSON.")
def cut_command(broker: str, name_servers: str, yes: bool, as_json: bool) -> None:
    """Drop the messages that slave BROKER has and its master does not, so that it can follow again. They are lost."""
    opener = signed_opener_given()
    address = _run(functools.partial(slave_to_cut, name_servers, broker, opener))
    if not yes:
        _ask_to_drop(f"{broker} at {address}" if broker != address else broker)
    dropped = _run(functools.partial(cut, name_servers, address, opener))
    click.echo(json.dumps({"address": address, "droppedBytes": dropped}) if as_json else f"{dropped} bytes dropped")


@admin.command()
@click.argument("verb", type=click.Choice(VERBS))
@click.argument("name")
@click.option(
    "--directory", required=True, type=click.Path(file_okay=False, path_type=Path),
    help="The cluster's directory, which `triomq cluster` prints.",
)  # fmt: skip
def node(verb: str, name: str, directory: Path) -> None:
    """Start, stop, restart, kill, pause or resume node NAME of a cluster that `triomq cluster` runs."""
    try:
        event = give_command(directory, verb, name)
    except ControlError as error:
        raise click.ClickException(error_text(error)) from None
    pid = f", pid {event['pid']}" if event["event"] == "started" else ""
    click.echo(f"{name} {event['event']}{pid}")


admin.add_command(check_store)
admin.add_command(repair_store)


def _ask_to_drop(broker: str) -> None:
    """Ask for confirmation on the terminal; without a terminal the order is refused."""
    if not has_terminal():
        raise click.UsageError(
            f"this drops the messages that only {broker} has, and there is no terminal to ask on: give --yes"
        )
    if not click.confirm(f"Drop the messages that only {broker} has?"):
        click.echo("Nothing was dropped.", err=True)
        click.get_current_context().exit(1)


def _run(work: Callable[[], Awaitable[T]]) -> T:
    # Without a handler, Python prints the servers' warnings about a link next to an error with the same content.
    logging.getLogger("triomq_server").addHandler(logging.NullHandler())
    try:
        return trio.run(work)
    except AdminError as error:
        raise click.ClickException(error_text(error)) from None


def _line(row: Row, rows: list[Row]) -> tuple[str, ...]:
    member, status = row.member, row.status
    role = status.role if status is not None else "?" if row.error else "RocketMQ"
    link = ""
    if status is not None and status.following is not None:
        link = "connected" if status.following.connected else "not connected"
    elif status is not None:
        link = f"{len(status.slaves)} slave{'s'[: len(status.slaves) != 1]}"
    ends = (str(row.log_begin), str(row.log_end)) if row.log_end >= 0 else ("", "")
    return (member.name, str(member.broker_id), member.address, role, *ends, slave_state(row, rows), link)


def _notes(row: Row) -> list[str]:
    """Additional lines for the operator."""
    if row.error is not None:
        return [row.error]
    status = row.status
    if status is None:
        return []
    notes = [
        f"slave {one.peer} asks for bytes that have expired here; delete its store and start it again"
        for one in status.slaves
        if one.lost_position
    ]
    notes += [
        f"refused slave {one.peer} {one.ago_s:.0f} s ago: its log ended at {one.offset}, this one at {one.log_end}"
        for one in status.refused
    ]
    if status.following is not None and not status.following.connected and status.following.last_error:
        notes.append(status.following.last_error)
    return notes


def _as_json(row: Row, rows: list[Row]) -> dict[str, object]:
    reported = json.loads(row.status.encode()) if row.status is not None else None
    return {
        "name": row.member.name,
        "id": row.member.broker_id,
        "address": row.member.address,
        "state": slave_state(row, rows),
        "logBegin": row.log_begin,
        "logEnd": row.log_end,
        "error": row.error,
        "status": reported,
    }
