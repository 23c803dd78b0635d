"""``triomq admin``: the state of replication, changes of the role, truncating a slave's log, nodes of a cluster.

Works through the name servers, on our brokers and, as far as they answer, on RocketMQ's. Exit codes as in ``__main__``.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click
import trio

from triomq_command.connection_options import with_connection_options
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.errors import ProtocolError
from triomq_protocol.requests.route import ClusterInfo, KVTable
from triomq_protocol.wire.command import Command
from triomq_server.broker.admin.ha import (
    CHANGE_ROLE,
    CUT_LOG,
    HA_STATUS,
    ChangeRoleRequest,
    ChangeRoleResponse,
    HaStatus,
)
from triomq_server.cluster.control import VERBS, ControlError, give_command
from triomq_server.commands.account import signed_opener_given
from triomq_server.commands.store_check import check_store
from triomq_server.commands.store_repair import repair_store
from triomq_server.wire import AnswerTimeoutError, LinkClosedError, LinkError, OpenLink, error_text, open_link

TIMEOUT_S = 5.0
CHANGE_TIMEOUT_S = 30.0
"""A role change or cut waits for name servers, and for slaves that are asked for offsets."""

_PORT_MIN = 1024
_OTHER_PROTOCOL = ": the peer speaks "
"""Part of the frame decoder's error if it knows the protocol; the length before it has no meaning then."""

T = TypeVar("T")
Options = TypeVar("Options", bound=Callable[..., Any])
_FAILURES = (OSError, LinkError, ProtocolError, trio.TooSlowError)


class AdminError(Exception):
    """A command could not be carried out; the text names the cause and the remedy."""


@attrs.frozen
class Member:
    """A broker as known to the name servers."""

    name: str
    broker_id: int
    address: str


@attrs.frozen
class Row:
    """One broker's line in the output, with the state that it reports.

    Attributes:
        member: the broker.
        status: None for a broker that is not one of ours, or does not answer.
        log_begin, log_end: the bounds of its log; -1 if unknown.
        error: the reason why it could not be asked.
        may_run: whether it may run nevertheless: only a refused connection shows that there is no process.
        refused: whether it has answered with a refusal, which is in `error`.
    """

    member: Member
    status: HaStatus | None
    log_begin: int = -1
    log_end: int = -1
    error: str | None = None
    may_run: bool = False
    refused: bool = False


async def members(name_servers: str, open_link: OpenLink = open_link) -> list[Member]:
    """Every registered broker, sorted by name and id. Raises AdminError if no name server answers."""
    reasons = []
    for address in filter(None, (part.strip() for part in name_servers.split(";"))):
        try:
            answer = await _ask(open_link, address, Command.request(RequestCode.GET_BROKER_CLUSTER_INFO), TIMEOUT_S)
            if answer.code != ResponseCode.SUCCESS:
                reasons.append(f"{address} does not know a name server's requests: it looks like a broker")
                continue
            table = ClusterInfo.decode(answer.body).broker_addr_table or {}
        except _FAILURES as error:
            reasons.append(f"{address}: {_silence(error, 'name server', TIMEOUT_S)}")
            continue
        return sorted(
            (
                Member(name, number, broker)
                for name, data in table.items()
                for number, broker in (data.broker_addrs or {}).items()
            ),
            key=lambda member: (member.name, member.broker_id),
        )
    raise AdminError(
        f"no name server answers; {'; '.join(reasons)} (check the name servers' addresses; "
        "`triomq namesrv` or `triomq cluster` starts one)"
    )


def _silence(error: Exception, expected: str, timeout_s: float) -> str:
    """The reason why a server could not be asked, in words.

    Args:
        error: the error of the request.
        expected: the expected kind of server, "name server" or "broker".
        timeout_s: the timeout of the request.
    """
    if isinstance(error, trio.TooSlowError | AnswerTimeoutError):
        cause = "it may be a name server, or hang: look at its process and its log" if expected == "broker" else ""
        return f"it does not answer within {timeout_s:g} s: {cause or 'it may be no name server, or hang'}"
    if isinstance(error, LinkClosedError) and error.fault.startswith("TLS: "):
        return error.fault
    if isinstance(error, LinkClosedError):
        _, mark, protocol = error.fault.partition(_OTHER_PROTOCOL)
        if mark:
            return f"the peer speaks {protocol}" + (": give --tls" if protocol == "TLS" else "")
        why = f"its bytes are not RocketMQ frames: {error.fault}" if error.fault else "the connection ended unanswered"
        return f"{why}; it may be a web server or expect TLS (--tls)"
    return error_text(error)


async def replication(name_servers: str, open_link: OpenLink = open_link) -> list[Row]:
    """The state of every registered broker's replication."""
    found = await members(name_servers, open_link)
    rows: dict[Member, Row] = {}

    async def look(member: Member) -> None:
        rows[member] = await _row(member, open_link)

    async with trio.open_nursery() as nursery:
        for member in found:
            nursery.start_soon(look, member)
    hidden = _hidden(rows.values())
    async with trio.open_nursery() as nursery:
        for member in hidden:
            nursery.start_soon(look, member)
    return [rows[member] for member in sorted(rows, key=lambda member: (member.name, member.broker_id, member.address))]


def _hidden(rows: Iterable[Row]) -> list[Member]:
    """The brokers that name servers do not list, because another broker with the same id has registered after them."""
    listed = {row.member.address for row in rows}
    found = [
        Member(row.member.name, row.member.broker_id, row.status.id_contested_by)
        for row in rows
        if row.status is not None and row.status.id_contested_by is not None
    ]
    return [member for member in dict.fromkeys(found) if member.address not in listed]


async def _row(member: Member, open_link: OpenLink) -> Row:
    try:
        answer = await _ask(open_link, member.address, Command.request(HA_STATUS), TIMEOUT_S)
        if answer.code == ResponseCode.SUCCESS:
            status = HaStatus.decode(answer.body)
            return Row(member, status, status.log_begin, status.log_end)
        if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return _refusal(member, answer)
        info = await _ask(open_link, member.address, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), TIMEOUT_S)
        if info.code != ResponseCode.SUCCESS:
            return _refusal(member, info)
        table = KVTable.decode(info.body).table
        return Row(member, None, int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"]))
    except (*_FAILURES, KeyError, ValueError) as error:
        return Row(member, None, error=_silence(error, "broker", TIMEOUT_S), may_run=not _is_refusal(error))


def _refusal(member: Member, answer: Command) -> Row:
    return Row(member, None, error=answer.remark or f"code {answer.code}", may_run=True, refused=True)


def _is_refusal(error: BaseException) -> bool:
    """Whether nothing listens at the address: its machine answers, but no process does."""
    errors: list[BaseException] = [error]
    while (cause := errors[-1].__cause__) is not None:
        errors.append(cause)
    found = errors[-1].exceptions if isinstance(errors[-1], BaseExceptionGroup) else [errors[-1]]
    return all(isinstance(one, ConnectionRefusedError) for one in found)


def slave_state(row: Row, rows: list[Row]) -> str:
    """The state of a slave's log: CLEAN, BEHIND with the bytes, AHEAD, DIVERGED, UNKNOWN; empty for a master."""
    if row.error is not None:
        return "?"
    if row.member.broker_id == 0:
        return ""
    following = row.status.following if row.status is not None else None
    reported = "" if following is None else following.relation
    master = next((one for one in rows if one.member.name == row.member.name and one.member.broker_id == 0), None)
    if reported in ("AHEAD", "DIVERGED"):
        return reported
    if master is None or master.error is not None:
        # The slave's findings from when there was a master may be old.
        return "UNKNOWN"
    if following is not None and not following.connected:
        return reported
    missing = master.log_end - row.log_end
    if missing < 0:  # the slave was asked a moment after its master, or has more than it
        return reported if reported in ("CLEAN", "BEHIND") else "AHEAD"
    return f"BEHIND {missing}" if missing else "CLEAN"


_JUST_STARTED = "has just started and knows {whom} within 30 seconds"


def outage_text(rows: list[Row]) -> str:
    """The sets without a master, and the brokers that do not answer or refuse; empty if there are none.

    A promotion is advised only if no slave is connected to a master: a second master would split the set.
    """
    if not rows:
        return (
            f"no broker is registered: they are all down, or the name server {_JUST_STARTED.format(whom='them')} "
            "(`triomq broker` starts one)"
        )
    names = dict.fromkeys(row.member.name for row in rows)
    headed = {row.member.name for row in rows if row.member.broker_id == 0}
    headless = [name for name in names if name not in headed]
    followers = {name: _connected_slave(rows, name) for name in headless}
    lost = [f"broker {name}: no master is registered" for name in headless if followers[name] is None]
    alive = [
        f"broker {name}: its master runs, since slave {name}:{slave.broker_id} is connected to it, but is not registered"
        for name, slave in followers.items()
        if slave is not None
    ]
    silent = [row for row in rows if row.error]
    doubtful = {row.member.name for row in silent if row.may_run and not row.refused and row.member.broker_id == 0}
    gone = {row.member.name for row in silent if not row.may_run and row.member.broker_id == 0}
    silences = [_silence_text(row) for row in silent]
    advice = []
    if headless:
        advice.append(f"wait if the name server {_JUST_STARTED.format(whom='all brokers')}")
    if alive:
        advice.append("after that check the master's namesrvAddr and its log")
    if doubtful:
        advice.append(
            "look at the process and the log of a master that is silent: it may only hang, and a slave that is made the "
            "master meanwhile could give the set two masters; resume or restart it, or end it for good before you use "
            "`triomq admin role`"
        )
    if lost or gone:
        headless_sets = [name for name in names if name in gone or (name in followers and followers[name] is None)]
        which = f" of {', '.join(headless_sets)}" if doubtful else ""
        advice.append(f"start what is missing, or make a slave{which} the master: `triomq admin role`")
    elif any(row.member.broker_id != 0 and not row.refused for row in silent):
        advice.append("start what is missing")
    if any(row.refused for row in silent):
        advice.append(
            "a broker that refuses runs: with access control give the account of an administrator, --credentials-file FILE"
        )
    parts = [*lost, *alive, *silences]
    missing = f"{'; '.join(parts)} ({'; '.join(advice)})" if parts else ""
    return "; ".join(filter(None, [missing, contest_text(rows)]))


def _silence_text(row: Row) -> str:
    member = row.member
    where = f"{member.name}:{member.broker_id} at {member.address}"
    if row.refused:
        return f"{where} refuses to show its state"
    if member.broker_id == 0 and row.may_run:
        return f"{where} is registered as master but does not answer"
    return f"{where} does not answer"


def _connected_slave(rows: list[Row], name: str) -> Member | None:
    """The first slave of a set that is connected to a master; None if slaves may only be connected to each other, since
    a master that was made a slave keeps accepting their links."""
    states = [(row.member, row.status) for row in rows if row.member.name == name and row.status is not None]
    links = sum(len(status.slaves) for _, status in states if status.role == "SLAVE")
    found = [member for member, status in states if status.following is not None and status.following.connected]
    return found[0] if len(found) > links else None


def contest_text(rows: list[Row]) -> str:
    """The ids shared by two live brokers; empty if each has its own."""
    pairs = {
        (row.member.name, row.member.broker_id, *sorted((row.member.address, row.status.id_contested_by)))
        for row in rows
        if row.status is not None and row.status.id_contested_by is not None
    }
    if not pairs:
        return ""
    texts = [f"{name}:{number} is the id of {one} and of {other}" for name, number, one, other in sorted(pairs)]
    return (
        f"{'; '.join(texts)}: name servers list only the one that registered last "
        "(stop one, or give it another id: `triomq admin role HOST:PORT slave --id N`)"
    )


async def change_role(
    name_servers: str,
    broker: str,
    role: str,
    *,
    broker_id: int | None = None,
    force: bool = False,
    despite_contest: bool = False,
    open_link: OpenLink = open_link,
) -> ChangeRoleResponse:
    """Make a broker master or slave; returns its role and id, once the name servers know them. Raises AdminError."""
    header = ChangeRoleRequest(role=role, broker_id=broker_id, force=force, despite_contest=despite_contest)
    answer = await _order(name_servers, broker, Command.request(CHANGE_ROLE, header), open_link)
    try:
        return answer.header(ChangeRoleResponse)
    except ProtocolError as error:
        raise AdminError(f"{broker} has changed its role, but does not report it: {error}") from error


async def cut(name_servers: str, broker: str, open_link: OpenLink = open_link) -> int:
    """Truncate a slave's log to the part that its master has; returns the bytes dropped. Raises AdminError."""
    answer = await _order(name_servers, broker, Command.request(CUT_LOG), open_link)
    return int((answer.fields or {})["droppedBytes"])


async def slave_to_cut(name_servers: str, broker: str, open_link: OpenLink = open_link) -> str:
    """The address of a slave whose log can be cut. Raises AdminError for any other broker."""
    address = await _address_of(name_servers, broker, open_link)
    row = await _row(Member(broker, -1, address), open_link)
    if row.error is not None:
        raise AdminError(f"{address}: {row.error}")
    if row.status is None:
        raise AdminError(f"{address} is a RocketMQ broker, whose log cannot be cut")
    if row.status.role != "SLAVE":
        raise AdminError(f"{address} is {row.status.role}; only a slave's log can be cut")
    return address


async def _order(name_servers: str, broker: str, command: Command, open_link: OpenLink) -> Command:
    address = await _address_of(name_servers, broker, open_link)
    try:
        answer = await _ask(open_link, address, command, CHANGE_TIMEOUT_S)
    except _FAILURES as error:
        raise AdminError(f"{address}: {_silence(error, 'broker', CHANGE_TIMEOUT_S)}") from error
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise AdminError(f"{address} is a RocketMQ broker: it can do this only by a restart with another configuration")
    if answer.code != ResponseCode.SUCCESS:
        # If a role was taken but not saved, the answer still names the broker.
        taken = command.code == CHANGE_ROLE and "brokerName" in (answer.fields or {})
        raise AdminError(f"{address} {'has taken the role, but' if taken else 'refuses:'} {answer.remark}")
    return answer


async def _address_of(name_servers: str, broker: str, open_link: OpenLink) -> str:
    """Resolve `name:id`, the name of a set with one member, or `host:port`, which needs no name server."""
    host, _, port = broker.rpartition(":")
    # A misspelt name with an id should get the list of brokers: ids are small, and the ports of brokers are not.
    is_address = bool(host) and port.isdecimal() and (int(port) >= _PORT_MIN or "." in host)
    if is_address and _is_ip_address(host):
        return broker
    try:
        found = await members(name_servers, open_link)
    except AdminError:
        if is_address:
            return broker
        raise
    if is_address and host not in {one.name for one in found}:
        return broker
    fitting = [one for one in found if broker in (one.address, f"{one.name}:{one.broker_id}")]
    fitting = fitting or [one for one in found if one.name == broker]
    if len(fitting) == 1:
        return fitting[0].address
    known = ", ".join(f"{one.name}:{one.broker_id} at {one.address}" for one in fitting or found)
    if fitting:
        raise AdminError(f"{broker} has more than one broker: {known}; give NAME:ID or HOST:PORT")
    raise AdminError(f"no broker {broker}; the brokers are: {known or 'none'} (give NAME:ID or HOST:PORT)")


def _is_ip_address(host: str) -> bool:
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


async def _ask(open_link: OpenLink, address: str, command: Command, timeout_s: float) -> Command:
    with trio.fail_after(timeout_s):
        async with open_link(address) as link:
            return await link.request(command, timeout_s)


# -- the command line

_name_servers = click.option(
    "-n", "--name-servers", "--namesrv-addr", "name_servers", metavar="HOST:PORT;...", envvar="NAMESRV_ADDR",
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
        *(_line(row, rows) for row in rows),
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for row in rows:
        for text in _notes(row):
            click.echo(f"{row.member.address}: {text}")


@admin.command()
@click.argument("broker")
@click.argument("role", type=click.Choice(["master", "sync-master", "slave"]))
@_servers_and_account
@click.option(
    "--id",
    "broker_id",
    type=click.IntRange(1),
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
    click.echo(f"{now.broker_addr} is {role} now, as {now.broker_name}:{now.broker_id}")
    if now.kept_in is None:
        click.echo(
            "Started again, it takes the role of its command line: there is no configuration file (-c) to keep this one."
        )
    else:
        click.echo(f"Started again, it takes this role from {now.kept_in}.")


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
    if not sys.stdin.isatty():
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
