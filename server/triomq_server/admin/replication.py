"""The state of replication, broker by broker."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import trio

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests.route import KVTable
from triomq_protocol.wire.command import Command
from triomq_server.admin.asking import FAILURES, TIMEOUT_S, ask, failure_text
from triomq_server.admin.members import Member, members
from triomq_server.broker.admin.ha import HA_STATUS, HaStatus
from triomq_server.wire import OpenLink, open_link


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


async def replication(name_servers: str, open_link: OpenLink = open_link) -> list[Row]:
    """The state of every registered broker's replication."""
    found = await members(name_servers, open_link)
    rows: dict[Member, Row] = {}

    async def look(member: Member) -> None:
        rows[member] = await state_of(member, open_link)

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


async def state_of(member: Member, open_link: OpenLink) -> Row:
    """The state of one broker, ours or RocketMQ's. A failure is in the result."""
    try:
        answer = await ask(open_link, member.address, Command.request(HA_STATUS), TIMEOUT_S)
        if answer.code == ResponseCode.SUCCESS:
            status = HaStatus.decode(answer.body)
            return Row(member, status, status.log_begin, status.log_end)
        if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return _refusal(member, answer)
        info = await ask(open_link, member.address, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), TIMEOUT_S)
        if info.code != ResponseCode.SUCCESS:
            return _refusal(member, info)
        table = KVTable.decode(info.body).table
        return Row(member, None, int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"]))
    except (*FAILURES, KeyError, ValueError) as error:
        return Row(member, None, error=failure_text(error, "broker", TIMEOUT_S), may_run=not _is_refusal(error))


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
