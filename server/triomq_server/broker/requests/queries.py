"""Looks messages up by key and by id: codes 12 and 33, docs/protocol/broker-api.md §6 (upstream:
QueryMessageProcessor).

Only hashes of keys are compared here; clients compare the keys.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from triomq_protocol.codes import RequestCode, ResponseCode, SerializeType
from triomq_protocol.requests import UNIQUE_KEY_QUERY, QueryMessageRequest, QueryMessageResponse, ViewMessageRequest
from triomq_protocol.wire.command import Command
from triomq_server.broker.broker import Broker
from triomq_server.wire import Handlers, Link


def register(handlers: Handlers, broker: Broker) -> None:
    """Put the functions of this module into the table of request codes."""
    handlers.sliced[RequestCode.QUERY_MESSAGE] = partial(query_by_key, broker)
    handlers.plain[RequestCode.VIEW_MESSAGE_BY_ID] = partial(view_by_id, broker)


def query_by_key(broker: Broker, _link: Link, command: Command) -> Generator[None, None, Command]:
    """12: all messages whose topic and key hash like the given ones, in log order, at most maxMsgsNumBatch."""
    header = command.header(QueryMessageRequest)
    max_num = header.max_num
    if (command.fields or {}).get(UNIQUE_KEY_QUERY) == "true":
        max_num = broker.config.store.default_query_max_num
    max_num = min(max_num, broker.config.store.max_msgs_num_batch)
    found = yield from broker.store.query(
        header.topic, header.key, max_num, header.begin_timestamp, header.end_timestamp
    )
    if not found.records:
        return command.answer(
            ResponseCode.QUERY_NOT_FOUND,
            "can not find message, maybe time range not correct",
            QueryMessageResponse(index_last_update_timestamp=0, index_last_update_phyoffset=0),
        )
    reach = QueryMessageResponse(
        index_last_update_timestamp=found.index_last_update_timestamp,
        index_last_update_phyoffset=found.index_last_update_physical_offset,
    )
    # Java writes both answers of this module in the responder's own serialization, whatever the request's was.
    return command.answer(header=reach, body=b"".join(found.records), serialize=SerializeType.JSON)


def view_by_id(broker: Broker, _link: Link, command: Command) -> Command:
    """33: the record that starts at a physical offset (the last part of an offset message id)."""
    offset = command.header(ViewMessageRequest).offset
    record = broker.store.record_at(offset)
    if record is None:
        return command.answer(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
    return command.answer(body=bytes(record), serialize=SerializeType.JSON)
