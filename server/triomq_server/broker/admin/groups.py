"""Operators' requests about subscription groups: 200, 201, 207, 225, 352, 401 (docs/protocol/broker-api.md §13; upstream:
AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

import trio

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests import (
    DeleteSubscriptionGroupRequest,
    GetSubscriptionGroupConfigRequest,
    SetMessageRequestModeBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
)
from triomq_protocol.wire.command import Command
from triomq_server.broker.broker import Broker
from triomq_server.broker.refusals import INT32_MOST, INT64_MOST, SLAVE_REMARK, range_remark
from triomq_server.broker.tables.topics import QUEUES_LIMIT, group_name_remark
from triomq_server.wire import Handlers, Link, in_turns

GROUPS_PER_SLICE = 64
"""After how many groups of a list other requests have their turns."""


def register(handlers: Handlers, broker: Broker) -> None:
    """Put the functions of this module into the table of request codes."""
    handlers.waiting[RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP] = partial(update_group, broker)
    handlers.sliced[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = partial(list_groups, broker)
    handlers.waiting[RequestCode.DELETE_SUBSCRIPTIONGROUP] = partial(delete_group, broker)
    handlers.waiting[RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST] = partial(update_groups, broker)
    handlers.plain[RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG] = partial(group_config, broker)
    handlers.plain[RequestCode.SET_MESSAGE_REQUEST_MODE] = set_request_mode


async def update_group(broker: Broker, _link: Link, command: Command) -> Command:
    """200: create a group, or replace its whole configuration."""
    if broker.is_slave:
        return command.answer(ResponseCode.SYSTEM_ERROR, SLAVE_REMARK)
    group = SubscriptionGroupConfig.decode(command.body or b"{}")
    refusal = _refusal(group)
    if refusal is not None:
        return command.answer(ResponseCode.SYSTEM_ERROR, refusal)
    broker.groups.put(group)
    return await broker.groups.answer_when_saved(command)


async def update_groups(broker: Broker, _link: Link, command: Command) -> Command:
    """225: create or replace several groups, all or none."""
    if broker.is_slave:
        return command.answer(ResponseCode.SYSTEM_ERROR, SLAVE_REMARK)
    groups = SubscriptionGroupList.decode(command.body).group_config_list
    for number, group in enumerate(groups, 1):
        refusal = _refusal(group)
        if refusal is not None:
            return command.answer(ResponseCode.SYSTEM_ERROR, f"{refusal}; none of the groups is changed")
        if not number % GROUPS_PER_SLICE:
            await trio.lowlevel.checkpoint()
    for number, group in enumerate(groups, 1):
        broker.groups.put(group)
        if not number % GROUPS_PER_SLICE:
            await trio.lowlevel.checkpoint()
    return await broker.groups.answer_when_saved(command)


def _refusal(group: SubscriptionGroupConfig) -> str | None:
    if not group.group_name:
        return "groupName is missing in the subscription group config"
    numbers = (
        ("retryQueueNums", group.retry_queue_nums, 0, QUEUES_LIMIT),
        ("retryMaxTimes", group.retry_max_times, -1, INT32_MOST),
        ("brokerId", group.broker_id, 0, INT64_MOST),
        ("whichBrokerWhenConsumeSlowly", group.which_broker_when_consume_slowly, 0, INT64_MOST),
    )
    return range_remark(numbers) or group_name_remark(group.group_name)


def group_config(broker: Broker, _link: Link, command: Command) -> Command:
    """352: the configuration of one group; an unknown group is made, if the broker makes groups at their first use."""
    name = command.header(GetSubscriptionGroupConfigRequest).group
    group = broker.groups.find(name)
    if group is None:
        remark = broker.groups.full_remark(name) or f"No group in this broker. group: {name}"
        return command.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    return command.answer(body=group.encode())


def set_request_mode(_link: Link, command: Command) -> Command:
    """401: how a group's members ask for messages. They pull, which is what this broker serves."""
    mode = SetMessageRequestModeBody.decode(command.body).mode
    if mode != "PULL":
        return command.answer(
            ResponseCode.SYSTEM_ERROR,
            f"mode {mode}: pop consumption needs a broker of RocketMQ 5; consumers that pull or push work here",
        )
    return command.answer()


def list_groups(broker: Broker, _link: Link, command: Command) -> Generator[None, None, Command]:
    """201: all groups with their version; slaves copy it."""
    return command.answer(body=(yield from broker.groups.encoded_in_slices()))


async def delete_group(broker: Broker, _link: Link, command: Command) -> Command:
    """207: forget a group, and its offsets if asked to; an unknown one is fine."""
    if broker.is_slave:
        return command.answer(ResponseCode.SYSTEM_ERROR, SLAVE_REMARK)
    header = command.header(DeleteSubscriptionGroupRequest)
    broker.groups.remove(header.group_name)
    if header.remove_offset:
        await in_turns(broker.offsets.remove_group(header.group_name))
    return await broker.groups.answer_when_saved(command)
