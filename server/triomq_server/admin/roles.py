"""Changes of a broker's role, and of a slave's log, while it runs."""

from __future__ import annotations

from triomq_protocol.codes import ResponseCode
from triomq_protocol.errors import ProtocolError
from triomq_protocol.wire.command import Command
from triomq_server.admin.asking import FAILURES, AdminError, ask, failure_text
from triomq_server.admin.members import Member, address_of
from triomq_server.admin.replication import state_of
from triomq_server.broker.admin.ha import CHANGE_ROLE, CUT_LOG, ChangeRoleRequest, ChangeRoleResponse
from triomq_server.wire import OpenLink, open_link

CHANGE_TIMEOUT_S = 30.0
"""A role change or cut waits for name servers, and for slaves that are asked for offsets."""


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
    address = await address_of(name_servers, broker, open_link)
    row = await state_of(Member(broker, -1, address), open_link)
    if row.error is not None:
        raise AdminError(f"{address}: {row.error}")
    if row.status is None:
        raise AdminError(f"{address} is a RocketMQ broker, whose log cannot be cut")
    if row.status.role != "SLAVE":
        raise AdminError(f"{address} is {row.status.role}; only a slave's log can be cut")
    return address


async def _order(name_servers: str, broker: str, command: Command, open_link: OpenLink) -> Command:
    address = await address_of(name_servers, broker, open_link)
    try:
        answer = await ask(open_link, address, command, CHANGE_TIMEOUT_S)
    except FAILURES as error:
        raise AdminError(f"{address}: {failure_text(error, 'broker', CHANGE_TIMEOUT_S)}") from error
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise AdminError(f"{address} is a RocketMQ broker: it can do this only by a restart with another configuration")
    if answer.code != ResponseCode.SUCCESS:
        # If a role was taken but not saved, the answer still names the broker.
        taken = command.code == CHANGE_ROLE and "brokerName" in (answer.fields or {})
        raise AdminError(f"{address} {'has taken the role, but' if taken else 'refuses:'} {answer.remark}")
    return answer
