"""Operators' requests about replication: its state, changes of the role, truncating a slave's log, and reading a log.

The codes are our own, except 907 of RocketMQ 5; a RocketMQ broker answers our codes with code 3. `triomq admin ha`,
`role`, `cut` and `repair-store` send them.
"""

from __future__ import annotations

from functools import partial

import trio

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.wire.body import Body
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.header import Header
from triomq_server.broker.broker import Broker
from triomq_server.broker.roles.roles import RoleError, RoleNotKept, Roles
from triomq_server.config import BrokerRole
from triomq_server.replication.log_copy import READ_LOG, READ_MOST_BYTES, ReadLogRequest
from triomq_server.wire import Handlers, Link

HA_STATUS = 29_001
CHANGE_ROLE = 29_002
CUT_LOG = 29_003


class SlaveState(Body, kw_only=True):
    """A slave as its master sees it; offsets in bytes of the log, -1 before the first report."""

    peer: str
    acknowledged: int
    behind_bytes: int
    sent_bytes: int
    silent_s: float
    lost_position: bool


class RefusedState(Body, kw_only=True):
    """A slave that was refused, because its log is longer than the master's."""

    peer: str
    offset: int
    log_end: int
    ago_s: float


class FollowingState(Body, kw_only=True):
    """A slave as it sees itself; `commonEnd` is -1 where nothing was compared."""

    master: str | None = None
    connected: bool
    relation: str
    common_end: int
    master_end: int
    received_bytes: int
    metadata_master: str | None = None
    metadata_rounds: int
    last_error: str | None = None


class HaStatus(Body, kw_only=True):
    """The state of one broker's replication. The log reaches from `logBegin` to `logEnd`; `acknowledged` is what slaves
    hold; `idContestedBy` is the address of another live broker with the same id."""

    broker_name: str
    broker_id: int
    role: str
    address: str
    log_begin: int
    log_end: int
    flushed: int
    acknowledged: int
    slaves: list[SlaveState]
    refused: list[RefusedState]
    following: FollowingState | None = None
    id_contested_by: str | None = None


class ConnectionRuntimeInfo(Body, kw_only=True):
    """A slave in the answer to 907."""

    addr: str
    diff: int
    in_sync: bool
    slave_ack_offset: int
    transfer_from_where: int
    transferred_byte_in_second: int = 0
    """Rates are not measured."""


class ClientRuntimeInfo(Body, kw_only=True):
    """A slave's state in the answer to 907, as it reports it; times in ms, 0 where nothing has been received."""

    activated: bool = False
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_addr: str | None = None
    master_flush_offset: int = 0
    max_offset: int = 0
    transferred_byte_in_second: int = 0


class HaRuntimeInfo(Body, kw_only=True):
    """Answer body of GET_BROKER_HA_STATUS (907)."""

    ha_client_runtime_info: ClientRuntimeInfo
    ha_connection_info: list[ConnectionRuntimeInfo]
    in_sync_slave_nums: int
    master: bool
    master_commit_log_max_offset: int


class ChangeRoleRequest(Header, kw_only=True):
    """Header of CHANGE_ROLE.

    Attributes:
        role: ASYNC_MASTER, SYNC_MASTER or SLAVE.
        broker_id: a slave's id; absent: the smallest free one.
        force: become master although the name servers know another, or take the id of an offline broker.
        despite_contest: become master although another live broker has the same id.
    """

    role: str
    broker_id: int | None = None
    force: bool = False
    despite_contest: bool = False


class ChangeRoleResponse(Header, kw_only=True):
    """Header of the answer to CHANGE_ROLE.

    Attributes:
        broker_name, broker_addr, broker_id: the broker's name, address and id now.
        kept_in: the file from which the next start reads the role; absent if there is none.
    """

    broker_name: str
    broker_addr: str
    broker_id: int
    kept_in: str | None = None


def register(handlers: Handlers, broker: Broker, roles: Roles) -> None:
    """Put the functions of this module into the table of request codes."""
    handlers.plain[HA_STATUS] = partial(answer_status, broker)
    handlers.plain[RequestCode.GET_BROKER_HA_STATUS] = partial(answer_runtime_info, broker)
    handlers.plain[READ_LOG] = partial(read_log, broker)
    handlers.waiting[CHANGE_ROLE] = partial(change_role, broker, roles)
    handlers.waiting[CUT_LOG] = partial(cut_log, roles)


def answer_status(broker: Broker, _link: Link, command: Command) -> Command:
    """HA_STATUS: the broker's HaStatus."""
    return command.answer(body=ha_status(broker, trio.current_time()).encode())


def ha_status(broker: Broker, now: float) -> HaStatus:
    """The state of replication at trio's time `now`."""
    store, config, master, following = broker.store, broker.config, broker.replication, broker.following
    end = store.log_max_offset
    status = HaStatus(
        broker_name=config.broker_name,
        broker_id=config.broker_id,
        role=str(config.store.broker_role),
        address=broker.address,
        log_begin=store.log_min_offset,
        log_end=end,
        flushed=store.flushed_offset,
        acknowledged=master.acknowledged_offset,
        id_contested_by=broker.set_members.contested_by,
        slaves=[
            SlaveState(
                peer=link.peer,
                acknowledged=-1 if link.acknowledged_offset is None else link.acknowledged_offset,
                behind_bytes=end - (link.acknowledged_offset or 0),
                sent_bytes=link.sent_bytes,
                silent_s=round(now - link.last_report, 3),
                lost_position=link.lost_position,
            )
            for link in master.links
        ],
        refused=[
            RefusedState(peer=one.peer, offset=one.offset, log_end=one.log_end, ago_s=round(now - one.at, 3))
            for one in master.refused
        ],
    )
    if following is not None:
        log, compared = following.log.status, following.log.status.compared
        status.following = FollowingState(
            master=log.master,
            connected=log.connected,
            relation=str(following.log.relation),
            common_end=-1 if compared.common_end is None else compared.common_end,
            master_end=max(compared.master_end, end) if log.connected else compared.master_end,
            received_bytes=log.received_bytes,
            metadata_master=following.metadata.master,
            metadata_rounds=following.metadata.rounds,
            last_error=log.last_error,
        )
    return status


def answer_runtime_info(broker: Broker, _link: Link, command: Command) -> Command:
    """907: the same for tools of RocketMQ 5."""
    now = trio.current_time()
    return command.answer(body=runtime_info_of(ha_status(broker, now), broker, now).encode())


def runtime_info_of(status: HaStatus, broker: Broker, now: float) -> HaRuntimeInfo:
    """The state of replication at trio's time `now`, in RocketMQ 5's terms."""
    most = broker.config.store.ha_slave_fallbehind_max
    slaves = [
        ConnectionRuntimeInfo(
            addr=slave.peer,
            diff=slave.behind_bytes,
            in_sync=slave.acknowledged >= 0 and slave.behind_bytes < most,
            slave_ack_offset=max(slave.acknowledged, 0),
            transfer_from_where=max(slave.acknowledged, 0),
        )
        for slave in status.slaves
    ]
    client = ClientRuntimeInfo()
    if broker.following is not None and status.following is not None:
        received = broker.following.log.status.last_received
        read_ms = 0 if received is None else broker.clock() - int((now - received) * 1000)
        client = ClientRuntimeInfo(
            activated=status.following.connected,
            last_read_timestamp=read_ms,
            last_write_timestamp=read_ms,
            master_addr=status.following.master,
            master_flush_offset=max(status.following.master_end, 0),
            max_offset=status.log_end,
        )
    return HaRuntimeInfo(
        ha_client_runtime_info=client,
        ha_connection_info=slaves,
        in_sync_slave_nums=sum(slave.in_sync for slave in slaves),
        master=not broker.is_slave,
        master_commit_log_max_offset=0 if broker.is_slave else status.log_end,
    )


def read_log(broker: Broker, link: Link, command: Command) -> Command:
    """READ_LOG: bytes of the log from an offset on, never across a file's end; at least one byte."""
    header = command.header(ReadLogRequest)
    if not broker.replication.is_known(link.peer):
        return command.answer(
            ResponseCode.NO_PERMISSION, f"{link.peer} is not among haSlaveAddresses: it gets no bytes of the log"
        )
    store = broker.store
    most = max(0, min(header.most_bytes, READ_MOST_BYTES))
    data = store.log_slice(header.offset, most) if most else None
    if not data:
        return command.answer(
            ResponseCode.SYSTEM_ERROR,
            f"there are no bytes at log offset {header.offset}; the log reaches from {store.log_min_offset} to "
            f"{store.log_max_offset}",
        )
    return command.answer(body=bytes(data))


async def change_role(broker: Broker, roles: Roles, _link: Link, command: Command) -> Command:
    """CHANGE_ROLE: answered when the name servers know the new role."""
    header = command.header(ChangeRoleRequest)
    try:
        role = BrokerRole(header.role)
    except ValueError:
        known = ", ".join(BrokerRole)
        return command.answer(ResponseCode.SYSTEM_ERROR, f"no such role: {header.role}; there are {known}")
    try:
        if role is BrokerRole.SLAVE:
            await roles.become_slave(header.broker_id, force=header.force)
        else:
            await roles.become_master(role, force=header.force, despite_contest=header.despite_contest)
    except RoleNotKept as error:
        # With who the broker is now, as where all went well: a refusal has no header.
        return command.answer(ResponseCode.SYSTEM_ERROR, str(error), _changed(broker, kept_in=None))
    except RoleError as error:
        return command.answer(ResponseCode.SYSTEM_ERROR, str(error))
    kept = broker.role_file or broker.config_file
    return command.answer(header=_changed(broker, kept_in=None if kept is None else kept.path))


def _changed(broker: Broker, kept_in: str | None) -> ChangeRoleResponse:
    return ChangeRoleResponse(
        broker_name=broker.config.broker_name,
        broker_addr=broker.address,
        broker_id=broker.config.broker_id,
        kept_in=kept_in,
    )


async def cut_log(roles: Roles, _link: Link, command: Command) -> Command:
    """CUT_LOG: truncate the log to the part the master has; the header field `droppedBytes` is the number of bytes dropped."""
    try:
        dropped = await roles.cut()
    except RoleError as error:
        return command.answer(ResponseCode.SYSTEM_ERROR, str(error))
    return command.answer(fields={"droppedBytes": str(dropped)})
