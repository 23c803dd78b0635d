"""Replies of request-reply: codes 324 and 325.

The broker pushes them to the requester, and stores them if storeReplyMessageEnable is set. It answers to `ReplyMessageProcessor`; rules: docs/protocol/broker-api.md §4.7, docs/protocol/messages.md §13.
"""

from __future__ import annotations

import logging
from functools import partial

from triomq_protocol.codes import LanguageCode, RequestCode, ResponseCode
from triomq_protocol.errors import ProtocolError
from triomq_protocol.java_text import utf8
from triomq_protocol.message_id import offset_message_id
from triomq_protocol.names import KEYS, REPLY_TO_CLIENT, TAGS, UNIQ_KEY
from triomq_protocol.properties import decode_properties, encode_properties, get_property
from triomq_protocol.record.layout import TRANSACTION_MASK
from triomq_protocol.requests.send import (
    ReplyMessageRequest,
    SendMessageRequest,
    SendMessageRequestV2,
    SendMessageResponse,
)
from triomq_protocol.wire.command import Command
from triomq_server.broker.broker import Broker
from triomq_server.broker.refusals import RefusedError
from triomq_server.broker.requests.sending.checks import SendChecks, SendRequest
from triomq_server.store import AppendStatus, NewRecord
from triomq_server.wire import Handlers, Link, LinkError

PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
PUSH_TIMEOUT_S = 10.0


def register(handlers: Handlers, broker: Broker) -> None:
    """Serve codes 324 and 325."""
    handlers.waiting[RequestCode.SEND_REPLY_MESSAGE] = partial(_handle_reply, broker, SendMessageRequest)
    handlers.waiting[RequestCode.SEND_REPLY_MESSAGE_V2] = partial(_handle_reply, broker, SendMessageRequestV2)


async def _handle_reply(
    broker: Broker, kind: type[SendMessageRequest | SendMessageRequestV2], link: Link, command: Command
) -> Command:
    """Check, push, store, answer: a push that failed is an error even if the reply has been stored."""
    config = broker.config
    fields = {"MSG_REGION": config.region_id, "TRACE_ON": "true" if config.trace_on else "false"}
    header = command.header(kind)
    checks = SendChecks(broker)
    try:
        topic = checks.topic(header, broker.topics.get(header.topic), reply=True)
        queue_id = checks.queue(link, header.queue_id, topic)
    except RefusedError as refused:
        return command.answer(refused.code, refused.remark, fields=fields)
    remark = await _push(broker, link, command, header, queue_id)
    answer: SendMessageResponse | None = None
    if remark is None:
        answer = SendMessageResponse(msg_id="0", queue_id=queue_id, queue_offset=0)
    if config.store_reply_message_enable:
        answer = _store(broker, link, command, header, queue_id) or answer
        broker.store.notify_arrivals()
    code = ResponseCode.SUCCESS if remark is None else ResponseCode.SYSTEM_ERROR
    return command.answer(code, remark, answer, fields=fields)


async def _push(broker: Broker, link: Link, command: Command, header: SendRequest, queue_id: int) -> str | None:
    """Hand the reply to the client that waits for it (code 326); returns what went wrong."""
    properties = decode_properties(header.properties)
    client_id = properties.get(REPLY_TO_CLIENT)
    if client_id is None:
        return f"reply message properties[{REPLY_TO_CLIENT}] is null"
    channel = broker.clients.producer_channel(client_id)
    if channel is None:
        return f"push reply message fail, channel of <{client_id}> not found."
    now_ms = broker.clock()
    pushed = ReplyMessageRequest(
        producer_group=header.producer_group,
        topic=header.topic,
        default_topic=header.default_topic,
        default_topic_queue_nums=header.default_topic_queue_nums or 0,
        queue_id=queue_id,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        flag=header.flag,
        properties=encode_properties(properties | {PUSH_REPLY_TIME: str(now_ms)}),
        reconsume_times=header.reconsume_times or 0,
        unit_mode=header.unit_mode,
        born_host=link.peer,
        store_host=broker.address,
        store_timestamp=now_ms,
    )
    request = Command.request(
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed, body=command.body, language=LanguageCode.JAVA
    )
    try:
        answer = await channel.link.request(request, PUSH_TIMEOUT_S)
    except (LinkError, ProtocolError) as error:
        message = "reply for %s was not taken: %s"
        broker.peer_log.write(logging.WARNING, link.peer, message, client_id[:255], error)
        return f"push reply message to {client_id}fail."
    if answer.code != ResponseCode.SUCCESS:
        return f"push reply message to {client_id}fail."
    return None


def _store(
    broker: Broker, link: Link, command: Command, header: SendRequest, queue_id: int
) -> SendMessageResponse | None:
    """Keep the reply in its topic as well; a failure is only logged."""
    text = header.properties or ""
    # No transaction is begun for a reply: as half of one it would be in no queue. 4.9 drops the flag of compression, too.
    sys_flag = 0 if broker.compat_49 else header.sys_flag & ~TRANSACTION_MASK
    result = broker.store.append(
        NewRecord(
            header.topic,
            queue_id,
            command.body,
            utf8(text),  # unlike those of other messages, as they were sent
            header.flag,
            sys_flag,
            header.born_timestamp,
            link.peer_host,
            broker.store_host,
            header.reconsume_times or 0,
            tags=get_property(text, TAGS),
            keys=get_property(text, KEYS),
            uniq_key=get_property(text, UNIQ_KEY),
        )
    )
    if result.status is not AppendStatus.PUT_OK:
        message = "reply in %s was not stored: %s"
        broker.peer_log.write(logging.WARNING, link.peer, message, header.topic, result.status.name)
        return None
    broker.stats.count_put(header.topic, 1, result.size_bytes)
    return SendMessageResponse(
        msg_id=offset_message_id(broker.store_host, result.physical_offset),
        queue_id=queue_id,
        queue_offset=result.queue_offset,
    )
