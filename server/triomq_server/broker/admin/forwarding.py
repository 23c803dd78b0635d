"""Operators' requests that the broker passes on to clients and back: 222, 223, 307, 309
(docs/protocol/broker-api.md §14).

Upstream: AdminBrokerProcessor, Broker2Client.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from functools import partial

import trio

from triomq_protocol.codes import NOT_SET_REMARK, LanguageCode, RequestCode, ResponseCode, version_description
from triomq_protocol.errors import BodyError
from triomq_protocol.message_id import decode_offset_message_id
from triomq_protocol.requests import (
    ConsumeMessageDirectlyRequest,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusBody,
    GetConsumerStatusRequest,
    MessageQueue,
    MessageQueueForC,
    ResetOffsetBody,
    ResetOffsetBodyForC,
    ResetOffsetRequest,
)
from triomq_protocol.wire.command import Command
from triomq_server.broker.broker import Broker
from triomq_server.broker.tables.clients import ClientChannel
from triomq_server.broker.tables.offsets.committed import FULL_REMARK
from triomq_server.wire import AnswerTimeoutError, Handlers, Link, LinkError, WaitingBytes, in_turns

CALL_TIMEOUT_S = 10.0
STATUS_TIMEOUT_S = 5.0
"""How long a client may take to answer 307 and 309, and 221."""

MEMBERS_PER_TURN = 128
QUEUES_PER_SLICE = 256
"""After how many members, or queues of a topic, other requests have their turns."""

BYTES_PER_SLICE = 1 << 20
NOTIFICATION_BYTES = 8192
"""Bytes sent to members before other requests get their turn, and bytes counted per notification besides its body."""

SHORT_BODY_BYTES = 16_384
"""The largest answer that is decoded in the loop."""

ANSWERS_BYTES = 16 << 20
"""Of members' answers to 221 that are read or kept at a time, of all requests 223 together. A group has few kilobytes of
them for each member."""

RUNNING_INFO_VERSION = 62
RESET_VERSION = 28
"""The oldest client versions (3.1.8 and 3.0.7 snapshots) that understand these calls."""

_DECODING = trio.CapacityLimiter(1)


def register(handlers: Handlers, broker: Broker) -> None:
    """Put the functions of this module into the table of request codes."""
    handlers.waiting[RequestCode.GET_CONSUMER_RUNNING_INFO] = partial(running_info, broker)
    handlers.waiting[RequestCode.CONSUME_MESSAGE_DIRECTLY] = partial(consume_directly, broker)
    handlers.waiting[RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS] = partial(
        consumer_status, broker, WaitingBytes(ANSWERS_BYTES)
    )
    handlers.sliced[RequestCode.INVOKE_BROKER_TO_RESET_OFFSET] = partial(reset_offsets, broker)


# -- one client's answer


async def running_info(broker: Broker, _link: Link, command: Command) -> Command:
    """307: the state that one consumer reports."""
    header = command.header(GetConsumerRunningInfoRequest)
    return await _call(broker, command, header.consumer_group, header.client_id, dict(command.fields or {}), b"")


async def consume_directly(broker: Broker, _link: Link, command: Command) -> Command:
    """309: let one consumer consume one stored message, outside of its queues."""
    header = command.header(ConsumeMessageDirectlyRequest)
    body = b""
    if header.msg_id:
        try:
            offset = decode_offset_message_id(header.msg_id).physical_offset
        except BodyError as error:
            return command.answer(
                ResponseCode.SYSTEM_ERROR, f"msgId {header.msg_id} is not an offset message id: {error}"
            )
        record = broker.store.record_at(offset)
        if record is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        body = bytes(record)
    fields = dict(command.fields or {}) | {"brokerName": broker.config.broker_name}
    return await _call(broker, command, header.consumer_group, header.client_id or "", fields, body)


async def _call(
    broker: Broker, command: Command, group: str, client_id: str, fields: dict[str, str], body: bytes
) -> Command:
    """Send the operator's request on to a member of the group, and turn its answer into ours."""
    channel = broker.clients.consumer_channel(group, client_id)
    if channel is None:
        return command.answer(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
    if channel.version < RUNNING_INFO_VERSION:
        remark = (
            f"The Consumer <{client_id}> Version <{version_description(channel.version)}> too low to finish, "
            "please upgrade it to V3_1_8_SNAPSHOT"
        )
        return command.answer(ResponseCode.SYSTEM_ERROR, remark)
    request = Command.request(command.code, fields=fields, body=body, language=LanguageCode.JAVA)
    try:
        answer = await channel.link.request(request, CALL_TIMEOUT_S)
    except AnswerTimeoutError as error:
        remark = f"consumer <{group}> <{client_id}> Timeout: {error}"
        return command.answer(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
    except LinkError as error:
        remark = f"invoke consumer <{group}> <{client_id}> Exception: {error}"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark)
    return command.answer(answer.code, answer.remark, fields=answer.fields, body=answer.body)


# -- all members' answers


async def consumer_status(broker: Broker, answers: WaitingBytes, _link: Link, command: Command) -> Command:
    """223: how far the members of an online group are in each queue, in their own memory."""
    header = command.header(GetConsumerStatusRequest)
    group = broker.clients.consumers.get(header.group)
    if group is None:
        return command.answer(ResponseCode.SYSTEM_ERROR, f"the consumer group[{header.group}] not online")
    members = [
        channel
        for channel in group.channels.values()
        if not header.client_addr or channel.client_id == header.client_addr
    ]
    refusal = _version_refusal(members)
    if refusal is not None:
        return command.answer(ResponseCode.SYSTEM_ERROR, refusal)
    body = GetConsumerStatusBody(consumer_table={})
    held_bytes = 0

    async def ask(channel: ClientChannel) -> None:
        nonlocal held_bytes
        text = await _status_of(channel, header.topic, header.group)
        if not text:
            return
        if answers.held_bytes + len(text) > answers.limit_bytes:
            nursery.cancel_scope.cancel()
            return
        answers.held_bytes += len(text)
        held_bytes += len(text)
        with suppress(BodyError):  # as RocketMQ, which leaves out such a member, too
            body.consumer_table[channel.client_id] = await _decoded(text)

    try:
        async with trio.open_nursery() as nursery:
            for number, channel in enumerate(members, 1):
                nursery.start_soon(ask, channel)
                if not number % MEMBERS_PER_TURN:
                    await trio.lowlevel.checkpoint()
        if nursery.cancel_scope.cancel_called:
            remark = (
                f"the members of {header.group} answer with more than {answers.limit_bytes} bytes; ask one of them by its "
                "client id"
            )
            return command.answer(ResponseCode.SYSTEM_ERROR, remark)
        return command.answer(remark=NOT_SET_REMARK, body=await in_turns(body.encode_in_slices()))
    finally:
        answers.held_bytes -= held_bytes


async def _status_of(channel: ClientChannel, topic: str, group: str) -> bytes | None:
    """221: the text of one member's queues; None if it does not answer."""
    header = GetConsumerStatusRequest(topic=topic, group=group)
    request = Command.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header, language=LanguageCode.JAVA)
    try:
        answer = await channel.link.request(request, STATUS_TIMEOUT_S)
    except LinkError:
        return None
    return answer.body if answer.code == ResponseCode.SUCCESS else None


async def _decoded(text: bytes) -> dict[MessageQueue, int]:
    """Queues and offsets. BodyError if it is something else."""
    if len(text) <= SHORT_BODY_BYTES:
        return GetConsumerStatusBody.decode(text).message_queue_table
    # A member may answer with megabytes, and in a form that takes seconds to read.
    body = await trio.to_thread.run_sync(GetConsumerStatusBody.decode, text, limiter=_DECODING)
    return body.message_queue_table


def _version_refusal(members: list[ClientChannel]) -> str | None:
    for channel in members:
        if channel.version < RESET_VERSION:
            return f"the client does not support this feature. version={version_description(channel.version)}"
    return None


# -- resetting offsets


def reset_offsets(broker: Broker, _link: Link, command: Command) -> Generator[None, None, Command]:
    """222: find the offset of a point in time in each queue, and let the group's members continue from there.

    The broker changes no committed offset: members drop their queues, take the new offsets over and commit them. For a
    tool of RocketMQ 5 it commits them first: no such tool does it for a group that is offline or pulls.
    """
    header = command.header(ResetOffsetRequest)
    config = broker.topics.get(header.topic)
    if config is None:
        remark = f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark)
    of_5 = header.queue_id is not None
    if of_5 and header.group not in broker.groups.table:
        return command.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist")
    targets: dict[MessageQueue, int] = {}
    for queue_id in _queues_to_reset(header, config.write_queue_nums):
        target = _reset_target(broker, header, queue_id)
        if target is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist")
        targets[MessageQueue(header.topic, broker.config.broker_name, queue_id)] = target
        if not (queue_id + 1) % QUEUES_PER_SLICE:
            yield
    if of_5 and not broker.is_slave and not (yield from _commit(broker, header.group, targets)):
        return command.answer(ResponseCode.SYSTEM_ERROR, FULL_REMARK)
    if of_5 and header.group not in broker.clients.consumers:
        return command.answer(body=(yield from ResetOffsetBody(offset_table=targets).encode_in_slices()))
    return (yield from _reset_members(broker, command, header, targets))


def _reset_members(
    broker: Broker, command: Command, header: ResetOffsetRequest, targets: dict[MessageQueue, int]
) -> Generator[None, None, Command]:
    """220 to all members, and the answer to 222."""
    group = broker.clients.consumers.get(header.group)
    if group is None:
        remark = (
            f"Consumer not online, so can not reset offset, Group: {header.group} "
            f"Topic: {header.topic} Timestamp: {header.timestamp}"
        )
        return command.answer(ResponseCode.CONSUMER_NOT_ONLINE, remark)
    refusal = _version_refusal(list(group.channels.values()))
    if refusal is not None:
        return command.answer(ResponseCode.SYSTEM_ERROR, refusal)
    body = sent = yield from ResetOffsetBody(offset_table=targets).encode_in_slices()
    if command.language == LanguageCode.CPP:
        sent = yield from _body_for_cpp(targets)
    yield from _notify_all(list(group.channels), header, sent)
    return command.answer(remark=NOT_SET_REMARK, body=body)


def _commit(broker: Broker, group: str, targets: dict[MessageQueue, int]) -> Generator[None, None, bool]:
    """Whether all have been taken."""
    for number, (queue, offset) in enumerate(targets.items(), 1):
        if not broker.offsets.commit(group, queue.topic, queue.queue_id, offset):
            return False
        if not number % QUEUES_PER_SLICE:
            yield
    return True


def _queues_to_reset(header: ResetOffsetRequest, queues: int) -> range:
    """All of a topic, or the one that a tool of RocketMQ 5 names."""
    if header.queue_id is None or header.queue_id < 0:
        return range(queues)
    return range(header.queue_id, min(header.queue_id + 1, queues))


def _notify_all(members: list[Link], header: ResetOffsetRequest, body: bytes) -> Generator[None, None, None]:
    """220 to all members. What they do not take is counted between slices, and may close links."""
    size_bytes = 0
    for member in members:
        if member.closed:
            continue
        member.notify(_reset_request(header, body))
        size_bytes += len(body) + NOTIFICATION_BYTES
        if size_bytes > BYTES_PER_SLICE:
            size_bytes = 0
            yield


def _reset_target(broker: Broker, header: ResetOffsetRequest, queue_id: int) -> int | None:
    """The offset from which one queue is to continue. None if the group has never committed one there, except for tools
    of RocketMQ 5, which always send a queue id, if only -1."""
    if header.queue_id is not None and header.queue_id >= 0 and header.offset is not None and header.offset >= 0:
        return min(header.offset, broker.store.queue_bounds(header.topic, queue_id)[1])
    committed = broker.offsets.query(header.group, header.topic, queue_id)
    if committed == -1 and header.queue_id is None:
        return None
    if header.timestamp == -1:
        target = broker.store.queue_bounds(header.topic, queue_id)[1]
    else:
        target = broker.store.offset_by_time(header.topic, queue_id, header.timestamp)
    target = max(target, 0)
    if header.is_force or committed == -1:
        return target
    return min(target, committed if broker.compat_49 else max(committed, 0))


def _body_for_cpp(targets: dict[MessageQueue, int]) -> Generator[None, None, bytes]:
    """The body of 220 for requesters in C++, who ask for a list, since their members cannot read objects as keys."""
    rows = []
    for number, (queue, offset) in enumerate(targets.items(), 1):
        row = MessageQueueForC(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id, offset=offset)
        rows.append(row)
        if not number % MEMBERS_PER_TURN:
            yield
    return (yield from ResetOffsetBodyForC(offset_table=rows).encode_in_slices())


def _reset_request(header: ResetOffsetRequest, body: bytes) -> Command:
    """220 for one member."""
    sent = ResetOffsetRequest(topic=header.topic, group=header.group, timestamp=header.timestamp, is_force=False)
    return Command.request(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET, sent, body=body, oneway=True, language=LanguageCode.JAVA
    )
