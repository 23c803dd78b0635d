"""Operators' requests about subscription groups: 200, 201, 207 (docs/protocol/broker-api.md §13; upstream:
AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests import DeleteSubscriptionGroupRequest, SubscriptionGroupConfig
from triomq_protocol.wire.command import Command
from triomq_server.broker.broker import Broker
from triomq_server.broker.refusals import SLAVE_REMARK
from triomq_server.broker.tables.topics import group_name_remark
from triomq_server.wire import Handlers, Link


def register(handlers: Handlers, broker: Broker) -> None:
    """Put the functions of this module into the table of request codes."""
    handlers.plain[RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP] = partial(update_group, broker)
    handlers.sliced[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = partial(list_groups, broker)
    handlers.sliced[RequestCode.DELETE_SUBSCRIPTIONGROUP] = partial(delete_group, broker)


def update_group(broker: Broker, _link: Link, command: Command) -> Command:
    """200: create a group, or replace its whole configuration; no body, no effect."""
    if broker.is_slave:
        return command.answer(ResponseCode.SYSTEM_ERROR, SLAVE_REMARK)
    if command.body:
        group = SubscriptionGroupConfig.decode(command.body)
        if not group.group_name:
            return command.answer(ResponseCode.SYSTEM_ERROR, "groupName is missing in the subscription group config")
        remark = group_name_remark(group.group_name)
        if remark is not None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark)
        broker.groups.put(group)
    return command.answer()


def list_groups(broker: Broker, _link: Link, command: Command) -> Generator[None, None, Command]:
    """201: all groups with their version; slaves copy it."""
    return command.answer(body=(yield from broker.groups.snapshot().encode_in_slices()))


def delete_group(broker: Broker, _link: Link, command: Command) -> Generator[None, None, Command]:
    """207: forget a group, and its offsets if asked to; an unknown one is fine."""
    if broker.is_slave:
        return command.answer(ResponseCode.SYSTEM_ERROR, SLAVE_REMARK)
    header = command.header(DeleteSubscriptionGroupRequest)
    broker.groups.remove(header.group_name)
    if header.remove_offset:
        yield from broker.offsets.remove_group(header.group_name)
    return command.answer()
