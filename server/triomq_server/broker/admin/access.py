"""Operators' requests about access control: 50-54 (docs/protocol/broker-api.md §16).

Upstream: AdminBrokerProcessor, PlainPermissionManager. Without access control they are answered as by a 4.9 broker with
`aclEnable=false`.
"""

from __future__ import annotations

import logging
from functools import partial

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests import (
    CreateAccessConfigRequest,
    DataVersion,
    DeleteAccessConfigRequest,
    GetBrokerAclConfigResponse,
    GetBrokerClusterAclConfigResponse,
    UpdateGlobalWhiteAddrsConfigRequest,
)
from triomq_protocol.wire import fastjson
from triomq_protocol.wire.command import Command
from triomq_server.acl import AclError, AclFiles, entry_of
from triomq_server.broker.broker import Broker
from triomq_server.wire import Handlers, Link

NO_ACCESS_CONTROL_REMARK = "access control is off on this broker (aclEnable=false)"

_FAILURES = {
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
    RequestCode.DELETE_ACL_CONFIG: ResponseCode.DELETE_ACL_CONFIG_FAILED,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
}

_log = logging.getLogger(__name__)


def register(handlers: Handlers, broker: Broker) -> None:
    """Put the functions of this module into the table of request codes."""
    if broker.acl is None:
        for code, failure in _FAILURES.items():
            handlers.plain[code] = partial(refuse, failure)
        handlers.plain[RequestCode.GET_BROKER_CLUSTER_ACL_INFO] = ignore
        handlers.plain[RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG] = ignore
        return
    for code, change in (
        (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, put_account),
        (RequestCode.DELETE_ACL_CONFIG, delete_account),
        (RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, put_white),
    ):
        handlers.waiting[code] = partial(change, broker.acl)
    handlers.waiting[RequestCode.GET_BROKER_CLUSTER_ACL_INFO] = partial(answer_versions, broker, broker.acl)
    handlers.waiting[RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG] = partial(answer_accounts, broker.acl)


async def put_account(acl: AclFiles, link: Link, command: Command) -> Command:
    """50: add an account, or change one."""
    request = command.header(CreateAccessConfigRequest)
    failure = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    try:
        await acl.put_account(entry_of(request))
    except (AclError, OSError) as error:
        return command.answer(failure, str(error))
    _log.info("%s changed account %s", link.peer, request.access_key)
    return command.answer()


async def delete_account(acl: AclFiles, link: Link, command: Command) -> Command:
    """51: delete an account."""
    access_key = command.header(DeleteAccessConfigRequest).access_key or ""
    failure = ResponseCode.DELETE_ACL_CONFIG_FAILED
    try:
        deleted = await acl.delete_account(access_key)
    except (AclError, OSError) as error:
        return command.answer(failure, str(error))
    if not deleted:
        remark = f"The accesskey[{access_key}] corresponding to accessConfig has been deleted failed."
        return command.answer(failure, remark)
    _log.info("%s deleted account %s", link.peer, access_key)
    return command.answer()


async def put_white(acl: AclFiles, link: Link, command: Command) -> Command:
    """53: replace the global white list of a file."""
    request = command.header(UpdateGlobalWhiteAddrsConfigRequest)
    addresses = [text for text in (request.global_white_addrs or "").split(",") if text]
    failure = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
    try:
        found = await acl.put_white(addresses, request.acl_file_full_path)
    except (AclError, OSError) as error:
        return command.answer(failure, str(error))
    if not found:
        remark = f"The globalWhiteAddresses[{request.global_white_addrs}] has been updated failed."
        return command.answer(failure, remark)
    _log.info("%s changed the global white list to %s", link.peer, addresses)
    return command.answer()


async def answer_versions(broker: Broker, acl: AclFiles, _link: Link, command: Command) -> Command:
    """52: the version of each file."""
    versions = await acl.versions()
    each = {path: {"counter": one.counter, "timestamp": one.timestamp} for path, one in versions.items()}
    header = GetBrokerAclConfigResponse(
        version=versions.get(acl.default_file, DataVersion()).encode().decode(),
        all_acl_file_version=fastjson.dumps(each).decode(),
        broker_name=broker.config.broker_name,
        broker_addr=broker.address,
        cluster_name=broker.config.broker_cluster_name,
    )
    return command.answer(header=header)


async def answer_accounts(acl: AclFiles, _link: Link, command: Command) -> Command:
    """54: all accounts with their secrets, and the global white lists."""
    return command.answer(header=GetBrokerClusterAclConfigResponse(), body=await acl.listed())


def refuse(failure: ResponseCode, _link: Link, command: Command) -> Command:
    """50, 51, 53 without access control."""
    return command.answer(failure, NO_ACCESS_CONTROL_REMARK)


def ignore(link: Link, command: Command) -> None:
    """52, 54: without access control 4.9 never answers these, and its tools wait for their timeout."""
